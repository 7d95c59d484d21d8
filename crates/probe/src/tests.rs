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
/// Method: an ssh that leaves a sign of life, and would sleep for ten minutes; what takes half a minute
/// hangs, and goes on when its ssh is killed.
#[test]
fn a_stop_ends_a_probe_whose_ssh_says_nothing() {
    use haul::api::{Endpoint, Handle, RemoteOptions};
    use std::time::{Duration, Instant};

    let dir = tempfile::tempdir().unwrap();
    let probe = |said: std::path::PathBuf, run: &(dyn Fn(RemoteOptions, Handle) -> bool + Sync)| {
        let script = "echo $$ > \"$0.new\" && mv \"$0.new\" \"$0\" && exec sleep 600";
        let ssh = ["sh", "-c", script, said.to_str().unwrap()].map(String::from).into();
        let remote = RemoteOptions { ssh, interactive: true, ..RemoteOptions::default() };
        let wait_until = |done: &dyn Fn() -> bool| {
            let deadline = Instant::now() + Duration::from_secs(30);
            while !done() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
            done()
        };
        let handle = Handle::new();
        std::thread::scope(|scope| {
            let running = scope.spawn(|| run(remote, handle.clone()));
            let started = wait_until(&|| said.exists());
            handle.stop();
            let ended = wait_until(&|| running.is_finished());
            let process = std::fs::read_to_string(&said).unwrap_or_default();
            let left = std::path::Path::new(&format!("/proc/{}", process.trim())).exists();
            if started && left {
                let _ = std::process::Command::new("kill").args(["-9", process.trim()]).status();
            }
            assert!(started && ended, "the stop does not end it");
            assert!(!left && running.join().unwrap(), "ssh is left behind, or it says something else");
        });
    };
    probe(dir.path().join("network"), &|remote, handle| {
        let ask = network::Request::of("h").options(|request| request.remote = remote);
        matches!(ask.handle(&handle).run(|_| {}), Err(network::NetworkError::Stopped))
    });
    probe(dir.path().join("path"), &|remote, handle| {
        let ask = path::Request::of(Endpoint::remote("h", "/data"), dir.path());
        let ask = ask.options(|request| request.remote = remote).handle(&handle);
        matches!(ask.run(|_| {}), Err(path::PathError::Stopped))
    });
}
