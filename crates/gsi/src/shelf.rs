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
        for entry in fs::read_dir(path)? {
            let name = entry?.file_name();
            let name = name.to_string_lossy();
            let is_one = name.split_once('.').is_some_and(|(hash, n)| {
                hash.len() == 8
                    && hash.bytes().all(|b| b.is_ascii_hexdigit())
                    && n.bytes().all(|b| b.is_ascii_digit())
            });
            if is_one {
                return Ok(true);
            }
        }
        Ok(false)
    }
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
