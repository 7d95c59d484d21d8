//! What entries get here in the place of what they have at the source: owners by name, who stands for others,
//! and modes that were asked for.
//!
//! In: names as the source tells them, entries and what is to be set. Out: the same with numbers of this
//! host, and with their modes; what is refused of them. What must hold: root is root by number, and nobody
//! else becomes root by a name unless the user says so; who is not known here keeps his number; whom others
//! are mapped to is known before anything is made; nobody gets the number that is nobody's, for to set that
//! is to leave a file to whoever makes it; nobody waits long for whoever keeps the names, and what is
//! remembered is bounded.
//! All else of the sink knows nothing of it: what is compared, set and told is what came, changed here.

use std::collections::HashMap;
use std::time::Duration;

use haul_base::escape;
use haul_base::users::{Who, numbers_of};
use haul_core::entry::{EntryKind, Meta, NOBODY};
use haul_core::ids::FileId;
use haul_core::wire::{Failure, FailureKind, Message, OwnerName, SourceRoot};

use super::Watch;
use crate::events::Event;
use crate::options::{Chmod, Given, OwnerMap};
use crate::owner_map::To;

/// How long a look-up may take. After one that was late none is made.
const WITHIN: Duration = Duration::from_secs(10);
/// Names that are remembered.
const NAMES_MAX: usize = 32 * 1024;

/// What comes in the place of what the source has.
#[derive(Default)]
pub(crate) struct Owners {
    /// Numbers are as they come.
    off: bool,
    chmod: Option<Chmod>,
    users: Side,
    groups: Side,
    told: usize,
    /// Owner and group are set.
    sets: bool,
}

/// An entry that does not get its owner, and why.
pub(super) type Refused = (FileId, Failure);

/// Users, or groups.
#[derive(Default)]
struct Side {
    what: &'static str,
    /// Who has the name here.
    here: HashMap<u32, u32>,
    /// What those are called who have nobody's number here.
    nobodies: HashMap<u32, String>,
    map: Option<Mapped>,
}

/// Whom others stand for.
struct Mapped {
    map: OwnerMap,
    /// The number that each pair leads to.
    to: Vec<u32>,
    /// What they are called at the source, if it matters.
    names: HashMap<u32, String>,
    needs_names: bool,
}

impl Owners {
    /// # Errors
    /// Somebody whom others are mapped to is not known here.
    pub(super) fn new(given: &Given, sets: bool) -> Result<Owners, Failure> {
        let side = |who, map: &Option<OwnerMap>| {
            let map = map.as_ref().map(|map| Mapped::new(who, map, given.numeric_ids)).transpose()?;
            Ok::<_, Failure>(Side { what: called(who), map, ..Side::default() })
        };
        Ok(Owners {
            off: given.numeric_ids,
            chmod: given.chmod.clone(),
            users: side(Who::User, &given.users)?,
            groups: side(Who::Group, &given.groups)?,
            told: 0,
            sets,
        })
    }

    /// Takes names, and gives entries their owners of this host, and their modes. Entries that do not get the
    /// owner that is meant, but come.
    pub(super) fn hear(&mut self, message: &mut Message, watch: &Watch) -> Vec<Refused> {
        let mut refused = Vec::new();
        match message {
            Message::OwnerNames(names) => self.learn(std::mem::take(names), watch),
            Message::Announce(entries) => {
                for entry in entries {
                    let why = self.map(&mut entry.meta);
                    // What is another name has the owner of the first.
                    let is_name = matches!(entry.kind, EntryKind::HardLink { .. });
                    refused.extend(why.filter(|_| !is_name).map(|why| (entry.id, why)));
                    let is_dir = matches!(entry.kind, EntryKind::Dir { .. });
                    // A link has no mode; what is another name of one does not say so, and has none either.
                    if !matches!(entry.kind, EntryKind::Symlink { .. }) {
                        self.change_mode(&mut entry.meta, is_dir);
                    }
                }
            }
            _ => {}
        }
        refused
    }

    /// Gives the directories whose contents come their modes. Who owns them is known later ([`Owners::map`]).
    pub(super) fn hear_roots(&self, roots: &mut [SourceRoot]) {
        for root in roots {
            if let SourceRoot::Contents { meta, .. } = root {
                self.change_mode(meta, true);
            }
        }
    }

    fn change_mode(&self, meta: &mut Meta, is_dir: bool) {
        if let Some(chmod) = &self.chmod {
            meta.mode = chmod.apply(meta.mode, is_dir);
        }
    }

    /// Gives it the owner that is meant, or none: why that is not to be had.
    pub(super) fn map(&self, meta: &mut Meta) -> Option<Failure> {
        if meta.uid == NOBODY && meta.gid == NOBODY {
            // The source does not say.
            return None;
        }
        let (uid, gid) = (self.users.of(meta.uid), self.groups.of(meta.gid));
        let nobody = [(&self.users, meta.uid, uid), (&self.groups, meta.gid, gid)];
        (meta.uid, meta.gid) = (uid, gid);
        let (side, id, _) = nobody.into_iter().find(|(.., to)| *to == NOBODY)?;
        // No half of it either.
        (meta.uid, meta.gid) = (NOBODY, NOBODY);
        let refuses = self.sets && !haul_mutant::removed("nobodys-number-is-refused");
        refuses.then(|| side.refused(id))
    }

    fn learn(&mut self, names: Vec<OwnerName>, watch: &Watch) {
        for (who, group) in [(Who::User, false), (Who::Group, true)] {
            let of = names.iter().filter(|name| name.group == group && name.id != 0);
            let of: Vec<(u32, &str)> =
                of.filter_map(|name| Some((name.id, std::str::from_utf8(&name.name).ok()?))).collect();
            let side = if group { &mut self.groups } else { &mut self.users };
            if of.is_empty() || self.told >= NAMES_MAX {
                continue;
            }
            self.told += of.len();
            if let Some(mapped) = side.map.as_mut().filter(|mapped| mapped.needs_names) {
                mapped.names.extend(of.iter().map(|(id, name)| (*id, (*name).to_owned())));
            }
            if self.off {
                continue;
            }
            let all: Vec<&str> = of.iter().map(|(_, name)| *name).collect();
            let Ok(here) = numbers_of(who, &all, WITHIN) else {
                self.off = true;
                let text =
                    "names of owners could not be looked up in time: owners are kept by number from here on";
                watch.tell(Event::Note(text.to_owned()));
                continue;
            };
            let here: HashMap<String, u32> = here.into_iter().collect();
            for (id, name) in &of {
                if here.get(*name) == Some(&NOBODY) {
                    side.nobodies.insert(*id, escape::within(name.as_bytes()));
                }
            }
            let is_root = |here: &u32| *here == 0 && !haul_mutant::removed("nobody-is-root-by-name");
            let known_here = |(id, name): (u32, &str)| Some((id, *here.get(name).filter(|id| !is_root(id))?));
            side.here.extend(of.into_iter().filter_map(known_here));
        }
    }
}

impl Side {
    fn of(&self, id: u32) -> u32 {
        // That is nobody, and stands for nobody.
        let map = self.map.as_ref().filter(|_| id != NOBODY);
        map.and_then(|map| map.of(id)).or_else(|| self.here.get(&id).copied()).unwrap_or(id)
    }

    /// Why it is not given to whom this number is of at the source.
    fn refused(&self, id: u32) -> Failure {
        let what = self.what;
        let has = match self.nobodies.get(&id) {
            Some(name) => format!("{what} {name} has the number {NOBODY} at the destination's host"),
            None => format!("its {what} has the number {NOBODY} at the source"),
        };
        let text = format!(
            "{has}, which is nobody's: neither user nor group was set; all else of it is as at the source"
        );
        Failure { kind: FailureKind::Metadata, errno: 0, text: text.into() }
    }
}

fn called(who: Who) -> &'static str {
    if who == Who::User { "user" } else { "group" }
}

impl Mapped {
    fn new(who: Who, map: &OwnerMap, numeric: bool) -> Result<Mapped, Failure> {
        let refused = |text: String| Failure { kind: FailureKind::Usage, errno: 0, text: text.into() };
        let (what, names): (_, Vec<&str>) = (
            called(who),
            map.targets()
                .filter_map(|to| match to {
                    To::Name(name) => Some(&**name),
                    To::Id(_) => None,
                })
                .collect(),
        );
        let here = match names.is_empty() {
            true => Vec::new(),
            false => numbers_of(who, &names, WITHIN).map_err(|_| {
                refused(format!("which {what} others are to stand for could not be looked up here in time"))
            })?,
        };
        let here: HashMap<String, u32> = here.into_iter().collect();
        let nobody = |whom: &str| {
            refused(format!(
                "{whom} has the number {NOBODY} at the destination's host, which is nobody's: files cannot belong to it"
            ))
        };
        let number = |to: &To| match to {
            To::Id(NOBODY) => Err(nobody(&format!("a {what}"))),
            To::Id(id) => Ok(*id),
            To::Name(name) => match here.get(name) {
                Some(&NOBODY) => Err(nobody(&format!("{what} {}", escape::within(name.as_bytes())))),
                Some(id) => Ok(*id),
                None => {
                    let name = escape::within(name.as_bytes());
                    Err(refused(format!(
                        "there is no {what} {name} at the destination's host, whom files are to belong to"
                    )))
                }
            },
        };
        let to = map.targets().map(number).collect::<Result<_, _>>()?;
        let mut names = HashMap::new();
        if !numeric {
            // It is never told.
            names.insert(0, "root".to_owned());
        }
        Ok(Mapped { needs_names: map.needs_names(), map: map.clone(), to, names })
    }

    fn of(&self, id: u32) -> Option<u32> {
        let pair = self.map.first(id, self.names.get(&id).map(|name| &**name))?;
        self.to.get(pair).copied()
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
            let given = Given { numeric_ids: numeric, ..Given::default() };
            let mut owners = Owners::new(&given, true).expect("nobody is asked");
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

    /// Goal: who is mapped is whom the first pair leads to, whatever he is called here; all others are as
    /// without a map.
    #[test]
    fn others_stand_for_owners() {
        let known = numbers_of(Who::User, &["daemon"], WITHIN);
        let Ok([(_, here)]) = known.as_deref() else { return };
        let given = Given {
            users: Some(OwnerMap::parse("root:9,alice:daemon,4800-4899:0,:8").expect("a map")),
            groups: Some(OwnerMap::all_to("77").expect("a number")),
            ..Given::default()
        };
        let mut owners = Owners::new(&given, true).expect("who is known");
        let name = |id, name: &str| OwnerName { group: false, id, name: name.as_bytes().into() };
        let names = vec![name(4711, "alice"), name(4712, "daemon"), name(4801, "bob"), name(4713, "carol")];
        owners.hear(&mut Message::OwnerNames(names), &Watch::silent());
        for (uid, wanted) in [(0, 9), (4711, *here), (4712, *here), (4801, 0), (4713, 4713), (4999, 8)] {
            let mut meta = Meta { uid, gid: 5, ..Meta::default() };
            owners.map(&mut meta);
            assert_eq!((meta.uid, meta.gid), (wanted, 77), "{uid}");
        }
        let nobody = OwnerMap::all_to("no-such-user-of-haul").expect("a name");
        let failure =
            Owners::new(&Given { users: Some(nobody), ..Given::default() }, true).err().expect("refused");
        assert!(failure.kind == FailureKind::Usage && failure.text.contains("no-such-user-of-haul"));
    }

    /// Goal: nobody's number is nobody's owner: neither that which a name has here, nor one that the source
    /// says, nor one that others are to stand for; of whom the source says nothing, nothing is said.
    /// Method: a host where `daemon` has it, and entries with each.
    #[test]
    fn nobodys_number_is_refused() {
        let mut owners = Owners::new(&Given::default(), true).expect("nobody is asked");
        owners.users.here.insert(4711, NOBODY);
        owners.users.nobodies.insert(4711, "daemon".into());
        for (uid, gid, says) in [
            (4711, 5, Some("user daemon has")),
            (NOBODY, 5, Some("its user has")),
            (5, NOBODY, Some("its group has")),
            (4711, NOBODY, Some("user daemon has")),
            (NOBODY, NOBODY, None),
        ] {
            let mut meta = Meta { uid, gid, ..Meta::default() };
            let why = owners.map(&mut meta);
            assert_eq!((meta.uid, meta.gid), (NOBODY, NOBODY));
            match (why, says) {
                (Some(why), Some(says)) => assert!(why.text.starts_with(says), "{}", why.text),
                (why, says) => assert!(why.is_none() && says.is_none(), "{uid} {gid}"),
            }
            owners.sets = false;
            assert_eq!(owners.map(&mut Meta { uid, gid, ..Meta::default() }), None, "no owner is set");
            owners.sets = true;
        }
        let mut meta = Meta { uid: 4712, gid: 5, ..Meta::default() };
        assert_eq!((owners.map(&mut meta), meta.uid, meta.gid), (None, 4712, 5));
        // As the other end tells it, which may be anybody's.
        let map = serde_json::from_str(r#"[[{"ids":[0,9]},{"id":4294967295}]]"#).expect("a map");
        let given = Given { groups: Some(map), ..Given::default() };
        let failure = Owners::new(&given, true).err().expect("refused");
        assert!(failure.kind == FailureKind::Usage && failure.text.contains("a group has the number"));
    }

    /// Goal: modes change of all that has one, once, by whether it is a directory.
    #[test]
    fn modes_are_changed_as_they_come() {
        use haul_core::entry::{Extras, Name};
        use haul_core::ids::{DirId, FileId, Generation};
        use haul_core::wire::Announced;
        let given = Given { chmod: Some(Chmod::parse("D750,Fo+w", 0).expect("modes")), ..Given::default() };
        let mut owners = Owners::new(&given, true).expect("nobody is asked");
        let entry = |kind| Announced {
            id: FileId::new(0, 1),
            generation: Generation(0),
            parent: DirId::ROOT,
            name: Name::new(b"a").expect("a name"),
            meta: Meta { mode: 0o644, ..Meta::default() },
            kind,
            extras: Extras::default(),
        };
        let dir = EntryKind::Dir { version: Default::default() };
        let link = EntryKind::Symlink { target: b"x"[..].into() };
        let mut message = Message::Announce(vec![entry(dir), entry(link), entry(EntryKind::Fifo)]);
        owners.hear(&mut message, &Watch::silent());
        let Message::Announce(entries) = message else { panic!("another message") };
        let modes: Vec<u32> = entries.iter().map(|entry| entry.meta.mode).collect();
        assert_eq!(modes, [0o750, 0o644, 0o646]);
        let mut roots = [SourceRoot::Contents { of: None, meta: Meta { mode: 0o777, ..Meta::default() } }];
        owners.hear_roots(&mut roots);
        let [SourceRoot::Contents { meta, .. }] = &roots else { panic!("another root") };
        assert_eq!(meta.mode, 0o750);
    }
}
