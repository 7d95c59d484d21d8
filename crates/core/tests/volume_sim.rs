//! The simulator of striped volumes: clients, a gatherer and storage servers, whose connections break and
//! which crash, freeze and thaw, and whose disks are full for a while, or fail to sync.
//!
//! In: a seed. Out: nothing, or a panic with the seed and what happened last. `world` is the run: hosts,
//! connections, disks; `judge` what must hold.
//!
//! What is judged, of each byte, without asking the machines:
//! - a read shows what was written by a write that no later one is known to have replaced: one that began
//!   after that was over, and was over before the read began;
//! - what a sync was made for is not lost with any host; what was not may be lost with the host that had
//!   it, and then the client's next sync says so;
//! - when hosts are left in peace, everything ends, and all clients read the same.
//!
//! - nothing that was sent before its client was not heard for too long goes over what began after that;
//! - of two writes of one client the later one stays, though it waited for neither;
//! - a read of a stripe of which a map says that it is not gathered shows from its server alone what any read
//!   may show that began before the map was asked for;
//! - reads of one place between two looks, or maps, that showed the same version of its file show the same,
//!   whenever they were; and so do those between which nobody had to tell the catalog that the file was
//!   written.
//!
//! Each of these changes to the machines was seen to fail (seeds that fail of 6,000): what was brought is
//! not noted in the log (775), or its stripe is leased before that lasts (1); no grace after a start (2);
//! older epochs are taken (72), newer ones do not wait (2), none are raised (45); a session does not wait
//! for the one before (8), older ones count (432); a lease is given back while a write is under way (4);
//! records are forgotten before what replaced them lasts (184), or while they are pushed (12), and their
//! ends (2,177) and clients (5) with them; others keep their leases (2,493); gathered stripes are leased
//! (5,939); what is lost is told by no sync (315); what waits of a session stays after it (2); a push takes
//! newer bytes away (819).
//!
//! And of cuts, appends and removals (of 900): what is cut stays in the log's parts (703), old lengths
//! count (317), the cut's epoch is not noted again (2), none is raised (302), requests do not wait for a
//! cut (303), it ends before that lasts (312), a client's own writes are not waited for (107), what waits
//! of a session stays (39), a cut that failed is not made again (63), removed numbers are not remembered
//! (724).
//!
//! And of looks (of 1,500): a lease moves no version (63), nor does a gathered write (102) or a cut (19); a
//! look waits for no cut (4) and no lease (1), or there is no fence (9), or one that came to nothing counts
//! (1), or none after a start (1); the log says too late that a file is written (145), does not say so again
//! (12), or the catalog's word counts for another version (3) or while a write is under way (1); a fence that
//! came to nothing has a cut made twice (1). Not seen to fail: a fence under the epoch of before, a look
//! whose log is not synced or that waits for no grace, a push before the log says that the file is written.
//!
//! A byte is a number here: which write it came from.

#[path = "volume_sim/hosts.rs"]
mod hosts;
#[path = "volume_sim/judge.rs"]
mod judge;
#[path = "common/seeds.rs"]
mod seeds;
#[path = "volume_sim/world.rs"]
mod world;

use std::collections::BTreeMap;

use seeds::{number, tried};

/// Seeds of a default run, of each world.
const SEEDS: u64 = 1500;
/// Clients, storage servers.
const WORLDS: [(u16, u16); 3] = [(1, 1), (2, 2), (3, 2)];

fn try_seed(hosts: (u16, u16), seed: u64) -> Result<(u64, u64), String> {
    tried(|| world::run(hosts.0, hosts.1, seed))
}

/// Goal: whatever crashes, freezes and breaks, reads show the newest that can be known, and what was synced
/// stays. Method: seeded runs; see the head of this file. `HAUL_SIM_SEEDS` says how many, beginning at
/// `HAUL_SIM_FIRST`; every failure is named.
#[test]
fn hosts_come_and_go_and_bytes_stay_in_order() {
    let (first, count) = (number("HAUL_SIM_FIRST", 0), number("HAUL_SIM_SEEDS", SEEDS));
    let mut failed: BTreeMap<String, Vec<((u16, u16), u64, String)>> = BTreeMap::new();
    let (mut steps, mut compared) = (0, 0);
    for hosts in WORLDS {
        for seed in first..first + count {
            match try_seed(hosts, seed) {
                Ok(more) => (steps, compared) = (steps + more.0, compared + more.1),
                Err(text) => {
                    let place = text.lines().nth(1).unwrap_or_default();
                    let place = place.split(|c: char| c.is_ascii_digit()).collect::<Vec<_>>().concat();
                    failed.entry(place).or_default().push((hosts, seed, text));
                }
            }
        }
    }
    for (place, seeds) in &failed {
        let (hosts, seed, text) = &seeds[0];
        println!("{} seeds fail at {place}; first {hosts:?} seed {seed}:\n{text}\n", seeds.len());
    }
    assert!(failed.is_empty(), "{} seeds of {}", failed.values().map(Vec::len).sum::<usize>(), 3 * count);
    assert!(steps > 0);
    // Of each run some.
    assert!(compared >= 3 * count, "{compared} places were read twice in one version");
}

/// Goal: an append that one life of the gatherer made, and for which the next one reserved room because its
/// client had not heard, may be read where it stood first; one for which the only life that had it reserved
/// room may be read nowhere. Method: the judge alone is told so.
#[test]
fn an_append_that_is_reserved_may_stand_where_an_earlier_life_put_it() {
    for (told, may_be_read) in [(3, true), (2, false)] {
        let mut judge = judge::Judge::default();
        let write = judge::Write {
            client: 1,
            begun: 10,
            over: None,
            failed: None,
            synced: None,
            may_be_lost: false,
            is_given_up: false,
            is_direct: false,
            sent: 11,
            epoch: None,
            file: 0,
            offset: judge::NOWHERE,
            len: 7,
            appended: Some((2, None)),
        };
        judge.writes.insert(15, write);
        judge.reserved(15, told, 20);
        assert_eq!(judge.shown(0, 0, 15, 30).is_ok(), may_be_read);
        // It was made in no other file.
        assert!(judge.shown(1, 0, 15, 30).is_err());
    }
}
