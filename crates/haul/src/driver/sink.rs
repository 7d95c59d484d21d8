//! The sink's driver: streams on one side, storage engine and journal on the other, `transfer::sink` between.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use haul_core::entry::{Name, Node, Nodes, Part};
use haul_core::id_map::IdMap;
use haul_core::ids::{BufferId, DirId, FileId, SessionEpoch, StreamId, TargetId, Time};
use haul_core::reliability::Reliability;
use haul_core::schedule::{Health, TargetState};
use haul_core::transfer::op::SinkOp;
use haul_core::transfer::sink::{Sink, SinkAction};
use haul_core::transfer::{ENTRIES_MAX, SessionEnd};
use haul_core::tune::show_size;
use haul_core::wire::{Agreed, Failure, HeldReport, LiveSettings, Message, NotKept, Placed, SinkOptions};

use super::choices::InWords;
use super::held;
use super::hello::Opening;
use super::net::Receive;
use super::owners::Owners;
use super::session::{self, Closing, End};
use super::streams::Lines;
use super::view::name_of;
use super::{
    Kind, Links, MEMORY_HELD, Pulse, Report, Stopping, Watch, end_report, join, local, network_of,
    places_in_words,
};
use crate::events::Progress;
use crate::handle::LiveSetting;
use crate::options::Given;
use crate::summary::DEBRIS;
use haul_base::buffer::{Buffer, Pool};
use haul_base::errno;
use haul_base::role::Role;
use haul_storage::descriptors::{Claim, FEW_DESCRIPTORS};
use haul_storage::manners::LinksThere;
use haul_storage::options::{DataChannel, LayoutChoice, StorageOptions};
use haul_storage::place::Place;
use haul_storage::store::{CloneFrom, HeldJob};
use haul_storage::targets::Targets;
use haul_storage::{Payload, SinkCompletion, SinkEngine, SinkJob, Stuck};
use haul_transport::Link;
use haul_transport::stream::{DataReceiver, RecvEvent};

use setup::Setup;
pub(super) use setup::{coming, hear, store_of};

mod setup;
mod start;

/// So many entries may be open that are names of files of which no other comes.
const GONE_MAX: usize = ENTRIES_MAX as usize;
/// After so long without control a new run of the job may have it.
const YIELD_AFTER: Duration = Duration::from_secs(2);

/// What a sink's threads post.
enum Own {
    Done(SinkCompletion),
    Recv(RecvEvent),
}

type Session<'a> = session::Session<'a, Own>;

/// What the sink end is asked to do.
pub(crate) struct SinkRequest {
    /// As typed, after the colon if there was one.
    pub(crate) destination: Place,
    pub(crate) state_dir: Option<PathBuf>,
    /// Where this host has on record what servers have of unfinished files.
    pub(crate) parts_dir: Option<PathBuf>,
    pub(crate) home: Option<PathBuf>,
    /// The directory in which accesses to volumes are kept.
    pub(crate) volumes: Option<PathBuf>,
    /// What a server's data connections show and hide, where there is a choice.
    pub(crate) data_channel: DataChannel,
    /// How a server is reached that ssh starts, and whether somebody can answer it.
    pub(crate) ssh: (Vec<String>, bool),
    /// How long a server may be silent, if the user said so.
    pub(crate) patience: Option<Duration>,
    /// What becomes of what fails at a server, where it may go well again.
    pub(crate) retry: Arc<dyn Reliability>,
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
    /// What entries get in the place of what they have at the source.
    pub(crate) given: Given,
    /// FIFOs, sockets and devices that this command keeps.
    pub(crate) nodes: Nodes,
    /// The part of one file that comes, if not files as a whole.
    pub(crate) part: Option<Part>,
    /// Nothing gets another name than it is written under.
    pub(crate) in_place: bool,
    /// The user said so, and did not only name a place in a file.
    pub(crate) in_place_asked: bool,
    /// What becomes of symbolic links that stand there, and of those that come.
    pub(crate) links: LinksThere,
    /// Where the sources are, if they are on this host.
    pub(crate) sources_here: Vec<PathBuf>,
    /// Their files may be cloned.
    pub(crate) clones: Option<CloneFrom>,
    /// What the owner file says of this run, for people.
    pub(crate) what: String,
    /// Where this is the near end: the sources as typed and the choices of the user, against which the far
    /// end's word is held.
    pub(crate) asked: Option<(Vec<Place>, SinkOptions)>,
    /// Hears what a source that measures the network says of it.
    pub(crate) hears: Option<Hears>,
}

/// Takes the JSON of a [`Message::Trial`]: whatever the other end said, at most
/// [`TRIAL_LEN_MAX`](haul_core::wire::TRIAL_LEN_MAX) of it.
pub type Hears = Arc<dyn Fn(&[u8]) + Send + Sync>;

/// Runs the sink end of a session until it is over.
pub(crate) fn run(links: Links, request: &SinkRequest, watch: &Watch) -> Report {
    session::run::<SinkEnd>(links, request, watch)
}

struct SinkEnd {
    machine: Sink,
    storage: Storage,
    names: Names,
    payload: Arrived,
    network: Network,
    paused: bool,
    hears: Option<Hears>,
    owners: Owners,
    resumed: bool,
    /// For the summary: what other jobs left here.
    found: InWords,
    /// All is done, and the source is to hear of it.
    complete: bool,
}

/// Where the data goes.
struct Storage {
    job: Box<dyn HeldJob>,
    engine: Box<dyn SinkEngine>,
    targets: Arc<Targets>,
    /// The engine has ended, and nothing hangs.
    ended: bool,
    /// The job is given to a run that asks for it.
    yields: bool,
    /// Its near end is gone: a run that asks for it waits for this end's.
    ends: bool,
}

impl Storage {
    /// While control is away the job is kept, but not from a new run of it. One that took it is noticed by
    /// the owner's look before the next publication.
    fn give_way(&mut self, lines: &Lines) {
        let ends = lines.is_orphaned();
        if std::mem::replace(&mut self.ends, ends) != ends {
            self.job.set_ends(ends);
        }
        let yields = lines.dark_for().is_some_and(|dark| dark >= YIELD_AFTER);
        if std::mem::replace(&mut self.yields, yields) != yields {
            self.job.set_yields(yields);
        }
    }
}

/// What things are called; a path is put together only when it is told.
#[derive(Default)]
struct Names {
    /// Parent and name of each directory.
    places: IdMap<DirId, (DirId, Name)>,
    dirs: IdMap<FileId, ()>,
    /// Paths of what others may be names of, and what it is if it is no file, if somebody is told of them.
    firsts: IdMap<FileId, (Vec<u8>, Kind)>,
    /// Of these, files that no other name comes of any more.
    gone: VecDeque<FileId>,
    /// FIFOs, sockets and devices that are being made.
    nodes: IdMap<FileId, Kind>,
}

/// Payload on its way from a stream to storage.
struct Arrived {
    pool: Pool,
    buffers: HashMap<BufferId, Payload>,
}

/// The network of a sink.
struct Network {
    receivers: HashMap<StreamId, DataReceiver>,
    receive: Receive,
}

/// The thread of one data stream.
fn start_receiver(
    link: Link,
    (stream, epoch): (StreamId, SessionEpoch),
    pool: &Pool,
    session: &Session<'_>,
) -> Result<DataReceiver, Failure> {
    let (meter, post) = (session.meter.clone(), session.mailbox.post(Own::Recv));
    DataReceiver::spawn(link, stream, epoch, pool.clone(), meter, post)
        .map_err(|e| local(errno::with_causes(&e)))
}

/// What people are told that it is.
pub(crate) fn kind_of(node: Node) -> Kind {
    match node {
        Node::Fifo | Node::Socket => Kind::Special,
        Node::Device { .. } => Kind::Device,
    }
}

/// The path of an entry below the destination root.
pub(crate) fn path_of(places: &IdMap<DirId, (DirId, Name)>, parent: DirId, name: &Name) -> Vec<u8> {
    let mut names = vec![name];
    let mut at = parent;
    // Ends at the root, for a parent is always announced before its child.
    while let Some((parent, name)) = places.get(&at) {
        names.push(name);
        at = *parent;
    }
    names.into_iter().rev().fold(Vec::new(), |path, name| join(&path, name))
}

impl End for SinkEnd {
    const ROLE: Role = Role::Sink;
    const LIVE_SETTINGS: &'static [LiveSetting] = &[LiveSetting::Writers];
    const LAST_WORD: bool = true;
    type Request = SinkRequest;
    type Setup = Setup;
    type Own = Own;
    type Feed = ();

    fn set_up(opening: &Opening<'_, Own>, request: &SinkRequest) -> Result<(Agreed, Setup), Failure> {
        setup::set_up(opening, request)
    }

    fn start(
        session: &mut Session<'_>,
        data: Vec<(StreamId, Link)>,
        request: &SinkRequest,
        setup: Setup,
    ) -> Result<SinkEnd, Failure> {
        start::start(session, data, request, setup)
    }

    fn fixed(&self, setting: LiveSetting) -> Option<&'static str> {
        self.storage.engine.fixed().filter(|_| setting == LiveSetting::Writers)
    }

    fn act(&mut self, session: &mut Session<'_>) -> Option<SessionEnd> {
        while let Some(action) = self.machine.poll_action() {
            match action {
                SinkAction::RegisterDir { id, parent, name } => {
                    self.names.places.insert(id, (parent, name.clone()));
                    self.names.dirs.insert(id.as_file(), ());
                    self.storage.engine.register(id, parent, name);
                }
                SinkAction::ForgetDir { id } => {
                    self.names.places.remove(&id);
                    self.storage.engine.forget(id);
                }
                SinkAction::Metadata { id, values } => self.storage.engine.keep_metadata(id, values),
                SinkAction::ForgetMetadata { id } => self.storage.engine.forget_metadata(id),
                SinkAction::Lead { id, parent, name } => {
                    if session.user.watch.verbose {
                        let path = path_of(&self.names.places, parent, &name);
                        self.names.firsts.insert(id, (path, Kind::Symlink));
                    }
                    self.storage.engine.lead(id, parent, &name);
                }
                SinkAction::ForgetLead { id } => {
                    // What is a name of it may still end.
                    self.names.gone.push_back(id);
                    if self.names.gone.len() > GONE_MAX
                        && let Some(id) = self.names.gone.pop_front()
                    {
                        self.names.firsts.remove(&id);
                    }
                    self.storage.engine.forget_lead(id);
                }
                SinkAction::Submit(op) => self.submit(op),
                SinkAction::Send(Message::Complete) => self.complete = true,
                SinkAction::Send(message) => session.other.send(message),
                SinkAction::FreeBuffer(id) => drop(self.payload.buffers.remove(&id)),
                SinkAction::Notice(text) => session.user.notices.hear(text),
                SinkAction::CloseStream(stream) => match self.network.receivers.get(&stream) {
                    Some(receiver) => receiver.close(),
                    // It never joined here; should it still, it is over.
                    None => self.stream_lost(stream, 0, session),
                },
                SinkAction::EntryEnded { id, parent, name, is_link, joined, end, root, bytes, change } => {
                    let kind = match self.names.dirs.remove(&id) {
                        Some(()) => Kind::Dir,
                        None if is_link => self.names.nodes.remove(&id).unwrap_or(Kind::Symlink),
                        None => Kind::File,
                    };
                    let path = || path_of(&self.names.places, parent, &name);
                    let user = &mut session.user;
                    match joined {
                        Some(to) => {
                            let first = self.names.firsts.get(&to);
                            let kind = first.map_or(kind, |(_, first)| if is_link { *first } else { kind });
                            let to = || first.map(|(path, _)| path.clone()).unwrap_or_default();
                            user.tally.count_name(user.watch, kind, &end, change, path, to, || None);
                        }
                        None => {
                            user.tally.count(user.watch, kind, &end, (root, change), bytes, path, || None);
                        }
                    }
                }
                SinkAction::RootEnded { end, change } => {
                    session.user.tally.root(session.user.watch, &end, change);
                }
                SinkAction::Trouble { path, failure } => {
                    let user = &mut session.user;
                    user.tally.fail(user.watch, path.to_vec(), &failure);
                }
                SinkAction::Finished(end) => return Some(end),
            }
        }
        None
    }

    fn steer(&mut self, session: &mut Session<'_>) {
        let Some(settings) = session.take_settings() else { return };
        session.meter.set_paused(settings.paused);
        self.paused = settings.paused;
        let width = self.storage.engine.set_width((settings.writers > 0).then_some(settings.writers));
        session.tell_settings(LiveSettings {
            paused: settings.paused,
            writers: width.unwrap_or(0),
            ..LiveSettings::default()
        });
    }

    fn next_deadline(&self) -> Option<Time> {
        self.machine.next_deadline()
    }

    fn handle(&mut self, own: Own, session: &mut Session<'_>) {
        let now = session.clock.now();
        match own {
            Own::Done(SinkCompletion { done }) => {
                self.see_places();
                self.machine.handle_done(done, now);
                self.machine.tell_room(|| self.storage.engine.room());
            }
            Own::Recv(RecvEvent::Data { stream, header, buffer, good, .. }) => {
                let id = buffer.as_ref().map(Buffer::id);
                if let Some(buffer) = buffer {
                    self.payload.buffers.insert(buffer.id(), Payload::Own(buffer));
                }
                self.machine.handle_data(stream, header, id, good, now);
            }
            Own::Recv(RecvEvent::Lost { stream, frames, .. }) => {
                self.network.receivers.remove(&stream);
                self.stream_lost(stream, frames, session);
            }
        }
    }

    fn hear(&mut self, message: Message, session: &mut Session<'_>) {
        if let Message::Streams(streams) = message {
            session.other.lines.asked_for(streams);
        }
        let mut message = message;
        let refused = self.owners.hear(&mut message, session.user.watch);
        match (message, &self.hears) {
            (Message::Trial(json), Some(hears)) => hears(&json),
            (message, _) => {
                let stops = matches!(message, Message::Stop { .. });
                self.machine.handle_message(message, session.clock.now());
                if stops {
                    self.storage.job.set_ends(true);
                }
            }
        }
        for (id, why) in refused {
            self.machine.tell_unkept(id, why);
        }
    }

    fn handle_stream(
        &mut self,
        (stream, epoch): (StreamId, SessionEpoch),
        link: Link,
        session: &mut Session<'_>,
    ) {
        let closer = link.closer.clone();
        self.network.receive.add(link.connection.as_deref());
        self.machine.set_round_trip(self.network.receive.round_trip());
        let started = match self.machine.handle_stream_up(stream) {
            true => start_receiver(link, (stream, epoch), &self.payload.pool, session).ok(),
            false => None,
        };
        match started {
            Some(receiver) => drop(self.network.receivers.insert(stream, receiver)),
            None => {
                closer();
                self.stream_lost(stream, 0, session);
            }
        }
    }

    fn tick(&mut self, now: Time, session: &mut Session<'_>) {
        self.see_places();
        self.machine.handle_tick(now);
        if self.machine.is_stopping() {
            self.storage.engine.hurry();
        }
        self.storage.give_way(&session.other.lines);
    }

    fn control_lost(&mut self, failure: Failure) {
        self.storage.job.set_ends(true);
        self.machine.handle_control_lost(failure);
    }

    fn stop(&mut self, session: &mut Session<'_>) {
        session.other.send(Message::Stop { reason: "interrupted".into() });
        self.machine.stop();
        self.storage.job.set_ends(true);
    }

    fn is_overdue(&self, stopping: &mut Stopping, _: &Pulse) -> bool {
        stopping.is_overdue_at(self.machine.steps(), || !self.stuck().is_empty())
    }

    fn payload(&self) -> u64 {
        self.machine.counts().payload
    }

    fn streams(&self) -> usize {
        self.network.receivers.len()
    }

    fn stuck(&self) -> Vec<Stuck> {
        self.storage.engine.stuck()
    }

    fn in_wait(&self) -> Option<String> {
        self.storage.engine.in_wait()
    }

    fn progress(&self, session: &Session<'_>) -> Option<Progress> {
        let counts = self.machine.counts();
        Some(Progress {
            bytes_done: counts.written.saturating_add(counts.holes).max(counts.bytes_done).min(counts.bytes),
            bytes_total: counts.bytes,
            files_done: counts.files_done,
            files_total: counts.files,
            unchanged: counts.unchanged,
            failed: session.user.tally.failed,
            counting: !counts.walked,
            elapsed: session.clock.elapsed(),
            bytes_sent: counts.payload,
            holes: counts.holes,
            waiting: session.waiting(self),
            checking: held::at_sink(&self.machine),
            paused: false,
            unencrypted: session.agreed.auth_only,
        })
    }

    fn is_paused(&self) -> bool {
        self.paused
    }

    fn targets(&self) -> impl Iterator<Item = TargetState> {
        self.machine.targets()
    }

    fn unwell(&self) -> impl Iterator<Item = (TargetId, Health)> {
        self.machine.unwell()
    }

    fn name_of(&self, target: TargetId) -> String {
        name_of(&self.storage.targets, target)
    }

    fn finish(
        &mut self,
        session: &mut Session<'_>,
        _: &SessionEnd,
        request: &SinkRequest,
        strays: &AtomicU64,
    ) -> Closing {
        let placed = self.placed();
        self.network.receivers.clear();
        let counts = self.machine.counts();
        session.user.tally.came_back = counts.sent_back;
        let mut chosen = self.chosen(request);
        chosen.extend(session.other.lines.chosen());
        chosen.extend(places_in_words(request.layout, &placed));
        if session.agreed.layouts {
            session.other.send(Message::Placed(placed));
        }
        if self.complete && !self.stuck().is_empty() {
            // The source need not wait for what hangs.
            self.complete = false;
            session.other.send(Message::Complete);
        }
        let left = self.storage.engine.end();
        let ended = left.is_empty();
        if !ended {
            chosen.push(("sink left behind".into(), left.join("; ")));
        }
        // The engine's threads remove what they can as they end.
        chosen.extend(self.storage.engine.left().map(|left| (DEBRIS.to_owned(), left)));
        // What hangs may still act when it comes back. Until then the job stays ours.
        self.storage.ended = ended;
        if self.complete && ended {
            self.storage.job.finish();
        }
        if let Some(stays) = self.storage.job.stays() {
            let text = format!("{stays}; the next run of this copy removes it, or `haul clean`");
            chosen.push((DEBRIS.to_owned(), text));
        }
        if self.complete {
            // Together with the report: whoever hears it may look at the destination, and finds nothing of
            // ours there.
            session.other.send(Message::Complete);
        }
        let not_kept = self.storage.engine.not_kept();
        let mut own = end_report(&session.meter, strays, counts.payload, counts.objects_resent);
        own.not_kept[NotKept::Owner as usize] = not_kept.owner;
        own.not_kept[NotKept::SetId as usize] = not_kept.setid;
        (own.held, _) = self.machine.held();
        let held = self.storage.engine.held();
        if held != HeldReport::default() {
            own.held = held;
        }
        own.not_kept[NotKept::Mode as usize] = not_kept.mode;
        own.not_kept[NotKept::Mtime as usize] = not_kept.mtime;
        own.not_kept[NotKept::MtimeClamped as usize] = not_kept.clamped;
        own.not_kept[NotKept::Nfs4Acl as usize] = not_kept.nfs4;
        own.not_kept[NotKept::Sparse as usize] = not_kept.sparse;
        own.not_kept[NotKept::NeverKept as usize] = counts.refused_metadata;
        own.not_kept[NotKept::HardLink as usize] = counts.apart;
        own.amended = counts.amended;
        Closing {
            own,
            chosen,
            resumed: self.resumed || self.storage.engine.resumed(),
            kept: self.machine.kept().saturating_add(self.storage.engine.kept()),
            spared: self.storage.engine.spared(),
        }
    }

    fn leave(self) {
        if self.storage.ended {
            self.storage.job.leave();
        }
    }
}

impl SinkEnd {
    /// Where the files came to lie.
    fn placed(&self) -> Placed {
        let written = self.machine.targets().filter(|target| target.done > 0).count();
        Placed { targets: u16::try_from(written).unwrap_or(u16::MAX), ..self.storage.engine.placed() }
    }

    /// What was chosen here, and found.
    fn chosen(&mut self, request: &SinkRequest) -> InWords {
        let writers = match request.claim.is_short() {
            true => FEW_DESCRIPTORS,
            false => "they mostly wait for syncs",
        };
        let mut chosen = vec![
            ("writers".into(), format!("{} ({writers})", request.writers)),
            ("sink buffers".into(), format!("{} bytes (what is granted)", request.memory)),
        ];
        if self.machine.is_held_by_memory() {
            let all = show_size(request.memory);
            chosen.push((MEMORY_HELD.into(), format!("{all} at the sink is less than the path can hold")));
        }
        if self.storage.engine.time_grain().is_some() {
            let how = "kept in whole seconds, or in two, as the destination has them";
            chosen.push(("mtimes".into(), how.into()));
        }
        chosen.append(&mut self.found);
        chosen.extend(self.storage.engine.report());
        chosen.extend(network_of("sink", self.storage.engine.network()));
        chosen.extend(self.network.receive.report());
        chosen
    }

    fn see_places(&mut self) {
        if let Some(places) = self.storage.engine.places() {
            self.machine.set_places(places);
            self.storage.engine.expect(self.machine.files());
        }
    }

    fn stream_lost(&mut self, stream: StreamId, frames: u64, session: &mut Session<'_>) {
        session.other.lines.stream_lost(stream, session.clock.now());
        self.machine.handle_stream_lost(stream, frames);
    }

    fn submit(&mut self, mut op: SinkOp) {
        if let SinkOp::FinishDirs { dirs, .. } = &mut op {
            // What the root becomes was told ahead of all names.
            for (id, meta) in dirs.iter_mut().filter(|(id, _)| *id == DirId::ROOT) {
                if let Some(why) = self.owners.map(meta) {
                    self.machine.tell_unkept(id.as_file(), why);
                }
            }
        }
        if matches!(op, SinkOp::Lookup { .. }) {
            // Of files that were just announced.
            self.see_places();
        }
        if let SinkOp::MakeLinks { items } = &op {
            for (id, node) in items.iter().filter_map(|item| Some((item.file.id, item.node?))) {
                self.names.nodes.insert(id, kind_of(node));
                if let Some((_, kind)) = self.names.firsts.get_mut(&id) {
                    *kind = kind_of(node);
                }
            }
        }
        let buffers = &mut self.payload.buffers;
        let buffer = match &op {
            SinkOp::WriteBundle { buffer, more: true, .. } => {
                buffers.remove(buffer).map(Payload::share).map(|(held, goes)| {
                    buffers.insert(*buffer, held);
                    goes
                })
            }
            SinkOp::Write { buffer, .. } | SinkOp::WriteBundle { buffer, .. } => buffers.remove(buffer),
            _ => None,
        };
        self.storage.engine.submit(SinkJob { op, buffer });
    }
}
