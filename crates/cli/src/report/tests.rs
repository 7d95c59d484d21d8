//! A scripted run, told to buffers instead of a terminal.

use std::cell::RefCell;
use std::rc::Rc;

use haul::api::{
    Change, Endpoint, EntryEnd, EntryKind, ErrorKind, Health, Held, Operation, Processors, Progress,
    RemoteOptions, SlowTarget, Stage, StageTime, TargetRow,
};
use haul::options::{Durability, Options, Verify};
use serde_json::Value;

use super::*;
use crate::manifest::Counts;

/// A writer that is read later, or that fails after `room` bytes.
#[derive(Clone)]
struct Sheet {
    text: Rc<RefCell<Vec<u8>>>,
    room: usize,
    error: io::ErrorKind,
}

impl Sheet {
    fn new() -> Sheet {
        Sheet { text: Rc::default(), room: usize::MAX, error: io::ErrorKind::BrokenPipe }
    }
    fn text(&self) -> String {
        String::from_utf8(self.text.borrow().clone()).unwrap()
    }
}

impl Write for Sheet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.borrow().len() + bytes.len() > self.room {
            return Err(self.error.into());
        }
        self.text.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The last line of a list of failures of a run that tried all there is.
const WHOLE: &str = "{\"stage\":\"run\",\"errno\":0,\"text\":\"all was tried\",\"whole\":true}\n";

fn no_list() -> List<Sheet> {
    List::new(None, Manner::default())
}

fn broken(text: &str) -> haul::api::Error {
    haul::api::Error::new(haul::api::ErrorKind::Network, text)
}

fn not_opened(path: &[u8], text: String) -> Event {
    let (kind, operation) = (ErrorKind::Permission, Operation::Open);
    Event::Failed { path: path.to_vec(), kind, operation, errno: 13, text }
}

fn request() -> CopyRequest {
    CopyRequest {
        sources: vec![Endpoint::local(b"data\xff".as_slice())],
        destination: Endpoint::remote("u@h", "."),
        replicas: Vec::new(),
        options: Options::default(),
        remote: RemoteOptions {
            ssh: vec!["ssh".into()],
            remote_haul: None,
            no_push: false,
            via: Vec::new(),
            dial: Default::default(),
            ports: None,
            interactive: false,
            ssh_channels: None,
            sockets: Vec::new(),
            binary: None,
        },
        dry_run: false,
        verbose: true,
        targets: true,
        state_home: None,
        picks: None,
    }
}

fn progress(ms: u64, counting: bool) -> Event {
    Event::Progress(Progress {
        bytes_done: ms * 100_000,
        bytes_total: 1_000_000_000,
        files_done: ms / 10,
        files_total: 1000,
        counting,
        elapsed: Duration::from_millis(ms),
        bytes_sent: ms * 100_000,
        ..Progress::default()
    })
}

/// A table of so many targets, the first of which hangs.
fn targets(end: Role, targets: u32) -> Event {
    let first = TargetRow {
        name: "OST0000\x1b[2J".into(),
        state: Health::Hung,
        queue: 12,
        in_flight: 3,
        service_seconds: Some(0.004),
        best_seconds: None,
        done: 98,
        bytes: 98 << 20,
        bytes_per_second: None,
    };
    let second = TargetRow {
        name: "OST0001".into(),
        state: Health::Healthy,
        best_seconds: Some(0.003),
        bytes_per_second: Some(1.5),
        ..first.clone()
    };
    let shown = if targets > 1 { vec![first, second] } else { vec![second] };
    let hung = u32::from(targets > 1);
    let (healthy, congested, resting) = (targets - hung, 0, 0);
    Event::Targets(TargetTable { end, targets, healthy, congested, resting, hung, shown })
}

/// Every kind of event.
fn script() -> Vec<Event> {
    let entry = |end, path: &[u8]| {
        let change = if end == EntryEnd::Copied { Change::NEW } else { Change::NONE };
        Event::Entry { path: path.to_vec(), kind: EntryKind::File, end, change, bytes: 7, link_of: None }
    };
    vec![
        Event::Note("pushing haul to h".into()),
        Event::Plan {
            source: b"a\xff".to_vec(),
            destination: b"b".to_vec(),
            bytes: None,
            metadata_only: true,
        },
        Event::Plan {
            source: b"a".to_vec(),
            destination: b"b".to_vec(),
            bytes: Some(1234),
            metadata_only: false,
        },
        progress(200, true),
        entry(EntryEnd::Copied, b"new\x1b[2J"),
        entry(EntryEnd::Unchanged, b"same\x80"),
        entry(EntryEnd::Skipped, b"left"),
        Event::Failed {
            path: b"bad\n".to_vec(),
            kind: ErrorKind::Permission,
            operation: Operation::Open,
            errno: 13,
            text: "Permission denied".into(),
        },
        Event::Digest { path: b"new".to_vec(), root: [7; 32], bytes: None },
        targets(Role::Source, 9),
        // Nothing to choose between.
        targets(Role::Sink, 1),
        Event::NoTargets { end: Role::Sink, why: "too old".into() },
        progress(3000, false),
        progress(6000, false),
    ]
}

fn ending(status: Status) -> Ending {
    let stage = |busy, starved, blocked| StageTime { busy, starved, blocked };
    let summary = Summary {
        status,
        files: 1000,
        dirs: 12,
        symlinks: 1,
        hard_links: 2,
        unchanged: 5,
        amended: 3,
        failed: 1,
        bytes: 1_000_000_000,
        bytes_sent: 1_004_194_304,
        objects_resent: 1,
        seconds: 10.0,
        cpu_seconds_near: 2.25,
        cpu_seconds_far: Some(3.5),
        rss_near: 120_000_000,
        rss_far: None,
        streams: 4,
        protect: "tls".into(),
        path: "to 10.0.0.2 port 7000".into(),
        durability: Some(Durability::Disk),
        verify: Verify::Disk,
        came_back: 2,
        held: Held { checked: 3_000_000_000, wrong: 4_194_304, trusted: 0, seconds: 2.0 },
        stages: [stage(20, 0, 80), stage(30, 20, 50), stage(95, 5, 0), stage(30, 70, 0), stage(0, 0, 0)],
        processors: [Some(Processors { count: 2, busy: 957 }), Some(Processors { count: 64, busy: 120 })],
        limited_by: Some(Stage::Network),
        not_kept: vec![("owner and group".into(), 1000), ("hard links".into(), 2)],
        strays: 3,
        resumed: true,
        memory_limited: true,
        chosen: vec![haul::api::Chosen::new("streams", "4 (2 processors)")],
        slow_targets: vec![
            SlowTarget {
                end: Role::Source,
                name: "OST0003\x1b".into(),
                congested: Duration::from_secs(4),
                hung: Duration::from_secs(32),
            },
            SlowTarget {
                end: Role::Sink,
                name: "osd.7".into(),
                congested: Duration::from_millis(14_000),
                hung: Duration::ZERO,
            },
        ],
        slow_others: 2,
        ..Summary::default()
    };
    let lists = Lists { manifest: Some(Counts { plain: 999, json: 1, left_out: 0 }), errors: Vec::new() };
    Ending { exit_code: exit_code(&summary, 130), summary, lists, dropped: 0 }
}

/// Tells the script and an ending; returns stdout and stderr.
fn told(settings: &Settings, ending: &Ending) -> (String, String) {
    let (out, err) = (Sheet::new(), Sheet::new());
    let events = Events::new(settings.json.then(|| out.clone()));
    let mut screen = Screen::new(settings, (events, no_list()), err.clone());
    screen.start(&request(), "2026-01-01T00:00:00Z".into());
    for event in script() {
        screen.event(&event);
    }
    screen.note("stopping");
    screen.end(ending);
    (out.text(), err.text())
}

fn schema() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/events.schema.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Goal: every event is as the schema says, and the schema mentions every field.
/// Method: a scripted run with each kind of event and ending, held against docs/events.schema.json.
#[test]
fn events_are_as_the_schema_says() {
    let schema = schema();
    let json = Settings { json: true, ..Settings::default() };
    for status in [Status::Complete, Status::Partial, Status::Failed, Status::Interrupted] {
        let mut end = ending(status);
        if status == Status::Failed {
            end.summary = Summary { error: Some(broken("no\u{1b} route")), ..Summary::default() };
            end.lists = Lists::default();
        }
        let (out, _) = told(&json, &end);
        let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for line in &lines {
            validator::validate(line, &schema, &schema).unwrap_or_else(|error| panic!("{error}\n{line}"));
            let own = &schema["$defs"][line["event"].as_str().unwrap()];
            assert_eq!(validator::unknown_fields(line, own), Vec::<String>::new(), "{line}");
        }
        let kinds: Vec<_> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
        let want =
            "start note plan plan progress entry entry entry failed targets progress progress note summary";
        assert_eq!(kinds.join(" "), want);
        let last = lines.last().unwrap();
        assert_eq!(last["status"], labels::status(status));
        assert_eq!(last["exit_code"], exit_code(&end.summary, 130));
    }
}

/// Goal: the validator sees what is wrong, else the test above proves nothing.
/// Method: real events, each field removed or spoilt in turn.
#[test]
fn spoilt_events_are_refused() {
    let schema = schema();
    let (out, _) = told(&Settings { json: true, ..Settings::default() }, &ending(Status::Complete));
    for line in out.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        for key in event.as_object().unwrap().keys() {
            let mut spoilt = event.clone();
            spoilt[key] = serde_json::json!({"x": []});
            assert!(validator::validate(&spoilt, &schema, &schema).is_err(), "{key} spoilt in {line}");
            if key != "path_b64" {
                spoilt.as_object_mut().unwrap().remove(key);
                assert!(validator::validate(&spoilt, &schema, &schema).is_err(), "{key} missing in {line}");
            }
        }
    }
}

/// Goal: paths that are not UTF-8 keep their bytes.
#[test]
fn odd_paths_keep_their_bytes() {
    let (out, _) = told(&Settings { json: true, ..Settings::default() }, &ending(Status::Complete));
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["sources"][0]["path"], "data\u{fffd}");
    assert_eq!(lines[0]["sources"][0]["path_b64"], "ZGF0Yf8=");
    assert_eq!(lines[0]["destination"]["host"], "u@h");
    assert!(lines[0]["destination"].get("path_b64").is_none());
    assert_eq!(lines[5]["path"], "new\u{1b}[2J");
}

/// Goal: a reader that goes away, or a full disk, stops the events and nothing else; a disk that is full is
/// no success.
/// Method: stdout fails at every possible byte; stderr must be as ever.
#[test]
fn lost_stdout_stops_only_the_events() {
    let settings = Settings { json: true, ..Settings::default() };
    let (whole, calm) = told(&settings, &ending(Status::Complete));
    for error in [io::ErrorKind::BrokenPipe, io::ErrorKind::StorageFull] {
        for room in (0..whole.len()).step_by(97) {
            let out = Sheet { room, error, ..Sheet::new() };
            let err = Sheet::new();
            let mut screen = Screen::new(&settings, (Events::new(Some(out.clone())), no_list()), err.clone());
            screen.start(&request(), "2026-01-01T00:00:00Z".into());
            for event in script() {
                screen.event(&event);
            }
            screen.note("stopping");
            let code = screen.end(&ending(Status::Complete));
            assert_eq!(
                code,
                i32::from(error == io::ErrorKind::StorageFull),
                "a reader that left is no fault"
            );
            assert!(whole.starts_with(&out.text()), "events after a lost one");
            let told: Vec<_> =
                err.text().lines().filter(|line| line.contains("stdout")).map(String::from).collect();
            assert_eq!(told.len(), usize::from(error == io::ErrorKind::StorageFull), "{told:?}");
            assert_eq!(err.text().lines().count(), calm.lines().count() + told.len());
        }
    }
}

/// Goal: files of which the beginning was copied are counted, and it is said how much that was.
#[test]
fn files_that_grew_are_told() {
    for (prefixes, told_of) in [
        (0, None),
        (1, Some("  1 file grew while it was copied: its first 12.3 MB were copied\n")),
        (3, Some("  3 files grew while they were copied: of each the first bytes were, 12.3 MB in all\n")),
    ] {
        let mut end = ending(Status::Complete);
        (end.summary.prefixes, end.summary.prefix_bytes) = (prefixes, 12_300_000);
        let (_, err) = told(&Settings::default(), &end);
        assert_eq!(err.contains("grew"), told_of.is_some());
        assert!(err.contains(told_of.unwrap_or_default()), "{err}");
    }
}

/// Goal: a person sees what was asked for, made safe, and the summary at the end.
#[test]
fn people_see_what_they_asked_for() {
    let plain = Settings::default();
    let (out, err) = told(&plain, &ending(Status::Complete));
    assert_eq!(out, "", "stdout carries only events");
    assert!(err.starts_with("pushing haul to h\nhaul: bad\\n: Permission denied (open)\n"));
    assert!(!err.contains("new"), "entries only with -v");
    assert!(!err.contains("/s,"), "no progress line in the first minute without a terminal: {err}");
    for part in [
        "complete (resumed): copied 1,000 files, 12 directories, 1 symlink, 2 hard links, 1.00 GB in 10 s, 100 MB/s\n",
        "  2 unchanged, 1 failed\n  3 files: metadata only\n",
        "  sent 1.00 GB in 4 TLS 1.3 streams, to 10.0.0.2 port 7000; 1 object was sent again\n",
        "  verified: each file that was copied was read back from the destination's storage; 2 times a file came back wrong",
        "  NOT verified: 5 unchanged files were not read back",
        "  held from an earlier run: 3.00 GB read in 2.0 s, 4.19 MB were not as they were left, and were sent again\n",
        "  durable: everything is on media under its name\n",
        "  processor 2.2 s, memory 120 MB; far end 3.5 s\n",
        "  source host         30 %     20 %     50 %\n",
        "  processors: source host 96 % of 2 busy, sink host 12 % of 64 busy\n  limited by the network between the hosts\n",
        "  the source's storage target OST0003\\x1b hung for 32 s and was congested for 4.0 s\n",
        "  the sink's storage target osd.7 was congested for 14 s\n  and so were 2 other storage targets\n",
        "  memory held the rate down",
        "  not kept: owner and group (1,000), hard links (2)\n",
        "  3 connections from strangers were turned away\n",
        "  manifest: 999 files\n",
    ] {
        assert!(err.contains(part), "{part} is not in {err}");
    }
    assert!(!err.contains("chosen"));

    // Where nothing was slow one line is enough, unless more is asked for.
    let mut even = ending(Status::Complete);
    (even.summary.slow_targets, even.summary.slow_others) = (Vec::new(), 0);
    let (_, err) = told(&plain, &even);
    assert!(
        err.contains("  limited by the network between the hosts\n") && !err.contains("starved"),
        "{err}"
    );
    let manner = Manner { verbose: 1, ..Manner::default() };
    let (_, err) = told(&Settings { manner, ..plain.clone() }, &even);
    assert!(err.contains("starved") && err.contains("  limited by the network"), "{err}");

    let manner = Manner { verbose: 1, ..Manner::default() };
    let (_, err) = told(&Settings { manner, ..plain.clone() }, &ending(Status::Complete));
    assert!(
        err.contains("\nnew\\x1b[2J\n")
            && !err.contains("same")
            && err.contains("chosen: streams = 4 (2 pro")
    );
    let manner = Manner { verbose: 2, ..Manner::default() };
    let (_, err) = told(&Settings { manner, ..plain.clone() }, &ending(Status::Complete));
    assert!(err.contains("\nsame\\x80 (unchanged)\nleft (skipped)\n"));

    // What a far end says of itself, or a name in it, makes no line of its own.
    let mut forged = ending(Status::Partial);
    forged.summary.chosen = vec![haul::api::Chosen::new("skipped", "pipe\ncomplete: copied 9 files")];
    let (_, err) = told(&plain, &forged);
    assert!(err.contains("  skipped: pipe\\ncomplete: copied 9 files\n"), "{err}");

    let (_, err) = told(&Settings { quiet: true, ..plain.clone() }, &ending(Status::Complete));
    assert!(err.lines().all(|line| line.starts_with("haul: ")), "-q: only errors: {err}");
    let (_, err) = told(&plain, &ending(Status::Interrupted));
    assert!(
        err.trim_end().ends_with("run the same command again: what is finished is not moved again"),
        "{err}"
    );

    let mut nowhere = ending(Status::Complete);
    nowhere.summary.durability = None;
    let (_, err) = told(&plain, &nowhere);
    assert!(
        err.contains("  NOT kept: null://") && !err.contains("on media") && !err.contains("read back"),
        "{err}"
    );

    let mut stillborn = ending(Status::Failed);
    stillborn.summary = Summary { error: Some(broken("no route to h\x1b")), ..Summary::default() };
    let (_, err) = told(&plain, &stillborn);
    assert!(err.ends_with("stopping\nhaul: no route to h\\x1b\n"), "{err}");

    let manner = Manner { dry_run: true, ..Manner::default() };
    let (_, err) = told(&Settings { manner, ..plain }, &ending(Status::Complete));
    assert!(
        err.contains("would copy 1,000 files")
            && err.contains("nothing was changed")
            && !err.contains("durable")
    );
}

/// Goal: on a terminal nothing but the live line moves the cursor, it is erased before anything else, and
/// there are no colours without being asked; with colour the names are still safe.
#[test]
fn live_line_is_erased_before_other_lines() {
    let live = Settings { live: true, ..Settings::default() };
    let (_, err) = told(&live, &ending(Status::Partial));
    let drawn = err.matches("\x1b[K").count();
    assert_eq!(drawn, err.matches('\x1b').count());
    assert_eq!(err.matches('\r').count(), drawn);
    assert!(err.contains("\rcounting… 1.00 GB in 1,000 files so far"), "{err:?}");
    let first = err.split("counting").nth(1).unwrap();
    assert!(first.split('\n').next().unwrap().contains("\x1b[K\r\x1b[Khaul: bad"), "{first:?}");

    let manner = Manner { colour: true, verbose: 1, ..Manner::default() };
    let (_, err) = told(&Settings { manner, ..Settings::default() }, &ending(Status::Failed));
    assert!(err.contains("\x1b[31mfailed\x1b[0m") && err.contains("new\\x1b[2J"));
}

/// Goal: with `--watch` the table of both ends stands below the progress line, in its place, and nothing of
/// it is left in the end; names in it are safe.
/// Method: what is written, event by event; that blocks replace each other is shown by the tests of `live`.
#[test]
fn the_table_stands_below_the_line() {
    let watch = Settings { live: true, watch: true, ..Settings::default() };
    let (_, err) = told(&watch, &ending(Status::Complete));
    for part in [
        "source: not known yet\x1b[K\nsink: not known yet\x1b[K",
        "\r\x1b[2A\x1b[Jhaul: bad",
        "source: 9 storage targets: 1 hung, 8 healthy\x1b[K\n  target",
        // The script's next progress is three seconds later, and the tables are as old then.
        "sink: one storage target (as of 5.8 s ago)",
        "OST0000\\x1b[2J hung",
        "  and 7 more: 7 healthy\x1b[K\nsink: one storage target",
        // Progress, a head with two columns of rows and what is not shown, a head and one row.
        "\r\x1b[8A6",
        "\r\x1b[8A\x1b[Jstopping\n",
    ] {
        assert!(err.contains(part), "{part:?} is not in {err:?}");
    }
    let after = err.rsplit("stopping\n").next().unwrap();
    assert!(
        !after.contains('\x1b') && after.starts_with("complete"),
        "nothing is drawn after the end: {after:?}"
    );
    assert!(!told(&Settings { watch: false, ..watch }, &ending(Status::Complete)).1.contains("OST0000"));
}

/// Goal: redrawn at most five times a second, and one line a minute without a terminal.
/// Method: a report each millisecond for two minutes of the run's own time.
#[test]
fn lines_come_at_their_pace() {
    for (live, most) in [(true, 600), (false, 2)] {
        let err = Sheet::new();
        let settings = Settings { live, ..Settings::default() };
        let mut screen = Screen::new(&settings, (Events::new(None::<Sheet>), no_list()), err.clone());
        for ms in 1..=120_000 {
            screen.event(&progress(ms, false));
        }
        let lines = err.text().matches("files").count();
        assert!(lines <= most && lines >= most * 9 / 10, "{lines} lines");
        if !live {
            let first = err.text().lines().next().unwrap().to_owned();
            let (time, rest) = first.split_once(' ').unwrap();
            assert!(humantime::parse_rfc3339(time).is_ok() && rest.contains("/s"), "{first}");
        }
    }
}

/// Goal: a million failures do not flood the terminal, but -v shows each.
#[test]
fn failures_do_not_flood() {
    for (verbose, shown) in [(0, FAILED_SHOWN_MAX + 1), (1, 100)] {
        let err = Sheet::new();
        let manner = Manner { verbose, ..Manner::default() };
        let settings = Settings { manner, ..Settings::default() };
        let mut screen = Screen::new(&settings, (Events::new(None::<Sheet>), no_list()), err.clone());
        for i in 0..100 {
            let path = format!("f{i}").into_bytes();
            let (kind, operation) = (ErrorKind::Storage, Operation::Read);
            screen.event(&Event::Failed { path, kind, operation, errno: 5, text: "I/O".into() });
        }
        assert_eq!(err.text().lines().count() as u64, shown);
    }
}

/// Goal: a long cause of many entries is said once, also where their names are in it, with how many others
/// there are; the first of them are named.
#[test]
fn a_long_cause_is_said_once() {
    let err = Sheet::new();
    let mut screen = Screen::new(&Settings::default(), (Events::new(None::<Sheet>), no_list()), err.clone());
    let long = "MKD /a: 550 no".repeat(20);
    for (path, text) in [("a", &long), ("b", &long), ("c", &"I/O".to_owned()), ("d", &"I/O".to_owned())] {
        screen.event(&not_opened(path.as_bytes(), text.clone()));
    }
    for n in 0..1000 {
        screen.event(&not_opened(format!("n{n}").as_bytes(), format!("write /x/n{n}: {long}")));
    }
    screen.others();
    let (told, first) = (err.text(), format!("haul: a: {long} (open)"));
    assert_eq!(
        told.lines().collect::<Vec<_>>(),
        [
            &first,
            "haul: c: I/O (open)",
            "haul: d: I/O (open)",
            &format!("haul: n0: write /x/n0: {long} (open)"),
            "haul: 1 other entry failed as a did: b",
            "haul: 999 other entries failed as n0 did: n1, n2, n3, n4, n5, ...; --failures FILE lists them all",
        ]
    );
}

/// Goal: the lists hold everything, in spite of a screen that drops; the exit code says how it ended.
/// Method: a real reporter, more events than its queues hold, from several threads.
#[test]
fn lists_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (manifest, failures) = (dir.path().join("sums"), dir.path().join("failures"));
    let settings = Settings {
        quiet: true,
        manifest: Some(manifest.clone()),
        failures: Some(failures.clone()),
        ..Settings::default()
    };
    let reporter = Reporter::start(&settings, &request()).unwrap();
    let each = LISTS_QUEUE_MAX;
    thread::scope(|scope| {
        for t in 0..4 {
            let reporter = &reporter;
            scope.spawn(move || {
                for i in 0..each {
                    let path = format!("{t}/{i}").into_bytes();
                    reporter.event(Event::Digest { path, root: [1; 32], bytes: None });
                }
            });
        }
        // One thread only: a test run should not print thousands of failures.
        for _ in 0..3 {
            let text = "Permission denied".into();
            reporter.event(not_opened(b"x\xff", text));
        }
    });
    assert_eq!(reporter.finish(Summary { status: Status::Partial, failed: 3, ..Summary::default() }, 130), 3);
    assert_eq!(std::fs::read_to_string(&manifest).unwrap().lines().count(), 4 * each);
    let failed = std::fs::read_to_string(&failures).unwrap();
    let line = r#"{"path":"x�","path_b64":"eP8=","stage":"open","errno":13,"text":"Permission denied"}"#;
    assert_eq!(failed, format!("{}{WHOLE}", format!("{line}\n").repeat(3)));
}

/// Goal: a list says that it is whole only if all was tried, and each entry that failed has a line.
#[test]
fn lists_say_whether_they_are_whole() {
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("failures");
    let told = |status, failed, dry_run| {
        let manner = Manner { dry_run, ..Manner::default() };
        let settings = Settings { quiet: true, failures: Some(list.clone()), manner, ..Settings::default() };
        let reporter = Reporter::start(&settings, &request()).unwrap();
        reporter.event(not_opened(b"x", "Permission denied".into()));
        reporter.finish(Summary { status, failed, ..Summary::default() }, 143);
        std::fs::read_to_string(&list).unwrap().lines().nth(1).unwrap().to_owned() + "\n"
    };
    assert_eq!(told(Status::Partial, 1, false), WHOLE);
    for (status, failed, dry_run, why) in [
        (Status::Partial, 2, false, "have no line"),
        (Status::Partial, 1, true, "a dry run"),
        (Status::Interrupted, 1, false, "it was stopped"),
        (Status::Failed, 1, false, "it failed"),
    ] {
        let line = told(status, failed, dry_run);
        assert!(line.contains(why) && line.contains("\"whole\":false"), "{line}");
    }
}

/// Goal: the summary counts what went into each manifest, and only when it got its name.
#[test]
fn manifest_is_counted_when_kept() {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings { manifest: Some(dir.path().join("sums")), ..Settings::default() };
    for (keep, counts) in [(true, Some(Counts { plain: 1, json: 1, left_out: 0 })), (false, None)] {
        let (sender, receiver) = sync_channel(3);
        sender.send(ToLists::Digest { path: b"a".to_vec(), root: [1; 32], bytes: None }).unwrap();
        sender.send(ToLists::Digest { path: b"\xff".to_vec(), root: [1; 32], bytes: None }).unwrap();
        sender.send(ToLists::End { keep, usage: false, how: How::Whole(0) }).unwrap();
        let lists = Files::open(&settings).unwrap().unwrap().run(&receiver);
        assert_eq!((lists.manifest, lists.errors), (counts, Vec::new()));
    }
}

/// Goal: exit codes are as documented; a list that cannot be written is no success, and known at the start.
#[test]
fn exit_codes_say_how_it_ended() {
    for (status, code) in
        [(Status::Complete, 0), (Status::Failed, 1), (Status::Partial, 3), (Status::Interrupted, 143)]
    {
        let reporter = Reporter::start(&Settings { quiet: true, ..Settings::default() }, &request()).unwrap();
        assert_eq!(reporter.finish(Summary { status, ..Summary::default() }, 143), code);
    }
    // What the command cannot mean; and what was gone alone, which wrappers may let pass.
    for (summary, code) in [
        (Summary { usage: true, ..Summary::default() }, 2),
        (Summary { status: Status::Partial, failed: 3, vanished: 3, ..Summary::default() }, 4),
        (Summary { status: Status::Partial, failed: 3, vanished: 2, ..Summary::default() }, 3),
        (Summary { status: Status::Interrupted, failed: 3, vanished: 3, ..Summary::default() }, 143),
        (Summary { status: Status::Failed, failed: 3, vanished: 3, ..Summary::default() }, 1),
    ] {
        let reporter = Reporter::start(&Settings { quiet: true, ..Settings::default() }, &request()).unwrap();
        assert_eq!(reporter.finish(summary, 143), code);
    }
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("list");
    let nowhere = Settings { manifest: Some(dir.path().join("no/list")), ..Settings::default() };
    assert!(Reporter::start(&nowhere, &request()).is_err());
    // The name is taken by a directory while the run lasts.
    let settings = Settings { quiet: true, manifest: Some(list.clone()), ..Settings::default() };
    let reporter = Reporter::start(&settings, &request()).unwrap();
    std::fs::create_dir(&list).unwrap();
    assert_eq!(reporter.finish(Summary { status: Status::Complete, ..Summary::default() }, 130), 1);
    // An interrupted run leaves no manifest.
    std::fs::remove_dir(&list).unwrap();
    let reporter = Reporter::start(&settings, &request()).unwrap();
    reporter.event(Event::Digest { path: b"a".to_vec(), root: [1; 32], bytes: None });
    assert_eq!(reporter.finish(Summary { status: Status::Interrupted, ..Summary::default() }, 130), 130);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Goal: the list of failures is this run's once its two ends agreed, and what is known stands in it before
/// the run ends; a command that makes no sense leaves the old one, and makes none.
#[test]
fn failures_stand_in_their_list_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("failures");
    let settings = Settings { quiet: true, failures: Some(list.clone()), ..Settings::default() };
    let usage = || Summary { usage: true, ..Summary::default() };
    let read = || std::fs::read_to_string(&list).unwrap();
    let reporter = Reporter::start(&settings, &request()).unwrap();
    assert_eq!(reporter.finish(usage(), 130), 2);
    assert!(!list.exists(), "none was there");

    std::fs::write(&list, "old\n").unwrap();
    let reporter = Reporter::start(&settings, &request()).unwrap();
    reporter.event(Event::Note("connecting".into()));
    assert_eq!(reporter.finish(usage(), 130), 2);
    assert_eq!(read(), "old\n");

    // What is waited for here is not told by anybody.
    let await_list = |lines: usize| {
        while read().contains("old") || read().lines().count() != lines {
            thread::sleep(Duration::from_millis(1));
        }
    };
    let reporter = Reporter::start(&settings, &request()).unwrap();
    assert_eq!(read(), "old\n");
    reporter.event(progress(200, true));
    await_list(0);
    for lines in 1..4 {
        let text = "Permission denied".into();
        reporter.event(not_opened(b"x", text));
        await_list(lines);
    }
    assert_eq!(reporter.finish(Summary { status: Status::Interrupted, ..Summary::default() }, 130), 130);
    let stopped = "{\"stage\":\"run\",\"errno\":0,\"text\":\"it was stopped\",\"whole\":false}\n";
    assert!(read().lines().count() == 4 && read().ends_with(stopped), "{}", read());
    // What ended the run as a whole is the last line, but where entries were named with it.
    let cause = "no room; 3 MB are still to be written";
    let failed = || Summary { error: Some(broken(cause)), ..Summary::default() };
    for (text, lines) in [("Permission denied", 2), ("no room", 1)] {
        let reporter = Reporter::start(&settings, &request()).unwrap();
        reporter.event(progress(200, true));
        reporter.event(not_opened(b"x", text.into()));
        assert_eq!(reporter.finish(failed(), 130), 1);
        assert_eq!(read().lines().count(), lines, "{}", read());
        let told = read()
            .ends_with(&format!("{{\"stage\":\"run\",\"errno\":0,\"text\":\"{cause}\",\"whole\":false}}\n"));
        assert_eq!(told, lines == 2, "{}", read());
    }
    // One that ends before its ends agreed has no failures.
    let reporter = Reporter::start(&settings, &request()).unwrap();
    assert_eq!(reporter.finish(Summary::default(), 130), 1);
    assert_eq!(read(), "{\"stage\":\"run\",\"errno\":0,\"text\":\"it failed\",\"whole\":false}\n");
}

/// Goal: lists that would spoil each other, or what is the user's, are refused before anything is written.
#[test]
fn lists_do_not_share_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| Some(dir.path().join(name));
    std::fs::write(at("package.json").unwrap(), "{}\n").unwrap();
    std::os::unix::fs::symlink("m", at("link").unwrap()).unwrap();
    for (manifest, failures) in [
        (at("m"), at("m")),
        (at("m"), at("m.json")),
        (at("m"), at("./m")),
        (at("m"), at("link")),
        (at("package"), None),
        (Some("/dev/stdout".into()), Some("/dev/fd/1".into())),
    ] {
        let settings = Settings { manifest, failures, ..Settings::default() };
        let refused = Reporter::start(&settings, &request()).err().map(|(_, code)| code);
        assert_eq!(refused, Some(2), "{settings:?}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "nothing was made");
}
