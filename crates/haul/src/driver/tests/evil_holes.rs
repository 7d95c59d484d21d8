//! Hostile words about sparse files, to the real sink driver and to the real source driver.

use std::fs;
use std::os::unix::fs::FileExt;

use haul_core::digest::Subtree;
use haul_core::entry::EntryKind;
use haul_core::extents::{DataExtent, EXTENTS_MAX, EXTENTS_OPEN_MAX};
use haul_core::ids::{FileId, Generation, Holder};
use haul_core::transfer::SessionEnd;
use haul_core::wire::{Announced, Extent, FileState, ITEMS_MAX, Message};

use super::evil::*;
use super::evil_source::{all_refused, announce, case, end, session, settle_data, withdraw};
use super::{Bench, Report, bytes, contents, failure, finish, link_pairs, source_request, start_source};

/// A slot, which is also the size of the objects here.
const A: u64 = 64 * 1024;

fn sparse(id: u64, text: &str, size: u64) -> Announced {
    let mut entry = file(id, 0, text, size);
    if let EntryKind::File { sparse, .. } = &mut entry.kind {
        *sparse = true;
    }
    entry
}

fn holes(id: u64, extents: &[(u64, u64)], last: bool) -> Message {
    let extents = extents.iter().map(|(offset, len)| DataExtent { offset: *offset, len: *len }).collect();
    Message::Holes { id: FileId(id), generation: Generation(0), extents, last }
}

/// Goal: a map that breaks a rule ends the session, and so does one that nobody announced.
#[test]
fn wrong_maps_are_refused() {
    let said = |name, refusal, messages: Vec<Message>| {
        case(name, refusal, move |evil: &mut Evil| {
            evil.greet_sink_as(hello_holes());
            announce(evil, vec![sparse(1, "s", 100 * A + 5), file(2, 0, "f", 100 * A)]);
            messages.into_iter().for_each(|message| evil.say(message));
        })
    };
    let late = "not announced, came twice or late";
    let order = "overlaps or touches";
    let one = [(2 * A, A)];
    let other = |generation| match holes(1, &one, true) {
        Message::Holes { id, extents, last, .. } => {
            Message::Holes { id, generation: Generation(generation), extents, last }
        }
        other => other,
    };
    let many = |id: u64, count: u64| {
        let all: Vec<(u64, u64)> = (0..count).map(|i| (2 * i * A, A)).collect();
        let parts: Vec<Message> = all.chunks(ITEMS_MAX).map(|part| holes(id, part, false)).collect();
        parts
    };
    all_refused(vec![
        said("offset within a slot", "whole slots", vec![holes(1, &[(1, A)], true)]),
        said("length of half a slot", "whole slots", vec![holes(1, &[(0, A / 2)], true)]),
        said("empty extent", "whole slots", vec![holes(1, &[(A, 0)], true)]),
        said("beyond the end", "beyond the end", vec![holes(1, &[(100 * A, A)], true)]),
        said("far beyond the end", "beyond the end", vec![holes(1, &[((1 << 62), 1 << 61)], true)]),
        said("out of order", order, vec![holes(1, &[(2 * A, A), (0, A)], true)]),
        said("overlapping", order, vec![holes(1, &[(0, 2 * A), (A, 2 * A)], true)]),
        said("the same twice", order, vec![holes(1, &[(0, A), (0, A)], true)]),
        said("touching", order, vec![holes(1, &[(0, A), (A, A)], true)]),
        said("out of order in parts", order, vec![holes(1, &one, false), holes(1, &[(0, A)], true)]),
        said("twice", late, vec![holes(1, &one, true), holes(1, &one, true)]),
        said("more after the last", late, vec![holes(1, &one, true), holes(1, &[(9 * A, A)], false)]),
        said("an empty part", late, vec![holes(1, &[], false)]),
        said("of a file without the mark", late, vec![holes(2, &one, true)]),
        said("of a file that is not there", "never announced", vec![holes(9, &one, true)]),
        said("of a newer generation", late, vec![other(1)]),
        said("of a withdrawn file", late, {
            let (id, generation) = (FileId(1), Generation(0));
            let gone = Message::Withdraw { id, generation, retry: true, failure: None };
            vec![holes(1, &one, false), gone, holes(1, &[(9 * A, A)], true)]
        }),
        case("too many extents of one file", "more than 65536", move |evil| {
            evil.greet_sink_as(hello_holes());
            announce(evil, vec![sparse(1, "s", 1 << 50)]);
            many(1, EXTENTS_MAX as u64 + 1).into_iter().for_each(|message| evil.say(message));
        }),
        case("too many extents of all files", "more data extents", move |evil| {
            evil.greet_sink_as(hello_holes());
            let files = (EXTENTS_OPEN_MAX / EXTENTS_MAX) as u64 + 1;
            announce(evil, (1..=files).map(|id| sparse(id, &format!("s{id}"), 1 << 50)).collect());
            for id in 1..=files {
                many(id, EXTENTS_MAX as u64).into_iter().for_each(|message| evil.say(message));
            }
        }),
        case("a sparse file in a session without them", "was not to have", |evil| {
            evil.greet_sink();
            announce(evil, vec![sparse(1, "s", 100 * A)]);
        }),
    ]);
}

/// Goal: data where a sparse file has none, or cut otherwise than its map says, is refused.
#[test]
fn data_in_holes_is_refused() {
    let said = |name, refusal, entry: fn() -> (RawEntry, Vec<u8>)| {
        case(name, refusal, move |evil: &mut Evil| {
            evil.greet_sink_as(hello_holes());
            announce(evil, vec![sparse(1, "s", 100 * A + 5)]);
            evil.say(holes(1, &[(2 * A, A), (50 * A, 3 * A)], true));
            let (entry, data) = entry();
            evil.data(&[entry], &data);
        })
    };
    let misfit = "does not fit its file";
    fn at(offset: u64, len: u64) -> (RawEntry, Vec<u8>) {
        let data = bytes(1, len as usize);
        (RawEntry::part(1, offset, &data, false), data)
    }
    all_refused(vec![
        said("before the data", misfit, || at(A, A)),
        said("behind the data", misfit, || at(3 * A, A)),
        said("over the end of data", misfit, || at(2 * A, 2 * A)),
        said("a part of a piece", misfit, || at(2 * A, A / 2)),
        said("within a piece", misfit, || at(2 * A + 1024, A - 1024)),
        said("two objects in one", misfit, || at(50 * A, 2 * A)),
        said("the hole at the end", misfit, || {
            let data = bytes(1, 5);
            (RawEntry::part(1, 100 * A, &data, true), data)
        }),
        said("a piece as the whole file", misfit, || {
            let data = bytes(1, A as usize);
            (RawEntry::whole(1, &data), data)
        }),
        // More than the sink grants at first, and so refused before it is looked at.
        said("the whole file", "more data than was granted", || {
            let data = bytes(1, (100 * A + 5) as usize);
            (RawEntry::whole(1, &data), data)
        }),
    ]);
}

/// Goal: a map that comes after its data, and in parts, serves it; files that fail before their map, or whose
/// map never ends, do no harm.
#[test]
fn late_maps_serve_their_data() {
    let bench = Bench::new();
    let data = bytes(1, A as usize);
    let report = session(&bench, "late map", |evil| {
        evil.greet_sink_as(hello_holes());
        announce(
            evil,
            vec![sparse(1, "s", 100 * A + 5), sparse(2, "gone", 9 * A), sparse(3, "hole", 1 << 40)],
        );
        evil.data(&[RawEntry::part(1, 50 * A, &data, false)], &data);
        settle_data(evil);
        evil.say(holes(1, &[(50 * A, A)], false));
        evil.say(holes(2, &[(0, A)], false));
        withdraw(evil, 2, 0, false);
        evil.say(holes(1, &[], true));
        evil.say(holes(3, &[], true));
        evil.say(Message::Sealed(vec![(FileId(1), Generation(0), 0), (FileId(3), Generation(0), 0)]));
        end(evil);
        evil.until(|message| matches!(message, Message::Complete).then_some(()));
    });
    assert_eq!(report.end, SessionEnd::Complete);
    assert_eq!((report.tally.files, report.tally.failed), (2, 1));
    let mut want = vec![0; (100 * A + 5) as usize];
    want[(50 * A) as usize..(51 * A) as usize].copy_from_slice(&data);
    assert!(fs::read(bench.dst().join("s")).unwrap() == want);
    let hole = fs::metadata(bench.dst().join("hole")).unwrap();
    assert_eq!(hole.len(), 1 << 40);
    assert!(!bench.dst().join("gone").exists());
}

/// One session against a source of one sparse file: data in its fourth slot, 40 slots in all.
fn to_source(name: &str, script: impl FnOnce(&mut Evil)) -> Report {
    let bench = Bench::new();
    let file = fs::File::create(bench.src().join("s")).unwrap();
    file.set_len(40 * A).unwrap();
    file.write_all_at(&bytes(1, A as usize), 3 * A).unwrap();
    let (near, far) = link_pairs(2).into_iter().unzip();
    let mut request = source_request(&[contents(&bench.src())]);
    request.options.object_size = Some(A as u32);
    let source = start_source(near, request);
    let mut evil = Evil::new(far);
    script(&mut evil);
    drop(evil);
    let report = finish(name, source);
    bench.check(name);
    report
}

/// Hears the announcement and the whole map of the file.
fn mapped(evil: &mut Evil, wait: bool) -> Announced {
    evil.greet_source_as(hello_holes(), wait);
    let entry = evil.announced(1).remove(0);
    assert!(matches!(entry.kind, EntryKind::File { sparse: true, .. }));
    let map = evil.until(|m| match m {
        Message::Holes { extents, last: true, .. } => Some(extents.clone()),
        _ => None,
    });
    assert_eq!(map, Some(vec![DataExtent { offset: 3 * A, len: A }]));
    entry
}

/// Goal: a sink that wants holes, or holds some, gets no byte of them.
#[test]
fn a_source_sends_no_holes() {
    let report = to_source("resend of a hole", |evil| {
        let entry = mapped(evil, false);
        let (id, generation) = (entry.id, entry.generation);
        evil.say(Message::Resend(vec![Extent { id, generation, offset: 7 * A, len: A }]));
        evil.until(|_| None::<()>);
    });
    let text = failure(&report).expect("it is refused");
    assert!(text.contains("does not begin an object"), "{text}");

    let report = to_source("holes that are held", |evil| {
        let entry = mapped(evil, true);
        let cv = [1; 32];
        let sub = |offset, len| Subtree { offset, len, cv };
        let held = vec![sub(0, A), sub(0, 40 * A), sub(8 * A, 8 * A), sub(39 * A, A)];
        let state = FileState::Held { subtrees: held, verify: true };
        evil.say(Message::FileStates(vec![(entry.id, entry.generation, state)]));
        evil.say(Message::Grant { by: Holder::ALONE, sink_target: 0, total: 4 * A });
        evil.until(|m| matches!(m, Message::Sealed(_)).then_some(()));
    });
    assert_eq!(report.own.payload, A, "all of the data, and nothing else");

    // Who does not know holes gets zeros.
    let report = to_source("no capability", |evil| {
        evil.greet_source(false);
        let entry = evil.announced(1).remove(0);
        assert!(matches!(entry.kind, EntryKind::File { sparse: false, .. }));
        evil.say(Message::Grant { by: Holder::ALONE, sink_target: 0, total: u64::MAX });
        evil.until(|m| matches!(m, Message::Sealed(_)).then_some(()));
    });
    assert!(report.own.payload > 3 * A, "only data was sent");
    assert_eq!(report.own.not_kept[haul_core::wire::NotKept::Sparse as usize], 1, "and it is said");
}
