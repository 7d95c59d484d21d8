//! What a destination has of an unfinished file, kept at this host: one small file for each.
//!
//! In: which file, of which version, under which temporary name; ranges that its server said it has. Out: the
//! same to a later run.
//! Invariants: one run at a time has a file's record; a record that is torn, of another version or of another
//! form is none; it is replaced by rename, so that there is the old one or the new one. Nobody else can have
//! records written elsewhere: where somebody else can change the way to their directory there are none, and
//! all is done by the descriptor of the directory that was looked at.
//! Left out: whether the ranges are to be believed. A server says "safe" before anything is on media, so they
//! count only where the file's sum is right afterwards.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use haul_base::way::{self, Blocked, Manner};
use haul_core::entry::Name;
use haul_ftp::Facts;
use haul_gridftp::ranges::{RANGES_LEN_MAX, Ranges};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::jail::{Jail, Resolve};

/// Longest record: the ranges, and a little.
const LEN_MAX: u64 = RANGES_LEN_MAX as u64 + 64 * 1024;
const HEAD: &str = "haul pair 1";
/// Names beside that of what is gone on with, at most.
pub(in crate::ftp) const OTHERS_MAX: usize = 16;

/// Where records lie.
#[derive(Clone, Debug)]
pub(in crate::ftp) struct Records(pub(in crate::ftp) PathBuf);

/// What was kept of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::ftp) struct Kept {
    /// What was told of the source.
    pub(in crate::ftp) version: String,
    /// Its path at the destination.
    pub(in crate::ftp) temp: Vec<u8>,
    pub(in crate::ftp) ranges: Ranges,
    /// Paths of what earlier attempts stored of it, as far as that may stand there: of use to nobody. At most
    /// [`OTHERS_MAX`].
    pub(in crate::ftp) others: Vec<Vec<u8>>,
}

/// A file's record, as long as this run has it.
pub(in crate::ftp) struct Record {
    jail: Jail,
    dir: OwnedFd,
    name: Name,
    lock: File,
    lock_name: Name,
}

impl Records {
    /// The record of a file, which is known by where it comes from and where it goes; `None`: another run has
    /// it.
    pub(in crate::ftp) fn take(&self, from: &str, to: &str) -> io::Result<Option<Record>> {
        let dir = open_ours(&self.0)?;
        let facts = rustix::fs::fstat(&dir)?;
        let is_mine = facts.st_uid == rustix::process::geteuid().as_raw() && facts.st_mode & 0o022 == 0;
        if !is_mine && !haul_mutant::removed("ftp-records-are-ours") {
            let why = "records of unfinished files lie in a directory that is another user's, or that others may write to";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let key = blake3::hash(format!("{}\n{from}\n{to}", from.len()).as_bytes()).to_hex();
        let (name, lock_name) = (named(&key[..32])?, named(&format!("{}.lock", &key[..32]))?);
        // No link is followed, and nothing waits for the other end of a pipe.
        let jail = Jail::with(Resolve::Components);
        loop {
            let lock = match jail.open_file(&dir, &lock_name, true) {
                Err(Errno::NOENT) => match jail.create_temp(&dir, &lock_name) {
                    Err(Errno::EXIST) => continue,
                    made => made,
                },
                found => found,
            };
            let lock = File::from(lock?);
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            // Whoever had it may have removed it between.
            let stands = jail.stat(&dir, &lock_name).is_ok_and(|now| {
                lock.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (now.st_dev, now.st_ino))
            });
            if stands {
                return Ok(Some(Record { jail, dir, name, lock, lock_name }));
            }
        }
    }
}

impl Record {
    /// What an earlier run left.
    pub(in crate::ftp) fn read(&self) -> Option<Kept> {
        let mut text = String::new();
        let file = File::from(self.jail.open_file(&self.dir, &self.name, false).ok()?);
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        file.take(LEN_MAX).read_to_string(&mut text).ok()?;
        decode(&text)
    }

    /// Puts it there, on media.
    pub(in crate::ftp) fn write(&self, kept: &Kept) -> io::Result<()> {
        let (jail, dir) = (&self.jail, &self.dir);
        let new = named(&format!("{}.new", String::from_utf8_lossy(self.name.as_bytes())))?;
        let file = match jail.create_temp(dir, &new) {
            Err(Errno::EXIST) => {
                // A run that was killed left it; whoever has the lock writes alone.
                jail.unlink(dir, &new)?;
                jail.create_temp(dir, &new)
            }
            file => file,
        }?;
        let mut file = File::from(file);
        file.write_all(encode(kept).as_bytes())?;
        file.sync_data()?;
        Ok(jail.rename(dir, &new, &self.name, false)?)
    }

    /// Nothing is kept any more.
    pub(in crate::ftp) fn clear(&self) {
        let _ = self.jail.unlink(&self.dir, &self.name);
    }

    /// The same, and it will not be needed again.
    pub(in crate::ftp) fn remove(self) {
        self.clear();
        let _ = self.jail.unlink(&self.dir, &self.lock_name);
        drop(self.lock);
    }
}

fn named(name: &str) -> io::Result<Name> {
    Name::new(name.as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// The directory at `path`, made where there is none, to which nobody else can change the way.
fn open_ours(path: &Path) -> io::Result<OwnedFd> {
    way::open_dir(path, Manner { makes: true, own_groups: true }).map_err(|blocked| match blocked {
        Blocked::BySystem { source, .. } => source,
        by_others @ Blocked::ByOthers { .. } => {
            let why = format!("another user can change where records of unfinished files lie: {by_others}");
            io::Error::new(io::ErrorKind::PermissionDenied, why)
        }
    })
}

/// What of a file tells one version from another.
pub(in crate::ftp) fn version(facts: &Facts) -> String {
    let modify = facts.modify.map_or("-".into(), |at| format!("{}.{:09}", at.secs, at.nanos));
    let unique = facts.unique.as_deref().map_or("-".into(), data_hex);
    format!("{} {modify} {unique}", facts.size.unwrap_or(u64::MAX))
}

fn data_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn hex_data(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some((digit(*pair.first()?)? * 16 + digit(*pair.get(1)?)?) as u8)).collect()
}

fn encode(kept: &Kept) -> String {
    let mut ranges = Vec::new();
    kept.ranges.encode(&mut ranges);
    let ranges = String::from_utf8_lossy(&ranges);
    let mut text = format!("{HEAD}\n{}\n{}\n{ranges}\n", kept.version, data_hex(&kept.temp));
    for other in kept.others.iter().take(OTHERS_MAX) {
        let _ = writeln!(text, "{}", data_hex(other));
    }
    let sum = blake3::hash(text.as_bytes()).to_hex();
    format!("{text}{sum}\n")
}

fn decode(text: &str) -> Option<Kept> {
    let (body, sum) = text.strip_suffix('\n')?.rsplit_once('\n')?;
    let body = format!("{body}\n");
    if blake3::hash(body.as_bytes()).to_hex().as_str() != sum {
        return None;
    }
    let mut lines = body.lines();
    let [head, version, temp, ranges] = [(); 4].map(|()| lines.next());
    // Where there are none, a record is what it was before there were any.
    let others = lines.map(|other| hex_data(other).filter(|other| !other.is_empty()));
    let others: Vec<Vec<u8>> = others.take(OTHERS_MAX + 1).collect::<Option<_>>()?;
    if head? != HEAD || others.len() > OTHERS_MAX {
        return None;
    }
    let ranges = Ranges::parse(ranges?.as_bytes()).ok()?;
    let temp = hex_data(temp?).filter(|temp| !temp.is_empty())?;
    Some(Kept { version: version?.to_owned(), temp, ranges, others })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn kept() -> Kept {
        let mut ranges = Ranges::new();
        ranges.insert(0, 5).expect("a range");
        ranges.insert(9, 100).expect("a range");
        let (version, temp) = ("100 1.000000000 ab".into(), b"/d/.\xff x.haul~1".to_vec());
        Kept { version, temp, ranges, others: vec![b"/d/.x.haul~2".to_vec(), b"/d/.x.haul~3".to_vec()] }
    }

    /// Goal: a record is read as it was written, or not at all.
    /// Method: it is cut at each byte, and each byte is changed.
    #[test]
    fn a_torn_record_is_none() {
        let text = encode(&kept());
        assert_eq!(decode(&text), Some(kept()));
        let alone = Kept { others: Vec::new(), ..kept() };
        assert_eq!(encode(&alone).lines().count(), 5, "as it was before there were others");
        assert_eq!(decode(&encode(&alone)), Some(alone));
        for at in 0..text.len() {
            assert_eq!(decode(&text[..at]), None, "cut at {at}");
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            if let Ok(changed) = String::from_utf8(bytes) {
                assert_eq!(decode(&changed), None, "changed at {at}");
            }
        }
    }

    /// Goal: where others may write nothing is kept; a link in the place of a record, or of the one that is
    /// being written, leads nowhere, and a pipe there holds nobody up.
    #[test]
    fn records_are_plain_files_of_ours() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = tempfile::tempdir().expect("a directory");
        let records = Records(dir.path().join("pairs"));
        let record = records.take("a", "b").expect("a record").expect("nobody has it");
        let at = records.0.join(std::str::from_utf8(record.name.as_bytes()).expect("digits"));
        let (victim, new) = (dir.path().join("victim"), at.with_extension("new"));
        fs::write(&victim, "precious").expect("written");
        symlink(&victim, &new).expect("a link");
        record.write(&kept()).expect("written");
        assert_eq!(fs::read(&victim).expect("it is there"), b"precious");
        assert_eq!(record.read(), Some(kept()));
        fs::rename(&at, &victim).expect("moved");
        symlink(&victim, &at).expect("a link");
        assert_eq!(record.read(), None, "by a link");
        fs::remove_file(&at).expect("removed");
        rustix::fs::mkfifoat(rustix::fs::CWD, &at, rustix::fs::Mode::from(0o600)).expect("a pipe");
        assert_eq!(record.read(), None, "a pipe");
        drop(record);
        fs::set_permissions(&records.0, fs::Permissions::from_mode(0o777)).expect("set");
        assert!(records.take("a", "c").is_err(), "anybody may write there");
    }

    /// Goal: nobody else says where records are written: not by a link in a directory into which others may
    /// write, not in one that is another user's, and not by what takes the place of the directory later. A
    /// link of our own is a way to them.
    #[test]
    fn the_way_to_records_is_ours() {
        use std::os::unix::fs::{PermissionsExt, chown, symlink};
        let dir = tempfile::tempdir().expect("a directory");
        let [mine, theirs, other] = ["mine", "theirs", "other"].map(|name| dir.path().join(name));
        for made in [&mine, &theirs, &other] {
            fs::create_dir(made).expect("made");
            fs::set_permissions(made, fs::Permissions::from_mode(0o700)).expect("set");
        }
        let count = || fs::read_dir(&mine).expect("listed").count();
        symlink("../mine", theirs.join("uploads")).expect("a link");
        let records = Records(theirs.join("uploads"));
        let set = |mode| fs::set_permissions(&theirs, fs::Permissions::from_mode(mode)).expect("set");
        set(0o777);
        assert!(records.take("a", "b").is_err(), "others may change the link");
        assert!(Records(theirs.join("new/uploads")).take("a", "b").is_err() && !theirs.join("new").exists());
        if rustix::process::geteuid().is_root() {
            set(0o755);
            chown(&theirs, Some(1), None).expect("given away");
            assert!(records.take("a", "b").is_err(), "another user may change the link");
            chown(&theirs, Some(0), None).expect("taken back");
        }
        assert_eq!(count(), 0, "nothing was written there");
        // As in /tmp, and as with a group of one's own.
        for mode in [0o1777, 0o775] {
            set(mode);
            records.take("a", "b").expect("by a link of ours").expect("nobody has it").remove();
        }
        let record = records.take("a", "b").expect("a record").expect("nobody has it");
        fs::rename(&mine, dir.path().join("moved")).expect("moved");
        symlink(&other, &mine).expect("a link");
        record.write(&kept()).expect("written");
        assert_eq!(record.read(), Some(kept()));
        record.remove();
        assert_eq!((count(), fs::read_dir(dir.path().join("moved")).expect("listed").count()), (0, 0));
    }

    /// Goal: no two runs go on with one file, and what one of them leaves the next one finds.
    #[test]
    fn a_record_has_one_owner() {
        let dir = tempfile::tempdir().expect("a directory");
        let records = Records(dir.path().join("pairs"));
        let take = || records.take("ftp://a/x", "ftp://b/y").expect("a record");
        let first = take().expect("nobody has it");
        first.write(&kept()).expect("written");
        assert!(take().is_none(), "it is taken");
        assert!(records.take("ftp://a/x", "ftp://b/z").expect("another").is_some());
        drop(first);
        let second = take().expect("it is free");
        assert_eq!(second.read(), Some(kept()));
        second.remove();
        assert_eq!(take().expect("it is free").read(), None);
    }
}
