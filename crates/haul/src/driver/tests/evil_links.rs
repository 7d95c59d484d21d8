//! An evil source that sends links, against a sink where links that stand there are followed, or where none
//! is made that leads out.

use std::collections::HashMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use haul_core::ids::FileId;
use haul_core::wire::{Announced, Message, Outcome};

use super::super::sink::SinkRequest;
use super::evil::*;
use super::{Bench, finish, link_pairs, sink_request, start_sink};
use haul_storage::manners::LinksThere;

/// One session in which these are announced, the first before the others are; how each ended. What is in
/// `files` is sent when the sink asked for it.
fn session(
    bench: &Bench,
    links: LinksThere,
    first: Vec<Announced>,
    then: Vec<Announced>,
    files: &[(u64, &[u8])],
) -> HashMap<FileId, Result<(), String>> {
    let (near, far) = link_pairs(2).into_iter().unzip();
    let sink = start_sink(near, SinkRequest { links, ..sink_request(&bench.dst()) });
    let mut evil = Evil::new(far);
    evil.greet_sink();
    let mut ends = HashMap::new();
    for entries in [first, then] {
        let wanted: Vec<FileId> = entries
            .iter()
            .filter(|entry| !matches!(entry.kind, haul_core::entry::EntryKind::Dir { .. }))
            .map(|entry| entry.id)
            .collect();
        evil.say(Message::Announce(entries));
        while !wanted.iter().all(|id| ends.contains_key(id)) {
            match evil.hear().expect("the sink goes on") {
                Message::FileStates(states) => {
                    for (id, ..) in states {
                        if let Some((id, data)) = files.iter().find(|(known, _)| FileId(*known) == id) {
                            evil.data(&[RawEntry::whole(*id, data)], data);
                        }
                    }
                }
                Message::Done(items) => ends.extend(items.into_iter().map(|item| {
                    let end = match item.outcome {
                        Outcome::Failed(failure) => Err(failure.text.to_string()),
                        _ => Ok(()),
                    };
                    (item.id, end)
                })),
                Message::Abort(failure) => panic!("the session ended: {failure:?}"),
                _ => {}
            }
        }
    }
    drop(evil);
    finish("links", sink);
    ends
}

/// Goal: where links that stand there are followed, nothing is written through one that the source sent, nor
/// through one that leads through such a one; what stood there is followed.
/// Method: a source that sends a link and then a directory of the same name with a file in it; one of the
/// name of a link that stands there and leads through the one that came; an honest one.
#[test]
fn links_that_came_are_not_written_through() {
    let bench = Bench::new();
    fs::create_dir(bench.dst().join("there")).unwrap();
    symlink("there", bench.dst().join("stood")).unwrap();
    symlink("came/deep", bench.dst().join("through")).unwrap();
    let outside = bench.outside();
    let first = vec![link(1, 0, "came", outside.as_os_str().as_bytes())];
    let then = vec![
        dir(2, 0, "came"),
        file(3, 2, "f", 3),
        dir(4, 0, "through"),
        file(5, 4, "g", 3),
        dir(6, 0, "stood"),
        file(7, 6, "h", 3),
    ];
    let links = LinksThere { keep: true, ..LinksThere::default() };
    let ends = session(&bench, links, first, then, &[(3, b"abc"), (5, b"def"), (7, b"ghi")]);
    bench.check("links that came");
    assert_eq!((&ends[&FileId(1)], &ends[&FileId(7)]), (&Ok(()), &Ok(())));
    for id in [3, 5] {
        let why = ends[&FileId(id)].as_ref().expect_err("it goes nowhere");
        assert!(why.contains("came with this copy"), "{why}");
    }
    assert_eq!(fs::read(bench.dst().join("there/h")).unwrap(), b"ghi");
    assert!(fs::symlink_metadata(bench.dst().join("stood")).unwrap().is_symlink());
}

/// Goal: where links that lead out are left out, a source that sends them all the same has none made.
#[test]
fn links_that_lead_out_are_not_made() {
    let bench = Bench::new();
    fs::create_dir(bench.dst().join("d")).unwrap();
    let links = LinksThere { safe: true, ..LinksThere::default() };
    let entries = vec![
        link(1, 0, "whole", b"/etc"),
        link(2, 0, "up", b"../outside"),
        dir(3, 0, "d"),
        link(4, 3, "within", b"../there"),
        link(5, 3, "out", b"../../outside"),
    ];
    let ends = session(&bench, links, entries, Vec::new(), &[]);
    bench.check("links that lead out");
    for id in [1, 2, 5] {
        let why = ends[&FileId(id)].as_ref().expect_err("it leads out");
        assert!(why.contains("`safe_links`"), "{why}");
    }
    assert_eq!(ends[&FileId(4)], Ok(()));
    for name in ["whole", "up", "d/out"] {
        assert!(fs::symlink_metadata(bench.dst().join(name)).is_err(), "{name}");
    }
}
