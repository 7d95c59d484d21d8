//! Whom this user can give files to, and what of owner and mode no file of his can have therefore.
//!
//! In: what the kernel says of this process: its user and groups, whether it may give files to others, and
//! which numbers mean somebody in its user namespace. Out: what of a source's owner, group and set-id bits is
//! kept by no file that it makes.
//! What must hold: set-id bits that stand and that a copy would not leave are never beyond.
//! Left out: file systems and servers that refuse what the kernel allows (NFS, where root is nobody): there
//! it is tried anew each time.

use std::fs;
use std::sync::OnceLock;

use haul_core::change::Change;
use haul_core::entry::Meta;
use haul_core::transfer::op::Rights;
use rustix::process::{getegid, geteuid, getgroups};
use rustix::thread::{CapabilitySet, capabilities};

use super::meta::kept_bits;
use crate::store::NotKept;

const SETID: u32 = 0o6000;

/// The numbers that a user namespace has: the first of each range, and how many.
type Numbers = Vec<(u32, u32)>;

/// Whom files of this process can belong to.
#[derive(Debug, PartialEq)]
enum Gives {
    /// Whoever has a number here.
    Anybody { users: Numbers, groups: Numbers },
    /// Its user, and these groups.
    Own { user: u32, groups: Vec<u32> },
}

impl Gives {
    fn of_this_process() -> &'static Gives {
        static GIVES: OnceLock<Gives> = OnceLock::new();
        GIVES.get_or_init(|| {
            let may = capabilities(None).map(|sets| sets.effective.contains(CapabilitySet::CHOWN));
            if may.unwrap_or(geteuid().is_root()) {
                let of = |file| numbers(&fs::read_to_string(file).unwrap_or_default());
                return Gives::Anybody { users: of("/proc/self/uid_map"), groups: of("/proc/self/gid_map") };
            }
            let more = getgroups().unwrap_or_default().into_iter();
            let groups = more.chain([getegid()]).map(|group| group.as_raw()).collect();
            Gives::Own { user: geteuid().as_raw(), groups }
        })
    }

    /// Which of the two a file of this process can have.
    fn gets(&self, (uid, gid): (u32, u32)) -> (bool, bool) {
        match self {
            Gives::Anybody { users, groups } => (is_in(users, uid), is_in(groups, gid)),
            Gives::Own { user, groups } => (uid == *user, groups.contains(&gid)),
        }
    }

    fn beyond(&self, rights: &Rights, meta: &Meta, (owner, in_place): (bool, bool)) -> Change {
        let Some(ids) = meta.owners().filter(|_| owner) else { return Change::NONE };
        let gets = self.gets(ids);
        let (source, stands) = (meta.mode & 0o7777, rights.mode & 0o7777);
        // Nor does another user's file get them that is written in place.
        let kept = kept_bits(source, gets) & if in_place && rights.foreign { !SETID } else { 0o7777 };
        if kept != source && kept != stands {
            return Change::NONE;
        }
        Change::NONE
            .with(Change::OWNER, !gets.0 && rights.uid != ids.0)
            .with(Change::GROUP, !gets.1 && rights.gid != ids.1)
            .with(Change::MODE, kept != source)
    }
}

/// The ranges of a map as `/proc` has it; none where it has none, and then all numbers mean somebody.
fn numbers(map: &str) -> Numbers {
    let of = |line: &str| {
        let mut words = line.split_ascii_whitespace().map(|word| word.parse().ok());
        Some((words.next()??, words.nth(1)??))
    };
    map.lines().filter_map(of).collect()
}

fn is_in(numbers: &Numbers, id: u32) -> bool {
    numbers.is_empty() || numbers.iter().any(|(first, count)| id >= *first && id - first < *count)
}

/// Puts what no file of this user's can have into the rights that are compared with `meta`; `owner`: owner
/// and group are kept.
pub(super) fn note_beyond(rights: &mut Rights, meta: &Meta, owner: bool) {
    note_beyond_of_file(rights, meta, (owner, false));
}

/// The same of a file, which perhaps would be written in place.
pub(super) fn note_beyond_of_file(rights: &mut Rights, meta: &Meta, how: (bool, bool)) {
    rights.beyond = match haul_mutant::removed("what-cannot-be-given-is-no-difference") {
        true => Change::NONE,
        false => Gives::of_this_process().beyond(rights, meta, how),
    };
}

/// What a copy by this user would not keep of who an entry belongs to, for a dry run.
pub struct Foreseen {
    gives: &'static Gives,
    lost: NotKept,
}

impl Foreseen {
    pub fn by_this_user() -> Foreseen {
        Foreseen { gives: Gives::of_this_process(), lost: NotKept::default() }
    }

    /// An entry of which a copy would set the metadata, with `owner` owner and group too. A link has no mode.
    pub fn count(&mut self, meta: &Meta, owner: bool, is_link: bool) {
        let ids = meta.owners().filter(|_| owner);
        let gets = ids.map_or((false, false), |ids| self.gives.gets(ids));
        let mode = meta.mode & 0o7777;
        self.lost.owner += u64::from(ids.is_some() && gets != (true, true));
        self.lost.setid += u64::from(!is_link && kept_bits(mode, gets) != mode);
    }

    /// An entry that stays as it is and differs in this ([`Rights::beyond`]).
    pub fn stays(&mut self, beyond: Change) {
        self.lost.owner += u64::from(beyond.has(Change::OWNER.with(Change::GROUP, true)));
        self.lost.setid += u64::from(beyond.has(Change::MODE));
    }

    pub fn lost(&self) -> NotKept {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a number is somebody's where the namespace has it, and everywhere where nothing is said of that.
    #[test]
    fn numbers_are_those_of_the_namespace() {
        let two = numbers("         0       1000          1\n         1     100000      65536\n");
        assert_eq!(two, [(0, 1), (1, 65_536)]);
        for (id, is) in [(0, true), (1, true), (65_536, true), (65_537, false), (u32::MAX - 1, false)] {
            assert_eq!(is_in(&two, id), is, "{id}");
        }
        assert!(is_in(&numbers("0 0 4294967295\n"), u32::MAX - 1));
        assert!(is_in(&numbers(""), 5) && is_in(&numbers("nonsense\n"), 5));
    }

    /// Goal: what a user can give to no file is no difference: the owner, groups that he is not in, and the
    /// set-id bits that go with them once they are gone. What he can mend is one.
    /// Method: a user in two groups, and a namespace of few numbers.
    #[test]
    fn what_a_user_cannot_give_is_beyond() {
        let user = Gives::Own { user: 5, groups: vec![6, 7] };
        let few = Gives::Anybody { users: vec![(0, 10)], groups: vec![(0, 10)] };
        let (mode, owner, group) = (Change::MODE, Change::OWNER, Change::GROUP);
        let none = Change::NONE;
        for (gives, (source, uid, gid), stands, beyond) in [
            (&user, (0o644, 5, 6), 0o644, none),
            (&user, (0o644, 5, 7), 0o644, none),
            (&user, (0o644, 1, 6), 0o644, owner),
            (&user, (0o644, 5, 2), 0o600, group),
            (&user, (0o644, 1, 2), 0o644, owner.with(group, true)),
            (&user, (0o4755, 1, 6), 0o755, owner.with(mode, true)),
            (&user, (0o2755, 5, 2), 0o755, group.with(mode, true)),
            (&user, (0o2755, 1, 7), 0o2755, owner),
            // A copy would take the bit.
            (&user, (0o4755, 1, 6), 0o4755, none),
            (&user, (0o2755, 5, 2), 0o2755, none),
            (&few, (0o4755, 9, 9), 0o755, none),
            (&few, (0o644, 10, 9), 0o644, owner),
            (&few, (0o6755, 9, 65_534), 0o755, group.with(mode, true)),
        ] {
            let meta = Meta { mode: source, uid, gid, ..Meta::default() };
            let rights = Rights { mode: stands, uid: 5, gid: 6, ..Rights::default() };
            assert_eq!(gives.beyond(&rights, &meta, (true, false)), beyond, "{meta:?}");
            assert_eq!(gives.beyond(&rights, &meta, (false, false)), none);
        }
        let anybody = Gives::Anybody { users: Vec::new(), groups: Vec::new() };
        let setuid = Meta { mode: 0o4755, uid: 1, gid: 2, ..Meta::default() };
        for (foreign, in_place, beyond) in [(true, true, mode), (true, false, none), (false, true, none)] {
            let rights = Rights { mode: 0o755, uid: 1, gid: 2, foreign, ..Rights::default() };
            assert_eq!(anybody.beyond(&rights, &setuid, (true, in_place)), beyond, "{foreign} {in_place}");
        }
        let theirs = Rights { uid: 1, gid: 2, ..Rights::default() };
        assert_eq!(user.beyond(&theirs, &Meta { uid: 1, gid: 2, ..Meta::default() }, (true, false)), none);
        assert_eq!(
            user.beyond(&theirs, &Meta { uid: u32::MAX, gid: 2, ..Meta::default() }, (true, false)),
            none
        );
    }
}
