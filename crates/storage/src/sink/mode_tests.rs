use super::*;

/// Goal: a write goes direct only if every byte that it touches is its own and aligned: memory, offset, and
/// length with a pad that lies behind the end of the file and within the buffer.
/// Method: a small world of alignments, places and lengths, against the rule written out.
#[test]
fn pads_stay_within_alignment_file_and_buffer() {
    let mut direct = 0;
    for (memory, offset_align) in [(4, 8), (8, 8), (16, 4)] {
        let alignment = Alignment::told(memory, offset_align).expect("legal");
        for address in 0..20 {
            for offset in 0..20 {
                for len in 0..20usize {
                    for (size, room) in [(offset + len as u64, len + 5), (64, 64)] {
                        let shape = Shape { address, room, offset, len, size, request_size: 16 };
                        let Some(pad) = alignment.pad(&shape) else { continue };
                        direct += 1;
                        assert!(address % memory as usize == 0 && offset % u64::from(offset_align) == 0);
                        let end = len + pad;
                        assert!(end.is_multiple_of(offset_align as usize) && end <= room);
                        assert!(pad == 0 || offset + len as u64 == size, "it would overwrite what follows");
                        assert!(pad < offset_align as usize);
                    }
                }
            }
        }
    }
    assert!(direct > 100);
    let small = Shape { address: 0, room: 64, offset: 0, len: 8, size: 8, request_size: 8 };
    assert_eq!(Alignment::told(4, 16).expect("legal").pad(&small), None, "requests would be cut in between");
}

/// Goal: what a file system reports decides: zero means no direct I/O, nonsense too.
/// Method: numbers as `statx` could give them.
#[test]
fn reported_alignment_is_held_against_sense() {
    assert_eq!(Alignment::told(0, 0), None);
    assert_eq!(Alignment::told(512, 3), None);
    assert_eq!(Alignment::told(4, 512), Some(Alignment { memory: 4, offset: 512 }));
}

/// Goal: the clock of a mode runs while something of it is in flight, once however many are, and a window
/// takes only what was counted since the last.
/// Method: overlapping operations at made-up moments.
#[test]
fn clock_is_a_union() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let mut clock = Clock::default();
    clock.begin(at(0));
    clock.begin(at(10));
    clock.end(at(20), 5);
    clock.end(at(30), 7);
    clock.begin(at(100));
    assert_eq!(clock.take(at(110)), (12, Duration::from_millis(40)));
    clock.end(at(115), 1);
    assert_eq!(clock.take(at(200)), (1, Duration::from_millis(5)));
    assert_eq!(clock.take(at(300)), (0, Duration::ZERO));
}

/// Goal: the other mode is tried once enough was written, at a commit and not before; without durability a
/// file under way keeps its mode; a refusal ends it.
/// Method: more than a trial's bytes in one write, with and without a commit behind it.
#[test]
fn trial_ends_at_a_commit() {
    for durable in [true, false] {
        let choice = Choice::new(IoPolicy::Auto, durable, 1);
        choice.begin(IoMode::Buffered);
        choice.end(IoMode::Buffered, 1 << 30);
        assert_eq!(choice.mode(), IoMode::Buffered);
        choice.on_commit();
        assert_eq!(choice.mode(), IoMode::Direct);
        let under_way = if durable { IoMode::Direct } else { IoMode::Buffered };
        assert_eq!(choice.mode_under_way(IoMode::Buffered), under_way);
        choice.on_refused(Errno::INVAL);
        assert_eq!(choice.mode(), IoMode::Buffered);
        assert!(!choice.may_be_direct());
        assert!(choice.report().starts_with("buffered (direct is refused"), "{}", choice.report());
    }
}

/// Goal: there are never more descriptors for direct I/O than their share.
/// Method: three rights asked of two, one given back.
#[test]
fn direct_descriptors_are_bounded() {
    let choice = Choice::new(IoPolicy::Direct, true, 2);
    let (first, second) = (choice.direct_slot(), choice.direct_slot());
    assert!(first.is_some() && second.is_some() && choice.direct_slot().is_none());
    drop(first);
    assert!(choice.direct_slot().is_some());
}
