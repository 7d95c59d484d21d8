//! The sink's driver: streams on one side, storage engine and journal on the other, `transfer::sink` between.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use haul_core::entry::{Meta, Name};
use haul_core::ids::{BufferId, DirId, FileId, SessionEpoch, StreamId};
use haul_core::schedule::table::Table;
use haul_core::stage::Stage;
use haul_core::transfer::SessionEnd;
use haul_core::transfer::op::SinkOp;
use haul_core::transfer::sink::{Sink, SinkAction};
use haul_core::tune::show_size;
use haul_core::wire::{EndReport, Failure, Knobs, Message, NotKept, Placed, Policy, STREAMS_MAX};

use super::choices::Choices;
use super::held;
use super::net::Receive;
use super::processors::Load;
use super::steer::Steering;
use super::streams::{Lines, Lost};
use super::view::{Idle, View, name_of};
use super::{
    Clock, EPOCH, Heard, Kind, Links, MEMORY_HELD, Notices, Pulse, Report, Stopping, TICK, TURN_MAX, Tally,
    Teller, Watch, end_report, exchange_reports, join, places_in_words, protocol,
};
use crate::api::{DEBRIS, Knob, Progress};
use crate::buffer::{Buffer, Pool};
use crate::job::{LayoutChoice, StorageOptions};
use crate::meter::Meter;
use crate::storage::descriptors::{Claim, FEW_DESCRIPTORS};
use crate::storage::sink::{NotKeptCounters, Owner, SinkTree, fault};
use crate::storage::targets::Targets;
use crate::storage::{Payload, Post, SinkCompletion, SinkJob};
use crate::transport::Link;
use crate::transport::rejoin::JoinEvent;
use crate::transport::stream::{ControlEvent, ControlHandle, ControlStream, DataReceiver, RecvEvent};

use engine::Engine;
pub(crate) use place::{unopened, unwritable};
use setup::set_up;
pub(crate) use setup::{destination, was_asked};

mod engine;
mod place;
mod setup;
mod start;

/// After so long without control a new run of the job may have it.
const YIELD_AFTER: Duration = Duration::from_secs(2);

enum Event {
    Done(SinkCompletion),
    Control(ControlEvent),
    Recv(RecvEvent),
    Join(JoinEvent),
}

fn line_of(event: Event) -> Option<Heard> {
    match event {
        Event::Control(event) => Some(Heard::Control(event)),
        Event::Join(event) => Some(Heard::Join(event)),
        Event::Done(_) | Event::Recv(_) => None,
    }
}

/// What the sink end is asked to do.
pub(crate) struct SinkRequest {
    /// As typed, after the colon if there was one.
    pub(crate) destination: crate::storage::place::Place,
    pub(crate) state_dir: Option<PathBuf>,
    pub(crate) home: Option<PathBuf>,
    /// Payload bytes in buffers, at most: what is granted.
    pub(crate) memory: u64,
    pub(crate) writers: u16,
    /// The descriptors that they may hold.
    pub(crate) claim: Claim,
    /// What the user named for each stream's buffers, which were fixed before they connected.
    pub(crate) window: Option<u64>,
    pub(crate) storage: StorageOptions,
    /// How new files come to lie on storage targets.
    pub(crate) layout: LayoutChoice,
    /// What the owner file says of this run, for people.
    pub(crate) what: String,
    /// Where this is the near end: the sources as typed and the choices of the user, against which the far
    /// end's word is held.
    pub(crate) asked: Option<(Vec<crate::storage::place::Place>, Policy)>,
    /// Hears what a source that measures the network says of it.
    pub(crate) hears: Option<Hears>,
}

/// Takes the JSON of a [`Message::Trial`]: whatever the other end said, at most
/// [`TRIAL_LEN_MAX`](haul_core::wire::TRIAL_LEN_MAX) of it.
pub(crate) type Hears = Arc<dyn Fn(&[u8]) + Send + Sync>;

/// Runs the sink end of a session until it is over.
pub(crate) fn run(links: Links, request: &SinkRequest, watch: &Watch) -> Report {
    let (sender, mailbox) = unbounded();
    let gone = Arc::new(AtomicBool::new(false));
    let post: Post<ControlEvent> = {
        let (sender, gone) = (sender.clone(), gone.clone());
        Arc::new(move |event| {
            let said = matches!(&event, ControlEvent::Message(Message::Abort(_) | Message::Stop { .. }));
            if said || matches!(&event, ControlEvent::Lost { .. }) {
                gone.store(true, Ordering::Release);
            }
            drop(sender.send(Event::Control(event)));
        })
    };
    let mut control = match ControlStream::spawn(links.control, EPOCH, post) {
        Ok(control) => control,
        Err(e) => return Report::failed(protocol(e.to_string()), watch),
    };
    let streams = links.streams;
    let near = setup::Near { watch, gone: &gone };
    let started = set_up(&mailbox, (&control, &near), links.session, links.protection, streams, request);
    let started = started.and_then(|setup| {
        let lines = {
            let sender = sender.clone();
            let post: Post<JoinEvent> = Arc::new(move |event| drop(sender.send(Event::Join(event))));
            let up = links.data.iter().map(|(stream, _)| *stream);
            Lines::start(links.joins, EPOCH, up, streams, links.patience, post)
        };
        Session::start(links.data, lines, sender, request, setup)
    });
    let mut session = match started {
        Ok(session) => session,
        Err(failure) => {
            control.send(Message::Abort(failure.clone()));
            control.close();
            return Report::failed(failure, watch);
        }
    };
    if let Some(len) = session.object_len {
        control.send(Message::ObjectLen(len));
    }
    control.send(session.greeting.clone());
    let end = session.drive(&mailbox, &control, watch);
    let placed = session.placed();
    drop(session.receivers);
    let counts = session.machine.counts();
    session.tally.came_back = counts.sent_back;
    let writers = match request.claim.is_short() {
        true => FEW_DESCRIPTORS,
        false => "they mostly wait for syncs",
    };
    let mut chosen = vec![
        ("writers".into(), format!("{} ({writers})", request.writers)),
        ("sink buffers".into(), format!("{} bytes (what is granted)", request.memory)),
    ];
    if session.machine.is_held_by_memory() {
        let all = show_size(request.memory);
        chosen.push((MEMORY_HELD.into(), format!("{all} at the sink is less than the path can hold")));
    }
    chosen.append(&mut session.found);
    chosen.extend(session.engine.left().map(|left| (DEBRIS.to_owned(), left)));
    chosen.extend(session.engine.report());
    chosen.extend(session.receive.report());
    chosen.extend(session.lines.chosen());
    chosen.extend(places_in_words(request.layout, &placed));
    if session.layouts {
        control.send(Message::Placed(placed));
    }
    if session.complete && !session.engine.stuck().is_empty() {
        // The source need not wait for what hangs.
        session.complete = false;
        control.send(Message::Complete);
    }
    let left = session.engine.join();
    let ended = left.is_empty();
    if !ended {
        chosen.push(("sink left behind".into(), left.join("; ")));
    }
    // What hangs may still act when it comes back. Until then the job stays ours.
    if let Some(place) = session.place.as_ref().filter(|_| ended && session.complete) {
        place.finish(&session.not_kept);
    }
    if let Some(stays) = session.place.as_ref().and_then(|place| place.owner.stays()) {
        let text = format!("{stays}; the next run of this copy removes it, or `haul clean`");
        chosen.push((DEBRIS.to_owned(), text));
    }
    if session.complete {
        // Together with the report: whoever hears it may look at the destination, and finds nothing of ours there.
        control.send(Message::Complete);
    }
    let name = |target| name_of(&session.targets, target);
    let unwell = session.view.finish(session.clock.now(), &control, watch, name);
    session.choices.finish(&chosen, &control, watch);
    let processors = session.load.finish(counts.payload, &control, watch);
    let not_kept = session.not_kept.read();
    let mut own = end_report(&session.meter, &links.strays, counts.payload, counts.objects_resent);
    own.not_kept[NotKept::Owner as usize] = not_kept.owner;
    own.not_kept[NotKept::SetId as usize] = not_kept.setid;
    (own.held, _) = session.machine.held();
    own.not_kept[NotKept::Mode as usize] = not_kept.mode;
    own.not_kept[NotKept::Mtime as usize] = not_kept.mtime;
    own.not_kept[NotKept::MtimeClamped as usize] = not_kept.clamped;
    own.amended = counts.amended;
    // The source must hear that it is complete, unless the user has enough.
    let waits = || end == SessionEnd::Complete && !watch.control.stopped();
    let lines = (!session.lost).then_some((&mut session.lines, session.clock));
    let far_report = (session.far, watch.is_near());
    let pick = |event| {
        if let Event::Control(ControlEvent::Message(message)) = &event {
            session.view.hear_late(message);
            session.choices.hear(message);
            session.load.hear(message);
        }
        line_of(event)
    };
    let far = exchange_reports(&mailbox, &mut control, lines, waits, own, far_report, pick);
    let unwell = session.view.both(unwell);
    let chosen = session.choices.both(chosen, watch);
    let processors = [processors, session.load.far()];
    if let Some(place) = session.place.as_ref().filter(|_| ended) {
        place.owner.leave();
    }
    let (tally, resumed, kept) = (session.tally, session.resumed, session.machine.kept());
    Report { end, tally, own, far, processors, resumed, kept, chosen, unwell }
}

/// Where the data goes, if it is kept at all.
struct Place {
    tree: Arc<SinkTree>,
    owner: Arc<Owner>,
    /// What a root that was made becomes at the end.
    like: Option<(Meta, Policy)>,
}

impl Place {
    /// The job is over, with all that it kept here.
    fn finish(&self, lost: &NotKeptCounters) {
        self.owner.release();
        if let Some((like, policy)) = &self.like {
            // What is refused is counted, and nothing is wider for it.
            let _ = self.tree.finish_root(like, (policy.owner, policy.durable), lost);
        }
    }
}

/// The path of an entry below the destination root.
pub(crate) fn path_of(places: &HashMap<DirId, (DirId, Name)>, parent: DirId, name: &Name) -> Vec<u8> {
    let mut names = vec![name];
    let mut at = parent;
    // Ends at the root, for a parent is always announced before its child.
    while let Some((parent, name)) = places.get(&at) {
        names.push(name);
        at = *parent;
    }
    names.into_iter().rev().fold(Vec::new(), |path, name| join(&path, name))
}

struct Session {
    machine: Sink,
    place: Option<Place>,
    engine: Engine,
    receivers: HashMap<StreamId, DataReceiver>,
    buffers: HashMap<BufferId, Payload>,
    /// Parent and name of each directory; a path is put together only when it is told.
    places: HashMap<DirId, (DirId, Name)>,
    dirs: HashMap<FileId, ()>,
    not_kept: Arc<NotKeptCounters>,
    meter: Arc<Meter>,
    tally: Tally,
    /// The other end's report, if it came with its last messages.
    far: Option<EndReport>,
    greeting: Message,
    /// What the source is told of the stripes here.
    object_len: Option<u32>,
    /// Both ends know how striped files are cut.
    layouts: bool,
    resumed: bool,
    /// For the summary: what other jobs left here.
    found: Vec<(String, String)>,
    /// Data frames are authenticated and not encrypted.
    unencrypted: bool,
    /// The control stream is gone for good.
    lost: bool,
    notices: Notices,
    steering: Steering,
    view: View,
    choices: Choices,
    load: Load,
    targets: Arc<Targets>,
    paused: bool,
    hears: Option<Hears>,
    lines: Lines,
    /// All is done, and the source is to hear of it.
    complete: bool,
    receive: Receive,
    /// The job is given to a run that asks for it.
    yields: bool,
    /// Its near end is gone: a run that asks for it waits for this end's.
    ends: bool,
    clock: Clock,
    /// What new streams are made with.
    sender: Sender<Event>,
    pool: Pool,
}

/// The thread of one data stream.
fn start_receiver(
    link: Link,
    (stream, epoch): (StreamId, SessionEpoch),
    pool: &Pool,
    meter: &Arc<Meter>,
    sender: &Sender<Event>,
) -> Result<DataReceiver, Failure> {
    let sender = sender.clone();
    let post: Post<RecvEvent> = Arc::new(move |event| drop(sender.send(Event::Recv(event))));
    DataReceiver::spawn(link, stream, epoch, pool.clone(), meter.clone(), post)
        .map_err(|e| protocol(e.to_string()))
}

impl Session {
    /// Where the files came to lie.
    fn placed(&self) -> Placed {
        let written = self.machine.targets().filter(|target| target.done > 0).count();
        Placed { targets: u16::try_from(written).unwrap_or(u16::MAX), ..self.engine.placed() }
    }

    fn drive(&mut self, mailbox: &Receiver<Event>, control: &ControlHandle, watch: &Watch) -> SessionEnd {
        let clock = self.clock;
        let mut pulse = Pulse::new();
        let mut stopping = Stopping::default();
        let mut teller = Teller::new();
        self.join_control(watch);
        self.meter.set_idle(Stage::SinkStorage, false);
        self.meter.set_idle(Stage::SinkHost, false);
        loop {
            if let Some(end) = self.act(control, watch) {
                return end;
            }
            self.steer(control, watch);
            self.load.look(|| self.machine.counts().payload);
            teller.tell(watch, || self.progress(&clock));
            self.notices.tell(watch, control, self.lines.is_dark(), || self.engine.stuck());
            self.show_targets(control, watch);
            match mailbox.recv_timeout(clock.until(self.machine.next_deadline(), TICK)) {
                Ok(event) => {
                    self.handle(event, control, watch, &mut pulse);
                    for event in mailbox.try_iter().take(TURN_MAX) {
                        self.handle(event, control, watch, &mut pulse);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return SessionEnd::Failed(protocol("the session's mailbox closed"));
                }
            }
            self.machine.handle_tick(clock.now());
            self.give_way();
            if let Err(text) = self.lines.beat(clock.now()) {
                self.control_is_over(&text);
            }
            if !self.lines.is_dark()
                && let Err(text) = pulse.beat(control)
            {
                self.silent(&text, control);
            }
            if stopping.begins(watch) {
                control.send(Message::Stop { reason: "interrupted".into() });
                self.machine.stop();
                if let Some(place) = &self.place {
                    place.owner.set_ends(true);
                }
            }
            if stopping.is_overdue_at(self.machine.steps(), || !self.engine.stuck().is_empty()) {
                return SessionEnd::Stopped;
            }
        }
    }

    /// This end is in charge: says what can be turned in this session.
    fn join_control(&self, watch: &Watch) {
        let no_storage = self.place.is_none().then_some("null:// has no writers");
        let fixed = |knob| no_storage.filter(|_| knob == Knob::Writers);
        let streams = if self.lines.can_join() { STREAMS_MAX } else { self.receivers.len() as u16 };
        self.steering.join(watch, streams, fixed);
        self.view.join(watch);
    }

    /// Lets the targets of this end be seen, if somebody looks.
    fn show_targets(&mut self, control: &ControlHandle, watch: &Watch) {
        let idle = Idle { dark: self.lines.is_dark(), paused: self.paused };
        let (machine, targets) = (&self.machine, &self.targets);
        let table = || Table::of(machine.targets(), |target| name_of(targets, target));
        self.view.tend(self.clock.now(), idle, (control, watch), machine.unwell(), table);
    }

    /// Applies what somebody turned, here or at the other end.
    fn steer(&mut self, control: &ControlHandle, watch: &Watch) {
        let Some(knobs) = self.steering.take(control, watch) else { return };
        self.meter.set_paused(knobs.paused);
        self.paused = knobs.paused;
        let width = self.engine.set_width((knobs.writers > 0).then_some(knobs.writers));
        let stands = Knobs { paused: knobs.paused, writers: width.unwrap_or(0), ..Knobs::default() };
        self.steering.stands(stands, control, watch);
    }

    fn progress(&self, clock: &Clock) -> Progress {
        let counts = self.machine.counts();
        Progress {
            bytes_done: counts.written.saturating_add(counts.holes).max(counts.bytes_done).min(counts.bytes),
            bytes_total: counts.bytes,
            files_done: counts.files_done,
            files_total: counts.files,
            unchanged: counts.unchanged,
            failed: self.tally.failed,
            counting: !counts.walked,
            elapsed: clock.elapsed(),
            bytes_sent: counts.payload,
            holes: counts.holes,
            waiting: self.lines.waiting().or_else(|| self.notices.waiting(&self.engine.stuck())),
            checking: held::at_sink(&self.machine),
            paused: false,
            unencrypted: self.unencrypted,
        }
    }

    /// While control is away the job is kept, but not from a new run of it. One that took it is noticed by the owner's
    /// look before the next publication.
    fn give_way(&mut self) {
        let ends = self.lines.is_orphaned();
        if std::mem::replace(&mut self.ends, ends) != ends
            && let Some(place) = &self.place
        {
            place.owner.set_ends(ends);
        }
        let yields = self.lines.dark_for().is_some_and(|dark| dark >= YIELD_AFTER);
        if std::mem::replace(&mut self.yields, yields) != yields
            && let Some(place) = &self.place
        {
            place.owner.set_yields(yields);
        }
    }

    /// Control does not come back.
    fn control_is_over(&mut self, text: &str) {
        if let Some(place) = &self.place {
            place.owner.set_ends(true);
        }
        self.lost = true;
        self.machine.handle_control_lost(text);
    }

    /// The other end says nothing: its link is cut, and joined again where that is possible.
    fn silent(&mut self, text: &str, control: &ControlHandle) {
        match self.lines.can_join() {
            true => control.cut(text),
            false => self.machine.handle_control_lost(text),
        }
    }

    fn handle_join(&mut self, event: JoinEvent, control: &ControlHandle, pulse: &mut Pulse) {
        let was_dark = self.lines.is_dark();
        let joined = self.lines.handle(event, control, self.clock.now());
        if was_dark && !self.lines.is_dark() {
            pulse.rejoined();
        }
        let Some((stream, epoch, link)) = joined else { return };
        let closer = link.closer.clone();
        self.receive.add(link.socket.as_deref());
        self.machine.set_round_trip(self.receive.round_trip());
        let started = match self.machine.handle_stream_up(stream) {
            true => start_receiver(link, (stream, epoch), &self.pool, &self.meter, &self.sender).ok(),
            false => None,
        };
        match started {
            Some(receiver) => drop(self.receivers.insert(stream, receiver)),
            None => {
                closer();
                self.stream_lost(stream, 0);
            }
        }
    }

    fn stream_lost(&mut self, stream: StreamId, frames: u64) {
        self.lines.stream_lost(stream, self.clock.now());
        self.machine.handle_stream_lost(stream, frames);
    }

    fn handle(&mut self, event: Event, control: &ControlHandle, watch: &Watch, pulse: &mut Pulse) {
        let now = self.clock.now();
        if let Event::Control(event) = &event {
            event.taken(control);
        }
        match event {
            Event::Done(SinkCompletion { done }) => {
                self.machine.handle_done(done, now);
                let (place, engine) = (self.place.as_ref(), &self.engine);
                // First what is free: what is taken meanwhile counts twice, and never not at all.
                let free = || place.and_then(|place| fault::free(&**place.tree.root()));
                self.machine.tell_room(|| free().map(|free| free.saturating_add(engine.allocated())));
            }
            Event::Control(ControlEvent::Message(Message::Report(report))) => self.far = Some(*report),
            Event::Control(ControlEvent::Message(message)) => {
                pulse.heard();
                self.lines.heard();
                if let Message::Streams(streams) = message {
                    self.lines.asked_for(streams);
                }
                match (message, &self.hears) {
                    (Message::Knobs(knobs), _) if self.steering.agreed() => self.steering.hear(knobs),
                    (Message::Trial(json), Some(hears)) => hears(&json),
                    (message, _) if self.view.takes(&message) => self.view.hear(message, watch),
                    (message, _) if self.choices.takes(&message) => self.choices.hear(&message),
                    (message, _) if self.load.hear(&message) => {}
                    (message, _) => self.machine.handle_message(message, now),
                }
            }
            Event::Control(ControlEvent::Lost { epoch, why, how }) => {
                if let Lost::Over(text) = self.lines.control_lost((epoch, why, how), control, now) {
                    self.control_is_over(&text);
                }
            }
            Event::Join(event) => self.handle_join(event, control, pulse),
            Event::Recv(RecvEvent::Data { stream, header, buffer, good, .. }) => {
                let id = buffer.as_ref().map(Buffer::id);
                if let Some(buffer) = buffer {
                    self.buffers.insert(buffer.id(), Payload::Own(buffer));
                }
                self.machine.handle_data(stream, header, id, good, now);
            }
            Event::Recv(RecvEvent::Lost { stream, frames, .. }) => {
                self.receivers.remove(&stream);
                self.stream_lost(stream, frames);
            }
        }
    }

    /// Does what the machine asks, until it asks for nothing more.
    fn act(&mut self, control: &ControlHandle, watch: &Watch) -> Option<SessionEnd> {
        while let Some(action) = self.machine.poll_action() {
            match action {
                SinkAction::RegisterDir { id, parent, name } => {
                    self.places.insert(id, (parent, name.clone()));
                    self.dirs.insert(id.as_file(), ());
                    if let Some(place) = &self.place {
                        place.tree.register(id, parent, name);
                    }
                }
                SinkAction::ForgetDir { id } => {
                    self.places.remove(&id);
                    if let Some(place) = &self.place {
                        place.tree.forget(id);
                    }
                }
                SinkAction::Submit(op) => {
                    let buffer = match &op {
                        SinkOp::WriteBundle { buffer, more: true, .. } => {
                            self.buffers.remove(buffer).map(Payload::share).map(|(held, goes)| {
                                self.buffers.insert(*buffer, held);
                                goes
                            })
                        }
                        SinkOp::Write { buffer, .. } | SinkOp::WriteBundle { buffer, .. } => {
                            self.buffers.remove(buffer)
                        }
                        _ => None,
                    };
                    self.engine.submit(SinkJob { op, buffer });
                }
                SinkAction::Send(Message::Complete) => self.complete = true,
                SinkAction::Send(message) => control.send(message),
                SinkAction::FreeBuffer(id) => drop(self.buffers.remove(&id)),
                SinkAction::Notice(text) => self.notices.hear(text),
                SinkAction::CloseStream(stream) => match self.receivers.get(&stream) {
                    Some(receiver) => receiver.close(),
                    // It never joined here; should it still, it is over.
                    None => self.stream_lost(stream, 0),
                },
                SinkAction::EntryEnded { id, parent, name, is_link, end, root, bytes, change } => {
                    let kind = match self.dirs.remove(&id) {
                        Some(()) => Kind::Dir,
                        None if is_link => Kind::Symlink,
                        None => Kind::File,
                    };
                    let places = &self.places;
                    let path = || path_of(places, parent, &name);
                    self.tally.count(watch, kind, &end, (root, change), bytes, path, || None);
                }
                SinkAction::Trouble { path, failure } => self.tally.fail(watch, path.to_vec(), &failure),
                SinkAction::Finished(end) => return Some(end),
            }
        }
        None
    }
}
