//! What each end chose, for the near end's report.
//!
//! In: what this end chose, in words; what the other end says it did. Out: the far end's message; at the near
//! end both.
//! Invariants: messages of this go only where both hellos name it; what this end chose is never taken from
//! the other.

use std::cell::RefCell;

use haul_core::wire::{CHOICES_MAX, Chosen, Message};

use super::Watch;
use haul_transport::stream::ControlHandle;

/// Name, value and reason, as [`crate::summary::Summary::chosen`] has them.
pub(crate) type InWords = Vec<(String, String)>;

/// One end's part in it.
pub(super) struct Choices {
    agreed: bool,
    far: RefCell<Vec<Chosen>>,
}

impl Choices {
    /// `agreed`: both ends know choices.
    pub(super) fn new(agreed: bool) -> Choices {
        Choices { agreed, far: RefCell::default() }
    }

    /// Whether this is the message of this, and may come.
    pub(super) fn takes(&self, message: &Message) -> bool {
        self.agreed && matches!(message, Message::Choices(_))
    }

    /// The other end says something, maybe what it chose.
    pub(super) fn hear(&self, message: &Message) {
        if let Message::Choices(far) = message
            && self.agreed
        {
            self.far.replace(far.clone());
        }
    }

    /// The session is over. The far end tells the other, before its report.
    pub(super) fn finish(&self, own: &InWords, control: &ControlHandle, watch: &Watch) {
        if self.agreed && !watch.is_near() {
            let chosen = own.iter().take(CHOICES_MAX);
            let chosen =
                chosen.map(|(name, value)| Chosen { name: (&**name).into(), value: (&**value).into() });
            control.send(Message::Choices(chosen.collect()));
        }
    }

    /// At the near end with the other end's, as far as that told.
    pub(super) fn both(&self, own: InWords, watch: &Watch) -> InWords {
        let far = if watch.is_near() { self.far.take() } else { Vec::new() };
        with_far(own, far.into_iter().map(|Chosen { name, value }| (name.into(), value.into())))
    }
}

/// What one end chose, and what only the other did: some of what one end finds the other one is told.
pub(crate) fn with_far(mut own: InWords, far: impl IntoIterator<Item = (String, String)>) -> InWords {
    let near = own.len();
    for (name, value) in far {
        if !own[..near].iter().any(|(known, _)| *known == name) {
            own.push((name, value));
        }
    }
    own
}
