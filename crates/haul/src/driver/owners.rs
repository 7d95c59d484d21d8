//! Owners by name: what the source calls them, and who has these names here.
//!
//! In: names as the source tells them, entries and what is to be set. Out: the same with numbers of this
//! host. What must hold: root is root by number, and nobody else becomes root by a name; who is not known
//! here keeps his number; nobody waits long for whoever keeps the names, and what is remembered is bounded.

use std::collections::HashMap;
use std::time::Duration;

use haul_base::users::{Who, numbers_of};
use haul_core::entry::Meta;
use haul_core::wire::{Message, OwnerName};

use super::Watch;
use crate::events::Event;

/// How long a look-up may take. After one that was late none is made.
const WITHIN: Duration = Duration::from_secs(10);
/// Names that are remembered.
const NAMES_MAX: usize = 32 * 1024;

/// Who owns what comes.
#[derive(Default)]
pub(super) struct Owners {
    /// Numbers are as they come.
    off: bool,
    users: HashMap<u32, u32>,
    groups: HashMap<u32, u32>,
    told: usize,
}

impl Owners {
    pub(super) fn new(numeric: bool) -> Owners {
        Owners { off: numeric, ..Owners::default() }
    }

    /// Takes names, and gives entries their owners of this host.
    pub(super) fn hear(&mut self, message: &mut Message, watch: &Watch) {
        match message {
            Message::OwnerNames(names) => self.learn(std::mem::take(names), watch),
            Message::Announce(entries) => entries.iter_mut().for_each(|entry| self.map(&mut entry.meta)),
            _ => {}
        }
    }

    /// Gives it the owner that is meant.
    pub(super) fn map(&self, meta: &mut Meta) {
        meta.uid = self.users.get(&meta.uid).copied().unwrap_or(meta.uid);
        meta.gid = self.groups.get(&meta.gid).copied().unwrap_or(meta.gid);
    }

    fn learn(&mut self, names: Vec<OwnerName>, watch: &Watch) {
        for (who, group) in [(Who::User, false), (Who::Group, true)] {
            let of = names.iter().filter(|name| name.group == group && name.id != 0);
            let of: Vec<(u32, &str)> =
                of.filter_map(|name| Some((name.id, std::str::from_utf8(&name.name).ok()?))).collect();
            if self.off || of.is_empty() || self.told >= NAMES_MAX {
                continue;
            }
            self.told += of.len();
            let all: Vec<&str> = of.iter().map(|(_, name)| *name).collect();
            let Ok(here) = numbers_of(who, &all, WITHIN) else {
                self.off = true;
                let text =
                    "names of owners could not be looked up in time: owners are kept by number from here on";
                watch.tell(Event::Note(text.to_owned()));
                return;
            };
            let here: HashMap<String, u32> = here.into_iter().collect();
            let known = if group { &mut self.groups } else { &mut self.users };
            let is_root = |here: &u32| *here == 0 && !haul_mutant::removed("nobody-is-root-by-name");
            let known_here = |(id, name): (u32, &str)| Some((id, *here.get(name).filter(|id| !is_root(id))?));
            known.extend(of.into_iter().filter_map(known_here));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a name that is known here gives its number, one that is not leaves it, root stays root, and
    /// nobody becomes root by a name; with numbers nothing changes.
    #[test]
    fn names_give_numbers_of_this_host() {
        let known = numbers_of(Who::User, &["daemon"], WITHIN);
        let Ok([(_, here)]) = known.as_deref() else { return };
        let name = |group, id, name: &str| OwnerName { group, id, name: name.as_bytes().into() };
        let names = vec![
            name(false, 4711, "daemon"),
            name(false, 4712, "root"),
            name(false, 0, "daemon"),
            name(true, 4713, "no-such-group"),
        ];
        for numeric in [false, true] {
            let mut owners = Owners::new(numeric);
            owners.hear(&mut Message::OwnerNames(names.clone()), &Watch::silent());
            for (uid, gid, wanted) in
                [(4711, 4713, (*here, 4713)), (4712, 0, (4712, 0)), (0, 4711, (0, 4711))]
            {
                let mut meta = Meta { uid, gid, ..Meta::default() };
                owners.map(&mut meta);
                assert_eq!((meta.uid, meta.gid), if numeric { (uid, gid) } else { wanted });
            }
        }
    }
}
