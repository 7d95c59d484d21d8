use super::*;
use crate::tests::{point, some_points};

/// Goal: the best is a sequential point of its direction that no other beats, whatever the order of the
/// points.
/// Method: seeded points, shuffled.
#[test]
fn the_best_is_beaten_by_none() {
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut points = some_points(&mut rng, 60);
        for direction in [Direction::Read, Direction::Write] {
            let found = best(points.iter(), direction);
            rng.shuffle(&mut points);
            assert_eq!(best(points.iter(), direction), found);
            let mut ours = points.iter().filter(|p| is_of(p, direction));
            match found {
                None => assert_eq!(ours.next(), None),
                Some(found) => assert!(ours.all(|p| p.rate <= found.rate)),
            }
        }
    }
}

/// Goal: flatness is the share of good settings: 1 where all are equal, the least where one stands out.
#[test]
fn flatness_counts_good_settings() {
    let direction = Direction::Read;
    let mut points: Vec<Point> =
        (0..10).map(|i| Point { rate: 100.0, ..point(direction, 1 << (12 + i)) }).collect();
    assert_eq!(flatness(&points, direction), 1.0);
    assert_eq!(flatness(&points, Direction::Write), 0.0);
    points[3].rate = 1000.0;
    assert_eq!(flatness(&points, direction), 0.1);
    points[4].rate = 901.0;
    points[5].rate = 899.0;
    assert_eq!(flatness(&points, direction), 0.2);
    let random = Point { pattern: Pattern::Random, rate: 1e9, ..points[0].clone() };
    points.push(random);
    assert_eq!(flatness(&points, direction), 0.2, "random offsets do not count");
}

/// Goal: each mistake differs from the best in what its words say and in nothing else, the best itself is
/// none, and penalties are shares.
#[test]
fn mistakes_differ_in_one_thing() {
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut points = some_points(&mut rng, 20);
        let Some(best) = best(points.iter(), Direction::Write) else { continue };
        let wanted = mistakes_of(&best.setting);
        for (what, pattern, setting) in &wanted {
            let (a, b) = (best.setting, *setting);
            let changed = usize::from(a.request_size != b.request_size)
                + usize::from(a.depth != b.depth)
                + usize::from(a.order != b.order)
                + usize::from(a.io != b.io)
                + usize::from(*pattern == Pattern::Random);
            assert_eq!(changed, 1, "{what}: {a:?} {b:?}");
            points.push(Point {
                pattern: *pattern,
                setting: *setting,
                rate: rng.f64() * 2.0 * best.rate,
                ..point(Direction::Write, 1)
            });
        }
        let found = mistakes(&points, Some(&best), Direction::Write);
        assert!(found.len() == wanted.len());
        assert!(found.iter().all(|mistake| (0.0..=1.0).contains(&mistake.penalty)));
        assert!(found.is_sorted_by(|a, b| a.penalty >= b.penalty), "the dearest first");
    }
}
