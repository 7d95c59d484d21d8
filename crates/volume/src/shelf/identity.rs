//! What a directory of a volume is, which life its server is in, which log is its, and which term of tickets
//! it knew: small files of text.
//!
//! In: bytes of a file. Out: what they say, if they are whole; and the bytes to write.
//! Invariant: what was damaged is told from what was never there.

use std::fmt::{self, Write};

use haul_core::volume::ServerNo;
use haul_core::volume::layout::Striping;
use haul_core::volume::ticket::Term;
use haul_core::volume::wire::VolumeId;

/// Longer is none of these files.
pub(super) const LEN_MAX: usize = 1024;
const CHECK: &str = "check ";

/// What a directory is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Of {
    pub volume: VolumeId,
    pub server: ServerNo,
    /// How many servers the volume has.
    pub servers: u16,
    /// Bytes.
    pub stripe_size: u64,
}

impl fmt::Display for Of {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Of { volume, server, servers, stripe_size } = self;
        let volume = hex(&volume.0);
        write!(f, "server {} of {servers} of the volume {volume}, stripes of {stripe_size} bytes", server.0)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Text with the digest of it as its last line.
fn sealed(text: String) -> Vec<u8> {
    let check = blake3::hash(text.as_bytes()).to_hex();
    format!("{text}{CHECK}{check}\n").into_bytes()
}

/// The lines of a text that is whole.
fn unsealed(bytes: &[u8]) -> Option<impl Iterator<Item = &str>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let body = &text[..text.rfind(CHECK)?];
    (sealed(body.to_owned()) == bytes).then(|| body.lines())
}

impl Of {
    /// How files lie on all servers.
    pub(super) fn striping(&self) -> Striping {
        Striping::new(self.stripe_size, self.servers)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let Of { volume, server, servers, stripe_size } = self;
        let (volume, server) = (hex(&volume.0), server.0);
        sealed(format!(
            "haul volume 2\nvolume {volume}\nserver {server}\nservers {servers}\nstripe {stripe_size}\n"
        ))
    }

    /// `None`: damaged, or of a version that this one does not know.
    pub(super) fn decode(bytes: &[u8]) -> Option<Of> {
        let mut lines = unsealed(bytes)?;
        let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        field("haul volume").filter(|version| *version == "2")?;
        let volume = u128::from_str_radix(field("volume")?, 16).ok()?;
        let of = Of {
            volume: VolumeId(volume.to_be_bytes()),
            server: ServerNo(field("server")?.parse().ok()?),
            servers: field("servers")?.parse().ok()?,
            stripe_size: field("stripe")?.parse().ok()?,
        };
        (of.encode() == bytes).then_some(of)
    }
}

pub(super) fn encode_lives(lives: u32) -> Vec<u8> {
    sealed(format!("haul lives 1\nlives {lives}\n"))
}

/// `None`: damaged.
pub(super) fn decode_lives(bytes: &[u8]) -> Option<u32> {
    let lives = unsealed(bytes)?.nth(1)?.strip_prefix("lives ")?.parse().ok()?;
    (encode_lives(lives) == bytes).then_some(lives)
}

pub(super) fn encode_term(term: Term) -> Vec<u8> {
    sealed(format!("haul term 1\nterm {}\n", term.0))
}

/// `None`: damaged.
pub(super) fn decode_term(bytes: &[u8]) -> Option<Term> {
    let term = Term(unsealed(bytes)?.nth(1)?.strip_prefix("term ")?.parse().ok()?);
    (encode_term(term) == bytes).then_some(term)
}

pub(super) fn encode_log(id: &[u8; 16]) -> Vec<u8> {
    sealed(format!("haul log 1\nlog {}\n", hex(id)))
}
