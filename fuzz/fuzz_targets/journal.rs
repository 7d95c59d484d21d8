//! Replay of a journal that a crash or an enemy left: no panic, and the same result in one piece or two.
#![no_main]
use haul_core::journal::{Replay, Replayed};
use libfuzzer_sys::fuzz_target;

fn replay(pieces: &[&[u8]]) -> Option<Replayed> {
    let mut replay = Replay::new();
    pieces.iter().try_for_each(|piece| replay.feed(piece)).ok()?;
    replay.finish([0; 16], true).ok()
}

fuzz_target!(|data: &[u8]| {
    let Some((cut, bytes)) = data.split_first() else { return };
    let (head, tail) = bytes.split_at(usize::from(*cut).min(bytes.len()));
    assert_eq!(replay(&[bytes]), replay(&[head, tail]));
});
