//! Homes of files: what a drain notes, and when that does not count any more.

use std::cell::Cell;

use haul_core::entry::Name;
use haul_core::volume::catalog::{EntryNo, Place as At, ROOT};
use haul_core::volume::{Candidate, Wanted};
use haul_volume::catalog::client::Client as Catalog;
use haul_volume::client::{Client, Config};
use haul_volume::drain::{Asked, Drain, HomeOf, Sum, home};

use super::super::{Reach, Volume};
use super::*;

const PATH: &[u8] = b"d/f";

/// A file of a volume, and drains of it.
struct Test {
    volume: TestVolume,
    other: Arc<Volume>,
}

impl Test {
    fn new() -> Test {
        let volume = TestVolume::start(2);
        let other = volume.volume();
        let test = Test { volume, other };
        test.volume.put(b"/d/f", &bytes(1, 300_000));
        test.volume.dir(b"/e");
        test
    }

    fn id(&self) -> EntryNo {
        self.volume.entry(b"/d/f").expect("there").id
    }

    fn file(&self) -> FileNo {
        FileNo(self.id().0)
    }

    fn home(&self) -> Option<Box<str>> {
        let entry = self.volume.entry(b"/d/f").expect("there");
        let home = home(&self.other.catalog, &self.other.client, &entry, PATH.to_vec());
        match home.expect("the catalog says") {
            HomeOf::At { place, .. } => Some(place),
            HomeOf::Nowhere => None,
            HomeOf::Lost(why) => panic!("it is on another host: {why}"),
            HomeOf::Unknown(why) => panic!("all servers are there: {why}"),
        }
    }

    fn drain(&self) -> Drain {
        let Reach { keys, catalog, patience, .. } = self.volume.reach();
        let catalog = Catalog::connect(keys.clone(), catalog, patience).expect("it answers");
        let config = Config {
            keys,
            number: catalog.number(),
            servers: vec![self.volume.at(0), self.volume.at(1)],
            stripe_size: self.other.facts.stripe.into(),
            write_threshold: None,
            patience,
        };
        let client = Client::start(config).expect("threads");
        let asked = Asked { place: "n1:/out".into(), ..Asked::default() };
        Drain::new(Arc::new(catalog), client, asked).expect("a thread")
    }

    /// The file as a walk looks at it; whether a drain wants it.
    fn begin(&self, drain: &Drain) -> bool {
        let mut entry = self.volume.entry(b"/d/f").expect("there");
        let looked = self.other.client.look(self.file()).wait();
        let state = self.other.state(&mut entry, looked).unwrap_or_else(|_| panic!("it is there"));
        let (version, len, mtime) = (state.version, state.len, state.mtime);
        let one = Candidate { path: PATH.to_vec(), entry: state.id, version, len, mtime, target: None };
        drain.pick(&[one]).expect("the catalog says") == [Wanted::Yes]
    }

    fn write(&self, offset: u64) {
        self.other.client.write(self.file(), offset, vec![9; 10]).wait().expect("written");
    }

    fn tell(&self) {
        haul_volume::contents::look(&self.other.catalog, &self.other.client, self.file()).expect("told");
    }

    fn rename(&self, from: &[u8], to: &[u8]) {
        let at = |path: &[u8]| {
            let (dir, name) = path.split_at(path.iter().rposition(|byte| *byte == b'/').expect("a slash"));
            let parent = if dir.is_empty() { ROOT } else { self.volume.entry(dir).expect("there").id };
            At { parent, name: Name::new(&name[1..]).expect("legal") }
        };
        self.other.catalog.rename(at(from), at(to), false).expect("renamed");
    }
}

/// Goal: a file has a home when what was read is durable outside and still what it has; not if it was
/// written (told to the catalog or not), cut, renamed, or renamed over, before that is noted; and each of
/// these ends the home that it has.
/// Method: each of them between the look and the note, and after the note.
#[test]
fn homes_are_of_what_was_read() {
    let (test, len) = (Test::new(), Cell::new(200_000));
    let changes: [(&str, &dyn Fn()); 7] = [
        ("written", &|| test.write(5)),
        ("written and told", &|| {
            test.write(7);
            test.tell();
        }),
        ("cut", &|| {
            len.set(len.get() - 1);
            test.other.client.truncate(test.file(), len.get()).wait().expect("cut");
        }),
        ("written directly", &|| {
            test.other.client.write(test.file(), 100_000, vec![1; 90_000]).wait().expect("written");
        }),
        ("renamed there and back", &|| {
            test.rename(b"/d/f", b"/e/f");
            test.rename(b"/e/f", b"/d/f");
        }),
        ("its directory renamed there and back", &|| {
            test.rename(b"/d", b"/x");
            test.rename(b"/x", b"/d");
        }),
        ("another in its place", &|| {
            test.volume.put(b"/e/other", &bytes(3, 1000));
            test.rename(b"/e/other", b"/d/f");
        }),
    ];
    assert_eq!(test.home(), None, "it came from nowhere");
    for (what, change) in changes {
        let drain = test.drain();
        assert!(test.begin(&drain), "{what}");
        change();
        drain.is_brought(PATH);
        let sum = drain.finish().expect("noted");
        // The way to a file is no part of its state: it is that of now, by which it was brought.
        let is_of_dirs = what.starts_with("its directory");
        let noted = Sum { noted: u64::from(is_of_dirs), changed: u64::from(!is_of_dirs), ..Sum::default() };
        assert_eq!(sum, noted, "{what}");
        assert_eq!(test.home().is_some(), is_of_dirs, "{what}");

        let drain = test.drain();
        assert_eq!(test.begin(&drain), !is_of_dirs, "{what}");
        drain.is_brought(PATH);
        drain.finish().expect("noted");
        assert_eq!(test.home().as_deref(), Some("n1:/out"), "{what}");
        let drain = test.drain();
        assert!(!test.begin(&drain), "{what}: it has a home");
        drop(drain);
        change();
        assert_eq!(test.home(), None, "{what}");
    }
}

/// Goal: what servers remember of homes they do so over restarts: of a file that was not written since, and
/// of one that was and of which nobody was told. One that did not come, or another way, has none.
#[test]
fn homes_outlive_servers() {
    let test = Test::new();
    let bring = || {
        let drain = test.drain();
        test.begin(&drain);
        drain.is_brought(PATH);
        drain.finish().expect("noted")
    };
    let restart = || {
        (0..2).for_each(|server| test.volume.kill(server));
        (0..2).for_each(|server| test.volume.revive(server));
    };
    let drain = test.drain();
    test.begin(&drain);
    drain.is_brought(b"f");
    drain.is_not_brought(PATH);
    drain.is_brought(PATH);
    assert_eq!(drain.finish(), Ok(Sum::default()));
    assert_eq!(test.home(), None);
    assert_eq!(bring(), Sum { noted: 1, ..Sum::default() });
    restart();
    assert!(test.home().is_some(), "nobody wrote");
    test.write(11);
    test.other.client.sync(test.file()).wait().expect("synced");
    restart();
    assert_eq!(test.home(), None, "somebody wrote, and told nobody");
    test.tell();
    restart();
    assert_eq!(test.home(), None, "the catalog was told");
    assert_eq!(bring(), Sum { noted: 1, ..Sum::default() });
    assert!(test.home().is_some());
}
