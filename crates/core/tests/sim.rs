//! The simulator: both session machines against a simulated network and storage, with faults and crashes.
//!
//! In: a seed. Out: nothing, or a panic with the seed and what happened last.
//! One run is a random tree, up to seven sessions that end as they end (killed, power cut, stopped, faults of
//! storage and network, a source that changes), then a quiet one that must complete and one that must find
//! all unchanged. `model` is what is copied, `disk` the sink's file system and journal with their caches,
//! `link` the network, `source` and `sink` the engines and drivers of the two ends, `world` the run, `judge`
//! what must hold. Messages and data headers cross as encoded frames.
//!
//! What is judged:
//! - a file that is said to be done stands under its name with a content of the announced version, and is
//!   there after a power cut at that instant; so is every extent that is said to be durable;
//! - no final name ever shows a part or a mixture;
//! - the holes that a session was told of are holes when a file is published, and no write touches one;
//! - nothing of a file is read before its fingerprint is old enough, and what changed before that, and left
//!   the fingerprint as it was, is copied as it is then;
//! - of a source that cannot be reached any more what was acknowledged is gone on with, and the session never
//!   ends as complete;
//! - with `--changed=prefix` what is published is the beginning of one version, under a size and an mtime
//!   that were announced;
//! - what a journal promises is in the temporary that is taken over for it, unless somebody altered that
//!   between two sessions: then what is published is right all the same, or the file failed;
//! - a paused source reads no payload and sends none, and still ends when it is stopped;
//! - buffers of either end stay within its memory, and each is freed once; entries stay within their limit;
//! - blocks that were acknowledged are not read again, by any later session;
//! - control messages arrive once and in order, whenever control is lost and joined again, and nothing of an
//!   older epoch;
//! - no deadlock, and an end within a bound of steps;
//! - after "complete" no journal and no temporary is left, and every name is on media.
//!
//! Each of these changes to the machines was seen to fail (seeds that fail of the first 10,000): directories
//! not synced (7,624), temporaries' names not synced (1,659), acknowledged without journal (1,670), no
//! journal sync (30), commit without sync (7,609), journal written on after a refusal (1), the pass of a seal
//! ignored (10), a look begun before the last read believed (3), ctime change not settled by digest (207),
//! discard while writes are under way (110) or a commit (15), credit of a lost stream kept (20), its objects
//! not sent again (417), its buffers not counted back (5 of 40,000), more granted than there is (all),
//! damaged payload taken (2,402), held parts read again (1,605), parts journaled under a fingerprint that was
//! not verified (7), temporaries of the wrong run taken over (1), a second try begun before the journal
//! forgot the first (4 of 40,000), withdrawals not journaled (1), a withdrawn generation acknowledged (10),
//! complete before the last epoch (252), a crossing failure ignored (2), second tries waiting for the walk
//! that waits for them (4). Of sparse files (of 20,000): parts taken over under another map (30), no map in
//! the journal (275), a file of holes alone whose seal came first forgotten (42), or never complete (5,121),
//! looked up before its map (2), its map lost with its parts (133), a ctime change settled by the plain hash
//! (9), pieces that reach into a hole (486) or are checked as if there were none (677), values in another
//! order at one end (4,061), maps counted beyond their files (663 of 40,000). Of streams and control that
//! join later: parked streams left parked when all others are lost (seed 107 and more). A torn record
//! believed: 10 of 30,000. What was sent twice not held against the hash: seed 75,951. No room looked for
//! where a file that was held whole is asked for: seed 160,206. Not seen to fail: a file begun at once though
//! its promised temporary is gone.
//!
//! Ends that freeze, are taken over, and go on have worlds of their own: `sim/frozen.rs`.
//!
//! Left out: policies other than the default, and directories that cannot be made.

#[path = "sim/disk.rs"]
mod disk;
#[path = "sim/frozen.rs"]
mod frozen;
#[path = "sim/judge.rs"]
mod judge;
#[path = "sim/link.rs"]
mod link;
#[path = "sim/model.rs"]
mod model;
#[path = "common/seeds.rs"]
mod seeds;
#[path = "sim/sink.rs"]
mod sink;
#[path = "sim/source.rs"]
mod source;
#[path = "sim/targets.rs"]
mod targets;
#[path = "sim/world.rs"]
mod world;

use std::collections::BTreeMap;

use seeds::{number, tried};

/// Seeds of a default run of the world in which ends freeze.
const FROZEN_SEEDS: u64 = 8_000;
/// Seeds in which a run follows one that may still publish by way of another that died: without that memory
/// they fail. In the second a name is replaced too late between its sync and the word that it is done.
const KEPT_FROZEN: &[u64] = &[16_059, 417_455];
/// Seeds that once failed.
const KEPT: &[u64] =
    &[52_505, 60_113, 75_951, 126_702, 160_206, 271_050, 1_046_466, 1_255_512, 1_427_025, 2_062_434];
/// Seeds of a default run.
const SEEDS: u64 = 40_000;

/// Runs one seed of a world to its end; returns the steps that it took.
type Run = fn(u64) -> u64;

/// Runs one seed.
///
/// # Errors
/// Where and why it failed.
fn try_seed(run: Run, seed: u64) -> Result<u64, String> {
    tried(|| run(seed))
}

/// Runs a seed that failed again, with its events told.
fn tell(run: Run, seed: u64) {
    world::trace_start();
    let again = try_seed(run, seed);
    world::trace_take().iter().for_each(|line| eprintln!("{line}"));
    match again {
        Ok(_) => eprintln!("seed {seed} failed, and when it was run again it did not"),
        Err(text) => eprintln!("seed {seed} failed: {text}"),
    }
}

/// Runs `kept` and `count` seeds from `first` on; every failure is named. Returns the steps that they took.
fn run_all(run: Run, kept: &[u64], first: u64, count: u64) -> u64 {
    model::check_contents();
    let (mut steps, mut failed) = (0, BTreeMap::new());
    for seed in kept.iter().copied().chain(first..first + count) {
        match try_seed(run, seed) {
            Ok(more) => steps += more,
            Err(text) => failed
                .entry(text.lines().next().unwrap_or_default().to_owned())
                .or_insert_with(Vec::new)
                .push((seed, text)),
        }
    }
    for (place, seeds) in &failed {
        let few: Vec<u64> = seeds.iter().map(|(seed, _)| *seed).take(8).collect();
        println!("{} x {place}, seeds {few:?}: {}", seeds.len(), seeds[0].1);
    }
    // The first one once more, with its events told.
    if let Some((seed, _)) = failed.values().filter_map(|seeds| seeds.first()).min() {
        tell(run, *seed);
    }
    assert!(failed.is_empty(), "{} kinds of failure", failed.len());
    steps
}

/// Goal: whatever happens, nothing that was promised is lost, and in the end all is there.
/// Method: seeded runs of both machines; see the head of this file. `HAUL_SIM_SEEDS` says how many, beginning
/// at `HAUL_SIM_FIRST`; every failure is named.
#[test]
fn nothing_promised_is_lost() {
    let (first, count) = (number("HAUL_SIM_FIRST", 0), number("HAUL_SIM_SEEDS", SEEDS));
    let steps = run_all(world::run, KEPT, first, count);
    let fetched = source::FETCHED.get();
    assert!(
        fetched >= count / 100,
        "{fetched} frames waited on flash: what is said of it here is said of nothing"
    );
    let altered = world::ALTERED.get();
    assert!(
        altered >= count / 100,
        "{altered} temporaries were altered: what is said of it here is said of nothing"
    );
    let grown = source::GROWN.get();
    assert!(grown >= count / 100, "{grown} files grew: what is said of it here is said of nothing");
    let lost = source::LOST.get();
    assert!(lost >= count / 100, "{lost} sources were lost: what is said of it here is said of nothing");
    let forgotten = sink::FORGOTTEN.get();
    assert!(
        forgotten >= count / 1000,
        "{forgotten} files were lost by their store: what is said of them here is said of nothing"
    );
    let twice = source::TWICE.get();
    assert!(
        twice >= count / 1000,
        "{twice} parts were sent twice: what is said of them here is said of nothing"
    );
    println!(
        "{} kept and {count} new seeds, {steps} steps, {fetched} frames from flash, {twice} parts hashed that were sent twice",
        KEPT.len()
    );
}

/// Goal: a run that was frozen, taken over while nobody saw it die, and goes on, spoils nothing that the next
/// one said.
/// Method: seeded runs in which ends freeze; see `sim/frozen.rs`. As many seeds as `HAUL_SIM_SEEDS` says.
#[test]
fn a_frozen_run_spoils_nothing() {
    let (first, count) = (number("HAUL_SIM_FIRST", 0), number("HAUL_SIM_SEEDS", FROZEN_SEEDS));
    let steps = run_all(frozen::run, KEPT_FROZEN, first, count);
    let counts = [frozen::TAKEN.get(), frozen::LANDED.get(), frozen::KEPT_WORD.get(), frozen::SAID_SO.get()];
    println!(
        "{count} seeds, {steps} steps; taken over, names given too late, complete behind one, not complete for one: {counts:?}"
    );
    let (last, often) = counts.split_last().expect("four counts");
    assert!(
        often.iter().all(|times| *times >= count / 50) && *last >= count / 1000,
        "{counts:?}: what is said of frozen runs here is said of nothing"
    );
}
