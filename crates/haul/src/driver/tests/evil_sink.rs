//! An evil sink against the real source driver.

use std::fs;
use std::sync::Arc;

use haul_core::change::Change;
use haul_core::digest::{DigestKind, Subtree};
use haul_core::ids::{DirId, FileId, Generation, Holder, SinkTarget, StreamId};
use haul_core::layout::{Component, Layout};
use haul_core::transfer::SessionEnd;
use haul_core::wire::{Announced, DoneItem, Extent, FileState, Message, Outcome, kind};

use super::super::source;
use super::evil::*;
use super::{
    Bench, Report, Watch, bytes, contents, failure, finish, link_pairs, links_of, source_request, spawn_end,
    start_source,
};

/// One session against a source of one large file `big`, one small `small`, and a directory `d`.
fn session(name: &str, script: impl FnOnce(&mut Evil)) -> Report {
    let bench = Bench::new();
    fs::write(bench.src().join("big"), bytes(1, 700_000)).unwrap();
    fs::write(bench.src().join("small"), bytes(2, 1000)).unwrap();
    fs::create_dir(bench.src().join("d")).unwrap();
    let before = super::snapshot(&bench.src());
    let (near, far) = link_pairs(2).into_iter().unzip();
    let mut request = source_request(&[contents(&bench.src())]);
    request.options.object_size = Some(64 * 1024);
    let source = start_source(near, request);
    let mut evil = Evil::new(far);
    script(&mut evil);
    drop(evil);
    let report = finish(name, source);
    bench.check(name);
    assert_eq!(super::snapshot(&bench.src()), before, "{name}: the source was changed");
    report
}

/// The session fails, with `refusal` in its text.
fn refused(name: &str, refusal: &str, script: impl FnOnce(&mut Evil)) {
    let report = session(name, |evil| {
        script(evil);
        if !refusal.is_empty() {
            evil.until(|_| None::<()>);
        }
    });
    let text = failure(&report).unwrap_or_else(|| panic!("{name}: ended as {:?}", report.end));
    assert!(text.contains(refusal), "{name}: failed with {text:?}, not {refusal:?}");
}

/// What was announced, by name.
struct Tree {
    big: Announced,
    small: Announced,
    dir: Announced,
}

fn tree(evil: &mut Evil, wait: bool) -> Tree {
    evil.greet_source(wait);
    let all = evil.announced(3);
    let find = |text: &str| all.iter().find(|e| e.name.as_bytes() == text.as_bytes()).unwrap().clone();
    Tree { big: find("big"), small: find("small"), dir: find("d") }
}

fn grant(evil: &mut Evil, total: u64) {
    evil.say(Message::Grant { by: Holder::ALONE, sink_target: 0, total });
}

fn extent(entry: &Announced, offset: u64, len: u64) -> Extent {
    Extent { id: entry.id, generation: entry.generation, offset, len }
}

fn done(entry: &Announced, outcome: Outcome) -> Message {
    Message::Done(vec![DoneItem { id: entry.id, generation: entry.generation, outcome }])
}

fn settle(evil: &mut Evil) {
    evil.say(Message::Ping(77));
    evil.until(|message| (*message == Message::Pong(77)).then_some(()));
}

/// Hears until the source has sealed `count` files, by seal; bundles seal themselves.
fn sealed(evil: &mut Evil, id: FileId) -> bool {
    let find = |m: &Message| match m {
        Message::Sealed(list) => list.iter().any(|(sealed, _, _)| *sealed == id).then_some(()),
        _ => None,
    };
    evil.until(find).is_some()
}

/// Goal: a wrong start is refused.
#[test]
fn wrong_handshakes_are_refused() {
    refused("other session", "another session", |evil| {
        let mut said = hello();
        said.session = [9; 16];
        evil.say(Message::Hello(said));
    });
    refused("entries 1", "entries", |evil| {
        let mut said = hello();
        said.limits.entries = 1;
        evil.say(Message::Hello(said));
    });
    refused("no destination", "FILE_STATE came where", |evil| {
        evil.say(Message::Hello(hello()));
        evil.say(Message::FileStates(Vec::new()));
    });
    refused("rename of a tree", "renames", |evil| {
        evil.say(Message::Hello(hello()));
        evil.say(Message::Destination { wait: true, rename: Some(name("x")), epoch: 1, resumed: false });
    });
    refused("rename to '..'", "'.' or '..'", |evil| {
        evil.say(Message::Hello(hello()));
        evil.say_raw(kind::DESTINATION, b"\x01\x00\x01\x00\x00\x00\x02..".to_vec());
    });
    refused("4 GiB of control", "frame", |evil| {
        evil.greet_source(true);
        let mut frame = evil.raw(kind::PING, vec![0; 8]);
        frame.len = Some(u32::MAX);
        evil.write(&frame.bytes());
    });
    refused("a source's word", "only a source sends", |evil| {
        evil.greet_source(true);
        evil.say(Message::DirEnd(vec![DirId(1)]));
    });
    refused("a sink target beyond the last", "grant: sink target", |evil| {
        evil.greet_source_as(hello_targets(), true);
        evil.say_raw(kind::GRANT, [[0; 6].as_slice(), &[0, 0x10, 0, 0, 0, 0, 0, 0, 0, 1]].concat());
    });
    refused("places that begin nowhere", "where a file lies", |evil| {
        evil.greet_source_as(hello_targets(), true);
        let component = [&9_u64.to_le_bytes()[..], &1_u64.to_le_bytes(), &[1, 0, 1, 0]].concat();
        evil.say_raw(kind::FILE_TARGETS, [&[0; 12][..], &[1, 0], &component].concat());
    });
    refused("a length of objects that nobody asked for", "OBJECT_LEN came where", |evil| {
        evil.say(Message::Hello(hello()));
        evil.say(Message::ObjectLen(1 << 20));
    });
    refused("a length of objects twice", "twice", |evil| {
        evil.say(Message::Hello(hello_layouts()));
        evil.say(Message::ObjectLen(1 << 20));
        evil.say(Message::ObjectLen(1 << 26));
    });
    refused("a grain of times twice", "how coarsely it keeps times twice", |evil| {
        evil.say(Message::Hello(hello()));
        evil.say(Message::TimeGrain(1_000_000_000));
        evil.say(Message::TimeGrain(2_000_000_000));
    });
    refused("a length that is none", "object size", |evil| {
        evil.say(Message::Hello(hello_layouts()));
        evil.say_raw(kind::OBJECT_LEN, vec![0, 0, 0x30, 0]);
    });
    refused("destination twice", "only a source sends", |evil| {
        evil.greet_source(true);
        evil.say(Message::Destination { wait: false, rename: None, epoch: 1, resumed: false });
    });
}

/// Goal: an end that is too early is no success, and a claim of success that cannot be true is found.
#[test]
fn false_success_is_found() {
    refused("complete at once", "still open", |evil| {
        evil.greet_source(true);
        evil.say(Message::Complete);
    });
    for wait in [false, true] {
        refused("done before it was sent", "before", |evil| {
            let tree = tree(evil, wait);
            evil.say(done(&tree.big, Outcome::Done { root: Some([1; 32]), change: Change::NEW }));
        });
        refused("done with the right root before the seal", "before", |evil| {
            let tree = tree(evil, wait);
            let root = haul_base::digest::root(DigestKind::Blake3, &bytes(2, 1000));
            evil.say(done(&tree.small, Outcome::Done { root: Some(root), change: Change::NEW }));
        });
    }
    // A wrong root after the seal fails that file, not the session.
    let report = session("wrong root", |evil| {
        let tree = tree(evil, false);
        grant(evil, u64::MAX);
        // The seal and the end come in any order.
        let (mut sealed, mut ended) = (false, false);
        let both = evil.until(|message| {
            ended |= matches!(message, Message::End(_));
            sealed |=
                matches!(message, Message::Sealed(list) if list.iter().any(|seal| seal.0 == tree.big.id));
            (sealed && ended).then_some(())
        });
        assert!(both.is_some(), "it seals what it has sent, and ends");
        evil.say(done(&tree.big, Outcome::Done { root: Some([1; 32]), change: Change::NEW }));
        evil.say(done(&tree.small, Outcome::Done { root: None, change: Change::NEW }));
        evil.say(done(&tree.dir, Outcome::Done { root: None, change: Change::NEW }));
        evil.say(Message::Complete);
    });
    assert_eq!(report.end, SessionEnd::Complete);
    assert_eq!((report.tally.failed, report.tally.files), (2, 0));
}

/// Goal: no number of a sink overflows anything or makes the source read more than its own limit.
#[test]
fn absurd_numbers_do_no_harm() {
    refused("numbers", "closed the control stream", |evil| {
        let tree = tree(evil, false);
        grant(evil, u64::MAX);
        grant(evil, 0);
        grant(evil, 1);
        for _ in 0..3 {
            let far = (1 << 63) - 1;
            evil.say(Message::Durable {
                by: Holder::ALONE,
                extents: vec![
                    extent(&tree.big, 0, far),
                    extent(&tree.big, far, 0),
                    extent(&tree.small, 0, far),
                    Extent { id: FileId(99), ..extent(&tree.big, 0, far) },
                ],
            });
        }
        evil.say(Message::Written { bytes: u64::MAX, frames: vec![(StreamId(1), u64::MAX); 4096] });
        evil.say(Message::Written { bytes: 0, frames: vec![(StreamId(900), 1)] });
        evil.say(Message::StreamClosed { stream: StreamId(900), frames: u64::MAX });
        // Of targets nothing was agreed.
        evil.say(Message::TargetHealth(vec![target_health(4095); 4096]));
        evil.say(Message::Grant { by: Holder::ALONE, sink_target: 4095, total: u64::MAX });
        evil.say(file_targets(&tree.big));
        let failed = Outcome::Failed(a_failure());
        evil.say(done(&Announced { id: FileId(u64::MAX), ..tree.big.clone() }, failed.clone()));
        evil.say(done(&Announced { generation: Generation(7), ..tree.big.clone() }, failed.clone()));
        settle(evil);
        evil.say(done(&tree.big, failed.clone()));
        evil.say(done(&tree.small, failed.clone()));
        evil.say(done(&tree.dir, failed));
        settle(evil);
        hang_up(evil);
    });
}

/// One sink target after another, up to the last one.
fn file_targets(entry: &Announced) -> Message {
    let targets = (4090..4096).map(SinkTarget).collect();
    let layout = Layout::new(vec![Component { start: 0, stripe_size: 1, targets }]).unwrap();
    Message::FileTargets { id: entry.id, generation: entry.generation, layout }
}

/// Goal: what a sink says of targets that are not there, of files that it never heard of, and of grants of
/// all bytes there are, over and over, moves no byte that was not granted and ends nothing.
#[test]
fn false_targets_do_no_harm() {
    session("targets", |evil| {
        evil.greet_source_as(hello_targets(), false);
        let all = evil.announced(3);
        let big = all.iter().find(|entry| entry.name.as_bytes() == b"big").unwrap().clone();
        for round in 0..3 {
            let unknown = Announced { id: FileId(u64::MAX - round), ..big.clone() };
            evil.say(file_targets(&unknown));
            evil.say(file_targets(&Announced { generation: Generation(7), ..big.clone() }));
            evil.say(file_targets(&big));
            evil.say(Message::Grant { by: Holder::ALONE, sink_target: 4095, total: u64::MAX });
            evil.say(Message::Grant { by: Holder::ALONE, sink_target: 1, total: u64::MAX - round });
            evil.say(Message::TargetHealth((1..4096).map(target_health).collect()));
        }
        settle(evil);
        assert!(!sealed_yet(evil), "no payload was granted");
        evil.say(Message::Grant { by: Holder::ALONE, sink_target: 0, total: 1 << 30 });
        settle(evil);
        hang_up(evil);
    });
}

/// Whether a file was sealed, as far as was heard.
fn sealed_yet(evil: &mut Evil) -> bool {
    evil.heard.try_iter().any(|message| matches!(message, Message::Sealed(_)))
}

fn hang_up(evil: &mut Evil) {
    *evil = Evil::new(link_pairs(2).into_iter().map(|(near, _)| near).collect());
}

/// Goal: states of files that are not held as they say lead to a copy or an end, never to a panic, and the
/// source hashes no byte of a file twice for them.
#[test]
fn false_states_do_no_harm() {
    let cv = [1; 32];
    let sub = |offset, len| Subtree { offset, len, cv };
    let lists: Vec<Vec<Subtree>> = vec![
        vec![],
        vec![sub(0, 1 << 62)],
        vec![sub(1 << 62, 1024)],
        vec![sub(3, 5)],
        vec![sub(0, 0)],
        vec![sub(0, 1024)],
        vec![sub(0, 65536), sub(0, 131072), sub(65536, 65536), sub(0, 1024)],
        vec![sub(0, 524288); 4096],
        vec![sub(0, 700_000)],
        (0..4096).map(|i| sub(i * 1024 % 600_000 / 1024 * 1024, 1024)).collect(),
    ];
    for (i, subtrees) in lists.into_iter().enumerate() {
        for verify in [false, true] {
            for fails in [false, true] {
                refused(&format!("held {i} {verify} {fails}"), "closed the control stream", |evil| {
                    let tree = tree(evil, true);
                    let held = FileState::Held { subtrees: subtrees.clone(), verify };
                    let state = |entry: &Announced| (entry.id, entry.generation, held.clone());
                    evil.say(Message::FileStates(vec![
                        (FileId(99), Generation(0), FileState::Fresh),
                        (tree.dir.id, Generation(0), FileState::Fresh),
                    ]));
                    evil.say(Message::FileStates(vec![state(&tree.big)]));
                    evil.say(Message::FileStates(vec![state(&tree.small)]));
                    evil.say(Message::FileStates(vec![state(&tree.small), state(&tree.big)].split_off(1)));
                    if fails {
                        let failed = Outcome::Failed(a_failure());
                        evil.say(done(&tree.small, failed.clone()));
                        evil.say(done(&tree.big, failed));
                    }
                    settle(evil);
                    grant(evil, u64::MAX);
                    settle(evil);
                    hang_up(evil);
                });
            }
        }
    }
}

/// Goal: a sink that asks again and again is not served for ever; odd places are not read.
#[test]
fn resends_are_bounded() {
    refused("misaligned", "does not begin an object", |evil| {
        let tree = tree(evil, false);
        grant(evil, u64::MAX);
        sealed(evil, tree.big.id);
        evil.say(Message::Resend(vec![extent(&tree.big, 5, 10)]));
    });
    let report = session("flood", |evil| {
        let tree = tree(evil, false);
        grant(evil, u64::MAX);
        sealed(evil, tree.big.id);
        // What it never held is nobody's business.
        evil.say(Message::NotHeld(vec![
            extent(&tree.big, 0, 1 << 62),
            extent(&tree.small, 5, 10),
            Extent { id: FileId(55), ..extent(&tree.big, 0, 1) },
        ]));
        // Once for each object is fair; it is over long before this is.
        for round in 0..2000 {
            evil.say(Message::Resend(vec![extent(&tree.big, 0, 65536), extent(&tree.small, 0, 1000)]));
            evil.say(Message::Resend(vec![Extent { id: FileId(55), ..extent(&tree.big, 0, 1) }]));
            evil.say(Message::Ping(round));
            let mut withdrawn = false;
            evil.until(|m| {
                withdrawn |= matches!(m, Message::Withdraw { .. });
                matches!(m, Message::Pong(_)).then_some(())
            });
            if withdrawn {
                break;
            }
            assert!(round < 1999, "served for ever");
        }
    });
    assert!(failure(&report).is_some());
    assert!(report.tally.failed >= 1);
}

/// Goal: streams that a sink closes, truthfully or not, cost the session at most.
#[test]
fn false_closings_of_streams_end_the_session() {
    refused("both closed", "every data stream is lost", |evil| {
        tree(evil, false);
        grant(evil, u64::MAX);
        evil.say(Message::StreamClosed { stream: StreamId(1), frames: u64::MAX });
        evil.say(Message::StreamClosed { stream: StreamId(1), frames: 0 });
        evil.say(Message::StreamClosed { stream: StreamId(2), frames: 0 });
    });
}

/// Goal: a sink may die after any of its words.
#[test]
fn a_sink_that_dies_anywhere_ends_the_session() {
    for last in 0..6 {
        refused(&format!("dies after {last}"), "", |evil| {
            evil.say(Message::Hello(hello()));
            if last >= 1 {
                evil.say(Message::Destination { wait: false, rename: None, epoch: 1, resumed: false });
            }
            if last >= 2 {
                grant(evil, 3 * 65536);
            }
            if last >= 3 {
                evil.announced(3);
            }
            if last >= 4 {
                evil.say(Message::Written { bytes: 0, frames: vec![(StreamId(1), 1)] });
                evil.say(Message::StreamClosed { stream: StreamId(1), frames: 1 });
            }
            if last >= 5 {
                grant(evil, u64::MAX);
                evil.until(|m| matches!(m, Message::End(_)).then_some(()));
            }
        });
    }
}

/// Goal: stop and stopped of a sink end the session as stopped, abort as failed.
#[test]
fn ends_by_the_sink_are_taken_as_they_are() {
    let report = session("stop", |evil| {
        tree(evil, true);
        evil.say(Message::Stop { reason: "enough".into() });
        settle(evil);
        evil.say(Message::Stopped);
    });
    assert_eq!(report.end, SessionEnd::Stopped);
    refused("abort", "no", |evil| {
        tree(evil, true);
        evil.say(Message::Abort(a_failure()));
    });
}

/// Goal: more words than the source can answer are the end of the session, not of the memory.
#[test]
fn a_flood_of_pings_ends_or_is_answered() {
    refused("pings", "", |evil| {
        evil.greet_source(true);
        (0..20_000).for_each(|i| evil.say(Message::Ping(i)));
    });
}

/// Goal: the source never has more entries open than the sink allowed, and needs no more than that.
#[test]
fn the_window_of_entries_is_kept() {
    let bench = Bench::new();
    let limit = 3000;
    for i in 0..6000 {
        fs::write(bench.src().join(i.to_string()), b"").unwrap();
    }
    let (near, far) = link_pairs(1).into_iter().unzip();
    let source = start_source(near, source_request(&[contents(&bench.src())]));
    let mut evil = Evil::new(far);
    let mut said = hello();
    said.limits.entries = limit;
    evil.say(Message::Hello(said));
    evil.until(|message| matches!(message, Message::Sources { .. }).then_some(()));
    evil.say(Message::Destination { wait: true, rename: None, epoch: 1, resumed: false });
    let mut open = Vec::new();
    let mut total = 0;
    loop {
        let list = evil.until(|m| match m {
            Message::Announce(list) => Some(Some(list.clone())),
            Message::End(_) => Some(None),
            _ => None,
        });
        let Some(Some(list)) = list else { break };
        total += list.len();
        open.extend(list);
        assert!(open.len() <= limit as usize, "{} entries are open", open.len());
        if open.len() < limit as usize && total < 6000 {
            continue;
        }
        let states = open.drain(..).map(|entry| (entry.id, entry.generation, FileState::Unchanged));
        let states: Vec<_> = states.collect();
        for part in states.chunks(1000) {
            evil.say(Message::FileStates(part.to_vec()));
        }
    }
    assert_eq!(total, 6000);
    evil.say(Message::Complete);
    drop(evil);
    let report = finish("window", source);
    assert_eq!(report.end, SessionEnd::Complete);
    assert_eq!(report.tally.unchanged, 6000);
}

/// Goal: a sink cannot make a copy count as done by answering as in a dry run.
/// Method: a file that is answered with a plan.
#[test]
fn a_sink_cannot_plan_in_a_copy() {
    let bench = Bench::new();
    fs::write(bench.src().join("f"), bytes(1, 1000)).unwrap();
    let (near, far) = link_pairs(1).into_iter().unzip();
    let source = start_source(near, source_request(&[contents(&bench.src())]));
    let mut evil = Evil::new(far);
    evil.greet_source(true);
    let file = evil.announced(1).remove(0);
    evil.say(Message::FileStates(vec![(file.id, file.generation, FileState::Planned(Change::NEW))]));
    evil.say(Message::Complete);
    drop(evil);
    let report = finish("the source", source);
    assert!(matches!(report.end, SessionEnd::Failed(_)), "{:?}", report.end);
    assert_eq!((report.tally.files, report.tally.bytes), (0, 0));
    bench.check("a plan in a copy");
}

/// Goal: a walk that ends because the copy is to stop is no broken one: the session ends as stopped.
/// Method: the walk is held where it looks at its first file, until the source has said that it stops; the
/// sink answers only after the source had many turns to see the walk's end.
#[test]
fn a_stop_during_the_walk_is_no_failure() {
    let bench = Bench::new();
    fs::write(bench.src().join("f"), bytes(1, 1000)).unwrap();
    let (near, far) = link_pairs(1).into_iter().unzip();
    let (release, held) = crossbeam_channel::bounded::<()>(0);
    let (reach, reached) = crossbeam_channel::unbounded();
    let mut request = source_request(&[contents(&bench.src())]);
    let clock = request.clock.clone();
    request.clock = Arc::new(move || {
        if std::thread::current().name() == Some("haul-walk") {
            let _ = reach.send(());
            // Over when the test drops its end.
            let _ = held.recv();
        }
        clock()
    });
    let watch = Watch::silent();
    let handle = watch.handle.clone();
    let source = spawn_end("source", move || source::run(links_of(near), &request, &watch));
    let mut evil = Evil::new(far);
    evil.greet_source(true);
    // A stop before that ends the set-up, not the walk.
    reached.recv_timeout(std::time::Duration::from_secs(60)).expect("it walks");
    handle.stop();
    evil.until(|message| matches!(message, Message::Stop { .. }).then_some(())).expect("it stops");
    drop(release);
    for turn in 0..5000 {
        evil.say(Message::Ping(turn));
        if evil.until(|message| (*message == Message::Pong(turn)).then_some(())).is_none() {
            break;
        }
    }
    evil.say(Message::Stopped);
    drop(evil);
    let report = finish("a stop during the walk", source);
    assert_eq!(report.end, SessionEnd::Stopped);
    bench.check("a stop during the walk");
}
