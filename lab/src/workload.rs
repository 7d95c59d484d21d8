//! Data sets for measurements: so many files of such a size, of bytes that do not compress and are the same
//! each time.
//!
//! In: a number, a size, a seed. Out: files below a directory; later the proof that another directory holds
//! the same.
//! Invariant: nothing is compared by size or time; every byte is.

use std::fs::{self, File};
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, ensure};

/// Files of one directory: more would measure the directory.
const DIR_LEN: u64 = 1000;
/// Bytes that are written and compared at a time.
const STEP: usize = 1 << 20;
/// How old the files say that they are. Of what was made on the day a tool that looks at times has reason to
/// be wary, and data sets that are moved are rarely that young.
const AGE: Duration = Duration::from_secs(3 * 24 * 3600);

/// A data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    pub files: u64,
    /// Bytes of each file.
    pub size: u64,
    pub seed: u64,
}

impl Workload {
    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        self.files * self.size
    }

    /// Makes the files below `dir`, which is made too, and hands them to the disk.
    ///
    /// # Errors
    /// Naming the file.
    pub fn make(&self, dir: &Path) -> anyhow::Result<()> {
        let mut rng = fastrand::Rng::with_seed(self.seed);
        let mut step = vec![0; STEP];
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        for index in 0..self.files {
            let path = dir.join(self.name(index));
            let failed = || format!("write {}", path.display());
            if index % DIR_LEN == 0 {
                let parent = path.parent().expect("a name has a parent");
                fs::create_dir_all(parent).with_context(|| format!("make {}", parent.display()))?;
            }
            let mut file = File::create(&path).with_context(failed)?;
            let mut left = self.size;
            while left > 0 {
                let len = left.min(STEP as u64) as usize;
                rng.fill(&mut step[..len]);
                file.write_all(&step[..len]).with_context(failed)?;
                left -= len as u64;
            }
            file.set_modified(SystemTime::now() - AGE).with_context(failed)?;
        }
        let dir = File::open(dir).with_context(|| format!("open {}", dir.display()))?;
        rustix::fs::syncfs(&dir).context("sync the workload")
    }

    /// Holds every byte below `to` against `from`, and that `to` has nothing besides.
    ///
    /// # Errors
    /// Naming the first file that differs, is missing or is too many.
    pub fn check(&self, from: &Path, to: &Path) -> anyhow::Result<()> {
        let (mut left, mut right) = (vec![0; STEP], vec![0; STEP]);
        for index in 0..self.files {
            let name = self.name(index);
            same(&from.join(&name), &to.join(&name), &mut left, &mut right)?;
        }
        let found = count(to)?;
        ensure!(found == self.files, "{} has {found} files instead of {}", to.display(), self.files);
        Ok(())
    }

    /// Name of a file below the data set's directory.
    pub(crate) fn name(&self, index: u64) -> PathBuf {
        match self.files {
            1 => PathBuf::from("f0"),
            _ => PathBuf::from(format!("d{}/f{index}", index / DIR_LEN)),
        }
    }
}

fn same(from: &Path, to: &Path, left: &mut [u8], right: &mut [u8]) -> anyhow::Result<()> {
    let open = |path: &Path| File::open(path).with_context(|| format!("open {}", path.display()));
    let (mut a, mut b) = (open(from)?, open(to)?);
    loop {
        let n = fill(&mut a, left).with_context(|| format!("read {}", from.display()))?;
        let m = fill(&mut b, right).with_context(|| format!("read {}", to.display()))?;
        ensure!(left[..n] == right[..m], "{} differs from {}", to.display(), from.display());
        if n == 0 {
            return Ok(());
        }
    }
}

/// Reads until the buffer is full or the file is at its end.
fn fill(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match file.read(&mut buffer[len..])? {
            0 => break,
            n => len += n,
        }
    }
    Ok(len)
}

/// Files below `dir`.
fn count(dir: &Path) -> anyhow::Result<u64> {
    let mut found = 0;
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let entry = entry?;
        found += if entry.file_type()?.is_dir() { count(&entry.path())? } else { 1 };
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what was made passes, and every way of being different is seen.
    /// Method: a byte changed, a file shorter, one missing, one too many, in a small data set.
    #[test]
    fn every_difference_is_seen() {
        let workload = Workload { files: 3, size: STEP as u64 + 7, seed: 1 };
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        workload.make(&a).unwrap();
        workload.make(&b).unwrap();
        workload.check(&a, &b).unwrap();
        let file = b.join("d0/f1");
        let good = fs::read(&file).unwrap();
        let mut bad = good.clone();
        *bad.last_mut().unwrap() ^= 1;
        let reject = |word: &str| {
            let error = workload.check(&a, &b).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        };
        fs::write(&file, &bad).unwrap();
        reject("d0/f1 differs");
        fs::write(&file, &good[..good.len() - 1]).unwrap();
        reject("d0/f1 differs");
        fs::remove_file(&file).unwrap();
        reject("d0/f1");
        fs::write(&file, &good).unwrap();
        fs::write(b.join(".more"), "").unwrap();
        reject("4 files instead of 3");
    }
}
