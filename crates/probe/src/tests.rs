//! What the figures of a probe look like outside.

pub(super) use haul::passport::samples::{point, some_points, some_probe};

use super::*;

/// Goal: the JSON form holds all of a probe, with the names that its readers rely on.
/// Method: there and back, and a look at the names.
#[test]
fn probes_survive_json() {
    let mut rng = fastrand::Rng::with_seed(9);
    let mut probe = some_probe(3);
    probe.points = some_points(&mut rng, 100);
    probe.read_best = judge::best(probe.points.iter(), Direction::Read);
    probe.mistakes = judge::mistakes(&probe.points, probe.read_best.as_ref(), Direction::Read);
    probe.mistakes.iter_mut().for_each(|mistake| mistake.penalty = 0.25);
    let json = serde_json::to_string(&probe).unwrap();
    assert_eq!(serde_json::from_str::<Probe>(&json).unwrap(), probe);
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    for name in ["rate", "request_size", "depth", "order", "io"] {
        assert!(value["read_best"].get(name).is_some(), "{name}");
    }
    assert_eq!(value["write_best"], serde_json::Value::Null);
}

/// Goal: a probe of a network, or of a path to another host, ends when it is stopped while ssh says nothing.
/// Method: an ssh that asks for the stop by its first sign of life, and would sleep for ten minutes.
#[test]
fn a_stop_ends_a_probe_whose_ssh_says_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let probe = |said: &std::path::Path, whole: bool| {
        let script = "echo $$ > \"$0.new\" && mv \"$0.new\" \"$0\" && exec sleep 600";
        let ssh = ["sh", "-c", script, said.to_str().unwrap()].map(String::from).into();
        let remote = haul::api::RemoteOptions { ssh, ..Default::default() };
        let stop = haul::api::Handle::new();
        std::thread::scope(|scope| {
            let asked = stop.clone();
            scope.spawn(move || {
                let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
                while !said.exists() && std::time::Instant::now() < deadline {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                asked.stop();
            });
            match whole {
                true => {
                    let far = haul::api::Endpoint::remote("h", "/data");
                    let ask = path::Request::of(far, dir.path()).options(|request| request.remote = remote);
                    let ended = ask.handle(&stop).run(|_| {}).map(drop);
                    assert!(matches!(ended, Err(path::PathError::Stopped)), "{ended:?}");
                }
                false => {
                    let ask = network::Request::of("h").options(|request| request.remote = remote);
                    let ended = ask.handle(&stop).run(|_| {}).map(drop);
                    assert!(matches!(ended, Err(network::NetworkError::Stopped)), "{ended:?}");
                }
            }
        });
        let process = std::fs::read_to_string(said).unwrap();
        assert!(!std::path::Path::new(&format!("/proc/{}", process.trim())).exists(), "ssh is left behind");
    };
    probe(&dir.path().join("network"), false);
    probe(&dir.path().join("path"), true);
}
