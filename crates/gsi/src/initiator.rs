//! The end that begins a context: the client of a control connection.
//!
//! In: as whom it comes, the host that it means, what it delegates; tokens. Out: tokens; then what is
//! wrapped.
//! Invariants: nothing is delegated to whoever was not verified to be that host.
//! Source: `init_sec_context.c`: behind the handshake it says `0`, or `D` and answers a request.

use std::time::Duration;

use rustls::pki_types::UnixTime;

use crate::GsiError;
use crate::cert::Rights;
use crate::credential::Credential;
use crate::peer::{Peer, Who, client};
use crate::proxy;
use crate::tokens::{Step, Tokens};
use crate::verify::{Authorities, Verified};

/// What the other end gets to show for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delegates {
    Nothing,
    /// A proxy with these rights, for as long at most, and never longer than what it comes from.
    Proxy(Rights, Duration),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Handshake,
    Flag,
    Request,
    Stands,
}

/// The context of one control connection.
pub struct Initiator {
    tokens: Tokens,
    mine: Credential,
    delegates: Delegates,
    state: State,
    /// The proxy that was delegated, DER.
    delegated: Option<Vec<u8>>,
}

impl Initiator {
    /// With the server that the user calls `host`.
    ///
    /// # Errors
    /// TLS cannot be had with the credential.
    pub fn new(
        mine: &Credential,
        authorities: &Authorities,
        host: &str,
        delegates: Delegates,
    ) -> Result<Initiator, GsiError> {
        let peer = Peer::new(authorities, Who::Host(host.into()));
        let tokens = Tokens::new(client(mine, &peer)?, peer);
        Ok(Initiator { tokens, mine: mine.clone(), delegates, state: State::Handshake, delegated: None })
    }

    /// The next token, after what the other end said; at first it said nothing.
    ///
    /// # Errors
    /// It is not whom it should be, or says what it should not; the context is of no use any more.
    pub fn step(&mut self, token: &[u8]) -> Result<Step, GsiError> {
        let heard = self.tokens.hear_early(token)?;
        if self.state == State::Stands {
            return Err(GsiError::broken("it goes on where there is nothing more to say"));
        }
        if self.state == State::Handshake {
            if self.tokens.is_handshaking() {
                return self.goes();
            }
            self.state = State::Flag;
            if self.tokens.wants_write() {
                return self.goes();
            }
        }
        match (self.state, self.delegates) {
            (State::Flag, _) if heard.len() > 1 => {
                return Err(GsiError::broken("it says more than its turn"));
            }
            (State::Flag, Delegates::Nothing) => {
                self.tokens.say(b"0")?;
                self.state = State::Stands;
            }
            (State::Flag, Delegates::Proxy(..)) => {
                self.tokens.say(b"D")?;
                self.state = State::Request;
            }
            (State::Request, Delegates::Proxy(rights, lifetime)) => {
                let proxy = proxy::answer(&heard, &self.mine, rights, (lifetime, UnixTime::now()))?;
                self.delegated = Some(proxy::first(&proxy)?);
                self.tokens.say(&proxy)?;
                self.state = State::Stands;
            }
            _ => return Err(GsiError::broken("it says something out of its turn")),
        }
        self.goes()
    }

    fn goes(&mut self) -> Result<Step, GsiError> {
        let token = self.tokens.token()?;
        Ok(if self.state == State::Stands { Step::Stands(token) } else { Step::Goes(token) })
    }

    /// Everything was said that this end has to say. The other end must still agree.
    pub fn stands(&self) -> bool {
        self.state == State::Stands
    }

    /// The certificate of the proxy that was delegated, if one was: DER.
    pub fn delegated(&self) -> Option<&[u8]> {
        self.delegated.as_deref()
    }

    /// Delegation was begun: the other end heard that it is to get a proxy.
    pub fn has_begun_to_delegate(&self) -> bool {
        matches!(self.delegates, Delegates::Proxy(..)) && matches!(self.state, State::Request | State::Stands)
    }

    /// Who the other end is.
    pub fn peer(&self) -> Option<Verified> {
        self.tokens.peer().verified().map(|(verified, _)| verified)
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
