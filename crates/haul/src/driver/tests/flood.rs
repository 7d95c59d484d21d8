//! A peer that talks without end: what it says is taken in turn, and the session goes on behind it.

use std::fs;

use haul_core::transfer::SessionEnd;
use haul_core::wire::{EndReport, FileState, Message, Totals};

use super::super::{Watch, dry};
use super::evil::*;
use super::{
    Bench, bytes, contents, finish, link_pairs, links_of, sink_request, source_request, spawn_end,
    start_sink, start_source,
};
use haul_transport::stream::WAITING_MAX;

/// More than may wait, of what needs no answer.
fn flood(evil: &mut Evil) {
    for n in 0..3 * WAITING_MAX {
        evil.say(Message::Notice { text: format!("waiting for {n}").into() });
    }
}

/// Goal: a sink hears every word of a source that floods it, before the set-up, in the middle and at the end.
/// Method: floods between the words of a session, which ends well only if what comes behind each was heard.
#[test]
fn a_sink_outlives_floods() {
    let bench = Bench::new();
    let (near, far) = link_pairs(1).into_iter().unzip();
    let sink = start_sink(near, sink_request(&bench.dst()));
    let mut evil = Evil::new(far);
    flood(&mut evil);
    evil.greet_sink();
    flood(&mut evil);
    evil.say(Message::End(Totals::default()));
    evil.until(|message| (*message == Message::Complete).then_some(())).expect("it is complete");
    flood(&mut evil);
    evil.say(Message::Report(Box::new(EndReport { cpu: 5, ..EndReport::default() })));
    let report = finish("the sink", sink);
    assert_eq!((report.end, report.far.map(|far| far.cpu)), (SessionEnd::Complete, Some(5)));
    bench.check("floods of a source");
}

/// Goal: the same of a source and its sink.
#[test]
fn a_source_outlives_floods() {
    let bench = Bench::new();
    fs::write(bench.src().join("f"), bytes(1, 1000)).unwrap();
    let (near, far) = link_pairs(1).into_iter().unzip();
    let source = start_source(near, source_request(&[contents(&bench.src())]));
    let mut evil = Evil::new(far);
    flood(&mut evil);
    evil.greet_source(true);
    flood(&mut evil);
    let file = evil.announced(1).remove(0);
    evil.say(Message::FileStates(vec![(file.id, file.generation, FileState::Skipped)]));
    flood(&mut evil);
    evil.say(Message::Complete);
    flood(&mut evil);
    evil.say(Message::Report(Box::new(EndReport { cpu: 5, ..EndReport::default() })));
    let report = finish("the source", source);
    assert_eq!((report.end, report.far.map(|far| far.cpu)), (SessionEnd::Complete, Some(5)));
    bench.check("floods of a sink");
}

/// Goal: the same of a dry run.
#[test]
fn a_dry_run_outlives_floods() {
    let (near, far) = link_pairs(1).into_iter().unzip();
    let bench = Bench::new();
    let request = sink_request(&bench.dst());
    let dry = spawn_end("dry", move || dry::run(links_of(near), &request, &Watch::silent()));
    let mut evil = Evil::new(far);
    flood(&mut evil);
    evil.say(Message::Hello(hello()));
    flood(&mut evil);
    evil.say(sources(vec![all()]));
    flood(&mut evil);
    evil.say(Message::End(Totals::default()));
    evil.until(|message| (*message == Message::Complete).then_some(())).expect("it is complete");
    flood(&mut evil);
    evil.say(Message::Report(Box::new(EndReport { cpu: 5, ..EndReport::default() })));
    let report = finish("the dry run", dry);
    assert_eq!((report.end, report.far.map(|far| far.cpu)), (SessionEnd::Complete, Some(5)));
}
