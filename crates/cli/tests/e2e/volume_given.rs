//! Volumes of `--placement given`: files that a program placed, as commands, copies and those who may only
//! read have them.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use haul_core::entry::{Meta, Name};
use haul_core::volume::catalog::{EntryNo, Place, ROOT, Request as Ask, Setting};
use haul_core::volume::layout::{Placing, Striping};
use haul_core::volume::rights::{READ_ONLY, READERS};
use haul_core::volume::wire::{Message, Who};
use haul_core::volume::{ClientNo, ContentVersion, Epoch, FileNo, RequestNo, ServerNo, gather, storage};
use haul_volume::access::Access;
use haul_volume::api::{Error, File, Given, OpenOptions, Volume};
use haul_volume::catalog::client::Client as Catalog;
use haul_volume::client::{Client, Config, VolumeError};
use haul_volume::dial::{Dialler, Keys, Line, To};
use haul_volume::line::Mouth;
use haul_volume::lists::teach;
use haul_volume::visit::visit;
use serde_json::Value;

use crate::support::compare::{ALL, assert_same};
use crate::support::run::Haul;
use crate::support::{read, tree};
use crate::volume_copy::User;

#[allow(dead_code)]
#[path = "../../../volume/examples/blocks.rs"]
mod example;

const STRIPE: usize = 65_536;
const SERVERS: u16 = 3;
/// Nothing here takes so long on a machine that works.
const PATIENCE: Duration = Duration::from_secs(60);
const EBADF: i32 = 9;

/// Goal: what a program placed lies there, and is copied, drained, looked at and shown as any other file,
/// also after a restart and with an access for reading; what copies bring lies in turns; with the volume all
/// of it goes from the servers' directories.
#[test]
fn what_a_program_placed_is_a_file_as_any_other() {
    let user = User::new();
    let (data, out) = (user.room.dir("data"), user.room.dir("out"));
    tree::plain(&data, 6, 10, 1_000_000);
    tree::settle(&data);
    let dirs = ["ga", "gb", "gc"].map(|name| user.room.at(name));
    let words = dirs.clone().map(|dir| dir.to_str().expect("UTF-8").to_owned()).join(",");
    let create = ["volume", "create", "g", "--stripe", "64KiB", "--placement", "given", "--server", &*words];
    let haul = |words: &[&str]| user.env(Haul::new(words)).run().sane();
    haul(&create).exits(0);
    user.cp(&["-r"], &data, "vol://g/").run().sane().exits(0);

    let bytes: Vec<u8> = (0..11 * STRIPE as u64 + 77).map(|at| (at * 7 + at / 65_536) as u8).collect();
    let access = Access::read(&user.room.at("state/haul"), "g").expect("it is known");
    let volume = Volume::open(&access).expect("it is there");
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).given(Given::new([(2, 3), (0, 1)]).expect("a list"));
    let file = volume.open_file("/data/placed", &options).expect("made");
    file.pwrite(&bytes, 0).expect("written");
    file.pwrite(b"small", 5 * STRIPE as u64 + 9).expect("written");
    file.close().expect("closed");
    drop(volume);
    let mut model = bytes;
    model[5 * STRIPE + 9..][..5].copy_from_slice(b"small");
    fs::write(data.join("placed"), &model).expect("written");
    tree::settle(&data);

    let stat = |path: &str| -> Value {
        let told = haul(&["volume", "stat", path, "--json"]).exits(0);
        serde_json::from_slice(&told.stdout).expect("JSON")
    };
    let told = stat("g/data/placed");
    assert_eq!(told["placement"], "given, stripes on servers 2 (3), 0, and again");
    assert_eq!((told["first_server"].as_u64(), told["size"].as_u64()), (Some(2), Some(model.len() as u64)));
    let human = haul(&["volume", "stat", "g/data/placed"]).exits(0);
    assert!(String::from_utf8_lossy(&human.stdout).contains("2 (3), 0, and again, from server 2 on"));
    assert_eq!(stat("g/data/big")["placement"], "round-robin");
    let listed = haul(&["volume", "ls"]).exits(0);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("stripes of 65.5 kB, given, all answer"));

    let copy = |from: &str, to: &str| {
        user.cp(&["-r"], from, user.room.dir(to)).run().sane().exits(0);
        assert_eq!(read(user.room.at(to).join("data/placed")), model);
    };
    copy("vol://g/data", "first");
    haul(&["volume", "fsck", "g"]).exits(0);
    haul(&["volume", "stop", "g"]).exits(0);
    haul(&["volume", "start", "g"]).exits(0);
    let known = user.room.at("state/haul/volumes/r");
    haul(&["volume", "access", "g", "--read-only", known.to_str().expect("UTF-8")]).exits(0);
    copy("vol://r/data", "second");
    // All that was gathered is brought by now, or read with it.
    let number = told["number"].as_u64().expect("a number");
    let name = format!("data/files/{:02x}/{number:016x}", number & 0xff);
    assert!(!dirs[1].join(&name).exists(), "nothing of it was placed there");
    // Twelve stripes, three and one in turns, the last one short.
    assert_eq!(read(dirs[0].join(&name)).len(), 2 * STRIPE + 77);
    assert_eq!(read(dirs[2].join(&name)).len(), 9 * STRIPE);

    let to = out.to_str().expect("UTF-8");
    haul(&["volume", "drain", "g", "--to", to]).exits(0);
    assert_eq!(read(out.join("data/placed")), model);
    // Another one takes its name, and lies as copies do.
    user.cp(&["-r"], "vol://g/data", "vol://v/").run().sane().exits(0);
    assert_eq!(stat("v/data/placed")["placement"], "round-robin");
    user.cp(&["-r", "--force"], &data, "vol://g/").run().sane().exits(0);
    assert_eq!(stat("g/data/placed")["placement"], "round-robin");
    user.cp(&["-r"], "vol://g/data", user.room.dir("third")).run().sane().exits(0);
    assert_same(&data, &user.room.at("third/data"), ALL);
    haul(&["volume", "fsck", "g"]).exits(0);
    haul(&["volume", "destroy", "g", "--yes"]).exits(0);
    assert!(dirs.iter().all(|dir| !dir.exists()), "all of it went, lists too");
}

/// A connection to a server, on which the test says what it likes.
struct Raw {
    _dialler: Dialler,
    lines: Receiver<Line>,
    mouth: Mouth,
}

impl Raw {
    /// Who says that he is `who`.
    fn new(keys: &Keys, at: SocketAddr, server: u16, who: Who) -> Raw {
        let striping = Striping::new(STRIPE as u64, SERVERS);
        let to = To { server: ServerNo(server), at, striping };
        let (sender, lines) = channel();
        let post = move |line| _ = sender.send(line);
        let dialler = Dialler::start(keys.clone(), to, who, 1, post).expect("a thread");
        match lines.recv_timeout(PATIENCE).expect("it connects") {
            Line::Up(_, mouth) => Raw { _dialler: dialler, lines, mouth },
            Line::Down(why) => panic!("{why}"),
            Line::Said(..) => panic!("a word before all others"),
        }
    }

    fn say(&self, message: Message) {
        let bytes = vec![9; message.following() as usize];
        self.mouth.say(message, Arc::new(bytes));
    }

    /// The errno that a request of that number is refused with; an error: the server ends it.
    fn refusal(&self, number: RequestNo) -> Result<Option<i32>, String> {
        loop {
            match self.lines.recv_timeout(PATIENCE).expect("it is answered") {
                Line::Said(Message::Gathered(of, gather::Answer::Failed(errno), _), _) if of == number => {
                    return Ok(Some(errno));
                }
                Line::Said(Message::Stored(of, storage::Answer::Failed(errno), _), _) if of == number => {
                    return Ok(Some(errno));
                }
                Line::Said(Message::Gathered(of, ..) | Message::Stored(of, ..), _) if of == number => {
                    return Ok(None);
                }
                Line::Down(why) => return Err(why),
                Line::Said(..) | Line::Up(..) => {}
            }
        }
    }

    /// Why the server ends it.
    fn ends(&self) -> String {
        loop {
            if let Line::Down(why) = self.lines.recv_timeout(PATIENCE).expect("it is ended") {
                return why;
            }
        }
    }
}

/// All of a file, by its blocks in any order; how many came straight from the servers that have them.
fn by_blocks(file: &File) -> (Vec<u8>, Vec<u16>, u64) {
    let blocks = file.blocks().expect("blocks");
    let mut bytes = vec![0; blocks.file_len() as usize];
    let numbers: Vec<u64> = (0..blocks.count()).rev().collect();
    let mut came = vec![0; numbers.len()];
    let ways = file.read_blocks(&numbers, |number, block| {
        came[number as usize] += 1;
        bytes[number as usize * STRIPE..][..block.len()].copy_from_slice(block);
    });
    assert!(came.iter().all(|times| *times == 1));
    (bytes, blocks.iter().map(|block| block.server).collect(), ways.expect("read").direct)
}

/// Goal: whoever may only read a volume in which programs placed files reads each byte of them, straight from
/// the servers that were given, before and after all of them were started anew; and neither where a file lies
/// nor a byte of it nor a name is changed by anything that he can ask for: by the library, by each request of
/// the catalog and of servers, by a list that he tells servers himself, by passing for somebody else.
/// Method: servers are processes; each call and each request, then names, blocks, bytes and the servers'
/// files against what was there before.
#[test]
fn readers_of_placed_files_change_nothing() {
    let user = User::new();
    let dirs = ["ga", "gb", "gc"].map(|name| user.room.at(name));
    let words = dirs.clone().map(|dir| dir.to_str().expect("UTF-8").to_owned()).join(",");
    let haul = |words: &[&str]| user.env(Haul::new(words)).run().sane();
    haul(&["volume", "create", "g", "--stripe", "64KiB", "--placement", "given", "--server", &words])
        .exits(0);
    let state = user.room.at("state/haul");
    let access = Access::read(&state, "g").expect("it is known");
    let owner = Volume::open(&access).expect("it is there");
    let lists: [(&str, &[(u16, u64)]); 3] =
        [("/one", &[(1, 1)]), ("/few", &[(2, 3), (0, 1)]), ("/far", &[(0, 2), (2, 1), (1, 40)])];
    let mut models = Vec::new();
    for (n, (path, list)) in lists.iter().enumerate() {
        let mut random = fastrand::Rng::with_seed(n as u64);
        let bytes = tree::bytes(&mut random, 10 * STRIPE - 1000 * n);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).given(Given::new(list.iter().copied()).expect("a list"));
        let file = owner.open_file(path, &options).expect("made");
        let parts: Vec<(u64, &[u8])> = (0..).zip(bytes.chunks(STRIPE)).collect();
        file.write_blocks(&parts).expect("written");
        file.close().expect("closed");
        models.push(bytes);
    }
    let known = state.join("volumes/r");
    haul(&["volume", "access", "g", "--read-only", known.to_str().expect("UTF-8")]).exits(0);
    let told = Access::read(&state, "r").expect("it is known");
    // One that says of itself that it is for everything.
    let text = fs::read_to_string(&known).expect("written");
    user.room.dir("lies/volumes");
    let lies = user.room.file("lies/volumes/r", text.replace("\"read_only\": true", "\"read_only\": false"));
    crate::support::set_mode(&lies, 0o600);
    let lying = Access::read(&user.room.at("lies"), "r").expect("it is known");
    assert!(told.read_only && !lying.read_only);

    let reads = |access: &Access| {
        let volume = Volume::open(access).expect("it is there");
        for ((path, list), model) in lists.iter().zip(&models) {
            let file = volume.open_file(path, OpenOptions::new().read(true)).expect("opened");
            let once = list.iter().flat_map(|(server, count)| (0..*count).map(move |_| *server));
            let given: Vec<u16> = once.collect::<Vec<_>>().into_iter().cycle().take(10).collect();
            let (bytes, servers, direct) = by_blocks(&file);
            assert!(bytes == *model && servers == given && direct == 10, "{path}: {servers:?}, {direct}");
            file.prefetch(std::slice::from_ref(&(0..model.len() as u64))).expect("begun");
            let mut rooms: Vec<(u64, Vec<u8>)> =
                (0..2000_u64).map(|n| (n * 7919 % model.len() as u64, vec![1; n as usize % 700])).collect();
            let mut ranges: Vec<(u64, &mut [u8])> =
                rooms.iter_mut().map(|(from, room)| (*from, &mut room[..])).collect();
            let lens = file.pread_many(&mut ranges).expect("read");
            for ((from, room), len) in rooms.iter().zip(lens) {
                let rest = &model[*from as usize..];
                assert!(len == room.len().min(rest.len()) && room[..len] == rest[..len], "{path}");
            }
            let out = tempfile::tempfile().expect("a file");
            let (len, of) = example::copy_out(&volume, path, &out).expect("copied");
            let mut copy = vec![1; model.len() + 1];
            let read = std::os::unix::fs::FileExt::read_at(&out, &mut copy, 0).expect("read");
            assert!((read, len) == (model.len(), read as u64) && copy[..read] == *model, "{path}");
            let on = |server: u16| given.iter().filter(|one| **one == server).count() as u64;
            assert_eq!(of, (0..SERVERS).map(on).collect::<Vec<_>>());
        }
    };
    let numbers: Vec<u64> = lists.iter().map(|(path, _)| owner.stat(path).expect("there").number).collect();
    let state_of = |volume: &Volume| {
        let names: Vec<_> = volume.read_dir("/").expect("read").map(|one| one.expect("a name")).collect();
        let stats: Vec<_> = lists.iter().map(|(path, _)| volume.stat(path).expect("there")).collect();
        let disk = |number: &u64| {
            let name = format!("data/files/{:02x}/{number:016x}", number & 0xff);
            dirs.each_ref().map(|dir| fs::read(dir.join(&name)).unwrap_or_default())
        };
        let known =
            dirs.each_ref().map(|dir| fs::read_dir(dir.join("data/lists")).map_or(0, Iterator::count));
        (names, stats, numbers.iter().map(disk).collect::<Vec<_>>(), known)
    };
    reads(&told);
    let before = state_of(&owner);

    for access in [&told, &lying] {
        by_the_library(&Volume::open(access).expect("it is there"));
        by_requests(access, FileNo(numbers[1]));
    }
    assert!(state_of(&owner) == before, "a reader changed something");
    reads(&access);
    reads(&told);
    drop(owner);
    haul(&["volume", "stop", "g"]).exits(0);
    haul(&["volume", "start", "g"]).exits(0);
    reads(&told);
    by_requests(&told, FileNo(numbers[1]));
    assert!(state_of(&Volume::open(&access).expect("it is there")) == before, "a reader changed something");
    haul(&["volume", "fsck", "g"]).exits(0);
    haul(&["volume", "destroy", "g", "--yes"]).exits(0);
}

/// Each call of the library that changes something, by whoever may not.
fn by_the_library(volume: &Volume) {
    let name = |text: &str| Name::new(text.as_bytes()).expect("a name");
    let refused = |what: &str, result: Result<(), Error>| {
        let error = result.expect_err(what);
        assert!([READ_ONLY, EBADF].contains(&error.errno()), "{what}: {error}");
    };
    let (mut makes, mut places) = (OpenOptions::new(), OpenOptions::new());
    makes.write(true).create(true);
    places.write(true).create_new(true).given(Given::each(&[2, 0]).expect("a list"));
    let mut known = OpenOptions::new();
    known.write(true).create_new(true).given(Given::new([(1, 1)]).expect("a list"));
    refused("make", volume.open_file("/new", &makes).map(drop));
    refused("make by a new list", volume.open_file("/new", &places).map(drop));
    refused("make by a known list", volume.open_file("/new", &known).map(drop));
    refused("make empty", volume.open_file("/few", OpenOptions::new().write(true).truncate(true)).map(drop));
    refused("mkdir", volume.mkdir("/d", 0o700));
    refused("symlink", volume.symlink("few", "/l"));
    refused("rename", volume.rename("/few", "/moved"));
    refused("rename over", volume.rename("/one", "/few"));
    refused("unlink", volume.unlink("/few"));
    refused("rmdir", volume.rmdir("/few"));
    let dir = volume.open_dir("/").expect("it is there");
    refused("make here", dir.open_file(&name("new"), &makes).map(drop));
    refused("mkdir here", dir.mkdir(&name("d"), 0o700));
    refused("rename here", dir.rename(&name("few"), &dir, &name("one")));
    refused("unlink here", dir.unlink(&name("few")));
    refused("rmdir here", dir.rmdir(&name("few")));
    refused("set the mode here", dir.set_mode(&name("few"), 0o777));
    refused("set the time here", dir.set_mtime(&name("few"), 7, 7));
    for options in [
        OpenOptions::new().read(true),
        OpenOptions::new().read(true).write(true),
        OpenOptions::new().append(true),
        // How it lies is settled.
        OpenOptions::new().write(true).given(Given::new([(1, 1)]).expect("a list")),
    ] {
        let file = match volume.open_file("/few", options) {
            Ok(file) => file,
            Err(error) => {
                assert_eq!(error.errno(), READ_ONLY, "{error}");
                continue;
            }
        };
        refused("write little", file.pwrite(b"x", 5));
        refused("write much", file.pwrite(&[1; 3 * STRIPE], 5));
        refused("begin", file.begin_write(vec![1; 9], 0).and_then(|write| write.wait()));
        refused("write blocks", file.write_blocks(&[(1, &[1; STRIPE])]).map_err(|one| one.error));
        refused("append", file.append(b"more").map(drop));
        refused("cut", file.set_len(0));
        refused("lengthen", file.set_len(1 << 30));
        refused("set the mode", file.set_mode(0o777));
        // It wrote nothing, so there is nothing to sync, or that is refused.
        let _ = (file.sync_data(), file.sync(), file.close());
    }
    let _ = volume.settle();
}

/// Each request that changes something, of the catalog and of all servers.
fn by_requests(access: &Access, file: FileNo) {
    // No other client has such a number.
    static NEXT: AtomicU64 = AtomicU64::new(1 << 40);
    let keys = access.keys().expect("a key");
    let at = access.addresses().expect("addresses");
    let catalog_at = access.catalog.address().expect("an address");
    let catalog = Catalog::connect(keys.clone(), catalog_at, PATIENCE).expect("it answers");
    assert!(catalog.number().0 & READERS != 0);
    let place = |text: &str| Place { parent: ROOT, name: Name::new(text.as_bytes()).expect("legal") };
    let (meta, id) = (Meta::default(), EntryNo(file.0));
    let create = |placing| Ask::Create { at: place("x"), meta, exclusive: true, open: true, placing };
    for request in [
        Ask::Mkdir { at: place("d"), meta },
        create(Placing::ROUND_ROBIN),
        create(Placing::given(0).expect("one")),
        Ask::Place(Given::new([(1, 1)]).expect("a list")),
        Ask::Place(Given::new([(1, 7)]).expect("a list")),
        Ask::Symlink { at: place("l"), meta, target: b"few"[..].into() },
        Ask::SetAttr { id, set: Setting { mode: Some(0o600), ..Setting::default() } },
        Ask::SetAttr { id, set: Setting { written: true, ..Setting::default() } },
        Ask::Rename { from: place("few"), to: place("one"), noreplace: false },
        Ask::Unlink(place("few")),
        Ask::Rmdir(place("few")),
        Ask::Note { place: "h:/a".into(), files: Vec::new() },
        Ask::Check,
        Ask::ToRemove { server: ServerNo(0), after: FileNo(0) },
        Ask::Removed { server: ServerNo(0), files: vec![file] },
    ] {
        let refused = catalog.call(request.clone()).map(|_| ()).map_err(|failure| failure.errno);
        assert_eq!(refused, Err(READ_ONLY), "{request:?}");
    }
    catalog.stat(id).expect("it is there");
    let config = Config {
        keys: keys.clone(),
        number: catalog.number(),
        servers: at.clone(),
        stripe_size: STRIPE as u64,
        write_threshold: Some(4096),
        patience: PATIENCE,
    };
    let client = Client::start_for(config, &catalog).expect("threads");
    for error in [
        client.write(file, 0, vec![1; 10]).wait().expect_err("gathered"),
        client.write(file, 0, vec![1; 10_000]).wait().expect_err("direct"),
        client.append(file, vec![1]).wait().expect_err("appended"),
        client.truncate(file, 0).wait().expect_err("cut"),
        client.remove(file).wait().expect_err("removed"),
        client.told(file, ContentVersion::default()).wait().expect_err("told"),
    ] {
        assert!(matches!(error, VolumeError::Failed(_, READ_ONLY)), "{error}");
    }
    let epoch = Epoch { gatherer: u32::MAX, fence: 0 };
    let mut gatherers = 0;
    for (server, at) in (0..).zip(&at) {
        let reader = || {
            let nobody = NEXT.fetch_add(1, Ordering::Relaxed);
            Raw::new(&keys, *at, server, Who::Client(ClientNo(nobody | READERS)))
        };
        let mut raw = reader();
        let gathers = [
            gather::Request::Write { file, offset: 0, len: 8, bytes: 8 },
            gather::Request::Append { file, number: gather::AppendNo(1), len: 8, bytes: 8 },
            gather::Request::Lease { file, stripes: 0..10 },
            gather::Request::Truncate { file, len: 0 },
            gather::Request::Sync { file },
            gather::Request::Remove { file },
        ];
        let stores = [
            storage::Request::Write { file, epoch, offset: 0, bytes: 8 },
            storage::Request::Cut { file, epoch, from: 0 },
            storage::Request::Sync { file },
            storage::Request::Remove { file, epoch },
        ];
        let gathers = gathers.into_iter().map(|request| Message::Gather(RequestNo(0), request));
        let stores = stores.into_iter().map(|request| Message::Store(RequestNo(0), request));
        for (number, message) in (1..).map(RequestNo).zip(gathers.chain(stores)) {
            let shown = format!("{message:?}");
            let is_gather = matches!(message, Message::Gather(..));
            raw.say(match message {
                Message::Gather(_, request) => Message::Gather(number, request),
                Message::Store(_, request) => Message::Store(number, request),
                other => other,
            });
            match raw.refusal(number) {
                // Only one server gathers it; the others end whoever asks them.
                Err(why) if is_gather && why.contains("another server gathers") => raw = reader(),
                refusal => {
                    gatherers += u32::from(is_gather);
                    assert_eq!(refusal, Ok(Some(READ_ONLY)), "server {server}: {shown}");
                }
            }
        }
        // It has no answer, and would make the file longer.
        raw.say(Message::Gather(RequestNo(99), gather::Request::Grow { file, epoch, end: 1 << 30 }));
        // Somebody who may write, and a server.
        for who in [Who::Client(ClientNo(1)), Who::Gatherer(ServerNo((server + 1) % SERVERS))] {
            let why = Raw::new(&keys, *at, server, who).ends();
            assert!(why.contains("nobody is such"), "{who:?}: {why}");
        }
        assert!(visit(&keys, *at, Some(ServerNo(server)), true, PATIENCE).is_err(), "a reader ends it");
    }
    assert_eq!(gatherers, 6, "each was asked of the one that gathers it");
    assert!(visit(&keys, catalog_at, None, true, PATIENCE).is_err(), "a reader ends the catalog");
    // What the files that are there lie by, and what some will.
    for number in [0, 1, 9] {
        let (placing, list) =
            (Placing::given(number).expect("one"), Given::each(&[2, 1, 0]).expect("a list"));
        let told = teach(&keys, &at, placing, &list, PATIENCE);
        assert!(told.is_err_and(|why| why.to_string().contains("for reading")), "list {number}");
    }
}
