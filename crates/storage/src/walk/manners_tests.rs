use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use haul_core::entry::EntryKind;

use super::super::Walk;
use super::*;
use crate::manners::{LinkRule, Manners};
use crate::source::roots::resolve_sources_by;
use crate::source::tree::SourceTree;
use crate::walk::WalkItem;

/// What a walk found: kind of each entry by its path, what failed, what was left out.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    entries: BTreeMap<String, char>,
    failed: BTreeMap<String, String>,
    left: BTreeMap<String, NotKeptWhat>,
}

impl Found {
    fn of(&self, kind: char) -> Vec<&str> {
        self.entries.iter().filter(|(_, is)| **is == kind).map(|(path, _)| path.as_str()).collect()
    }
}

/// Walks sources below `root` with so few levels open that all are closed and opened again.
fn walked(root: &Path, tails: &[&str], manners: Manners) -> Found {
    let typed: Vec<Vec<u8>> =
        tails.iter().map(|tail| format!("{}{tail}", root.display()).into_bytes()).collect();
    let roots = resolve_sources_by(&typed, true, None, manners.links).expect("sources are there");
    let tree = Arc::new(SourceTree::with_limits(1, 1).with_manners(manners));
    let walk = Walk::start_with(roots, tree.clone(), 2, 1, |_| 1 << 16).expect("starts");
    let mut found = Found::default();
    for item in walk.items().iter().flatten() {
        match item {
            WalkItem::Entry(entry) => {
                let kind = match entry.kind {
                    EntryKind::Dir { .. } => 'd',
                    EntryKind::File { .. } => 'f',
                    _ => 'L',
                };
                let path = String::from_utf8(tree.path_of(entry.id)).expect("text");
                if kind == 'f' {
                    let view = tree.file(entry.id).expect("a file");
                    let dir = tree.dir_fd(view.place).expect("its directory opens again");
                    let looked = view.look(std::os::fd::AsFd::as_fd(&*dir)).expect("it is there");
                    assert_eq!(looked.stamp, view.stamp, "{path}");
                }
                assert_eq!(found.entries.insert(path, kind), None);
            }
            WalkItem::Failed { path, failure, .. } => {
                found.failed.insert(String::from_utf8(path).expect("text"), failure.text.into());
            }
            WalkItem::NotKept(left) => {
                found.left.insert(String::from_utf8(left.path).expect("text"), left.what);
            }
            _ => {}
        }
    }
    found
}

/// A tree with links of every kind, and what they lead to outside of it.
fn linked() -> tempfile::TempDir {
    let temp = tempfile::tempdir().expect("tempdir");
    let at = |name: &str| temp.path().join(name);
    fs::create_dir_all(at("data/d/deep")).expect("mkdir");
    fs::create_dir_all(at("outside/dir")).expect("mkdir");
    for file in ["data/f", "data/d/g", "data/d/deep/h", "outside/o", "outside/dir/p"] {
        fs::write(at(file), file).expect("write");
    }
    for (name, target) in [
        ("to_file", "f"),
        ("to_dir", "d/deep"),
        ("out_file", "../outside/o"),
        ("out_dir", "../outside/dir"),
        ("dangling", "nowhere"),
        ("d/up", "../f"),
        ("d/out", "../../outside/o"),
    ] {
        symlink(target, at("data").join(name)).expect("symlink");
    }
    symlink(at("outside/dir"), at("data/whole")).expect("symlink");
    temp
}

fn rule(links: LinkRule) -> Manners {
    Manners { links, ..Manners::default() }
}

/// Goal: each rule follows those links that it names and no others; what is followed is walked, and found
/// again when it was closed.
/// Method: one tree by each rule.
#[test]
fn links_are_followed_by_rule() {
    let temp = linked();
    let all = ["dangling", "d/out", "d/up", "out_dir", "out_file", "to_dir", "to_file", "whole"]
        .map(|name| format!("data/{name}"));
    let links = |found: &Found| found.of('L').into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
    let without = |names: &[&str]| {
        let kept = all.iter().filter(|link| !names.iter().any(|name| **link == format!("data/{name}")));
        kept.cloned().collect::<BTreeSet<_>>()
    };
    let plain = walked(temp.path(), &["/data"], Manners::default());
    assert_eq!(links(&plain), without(&[]));
    let found = walked(temp.path(), &["/data"], rule(LinkRule { all: true, ..LinkRule::default() }));
    assert!(found.of('L').is_empty());
    assert_eq!(found.failed.keys().collect::<Vec<_>>(), ["data/dangling"]);
    assert!(found.failed["data/dangling"].contains("No such file or directory: nowhere"), "{found:?}");
    for (path, kind) in [
        ("data/to_file", 'f'),
        ("data/to_dir", 'd'),
        ("data/to_dir/h", 'f'),
        ("data/out_dir/p", 'f'),
        ("data/whole/p", 'f'),
        ("data/d/up", 'f'),
        ("data/d/out", 'f'),
    ] {
        assert_eq!(found.entries.get(path), Some(&kind), "{path}");
    }
    let found = walked(temp.path(), &["/data"], rule(LinkRule { dirs: true, ..LinkRule::default() }));
    assert_eq!(links(&found), without(&["to_dir", "out_dir", "whole"]));
    assert!(found.failed.is_empty() && found.entries["data/out_dir/p"] == 'f', "{found:?}");
    let found = walked(temp.path(), &["/data"], rule(LinkRule { outside: true, ..LinkRule::default() }));
    assert_eq!(links(&found), without(&["whole"]), "of a directory by name ../outside is within");
    let found = walked(temp.path(), &["/data/"], rule(LinkRule { outside: true, ..LinkRule::default() }));
    let kept = ["d/up", "dangling", "to_dir", "to_file"].map(str::to_owned);
    assert_eq!(links(&found), BTreeSet::from(kept));
    let found = walked(temp.path(), &["/data/"], rule(LinkRule { safe: true, ..LinkRule::default() }));
    assert_eq!(links(&found), BTreeSet::from(["d/up", "dangling", "to_dir", "to_file"].map(str::to_owned)));
    let left = ["d/out", "out_dir", "out_file", "whole"].map(|name| (name.to_owned(), NotKeptWhat::LinkOut));
    assert_eq!(found.left, BTreeMap::from(left));
}

/// Goal: a source that is a link is followed by the same rule, and one that leads nowhere is no source.
#[test]
fn sources_are_followed_by_rule() {
    let temp = linked();
    let all = || rule(LinkRule { all: true, ..LinkRule::default() });
    let found = walked(temp.path(), &["/data/whole", "/data/to_file"], all());
    assert_eq!((found.of('d'), found.of('f')), (vec!["whole"], vec!["to_file", "whole/p"]));
    let found = walked(temp.path(), &["/data/to_file"], rule(LinkRule { dirs: true, ..LinkRule::default() }));
    assert_eq!(found.of('L'), ["to_file"]);
    let typed = [format!("{}/data/dangling", temp.path().display()).into_bytes()];
    let refused = resolve_sources_by(&typed, true, None, all().links).expect_err("it leads nowhere");
    assert!(refused.to_string().contains("where the link leads to: No such file"), "{refused}");
}

/// Goal: links that lead back to a directory above end by name, however they are reached, and everything else
/// is walked.
/// Method: a link to its own directory, to the one above, to the directory that holds the source, and two
/// directories that link to each other.
#[test]
fn no_directory_is_walked_below_itself() {
    let temp = tempfile::tempdir().expect("tempdir");
    let at = |name: &str| temp.path().join(name);
    fs::create_dir_all(at("data/a/b")).expect("mkdir");
    fs::create_dir_all(at("data/c")).expect("mkdir");
    fs::write(at("data/a/b/f"), "f").expect("write");
    for (name, target) in
        [("a/b/here", "."), ("a/b/up", ".."), ("out", ".."), ("a/c", "../c"), ("c/a", "../a")]
    {
        symlink(target, at("data").join(name)).expect("symlink");
    }
    for links in
        [LinkRule { all: true, ..LinkRule::default() }, LinkRule { dirs: true, ..LinkRule::default() }]
    {
        let found = walked(temp.path(), &["/data"], rule(links));
        for path in ["data/a/b/here", "data/a/b/up", "data/out/data", "data/a/c/a", "data/c/a/c"] {
            assert!(found.failed[path].contains("leads back"), "{path}: {found:?}");
        }
        for path in ["data/a/b/f", "data/c/a/b/f"] {
            assert_eq!(found.entries.get(path), Some(&'f'), "{path}");
        }
    }
}

/// Goal: a link to the destination, or to what holds it, does not make a copy copy itself.
/// Method: both, and a link to what lies beside it.
#[test]
fn the_destination_is_not_walked() {
    let temp = linked();
    fs::create_dir_all(temp.path().join("above/sink/half")).expect("mkdir");
    fs::write(temp.path().join("above/beside"), "b").expect("write");
    symlink("../above/sink", temp.path().join("data/direct")).expect("symlink");
    symlink("../above", temp.path().join("data/over")).expect("symlink");
    let manners = Manners {
        sink_here: Some(temp.path().join("above/sink")),
        ..rule(LinkRule { dirs: true, ..LinkRule::default() })
    };
    let found = walked(temp.path(), &["/data"], manners);
    for path in ["data/direct", "data/over/sink"] {
        assert!(found.failed[path].contains("would copy itself"), "{found:?}");
    }
    assert_eq!(found.entries.get("data/over/beside"), Some(&'f'));
    assert!(!found.entries.keys().any(|path| path.contains("half")), "{found:?}");
}

/// Goal: where some entries alone are wanted, those come with all below them and the directories above, and
/// each that is not there is told.
/// Method: files, a directory, a link; names that are gone at each depth, and below what is no directory any
/// more; one that is in the second source alone.
#[test]
fn some_entries_come_alone() {
    let temp = linked();
    fs::create_dir(temp.path().join("more")).expect("mkdir");
    fs::write(temp.path().join("more/m"), "m").expect("write");
    let only = |paths: &[&str]| {
        let only = OnlyThese::new(paths.iter().map(|path| path.as_bytes())).expect("paths");
        Manners { only: Some(only.expect("not all")), ..Manners::default() }
    };
    let wanted =
        ["data/d/g", "data/d/deep", "data/to_file", "data/gone", "data/f/below", "data/no/1", "data/no/2"];
    let found = walked(temp.path(), &["/data"], only(&wanted));
    let entries = [
        ("data", 'd'),
        ("data/d", 'd'),
        ("data/d/g", 'f'),
        ("data/d/deep", 'd'),
        ("data/d/deep/h", 'f'),
        ("data/to_file", 'L'),
    ];
    assert_eq!(found.entries, entries.map(|(path, kind)| (path.to_owned(), kind)).into());
    let gone: Vec<&str> = found.failed.keys().map(String::as_str).collect();
    assert_eq!(gone, ["data/f/below", "data/gone", "data/no/1", "data/no/2"]);
    assert!(found.failed.values().all(|text| text.contains("not there any more")), "{found:?}");
    // Contents of two directories, and what is in neither.
    let found = walked(temp.path(), &["/data/", "/more/"], only(&["m", "d/up", "x/y", "z"]));
    assert_eq!((found.of('f'), found.of('d'), found.of('L')), (vec!["m"], vec!["d"], vec!["d/up"]));
    assert_eq!(found.failed.keys().collect::<Vec<_>>(), ["x/y", "z"]);
    // Sources of which nothing is wanted, and one that no source is.
    let found = walked(temp.path(), &["/data", "/more"], only(&["more/m", "other/m"]));
    assert_eq!(found.entries.keys().collect::<Vec<_>>(), ["more", "more/m"]);
    assert_eq!(found.failed.keys().collect::<Vec<_>>(), ["other/m"]);
    let found = walked(temp.path(), &["/data"], only(&[]));
    assert_eq!(found, Found::default());
}
