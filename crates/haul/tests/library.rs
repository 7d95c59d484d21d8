//! The library as another program uses it.

use std::fs;
use std::sync::Mutex;

use haul::api::{Copy, ErrorKind, Event, Handle, Observer, Status};
use haul::options::Options;

/// Stops the copy as soon as something has moved, and keeps what it heard.
struct Stopper {
    handle: Handle,
    heard: Mutex<Vec<&'static str>>,
}

impl Observer for &'static Stopper {
    fn event(&self, event: Event) {
        let what = match event {
            Event::Progress(progress) if progress.bytes_done > 0 => {
                self.handle.stop();
                "moved"
            }
            Event::Progress(_) => "progress",
            Event::Entry { .. } => "entry",
            _ => "other",
        };
        self.heard.lock().unwrap().push(what);
    }
}

/// Goal: a caller sees how far a copy is, stops it, and the same call again moves the rest; every byte is
/// there.
/// Method: 64 MiB at 32 MiB/s, stopped at the first progress that tells of bytes.
#[test]
fn a_copy_is_watched_stopped_and_completed() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("data"), dir.path().join("copy"));
    let data: Vec<u8> = std::iter::repeat_with({
        let mut rng = fastrand::Rng::with_seed(7);
        move || rng.u8(..)
    })
    .take(64 << 20)
    .collect();
    fs::write(&from, &data).unwrap();
    let handle = Handle::new();
    let stopper: &'static Stopper =
        Box::leak(Box::new(Stopper { handle: handle.clone(), heard: Mutex::default() }));
    let options = Options { rate: Some(32 << 20), ..Options::default() };
    let first = Copy::from([&from]).to(&to).options(options).observer(stopper).handle(&handle).run();
    assert_eq!((first.status, first.error), (Status::Interrupted, None));
    assert!(stopper.heard.lock().unwrap().contains(&"moved"));
    assert!(!to.exists(), "a file is there whole or not at all");

    let second = Copy::from([&from]).to(&to).run();
    assert_eq!((second.status, second.files, second.resumed), (Status::Complete, 1, true));
    assert!(fs::read(&to).unwrap() == data, "every byte is as it was");
}

/// Goal: whose fault a failure is can be matched on.
#[test]
fn errors_say_whose_fault_it_is() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("tree")).unwrap();
    let kind = |copy: Copy| copy.run().error.map(|error| error.kind);
    let path = |name: &str| dir.path().join(name);
    // A directory without `recursive`.
    assert_eq!(kind(Copy::from([path("tree")]).to(path("x"))), Some(ErrorKind::Usage));
    assert_eq!(kind(Copy::from([path("no")]).to(path("x"))), Some(ErrorKind::Storage));
    let ssh = vec!["/nonexistent/ssh".into()];
    let remote = haul::api::RemoteOptions { ssh, ..haul::api::RemoteOptions::default() };
    let far = haul::api::Endpoint::remote("h", "x");
    assert_eq!(kind(Copy::from([path("tree")]).to(far).recursive().remote(remote)), Some(ErrorKind::Network));
    assert_eq!(haul::api::clean(&path("no"), None, false).map(drop).unwrap_err().kind, ErrorKind::Storage);
    assert_eq!(haul::api::layout(&path("tree")).map(drop).unwrap_err().kind, ErrorKind::Usage);
}
