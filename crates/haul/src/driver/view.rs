//! What is seen of this end's storage targets, and of the other end's: at the near end, for people and
//! programs.
//!
//! In: how the machine's targets stand; tables of the other end. Out: tables for the near end's `Handle` and
//! its observer; questions to the other end, answers to its; which targets were unwell over the session. The
//! near end asks, while somebody looks: the next question comes after the last was answered, and not before
//! [`TABLE_EVERY`]. So there is at most one question and one table under way, whatever the network does, and
//! none in the dark.
//! Invariants: what was not asked for has no effect; messages of this go only where both hellos name it.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use haul_core::ids::{TargetId, Time};
use haul_core::schedule::Health;
use haul_core::schedule::table::{Table, Troubles, UnwellTargets};
use haul_core::wire::Message;

use super::{TICK, Watch};
use crate::events::Event;
use haul_base::role::Role;
use haul_storage::targets::Targets;
use haul_transport::stream::ControlHandle;

/// Tables are taken, and told, this often at most.
const TABLE_EVERY: Duration = Duration::from_millis(500);
/// Why the far end's targets are not seen.
const FAR_TELLS_NOTHING: &str = "the other end's haul is too old to tell of its storage targets";

/// One end's part in it.
pub(super) struct View {
    agreed: bool,
    /// This end.
    end: Role,
    troubles: Troubles,
    /// When they were counted last.
    noted: Option<Time>,
    /// When a table was taken last.
    taken: Option<Time>,
    /// At the near end: the other has not answered yet. At the far end: it has to.
    asked: bool,
    /// A table of the other end.
    came: Option<Table>,
    far: RefCell<UnwellTargets>,
}

/// What this end did not do, and so does not count as its targets' doing.
pub(super) struct Idle {
    pub(super) dark: bool,
    pub(super) paused: bool,
}

impl View {
    /// `agreed`: both ends know tables; `end`: this one.
    pub(super) fn new(agreed: bool, end: Role) -> View {
        View {
            agreed,
            end,
            troubles: Troubles::default(),
            noted: None,
            taken: None,
            asked: false,
            came: None,
            far: RefCell::default(),
        }
    }

    /// The session begins: tells the control what will not be seen.
    pub(super) fn join(&self, watch: &Watch) {
        if watch.is_near() && !self.agreed {
            watch.handle.no_table(self.end.other(), FAR_TELLS_NOTHING);
            if watch.targets {
                let (end, why) = (self.end.other(), FAR_TELLS_NOTHING.to_owned());
                watch.tell(Event::NoTargets { end, why });
            }
        }
    }

    /// Whether this is one of the messages of this, and may come.
    pub(super) fn takes(&self, message: &Message) -> bool {
        let ours = matches!(message, Message::AskTable | Message::TargetTable(_) | Message::UnwellTargets(_));
        self.agreed && ours
    }

    /// The other end says one of them.
    pub(super) fn hear(&mut self, message: Message, watch: &Watch) {
        match (message, watch.is_near()) {
            (Message::AskTable, false) => self.asked = true,
            (Message::TargetTable(table), true) if self.asked => {
                self.asked = false;
                self.came = Some(table);
            }
            (Message::UnwellTargets(unwell), true) => drop(self.far.replace(unwell)),
            _ => {}
        }
    }

    /// The same of a message that comes when the session is over.
    pub(super) fn hear_late(&self, message: &Message) {
        if let Message::UnwellTargets(unwell) = message
            && self.agreed
        {
            self.far.replace(unwell.clone());
        }
    }

    /// Counts, takes, asks and answers, each when it is time to. May be called often.
    pub(super) fn tend(
        &mut self,
        now: Time,
        Idle { dark, paused }: Idle,
        (control, watch): (&ControlHandle, &Watch),
        unwell: impl Iterator<Item = (TargetId, Health)>,
        table: impl FnOnce() -> Table,
    ) {
        if self.noted.is_none_or(|noted| now.since(noted) >= TICK) {
            self.noted = Some(now);
            match dark || paused {
                true => self.troubles.rest(),
                false => self.troubles.note(unwell, now),
            }
        }
        if let Some(table) = self.came.take() {
            show(watch, self.end.other(), &table);
        }
        if self.taken.is_some_and(|taken| now.since(taken) < TABLE_EVERY) {
            return;
        }
        let wanted = match watch.is_near() {
            true => watch.targets || watch.handle.is_looked_at(),
            false => self.asked && !dark,
        };
        if !wanted {
            return;
        }
        self.taken = Some(now);
        let table = table();
        if !watch.is_near() {
            self.asked = false;
            return control.send(Message::TargetTable(table));
        }
        show(watch, self.end, &table);
        if self.agreed && !self.asked && !dark {
            self.asked = true;
            control.send(Message::AskTable);
        }
    }

    /// The session is over: which targets of this end were unwell. The far end tells the other, behind all
    /// else but its report.
    pub(super) fn finish(
        &self,
        now: Time,
        control: &ControlHandle,
        watch: &Watch,
        name: impl Fn(TargetId) -> String,
    ) -> UnwellTargets {
        let own = self.troubles.worst(now.since(Time(0)), name);
        if self.agreed && !watch.is_near() && own != UnwellTargets::default() {
            control.send(Message::UnwellTargets(own.clone()));
        }
        own
    }

    /// With the other end's, as far as that told.
    pub(super) fn both(&self, own: UnwellTargets) -> [(Role, UnwellTargets); 2] {
        [(self.end, own), (self.end.other(), self.far.take())]
    }
}

/// Gives the near end a table.
fn show(watch: &Watch, end: Role, table: &Table) {
    let table = watch.handle.note_table(end, table, Instant::now());
    if watch.targets {
        watch.tell(Event::Targets(table));
    }
}

/// What a target is called.
pub(super) fn name_of(targets: &Targets, target: TargetId) -> String {
    targets.name(target).map_or_else(|| format!("target {target}"), |name| name.to_string())
}
