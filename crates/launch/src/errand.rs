//! A haul at the far end that does something else than a copy: an errand.
//!
//! In: a [`RemoteSpec`], the errand's name. Out: what both ends say to each other, JSON by JSON, over the ssh
//! pipe and nothing else.
//! Invariants: what the near end says beyond the errand's name is for haul alone, which has spoken by then;
//! the end of either side ends the pipe.
//! Left out: what is said, and what an errand does, which those who have one know.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use haul_base::escape;
use haul_core::wire::VERSION;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::message::{self, AgentHello, ErrandHello, ErrandReply, MAGIC};
use super::push::{stage0, start_haul};
use super::ssh::{ANSWER_WAIT, Ssh};
use super::{BootstrapError, BootstrapKind, RemoteSpec};

/// An errand that is on its way. When it is dropped the pipe ends, and ssh is waited for.
pub struct Errand {
    ssh: Ssh,
}

impl Errand {
    /// Starts haul at the far end of `spec` for an errand of this name. `login`: how long ssh may say nothing
    /// before the far end speaks, where nobody can answer.
    ///
    /// # Errors
    /// As [`connect`](super::connect)'s.
    pub fn begin(
        spec: &RemoteSpec,
        name: &str,
        login: Duration,
        notes: &mut dyn FnMut(String),
    ) -> Result<Errand, BootstrapError> {
        let hello = ErrandHello { errand: name.into(), protocol: VERSION };
        let frame = message::encode(&hello);
        let frame = frame.map_err(|e| BootstrapError::local("cannot tell the far end what to do", e))?;
        let words = [MAGIC, &frame].concat();
        spec.stop.check()?;
        let mut ssh = Ssh::start(spec, &[], &stage0(), (!spec.interactive).then_some(login))?;
        let told = start_haul(&mut ssh, spec, &words, notes)?;
        ssh.set_silence(ANSWER_WAIT);
        let hello: AgentHello = ssh.read_frame(notes)?;
        if !(hello.protocol_min..=hello.protocol_max).contains(&VERSION) {
            return Err(BootstrapError::new(
                BootstrapKind::Version,
                format!("haul on {} speaks other versions than this one", ssh.host()),
            )
            .remedy("install the same haul at both ends"));
        }
        if !told {
            ssh.send(&words, notes)?;
        }
        Ok(Errand { ssh })
    }

    /// Says something to the far end.
    ///
    /// # Errors
    /// It is too long, or ssh is gone.
    pub fn say<T: Serialize>(
        &mut self,
        said: &T,
        notes: &mut dyn FnMut(String),
    ) -> Result<(), BootstrapError> {
        let frame = message::encode(said);
        let frame = frame.map_err(|e| BootstrapError::local("cannot tell the far end what to do", e))?;
        // Whether anybody heard it shows when it is answered.
        self.ssh.send(&frame, notes).map(drop)
    }

    /// Hears what the far end answers.
    ///
    /// # Errors
    /// ssh is gone, the far end is silent, refuses in its own words, or says something else.
    pub fn hear<T: DeserializeOwned>(&mut self, notes: &mut dyn FnMut(String)) -> Result<T, BootstrapError> {
        match self.ssh.read_frame(notes)? {
            ErrandReply::Answer(value) => serde_json::from_value(value).map_err(|_| {
                let what = format!("haul on {} said something unintelligible", self.ssh.host());
                BootstrapError::new(BootstrapKind::Peer, what)
            }),
            ErrandReply::Error(why) => {
                let what = format!("haul on {} refused: {}", self.ssh.host(), escape::line(why.as_bytes()));
                let remedy = "install the same haul at both ends, or take the one there out of its PATH";
                Err(BootstrapError::new(BootstrapKind::Refused, what).remedy(remedy))
            }
        }
    }
}

/// Does errands at the far end: what it is called, and the line to the near end.
#[derive(Clone)]
pub struct Errands(pub ErrandFn);

/// See [`Errands`].
pub type ErrandFn = Arc<dyn Fn(&str, &mut ErrandLine<'_>) + Send + Sync>;

impl std::fmt::Debug for Errands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Errands")
    }
}

/// The agent's side of an errand.
pub struct ErrandLine<'a> {
    pub(super) input: &'a mut dyn Read,
    pub(super) output: &'a mut dyn Write,
}

impl ErrandLine<'_> {
    /// What the near end says next; `None`: it has nothing more to say, or is gone.
    pub fn hear(&mut self) -> Option<Value> {
        message::read_frame(self.input).ok()
    }

    /// Answers.
    ///
    /// # Errors
    /// The near end is gone.
    pub fn say(&mut self, answer: Value) -> io::Result<()> {
        self.reply(&ErrandReply::Answer(answer))
    }

    /// Says that nothing comes of it, and why.
    ///
    /// # Errors
    /// The near end is gone.
    pub fn refuse(&mut self, why: &str) -> io::Result<()> {
        self.reply(&ErrandReply::Error(why.into()))
    }

    fn reply(&mut self, reply: &ErrandReply) -> io::Result<()> {
        self.output.write_all(&message::encode(reply)?).and_then(|()| self.output.flush())
    }
}
