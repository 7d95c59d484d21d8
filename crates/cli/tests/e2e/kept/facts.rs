//! What a tree is, by plain system calls, and what a copy lacks of it.
//!
//! In: a tree. Out: of each entry what `kinds` can tell apart; the losses of one tree against another.
//! Left out: what file systems keep for themselves (`trusted.glusterfs.*`, `trusted.SGI_*`), and what haul
//! never keeps.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::SeekFrom;

use super::kinds::Aspect;
use crate::attributes::value_of;

/// What is shorter is copied without its holes.
const SPARSE_LEN_MIN: u64 = 256 << 10;
/// No file system rounds times by more, seconds.
const ROUNDED_MAX: u64 = 2;
/// What of them no copy keeps, and what file systems show of themselves.
const THEIRS: [&str; 5] =
    ["trusted.glusterfs", "trusted.gfid", "trusted.SGI_", "trusted.afr", "trusted.overlay"];

pub struct Facts {
    /// File, directory, link and so on; of links the target, of devices which, of files a hash.
    what: (u32, Vec<u8>),
    mode: u32,
    owner: (u32, u32),
    mtime: (i64, i64),
    xattrs: BTreeMap<String, Vec<u8>>,
    acl: Option<Vec<u8>>,
    default_acl: Option<Vec<u8>>,
    /// All names that its inode has here.
    names: Vec<Vec<u8>>,
    has_holes: bool,
    /// It tells where they are.
    tells_holes: bool,
}

/// By paths from the root, which is the empty one.
pub type Tree = BTreeMap<Vec<u8>, Facts>;

/// Something that a copy lacks.
#[derive(Debug)]
pub struct Loss {
    pub path: Vec<u8>,
    pub aspect: Aspect,
    /// The name of an attribute.
    pub name: String,
    pub text: String,
    /// It is neither file nor directory.
    pub special: bool,
    /// The mtime that the copy has, seconds.
    stands: i64,
}

pub fn tree(root: &Path) -> Tree {
    let mut all = Tree::new();
    let mut inodes = BTreeMap::new();
    let mut rest = vec![(Vec::new(), root.to_owned())];
    while let Some((path, at)) = rest.pop() {
        let stat = fs::symlink_metadata(&at).unwrap_or_else(|error| panic!("{}: {error}", at.display()));
        if stat.is_dir() {
            for entry in fs::read_dir(&at).expect("list a directory") {
                let name = entry.expect("an entry").file_name();
                let begin = if path.is_empty() { Vec::new() } else { [&path[..], b"/"].concat() };
                rest.push(([&begin[..], name.as_bytes()].concat(), at.join(name)));
            }
        } else {
            inodes.entry(stat.ino()).or_insert_with(Vec::new).push(path.clone());
        }
        all.insert(path, facts(&at, &stat));
    }
    for mut names in inodes.into_values() {
        names.sort();
        for name in &names {
            all.get_mut(name).expect("it was looked at").names.clone_from(&names);
        }
    }
    all
}

fn facts(path: &Path, stat: &fs::Metadata) -> Facts {
    let kind = stat.file_type();
    let what = if kind.is_symlink() {
        fs::read_link(path).expect("read a link").as_os_str().as_bytes().to_vec()
    } else if kind.is_file() {
        blake3::hash(&fs::read(path).expect("read a file")).as_bytes().to_vec()
    } else if kind.is_char_device() || kind.is_block_device() {
        stat.rdev().to_be_bytes().to_vec()
    } else {
        Vec::new()
    };
    let mut room = vec![0; 65536];
    let len = rustix::fs::llistxattr(path, &mut room[..]).unwrap_or(0);
    let names = room[..len].split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok());
    let names = names.filter(|name| {
        let is_theirs = THEIRS.iter().any(|theirs| name.starts_with(theirs));
        !is_theirs
            && (name.starts_with("user.") || name.starts_with("trusted.") || *name == "security.capability")
    });
    let list = |name: &str| value_of(path, name).filter(|_| !kind.is_symlink());
    let is_large = kind.is_file() && stat.size() > SPARSE_LEN_MIN;
    Facts {
        what: (stat.mode() & 0o170_000, what),
        // A link has none.
        mode: if kind.is_symlink() { 0 } else { stat.mode() & 0o7777 },
        owner: (stat.uid(), stat.gid()),
        mtime: (stat.mtime(), stat.mtime_nsec()),
        xattrs: names.filter_map(|name| Some((name.to_owned(), value_of(path, name)?))).collect(),
        acl: list("system.posix_acl_access"),
        default_acl: list("system.posix_acl_default"),
        names: Vec::new(),
        has_holes: is_large && (tells_holes(path, stat) || stat.blocks() * 512 <= stat.size() / 2),
        tells_holes: is_large && tells_holes(path, stat),
    }
}

fn tells_holes(path: &Path, stat: &fs::Metadata) -> bool {
    let hole = File::open(path).ok().and_then(|file| rustix::fs::seek(file, SeekFrom::Hole(0)).ok());
    hole.is_some_and(|hole| hole < stat.size())
}

/// What `copy` lacks of `source`, and what it has besides.
pub fn losses(source: &Tree, copy: &Tree) -> Vec<Loss> {
    let mut all = Vec::new();
    for (path, facts) in source {
        let special = ![0o100_000, 0o040_000].contains(&facts.what.0);
        let mut lose = |aspect, name: &str, text: String| {
            let stands = copy.get(path).map_or(0, |facts| facts.mtime.0);
            all.push(Loss { path: path.clone(), aspect, name: name.to_owned(), text, special, stands });
        };
        match copy.get(path) {
            None => lose(Aspect::Entry, "", "it is not there".to_owned()),
            Some(stands) => compare(facts, stands, &mut lose),
        }
    }
    for path in copy.keys().filter(|path| !source.contains_key(*path)) {
        let (text, aspect) = ("it should not be there".to_owned(), Aspect::Entry);
        all.push(Loss { path: path.clone(), aspect, name: String::new(), text, special: false, stands: 0 });
    }
    all
}

fn compare(source: &Facts, copy: &Facts, lose: &mut impl FnMut(Aspect, &str, String)) {
    if source.what != copy.what {
        return lose(Aspect::Entry, "", format!("it is {:?}, not {:?}", copy.what, source.what));
    }
    let [bits, stand] = [source.mode, copy.mode];
    if bits & 0o1777 != stand & 0o1777 {
        lose(Aspect::Mode, "", format!("mode {stand:04o}, not {bits:04o}"));
    }
    if bits & 0o6000 != stand & 0o6000 {
        lose(Aspect::SetId, "", format!("mode {stand:04o}, not {bits:04o}"));
    }
    if source.owner != copy.owner {
        lose(Aspect::Owner, "", format!("owner {:?}, not {:?}", copy.owner, source.owner));
    }
    if source.mtime != copy.mtime {
        let rounded = source.mtime.0.abs_diff(copy.mtime.0) <= ROUNDED_MAX;
        let aspect = if rounded { Aspect::Fraction } else { Aspect::Mtime };
        let name = if rounded && source.mtime.0 == copy.mtime.0 { "1 s" } else { "2 s" };
        lose(aspect, name, format!("mtime {:?}, not {:?}", copy.mtime, source.mtime));
    }
    for (name, value) in &source.xattrs {
        if copy.xattrs.get(name) != Some(value) {
            lose(Aspect::Xattr, name, format!("attribute {name}"));
        }
    }
    for name in copy.xattrs.keys().filter(|name| !source.xattrs.contains_key(*name)) {
        lose(Aspect::Xattr, name, format!("attribute {name}, which the source has not"));
    }
    if source.acl != copy.acl {
        lose(Aspect::Acl, "", format!("list {:?}, not {:?}", copy.acl, source.acl));
    }
    if source.default_acl != copy.default_acl {
        lose(
            Aspect::DefaultAcl,
            "",
            format!("default list {:?}, not {:?}", copy.default_acl, source.default_acl),
        );
    }
    if source.names != copy.names {
        lose(Aspect::Names, "", format!("it has {} names, not {}", copy.names.len(), source.names.len()));
    }
    if source.tells_holes && !copy.has_holes {
        lose(Aspect::Holes, "", "its holes are zeros".to_owned());
    }
}

/// Whether there are holes that a copy can learn of: no other way to tell them is asked for.
pub fn any_tells_holes(tree: &Tree) -> bool {
    tree.values().any(|facts| facts.tells_holes)
}

/// Whether a time that was lost became the nearest of those between these.
pub fn is_nearest(source: &Tree, loss: &Loss, (first, last): (i64, i64)) -> bool {
    let Some(facts) = source.get(&loss.path).filter(|_| first <= last) else { return false };
    facts.mtime.0.clamp(first, last).abs_diff(loss.stands) <= ROUNDED_MAX
}

impl Facts {
    /// Without its list its mode says something else.
    pub fn has_list(&self) -> bool {
        self.acl.is_some()
    }

    pub fn has_name(&self, path: &[u8]) -> bool {
        self.names.iter().any(|name| name == path)
    }
}

/// Whether `path` is that or below.
pub fn is_below(path: &[u8], above: &[u8]) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}
