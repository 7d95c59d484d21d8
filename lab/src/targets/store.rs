//! What the files of a model hold: nothing, memory, or sparse files elsewhere.
//!
//! In: bytes at an offset of a file. Out: the same bytes, zeros where none were written. Writes are taken at
//! once, when the request comes; the model only decides when it is answered. Left out: a crash that loses
//! what was not synced.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

const CHUNK: u64 = 256 << 10;

/// Where all files of a model keep their bytes.
#[derive(Clone)]
pub enum Space {
    /// Reads give zeros, writes are dropped.
    Null,
    /// Bytes held, and how many at most.
    Memory { held: Arc<AtomicU64>, most: u64 },
    /// One sparse file for each, in this directory.
    Directory(PathBuf),
}

/// The bytes of one file.
pub enum Store {
    Null,
    Memory { chunks: RwLock<HashMap<u64, Box<[u8]>>>, held: Arc<AtomicU64>, most: u64 },
    Backed { file: File, path: PathBuf },
}

impl Space {
    pub fn store(&self, inode: u64) -> io::Result<Store> {
        Ok(match self {
            Space::Null => Store::Null,
            Space::Memory { held, most } => {
                Store::Memory { chunks: RwLock::default(), held: held.clone(), most: *most }
            }
            Space::Directory(dir) => {
                let path = dir.join(inode.to_string());
                let file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
                Store::Backed { file, path }
            }
        })
    }
}

impl Store {
    /// Whether reads are zeros, whatever was written.
    pub fn is_null(&self) -> bool {
        matches!(self, Store::Null)
    }

    pub fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        match self {
            Store::Null => into.fill(0),
            Store::Memory { chunks, .. } => {
                let chunks = chunks.read().expect("no panic under this lock");
                for (chunk, at, piece) in pieces(offset, into.len()) {
                    let into = &mut into[piece];
                    match chunks.get(&chunk) {
                        Some(bytes) => into.copy_from_slice(&bytes[at..at + into.len()]),
                        None => into.fill(0),
                    }
                }
            }
            Store::Backed { file, .. } => {
                let mut got = 0;
                while got < into.len() {
                    match file.read_at(&mut into[got..], offset + got as u64)? {
                        0 => break,
                        more => got += more,
                    }
                }
                into[got..].fill(0);
            }
        }
        Ok(())
    }

    pub fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        match self {
            Store::Null => Ok(()),
            Store::Memory { chunks, held, most } => {
                let mut chunks = chunks.write().expect("no panic under this lock");
                for (chunk, at, piece) in pieces(offset, from.len()) {
                    let bytes = match chunks.entry(chunk) {
                        Entry::Occupied(entry) => entry.into_mut(),
                        Entry::Vacant(entry) => {
                            if held.fetch_add(CHUNK, Ordering::Relaxed) + CHUNK > *most {
                                held.fetch_sub(CHUNK, Ordering::Relaxed);
                                return Err(io::ErrorKind::StorageFull.into());
                            }
                            entry.insert(vec![0; CHUNK as usize].into())
                        }
                    };
                    bytes[at..at + piece.len()].copy_from_slice(&from[piece]);
                }
                Ok(())
            }
            Store::Backed { file, .. } => file.write_all_at(from, offset),
        }
    }

    /// Forgets what lies from `size` on.
    pub fn truncate(&self, size: u64) -> io::Result<()> {
        match self {
            Store::Null => Ok(()),
            Store::Memory { chunks, held, .. } => {
                let mut chunks = chunks.write().expect("no panic under this lock");
                let before = chunks.len() as u64;
                chunks.retain(|chunk, _| *chunk < size.div_ceil(CHUNK));
                held.fetch_sub((before - chunks.len() as u64) * CHUNK, Ordering::Relaxed);
                if let Some(bytes) = chunks.get_mut(&(size / CHUNK)) {
                    bytes[(size % CHUNK) as usize..].fill(0);
                }
                Ok(())
            }
            Store::Backed { file, .. } => file.set_len(size),
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // What fails here is found again by `down`, which removes the directory.
        let _ = match self {
            Store::Backed { path, .. } => std::fs::remove_file(path),
            _ => self.truncate(0),
        };
    }
}

/// Cuts a range at chunk borders: chunk, offset in it, and where that lies in the range.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let within = (at % CHUNK) as usize;
        let piece = done..len.min(done + CHUNK as usize - within);
        done = piece.end;
        Some((at / CHUNK, within, piece))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: memory and sparse files give back what was written, zeros elsewhere, and forget what was cut
    /// off.
    /// Method: seeded writes, reads and truncations against a vector; what is held is given back at the end.
    #[test]
    fn stores_give_back_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let held = Arc::new(AtomicU64::new(0));
        for space in
            [Space::Memory { held: held.clone(), most: 1 << 30 }, Space::Directory(dir.path().to_owned())]
        {
            let mut rng = fastrand::Rng::with_seed(5);
            let mut model = vec![0u8; 2 << 20];
            let store = space.store(9).unwrap();
            for _ in 0..300 {
                let from = rng.usize(0..model.len());
                let to = rng.usize(from..model.len().min(from + 700_000));
                match rng.u32(0..10) {
                    0 => {
                        store.truncate(from as u64).unwrap();
                        model[from..].fill(0);
                    }
                    1..5 => {
                        model[from..to].fill_with(|| rng.u8(..));
                        store.write(from as u64, &model[from..to]).unwrap();
                    }
                    _ => {
                        let mut got = vec![1; to - from];
                        store.read(from as u64, &mut got).unwrap();
                        assert!(got == model[from..to], "{from}..{to}");
                    }
                }
            }
        }
        assert_eq!(held.load(Ordering::Relaxed), 0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    /// Goal: a full memory is a full disk.
    /// Method: one chunk more than there is room for.
    #[test]
    fn memory_has_an_end() {
        let space = Space::Memory { held: Arc::default(), most: 2 * CHUNK };
        let store = space.store(1).unwrap();
        store.write(CHUNK - 1, &[1, 2]).unwrap();
        assert_eq!(store.write(2 * CHUNK, &[3]).unwrap_err().kind(), io::ErrorKind::StorageFull);
        store.truncate(1).unwrap();
        store.write(2 * CHUNK, &[3]).unwrap();
    }
}
