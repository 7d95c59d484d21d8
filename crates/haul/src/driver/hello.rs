//! What both ends say before anything else, and how its answer is waited for.
//!
//! In: what the user asked, messages of the other end. Out: a hello, what two of them agree on, the answer
//! that was wanted.
//! What must hold: whatever the other end says meanwhile, the deadline comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::RecvTimeoutError;
use haul_core::digest::DigestKind;
use haul_core::entry::DEPTH_MAX;
use haul_core::transfer::ENTRIES_MAX;
use haul_core::wire::{
    Agreed, Capability, Failure, Hello, Limits, Message, STREAMS_MAX, SinkOptions, VERSION, VERSION_MIN,
    capability, negotiate,
};

use super::mailbox::{self, Mailbox};
use super::streams::over;
use super::{Protection, TICK, Watch, local, lost, protocol};
use crate::events::Event;
use crate::options::{Durability, Options, Resume, Verify};
use haul_base::stop::Stop;
use haul_storage::store::Waiting;
use haul_transport::stream::{ControlEvent, ControlHandle};

/// The other end has this long for each step of the set-up; taking over a dead owner's job takes up to 30 s.
const SETUP_MAX: Duration = Duration::from_secs(90);
/// Lines that the other end may have shown to the user meanwhile.
const SETUP_NOTES_MAX: u32 = 16;
/// What it says so is shown as long as it is said.
const WAITING: &str = "waiting ";

/// A deep tree has this many directories open at once, and there must be room for what lies in them.
const ENTRIES_MIN: u32 = 2 * DEPTH_MAX as u32;

/// A session whose ends have not agreed yet: what there is to speak with the other one.
pub(super) struct Opening<'a, T> {
    pub(super) mailbox: &'a Mailbox<T>,
    pub(super) control: &'a ControlHandle,
    pub(super) watch: &'a Watch,
    pub(super) session: [u8; 16],
    pub(super) protection: Protection,
    pub(super) streams: u16,
    /// See [`Links::waits`](super::Links::waits).
    pub(super) waits: Duration,
    /// How long the user would wait for what is away.
    pub(super) patience: Duration,
    /// Set by who reads control when it is lost or the session given up.
    pub(super) gone: &'a Arc<AtomicBool>,
}

impl<T> Opening<'_, T> {
    /// The hello of this end, whose buffers hold so many bytes.
    pub(super) fn hello(&self, memory: u64) -> Hello {
        hello(self.session, self.protection, memory, self.streams)
    }

    pub(super) fn send(&self, message: Message) {
        self.control.send(message);
    }

    /// Waits for the other end's hello, and holds it against ours.
    pub(super) fn agree(&self, ours: &Hello) -> Result<(Agreed, Hello), Failure> {
        let theirs = self.expect(|message| match message {
            Message::Hello(hello) => Ok(Some(hello)),
            _ => Ok(None),
        })?;
        Ok((agree(ours, &theirs)?, theirs))
    }

    /// Whoever has enough of the set-up: the user, or the other end, which is gone or says so. What is waited
    /// for is shown to the user.
    pub(super) fn stop(&self) -> Stop {
        if haul_mutant::removed("stop-before-the-ends-meet") {
            return Stop::never();
        }
        let (handle, gone) = (self.watch.handle.clone(), self.gone.clone());
        let stop = Stop::when(move || handle.stopped() || gone.load(Ordering::Acquire));
        let (watch, send) = (self.watch.clone(), self.control.sender());
        // The other end hears of it, too: it waits as long as this one does.
        stop.hearing(move |what| {
            watch.tell(Event::Waiting(what.to_owned()));
            send(Message::Notice { text: what.into() });
        })
    }

    /// Waits for control messages during the set-up, which does not survive the loss of control.
    pub(super) fn expect<X>(
        &self,
        mut want: impl FnMut(Message) -> Result<Option<X>, Failure>,
    ) -> Result<X, Failure> {
        let begun = Instant::now();
        let mut deadline = begun + SETUP_MAX + self.waits;
        let mut notes = 0;
        loop {
            if self.watch.handle.stopped() {
                return Err(local("stopped during the set-up"));
            }
            let event = match self.mailbox.events.recv_timeout(TICK) {
                // Chatter must not hold off the deadline.
                Ok(event) if Instant::now() < deadline => event,
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => continue,
                Ok(_) | Err(RecvTimeoutError::Timeout) => {
                    return Err(lost("the other end did not answer in time during the set-up"));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(lost("the control stream is gone")),
            };
            let mailbox::Event::Control(event) = event else { continue };
            event.taken(self.control);
            match event {
                ControlEvent::Message(Message::Ping(n)) => self.send(Message::Pong(n)),
                ControlEvent::Message(Message::Pong(_)) => {}
                ControlEvent::Message(Message::Notice { text }) if text.starts_with(WAITING) => {
                    // It waits for no longer than the user's patience.
                    deadline =
                        (Instant::now() + SETUP_MAX).min(begun + SETUP_MAX + self.patience).max(deadline);
                    self.watch.tell(Event::Waiting(text.into()));
                }
                ControlEvent::Message(Message::Notice { text }) => {
                    notes += 1;
                    if notes <= SETUP_NOTES_MAX {
                        self.watch.tell(Event::Note(text.into()));
                    }
                }
                ControlEvent::Message(Message::Abort(failure)) => return Err(failure),
                ControlEvent::Message(message) => {
                    let name = message.name();
                    match want(message)? {
                        Some(value) => return Ok(value),
                        None => return Err(protocol(format!("{name} came where it makes no sense"))),
                    }
                }
                ControlEvent::Lost { why, how, .. } => return Err(over(why, how)),
            }
        }
    }
}

impl<T> Waiting for Opening<'_, T> {
    fn say(&self, text: &str) {
        match self.watch.is_near() {
            true => self.watch.tell(Event::Note(text.to_owned())),
            false => self.send(Message::Notice { text: text.into() }),
        }
    }

    /// The user has enough, or the other end is gone.
    fn stopped(&self) -> bool {
        self.watch.handle.stopped() || self.gone.load(Ordering::Acquire)
    }
}

/// The user's choices that the sink must know.
pub(crate) fn policy(options: &Options) -> SinkOptions {
    SinkOptions {
        durable: options.durability == Durability::Disk,
        force: options.force,
        no_clobber: options.no_clobber,
        update: options.update,
        owner: options.keeps_owners(),
        times: true,
        verify: options.verify == Verify::Disk,
        trust: options.resume == Resume::Trust,
        xattrs: options.xattrs,
        acls: options.acls,
    }
}

/// The hello of this end.
pub(crate) fn hello(session: [u8; 16], protection: Protection, memory: u64, streams: u16) -> Hello {
    // An object must fit into a fraction of the buffers, or reading and writing could not overlap.
    let object_len = (memory / 4).clamp(64 * 1024, 64 * 1024 * 1024);
    let object_len = 1u32 << object_len.ilog2();
    let limits = Limits { object_len, entries: ENTRIES_MAX, streams: streams.clamp(1, STREAMS_MAX) };
    let optional = |kind| Capability { kind, required: false, value: Box::default() };
    let required = |kind| Capability { required: true, ..optional(kind) };
    let mut capabilities: Vec<Capability> = capability::OFFERED.map(optional).into();
    if protection.digest == DigestKind::Xxh3 {
        capabilities.push(required(capability::XXH3));
    }
    if protection.auth_only {
        capabilities.push(required(capability::AUTH_ONLY));
    }
    if protection.parts {
        capabilities.push(required(capability::RANGES));
    }
    if protection.in_place {
        capabilities.push(required(capability::IN_PLACE));
    }
    if protection.metadata {
        capabilities.push(required(capability::METADATA));
    }
    if protection.hard_links {
        capabilities.push(required(capability::HARD_LINKS));
    }
    if protection.manners {
        capabilities.push(required(capability::MANNERS));
    }
    let (version_min, version_max) = (VERSION_MIN, VERSION);
    Hello { version_min, version_max, session, capabilities, limits }
}

/// Holds the other end's hello against ours.
pub(crate) fn agree(ours: &Hello, theirs: &Hello) -> Result<Agreed, Failure> {
    if ours.session != theirs.session {
        return Err(protocol("the other end speaks of another session"));
    }
    let agreed = negotiate(ours, theirs).map_err(|e| protocol(e.to_string()))?;
    if agreed.limits.entries < ENTRIES_MIN {
        let entries = agreed.limits.entries;
        return Err(protocol(format!(
            "a limit of {entries} entries; fewer than {ENTRIES_MIN} may not do for a tree"
        )));
    }
    Ok(agreed)
}
