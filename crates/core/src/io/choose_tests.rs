use super::*;

const DIRECT: IoMode = IoMode::Direct;
const BUFFERED: IoMode = IoMode::Buffered;
const LEN: u64 = 16 << 20;

/// A device that does so many bytes per second, give or take `noise`.
struct Device {
    direct: f64,
    buffered: f64,
    noise: f64,
    rng: fastrand::Rng,
}

impl Device {
    fn new(direct: f64, buffered: f64, noise: f64, seed: u64) -> Device {
        Device { direct, buffered, noise, rng: fastrand::Rng::with_seed(seed) }
    }

    fn window(&mut self, mode: IoMode) -> Window {
        let rate = if mode == DIRECT { self.direct } else { self.buffered };
        let rate = rate * (1.0 + self.noise * (2.0 * self.rng.f64() - 1.0));
        Window { mode, bytes: LEN, busy: Duration::from_secs_f64(LEN as f64 / rate) }
    }
}

/// What came of a run.
struct Run {
    /// Bytes until the mode was the one at the end for good, trials of the other one apart.
    settled: u64,
    /// How often the mode changed, into trials and back too.
    changes: u32,
    /// How often the kept mode changed.
    flaps: u32,
    /// Bytes moved in the mode that is not kept at the end.
    wrong: u64,
}

fn run(chooser: &mut Chooser, device: &mut Device, windows: u64) -> Run {
    let mut run = Run { settled: 0, changes: 0, flaps: 0, wrong: 0 };
    let mut by_mode = [0, 0];
    let mut kept = None;
    for i in 0..windows {
        let mode = chooser.mode();
        // A straggler of the other mode that would turn every decision.
        let straggler = Window { mode: other(mode), bytes: 1 << 40, busy: Duration::from_nanos(1) };
        assert!(!chooser.on_window(straggler));
        by_mode[(mode == DIRECT) as usize] += LEN;
        run.changes += u32::from(chooser.on_window(device.window(mode)));
        let choice = chooser.choice();
        if matches!(choice.why, Reason::Measured { .. }) && kept != Some(choice.mode) {
            run.flaps += u32::from(kept.is_some());
            run.settled = (i + 1) * LEN;
            kept = Some(choice.mode);
        }
    }
    run.wrong = by_mode[(chooser.choice().mode == BUFFERED) as usize];
    run
}

/// Goal: the mode that is twice as fast is kept, after two trials, and the other is not tried again.
/// Method: both starts, either one faster, with stragglers of absurd rates in between.
#[test]
fn the_faster_mode_is_kept() {
    for start in IoMode::ALL {
        for (direct, buffered, wanted) in [(2e9, 1e9, DIRECT), (1e9, 2e9, BUFFERED)] {
            let mut chooser = Chooser::new(IoPolicy::Auto, start);
            let run = run(&mut chooser, &mut Device::new(direct, buffered, 0.0, 0), 10_000);
            assert_eq!((chooser.mode(), chooser.choice().mode), (wanted, wanted));
            assert_eq!(run.settled, 2 * TRIAL_LEN);
            assert_eq!(run.wrong, TRIAL_LEN);
            assert_eq!(run.changes, if start == wanted { 2 } else { 1 });
        }
    }
}

/// Goal: a slow mode costs no more than the time of a trial.
/// Method: buffered at 10 MB/s, where 256 MiB would take half a minute.
#[test]
fn a_trial_of_a_slow_mode_is_short() {
    let mut chooser = Chooser::new(IoPolicy::Auto, BUFFERED);
    let run = run(&mut chooser, &mut Device::new(60e6, 10e6, 0.0, 0), 100);
    assert_eq!(chooser.choice().mode, DIRECT);
    assert!(run.wrong <= 2 * LEN, "{} bytes in the slow mode", run.wrong);
}

/// Goal: of equals direct is kept, and also if it is a little slower; more than a little decides.
#[test]
fn direct_wins_a_tie() {
    for (direct, wanted) in [(1.0e9, DIRECT), (0.96e9, DIRECT), (0.94e9, BUFFERED), (1.06e9, DIRECT)] {
        for start in IoMode::ALL {
            let mut chooser = Chooser::new(IoPolicy::Auto, start);
            run(&mut chooser, &mut Device::new(direct, 1e9, 0.0, 0), 100);
            assert_eq!(chooser.choice().mode, wanted, "direct at {direct}");
        }
    }
}

/// Goal: noise neither hides a difference nor makes the mode flap.
/// Method: rates that jump by up to 20 % and up to 60 %, over 10,000 windows, 100 seeds.
#[test]
fn noise_does_not_make_it_flap() {
    for seed in 0..100 {
        for (direct, buffered) in [(2e9, 1e9), (1e9, 2e9), (1e9, 1e9)] {
            // 10,000 windows have room for eight re-checks.
            for (noise, flaps_max, changes_max) in [(0.2, 0, 2), (0.6, 4, 2 + 2 * 8)] {
                let mut chooser = Chooser::new(IoPolicy::Auto, BUFFERED);
                let run = run(&mut chooser, &mut Device::new(direct, buffered, noise, seed), 10_000);
                if direct != buffered {
                    let wanted = if direct > buffered { DIRECT } else { BUFFERED };
                    assert_eq!(chooser.choice().mode, wanted, "noise {noise} seed {seed}");
                    assert_eq!(run.flaps, 0, "noise {noise} seed {seed}");
                }
                assert!(run.flaps <= flaps_max, "{} flaps, noise {noise} seed {seed}", run.flaps);
                assert!(run.changes <= changes_max, "{} changes, noise {noise} seed {seed}", run.changes);
            }
        }
    }
}

/// Goal: a device that turns round half-way is followed, within a GiB.
/// Method: the kept mode loses two thirds of its rate (another user came), the other gets faster.
#[test]
fn a_shift_is_followed() {
    for seed in 0..50 {
        for noise in [0.0, 0.2] {
            let mut chooser = Chooser::new(IoPolicy::Auto, BUFFERED);
            run(&mut chooser, &mut Device::new(2e9, 1e9, noise, seed), 5000);
            assert_eq!(chooser.choice().mode, DIRECT);
            let after = run(&mut chooser, &mut Device::new(0.6e9, 1.2e9, noise, seed), 64);
            assert_eq!((chooser.mode(), chooser.choice().mode), (BUFFERED, BUFFERED));
            assert!(after.wrong <= 1 << 30, "{} bytes in the slow mode", after.wrong);
            let then = run(&mut chooser, &mut Device::new(0.6e9, 1.2e9, noise, seed), 5000);
            assert_eq!(then.flaps, 0);
            assert!(
                matches!(chooser.choice().why, Reason::Measured { direct, buffered } if direct < buffered)
            );
        }
    }
}

/// Goal: a device that shifts for ever is tried again ever more seldom.
/// Method: both modes lose and gain half their rate every 40 windows; trials are counted.
#[test]
fn rechecks_grow_apart() {
    let mut chooser = Chooser::new(IoPolicy::Auto, DIRECT);
    let mut changes = 0;
    for i in 0..250 {
        let rate = if i % 2 == 0 { 1e9 } else { 0.5e9 };
        changes += run(&mut chooser, &mut Device::new(rate, rate, 0.0, 0), 40).changes;
    }
    // Two changes for each trial: the first, and as many re-checks as doublings fit in 2,500 windows.
    assert!((4..=2 * 9).contains(&changes), "{changes}");
    assert_eq!(chooser.choice().mode, DIRECT);
}

/// Goal: a re-check that finds the other mode a little faster changes nothing.
/// Method: the rate drops to half, the other is 10 % better, then 20 %.
#[test]
fn leaving_takes_more_than_a_little() {
    for (gain, wanted) in [(1.1, DIRECT), (1.2, BUFFERED)] {
        let mut chooser = Chooser::new(IoPolicy::Auto, DIRECT);
        run(&mut chooser, &mut Device::new(2e9, 1e9, 0.0, 0), 500);
        let run = run(&mut chooser, &mut Device::new(0.5e9, gain * 0.5e9, 0.0, 0), 500);
        assert!(run.changes > 0, "it was tried again");
        assert_eq!(chooser.choice().mode, wanted);
    }
}

/// Goal: what was asked for is used whatever the rates, and a refusal is for good, in every phase.
#[test]
fn asked_and_refused_are_for_good() {
    for (policy, mode) in [(IoPolicy::Direct, DIRECT), (IoPolicy::Buffered, BUFFERED)] {
        let mut chooser = Chooser::new(policy, other(mode));
        assert_eq!(run(&mut chooser, &mut Device::new(1e9, 1e8, 0.0, 0), 1000).changes, 0);
        run(&mut chooser, &mut Device::new(1e8, 1e9, 0.0, 0), 1000);
        assert_eq!(chooser.choice(), Choice { mode, why: Reason::Asked });
    }
    for windows in [0, 5, 20, 40, 1000] {
        for policy in IoPolicy::ALL {
            let mut chooser = Chooser::new(policy, DIRECT);
            run(&mut chooser, &mut Device::new(2e9, 1e9, 0.0, 0), windows);
            chooser.on_refused("EINVAL");
            run(&mut chooser, &mut Device::new(2e9, 1e9, 0.0, 0), 1000);
            assert_eq!(chooser.mode(), BUFFERED);
            assert_eq!(chooser.choice().to_string(), "buffered (direct is refused: EINVAL)");
        }
    }
}

/// Goal: with several targets it is direct whatever the rates, in every phase; a refusal and the user's wish
/// stand above it.
#[test]
fn targets_are_written_directly() {
    for windows in [0, 5, 20, 40, 1000] {
        let mut chooser = Chooser::new(IoPolicy::Auto, BUFFERED);
        run(&mut chooser, &mut Device::new(1e8, 1e9, 0.0, 0), windows);
        chooser.on_targets();
        assert_eq!(run(&mut chooser, &mut Device::new(1e8, 1e9, 0.0, 0), 1000).changes, 0);
        assert_eq!(chooser.choice(), Choice { mode: DIRECT, why: Reason::Targets });
        chooser.on_refused("EINVAL");
        chooser.on_targets();
        assert_eq!(chooser.mode(), BUFFERED);
    }
    let mut asked = Chooser::new(IoPolicy::Buffered, DIRECT);
    asked.on_targets();
    assert_eq!(asked.mode(), BUFFERED);
}

/// Goal: time that moved nothing (a sync) counts with the bytes around it, and alone decides nothing.
/// Method: buffered writes at 10 GB/s into the cache, each followed by a sync that takes it to 0.5 GB/s.
#[test]
fn syncs_count() {
    let mut chooser = Chooser::new(IoPolicy::Auto, BUFFERED);
    let sync = |mode, millis| Window { mode, bytes: 0, busy: Duration::from_millis(millis) };
    assert!(!chooser.on_window(sync(BUFFERED, 3000)), "no bytes, no sample");
    let mut chooser = Chooser::new(IoPolicy::Auto, BUFFERED);
    let mut device = Device::new(1e9, 10e9, 0.0, 0);
    for _ in 0..100 {
        let mode = chooser.mode();
        if mode == BUFFERED {
            chooser.on_window(sync(mode, 32));
        }
        chooser.on_window(device.window(mode));
    }
    assert_eq!(chooser.choice().mode, DIRECT);
}

/// Goal: reports say the facts.
#[test]
fn reasons_read_well() {
    let told = |policy, start, windows| {
        let mut chooser = Chooser::new(policy, start);
        run(&mut chooser, &mut Device::new(1.62e9, 0.94e9, 0.0, 0), windows);
        chooser.choice().to_string()
    };
    assert_eq!(told(IoPolicy::Auto, BUFFERED, 100), "direct (1.62 GB/s against 0.94 GB/s buffered)");
    assert_eq!(told(IoPolicy::Auto, BUFFERED, 3), "buffered (too little data to compare)");
    assert_eq!(told(IoPolicy::Auto, BUFFERED, 18), "direct (too little data to compare)");
    assert_eq!(told(IoPolicy::Direct, BUFFERED, 3), "direct (asked for)");
    let slow = Choice { mode: BUFFERED, why: Reason::Measured { direct: 9_870_000, buffered: 61_000_000 } };
    assert_eq!(slow.to_string(), "buffered (61.00 MB/s against 9.87 MB/s direct)");
}

/// Goal: one slow window now and then brings no trial.
/// Method: each second window of 64 MiB takes ten times as long.
#[test]
fn a_single_slow_window_is_no_shift() {
    let mut chooser = Chooser::new(IoPolicy::Auto, DIRECT);
    run(&mut chooser, &mut Device::new(2e9, 1e9, 0.0, 0), 2 * TRIAL_LEN / LEN);
    for i in 0..400 {
        let rate = if i % 2 == 1 { 0.2e9 } else { 2e9 };
        let run = run(&mut chooser, &mut Device::new(rate, rate, 0.0, 0), WINDOW_LEN / LEN);
        assert_eq!(run.changes, 0);
    }
}
