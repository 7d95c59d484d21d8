//! LiveSettings that are turned while a session runs: from the near end's `Handle` to both ends.
//!
//! In: wishes (at the near end, which has the observer), `LIVE_SETTINGS` of the other end. Out: what this end
//! has to apply, and `LIVE_SETTINGS` to the other: from the near end what is wished, all of it each time,
//! from the far end how things stand there, in answer and whenever it changes. The last word counts, so that
//! nothing has to be remembered in between.
//! Invariants: a far end never turns anything at the near end. `LIVE_SETTINGS` goes only where both hellos
//! name it.

use haul_core::wire::{LiveSettings, Message};

use super::Watch;
use crate::events::Event;
use crate::handle::LiveSetting;
use crate::handle::{FAR_HAS_NO_WRITERS, FAR_IS_FIXED};
use haul_transport::stream::ControlHandle;

/// One end's part in it.
pub(super) struct SettingsExchange {
    agreed: bool,
    /// What this end decides.
    here: &'static [LiveSetting],
    /// The number of the wishes that were applied; `None`: not even those from before the session.
    seen: Option<u64>,
    /// Came from the other end and is not applied.
    heard: Option<LiveSettings>,
    /// Somebody is to be told how things stand here: at a far end not before it was spoken to.
    tells: bool,
    /// What was told last.
    told: Option<LiveSettings>,
}

impl SettingsExchange {
    /// `agreed`: both ends know live settings; `here`: what this end decides.
    pub(super) fn new(agreed: bool, here: &'static [LiveSetting]) -> SettingsExchange {
        SettingsExchange { agreed, here, seen: None, heard: None, tells: false, told: None }
    }

    pub(super) fn agreed(&self) -> bool {
        self.agreed
    }

    /// The session begins: tells the control what cannot be turned. `streams`: most that there can be;
    /// `fixed`: why a live setting cannot be turned though both ends could.
    pub(super) fn join(
        &self,
        watch: &Watch,
        streams: u16,
        fixed: impl Fn(LiveSetting) -> Option<&'static str>,
    ) {
        if watch.observer.is_none() {
            return;
        }
        let far = |setting| (!self.agreed && !self.here.contains(&setting)).then_some(FAR_IS_FIXED);
        let fixed = LiveSetting::ALL.map(|setting| fixed(setting).or(far(setting)));
        // The source pauses, and it has the streams.
        let dropped = watch.handle.join(streams, fixed, far(LiveSetting::Streams));
        if !dropped.is_empty() {
            let dropped = dropped.join(", ");
            watch.tell(Event::Note(format!(
                "haul ctl: {dropped} cannot be changed in this copy, and was dropped"
            )));
        }
    }

    /// The other end says something.
    pub(super) fn hear(&mut self, settings: LiveSettings) {
        self.heard = Some(settings);
    }

    /// What this end has to apply now, if anything. The near end tells the other end of it.
    pub(super) fn take(&mut self, control: &ControlHandle, watch: &Watch) -> Option<LiveSettings> {
        let heard = self.heard.take();
        if watch.observer.is_none() {
            if heard.is_some() {
                // Each is answered.
                (self.tells, self.told) = (true, None);
            }
            return heard;
        }
        if let Some(stands) = heard {
            let far = |setting: &LiveSetting| !self.here.contains(setting) && says(stands, *setting);
            let far: Vec<LiveSetting> = LiveSetting::ALL.into_iter().filter(far).collect();
            watch.handle.stands(&far, stands);
            // A sink always says how many writers it has, but where nothing is stored.
            if !self.here.contains(&LiveSetting::Writers)
                && stands.writers == 0
                && watch.handle.fix(LiveSetting::Writers, FAR_HAS_NO_WRITERS)
            {
                watch.tell(Event::Note(format!("haul ctl: writers stay as they are: {FAR_HAS_NO_WRITERS}")));
            }
        }
        let changes = watch.handle.changes();
        if self.seen.replace(changes) == Some(changes) {
            return None;
        }
        self.tells = true;
        let settings = watch.handle.live_settings();
        if self.agreed {
            control.send(Message::LiveSettings(settings));
        }
        Some(settings)
    }

    /// How things stand here. May be called often: only what is new is told.
    pub(super) fn stands(&mut self, stands: LiveSettings, control: &ControlHandle, watch: &Watch) {
        if !self.tells || self.told.replace(stands) == Some(stands) {
            return;
        }
        if watch.observer.is_some() {
            watch.handle.stands(self.here, stands);
        } else if self.agreed {
            control.send(Message::LiveSettings(stands));
        }
    }
}

/// Whether an end that stands so decides this live setting: what it does not, it leaves at 0.
fn says(stands: LiveSettings, setting: LiveSetting) -> bool {
    match setting {
        LiveSetting::Rate => stands.rate > 0,
        LiveSetting::Streams => stands.streams > 0,
        LiveSetting::Readers => stands.readers > 0,
        LiveSetting::Writers => stands.writers > 0,
    }
}
