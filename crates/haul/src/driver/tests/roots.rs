//! Many sources: more than one message holds, and more than an end keeps.

use std::fs;
use std::os::unix::ffi::OsStrExt;

use haul_core::transfer::SessionEnd;
use haul_core::wire::{Capability, Hello, Message, ROOTS_MAX, ROOTS_PART_MAX, SourceRoot, capability};

use super::evil::*;
use super::{Bench, Place, finish, local_pairs, sink_request, source_request, start_sink, start_source};

/// Goal: as many sources as a command line holds are copied, whatever their names are; the near end that
/// receives finds that they are what was typed.
/// Method: some more sources than a message holds, with the longest names there are, typed one by one.
#[test]
fn more_sources_than_a_message_holds_are_copied() {
    let bench = Bench::new();
    let names: Vec<String> = (0..ROOTS_PART_MAX + 200).map(|i| format!("{i:0255}")).collect();
    let mut sources = Vec::new();
    for (i, name) in names.iter().enumerate() {
        let path = bench.src().join(name);
        fs::write(&path, &i.to_le_bytes()[..i % 9]).unwrap();
        sources.push(path);
    }
    let (near, far) = local_pairs(2).into_iter().unzip();
    let request = source_request(&sources);
    let typed = sources.iter().map(|path| Place::file(path.as_os_str().as_bytes())).collect();
    let asked = Some((typed, super::super::policy(&request.options)));
    let source = start_source(near, request);
    let sink = start_sink(far, super::SinkRequest { asked, ..sink_request(&bench.dst()) });
    let (source, sink) = (finish("the source", source), finish("the sink", sink));
    assert_eq!((source.end, sink.end), (SessionEnd::Complete, SessionEnd::Complete));
    assert_eq!((source.tally.files, source.tally.failed), (names.len() as u64, 0));
    bench.same();
    bench.check("many sources");
}

/// Goal: a sink keeps no more names than it says, and takes parts from nobody who did not say that they come.
#[test]
fn sources_without_end_are_refused() {
    let root = |i: usize| SourceRoot::Named { name: name(&format!("f{i}")), is_dir: false };
    let part = |from: usize| Message::SourceRoots((from..from + ROOTS_PART_MAX).map(root).collect());
    let in_parts = || {
        let capability = Capability { kind: capability::SOURCE_ROOTS, required: true, value: Box::default() };
        Hello { capabilities: vec![capability], ..hello() }
    };
    let endless: Vec<Message> = (0..=ROOTS_MAX / ROOTS_PART_MAX).map(|n| part(n * ROOTS_PART_MAX)).collect();
    let empty = vec![Message::SourceRoots(Vec::new()), sources(vec![all()])];
    for (case, hello, said, refusal) in [
        ("endless", in_parts(), endless, "more than 65536 sources"),
        ("unasked", hello(), vec![part(0)], "SOURCE_ROOTS came where"),
        ("empty", in_parts(), empty, "SOURCE_ROOTS came where"),
    ] {
        let bench = Bench::new();
        let (near, far) = local_pairs(1).into_iter().unzip();
        let sink = start_sink(near, sink_request(&bench.dst()));
        let mut evil = Evil::new(far);
        evil.say(Message::Hello(hello));
        said.into_iter().for_each(|message| evil.say(message));
        let report = finish(case, sink);
        let text = super::failure(&report).unwrap_or_else(|| panic!("{case}: {:?}", report.end));
        assert!(text.contains(refusal), "{case}: {text}");
        assert!(fs::read_dir(bench.dst()).unwrap().next().is_none(), "{case}: something was made");
        bench.check(case);
    }
}
