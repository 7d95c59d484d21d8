//! Operations of metadata that have a rate.

use super::*;

/// What the engine says of its rate.
fn report_of(bench: &Bench) -> String {
    let lines = bench.engine.as_ref().expect("running").report();
    lines.into_iter().find(|(name, _)| name == "metadata rate at the sink").expect("it has a rate").1
}

/// Goal: each entry costs its operations, once.
/// Method: at a rate that is never reached: looks, a file that is made and published, a directory.
#[test]
fn entries_cost_operations() {
    let mut bench = Bench::with(|config| config.storage.meta_rate = Some(10_000_000));
    let f = file(1, DirId::ROOT, "f", 4);
    bench.look(&f, None);
    bench.write(&f, 0, b"abcd").expect("written");
    assert!(report_of(&bench).contains("2 operations"), "{}", report_of(&bench));
    bench.publish(&f).expect("published");
    assert!(report_of(&bench).contains("7 operations"), "{}", report_of(&bench));
    let dir = bench.dir(2, DirId::ROOT, "d");
    bench.run(SinkOp::MakeDirs { dirs: vec![dir] }, b"");
    assert!(bench.finish(vec![(dir, META)]).remove(0).is_ok());
    assert!(report_of(&bench).contains("13 operations"), "{}", report_of(&bench));
}

/// Goal: what waits for a rate is done at once when a stop is asked for, and when the engine ends.
/// Method: one operation a second, and looks for which that is hours.
#[test]
fn a_stop_ends_the_waits() {
    for hurry in [true, false] {
        let mut bench = Bench::with(|config| config.storage.meta_rate = Some(1));
        let items = (0..5000).map(|i| {
            let file = file(i, DirId::ROOT, &format!("f{i}"), 4);
            LookupItem { file, fingerprint: told(4, META.mtime), adopt: None }
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
