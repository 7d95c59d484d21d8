use super::*;
use crate::tests::{point, some_points, some_probe};

/// Goal: the rate is what both sides do with the settings named, and no pair of settings does better by more
/// than what counts as equal; of the equal ones none has a common request size where the pair has not.
/// Method: seeded probes against all pairs.
#[test]
fn no_pair_is_better() {
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut a, mut b) = (some_probe(1), some_probe(2));
        (a.points, b.points) = (some_points(&mut rng, 40), some_points(&mut rng, 40));
        let (Ok(reads), Ok(writes)) = (points(&a, Direction::Read), points(&b, Direction::Write)) else {
            assert!(pair(&a, &b).is_err());
            continue;
        };
        let pairing = pair(&a, &b).unwrap();
        assert_eq!(pairing.rate, pairing.read.rate.min(pairing.write.rate));
        let same = pairing.read.setting.request_size == pairing.write.setting.request_size;
        let mut most = 0f64;
        for (read, write) in reads.iter().flat_map(|read| writes.iter().map(move |write| (read, write))) {
            most = most.max(read.rate.min(write.rate));
        }
        assert!(pairing.rate >= most * (1.0 - EQUAL) && pairing.rate <= most);
        for (read, write) in reads.iter().flat_map(|read| writes.iter().map(move |write| (read, write))) {
            let equal = read.rate.min(write.rate) >= most * (1.0 - EQUAL);
            let fits = read.setting.request_size == write.setting.request_size;
            let depth = |a: Setting, b: Setting| a.depth + b.depth;
            if equal && fits {
                assert!(same);
                let ours = depth(pairing.read.setting, pairing.write.setting);
                assert!(ours <= depth(read.setting, write.setting));
            }
        }
        a.points.reverse();
        b.points.reverse();
        assert_eq!(pair(&a, &b).unwrap(), pairing, "the order of the points means nothing");
    }
}

/// Goal: a slow source with a fast sink is limited by reading, and the words say so; mixed-up and untuned
/// settings are held against it.
#[test]
fn the_slower_side_limits() {
    let at = |direction, request_size, rate| Point { rate, ..point(direction, request_size) };
    let (mut a, mut b) = (some_probe(1), some_probe(2));
    a.points = vec![at(Direction::Read, 1 << 20, 50.0), at(Direction::Read, 4 << 20, 100.0)];
    b.points = vec![at(Direction::Write, 1 << 20, 400.0), at(Direction::Write, 4 << 20, 300.0)];
    let pairing = pair(&a, &b).unwrap();
    assert_eq!((pairing.rate, pairing.limited_by), (100.0, Direction::Read));
    assert_eq!(pairing.write.setting.request_size, 4 << 20, "one request size at both ends");
    assert!(pairing.reason.starts_with("reading limits: at its best it does 25 %"), "{}", pairing.reason);
    assert_eq!(pairing.swapped_rate, Some(50.0), "reads of 1 MiB, which writing likes best");
    assert_eq!(pairing.naive_rate, None);
    for point in a.points.iter_mut().chain(&mut b.points) {
        (point.setting.depth, point.setting.io) = (1, Io::Buffered);
    }
    assert_eq!(pair(&a, &b).unwrap().naive_rate, Some(50.0));
}
