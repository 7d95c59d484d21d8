//! What is told to people while a session runs: how far it is, and what hangs at either end.
//!
//! In: how this end stands, when asked; notices of the other end. Out: progress for the observer, and notices
//! to the other end, both at most so often.

use std::time::{Duration, Instant};

use haul_core::wire::Message;

use super::{TICK, Watch};
use crate::events::{Event, Progress};
use haul_base::role::Role;
use haul_storage::Stuck;
use haul_transport::stream::ControlHandle;

/// A notice says what stands for three of these.
const NOTICE_HOLDS: Duration = Duration::from_secs(3);
/// The other end is told of what hangs at most this often.
const NOTICE_EVERY: Duration = Duration::from_secs(1);

/// What hangs at either end: this end's operations are told to the other, the other's are kept for the status
/// line.
pub(crate) struct Notices {
    /// This end.
    end: Role,
    sent: Option<Instant>,
    heard: Option<(Instant, Box<str>)>,
}

/// What holds an end up.
pub(crate) struct Hangs {
    /// What it waits for that is away, in words: it says more than what hangs for that.
    pub(crate) away: Option<String>,
    pub(crate) stuck: Vec<Stuck>,
}

impl Notices {
    pub(crate) fn new(end: Role) -> Notices {
        Notices { end, sent: None, heard: None }
    }

    /// The other end says something.
    pub(crate) fn hear(&mut self, text: Box<str>) {
        self.heard = Some((Instant::now(), text));
    }

    /// Tells the other end what hangs here, at most every [`NOTICE_EVERY`], unless this is the end that
    /// people watch.
    pub(crate) fn tell(
        &mut self,
        watch: &Watch,
        control: &ControlHandle,
        dark: bool,
        hangs: impl FnOnce() -> Hangs,
    ) {
        // What waits in the dark would be no news any more.
        if dark || watch.observer.is_some() || self.sent.is_some_and(|sent| sent.elapsed() < NOTICE_EVERY) {
            return;
        }
        self.sent = Some(Instant::now());
        if let Some(text) = self.own(&hangs()) {
            control.send(Message::Notice { text: text.into() });
        }
    }

    /// What to show: this end's trouble, else the other's if it was heard of lately.
    pub(crate) fn waiting(&self, hangs: &Hangs) -> Option<String> {
        let lately = self.heard.as_ref().filter(|(when, _)| when.elapsed() < NOTICE_HOLDS);
        self.own(hangs).or_else(|| lately.map(|(_, text)| text.to_string()))
    }

    fn own(&self, Hangs { away, stuck }: &Hangs) -> Option<String> {
        if away.is_some() {
            return away.clone();
        }
        let first = stuck.first()?;
        let others = match stuck.len() {
            1 => String::new(),
            n => format!(" and {} more", n - 1),
        };
        let (seconds, what, name, end) = (first.since.as_secs(), first.what, &first.name, self.end.name());
        Some(format!("waiting {seconds} s for the {end}'s {what} of {name}{others}"))
    }
}

/// Tells the observer how far it is, at most every [`TICK`].
pub(crate) struct Teller {
    last: Option<Instant>,
}

impl Teller {
    pub(crate) fn new() -> Teller {
        Teller { last: None }
    }
    pub(crate) fn tell(&mut self, watch: &Watch, progress: impl FnOnce() -> Option<Progress>) {
        if watch.observer.is_some() && self.last.is_none_or(|last| last.elapsed() >= TICK) {
            self.last = Some(Instant::now());
            let Some(progress) = progress() else { return };
            let progress = Progress { paused: watch.handle.paused(), ..progress };
            watch.handle.note_progress(&progress);
            watch.tell(Event::Progress(progress));
        }
    }
}
