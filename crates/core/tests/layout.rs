//! Answers to the layout question from servers that lie: what `fuzz/fuzz_targets/layout.rs` does, without a
//! fuzzer.

use fastrand::Rng;
use haul_core::layout::{Layout, LayoutError, beegfs, ceph, gluster, lustre};

const ROUNDS: u64 = 4_000;

/// Good answers: of Lustre (three targets of 1 MiB), GlusterFS, CephFS and BeeGFS (three of 512 KiB).
fn good(kind: u64) -> Vec<u8> {
    match kind {
        0 => {
            let mut bytes = [0x0bd1_0bd0_u32.to_le_bytes(), 1_u32.to_le_bytes()].concat();
            bytes.extend([7; 16]);
            bytes.extend((1_u32 << 20).to_le_bytes());
            bytes.extend([3, 0, 0, 0]);
            for ost in [5_u32, 0, 0x1f] {
                bytes.extend([9; 20]);
                bytes.extend(ost.to_le_bytes());
            }
            bytes
        }
        1 => b"(<DISTRIBUTE:v-dht> (<REPLICATE:v-replicate-0> <POSIX(/b1):h1:/b1/f> <POSIX(/b2):h2:/b2/f>))"
            .to_vec(),
        2 => b"stripe_unit=1048576 stripe_count=4 object_size=4194304 pool=d".to_vec(),
        _ => [&1_u32.to_le_bytes()[..], &(512_u32 << 10).to_le_bytes(), &[3, 0, 0, 0]].concat(),
    }
}

fn decode(kind: u64, answer: &[u8]) -> Result<Layout, LayoutError> {
    match kind {
        0 => lustre(answer),
        1 => gluster(answer),
        2 => ceph(answer).and_then(|striping| striping.layout(1 << 40, |object| Some(object % 7))),
        _ => beegfs(answer, Ok::<_, LayoutError>),
    }
}

/// Places tile the file as far as one looks.
fn walk(layout: &Layout) {
    let mut offset = 0_u64;
    for _ in 0..64 {
        let place = layout.at(offset);
        assert!(place.len > 0);
        let Some(next) = offset.checked_add(place.len) else { return };
        offset = next;
    }
}

/// Goal: no answer makes a decoder panic, and what it takes for a layout is one.
/// Method: seeded junk, and good answers with some bytes changed, cut off or repeated; the good ones are
/// understood.
#[test]
fn answers_that_lie_do_no_harm() {
    let mut rng = Rng::with_seed(1);
    let mut taken = [0_u64; 4];
    for round in 0..ROUNDS {
        let kind = round % 4;
        let mut answer = good(kind);
        if round < 4 {
            walk(&decode(kind, &answer).unwrap());
        }
        if rng.u32(0..8) == 0 {
            let len = rng.usize(0..300);
            answer = std::iter::repeat_with(|| rng.u8(..)).take(len).collect();
        }
        for _ in 0..rng.usize(0..6) {
            let at = rng.usize(0..=answer.len());
            match rng.u32(0..4) {
                0 => answer.truncate(at),
                1 => answer.extend_from_within(at..),
                _ if at < answer.len() => answer[at] = if rng.bool() { rng.u8(..) } else { 0xff },
                _ => {}
            }
            answer.truncate(4096);
        }
        if let Ok(layout) = decode(kind, &answer) {
            taken[kind as usize] += 1;
            walk(&layout);
        }
    }
    assert!(taken.iter().all(|n| *n > ROUNDS / 100), "hardly anything was a layout: {taken:?}");
}
