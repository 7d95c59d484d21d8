//! A TLS connection whose bytes are tokens.
//!
//! In: tokens of the other end, what is to be said. Out: what was heard, tokens for it.
//! Invariants: what is heard of one token is bounded, and so is a token.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::Connection;

use crate::GsiError;
use crate::peer::Peer;

/// Most bytes of a token before a context stands: chains of certificates, requests.
pub const TOKEN_LEN_MAX: usize = 256 << 10;
/// Most bytes of what is said within one token.
pub const PLAIN_LEN_MAX: usize = 4 << 20;
/// Most tokens of one end before a context stands.
pub(crate) const ROUNDS_MAX: usize = 24;

/// How a context goes on.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// This token is for the other end, whose next one is waited for.
    Goes(Vec<u8>),
    /// The context stands. A last token for the other end, if it is not empty.
    Stands(Vec<u8>),
}

pub(crate) struct Tokens {
    connection: Connection,
    peer: Arc<Peer>,
    rounds: usize,
}

impl Tokens {
    pub(crate) fn new(connection: impl Into<Connection>, peer: Arc<Peer>) -> Tokens {
        Tokens { connection: connection.into(), peer, rounds: 0 }
    }

    pub(crate) fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    pub(crate) fn wants_write(&self) -> bool {
        self.connection.wants_write()
    }

    /// What is heard in one token before the context stands.
    pub(crate) fn hear_early(&mut self, token: &[u8]) -> Result<Vec<u8>, GsiError> {
        self.rounds += 1;
        if self.rounds > ROUNDS_MAX {
            return Err(GsiError::broken("the two do not come to an end"));
        }
        if token.len() > TOKEN_LEN_MAX {
            return Err(GsiError::broken("what it says is longer than any real token"));
        }
        self.hear(token)
    }

    /// What is heard in a token.
    pub(crate) fn hear(&mut self, mut token: &[u8]) -> Result<Vec<u8>, GsiError> {
        let strange = || GsiError::broken("what it says is not of this session");
        let mut plain = Vec::new();
        while !token.is_empty() {
            let took = self.connection.read_tls(&mut token).map_err(|_| strange())?;
            let state = self.connection.process_new_packets().map_err(|error| {
                self.peer
                    .failed()
                    .unwrap_or_else(|| GsiError::Broken(format!("what it says is no such TLS: {error}")))
            })?;
            let (have, more) = (plain.len(), state.plaintext_bytes_to_read());
            if have + more > PLAIN_LEN_MAX || took == 0 {
                return Err(strange());
            }
            plain.resize(have + more, 0);
            self.connection.reader().read_exact(&mut plain[have..]).map_err(|_| strange())?;
            if state.peer_has_closed() {
                return Err(GsiError::broken("it ended the session"));
            }
        }
        Ok(plain)
    }

    pub(crate) fn say(&mut self, plain: &[u8]) -> Result<(), GsiError> {
        let failed = |_| GsiError::Here("nothing more can be said in this session".into());
        let mut rest = plain;
        while !rest.is_empty() {
            match self.connection.writer().write(rest).map_err(failed)? {
                0 => return Err(GsiError::Here("more was to be said at once than a token can hold".into())),
                len => rest = &rest[len..],
            }
        }
        Ok(())
    }

    /// What there is for the other end.
    pub(crate) fn token(&mut self) -> Result<Vec<u8>, GsiError> {
        let mut bytes = Vec::new();
        while self.connection.wants_write() {
            self.connection
                .write_tls(&mut bytes)
                .map_err(|_| GsiError::Here("a token could not be made".into()))?;
        }
        Ok(bytes)
    }

    /// A token that says this.
    pub(crate) fn wrap(&mut self, plain: &[u8]) -> Result<Vec<u8>, GsiError> {
        let mut tokens = Vec::new();
        // Of a size that the connection keeps before it is asked for it.
        for some in plain.chunks(32 << 10) {
            self.say(some)?;
            tokens.append(&mut self.token()?);
        }
        Ok(tokens)
    }
}
