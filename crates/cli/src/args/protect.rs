//! What protects the data: digest, verification, protection on the way.

use clap::{Args, ValueEnum};
use haul::options;

#[derive(Args, Clone, Copy, Debug)]
pub struct Protection {
    /// What the data is hashed with, at both ends
    ///
    /// Default: blake3. Each object is checked as it arrives and each file as a whole. xxh3 costs a fifth of
    /// the processor time and finds accidents, not attackers; it makes no manifest.
    #[arg(long, value_enum, value_name = "KIND", default_value_t = Digest::Blake3)]
    pub digest: Digest,

    /// How far the digest is followed: to the buffer that is written, or to what the disk gives back
    ///
    /// Default: transfer. disk reads each file again at the destination, past the page cache, before it gets
    /// its name, and writes again what came back wrong.
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Verify::Transfer)]
    pub verify: Verify,

    /// What becomes of the parts of files that an interrupted run left at the destination
    ///
    /// Default: check. They are read there while the rest is on its way, and what is not as it was left is
    /// sent again. trust believes the journal of that run, which proves nothing: the files count as copied
    /// and parts of them were never read. Large files of FTP servers begin anew without it.
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Resume::Check)]
    pub resume: Resume,

    /// What guards the data on the network
    ///
    /// Default: tls. integrity leaves the data itself unencrypted (names and control stay encrypted), and
    /// finds whatever was changed on the way; it spares the processor all the cipher. Both ends must allow
    /// it.
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Protect::Tls)]
    pub protect: Protect,

    /// What guards the data connections of GridFTP servers (gsiftp://), and of ftps://
    ///
    /// Default: private. For it, and for shown, the server gets a limited proxy of yours, with which it
    /// shows on each data connection that it serves this session of yours; under ftps:// a data connection
    /// goes on with the TLS session of the commands. untied is for servers that cannot. Commands are always
    /// encrypted.
    #[arg(long, value_enum, value_name = "HOW", default_value_t = DataChannel::Private)]
    pub data_channel: DataChannel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Digest {
    /// Cryptographic: finds accidents and attackers
    Blake3,
    /// XXH3-128: finds accidents only
    Xxh3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Verify {
    /// Each object is checked in the buffer that is written
    Transfer,
    /// And each file as the destination's storage gives it back
    Disk,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Resume {
    /// Each part is read and held against what was written
    Check,
    /// They are believed unread; no manifest can be made
    Trust,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Protect {
    /// All is encrypted and authenticated: TLS 1.3
    Tls,
    /// Data is authenticated and NOT encrypted
    Integrity,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DataChannel {
    /// Both ends show whose they are, and data is encrypted (DCAU A, PROT P)
    Private,
    /// Both ends show whose they are; data is NOT protected (DCAU A, PROT C)
    Shown,
    /// Nothing is delegated, and data is NOT protected (DCAU N)
    Plain,
    /// As private, but whoever can redirect connections can swap those of two sessions
    Untied,
}

impl Protection {
    pub fn data_channel(self) -> options::DataChannel {
        match self.data_channel {
            DataChannel::Private => options::DataChannel::Private,
            DataChannel::Shown => options::DataChannel::Shown,
            DataChannel::Plain => options::DataChannel::Plain,
            DataChannel::Untied => options::DataChannel::Untied,
        }
    }

    pub fn digest(self) -> options::Digest {
        match self.digest {
            Digest::Blake3 => options::Digest::Blake3,
            Digest::Xxh3 => options::Digest::Xxh3,
        }
    }

    pub fn verify(self) -> options::Verify {
        match self.verify {
            Verify::Transfer => options::Verify::Transfer,
            Verify::Disk => options::Verify::Disk,
        }
    }

    pub fn resume(self) -> options::Resume {
        match self.resume {
            Resume::Check => options::Resume::Check,
            Resume::Trust => options::Resume::Trust,
        }
    }

    pub fn protect(self) -> options::Protect {
        match self.protect {
            Protect::Tls => options::Protect::Tls,
            Protect::Integrity => options::Protect::Integrity,
        }
    }
}
