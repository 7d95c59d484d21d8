//! Answers to the layout question: no panic, and places that tile the file.
#![no_main]
use haul_core::layout::{
    Layout, LayoutError, beegfs, ceph, ceph_wish, gluster, lustre, lustre_wish, moosefs, moosefs_body_len,
    moosefs_chunk, moosefs_master, moosefs_registered,
};
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
    let layout = match kind % 5 {
        0 => lustre(answer),
        1 => gluster(answer),
        2 => ceph(answer).and_then(|striping| striping.layout(1 << 40, |object| Some(object % 7))),
        3 => {
            let (_, _, _) = (moosefs_master(answer), moosefs_registered(answer), moosefs_body_len(answer, false));
            // Answers of a length that the first byte gives, one for each chunk.
            let len = usize::from(*kind).max(1);
            moosefs(answer.chunks(len).map(|answer| moosefs_chunk(answer).ok().flatten()))
        }
        _ => beegfs(answer, |index| Ok::<_, LayoutError>(index)),
    };
    if let Ok(layout) = layout {
        walk(&layout);
        assert!(layout.object_len(1 << 20, 1 << 26).is_power_of_two());
        // What a file elsewhere is made like is read back as that.
        if let Some(striping) = layout.striping() {
            let wish = ceph_wish(striping).map(|wish| ceph(wish.as_bytes()).expect("our own wish"));
            assert!(wish.is_none_or(|wish| wish.stripe_unit == striping.stripe_size));
            assert!(lustre_wish(striping).is_none_or(|wish| lustre(&wish).is_err()), "it has no objects");
        }
    }
});
