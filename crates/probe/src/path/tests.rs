use std::sync::{Arc, Mutex};

use haul_core::stage::Stage;

use super::answer::Told;
use super::judge::{Host, Session, Storage, judge, startup};
use super::place::{Limits, request, size};
use super::*;
use crate::ProbeError;
use haul::api::{Handle, Place};
use haul::options::StorageQuestion;

fn storage(rate: f64, cost: f64) -> Option<Storage> {
    Some(Storage { rate, cost })
}

fn pair(rate: f64, hosts_limit: bool, costs: [f64; 2]) -> Session {
    let [source, sink] = costs.map(|cost| Host { cpus: 4.0, cost });
    Session::Pair { rate, hosts_limit, source, sink }
}

/// Goal: the least rate of the five is what is to be expected, and its part is named.
/// Method: each part the weakest in turn.
#[test]
fn the_weakest_part_is_named() {
    let ns = 1e-9;
    let cases = [
        (storage(1e8, 0.0), pair(1e9, false, [ns, ns]), storage(5e8, 0.0), Stage::SourceStorage, 1e8),
        (storage(2e9, 0.0), pair(1.1e8, false, [ns, ns]), storage(5e8, 0.0), Stage::Network, 1.1e8),
        (storage(2e9, 0.0), pair(1e9, false, [ns, ns]), storage(5e8, 0.0), Stage::SinkStorage, 5e8),
        // Four processors, 8 ns for each byte; the sink's storage adds to its own.
        (None, pair(1e9, false, [8.0 * ns, ns]), None, Stage::SourceHost, 5e8),
        (None, pair(1e9, false, [ns, 6.0 * ns]), storage(8e8, 2.0 * ns), Stage::SinkHost, 5e8),
        // They held it down, and had no more processors than that: what storage costs makes it slower.
        (None, pair(1e9, true, [ns, 2.0 * ns]), None, Stage::SinkHost, 1e9),
        (None, pair(1e9, true, [ns, 2.0 * ns]), storage(9e8, 2.0 * ns), Stage::SinkHost, 5e8),
    ];
    for (source, session, sink, weakest, expected) in cases {
        let verdict = judge(source, session, sink);
        assert_eq!(verdict.weakest, Some(weakest), "{session:?}");
        assert!((verdict.expected.unwrap() / expected - 1.0).abs() < 1e-9, "{verdict:?}");
    }
}

/// Goal: both ends in one process share its host: what each storage costs there slows both; there is no
/// network.
#[test]
fn one_host_is_shared() {
    let session = Session::Local { rate: 2e9, cost: 0.9e-9, share: 0.25 };
    let verdict = judge(None, session, None);
    assert_eq!((verdict.rates[2], verdict.weakest), (None, Some(Stage::SinkHost)));
    assert!((verdict.expected.unwrap() / 2e9 - 1.0).abs() < 1e-9);
    let verdict = judge(storage(9e9, 0.6e-9), session, storage(8e9, 0.3e-9));
    assert!((verdict.expected.unwrap() / 1e9 - 1.0).abs() < 1e-9, "{verdict:?}");
    let slow = judge(storage(9e9, 0.6e-9), session, storage(1e8, 0.3e-9));
    assert_eq!((slow.weakest, slow.expected), (Some(Stage::SinkStorage), Some(1e8)));
}

/// Goal: what a copy takes besides its bytes: to join the ends, its turns, and the round trips until TCP has
/// as much under way as the path holds; next to nothing on a short one.
#[test]
fn a_start_costs_round_trips() {
    assert_eq!(startup(0.3, 0.0, 4, 5e9), 0.3);
    // 16 MB under way on four streams, of which each begins with 14,600 bytes: a little over eight doublings.
    let long = startup(1.5, 0.128, 4, 1.25e8);
    assert!((1.5 + 9.0 * 0.128..1.5 + 9.2 * 0.128).contains(&long), "{long}");
    assert!((0.25..0.251).contains(&startup(0.25, 0.0001, 1, 1e8)));
}

/// Goal: no figure that a peer can say breaks it, and nothing that is no rate is one.
#[test]
fn any_figures_will_do() {
    let odd = [0.0, -1.0, 1.0, 1e300, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    for a in odd {
        for b in odd {
            for session in
                [Session::Local { rate: a, cost: b, share: b }, pair(a, true, [b, a]), pair(b, false, [a, b])]
            {
                let verdict = judge(storage(a, b), session, storage(b, a));
                let begins = startup(a, b, 0, b);
                assert!(begins.is_finite() && begins >= 0.0, "{begins}");
                let all = verdict.rates.iter().flatten().chain(&verdict.expected);
                all.for_each(|rate| assert!(rate.is_finite() && *rate > 0.0, "{verdict:?}"));
            }
        }
    }
}

const LIMITS: Limits = Limits { time: Duration::from_secs(5), bytes: 64 << 20, network_ok: false };

/// Goal: the storage that is probed is the one that a copy uses: made-up ends have none, a destination that
/// is to be made lies where its parent does, a large file is read itself, and a sparse or small one is not.
#[test]
fn the_storage_of_a_copy_is_probed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let ask = |path: &std::path::Path, direction| {
        request(&Place::file(path.as_os_str().as_encoded_bytes()), None, direction, LIMITS)
    };
    for made in ["null://", "null://5GiB", "zero://1"] {
        assert!(
            request(&Place::parse(made.as_bytes()).unwrap(), None, Direction::Read, LIMITS)
                .unwrap()
                .is_none()
        );
    }
    let to = ask(&at("to/be/made"), Direction::Write).unwrap().unwrap();
    assert_eq!(
        (to.path.as_path(), &to.file, &to.directions[..]),
        (dir.path(), &None, &[Direction::Write][..])
    );
    assert_eq!((to.bytes_limit, to.size), (64 << 20, Some(16 << 20)));
    assert!(matches!(ask(&at("none"), Direction::Read), Err(ProbeError::Io { .. })));
    std::fs::create_dir_all(at("data/deep")).unwrap();
    std::fs::write(at("data/small"), b"x").unwrap();
    std::fs::File::create(at("data/holes")).unwrap().set_len(1 << 30).unwrap();
    let from = ask(&at("data"), Direction::Read).unwrap().unwrap();
    assert_eq!((from.path, from.file), (at("data"), None));
    let large = std::fs::File::create(at("data/deep/large")).unwrap();
    rustix::fs::fallocate(&large, rustix::fs::FallocateFlags::empty(), 0, 300 << 20).unwrap();
    let from = ask(&at("data"), Direction::Read).unwrap().unwrap();
    assert_eq!((from.file, from.size), (Some(at("data/deep/large")), None));
    let from = ask(&at("data/small"), Direction::Read).unwrap().unwrap();
    assert_eq!((from.path, from.file), (at("data"), None));
    let size_of = |path: &std::path::Path| size(&Endpoint::local(path.as_os_str().as_encoded_bytes()));
    assert_eq!(
        (size_of(&at("data/deep/large")), size_of(&at("data")), size_of(&at("none"))),
        (Some(300 << 20), None, None)
    );
    let far = |path: &str| size(&Endpoint::new(Some("h".into()), Place::parse(path.as_bytes()).unwrap()));
    assert_eq!(
        (far("null://5"), far("zero://6"), far("null://"), far("/etc/passwd")),
        (Some(5), Some(6), None, None)
    );
    // `~` is the home where no shell saw the path, and a name elsewhere.
    let home = request(&Place::file("~/x"), Some(dir.path()), Direction::Write, LIMITS).unwrap().unwrap();
    assert_eq!(home.path, dir.path());
}

/// Goal: a far end answers with what its storage gives, keeps it beside what it knows of the other direction,
/// and leaves nothing; what cannot be is said; and nobody to tell ends it.
#[test]
fn a_far_end_answers() {
    let (dir, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ask = |path: &str, direction, enough: usize| {
        let path = path.replace("DIR", dir.path().to_str().unwrap());
        let place = Place::parse(path.as_bytes()).unwrap();
        let question = StorageQuestion {
            place,
            direction,
            time_ms: 2000,
            bytes: 32 << 20,
            network_ok: false,
            keep: true,
        };
        let mut told: Vec<Told> = Vec::new();
        answer(&question, (None, Some(state.path())), &mut |json| {
            told.push(serde_json::from_str(&json).unwrap());
            told.len() < enough
        });
        told.pop().unwrap()
    };
    assert_eq!(ask("null://", Direction::Write, 99), Told::Nothing);
    assert!(matches!(ask("DIR/none", Direction::Read, 99), Told::Failed(text) if text.contains("look at")));
    let Told::Found(written) = ask("DIR/new", Direction::Write, 99) else { panic!("no answer") };
    assert!(written.write_best.is_some() && written.read_best.is_none());
    assert!(written.bytes_written <= 32 << 20);
    let Told::Found(read) = ask("DIR", Direction::Read, 99) else { panic!("no answer") };
    let kept = crate::passport::load(state.path(), &read.storage).unwrap().unwrap().probe;
    assert_eq!((kept.read_best, kept.write_best), (read.read_best, written.write_best));
    assert!(kept.points.len() == read.points.len() + written.points.len());
    assert!(matches!(ask("DIR", Direction::Write, 1), Told::Failed(text) if text.contains("stopped")));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Goal: from end to end within one process: five parts, the least of which is what is to be expected; a
/// destination that cannot be written to is refused before anything is measured; a stop ends it.
#[test]
fn a_local_path_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let local = |path: &str| Endpoint::new(None, Place::parse(path.as_bytes()).unwrap());
    let remote = haul::api::RemoteOptions {
        ssh: vec!["false".into()],
        remote_haul: None,
        no_push: true,
        dial: haul::api::Dialler::Auto,
        via: vec![],
        ports: None,
        interactive: false,
        ssh_channels: Some(1),
        sockets: vec![],
        binary: None,
    };
    let there = local(dir.path().to_str().unwrap());
    let asked = Request {
        time_limit: TIME_LIMIT_MIN,
        bytes_limit: 32 << 20,
        ..Request::new(local("null://1GiB"), there, remote)
    };
    let planned = plan(&asked).unwrap();
    let events = Arc::new(Mutex::new(Vec::new()));
    let observer: Arc<dyn Fn(Event) + Send + Sync> = {
        let events = events.clone();
        Arc::new(move |event| events.lock().unwrap().push(event))
    };
    let found = run(&planned, observer.clone(), &Handle::new()).unwrap();
    let names: Vec<&str> = found.parts.iter().map(|part| part.part.as_str()).collect();
    assert_eq!(names, Stage::ALL.map(Stage::name));
    let rates: Vec<Option<f64>> = found.parts.iter().map(|part| part.rate).collect();
    assert!(
        rates[0].is_none()
            && rates[2].is_none()
            && rates[4] == found.sink_storage.as_ref().unwrap().write_best.map(|b| b.rate)
    );
    let least = rates.iter().flatten().copied().fold(f64::INFINITY, f64::min);
    assert_eq!(found.expected, Some(least));
    assert!(found.parts.iter().any(|part| Some(&part.part) == found.weakest.as_ref()));
    assert!(found.source_storage.is_none() && found.network.is_none());
    assert!(events.lock().unwrap().iter().any(|event| matches!(event, Event::Point(_))));
    let stopped = Handle::new();
    stopped.stop();
    assert!(matches!(run(&planned, observer, &stopped), Err(PathError::Stopped)));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    let nowhere = Request { destination: local("/proc/none"), ..asked.clone() };
    assert!(matches!(plan(&nowhere), Err(PathError::Failed(_))));
    let short = Request { time_limit: Duration::from_secs(1), ..asked };
    assert!(matches!(plan(&short), Err(PathError::BadRequest(_))));
}
