//! The end that accepts a context: the server of a control connection.
//!
//! In: as which host it comes, whom it trusts; tokens. Out: tokens; who the other end is, what it delegated;
//! then what is wrapped.
//! Invariants: the context stands only where the other end showed who it is, and that it has the key; a
//! delegated credential is that very one's.
//! Source: `accept_sec_context.c`: behind the handshake it says a byte where it has nothing else to say,
//! hears `0`, or `D` and asks for a proxy.

use rustls::pki_types::UnixTime;

use crate::GsiError;
use crate::credential::Credential;
use crate::peer::{Peer, Who, server};
use crate::proxy::Asked;
use crate::tokens::{Step, Tokens};
use crate::verify::{Authorities, Verified};

enum State {
    Handshake,
    Flag,
    Asked(Asked),
    Stands,
    Failed,
}

/// The context of one control connection.
pub struct Acceptor {
    tokens: Tokens,
    state: State,
    delegated: Option<Credential>,
}

impl Acceptor {
    /// As the host of this credential.
    ///
    /// # Errors
    /// TLS cannot be had with it.
    pub fn new(host: &Credential, authorities: &Authorities) -> Result<Acceptor, GsiError> {
        let peer = Peer::new(authorities, Who::Anybody);
        let tokens = Tokens::new(server(host, &peer)?, peer);
        Ok(Acceptor { tokens, state: State::Handshake, delegated: None })
    }

    /// The next token, after what the other end said.
    ///
    /// # Errors
    /// It is nobody that this host knows, or says what it should not; the context is of no use any more. What
    /// [`Acceptor::last_words`] has tells the other end why.
    pub fn step(&mut self, token: &[u8]) -> Result<Step, GsiError> {
        // Whatever goes wrong leaves it failed.
        let state = std::mem::replace(&mut self.state, State::Failed);
        let heard = self.tokens.hear_early(token)?;
        self.state = match state {
            State::Handshake if self.tokens.is_handshaking() && heard.is_empty() => State::Handshake,
            State::Handshake if !self.tokens.is_handshaking() => {
                if self.peer().is_none() {
                    return Err(GsiError::broken("it showed no certificate"));
                }
                if !heard.is_empty() {
                    return Err(GsiError::broken("it says something out of its turn"));
                }
                if !self.tokens.wants_write() {
                    self.tokens.say(&[0])?;
                }
                State::Flag
            }
            State::Flag if heard == b"0" => State::Stands,
            State::Flag if heard == b"D" => {
                let (asked, request) = Asked::new()?;
                self.tokens.say(&request)?;
                State::Asked(asked)
            }
            State::Asked(asked) => {
                let (whose, chain) = self
                    .tokens
                    .peer()
                    .verified()
                    .ok_or_else(|| GsiError::broken("it showed no certificate"))?;
                let with = (self.tokens.peer().authorities(), UnixTime::now());
                self.delegated = Some(asked.answered(&heard, &chain, &whose, with)?);
                State::Stands
            }
            _ => return Err(GsiError::broken("it says something out of its turn")),
        };
        let token = self.tokens.token()?;
        Ok(if self.stands() { Step::Stands(token) } else { Step::Goes(token) })
    }

    /// Everything was said and heard.
    pub fn stands(&self) -> bool {
        matches!(self.state, State::Stands)
    }

    /// After an error: what tells the other end, perhaps nothing.
    pub fn last_words(&mut self) -> Vec<u8> {
        self.tokens.token().unwrap_or_default()
    }

    /// Who the other end is, once the handshake is over.
    pub fn peer(&self) -> Option<Verified> {
        self.tokens.peer().verified().map(|(verified, _)| verified).filter(|_| !self.tokens.is_handshaking())
    }

    /// What it gave this end to show for it.
    pub fn delegated(&self) -> Option<&Credential> {
        self.delegated.as_ref()
    }

    /// A token that says this.
    ///
    /// # Errors
    /// The context does not stand.
    pub fn wrap(&mut self, plain: &[u8]) -> Result<Vec<u8>, GsiError> {
        match self.stands() {
            true => self.tokens.wrap(plain),
            false => Err(GsiError::broken("nothing is protected yet")),
        }
    }

    /// What a token says.
    ///
    /// # Errors
    /// It is not of this session, or the context does not stand.
    pub fn unwrap(&mut self, token: &[u8]) -> Result<Vec<u8>, GsiError> {
        match self.stands() {
            true => self.tokens.hear(token),
            false => Err(GsiError::broken("nothing is protected yet")),
        }
    }
}
