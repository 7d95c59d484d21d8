//! The source's driver: walk, storage engine and streams on one side, `transfer::source` on the other.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, never, select, unbounded};
use haul_core::entry::{EntryKind, Name};
use haul_core::ids::{BufferId, FileId, SessionEpoch, StreamId, TargetId, Time};
use haul_core::schedule::table::Table;
use haul_core::schedule::{Health, Policy, TargetState};
use haul_core::stage::Stage;
use haul_core::transfer::op::{SourceDone, SourceOp};
use haul_core::transfer::source::{Lies, Source, SourceAction};
use haul_core::transfer::{SMALL_LEN_MAX, SessionEnd};
use haul_core::wire::{EndReport, Failure, Knobs, Message, NotKept, Placed, RATE_UNLIMITED, STREAMS_MAX};

use super::choices::Choices;
use super::held;
use super::net::Net;
use super::processors::Load;
use super::spill::Spill;
use super::steer::Steering;
use super::streams::{Lines, Lost};
use super::trial::SharedTrial;
use super::view::{Idle, View, name_of};
use super::{
    Clock, EPOCH, Heard, Kind, Links, Notices, Pulse, Report, Stopping, TICK, TURN_MAX, Tally, Teller, Watch,
    end_report, exchange_reports, places_in_words, protocol,
};
use crate::api::LEFT_OUT;
use crate::api::Progress;
use crate::buffer::{Buffer, Pool};
use crate::job::Options;
use crate::meter::Meter;
use crate::storage::descriptors::Claim;
use crate::storage::place::Place;
use crate::storage::source::tree::SourceTree;
use crate::storage::source::{ReadConfig, WallClock};
use crate::storage::spill::SpillDone;
use crate::storage::walk::{NotKeptWhat, Walk, WalkItem};
use crate::storage::{Post, SourceCompletion, SourceEngine, SourceJob};
use crate::transport::Link;
use crate::transport::pace::Pacer;
use crate::transport::rejoin::JoinEvent;
use crate::transport::stream::{ControlEvent, ControlHandle, ControlStream, DataSender, SendEvent};

use setup::set_up;

mod setup;
mod start;
mod trial;

/// Threads that stat ahead of the walk.
const STAT_THREADS: usize = 4;
/// Targets that the report names because they are slow, at most.
const SLOW_NAMED_MAX: usize = 4;

/// Names of files that were left out, in a report, and the longest.
const LEFT_OUT_SHOWN: usize = 8;
const LEFT_OUT_CHARS: usize = 120;

enum Event {
    Done(SourceCompletion),
    Spill(SpillDone),
    Control(ControlEvent),
    Send(SendEvent),
    Join(JoinEvent),
}

fn line_of(event: Event) -> Option<Heard> {
    match event {
        Event::Control(event) => Some(Heard::Control(event)),
        Event::Join(event) => Some(Heard::Join(event)),
        Event::Done(_) | Event::Spill(_) | Event::Send(_) => None,
    }
}

/// What the source end is asked to do.
pub(crate) struct SourceRequest {
    /// As typed, after the colon if there was one.
    pub(crate) sources: Vec<Place>,
    pub(crate) options: Options,
    pub(crate) home: Option<PathBuf>,
    /// Payload bytes in buffers, at most.
    pub(crate) memory: u64,
    pub(crate) readers: u16,
    /// The descriptors that they may hold.
    pub(crate) claim: Claim,
    /// The limit on the rate.
    pub(crate) pacer: Arc<Pacer>,
    /// Why `memory`.
    pub(crate) memory_why: String,
    /// Tells whether a change of a file could hide in the grain of its ctime.
    pub(crate) clock: WallClock,
    /// Who turns streams and sockets; `None`: this end itself.
    pub(crate) trial: Option<SharedTrial>,
}

/// Runs the source end of a session until it is over.
pub(crate) fn run(links: Links, request: &SourceRequest, watch: &Watch) -> Report {
    let (sender, mailbox) = unbounded();
    let post: Post<ControlEvent> = {
        let sender = sender.clone();
        Arc::new(move |event| drop(sender.send(Event::Control(event))))
    };
    let mut control = match ControlStream::spawn(links.control, EPOCH, post) {
        Ok(control) => control,
        Err(e) => return Report::failed(protocol(e.to_string()), watch),
    };
    let setup = set_up(&mailbox, (&control, watch), links.session, links.protection, links.streams, request);
    let setup = match setup {
        Ok(setup) => setup,
        Err(failure) => {
            control.send(Message::Abort(failure.clone()));
            control.close();
            return Report::failed(failure, watch);
        }
    };
    let lines = {
        let sender = sender.clone();
        let post: Post<JoinEvent> = Arc::new(move |event| drop(sender.send(Event::Join(event))));
        let up = links.data.iter().map(|(stream, _)| *stream);
        Lines::start(links.joins, EPOCH, up, links.streams, links.patience, post)
    };
    let mut session = match Session::start((links.data, links.streams), lines, sender, request, &setup) {
        Ok(session) => session,
        Err(failure) => {
            control.send(Message::Abort(failure.clone()));
            control.close();
            return Report::failed(failure, watch);
        }
    };
    session.tally.renamed = setup.rename.is_some();
    let end = session.drive(&mailbox, &control, watch);
    if let SessionEnd::Failed(failure) = &end {
        // The sink closes its epoch at once instead of when it notices.
        control.send(Message::Abort(failure.clone()));
    }
    session.walk.cancel();
    for sender in session.senders.values_mut() {
        match end {
            SessionEnd::Complete => sender.close(),
            SessionEnd::Stopped | SessionEnd::Failed(_) => sender.abort(),
        }
    }
    let counts = session.machine.counts();
    session.tally.came_back = counts.sent_back;
    let mut own = end_report(&session.meter, &links.strays, counts.payload, counts.objects_resent);
    own.not_kept = session.not_kept;
    (own.prefixes, own.prefix_bytes) = (counts.prefixes, counts.prefix_bytes);
    let mut chosen = setup.chosen(request);
    chosen.push(session.schedule(&request.options));
    chosen.extend(session.engine.report());
    chosen.extend(session.spill.report(session.machine.spill_counts()));
    chosen.extend(session.left_out());
    chosen.extend(session.net.report());
    chosen.extend(session.lines.chosen());
    let name = |target| name_of(session.tree.targets(), target);
    let unwell = session.view.finish(session.clock.now(), &control, watch, name);
    let placed = session.placed.iter();
    chosen.extend(placed.flat_map(|placed| places_in_words(request.options.layout, placed)));
    session.choices.finish(&chosen, &control, watch);
    let processors = session.load.finish(counts.payload, &control, watch);
    // The sink has the last word; what this end still has to say is not worth waiting for.
    let lines = (!session.lost).then_some((&mut session.lines, session.clock));
    let far = exchange_reports(
        &mailbox,
        &mut control,
        lines,
        || false,
        own,
        (session.far, watch.is_near()),
        |event| {
            if let Event::Control(ControlEvent::Message(message)) = &event {
                session.view.hear_late(message);
                session.choices.hear(message);
                session.load.hear(message);
            }
            line_of(event)
        },
    );
    let unwell = session.view.both(unwell);
    let chosen = session.choices.both(chosen, watch);
    let processors = [processors, session.load.far()];
    let (tally, resumed) = (session.tally, setup.resumed);
    let kept = counts.durable.saturating_add(counts.held_open);
    Report { end, tally, own, far, processors, resumed, kept, chosen, unwell }
}

struct Session {
    machine: Source,
    tree: Arc<SourceTree>,
    engine: Box<dyn SourceEngine>,
    walk: Walk,
    walked: bool,
    /// What was walked and waits for room among the open entries: at most one batch.
    ahead: VecDeque<WalkItem>,
    rename: Option<Name>,
    senders: HashMap<StreamId, DataSender>,
    pool: Pool,
    spill: Spill,
    buffers: HashMap<BufferId, Buffer>,
    kinds: HashMap<FileId, Kind>,
    meter: Arc<Meter>,
    tally: Tally,
    /// The other end's report, if it came with its last messages.
    far: Option<EndReport>,
    /// Where the files came to lie, as the sink says.
    placed: Option<Placed>,
    not_kept: [u64; NotKept::COUNT],
    /// The first files of copies into the source, which are not copied, as a report shows them.
    left_out: Vec<String>,
    /// Both ends know sparse files.
    holes: bool,
    /// Data frames are authenticated and not encrypted.
    unencrypted: bool,
    checking: held::AtSource,
    /// What an earlier run left is not read.
    trusts: bool,
    /// The control stream is gone for good.
    lost: bool,
    notices: Notices,
    steering: Steering,
    view: View,
    choices: Choices,
    load: Load,
    /// The knobs as they were turned last; how many streams there are is the machine's to say.
    turned: Knobs,
    /// How the source is read, and the limit on the rate, as it began.
    reading: ReadConfig,
    rate: Option<u64>,
    object_size: u32,
    net: Net,
    trial: Option<SharedTrial>,
    /// When the trial looked last.
    looked: Option<Time>,
    /// When the sink last said that it had taken more, and how much.
    taken: (Time, u64),
    lines: Lines,
    clock: Clock,
    /// What new streams are made with.
    sender: Sender<Event>,
    pacer: Arc<Pacer>,
}

/// The thread of one data stream.
fn start_sender(
    link: Link,
    (stream, epoch): (StreamId, SessionEpoch),
    meter: &Arc<Meter>,
    sender: &Sender<Event>,
    pacer: &Arc<Pacer>,
) -> Result<DataSender, Failure> {
    let sender = sender.clone();
    let post: Post<SendEvent> = Arc::new(move |event| drop(sender.send(Event::Send(event))));
    let started = DataSender::spawn(link, stream, epoch, meter.clone(), post, pacer.clone());
    started.map_err(|e| protocol(e.to_string()))
}

impl Session {
    fn drive(&mut self, mailbox: &Receiver<Event>, control: &ControlHandle, watch: &Watch) -> SessionEnd {
        let clock = self.clock;
        let mut pulse = Pulse::new();
        let mut stopping = Stopping::default();
        let mut teller = Teller::new();
        self.join_control(watch);
        let nothing = never();
        loop {
            // In the dark nothing new is begun: what is kept for the other end stays small.
            if !self.lines.is_dark() {
                self.handle_walk(watch);
            }
            if let Some(end) = self.act(control, watch) {
                return end;
            }
            self.steer(control, watch);
            self.load.look(|| self.machine.counts().payload);
            teller.tell(watch, || self.progress(&clock));
            let stuck = || self.engine.stuck().into_iter().chain(self.spill.stuck()).collect();
            self.notices.tell(watch, control, self.lines.is_dark(), stuck);
            self.show_targets(control, watch);
            let blocked = self.machine.is_blocked();
            self.meter.set_idle(Stage::SourceStorage, blocked);
            self.meter.set_idle(Stage::SourceHost, blocked);
            self.meter.set_idle(Stage::Network, blocked);
            let wait = clock.until(self.machine.next_deadline(), TICK);
            let walk = if self.ahead.is_empty() && !self.walked { self.walk.items() } else { &nothing };
            select! {
                recv(mailbox) -> event => if let Ok(event) = event {
                    self.handle(event, control, watch, &mut pulse);
                    // What else has come is taken up before the machine is asked again.
                    for event in mailbox.try_iter().take(TURN_MAX) {
                        self.handle(event, control, watch, &mut pulse);
                    }
                },
                recv(walk) -> items => match items {
                    Ok(items) => self.ahead.extend(items),
                    Err(_) => {
                        self.walked = true;
                        // One that was told to end has no end to tell of.
                        if !self.walk.is_cancelled() {
                            self.machine.handle_control_lost("the walk of the sources ended before its end");
                        }
                    }
                },
                default(wait) => {}
            }
            self.machine.handle_tick(clock.now());
            self.tend_network(clock.now(), control);
            if let Err(text) = self.lines.beat(clock.now()) {
                self.control_is_over(&text);
            }
            if !self.lines.is_dark()
                && let Err(text) = pulse.beat(control)
            {
                self.silent(&text, control);
            }
            if stopping.begins(watch) {
                self.walk.cancel();
                self.machine.stop("interrupted");
            }
            if stopping.is_overdue() {
                return SessionEnd::Stopped;
            }
        }
    }

    /// This end is in charge: says what can be turned in this session.
    fn join_control(&self, watch: &Watch) {
        let streams = if self.lines.can_join() { STREAMS_MAX } else { self.senders.len() as u16 };
        self.steering.join(watch, streams, |_| None);
        self.view.join(watch);
    }

    /// Lets the targets of this end be seen, if somebody looks.
    fn show_targets(&mut self, control: &ControlHandle, watch: &Watch) {
        let idle = Idle { dark: self.lines.is_dark(), paused: self.turned.paused };
        let (machine, targets) = (&self.machine, self.tree.targets());
        let table = || Table::of(machine.targets(), |target| name_of(targets, target));
        self.view.tend(self.clock.now(), idle, (control, watch), machine.unwell(), table);
    }

    /// Applies what somebody turned, here or at the other end, and says how things stand.
    fn steer(&mut self, control: &ControlHandle, watch: &Watch) {
        if let Some(knobs) = self.steering.take(control, watch) {
            self.turn(knobs, control);
        }
        let (up, parked) = self.machine.streams();
        let streams = u16::try_from(up - parked).unwrap_or(STREAMS_MAX).min(STREAMS_MAX);
        self.steering.stands(Knobs { streams, ..self.turned }, control, watch);
    }

    fn turn(&mut self, knobs: Knobs, control: &ControlHandle) {
        self.machine.handle_pause(knobs.paused);
        self.meter.set_paused(knobs.paused);
        if knobs.streams > 0 {
            self.net.pin_streams(knobs.streams);
            self.want_streams(knobs.streams, control);
        }
        self.pacer.set(match knobs.rate {
            0 => self.rate,
            RATE_UNLIMITED => None,
            rate => Some(rate),
        });
        let width = self.engine.set_width((knobs.readers > 0).then_some(knobs.readers));
        let reading = match knobs.readers {
            0 => self.reading.clone(),
            _ => self.reading.with_width(width),
        };
        let (reads_max, reads_total) =
            (reading.reads_max(self.object_size), reading.reads_total(self.object_size));
        self.machine.handle_reads_max(reads_max, reads_total);
        let rate = self.pacer.rate().unwrap_or(RATE_UNLIMITED);
        self.turned = Knobs { paused: knobs.paused, rate, streams: 0, readers: width, writers: 0 };
    }

    /// Looks after the network: streams join and are parked as its samples say.
    fn tend_network(&mut self, now: Time, control: &ControlHandle) {
        // In darkness or a pause nothing flows, which says nothing of the path.
        if self.lines.is_dark() || self.turned.paused {
            return self.net.skip();
        }
        if self.try_out(now, control) {
            return;
        }
        let machine = &self.machine;
        if let Some(count) = self.net.tick(now, |stream| machine.is_parked(stream)) {
            self.want_streams(count, control);
        }
    }

    fn progress(&self, clock: &Clock) -> Progress {
        let counts = self.machine.counts();
        Progress {
            bytes_done: counts.bytes_done.saturating_add(counts.durable),
            bytes_total: counts.bytes,
            files_done: counts.files_done,
            files_total: counts.files,
            unchanged: counts.unchanged,
            failed: self.tally.failed,
            counting: !self.walked,
            elapsed: clock.elapsed(),
            bytes_sent: counts.payload,
            holes: counts.holes,
            waiting: self.lines.waiting().or_else(|| self.notices.waiting(&self.engine.stuck())),
            checking: self.checking.look(&counts, clock.elapsed()).filter(|_| !self.trusts),
            paused: false,
            unencrypted: self.unencrypted,
        }
    }

    /// So many data streams shall carry frames, 1 to `STREAMS_MAX`: others are parked, and what is missing is dialled, or
    /// asked for where the other end dials. Never blocks; new ones join as they come.
    pub(super) fn want_streams(&mut self, streams: u16, control: &ControlHandle) {
        let streams = streams.clamp(1, STREAMS_MAX);
        if self.machine.use_streams(streams) > 0 && self.lines.can_join() {
            self.lines.want(streams, control);
        }
    }

    /// Control does not come back.
    fn control_is_over(&mut self, text: &str) {
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
        let (closer, socket) = (link.closer.clone(), link.socket.clone());
        match start_sender(link, (stream, epoch), &self.meter, &self.sender, &self.pacer) {
            Ok(sender) => {
                self.senders.insert(stream, sender);
                if let Some(socket) = socket {
                    self.net.add(stream, socket);
                }
                self.machine.handle_stream_up(stream);
            }
            Err(_) => {
                closer();
                self.lines.stream_lost(stream, self.clock.now());
            }
        }
    }

    /// The policy, and what it had to do with.
    fn schedule(&self, options: &Options) -> (String, String) {
        let why = if options.schedule == Policy::default() { "the default" } else { "as asked" };
        let targets: Vec<TargetState> = self.machine.targets().filter(|target| target.done > 0).collect();
        let least_well = targets.iter().filter(|target| target.health != Health::Healthy);
        let name = |target: &TargetState| self.tree.targets().name(target.target);
        let slow: Vec<String> = least_well
            .take(SLOW_NAMED_MAX)
            .filter_map(|target| Some(format!("; {} is {}", name(target)?, target.health.name())))
            .collect();
        // Also those of which all was in the page cache.
        let count = match self.tree.targets().count() {
            0 | 1 => String::new(),
            count => format!("; {count} targets{}", slow.concat()),
        };
        ("schedule".to_owned(), format!("{} ({why}{count})", options.schedule))
    }

    /// Hands walked items to the machine, as long as it has room for another entry.
    fn handle_walk(&mut self, watch: &Watch) {
        while self.machine.wants_entries() || matches!(self.ahead.front(), Some(WalkItem::DirEnd(_))) {
            let Some(item) = self.ahead.pop_front() else { break };
            match item {
                WalkItem::Entry(mut entry) => {
                    if let Some(name) = &self.rename {
                        entry.name = name.clone();
                    }
                    let mut lies = Lies::At(TargetId(0));
                    let mut not_before = Time(0);
                    match entry.kind {
                        EntryKind::File { sparse, fingerprint, .. } => {
                            self.not_kept[NotKept::Sparse as usize] += u64::from(sparse && !self.holes);
                            let ripe = self.tree.not_before(entry.id);
                            not_before = ripe.map_or(not_before, |ripe| self.clock.at(ripe));
                            // Small ones travel in bundles, wherever they lie.
                            if fingerprint.size > SMALL_LEN_MAX {
                                lies = self.tree.lies(entry.id);
                            }
                        }
                        EntryKind::Dir { .. } => drop(self.kinds.insert(entry.id, Kind::Dir)),
                        EntryKind::Symlink { .. } => drop(self.kinds.insert(entry.id, Kind::Symlink)),
                        // No walk announces these yet.
                        EntryKind::Fifo
                        | EntryKind::Socket
                        | EntryKind::Device { .. }
                        | EntryKind::HardLink { .. } => {}
                    }
                    self.machine.handle_entry(entry, lies, not_before);
                }
                WalkItem::DirEnd(dir) => self.machine.handle_dir_end(dir),
                WalkItem::Failed { path, failure, .. } => {
                    self.tally.fail(watch, path.clone(), &failure);
                    self.machine.handle_trouble(&path, failure);
                }
                WalkItem::NotKept(not_kept) => {
                    if not_kept.what == NotKeptWhat::Debris {
                        self.leave_out(&not_kept.path);
                    }
                    let which = match not_kept.what {
                        NotKeptWhat::HardLink => NotKept::HardLink,
                        NotKeptWhat::Debris => NotKept::OwnName,
                        NotKeptWhat::Fifo | NotKeptWhat::Socket | NotKeptWhat::Device => NotKept::Special,
                    };
                    self.not_kept[which as usize] += 1;
                }
                WalkItem::End(totals) => {
                    self.walked = true;
                    self.machine.handle_walk_end(totals);
                }
            }
        }
    }

    fn leave_out(&mut self, path: &[u8]) {
        if self.left_out.len() < LEFT_OUT_SHOWN {
            let path = String::from_utf8_lossy(path);
            self.left_out.push(path.chars().take(LEFT_OUT_CHARS).collect());
        }
    }

    /// Names them, for the summary.
    fn left_out(&self) -> Option<(String, String)> {
        let all = self.not_kept[NotKept::OwnName as usize];
        let more = all.saturating_sub(self.left_out.len() as u64);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let names = self.left_out.join(", ");
        (all > 0).then(|| (LEFT_OUT.to_owned(), format!("{names}{more} (files of copies into the source)")))
    }

    fn handle(&mut self, event: Event, control: &ControlHandle, watch: &Watch, pulse: &mut Pulse) {
        let now = self.clock.now();
        if let Event::Control(event) = &event {
            event.taken(control);
        }
        match event {
            Event::Done(SourceCompletion { done, buffer }) => {
                // A failed read gives its buffer back; the machine does not learn its id.
                let failed = matches!(done, SourceDone::Read { result: Err(_), .. });
                if let Some(buffer) = buffer.filter(|_| !failed) {
                    self.buffers.insert(buffer.id(), buffer);
                }
                self.machine.handle_done(done, now);
            }
            Event::Spill(done) => Spill::handle(done, &mut self.machine, &mut self.buffers),
            Event::Control(ControlEvent::Message(Message::Report(report))) => self.far = Some(*report),
            Event::Control(ControlEvent::Message(Message::Placed(placed))) => self.placed = Some(placed),
            Event::Control(ControlEvent::Message(message)) => {
                pulse.heard();
                self.lines.heard();
                match message {
                    Message::Knobs(knobs) if self.steering.agreed() => self.steering.hear(knobs),
                    message if self.view.takes(&message) => self.view.hear(message, watch),
                    message if self.choices.takes(&message) => self.choices.hear(&message),
                    message if self.load.hear(&message) => {}
                    message => self.machine.handle_message(message),
                }
            }
            Event::Control(ControlEvent::Lost { epoch, why, how }) => {
                if let Lost::Over(text) = self.lines.control_lost((epoch, why, how), control, now) {
                    self.control_is_over(&text);
                }
            }
            Event::Join(event) => self.handle_join(event, control, pulse),
            Event::Send(SendEvent::Sent { stream, seq, .. }) => self.machine.handle_sent(stream, seq),
            Event::Send(SendEvent::Lost { stream, .. }) => {
                self.net.remove(stream);
                self.lines.stream_lost(stream, now);
                self.machine.handle_stream_lost(stream);
            }
        }
    }

    /// Does what the machine asks, until it asks for nothing more.
    fn act(&mut self, control: &ControlHandle, watch: &Watch) -> Option<SessionEnd> {
        while let Some(action) = self.machine.poll_action() {
            match action {
                SourceAction::Submit(op) => self.submit(op),
                SourceAction::Send(message) => control.send(message),
                SourceAction::SendData { stream, header, buffer } => {
                    let buffer = buffer.and_then(|id| self.buffers.remove(&id));
                    if let Some(sender) = self.senders.get_mut(&stream) {
                        sender.submit(header, buffer);
                    }
                }
                SourceAction::Store { slot, buffer, len } => {
                    self.spill.store(slot, self.buffers.remove(&buffer), len);
                }
                SourceAction::Fetch { slot, len } => self.spill.fetch(slot, len, &self.pool),
                SourceAction::FreeBuffer(id) => drop(self.buffers.remove(&id)),
                SourceAction::Notice(text) => self.notices.hear(text),
                SourceAction::CloseStream(stream) => {
                    self.net.remove(stream);
                    self.lines.stream_lost(stream, self.clock.now());
                    if let Some(mut sender) = self.senders.remove(&stream) {
                        sender.abort();
                    }
                }
                SourceAction::EntryEnded { id, end, root, bytes, change } => {
                    let kind = self.kinds.remove(&id).unwrap_or(Kind::File);
                    let (tree, rename) = (&self.tree, &self.rename);
                    let path =
                        || rename.as_ref().map_or_else(|| tree.path_of(id), |name| name.as_bytes().to_vec());
                    let source = || tree.origin_of(id);
                    self.tally.count(watch, kind, &end, (root, change), bytes, path, source);
                }
                SourceAction::Finished(end) => return Some(end),
            }
        }
        None
    }

    fn submit(&mut self, op: SourceOp) {
        let len = match &op {
            SourceOp::Read { len, .. } => Some(*len as usize),
            SourceOp::ReadBundle { files } => Some(files.iter().map(|file| file.size as usize).sum()),
            _ => None,
        };
        let buffer = len.map(|len| {
            self.pool
                .take(len)
                .expect("the machine counts what it takes, and the pool has slack for the streams")
        });
        self.engine.submit(SourceJob { op, buffer });
    }
}
