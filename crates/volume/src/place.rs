//! Places outside of a volume where something of it has its home: how they are noted, and what stands there.
//!
//! In: the place that a catalog notes, an entry's path in the volume, what the entry is. Out: its own place;
//! whether what stands there is what was brought from there, or there, by its kind, its length and its time.
//! Invariant: only what this host has is looked at; of all else nothing is known, and nothing said.
//!
//! A catalog notes one place for many entries, and how many names of an entry's path are not below it: behind
//! a NUL, which no path has. A place that is no path as it stands here (cut, or written for people) has none.
//! Left out: whether the bytes are the same.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use haul_base::{errno, escape};
use haul_core::entry::Timestamp;
use haul_core::volume::catalog::PLACE_LEN_MAX;

const MARK: char = '\0';
/// Parts of a second that file systems keep times to, in nanoseconds, beside all of them.
const GRAINS: [u32; 4] = [100, 1_000, 1_000_000, 1_000_000_000];

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    File { len: u64, mtime: Timestamp },
    Link(Box<[u8]>),
}

/// What stands at an entry's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stands {
    /// What it should be.
    It,
    /// That place is not on this host, or nobody knows where it is.
    Elsewhere,
    /// Nothing: in words, behind the place's name.
    Gone(String),
    /// Something else, or what cannot be looked at: in words, behind the place's name.
    Another(String),
}

/// What this host is called.
pub fn this_host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// A place as it is noted for entries that lie below it, or are it, but for so many names of their paths;
/// `None`: nobody knows.
pub fn noted(mut place: String, not_below: Option<usize>) -> String {
    let mark = not_below.map_or_else(String::new, |count| format!("{MARK}{count}"));
    let is_written_for_people = |c: char| "\\\"'\u{fffd}".contains(c) || c.is_control();
    if place.len() + mark.len() <= PLACE_LEN_MAX && !place.contains(is_written_for_people) {
        return place + &mark;
    }
    while place.len() > PLACE_LEN_MAX {
        place.pop();
    }
    place
}

/// A place that was noted, for people.
pub fn shown(noted: &str) -> &str {
    noted.split(MARK).next().unwrap_or_default()
}

/// The place of the entry of this path in the volume itself, for people.
pub fn own(noted: &str, path: &[u8]) -> String {
    match below(noted, path) {
        Some(below) if !below.is_empty() => {
            format!("{}/{}", shown(noted).trim_end_matches('/'), escape::name(&below))
        }
        _ => shown(noted).to_owned(),
    }
}

/// The part of an entry's path below the place.
fn below(noted: &str, path: &[u8]) -> Option<Vec<u8>> {
    let (_, not_below) = noted.split_once(MARK)?;
    let not_below: usize = not_below.parse().ok()?;
    let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    Some(names.get(not_below..)?.join(&b'/'))
}

/// The path of an entry's place, if that is on this host.
fn here(noted: &str, path: &[u8]) -> Option<PathBuf> {
    let below = below(noted, path)?;
    let (host, dir) = shown(noted).split_once(':')?;
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    if !dir.starts_with('/') || host != this_host() {
        return None;
    }
    let dir = Path::new(dir);
    Some(if below.is_empty() { dir.to_owned() } else { dir.join(OsStr::from_bytes(&below)) })
}

/// Looks at the place of an entry of this path in the volume.
pub fn look(noted: &str, path: &[u8], what: &What) -> Stands {
    let Some(at) = here(noted, path).filter(|_| !haul_mutant::removed("homes-are-looked-at")) else {
        return Stands::Elsewhere;
    };
    match fs::symlink_metadata(&at) {
        Ok(found) if is_it(&at, &found, what) => Stands::It,
        Ok(_) => Stands::Another("is another by now".into()),
        Err(error) if is_gone(&error) => Stands::Gone("is not there any more".into()),
        Err(error) => Stands::Another(format!("cannot be looked at: {}", errno::text(error))),
    }
}

fn is_gone(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
}

/// Whether what stands at the place of an entry on this host may be what stands at this path: it is, by
/// whatever ways both lead there, or nobody can tell.
pub fn may_be(noted: &str, path: &[u8], other: &Path) -> bool {
    let Some(at) = here(noted, path) else { return false };
    match (fs::symlink_metadata(&at), fs::symlink_metadata(other)) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        (Err(error), _) | (_, Err(error)) => !is_gone(&error),
    }
}

fn is_it(at: &Path, found: &Metadata, what: &What) -> bool {
    match what {
        What::File { len, mtime } => {
            found.is_file() && found.len() == *len && is_time(found.mtime(), found.mtime_nsec(), *mtime)
        }
        What::Link(target) => {
            found.is_symlink()
                && fs::read_link(at).is_ok_and(|leads| leads.as_os_str().as_bytes() == &target[..])
        }
    }
}

/// Whether a file system that was told this time has it, as exactly as it keeps times.
fn is_time(secs: i64, nanos: i64, told: Timestamp) -> bool {
    let is_cut = |grain: u32| i64::from(told.nanos - told.nanos % grain) == nanos;
    secs == told.secs && (i64::from(told.nanos) == nanos || GRAINS.into_iter().any(is_cut))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each entry has its own place below the one that is noted, and nothing is said of a place that is
    /// not here, or not known.
    #[test]
    fn each_entry_has_its_own_place() {
        let at = noted("n1:/a".into(), Some(1));
        assert_eq!((shown(&at), &*own(&at, b"in/b/c"), &*own(&at, b"in")), ("n1:/a", "n1:/a/b/c", "n1:/a"));
        assert_eq!(own(&noted("n1:/".into(), Some(0)), b"b/c"), "n1:/b/c");
        assert_eq!(own("n1:/a", b"in/b"), "n1:/a", "an older one");
        assert_eq!(noted("n1:/a".into(), None), "n1:/a");
        let long = noted(format!("n1:/{}", "x".repeat(400)), Some(1));
        assert_eq!((long.len(), own(&long, b"in/b").len()), (PLACE_LEN_MAX, PLACE_LEN_MAX));
        assert!(!noted("n1:/a\\u{7}".into(), Some(1)).contains(MARK));
        let what = What::Link(b"x".as_slice().into());
        let host = this_host();
        for at in [
            noted(format!("not-{host}:/"), Some(0)),
            format!("{host}:/"),
            noted(format!("{host}:a"), Some(0)),
        ] {
            assert_eq!(look(&at, b"no-such-name", &what), Stands::Elsewhere, "{at}");
        }
        assert!(matches!(
            look(&noted(format!("{host}:/"), Some(0)), b"no-such-name", &what),
            Stands::Gone(_)
        ));
    }

    /// Goal: a path that leads to an entry's place by other ways is seen to, and what is not there is not it.
    #[test]
    fn places_are_known_by_what_stands_there() {
        let room = tempfile::tempdir().expect("a directory");
        let path = |name: &str| room.path().join(name);
        fs::create_dir(path("d")).expect("made");
        fs::write(path("d/f"), b"x").expect("written");
        fs::write(path("g"), b"x").expect("written");
        std::os::unix::fs::symlink("d", path("way")).expect("a link");
        let at = noted(format!("{}:{}", this_host(), path("way").display()), Some(1));
        assert!(may_be(&at, b"v/f", &path("d/f")) && may_be(&at, b"v/f", &path("way/f")));
        assert!(!may_be(&at, b"v/f", &path("g")) && !may_be(&at, b"v/f", &path("none")));
        assert!(!may_be(&at, b"v/none", &path("none")), "nothing is replaced");
    }

    /// Goal: what stands there is it as long as it has its kind, length, time and target, each.
    #[test]
    fn what_stands_there_is_told_apart() {
        let room = tempfile::tempdir().expect("a directory");
        let at = noted(format!("{}:{}", this_host(), room.path().display()), Some(1));
        let (file, link) = (room.path().join("f"), room.path().join("l"));
        fs::write(&file, b"12345").expect("written");
        std::os::unix::fs::symlink("there", &link).expect("a link");
        let found = fs::metadata(&file).expect("there");
        let mtime = Timestamp { secs: found.mtime(), nanos: found.mtime_nsec() as u32 };
        let is = |path: &[u8], what: What| look(&at, path, &what) == Stands::It;
        assert!(is(b"v/f", What::File { len: 5, mtime }));
        assert!(!is(b"v/f", What::File { len: 6, mtime }));
        assert!(!is(b"v/f", What::File { len: 5, mtime: Timestamp { secs: mtime.secs + 1, ..mtime } }));
        assert!(!is(b"v/f", What::Link(b"there".as_slice().into())));
        assert!(is(b"v/l", What::Link(b"there".as_slice().into())));
        assert!(!is(b"v/l", What::Link(b"elsewhere".as_slice().into())));
        assert!(!is(b"v/gone", What::File { len: 5, mtime }));
        assert!(is_time(5, 1_234_000, Timestamp { secs: 5, nanos: 1_234_567 }), "one of microseconds");
        assert!(!is_time(5, 1_234_001, Timestamp { secs: 5, nanos: 1_234_567 }));
    }
}
