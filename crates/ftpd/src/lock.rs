//! What protects a control connection under GSI: tokens in commands and in replies (RFC 2228, GFD.020).
//!
//! In: lines as they come, lines of replies. Out: what a line says and how it was protected; what goes out.
//! Invariants: a token holds one command; one that is not of this session ends it, for nothing behind it can
//! be read.
//! Left out: how a context comes about, which is the session's.

use data_encoding::BASE64;
use haul_gsi::{Acceptor, GsiError};

use crate::config::Secret;

/// How a command came, and so how its replies go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seal {
    /// As it is.
    Bare,
    /// `MIC`.
    Safe,
    /// `ENC`.
    Private,
    /// `CONF`.
    Hidden,
}

impl Seal {
    /// Of a verb, and the code of what answers it.
    fn of(verb: &[u8]) -> Option<Seal> {
        const VERBS: [(&[u8], Seal); 3] =
            [(b"MIC", Seal::Safe), (b"ENC", Seal::Private), (b"CONF", Seal::Hidden)];
        VERBS.iter().find(|(known, _)| verb.eq_ignore_ascii_case(known)).map(|(_, seal)| *seal)
    }

    fn code(self) -> &'static [u8] {
        match self {
            Seal::Safe => b"631",
            Seal::Hidden => b"633",
            Seal::Bare | Seal::Private => b"632",
        }
    }
}

/// A context that stands.
pub struct Lock(Acceptor);

impl Lock {
    pub fn new(context: Acceptor) -> Lock {
        Lock(context)
    }

    /// Who is at the other end, as his name is encoded and as it is written.
    pub fn whose(&self) -> Option<(Secret, String)> {
        self.0.peer().map(|peer| (Secret(peer.identity.der().to_vec()), peer.identity.text().to_owned()))
    }

    /// What he delegated.
    pub fn delegated(&self) -> Option<Vec<Secret>> {
        self.0.delegated().map(|mine| mine.to_der().into_iter().map(Secret).collect())
    }

    /// What a line says. A bare one says what it is.
    ///
    /// # Errors
    /// It is not of this session, whose end that is.
    pub fn open(&mut self, line: Vec<u8>) -> Result<(Vec<u8>, Seal), GsiError> {
        let end = line.iter().position(|b| *b == b' ').unwrap_or(line.len());
        let Some(seal) = Seal::of(&line[..end]) else { return Ok((line, Seal::Bare)) };
        let broken = |why: &str| GsiError::Broken(why.into());
        let token = BASE64.decode(line[end..].trim_ascii()).map_err(|_| broken("a token is no base64"))?;
        let mut said = self.0.unwrap(&token)?;
        for end in [b'\n', b'\r'] {
            if said.last() == Some(&end) {
                said.pop();
            }
        }
        if said.contains(&b'\n') {
            return Err(broken("a token holds more than one command"));
        }
        Ok((said, seal))
    }

    /// Appends a reply, whose lines end with CRLF, as it goes out.
    ///
    /// # Errors
    /// Nothing can be said in this session any more.
    pub fn close(&mut self, reply: &[u8], seal: Seal, out: &mut Vec<u8>) -> Result<(), GsiError> {
        if seal == Seal::Bare {
            out.extend_from_slice(reply);
            return Ok(());
        }
        let mut lines = reply.split_inclusive(|b| *b == b'\n').peekable();
        while let Some(line) = lines.next() {
            let token = self.0.wrap(line)?;
            out.extend_from_slice(seal.code());
            out.push(if lines.peek().is_some() { b'-' } else { b' ' });
            out.extend_from_slice(BASE64.encode(&token).as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        Ok(())
    }
}
