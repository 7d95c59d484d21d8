//! The sink of a dry run: it looks at the destination, says what a copy would change there, and changes
//! nothing.
//!
//! In: announcements. Out: for each entry what a copy would do with it, told to the source and to whoever
//! watches this end.
//! Invariants: nothing at the destination is made or changed ([`Looks`]), and no job is taken or looked at;
//! memory is bounded by the entries that may be open, whoever announces them.
//! What lies in directories that are the user's own and closed to him a copy would look at, having opened
//! them: here it is counted as skipped, and told in one line.
//! Extended attributes and lists come behind announcements ([`awaited`]). Of further names it is said what
//! they are at the destination, as far as it tells inodes ([`names`]).
//! Left out: parts of files that an interrupted run left there: a dry run counts such a file as a whole.

use std::convert::Infallible;
use std::iter;
use std::sync::atomic::AtomicU64;

use haul_core::change::Change;
use haul_core::entry::{EntryKind, Extras, Meta, Name, Nodes, Part};
use haul_core::id_map::IdMap;
use haul_core::ids::{DirId, FileId, Generation, SessionEpoch, StreamId, TargetId, Time};
use haul_core::schedule::{Health, TargetState};
use haul_core::transfer::op::Existing;
use haul_core::transfer::{ENTRIES_MAX, Ended, SessionEnd, link_end, other_end};
use haul_core::wire::{
    Agreed, Announced, DoneItem, Failure, FileState, Message, NotKept, Outcome, ROOTS_MAX, SinkOptions,
    SourceRoot,
};

use super::hello::Opening;
use super::owners::Owners;
use super::session::{self, Closing, End, User};
use super::sink::{SinkRequest, coming, hear, kind_of, path_of, store_of};
use super::{Kind, Links, Report, Watch, end_report, protocol};
use crate::events::Progress;
use crate::handle::LiveSetting;
use crate::summary::UNSEEN;
use awaited::Awaited;
use haul_base::role::Role;
use haul_storage::Stuck;
use haul_storage::sink::Foreseen;
use haul_storage::store::{Looks, dir_stands, not_in_place, special_stands};
use haul_transport::Link;
use names::Names;

mod awaited;
mod names;

const SETID: u32 = 0o6000;

/// A directory that is not over.
struct Dir {
    parent: DirId,
    /// Directories in it that are not over.
    open: u32,
    /// No more entries will be announced in it.
    ended: bool,
    outcome: Outcome,
}

/// Runs the sink end of a dry run.
pub(crate) fn run(links: Links, request: &SinkRequest, watch: &Watch) -> Report {
    session::run::<Dry>(links, request, watch)
}

type Session<'a> = session::Session<'a, Infallible>;

struct Dry {
    looker: Box<dyn Looks>,
    policy: SinkOptions,
    /// The part of one file that comes, if not files as a whole.
    part: Option<Part>,
    in_place: bool,
    /// FIFOs, sockets and devices that may come.
    nodes: Nodes,
    owners: Owners,
    /// Entries that would not get their owner, until they are taken.
    refused: IdMap<FileId, Failure>,
    dirs: IdMap<DirId, Dir>,
    /// Parent and name of each of them.
    places: IdMap<DirId, (DirId, Name)>,
    /// Entries in directories that a copy would open to us.
    unseen: u64,
    /// Unchanged files of which a copy would bring mode or owner up to date.
    amended: u64,
    /// What a copy would not keep of who entries belong to.
    foreseen: Foreseen,
    /// Entries whose metadata come.
    awaited: Awaited,
    names: Names,
    /// What the destination root would become.
    root: Option<Meta>,
    /// It is over.
    end: Option<SessionEnd>,
    /// Data streams of the start, over which nothing comes.
    _data: Vec<(StreamId, Link)>,
}

impl End for Dry {
    const ROLE: Role = Role::Sink;
    const LIVE_SETTINGS: &'static [LiveSetting] = &[];
    const HAS_LIVE_SETTINGS: bool = false;
    // A dry run is short: what is lost is not joined again.
    const REJOINS: bool = false;
    type Request = SinkRequest;
    type Setup = (Box<dyn Looks>, SinkOptions, Option<Name>, Option<Meta>, Owners);
    type Own = Infallible;
    type Feed = ();

    fn set_up(
        opening: &Opening<'_, Infallible>,
        request: &SinkRequest,
    ) -> Result<(Agreed, Self::Setup), Failure> {
        let (agreed, roots, policy, owners) = hear(opening, request)?;
        let coming = coming(request, &roots, policy, &agreed);
        let (looker, rename) = store_of(request, opening.stop())?.look(&coming)?;
        let root = SourceRoot::of_destination(&roots, &policy).filter(|_| agreed.root);
        Ok((agreed, (looker, policy, rename, root, owners)))
    }

    fn start(
        session: &mut Session<'_>,
        data: Vec<(StreamId, Link)>,
        request: &SinkRequest,
        (looker, policy, rename, root, owners): Self::Setup,
    ) -> Result<Dry, Failure> {
        session.user.tally.renamed = rename.is_some();
        session.other.send(Message::Destination { wait: true, rename, epoch: 0, resumed: false });
        let awaited = Awaited::new(session.agreed.metadata, root.is_some(), policy);
        Ok(Dry {
            names: Names::new(session.agreed.hard_links),
            awaited,
            root,
            _data: data,
            part: request.part,
            in_place: request.in_place,
            owners,
            nodes: if session.agreed.specials { request.nodes } else { Nodes::default() },
            ..Dry::new(looker, policy)
        })
    }

    fn act(&mut self, _: &mut Session<'_>) -> Option<SessionEnd> {
        self.end.take()
    }

    fn steer(&mut self, _: &mut Session<'_>) {}

    fn next_deadline(&self) -> Option<Time> {
        None
    }

    fn handle(&mut self, own: Infallible, _: &mut Session<'_>) {
        match own {}
    }

    fn hear(&mut self, message: Message, session: &mut Session<'_>) {
        if self.end.is_none() {
            self.end = self
                .take_message(message, session)
                .unwrap_or_else(|failure| Some(SessionEnd::Failed(failure)));
        }
    }

    fn handle_stream(&mut self, _: (StreamId, SessionEpoch), link: Link, _: &mut Session<'_>) {
        (link.closer)();
    }

    fn tick(&mut self, _: Time, _: &mut Session<'_>) {}

    fn control_lost(&mut self, failure: Failure) {
        self.end.get_or_insert(SessionEnd::Failed(failure));
    }

    fn stop(&mut self, session: &mut Session<'_>) {
        session.other.send(Message::Stopped);
        self.end = Some(SessionEnd::Stopped);
    }

    fn payload(&self) -> u64 {
        0
    }

    fn streams(&self) -> usize {
        0
    }

    fn stuck(&self) -> Vec<Stuck> {
        Vec::new()
    }

    fn progress(&self, _: &Session<'_>) -> Option<Progress> {
        None
    }

    fn targets(&self) -> impl Iterator<Item = TargetState> {
        iter::empty()
    }

    fn unwell(&self) -> impl Iterator<Item = (TargetId, Health)> {
        iter::empty()
    }

    fn name_of(&self, target: TargetId) -> String {
        target.to_string()
    }

    fn finish(
        &mut self,
        session: &mut Session<'_>,
        how: &SessionEnd,
        _: &SinkRequest,
        strays: &AtomicU64,
    ) -> Closing {
        let mut own = end_report(&session.meter, strays, 0, 0);
        own.amended = self.amended;
        let lost = self.foreseen.lost();
        own.not_kept[NotKept::Owner as usize] = lost.owner;
        own.not_kept[NotKept::SetId as usize] = lost.setid;
        if let SessionEnd::Failed(failure) = how {
            session.other.send(Message::Abort(failure.clone()));
        }
        Closing { own, chosen: self.unseen(), resumed: false, kept: 0, spared: 0 }
    }
}

impl Dry {
    fn new(looker: Box<dyn Looks>, policy: SinkOptions) -> Dry {
        Dry {
            looker,
            policy,
            part: None,
            in_place: false,
            nodes: Nodes::default(),
            owners: Owners::default(),
            refused: IdMap::default(),
            dirs: IdMap::default(),
            places: IdMap::default(),
            unseen: 0,
            amended: 0,
            foreseen: Foreseen::by_this_user(),
            awaited: Awaited::default(),
            names: Names::default(),
            root: None,
            end: None,
            _data: Vec::new(),
        }
    }

    /// What was not looked at, for the summary.
    fn unseen(&self) -> Vec<(String, String)> {
        let entries = match self.unseen {
            0 => None,
            1 => Some("1 entry".to_owned()),
            n => Some(format!("{n} entries")),
        };
        let why = "in directories that are closed to you: a copy opens them to you, and looks then";
        let entries = entries.map(|entries| format!("{entries} {why}"));
        let all = entries.into_iter().chain(self.looker.unseen());
        all.map(|words| (UNSEEN.to_owned(), words)).collect()
    }

    /// What becomes of an entry that could not be looked at, and is in `parent`.
    fn without_a_look(&mut self, parent: DirId, failure: Failure) -> Ended {
        let closed = self.looker.is_closed(parent);
        self.unseen += u64::from(closed);
        if closed { Ended::Skipped } else { Ended::Failed(failure) }
    }

    fn take_message(
        &mut self,
        message: Message,
        session: &mut Session<'_>,
    ) -> Result<Option<SessionEnd>, Failure> {
        let Session { other, user, .. } = session;
        let mut message = message;
        let refused = self.owners.hear(&mut message, user.watch);
        self.refused.extend(refused);
        match message {
            Message::SourceRoots(_) | Message::Sources { .. } => {
                let text = format!("the other end names its sources twice, or more than {ROOTS_MAX}");
                return Err(protocol(text));
            }
            Message::Announce(_) | Message::Metadata(_) => {
                self.awaited.hear(message)?;
                let (mut states, mut done) = (Vec::new(), Vec::new());
                while let Some((entry, values)) = self.awaited.next() {
                    self.looker.expect(values, Some(entry.meta).filter(|_| self.policy.owner));
                    self.take(entry, user, &mut states, &mut done)?;
                }
                if !states.is_empty() {
                    other.send(Message::FileStates(states));
                }
                if !done.is_empty() {
                    other.send(Message::Done(done));
                }
            }
            Message::DirEnd(_) | Message::End(_) if !self.awaited.is_empty() => {
                return Err(protocol("an entry whose metadata did not come"));
            }
            Message::DirEnd(dirs) => {
                let mut done = Vec::new();
                for dir in dirs {
                    if let Some(open) = self.dirs.get_mut(&dir) {
                        open.ended = true;
                    }
                    self.finish(dir, &mut done);
                }
                if !done.is_empty() {
                    other.send(Message::Done(done));
                }
            }
            Message::Trouble { path, failure } => user.tally.fail(user.watch, path.to_vec(), &failure),
            Message::End(_) => {
                if let Some(outcome) = self.take_root(user) {
                    let (id, generation) = (DirId::ROOT.as_file(), Generation(0));
                    other.send(Message::Done(vec![DoneItem { id, generation, outcome }]));
                }
                other.send(Message::Complete);
                return Ok(Some(SessionEnd::Complete));
            }
            Message::Stop { .. } => {
                other.send(Message::Stopped);
                return Ok(Some(SessionEnd::Stopped));
            }
            Message::Ping(n) => other.send(Message::Pong(n)),
            Message::Abort(failure) => return Err(failure),
            _ => {}
        }
        Ok(None)
    }

    /// Says what would become of the destination root, if that becomes anything.
    fn take_root(&mut self, user: &mut User<'_>) -> Option<Outcome> {
        let mut meta = self.root.take()?;
        let refused = self.owners.map(&mut meta);
        self.looker.expect(self.awaited.take_root(), Some(meta).filter(|_| self.policy.owner));
        let stood = self.looker.root()?;
        let (end, change) = match stood.and_then(|stood| refused.map_or(Ok(stood), Err)) {
            Ok(stood) => {
                let change =
                    stood.map_or(Change::NEW, |stood| Change::of_dir(&stood, &meta, self.policy.owner));
                self.foreseen.count(&meta, self.policy.owner, false);
                (other_end(change), change)
            }
            Err(failure) => (Ended::Failed(failure), Change::NONE),
        };
        user.tally.root(user.watch, &end, change);
        Some(match end {
            Ended::Failed(failure) => Outcome::Failed(failure),
            _ => Outcome::Done { root: None, change },
        })
    }

    /// Says what would become of an entry.
    fn take(
        &mut self,
        entry: Announced,
        user: &mut User<'_>,
        states: &mut Vec<(FileId, Generation, FileState)>,
        done: &mut Vec<DoneItem>,
    ) -> Result<(), Failure> {
        let (looker, policy) = (&self.looker, &self.policy);
        let Announced { id, generation, parent, name, meta, kind, extras } = entry;
        let told = Extras {
            range: extras.range.filter(|told| self.part.is_some_and(|part| part.is(told))),
            ..extras
        };
        if extras != told || told.range.is_some() != self.part.is_some() {
            return Err(protocol("an entry with what this session was not to have"));
        }
        let refused = self.refused.remove(&id);
        self.names.expect(id, extras.names, || path_of(&self.places, parent, &name))?;
        let at = |places: &IdMap<DirId, (DirId, Name)>| path_of(places, parent, &name);
        let failed = |failure: Failure| DoneItem { id, generation, outcome: Outcome::Failed(failure) };
        match kind {
            EntryKind::File { fingerprint, .. } => {
                let found = looker.file(parent, &name);
                // Another user's file that is written in place gets no set-id bits.
                let foreign = matches!(&found, Ok(Existing::File { rights, .. }) if rights.foreign);
                let loses = foreign && self.in_place && policy.owner && meta.mode & SETID != 0;
                let planned = found.and_then(|found| {
                    let state = plan(&found, fingerprint.size, &meta, policy, (self.part, self.in_place))?;
                    let change = Change::of_file(&found, fingerprint.size, &meta, policy.owner);
                    let counts = !change.has(Change::NEW.with(Change::SIZE, true).with(Change::TIME, true));
                    let counts = (counts && !policy.force).then_some(&fingerprint);
                    let writes = matches!(state, FileState::Planned(_));
                    looker.may_have((parent, &name), id, (counts, writes))?;
                    refused.map_or(Ok(state), Err)
                });
                let beyond = if policy.no_clobber { Change::NONE } else { looker.beyond() };
                let (end, change) = match planned {
                    Ok(state) => {
                        let end = match state {
                            FileState::Planned(change) => (Ended::Copied, change),
                            FileState::Amended(change) => {
                                self.amended += 1;
                                (Ended::Unchanged, change)
                            }
                            FileState::Skipped => (Ended::Skipped, Change::NONE),
                            _ => (Ended::Unchanged, Change::NONE),
                        };
                        if loses && end.0 == Ended::Copied {
                            self.foreseen.count(&Meta { mode: meta.mode & !SETID, ..meta }, true, false);
                            self.foreseen.stays(Change::MODE);
                        } else if !end.1.is_none() {
                            self.foreseen.count(&meta, policy.owner, false);
                        } else if end.0 == Ended::Unchanged {
                            self.foreseen.stays(beyond);
                        }
                        states.push((id, generation, state));
                        end
                    }
                    Err(failure) => {
                        let end = self.without_a_look(parent, failure);
                        match &end {
                            Ended::Failed(failure) => done.push(failed(failure.clone())),
                            _ => states.push((id, generation, FileState::Skipped)),
                        }
                        (end, Change::NONE)
                    }
                };
                let stays = !matches!(end, Ended::Failed(_))
                    && (end == Ended::Unchanged || self.in_place && !change.has(Change::NEW));
                let inode = stays.then(|| self.looker.inode(parent, &name)).flatten();
                self.names.ended(id, inode, Some(fingerprint.size));
                let path = || at(&self.places);
                user.tally.count(
                    user.watch,
                    Kind::File,
                    &end,
                    (None, change),
                    fingerprint.size,
                    path,
                    || None,
                );
            }
            EntryKind::Symlink { .. } | EntryKind::Fifo | EntryKind::Socket | EntryKind::Device { .. } => {
                let owner = policy.owner && !policy.no_clobber;
                self.names.is_made_as_link(id, kind.node());
                let (kind, planned) = match (kind.node(), kind) {
                    (Some(node), _) if !self.nodes.keep(node) => {
                        return Err(protocol("an entry of a kind that this session was not to have"));
                    }
                    (Some(node), _) => {
                        let planned = looker.node(parent, &name, node, (&meta, owner));
                        // One that stands stays as it is.
                        let stays = |change: Change| policy.no_clobber && !change.has(Change::NEW);
                        let planned = planned.map(|(change, existing)| match stays(change) {
                            true => (Change::NONE, existing),
                            false => (change, existing),
                        });
                        (kind_of(node), planned)
                    }
                    (None, EntryKind::Symlink { target }) => {
                        (Kind::Symlink, looker.link(parent, &name, &target, (&meta, owner)))
                    }
                    (None, _) => return Err(protocol("an entry of no kind that there is")),
                };
                let (end, change) = match planned.and_then(|plan| refused.map_or(Ok(plan), Err)) {
                    Ok((change, existing))
                        if !change.is_none() && existing != Existing::Nothing && policy.no_clobber =>
                    {
                        (Ended::Skipped, Change::NONE)
                    }
                    Ok((_, Existing::Special)) if !policy.force => {
                        (Ended::Failed(special_stands()), Change::NONE)
                    }
                    Ok((change, _)) => {
                        if !change.is_none() {
                            self.foreseen.count(&meta, policy.owner, kind == Kind::Symlink);
                        } else if owner {
                            self.foreseen.stays(looker.beyond());
                        }
                        (link_end(change), change)
                    }
                    Err(failure) => (self.without_a_look(parent, failure), Change::NONE),
                };
                self.amended += u64::from(end == Ended::Unchanged && !change.is_none());
                let stays = end == Ended::Unchanged;
                self.names.ended(id, stays.then(|| self.looker.inode(parent, &name)).flatten(), None);
                done.push(match &end {
                    Ended::Failed(failure) => failed(failure.clone()),
                    _ => DoneItem { id, generation, outcome: Outcome::Done { root: None, change } },
                });
                let path = || at(&self.places);
                user.tally.count(user.watch, kind, &end, (None, change), 0, path, || None);
            }
            EntryKind::HardLink { to } => {
                let mut planned = self.looker.file(parent, &name);
                if let (Ok(Existing::Special), Some(node)) = (&planned, self.names.node_of(to))
                    && let Ok((change, _)) = self.looker.node(parent, &name, node, (&meta, false))
                    && !change.has(Change::NEW)
                {
                    // Such a thing gives way as a link does.
                    planned = Ok(Existing::Link);
                }
                let inode = self.looker.inode(parent, &name);
                let (planned, first, kind) = self.names.plan(to, (planned, inode), &meta, &self.policy)?;
                let (end, change) = match planned {
                    Ok(planned) => planned,
                    Err(failure) => (self.without_a_look(parent, failure), Change::NONE),
                };
                done.push(match &end {
                    Ended::Failed(failure) => failed(failure.clone()),
                    _ => DoneItem { id, generation, outcome: Outcome::Done { root: None, change } },
                });
                let (path, first) = (|| at(&self.places), || first.to_vec());
                user.tally.count_name(user.watch, kind, &end, change, path, first, || None);
            }
            EntryKind::Dir { .. } => {
                let dir = id.as_dir();
                if self.dirs.len() >= ENTRIES_MAX as usize {
                    return Err(protocol(format!("more than {ENTRIES_MAX} directories are open")));
                }
                looker.register(dir, parent, name.clone());
                let looked = looker.dir(dir).and_then(|stood| {
                    if stood.is_none() {
                        looker.may_have((parent, &name), id, (None, true))?;
                    }
                    refused.map_or(Ok(stood), Err)
                });
                if looked.is_ok() {
                    // Of a directory they are set in every run.
                    self.foreseen.count(&meta, policy.owner, false);
                }
                let (end, change) = match looked {
                    Ok(None) => (Ended::Copied, Change::NEW),
                    Ok(Some(stood)) => {
                        let change = Change::of_dir(&stood, &meta, policy.owner);
                        (other_end(change), change)
                    }
                    Err(failure) => (self.without_a_look(parent, failure), Change::NONE),
                };
                let outcome = match &end {
                    Ended::Failed(failure) => Outcome::Failed(failure.clone()),
                    _ => Outcome::Done { root: None, change },
                };
                let path = || at(&self.places);
                user.tally.count(user.watch, Kind::Dir, &end, (None, change), 0, path, || None);
                if let Some(above) = self.dirs.get_mut(&parent) {
                    above.open += 1;
                }
                self.dirs.insert(dir, Dir { parent, open: 0, ended: false, outcome });
                self.places.insert(dir, (parent, name));
            }
        }
        Ok(())
    }

    /// Forgets a directory of which no more comes, and those above it that it was the last of.
    fn finish(&mut self, mut dir: DirId, done: &mut Vec<DoneItem>) {
        while self.dirs.get(&dir).is_some_and(|open| open.ended && open.open == 0) {
            let Some(Dir { parent, outcome, .. }) = self.dirs.remove(&dir) else { return };
            self.places.remove(&dir);
            self.looker.forget(dir);
            done.push(DoneItem { id: dir.as_file(), generation: Generation(0), outcome });
            if let Some(above) = self.dirs.get_mut(&parent) {
                above.open -= 1;
            }
            dir = parent;
        }
    }
}

/// What a copy would do with a file, which `core`'s look-up decides there by the same rules.
fn plan(
    existing: &Existing,
    size: u64,
    meta: &haul_core::entry::Meta,
    policy: &SinkOptions,
    (part, in_place): (Option<Part>, bool),
) -> Result<FileState, Failure> {
    let change = match part.and_then(|part| part.sink) {
        Some(_) => Change::of_part_of_file(existing),
        None => Change::of_file(existing, size, meta, policy.owner),
    };
    let skipped = match existing {
        Existing::Dir => return Err(dir_stands()),
        Existing::Nothing => false,
        Existing::Link | Existing::Special if in_place => return Err(not_in_place()),
        Existing::Special if !policy.no_clobber && !policy.force => return Err(special_stands()),
        Existing::Link | Existing::Special => policy.no_clobber,
        Existing::File { mtime, rights, .. } => {
            let fits = !change.has(Change::SIZE) && !change.has(Change::TIME);
            let amended = !change.is_none() && !policy.no_clobber;
            let may_be_set = !amended || change.may_be_set(*rights, meta, policy.owner);
            if fits && part.is_none() && !policy.force && may_be_set {
                return Ok(if amended { FileState::Amended(change) } else { FileState::Unchanged });
            }
            policy.no_clobber || (policy.update && *mtime > meta.mtime)
        }
    };
    Ok(if skipped { FileState::Skipped } else { FileState::Planned(change) })
}

#[cfg(test)]
mod tests {
    use haul_core::entry::{Timestamp, Version};
    use haul_core::ids::Holder;

    use haul_storage::place::Destination;
    use haul_storage::place::Place;
    use haul_storage::store::Coming;
    use haul_storage::stores;

    use super::*;

    /// Goal: what stands in a file's place is treated as a copy treats it: a link gives way, a device or the
    /// like only with `--force`; nothing gives way with `--no-clobber`; a directory never does.
    /// Method: each of them under each choice.
    #[test]
    fn what_stands_gives_way_as_in_a_copy() {
        let meta = Meta { mode: 0o644, uid: 0, gid: 0, mtime: Timestamp { secs: 7, nanos: 0 } };
        for (no_clobber, force) in [(false, false), (false, true), (true, false)] {
            let policy = SinkOptions { no_clobber, force, ..super::super::policy(&Default::default()) };
            let of = |existing| plan(&existing, 5, &meta, &policy, (None, false));
            let gives_way = match no_clobber {
                true => FileState::Skipped,
                false => FileState::Planned(Change::NEW),
            };
            assert_eq!(of(Existing::Nothing), Ok(FileState::Planned(Change::NEW)));
            assert_eq!(of(Existing::Link), Ok(gives_way.clone()));
            match force || no_clobber {
                true => assert_eq!(of(Existing::Special), Ok(gives_way)),
                false => assert_eq!(of(Existing::Special), Err(special_stands())),
            }
            assert_eq!(of(Existing::Dir), Err(dir_stands()));
        }
    }

    /// A destination at which nothing stands.
    fn nothing_there() -> Box<dyn Looks> {
        let place = Place::file(b"/nonexistent/dst");
        let (home, state, patience, stop) = (None, None, None, haul_base::stop::Stop::never());
        let ssh = (&[][..], false);
        let data_channel = Default::default();
        let retry = std::sync::Arc::new(haul_core::reliability::Bounded);
        let (place, parts) = (&place, None);
        let (volumes, links) = (None, Default::default());
        let to = Destination {
            place,
            home,
            state,
            parts,
            ssh,
            data_channel,
            volumes,
            patience,
            retry,
            links,
            stop,
        };
        let policy = super::super::policy(&Default::default());
        let coming = Coming {
            roots: &[SourceRoot::Contents { of: None, meta: Meta::default() }],
            policy,
            lease: Holder::ALONE,
            what: "",
            part: None,
            in_place: false,
            in_place_asked: false,
            sources_here: &[],
            tells_root: false,
        };
        stores::sink(&to).and_then(|store| store.look(&coming)).expect("it can be looked at").0
    }

    /// What two ends of this version agree on.
    fn agreed() -> Agreed {
        let ours = super::super::hello::hello([0; 16], Default::default(), 8 << 20, 1);
        haul_core::wire::negotiate(&ours, &ours).expect("alike")
    }

    /// Goal: a dry run keeps what is open of a tree, and no more; a source that never ends a directory is
    /// refused.
    /// Method: directories, each in the one before, that end as they come; then as many as may be, which
    /// never end.
    #[test]
    fn memory_does_not_grow_with_the_tree() {
        let watch = Watch::silent();
        let mut user = User::new::<Dry>(&watch, &agreed());
        let mut dry = Dry::new(nothing_there(), super::super::policy(&Default::default()));
        let meta = Meta { mode: 0o755, uid: 0, gid: 0, mtime: Timestamp { secs: 0, nanos: 0 } };
        let entry = |n: u64, parent| {
            let name = Name::new(format!("d{n}").as_bytes()).expect("legal");
            let (id, kind) = (FileId(n), EntryKind::Dir { version: Version::NONE });
            Announced { id, generation: Generation(0), parent, name, meta, kind, extras: Extras::default() }
        };
        let (mut states, mut done) = (Vec::new(), Vec::new());
        for n in 1..=5_000 {
            dry.take(entry(n, DirId::ROOT), &mut user, &mut states, &mut done).expect("taken");
            dry.dirs.get_mut(&DirId(n)).expect("open").ended = true;
            dry.finish(DirId(n), &mut done);
        }
        assert_eq!((dry.dirs.len(), dry.places.len(), done.len()), (0, 0, 5_000));
        let first = 10_000;
        let last = first + u64::from(ENTRIES_MAX);
        for n in first..last {
            let parent = if n == first { DirId::ROOT } else { DirId(n - 1) };
            dry.take(entry(n, parent), &mut user, &mut states, &mut done).expect("taken");
        }
        assert!(dry.take(entry(last, DirId(last - 1)), &mut user, &mut states, &mut done).is_err());
        // They end from below, all at once.
        (first..last).for_each(|n| dry.dirs.get_mut(&DirId(n)).expect("open").ended = true);
        dry.finish(DirId(last - 1), &mut done);
        assert_eq!((dry.dirs.len(), dry.places.len()), (0, 0));
    }
}
