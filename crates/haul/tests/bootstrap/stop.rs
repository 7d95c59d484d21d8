//! A stop before the two ends have met.

use std::fs;
use std::net::TcpListener;
use std::path::Path as FsPath;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use haul_base::stop::Stop;
use haul_launch::{BootstrapError, BootstrapKind, Connected, RemoteSpec, connect};

use super::{Far, request};

/// What takes longer than this hangs; without a stop an ssh that says nothing is given up after it.
const HANGS_AFTER: Duration = Duration::from_secs(30);

/// Asked for from outside.
#[derive(Clone, Default)]
struct Wish(Arc<AtomicBool>);

impl Wish {
    fn ask(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn stop(&self) -> Stop {
        let asked = self.0.clone();
        Stop::when(move || asked.load(Ordering::SeqCst))
    }
}

/// Asked for its configuration this ssh tells nothing, and ends.
const TELLS_NOTHING: &str = "case $* in *' -G '*) exit 1;; esac;";

/// Shell lines that leave a number in `process` and become a sleep.
fn falls_silent(far: &Far) -> String {
    let process = far.dir.path().join("process");
    format!("echo $$ > '{0}.new'; mv '{0}.new' '{0}'; exec sleep 600", process.display())
}

fn process_of(far: &Far) -> Option<u32> {
    fs::read_to_string(far.dir.path().join("process")).ok()?.trim().parse().ok()
}

/// Processes of the far host: their home is there.
fn processes(far: &Far) -> Vec<u32> {
    let home = format!("HOME={}", far.home().display());
    let all = fs::read_dir("/proc").unwrap().flatten();
    let numbers = all.filter_map(|process| process.file_name().to_str()?.parse().ok());
    let is_its = |number: &u32| {
        let environment = fs::read(format!("/proc/{number}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == home.as_bytes())
    };
    numbers.filter(is_its).collect()
}

#[track_caller]
fn assert_stopped(far: &Far, result: Result<Connected, BootstrapError>) {
    let kind = result.map(|connected| format!("{connected:?}")).map_err(|error| error.kind);
    assert_eq!(kind, Err(BootstrapKind::Stopped));
    if let Some(process) = process_of(far) {
        assert!(!FsPath::new(&format!("/proc/{process}")).exists(), "ssh is left behind");
    }
    let deadline = Instant::now() + HANGS_AFTER;
    while !processes(far).is_empty() {
        assert!(Instant::now() < deadline, "left behind at the far end: {:?}", processes(far));
        thread::sleep(Duration::from_millis(10));
    }
}

/// Goal: a stop ends a start whose ssh says nothing, or nothing more, and ssh with it.
/// Method: mute when it is asked for its configuration; from the beginning of a login; after the first words
/// of the shell; where haul is pushed to it. The stop is asked for when that is so.
#[test]
fn a_silent_ssh_is_ended_by_a_stop() {
    let uname = "echo HAUL-STAGE0 1 uname Linux $(uname -m) 6.1";
    let (first, second) = (format!("{TELLS_NOTHING} {uname};"), "echo HAUL-STAGE0 1 found;");
    for words in ["", TELLS_NOTHING, &first, &(first.clone() + second)] {
        let mut far = Far::new();
        far.before = words.to_owned() + &falls_silent(&far);
        let process = far.dir.path().join("process");
        let stop = Stop::when(move || process.exists());
        let spec = RemoteSpec { patience: Some(HANGS_AFTER), stop, ..far.spec() };
        assert_stopped(&far, connect(&spec, &request(), &mut |_| {}));
    }

    let (mut far, wish) = (Far::new(), Wish::default());
    far.before =
        format!("{first} echo HAUL-STAGE0 1 missing; echo HAUL-STAGE0 1 send /x;") + &falls_silent(&far);
    let spec = RemoteSpec { stop: wish.stop(), ..far.pushing() };
    let pushes = &mut |note: String| {
        if note.starts_with("pushing haul") {
            wish.ask();
        }
    };
    assert_stopped(&far, connect(&spec, &request(), pushes));
}

/// Goal: a stop ends a start while it dials, and nothing is left at the far end.
/// Method: the port that the far end names is that of somebody who accepts and says nothing. The stop is
/// asked for as soon as he was dialled; without it all would go through ssh.
#[test]
fn a_dial_is_ended_by_a_stop() {
    let (mut far, wish) = (Far::with_haul(), Wish::default());
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    far.env = format!("AGENT_ECHO_PORT={port} AGENT_ECHO_NO_DIAL=1");
    let spec = RemoteSpec { stop: wish.stop(), ..far.spec() };
    let accepting = thread::spawn(move || {
        let dialled = silent.accept();
        wish.ask();
        (dialled, silent)
    });
    let result = connect(&spec, &request(), &mut |_| {});
    assert_stopped(&far, result);
    drop(accepting.join().unwrap());
}

/// Goal: where nobody can be asked, an ssh that says nothing is given up after the user's patience, though
/// not before a login has had its time; and ssh with it.
#[test]
fn a_silent_ssh_is_given_up() {
    let mut far = Far::new();
    far.before = TELLS_NOTHING.to_owned() + &falls_silent(&far);
    let spec = RemoteSpec { patience: Some(Duration::from_secs(1)), ..far.spec() };
    let error = connect(&spec, &request(), &mut |_| {}).unwrap_err();
    assert_eq!(error.kind, BootstrapKind::Peer, "{error}");
    assert!(error.to_string().contains("did not answer within 10 s"), "{error}");
    let process = process_of(&far).expect("it ran");
    assert!(!FsPath::new(&format!("/proc/{process}")).exists(), "ssh is left behind");
}
