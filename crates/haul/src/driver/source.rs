//! The source's driver: walk, storage engine and streams on one side, `transfer::source` on the other.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crossbeam_channel::Receiver;
use haul_core::ids::{DirId, SessionEpoch, StreamId, TargetId, Time};
use haul_core::reliability::Reliability;
use haul_core::schedule::{Health, Policy, TargetState};
use haul_core::stage::Stage;
use haul_core::transfer::SessionEnd;
use haul_core::transfer::op::{SourceDone, SourceOp};
use haul_core::transfer::source::{Source, SourceAction};
use haul_core::wire::{Agreed, Failure, LiveSettings, Message, Placed, RATE_UNLIMITED, STREAMS_MAX};

use super::choices::InWords;
use super::held;
use super::hello::Opening;
use super::session::{self, Closing, End};
use super::spill::Spill;
use super::trial::SharedTrial;
use super::view::name_of;
use super::{Kind, Links, Report, Watch, end_report, local, network_of, places_in_words};
use crate::events::Progress;
use crate::handle::LiveSetting;
use crate::options::Options;
use haul_base::role::Role;
use haul_storage::descriptors::Claim;
use haul_storage::place::Place;
use haul_storage::spill::SpillDone;
use haul_storage::store::{Originals, Picks, WallClock};
use haul_storage::walk::WalkItem;
use haul_storage::{SourceCompletion, SourceJob, Stuck};
use haul_transport::Link;
use haul_transport::pace::Pacer;
use haul_transport::stream::SendEvent;

use network::Network;
use parts::{Payload, Storage};
use setup::Setup;
use walked::Walked;

mod network;
mod parts;
mod setup;
mod start;
mod trial;
mod walked;

/// Where a sink makes parts of files durable, it has said so of some by then.
const NOTHING_DURABLE_AFTER: Duration = Duration::from_secs(2);

/// Targets that the report names because they are slow, at most.
const SLOW_NAMED_MAX: usize = 4;

/// What a source's threads post.
enum Own {
    Done(SourceCompletion),
    Spill(SpillDone),
    Send(SendEvent),
}

type Session<'a> = session::Session<'a, Own>;

/// What the source end is asked to do.
pub(crate) struct SourceRequest {
    /// As typed, after the colon if there was one.
    pub(crate) sources: Vec<Place>,
    /// Where else the only one lies.
    pub(crate) replicas: Vec<Place>,
    /// What becomes of what fails there.
    pub(crate) retry: Arc<dyn Reliability>,
    /// How a server is reached that ssh starts, and whether somebody can answer what it asks.
    pub(crate) ssh: (Vec<String>, bool),
    pub(crate) options: Options,
    pub(crate) home: Option<PathBuf>,
    /// Where it goes, if that is on this host.
    pub(crate) sink_here: Option<PathBuf>,
    /// Told of its files, where the sink is in this process and may clone them.
    pub(crate) originals: Option<Arc<Originals>>,
    /// The directory in which accesses to volumes are kept.
    pub(crate) volumes: Option<PathBuf>,
    /// What of a volume comes, if not all.
    pub(crate) picks: Option<Arc<dyn Picks>>,
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
    session::run::<SourceEnd>(links, request, watch)
}

struct SourceEnd {
    machine: Source,
    storage: Storage,
    walked: Walked,
    payload: Payload,
    network: Network,
    /// The live settings as they were turned last; how many streams there are is the machine's to say.
    turned: LiveSettings,
    checking: held::AtSource,
    /// Where the files came to lie, as the sink says.
    placed: Option<Placed>,
    /// What was chosen before the first entry, in words.
    chosen: InWords,
    resumed: bool,
}

impl End for SourceEnd {
    const ROLE: Role = Role::Source;
    const LIVE_SETTINGS: &'static [LiveSetting] =
        &[LiveSetting::Rate, LiveSetting::Streams, LiveSetting::Readers];
    type Request = SourceRequest;
    type Setup = Setup;
    type Own = Own;
    type Feed = Vec<WalkItem>;

    fn set_up(opening: &Opening<'_, Own>, request: &SourceRequest) -> Result<(Agreed, Setup), Failure> {
        setup::set_up(opening, request)
    }

    fn start(
        session: &mut Session<'_>,
        data: Vec<(StreamId, Link)>,
        request: &SourceRequest,
        setup: Setup,
    ) -> Result<SourceEnd, Failure> {
        start::start(session, data, request, setup)
    }

    fn feed(&self) -> Option<&Receiver<Vec<WalkItem>>> {
        self.walked.feed()
    }

    fn handle_feed(&mut self, items: Option<Vec<WalkItem>>) {
        if !self.walked.take(items) {
            self.machine
                .handle_control_lost(local("internal error: the walk of the sources ended before its end"));
        }
    }

    fn act(&mut self, session: &mut Session<'_>) -> Option<SessionEnd> {
        // In the dark nothing new is begun, and where the other end is slow to take what it is told: what is
        // kept for it stays small. Entries have a bound of their own; what cannot be copied has none.
        if !session.other.is_dark() && !session.other.is_behind() {
            self.walked.hand_over(&mut self.machine, &self.storage, session);
        }
        while let Some(action) = self.machine.poll_action() {
            let payload = &mut self.payload;
            match action {
                SourceAction::Submit(op) => self.submit(op),
                SourceAction::Send(message) => session.other.send(message),
                SourceAction::SendData { stream, header, buffer } => {
                    let buffer = buffer.and_then(|id| payload.buffers.remove(&id));
                    if let Some(sender) = self.network.senders.get_mut(&stream) {
                        sender.submit(header, buffer);
                    }
                }
                SourceAction::Store { slot, buffer, len } => {
                    payload.spill.store(slot, payload.buffers.remove(&buffer), len);
                }
                SourceAction::Fetch { slot, len } => payload.spill.fetch(slot, len, &payload.pool),
                SourceAction::FreeBuffer(id) => drop(payload.buffers.remove(&id)),
                SourceAction::Notice(text) => session.user.notices.hear(text),
                SourceAction::CloseStream(stream) => {
                    session.other.lines.stream_lost(stream, session.clock.now());
                    self.network.close(stream);
                }
                SourceAction::EntryEnded { id, end, change, .. } if id == DirId::ROOT.as_file() => {
                    session.user.tally.root(session.user.watch, &end, change);
                }
                SourceAction::EntryEnded { id, end, root, bytes, joined, change } => {
                    let kind = self.walked.kinds.remove(&id).unwrap_or(Kind::File);
                    let name_of = self.walked.names.remove(&id).filter(|_| joined.is_some());
                    let (names, rename) = (&self.storage.names, &self.walked.rename);
                    let path =
                        || rename.as_ref().map_or_else(|| names.path_of(id), |name| name.as_bytes().to_vec());
                    let source = || names.origin_of(id);
                    let user = &mut session.user;
                    match name_of {
                        Some(to) => {
                            let to = || to.to_vec();
                            user.tally.count_name(user.watch, kind, &end, change, path, to, source);
                        }
                        None => {
                            user.tally.count(user.watch, kind, &end, (root, change), bytes, path, source);
                        }
                    }
                }
                SourceAction::Finished(end) => return Some(end),
            }
        }
        None
    }

    fn steer(&mut self, session: &mut Session<'_>) {
        if let Some(settings) = session.take_settings() {
            self.turn(settings, session);
        }
        let (up, parked) = self.machine.streams();
        let streams = u16::try_from(up - parked).unwrap_or(STREAMS_MAX).min(STREAMS_MAX);
        session.tell_settings(LiveSettings { streams, ..self.turned });
    }

    fn rest(&mut self, session: &Session<'_>) {
        let blocked = self.machine.is_blocked();
        session.meter.set_idle(Stage::SourceStorage, blocked);
        session.meter.set_idle(Stage::SourceHost, blocked);
        session.meter.set_idle(Stage::Network, blocked);
    }

    fn next_deadline(&self) -> Option<Time> {
        self.machine.next_deadline()
    }

    fn handle(&mut self, own: Own, session: &mut Session<'_>) {
        let now = session.clock.now();
        match own {
            Own::Done(SourceCompletion { done, buffer }) => {
                // A failed read gives its buffer back; the machine does not learn its id.
                let failed = matches!(done, SourceDone::Read { result: Err(_), .. });
                if let Some(buffer) = buffer.filter(|_| !failed) {
                    self.payload.buffers.insert(buffer.id(), buffer);
                }
                self.machine.handle_done(done, now);
            }
            Own::Spill(done) => Spill::handle(done, &mut self.machine, &mut self.payload.buffers),
            Own::Send(SendEvent::Sent { stream, seq, .. }) => self.machine.handle_sent(stream, seq),
            Own::Send(SendEvent::Lost { stream, .. }) => {
                self.network.net.remove(stream);
                session.other.lines.stream_lost(stream, now);
                self.machine.handle_stream_lost(stream);
            }
        }
    }

    fn hear(&mut self, message: Message, _: &mut Session<'_>) {
        match message {
            Message::Placed(placed) => self.placed = Some(placed),
            message => self.machine.handle_message(message),
        }
    }

    fn handle_stream(
        &mut self,
        (stream, epoch): (StreamId, SessionEpoch),
        link: Link,
        session: &mut Session<'_>,
    ) {
        match self.network.add((stream, epoch), link, session) {
            true => self.machine.handle_stream_up(stream),
            false => session.other.lines.stream_lost(stream, session.clock.now()),
        }
    }

    fn tick(&mut self, now: Time, session: &mut Session<'_>) {
        self.machine.handle_tick(now);
        if self.machine.is_stopping() {
            self.walked.cancel();
            self.storage.engine.hurry();
        }
        self.tend_network(now, session);
    }

    fn control_lost(&mut self, failure: Failure) {
        self.machine.handle_control_lost(failure);
    }

    fn stop(&mut self, _: &mut Session<'_>) {
        self.walked.cancel();
        self.machine.stop("interrupted");
    }

    fn payload(&self) -> u64 {
        self.machine.counts().payload
    }

    fn streams(&self) -> usize {
        self.network.senders.len()
    }

    fn stuck(&self) -> Vec<Stuck> {
        self.storage.engine.stuck().into_iter().chain(self.payload.spill.stuck()).collect()
    }

    fn in_wait(&self) -> Option<String> {
        self.storage.engine.in_wait()
    }

    fn progress(&self, session: &Session<'_>) -> Option<Progress> {
        let (counts, elapsed) = (self.machine.counts(), session.clock.elapsed());
        let mut bytes_done = counts.bytes_done.saturating_add(counts.durable);
        if counts.durable == 0 && elapsed > NOTHING_DURABLE_AFTER {
            // The destination keeps nothing of a part of a file, or says nothing of that.
            bytes_done = bytes_done.max(counts.written.min(counts.bytes));
        }
        Some(Progress {
            bytes_done,
            bytes_total: counts.bytes,
            files_done: counts.files_done,
            files_total: counts.files,
            unchanged: counts.unchanged,
            failed: session.user.tally.failed,
            counting: !self.walked.is_over(),
            elapsed,
            bytes_sent: counts.payload,
            holes: counts.holes,
            waiting: session.waiting(self),
            checking: self.checking.look(&counts, elapsed),
            paused: false,
            unencrypted: session.agreed.auth_only,
        })
    }

    fn is_paused(&self) -> bool {
        self.turned.paused
    }

    fn targets(&self) -> impl Iterator<Item = TargetState> {
        self.machine.targets()
    }

    fn unwell(&self) -> impl Iterator<Item = (TargetId, Health)> {
        self.machine.unwell()
    }

    fn name_of(&self, target: TargetId) -> String {
        name_of(self.storage.names.targets(), target)
    }

    fn finish(
        &mut self,
        session: &mut Session<'_>,
        how: &SessionEnd,
        request: &SourceRequest,
        strays: &AtomicU64,
    ) -> Closing {
        if let SessionEnd::Failed(failure) = how {
            // The sink closes its epoch at once instead of when it notices.
            session.other.send(Message::Abort(failure.clone()));
        }
        self.walked.cancel();
        self.network.end(how);
        let counts = self.machine.counts();
        session.user.tally.came_back = counts.sent_back;
        (session.user.tally.cloned, session.user.tally.cloned_bytes) = (counts.cloned, counts.cloned_bytes);
        let mut own = end_report(&session.meter, strays, counts.payload, counts.objects_resent);
        own.not_kept = self.walked.not_kept;
        (own.prefixes, own.prefix_bytes) = (counts.prefixes, counts.prefix_bytes);
        let mut chosen = std::mem::take(&mut self.chosen);
        chosen.push(self.schedule(&request.options));
        chosen.extend(self.storage.engine.report());
        chosen.extend(network_of("source", self.storage.engine.network()));
        chosen.extend(self.payload.spill.report(self.machine.spill_counts()));
        chosen.extend(self.walked.left_out());
        chosen.extend(self.network.net.report());
        chosen.extend(session.other.lines.chosen());
        let placed = self.placed.iter();
        chosen.extend(placed.flat_map(|placed| places_in_words(request.options.layout, placed)));
        let kept = counts.durable.saturating_add(counts.held_open);
        Closing { own, chosen, resumed: self.resumed, kept, spared: 0 }
    }
}

impl SourceEnd {
    fn turn(&mut self, settings: LiveSettings, session: &mut Session<'_>) {
        self.machine.handle_pause(settings.paused);
        session.meter.set_paused(settings.paused);
        if settings.streams > 0 {
            self.network.net.pin_streams(settings.streams);
            self.want_streams(settings.streams, session);
        }
        self.network.pacer.set(match settings.rate {
            0 => self.network.rate,
            RATE_UNLIMITED => None,
            rate => Some(rate),
        });
        let storage = &mut self.storage;
        let width = storage.engine.set_width((settings.readers > 0).then_some(settings.readers));
        let (reads_max, reads_total) = storage.engine.reads_max(storage.object_size);
        self.machine.handle_reads_max(reads_max, reads_total);
        let rate = self.network.pacer.rate().unwrap_or(RATE_UNLIMITED);
        self.turned = LiveSettings { paused: settings.paused, rate, streams: 0, readers: width, writers: 0 };
    }

    /// Looks after the network: streams join and are parked as its samples say.
    fn tend_network(&mut self, now: Time, session: &mut Session<'_>) {
        // In darkness or a pause nothing flows, which says nothing of the path.
        if session.other.is_dark() || self.turned.paused {
            return self.network.net.skip();
        }
        if self.try_out(now, session) {
            return;
        }
        let machine = &self.machine;
        if let Some(count) = self.network.net.tick(now, |stream| machine.is_parked(stream)) {
            self.want_streams(count, session);
        }
    }

    /// So many data streams shall carry frames, 1 to `STREAMS_MAX`: others are parked, and what is missing is
    /// dialled, or asked for where the other end dials. Never blocks; new ones join as they come.
    fn want_streams(&mut self, streams: u16, session: &mut Session<'_>) {
        let streams = streams.clamp(1, STREAMS_MAX);
        let other = &mut session.other;
        if self.machine.use_streams(streams) > 0 && other.lines.can_join() {
            other.lines.want(streams, &other.control);
        }
    }

    /// The policy, and what it had to do with.
    fn schedule(&self, options: &Options) -> (String, String) {
        let why = if options.schedule == Policy::default() { "the default" } else { "as asked" };
        let targets: Vec<TargetState> = self.machine.targets().filter(|target| target.done > 0).collect();
        let least_well = targets.iter().filter(|target| target.health != Health::Healthy);
        let name = |target: &TargetState| self.storage.names.targets().name(target.target);
        let slow: Vec<String> = least_well
            .take(SLOW_NAMED_MAX)
            .filter_map(|target| Some(format!("; {} is {}", name(target)?, target.health.name())))
            .collect();
        // Also those of which all was in the page cache.
        let count = match self.storage.names.targets().count() {
            0 | 1 => String::new(),
            count => format!("; {count} targets{}", slow.concat()),
        };
        ("schedule".to_owned(), format!("{} ({why}{count})", options.schedule))
    }

    fn submit(&mut self, op: SourceOp) {
        let len = match &op {
            SourceOp::Read { len, .. } => Some(*len as usize),
            SourceOp::ReadBundle { files } => Some(files.iter().map(|file| file.size as usize).sum()),
            _ => None,
        };
        let buffer = len.map(|len| {
            self.payload
                .pool
                .take(len)
                .expect("the machine counts what it takes, and the pool has slack for the streams")
        });
        self.storage.engine.submit(SourceJob { op, buffer });
    }
}
