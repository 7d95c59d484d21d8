//! Tables of storage targets between two ends: who asks, who answers, what is shown of it, and peers that do
//! not know them or misuse them.

use std::sync::{Arc, Mutex};

use haul_core::schedule::Health;
use haul_core::schedule::table::{Row, Table, Unwell, UnwellTargets};
use haul_core::wire::{Message, capability};

use super::evil::{Evil, hello, hello_knowing};
use super::*;
use crate::events::{Event, Observer};
use crate::handle::Handle;
use crate::target_tables::Side;
use haul_base::role::Role;

/// Hears of targets.
#[derive(Default)]
struct Seen(Mutex<Vec<Event>>);

impl Observer for Seen {
    fn event(&self, event: Event) {
        if matches!(event, Event::Targets(_) | Event::NoTargets { .. }) {
            self.0.lock().unwrap().push(event);
        }
    }
}

/// A source that is paused by its missing grants; with a control it is the near end.
fn start(bench: &Bench, links: Vec<Link>, near: Option<Watch>) -> thread::JoinHandle<Report> {
    fs::write(bench.src().join("big"), bytes(9, 3 << 20)).unwrap();
    let request = source_request(&[contents(&bench.src())]);
    let watch = near.unwrap_or_else(Watch::silent);
    spawn_end("source", move || source::run(links_of(links), &request, &watch))
}

fn ends() -> (Vec<Link>, Evil) {
    let (ours, theirs) = link_pairs(2).into_iter().unzip();
    (ours, Evil::new(theirs))
}

fn table(name: &str) -> Table {
    let row = Row {
        name: name.into(),
        health: Health::Hung,
        waiting: u32::MAX,
        in_flight: u32::MAX,
        service: Duration::from_nanos(u64::MAX),
        best: Duration::from_nanos(u64::MAX),
        done: u64::MAX,
        bytes: u64::MAX,
    };
    Table { counts: [0, 0, 0, 4096], rows: vec![row; 32] }
}

/// Looks until what is seen is as wanted.
fn look(handle: &Handle, want: impl Fn(&Side) -> bool) -> Side {
    let deadline = Instant::now() + super::PATIENCE;
    loop {
        let side = handle.targets().sink;
        if want(&side) {
            return side;
        }
        assert!(Instant::now() < deadline, "{side:?}");
        thread::yield_now();
    }
}

fn asks(message: &Message) -> Option<()> {
    (*message == Message::AskTable).then_some(())
}

/// Goal: a far end answers questions, however many come at once, and says nothing that it was not asked; one
/// that did not agree takes them for a violation. What only it may say has no effect on it.
#[test]
fn a_far_end_answers() {
    let bench = Bench::new();
    let (ours, mut evil) = ends();
    let source = start(&bench, ours, None);
    evil.greet_source_as(hello_knowing(capability::TABLES), false);
    evil.announced(1);
    evil.say(Message::TargetTable(table("x")));
    evil.say(Message::UnwellTargets(UnwellTargets::default()));
    for _ in 0..2 {
        (0..500).for_each(|_| evil.say(Message::AskTable));
        let told =
            evil.until(|m| if let Message::TargetTable(table) = m { Some(table.clone()) } else { None });
        let table = told.expect("an answer");
        // The file's device, and what waits there for its grant.
        assert_eq!((table.counts, table.rows.len()), ([1, 0, 0, 0], 1));
        assert!(table.rows[0].name.starts_with("device ") && table.rows[0].waiting > 0, "{table:?}");
    }
    drop(evil);
    assert!(failure(&finish("answered", source)).is_some());
    let (ours, mut evil) = ends();
    let source = start(&bench, ours, None);
    evil.greet_source_as(hello(), false);
    evil.say(Message::AskTable);
    evil.until(|_| None::<()>);
    assert!(failure(&finish("unknown", source)).is_some_and(|text| text.contains("ASK_TABLE")));
    bench.check("far end");
}

/// Goal: a near end asks while somebody looks, one question at a time; of the answers it keeps text and
/// numbers, and what it did not ask for has no effect. What the far end says of unwell targets is in the
/// report.
#[test]
fn a_near_end_asks_while_somebody_looks() {
    let bench = Bench::new();
    let (ours, mut evil) = ends();
    let seen = Arc::new(Seen::default());
    let handle = Handle::new();
    let watch = Watch { observer: Some(seen.clone()), handle: handle.clone(), ..Watch::silent() };
    let source = start(&bench, ours, Some(watch));
    evil.greet_source_as(hello_knowing(capability::TABLES), false);
    evil.announced(1);
    // Nobody looks. What comes of itself is not heard; a pong shows that it was taken.
    evil.say(Message::TargetTable(table("unasked")));
    evil.say(Message::AskTable);
    evil.say(Message::Ping(1));
    let before = evil.until(|message| {
        assert_ne!(*message, Message::AskTable, "nobody looked");
        assert!(!matches!(message, Message::TargetTable(_)), "a near end tells nothing");
        (*message == Message::Pong(1)).then_some(())
    });
    assert!(before.is_some());
    let first = look(&handle, |_| true);
    assert_eq!((first.table, first.why_not), (None, None));
    evil.until(asks).expect("a question");
    evil.say(Message::TargetTable(table("a\x1b[2J\n")));
    evil.say(Message::TargetTable(table("unasked")));
    let side = look(&handle, |side| side.table.is_some());
    let shown = side.table.unwrap();
    assert_eq!((shown.end, shown.targets, shown.hung, shown.shown.len()), (Role::Sink, 4096, 4096, 32));
    assert_eq!((shown.shown[0].name.as_str(), shown.shown[0].bytes), ("a\u{fffd}[2J\u{fffd}", u64::MAX));
    look(&handle, |_| handle.targets().source.table.is_some());
    evil.until(asks).expect("the next question, for somebody looks still");
    // It is not answered: no other comes, and the session goes on.
    evil.say(Message::Ping(2));
    evil.until(|message| (*message == Message::Pong(2)).then_some(())).expect("an answer");
    let (congested, hung) = (Duration::from_nanos(u64::MAX), Duration::from_secs(9));
    let told = UnwellTargets { named: vec![Unwell { name: "b\x1b".into(), congested, hung }], others: 4096 };
    evil.say(Message::UnwellTargets(told.clone()));
    evil.say(Message::Ping(3));
    evil.until(|message| (*message == Message::Pong(3)).then_some(())).expect("an answer");
    drop(evil);
    let report = finish("asked", source);
    assert_eq!(report.unwell, [(Role::Source, UnwellTargets::default()), (Role::Sink, told)]);
    assert!(seen.0.lock().unwrap().is_empty(), "events were not asked for");
}

/// Goal: where events of targets are asked for they come without anybody's look; a far end that is too old is
/// said to be.
#[test]
fn an_older_peer_has_no_table() {
    let bench = Bench::new();
    let (ours, mut evil) = ends();
    let seen = Arc::new(Seen::default());
    let handle = Handle::new();
    let watch =
        Watch { observer: Some(seen.clone()), handle: handle.clone(), targets: true, ..Watch::silent() };
    let source = start(&bench, ours, Some(watch));
    evil.greet_source_as(hello(), false);
    evil.announced(1);
    let side = look(&handle, |side| side.why_not.is_some());
    assert!(side.table.is_none() && side.why_not.is_some_and(|why| why.contains("too old")));
    let deadline = Instant::now() + super::PATIENCE;
    let own = |event: &Event| matches!(event, Event::Targets(table) if table.end == Role::Source);
    while !seen.0.lock().unwrap().iter().any(own) {
        assert!(Instant::now() < deadline, "no table of this end");
        thread::yield_now();
    }
    let none = |event: &Event| matches!(event, Event::NoTargets { end: Role::Sink, .. });
    assert!(seen.0.lock().unwrap().iter().any(none));
    assert!(evil.heard.try_iter().all(|message| message != Message::AskTable), "it was asked nonetheless");
    drop(evil);
    finish("older", source);
}
