//! Names that haul gives in a volume, to whom walks there.

use super::*;
use crate::walk::NotKeptWhat;

/// Goal: what a run of haul has in a directory of which it is not done, or died, is no user's: it is left out
/// and named, at any depth. What only looks like it is copied, a copy of such an entry in another directory
/// among it.
#[test]
fn a_walk_leaves_out_what_runs_have() {
    let volume = Arc::new(TestVolume::start(3));
    let sink = Sink::in_volume(&volume, b"/dst/");
    let mut run = sink.begin();
    run.engine.register(DirId(1), DirId::ROOT, name(b"dir"));
    let long = [b'n'; 255];
    for (id, dir, text) in [(1, DirId::ROOT, &b"f"[..]), (2, DirId(1), b"f"), (3, DirId::ROOT, &long)] {
        run.write(&file(id, dir, text, 10), 0, b"12345").expect("written");
    }
    let owner = names(&volume, b"/dst").into_iter().find(|name| name.ends_with(b".own.1")).expect("an entry");
    let Kind::Link(text) = volume.entry(&[b"/dst/", &owner[..]].concat()).expect("there").kind else {
        panic!("it is a link")
    };
    // A user's: whatever they look like.
    volume.link(&[b"/dst/dir/", &owner[..]].concat(), &text);
    volume.put(b"/dst/.f.haul~aaaaaaaaaaaaaa", b"x");
    volume.put(b"/dst/.haul~notes", b"x");
    volume.put(b"/dst/dir/file", b"x");
    for (from, ours, users) in [("/dst/", 4, 5), ("/dst/dir/", 1, 2)] {
        let reads = Reads::of(&volume, from, OnChange::Fail);
        let left = reads.items.iter().filter_map(|item| match item {
            WalkItem::NotKept(left) => {
                assert_eq!(left.what, NotKeptWhat::Debris);
                Some(left.path.clone())
            }
            WalkItem::Failed { failure, .. } => panic!("{}", failure.text),
            _ => None,
        });
        let left: Vec<_> = left.collect();
        assert_eq!(left.len(), ours, "{from}: {left:?}");
        let found = reads.items.iter().filter(|item| matches!(item, WalkItem::Entry(_))).count();
        assert_eq!(found, users, "{from}: {:?}", reads.items);
    }
    // A run that died has them, too, until another one of its job ends.
    run.job.leave();
    std::mem::forget(run);
    let reads = Reads::of(&volume, "/dst/", OnChange::Fail);
    let left = reads.items.iter().filter(|item| matches!(item, WalkItem::NotKept(_))).count();
    assert_eq!(left, 4, "{:?}", reads.items);
}
