//! Files of a volume as programs use them: real servers and a real catalog on loopback, every byte compared.

mod rig;

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use haul_core::entry::Name;
use haul_core::volume::catalog::{Place, ROOT, Setting};
use haul_volume::api::{Error, File, Given, Kind, OpenOptions, Placement, Volume, Why};
use haul_volume::catalog::client::Client as Catalog;
use haul_volume::catalog::server::Options;
use haul_volume::client::VolumeError;
use rig::{PATIENCE, Rig, STRIPE, bytes, random, whole};

#[allow(dead_code)]
#[path = "../examples/blocks.rs"]
mod example;

const EINVAL: i32 = 22;
const EBADF: i32 = 9;
const EFBIG: i32 = 27;

fn servers(count: usize) -> Rig {
    Rig::new(count, Placement::Given, Options::default())
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    options
}

/// A file as a test believes it to be.
#[derive(Default)]
struct Model {
    bytes: Vec<u8>,
    /// Everybody sees so many of them at least.
    told: usize,
    /// How far it reaches by what each client wrote and did not sync.
    own: [usize; 3],
}

impl Model {
    fn write(&mut self, client: usize, at: usize, data: &[u8]) {
        let end = at + data.len();
        if self.bytes.len() < end && !data.is_empty() {
            self.bytes.resize(end, 0);
        }
        if !data.is_empty() {
            self.bytes[at..end].copy_from_slice(data);
            self.own[client] = self.own[client].max(end);
        }
    }

    /// Where a client sees it end is somewhere between what it must see and what there is.
    fn ends(&self, client: usize, end: usize) {
        assert!(self.told.max(self.own[client]) <= end && end <= self.bytes.len(), "it ends at {end}");
    }

    /// A client read so much from there on.
    fn read(&self, client: usize, at: usize, room: &[u8], len: usize) {
        assert!(len <= room.len());
        assert!(room[..len] == self.bytes[at.min(self.bytes.len())..][..len], "bytes from {at} on");
        let (least, most) = (self.told.max(self.own[client]), self.bytes.len());
        let of = |end: usize| end.saturating_sub(at).min(room.len());
        assert!(of(least) <= len && len <= of(most), "{len} bytes from {at} on");
    }
}

/// Goal: whatever several clients do to files in turns, each byte that one of them reads is the one that was
/// written last, and each file ends where it should, over any path, read ahead or not, and after servers were
/// started anew.
/// Method: random operations of three clients, one that gathers nothing, one that gathers what is small and
/// one that finds out, on three files, against a plain copy.
#[test]
fn random_operations_do_as_a_model_does() {
    let mut rig = servers(3);
    let mut random = random(11);
    let volumes =
        [rig.volume(Some(0), PATIENCE), rig.volume(Some(4096), PATIENCE), rig.volume(None, PATIENCE)];
    let open = |client: usize, file: usize| {
        let mut options = options();
        if file == 1 {
            options.placement(Placement::Partitioned).expected_len(9 * STRIPE as u64);
        }
        if file == 2 {
            options.given(Given::new([(2, 1), (0, 3), (2, 2)]).expect("a list"));
        }
        volumes[client].open_file(format!("/f{file}"), &options).expect("opened")
    };
    let mut files: Vec<Vec<File>> =
        (0..3).map(|client| (0..3).map(|file| open(client, file)).collect()).collect();
    let mut models: Vec<Model> = (0..3).map(|_| Model::default()).collect();
    for round in 0..700 {
        let (client, at) = (random.usize(0..3), random.usize(0..3));
        let model = &mut models[at];
        let far = model.bytes.len() + 10_000;
        let offset = if random.bool() { random.usize(0..far) } else { random.usize(0..6 * STRIPE) };
        let len = match random.u8(0..4) {
            0 => random.usize(0..64),
            1 => random.usize(0..5000),
            2 => random.usize(0..100_000),
            _ => random.usize(0..300_000),
        };
        match random.u8(0..26) {
            0..6 => {
                let data = bytes(&mut random, len);
                files[client][at].pwrite(&data, offset as u64).expect("written");
                model.write(client, offset, &data);
            }
            6 => {
                // Behind what others wrote directly and did not sync nothing is put.
                for (client, files) in files.iter().enumerate() {
                    files[at].sync().expect("synced");
                    model.own[client] = 0;
                }
                let data = bytes(&mut random, len);
                let place = files[client][at].append(&data).expect("appended") as usize;
                assert_eq!(place, model.bytes.len(), "round {round}");
                model.write(client, place, &data);
                model.told = model.bytes.len();
            }
            7 => {
                for (client, files) in files.iter().enumerate() {
                    files[at].sync().expect("synced");
                    model.own[client] = 0;
                }
                files[client][at].set_len(offset as u64).expect("cut");
                model.bytes.resize(offset, 0);
                model.told = offset;
            }
            8..10 => {
                files[client][at].sync().expect("synced");
                model.told = model.told.max(model.own[client]);
                model.own[client] = 0;
            }
            10 => {
                let file = std::mem::replace(&mut files[client][at], open(client, at));
                file.close().expect("closed");
                model.told = model.told.max(model.own[client]);
                model.own[client] = 0;
            }
            11..14 => {
                let from = offset as u64;
                let ranges = [from..from + len as u64, 5..5, from / 2..from];
                files[client][at].prefetch(&ranges).expect("begun");
            }
            14..18 => {
                let mut room = vec![1; len];
                let len = files[client][at].pread(&mut room, offset as u64).expect("read");
                model.read(client, offset, &room, len);
            }
            18..22 => {
                let mut rooms: Vec<(u64, Vec<u8>)> = (0..random.usize(0..40))
                    .map(|_| {
                        let from = offset as u64 + random.u64(0..200_000);
                        let from = if random.u8(0..20) == 0 { u64::MAX - from } else { from };
                        (from, vec![1; random.usize(0..20_000)])
                    })
                    .collect();
                let mut ranges: Vec<(u64, &mut [u8])> =
                    rooms.iter_mut().map(|(from, room)| (*from, &mut room[..])).collect();
                let lens = files[client][at].pread_many(&mut ranges).expect("read");
                for ((from, room), len) in rooms.iter().zip(lens) {
                    match *from > 1 << 40 {
                        true => assert_eq!(len, 0),
                        false => model.read(client, *from as usize, room, len),
                    }
                }
            }
            22 => {
                let end = files[client][at].len().expect("a length") as usize;
                model.ends(client, end);
            }
            23 => {
                let blocks: Vec<(u64, Vec<u8>)> = (0..random.u64(0..4))
                    .map(|_| {
                        let len = if random.bool() { STRIPE } else { random.usize(0..=STRIPE) };
                        (random.u64(0..8), bytes(&mut random, len))
                    })
                    .collect();
                let told: Vec<(u64, &[u8])> = blocks.iter().map(|(no, data)| (*no, &data[..])).collect();
                files[client][at].write_blocks(&told).expect("written");
                for (number, data) in &blocks {
                    model.write(client, *number as usize * STRIPE, data);
                }
            }
            24 => {
                let file = &files[client][at];
                let numbers: Vec<u64> = (0..random.usize(0..12)).map(|_| random.u64(0..10)).collect();
                let mut came = Vec::new();
                file.read_blocks(&numbers, |number, bytes| {
                    let mut room = bytes.to_vec();
                    room.resize(STRIPE, 0);
                    model.read(client, number as usize * STRIPE, &room, bytes.len());
                    came.push(number);
                })
                .expect("read");
                let mut asked = numbers;
                asked.sort_unstable();
                came.sort_unstable();
                assert_eq!(came, asked, "each once");
            }
            _ => {
                for (client, files) in files.iter().enumerate() {
                    for (file, model) in files.iter().zip(&mut models) {
                        file.sync().expect("synced");
                        model.told = model.told.max(model.own[client]);
                        model.own[client] = 0;
                    }
                }
                if random.u8(0..4) == 0 {
                    let number = random.usize(0..3);
                    rig.kill(number);
                    rig.revive(number);
                }
            }
        }
    }
    for (at, model) in models.iter_mut().enumerate() {
        for (client, files) in files.iter().enumerate() {
            files[at].sync().expect("synced");
            model.own[client] = 0;
        }
        for files in &files {
            assert!(whole(&files[at]) == model.bytes, "file {at} in the end");
        }
    }
}

/// Goal: ranges that are empty, that overlap, that begin behind the end or where no file reaches are read as
/// far as there is anything; what does not fit into a file is refused; nothing is done that the file was not
/// opened for.
#[test]
fn what_no_file_has_is_not_read() {
    let rig = servers(2);
    let volume = rig.volume(None, PATIENCE);
    let file = volume.open_file("/f", &options()).expect("opened");
    assert!(file.is_empty().expect("a length"));
    file.pwrite(b"hello", 70_000).expect("written");
    file.pwrite(b"", u64::MAX).expect("nothing is written");
    let mut rooms = [[1_u8; 8]; 7];
    let [a, b, c, d, e, f, g] = &mut rooms;
    let mut ranges: [(u64, &mut [u8]); 8] = [
        (70_000, a),
        (70_004, b),
        (70_005, c),
        (u64::MAX, d),
        (i64::MAX as u64 - 3, e),
        (69_999, f),
        (65_532, g),
        (3, &mut []),
    ];
    let lens = file.pread_many(&mut ranges).expect("read");
    assert_eq!(lens, [5, 1, 0, 0, 0, 6, 8, 0]);
    assert_eq!((&rooms[0][..5], &rooms[1][..1], &rooms[5][..6]), (&b"hello"[..], &b"o"[..], &b"\0hello"[..]));
    assert_eq!(rooms[6], [0; 8], "a hole over two stripes");
    assert_eq!(file.pread_many(&mut []).expect("nothing"), [0; 0]);
    for offset in [u64::MAX, i64::MAX as u64, u64::MAX - 1] {
        let error = file.pwrite(b"xx", offset).expect_err("no file reaches there");
        assert_eq!(error.errno(), EFBIG, "{error}");
        assert!(error.to_string().starts_with("cannot write vol://v/f: "), "{error}");
    }
    assert_eq!(file.set_len(1 << 63).expect_err("too long").errno(), EFBIG);
    file.prefetch(&[0..u64::MAX, u64::MAX..u64::MAX]).expect("as much as there is");
    assert_eq!(whole(&file).len(), 70_005);
    let blocks = file.blocks().expect("blocks");
    assert_eq!((blocks.count(), blocks.get(1).expect("there").len), (2, 70_005 - STRIPE as u64));
    assert!(blocks.get(2).is_none() && blocks.get(u64::MAX).is_none());
    let mut came = Vec::new();
    let ways = file.read_blocks(&[u64::MAX, 7, 1], |number, bytes| came.push((number, bytes.len())));
    assert_eq!(ways.expect("read").empty, 2);
    assert_eq!(came, [(u64::MAX, 0), (7, 0), (1, 70_005 - STRIPE)]);
    let long = vec![1; STRIPE + 1];
    let one = file.write_blocks(&[(0, &[1]), (0, &long)]).expect_err("too long");
    assert_eq!((one.number, one.error.errno()), (1, EINVAL));
    assert!(file.write_blocks(&[(u64::MAX, &[1])]).is_err());
    file.close().expect("closed");

    let reads = volume.open_file("/f", OpenOptions::new().read(true)).expect("opened");
    assert_eq!(reads.pwrite(b"x", 0).expect_err("to read alone").errno(), EBADF);
    assert_eq!(reads.append(b"x").expect_err("to read alone").errno(), EBADF);
    assert_eq!(reads.set_len(1).expect_err("to read alone").errno(), EBADF);
    let writes = volume.open_file("/f", OpenOptions::new().append(true)).expect("opened");
    assert_eq!(writes.pread(&mut [0], 0).expect_err("to append alone").errno(), EBADF);
    assert_eq!(writes.pwrite(b"x", 0).expect_err("to append alone").errno(), EBADF);
    assert_eq!(writes.append(b"").expect("nothing"), 70_005);
    assert_eq!(writes.append(b"!").expect("appended"), 70_005);
    for odd in [
        OpenOptions::new().create(true),
        OpenOptions::new().read(true).truncate(true),
        OpenOptions::new().append(true).truncate(true),
        options().mode(0o10_000),
    ] {
        let error = volume.open_file("/f", odd).map(drop).expect_err("that does not fit");
        assert_eq!(error.errno(), EINVAL, "{error}");
    }
}

/// Goal: whoever opens a file after another has closed it sees all that he wrote, its length and a later
/// time, whichever way it went; so does whoever had it open, after a sync. What was dropped and not closed is
/// synced too.
#[test]
fn open_sees_what_a_close_before_it_wrote() {
    let rig = servers(3);
    let mut random = random(3);
    for threshold in [0, u64::MAX] {
        let (writer, other) = (rig.volume(Some(threshold), PATIENCE), rig.volume(None, PATIENCE));
        let path = format!("/t{threshold}");
        let file = writer.open_file(&path, &options()).expect("opened");
        let open = other.open_file(&path, OpenOptions::new().read(true)).expect("opened");
        let before = other.stat(&path).expect("there");
        let mut model = bytes(&mut random, 5 * STRIPE + 17);
        file.pwrite(&model, 0).expect("written");
        assert!(whole(&file) == model, "its writer sees it at once");
        file.close().expect("closed");
        let now = other.open_file(&path, OpenOptions::new().read(true)).expect("opened");
        assert!(whole(&now) == model);
        assert!(whole(&open) == model);
        let after = other.stat(&path).expect("there");
        assert!(after.mtime > before.mtime && after.len == model.len() as u64, "{after:?}");
        let dropped = writer.open_file(&path, &options()).expect("opened");
        dropped.pwrite(b"more", model.len() as u64).expect("written");
        drop(dropped);
        model.extend(b"more");
        writer.settle().expect("synced");
        assert!(whole(&open) == model);
        let emptied = other.open_file(&path, options().truncate(true)).expect("opened");
        assert_eq!((whole(&emptied).len(), whole(&open).len()), (0, 0));
        let error = writer.open_file(&path, OpenOptions::new().write(true).create_new(true));
        assert_eq!(error.map(drop).expect_err("it is there").errno(), 17);
    }
}

/// Goal: what was read ahead is given without asking its server; and after anybody wrote, cut or appended,
/// whichever way and synced or not, what is read is what he wrote.
/// Method: a server that is gone cannot be asked: what it had comes all the same. Then each kind of change,
/// each after everything was read ahead anew.
#[test]
fn what_was_read_ahead_is_never_old() {
    let mut rig = servers(3);
    let mut random = random(5);
    let (direct, gathers, reader) =
        (rig.volume(Some(0), PATIENCE), rig.volume(Some(u64::MAX), PATIENCE), rig.volume(None, PATIENCE));
    let mut model = bytes(&mut random, 9 * STRIPE);
    let of = |volume: &Volume| volume.open_file("/f", &options()).expect("opened");
    let (direct, gathers, reads) = (of(&direct), of(&gathers), of(&reader));
    direct.pwrite(&model, 0).expect("written");
    direct.sync().expect("synced");
    let all = 0..model.len() as u64;
    assert_eq!(reads.prefetch(std::slice::from_ref(&all)).expect("begun"), all.end);
    // All of it came.
    assert!(whole(&reads) == model);
    let blocks = reads.blocks().expect("blocks");
    // The file begins at the server that gathers it, and that must tell whether anything is new.
    let gatherer = usize::from(blocks.get(0).expect("there").server);
    let gone = (gatherer + 1) % 3;
    let there = |at: &u64| usize::from(blocks.get(*at).expect("there").server) == gone;
    let lies: Vec<u64> = (0..blocks.count()).filter(there).collect();
    assert_eq!(lies.len(), 3);
    rig.kill(gone);
    for number in lies {
        let at = number as usize * STRIPE + 100;
        let mut room = vec![0; STRIPE - 100];
        assert_eq!(reads.pread(&mut room, at as u64).expect("it is held"), room.len());
        assert!(room == model[at..at + room.len()]);
    }
    rig.revive(gone);
    type Change<'a> = (&'a str, Box<dyn Fn(&mut Vec<u8>) + 'a>);
    let changes: [Change<'_>; 6] = [
        (
            "directly",
            Box::new(|model: &mut Vec<u8>| {
                direct.pwrite(&[1; STRIPE], 100).expect("written");
                model[100..100 + STRIPE].fill(1);
            }),
        ),
        (
            "directly once more, under the same lease",
            Box::new(|model: &mut Vec<u8>| {
                direct.pwrite(&[2; 100], 0).expect("written");
                model[..100].fill(2);
            }),
        ),
        (
            "gathered",
            Box::new(|model: &mut Vec<u8>| {
                gathers.pwrite(b"small", 3 * STRIPE as u64 + 5).expect("written");
                model[3 * STRIPE + 5..][..5].copy_from_slice(b"small");
            }),
        ),
        (
            "appended",
            Box::new(|model: &mut Vec<u8>| {
                assert_eq!(gathers.append(b"at its end").expect("appended"), model.len() as u64);
                model.extend(b"at its end");
            }),
        ),
        (
            "cut",
            Box::new(|model: &mut Vec<u8>| {
                direct.set_len(7 * STRIPE as u64).expect("cut");
                model.truncate(7 * STRIPE);
            }),
        ),
        (
            "by its reader",
            Box::new(|model: &mut Vec<u8>| {
                reads.pwrite(b"own", 1000).expect("written");
                model[1000..1003].copy_from_slice(b"own");
            }),
        ),
    ];
    for round in 0..2 {
        for (what, change) in &changes {
            reads.prefetch(&[0..STRIPE as u64, STRIPE as u64..10 * STRIPE as u64]).expect("begun");
            if round == 1 {
                assert!(whole(&reads) == model, "before: {what}");
            }
            change(&mut model);
            assert!(whole(&reads) == model, "{what}, round {round}");
        }
        model.resize(9 * STRIPE, 0);
        gathers.set_len(9 * STRIPE as u64).expect("longer");
    }
}

/// Goal: blocks come straight from the servers that have them, each once and with its bytes; those of which
/// something is gathered come with it.
/// Method: each block's bytes are sought in the directory of the server that is named.
#[test]
fn blocks_come_straight_from_their_servers() {
    let rig = servers(3);
    let mut random = random(7);
    let (direct, gathers) = (rig.volume(Some(0), PATIENCE), rig.volume(Some(u64::MAX), PATIENCE));
    for file in 0..3 {
        let path = format!("/f{file}");
        let (file, other) =
            (direct.open_file(&path, &options()).expect("opened"), gathers.open_file(&path, &options()));
        let other = other.expect("opened");
        let mut model = bytes(&mut random, 20 * STRIPE + 1000);
        let told: Vec<(u64, &[u8])> = (0..).zip(model.chunks(STRIPE)).collect();
        file.write_blocks(&told).expect("written");
        file.sync().expect("synced");
        let blocks = file.blocks().expect("blocks");
        assert_eq!(blocks.count(), 21);
        let number = file.stat().expect("there").number;
        let on_disk = |server: u16| {
            let name = format!("files/{:02x}/{number:016x}", number & 0xff);
            fs::read(rig.root(usize::from(server)).join(name)).expect("a file of the server")
        };
        let disks: Vec<Vec<u8>> = (0..3).map(on_disk).collect();
        for block in blocks.iter() {
            let (offset, len) = (block.offset as usize, block.len as usize);
            let lies = disks[usize::from(block.server)].chunks(STRIPE);
            assert!(
                lies.into_iter().any(|bytes| bytes[..len.min(bytes.len())] == model[offset..offset + len])
            );
        }
        let numbers: Vec<u64> = (0..21).rev().collect();
        let read = |file: &File, model: &[u8]| {
            let mut came = vec![0; 21];
            let ways = file.read_blocks(&numbers, |number, bytes| {
                let at = number as usize * STRIPE;
                assert!(bytes == &model[at..model.len().min(at + STRIPE)], "block {number}");
                came[number as usize] += 1;
            });
            assert_eq!(came, [1; 21]);
            ways.expect("read")
        };
        let ways = read(&other, &model);
        assert_eq!((ways.direct, ways.gathered), (21, 0));
        // What is gathered is brought to its server at some time; that it was read before is tried often.
        for round in 0..30 {
            other.pwrite(&[round; 5], 2 * STRIPE as u64 + 5).expect("gathered");
            model[2 * STRIPE + 5..][..5].fill(round);
            let ways = read(&file, &model);
            assert_eq!(ways.direct + ways.gathered, 21);
        }
        let out = tempfile::tempfile().expect("a file");
        let (len, servers) = example::copy_out(&direct, &path, &out).expect("copied");
        assert_eq!((len, servers), (model.len() as u64, vec![7; 3]));
        let mut copy = vec![0; model.len() + 1];
        assert_eq!(out.read_at(&mut copy, 0).expect("read"), model.len());
        assert!(copy[..model.len()] == model);
    }
}

/// Goal: a file lies as it was said when it was made, for all its life, longer or shorter than it was said to
/// become: whoever opens it and says otherwise, after servers were started anew, and under another name.
#[test]
fn a_file_lies_as_it_was_made() {
    let mut rig = servers(3);
    let volume = rig.volume(Some(0), PATIENCE);
    let mut random = random(13);
    let model = bytes(&mut random, 13 * STRIPE + 5);
    let made = |name: &str, placement: Placement, len: Option<u64>| {
        let mut options = options();
        options.placement(placement);
        if let Some(len) = len {
            options.expected_len(len);
        }
        let file = volume.open_file(name, &options).expect("made");
        file.pwrite(&model, 0).expect("written");
        file.close().expect("closed");
    };
    made("/six", Placement::Partitioned, Some(6 * STRIPE as u64));
    made("/unknown", Placement::Partitioned, None);
    made("/round", Placement::RoundRobin, Some(6 * STRIPE as u64));
    let runs = |path: &str| -> Vec<u16> {
        let file = volume.open_file(path, options().placement(Placement::Partitioned).expected_len(1 << 30));
        let file = file.expect("opened");
        assert!(whole(&file) == model);
        let servers: Vec<u16> = file.blocks().expect("blocks").iter().map(|block| block.server).collect();
        servers.iter().map(|server| (server + 3 - servers[0]) % 3).collect()
    };
    let in_turns = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1];
    let in_parts = [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2, 0, 0];
    for _ in 0..2 {
        assert_eq!((runs("/six"), runs("/unknown")), (in_parts.to_vec(), in_turns.to_vec()));
        assert_eq!(runs("/round"), in_turns);
        (0..3).for_each(|number| (rig.kill(number), rig.revive(number)).1);
        volume.rename("/six", "/seven").expect("renamed");
        volume.rename("/seven", "/six").expect("renamed");
    }
}

/// Goal: thousands of ranges come in one call, right, whoever has them.
#[test]
fn thousands_of_ranges_come_in_one_call() {
    let rig = servers(3);
    let mut random = random(9);
    let (writer, reader) = (rig.volume(Some(0), PATIENCE), rig.volume(None, PATIENCE));
    let file = writer.open_file("/f", &options()).expect("opened");
    let mut model = bytes(&mut random, 12 << 20);
    file.pwrite(&model, 0).expect("written");
    let small = reader.open_file("/f", &options()).expect("opened");
    for _ in 0..300 {
        let at = random.usize(0..model.len() - 100);
        let data = bytes(&mut random, 100);
        small.pwrite(&data, at as u64).expect("written");
        model[at..at + 100].copy_from_slice(&data);
    }
    let mut rooms: Vec<(u64, Vec<u8>)> = (0..6000)
        .map(|_| (random.u64(0..model.len() as u64 + 5000), vec![9; random.usize(0..3000)]))
        .collect();
    let mut ranges: Vec<(u64, &mut [u8])> = rooms.iter_mut().map(|(at, room)| (*at, &mut room[..])).collect();
    let lens = file.pread_many(&mut ranges).expect("read");
    for ((at, room), len) in rooms.iter().zip(lens) {
        let at = *at as usize;
        assert_eq!(len, model.len().saturating_sub(at).min(room.len()));
        assert!(room[..len] == model[at.min(model.len())..][..len], "{len} from {at} on");
    }
}

/// Goal: one open file serves many threads at once.
/// Method: each writes and reads places of its own, and reads others' that nobody writes.
#[test]
fn one_file_serves_many_threads() {
    let rig = servers(3);
    let volume = rig.volume(None, PATIENCE);
    let file = volume.open_file("/f", &options()).expect("opened");
    let head = bytes(&mut random(1), 3 * STRIPE);
    file.pwrite(&head, 0).expect("written");
    const PART: usize = 100_000;
    let parts: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8_usize)
            .map(|nth| {
                let (file, head) = (&file, &head);
                scope.spawn(move || {
                    let (mut random, mut mine) = (random(20 + nth as u64), vec![0; PART]);
                    let base = head.len() + nth * PART;
                    for round in 0..25 {
                        let len = [10, 1000, 60_000][random.usize(0..3)];
                        let at = random.usize(0..PART - len);
                        let data = bytes(&mut random, len);
                        file.pwrite(&data, (base + at) as u64).expect("written");
                        mine[at..at + len].copy_from_slice(&data);
                        if round % 5 == nth % 5 {
                            file.sync().expect("synced");
                        }
                        if round % 3 == 0 {
                            let all = 0..head.len() as u64;
                            file.prefetch(std::slice::from_ref(&all)).expect("begun");
                        }
                        let (mut own, mut shared) = (vec![1; PART], vec![1; head.len()]);
                        let mut ranges: [(u64, &mut [u8]); 2] = [(base as u64, &mut own), (0, &mut shared)];
                        let lens = file.pread_many(&mut ranges).expect("read");
                        assert!(own[..lens[0]] == mine[..lens[0]] && lens[0] >= at + len);
                        assert!(lens[1] == head.len() && shared == *head);
                    }
                    mine
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("it ends")).collect()
    });
    file.close().expect("closed");
    let other = rig.volume(None, PATIENCE);
    let read = whole(&other.open_file("/f", OpenOptions::new().read(true)).expect("opened"));
    let model = [vec![head], parts].concat().concat();
    assert!(read == model[..read.len()] && model[read.len()..].iter().all(|byte| *byte == 0));
}

/// Goal: names are made, listed, moved and taken away as POSIX has it, links are followed, and an error names
/// the path and why.
#[test]
fn names_are_as_posix_has_them() {
    let rig = servers(2);
    let (volume, other) = (rig.volume(None, PATIENCE), rig.volume(None, PATIENCE));
    volume.mkdir("/d", 0o750).expect("made");
    volume.mkdir("d/e/", 0o700).expect("made");
    let file = volume.open_file("/d/e/f", options().mode(0o600)).expect("made");
    file.pwrite(b"bytes", 0).expect("written");
    file.sync().expect("synced");
    volume.symlink("d/e", "/l").expect("made");
    volume.symlink("/d/e/new", "/d/dangles").expect("made");
    let stat = other.stat("/l/../e/f").expect("there");
    assert_eq!((stat.len, stat.mode, stat.kind), (5, 0o600, Kind::File));
    assert_eq!(other.stat("/l/").expect("there").mode, 0o700);
    assert_eq!(other.lstat("/l").expect("there").kind, Kind::Link((*b"d/e").into()));
    let made = other.open_file("/d/dangles", &options()).expect("made where it leads");
    assert_eq!(other.stat("/d/e/new").expect("there").number, made.stat().expect("there").number);
    let names = |path: &str| -> Vec<String> {
        let all = volume.read_dir(path).expect("a directory");
        all.map(|entry| entry.expect("a name").name.into_string().expect("UTF-8")).collect()
    };
    assert_eq!((names("/"), names("/l")), (vec!["d".into(), "l".into()], vec!["f".into(), "new".into()]));
    volume.rename("/d/e/f", "/g").expect("renamed");
    other.unlink("/g").expect("removed");
    assert_eq!(whole(&file), b"bytes", "who has it open has it still");
    file.pwrite(b"B", 0).expect("written");
    file.close().expect("closed");
    let errno = |result: Result<(), Error>, errno: i32, words: &str| {
        let error = result.expect_err("it cannot be");
        assert_eq!(error.errno(), errno, "{error}");
        assert!(error.to_string().starts_with(words), "{error}");
        assert_eq!(std::io::Error::from(error.clone()).to_string(), error.to_string());
    };
    errno(volume.stat("/g").map(drop), 2, "cannot look at vol://v/g: ");
    errno(volume.open_file("/g", OpenOptions::new().read(true)).map(drop), 2, "cannot open vol://v/g: ");
    errno(volume.open_file("/d", &options()).map(drop), 21, "cannot open vol://v/d: ");
    errno(volume.open_file("/no/f", &options()).map(drop), 2, "cannot open vol://v/no/f: a directory");
    errno(volume.open_file("/d/e/new/x", &options()).map(drop), 20, "cannot open vol://v/d/e/new/x: ");
    errno(volume.mkdir("/d", 0o700), 17, "cannot make the directory vol://v/d: ");
    errno(volume.rmdir("/d"), 39, "cannot remove the directory vol://v/d: ");
    errno(volume.unlink("/d"), 21, "cannot remove vol://v/d: ");
    errno(volume.unlink("/"), EINVAL, "cannot remove vol://v/: ");
    errno(volume.rename("/d", "/d/e/x"), EINVAL, "cannot rename vol://v/d: ");
    errno(volume.read_dir("/d/e/new").map(drop), 20, "cannot read the directory vol://v/d/e/new: ");
    errno(volume.stat("x".repeat(256)).map(drop), 36, "cannot look at vol://v/xxx");
    for n in 0..1100 {
        volume.symlink("x", format!("/d/e/{n}")).expect("made");
    }
    assert_eq!(names("/d/e").len(), 1101, "more than a page");
}

/// Goal: what was lost with a server that was started anew is told by the next sync, and what was written
/// again is there.
#[test]
fn what_was_lost_is_told() {
    let mut rig = servers(2);
    let volume = rig.volume(Some(0), PATIENCE);
    let file = volume.open_file("/f", &options()).expect("opened");
    file.pwrite(&[1; 2 * STRIPE], 0).expect("written");
    let server = usize::from(file.blocks().expect("blocks").get(1).expect("there").server);
    rig.kill(server);
    rig.revive(server);
    let error = file.sync().expect_err("it was not synced");
    assert!(matches!(error.why(), Why::Servers(VolumeError::Lost(_))), "{error}");
    assert!(error.to_string().ends_with("write it again"), "{error}");
    file.pwrite(&[2; 2 * STRIPE], 0).expect("written");
    // A sync that was asked for before the loss was known is told of it, and so is the next one.
    if let Err(error) = file.sync() {
        assert!(matches!(error.why(), Why::Servers(VolumeError::Lost(_))), "{error}");
        file.pwrite(&[2; 2 * STRIPE], 0).expect("written");
    }
    file.close().expect("closed");
    let other = rig.volume(None, PATIENCE).open_file("/f", OpenOptions::new().read(true)).expect("opened");
    assert!(whole(&other) == [2; 2 * STRIPE]);
}

fn name(text: &str) -> haul_core::entry::Name {
    haul_core::entry::Name::new(text.as_bytes()).expect("a name")
}

/// Goal: by a directory that is open all is done by one name at a time; no link is followed, and the
/// directory stays the same one when it is renamed; what is in it is listed with the lengths that files have.
/// Method: each call, and what the volume has by its paths; more names than a page of the catalog has.
#[test]
fn directories_are_open_by_their_numbers() {
    let rig = servers(2);
    let volume = rig.volume(None, PATIENCE);
    volume.mkdir("/a", 0o755).expect("made");
    let dir = volume.open_dir("/a").expect("it is there");
    let file = dir.open_file(&name("f"), OpenOptions::new().write(true).create_new(true)).expect("made");
    let writes = [0, 5].map(|at| file.begin_write(b"01234".to_vec(), at).expect("begun"));
    writes.into_iter().for_each(|write| write.wait().expect("written"));
    file.sync_data().expect("synced");
    file.close().expect("closed");
    volume.symlink("f", "/a/link").expect("made");
    let errno = |result: Result<File, Error>| result.err().map(|error| error.errno());
    assert_eq!(errno(dir.open_file(&name("link"), OpenOptions::new().read(true))), Some(40), "ELOOP");
    assert_eq!(errno(dir.open_file(&name("none"), OpenOptions::new().read(true))), Some(2), "ENOENT");
    let new = || dir.open_file(&name("f"), OpenOptions::new().write(true).create_new(true));
    assert_eq!(errno(new()), Some(17), "EEXIST");

    volume.rename("/a", "/b").expect("renamed");
    let (stat, version) = dir.lookup(&name("f")).expect("it is there");
    assert_eq!((stat.len, stat.kind), (10, Kind::File));
    assert_eq!(dir.number_of(&name("f")).expect("it is there"), stat.number);
    let same = dir.lookup(&name("f")).expect("it is there").1;
    assert!(version.is_some() && same == version, "nobody wrote");
    let file = volume.open_file("/b/f", OpenOptions::new().write(true)).expect("it is there");
    file.pwrite(b"x", 3).expect("written");
    let (other, changed) = dir.lookup(&name("f")).expect("it is there");
    assert!(changed != version && other.len == 10, "somebody wrote");
    file.close().expect("closed");

    dir.mkdir(&name("d"), 0o700).expect("made");
    let below = dir.open_dir(&name("d")).expect("it is there");
    dir.rename(&name("f"), &below, &name("g")).expect("renamed");
    below.set_mode(&name("g"), 0o640).expect("set");
    below.set_mtime(&name("g"), 1_500_000_000, 7).expect("set");
    let stat = volume.stat("/b/d/g").expect("it is there");
    let mtime = std::time::UNIX_EPOCH + Duration::new(1_500_000_000, 7);
    assert_eq!((stat.mode, stat.mtime, stat.len), (0o640, mtime, 10));
    assert!(dir.set_mode(&name("link"), 0o600).is_err() && dir.rmdir(&name("d")).is_err());
    below.unlink(&name("g")).expect("removed");
    dir.rmdir(&name("d")).expect("removed");

    for number in 0..1_500_usize {
        let file =
            dir.open_file(&name(&format!("n{number:04}")), OpenOptions::new().write(true).create(true));
        let file = file.expect("made");
        if number.is_multiple_of(100) {
            file.pwrite(&vec![7; number], 0).expect("written");
        }
        file.close().expect("closed");
    }
    let lens = |looks: bool| -> Vec<u64> {
        let entries = dir.entries(looks).map(|entry| entry.expect("listed"));
        entries.filter(|(name, _)| name.as_bytes().starts_with(b"n")).map(|(_, stat)| stat.len).collect()
    };
    let is_so = |number: usize| if number.is_multiple_of(100) { number as u64 } else { 0 };
    assert_eq!(lens(true), (0..1_500).map(is_so).collect::<Vec<_>>());
    assert_eq!(lens(false), vec![0; 1_500]);
}

/// Goal: of a file that is known to be whole, what a server lost is an error that names the server, however
/// it is read; what was never written of another one is zeros, and so is what a write has made unknown.
/// Method: the files of one server are removed from its disk while it is away.
#[test]
fn what_was_lost_is_no_hole() {
    let mut rig = servers(3);
    let volume = rig.volume(Some(0), PATIENCE);
    let len = 6 * STRIPE as u64;
    let file = |name: &str| volume.open_file(name, &options()).expect("opened");
    let put = |name: &str, from: u64| {
        let file = file(name);
        file.pwrite(&vec![5; (len - from) as usize], from).expect("written");
        file.close().expect("closed");
    };
    put("/whole", 0);
    put("/holes", len - 100);
    let keys = rig.access.keys().expect("a key");
    let at = rig.access.catalog.address().expect("an address");
    let catalog = Catalog::connect(keys, at, PATIENCE).expect("it answers");
    let name = Name::new(b"whole").expect("a name");
    let id = catalog.lookup(Place { parent: ROOT, name }).expect("there").id;
    catalog.set_attr(id, Setting { whole: Some(len), ..Setting::default() }).expect("set");
    assert_eq!(whole(&file("/whole")), vec![5; len as usize]);

    rig.kill(1);
    fs::remove_dir_all(rig.root(1).join("files").join(format!("{:02x}", id.0 % 256))).expect("removed");
    fs::create_dir(rig.root(1).join("files").join(format!("{:02x}", id.0 % 256))).expect("made");
    rig.revive(1);
    let is_lost = |result: Result<(), Error>| match result.expect_err("it is lost").why() {
        Why::Servers(VolumeError::Missing { server, whole, .. }) => {
            assert_eq!((server.0, *whole), (1, len));
        }
        other => panic!("{other:?}"),
    };
    let broken = file("/whole");
    let mut room = vec![0; len as usize];
    is_lost(broken.pread(&mut room, 0).map(drop));
    broken.prefetch(std::slice::from_ref(&(0..len))).expect("begun");
    is_lost(broken.pread(&mut room, 0).map(drop));
    let lost = (0..6).find(|stripe| {
        let mut room = [0; 100];
        broken.pread(&mut room, stripe * STRIPE as u64).is_err()
    });
    let lost = lost.expect("one of them lay there");
    is_lost(broken.read_blocks(&[lost], |_, _| ()).map(drop).map_err(|one| one.error));
    let error = std::io::Error::from(broken.pread(&mut room, lost * STRIPE as u64).expect_err("lost"));
    assert!(error.to_string().contains("server 1 of the volume has lost its bytes"), "{error}");
    let holes = file("/holes");
    assert_eq!(whole(&holes)[..(len - 100) as usize], vec![0; (len - 100) as usize], "nobody wrote them");
    // Nor is a file shorter than it is known to be.
    let name = Name::new(b"holes").expect("a name");
    let other = catalog.lookup(Place { parent: ROOT, name }).expect("there").id;
    catalog.set_attr(other, Setting { whole: Some(len + 5), ..Setting::default() }).expect("set");
    let short = file("/holes");
    for read in [short.len().map(drop), short.pread(&mut room, len - 5).map(drop), short.blocks().map(drop)] {
        match read.expect_err("it is short").why() {
            Why::Servers(VolumeError::OtherLength { end, whole, .. }) => {
                assert_eq!((*end, *whole), (len, len + 5))
            }
            other => panic!("{other:?}"),
        }
    }
    // Whoever writes says that he knows what is in it.
    broken.pwrite(&[6], 0).expect("written");
    assert_eq!(
        broken.pread(&mut room, lost * STRIPE as u64).expect("read"),
        (len - lost * STRIPE as u64) as usize
    );
    broken.close().expect("closed");
    assert_eq!(whole(&file("/whole"))[..1], [6]);
}
