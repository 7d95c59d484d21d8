//! What a journal may claim: the temporaries of which tags, and of whom.
//!
//! In: a journal's tags, and whose file it is. Out: whether a temporary is that job's, and of no job that may
//! live.
//! What must hold: whoever writes a journal gets none but his own files removed by it, whoever removes them:
//! its checksums are no signature, and tags can be read off the names of any running copy. Only a journal of
//! root speaks for files of others, to whom root gives its temporaries before they have their names (`-a`).
//! Left out: names of one file (`st_nlink`), for to remove one leaves the others.

use std::collections::HashSet;

use rustix::fs::{FileType, Stat};

use super::names::tag_bits;

const OTHERS_WRITE: u32 = 0o022;

/// The temporaries that a job's journal names as its own.
#[derive(Clone, Debug, Default)]
pub struct Claim {
    tags: HashSet<u32>,
    uid: u32,
    /// Its mode lets others write it.
    shared: bool,
}

impl Claim {
    /// `journal`: as it was when the tags were read. `None`: it is no file that a run leaves.
    pub fn new(journal: &Stat, tags: &[u32]) -> Option<Claim> {
        let file = FileType::from_raw_mode(journal.st_mode) == FileType::RegularFile;
        (file && journal.st_nlink == 1).then(|| Claim {
            tags: tags.iter().copied().map(tag_bits).collect(),
            uid: journal.st_uid,
            shared: journal.st_mode & OTHERS_WRITE != 0,
        })
    }

    /// It claims nothing.
    pub fn is_empty(&self) -> bool {
        self.tags.is_empty()
    }

    /// Others may write the journal, where modes mean something.
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// Whether a temporary with this tag, of this user, can be the job's.
    pub fn has(&self, tag: u32, uid: u32) -> bool {
        let theirs = uid == self.uid || (self.uid == 0 && !self.shared);
        self.tags.contains(&tag) && (theirs || haul_mutant::removed("clean-takes-only-the-journals-own"))
    }
}

/// What a dead job left, and what must stay though it claims it.
#[derive(Clone, Debug, Default)]
pub struct Debris<'a> {
    pub claim: Claim,
    /// Of jobs that may live.
    pub spared: Vec<&'a Claim>,
}

impl Debris<'_> {
    /// Whether a temporary with this tag, of this user, is debris.
    pub fn has(&self, tag: u32, uid: u32) -> bool {
        let spared = self.spared.iter().any(|claim| claim.has(tag, uid));
        self.claim.has(tag, uid) && (!spared || haul_mutant::removed("clean-spares-the-living"))
    }

    /// Whether what has a name with this tag is debris: a file or a link.
    pub(super) fn is(&self, tag: u32, stat: &Stat) -> bool {
        let kind = FileType::from_raw_mode(stat.st_mode);
        matches!(kind, FileType::RegularFile | FileType::Symlink) && self.has(tag, stat.st_uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    /// Goal: a journal claims what is its owner's, one of root's that nobody else can write all, a linked one
    /// nothing; what a living job claims stays.
    /// Method: the status of files, as another user's would be.
    #[test]
    fn journals_claim_their_owners_files() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("journal");
        fs::write(&path, "").expect("write");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
        let stat = |path: &Path| rustix::fs::stat(path).expect("stat");
        let of = |uid, mode| {
            let mut stat = stat(&path);
            (stat.st_uid, stat.st_mode) = (uid, stat.st_mode & !0o777 | mode);
            Claim::new(&stat, &[5 | 1 << 31, 6]).expect("a file")
        };
        let users = of(1500, 0o600);
        assert!(users.has(5, 1500) && users.has(6, 1500) && !users.has(7, 1500));
        assert!(!users.has(5, 1501) && !users.has(5, 0));
        assert!(of(0, 0o600).has(5, 1500));
        assert!(of(0, 0o666).is_shared() && !of(0, 0o666).has(5, 1500) && of(0, 0o666).has(5, 0));
        let spares = |uid| Debris { claim: users.clone(), spared: vec![&of(uid, 0o600)] }.has(5, 1500);
        assert!(!spares(1500) && !spares(0) && spares(1501));
        fs::hard_link(&path, dir.path().join("second")).expect("link");
        assert!(Claim::new(&stat(&path), &[5]).is_none() && Claim::new(&stat(dir.path()), &[5]).is_none());
    }
}
