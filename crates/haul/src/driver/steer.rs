//! Knobs that are turned while a session runs: from the near end's `Control` to both ends.
//!
//! In: wishes (at the near end, which has the observer), `KNOBS` of the other end. Out: what this end has to apply, and
//! `KNOBS` to the other: from the near end what is wished, all of it each time, from the far end how things stand
//! there, in answer and whenever it changes. The last word counts, so that nothing has to be remembered in between.
//! Invariants: a far end never turns anything at the near end. `KNOBS` goes only where both hellos name it.

use haul_core::wire::{Knobs, Message};

use super::Watch;
use crate::control::Knob;
use crate::control::{FAR_HAS_NO_WRITERS, FAR_IS_FIXED};
use crate::events::Event;
use haul_transport::stream::ControlHandle;

/// One end's part in it.
pub(super) struct Steering {
    agreed: bool,
    /// What this end decides.
    here: &'static [Knob],
    /// The number of the wishes that were applied; `None`: not even those from before the session.
    seen: Option<u64>,
    /// Came from the other end and is not applied.
    heard: Option<Knobs>,
    /// Somebody is to be told how things stand here: at a far end not before it was spoken to.
    tells: bool,
    /// What was told last.
    told: Option<Knobs>,
}

impl Steering {
    /// `agreed`: both ends know knobs; `here`: what this end decides.
    pub(super) fn new(agreed: bool, here: &'static [Knob]) -> Steering {
        Steering { agreed, here, seen: None, heard: None, tells: false, told: None }
    }

    pub(super) fn agreed(&self) -> bool {
        self.agreed
    }

    /// The session begins: tells the control what cannot be turned. `streams`: most that there can be; `fixed`: why a
    /// knob cannot be turned though both ends could.
    pub(super) fn join(&self, watch: &Watch, streams: u16, fixed: impl Fn(Knob) -> Option<&'static str>) {
        if watch.observer.is_none() {
            return;
        }
        let far = |knob| (!self.agreed && !self.here.contains(&knob)).then_some(FAR_IS_FIXED);
        let fixed = Knob::ALL.map(|knob| fixed(knob).or(far(knob)));
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
            if heard.is_some() {
                // Each is answered.
                (self.tells, self.told) = (true, None);
            }
            return heard;
        }
        if let Some(stands) = heard {
            let far = |knob: &Knob| !self.here.contains(knob) && says(stands, *knob);
            let far: Vec<Knob> = Knob::ALL.into_iter().filter(far).collect();
            watch.control.stands(&far, stands);
            // A sink always says how many writers it has, but where nothing is stored.
            if !self.here.contains(&Knob::Writers)
                && stands.writers == 0
                && watch.control.fix(Knob::Writers, FAR_HAS_NO_WRITERS)
            {
                watch.tell(Event::Note(format!("haul ctl: writers stay as they are: {FAR_HAS_NO_WRITERS}")));
            }
        }
        let changes = watch.control.changes();
        if self.seen.replace(changes) == Some(changes) {
            return None;
        }
        self.tells = true;
        let knobs = watch.control.knobs();
        if self.agreed {
            control.send(Message::Knobs(knobs));
        }
        Some(knobs)
    }

    /// How things stand here. May be called often: only what is new is told.
    pub(super) fn stands(&mut self, stands: Knobs, control: &ControlHandle, watch: &Watch) {
        if !self.tells || self.told.replace(stands) == Some(stands) {
            return;
        }
        if watch.observer.is_some() {
            watch.control.stands(self.here, stands);
        } else if self.agreed {
            control.send(Message::Knobs(stands));
        }
    }
}

/// Whether an end that stands so decides this knob: what it does not, it leaves at 0.
fn says(stands: Knobs, knob: Knob) -> bool {
    match knob {
        Knob::Rate => stands.rate > 0,
        Knob::Streams => stands.streams > 0,
        Knob::Readers => stands.readers > 0,
        Knob::Writers => stands.writers > 0,
    }
}
