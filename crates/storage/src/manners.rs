//! How the tree of a source is walked where the user says more than "all of it, links as links".
//!
//! In: what was asked for. Out: whether a link is followed, or leads out of what is copied; which entries of
//! a directory are wanted.
//! What must hold: whether a link leads out is told by its text and by how deep it lies alone, at both ends
//! alike and without a look at any file system; what is doubtful leads out.
//! Left out: the walk itself (`walk`), and links of a destination (`sink/tree/standing`).
//! Source: `unsafe_symlink` of rsync says the same of a link.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use haul_core::entry::{Name, NameError};
use serde::{Deserialize, Serialize};

/// Whether owners are told by name, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ByName {
    #[default]
    No,
    /// As far as anybody says in time what they are called.
    Yes,
    /// And the source is gone where nobody does: what an entry becomes depends on it.
    Surely,
}

/// What becomes of a directory of another file system than its source's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mounted {
    /// It is copied, with all that is in it.
    #[default]
    Copied,
    /// It is made, and nobody looks into it.
    Empty,
    /// It is left out.
    Out,
}

/// What becomes of the symbolic links of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkRule {
    /// All are followed.
    pub all: bool,
    /// Those that lead to directories are followed.
    pub dirs: bool,
    /// Those that lead out of what is copied are followed.
    pub outside: bool,
    /// Those that lead out of what is copied are left out.
    pub safe: bool,
}

impl LinkRule {
    /// Some may be followed.
    pub fn follows(&self) -> bool {
        self.all || self.dirs || self.outside
    }
}

/// What becomes of symbolic links at a destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinksThere {
    /// Those to directories that stood there are taken for these directories.
    pub keep: bool,
    /// How long ago the first attempt of this copy began, of which this is another: what was made since may
    /// have come with that one.
    pub begun: Option<Duration>,
    /// None is made that leads out of what is copied.
    pub safe: bool,
    /// Some of the source are followed: what comes may lie anywhere, and not below what was named.
    pub followed: bool,
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct Manners {
    pub links: LinkRule,
    pub mounted: Mounted,
    /// `None`: all entries.
    pub only: Option<OnlyThese>,
    /// Where it all goes, if that is on this host: where links are followed, one may lead there.
    pub sink_here: Option<PathBuf>,
}

impl Manners {
    /// What a directory is has to be known.
    pub fn tells_directories_apart(&self) -> bool {
        self.mounted != Mounted::Copied || self.links.follows()
    }
}

/// Whether a link leads out of what is copied, by its text; so many directories lie between the root of the
/// destination and the link. Absolute ones do, and those that climb above that root on their way, whatever
/// they climb down to again.
pub fn leads_out(target: &[u8], depth: usize) -> bool {
    if haul_mutant::removed("links-that-lead-out") {
        return false;
    }
    if target.is_empty() || target[0] == b'/' {
        return true;
    }
    let parts: Vec<&[u8]> = target.split(|byte| *byte == b'/').collect();
    let climbs = parts.iter().take_while(|part| matches!(**part, b"" | b"..")).count();
    // A name before it may be a link itself, so that nobody knows where one arrives behind it.
    parts[climbs..].contains(&&b".."[..])
        || (parts.len() > 1 && parts.last() == Some(&&b".."[..]))
        || parts[..climbs].iter().filter(|part| **part == b"..").count() > depth
}

/// Entries of a source that are wanted, by their paths at the destination: those that are named, all that is
/// below them, and the directories above.
#[derive(Clone, Debug)]
pub struct OnlyThese {
    /// In order, component by component.
    paths: Arc<[Vec<Name>]>,
    /// Those below the directory that this is of, and how many components lead to it.
    first: usize,
    end: usize,
    depth: usize,
}

/// What is wanted of an entry.
#[derive(Clone, Debug)]
pub enum Wanted {
    Nothing,
    All,
    Some(OnlyThese),
}

impl Wanted {
    /// What of a directory that is entered is wanted; `None`: all.
    pub fn some(self) -> Option<OnlyThese> {
        match self {
            Wanted::Some(only) => Some(only),
            Wanted::Nothing | Wanted::All => None,
        }
    }
}

impl OnlyThese {
    /// Paths of a destination. One that is empty is all of it, and one that is absolute or ends in a slash is
    /// that of a source as a whole, as a walk names what it cannot begin: then there is nothing to choose.
    /// `.` is the root of the destination itself, which becomes what it is to be whatever else is wanted.
    ///
    /// # Errors
    /// One that cannot be a path, by its number.
    pub fn new<'a>(
        paths: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Option<OnlyThese>, (usize, NameError)> {
        let mut all = Vec::new();
        for (index, path) in paths.into_iter().enumerate() {
            if path == b"." {
                continue;
            }
            if path.is_empty() || path.starts_with(b"/") || path.ends_with(b"/") {
                return Ok(None);
            }
            let names = path.split(|byte| *byte == b'/').map(Name::new);
            all.push(names.collect::<Result<Vec<Name>, NameError>>().map_err(|why| (index, why))?);
        }
        all.sort_unstable();
        all.dedup();
        let end = all.len();
        Ok(Some(OnlyThese { paths: all.into(), first: 0, end, depth: 0 }))
    }

    /// Nothing is.
    pub fn is_nothing(&self) -> bool {
        self.first == self.end
    }

    /// The paths that are wanted, from the root of the destination.
    pub fn paths(&self) -> impl Iterator<Item = Vec<u8>> {
        let join = |path: &Vec<Name>| path.iter().map(Name::as_bytes).collect::<Vec<_>>().join(&b'/');
        self.paths[self.first..self.end].iter().map(join)
    }

    /// The names that are wanted in the directory, or lead there.
    pub fn names(&self) -> Vec<Name> {
        let mut names: Vec<Name> = Vec::new();
        for path in &self.paths[self.first..self.end] {
            if let Some(name) = path.get(self.depth)
                && names.last() != Some(name)
            {
                names.push(name.clone());
            }
        }
        names
    }

    /// What of an entry of the directory is wanted.
    pub fn below(&self, name: &Name) -> Wanted {
        let part = &self.paths[self.first..self.end];
        let first = part.partition_point(|path| path.get(self.depth) < Some(name));
        let len = part[first..].partition_point(|path| path.get(self.depth) == Some(name));
        match part.get(first) {
            None => Wanted::Nothing,
            Some(_) if len == 0 => Wanted::Nothing,
            // The shortest comes first.
            Some(path) if path.len() == self.depth + 1 => Wanted::All,
            Some(_) => {
                let first = self.first + first;
                let (end, depth) = (first + len, self.depth + 1);
                Wanted::Some(OnlyThese { paths: self.paths.clone(), first, end, depth })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what leads out is told by text and depth.
    /// Method: rsync's own cases, each at several depths.
    #[test]
    fn what_leads_out_is_told_by_its_text() {
        for (target, depths_within) in [
            ("a", 0),
            ("a/b", 0),
            ("./a", 0),
            (".", 0),
            ("a//b/.", 0),
            ("..", 1),
            ("../a", 1),
            ("..//../a", 2),
            ("../../../x/y", 3),
        ] {
            for depth in 0..5 {
                assert_eq!(leads_out(target.as_bytes(), depth), depth < depths_within, "{target} {depth}");
            }
        }
        for target in [
            "",
            "/",
            "/a",
            "../..",
            "./../a",
            ".././../a",
            "a/..",
            "a/../b",
            "../a/../b",
            "a/b/../../c",
            "../a/..",
        ] {
            assert!(leads_out(target.as_bytes(), 9), "{target}");
        }
        assert!(!leads_out(b"..a/b..", 0) && !leads_out(b"...", 0));
    }

    /// Goal: what is wanted is what was named, all below it and the way there, and no more.
    /// Method: a list with neighbours that sort between a directory and what is in it.
    #[test]
    fn wanted_is_what_was_named() {
        let name = |text: &str| Name::new(text.as_bytes()).expect("legal");
        let paths = ["a/b/c", "a-b", "a/b/d", "a", "x/y/z", "x/y", "q/r", "a!/1"];
        let of = |paths: &[&str]| OnlyThese::new(paths.iter().map(|path| path.as_bytes()));
        let only = of(&paths).expect("paths").expect("not all");
        assert_eq!(only.names(), ["a", "a!", "a-b", "q", "x"].map(name));
        assert!(matches!(only.below(&name("a")), Wanted::All));
        assert!(matches!(only.below(&name("a-b")), Wanted::All));
        for nothing in ["b", "", "0", "zz", "a#"] {
            if let Ok(name) = Name::new(nothing.as_bytes()) {
                assert!(matches!(only.below(&name), Wanted::Nothing), "{nothing}");
            }
        }
        let Wanted::Some(in_x) = only.below(&name("x")) else { panic!("a part of x") };
        assert_eq!(in_x.names(), [name("y")]);
        assert!(matches!(in_x.below(&name("y")), Wanted::All));
        assert!(matches!(in_x.below(&name("z")), Wanted::Nothing));
        let without = of(&["a/b/c", "a/b/d", "a/e"]).expect("paths").expect("not all");
        let Wanted::Some(in_a) = without.below(&name("a")) else { panic!("a part of a") };
        assert_eq!(in_a.names(), [name("b"), name("e")]);
        let Wanted::Some(in_b) = in_a.below(&name("b")) else { panic!("a part of b") };
        assert_eq!(in_b.names(), [name("c"), name("d")]);
        for all in ["", "/data/sub", "data/"] {
            assert!(of(&["a", all]).expect("paths").is_none(), "all");
        }
        assert!(of(&[]).expect("none").is_some_and(|only| only.is_nothing() && only.names().is_empty()));
        assert_eq!(of(&["a", "b//c"]).map(drop), Err((1, NameError::Empty)));
        let of_root = of(&[".", "a"]).expect("paths").expect("not all");
        assert_eq!(of_root.names(), [name("a")]);
        assert!(of(&["."]).expect("paths").is_some_and(|only| only.is_nothing()), "the root alone");
        assert_eq!(of(&["../a"]).map(drop), Err((0, NameError::Dots)));
    }
}
