//! What the file system makes of metadata of links and special files is seen, and counted as of files.

use haul_core::entry::Node;

use super::*;

/// Goal: mtimes of links and FIFOs that the file system cannot hold are counted, each once, and others are
/// not.
/// Method: each of 1800, 3000 and today, where the file system ends before.
#[test]
fn clamped_times_of_links_and_nodes_are_counted() {
    let mut bench = Bench::new();
    let times = [-5_364_662_400, 32_503_680_000, META.mtime.secs];
    let nodes = [None, Some(Node::Fifo)];
    let each = times.into_iter().flat_map(|secs| nodes.into_iter().map(move |node| (secs, node)));
    let item = |(id, (secs, node)): (u64, (i64, Option<Node>))| LinkItem {
        file: file(id, DirId::ROOT, &format!("l{id}"), 0),
        target: if node.is_some() { Box::default() } else { b"x"[..].into() },
        node,
        meta: Meta { mtime: Timestamp { secs, nanos: 0 }, ..META },
        owner: false,
        no_replace: false,
        force: false,
    };
    let items: Vec<LinkItem> = (1..).zip(each).map(item).collect();
    let (wanted, names): (Vec<i64>, Vec<_>) = items
        .iter()
        .map(|item| (item.meta.mtime.secs, bench.root.join(format!("l{}", item.file.id.0))))
        .unzip();
    match bench.run(SinkOp::MakeLinks { items }, b"") {
        SinkDone::MakeLinks { results } => {
            assert!(results.iter().all(|(_, result)| result.is_ok()), "{results:?}");
        }
        other => panic!("{other:?}"),
    }
    let stand = names.iter().map(|path| fs::symlink_metadata(path).expect("stat").mtime());
    let clamped = stand.zip(wanted).filter(|(stands, wanted)| stands != wanted).count() as u64;
    if clamped == 0 {
        return eprintln!("skipped: this file system holds such times");
    }
    assert_eq!(clamped, 4, "two times of links, two of FIFOs");
    assert_eq!(bench.not_kept(), NotKept { clamped, ..NotKept::default() });
}
