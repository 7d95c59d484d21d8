//! Whose a name in a directory is: a job's here, or the user's.
//!
//! In: an open directory. Out: the jobs that keep a journal or an owner file in it or in a directory above
//! it, and which names are theirs. A job's temporaries lie below its destination, at any depth, and its
//! journal says their tags; its journal and owner files lie in the destination itself.
//! What must hold: a form proves nothing. A file is a job's only if a journal or owner file says so that was
//! made in the very directory in which it lies: a copy of a journal, in another directory, is a user's file
//! like any other.
//! Left out: jobs whose journal lies elsewhere (`--state`), or may not be read by us; what is theirs is not
//! known here.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};

use haul_core::entry::Name;
use haul_core::journal::{JournalError, Replay};
use rustix::fs::{FileType, Mode, OFlags, fstat, openat};
use rustix::io::retry_on_intr;

use super::calls::each_name;
use super::life::OwnerInfo;
use super::names::{JobFile, JobKey, job_file, tag_bits, tag_of};
use crate::jail::Jail;
use crate::volume;

/// Bytes of a journal that hold its tags: they stand at its beginning, and are bounded.
const TAGS_WITHIN: usize = 32 * 1024;
/// Longest owner file, bytes.
const OWNER_WITHIN: usize = 8 * 1024;
/// Most directories between one and `/` that are looked into.
const CLIMB_MAX: usize = 4096;

/// The jobs that may own something in a directory.
#[derive(Debug, Default)]
pub struct Jobs {
    /// Of their temporaries, here and below.
    tags: HashSet<u32>,
    /// Those whose journal or owner file lies in the directory itself.
    keys: HashSet<JobKey>,
}

impl Jobs {
    /// The jobs of `dir` and of the directories above it. What cannot be opened or read owns nothing.
    pub fn at(dir: impl AsFd) -> Jobs {
        let mut jobs = Jobs::default();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |dir: &dyn AsFd, name: &str| {
            retry_on_intr(|| openat(dir.as_fd(), OsStr::new(name), flags, Mode::empty())).ok()
        };
        let Some(mut at) = open(&dir, ".") else { return jobs };
        for level in 0..CLIMB_MAX {
            let Ok(here) = fstat(&at) else { break };
            for (key, tags) in jobs_in(&at, here.st_ino) {
                jobs.tags.extend(tags.into_iter().map(tag_bits));
                if level == 0 {
                    jobs.keys.insert(key);
                }
            }
            // A directory above that we may not list may still be passed.
            let path = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let Ok(up) = openat(&at, OsStr::new(".."), path, Mode::empty()) else { break };
            let above = fstat(&up);
            if above.is_ok_and(|above| (above.st_dev, above.st_ino) == (here.st_dev, here.st_ino)) {
                break;
            }
            at = open(&up, ".").unwrap_or(up);
        }
        jobs
    }

    /// Whether a name in the directory is that of a job's file.
    pub fn own(&self, name: &[u8]) -> bool {
        match (tag_of(name), job_file(name)) {
            (Some(tag), _) => self.tags.contains(&tag),
            (None, Some((key, _))) => self.keys.contains(&key),
            (None, None) => false,
        }
    }
}

/// The jobs whose journal or owner file was made in this directory, and the tags that journals tell.
fn jobs_in(dir: &OwnedFd, ino: u64) -> Vec<(JobKey, Vec<u32>)> {
    let mut found = Vec::new();
    // A directory that cannot be listed tells nothing.
    let _ = each_name(dir, |name, _| {
        if let Some((key, file)) = job_file(name)
            && let Ok(name) = Name::new(name)
        {
            found.push((key, file, name));
        }
    });
    let jail = Jail::probe(dir);
    let job = |(key, file, name): (JobKey, JobFile, Name)| match file {
        JobFile::Journal => {
            let tags = tags_of(&beginning(jail, dir, &name, TAGS_WITHIN)?, &key, dir)?;
            Some((key, tags))
        }
        JobFile::Owner { epoch } => {
            let bytes = beginning(jail, dir, &name, OWNER_WITHIN)?;
            let info: OwnerInfo = serde_json::from_slice(&bytes).ok()?;
            (info.epoch == epoch && info.dir_ino == ino).then_some((key, Vec::new()))
        }
        // Whoever drafts a journal has an owner file.
        JobFile::NewJournal { .. } => None,
    };
    found.into_iter().filter_map(job).collect()
}

/// Whether a file with a name of this form is a job's, wherever it was made: a user's may have such a name.
pub(super) fn is_of_a_job(jail: Jail, dir: &OwnedFd, name: &Name, key: &JobKey, file: JobFile) -> bool {
    let Some(bytes) = beginning(jail, dir, name, TAGS_WITHIN) else { return false };
    // A killed run may leave the file that it had just made, and a power cut only its length.
    let empty = bytes.iter().all(|b| *b == 0);
    match file {
        JobFile::Owner { epoch } => {
            empty || serde_json::from_slice(&bytes).is_ok_and(|info: OwnerInfo| info.epoch == epoch)
        }
        JobFile::Journal | JobFile::NewJournal { .. } => {
            let mut replay = Replay::new();
            match replay.feed(&bytes).and_then(|()| replay.finish([0; 16], true)) {
                Ok(replayed) => replayed.head.map_or(empty, |(job, _)| JobKey::new(&job) == *key),
                // Of another version of haul.
                Err(JournalError::Version(_)) => true,
                Err(JournalError::NotAJournal) => false,
            }
        }
    }
}

/// The first bytes of a regular file; `None` if it is none, or cannot be read.
fn beginning(jail: Jail, dir: &OwnedFd, name: &Name, len: usize) -> Option<Vec<u8>> {
    let file = jail.open_file(dir, name, false).ok()?;
    let stat = fstat(&file).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return None;
    }
    let mut bytes = vec![0; len];
    let mut read = 0;
    while read < len {
        match retry_on_intr(|| rustix::io::read(&file, &mut bytes[read..])).ok()? {
            0 => break,
            more => read += more,
        }
    }
    bytes.truncate(read);
    Some(bytes)
}

/// The tags that a journal tells, if it is one of this job and of this directory.
fn tags_of(beginning: &[u8], key: &JobKey, dir: &OwnedFd) -> Option<Vec<u32>> {
    let mut replay = Replay::new();
    replay.feed(beginning).ok()?;
    let replayed = replay.finish([0; 16], true).ok()?;
    let (job, root) = replayed.head?;
    (JobKey::new(&job) == *key && volume::is_of(&root, dir)).then_some(replayed.tags)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::names::temp_name;
    use haul_core::ids::Holder;
    use haul_core::journal::{Log, Record, RootId};
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    fn journal(dir: &Path, job: [u8; 16], root: RootId, tag: u32) {
        let mut bytes = Vec::new();
        let mut log = Log::start(&mut bytes);
        log.append(&Record::Head { job, root }, &mut bytes);
        log.append(&Record::Tags { tags: vec![tag] }, &mut bytes);
        log.append(
            &Record::Session { epoch: 1, tag: tag + 1, boot: [0; 16], durable: true, lease: Holder::ALONE },
            &mut bytes,
        );
        bytes.extend_from_slice(&[7; 100_000]);
        fs::write(dir.join(OsStr::from_bytes(JobKey::new(&job).journal().as_bytes())), bytes).expect("write");
    }

    fn temp(tag: u32) -> Vec<u8> {
        temp_name(&Name::new(b"f").expect("legal"), tag, 1).as_bytes().to_vec()
    }

    /// Goal: a job's files are known in its destination, its temporaries also below; what only looks so is
    /// not.
    /// Method: a journal of a directory, one that was copied there from another, an owner file that only has
    /// the name.
    #[test]
    fn only_a_job_of_the_place_owns_its_names() {
        let top = tempfile::tempdir().expect("tempdir");
        let below = top.path().join("a/b");
        fs::create_dir_all(&below).expect("mkdir");
        let root = |dir: &Path| volume::root_id(fs::File::open(dir).expect("open")).expect("stat");
        journal(top.path(), [1; 16], root(top.path()), 5);
        journal(top.path(), [2; 16], root(&below), 7);
        let owner = JobKey::new(&[3; 16]).owner(1);
        fs::write(top.path().join(OsStr::from_bytes(owner.as_bytes())), "mine").expect("write");
        let at = |path: &Path| Jobs::at(fs::File::open(path).expect("open"));
        let here = at(top.path());
        for own in [temp(5), temp(6), JobKey::new(&[1; 16]).journal().as_bytes().to_vec()] {
            assert!(here.own(&own), "{own:?}");
        }
        assert!(here.own(JobKey::new(&[1; 16]).owner(9).as_bytes()), "it would end the job");
        let copied = JobKey::new(&[2; 16]).journal();
        for users in [&temp(7), &temp(8), copied.as_bytes(), owner.as_bytes(), b".zsh.history"] {
            assert!(!here.own(users), "{users:?}");
        }
        assert!(at(&below).own(&temp(5)) && !at(&below).own(JobKey::new(&[1; 16]).journal().as_bytes()));
    }
}
