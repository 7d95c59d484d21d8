//! Answers to the layout question: no panic, and places that tile the file.
#![no_main]
use haul_core::layout::{Layout, LayoutError, beegfs, ceph, gluster, lustre};
use libfuzzer_sys::fuzz_target;

fn walk(layout: &Layout) {
    let mut offset = 0_u64;
    for _ in 0..64 {
        let place = layout.at(offset);
        assert!(place.len > 0);
        let Some(next) = offset.checked_add(place.len) else { return };
        offset = next;
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, answer)) = data.split_first() else { return };
    let layout = match kind % 4 {
        0 => lustre(answer),
        1 => gluster(answer),
        2 => ceph(answer).and_then(|striping| striping.layout(1 << 40, |object| Some(object % 7))),
        _ => beegfs(answer, |index| Ok::<_, LayoutError>(index)),
    };
    if let Ok(layout) = layout {
        walk(&layout);
    }
});
