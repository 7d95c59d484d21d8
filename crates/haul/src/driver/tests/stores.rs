//! Sessions between stores of all kinds: the drivers know the seam alone.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use haul_core::entry::{Meta, Timestamp};
use haul_core::transfer::SessionEnd;

use super::{
    Bench, Report, bytes, contents, finish, local_pairs, sink_request, source_request, start_sink,
    start_source,
};
use crate::driver::sink::SinkRequest;
use crate::driver::source::SourceRequest;
use haul_storage::model::{FTP_LIKE, Lying, MEMORY, Shelf};
use haul_storage::place::Place;

const META: Meta = Meta { mode: 0o640, uid: 0, gid: 0, mtime: Timestamp { secs: 1_500_000_000, nanos: 0 } };

/// Copies by both drivers; what the source and the sink say of it.
fn copy(from: &Place, to: &Place) -> (Report, Report) {
    let (near, far) = local_pairs(2).into_iter().unzip();
    let sink = SinkRequest { destination: to.clone(), ..sink_request(Path::new("")) };
    let source = SourceRequest { sources: vec![from.clone()], ..source_request(&[]) };
    let (sink, source) = (start_sink(far, sink), start_source(near, source));
    (finish("the source", source), finish("the sink", sink))
}

/// A shelf with a tree on it.
fn filled(place: &Place) -> Arc<Shelf> {
    let shelf = Shelf::at(place);
    shelf.put(b"d", Lying::Dir(META));
    shelf.put(b"d/deeper", Lying::Dir(META));
    shelf.put(b"d/deeper/big", Lying::File(bytes(1, 5 << 20), META));
    shelf.put(b"d/small", Lying::File(bytes(2, 3000), META));
    shelf.put(b"empty", Lying::File(Vec::new(), META));
    shelf.put(b"link", Lying::Link(b"d/small".to_vec(), META));
    shelf
}

/// A directory.
fn at(path: &Path) -> Place {
    Place::file(path.as_os_str().as_encoded_bytes())
}

/// Goal: what lies on one store in memory comes to lie on another, whole and with nothing of ours beside it;
/// a second run finds all of it there.
#[test]
fn shelves_are_copied() {
    let places = [Place::sized(&MEMORY, 1), Place::sized(&MEMORY, 2)];
    let (from, to) = (filled(&places[0]), Shelf::at(&places[1]));
    let (source, sink) = copy(&places[0], &places[1]);
    assert_eq!((&source.end, &sink.end), (&SessionEnd::Complete, &SessionEnd::Complete));
    assert_eq!(to.all(), from.all());
    assert_eq!(to.debris(), (0, false));
    assert_eq!((sink.tally.files, sink.tally.dirs, sink.tally.symlinks), (3, 2, 1));
    let (source, _) = copy(&places[0], &places[1]);
    assert_eq!((source.end, source.tally.unchanged), (SessionEnd::Complete, 3));
    assert_eq!(to.all(), from.all());
}

/// Goal: stores of two kinds copy to each other.
/// Method: from memory to a directory, and from there to memory again.
#[test]
fn shelves_and_directories_copy_to_each_other() {
    let places = [Place::sized(&MEMORY, 3), Place::sized(&MEMORY, 4)];
    let (bench, from) = (Bench::new(), filled(&places[0]));
    let (_, sink) = copy(&places[0], &at(&bench.dst()));
    assert_eq!(sink.end, SessionEnd::Complete);
    assert_eq!(fs::read(bench.dst().join("d/deeper/big")).unwrap(), bytes(1, 5 << 20));
    let (_, sink) = copy(&at(&contents(&bench.dst())), &places[1]);
    assert_eq!(sink.end, SessionEnd::Complete);
    let (from, back) = (from.all(), Shelf::at(&places[1]).all());
    let names = |all: &BTreeMap<Vec<u8>, Lying>| all.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&back), names(&from));
    for (path, what) in back {
        if let (Lying::File(data, meta), Lying::File(before, meta_before)) = (what, &from[&path]) {
            assert!(data == *before && meta.mtime == meta_before.mtime);
        }
    }
    bench.check("a shelf and a directory");
}

/// Goal: a store that takes bytes in ascending order alone, and one file at a time, is written, whatever
/// comes first; what it cannot hold fails by name.
/// Method: files of several objects and small ones, in little memory, from a directory and over two streams.
#[test]
fn stores_that_ascend_are_written() {
    let (bench, to) = (Bench::new(), Place::sized(&FTP_LIKE, 7));
    for n in 0..6 {
        fs::write(bench.src().join(format!("big{n}")), bytes(n, (9 << 20) + n as usize)).unwrap();
    }
    for n in 0..300 {
        fs::write(bench.src().join(format!("small{n}")), bytes(n, 3000)).unwrap();
    }
    let (source, sink) = copy(&at(&contents(&bench.src())), &to);
    assert_eq!((&source.end, &sink.end), (&SessionEnd::Complete, &SessionEnd::Complete));
    let all = Shelf::at(&to).all();
    assert_eq!(all.len(), 306);
    for entry in fs::read_dir(bench.src()).unwrap().flatten() {
        let name = entry.file_name().into_encoded_bytes();
        let whole = fs::read(entry.path()).unwrap();
        assert!(matches!(&all[&name], Lying::File(data, _) if *data == whole), "{:?}", entry.file_name());
    }
    assert_eq!(Shelf::at(&to).debris(), (0, false));
}

/// Goal: what a store cannot hold fails by its name, and nothing else; as a source it is copied, and the
/// report says over what network.
#[test]
fn what_a_store_cannot_do_is_said() {
    let places = [Place::sized(&FTP_LIKE, 1), Place::sized(&FTP_LIKE, 2), Place::sized(&MEMORY, 5)];
    let from = filled(&places[0]);
    let (_, sink) = copy(&places[0], &places[1]);
    assert_eq!((&sink.end, sink.tally.failed), (&SessionEnd::Complete, 1));
    assert!(!Shelf::at(&places[1]).all().contains_key(&b"link"[..]));
    assert_eq!(Shelf::at(&places[1]).file(b"d/deeper/big"), Some(bytes(1, 5 << 20)));
    let (source, _) = copy(&places[0], &places[2]);
    assert_eq!(source.end, SessionEnd::Complete);
    let network = source.chosen.iter().find(|(name, _)| name == "source storage's network");
    assert!(network.is_some_and(|(_, text)| text.contains("2 connections")), "{:?}", source.chosen);
    assert_eq!(Shelf::at(&places[2]).all(), from.all());
}
