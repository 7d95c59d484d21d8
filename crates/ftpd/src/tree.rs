//! Paths of clients become a directory that is open and one name in it, below the root and nowhere else.
//!
//! In: a path as a client says it, and the directory that it works in. Out: [`Spot`]s.
//! What must hold: every step is from an open directory by one component ([`crate::store`]), which follows no
//! link; a symbolic link is read here and walked like a path of its own, and one that leads out of the root,
//! or is absolute, leads nowhere. `..` in a path of the client's takes a component off the path itself, as
//! shells do; `..` in a link goes to the directory above. Names of parts of uploads and of their records,
//! whichever user's ([`is_kept`]), are on no way, whether a client says one or a link does. Left out: rights.
//! The process is the user, so the kernel knows them; in a volume its servers do.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use haul_core::entry::Name;
use haul_storage::sink::names::{
    NEXT_PART, NEXT_RECORD, PART, RECORD, is_of_upload, tag_bits, tag_of, temp_name,
};
use rustix::io::Errno;

use crate::config::{PATH_LEN_MAX, Volume};
use crate::store::posix::PosixDir;
use crate::store::{Dir, Fault, File, FileType, Stat, volume};

/// Most components of a directory below the root, links followed.
const DEPTH_MAX: usize = 256;
/// Most steps on one way, those of links too.
const STEPS_MAX: usize = 1_000;
/// Most links on one way.
const LINKS_MAX: usize = 40;

/// Why a path leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    #[error("{}", haul_base::errno::text(*.0))]
    System(#[from] Errno),
    /// With words of its own.
    #[error("{0}")]
    Told(Fault),
    #[error("a symbolic link leads out of what is served here")]
    LeadsOut,
    #[error("more than {LINKS_MAX} symbolic links on the way")]
    Links,
    #[error("the name is too long, or lies too deep")]
    TooLong,
    #[error("a name holds a byte that no name here may hold")]
    BadName,
    #[error("this name is kept for uploads that are not complete")]
    Kept,
    #[error("uploads of another user, who can go on with them, have left something in it")]
    OthersParts,
    #[error("this is the directory that is served itself")]
    Root,
    #[error("this is a directory")]
    Directory,
    #[error("this is no regular file")]
    NotRegular,
    #[error("this is a symbolic link")]
    Link,
    #[error("it became shorter while it was read")]
    Shrank,
}

impl From<Fault> for Lost {
    fn from(fault: Fault) -> Lost {
        match fault.words {
            None => Lost::System(fault.errno),
            Some(_) => Lost::Told(fault),
        }
    }
}

impl Lost {
    /// The system's error, if it is one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Lost::System(errno) | Lost::Told(Fault { errno, .. }) => Some(*errno),
            _ => None,
        }
    }
}

/// A name in a directory that is open, and what stood there.
pub struct Spot {
    pub dir: Box<dyn Dir>,
    /// `None`: the root itself, which is `dir`.
    pub name: Option<Name>,
    pub stat: Option<Stat>,
}

impl Spot {
    /// What stands there.
    ///
    /// # Errors
    /// Nothing does.
    pub fn found(&self) -> Result<&Stat, Lost> {
        self.stat.as_ref().ok_or(Lost::System(Errno::NOENT))
    }

    /// The name.
    ///
    /// # Errors
    /// It is the root, which has none here.
    pub fn name(&self) -> Result<&Name, Lost> {
        self.name.as_ref().ok_or(Lost::Root)
    }
}

/// What is served.
pub struct Tree {
    root: Box<dyn Dir>,
    can_change: bool,
    /// Of the temporaries of this user.
    tag: u32,
}

impl Tree {
    /// Opens a directory as the root, for this user's uploads.
    ///
    /// # Errors
    /// It is no directory, or not for us.
    pub fn open(root: &Path, uid: u32) -> Result<Tree, Errno> {
        let root = Box::new(PosixDir::root(root)?);
        // Users do not share parts: what one left another cannot go on with.
        Ok(Tree { root, can_change: true, tag: uid.wrapping_mul(0x9e37_79b1) })
    }

    /// Opens what a server serves: this directory, or that path in a volume.
    ///
    /// # Errors
    /// In words.
    pub fn of(root: &[u8], of_volume: Option<&Volume>) -> Result<Tree, String> {
        if let Some(served) = of_volume {
            let (root, tag) = volume::open(served, root)?;
            return Ok(Tree { can_change: root.can_change(), root: Box::new(root), tag });
        }
        let root = Path::new(OsStr::from_bytes(root));
        let open = Tree::open(root, rustix::process::geteuid().as_raw());
        open.map_err(|errno| format!("cannot open {}: {}", root.display(), haul_base::errno::text(errno)))
    }

    /// Something may be changed in it, as far as is known beforehand.
    pub fn can_change(&self) -> bool {
        self.can_change
    }

    /// The components of a path, `.` and `..` taken out. `here` is the directory that it may be relative to.
    ///
    /// # Errors
    /// It cannot be a path here.
    pub fn components(&self, here: &[Name], path: &[u8]) -> Result<Vec<Name>, Lost> {
        if path.len() > PATH_LEN_MAX {
            return Err(Lost::TooLong);
        }
        let mut way: Vec<Name> = if path.starts_with(b"/") { Vec::new() } else { here.to_vec() };
        for part in path.split(|b| *b == b'/') {
            match part {
                b"" | b"." => {}
                b".." => drop(way.pop()),
                _ => way.push(self.legal(part)?),
            }
        }
        if way.len() > DEPTH_MAX { Err(Lost::TooLong) } else { Ok(way) }
    }

    fn legal(&self, part: &[u8]) -> Result<Name, Lost> {
        if part.iter().any(|b| matches!(b, b'\r' | b'\n' | 0)) {
            return Err(Lost::BadName);
        }
        let name = Name::new(part).map_err(|_| {
            if part.len() > haul_core::entry::NAME_LEN_MAX { Lost::TooLong } else { Lost::BadName }
        })?;
        if is_kept(name.as_bytes()) { Err(Lost::Kept) } else { Ok(name) }
    }

    /// A part of an upload of this user's, or its record.
    pub fn is_own_part(&self, name: &[u8]) -> bool {
        is_kept(name) && tag_of(name) == Some(tag_bits(self.tag))
    }

    /// Where the part of an upload to `name` lies, beside it.
    pub fn part_of(&self, name: &Name) -> Name {
        temp_name(name, self.tag, PART)
    }

    /// Where the ranges of that part stand that are on media.
    pub fn record_of(&self, name: &Name) -> Name {
        temp_name(name, self.tag, RECORD)
    }

    /// A new part of this name, until it takes the place of an earlier one.
    pub fn next_part_of(&self, name: &Name) -> Name {
        temp_name(name, self.tag, NEXT_PART)
    }

    /// A new record, likewise.
    pub fn next_record_of(&self, name: &Name) -> Name {
        temp_name(name, self.tag, NEXT_RECORD)
    }

    /// Where a path leads. A link at its end is followed if `follow`, and is itself else.
    ///
    /// # Errors
    /// A directory on the way is not there, or the way is none. That nothing stands at the end is none.
    pub fn find(&self, here: &[Name], path: &[u8], follow: bool) -> Result<Spot, Lost> {
        let way = self.components(here, path)?;
        // `x/` is a directory, so a link there is what it leads to.
        self.walk(way, follow || path.ends_with(b"/"))
    }

    fn walk(&self, way: Vec<Name>, follow: bool) -> Result<Spot, Lost> {
        let mut todo: Vec<Step> = way.into_iter().rev().map(Step::Into).collect();
        let mut real: Vec<Name> = Vec::new();
        let mut dir = self.root.again()?;
        let (mut links, mut steps) = (0, 0);
        loop {
            if steps > STEPS_MAX {
                return Err(Lost::TooLong);
            }
            steps += 1;
            let Some(step) = todo.pop() else {
                // The way ended by `..` or in the root: the directory itself is what is meant.
                return self.itself(real, dir);
            };
            let name = match step {
                Step::Up => {
                    real.pop().ok_or(Lost::LeadsOut)?;
                    dir = self.open_real(&real)?;
                    continue;
                }
                Step::Into(name) => name,
            };
            let stat = match dir.look(&name) {
                Ok(stat) => stat,
                Err(fault) if fault.is(Errno::NOENT) && todo.is_empty() => {
                    return Ok(Spot { dir, name: Some(name), stat: None });
                }
                Err(fault) => return Err(fault.into()),
            };
            if stat.kind == FileType::Symlink && (follow || !todo.is_empty()) {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Lost::Links);
                }
                let target = dir.link(&name)?;
                if target.starts_with(b"/") || target.is_empty() {
                    return Err(Lost::LeadsOut);
                }
                if target.len() > PATH_LEN_MAX || todo.len() > PATH_LEN_MAX {
                    return Err(Lost::TooLong);
                }
                for part in target.split(|b| *b == b'/').rev() {
                    match part {
                        b"" | b"." => {}
                        b".." => todo.push(Step::Up),
                        _ if is_kept(part) && !haul_mutant::removed("ftpd-links-lead-to-no-part") => {
                            return Err(Lost::Kept);
                        }
                        _ => todo.push(Step::Into(Name::new(part).map_err(|_| Lost::BadName)?)),
                    }
                }
                continue;
            }
            if todo.is_empty() {
                return Ok(Spot { dir, name: Some(name), stat: Some(stat) });
            }
            if real.len() >= DEPTH_MAX {
                return Err(Lost::TooLong);
            }
            dir = dir.open_dir(&name)?;
            real.push(name);
        }
    }

    /// The directory `real` as a spot in the one above it.
    fn itself(&self, mut real: Vec<Name>, dir: Box<dyn Dir>) -> Result<Spot, Lost> {
        let stat = Some(dir.stat()?);
        match real.pop() {
            None => Ok(Spot { dir, name: None, stat }),
            Some(name) => Ok(Spot { dir: self.open_real(&real)?, name: Some(name), stat }),
        }
    }

    fn open_real(&self, real: &[Name]) -> Result<Box<dyn Dir>, Lost> {
        let mut dir = self.root.again()?;
        for name in real {
            dir = dir.open_dir(name)?;
        }
        Ok(dir)
    }

    /// The directory that a spot is.
    ///
    /// # Errors
    /// It is none.
    pub fn open_dir(&self, spot: &Spot) -> Result<Box<dyn Dir>, Lost> {
        match &spot.name {
            None => Ok(spot.dir.again()?),
            Some(name) => Ok(spot.dir.open_dir(name)?),
        }
    }

    /// The regular file at a spot, for reading, and what it is.
    ///
    /// # Errors
    /// It is none, or not for us.
    pub fn open_file(&self, spot: &Spot) -> Result<(Box<dyn File>, Stat), Lost> {
        let name = spot.name().map_err(|_| Lost::Directory)?;
        regular(spot.found()?)?;
        let file = spot.dir.open(name, false)?;
        let stat = file.stat()?;
        regular(&stat)?;
        Ok((file, stat))
    }
}

/// Whether this is a name that a part of an upload has, or its record, whichever user's: a dot, something,
/// `.haul~`, six characters that are the user's, and one of four numbers that no file of a copy has.
pub fn is_kept(name: &[u8]) -> bool {
    is_of_upload(name) && !haul_mutant::removed("ftpd-parts-of-all-users-are-hidden")
}

/// A regular file, and nothing else.
///
/// # Errors
/// What it is.
pub fn regular(stat: &Stat) -> Result<(), Lost> {
    match stat.kind {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(Lost::Directory),
        FileType::Symlink => Err(Lost::Link),
        _ => Err(Lost::NotRegular),
    }
}

/// One step on the way.
enum Step {
    Into(Name),
    Up,
}

/// A path as clients see it.
pub fn shown(way: &[Name]) -> Vec<u8> {
    let mut path = Vec::new();
    for name in way {
        path.push(b'/');
        path.extend_from_slice(name.as_bytes());
    }
    if path.is_empty() {
        path.push(b'/');
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn room() -> (tempfile::TempDir, Tree) {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(dir.path().join("root/d/e")).expect("mkdir");
        fs::create_dir(dir.path().join("outside")).expect("mkdir");
        fs::write(dir.path().join("outside/secret"), "precious").expect("write");
        fs::write(dir.path().join("root/d/f"), "open").expect("write");
        let tree = Tree::open(&dir.path().join("root"), 7).expect("the root");
        (dir, tree)
    }

    fn read(tree: &Tree, path: &[u8]) -> Result<usize, Lost> {
        let spot = tree.find(&[], path, true)?;
        tree.open_file(&spot).map(|(_, stat)| stat.len as usize)
    }

    /// Goal: no path and no link, whoever planted it, leads out of the root, and `..` stops at it.
    /// Method: paths with `..`, and relative, absolute, chained and looping links to a file outside; a file
    /// inside is reached by links that stay.
    #[test]
    fn nothing_leads_out() {
        let (dir, tree) = room();
        let root = dir.path().join("root");
        let outside = dir.path().join("outside/secret");
        symlink("../outside/secret", root.join("l1")).expect("symlink");
        symlink(&outside, root.join("l2")).expect("symlink");
        symlink("../../outside", root.join("d/l3")).expect("symlink");
        symlink("l1", root.join("l4")).expect("symlink");
        symlink("l5", root.join("l5")).expect("symlink");
        symlink("d/../../outside/secret", root.join("l6")).expect("symlink");
        symlink("/d/f", root.join("l7")).expect("symlink");
        for path in [&b"/../outside/secret"[..], b"../../outside/secret", b"/d/../../outside/secret"] {
            assert_eq!(read(&tree, path), Err(Lost::System(Errno::NOENT)), "{path:?}");
        }
        for path in [&b"/l1"[..], b"/l2", b"/d/l3/secret", b"/l4", b"/l6", b"/l7"] {
            assert_eq!(read(&tree, path), Err(Lost::LeadsOut), "{path:?}");
        }
        assert_eq!(read(&tree, b"/l5"), Err(Lost::Links));
        symlink("d/e/../f", root.join("good")).expect("symlink");
        symlink("../d", root.join("d/e/up")).expect("symlink");
        symlink("../../d", root.join("d/e/upup")).expect("symlink");
        assert_eq!(read(&tree, b"/good"), Ok(4));
        assert_eq!(read(&tree, b"d/e/upup/e/upup/f"), Ok(4));
        assert_eq!(read(&tree, b"d/e/up/f"), Err(Lost::System(Errno::NOENT)), "there is no d/d");
        // Two links, each of 800 steps.
        symlink("d/../".repeat(400) + "d/f", root.join("far")).expect("symlink");
        symlink("d/../".repeat(400) + "far", root.join("farther")).expect("symlink");
        assert_eq!(read(&tree, b"/far"), Ok(4));
        assert_eq!(read(&tree, b"/farther"), Err(Lost::TooLong));
        let spot = tree.find(&[], b"/l1", false).expect("the link itself");
        assert_eq!(spot.found().expect("it is there").kind, FileType::Symlink);
        let spot = tree.find(&[], b"/d/..", true).expect("the root");
        assert!(spot.name.is_none());
    }

    /// Goal: what is no path is refused, and a deep one is bounded.
    /// Method: bytes that no name may hold, long names and long ways; names of parts.
    #[test]
    fn paths_are_bounded() {
        let (_dir, tree) = room();
        assert_eq!(read(&tree, b"a\nb"), Err(Lost::BadName));
        assert_eq!(read(&tree, b"a\0b"), Err(Lost::BadName));
        assert_eq!(read(&tree, &[b'x'; 256]), Err(Lost::TooLong));
        assert_eq!(read(&tree, &b"d/".repeat(3_000)), Err(Lost::TooLong));
        assert_eq!(read(&tree, &b"d/".repeat(300)), Err(Lost::TooLong));
        let part = tree.part_of(&Name::new(b"f").expect("a name"));
        assert_eq!(read(&tree, part.as_bytes()), Err(Lost::Kept));
        let long = tree.record_of(&Name::new(&[b'x'; 255]).expect("a name"));
        assert_eq!(read(&tree, long.as_bytes()), Err(Lost::Kept));
    }

    /// Goal: parts and records, of this user and of any other, have no name here, and a link leads to none;
    /// a name that only looks similar is anybody's.
    /// Method: the names that sessions of several users would use, named and linked to; near misses.
    #[test]
    fn parts_of_all_users_are_hidden() {
        let (dir, tree) = room();
        let root = dir.path().join("root");
        let names = [Name::new(b"f").expect("a name"), Name::new(&[b'x'; 255]).expect("a name")];
        for (n, uid) in [0, 1, 7, 8, 65_534, u32::MAX].into_iter().enumerate() {
            let other = Tree::open(&root, uid).expect("the root");
            for (m, name) in names.iter().enumerate() {
                let all = [Tree::part_of, Tree::record_of, Tree::next_part_of, Tree::next_record_of];
                for (k, of) in all.into_iter().enumerate() {
                    let part = String::from_utf8(of(&other, name).as_bytes().to_vec()).expect("ASCII");
                    fs::write(root.join("d").join(&part), "part").expect("write");
                    assert_eq!(read(&tree, format!("/d/{part}").as_bytes()), Err(Lost::Kept), "{uid}");
                    assert_eq!(tree.is_own_part(part.as_bytes()), uid == 7, "{uid}");
                    let link = format!("link{n}{m}{k}");
                    symlink(format!("d/{part}"), root.join(&link)).expect("symlink");
                    assert_eq!(read(&tree, link.as_bytes()), Err(Lost::Kept), "by a link");
                    symlink(&link, root.join(format!("{link}x"))).expect("symlink");
                    assert_eq!(read(&tree, format!("{link}x").as_bytes()), Err(Lost::Kept), "by two");
                }
            }
        }
        let similar = [
            "f.haul~aaaaaa77777776",
            ".haul~aaaaaa77777776",
            ".f.haul~aaaaaa77777772",
            ".f.haul~aaaaaa77777777",
            ".f.haul~aaaaaa7777777",
            ".f.haul~aaaaaa777777766",
            ".f.haul~AAAAAA77777776",
            ".f.haul~aaaaa177777776",
            ".f.haul-aaaaaa77777776",
            ".f.haul~aaaaaaaaaaaaab",
        ];
        for name in similar {
            fs::write(root.join(name), "mine").expect("write");
            assert_eq!(read(&tree, name.as_bytes()), Ok(4), "{name}");
        }
    }
}
