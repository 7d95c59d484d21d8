//! Knobs that are turned while a session runs: from the near end's `Control` to both ends.
//!
//! In: wishes (at the near end, which has the observer), `KNOBS` of the other end. Out: what this end has to apply, and
//! `KNOBS` to the other: from the near end what is wished, all of it each time, from the far end how things stand
//! there. The last word counts, so that nothing has to be remembered in between.
//! Invariants: a far end never turns anything at the near end. `KNOBS` goes only where both hellos name it.

use haul_core::wire::{Knobs, Message};

use super::Watch;
use crate::api::{Event, Knob};
use crate::control::{FAR_IS_FIXED, RATE_IS_FIXED};
use crate::transport::stream::ControlHandle;

/// One end's part in it.
pub(super) struct Steering {
    agreed: bool,
    /// The number of the wishes that were applied; `None`: not even those from before the session.
    seen: Option<u64>,
    /// Came from the other end and is not applied.
    heard: Option<Knobs>,
}

impl Steering {
    /// `agreed`: both ends know knobs.
    pub(super) fn new(agreed: bool) -> Steering {
        Steering { agreed, seen: None, heard: None }
    }

    pub(super) fn agreed(&self) -> bool {
        self.agreed
    }

    /// The session begins: tells the control what cannot be turned. `is_here`: this end decides it; `fixed`: why it
    /// cannot be turned even so.
    pub(super) fn join(
        &self,
        watch: &Watch,
        streams: u16,
        is_here: impl Fn(Knob) -> bool,
        fixed: impl Fn(Knob) -> Option<&'static str>,
    ) {
        if watch.observer.is_none() {
            return;
        }
        let far = |knob| (!self.agreed && !is_here(knob)).then_some(FAR_IS_FIXED);
        let no_limit = |knob| (knob == Knob::Rate).then_some(RATE_IS_FIXED);
        let fixed = Knob::ALL.map(|knob| fixed(knob).or(no_limit(knob)).or(far(knob)));
        // The source pauses, and it has the streams.
        let dropped = watch.control.join(streams, fixed, far(Knob::Streams));
        if !dropped.is_empty() {
            let dropped = dropped.join(", ");
            watch.tell(Event::Note(format!(
                "haul ctl: {dropped} cannot be changed in this copy, and was dropped"
            )));
        }
    }

    /// The other end says something.
    pub(super) fn hear(&mut self, knobs: Knobs) {
        self.heard = Some(knobs);
    }

    /// What this end has to apply now, if anything. The near end tells the other end of it.
    pub(super) fn take(&mut self, control: &ControlHandle, watch: &Watch) -> Option<Knobs> {
        let heard = self.heard.take();
        if watch.observer.is_none() {
            return heard;
        }
        if let Some(stands) = heard {
            let far: Vec<Knob> = Knob::ALL.into_iter().filter(|knob| says(stands, *knob)).collect();
            watch.control.stands(&far, stands);
        }
        let changes = watch.control.changes();
        if self.seen.replace(changes) == Some(changes) {
            return None;
        }
        let knobs = watch.control.knobs();
        if self.agreed {
            control.send(Message::Knobs(knobs));
        }
        Some(knobs)
    }

    /// How things stand here, when it is applied. `here`: what this end decides.
    pub(super) fn stands(&self, stands: Knobs, here: &[Knob], control: &ControlHandle, watch: &Watch) {
        if watch.observer.is_some() {
            watch.control.stands(here, stands);
        } else if self.agreed {
            control.send(Message::Knobs(stands));
        }
    }
}

/// Whether an end that stands so decides this knob: what it does not, it leaves at 0. The rate goes with the readers.
fn says(stands: Knobs, knob: Knob) -> bool {
    match knob {
        Knob::Rate => stands.readers > 0,
        Knob::Streams => stands.streams > 0,
        Knob::Readers => stands.readers > 0,
        Knob::Writers => stands.writers > 0,
    }
}
