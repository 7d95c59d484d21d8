//! Modes and owners that the sink gives in the place of others, with ends that know nothing of it.

use std::fs;

use haul_core::wire::{Message, capability};

use super::evil::*;
use super::{
    Bench, SinkRequest, finish, local_pairs, sink_request, source_request, start_sink, start_source,
};
use crate::options::{Chmod, Given, Options, OwnerMap};

/// Goal: a sink of an earlier version, which would give entries what they have at the source, refuses the
/// session: such a source has it know; no other source asks for that.
#[test]
fn a_sink_has_to_know() {
    let chmod = || Options { chmod: Some(Chmod::parse("go=", 0).expect("modes")), ..Options::default() };
    let map = || Options {
        archive: true,
        usermap: Some(OwnerMap::parse("1:2").expect("a map")),
        ..Options::default()
    };
    for (options, asks) in [(Options::default(), false), (chmod(), true), (map(), true)] {
        let bench = Bench::new();
        let file = bench.src().join("f");
        fs::write(&file, "f").expect("write");
        let mut request = source_request(&[file]);
        let Options { chmod, usermap, archive, .. } = options;
        request.options = Options { chmod, usermap, archive, ..request.options };
        let (near, far) = local_pairs(1).into_iter().unzip();
        let source = start_source(near, request);
        let mut evil = Evil::new(far);
        let hello = evil.until(|message| match message {
            Message::Hello(hello) => Some(hello.clone()),
            _ => None,
        });
        let all = hello.expect("it says hello").capabilities;
        let asked = all.iter().find(|capability| capability.kind == capability::REMADE);
        assert_eq!(asked.map(|capability| capability.required), asks.then_some(true));
        drop(evil);
        finish("the source", source);
        bench.check("a sink that has to know");
    }
}

/// Goal: where it depends on what owners are called, a source that may not say so is refused before anything
/// is made; where numbers do, it is not.
#[test]
fn a_source_has_to_tell_names() {
    for (text, refused) in [("daemon:2", true), (":2", true), ("1-9:2,*:3", false)] {
        let bench = Bench::new();
        let given = Given { users: Some(OwnerMap::parse(text).expect("a map")), ..Given::default() };
        let (near, far) = local_pairs(1).into_iter().unzip();
        let sink = start_sink(near, SinkRequest { given, ..sink_request(&bench.dst()) });
        let mut evil = Evil::new(far);
        evil.say(Message::Hello(hello()));
        evil.say(sources(vec![all()]));
        if !refused {
            evil.until(|message| matches!(message, Message::Grant { .. }).then_some(())).expect("it goes on");
        }
        drop(evil);
        let report = finish(text, sink);
        let said = super::failure(&report).unwrap_or_default();
        assert_eq!(said.contains("what owners are called"), refused, "{text}: {said}");
        bench.check(text);
    }
}
