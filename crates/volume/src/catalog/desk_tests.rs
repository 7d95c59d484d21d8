//! The desk with a real database: against a model, crashed at any time, full, and asked what cannot be.

use std::fs;
use std::path::Path;

use haul_core::entry::{Meta, Name, Timestamp};
use haul_core::volume::catalog::{Entry, Facts, Place, ROOT, Setting, WINDOW};
use haul_core::volume::layout::Placing;
use haul_core::volume::wire::VolumeId;
use haul_core::volume::{FileNo, ServerNo};

use super::super::holds::GRACE;
use super::super::model::{Model, Nameless};
use super::super::store::StoreError;
use super::super::tree::{NAMED, NAMELESS};
use super::*;

const VOLUME: VolumeId = VolumeId([7; 16]);
const A: ClientNo = ClientNo(1);
const B: ClientNo = ClientNo(2);

fn facts() -> Facts {
    Facts { stripe: 1 << 20, placement: "round-robin".into(), servers: vec!["a:1".into(), "b:2".into()] }
}

fn place(parent: EntryNo, name: &str) -> Place {
    Place { parent, name: Name::new(name.as_bytes()).expect("legal") }
}

fn meta(mode: u32) -> Meta {
    Meta { mode, uid: 1, gid: 2, mtime: Timestamp { secs: -5, nanos: 6 } }
}

fn fresh() -> (tempfile::TempDir, Desk) {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::create(&dir.path().join("c"), VOLUME, &facts()).expect("made");
    (dir, Desk::new(store))
}

/// A desk whose catalog a process served that ended just now, without a word.
fn crashed(dir: &Path) -> (tempfile::TempDir, Desk) {
    let image = tempfile::tempdir().expect("a directory");
    let to = image.path().join("c");
    fs::create_dir(&to).expect("made");
    for file in fs::read_dir(dir.join("c")).expect("there") {
        let file = file.expect("there");
        fs::copy(file.path(), to.join(file.file_name())).expect("copied");
    }
    fs::set_permissions(&to, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("set");
    let store = Store::open(&to, VOLUME).expect("a crash damages nothing");
    (image, Desk::new(store))
}

fn ask(desk: &mut Desk, now: Duration, client: ClientNo, number: u64, request: Request) -> Answer {
    let said = desk.serve(now, &[Asked::Ask(client, RequestNo(number), request)]).pop();
    let Some(Said::Answer(answer) | Said::Again(answer)) = said else { panic!("no answer: {said:?}") };
    answer
}

fn made(answer: Answer) -> Entry {
    let Answer::Made { entry, .. } = answer else { panic!("{answer:?}") };
    entry
}

fn errno(answer: &Answer) -> Option<i32> {
    match answer {
        Answer::Failed(failure) => Some(failure.errno),
        _ => None,
    }
}

/// What the tables have, as the model would: all but what is open, which is on no disk.
fn dump(desk: &Desk, like: &Model) -> Model {
    let db = &desk.store.db;
    let mut model = Model { open: like.open.clone(), ..Model::new(meta(0), like.servers) };
    let mut statement = db.prepare("SELECT id, parent, name FROM entries").expect("sql");
    let mut rows = statement.query([]).expect("sql");
    model.entries.clear();
    while let Some(row) = rows.next().expect("sql") {
        let id = EntryNo(row.get::<_, i64>(0).expect("id") as u64);
        if let Some(parent) = row.get::<_, Option<i64>>(1).expect("parent") {
            let name = Name::new(&row.get::<_, Vec<u8>>(2).expect("name")).expect("legal");
            model.names.insert((EntryNo(parent as u64), name), id);
        }
        let entry = desk.store.row(id);
        model.entries.insert(id, (entry.kind, entry.meta));
    }
    let mut statement = db.prepare("SELECT file, released FROM unlinked").expect("sql");
    let mut rows = statement.query([]).expect("sql");
    while let Some(row) = rows.next().expect("sql") {
        let id: i64 = row.get(0).expect("file");
        let mut removed = db.prepare("SELECT server FROM removed WHERE file = ?1").expect("sql");
        let removed = removed.query_map([id], |row| row.get(0)).expect("sql").map(|s| s.expect("sql"));
        let nameless = Nameless { released: row.get(1).expect("released"), removed: removed.collect() };
        model.nameless.insert(EntryNo(id as u64), nameless);
    }
    let next = "SELECT next_entry FROM volume";
    model.next = db.query_row(next, [], |row| row.get::<_, i64>(0)).expect("sql") as u64;
    model
}

fn some_request(rng: &mut fastrand::Rng, next: u64) -> Request {
    let id = |rng: &mut fastrand::Rng| match rng.u8(..8) {
        0..3 => ROOT,
        _ => EntryNo(rng.u64(1..next + 2)),
    };
    let at = |rng: &mut fastrand::Rng| place(id(rng), ["a", "b", "c", "\u{e9}"][rng.usize(..4)]);
    let bits = |rng: &mut fastrand::Rng| meta(rng.u32(..0o10000));
    match rng.u8(..24) {
        0..4 => Request::Mkdir { at: at(rng), meta: bits(rng) },
        4..8 => Request::Create {
            at: at(rng),
            meta: bits(rng),
            exclusive: rng.bool(),
            open: rng.bool(),
            placing: Placing::from_code(rng.u16(0..3)).expect("one"),
        },
        8 => Request::Symlink { at: at(rng), meta: bits(rng), target: (*b"../x").into() },
        9 => Request::Lookup(at(rng)),
        10 => Request::Stat(id(rng)),
        11 => {
            let after = rng.bool().then(|| at(rng).name);
            Request::ReadDir { dir: id(rng), after, max: rng.u16(1..4) }
        }
        12 => {
            let mut some = |value: u32| rng.bool().then_some(value);
            let set = Setting {
                mode: some(0o600),
                uid: some(77),
                gid: some(78),
                mtime: None,
                ..Setting::default()
            };
            Request::SetAttr { id: id(rng), set }
        }
        13..17 => Request::Rename { from: at(rng), to: at(rng), noreplace: rng.u8(..4) == 0 },
        17..19 => Request::Unlink(at(rng)),
        19 => Request::Rmdir(at(rng)),
        20 => Request::Open(vec![id(rng), id(rng)]),
        21 => Request::Close(vec![id(rng), id(rng), id(rng)]),
        22 => Request::ToRemove { server: ServerNo(rng.u16(..3)), after: FileNo(rng.u64(..next)) },
        _ => Request::Removed {
            server: ServerNo(rng.u16(..3)),
            files: vec![FileNo(id(rng).0), FileNo(id(rng).0)],
        },
    }
}

/// Goal: the catalog answers as the model does, keeps what the model has, a repeated request changes nothing,
/// and a crash between any two requests loses nothing.
/// Method: random requests of two clients on few names; the tables held against the model, and those of a
/// catalog opened from copies of the files as they are.
#[test]
fn it_is_as_the_model_through_crashes() {
    for seed in 0..6 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut dir, mut desk) = fresh();
        for client in [A, B] {
            assert_eq!(desk.serve(Duration::ZERO, &[Asked::Join(None)]), [Said::Joined(client)]);
        }
        let Answer::Entry(root) = desk.store.stat(ROOT).expect("there") else { panic!("an entry") };
        let mut model = Model::new(root.meta, 2);
        let mut numbers = [0, 0];
        // The start's grace is over in the midst.
        for step in 0..500_u64 {
            let now = if step < 150 { Duration::ZERO } else { GRACE };
            let client = if rng.bool() { A } else { B };
            let request = some_request(&mut rng, model.next);
            if step >= 150 {
                model.release();
            }
            let number = &mut numbers[client.0 as usize - 1];
            *number += 1;
            let expected = model.answer(client, &request);
            let answer = ask(&mut desk, now, client, *number, request.clone());
            match expected {
                Ok(expected) => assert_eq!(answer, expected, "seed {seed} step {step}: {request:?}"),
                Err(expected) => assert_eq!(
                    errno(&answer),
                    Some(expected.raw_os_error()),
                    "seed {seed} step {step}: {request:?} {answer:?}"
                ),
            }
            if request.is_once() && errno(&answer).is_none() && rng.u8(..4) == 0 {
                if step >= 150 {
                    model.release();
                }
                let again = ask(&mut desk, now, client, *number, request.clone());
                assert_eq!(again, answer, "seed {seed} step {step}: asked again");
            }
            if step % 50 == 49 {
                assert_eq!(dump(&desk, &model), model, "seed {seed} step {step}");
                assert_eq!(desk.store.check().expect("read"), [""; 0]);
                let (copy, after) = crashed(dir.path());
                assert_eq!(dump(&after, &model), model, "seed {seed} step {step}: after a crash");
                // What is open is on no disk: each client says it again. Before the grace is over it can.
                if now == Duration::ZERO {
                    (dir, desk) = (copy, after);
                    for (client, file) in model.open.clone() {
                        let answer = ask(&mut desk, now, client, 0, Request::Open(vec![file]));
                        assert_eq!(answer, Answer::Opened { lost: vec![] });
                    }
                }
            }
        }
        assert!(model.next > 20, "something was made");
    }
}

/// Goal: a request that was done is not done twice, also after a crash, and one that is too old is not done.
#[test]
fn what_was_done_is_not_done_twice() {
    let (dir, mut desk) = fresh();
    let now = GRACE;
    let make = |name: &str| Request::Mkdir { at: place(ROOT, name), meta: meta(0o700) };
    let first = ask(&mut desk, now, A, 1, make("a"));
    assert_eq!(
        ask(
            &mut desk,
            now,
            A,
            2,
            Request::Rename { from: place(ROOT, "a"), to: place(ROOT, "b"), noreplace: false }
        ),
        Answer::Done
    );
    let (_copy, mut desk) = crashed(dir.path());
    assert_eq!(ask(&mut desk, now, A, 1, make("a")), first, "the answer is the first one");
    assert_eq!(errno(&ask(&mut desk, now, A, 3, Request::Lookup(place(ROOT, "a")))), Some(2));
    // The same number of another client is another request.
    assert_ne!(made(ask(&mut desk, now, B, 1, make("a"))).id, made(first).id);
    assert_eq!(errno(&ask(&mut desk, now, A, 1 + WINDOW, make("c"))), None);
    assert_eq!(errno(&ask(&mut desk, now, A, 1, make("d"))), Some(Errno::STALE.raw_os_error()));
    assert_eq!(ask(&mut desk, now, A, 0, Request::Leave), Answer::Done);
    let count = "SELECT count(*) FROM answers WHERE client = 1";
    assert_eq!(desk.store.db.query_row(count, [], |row| row.get::<_, i64>(0)).expect("sql"), 0);
}

/// Goal: a file that is written again and again has another time each time, a later one, whatever the clock
/// says; who sets a time has it as he set it.
#[test]
fn times_of_what_is_written_go_on() {
    let (_dir, mut desk) = fresh();
    let placing = Placing::partitioned(100, 2);
    let create =
        Request::Create { at: place(ROOT, "f"), meta: meta(0o600), exclusive: true, open: false, placing };
    let id = made(ask(&mut desk, Duration::ZERO, A, 1, create)).id;
    let at = |secs, nanos| Timestamp { secs, nanos };
    let written = Setting { written: true, ..Setting::default() };
    let set = |set: &Setting, now| match desk.store().alone(|store| store.set_at(id, set, now)) {
        Ok(Answer::Entry(entry)) => entry.meta.mtime,
        other => panic!("{other:?}"),
    };
    let mut last = meta(0).mtime;
    for now in [at(100, 5), at(100, 5), at(50, 0), at(100, 999_999_999), at(-9, 1), at(101, 7)] {
        let time = set(&written, now);
        assert!(time > last && time >= now, "{time:?} after {last:?} at {now:?}");
        last = time;
    }
    assert_eq!(last, at(101, 7));
    assert_eq!(set(&Setting { mtime: Some(at(3, 4)), ..written }, at(200, 0)), at(3, 4));
    assert_eq!(set(&Setting { mode: Some(0o644), ..Setting::default() }, at(300, 0)), at(3, 4));
}

/// Goal: a number of a client is given once, also after a crash; one that was not given is not known.
#[test]
fn numbers_of_clients_are_given_once() {
    let (dir, mut desk) = fresh();
    let group = [Asked::Join(None), Asked::Join(None), Asked::Join(Some(B)), Asked::Join(Some(ClientNo(3)))];
    let said = desk.serve(GRACE, &group);
    assert_eq!(said, [Said::Joined(A), Said::Joined(B), Said::Joined(B), Said::Unknown]);
    let (_copy, mut desk) = crashed(dir.path());
    assert_eq!(desk.serve(GRACE, &[Asked::Join(None)]), [Said::Joined(ClientNo(3))]);
}

/// Goal: the bytes of a file without a name stay as long as somebody has it open, and nobody who had it open
/// before a start is too late within the grace.
#[test]
fn what_is_open_stays() {
    let (dir, mut desk) = fresh();
    let placing = Placing::ROUND_ROBIN;
    let create =
        Request::Create { at: place(ROOT, "f"), meta: meta(0), exclusive: true, open: true, placing };
    let file = made(ask(&mut desk, GRACE, A, 1, create)).id;
    assert_eq!(ask(&mut desk, GRACE, B, 1, Request::Unlink(place(ROOT, "f"))), Answer::Done);
    let due = |desk: &mut Desk, now| {
        // What is released is so with the group before.
        desk.serve(now, &[]);
        desk.serve(now, &[]);
        ask(desk, now, B, 0, Request::ToRemove { server: ServerNo(0), after: FileNo(0) })
    };
    let (none, all) = (Answer::Files(vec![]), Answer::Files(vec![FileNo(file.0)]));
    assert_eq!(due(&mut desk, GRACE), none);
    assert!(matches!(ask(&mut desk, GRACE, A, 0, Request::Stat(file)), Answer::Entry(_)));
    // After a start nobody knows yet that A has it.
    let (_copy, mut after) = crashed(dir.path());
    assert_eq!(due(&mut after, Duration::ZERO), none);
    assert_eq!(
        ask(&mut after, Duration::ZERO, A, 0, Request::Open(vec![file])),
        Answer::Opened { lost: vec![] }
    );
    assert_eq!(due(&mut after, GRACE), none);
    // A goes, and is too late.
    assert_eq!(after.serve(GRACE, &[Asked::Gone(A)]), [Said::Nothing]);
    assert_eq!(due(&mut after, GRACE * 2 - Duration::from_secs(1)), none);
    assert_eq!(due(&mut after, GRACE * 2), all);
    assert_eq!(
        ask(&mut after, GRACE * 2, A, 0, Request::Open(vec![file])),
        Answer::Opened { lost: vec![file] }
    );
    // Nobody came back after the other start: it is found on disk.
    let (_copy, mut after) = crashed(dir.path());
    assert_eq!(due(&mut after, GRACE), all);
    // Where A closes it, it is released with that.
    assert_eq!(ask(&mut desk, GRACE, A, 0, Request::Close(vec![file])), Answer::Done);
    assert_eq!(due(&mut desk, GRACE), all);
    for server in [0, 1] {
        let files = vec![FileNo(file.0), FileNo(1), FileNo(99)];
        assert_eq!(
            ask(&mut desk, GRACE, B, 0, Request::Removed { server: ServerNo(server), files }),
            Answer::Done
        );
    }
    let left = "SELECT (SELECT count(*) FROM entries) + (SELECT count(*) FROM unlinked) + \
                (SELECT count(*) FROM removed)";
    assert_eq!(desk.store.db.query_row(left, [], |row| row.get::<_, i64>(0)).expect("sql"), 1);
}

/// Goal: a directory is served by one process at a time, and only what is whole and of this volume.
#[test]
fn what_is_not_its_own_is_refused() {
    let (dir, desk) = fresh();
    let path = dir.path().join("c");
    assert!(matches!(Store::open(&path, VOLUME), Err(StoreError::Busy(_))));
    assert!(matches!(Store::create(&path, VOLUME, &facts()), Err(StoreError::Busy(_))));
    drop(desk);
    assert!(matches!(Store::create(&path, VOLUME, &facts()), Err(StoreError::Exists(_))));
    assert!(matches!(Store::open(&path, VolumeId([8; 16])), Err(StoreError::AnotherVolume(_))));
    assert!(matches!(Store::open(&dir.path().join("d"), VOLUME), Err(StoreError::Missing(_))));
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o750)).expect("set");
    assert!(matches!(Store::open(&path, VOLUME), Err(StoreError::Open { mode: 0o750, .. })));
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("set");
    assert_eq!(Store::open(&path, VOLUME).map(|store| store.facts().clone()).expect("whole"), facts());
    let none = Facts { servers: vec![], ..facts() };
    assert!(matches!(Store::create(&dir.path().join("e"), VOLUME, &none), Err(StoreError::BadFacts(_))));
}

/// Goal: a damaged database is refused and stays as it is.
/// Method: cut, emptied, overwritten at its head, in each page, an index taken away, another program's.
#[test]
fn what_is_damaged_is_refused() {
    let (dir, mut desk) = fresh();
    for n in 0..300 {
        let at = place(ROOT, &format!("{n:0100}"));
        ask(&mut desk, GRACE, A, n, Request::Mkdir { at, meta: meta(0o700) });
    }
    drop(desk);
    let (path, file) = (dir.path().join("c"), dir.path().join("c/catalog.db"));
    let good = fs::read(&file).expect("read");
    let refused = |bytes: &[u8], what: &str| {
        fs::write(&file, bytes).expect("written");
        let error = Store::open(&path, VOLUME).map(drop).expect_err(what);
        assert!(matches!(error, StoreError::Damaged { .. } | StoreError::Unknown { .. }), "{what}: {error}");
        assert_eq!(fs::read(&file).expect("read"), bytes, "{what}: it was changed");
    };
    refused(&[], "emptied");
    refused(&good[..good.len() - 4096], "cut");
    refused(&vec![0x5a; good.len()], "another program's");
    for page in 0..good.len() / 4096 {
        let mut bytes = good.clone();
        // Where a page's head is; the first page's lies behind that of the file.
        let at = page * 4096 + if page == 0 { 100 } else { 0 };
        bytes[at..at + 64].fill(0x5a);
        refused(&bytes, &format!("page {page}"));
    }
    fs::write(&file, &good).expect("written");
    let db = rusqlite::Connection::open(&file).expect("open");
    db.execute_batch("DROP TABLE answers").expect("sql");
    drop(db);
    refused(&fs::read(&file).expect("read"), "without a table");
    fs::write(&file, &good).expect("written");
    Store::open(&path, VOLUME).expect("it was good");
}

/// Goal: where the disk is full, what needs room fails in words, what does not is answered, nothing is half
/// done, and all goes on when there is room again.
/// Method: SQLite's own bound on the pages of a database, which fails as a full disk does.
#[test]
fn a_full_disk_is_told() {
    let (_dir, mut desk) = fresh();
    let make = |n: u64| {
        Asked::Ask(A, RequestNo(n), Request::Mkdir { at: place(ROOT, &format!("{n:0250}")), meta: meta(0) })
    };
    let pages: i64 = desk.store.db.query_row("PRAGMA page_count", [], |row| row.get(0)).expect("sql");
    desk.store.db.pragma_update(None, "max_page_count", pages + 4).expect("sql");
    let mut group: Vec<_> = (1..200).map(make).collect();
    group.push(Asked::Ask(A, RequestNo(0), Request::Stat(ROOT)));
    let said = desk.serve(GRACE, &group);
    assert!(matches!(said.last(), Some(Said::Answer(Answer::Entry(_)))), "{:?}", said.last());
    let nospc = Errno::NOSPC.raw_os_error();
    let full = |said: &Said| matches!(said, Said::Answer(Answer::Failed(f)) if f.errno == nospc);
    let done = said.iter().filter(|said| matches!(said, Said::Answer(Answer::Made { .. }))).count();
    assert_eq!(done + said.iter().filter(|said| full(said)).count(), 199, "{said:?}");
    assert!(done < 199);
    let count = |desk: &Desk| -> i64 {
        desk.store.db.query_row("SELECT count(*) FROM entries", [], |row| row.get(0)).expect("sql")
    };
    assert_eq!(count(&desk), 1 + done as i64);
    assert_eq!(desk.ill(), None);
    desk.store.db.pragma_update(None, "max_page_count", 1 << 20).expect("sql");
    let said = desk.serve(GRACE, &[make(300)]);
    assert!(matches!(said[..], [Said::Answer(Answer::Made { .. })]), "{said:?}");
}

/// Goal: of a file without a name who has it open gets tickets, and nobody else, with what was asked before
/// in the same group; that it lost its name is told once; what is answered again gives none.
#[test]
fn tickets_are_for_who_has_it_open() {
    let (_dir, mut desk) = fresh();
    let create = |n: u64| {
        let (at, meta, placing) = (place(ROOT, "f"), meta(0o644), Placing::ROUND_ROBIN);
        Asked::Ask(A, RequestNo(n), Request::Create { at, meta, exclusive: true, open: true, placing })
    };
    let said = desk.serve(GRACE, &[create(1)]).pop();
    let Some(Said::Answer(Answer::Made { entry, .. })) = said else { panic!("{said:?}") };
    let (id, file) = (entry.id, FileNo(entry.id.0));
    let ask = |client, request| Asked::Ask(client, RequestNo(0), request);
    let tickets = |client| ask(client, Request::Tickets(vec![id]));
    let of = |of: OfTicket| Said::Tickets(vec![(file, of)]);
    assert_eq!(desk.serve(GRACE, &[tickets(B)]), [of(OfTicket::File { epoch: NAMED })]);
    assert_eq!(desk.take_nameless(), []);
    desk.serve(GRACE, &[Asked::Ask(B, RequestNo(1), Request::Unlink(place(ROOT, "f")))]);
    assert_eq!(desk.take_nameless(), [file]);
    assert_eq!(desk.take_nameless(), []);
    let (open, close) = (Request::Open(vec![id]), Request::Close(vec![id]));
    let group = [tickets(A), tickets(B), ask(B, open), tickets(B), ask(B, close), tickets(B), create(1)];
    let said = desk.serve(GRACE, &group);
    let (has, has_not) = (of(OfTicket::File { epoch: NAMELESS }), of(OfTicket::Nothing));
    assert_eq!([&said[0], &said[1], &said[3], &said[5]], [&has, &has_not, &has, &has_not]);
    assert!(matches!(said[6], Said::Again(Answer::Made { .. })), "{:?}", said[6]);
    desk.serve(GRACE, &[ask(A, Request::Close(vec![id]))]);
    desk.serve(GRACE, &[]);
    assert_eq!(desk.serve(GRACE, &[tickets(A)]), [of(OfTicket::Gone)]);
}
