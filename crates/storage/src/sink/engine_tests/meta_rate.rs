//! Operations of metadata that have a rate.

use super::*;
use crate::manners::LinksThere;

/// What the engine says of its rate.
fn report_of(bench: &Bench) -> String {
    let lines = bench.engine.as_ref().expect("running").report();
    lines.into_iter().find(|(name, _)| name == "metadata rate at the sink").expect("it has a rate").1
}

/// Operations that it counted so far.
fn counted(bench: &Bench) -> u64 {
    let told = report_of(bench);
    let words: Vec<&str> = told.split([' ', '(']).collect();
    let at = words.iter().position(|word| word.starts_with("operations")).expect("operations");
    words[at - 1].parse().expect("a number")
}

/// A bench with a rate that is never reached.
fn bench(change: impl FnOnce(&mut EngineConfig)) -> Bench {
    Bench::with(|config| {
        config.storage.meta_rate = Some(10_000_000);
        change(config);
    })
}

/// What this costs.
fn cost_of(bench: &mut Bench, op: impl FnOnce(&mut Bench)) -> u64 {
    let before = counted(bench);
    op(bench);
    counted(bench) - before
}

/// Goal: each entry costs its operations, once; a directory that stands as it is to be is looked at alone.
/// Method: looks, a file that is made and published, a directory that is made, and found again.
#[test]
fn entries_cost_operations() {
    let mut bench = bench(|_| {});
    let f = file(1, DirId::ROOT, "f", 4);
    assert_eq!(cost_of(&mut bench, |bench| assert!(bench.look(&f, None).seen.is_none())), 1);
    assert_eq!(cost_of(&mut bench, |bench| bench.write(&f, 0, b"abcd").expect("written")), 1);
    assert_eq!(cost_of(&mut bench, |bench| bench.publish(&f).expect("published")), 5);
    let meta = Meta { mode: 0o750, ..META };
    for (id, set) in [(2, 3), (3, 0)] {
        let dir = bench.dir(id, DirId::ROOT, "d");
        let made = |bench: &mut Bench| drop(bench.run(SinkOp::MakeDirs { dirs: vec![dir] }, b""));
        assert_eq!(cost_of(&mut bench, made), 3);
        let finished = |bench: &mut Bench| assert!(bench.finish(vec![(dir, meta)]).remove(0).is_ok());
        assert_eq!(cost_of(&mut bench, finished), 1 + set, "{id}");
    }
}

/// Goal: owners, further names, links and special files cost what is made of them, and where they stand what
/// it costs to see that.
/// Method: each of them made, and found again; a name over another file; a mode amended.
#[test]
fn what_is_found_costs_less_than_what_is_made() {
    let mut bench = bench(|_| {});
    let (f, root) = (file(1, DirId::ROOT, "f", 4), bench.root.clone());
    bench.engine.as_ref().expect("running").lead(f.id, f.parent, &f.name);
    bench.write(&f, 0, b"abcd").expect("written");
    let mut item = whole(&f, META);
    let publish = item.publish.as_mut().expect("it is whole");
    (publish.owner, publish.meta.uid, publish.meta.gid) =
        (true, rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    assert_eq!(cost_of(&mut bench, |bench| drop(bench.commit(vec![item]))), 5 + 2);

    fs::write(root.join("other"), "old").expect("write");
    let (no_replace, update, force) = (false, false, false);
    for (text, cost) in [("name", 3 + 1), ("name", 3), ("other", 3 + 4), ("other", 3)] {
        let file = file(number(text), DirId::ROOT, text, 4);
        let items = vec![JoinItem { file, to: f.id, meta: META, no_replace, update, force }];
        let join = |bench: &mut Bench| match bench.run(SinkOp::Join { items }, b"") {
            SinkDone::Join { results } => assert!(matches!(results[0].1, Ok(Joined::Is(_))), "{results:?}"),
            other => panic!("{other:?}"),
        };
        assert_eq!(cost_of(&mut bench, join), cost, "{text}");
    }
    let link = |target: &[u8], node: Option<haul_core::entry::Node>| LinkItem {
        file: file(9, DirId::ROOT, if node.is_none() { "link" } else { "fifo" }, 0),
        target: target.into(),
        node,
        meta: META,
        owner: false,
        no_replace,
        force,
    };
    let fifo = Some(haul_core::entry::Node::Fifo);
    for (item, cost) in [
        (link(b"f", None), 1 + 8),
        (link(b"f", None), 1 + 2),
        (link(b"other", None), 1 + 2 + 8),
        (link(b"", fifo), 1 + 8),
        (link(b"", fifo), 1 + 2),
        (LinkItem { meta: Meta { mode: 0o600, ..META }, ..link(b"", fifo) }, 1 + 2 + 3),
    ] {
        let made = |bench: &mut Bench| match bench.run(SinkOp::MakeLinks { items: vec![item.clone()] }, b"") {
            SinkDone::MakeLinks { results } => assert!(results[0].1.is_ok(), "{results:?}"),
            other => panic!("{other:?}"),
        };
        assert_eq!(cost_of(&mut bench, made), cost, "{item:?}");
    }
    // One that has no other name.
    let g = file(20, DirId::ROOT, "g", 4);
    bench.write(&g, 0, b"abcd").expect("written");
    bench.publish(&g).expect("published");
    let found = seen_at(&root.join("g")).expect("it stands");
    let items = vec![AmendItem { file: g, meta: Meta { mode: 0o600, ..META }, owner: false, found }];
    let amend = |bench: &mut Bench| match bench.run(SinkOp::Amend { durable: true, items }, b"") {
        SinkDone::Amend { results } => assert!(results[0].1.is_ok(), "{results:?}"),
        other => panic!("{other:?}"),
    };
    assert_eq!(cost_of(&mut bench, amend), 2 + 3);
}

/// Goal: a directory that is reached by a link that stands costs each step on the way.
/// Method: a link to a directory, and one to a link, where such links are followed.
#[test]
fn links_on_the_way_cost_operations() {
    let mut bench = bench(|config| {
        let root = config_root(config);
        fs::create_dir(root.join("in")).expect("mkdir");
        symlink("in", root.join("one")).expect("symlink");
        symlink("one", root.join("two")).expect("symlink");
        let tree = SinkTree::open_root(&root, false).expect("root");
        config.tree = Arc::new(tree.with_links(LinksThere { keep: true, ..LinksThere::default() }));
    });
    let tree = bench.engine.as_ref().expect("running").sink.tree.clone();
    // Each part of the way is opened, and a link on it read; then what it leads to is held against others.
    // That the second is the same directory is seen behind its way.
    for (id, text, way, is_free) in [(1, "one", 3 + 2 + 2, true), (2, "two", 3 + 3 + 2 + 2, false)] {
        tree.register(DirId(id), DirId::ROOT, name(text));
        let made = |bench: &mut Bench| match bench.run(SinkOp::MakeDirs { dirs: vec![DirId(id)] }, b"") {
            SinkDone::MakeDirs { results } => assert_eq!(results[0].1.is_ok(), is_free, "{results:?}"),
            other => panic!("{other:?}"),
        };
        assert_eq!(cost_of(&mut bench, made), 3 + way + 1, "{text}");
    }
}

/// Goal: what waits for a rate is done at once when a stop is asked for, and when the engine ends.
/// Method: one operation a second, and looks for which that is hours.
#[test]
fn a_stop_ends_the_waits() {
    for hurry in [true, false] {
        let mut bench = Bench::with(|config| config.storage.meta_rate = Some(1));
        let items = (0..5000).map(|i| {
            let file = file(i, DirId::ROOT, &format!("f{i}"), 4);
            LookupItem { file, fingerprint: told(4, META.mtime), meta: META, adopt: None }
        });
        bench.submit(SinkOp::Lookup { items: items.collect() }, b"");
        match hurry {
            true => bench.engine.as_ref().expect("running").hurry(),
            false => drop(bench.engine.take().expect("running").join()),
        }
        match bench.posted.recv_timeout(Duration::from_secs(60)).expect("a completion").0 {
            SinkDone::Lookup { results } => assert_eq!(results.len(), 5000),
            other => panic!("{other:?}"),
        }
    }
}
