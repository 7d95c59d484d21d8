//! The sink of a dry run: it looks at the destination, says what a copy would change there, and changes nothing.
//!
//! In: announcements. Out: for each entry what a copy would do with it, told to the source and to whoever watches this end.
//! Invariants: nothing at the destination is made or changed ([`crate::storage::sink::looker`]), and no job is taken or looked at;
//! memory is bounded by the entries that may be open, whoever announces them.
//! What lies in directories that are the user's own and closed to him a copy would look at, having opened them: here it is counted
//! as skipped, and told in one line.
//! Left out: parts of files that an interrupted run left there: a dry run counts such a file as a whole.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, unbounded};
use haul_core::change::Change;
use haul_core::entry::{EntryKind, Extras, Name};
use haul_core::ids::{DirId, Generation};
use haul_core::transfer::op::Existing;
use haul_core::transfer::{ENTRIES_MAX, Ended, SessionEnd, link_end, other_end};
use haul_core::wire::{
    Announced, DoneItem, Failure, FileState, Hello, Message, NotKept, Outcome, Policy, ROOTS_MAX, SourceRoot,
    Stage,
};
use rustix::io::Errno;

use super::choices::{Choices, InWords};
use super::sink::{SinkRequest, destination, path_of, unopened, unwritable, was_asked};
use super::streams::Lines;
use super::{
    Clock, EPOCH, Heard, Kind, Links, Pulse, Report, SETUP_MAX, TICK, Tally, Watch, agree, exchange_reports,
    hello, protocol,
};
use crate::api::UNSEEN;
use crate::job::Role;
use crate::meter::Meter;
use crate::storage::Post;
use crate::storage::null::NULL;
use crate::storage::place::PlaceError;
use crate::storage::sink::Foreseen;
use crate::storage::sink::looker::{Looker, dir_stands, special_stands};
use crate::transport::rejoin::Joins;
use crate::transport::stream::{ControlEvent, ControlHandle, ControlStream};

/// A directory that is not over.
struct Dir {
    parent: DirId,
    /// Directories in it that are not over.
    open: u32,
    /// No more entries will be announced in it.
    ended: bool,
    outcome: Outcome,
}

/// What was agreed with the source.
struct Agreed {
    looker: Looker,
    policy: Policy,
}

struct Dry<'a> {
    request: &'a SinkRequest,
    watch: &'a Watch,
    ours: Hello,
    roots: Vec<SourceRoot>,
    /// `None`: the source did not say yet what will come.
    agreed: Option<Agreed>,
    dirs: HashMap<DirId, Dir>,
    /// Parent and name of each of them.
    places: HashMap<DirId, (DirId, Name)>,
    tally: Tally,
    /// Entries in directories that a copy would open to us.
    unseen: u64,
    /// Unchanged files of which a copy would bring mode or owner up to date.
    amended: u64,
    /// What a copy would not keep of who entries belong to.
    foreseen: Foreseen,
    choices: Choices,
}

/// Runs the sink end of a dry run.
pub(crate) fn run(links: Links, request: &SinkRequest, watch: &Watch) -> Report {
    let (sender, mailbox) = unbounded();
    let post: Post<ControlEvent> = Arc::new(move |event| drop(sender.send(event)));
    let mut control = match ControlStream::spawn(links.control, EPOCH, post) {
        Ok(control) => control,
        Err(e) => return Report::failed(protocol(e.to_string()), watch),
    };
    let ours = hello(links.session, links.protection, request.memory, links.streams);
    control.send(Message::Hello(ours.clone()));
    let mut dry = Dry::new(request, watch, ours);
    let mut pulse = Pulse::new();
    let begun = Instant::now();
    let end = loop {
        match mailbox.recv_timeout(TICK) {
            Ok(event) => {
                event.taken(&control);
                match event {
                    ControlEvent::Message(message) => {
                        pulse.heard();
                        match dry.handle(message, &control) {
                            Ok(None) => {}
                            Ok(Some(end)) => break end,
                            Err(failure) => break SessionEnd::Failed(failure),
                        }
                    }
                    ControlEvent::Lost { why, .. } => break SessionEnd::Failed(protocol(why)),
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                break SessionEnd::Failed(protocol("the control stream is gone"));
            }
        }
        if let Err(text) = pulse.beat(&control) {
            break SessionEnd::Failed(protocol(text));
        }
        if dry.agreed.is_none() && begun.elapsed() >= SETUP_MAX {
            break SessionEnd::Failed(protocol("the other end did not answer in time during the set-up"));
        }
        if watch.control.stopped() {
            control.send(Message::Stopped);
            break SessionEnd::Stopped;
        }
    };
    let mut own = super::end_report(&Meter::default(), &links.strays, 0, 0);
    own.amended = dry.amended;
    let lost = dry.foreseen.lost();
    own.not_kept[NotKept::Owner as usize] = lost.owner;
    own.not_kept[NotKept::SetId as usize] = lost.setid;
    if let SessionEnd::Failed(failure) = &end {
        control.send(Message::Abort(failure.clone()));
    }
    let chosen: InWords = dry.unseen().into_iter().collect();
    dry.choices.finish(&chosen, &control, watch);
    // A dry run is short: what is lost is not joined again.
    let mut lines = Lines::start(Joins::Never, EPOCH, [], 0, Duration::ZERO, Arc::new(|_| {}));
    let lines = Some((&mut lines, Clock::new()));
    let choices = &dry.choices;
    let pick = |event| {
        if let ControlEvent::Message(message) = &event {
            choices.hear(message);
        }
        Some(Heard::Control(event))
    };
    let far = exchange_reports(&mailbox, &mut control, lines, || false, own, (None, watch.is_near()), pick);
    Report {
        end,
        tally: dry.tally,
        own,
        far,
        processors: [None; 2],
        resumed: false,
        kept: 0,
        chosen: dry.choices.both(chosen, watch),
        unwell: super::nobody_unwell(),
    }
}

impl<'a> Dry<'a> {
    fn new(request: &'a SinkRequest, watch: &'a Watch, ours: Hello) -> Dry<'a> {
        Dry {
            request,
            watch,
            ours,
            roots: Vec::new(),
            agreed: None,
            dirs: HashMap::new(),
            places: HashMap::new(),
            tally: Tally::default(),
            unseen: 0,
            amended: 0,
            foreseen: Foreseen::by_this_user(),
            choices: Choices::new(false),
        }
    }

    /// How much was not looked at, for the summary.
    fn unseen(&self) -> Option<(String, String)> {
        let entries = match self.unseen {
            0 => return None,
            1 => "1 entry".to_owned(),
            n => format!("{n} entries"),
        };
        let why = "in directories that are closed to you: a copy opens them to you, and looks then";
        Some((UNSEEN.to_owned(), format!("{entries} {why}")))
    }

    /// What becomes of an entry that could not be looked at, and is in `parent`.
    fn without_a_look(&mut self, parent: DirId, failure: Failure) -> Ended {
        let closed = self.agreed.as_ref().is_some_and(|agreed| agreed.looker.is_closed(parent));
        self.unseen += u64::from(closed);
        if closed { Ended::Skipped } else { Ended::Failed(failure) }
    }

    fn handle(&mut self, message: Message, control: &ControlHandle) -> Result<Option<SessionEnd>, Failure> {
        match message {
            Message::Hello(theirs) => {
                let agreed = agree(&self.ours, &theirs)?;
                self.choices = Choices::new(agreed.choices);
            }
            message if self.choices.takes(&message) => self.choices.hear(&message),
            Message::SourceRoots(part) => self.take_roots(part)?,
            Message::Sources { roots, policy } => {
                self.take_roots(roots)?;
                let rename = self.begin(policy)?;
                control.send(Message::Destination { wait: true, rename, epoch: 0, resumed: false });
            }
            Message::Announce(entries) => {
                let (mut states, mut done) = (Vec::new(), Vec::new());
                for entry in entries {
                    self.take(entry, &mut states, &mut done)?;
                }
                if !states.is_empty() {
                    control.send(Message::State(states));
                }
                if !done.is_empty() {
                    control.send(Message::Done(done));
                }
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
                    control.send(Message::Done(done));
                }
            }
            Message::Trouble { path, failure } => self.tally.fail(self.watch, path.to_vec(), &failure),
            Message::End(_) => {
                control.send(Message::Complete);
                return Ok(Some(SessionEnd::Complete));
            }
            Message::Stop { .. } => {
                control.send(Message::Stopped);
                return Ok(Some(SessionEnd::Stopped));
            }
            Message::Ping(n) => control.send(Message::Pong(n)),
            Message::Abort(failure) => return Err(failure),
            _ => {}
        }
        Ok(None)
    }

    fn take_roots(&mut self, mut part: Vec<SourceRoot>) -> Result<(), Failure> {
        if self.agreed.is_some() || self.roots.len() + part.len() > ROOTS_MAX {
            return Err(protocol(format!("the other end names its sources twice, or more than {ROOTS_MAX}")));
        }
        self.roots.append(&mut part);
        Ok(())
    }

    /// Looks at the destination as a copy would, up to the point where that would make something.
    fn begin(&mut self, policy: Policy) -> Result<Option<Name>, Failure> {
        was_asked(self.request, &self.roots, policy)?;
        let request = self.request;
        let misused = |e: PlaceError| Failure { stage: Stage::Usage, errno: 0, text: e.to_string().into() };
        request.destination.fits(Role::Sink).map_err(misused)?;
        let (looker, rename) = match *request.destination.scheme() == NULL {
            true => (Looker::at_nothing(), None),
            false => {
                let typed = request.destination.as_file().map_err(misused)?;
                let (root, rename) = destination(typed, &self.roots, request.home.as_deref())?;
                let looker = Looker::open(&root)?;
                let failed =
                    |errno| Failure { stage: Stage::Open, errno, text: "create a file there".into() };
                // As a copy has it: only the last component of a new destination is made for a single file, and one in which
                // nothing can be written is told at the start.
                if rename.is_some() && looker.is_nothing() {
                    return Err(unopened(
                        failed(Errno::NOENT.raw_os_error()),
                        typed,
                        &root,
                        rename.is_some(),
                    ));
                }
                if let Some(errno) = looker.denies_files().filter(|_| request.state_dir.is_none()) {
                    return Err(unwritable(failed(errno.raw_os_error()), &root, None));
                }
                (looker, rename)
            }
        };
        self.tally.renamed = rename.is_some();
        self.agreed = Some(Agreed { looker, policy });
        Ok(rename)
    }

    /// Says what would become of an entry.
    fn take(
        &mut self,
        entry: Announced,
        states: &mut Vec<(haul_core::ids::FileId, Generation, FileState)>,
        done: &mut Vec<DoneItem>,
    ) -> Result<(), Failure> {
        let Some(Agreed { looker, policy }) = &self.agreed else {
            return Err(protocol("an entry came before its sources"));
        };
        let Announced { id, generation, parent, name, meta, kind, extras } = entry;
        if extras != Extras::default() {
            return Err(protocol("an entry with what this session was not to have"));
        }
        let at = |places: &HashMap<DirId, (DirId, Name)>| path_of(places, parent, &name);
        let failed = |failure: Failure| DoneItem { id, generation, outcome: Outcome::Failed(failure) };
        match kind {
            EntryKind::File { fingerprint, .. } => {
                let found = looker.file(parent, &name);
                let planned = found.and_then(|found| plan(&found, fingerprint.size, &meta, policy));
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
                        if !end.1.is_none() {
                            self.foreseen.count(&meta, policy.owner, false);
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
                let path = || at(&self.places);
                self.tally.count(
                    self.watch,
                    Kind::File,
                    &end,
                    (None, change),
                    fingerprint.size,
                    path,
                    || None,
                );
            }
            EntryKind::Symlink { target } => {
                let planned =
                    looker.link(parent, &name, &target, (&meta, policy.owner && !policy.no_clobber));
                let (end, change) = match planned {
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
                            self.foreseen.count(&meta, policy.owner, true);
                        }
                        (link_end(change), change)
                    }
                    Err(failure) => (self.without_a_look(parent, failure), Change::NONE),
                };
                self.amended += u64::from(end == Ended::Unchanged && !change.is_none());
                done.push(match &end {
                    Ended::Failed(failure) => failed(failure.clone()),
                    _ => DoneItem { id, generation, outcome: Outcome::Done { root: None, change } },
                });
                let path = || at(&self.places);
                self.tally.count(self.watch, Kind::Symlink, &end, (None, change), 0, path, || None);
            }
            EntryKind::Fifo | EntryKind::Socket | EntryKind::Device { .. } | EntryKind::HardLink { .. } => {
                return Err(protocol("an entry of a kind that this session was not to have"));
            }
            EntryKind::Dir { .. } => {
                let dir = id.as_dir();
                if self.dirs.len() >= ENTRIES_MAX as usize {
                    return Err(protocol(format!("more than {ENTRIES_MAX} directories are open")));
                }
                looker.register(dir, parent, name.clone());
                let looked = looker.dir(dir);
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
                self.tally.count(self.watch, Kind::Dir, &end, (None, change), 0, path, || None);
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
            if let Some(agreed) = &self.agreed {
                agreed.looker.forget(dir);
            }
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
    policy: &Policy,
) -> Result<FileState, Failure> {
    let change = Change::of_file(existing, size, meta, policy.owner);
    let skipped = match existing {
        Existing::Dir => return Err(dir_stands()),
        Existing::Nothing => false,
        Existing::Special if !policy.no_clobber && !policy.force => return Err(special_stands()),
        Existing::Link | Existing::Special => policy.no_clobber,
        Existing::File { mtime, rights, .. } => {
            let fits = !change.has(Change::SIZE) && !change.has(Change::TIME);
            let amended = !change.is_none() && !policy.no_clobber;
            let in_place = !amended || change.may_be_set(*rights, meta, policy.owner);
            if fits && !policy.force && in_place {
                return Ok(if amended { FileState::Amended(change) } else { FileState::Unchanged });
            }
            policy.no_clobber || (policy.update && *mtime > meta.mtime)
        }
    };
    Ok(if skipped { FileState::Skipped } else { FileState::Planned(change) })
}

#[cfg(test)]
mod tests {
    use haul_core::entry::{Meta, Timestamp, Version};
    use haul_core::ids::FileId;

    use super::super::tests::{MEMORY, sink_request};
    use super::*;

    /// Goal: what stands in a file's place is treated as a copy treats it: a link gives way, a device or the like only with
    /// `--force`; nothing gives way with `--no-clobber`; a directory never does.
    /// Method: each of them under each choice.
    #[test]
    fn what_stands_gives_way_as_in_a_copy() {
        let meta = Meta { mode: 0o644, uid: 0, gid: 0, mtime: Timestamp { secs: 7, nanos: 0 } };
        for (no_clobber, force) in [(false, false), (false, true), (true, false)] {
            let policy = Policy { no_clobber, force, ..super::super::policy(&Default::default()) };
            let of = |existing| plan(&existing, 5, &meta, &policy);
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

    /// Goal: a dry run keeps what is open of a tree, and no more; a source that never ends a directory is refused.
    /// Method: directories, each in the one before, that end as they come; then as many as may be, which never end.
    #[test]
    fn memory_does_not_grow_with_the_tree() {
        let request = sink_request(std::path::Path::new("/nonexistent/dst"));
        let watch = Watch::silent();
        let ours = hello([0; 16], Default::default(), MEMORY, 1);
        let mut dry = Dry::new(&request, &watch, ours);
        let policy = super::super::policy(&Default::default());
        dry.agreed = Some(Agreed { looker: Looker::at_nothing(), policy });
        let meta = Meta { mode: 0o755, uid: 0, gid: 0, mtime: Timestamp { secs: 0, nanos: 0 } };
        let entry = |n: u64, parent| {
            let name = Name::new(format!("d{n}").as_bytes()).expect("legal");
            let (id, kind) = (FileId(n), EntryKind::Dir { version: Version::NONE });
            Announced { id, generation: Generation(0), parent, name, meta, kind, extras: Extras::default() }
        };
        let (mut states, mut done) = (Vec::new(), Vec::new());
        for n in 1..=5_000 {
            dry.take(entry(n, DirId::ROOT), &mut states, &mut done).expect("taken");
            dry.dirs.get_mut(&DirId(n)).expect("open").ended = true;
            dry.finish(DirId(n), &mut done);
        }
        assert_eq!((dry.dirs.len(), dry.places.len(), done.len()), (0, 0, 5_000));
        let first = 10_000;
        let last = first + u64::from(ENTRIES_MAX);
        for n in first..last {
            let parent = if n == first { DirId::ROOT } else { DirId(n - 1) };
            dry.take(entry(n, parent), &mut states, &mut done).expect("taken");
        }
        assert!(dry.take(entry(last, DirId(last - 1)), &mut states, &mut done).is_err());
        // They end from below, all at once.
        (first..last).for_each(|n| dry.dirs.get_mut(&DirId(n)).expect("open").ended = true);
        dry.finish(DirId(last - 1), &mut done);
        assert_eq!((dry.dirs.len(), dry.places.len()), (0, 0));
    }
}
