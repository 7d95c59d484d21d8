use super::*;
use crate::passport::samples::{some_points, some_probe};
use crate::passport::{Best, FORMAT};
use haul_storage::options::Order;

fn kept(state: &Path, seed: u64) -> Probe {
    let mut probe = some_probe(seed);
    probe.points = some_points(&mut fastrand::Rng::with_seed(seed), 30);
    save(state, &probe).unwrap();
    probe
}

/// Goal: what was kept comes back as it was, by its identity and in the list; a younger one replaces it.
/// Method: seeded probes.
#[test]
fn passports_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("not/made/yet");
    assert!(list(&state).unwrap().passports.is_empty());
    let probes: Vec<Probe> = (1..20).map(|seed| kept(&state, seed)).collect();
    for probe in &probes {
        let passport = load(&state, &probe.storage).unwrap().unwrap();
        assert_eq!(passport.probe, *probe);
    }
    let younger = Probe { taken: probes[0].taken + 5, ..probes[0].clone() };
    save(&state, &younger).unwrap();
    assert_eq!(load(&state, &younger.storage).unwrap().unwrap().probe, younger);
    let listing = list(&state).unwrap();
    assert_eq!((listing.passports.len(), listing.refused.len()), (probes.len(), 0));
    assert!(listing.passports.is_sorted_by_key(|passport| passport.age));
    let files = std::fs::read_dir(state.join(DIR)).unwrap().count();
    assert_eq!(files, probes.len(), "nothing else is left");
    assert!(load(&state, &some_probe(99).storage).unwrap().is_none());
}

/// Goal: a form that a newer haul wrote is named as such, whatever else it holds, and is left alone.
#[test]
fn newer_forms_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let probe = kept(dir.path(), 1);
    let path = dir.path().join(DIR).join(format!("{}.json", probe.storage.id));
    let newer = format!(r#"{{"format": {}, "points": "elsewhere"}}"#, FORMAT + 1);
    std::fs::write(&path, &newer).unwrap();
    let error = load(dir.path(), &probe.storage).unwrap_err();
    assert!(matches!(error, PassportError::Newer { format: 2, .. }), "{error}");
    assert!(error.to_string().contains("use a newer haul"));
    assert_eq!(list(dir.path()).unwrap().refused.len(), 1);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), newer);
}

/// Goal: no damage makes a passport of something else, or a panic.
/// Method: a good file cut at seeded places, with seeded bytes changed; and values that no probe has.
#[test]
fn damage_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let probe = kept(dir.path(), 1);
    let good = serde_json::to_vec(&probe).unwrap();
    let path = Path::new("/p");
    assert_eq!(parse(&good, path).unwrap(), probe);
    let mut rng = fastrand::Rng::with_seed(5);
    for _ in 0..500 {
        let cut = rng.usize(0..good.len());
        assert!(parse(&good[..cut], path).is_err());
        let mut changed = good.clone();
        changed[cut] = rng.u8(..);
        // Some changes are good JSON of another probe; those have settings that can be.
        if let Ok(other) = parse(&changed, path) {
            check(&other).unwrap();
        }
    }
    let spoilt: [fn(&mut Probe); 5] = [
        |p| p.points[0].setting.request_size = 3,
        |p| p.points[0].setting.depth = 0,
        |p| p.points[0].rate = -1.0,
        |p| p.storage.id = "../x".into(),
        |p| p.format = 0,
    ];
    for spoil in spoilt {
        let mut bad = probe.clone();
        spoil(&mut bad);
        assert!(matches!(
            parse(&serde_json::to_vec(&bad).unwrap(), path),
            Err(PassportError::Damaged { .. })
        ));
        if bad.storage.id != probe.storage.id {
            assert!(save(dir.path(), &bad).is_err());
        }
    }
}

/// Goal: the lines that a probe prints are read as the probe that is among them.
#[test]
fn printed_probes_are_read() {
    let (probe, path) = (some_probe(1), Path::new("/p"));
    let json = serde_json::to_string(&probe).unwrap();
    let pretty = serde_json::to_string_pretty(&probe).unwrap();
    let event = r#"{"event":"summary","read_best":null}"#;
    for text in [
        pretty.clone(),
        format!("{event}\n{json}\n{event}\n"),
        format!("{event}\n{{\"event\":\"probe\",\"probe\":{json}}}\n{event}\n"),
    ] {
        assert_eq!(parse(text.as_bytes(), path).unwrap(), probe, "{text}");
    }
    assert!(parse(event.as_bytes(), path).unwrap_err().to_string().contains("no probe"));
}

/// Goal: a rate within a quarter of the passport's is none, beyond it is, with the day and the share in
/// words.
#[test]
fn drift_is_told() {
    let mut probe = some_probe(1);
    let setting = some_points(&mut fastrand::Rng::with_seed(1), 1)[0].setting;
    assert_eq!(drift(&probe, Direction::Read, 5.0), None, "nothing to compare with");
    probe.read_best = Some(Best { rate: 1000.0, setting });
    probe.taken = 1_777_800_000;
    for near in [760.0, 1000.0, 1330.0, f64::NAN] {
        assert_eq!(drift(&probe, Direction::Read, near), None, "{near}");
    }
    assert_eq!(drift(&probe, Direction::Write, 5.0), None);
    let slower = drift(&probe, Direction::Read, 700.0).unwrap();
    assert_eq!(slower.text(), "storage reads 30 % slower than on 2026-05-03");
    assert_eq!(
        drift(&probe, Direction::Read, 2000.0).unwrap().text(),
        "storage reads 100 % faster than on 2026-05-03"
    );
}

/// Goal: days are the calendar's.
#[test]
fn dates_are_right() {
    let days = [
        (0, "1970-01-01"),
        (951_782_400, "2000-02-29"),
        (1_709_251_199, "2024-02-29"),
        (1_709_251_200, "2024-03-01"),
        (4_102_444_800, "2100-01-01"),
        (4_107_542_400, "2100-03-01"),
    ];
    for (seconds, day) in days {
        assert_eq!(date(seconds), day);
    }
}

/// Goal: a transfer starts with the best setting; direct or buffered is settled only where it is clear; an
/// old passport says nothing.
#[test]
fn starting_values_are_the_best() {
    let mut probe = some_probe(1);
    probe.points = some_points(&mut fastrand::Rng::with_seed(1), 2);
    let mut setting = probe.points[0].setting;
    (setting.io, setting.depth, setting.order) = (Io::Direct, 8, Order::Strict);
    probe.write_best = Some(Best { rate: 1000.0, setting });
    probe.points[1].setting = Setting { io: Io::Buffered, ..setting };
    (probe.points[1].direction, probe.points[1].pattern) = (Direction::Write, Pattern::Sequential);
    probe.points.remove(0);
    let mut passport = Passport { probe, age: Duration::from_secs(3 * 86_400) };
    assert_eq!(passport.age_text(), "3 days");
    for (other, io) in [(950.0, IoPolicy::Auto), (850.0, IoPolicy::Direct)] {
        passport.probe.points[0].rate = other;
        let values = starting_values(&passport, Direction::Write);
        let expected = StorageOptions {
            io,
            order: Some(setting.order),
            request_size: Some(setting.request_size),
            depth: Some(8),
            ..StorageOptions::default()
        };
        assert_eq!(values, expected);
    }
    for (free, order) in [(950.0, None), (850.0, Some(Order::Serial))] {
        let mut best = setting;
        best.order = Order::Serial;
        passport.probe.write_best = Some(Best { rate: 1000.0, setting: best });
        let point = &mut passport.probe.points[0];
        (point.rate, point.setting.order, point.setting.depth) = (free, Order::None, 2);
        let values = starting_values(&passport, Direction::Write);
        assert_eq!((values.order, values.depth), (order, Some(if order.is_none() { 2 } else { 8 })));
    }
    assert_eq!(starting_values(&passport, Direction::Read), StorageOptions::default());
    passport.age = AGE_MAX + Duration::from_secs(1);
    assert_eq!(starting_values(&passport, Direction::Write), StorageOptions::default());
}

/// Goal: a probe of one direction leaves what is known of the other as it was, and says when that was
/// measured; one that is too old, or damaged, is gone.
#[test]
fn the_other_direction_stays() {
    let dir = tempfile::tempdir().unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let old = kept(dir.path(), 3);
    let best = Best { rate: 1e9, setting: old.points[0].setting };
    let old = Probe { taken: now - 86_400, read_best: Some(best), write_best: Some(best), ..old };
    let one_way = |direction| {
        let points = old.points.iter().filter(|point| point.direction == direction);
        let points = points.map(|point| Point { rate: 7.0, ..point.clone() }).collect();
        let (read_best, write_best) = match direction {
            Direction::Read => (old.read_best.map(|best| Best { rate: 7.0, ..best }), None),
            Direction::Write => (None, old.write_best.map(|best| Best { rate: 7.0, ..best })),
        };
        Probe { points, read_best, write_best, taken: now, mistakes: Vec::new(), ..old.clone() }
    };
    for direction in [Direction::Read, Direction::Write] {
        save(dir.path(), &old).unwrap();
        let new = one_way(direction);
        add(dir.path(), &new).unwrap();
        let probe = load(dir.path(), &old.storage).unwrap().unwrap().probe;
        let (read, write) = match direction {
            Direction::Read => (new.read_best, old.write_best),
            Direction::Write => (old.read_best, new.write_best),
        };
        assert_eq!((probe.read_best, probe.write_best, probe.taken), (read, write, now));
        let fresh = |point: &Point| point.rate == 7.0;
        assert!(probe.points.iter().all(|point| fresh(point) == (point.direction == direction)));
        assert_eq!(probe.points.len(), old.points.len());
        assert_eq!(probe.remarks.len(), new.remarks.len() + 1);
        let ancient = Probe { taken: now - AGE_MAX.as_secs() - 9, ..old.clone() };
        save(dir.path(), &ancient).unwrap();
        add(dir.path(), &new).unwrap();
        assert_eq!(load(dir.path(), &old.storage).unwrap().unwrap().probe, new);
    }
    let path = dir.path().join(DIR).join(format!("{}.json", old.storage.id));
    std::fs::write(&path, "{").unwrap();
    add(dir.path(), &old).unwrap();
    assert_eq!(load(dir.path(), &old.storage).unwrap().unwrap().probe, old);
}
