//! From the sources as typed to source roots and the names that they take at the destination.
//!
//! Invariant: names depend on the text of the command only, so that a rerun never nests. `data` becomes
//! `DST/data`; `data/`, `data/.`, `.` and `..` become their contents in `DST`, whether or not `DST` exists.
//! A symlink as typed is copied as a symlink; with a slash behind it, it is followed.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use haul_core::entry::{Name, NameError};
use haul_core::wire::{ROOTS_MAX, SourceRoot};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::Errno;

use super::failure::{printable, strerror};
use crate::users::{self, Unexpanded};

/// Most sources of one job: both ends keep the names of all.
pub const SOURCES_MAX: usize = ROOTS_MAX;
/// Most directories between a destination and `/` that [`is_inside`] climbs.
const CLIMB_MAX: usize = 4096;

/// One source of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootSpec {
    /// As typed, with `~` expanded; relative to the working directory.
    pub path: PathBuf,
    pub target: RootTarget,
    /// It was a directory when the command was read.
    pub is_dir: bool,
}

/// What a source becomes at the destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootTarget {
    /// An entry of this name in the destination root.
    Named(Name),
    /// The entries of this directory go into the destination root.
    Contents,
}

/// Why sources cannot be taken; found before any data moves.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SourceError {
    #[error("no source given")]
    NoSource,
    #[error("{0} sources given, at most {SOURCES_MAX} are possible; name the directory that holds them")]
    TooMany(usize),
    #[error("a source is an empty path")]
    Empty,
    #[error("source {path}: {cause}{hint}")]
    Unreachable { path: String, errno: i32, cause: String, hint: &'static str },
    #[error("source {path} is a directory (use -r)")]
    IsDirectory { path: String },
    #[error("source {path}: '~' cannot be expanded, for HOME is not set")]
    NoHome { path: String },
    #[error("source {path}: there is no such user; for a name that begins with '~' write ./~")]
    NoUser { path: String },
    #[error("source {path}: {why}")]
    Name { path: String, why: NameError },
    #[error("sources {first} and {second} would both become {name} at the destination")]
    SameName { first: String, second: String, name: String },
}

impl SourceError {
    /// The command cannot be meant as it stands, whatever lies at the source.
    pub fn is_usage(&self) -> bool {
        match self {
            SourceError::NoSource
            | SourceError::TooMany(_)
            | SourceError::Empty
            | SourceError::IsDirectory { .. }
            | SourceError::Name { .. }
            | SourceError::SameName { .. } => true,
            SourceError::Unreachable { .. } | SourceError::NoHome { .. } | SourceError::NoUser { .. } => {
                false
            }
        }
    }
}

const HINT: &str = " (globs and variables are literal on this side of the colon; name the files, or their directory with -r)";

/// Maps the sources as typed to source roots. `home`: what `~` stands for, where the shell did not expand it
/// (the far side of a colon); `None` leaves it as it is.
///
/// Errors: the first source that is missing or a directory without `recursive`, or two of one final name.
pub fn resolve_sources(
    paths: &[Vec<u8>],
    recursive: bool,
    home: Option<&Path>,
) -> Result<Vec<RootSpec>, SourceError> {
    match paths.len() {
        0 => return Err(SourceError::NoSource),
        n if n > SOURCES_MAX => return Err(SourceError::TooMany(n)),
        _ => {}
    }
    let mut specs = Vec::with_capacity(paths.len());
    let mut names: HashMap<Name, usize> = HashMap::new();
    for (index, typed) in paths.iter().enumerate() {
        let spec = resolve(typed, recursive, home)?;
        if let RootTarget::Named(name) = &spec.target
            && let Some(first) = names.insert(name.clone(), index)
            && !haul_mutant::removed("sources-do-not-clash")
        {
            return Err(SourceError::SameName {
                first: printable(&paths[first]),
                second: printable(typed),
                name: printable(name.as_bytes()),
            });
        }
        specs.push(spec);
    }
    Ok(specs)
}

fn resolve(typed: &[u8], recursive: bool, home: Option<&Path>) -> Result<RootSpec, SourceError> {
    if typed.is_empty() {
        return Err(SourceError::Empty);
    }
    let shown = || printable(typed);
    let path = expand(typed, home)?;
    let bytes = path.as_os_str().as_bytes();
    // The part behind the last slash, and none when the path ends in one.
    let last = bytes.rsplit(|b| *b == b'/').next().unwrap_or_default();
    let contents = matches!(last, b"" | b"." | b"..");
    // A path with a slash or dots at its end is followed, and must be a directory.
    let flags = if contents { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    let stat = statat(CWD, &path, flags).map_err(|errno| SourceError::Unreachable {
        path: shown(),
        errno: errno.raw_os_error(),
        cause: strerror(errno.raw_os_error()),
        hint: if errno == Errno::NOENT && looks_unexpanded(typed) { HINT } else { "" },
    })?;
    let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    if is_dir && !recursive {
        return Err(SourceError::IsDirectory { path: shown() });
    }
    let target = if contents {
        RootTarget::Contents
    } else {
        RootTarget::Named(Name::new(last).map_err(|why| SourceError::Name { path: shown(), why })?)
    };
    Ok(RootSpec { path, target, is_dir })
}

fn looks_unexpanded(typed: &[u8]) -> bool {
    typed.first() == Some(&b'~') || typed.iter().any(|b| b"*?[$".contains(b))
}

/// With what a tilde stands for, where no shell has seen it.
fn expand(typed: &[u8], home: Option<&Path>) -> Result<PathBuf, SourceError> {
    let Some(home) = home else { return Ok(PathBuf::from(OsString::from_vec(typed.to_vec()))) };
    let path = || printable(typed);
    users::expand(typed, home).map_err(|why| match why {
        Unexpanded::NoHome => SourceError::NoHome { path: path() },
        Unexpanded::NoUser => SourceError::NoUser { path: path() },
    })
}

/// The source roots as the sink is told of them. A directory whose contents are copied is told by its own name, wherever it
/// is reached from: what comes into it or goes must not make another job.
pub fn source_roots(specs: &[RootSpec]) -> Result<Vec<SourceRoot>, SourceError> {
    specs
        .iter()
        .map(|spec| match &spec.target {
            RootTarget::Named(name) => Ok(SourceRoot::Named { name: name.clone(), is_dir: spec.is_dir }),
            RootTarget::Contents => {
                let path = std::fs::canonicalize(&spec.path).map_err(|e| SourceError::Unreachable {
                    path: printable(spec.path.as_os_str().as_bytes()),
                    errno: e.raw_os_error().unwrap_or(0),
                    cause: e.raw_os_error().map_or_else(|| e.to_string(), strerror),
                    hint: "",
                })?;
                // `/` has none.
                let of = path.file_name().and_then(|last| Name::new(last.as_bytes()).ok());
                Ok(SourceRoot::Contents { of })
            }
        })
        .collect()
}

/// The index of the source root that `dir` is, or lies in. `dir`: the destination, or the deepest existing
/// directory above it, on the same host. A copy into one of its own sources would never end.
pub fn is_inside(dir: BorrowedFd<'_>, specs: &[RootSpec]) -> Result<Option<usize>, Errno> {
    let same = |a: &Stat, b: &Stat| (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino);
    let mut roots = Vec::new();
    for (index, spec) in specs.iter().enumerate().filter(|(_, spec)| spec.is_dir) {
        roots.push((index, statat(CWD, &spec.path, AtFlags::empty())?));
    }
    let mut here = fstat(dir)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut fd = openat(dir, OsStr::new("."), flags, Mode::empty())?;
    for _ in 0..CLIMB_MAX {
        if let Some((index, _)) = roots.iter().find(|(_, root)| same(root, &here)) {
            return Ok(Some(*index));
        }
        fd = openat(&fd, OsStr::new(".."), flags, Mode::empty())?;
        let above = fstat(&fd)?;
        if same(&above, &here) {
            return Ok(None);
        }
        here = above;
    }
    Err(Errno::LOOP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::open;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn bytes(path: &Path, tail: &str) -> Vec<u8> {
        let mut bytes = path.as_os_str().as_bytes().to_vec();
        bytes.extend_from_slice(tail.as_bytes());
        bytes
    }

    fn ground() -> tempfile::TempDir {
        let temp = tempfile::tempdir().expect("tempdir");
        fs::create_dir_all(temp.path().join("data/sub")).expect("mkdir");
        fs::create_dir_all(temp.path().join("other/data")).expect("mkdir");
        fs::write(temp.path().join("file"), "x").expect("write");
        fs::write(temp.path().join("we?ird*"), "x").expect("write");
        symlink("data", temp.path().join("link")).expect("symlink");
        symlink("nowhere", temp.path().join("dangling")).expect("symlink");
        temp
    }

    /// Goal: the name at the destination follows from the text of the source alone.
    /// Method: a table of endings against kinds of entries.
    #[test]
    fn names_follow_from_the_text() {
        let temp = ground();
        let table: [(&str, Option<&str>, bool); 14] = [
            ("/data", Some("data"), true),
            ("//data", Some("data"), true),
            ("/data/", None, true),
            ("/data//", None, true),
            ("/data/.", None, true),
            ("/data/..", None, true),
            ("/.", None, true),
            ("/data/sub", Some("sub"), true),
            ("/file", Some("file"), false),
            ("/we?ird*", Some("we?ird*"), false),
            ("/link", Some("link"), false),
            ("/link/", None, true),
            ("/link/sub", Some("sub"), true),
            ("/dangling", Some("dangling"), false),
        ];
        for (tail, name, is_dir) in table {
            let specs = resolve_sources(&[bytes(temp.path(), tail)], true, None).expect(tail);
            let target = match name {
                Some(name) => RootTarget::Named(Name::new(name.as_bytes()).expect("legal")),
                None => RootTarget::Contents,
            };
            assert_eq!((&specs[0].target, specs[0].is_dir), (&target, is_dir), "{tail}");
        }
        for path in [".", "..", "./", "../", "/"] {
            let specs = resolve_sources(&[path.into()], true, None).expect(path);
            assert_eq!(specs[0].target, RootTarget::Contents, "{path}");
        }
    }

    /// Goal: what cannot be a source is refused in words that say why, before data moves.
    #[test]
    fn impossible_sources_are_refused() {
        let temp = ground();
        let refused = |tails: &[&str], recursive| {
            let paths: Vec<_> = tails.iter().map(|tail| bytes(temp.path(), tail)).collect();
            resolve_sources(&paths, recursive, None).expect_err("refused").to_string()
        };
        assert!(refused(&["/data"], false).ends_with("data is a directory (use -r)"));
        assert!(refused(&["/data/"], false).ends_with("data/ is a directory (use -r)"));
        assert!(refused(&["/link/"], false).contains("(use -r)"));
        assert!(refused(&["/file/"], true).ends_with("file/: Not a directory"));
        assert!(refused(&["/dangling/"], true).ends_with("dangling/: No such file or directory"));
        assert!(refused(&["/gone"], true).ends_with("gone: No such file or directory"));
        for unexpanded in ["/*.dat", "/da?a", "/[ab]", "/$HOME/x"] {
            assert!(refused(&[unexpanded], true).contains("are literal on this side"), "{unexpanded}");
        }
        let twice = refused(&["/data", "/file", "/other/data"], true);
        assert!(twice.contains("/data and ") && twice.ends_with("would both become data at the destination"));
        assert_eq!(resolve_sources(&[], true, None), Err(SourceError::NoSource));
        assert_eq!(resolve_sources(&[vec![]], true, None), Err(SourceError::Empty));
        let many = vec![b".".to_vec(); SOURCES_MAX + 1];
        assert_eq!(resolve_sources(&many, true, None), Err(SourceError::TooMany(SOURCES_MAX + 1)));
    }

    /// Goal: `~` stands for home where the caller gives one, and only alone or before a slash.
    #[test]
    fn tilde_is_home_where_one_is_given() {
        let temp = ground();
        let home = Some(temp.path());
        let spec = |path: &str| resolve_sources(&[path.into()], true, home).map(|mut specs| specs.remove(0));
        assert_eq!(spec("~/data").expect("there").path, temp.path().join("data"));
        assert_eq!(spec("~/data/").expect("there").target, RootTarget::Contents);
        assert_eq!(spec("~/").expect("there").target, RootTarget::Contents);
        assert!(matches!(spec("~").expect("there").target, RootTarget::Named(_)));
        assert_eq!(spec("~root").expect("there").path, Path::new("/root"));
        assert!(spec("~no-such-user/data").expect_err("nobody").to_string().contains("no such user"));
        assert!(spec("$HOME/data").expect_err("literal").to_string().contains("literal"));
        assert!(resolve_sources(&[b"~/data".to_vec()], true, None).is_err());
        let no_home = resolve_sources(&[b"~/data".to_vec()], true, Some(Path::new("")));
        assert!(matches!(no_home, Err(SourceError::NoHome { .. })));
    }

    /// Goal: contents are told by the last component of the directory that they are in, however it is reached, and not by
    /// what is in it.
    /// Method: one directory by several paths, before and after a name came into it; another directory; the root.
    #[test]
    fn contents_are_told_by_their_directory() {
        let temp = ground();
        let root = |tail: &str| {
            let specs = resolve_sources(&[bytes(temp.path(), tail)], true, None).expect("there");
            source_roots(&specs).expect("reachable").remove(0)
        };
        let data = SourceRoot::Contents { of: Some(Name::new(b"data").expect("legal")) };
        for tail in ["/data/", "/data/.", "/data/sub/..", "/link/", "/other/data/"] {
            assert_eq!(root(tail), data, "{tail}");
        }
        fs::write(temp.path().join("data/new"), "").expect("write");
        assert_eq!(root("/data/"), data);
        assert_ne!(root("/data/sub/"), data);
        let slash = resolve_sources(&[b"/".to_vec()], true, None).expect("there");
        assert_eq!(source_roots(&slash).expect("reachable"), [SourceRoot::Contents { of: None }]);
    }

    /// Goal: a destination in one of its sources is seen, also through a symlink to it; others are not.
    #[test]
    fn destination_inside_a_source_is_seen() {
        let temp = ground();
        let specs = |tail: &str| resolve_sources(&[bytes(temp.path(), tail)], true, None).expect("there");
        let inside = |destination: &str, tail: &str| {
            let path = temp.path().join(destination);
            let fd = open(&path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).expect("open");
            is_inside(std::os::fd::AsFd::as_fd(&fd), &specs(tail)).expect("climbs").is_some()
        };
        assert!(inside("data/sub", "/data"));
        assert!(inside("data/sub", "/link/"));
        assert!(inside("link/sub", "/data/"));
        assert!(inside("data", "/data/"));
        assert!(inside("other/data", "/."));
        assert!(!inside("other/data", "/data"));
        assert!(!inside(".", "/data/"));
        assert!(!inside("data/sub", "/link"), "a symlink is copied as a symlink");
        assert!(!inside("data", "/file"));
    }
}
