//! Directories as a place for files, through POSIX: a mount of some file system, or several devices that are
//! written side by side.
//!
//! Of several, each has a file of its own, with every so manieth stripe: what the devices can do when nothing
//! stands between them and the application.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::at_once;
use super::place::{Client, File, See};

pub struct Dirs {
    dirs: Vec<PathBuf>,
    stripe: u64,
}

struct Open {
    files: Vec<fs::File>,
    stripe: u64,
    end: u64,
}

/// A name is on media when its directory is.
fn settle(dir: &Path) -> io::Result<()> {
    fs::File::open(dir)?.sync_all()
}

impl Dirs {
    pub fn new(dirs: Vec<PathBuf>, stripe: u64) -> Dirs {
        Dirs { dirs, stripe }
    }

    fn open_all(&self, name: &str, how: &OpenOptions) -> anyhow::Result<Open> {
        let open = |dir: &PathBuf| {
            let path = dir.join(name);
            how.open(&path).with_context(|| format!("open {}", path.display()))
        };
        let files = self.dirs.iter().map(open).collect::<anyhow::Result<Vec<_>>>()?;
        let end = files[0].metadata().context("look at a file")?.len();
        Ok(Open { files, stripe: self.stripe, end })
    }

    fn each(&self, doing: &str, work: impl Fn(&Path) -> io::Result<()>) -> anyhow::Result<()> {
        self.dirs.iter().try_for_each(|dir| {
            work(dir).and_then(|()| settle(dir)).with_context(|| format!("{doing} in {}", dir.display()))
        })
    }
}

impl Client for Dirs {
    fn create(&self, name: &str) -> anyhow::Result<Box<dyn File + '_>> {
        let mut how = OpenOptions::new();
        let file = self.open_all(name, how.read(true).write(true).create_new(true))?;
        self.each("make a file", |_| Ok(()))?;
        Ok(Box::new(file))
    }

    fn open(&self, name: &str) -> anyhow::Result<Box<dyn File + '_>> {
        Ok(Box::new(self.open_all(name, OpenOptions::new().read(true).write(true))?))
    }

    fn exists(&self, name: &str) -> anyhow::Result<bool> {
        match fs::symlink_metadata(self.dirs[0].join(name)) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).with_context(|| format!("look at {name}")),
        }
    }

    fn rename(&self, from: &str, to: &str) -> anyhow::Result<()> {
        self.each("rename", |dir| fs::rename(dir.join(from), dir.join(to)))
    }

    fn unlink(&self, name: &str) -> anyhow::Result<()> {
        self.each("remove a file", |dir| fs::remove_file(dir.join(name)))
    }

    fn stripe(&self) -> Option<u64> {
        None
    }

    fn about(&self) -> Value {
        Value::Null
    }
}

impl Open {
    /// Where a range lies: which file, where there, and how much of it.
    fn pieces(&self, offset: u64, len: u64) -> Vec<(&fs::File, u64, u64)> {
        if let [file] = &self.files[..] {
            return vec![(file, offset, len)];
        }
        let (mut at, end, mut pieces) = (offset, offset + len, Vec::new());
        while at < end {
            let (stripe, within) = (at / self.stripe, at % self.stripe);
            let len = (self.stripe - within).min(end - at);
            let count = self.files.len() as u64;
            let file = &self.files[(stripe % count) as usize];
            pieces.push((file, stripe / count * self.stripe + within, len));
            at += len;
        }
        pieces
    }
}

impl File for Open {
    fn write(&mut self, offset: u64, bytes: Vec<u8>) -> anyhow::Result<()> {
        let mut from = 0;
        for (file, at, len) in self.pieces(offset, bytes.len() as u64) {
            let piece = &bytes[from..from + len as usize];
            file.write_all_at(piece, at).with_context(|| format!("write {len} bytes at {at}"))?;
            from += len as usize;
        }
        self.end = self.end.max(offset + bytes.len() as u64);
        Ok(())
    }

    fn append(&mut self, bytes: Vec<u8>) -> anyhow::Result<()> {
        ensure!(self.files.len() == 1, "where a file over several directories ends is not looked for");
        self.write(self.end, bytes)
    }

    fn sync(&mut self) -> anyhow::Result<()> {
        match &self.files[..] {
            [file] => file.sync_all().context("sync"),
            files => at_once(files.iter().map(|file| move || file.sync_all().context("sync"))),
        }
    }

    fn read(&mut self, ranges: &[(u64, u64)], see: &mut See<'_>) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        for (offset, len) in ranges {
            bytes.resize(*len as usize, 0);
            let mut from = 0;
            for (file, at, len) in self.pieces(*offset, *len) {
                let piece = &mut bytes[from..from + len as usize];
                file.read_exact_at(piece, at).with_context(|| format!("read {len} bytes at {at}"))?;
                from += len as usize;
            }
            see(*offset, &bytes)?;
        }
        Ok(())
    }

    fn ready(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a file over several directories has each stripe in its turn, and is read as it was written.
    /// Method: writes over stripes' edges in three directories; what lies in each, byte by byte.
    #[test]
    fn stripes_go_to_directories_in_turns() {
        let room = tempfile::tempdir().unwrap();
        let dirs: Vec<PathBuf> = (0..3).map(|at| room.path().join(at.to_string())).collect();
        dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
        let place = Dirs::new(dirs.clone(), 10);
        let bytes: Vec<u8> = (0..75).collect();
        let mut file = place.create("f").unwrap();
        for (offset, len) in [(40, 35), (0, 7), (7, 33)] {
            file.write(offset as u64, bytes[offset..offset + len].to_vec()).unwrap();
        }
        file.sync().unwrap();
        let mut found = Vec::new();
        let see = &mut |_: u64, piece: &[u8]| {
            found.extend_from_slice(piece);
            Ok(())
        };
        file.read(&[(0, 33), (33, 42)], see).unwrap();
        assert_eq!(found, bytes);
        let second: Vec<u8> = (10..20).chain(40..50).chain(70..75).collect();
        assert_eq!(fs::read(dirs[1].join("f")).unwrap(), second);
        assert!(file.append(vec![1]).is_err());
        drop(file);
        place.rename("f", "g").unwrap();
        assert!(!place.exists("f").unwrap() && place.exists("g").unwrap());
        place.unlink("g").unwrap();
        assert!(dirs.iter().all(|dir| fs::read_dir(dir).unwrap().next().is_none()));
    }
}
