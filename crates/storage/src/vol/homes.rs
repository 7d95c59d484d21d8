//! Where what a copy brings into a volume has its home: each file where it came from.
//!
//! In: what comes, and where the sources are on this host. Out: the place of an entry, by the first name on
//! its way below the destination.
//! Invariants: a home is of the very source that the entry came from; where that is not sure there is none,
//! as where the contents of several directories come into one. What lies in memory, or is made up by the
//! kernel, is nobody's home.
//! Left out: whether a source lasts on its disk, for nobody syncs it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use haul_base::mounts::{Mount, parse_mount};
use haul_core::entry::Name;
use haul_core::wire::SourceRoot;
use haul_volume::place::{noted, this_host};
use rustix::fs::OFlags;

const PROC: u64 = 0x9fa0;
const OVERLAY: u64 = 0x794c_7630;
/// File systems that are gone with the host's next boot, or whose files the kernel makes up, by their magic
/// numbers: tmpfs, ramfs, hugetlbfs, proc, sysfs, debugfs, tracefs, cgroup, cgroup2, devpts, pipes, sockets,
/// what has no name at all.
const NO_HOMES: [u64; 13] = [
    0x0102_1994,
    0x8584_58f6,
    0x9584_58f6,
    PROC,
    0x6265_6572,
    0x6462_6720,
    0x7472_6163,
    0x0027_e0eb,
    0x6367_7270,
    0x1cd1,
    0x5049_5045,
    0x534f_434b,
    0x0904_1934,
];
/// The same, as mounts call them.
const NO_HOMES_BELOW: [&str; 10] =
    ["tmpfs", "ramfs", "hugetlbfs", "proc", "sysfs", "debugfs", "tracefs", "cgroup", "cgroup2", "devpts"];

/// Whether what is written at a path, or below it, can still be there after the next boot. What is not there
/// yet comes into the nearest directory that is.
pub fn lasts(path: &Path) -> bool {
    let Ok(path) = std::path::absolute(path) else { return false };
    let kinds = path.ancestors().filter_map(|at| rustix::fs::statfs(at).ok());
    let kinds: Vec<u64> = kinds.map(|fs| fs.f_type as u64 & 0xffff_ffff).collect();
    // A link in /proc leads to what may have no name, or another one.
    !kinds.contains(&PROC)
        && kinds.first().is_some_and(|kind| !NO_HOMES.contains(kind))
        && (kinds.first() != Some(&OVERLAY) || upper_lasts(&path))
}

/// Whether an overlay keeps what is written at a path, or below it, in a directory that lasts. Where that
/// cannot be looked at nobody knows it, as in a container.
fn upper_lasts(path: &Path) -> bool {
    let there = path.ancestors().find_map(|at| {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        rustix::fs::open(at, flags, rustix::fs::Mode::empty()).ok()
    });
    let mount = there.and_then(|fd| Mount::of(fd).ok().flatten());
    mount.is_some_and(|mount| has_lasting_upper(&mount))
}

fn has_lasting_upper(mount: &Mount) -> bool {
    let upper = mount.options.split(',').find_map(|option| option.strip_prefix("upperdir="));
    let Some(upper) = upper.map(Path::new).filter(|upper| upper.is_absolute()) else { return false };
    // One in another overlay leads nowhere sure, and round in circles where names are another view's.
    upper.is_dir()
        && rustix::fs::statfs(upper).is_ok_and(|fs| fs.f_type as u64 & 0xffff_ffff != OVERLAY)
        && lasts(upper)
}

/// Whether nothing is mounted below a directory that keeps no files.
fn has_no_memory(path: &Path) -> bool {
    let Ok(path) = std::fs::canonicalize(path) else { return true };
    let Ok(mounts) = std::fs::read("/proc/self/mountinfo") else { return true };
    let mounts = String::from_utf8_lossy(&mounts);
    !mounts.lines().filter_map(parse_mount).any(|mount| {
        let point = Path::new(&mount.mount_point);
        let keeps_none = || match &*mount.kind {
            "overlay" => !has_lasting_upper(&mount),
            kind => NO_HOMES_BELOW.contains(&kind),
        };
        point != path && point.starts_with(&path) && keeps_none()
    })
}

/// The places of a copy.
#[derive(Clone, Debug, Default)]
pub(super) struct Homes {
    /// Of entries whose way begins with this name.
    named: HashMap<Name, Option<Arc<str>>>,
    /// Of all others.
    others: Option<Arc<str>>,
}

/// A source, as it is noted of entries of whose paths so many names are not below it; `None`: it is no home.
fn place(path: &Path, not_below: Option<usize>) -> Option<Arc<str>> {
    let keeps = lasts(path) && has_no_memory(path);
    if !keeps && !haul_mutant::removed("volume-memory-is-no-home") {
        return None;
    }
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    Some(noted(format!("{}:{}", this_host(), path.display()), not_below).into())
}

impl Homes {
    /// `sources`: where all of the roots are, in their order; none of them where they are elsewhere. `depth`:
    /// how many names lead to the destination in the volume, if that is known.
    pub(super) fn new(
        roots: &[SourceRoot],
        rename: Option<&Name>,
        sources: &[PathBuf],
        depth: Option<usize>,
    ) -> Homes {
        let below = depth.map(|depth| depth + 1);
        if let ([root], [path]) = (roots, sources) {
            let not_below = if matches!(root, SourceRoot::Named { .. }) { below } else { depth };
            return Homes { others: place(path, not_below), ..Homes::default() };
        }
        if haul_mutant::removed("volume-homes-are-each-its-own") {
            let others = sources.first().and_then(|path| place(path, depth));
            return Homes { others, ..Homes::default() };
        }
        // Which of them is which nobody says.
        if roots.len() != sources.len() || rename.is_some() {
            return Homes::default();
        }
        let each = || roots.iter().zip(sources);
        let contents = || each().filter(|(root, _)| matches!(root, SourceRoot::Contents { .. }));
        use std::os::unix::ffi::OsStrExt as _;
        let named = each().filter_map(|(root, path)| match root {
            SourceRoot::Named { name, .. } => Some((name, path)),
            SourceRoot::Contents { .. } => None,
        });
        let is_also = |name: &Name| {
            let name = std::ffi::OsStr::from_bytes(name.as_bytes());
            contents().any(|(_, path)| path.join(name).symlink_metadata().is_ok())
        };
        let is_it = |name: &Name, path: &Path| {
            path.file_name().is_some_and(|last| last.as_bytes() == name.as_bytes()) && !is_also(name)
        };
        let named =
            named.map(|(name, path)| (name.clone(), place(path, below).filter(|_| is_it(name, path))));
        let others = match contents().count() {
            1 => contents().next().and_then(|(_, path)| place(path, depth)),
            _ => None,
        };
        Homes { named: named.collect(), others }
    }

    /// The home of an entry on whose way below the destination this name is the first.
    pub(super) fn of(&self, first: &Name) -> Option<Arc<str>> {
        self.named.get(first).unwrap_or(&self.others).clone()
    }
}

#[cfg(test)]
mod tests {
    use haul_core::entry::Meta;

    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).expect("a name")
    }

    /// Goal: an overlay keeps what its upper directory keeps; where that is in memory, is not there, or none
    /// is known, nothing has a home in it.
    #[test]
    fn overlays_are_what_lies_below() {
        let room = tempfile::tempdir().expect("a directory");
        let of = |options: String| {
            let line = format!("50 27 0:60 / /m rw,relatime - overlay overlay {options}");
            has_lasting_upper(&parse_mount(&line).expect("a mount"))
        };
        let with = |upper: &Path| of(format!("rw,lowerdir=/l,upperdir={},workdir=/w", upper.display()));
        assert_eq!(with(room.path()), lasts(room.path()));
        assert!(!with(&room.path().join("none")) && !with(Path::new("/proc/self")));
        assert!(!of("ro,lowerdir=/l:/k".into()) && !with(Path::new("relative")));
    }

    /// Goal: each entry has the home of the source that it came from; where two may have brought it there is
    /// none. What the kernel makes up, and what is mounted in memory, is none either.
    #[test]
    fn each_has_the_home_it_came_from() {
        let room = tempfile::tempdir().expect("a directory");
        if !lasts(room.path()) {
            eprintln!("SKIP each_has_the_home_it_came_from: temporary files are in memory");
            return;
        }
        let at = |path: &str| room.path().join(path);
        for dir in ["p", "q", "r"] {
            std::fs::create_dir(at(dir)).expect("made");
        }
        std::fs::write(at("r/both"), b"x").expect("written");
        let named = |text: &str| SourceRoot::Named { name: name(text), is_dir: false };
        let contents = || SourceRoot::Contents { of: None, meta: Meta::default() };
        let home = |homes: &Homes, first: &str| homes.of(&name(first));
        let in_it = |path: PathBuf, count| {
            Some(Arc::from(noted(format!("{}:{}", this_host(), path.display()), Some(count))))
        };
        let is = |path: PathBuf| in_it(path, 3);

        let roots = [named("a"), named("b")];
        let two = Homes::new(&roots, None, &[at("p/a"), at("q/b")], Some(2));
        assert_eq!((home(&two, "a"), home(&two, "b")), (is(at("p/a")), is(at("q/b"))));
        assert_eq!(
            home(&Homes::new(&roots, None, &[at("p/a")], Some(2)), "a"),
            None,
            "which one is not said"
        );
        let one = Homes::new(&[contents()], None, &[at("r")], Some(3));
        assert_eq!((home(&one, "both"), home(&one, "x")), (is(at("r")), is(at("r"))));
        let mixed = Homes::new(
            &[named("both"), named("q"), contents()],
            None,
            &[at("both"), at("q"), at("r")],
            Some(2),
        );
        assert_eq!(
            [home(&mixed, "both"), home(&mixed, "q"), home(&mixed, "x")],
            [None, is(at("q")), in_it(at("r"), 2)]
        );
        let several = Homes::new(&[contents(), contents()], None, &[at("p"), at("q")], Some(2));
        assert_eq!(home(&several, "x"), None, "it came from either");

        assert!(lasts(&at("p")) && lasts(&at("not/there")));
        assert!(!lasts(Path::new("/proc/self/status")) && !lasts(Path::new("/proc/self/fd/0")));
        assert_eq!(place(Path::new("/proc/self/status"), Some(1)), None);
    }
}
