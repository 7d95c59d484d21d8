//! Where the authorities of a grid stand: files by the hash of a name, as OpenSSL has them.
//!
//! In: a name. Out: the files about it, as bytes: `HASH.N`, `HASH.signing_policy`, `HASH.rN`.
//! Invariants: each file is bounded; one that cannot be read is an error, not one that is not there.

use std::collections::HashMap;
use std::fmt::Debug;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Files by their names.
pub trait Shelf: Debug + Send + Sync {
    /// All of a file, where it is there.
    ///
    /// # Errors
    /// It cannot be read, or is longer than `len_max`.
    fn read(&self, name: &str, len_max: u64) -> io::Result<Option<Vec<u8>>>;

    /// Where they are, for people.
    fn place(&self) -> String;
}

/// A directory of this host. What is put there counts from the next look on.
#[derive(Clone, Debug)]
pub struct Directory(pub PathBuf);

impl Directory {
    /// Whether there is a certificate of any authority in it.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn has_authority(path: &Path) -> io::Result<bool> {
        Ok(certificates(path)?.next().transpose()?.is_some())
    }

    /// The same, where each certificate in it can be read.
    ///
    /// # Errors
    /// It or one of them cannot be read.
    pub fn can_be_read(path: &Path) -> io::Result<bool> {
        let mut found = false;
        for file in certificates(path)? {
            let file = file?;
            let named =
                |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
            // Nobody waits for who writes to a FIFO, and a link that leads nowhere says nothing.
            match fs::metadata(&file) {
                Ok(facts) if facts.is_file() => drop(fs::File::open(&file).map_err(named)?),
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(named(error)),
                _ => continue,
            }
            found = true;
        }
        Ok(found)
    }
}

/// What is called as certificates of authorities are: `HASH.N`.
fn certificates(dir: &Path) -> io::Result<impl Iterator<Item = io::Result<PathBuf>>> {
    let is_one = |name: &str| {
        name.split_once('.').is_some_and(|(hash, n)| {
            hash.len() == 8
                && hash.bytes().all(|b| b.is_ascii_hexdigit())
                && n.bytes().all(|b| b.is_ascii_digit())
        })
    };
    let paths = fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.path()));
    Ok(paths.filter(move |path| {
        let name = |path: &PathBuf| path.file_name().is_some_and(|name| is_one(&name.to_string_lossy()));
        path.as_ref().map_or(true, name)
    }))
}

impl Shelf for Directory {
    fn read(&self, name: &str, len_max: u64) -> io::Result<Option<Vec<u8>>> {
        let file = match fs::File::open(self.0.join(name)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        let mut bytes = Vec::new();
        file.take(len_max + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > len_max {
            return Err(io::Error::other("it is longer than any real one"));
        }
        Ok(Some(bytes))
    }

    fn place(&self) -> String {
        self.0.display().to_string()
    }
}

/// Files in memory.
impl Shelf for HashMap<String, Vec<u8>> {
    fn read(&self, name: &str, _: u64) -> io::Result<Option<Vec<u8>>> {
        Ok(self.get(name).cloned())
    }

    fn place(&self) -> String {
        "memory".into()
    }
}
