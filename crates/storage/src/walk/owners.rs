//! What users and groups of this host are called, told once each to an end that may know others.
//!
//! In: owners of entries, as they are found. Out: names of those that were not told yet.
//! What must hold: nobody waits long for whoever keeps the names; what is looked up is bounded, whatever owns
//! entries. Root is root by number, and no other is.

use std::collections::HashSet;
use std::time::Duration;

use haul_base::users::{Who, names_of};
use haul_core::entry::{Meta, NOBODY};
use haul_core::wire::{OWNER_NAME_LEN_MAX, OwnerName};

use crate::manners::ByName;

/// How long a look-up may take. After one that was late none is made.
const WITHIN: Duration = Duration::from_secs(10);
/// Users, and groups, that are looked up.
const OWNERS_MAX: usize = 16 * 1024;

#[derive(Default)]
pub(super) struct Owners {
    /// Numbers do.
    off: bool,
    /// What nobody could be asked is an error.
    surely: bool,
    users: HashSet<u32>,
    groups: HashSet<u32>,
}

impl Owners {
    pub(super) fn new(by_name: ByName) -> Owners {
        Owners { off: by_name == ByName::No, surely: by_name == ByName::Surely, ..Owners::default() }
    }

    /// What is to be told before entries that these own.
    ///
    /// # Errors
    /// It is not known, and what becomes of the entries depends on it. Said once.
    pub(super) fn names<'a>(
        &mut self,
        metas: impl Iterator<Item = &'a Meta>,
    ) -> Result<Vec<OwnerName>, &'static str> {
        if self.off {
            return Ok(Vec::new());
        }
        let (mut users, mut groups) = (Vec::new(), Vec::new());
        for Meta { uid, gid, .. } in metas {
            for (id, known, new) in
                [(*uid, &mut self.users, &mut users), (*gid, &mut self.groups, &mut groups)]
            {
                if id == 0 || id == NOBODY || known.contains(&id) {
                    continue;
                }
                if known.len() < OWNERS_MAX {
                    known.insert(id);
                    new.push(id);
                } else if self.surely && !haul_mutant::removed("maps-know-the-names") {
                    self.off = true;
                    return Err("there are more of them than are looked up");
                }
            }
        }
        let mut told = Vec::new();
        for (who, ids) in [(Who::User, users), (Who::Group, groups)] {
            match if ids.is_empty() { Ok(Vec::new()) } else { names_of(who, &ids, WITHIN) } {
                Ok(names) => {
                    told.extend(names.into_iter().filter(|(_, name)| name.len() <= OWNER_NAME_LEN_MAX).map(
                        |(id, name)| OwnerName {
                            group: who == Who::Group,
                            id,
                            name: name.into_bytes().into(),
                        },
                    ))
                }
                Err(_) => {
                    self.off = true;
                    if self.surely && !haul_mutant::removed("maps-know-the-names") {
                        return Err("nobody said so in time");
                    }
                }
            }
        }
        Ok(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each name is told once, root's never, and none where numbers do.
    #[test]
    fn names_are_told_once() {
        let of = |uid, gid| Meta { uid, gid, ..Meta::default() };
        let known = names_of(Who::User, &[1], WITHIN);
        let Ok([(id, _)]) = known.as_deref() else { return };
        let mut owners = Owners::new(ByName::Yes);
        let told = owners.names([of(0, 0), of(*id, 0), of(*id, 0)].iter()).expect("names");
        assert_eq!(told.iter().map(|name| (name.group, name.id)).collect::<Vec<_>>(), [(false, 1)]);
        assert_eq!(owners.names([of(*id, 0)].iter()), Ok(Vec::new()));
        assert_eq!(Owners::new(ByName::No).names([of(*id, *id)].iter()), Ok(Vec::new()));
    }

    /// Goal: where an entry depends on who its owner is, nobody goes without a name for want of an answer;
    /// elsewhere he does.
    /// Method: more owners than are looked up.
    #[test]
    fn who_is_not_known_is_an_error_where_it_matters() {
        let of = |uid| Meta { uid, ..Meta::default() };
        for (by_name, fails) in [(ByName::Yes, false), (ByName::Surely, true)] {
            let mut owners = Owners::new(by_name);
            owners.users = (1..=OWNERS_MAX as u32).collect();
            assert_eq!(owners.names([of(7)].iter()), Ok(Vec::new()));
            assert_eq!(owners.names([of(u32::MAX - 1)].iter()).is_err(), fails);
            assert_eq!(owners.names([of(u32::MAX - 1)].iter()), Ok(Vec::new()));
        }
    }
}
