//! An evil source against the real sink driver.

use std::fs;

use haul_core::entry::EntryKind;
use haul_core::ids::{DirId, FileId, Generation, StreamId};
use haul_core::transfer::SessionEnd;
use haul_core::wire::{Capability, Message, SourceRoot, Totals, kind};

use super::evil::*;
use super::{Bench, MEMORY, Report, bytes, failure, finish, link_pairs, sink_request, start_sink};

/// What an evil source does, and a part of the text with which the sink must refuse it. Empty: the sink
/// may end as it likes.
pub(super) struct Case {
    name: &'static str,
    refusal: &'static str,
    script: Box<dyn FnOnce(&mut Evil)>,
}

pub(super) fn case(
    name: &'static str,
    refusal: &'static str,
    script: impl FnOnce(&mut Evil) + 'static,
) -> Case {
    Case { name, refusal, script: Box::new(script) }
}

/// One session: the script, then, if the sink did not give up, the death of the source.
pub(super) fn session(bench: &Bench, name: &str, script: impl FnOnce(&mut Evil)) -> Report {
    let (near, far) = link_pairs(2).into_iter().unzip();
    let sink = start_sink(near, sink_request(&bench.dst()));
    let mut evil = Evil::new(far);
    script(&mut evil);
    drop(evil);
    let report = finish(name, sink);
    bench.check(name);
    report
}

/// Runs the cases, each with a destination of its own in which a link to the outside stands.
pub(super) fn all_refused(cases: Vec<Case>) {
    for Case { name, refusal, script } in cases {
        let bench = Bench::new();
        std::os::unix::fs::symlink(bench.outside(), bench.dst().join("planted")).unwrap();
        let report = session(&bench, name, |evil| {
            script(evil);
            if !refusal.is_empty() {
                // It refuses by itself, not only because the source died.
                evil.until(|_| None::<()>);
            }
        });
        let text = failure(&report).unwrap_or_else(|| panic!("{name}: ended as {:?}", report.end));
        assert!(text.contains(refusal), "{name}: refused with {text:?}, not {refusal:?}");
    }
}

pub(super) fn announce(evil: &mut Evil, entries: Vec<haul_core::wire::Announced>) {
    evil.say(Message::Announce(entries));
}

pub(super) fn end(evil: &mut Evil) {
    evil.say(Message::End(Totals::default()));
}

/// Waits until the sink answered a ping: all said before was taken up.
pub(super) fn settle(evil: &mut Evil) {
    evil.say(Message::Ping(77));
    evil.until(|message| (*message == Message::Pong(77)).then_some(()));
}

/// Waits until a frame that was sent before must have been taken up: a stream's end is told after its frames.
pub(super) fn settle_data(evil: &mut Evil) {
    evil.close_data(0);
    evil.until(|message| matches!(message, Message::StreamClosed { .. }).then_some(()));
}

/// Waits until the state of a file was told.
fn state(evil: &mut Evil) {
    evil.until(|message| matches!(message, Message::FileStates(_)).then_some(()));
}

/// Goal: what does not fit at the start of a session ends it with a sentence, and nothing is made.
#[test]
fn wrong_handshakes_are_refused() {
    let hello_with = |change: fn(&mut haul_core::wire::Hello)| {
        move |evil: &mut Evil| {
            let mut said = hello();
            change(&mut said);
            evil.say(Message::Hello(said));
        }
    };
    all_refused(vec![
        case("other session", "another session", hello_with(|h| h.session = [8; 16])),
        case("other versions", "version", hello_with(|h| (h.version_min, h.version_max) = (7, 9))),
        case(
            "required capability",
            "capability",
            hello_with(|h| {
                h.capabilities.push(Capability { kind: 999, required: true, value: Box::default() })
            }),
        ),
        case("object length 0", "object length", hello_with(|h| h.limits.object_len = 0)),
        case("entries 0", "entries", hello_with(|h| h.limits.entries = 0)),
        case("entries 1", "entries", hello_with(|h| h.limits.entries = 1)),
        case("streams 0", "streams", hello_with(|h| h.limits.streams = 0)),
        case("no hello", "SOURCES came where", |evil| evil.say(sources(vec![all()]))),
        case("end first", "END came where", end),
        case("hello twice", "HELLO came where", |evil| {
            evil.say(Message::Hello(hello()));
            evil.say(Message::Hello(hello()));
        }),
        case("hello later", "only a sink sends", |evil| {
            evil.greet_sink();
            evil.say(Message::Hello(hello()));
        }),
        case("sources twice", "only a sink sends", |evil| {
            evil.greet_sink();
            evil.say(sources(vec![all()]));
        }),
        case("abort", "no", |evil| evil.say(Message::Abort(a_failure()))),
        case("root named '..'", "'.' or '..'", |evil| {
            evil.say(Message::Hello(hello()));
            evil.say_raw(kind::SOURCES, [&[32, 0, 1, 0, 2, 2][..], b".."].concat());
        }),
    ]);
}

/// Goal: a frame that cannot be decoded ends the session; nothing is allocated from its numbers.
#[test]
fn undecodable_frames_are_refused() {
    let spoilt = |name, refusal, spoil: fn(&mut RawFrame)| {
        case(name, refusal, move |evil| {
            evil.greet_sink();
            let mut frame = evil.raw(kind::PING, vec![0; 8]);
            spoil(&mut frame);
            evil.write(&frame.bytes());
        })
    };
    let named = |text: &'static [u8]| {
        move |evil: &mut Evil| {
            evil.greet_sink();
            evil.say_raw(kind::ANNOUNCE, announce_body(text));
        }
    };
    all_refused(vec![
        spoilt("4 GiB of control", "frame", |f| f.len = Some(u32::MAX)),
        spoilt("unknown kind", "frame", |f| f.kind = 0x7f),
        spoilt("data on control", "frame", |f| f.kind = kind::DATA),
        spoilt("join on control", "frame", |f| f.kind = kind::JOIN),
        spoilt("flags", "flags", |f| f.flags = 1),
        spoilt("other stream", "stream 3", |f| f.stream = 3),
        spoilt("reserved bytes", "reserved", |f| f.reserved = 1),
        spoilt("sequence ahead", "number", |f| f.seq += 1),
        spoilt("sequence behind", "number", |f| f.seq -= 1),
        spoilt("too short", "frame", |f| f.body.truncate(3)),
        spoilt("too long", "frame", |f| f.body.push(0)),
        case("name '..'", "'.' or '..'", named(b"..")),
        case("name '.'", "'.' or '..'", named(b".")),
        case("name with '/'", "'/' or NUL", named(b"a/../../x")),
        case("absolute name", "'/' or NUL", named(b"/etc")),
        case("name with NUL", "'/' or NUL", named(b"a\0b")),
        case("empty name", "bad frame", named(b"")),
        case("a stale epoch is dropped", "closed the control stream", |evil| {
            evil.greet_sink();
            let mut frame = evil.raw(kind::ANNOUNCE, announce_body(b"old"));
            evil.seq -= 1;
            frame.epoch = 0;
            evil.write(&frame.bytes());
            settle(evil);
            *evil = Evil::new(link_pairs(2).into_iter().map(|(near, _)| near).collect());
        }),
    ]);
}

/// The body of an announcement of one directory with any name.
fn announce_body(name: &[u8]) -> Vec<u8> {
    let mut body = vec![1, 0];
    body.extend(1u64.to_le_bytes());
    body.extend(0u32.to_le_bytes());
    body.extend(0u64.to_le_bytes());
    body.extend(0o755u32.to_le_bytes());
    body.extend([0; 8]);
    body.extend(1_000_000_000i64.to_le_bytes());
    body.extend(0u32.to_le_bytes());
    body.push(1);
    body.push(name.len() as u8);
    body.extend(name);
    // No version, and no extra fields.
    body.extend([0, 0, 0]);
    body
}

/// Goal: an announcement that breaks the order of a tree is refused.
#[test]
fn wrong_announcements_are_refused() {
    let said = |name, refusal, lists: Vec<Vec<haul_core::wire::Announced>>| {
        case(name, refusal, move |evil: &mut Evil| {
            evil.greet_sink();
            lists.into_iter().for_each(|list| announce(evil, list));
        })
    };
    let not_open = "directory that is not open";
    let deep = (1..1100).map(|i| vec![dir(i, i - 1, "d")]).collect();
    let many =
        (0..33).map(|i| (1..1025).map(|n| dir(i * 1024 + n, 0, &format!("{i}.{n}"))).collect()).collect();
    all_refused(vec![
        said("parent never announced", not_open, vec![vec![file(1, 99, "f", 1)]]),
        said("parent is a file", not_open, vec![vec![file(1, 0, "f", 1)], vec![file(2, 1, "g", 1)]]),
        said("parent is a link", not_open, vec![vec![link(1, 0, "l", b"../outside"), file(2, 1, "g", 1)]]),
        said("its own parent", not_open, vec![vec![dir(1, 1, "d")]]),
        said("id twice", "twice, or out of order", vec![vec![dir(1, 0, "a"), dir(1, 0, "b")]]),
        said("ids backwards", "twice, or out of order", vec![vec![dir(2, 0, "a"), dir(1, 0, "b")]]),
        said("too deep", "deeper", deep),
        said("too many", "more entries", many),
        case("parent ended", not_open, |evil| {
            evil.greet_sink();
            announce(evil, vec![dir(1, 0, "d")]);
            evil.say(Message::DirEnd(vec![DirId(1)]));
            announce(evil, vec![file(2, 1, "f", 1)]);
        }),
        case("parent ended, something in it is open", not_open, |evil| {
            evil.greet_sink();
            announce(evil, vec![dir(1, 0, "d"), file(2, 1, "f", 1)]);
            evil.say(Message::DirEnd(vec![DirId(1)]));
            announce(evil, vec![file(3, 1, "g", 1)]);
        }),
        case("ended twice", "not open", |evil| {
            evil.greet_sink();
            announce(evil, vec![dir(1, 0, "d"), file(2, 1, "f", 1)]);
            evil.say(Message::DirEnd(vec![DirId(1), DirId(1)]));
        }),
        case("end of what was never announced", "not open", |evil| {
            evil.greet_sink();
            evil.say(Message::DirEnd(vec![DirId(9)]));
        }),
        case("after the end", not_open, |evil| {
            evil.greet_sink();
            announce(evil, vec![file(1, 0, "f", 1)]);
            end(evil);
            announce(evil, vec![file(2, 0, "g", 1)]);
        }),
        case("end twice", "END", |evil| {
            evil.greet_sink();
            announce(evil, vec![file(1, 0, "f", 1)]);
            end(evil);
            end(evil);
        }),
        case("end while a directory is open", "END", |evil| {
            evil.greet_sink();
            announce(evil, vec![dir(1, 0, "d")]);
            end(evil);
        }),
        case("again in another directory", "announced again", |evil| {
            evil.greet_sink();
            announce(evil, vec![dir(1, 0, "d"), file(2, 1, "f", 1)]);
            evil.say(Message::DirEnd(vec![DirId(1)]));
            state(evil);
            withdraw(evil, 2, 0, true);
            announce(evil, vec![again(file(2, 0, "f", 1), 1)]);
        }),
        case("again as a link", "announced again", |evil| {
            evil.greet_sink();
            announce(evil, vec![file(1, 0, "f", 1)]);
            state(evil);
            withdraw(evil, 1, 0, true);
            announce(evil, vec![again(link(1, 0, "f", b"/"), 1)]);
        }),
        case("again under another name", "announced again", |evil| {
            evil.greet_sink();
            announce(evil, vec![file(1, 0, "f", 1)]);
            state(evil);
            withdraw(evil, 1, 0, true);
            announce(evil, vec![again(file(1, 0, "g", 1), 1)]);
        }),
        // Its name says that the look at it ends only when it is let go: else its state might be told first,
        // and then it is legal.
        case("withdrawn before its state was told", "withdrawn", |evil| {
            let look = haul_storage::owed::Held::new("hold~split~state");
            evil.greet_sink();
            evil.say(Message::Announce(vec![file(1, 0, "hold~split~state", 1)]));
            withdraw(evil, 1, 0, true);
            evil.until(|_| None::<()>);
            drop(look);
            announce(evil, vec![again(file(1, 0, "hold~split~state", 1), 1)]);
        }),
        case("sizes that overflow", "closed the control stream", |evil| {
            evil.greet_sink();
            announce(evil, (1..9).map(|i| file(i, 0, &i.to_string(), i64::MAX as u64)).collect());
            let mut told = 0;
            evil.until(|message| {
                told += if let Message::FileStates(list) = message { list.len() } else { 0 };
                (told == 8).then_some(())
            });
            (1..9).for_each(|i| withdraw(evil, i, 0, false));
            settle(evil);
            hang_up(evil);
        }),
    ]);
}

pub(super) fn withdraw(evil: &mut Evil, id: u64, generation: u32, retry: bool) {
    let (id, generation) = (FileId(id), Generation(generation));
    evil.say(Message::Withdraw { id, generation, retry, failure: None });
}

/// The source is gone at once.
fn hang_up(evil: &mut Evil) {
    *evil = Evil::new(link_pairs(2).into_iter().map(|(near, _)| near).collect());
}

/// Goal: a name that the sources did not have is not written, also when a single file is asked for.
#[test]
fn names_that_were_not_asked_for_are_refused() {
    let roots = |list: Vec<SourceRoot>, bad: haul_core::wire::Announced| {
        move |evil: &mut Evil| {
            evil.say(Message::Hello(hello()));
            evil.say(sources(list));
            evil.until(|message| matches!(message, Message::Destination { .. }).then_some(()));
            announce(evil, vec![bad]);
        }
    };
    let one = |is_dir| vec![SourceRoot::Named { name: name("report"), is_dir }];
    let refusal = "not among the sources";
    all_refused(vec![
        case("another file", refusal, roots(one(false), file(1, 0, ".bashrc", 1))),
        case("another directory", refusal, roots(one(true), dir(1, 0, ".ssh"))),
        case("another link", refusal, roots(one(true), link(1, 0, "x", b"/"))),
    ]);
    // The destination is the file: its directory is the root.
    let bench = Bench::new();
    let (near, far) = link_pairs(1).into_iter().unzip();
    let sink = start_sink(near, sink_request(&bench.dst().join("new")));
    let mut evil = Evil::new(far);
    roots(one(false), file(1, 0, ".bashrc", 1))(&mut evil);
    evil.until(|_| None::<()>);
    drop(evil);
    let report = finish("rename", sink);
    assert!(failure(&report).unwrap().contains(refusal), "{:?}", report.end);
}

/// Goal: data that does not fit what was announced ends the session or the stream; no wrong byte is
/// published.
#[test]
fn wrong_data_is_refused() {
    const OBJECT: u64 = 64 * 1024;
    let size = 3 * OBJECT + 100;
    let spoilt = |name, refusal, spoil: fn(&mut RawEntry, &mut Vec<u8>)| {
        case(name, refusal, move |evil| {
            evil.greet_sink();
            announce(evil, vec![file(1, 0, "f", size)]);
            let mut data = content(1, size as usize)[..OBJECT as usize].to_vec();
            let mut entry = RawEntry::part(1, 0, &data, false);
            spoil(&mut entry, &mut data);
            evil.data(&[entry], &data);
            settle(evil);
        })
    };
    let part = |id, offset: u64, len: u64, tail| {
        let data = bytes(3, len as usize);
        (RawEntry::part(id, offset, &data, tail), data)
    };
    let unfit = "does not fit its file";
    all_refused(vec![
        spoilt("beyond the end", unfit, |e, d| *e = RawEntry::part(1, 4 * OBJECT, d, false)),
        spoilt("across the end", unfit, |e, d| *e = RawEntry::part(1, 3 * OBJECT, d, false)),
        spoilt("misaligned", unfit, |e, d| *e = RawEntry::part(1, 1024, d, false)),
        spoilt("half an object", unfit, |e, d| {
            d.truncate(OBJECT as usize / 2);
            *e = RawEntry::part(1, 0, d, false);
        }),
        spoilt("a tail that is none", unfit, |e, d| *e = RawEntry::part(1, OBJECT, d, true)),
        case("of a target that nobody spoke of", "was not to know", move |evil| {
            evil.greet_sink_as(hello_targets());
            announce(evil, vec![file(1, 0, "f", size)]);
            let data = content(1, size as usize)[..OBJECT as usize].to_vec();
            let mut body = data_body(&[RawEntry::part(1, 0, &data, false)], &data);
            body[2] = 1;
            let frame = evil.data_frame(body);
            evil.write_data(0, &frame.bytes());
            settle(evil);
        }),
        spoilt("a whole that is none", unfit, |e, d| *e = RawEntry::whole(1, d)),
        case("a whole over parts", unfit, move |evil| {
            evil.greet_sink();
            announce(evil, vec![file(1, 0, "f", size)]);
            let data = content(1, size as usize);
            evil.data(&[RawEntry::part(1, 0, &data[..OBJECT as usize], false)], &data[..OBJECT as usize]);
            evil.data(&[RawEntry::whole(1, &data)], &data);
        }),
        case("a whole over parts that are on media", unfit, move |evil| {
            evil.greet_sink();
            announce(evil, vec![file(1, 0, "f", size)]);
            let data = content(1, size as usize);
            evil.data(&[RawEntry::part(1, 0, &data[..OBJECT as usize], false)], &data[..OBJECT as usize]);
            evil.until(|message| matches!(message, Message::Durable { .. }).then_some(())).unwrap();
            evil.data(&[RawEntry::whole(1, &data)], &data);
        }),
        case("a whole of several objects", unfit, move |evil| {
            evil.greet_sink();
            announce(evil, vec![file(1, 0, "f", size)]);
            let data = content(1, size as usize);
            evil.data(&[RawEntry::whole(1, &data)], &data);
        }),
        // What would exhaust the receiver's buffers as well ends there: `transport_conformance.rs`.
        case("more than was granted", "more data than was granted", move |evil| {
            evil.greet_sink();
            announce(evil, vec![file(1, 0, "f", 1 << 40)]);
            // Nobody reads files that are not announced yet, so their buffers stay taken.
            for i in 0..MEMORY / OBJECT {
                let (entry, data) = part(9, i * OBJECT, OBJECT, false);
                evil.data(&[entry], &data);
            }
        }),
        case("empty frames without end", "granted", |evil| {
            evil.greet_sink();
            for _ in 0..4 * MEMORY / OBJECT {
                evil.data(&[RawEntry::whole(9, b"")], b"");
            }
        }),
        case("of a file that is never announced", "never announced", |evil| {
            evil.greet_sink();
            evil.data(&[RawEntry::whole(9, b"abc")], b"abc");
            // An end that is heard first is one of a session in which nothing was announced.
            settle_data(evil);
            end(evil);
        }),
        case("of an id that the announcements left out", "never announced", |evil| {
            evil.greet_sink();
            evil.data(&[RawEntry::whole(3, b"abc")], b"abc");
            // The sink took it up: so much credit comes back for the rest only.
            settle_data(evil);
            announce(evil, vec![file(9, 0, "f", 3)]);
            end(evil);
        }),
        case("wrong digests without end", "closed the control stream", move |evil| {
            evil.greet_sink();
            announce(evil, vec![file(1, 0, "f", 10)]);
            let mut asked = 0;
            loop {
                let mut entry = RawEntry::whole(1, &content(1, 10));
                entry.cvs[0][0] ^= 1;
                evil.data(&[entry], &content(1, 10));
                let answer = evil.until(|message| match message {
                    Message::Resend(_) => Some(false),
                    Message::Done(_) => Some(true),
                    _ => None,
                });
                asked += 1;
                match answer {
                    Some(true) => break,
                    Some(false) => assert!(asked < 1000, "asked for ever"),
                    None => panic!("the file fails, not the session"),
                }
            }
            hang_up(evil);
        }),
        case("a sealed file withdrawn", "a", |evil| {
            evil.greet_sink();
            announce(evil, vec![file(1, 0, "f", 3), file(2, 0, "g", 1 << 40)]);
            // Its state is told when it was looked up; then it is written and waits for its epoch.
            state(evil);
            evil.data(&[RawEntry::whole(1, b"abc")], b"abc");
            // Without more data an epoch stays open for a quarter of a second: this comes long before its
            // end.
            settle(evil);
            withdraw(evil, 1, 7, true);
            withdraw(evil, 1, 0, true);
            announce(evil, vec![again(file(1, 0, "f", 3), 1)]);
            evil.data(&[RawEntry { generation: 1, ..RawEntry::whole(1, b"abc") }], b"abc");
            state(evil);
            std::thread::yield_now();
            withdraw(evil, 1, 1, true);
            announce(evil, vec![file(1, 0, "f", 3)]);
        }),
    ]);
    // These end the data stream: the frame itself is refused.
    for (what, spoil) in [
        ("hole", (|e, _| e.flags |= HOLE) as fn(&mut RawEntry, &mut Vec<u8>)),
        ("digest kind", |e, _| e.digest = 9),
        ("unknown flag", |e, _| e.flags |= 0x80),
        ("no values", |e, _| e.cvs.clear()),
        ("many values", |e, _| e.cvs = vec![[1; 32]; 100]),
        ("payload too short", |_, d| d.truncate(100)),
        ("payload too long", |_, d| d.push(0)),
        ("overflow", |e, _| e.offset = u64::MAX - 10),
        ("64 GiB of object", |e, _| e.len = u32::MAX),
        ("sealed root of another place", |e, _| e.flags |= ROOT),
    ] {
        let bench = Bench::new();
        let report = session(&bench, what, |evil| {
            evil.greet_sink();
            announce(evil, vec![file(1, 0, "f", size)]);
            let mut data = content(1, size as usize)[OBJECT as usize..][..OBJECT as usize].to_vec();
            let mut entry = RawEntry::part(1, OBJECT, &data, false);
            spoil(&mut entry, &mut data);
            evil.data(&[entry], &data);
            let closed = |message: &Message| match message {
                Message::StreamClosed { stream: StreamId(1), frames: 0 } => Some(()),
                _ => None,
            };
            assert!(evil.until(closed).is_some(), "{what}: the stream is not closed");
        });
        assert!(failure(&report).is_some());
        assert!(!bench.dst().join("f").exists());
    }
}

/// Goal: frames that are merely odd do no harm: the session goes on and copies what is right.
/// Method: a session full of nonsense about unknown entries and streams, and one good file in it.
#[test]
fn nonsense_about_unknown_things_is_harmless() {
    let bench = Bench::new();
    let data = content(5, 300_000);
    let report = session(&bench, "nonsense", |evil| {
        evil.greet_sink();
        for stream in [2, 9, 900] {
            evil.say(Message::StreamClosed { stream: StreamId(stream), frames: 1 << 60 });
        }
        evil.say(Message::Sealed(vec![(FileId(4), Generation(0), 9)]));
        withdraw(evil, 4, 0, true);
        withdraw(evil, 4, 0, false);
        evil.say(Message::TargetHealth(vec![target_health(1)]));
        evil.say_raw(0xf0, vec![1, 2, 3]);
        announce(evil, vec![file(5, 0, "f", 300_000), link(6, 0, "l", b"f"), dir(7, 0, "d")]);
        // A wrong generation of a file, and a gap in the ids.
        // Once the file is known, or nobody could say that the gap stays one.
        settle(evil);
        for generation in [0, 9] {
            evil.data(&[RawEntry { generation, ..RawEntry::whole(3, b"xyz") }], b"xyz");
        }
        for i in 0..500 {
            evil.say(Message::Ping(i));
        }
        let mut at = 0;
        for part in data.chunks(64 * 1024) {
            let tail = at + part.len() == data.len();
            let mut entry = RawEntry::part(5, at as u64, part, tail);
            entry.flags |= SEALED;
            evil.data(&[entry.clone()], part);
            evil.data(&[entry], part);
            at += part.len();
        }
        evil.say(Message::Sealed(vec![(FileId(5), Generation(0), 0), (FileId(5), Generation(8), 7)]));
        evil.say(Message::DirEnd(vec![DirId(7)]));
        end(evil);
        assert!(evil.until(|m| (*m == Message::Complete).then_some(())).is_some());
        evil.say(Message::Report(Default::default()));
    });
    assert_eq!(report.end, SessionEnd::Complete);
    assert_eq!(fs::read(bench.dst().join("f")).unwrap(), data);
    let mut names: Vec<_> = fs::read_dir(bench.dst()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["d", "f", "l"]);
}

/// Goal: links, planted by the peer or there before, are never followed.
/// Method: every order of a link, a directory and a file of one name, up to three of them, with something put
/// inside each directory.
#[test]
fn links_are_never_followed() {
    let kinds = ["link", "dir", "file"];
    let mut orders = Vec::new();
    for a in kinds {
        orders.push(vec![a]);
        for b in kinds {
            orders.push(vec![a, b]);
            for c in kinds {
                orders.push(vec![a, b, c]);
            }
        }
    }
    for planted in [false, true] {
        for order in &orders {
            let bench = Bench::new();
            if planted {
                std::os::unix::fs::symlink(bench.outside(), bench.dst().join("x")).unwrap();
            }
            session(&bench, &format!("{planted} {order:?}"), |evil| {
                evil.greet_sink();
                let mut id = 0;
                for what in order {
                    id += 1;
                    match *what {
                        "link" => announce(evil, vec![link(id, 0, "x", b"../outside")]),
                        "dir" => {
                            announce(evil, vec![dir(id, 0, "x"), file(id + 1, id, "secret", 3)]);
                            announce(evil, vec![dir(id + 2, id, "deep"), link(id + 3, id, "link", b"/")]);
                            announce(evil, vec![file(id + 4, id + 2, "x", 3)]);
                            for file in [id + 1, id + 4] {
                                evil.data(&[RawEntry::whole(file, b"bad")], b"bad");
                            }
                            evil.say(Message::DirEnd(vec![DirId(id + 2), DirId(id)]));
                            id += 4;
                        }
                        _ => {
                            announce(evil, vec![file(id, 0, "x", 3)]);
                            evil.data(&[RawEntry::whole(id, b"bad")], b"bad");
                        }
                    }
                }
                end(evil);
                evil.until(|_| None::<()>);
            });
        }
    }
}

/// Goal: a source may die after any of its frames; the sink ends, and publishes nothing that is not whole.
#[test]
fn a_source_that_dies_anywhere_leaves_no_part() {
    let data = content(1, 150_000);
    for last in 0..14 {
        let bench = Bench::new();
        let steps: Vec<Box<dyn Fn(&mut Evil)>> = vec![
            Box::new(|evil| evil.say(Message::Hello(hello()))),
            Box::new(|evil| evil.say(sources(vec![all()]))),
            Box::new(|evil| {
                evil.until(|m| matches!(m, Message::Destination { .. }).then_some(()));
            }),
            Box::new(|evil| announce(evil, vec![dir(1, 0, "d")])),
            Box::new(|evil| announce(evil, vec![file(2, 1, "f", 150_000), file(3, 0, "g", 3)])),
            Box::new(|evil| evil.data(&[RawEntry::whole(3, b"abc")], b"abc")),
            Box::new(|evil| {
                let data = content(1, 150_000);
                evil.data(&[RawEntry::part(2, 0, &data[..65536], false)], &data[..65536])
            }),
            Box::new(|evil| {
                let data = content(1, 150_000);
                evil.data(&[RawEntry::part(2, 65536, &data[65536..131072], false)], &data[65536..131072])
            }),
            Box::new(|evil| {
                let frame = evil.data_frame(data_body(&[RawEntry::whole(9, b"abc")], b"abc"));
                evil.write_data(0, &frame.bytes()[..50]);
                evil.close_data(0);
            }),
            Box::new(|evil| {
                let data = content(1, 150_000);
                let body = data_body(&[RawEntry::part(2, 131072, &data[131072..], true)], &data[131072..]);
                let mut frame = evil.data_frame(body);
                (frame.stream, frame.seq) = (2, 1);
                evil.write_data(1, &frame.bytes());
            }),
            Box::new(|evil| evil.say(Message::Sealed(vec![(FileId(2), Generation(0), 0)]))),
            Box::new(|evil| evil.say(Message::DirEnd(vec![DirId(1)]))),
            Box::new(end),
            Box::new(|evil| {
                evil.until(|m| (*m == Message::Complete).then_some(()));
            }),
        ];
        let report = session(&bench, &format!("dies after {last}"), |evil| {
            steps.iter().take(last + 1).for_each(|step| step(evil));
        });
        assert_eq!(report.end == SessionEnd::Complete, last == 13, "step {last}: {:?}", report.end);
        match fs::read(bench.dst().join("d/f")) {
            Ok(found) => assert_eq!(found, data),
            Err(_) => assert!(last < 13),
        }
    }
}

/// Goal: announced kinds are what the wire says: a file's content never ends in a directory's place.
#[test]
fn a_file_over_a_directory_fails_and_removes_nothing() {
    let bench = Bench::new();
    fs::create_dir(bench.dst().join("x")).unwrap();
    fs::write(bench.dst().join("x/kept"), b"1").unwrap();
    session(&bench, "file over directory", |evil| {
        evil.greet_sink();
        let entry = file(1, 0, "x", 3);
        assert!(matches!(entry.kind, EntryKind::File { .. }));
        announce(evil, vec![entry, link(2, 0, "x", b"/")]);
        evil.data(&[RawEntry::whole(1, b"abc")], b"abc");
        end(evil);
        evil.until(|_| None::<()>);
    });
    assert_eq!(fs::read(bench.dst().join("x/kept")).unwrap(), b"1");
}
