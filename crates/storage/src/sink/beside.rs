//! Files of the copy's own sources, where these are on this host: what is written in place must be none of
//! them.
//!
//! In: the sources' paths, a file that stands at the destination. Out: whether it is a source's too.
//! What must hold: a source that has a further name at the destination is not written over, whatever name
//! that is, for its content may be nowhere else. Trees are walked once, and only when a file with several
//! names is to be written.
//! Left out: names that are given while the copy runs; sources that are reached through ssh and are on this
//! host all the same; one file system that is mounted as two devices.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use haul_core::transfer::op::Inode;
use rustix::fs::Stat;

use super::stat::inode_of;

/// Files of sources that are remembered; where there are more, each that has several names counts as one.
const FILES_MAX: usize = 1 << 20;

/// The sources of a copy on this host.
#[derive(Debug, Default)]
pub struct Beside {
    paths: Vec<PathBuf>,
    /// Files that were named.
    named: OnceLock<HashSet<Inode>>,
    /// Files with several names in trees. `None`: too many.
    linked: OnceLock<Option<HashSet<Inode>>>,
}

impl Beside {
    pub fn new(paths: Vec<PathBuf>) -> Beside {
        Beside { paths, ..Beside::default() }
    }

    /// Whether what stands at the destination is, or may be, a source's file. `ours`: how many of its names
    /// this copy gave it beside the one that it has there.
    pub(super) fn has(&self, stat: &Stat, ours: u64) -> bool {
        if self.paths.is_empty() || haul_mutant::removed("in-place-over-no-source") {
            return false;
        }
        let inode = inode_of(stat);
        if self.named.get_or_init(|| self.named()).contains(&inode) {
            return true;
        }
        // The widths of these fields differ between the CPUs that Linux runs on.
        #[allow(clippy::unnecessary_cast)]
        let names = stat.st_nlink as u64;
        names > 1 + ours
            && self.linked.get_or_init(|| self.linked()).as_ref().is_none_or(|files| files.contains(&inode))
    }

    fn named(&self) -> HashSet<Inode> {
        let file = |path: &PathBuf| path.symlink_metadata().ok().filter(|stat| stat.is_file());
        self.paths.iter().filter_map(file).map(|stat| Inode { dev: stat.dev(), ino: stat.ino() }).collect()
    }

    fn linked(&self) -> Option<HashSet<Inode>> {
        let mut found = HashSet::new();
        let mut dirs: Vec<PathBuf> = self.paths.iter().filter(|path| path.is_dir()).cloned().collect();
        while let Some(dir) = dirs.pop() {
            // What cannot be read here is no source either.
            for entry in entries(&dir) {
                let Ok(stat) = entry.metadata() else { continue };
                if stat.is_dir() {
                    dirs.push(entry.path());
                } else if stat.is_file() && stat.nlink() > 1 {
                    if found.len() == FILES_MAX {
                        return None;
                    }
                    found.insert(Inode { dev: stat.dev(), ino: stat.ino() });
                }
            }
        }
        Some(found)
    }
}

fn entries(dir: &Path) -> impl Iterator<Item = std::fs::DirEntry> {
    std::fs::read_dir(dir).into_iter().flatten().flatten()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Goal: a source is known by each of its names, named or deep in a tree; a file that is none is not
    /// taken for one.
    #[test]
    fn sources_are_known_by_all_their_names() {
        let room = tempfile::tempdir().expect("tempdir");
        let at = |name: &str| room.path().join(name);
        fs::create_dir_all(at("tree/deep")).expect("mkdir");
        for name in ["tree/deep/f", "named", "other"] {
            fs::write(at(name), name).expect("write");
        }
        for (from, to) in [("tree/deep/f", "a"), ("named", "b"), ("other", "c")] {
            fs::hard_link(at(from), at(to)).expect("link");
        }
        let beside = Beside::new(vec![at("tree"), at("named")]);
        let has = |name: &str, ours| beside.has(&rustix::fs::stat(at(name)).expect("stat"), ours);
        assert!(has("a", 0) && has("b", 0) && has("b", 1));
        assert!(!has("c", 0));
        assert!(!has("a", 1), "the second name is the copy's own");
        assert!(!Beside::default().has(&rustix::fs::stat(at("b")).expect("stat"), 0));
    }
}
