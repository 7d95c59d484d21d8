//! What users and groups of this host are called, told once each to an end that may know others.
//!
//! In: owners of entries, as they are found. Out: names of those that were not told yet.
//! What must hold: nobody waits long for whoever keeps the names; what is looked up is bounded, whatever owns
//! entries. Root is root by number, and no other is.

use std::collections::HashSet;
use std::time::Duration;

use haul_base::users::{Who, names_of};
use haul_core::entry::Meta;
use haul_core::wire::{OWNER_NAME_LEN_MAX, OwnerName};

/// How long a look-up may take. After one that was late none is made.
const WITHIN: Duration = Duration::from_secs(10);
/// Users, and groups, that are looked up.
const OWNERS_MAX: usize = 16 * 1024;

#[derive(Default)]
pub(super) struct Owners {
    /// Numbers do.
    off: bool,
    users: HashSet<u32>,
    groups: HashSet<u32>,
}

impl Owners {
    pub(super) fn new(by_name: bool) -> Owners {
        Owners { off: !by_name, ..Owners::default() }
    }

    /// What is to be told before entries that these own.
    pub(super) fn names<'a>(&mut self, metas: impl Iterator<Item = &'a Meta>) -> Vec<OwnerName> {
        if self.off {
            return Vec::new();
        }
        let (mut users, mut groups) = (Vec::new(), Vec::new());
        for Meta { uid, gid, .. } in metas {
            for (id, known, new) in
                [(*uid, &mut self.users, &mut users), (*gid, &mut self.groups, &mut groups)]
            {
                if id != 0 && id != u32::MAX && known.len() < OWNERS_MAX && known.insert(id) {
                    new.push(id);
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
                Err(_) => self.off = true,
            }
        }
        told
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
        let mut owners = Owners::new(true);
        let told = owners.names([of(0, 0), of(*id, 0), of(*id, 0)].iter());
        assert_eq!(told.iter().map(|name| (name.group, name.id)).collect::<Vec<_>>(), [(false, 1)]);
        assert_eq!(owners.names([of(*id, 0)].iter()), []);
        assert_eq!(Owners::new(false).names([of(*id, *id)].iter()), []);
    }
}
