use super::*;
use crate::passport::network::{End, Setting, Way};

fn probe(to: &str, rate: f64) -> Network {
    let setting = Setting { streams: 8, window: None, congestion: "bbr".into() };
    let best = Best { setting, rate, loss: 1e-4 };
    Network {
        format: FORMAT,
        kind: KIND.into(),
        haul: "0.1.0".into(),
        host: "h".into(),
        way: Way::To,
        to: to.into(),
        address: Some([192, 0, 2, 7].into()),
        path: "tcp to 192.0.2.7:7000".into(),
        protect: "tls".into(),
        taken: std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() - 3 * 86_400,
        seconds: 30.0,
        joined_in: Some(0.2),
        bytes: 1 << 30,
        rtt_min: 0.0268,
        rtt_median: 0.03,
        rtt_p99: 0.04,
        loss: 1e-4,
        mtu: 1500,
        mss: 1448,
        reordering: 3,
        reorderings: 0,
        near: End::default(),
        far: Some(End { cpus: 4, ..End::default() }),
        points: Vec::new(),
        left_out: Vec::new(),
        best: Some(best.clone()),
        recommended: Some(best),
        limited_by: "the path".into(),
        advice: None,
        cpu_near: Some(0.4),
        cpu_far: None,
        remarks: Vec::new(),
    }
}

/// Goal: what is kept is read again for the same host as typed, and for no other; its age and its values are
/// what a copy starts with.
#[test]
fn what_is_kept_is_what_a_copy_starts_with() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (probe("me@dtn.example.org", 1e9), probe("me_dtn.example.org", 2e9));
    assert!(
        load(dir.path(), &a.to, Way::To).unwrap().is_none() && list(dir.path()).unwrap().passports.is_empty()
    );
    for probe in [&a, &b] {
        save(dir.path(), probe).unwrap();
    }
    let kept = load(dir.path(), &a.to, Way::To).unwrap().unwrap();
    assert_eq!((&kept.probe, kept.age_text().as_str()), (&a, "3 days"));
    assert_eq!(load(dir.path(), &b.to, Way::To).unwrap().unwrap().probe, b);
    assert!(load(dir.path(), "dtn.example.org", Way::To).unwrap().is_none());
    let start = start(&kept).unwrap();
    assert_eq!((start.streams, start.congestion.as_deref(), start.lossy), (8, Some("bbr"), true));
    assert_eq!(start.why, "from the network passport of 3 days ago");
    assert!(super::start(&Passport { age: AGE_MAX + Duration::from_secs(1), ..kept.clone() }).is_none());
    let through_ssh = Network { address: None, ..a.clone() };
    assert!(super::start(&Passport { probe: through_ssh, ..kept }).is_none());
    for host in ["../../etc/passwd", "", ".", &"x".repeat(500), "[::1]"] {
        let probe = probe(host, 1.0);
        let path = save(dir.path(), &probe).unwrap();
        assert_eq!(path.parent().unwrap(), dir.path().join(DIR));
        assert_eq!(load(dir.path(), host, Way::To).unwrap().unwrap().probe, probe);
    }
}

/// Goal: drift is said from a quarter on, either way.
#[test]
fn drift_is_said() {
    let at = |rate| drift(&probe("h", 1e9), &probe("h", rate));
    assert_eq!((at(0.76e9), at(1.3e9)), (None, None));
    assert!(at(0.7e9).unwrap().contains("carries 30 % less than on"));
    assert!(at(2e9).unwrap().contains("100 % more"));
}

/// Goal: a file that is damaged, newer, or another kind of probe is named, and nothing else happens.
#[test]
fn other_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = save(dir.path(), &probe("h", 1e9)).unwrap();
    let good = std::fs::read_to_string(&path).unwrap();
    for (from, to) in [
        ("\"network\"", "\"storage\""),
        ("\"streams\": 8", "\"streams\": 65"),
        ("\"format\": 1", "\"format\": 0"),
        ("{", "["),
    ] {
        std::fs::write(&path, good.replacen(from, to, 1)).unwrap();
        assert!(matches!(load(dir.path(), "h", Way::To), Err(PassportError::Damaged { .. })), "{from}");
    }
    std::fs::write(&path, good.replacen("\"format\": 1", "\"format\": 99", 1)).unwrap();
    assert!(matches!(load(dir.path(), "h", Way::To), Err(PassportError::Newer { format: 99, .. })));
    assert_eq!(list(dir.path()).unwrap().refused.len(), 1);
}

/// Goal: the two ways between two hosts are two networks: each has its passport, and neither is taken for the
/// other.
#[test]
fn each_way_has_its_passport() {
    let dir = tempfile::tempdir().unwrap();
    let there = probe("h", 1e9);
    let back = Network { way: Way::From, ..probe("h", 2e9) };
    save(dir.path(), &there).unwrap();
    assert!(load(dir.path(), "h", Way::From).unwrap().is_none());
    let path = save(dir.path(), &back).unwrap();
    assert_eq!(load(dir.path(), "h", Way::To).unwrap().unwrap().probe, there);
    assert_eq!(load(dir.path(), "h", Way::From).unwrap().unwrap().probe, back);
    assert_eq!(list(dir.path()).unwrap().passports.len(), 2);
    // A file under the other's name is not believed.
    std::fs::copy(&path, path_of(dir.path(), "h", Way::To)).unwrap();
    assert!(load(dir.path(), "h", Way::To).unwrap().is_none());
    // Passports from before there were two ways are of the way there.
    let mut old = serde_json::to_value(&there).unwrap();
    old.as_object_mut().unwrap().remove("way");
    assert_eq!(parse(&serde_json::to_vec(&old).unwrap(), Path::new("x")).unwrap(), there);
    assert!(drift(&back, &Network { best: there.best.clone(), ..back.clone() }).unwrap().contains("from h"));
}
