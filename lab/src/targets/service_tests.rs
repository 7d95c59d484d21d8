//! The service-time model, in virtual time.

use super::*;

const MS: u64 = 1_000_000;
const MIB: u64 = 1 << 20;

fn read(object: u64, offset: u64, len: u64) -> Request<u64> {
    Request { object, offset, len, write: false, tag: offset }
}

/// All ends, of requests that are reaped as late as can be.
fn ends<T>(target: &mut Target<T>) -> Vec<Nanos> {
    std::iter::from_fn(|| target.reap(u64::MAX - 1)).map(|served| served.end).collect()
}

fn disk() -> ServiceSpec {
    ServiceSpec { overhead_us: 0, ..ServiceSpec::preset("disk").unwrap() }
}

/// Goal: a sequential stream runs at the streaming rate after one seek, however late it is reaped.
/// Method: 100 requests of 1 MB that follow each other; the last end against arithmetic.
#[test]
fn a_sequential_stream_runs_at_the_streaming_rate() {
    let mut target = Target::new(disk(), 1);
    for at in 0..100 {
        target.submit(at, read(1, at * 1_000_000, 1_000_000));
    }
    let ends = ends(&mut target);
    assert_eq!(ends.last(), Some(&(8 * MS + 100 * 10 * MS)));
    assert!(ends.is_sorted());
    assert_eq!(target.counts.seeks, 1);
    assert_eq!(target.counts.busy, 8 * MS + 1000 * MS);
}

/// Goal: a request that does not follow the one before pays a seek, a short one less, another object a full
/// one.
/// Method: one request of each kind.
#[test]
fn a_request_that_does_not_follow_pays_a_seek() {
    let mut target = Target::new(disk(), 1);
    let len = 1_000_000;
    target.submit(0, read(1, 0, len)); // 8 + 10
    target.submit(0, read(1, 2 * len, len)); // 1 + 10: 1 MB ahead
    target.submit(0, read(1, 0, len)); // 8 + 10: 3 MB back
    target.submit(0, read(2, len, len)); // 8 + 10: another object
    target.submit(0, read(2, 2 * len, len)); // 10
    assert_eq!(ends(&mut target), [18 * MS, 29 * MS, 47 * MS, 65 * MS, 75 * MS]);
    assert_eq!(target.counts.seeks, 4);
}

/// Goal: requests in service at once overlap their seeks but share the streaming rate, and no more than
/// `depth` of them are in service.
/// Method: eight far requests at depths 1, 4 and 8 on a target whose seek outweighs its transfer.
#[test]
fn depth_overlaps_positions_and_shares_the_rate() {
    let run = |depth| {
        let mut target = Target::new(ServiceSpec { depth, ..disk() }, 1);
        for at in 0..8 {
            target.submit(0, read(at, 0, 100_000)); // 8 ms + 1 ms
        }
        ends(&mut target)
    };
    assert_eq!(run(1).last(), Some(&(8 * 9 * MS)));
    assert_eq!(run(4)[..4], [9 * MS, 10 * MS, 11 * MS, 12 * MS], "transfers queue for the pipe");
    assert_eq!(run(4)[4], 18 * MS, "the fifth starts when the first has ended");
    assert_eq!(run(8).last(), Some(&(16 * MS)));
}

/// Goal: a frozen target ends nothing, and goes on after the thaw where it stood.
/// Method: freeze in the middle of the first of two requests, submit a third meanwhile, thaw.
#[test]
fn a_frozen_target_answers_nothing_until_thawed() {
    let mut target = Target::new(disk(), 1);
    target.submit(0, read(1, 0, 1_000_000));
    target.submit(0, read(1, 1_000_000, 1_000_000));
    target.set_congestion(5 * MS, Congestion { frozen: true, ..Congestion::default() });
    target.submit(6 * MS, read(1, 2_000_000, 1_000_000));
    assert_eq!(target.next_due(), None);
    assert!(target.reap(500 * MS).is_none());
    target.set_congestion(1000 * MS, Congestion::default());
    assert_eq!(target.next_due(), Some(1013 * MS));
    assert_eq!(ends(&mut target), [1013 * MS, 1023 * MS, 1033 * MS]);
}

/// Goal: what had ended before the frost is still answered, and what had not started does not start in it.
/// Method: freeze after the first of two ends, with neither reaped.
#[test]
fn frost_does_not_reach_back() {
    let mut target = Target::new(disk(), 1);
    target.submit(0, read(1, 0, 1_000_000));
    target.submit(0, read(1, 1_000_000, 1_000_000));
    target.set_congestion(20 * MS, Congestion { frozen: true, ..Congestion::default() });
    assert_eq!(target.reap(100 * MS).map(|served| served.end), Some(18 * MS));
    assert!(target.reap(100 * MS).is_none());
    target.set_congestion(120 * MS, Congestion::default());
    assert_eq!(ends(&mut target), [128 * MS], "2 of its 10 ms were done before the frost");
}

/// Goal: a slow target takes so many times as long, and an extra delay comes on top.
/// Method: the same request at factor 1, 10, and with a delay.
#[test]
fn congestion_stretches_service() {
    let run = |slow, extra_us| {
        let mut target = Target::new(disk(), 1);
        target.set_congestion(0, Congestion { slow, extra_us, frozen: false });
        target.submit(0, read(1, 0, 1_000_000));
        ends(&mut target)[0]
    };
    assert_eq!(run(1.0, 0), 18 * MS);
    assert_eq!(run(10.0, 0), 180 * MS);
    assert_eq!(run(1.0, 2500), 18 * MS + 2_500_000);
}

/// Goal: what is in service when the pace changes goes on at the new one, also through a frost.
/// Method: a request of 18 ms, of which 8 are done when the target becomes ten times as slow, and another 5
/// when it is well again; the same with a frost between.
#[test]
fn a_change_of_pace_takes_hold_at_once() {
    let slow = |slow, frozen| Congestion { slow, frozen, ..Congestion::default() };
    let mut target = Target::new(disk(), 1);
    target.submit(0, read(1, 0, 1_000_000));
    target.set_congestion(8 * MS, slow(10.0, false));
    assert_eq!(target.next_due(), Some(108 * MS));
    target.set_congestion(58 * MS, slow(1.0, false));
    assert_eq!(ends(&mut target), [63 * MS]);
    target.submit(100 * MS, read(1, 1_000_000, 1_000_000));
    target.set_congestion(105 * MS, slow(1.0, true));
    target.set_congestion(200 * MS, slow(10.0, true));
    target.set_congestion(300 * MS, slow(10.0, false));
    assert_eq!(ends(&mut target), [350 * MS], "10 ms less 5, ten times as long");
    target.submit(400 * MS, read(1, 2_000_000, 1_000_000));
    assert_eq!(ends(&mut target), [500 * MS]);
}

/// Goal: jitter and seek range stay within their bounds, spread, and repeat with the seed.
/// Method: 500 far requests, each alone on the target, twice with one seed and once with another.
#[test]
fn jitter_is_bounded_and_repeats_with_its_seed() {
    let run = |seed| {
        let spec = ServiceSpec { jitter: 0.5, ..ServiceSpec::preset("array").unwrap() };
        let mut target = Target::new(spec, seed);
        (0..500)
            .map(|at| {
                let start = at * 1000 * MS;
                target.submit(start, read(at, 0, 1_000_000));
                ends(&mut target)[0] - start
            })
            .collect::<Vec<_>>()
    };
    let times = run(7);
    let (least, most) = (*times.iter().min().unwrap(), *times.iter().max().unwrap());
    assert!(least >= 5_100_000 && most <= 13_650_000, "{least} to {most} ns");
    assert!(least < 6 * MS && most > 12 * MS, "{least} to {most} ns");
    assert_eq!(times, run(7));
    assert_ne!(times, run(8));
}

/// Goal: no mix of requests is served faster than rate and depth allow, and none is lost.
/// Method: seeded mixes over several specs; reaped at random times; ends checked against the bounds.
#[test]
fn no_mix_of_requests_beats_the_model() {
    for seed in 0..200 {
        let mut rng = Rng::with_seed(seed);
        let depth = rng.u32(1..=8);
        let spec = ServiceSpec { depth, jitter: 0.2, ..disk() };
        let mut target = Target::new(spec, seed);
        let (mut now, mut sent, mut bytes, mut done) = (0, 0, 0, 0);
        let mut last_end = 0;
        let mut see = |served: Served<u64>| {
            assert!(served.arrival <= served.start && served.start <= served.end);
            last_end = last_end.max(served.end);
            done += 1;
        };
        for _ in 0..200 {
            now += rng.u64(0..5 * MS);
            let len = rng.u64(1..MIB);
            target.submit(now, read(rng.u64(0..3), rng.u64(0..8) * MIB, len));
            (sent, bytes) = (sent + 1, bytes + len);
            assert!(target.in_service.len() <= depth as usize);
            if rng.bool() {
                while let Some(served) = target.reap(now) {
                    assert!(served.end <= now);
                    see(served);
                }
            }
        }
        while let Some(served) = target.reap(u64::MAX - 1) {
            see(served);
        }
        assert_eq!(done, sent, "seed {seed}");
        assert!(last_end >= bytes * 10, "seed {seed}: {bytes} bytes within {last_end} ns at 10 ns a byte");
        assert_eq!(target.queue_len(), 0);
    }
}
