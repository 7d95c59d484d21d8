use super::*;
use haul_transport::tcp::HostLimits;

pub(in crate::network) fn point(streams: u16, congestion: &str, rate: f64) -> Point {
    Point {
        setting: Setting { streams, window: None, congestion: congestion.into() },
        rate,
        bytes: rate as u64,
        seconds: 1.0,
        sent: rate as u64,
        resent: 0,
        rtt_min: 0.02,
        rtt_median: 0.02,
        rtt_p99: 0.03,
        cpu_seconds: 0.1,
        limit: Limit::Path,
        rising: false,
    }
}

/// What `streams` reach where each carries `each` and the line `line`.
fn curve(control: &str, each: f64, line: f64) -> Vec<Point> {
    (0..7).map(|i| point(1 << i, control, (each * f64::from(1 << i)).min(line))).collect()
}

/// Goal: on a curve that rises and then is flat the count where it gets flat is chosen, whatever noise of a
/// few percent lies on it; where more streams bring nothing, one.
/// Method: synthetic curves, seeded noise of 2 % either way.
#[test]
fn the_knee_is_chosen_through_noise() {
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        for (each, knee) in [(1e8, 8), (1e9, 1), (5e8, 2), (1.3e7, 64)] {
            let mut points = curve("cubic", each, 8e8);
            for point in &mut points {
                point.rate *= 0.98 + 0.04 * rng.f64();
            }
            rng.shuffle(&mut points);
            let chosen = recommended(&points, "cubic").unwrap();
            assert_eq!(chosen.setting.streams, knee, "seed {seed}: {points:?}");
            assert!(chosen.rate >= MARGIN * best(&points).unwrap().rate);
        }
    }
}

/// Goal: between equals fewer streams come first, then the kernel's own window, then anything but reno, then
/// fewer bytes sent again, then the system's own control; none of them makes up for a rate that is clearly
/// lower.
#[test]
fn the_cheapest_of_the_good_is_chosen() {
    let fixed = |mut point: Point, window| {
        point.setting.window = Some(window);
        point
    };
    let losing = |mut point: Point, share: f64| {
        point.resent = (point.sent as f64 * share) as u64;
        point
    };
    let name = |points: &[Point]| {
        let setting = recommended(points, "cubic").unwrap().setting;
        (setting.streams, setting.window, setting.congestion)
    };
    let is = |streams, window, control: &str| (streams, window, control.to_owned());
    assert_eq!(name(&[point(4, "bbr", 1e9), point(2, "cubic", 0.96e9)]), is(2, None, "cubic"));
    assert_eq!(name(&[point(4, "bbr", 1e9), point(2, "cubic", 0.94e9)]), is(4, None, "bbr"));
    assert_eq!(
        name(&[fixed(point(4, "cubic", 1e9), 1 << 20), point(4, "cubic", 0.96e9)]),
        is(4, None, "cubic")
    );
    assert_eq!(
        name(&[fixed(point(4, "cubic", 1e9), 1 << 20), point(4, "cubic", 0.9e9)]),
        is(4, Some(1 << 20), "cubic")
    );
    assert_eq!(name(&[losing(point(4, "cubic", 1e9), 0.05), point(4, "bbr", 1e9)]), is(4, None, "bbr"));
    assert_eq!(name(&[losing(point(4, "bbr", 1e9), 0.05), point(4, "reno", 1e9)]), is(4, None, "bbr"));
    assert_eq!(name(&[point(4, "bbr", 0.94e9), point(4, "reno", 1e9)]), is(4, None, "reno"));
    assert_eq!(name(&[point(4, "cubic", 1e9), point(4, "bbr", 1.01e9)]), is(4, None, "cubic"));
    assert_eq!(name(&[point(4, "cubic", 0.96e9), point(4, "bbr", 1e9)]), is(4, None, "bbr"));
    let own = [losing(point(4, "bbr", 1e9), 0.05), point(4, "reno", 1e9)];
    assert_eq!(recommended(&own, "reno").unwrap().setting.congestion, "reno");
}

/// Goal: one lucky measurement does not win against its own repetitions; what is no rate counts for nothing.
#[test]
fn repetitions_count_with_their_median() {
    let mut points = vec![point(8, "cubic", 1e9), point(8, "cubic", 1e9), point(64, "cubic", 1.0e9)];
    points.extend([1.5e9, 1e9, 0.99e9].map(|rate| point(16, "cubic", rate)));
    assert_eq!(recommended(&points, "cubic").unwrap().setting.streams, 8);
    points.extend([f64::NAN, f64::INFINITY, 0.0, -1.0].map(|rate| point(1, "cubic", rate)));
    assert_eq!(recommended(&points, "cubic").unwrap().setting.streams, 8);
    assert_eq!((best(&[]), recommended(&[point(1, "x", f64::NAN)], "x")), (None, None));
}

/// Goal: the advice says what one stream is held at, and what the other value would bring: what was measured,
/// not what haul aims at; there is none where the buffers do.
#[test]
fn advice_names_what_was_measured() {
    let end = |auto| {
        let limits = HostLimits {
            rmem_auto: Some(auto),
            wmem_auto: Some(auto),
            rmem_fixed: Some(425_984),
            wmem_fixed: Some(425_984),
        };
        End { limits, cpus: 2 }
    };
    let points = curve("cubic", 2.5e7, 1.2e8);
    let rtt = Some(Duration::from_millis(128));
    let text = advice(rtt, &end(4 << 20), &end(4 << 20), &points).unwrap().text;
    assert!(text.contains("sysctl -w net.ipv4.tcp_rmem=") && text.contains("carry 120 MB/s"), "{text}");
    assert!(text.contains("one was measured at 25 MB/s"), "{text}");
    assert_eq!(advice(rtt, &end(1 << 30), &end(1 << 30), &points), None);
}
