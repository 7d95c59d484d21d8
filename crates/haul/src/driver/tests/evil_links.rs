//! An evil source that sends links, against a sink where links that stand there are followed, or where none
//! is made that leads out.

use std::collections::HashMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use haul_core::entry::EntryKind;
use haul_core::ids::FileId;
use haul_core::wire::{Announced, Capability, Hello, Message, Outcome, capability};

use super::super::sink::{self, SinkRequest};
use super::super::{Links, Protection, Watch};
use super::evil::*;
use super::{Bench, finish, link_pairs, links_of, sink_request, spawn_end};
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
    let (near, far): (Vec<_>, Vec<_>) = link_pairs(2).into_iter().unzip();
    let request = SinkRequest { links, ..sink_request(&bench.dst()) };
    let protection = Protection { hard_links: true, ..Protection::default() };
    let sink = spawn_end("sink", move || {
        sink::run(Links { protection, ..links_of(near) }, &request, &Watch::silent())
    });
    let mut evil = Evil::new(far);
    let hard_links = Capability { kind: capability::HARD_LINKS, required: true, value: Box::default() };
    evil.greet_sink_as(Hello { capabilities: vec![hard_links], ..hello() });
    let mut ends = HashMap::new();
    for entries in [first, then] {
        let wanted: Vec<FileId> = entries
            .iter()
            .filter(|entry| !matches!(entry.kind, EntryKind::Dir { .. }))
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

/// A link of which others of so many names may follow, and another name of an entry.
fn names(mut first: Announced, names: u32) -> Announced {
    first.extras.names = names;
    first
}

fn name_of(to: u64, mut entry: Announced) -> Announced {
    entry.kind = EntryKind::HardLink { to: FileId(to) };
    entry
}

/// Goal: a further name of a link that leads out from there is not given where such links are left out,
/// though the link is within at its first name; one that is within at both is.
/// Method: a source that sends a link deep in the tree, and names of it at the top and beside it; the same
/// where the link, and the name, stood there before.
#[test]
fn names_of_links_that_lead_out_are_not_given() {
    for stands in ["nothing", "link", "name"] {
        let bench = Bench::new();
        fs::create_dir_all(bench.dst().join("d1/d2")).unwrap();
        if stands != "nothing" {
            symlink("../../outside", bench.dst().join("d1/d2/l")).unwrap();
        }
        if stands == "name" {
            fs::hard_link(bench.dst().join("d1/d2/l"), bench.dst().join("top")).unwrap();
        }
        let links = LinksThere { safe: true, ..LinksThere::default() };
        let first = vec![dir(1, 0, "d1"), dir(2, 1, "d2"), names(link(3, 2, "l", b"../../outside"), 3)];
        let then = vec![name_of(3, link(4, 0, "top", b"")), name_of(3, link(5, 2, "beside", b""))];
        let ends = session(&bench, links, first, then, &[]);
        bench.check("names that lead out");
        assert_eq!((&ends[&FileId(3)], &ends[&FileId(5)]), (&Ok(()), &Ok(())), "{stands}");
        let why = ends[&FileId(4)].as_ref().expect_err("it leads out");
        assert!(why.contains("`safe_links`"), "{why}");
        let top = fs::symlink_metadata(bench.dst().join("top"));
        assert_eq!(top.is_ok(), stands == "name", "{stands}");
        assert!(fs::symlink_metadata(bench.dst().join("d1/d2/beside")).unwrap().is_symlink());
    }
}

/// Goal: where links that stand there are followed, a further name that came of one is not.
/// Method: a link that stands deep in the tree, is right, and leads out from the top; a source that sends a
/// name of it at the top, and then a directory of that name with a file in it.
#[test]
fn names_of_links_come_with_the_copy() {
    let bench = Bench::new();
    fs::create_dir_all(bench.dst().join("d1")).unwrap();
    let up = std::path::Path::new("..").join(bench.outside().file_name().unwrap());
    symlink(&up, bench.dst().join("d1/l")).unwrap();
    // As it is announced, so that it is left as it stands.
    let touched = std::process::Command::new("touch")
        .args(["-h", "-d", "@1000000000.000000005"])
        .arg(bench.dst().join("d1/l"))
        .status();
    assert!(touched.expect("run touch").success());
    let first = vec![
        dir(1, 0, "d1"),
        names(link(2, 1, "l", up.as_os_str().as_bytes()), 2),
        name_of(2, link(3, 0, "top", b"")),
    ];
    let then = vec![dir(4, 0, "top"), file(5, 4, "f", 3)];
    let links = LinksThere { keep: true, ..LinksThere::default() };
    let ends = session(&bench, links, first, then, &[(5, b"abc")]);
    bench.check("names of links that came");
    assert_eq!((&ends[&FileId(2)], &ends[&FileId(3)]), (&Ok(()), &Ok(())));
    let why = ends[&FileId(5)].as_ref().expect_err("it goes nowhere");
    assert!(why.contains("came with this copy"), "{why}");
}
