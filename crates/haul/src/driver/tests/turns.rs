//! Turns: what an end must have said before it has heard anything that it does not depend on. Each round trip
//! that creeps in shows as an end that waits for a word which the other, played by hand, keeps back.

use std::fs;

use haul_core::transfer::SessionEnd;
use haul_core::wire::{Message, Totals};

use super::evil::*;
use super::{
    Bench, bytes, contents, finish, link_pairs, sink_request, source_request, start_sink, start_source,
};

/// Goal: a source says what it has before it has heard a word.
#[test]
fn the_source_speaks_first() {
    let bench = Bench::new();
    fs::write(bench.src().join("one"), bytes(1, 1000)).unwrap();
    let (near, far) = link_pairs(1).into_iter().unzip();
    let source = start_source(near, source_request(&[contents(&bench.src())]));
    let mut sink = Evil::new(far);
    assert!(matches!(sink.hear(), Some(Message::Hello(_))));
    assert!(matches!(sink.hear(), Some(Message::Sources { .. })));
    drop(sink);
    finish("the source", source);
    bench.check("the source");
}

/// Goal: a sink says its hello before it has heard a word; where the sources are is answered with the first
/// grant; and its last words come together, when nothing of the session is left at the destination.
#[test]
fn the_sink_answers_all_that_it_can() {
    let bench = Bench::new();
    let (near, far) = link_pairs(1).into_iter().unzip();
    let sink = start_sink(near, sink_request(&bench.dst()));
    let mut source = Evil::new(far);
    assert!(matches!(source.hear(), Some(Message::Hello(_))));
    source.say(Message::Hello(hello()));
    source.say(sources(vec![all()]));
    assert!(matches!(source.hear(), Some(Message::Destination { .. })));
    assert!(matches!(source.hear(), Some(Message::Grant { total: 1.., .. })));
    source.say(Message::End(Totals::default()));
    source.until(|message| (*message == Message::Complete).then_some(())).expect("it is complete");
    let left: Vec<_> = fs::read_dir(bench.dst()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(matches!(source.hear(), Some(Message::Report(_))), "before it has heard ours");
    source.say(Message::Report(Box::default()));
    assert_eq!(finish("the sink", sink).end, SessionEnd::Complete);
}
