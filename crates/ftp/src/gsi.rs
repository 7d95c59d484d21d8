//! The security of the grid: GSI on a control connection (RFC 2228 with GSSAPI tokens that are TLS).
//!
//! In: whom to trust and as whom to come, tokens of the server. Out: tokens for it; commands wrapped and
//! replies unwrapped; what data connections need (`channel`).
//! Invariants: nothing is accepted without the check of the server's certificate; once the context stands
//! nothing of the server counts that is not wrapped. What is delegated is limited.
//! Source: RFC 2228, GFD.020; the checks are `haul-gsi`'s.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use data_encoding::BASE64;
use haul_gsi::channel::{self, ChannelError};
use haul_gsi::credential;
use haul_gsi::{Authorities, Delegates, Expects, GsiError, Handshake, Initiator, Level, Rights, Side, Step};

use crate::Error;
use crate::tls::{Bounded, Wire};

/// How long what is delegated lasts, where the user's own credential lasts longer.
const DELEGATED_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

/// What errors of data connections say.
pub(crate) const BEGINNING: &str = "beginning a protected data connection";
/// In place of the server's name.
pub(crate) const OTHER: &str = "the data connection";

/// What is protected on data connections of GridFTP servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataSecurity {
    /// Both ends show whose they are, and all is encrypted (`DCAU A`, `PROT P`).
    #[default]
    Private,
    /// Both ends show whose they are; data go as they are (`DCAU A`, `PROT C`).
    Shown,
    /// Nothing, and nothing is delegated (`DCAU N`).
    None,
}

/// Whom this user trusts, and as whom he comes.
#[derive(Clone, Debug)]
pub struct Credential {
    mine: haul_gsi::Credential,
    authorities: Authorities,
    data: DataSecurity,
    tied: bool,
    /// Where it was found, for people.
    pub from: PathBuf,
}

impl Credential {
    /// The user's proxy, else his certificate and key; the authorities of his or of the host
    /// ([`haul_gsi::Credential::find`], [`haul_gsi::credential::authorities`]).
    ///
    /// # Errors
    /// There is none, others can read it, or nobody would say who a server is; in words with what to do.
    pub fn find() -> Result<Credential, String> {
        Ok(Credential::of(credential::authorities()?, haul_gsi::Credential::find()?))
    }

    /// The same of parts.
    pub fn of(authorities: Authorities, mine: haul_gsi::Credential) -> Credential {
        let from = mine.from.clone();
        Credential { mine, authorities, data: DataSecurity::default(), tied: true, from }
    }

    /// With this on data connections.
    #[must_use]
    pub fn with_data(self, data: DataSecurity) -> Credential {
        Credential { data, ..self }
    }

    /// Of a data connection it need not be shown that it is of the session that asked for it.
    #[must_use]
    pub fn untied(self) -> Credential {
        Credential { tied: false, ..self }
    }

    /// What is protected on data connections.
    pub fn data(&self) -> DataSecurity {
        self.data
    }

    /// What data connections of a session need. `delegated`: the proxy that its server got.
    pub(crate) fn channel(&self, delegated: Option<&[u8]>) -> Option<Channel> {
        let level = match self.data {
            DataSecurity::None => return None,
            DataSecurity::Shown => Level::Clear,
            DataSecurity::Private => Level::Private,
        };
        let identity = self.mine.identity().clone();
        let expects = match delegated.filter(|_| self.tied) {
            Some(proxy) => Expects::Proxy(identity, proxy.to_vec()),
            None => Expects::Identity(identity),
        };
        Some(Channel { mine: self.mine.clone(), authorities: self.authorities.clone(), expects, level })
    }
}

/// What is refused where a server does not take what is delegated to it by a key that is not RSA.
pub const DELEGATED_BY_NO_RSA: &str = "ADAT with what is delegated by a key that is not RSA";

/// The context of one control connection.
pub(crate) struct Context {
    initiator: Initiator,
    is_by_rsa: bool,
    host: String,
}

impl Context {
    pub(crate) fn new(credential: &Credential, host: &str) -> Result<Context, Error> {
        let delegates = match credential.data {
            DataSecurity::None => Delegates::Nothing,
            _ => Delegates::Proxy(Rights::Limited, DELEGATED_FOR),
        };
        let initiator = Initiator::new(&credential.mine, &credential.authorities, host, delegates);
        let initiator = initiator.map_err(|error| untrusted(host, error))?;
        Ok(Context { initiator, is_by_rsa: credential.mine.is_by_rsa(), host: host.into() })
    }

    /// The next token for the server, after what it said.
    pub(crate) fn step(&mut self, token: &[u8]) -> Result<String, Error> {
        let step = self.initiator.step(token).map_err(|error| untrusted(&self.host, error))?;
        let (Step::Goes(token) | Step::Stands(token)) = step;
        Ok(BASE64.encode(&token))
    }

    /// The proxy that the server got.
    pub(crate) fn delegated(&self) -> Option<&[u8]> {
        self.initiator.delegated()
    }

    /// What the server heard last is of delegation, by a key that is not RSA. Globus refuses when it is to
    /// make a key of its own for that, before it has got a proxy.
    pub(crate) fn delegated_by_no_rsa(&self) -> bool {
        !self.is_by_rsa && self.initiator.has_begun_to_delegate()
    }

    /// There is nothing more to say.
    pub(crate) fn stands(&self) -> bool {
        self.initiator.stands()
    }

    /// The line of a command as it goes to the server.
    pub(crate) fn wrap(&mut self, line: &[u8]) -> Result<Vec<u8>, Error> {
        let token = self.initiator.wrap(line).map_err(|error| untrusted(&self.host, error))?;
        Ok([b"ENC ", BASE64.encode(&token).as_bytes(), b"\r\n"].concat())
    }

    /// What stands in a token of the server's.
    pub(crate) fn unwrap(&mut self, token: &[u8]) -> Result<Vec<u8>, Error> {
        let token = decoded(token)?;
        self.initiator.unwrap(&token).map_err(|error| untrusted(&self.host, error))
    }
}

pub(crate) fn untrusted(host: &str, error: GsiError) -> Error {
    Error::Untrusted { to: host.into(), why: error.to_string() }
}

/// A token as it stands in a reply.
pub(crate) fn decoded(token: &[u8]) -> Result<Vec<u8>, Error> {
    let broken =
        |_| Error::Broken { doing: "the security of the grid", why: "a token of the server is no base64" };
    BASE64.decode(token.trim_ascii()).map_err(broken)
}

/// What makes a data connection lead to this user's own.
#[derive(Clone, Debug)]
pub(crate) struct Channel {
    pub(crate) mine: haul_gsi::Credential,
    pub(crate) authorities: Authorities,
    pub(crate) expects: Expects,
    pub(crate) level: Level,
}

impl Channel {
    /// What has both ends of a further connection show whose they are. `side`: whether this end dialled it or
    /// listened. Of the first one of a transfer in stream mode see `channel::begin`.
    pub(crate) fn handshake(&self, side: Side) -> Result<Handshake, Error> {
        let with = (&self.mine, &self.authorities, &self.expects);
        Handshake::new(side, self.level, with).map_err(|error| untrusted(OTHER, error))
    }

    /// Has both ends of a connection show whose they are, within `patience`. `side`: whether this end dialled
    /// it or listened. For who has nothing else to do meanwhile.
    pub(crate) fn protect(&self, mut socket: Bounded, side: Side, patience: Duration) -> Result<Wire, Error> {
        socket.ends_at(Instant::now() + patience);
        let with = (&self.mine, &self.authorities, &self.expects);
        match channel::wrap(socket, side, self.level, with) {
            Ok((wrapped, _)) => Ok(Wire::Grid(Box::new(wrapped))),
            Err(ChannelError::Gsi(error)) => Err(untrusted(OTHER, error)),
            Err(ChannelError::Io(cause)) => Err(Error::lost(BEGINNING, patience, cause)),
        }
    }
}
