//! From the sources as typed to source roots and the names that they take at the destination.
//!
//! Invariant: names depend on the text of the command only, so that a rerun never nests. `data` becomes
//! `DST/data`; `data/`, `data/.`, `.` and `..` become their contents in `DST`, whether or not `DST` exists.
//! A symlink as typed is copied as a symlink; with a slash behind it, or where the user wants links to be
//! followed, it is followed.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use haul_core::entry::{Name, NameError};
use haul_core::wire::{Failure, FailureKind, ROOTS_MAX, SourceRoot};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, openat, readlink, statat};
use rustix::io::Errno;

use super::acl::told_at;
use super::stat::Seen;
use crate::manners::{LinkRule, leads_out};
use haul_base::errno;
use haul_base::escape;
use haul_base::mounts::ways_below;
use haul_base::users::{self, Unexpanded};

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
    #[error("source {path} is a directory (use `recursive`)")]
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

impl From<SourceError> for Failure {
    /// [`FailureKind::Usage`] where the command says so, and not what lies there.
    fn from(why: SourceError) -> Failure {
        let kind = if why.is_usage() { FailureKind::Usage } else { FailureKind::Walk };
        let errno = if let SourceError::Unreachable { errno, .. } = &why { *errno } else { 0 };
        Failure { kind, errno, text: why.to_string().into() }
    }
}

/// Most bytes about further sources that are missing.
const MISSING_LEN_MAX: usize = 500;

const HINT: &str = " (globs and variables are literal on this side of the colon; name the files, or their directory with `recursive`)";

/// Maps the sources as typed to source roots. `home`: what `~` stands for, where the shell did not expand it
/// (the far side of a colon); `None` leaves it as it is.
///
/// Errors: the first source that is missing or a directory without `recursive`, or two of one final name.
pub fn resolve_sources(
    paths: &[Vec<u8>],
    recursive: bool,
    home: Option<&Path>,
) -> Result<Vec<RootSpec>, SourceError> {
    resolve_sources_by(paths, recursive, home, LinkRule::default())
}

/// The same, where links are followed by this rule.
///
/// Errors: the same, and a link that is to be followed and leads nowhere.
pub fn resolve_sources_by(
    paths: &[Vec<u8>],
    recursive: bool,
    home: Option<&Path>,
    links: LinkRule,
) -> Result<Vec<RootSpec>, SourceError> {
    match paths.len() {
        0 => return Err(SourceError::NoSource),
        n if n > SOURCES_MAX => return Err(SourceError::TooMany(n)),
        _ => {}
    }
    let mut specs = Vec::with_capacity(paths.len());
    let mut names: HashMap<Name, usize> = HashMap::new();
    for (index, typed) in paths.iter().enumerate() {
        let spec = match resolve(typed, recursive, home, links) {
            Ok(spec) => spec,
            Err(SourceError::Unreachable { path, errno, mut cause, hint }) => {
                cause += hint;
                cause += &more_missing(&paths[index + 1..], recursive, home, links);
                cause += "; nothing was copied";
                return Err(SourceError::Unreachable { path, errno, cause, hint: "" });
            }
            Err(other) => return Err(other),
        };
        if let RootTarget::Named(name) = &spec.target
            && let Some(first) = names.insert(name.clone(), index)
            && !haul_mutant::removed("sources-do-not-clash")
        {
            return Err(SourceError::SameName {
                first: escape::within(&paths[first]),
                second: escape::within(typed),
                name: escape::within(name.as_bytes()),
            });
        }
        specs.push(spec);
    }
    Ok(specs)
}

/// Which others cannot be reached either.
fn more_missing(paths: &[Vec<u8>], recursive: bool, home: Option<&Path>, links: LinkRule) -> String {
    let missing = paths.iter().filter_map(|typed| match resolve(typed, recursive, home, links) {
        Err(SourceError::Unreachable { path, cause, .. }) => Some(format!("; {path}: {cause}")),
        _ => None,
    });
    let (mut told, mut more) = (String::new(), 0);
    for text in missing {
        if told.len() + text.len() <= MISSING_LEN_MAX { told += &text } else { more += 1 }
    }
    if more > 0 {
        told += &format!("; and {more} more");
    }
    told
}

fn resolve(
    typed: &[u8],
    recursive: bool,
    home: Option<&Path>,
    links: LinkRule,
) -> Result<RootSpec, SourceError> {
    if typed.is_empty() {
        return Err(SourceError::Empty);
    }
    let shown = || escape::within(typed);
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
        cause: errno::text(errno),
        hint: if errno == Errno::NOENT && looks_unexpanded(typed) { HINT } else { "" },
    })?;
    let stat = led_to(&path, stat, links).map_err(|errno| SourceError::Unreachable {
        path: shown(),
        errno: errno.raw_os_error(),
        cause: format!("where the link leads to: {}", errno::text(errno)),
        hint: "",
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

/// What a source is that may be a link: itself, or what it leads to where it is followed.
fn led_to(path: &Path, stat: Stat, links: LinkRule) -> Result<Stat, Errno> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink || !links.follows() {
        return Ok(stat);
    }
    let out = links.outside && leads_out(readlink(path, Vec::new())?.as_bytes(), 0);
    let led = statat(CWD, path, AtFlags::empty());
    match led {
        _ if links.all || out => led,
        Ok(led) if links.dirs && FileType::from_raw_mode(led.st_mode) == FileType::Directory => Ok(led),
        _ => Ok(stat),
    }
}

fn looks_unexpanded(typed: &[u8]) -> bool {
    typed.first() == Some(&b'~') || typed.iter().any(|b| b"*?[$".contains(b))
}

/// With what a tilde stands for, where no shell has seen it.
fn expand(typed: &[u8], home: Option<&Path>) -> Result<PathBuf, SourceError> {
    let Some(home) = home else { return Ok(PathBuf::from(OsString::from_vec(typed.to_vec()))) };
    let path = || escape::within(typed);
    users::expand(typed, home).map_err(|why| match why {
        Unexpanded::NoHome => SourceError::NoHome { path: path() },
        Unexpanded::NoUser => SourceError::NoUser { path: path() },
    })
}

/// The source roots as the sink is told of them. A directory whose contents are copied is told by its own
/// name, wherever it is reached from: what comes into it or goes must not make another job.
pub fn source_roots(specs: &[RootSpec]) -> Result<Vec<SourceRoot>, SourceError> {
    specs
        .iter()
        .map(|spec| match &spec.target {
            RootTarget::Named(name) => Ok(SourceRoot::Named { name: name.clone(), is_dir: spec.is_dir }),
            RootTarget::Contents => {
                let unreachable = |e: std::io::Error| SourceError::Unreachable {
                    path: escape::within(spec.path.as_os_str().as_bytes()),
                    errno: e.raw_os_error().unwrap_or(0),
                    cause: errno::text(e),
                    hint: "",
                };
                let path = std::fs::canonicalize(&spec.path).map_err(unreachable)?;
                // `/` has none.
                let of = path.file_name().and_then(|last| Name::new(last.as_bytes()).ok());
                let stat = statat(CWD, &path, AtFlags::empty()).map_err(|errno| unreachable(errno.into()))?;
                let meta = told_at(&path, Seen::from(stat)).meta;
                Ok(SourceRoot::Contents { of, meta })
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
            return Ok(by_mounts(dir, specs));
        }
        here = above;
    }
    Err(Errno::LOOP)
}

/// The source that a mount shows the directory in, or that has it mounted below itself: the way up from it
/// meets neither.
fn by_mounts(dir: BorrowedFd<'_>, specs: &[RootSpec]) -> Option<usize> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    specs.iter().position(|spec| {
        let root = spec.is_dir.then(|| rustix::fs::open(&spec.path, flags, Mode::empty()));
        root.is_some_and(|root| root.is_ok_and(|root| !ways_below(root, dir).is_empty()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::open;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

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
        assert!(refused(&["/data"], false).ends_with("data is a directory (use `recursive`)"));
        assert!(refused(&["/data/"], false).ends_with("data/ is a directory (use `recursive`)"));
        assert!(refused(&["/link/"], false).contains("(use `recursive`)"));
        assert!(refused(&["/file/"], true).ends_with("file/: Not a directory; nothing was copied"));
        assert!(
            refused(&["/dangling/"], true)
                .ends_with("dangling/: No such file or directory; nothing was copied")
        );
        assert!(refused(&["/gone"], true).ends_with("gone: No such file or directory; nothing was copied"));
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

    /// Goal: one look names all sources that are not there, and says that nothing was copied; very many are
    /// counted.
    #[test]
    fn all_missing_sources_are_named() {
        let temp = ground();
        let told = |tails: &[&str]| {
            let paths: Vec<Vec<u8>> = tails.iter().map(|tail| bytes(temp.path(), tail)).collect();
            resolve_sources(&paths, true, None).expect_err("missing").to_string()
        };
        let text = told(&["/data", "/no", "/file", "/nor"]);
        let (no, nor) = (temp.path().join("no"), temp.path().join("nor"));
        let wanted = [no, nor].map(|path| format!("{}: No such file or directory", path.display()));
        assert!(wanted.iter().all(|part| text.contains(part)), "{text}");
        assert!(
            text.starts_with("source ") && text.ends_with("; nothing was copied") && !text.contains("file:"),
            "{text}"
        );
        let many = told(&["/no"; 100]);
        assert!(many.len() < 1000 && many.contains(" more; nothing"), "{many}");
    }

    /// Goal: contents are told by the last component of the directory that they are in, however it is
    /// reached, and not by what is in it.
    /// Method: one directory by several paths, before and after a name came into it; another directory; the
    /// root.
    #[test]
    fn contents_are_told_by_their_directory() {
        let temp = ground();
        let root = |tail: &str| {
            let specs = resolve_sources(&[bytes(temp.path(), tail)], true, None).expect("there");
            match source_roots(&specs).expect("reachable").remove(0) {
                SourceRoot::Contents { of, meta } => (of, meta.mode),
                named => panic!("{named:?}"),
            }
        };
        fs::set_permissions(temp.path().join("data"), fs::Permissions::from_mode(0o750)).expect("chmod");
        let data = (Some(Name::new(b"data").expect("legal")), 0o750);
        for tail in ["/data/", "/data/.", "/data/sub/..", "/link/"] {
            assert_eq!(root(tail), data, "{tail}");
        }
        assert_eq!(root("/other/data/").0, data.0);
        fs::write(temp.path().join("data/new"), "").expect("write");
        assert_eq!(root("/data/"), data);
        assert_ne!(root("/data/sub/"), data);
        let slash = resolve_sources(&[b"/".to_vec()], true, None).expect("there");
        let slash = source_roots(&slash).expect("reachable");
        assert!(matches!(slash[..], [SourceRoot::Contents { of: None, .. }]), "{slash:?}");
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
