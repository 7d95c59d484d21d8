use super::super::judge::tests::point;
use super::*;

fn can(controls: &[&str], window: u64) -> Can {
    Can { streams: 64, controls: controls.iter().map(|name| name.to_string()).collect(), window }
}

/// Runs a sweep against a network: `rate` says what a setting brings. Returns what was measured, in order,
/// and the rest.
fn run(mut sweep: Sweep, rate: impl Fn(&Setting) -> f64) -> (Vec<Setting>, Vec<LeftOut>) {
    let all = sweep.all().len();
    let mut order = Vec::new();
    while let Some(setting) = sweep.next(0.02) {
        order.push(setting.clone());
        assert!(order.len() <= all + 2 * TIMES, "it does not end: {order:?}");
        let mut measured = point(setting.streams, &setting.congestion, rate(&setting));
        measured.setting = setting;
        sweep.record(measured);
    }
    let settings: BTreeSet<Setting> = sweep.all().into_iter().collect();
    let (points, left_out) = sweep.into_parts();
    let known: Vec<&Setting> =
        points.iter().map(|p| &p.setting).chain(left_out.iter().map(|l| &l.setting)).collect();
    let known_once: BTreeSet<Setting> = known.iter().map(|s| (*s).clone()).collect();
    assert!(settings.is_subset(&known_once), "each is measured or left out");
    assert!(left_out.iter().all(|l| points.iter().all(|p| p.setting != l.setting)), "and none of both");
    (order, left_out)
}

/// Goal: streams are added while that helps and not beyond; what cannot win is left out with a reason; the
/// setting to recommend is measured twice.
#[test]
fn what_cannot_win_is_left_out() {
    let sweep = Sweep::new(&can(&["cubic", "reno", "bbr"], 0), &Only::default(), false);
    let (order, left_out) = run(sweep, |setting| {
        let each = match setting.congestion.as_str() {
            "cubic" => 1e8,
            "reno" => 1e7,
            _ => 2e8,
        };
        (each * f64::from(setting.streams)).min(8e8)
    });
    let counts = |name: &str| {
        let of = order.iter().filter(|setting| setting.congestion == name);
        of.map(|setting| setting.streams).collect::<Vec<_>>()
    };
    assert_eq!(counts("cubic"), [1, 2, 4, 8, 16, 32]);
    assert_eq!(counts("reno"), [8], "far behind with the same streams");
    assert_eq!(counts("bbr"), [8, 4, 2, 4], "fewer while they are as fast, and the best once more");
    assert_eq!(left_out.len(), 3 * 7 - 6 - 1 - 3);
    assert!(left_out.iter().all(|left| !left.why.is_empty()));
}

/// Goal: where nothing helps, little is measured.
#[test]
fn where_nothing_helps_little_is_measured() {
    let sweep = Sweep::new(&can(&["cubic", "reno"], 0), &Only::default(), false);
    let (order, _) = run(sweep, |_| 1e8);
    let streams: Vec<u16> = order.iter().map(|setting| setting.streams).collect();
    // Three of cubic, one of reno, and one once more.
    assert_eq!(streams, [1, 2, 4, 1, 1]);
}

/// Goal: fixed windows come last, with the best setting, and only those that could carry its rate.
#[test]
fn windows_that_hold_too_little_are_left_out() {
    let sweep = Sweep::new(&can(&["cubic"], 16 << 20), &Only::default(), false);
    let (order, left_out) = run(sweep, |setting| (3e8 * f64::from(setting.streams)).min(3e8));
    let windows: Vec<Option<u64>> = order.iter().map(|setting| setting.window).collect();
    // 300 MB/s over 20 ms are 6 MB.
    assert_eq!(windows.iter().flatten().collect::<Vec<_>>(), [&(16 << 20)]);
    assert!(windows.iter().skip_while(|window| window.is_none()).all(Option::is_some), "{windows:?}");
    assert!(
        left_out.iter().any(|left| left.setting.window == Some(4 << 20) && left.why.contains("too little"))
    );
}

/// Goal: any network, however odd its answers, ends the sweep, with everything measured or left out; so do
/// failures and a time that is over.
/// Method: seeded rates without any order, seeded failures, all kinds of requests.
#[test]
fn every_sweep_ends() {
    for seed in 0..400 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let only = Only {
            streams: [vec![], vec![3], vec![1, 64, 64]][rng.usize(..3)].clone(),
            windows: [vec![], vec![0], vec![1 << 20], vec![0, 1 << 16]][rng.usize(..4)].clone(),
            controls: [vec![], vec!["bbr".into()]][rng.usize(..2)].clone(),
        };
        let controls: &[&str] = [&["cubic", "bbr", "reno"][..], &["bbr"], &[]][rng.usize(..3)];
        let can = Can {
            streams: [1, 2, 64][rng.usize(..3)],
            ..can(controls, [0, 1 << 17, 1 << 24][rng.usize(..3)])
        };
        let mut sweep = Sweep::new(&can, &only, rng.u8(..4) == 0);
        let settings: BTreeSet<Setting> = sweep.all().into_iter().collect();
        for step in 0.. {
            assert!(step < 200, "seed {seed} does not end");
            if rng.u8(..60) == 0 {
                sweep.end("over");
            }
            let Some(setting) = sweep.next(rng.f64()) else { break };
            if rng.u8(..5) == 0 {
                sweep.failed(setting, "odd");
            } else {
                let mut measured = point(1, "", rng.f64() * 1e9);
                measured.setting = setting;
                sweep.record(measured);
            }
        }
        let (points, left_out) = sweep.into_parts();
        let known: BTreeSet<Setting> =
            points.into_iter().map(|p| p.setting).chain(left_out.into_iter().map(|l| l.setting)).collect();
        assert!(settings.is_subset(&known), "seed {seed}");
    }
}
