//! Live settings between two ends: what each applies and answers, and peers that do not know them or misuse
//! them.

use std::sync::Arc;

use haul_core::tune::rate::RATE_MIN;
use haul_core::wire::{LiveSettings, Message, RATE_UNLIMITED, capability};

use super::evil::{Evil, hello, hello_knowing};
use super::*;
use crate::events::{Event, Observer};
use crate::handle::{CopyPhase, Handle, LiveSetting};

/// The limit that the source's command named: more than the test's files need.
const RATE_BEGAN: u64 = 1 << 30;

struct Nobody;

impl Observer for Nobody {
    fn event(&self, _event: Event) {}
}

fn settings_of(message: &Message) -> Option<LiveSettings> {
    if let Message::LiveSettings(settings) = message { Some(*settings) } else { None }
}

/// A source that is the far end, or with a handle the near one.
fn start(bench: &Bench, links: Vec<Link>, handle: Option<&Handle>) -> thread::JoinHandle<Report> {
    fs::write(bench.src().join("big"), bytes(9, 3 << 20)).unwrap();
    let mut request = source_request(&[contents(&bench.src())]);
    request.pacer = Arc::new(haul_transport::pace::Pacer::new(Some(RATE_BEGAN)));
    let watch = match handle {
        Some(handle) => Watch { observer: Some(Arc::new(Nobody)), handle: handle.clone(), ..Watch::silent() },
        None => Watch::silent(),
    };
    spawn_end("source", move || source::run(links_of(links), &request, &watch))
}

fn ends() -> (Vec<Link>, Evil) {
    let (ours, theirs) = link_pairs(2).into_iter().unzip();
    (ours, Evil::new(theirs))
}

/// Goal: a far end applies what it is told and answers how things stand, within its limits; one that was not
/// told of live settings refuses them.
#[test]
fn a_far_end_follows_and_answers() {
    let bench = Bench::new();
    let (ours, mut evil) = ends();
    let source = start(&bench, ours, None);
    evil.greet_source_as(hello_knowing(capability::LIVE_SETTINGS), false);
    let mut turn = |settings: LiveSettings| {
        evil.say(Message::LiveSettings(settings));
        evil.until(settings_of).unwrap()
    };
    let asked =
        LiveSettings { paused: true, streams: 1, readers: 200, writers: 9, ..LiveSettings::default() };
    let stands = LiveSettings { rate: RATE_BEGAN, writers: 0, ..asked };
    assert_eq!(turn(asked), stands, "writers are the other end's");
    let rate = |rate| LiveSettings { rate, ..asked };
    for (asked, stands) in
        [(200_000, 200_000), (1, RATE_MIN), (RATE_UNLIMITED, RATE_UNLIMITED), (0, RATE_BEGAN)]
    {
        assert_eq!(turn(rate(asked)).rate, stands, "{asked}");
    }
    assert_eq!(turn(LiveSettings { streams: 16, ..LiveSettings::default() }).streams, 2, "it has two");
    assert_eq!(turn(LiveSettings::default()).readers, 2, "as it began");
    drop(evil);
    assert!(failure(&finish("followed", source)).is_some());
    let (ours, mut evil) = ends();
    let source = start(&bench, ours, None);
    evil.greet_source_as(hello(), false);
    evil.say(Message::LiveSettings(LiveSettings::default()));
    evil.until(|_| None::<()>);
    assert!(failure(&finish("unknown", source)).is_some_and(|text| text.contains("LIVE_SETTINGS")));
    bench.check("far end");
}

/// Goal: a near end tells a far end that knows live settings, and believes its answer for what is the far
/// end's alone: nothing that a far end says pauses or turns anything here.
#[test]
fn a_near_end_tells_and_is_not_told() {
    let bench = Bench::new();
    let (ours, mut evil) = ends();
    let handle = Handle::new();
    let source = start(&bench, ours, Some(&handle));
    evil.greet_source_as(hello_knowing(capability::LIVE_SETTINGS), false);
    assert_eq!(evil.until(settings_of), Some(LiveSettings::default()), "it begins with what stands");
    let lies = LiveSettings { paused: true, rate: 70_000, streams: 7, readers: 7, writers: 7 };
    evil.say(Message::LiveSettings(lies));
    handle.set(LiveSetting::Writers, 5).unwrap();
    handle.set(LiveSetting::Readers, 1).unwrap();
    handle.set(LiveSetting::Rate, 0).unwrap();
    let told = evil.until(|message| settings_of(message).filter(|settings| settings.rate > 0));
    assert_eq!(
        told,
        Some(LiveSettings { rate: RATE_UNLIMITED, readers: 1, writers: 5, ..LiveSettings::default() })
    );
    let deadline = Instant::now() + PATIENCE;
    while handle.state().settings[LiveSetting::Writers as usize].now != Some(7) {
        assert!(Instant::now() < deadline, "{:?}", handle.state());
        thread::yield_now();
    }
    // The wishes may be applied a turn after they were told.
    while handle.state().settings[LiveSetting::Rate as usize].now.is_some() {
        assert!(Instant::now() < deadline, "{:?}", handle.state());
        thread::yield_now();
    }
    let state = handle.state();
    assert_eq!(state.phase, CopyPhase::Running);
    let now = |setting: LiveSetting| state.settings[setting as usize].now;
    assert_eq!((now(LiveSetting::Readers), now(LiveSetting::Streams)), (Some(1), Some(2)), "{state:?}");
    assert!(handle.set(LiveSetting::Streams, 3).is_err_and(|error| error.text.contains("has 2")));
    drop(evil);
    finish("told", source);
}

/// Goal: a sink that stores nothing has no writers: it is refused with that reason, and what was wished
/// before that was known is dropped.
/// Method: a far sink whose answer says 0, as a null one's does.
#[test]
fn writers_of_nothing_cannot_be_turned() {
    let bench = Bench::new();
    let (ours, mut evil) = ends();
    let handle = Handle::new();
    handle.set(LiveSetting::Writers, 5).unwrap();
    let source = start(&bench, ours, Some(&handle));
    evil.greet_source_as(hello_knowing(capability::LIVE_SETTINGS), false);
    let told = evil.until(settings_of).unwrap();
    assert_eq!(told.writers, 5);
    evil.say(Message::LiveSettings(LiveSettings { writers: 0, ..told }));
    let deadline = Instant::now() + PATIENCE;
    while handle.state().settings[LiveSetting::Writers as usize].fixed.is_none() {
        assert!(Instant::now() < deadline, "{:?}", handle.state());
        thread::yield_now();
    }
    assert_eq!(handle.live_settings().writers, 0, "the early wish was dropped");
    assert!(handle.set(LiveSetting::Writers, 3).is_err_and(|error| error.text.contains("nothing is stored")));
    handle.set(LiveSetting::Readers, 3).unwrap();
    drop(evil);
    finish("nothing", source);
}

/// Goal: where the other end is too old, what only it could change is refused with that reason, and the rest
/// works.
#[test]
fn an_older_peer_is_told_apart() {
    let bench = Bench::new();
    let (ours, mut evil) = ends();
    let handle = Handle::new();
    // Before the ends have met nobody knows.
    handle.set(LiveSetting::Writers, 3).unwrap();
    let source = start(&bench, ours, Some(&handle));
    evil.greet_source_as(hello(), false);
    let deadline = Instant::now() + PATIENCE;
    while handle.state().phase == CopyPhase::Starting {
        assert!(Instant::now() < deadline);
        thread::yield_now();
    }
    assert!(
        handle
            .set(LiveSetting::Writers, 3)
            .is_err_and(|error| error.text.contains("the other end cannot change this live"))
    );
    assert_eq!(handle.live_settings().writers, 0, "the early wish was dropped");
    handle.set(LiveSetting::Readers, 3).unwrap();
    handle.pause(true).unwrap();
    while handle.state().settings[LiveSetting::Readers as usize].now != Some(3) {
        assert!(Instant::now() < deadline);
        thread::yield_now();
    }
    assert!(evil.heard.try_iter().all(|message| settings_of(&message).is_none()), "it was told nonetheless");
    drop(evil);
    finish("older", source);
}
