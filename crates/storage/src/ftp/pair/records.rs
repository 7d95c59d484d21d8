//! What a destination has of an unfinished file, kept at this host: one small file for each.
//!
//! In: which file, of which version, under which temporary name; ranges that its server said it has. Out: the
//! same to a later run.
//! Invariants: one run at a time has a file's record; a record that is torn, of another version or of another
//! form is none; it is replaced by rename, so that there is the old one or the new one.
//! Left out: whether the ranges are to be believed. A server says "safe" before anything is on media, so they
//! count only where the file's sum is right afterwards.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use haul_ftp::Facts;
use haul_gridftp::ranges::{RANGES_LEN_MAX, Ranges};
use rustix::fs::{FlockOperation, flock};

/// Longest record: the ranges, and a little.
const LEN_MAX: u64 = RANGES_LEN_MAX as u64 + 64 * 1024;
const HEAD: &str = "haul pair 1";
/// No link is followed, and nothing waits for the other end of a pipe.
const PLAIN: i32 = rustix::fs::OFlags::NOFOLLOW.union(rustix::fs::OFlags::NONBLOCK).bits() as i32;

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
}

/// A file's record, as long as this run has it.
pub(in crate::ftp) struct Record {
    path: PathBuf,
    lock: File,
    lock_path: PathBuf,
}

impl Records {
    /// The record of a file, which is known by where it comes from and where it goes; `None`: another run has
    /// it.
    pub(in crate::ftp) fn take(&self, from: &str, to: &str) -> io::Result<Option<Record>> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        let dir = fs::metadata(&self.0)?;
        let is_mine = dir.uid() == rustix::process::geteuid().as_raw() && dir.mode() & 0o022 == 0;
        if !is_mine && !haul_mutant::removed("ftp-records-are-ours") {
            let why = "records of unfinished files lie in a directory that is another user's, or that others may write to";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let key = blake3::hash(format!("{}\n{from}\n{to}", from.len()).as_bytes()).to_hex();
        let path = self.0.join(&key[..32]);
        let lock_path = path.with_extension("lock");
        loop {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let lock = options.custom_flags(PLAIN).open(&lock_path)?;
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            // Whoever had it may have removed it between.
            let stands = fs::symlink_metadata(&lock_path).is_ok_and(|now| {
                lock.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (now.dev(), now.ino()))
            });
            if stands {
                return Ok(Some(Record { path, lock, lock_path }));
            }
        }
    }
}

impl Record {
    /// What an earlier run left.
    pub(in crate::ftp) fn read(&self) -> Option<Kept> {
        let mut text = String::new();
        let file = OpenOptions::new().read(true).custom_flags(PLAIN).open(&self.path).ok()?;
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        file.take(LEN_MAX).read_to_string(&mut text).ok()?;
        decode(&text)
    }

    /// Puts it there, on media.
    pub(in crate::ftp) fn write(&self, kept: &Kept) -> io::Result<()> {
        let new = self.path.with_extension("new");
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let mut file = match options.open(&new) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // A run that was killed left it; whoever has the lock writes alone.
                fs::remove_file(&new)?;
                options.open(&new)
            }
            file => file,
        }?;
        file.write_all(encode(kept).as_bytes())?;
        file.sync_data()?;
        fs::rename(&new, &self.path)
    }

    /// Nothing is kept any more.
    pub(in crate::ftp) fn clear(&self) {
        let _ = fs::remove_file(&self.path);
    }

    /// The same, and it will not be needed again.
    pub(in crate::ftp) fn remove(self) {
        self.clear();
        let _ = fs::remove_file(&self.lock_path);
        drop(self.lock);
    }
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
    let text = format!("{HEAD}\n{}\n{}\n{ranges}\n", kept.version, data_hex(&kept.temp));
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
    if head? != HEAD || lines.next().is_some() {
        return None;
    }
    let ranges = Ranges::parse(ranges?.as_bytes()).ok()?;
    let temp = hex_data(temp?).filter(|temp| !temp.is_empty())?;
    Some(Kept { version: version?.to_owned(), temp, ranges })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> Kept {
        let mut ranges = Ranges::new();
        ranges.insert(0, 5).expect("a range");
        ranges.insert(9, 100).expect("a range");
        Kept { version: "100 1.000000000 ab".into(), temp: b"/d/.\xff x.haul~1".to_vec(), ranges }
    }

    /// Goal: a record is read as it was written, or not at all.
    /// Method: it is cut at each byte, and each byte is changed.
    #[test]
    fn a_torn_record_is_none() {
        let text = encode(&kept());
        assert_eq!(decode(&text), Some(kept()));
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
        let (victim, new) = (dir.path().join("victim"), record.path.with_extension("new"));
        fs::write(&victim, "precious").expect("written");
        symlink(&victim, &new).expect("a link");
        record.write(&kept()).expect("written");
        assert_eq!(fs::read(&victim).expect("it is there"), b"precious");
        assert_eq!(record.read(), Some(kept()));
        let at = record.path.clone();
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
