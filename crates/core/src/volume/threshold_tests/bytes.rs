//! Where bytes cost more than requests: copies of large files, and what follows them, on machines that have
//! little to spare.

use super::*;

const SMALL: u64 = 300;
const LARGE: u64 = 1 << 20;

impl Model {
    /// All servers and the client share a machine: writes are fast into the page cache, a log is no slower
    /// than that and has what it takes in one place; what is gathered is brought from there, and the client
    /// is as busy with bytes as all servers together.
    fn shared() -> Model {
        Model {
            write: 15_000.0,
            write_byte: 0.35,
            gather: 8_000.0,
            gather_byte: 0.05,
            rtt: 200_000,
            client: 15_000,
            client_byte: 0.5,
            brings: true,
            chance: 0.5,
            stall: 200_000.0,
            sync: 4e6,
            sync_byte: 1.0,
            lease: 200_000,
            first: 20_000_000,
            bring: 40_000_000,
            ..Model::flash()
        }
    }
}

/// Goal: large writes of a client that has no processor to spare are not gathered, whatever else it does, and
/// its threshold stays where it began, for of other sizes it knows nothing; also where few of a journal lie
/// among them, which are gathered, and are all that is known of gathering at first.
/// Method: a log that takes bytes seven times as fast as a stripe's server does, everything by chance, many
/// writes under way and few, with syncs and without.
#[test]
fn what_is_large_is_not_gathered_by_a_busy_client() {
    for under_way in [4, 8, 32] {
        for commit in [0, 256] {
            for size in [256 << 10, LARGE, 4 << 20] {
                for journal in [false, true] {
                    let model = Model { under_way, commit, ..Model::shared() };
                    let mut number = 0_u64;
                    let mut threshold = Threshold::new(SERVERS + 1, None);
                    model.run(&mut threshold, 6, || {
                        number += 1;
                        if journal && number.is_multiple_of(65) { SMALL } else { size }
                    });
                    let Counts { begun, gathered, .. } = threshold.counts();
                    let small = if journal { begun / 65 } else { 0 };
                    let found = threshold.threshold();
                    let case = format!("{size}, {under_way} under way, {commit}, {journal}");
                    let most = small + begun / EXPLORED_ONE_IN;
                    assert!(gathered <= most, "{case}: {gathered} of {begun}, at {found}");
                    assert!(found >= START && found <= size, "{case}: {found}");
                    assert!(journal || found == START, "{case}: {found}");
                }
            }
        }
    }
}

/// Goal: who writes one size and then another, far from it, comes within 5 seconds to within a tenth of the
/// better path, itself and as another client that begins where the first one left off.
/// Method: small ones after large ones and the other way round, of all the far sizes there are.
#[test]
fn another_size_is_learnt_anew() {
    let pairs = [(LARGE, SMALL), (SMALL, LARGE), (4 << 20, 4 << 10), (64, 4 << 20), (16 << 20, 16)];
    let lab = Model { commit: 16, ..Model::lab() };
    for (model, name) in [(Model::shared(), "shared"), (Model::flash(), "flash"), (lab, "lab")] {
        for (first, second) in pairs {
            let mut threshold = Threshold::new(SERVERS + 1, None);
            model.run(&mut threshold, 4, || first);
            let mut other = Threshold::new(SERVERS + 1, None);
            other.start_at(threshold.threshold());
            let later = Model { begins: 4 * SECOND, ..model.clone() };
            let better = later.better(8, || second);
            let went_on = ratio(&later.run(&mut threshold, 8, || second), &better, 5..8);
            let begun = ratio(&later.run(&mut other, 8, || second), &better, 5..8);
            assert!(went_on > 0.9, "{name}, {second} after {first}: {went_on:.3}, {}", threshold.threshold());
            assert!(begun > 0.9, "{name}, {second} begins after {first}: {begun:.3}, {}", other.threshold());
        }
    }
}

/// Goal: a threshold that somebody found where all of it was other than here is left within 5 seconds.
/// Method: a client that begins with everything gathered, or up to 8 MiB, and writes large; and one that
/// begins with nothing gathered and writes small.
#[test]
fn what_others_found_elsewhere_is_left() {
    for model in [Model::shared(), Model::flash()] {
        for (found, size) in [(u64::MAX, LARGE), (8 << 20, LARGE), (8 << 20, 256 << 10), (0, SMALL)] {
            let mut threshold = Threshold::new(SERVERS + 1, None);
            threshold.start_at(found);
            let run = model.run(&mut threshold, 8, || size);
            let ratio = ratio(&run, &model.better(8, || size), 5..8);
            let is = threshold.threshold();
            assert!(ratio > 0.9, "{size} from {found}: {ratio:.3}, {is}");
            assert_eq!(is <= size, size > SMALL, "{size} from {found}: {is}");
        }
    }
}

/// Goal: at every size it comes to within a tenth of the better path also where everything takes as long as
/// it happens to. Method: requests of which half the time is chance, and messages of which some wait long.
#[test]
fn chance_moves_nothing() {
    for model in [Model::flash(), Model::lab()] {
        let model = Model { chance: 0.8, stall: 300_000.0, commit: 0, ..model };
        for size in sizes() {
            let mut threshold = Threshold::new(SERVERS + 1, None);
            let run = model.run(&mut threshold, 10, || size);
            let ratio = ratio(&run, &model.better(10, || size), 4..10);
            assert!(ratio > 0.9, "{size} bytes: {ratio:.3}, {}", threshold.threshold());
        }
    }
}

/// Goal: as above a slow server is left within 5 seconds, where bytes cost most and what takes how long is
/// chance.
#[test]
fn a_slow_server_is_left_where_bytes_count() {
    for slow in [0, GATHERER] {
        let model = Model { chance: 0.5, stall: 100_000.0, ..Model::flash() };
        let model = Model { slow: vec![(slow, 4 * SECOND, 12 * SECOND, 10.0)], ..model };
        for size in [16, 4096, 64 << 10, LARGE, 16 << 20] {
            let mut threshold = Threshold::new(SERVERS + 1, None);
            let run = model.run(&mut threshold, 12, || size);
            let ratio = ratio(&run, &model.better(12, || size), 9..12);
            assert!(ratio > 0.9, "{size} bytes, {slow} is slow: {ratio:.3}, {}", threshold.threshold());
        }
    }
}
