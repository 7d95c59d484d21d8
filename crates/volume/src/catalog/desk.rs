//! Where requests become answers: groups of them in one transaction.
//!
//! In: what clients ask, as it came, and the time. Out: an answer to each, to be said when this returns.
//! Invariants: all of a group lasts before any of it is answered, or none of it was done; a request that must
//! not be done twice is not; a file is released only when nobody has it open and everybody who could have had
//! the time to say so; where there was no room, nothing that needs some is done before there is, so that what
//! is kept is there for what makes room.
//! Left out: connections, which the [`server`](super::server) has.

use std::collections::BTreeSet;
use std::time::Duration;

use haul_core::volume::catalog::{Answer, Checked, EntryNo, Failure, Kind, OPEN_MAX, Request};
use haul_core::volume::rights::READERS;
use haul_core::volume::{ClientNo, FileNo, RequestNo};
use rustix::io::Errno;

use super::holds::Holds;
use super::store::{Recalled, Store, Trouble, disk_failure, failed, full_failure, is_full, moved};
use super::tree::OfTicket;

/// Files that are released with one group.
const RELEASES_MAX: usize = 1024;
/// So often it is looked whether the catalog is there.
const SEEN_EVERY: Duration = Duration::from_secs(1);

/// What comes from a connection.
#[derive(Clone, Debug)]
pub enum Asked {
    /// A client joins: with its number, or to get one.
    Join(Option<ClientNo>),
    /// One that only reads joins, to get a number.
    NewReader,
    Ask(ClientNo, RequestNo, Request),
    /// Its connection is gone.
    Gone(ClientNo),
}

/// What is to be said.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    Joined(ClientNo),
    /// No such number was ever given.
    Unknown,
    Answer(Answer),
    /// The same as was said before: how things are now it does not tell.
    Again(Answer),
    /// Tickets are given for these.
    Tickets(Vec<(FileNo, OfTicket)>),
    Nothing,
}

/// A change of who has what open, made when its transaction lasts.
enum Hold {
    Come(ClientNo),
    Go(ClientNo),
    Open(ClientNo, EntryNo),
    Close(ClientNo, EntryNo),
    End(ClientNo),
    /// It has no name any more.
    Nameless(EntryNo),
}

/// See the head of this module.
pub struct Desk {
    store: Store,
    holds: Holds,
    /// Files that nobody had open when this was noted: they are released if they have no name.
    closed: BTreeSet<EntryNo>,
    /// Files that lost their name and of which that was not told yet.
    nameless: Vec<FileNo>,
    /// Files without a name up to here were looked at since the start; `None`: all of them.
    looked: Option<EntryNo>,
    /// The disk failed; nothing is done any more.
    ill: Option<Failure>,
    /// When it was looked last whether the catalog is there.
    seen: Duration,
    /// Since when there is no room.
    full: Option<Duration>,
}

impl Desk {
    pub fn new(store: Store) -> Desk {
        Desk::with_holds(store, Holds::default())
    }

    /// With nobody who has anything open yet, and a grace of its own.
    pub fn with_holds(store: Store, holds: Holds) -> Desk {
        // What is kept is not there, so there is no room.
        let full = (!store.keep_room()).then_some(Duration::ZERO);
        let (closed, nameless) = (BTreeSet::new(), Vec::new());
        Desk {
            store,
            holds,
            closed,
            nameless,
            looked: Some(EntryNo(0)),
            ill: None,
            seen: Duration::ZERO,
            full,
        }
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Whether it is time to look whether the catalog is there still.
    pub fn must_look(&self, now: Duration) -> bool {
        now.saturating_sub(self.seen) >= SEEN_EVERY
    }

    /// A catalog that was removed, moved or replaced under this is as one whose disk failed.
    pub fn look_whether_it_is_there(&mut self, now: Duration) {
        if self.must_look(now) {
            self.seen = now;
            if self.ill.is_none() && !self.store.is_there() {
                self.ill = Some(disk_failure(&moved()));
            }
        }
    }

    /// Why nothing is done any more.
    pub fn ill(&self) -> Option<&Failure> {
        self.ill.as_ref()
    }

    /// Since when there is no room, by the clock of [`Desk::serve`].
    pub fn full(&self) -> Option<Duration> {
        self.full
    }

    /// Files that lost their name since this was asked last.
    pub fn take_nameless(&mut self) -> Vec<FileNo> {
        std::mem::take(&mut self.nameless)
    }

    /// Looks whether there is room again, and takes what is kept of it. Whether there is.
    pub fn look_for_room(&mut self) -> bool {
        if self.full.is_some() && self.store.keep_room() {
            self.full = None;
        }
        self.full.is_none()
    }

    /// Whether there is something to do though nobody asks for anything.
    pub fn is_due(&self, now: Duration) -> bool {
        self.holds.are_known(now) && (self.looked.is_some() || !self.closed.is_empty())
    }

    /// Answers all of a group, in its order.
    pub fn serve(&mut self, now: Duration, group: &[Asked]) -> Vec<Said> {
        let expired = self.holds.expire(now);
        self.closed.extend(expired);
        if let Some(failure) = &self.ill {
            return group.iter().map(|_| Said::Answer(Answer::Failed(failure.clone()))).collect();
        }
        let done = match self.look_for_room() {
            true => self.together(now, group, true),
            // Each by itself: who needs room is not tried.
            false => Err(no_room()),
        };
        match done {
            Ok(said) => said,
            // One that needs no room must not fail because another does, nor because of what is to be
            // released.
            Err(error) if is_full(&error) => {
                self.full.get_or_insert(now);
                let mut said = Vec::with_capacity(group.len());
                for asked in group {
                    said.push(self.by_itself(now, asked));
                }
                if self.is_due(now) && self.ill.is_none() {
                    self.release_alone(now);
                }
                said
            }
            Err(error) => {
                let failure = disk_failure(&error);
                self.ill = Some(failure.clone());
                group.iter().map(|_| Said::Answer(Answer::Failed(failure.clone()))).collect()
            }
        }
    }

    fn by_itself(&mut self, now: Duration, asked: &Asked) -> Said {
        if let Some(failure) = &self.ill {
            return Said::Answer(Answer::Failed(failure.clone()));
        }
        let room = Room::of(asked);
        let keeps = !haul_mutant::removed("catalog-keeps-room");
        if room == Room::Needs && keeps && !self.look_for_room() {
            return Said::Answer(Answer::Failed(full_failure(self.store.dir())));
        }
        let one = std::slice::from_ref(asked);
        let done = match self.together(now, one, false) {
            Err(error) if is_full(&error) && room == Room::Makes => {
                self.store.ease();
                self.together(now, one, false)
            }
            done => done,
        };
        match done {
            Ok(mut said) => said.pop().expect("one answer to one request"),
            Err(error) if is_full(&error) => {
                self.full.get_or_insert(now);
                Said::Answer(Answer::Failed(full_failure(self.store.dir())))
            }
            Err(error) => {
                let failure = disk_failure(&error);
                self.ill = Some(failure.clone());
                Said::Answer(Answer::Failed(failure))
            }
        }
    }

    /// Releases what nobody has open where there is no room: that makes some.
    fn release_alone(&mut self, now: Duration) {
        let done = match self.together(now, &[], true) {
            Err(error) if is_full(&error) => {
                self.store.ease();
                self.together(now, &[], true)
            }
            done => done,
        };
        if let Err(error) = done
            && !is_full(&error)
        {
            self.ill = Some(disk_failure(&error));
        }
    }

    /// All in one transaction. After an error nothing is changed.
    fn together(
        &mut self,
        now: Duration,
        group: &[Asked],
        releases: bool,
    ) -> Result<Vec<Said>, rusqlite::Error> {
        self.store.begin()?;
        let mut later = Vec::new();
        let done = self.release(now, releases).and_then(|released| {
            let said: Result<Vec<_>, _> = group.iter().map(|asked| self.one(asked, &mut later)).collect();
            said.map(|said| (released, said))
        });
        let (released, said) = match done {
            Ok(done) => done,
            Err(error) => {
                self.store.rollback();
                return Err(error);
            }
        };
        self.store.commit()?;
        self.looked = released.looked;
        for file in released.files {
            self.closed.remove(&file);
        }
        later.into_iter().for_each(|change| self.change(change, now));
        Ok(said)
    }

    fn one(&self, asked: &Asked, later: &mut Vec<Hold>) -> Result<Said, rusqlite::Error> {
        let result = match asked {
            Asked::Join(None) => self.store.new_client().map(Said::Joined),
            Asked::NewReader => {
                self.store.new_client().map(|ClientNo(number)| Said::Joined(ClientNo(number | READERS)))
            }
            Asked::Join(Some(client)) => self.store.knows_client(*client).map(|knows| match knows {
                true => {
                    later.push(Hold::Come(*client));
                    Said::Joined(*client)
                }
                false => Said::Unknown,
            }),
            Asked::Ask(client, _, Request::Tickets(ids)) => {
                let of = |id: &EntryNo| {
                    let is_open = self.has_open(*client, *id, later)
                        || haul_mutant::removed("catalog-nameless-is-whose-it-is");
                    Ok((FileNo(id.0), self.store.of_ticket(*id, is_open)?))
                };
                ids.iter().map(of).collect::<Result<Vec<_>, Trouble>>().map(Said::Tickets)
            }
            Asked::Ask(client, number, request) => self.once(*client, *number, request, later),
            Asked::Gone(client) => {
                later.push(Hold::Go(*client));
                Ok(Said::Nothing)
            }
        };
        match result {
            Ok(said) => Ok(said),
            Err(Trouble::Failed(failure)) => Ok(Said::Answer(Answer::Failed(failure))),
            Err(Trouble::Disk(error)) => Err(error),
        }
    }

    /// Whether a client has a file open, with what it asked before in the same group.
    fn has_open(&self, client: ClientNo, file: EntryNo, later: &[Hold]) -> bool {
        let last = later.iter().rev().find_map(|change| match change {
            Hold::Open(who, what) if (*who, *what) == (client, file) => Some(true),
            Hold::Close(who, what) if (*who, *what) == (client, file) => Some(false),
            Hold::End(who) if *who == client => Some(false),
            _ => None,
        });
        last.unwrap_or_else(|| self.holds.has(client, file))
    }

    fn once(
        &self,
        client: ClientNo,
        number: RequestNo,
        request: &Request,
        later: &mut Vec<Hold>,
    ) -> Result<Said, Trouble> {
        if !request.is_once() {
            return self.answer(client, request, later).map(Said::Answer);
        }
        let answer = match self.store.recall(client, number)? {
            Recalled::Stale => {
                return Err(failed(Errno::STALE, "the request is older than what is remembered"));
            }
            Recalled::Done(answer) => answer,
            Recalled::New => {
                let answer = self.answer(client, request, later)?;
                self.store.remember(client, number, &answer)?;
                return Ok(Said::Answer(answer));
            }
        };
        // What it opened is open, also if the catalog was started anew since.
        if let (Request::Create { open: true, .. }, Answer::Made { entry, .. }) = (request, &answer)
            && self.store.can_open(entry.id)?
        {
            later.push(Hold::Open(client, entry.id));
        }
        Ok(Said::Again(answer))
    }

    fn answer(&self, client: ClientNo, request: &Request, later: &mut Vec<Hold>) -> Result<Answer, Trouble> {
        let store = &self.store;
        let room = |more| {
            let words = "the client has as many files open as it may";
            self.holds.have_room(client, more).map_err(|_| failed(Errno::MFILE, words))
        };
        Ok(match request {
            Request::Mkdir { at, meta } => store.make(at, Kind::Directory, meta)?,
            Request::Create { at, meta, exclusive, open, placing } => {
                if *open {
                    room(1)?;
                }
                let answer = store.create_file(at, meta, *exclusive, *placing)?;
                if let (true, Answer::Made { entry, .. }) = (open, &answer) {
                    later.push(Hold::Open(client, entry.id));
                }
                answer
            }
            Request::Symlink { at, meta, target } => store.make(at, Kind::Link(target.clone()), meta)?,
            Request::Lookup(place) => store.lookup(place)?,
            Request::Stat(id) => store.stat(*id)?,
            Request::ReadDir { dir, after, max } => store.read_dir(*dir, after.as_ref(), *max)?,
            Request::SetAttr { id, set } => store.set(*id, set)?,
            Request::Rename { from, to, noreplace } => {
                later.extend(store.rename(from, to, *noreplace)?.map(Hold::Nameless));
                Answer::Done
            }
            Request::Unlink(place) => {
                later.extend(store.unlink(place)?.map(Hold::Nameless));
                Answer::Done
            }
            Request::Rmdir(place) => {
                store.rmdir(place)?;
                Answer::Done
            }
            Request::Open(files) => {
                room(files.len())?;
                let mut lost = Vec::new();
                for file in files {
                    match store.can_open(*file)? {
                        true => later.push(Hold::Open(client, *file)),
                        false => lost.push(*file),
                    }
                }
                Answer::Opened { lost }
            }
            Request::Close(files) => {
                later.extend(files.iter().map(|file| Hold::Close(client, *file)));
                Answer::Done
            }
            Request::ToRemove { server, after } => store.to_remove(*server, *after)?,
            Request::Removed { server, files } => store.removed(*server, files)?,
            Request::Known(ids) => store.known(ids)?,
            Request::Note { place, files } => store.note(place, files)?,
            Request::Place(list) => store.place(list)?,
            Request::List(placing) => store.list(*placing)?,
            Request::Check => {
                let (open, open_of_gone) = self.holds.count();
                Answer::Checked(Checked { open, open_of_gone, ..store.look_at_all()? })
            }
            // They are given where keys are.
            Request::Tickets(_) => Answer::Files(Vec::new()),
            Request::Leave => {
                store.forget(client)?;
                later.push(Hold::End(client));
                Answer::Done
            }
        })
    }

    fn change(&mut self, change: Hold, now: Duration) {
        match change {
            Hold::Come(client) => self.holds.come(client),
            Hold::Go(client) => self.holds.go(client, now),
            Hold::Open(client, file) => self.holds.open(client, file),
            Hold::Close(client, file) => {
                if self.holds.close(client, file) {
                    self.closed.insert(file);
                }
            }
            Hold::End(client) => {
                let files = self.holds.end(client);
                self.closed.extend(files);
            }
            Hold::Nameless(file) => {
                self.closed.insert(file);
                self.nameless.push(FileNo(file.0));
            }
        }
    }

    /// Releases what nobody has open, some of it.
    fn release(&self, now: Duration, releases: bool) -> Result<Released, rusqlite::Error> {
        let mut released = Released { files: Vec::new(), looked: self.looked };
        if !releases || !self.holds.are_known(now) {
            return Ok(released);
        }
        let disk = |trouble| match trouble {
            Trouble::Disk(error) => error,
            Trouble::Failed(_) => unreachable!("nothing is asked of these that could fail"),
        };
        let mut files: Vec<EntryNo> = self.closed.iter().copied().take(RELEASES_MAX).collect();
        released.files.clone_from(&files);
        if let Some(after) = self.looked {
            let page = self.store.unreleased(after).map_err(disk)?;
            released.looked = page.last().copied();
            files.extend(page);
        }
        let is_open =
            |file: &EntryNo| self.holds.is_open(*file) && !haul_mutant::removed("catalog-open-stays");
        for file in files.iter().filter(|file| !is_open(file)) {
            self.store.release(*file).map_err(disk)?;
        }
        Ok(released)
    }
}

/// What a request has to do with room on the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    Needs,
    /// It makes some, or who makes some asks it.
    Makes,
    Neither,
}

impl Room {
    fn of(asked: &Asked) -> Room {
        let request = match asked {
            Asked::Join(None) | Asked::NewReader => return Room::Makes,
            Asked::Join(Some(_)) | Asked::Gone(_) => return Room::Neither,
            Asked::Ask(_, _, request) => request,
        };
        match request {
            Request::Mkdir { .. }
            | Request::Create { .. }
            | Request::Symlink { .. }
            | Request::SetAttr { .. }
            | Request::Rename { .. }
            | Request::Note { .. }
            | Request::Place(_) => Room::Needs,
            Request::Unlink(_) | Request::Rmdir(_) | Request::Removed { .. } | Request::Leave => Room::Makes,
            Request::Lookup(_)
            | Request::Stat(_)
            | Request::ReadDir { .. }
            | Request::Open(_)
            | Request::Close(_)
            | Request::ToRemove { .. }
            | Request::Known(_)
            | Request::Check
            | Request::Tickets(_)
            | Request::List(_) => Room::Neither,
        }
    }
}

/// What SQLite says of a full disk.
fn no_room() -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL), None)
}

/// What was looked at for releasing.
struct Released {
    files: Vec<EntryNo>,
    looked: Option<EntryNo>,
}

const _: () = assert!(OPEN_MAX >= haul_core::volume::catalog::PAGE_MAX);

#[cfg(test)]
#[path = "desk_tests.rs"]
mod tests;
