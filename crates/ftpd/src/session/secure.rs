//! Commands about who somebody is and what is protected: `AUTH`, `ADAT`, logins by a certificate, `DCAU`,
//! `PBSZ`, `PROT`; TLS for who is not known.
//!
//! What must hold: nobody is anybody before the context stands and the monitor has said who he is here; data
//! connections are protected as was agreed, or there are none; what was said in the clear has no effect under
//! TLS.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use data_encoding::BASE64;
use haul_gridftp::command::DataAuth;
use haul_gsi::{Acceptor, Authorities, Credential, Directory, Expects, Level, Step};

use super::node::ShownAs;
use super::{ANONYMOUS, Parameters, Session, Then};
use crate::config::{
    Agreed, Answer, CLAIMS_MAX, CONTEXTS_MAX, Claim, Known, Login, Parts, Passed, Secret, Who,
};
use crate::data::{Clear, Guard};
use crate::guard::{Nothing, Shown};
use crate::lock::Lock;
use crate::tls::Tls;

/// What says that the certificate says it all.
const BY_MAP: &str = ":globus-mapping:";

/// What a session knows of security.
pub(super) struct Secure {
    host: Option<Parts>,
    /// As whom this host comes under TLS.
    tls_host: Option<Parts>,
    /// What is said is under TLS.
    tls: Option<Tls>,
    /// A context that does not stand yet.
    context: Option<Acceptor>,
    contexts: u32,
    claims: u32,
    pub(super) agreed: Agreed,
    /// Who has logged in by a certificate: what he delegated, if he did.
    whose: Option<Whose>,
    /// Whom data connections must lead to.
    expects: Option<Expects>,
    /// `DCAU N` was said.
    open: bool,
}

struct Whose {
    delegated: Option<Credential>,
}

impl Secure {
    pub(super) fn new(host: Option<Parts>, tls_host: Option<Parts>) -> Secure {
        let agreed = Agreed::default();
        Secure {
            host,
            tls_host,
            tls: None,
            context: None,
            contexts: 0,
            claims: 0,
            agreed,
            whose: None,
            expects: None,
            open: false,
        }
    }

    /// What is said is under TLS.
    pub(super) fn is_under_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The process before the login has what is said under TLS; data are protected here.
    pub(super) fn go_on_under_tls(&mut self, known: Known, takes_any: bool) -> Result<(), String> {
        let parts = self.tls_host.take().ok_or("the monitor told no certificate for TLS")?;
        self.tls = Some(Tls::new(&parts, known, takes_any)?);
        Ok(())
    }
}

impl Session {
    pub(super) fn security(&mut self, verb: &str, argument: &[u8]) -> (Then, bool) {
        let code = match verb {
            _ if self.config.authorities.is_none() && !self.config.tls => {
                self.plain(502, "Nothing but plain FTP is served here.")
            }
            "AUTH" if self.config.tls && is_tls(argument) => return self.auth_tls(),
            "AUTH" => self.auth(argument),
            "ADAT" => self.adat(argument),
            "CCC" => self.plain(534, "Commands stay protected here."),
            _ => self.plain(503, "There is no context of GSI here."),
        };
        let is_over = self.secure.contexts > CONTEXTS_MAX;
        if is_over {
            self.control.say(421, "Too many attempts to show who you are; goodbye.");
        }
        (if is_over { Then::Leave } else { Then::Next }, code >= 500)
    }

    fn auth(&mut self, argument: &[u8]) -> u16 {
        if self.login.is_some() || self.control_is_protected() {
            return self.plain(503, "Who you are is known; connect anew to be somebody else.");
        }
        let is_gsi = argument.trim_ascii().eq_ignore_ascii_case(b"GSSAPI");
        if !is_gsi || self.config.authorities.is_none() {
            let served = match (self.config.authorities.is_some(), self.config.tls) {
                (true, true) => "Only AUTH TLS and AUTH GSSAPI are served here.",
                (false, true) => "Only AUTH TLS is served here.",
                _ => "Only AUTH GSSAPI is served here.",
            };
            return self.plain(504, served);
        }
        self.secure.contexts += 1;
        let host = self.secure.host.clone().zip(self.authorities());
        let others = self.config.authorities.as_deref().map(crate::people::only_ours);
        let context = match (host, others.and_then(Result::err)) {
            (_, Some(why)) => Err(why),
            (Some((host, authorities)), None) => credential(host, "the host's")
                .and_then(|host| Acceptor::new(&host, &authorities).map_err(|error| error.to_string())),
            (None, None) => Err("the monitor told no credential of this host".into()),
        };
        match context {
            Ok(context) => {
                self.secure.context = Some(context);
                self.plain(334, "Using authentication type GSSAPI; ADAT must follow.")
            }
            Err(why) => {
                self.log.note("error", Some(self.peer), None, &why);
                self.plain(431, "This host cannot show who it is; tell who runs this server.")
            }
        }
    }

    /// Goes under TLS. What the client has said before and behind that, somebody on the way may have said.
    fn auth_tls(&mut self) -> (Then, bool) {
        if self.login.is_some() || self.control_is_protected() {
            return (
                self.said(503, "What protects this session is agreed; connect anew for something else."),
                true,
            );
        }
        if self.control.has_unread() {
            self.log.note("refused", Some(self.peer), None, "commands behind AUTH TLS");
            self.control.say(421, "Behind AUTH TLS nothing is said before it is answered; goodbye.");
            return (Then::Leave, true);
        }
        let parts = self.secure.tls_host.as_ref().ok_or("the monitor told no certificate for TLS".to_owned());
        let tls = match parts.and_then(|parts| Tls::new(parts, Known::new(), self.config.tls_any_data)) {
            Ok(tls) => tls,
            Err(why) => {
                self.log.note("error", Some(self.peer), None, &why);
                return (self.said(431, "This host has no TLS now; tell who runs this server."), true);
            }
        };
        self.control.say(234, "TLS begins.");
        let under = self.control.go_under(|socket| tls.control(socket).map_err(std::io::Error::other));
        if let Err(error) = under {
            // Nothing more can be said that would be understood.
            self.log.note("error", Some(self.peer), None, &format!("AUTH TLS: {error}"));
            return (Then::Leave, true);
        }
        (self.named, self.secure.agreed, self.with) = (None, Agreed::default(), Parameters::new());
        self.data.delayed = false;
        (self.secure.host, self.secure.context, self.secure.tls) = (None, None, Some(tls));
        (Then::Next, false)
    }

    fn adat(&mut self, argument: &[u8]) -> u16 {
        let Some(mut context) = self.secure.context.take() else {
            return self.plain(503, "AUTH GSSAPI comes before ADAT.");
        };
        let Ok(token) = BASE64.decode(argument.trim_ascii()) else {
            return self.plain(501, "ADAT wants base64.");
        };
        match context.step(&token) {
            Ok(Step::Goes(token)) => {
                self.secure.context = Some(context);
                self.plain(335, &format!("ADAT={}", BASE64.encode(&token)))
            }
            Ok(Step::Stands(token)) => {
                // The key of the host has done what it is for.
                self.secure.host = None;
                // What anybody on the way may have said before counts no more (RFC 2228, 3).
                if !haul_mutant::removed("ftpd-names-before-a-context-are-nobodys") {
                    self.named = None;
                }
                self.with = Parameters::new();
                self.data.delayed = false;
                self.secure.agreed = Agreed::default();
                self.set_guard();
                let code = match token.is_empty() {
                    true => self.plain(235, "It is known who you are."),
                    false => self.plain(235, &format!("ADAT={}", BASE64.encode(&token))),
                };
                self.control.protect(Lock::new(context));
                code
            }
            Err(error) => {
                let why = error.to_string();
                self.log.note("refused", Some(self.peer), None, &format!("AUTH GSSAPI: {why}"));
                self.plain(535, &format!("The security of this session failed: {why}."))
            }
        }
    }

    /// Has the monitor say who somebody is here who has shown a certificate.
    pub(super) fn claim(&mut self, user: String) -> (Then, bool) {
        self.secure.claims += 1;
        let is_anonymous = ANONYMOUS.iter().any(|name| user.eq_ignore_ascii_case(name));
        let is_known = self.control.lock().is_some();
        let lock = match self.secure.is_under_tls() || is_anonymous && !is_known {
            // Nobody has shown anything, and anonymous is all that is asked for.
            true => Some(((Secret(Vec::new()), "anonymous".into()), None)),
            false => self.control.lock().and_then(|lock| Some((lock.whose()?, lock.delegated()))),
        };
        let Some(((name, shown), delegated)) = lock.filter(|_| self.secure.claims <= CLAIMS_MAX) else {
            self.control.say(421, "Too many logins; goodbye.");
            return (Then::Leave, true);
        };
        let who = match is_anonymous {
            true => Who::Anonymous,
            false => Who::Shown { name, user: Some(user).filter(|user| user != BY_MAP) },
        };
        let with = Passed {
            unread: Secret(Vec::new()),
            delegated,
            agreed: self.secure.agreed.clone(),
            tls: self.secure.tls.as_ref().map(Tls::known),
            relayed: true,
        };
        let claim = Claim { who, with };
        match self.control.claim(&claim) {
            Ok((Answer::Go(login), _)) => {
                self.enter(login, claim.with.delegated);
                (Then::Next, false)
            }
            Ok((Answer::Follows, Some(server))) => (Then::Relay(UnixStream::from(server)), false),
            Ok((Answer::Refused(why), _)) => (self.said(530, &why), true),
            Ok((Answer::Full(why), _)) => {
                self.control.say(421, &why);
                (Then::Leave, true)
            }
            other => {
                let why = match other {
                    Err(error) => haul_base::errno::text(error),
                    Ok(_) => "no connection came with it".into(),
                };
                let text = format!("the monitor does not answer for {shown}: {why}");
                self.log.note("error", Some(self.peer), None, &text);
                self.control.say(421, "No login is possible now; come again later.");
                (Then::Leave, true)
            }
        }
    }

    /// What data connections of a login are from the start: who came by a certificate has both ends show
    /// whose they are.
    pub(super) fn protect_data(&mut self, login: &Login, delegated: Option<Parts>) {
        // Who looks at files has no use for the host's key.
        (self.secure.host, self.secure.tls_host, self.secure.context) = (None, None, None);
        if login.identity.is_none() {
            self.set_guard();
            return;
        }
        let delegated = delegated.and_then(|parts| match credential(parts, "what was delegated") {
            Ok(mine) => Some(mine),
            Err(why) => {
                self.log.note("error", Some(self.peer), Some(&login.user), &why);
                None
            }
        });
        self.secure.expects = delegated.as_ref().map(|mine| Expects::Identity(mine.identity().clone()));
        self.secure.whose = Some(Whose { delegated });
        self.set_guard();
    }

    /// Who sends data is told TLS sessions to go on with, for he hears his connections out; or is not.
    pub(super) fn tell_senders(&mut self, on: bool) {
        if let Some(tls) = &mut self.secure.tls {
            tls.tell_senders(on);
            self.set_guard();
        }
    }

    /// What data nodes are told: as whom data connections of this session come.
    ///
    /// # Errors
    /// There can be none; in words.
    pub(super) fn shown_at_nodes(&self) -> Result<Option<ShownAs>, String> {
        if let Some((_, why)) = self.data.guard.hindrance() {
            return Err(why.to_owned());
        }
        let (Some(Whose { delegated: Some(mine) }), Some(expects)) =
            (&self.secure.whose, &self.secure.expects)
        else {
            return Ok(None);
        };
        let subject = match expects {
            Expects::Subject(name) => Some(name.to_string()),
            _ => None,
        };
        let delegated = mine.to_der().into_iter().map(Secret).collect();
        Ok(Some(ShownAs { delegated, subject, private: self.secure.agreed.private }))
    }

    /// At a node: data connections come as the front end says, or there are none.
    pub(super) fn show_as(&mut self, shown: ShownAs) -> Result<(), String> {
        const NONE: &str =
            "this node trusts no authorities, and cannot know who comes: start it with --authorities";
        self.data.set_guard(Box::new(Nothing(425, "it is not known whose data connections are")));
        let authorities = self.authorities().ok_or(NONE)?;
        self.config.authorities.as_deref().map_or(Ok(()), crate::people::only_ours)?;
        let ShownAs { delegated, subject, private } = shown;
        let mine = credential(delegated, "what was delegated")?;
        let expects = match subject {
            Some(name) => Expects::Subject(name),
            None => Expects::Identity(mine.identity().clone()),
        };
        let level = if private { Level::Private } else { Level::Clear };
        self.data.set_guard(Box::new(Shown { mine, authorities, expects, level }));
        Ok(())
    }

    fn authorities(&self) -> Option<Authorities> {
        self.config.authorities.clone().map(|dir| Authorities::new(Directory(dir)))
    }

    /// What protects data connections, by what is agreed.
    fn set_guard(&mut self) {
        // Nodes were told what counted before.
        self.stripes = None;
        let private = self.secure.agreed.private;
        let guard: Box<dyn Guard> = match (&self.secure.whose, &self.secure.expects) {
            (None, _) if self.config.tls_required && !private => {
                Box::new(Nothing(522, "data are moved under TLS alone: say PBSZ 0 and PROT P"))
            }
            (None, _) if private => match &self.secure.tls {
                Some(tls) => Box::new(tls.clone()),
                None => Box::new(Nothing(425, "PROT P wants TLS or a login by a certificate; say PROT C")),
            },
            (None, _) => Box::new(Clear),
            (Some(Whose { delegated: None }), None) if !self.secure.open => Box::new(Nothing(
                425,
                "data connections cannot show whose they are, for nothing was delegated: DCAU N does without",
            )),
            (Some(_), None) if private => {
                Box::new(Nothing(425, "PROT P wants what DCAU N leaves out; say DCAU A, or PROT C"))
            }
            (Some(_), None) => Box::new(Clear),
            (Some(Whose { delegated }), Some(expects)) => match (delegated, self.authorities()) {
                (Some(mine), Some(authorities)) => Box::new(Shown {
                    mine: mine.clone(),
                    authorities,
                    expects: expects.clone(),
                    level: if private { Level::Private } else { Level::Clear },
                }),
                _ => Box::new(Nothing(425, "nothing was delegated that could be shown")),
            },
        };
        self.data.set_guard(guard);
    }

    pub(super) fn dcau(&mut self, how: DataAuth<'_>) -> u16 {
        let Some(Whose { delegated }) = &self.secure.whose else {
            return match how {
                DataAuth::None => self.plain(200, "Data connections are not authenticated."),
                _ => self.plain(504, "Only DCAU N is served without AUTH GSSAPI."),
            };
        };
        let identity = delegated.as_ref().map(|mine| mine.identity().clone());
        let (expects, text) = match (how, identity) {
            (DataAuth::None, _) => (None, "Data connections do not show whose they are."),
            (_, None) => return self.plain(504, "Nothing was delegated, so that only DCAU N can be."),
            (DataAuth::Own, Some(identity)) => {
                (Some(Expects::Identity(identity)), "Data connections show that they are yours.")
            }
            (DataAuth::Subject(name), Some(_)) => match std::str::from_utf8(name.trim_ascii()) {
                Ok(name) => (Some(Expects::Subject(name.into())), "Data connections show who they are."),
                Err(_) => return self.plain(501, "DCAU S wants a name as certificates have it."),
            },
        };
        self.secure.open = expects.is_none();
        self.secure.expects = expects;
        self.set_guard();
        self.plain(200, text)
    }

    pub(super) fn pbsz(&mut self, len: u64) -> u16 {
        self.secure.agreed.sized = true;
        match self.config.authorities {
            Some(_) if !self.secure.is_under_tls() => self.plain(200, &format!("PBSZ={len}")),
            _ => self.plain(200, "PBSZ=0"),
        }
    }

    pub(super) fn prot(&mut self, letter: u8) -> u16 {
        match (letter, self.control_is_protected()) {
            (b'C', _) if self.config.tls_required && self.secure.whose.is_none() => {
                self.plain(534, "Data are moved under TLS alone: PROT P.")
            }
            (b'C', _) => {
                self.secure.agreed.private = false;
                self.set_guard();
                self.plain(200, "Data go as they are.")
            }
            (b'S', true) if self.secure.is_under_tls() => self.plain(536, "PROT S is not served: PROT P."),
            (b'S' | b'P', true) if !self.secure.agreed.sized => self.plain(503, "PBSZ comes before PROT."),
            (b'S' | b'P', true) => {
                self.secure.agreed.private = true;
                self.set_guard();
                self.plain(200, "Data are encrypted, and cannot be changed on their way.")
            }
            (b'E', true) => self.plain(536, "PROT E is not served: PROT P."),
            _ => self.plain(536, "Data cannot be protected here: PROT C."),
        }
    }

    /// Nobody on the way can say anything: the client has shown who it is, to this process or to the one
    /// before it, or TLS stands.
    pub(super) fn control_is_protected(&self) -> bool {
        self.control.lock().is_some() || self.secure.whose.is_some() || self.secure.is_under_tls()
    }
}

/// What RFC 4217 calls TLS; SSL is what came before it.
fn is_tls(argument: &[u8]) -> bool {
    [&b"TLS"[..], b"TLS-C"].iter().any(|name| argument.trim_ascii().eq_ignore_ascii_case(name))
}

fn credential(parts: Parts, what: &str) -> Result<Credential, String> {
    Credential::of_der(parts.into_iter().map(Secret::into_bytes).collect(), PathBuf::from(what))
}
