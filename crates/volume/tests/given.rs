//! Files whose placement a program gives: real servers and a real catalog on loopback, every byte compared,
//! and where it lies.

mod rig;

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_core::volume::catalog::{EntryNo, Noting};
use haul_core::volume::{FileNo, ServerNo};
use haul_volume::api::{File, Given, OpenOptions, Placement, Volume};
use haul_volume::catalog::client::Client as Catalog;
use haul_volume::catalog::server::Options;
use haul_volume::client::{self, Client, VolumeError};
use haul_volume::fsck::{Fault, Fsck};
use haul_volume::sweep::{self, Sweeper};
use rig::{PATIENCE, Rig, STRIPE, bytes, listener, random, whole};

const SERVERS: u16 = 4;
/// What must fail is not waited for as long.
const SOON: Duration = Duration::from_secs(3);
const EINVAL: i32 = 22;
const ENOTSUP: i32 = 95;

/// What these tests ask of it besides.
impl Rig {
    /// A client of the catalog, and one of the servers that knows how those files lie that the catalog named.
    fn bare(&self, patience: Duration) -> (Catalog, Client) {
        let keys = self.access.keys().expect("a key");
        let at = self.access.catalog.address().expect("an address");
        let catalog = Catalog::connect(keys.clone(), at, PATIENCE).expect("connected");
        let config = client::Config {
            keys,
            number: catalog.number(),
            servers: self.at.clone(),
            stripe_size: STRIPE as u64,
            write_threshold: None,
            patience,
        };
        let client = Client::start_for(config, &catalog).expect("threads");
        (catalog, client)
    }

    /// What a server has of a file.
    fn shelf(&self, server: usize, file: u64) -> Vec<u8> {
        let path = self.root(server).join(format!("files/{:02x}/{file:016x}", file % 256));
        fs::read(path).unwrap_or_default()
    }

    /// Notes that all of these files is there, as a copy does, and looks at all of the volume.
    fn is_clean(&self, files: &[(u64, u64)]) {
        let (catalog, client) = self.bare(PATIENCE);
        for (file, len) in files {
            let id = EntryNo(*file);
            catalog.stat(id).expect("it is there");
            let look = client.look(FileNo(*file)).wait().expect("looked at");
            assert_eq!((look.end, look.untold), (*len, false));
            let state = catalog.known(vec![id]).expect("asked")[0].as_ref().expect("it is there").state;
            let noting = Noting { id, state, version: look.version, whole: Some(*len), home: None };
            assert_eq!(catalog.note("", vec![noting]).expect("noted"), [FileNo(*file)]);
        }
        let fsck = Fsck {
            catalog: &catalog,
            keys: &self.access.keys().expect("a key"),
            servers: &self.at,
            stripe_size: STRIPE as u64,
            met: PATIENCE,
            patience: PATIENCE,
            repair: None,
        };
        let mut faults: Vec<Fault> = Vec::new();
        let sum = fsck.run(&mut |fault| {
            faults.push(fault.clone());
            true
        });
        let sum = sum.expect("looked to the end");
        assert_eq!((&*faults, sum.whole, sum.written), (&[][..], files.len() as u64, 0));
    }
}

fn rig_of(placement: Placement) -> Rig {
    Rig::new(SERVERS.into(), placement, Options { grace: Duration::ZERO, ..Options::default() })
}

fn options(list: &[(u16, u64)]) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    options.given(Given::new(list.iter().copied()).expect("a list"));
    options
}

/// The servers of the first stripes, written out one by one.
fn written_out(list: &[(u16, u64)], stripes: usize) -> Vec<u16> {
    let once = list.iter().flat_map(|(server, count)| (0..*count).map(move |_| *server));
    let once: Vec<u16> = once.take(stripes).collect();
    once.iter().copied().cycle().take(stripes).collect()
}

fn lists(random: &mut fastrand::Rng) -> Vec<Vec<(u16, u64)>> {
    let mut lists = vec![
        vec![(1, 1)],
        vec![(3, 2), (0, 1), (3, 1), (2, 4)],
        vec![(2, 1), (0, 1 << 30)],
        (0..SERVERS).rev().map(|server| (server, 1)).collect(),
    ];
    lists.extend((0..4).map(|_| {
        (0..random.usize(1..9)).map(|_| (random.u16(0..SERVERS), random.u64(1..5))).collect::<Vec<_>>()
    }));
    lists
}

/// Goal: each block lies on the server that was given for it, and nowhere else; what is read is what was
/// written, over either path, after servers were started anew, cut and longer; `fsck` finds nothing; and all
/// of it goes with its name. Method: lists of one server, of few, of a run beyond the file's end, and random
/// ones; what each server has on its disk, against stripes that are dealt out one by one.
#[test]
fn blocks_lie_where_they_were_given() {
    let mut rig = rig_of(Placement::Given);
    let mut random = random(17);
    let direct = rig.volume(Some(0), PATIENCE);
    let len = 23 * STRIPE + 5;
    let mut files = Vec::new();
    for (number, list) in lists(&mut random).into_iter().enumerate() {
        let path = format!("/f{number}");
        let model = bytes(&mut random, len);
        let file = direct.open_file(&path, &options(&list)).expect("made");
        file.pwrite(&model, 0).expect("written");
        file.close().expect("closed");
        files.push((path, list, model));
    }
    let number = |path: &str| direct.stat(path).expect("it is there").number;
    let lies = |rig: &Rig, path: &str, list: &[(u16, u64)], model: &[u8]| {
        let servers = written_out(list, model.len().div_ceil(STRIPE));
        // Who opens it says nothing of how it lies.
        let file = direct.open_file(path, OpenOptions::new().read(true)).expect("opened");
        let told: Vec<u16> = file.blocks().expect("blocks").iter().map(|block| block.server).collect();
        assert_eq!(told, servers, "{path}: {list:?}");
        let (mut came, numbers) = (vec![0; told.len()], (0..told.len() as u64).collect::<Vec<_>>());
        let each = |number: u64, block: &[u8]| {
            let at = number as usize * STRIPE;
            assert!(block == &model[at..model.len().min(at + STRIPE)], "block {number} of {path}");
            came[number as usize] += 1;
        };
        file.read_blocks(&numbers, each).expect("read");
        assert!(came.iter().all(|times| *times == 1) && whole(&file) == *model);
        for server in 0..SERVERS {
            let stripes = model.chunks(STRIPE).zip(&servers).filter(|(_, on)| **on == server);
            let here: Vec<u8> = stripes.flat_map(|(stripe, _)| stripe.iter().copied()).collect();
            assert!(rig.shelf(server.into(), number(path)) == here, "{path} on server {server}: {list:?}");
        }
    };
    files.iter().for_each(|(path, list, model)| lies(&rig, path, list, model));
    let all: Vec<(u64, u64)> = files.iter().map(|(path, ..)| (number(path), len as u64)).collect();
    rig.is_clean(&all);
    // Small writes over others, which are gathered; then nobody knows a list but the servers' disks.
    let small = rig.volume(Some(u64::MAX), PATIENCE);
    for (path, _, model) in &mut files {
        let file = small.open_file(path, OpenOptions::new().read(true).write(true)).expect("opened");
        for _ in 0..40 {
            let (at, data) = (random.usize(0..model.len() - 3000), random.usize(1..3000));
            let data = bytes(&mut random, data);
            file.pwrite(&data, at as u64).expect("written");
            model[at..at + data.len()].copy_from_slice(&data);
        }
        file.close().expect("closed");
    }
    drop(small);
    rig.restart();
    let other = rig.volume(None, PATIENCE);
    for (path, list, model) in &mut files {
        let file = other.open_file(&**path, OpenOptions::new().read(true).write(true)).expect("opened");
        assert!(whole(&file) == *model, "{path}: {list:?}");
        let cut = random.usize(STRIPE..20 * STRIPE);
        file.set_len(cut as u64).expect("cut");
        model.truncate(cut);
        model.resize(len - STRIPE / 2, 0);
        let data = bytes(&mut random, 2 * STRIPE);
        let at = model.len() - data.len();
        file.pwrite(&data, at as u64).expect("written");
        model[at..].copy_from_slice(&data);
        file.close().expect("closed");
        let read = direct.open_file(&**path, OpenOptions::new().read(true)).expect("opened");
        assert!(whole(&read) == *model, "{path}: {list:?}");
        let told: Vec<u16> = read.blocks().expect("blocks").iter().map(|block| block.server).collect();
        assert_eq!(told, written_out(list, model.len().div_ceil(STRIPE)));
    }
    // Holes are legal: nobody says that these are whole.
    rig.is_clean(&[]);
    files.iter().for_each(|(path, ..)| direct.unlink(path).expect("unlinked"));
    drop((direct, other));
    let sweepers: Vec<Sweeper> = (0..SERVERS)
        .map(|me| {
            let config = sweep::Config {
                keys: rig.access.keys().expect("a key"),
                me: ServerNo(me),
                catalog: rig.access.catalog.address().expect("an address"),
                servers: rig.at.clone(),
                stripe_size: STRIPE as u64,
                notice: Arc::new(|text| eprintln!("{text}")),
            };
            Sweeper::start(config).expect("a thread")
        })
        .collect();
    let left = || {
        let held = |(file, server): (u64, u16)| rig.shelf(server.into(), file).len();
        all.iter().flat_map(|(file, _)| (0..SERVERS).map(|server| (*file, server))).map(held).sum::<usize>()
    };
    let begun = Instant::now();
    while left() > 0 {
        assert!(begun.elapsed() < PATIENCE, "{} bytes are left of what was unlinked", left());
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(sweepers);
    rig.is_clean(&[]);
}

/// Goal: a list that names what the volume has not, or in a volume that was not made for it, is refused, and
/// makes no file; without a list files of such a volume lie in turns; a file that is there lies as it does.
#[test]
fn lists_that_do_not_fit_are_refused() {
    let rig = rig_of(Placement::Given);
    let volume = rig.volume(Some(0), PATIENCE);
    let refused = |volume: &Volume, list: &[(u16, u64)]| {
        let error = volume.open_file("/x", &options(list)).err().expect("refused");
        assert!(volume.stat("/x").is_err());
        (error.errno(), error.to_string())
    };
    let (errno, why) = refused(&volume, &[(0, 1), (SERVERS, 1)]);
    assert!(errno == EINVAL && why.contains("beyond the volume's 4"), "{why}");
    let round = rig_of(Placement::RoundRobin);
    let (errno, why) = refused(&round.volume(Some(0), PATIENCE), &[(0, 1)]);
    assert!(errno == ENOTSUP && why.contains("--placement given"), "{why}");
    let mut plain = OpenOptions::new();
    plain.write(true).create(true).read(true);
    let servers = |file: &File| -> Vec<u16> {
        file.pwrite(&[1; 5 * STRIPE], 0).expect("written");
        file.blocks().expect("blocks").iter().map(|block| block.server).collect()
    };
    let turns = servers(&volume.open_file("/plain", &plain).expect("made"));
    assert!(turns.windows(2).all(|two| two[1] == (two[0] + 1) % SERVERS), "{turns:?}");
    let again = volume.open_file("/plain", &options(&[(3, 1)])).expect("opened");
    assert_eq!(servers(&again), turns);
}

/// Goal: no file is made of a list that a server does not know; one that is away when the first is made is
/// told by the next, by whomever; of a list that all know files are made while one is away.
#[test]
fn placements_are_known_before_files() {
    let mut rig = rig_of(Placement::Given);
    let volume = rig.volume(Some(0), PATIENCE);
    let list = [(0, 2), (2, 1)];
    rig.kill(3);
    let error = volume.open_file("/f", &options(&list)).err().expect("refused");
    assert!(error.to_string().contains("each server must know"), "{error}");
    assert!(volume.stat("/f").is_err());
    rig.revive(3);
    let file = volume.open_file("/f", &options(&list)).expect("made");
    rig.kill(3);
    let another = volume.open_file("/g", &options(&list)).expect("made");
    for file in [file, another] {
        file.pwrite(&[5; 3 * STRIPE], 0).expect("written");
        assert_eq!(
            file.blocks().expect("blocks").iter().map(|block| block.server).collect::<Vec<_>>(),
            [0, 0, 2]
        );
        // The one that is away has none of it, and is asked for nothing.
        file.close().expect("closed");
    }
}

/// Goal: who does not know how a file lies does nothing for it: neither a client whose catalog never named
/// it, nor a server whose directory is older than the list; and that server's bytes are as they were.
#[test]
fn who_does_not_know_a_list_does_nothing() {
    let mut rig = rig_of(Placement::Given);
    let volume = rig.volume(Some(0), PATIENCE);
    let (model, list) = (vec![9; 4 * STRIPE], [(1, 1), (2, 1)]);
    let file = volume.open_file("/f", &options(&list)).expect("made");
    file.pwrite(&model, 0).expect("written");
    file.close().expect("closed");
    let number = volume.stat("/f").expect("it is there").number;
    drop(volume);
    let (catalog, client) = rig.bare(SOON);
    let read = |stripe: u64| {
        let read = client.read(FileNo(number), stripe * STRIPE as u64, STRIPE as u64).wait();
        read.map(|read| assert!(read.bytes == model[..STRIPE]))
    };
    assert_eq!(read(0), Err(VolumeError::Unplaced));
    let write = || client.write(FileNo(number), STRIPE as u64, vec![1; STRIPE]).wait();
    assert_eq!(write(), Err(VolumeError::Unplaced));
    catalog.stat(EntryNo(number)).expect("it is there");
    assert_eq!((read(0), read(1)), (Ok(()), Ok(())));
    // One of its servers was brought back from before the list.
    let lists = |number: usize| (rig.root(number).join("lists"), rig.root(number).with_file_name("away"));
    let (of_second, of_first) = (lists(2), lists(1));
    rig.kill(2);
    fs::rename(&of_second.0, &of_second.1).expect("moved");
    rig.revive(2);
    // Just when it is late the server may be connected once more.
    let why = (0..10).find_map(|_| match read(1) {
        Err(VolumeError::Late(_, why)) => Some(why).filter(|why| why.contains("never told how file")),
        other => panic!("{other:?}"),
    });
    assert!(why.is_some() && read(0).is_ok());
    assert!(rig.shelf(2, number) == model[..2 * STRIPE]);
    // Who gives the list again brings it back.
    let again = rig.volume(Some(0), PATIENCE);
    again.open_file("/g", &options(&list)).expect("made");
    drop(again);
    assert_eq!(read(1), Ok(()));
    fs::remove_dir_all(of_second.1).expect("removed");
    // A server whose log has something of such a file does not begin: it could not bring it anywhere.
    rig.kill(1);
    fs::rename(&of_first.0, &of_first.1).expect("moved");
    let why = rig.try_server(1, listener(rig.at[1])).err().expect("refused").to_string();
    assert!(why.contains("does not know how that lies"), "{why}");
    fs::rename(&of_first.1, &of_first.0).expect("moved back");
    rig.revive(1);
    let volume = rig.volume(None, PATIENCE);
    let file = volume.open_file("/f", OpenOptions::new().read(true)).expect("opened");
    assert!(whole(&file) == model);
}
