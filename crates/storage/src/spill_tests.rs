//! The spill file against a plain map of what was stored.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::*;
use haul_base::buffer::Pool;

/// Everything ends long before this, or it hangs.
const PATIENCE: Duration = Duration::from_secs(30);

fn make(size: u64, frame_len: u64) -> (SpillFile, Receiver<SpillDone>, tempfile::TempDir) {
    // Where cargo builds there is a disk; the system's own place may lie in memory.
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let (sender, done) = channel();
    let file =
        SpillFile::create(dir.path(), size, frame_len, Arc::new(move |d| drop(sender.send(d)))).unwrap();
    (file, done, dir)
}

/// Goal: what is fetched is byte for byte what was stored, whatever the lengths and the order, also when
/// slots are used again; and nothing of it is seen in the directory.
#[test]
fn slots_give_back_what_they_got() {
    const FRAME: usize = 256 * 1024;
    let (file, done, dir) = make(8 * FRAME as u64, FRAME as u64);
    assert_eq!(file.slots(), (8, FRAME as u64));
    let pool = Pool::new(16 * FRAME as u64);
    let mut rng = fastrand::Rng::with_seed(5);
    let mut held: HashMap<u32, Vec<u8>> = HashMap::new();
    for round in 0..200 {
        let slot = rng.u32(..8);
        match held.remove(&slot) {
            None => {
                let len = [1, 4095, 4096, 4097, FRAME - 1, FRAME][rng.usize(..6)];
                let mut bytes = vec![0; len];
                rng.fill(&mut bytes);
                // As bundles that came out shorter, the buffer may be longer than the frame.
                let mut buffer = pool.take(FRAME.min(len + rng.usize(..10_000))).unwrap();
                buffer.as_mut_slice()[..len].copy_from_slice(&bytes);
                file.store(slot, buffer, len);
                held.insert(slot, bytes);
            }
            Some(bytes) => {
                let mut buffer = pool.take(bytes.len()).unwrap();
                buffer.as_mut_slice().fill(0xee);
                file.fetch(slot, buffer);
                let SpillDone { slot: told, op, buffer, result } = done.recv_timeout(PATIENCE).unwrap();
                let buffer = buffer.unwrap();
                assert_eq!((told, op, result), (slot, SpillOp::Fetch, Ok(())), "round {round}");
                assert!(buffer.as_slice() == bytes, "round {round}: other bytes");
                continue;
            }
        }
        let stored = done.recv_timeout(PATIENCE).unwrap();
        assert_eq!((stored.slot, stored.op, stored.result), (slot, SpillOp::Store, Ok(())), "round {round}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the file has a name");
    assert_eq!(pool.in_use().0, 0);
}

/// Goal: what cannot be is said before the copy begins: where, what and what to do.
#[test]
fn what_cannot_be_is_said_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let create =
        |path: &Path, size| SpillFile::create(path, size, 1 << 20, Arc::new(drop)).map(drop).unwrap_err();
    let small = create(dir.path(), 1000).to_string();
    assert!(small.contains("1000 bytes") && small.contains("`spill_size`"), "{small}");
    let missing = create(&dir.path().join("none"), 1 << 20).to_string();
    assert!(missing.contains("none") && missing.contains("No such file"), "{missing}");
    assert!(missing.contains("make the directory"), "{missing}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let file = create(file.path(), 1 << 20).to_string();
    assert!(file.ends_with("name a directory"), "{file}");
    let proc = create(Path::new("/proc/self"), 1 << 20).to_string();
    assert!(proc.contains("/proc/self") && proc.contains("making a file"), "{proc}");
    let huge = create(dir.path(), 1 << 40).to_string();
    assert!(huge.contains("allocating") && huge.contains("`spill_size`"), "{huge}");
    // What was allocated before it failed is free again: the file is gone.
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
