//! A storage server of a volume: which request is carried out when, and which is refused.
//!
//! In: requests of clients and gatherers, and what became of operations. Out: operations for the disk, and
//! answers. Invariants: no write is carried out under an epoch that is older than one that was heard of
//! before it; none begins while one of an older epoch is being carried out; a cut is carried out alone in
//! its file, in the order in which it came; what was removed is not written any more; nothing of a peer's
//! earlier session begins after a newer one began, and the newer one begins after what was being carried
//! out of the earlier is over. Left out: tickets, which say what a peer may do at all; the driver looks at
//! them first.

use std::collections::{BTreeMap, VecDeque};

use super::{Epoch, FileNo, Incarnation, RequestNo, Session};

/// Who speaks: a client, or a gatherer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer(pub u64);

/// What is asked of a storage server. `B` stands for bytes, which nobody here looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<B> {
    /// Puts bytes into a file.
    Write { file: FileNo, epoch: Epoch, offset: u64, bytes: B },
    /// Takes bytes out of it; what was never written is zeros, or not sent where nothing lies behind it.
    Read { file: FileNo, offset: u64, len: u64 },
    /// Makes last whatever was answered before.
    Sync { file: FileNo },
    /// Takes away what lies at `from` and behind it: that is zeros from then on.
    Cut { file: FileNo, epoch: Epoch, from: u64 },
    /// Takes away all of it, for good.
    Remove { file: FileNo, epoch: Epoch },
}

impl<B> Request<B> {
    /// Which file it is about.
    pub fn file(&self) -> FileNo {
        match self {
            Request::Write { file, .. }
            | Request::Read { file, .. }
            | Request::Sync { file }
            | Request::Cut { file, .. }
            | Request::Remove { file, .. } => *file,
        }
    }
}

/// What a storage server says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<B> {
    /// It is written, cut or removed, and that may be lost if this life of the server ends.
    Written(Incarnation),
    /// What was written before in this life lasts.
    Durable(Incarnation),
    /// The bytes: fewer than were asked for where what the server has of the file ends before.
    Read(B),
    /// The lease is void: the file is at that epoch.
    Void(Epoch),
    /// The file was removed: nothing is put into it in this life. Whoever brings bytes of it needs to do so
    /// no more.
    Gone,
    /// The disk says no.
    Failed(i32),
}

/// An operation, until it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpNo(pub u64);

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<B> {
    /// Carry it out; then [`Storage::done`].
    Do(OpNo, Op<B>),
    /// Say so to a peer.
    Answer(Peer, Session, RequestNo, Answer<B>),
    /// A peer's session has begun: say so to it.
    Joined(Peer, Session, Incarnation),
}

/// An operation for the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op<B> {
    Write {
        file: FileNo,
        offset: u64,
        bytes: B,
    },
    Read {
        file: FileNo,
        offset: u64,
        len: u64,
    },
    Sync {
        file: FileNo,
    },
    Cut {
        file: FileNo,
        from: u64,
    },
    /// A sync of the file that was removed makes that last.
    Remove {
        file: FileNo,
    },
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done<B> {
    /// It is written, cut or removed.
    Written,
    Read(B),
    Synced,
    Failed(i32),
}

#[derive(Clone, Copy, Debug)]
struct From {
    peer: Peer,
    session: Session,
    number: RequestNo,
}

#[derive(Debug)]
struct Waiting<B> {
    from: From,
    epoch: Epoch,
    op: Op<B>,
}

impl<B> Waiting<B> {
    /// Nothing else of its file is carried out beside it.
    fn is_alone(&self) -> bool {
        !matches!(self.op, Op::Write { .. })
    }
}

#[derive(Debug)]
struct File<B> {
    /// The newest that was heard of.
    epoch: Epoch,
    is_gone: bool,
    /// Changes that are being carried out, and under which epoch.
    writing: BTreeMap<Epoch, u32>,
    /// The one of them beside which nothing else is.
    is_alone: bool,
    /// Changes that wait for others.
    waiting: VecDeque<Waiting<B>>,
}

impl<B> File<B> {
    /// Whether a change can be carried out now.
    fn is_free(&self, one: &Waiting<B>) -> bool {
        match one.is_alone() {
            true => self.writing.is_empty(),
            false => !self.is_alone && self.writing.range(..one.epoch).next().is_none(),
        }
    }
}

#[derive(Debug)]
struct Running {
    from: From,
    /// A change, in this file and under this epoch.
    writes: Option<(FileNo, Epoch)>,
}

#[derive(Debug, Default)]
struct PeerState {
    session: Option<Session>,
    /// Operations that are being carried out for it.
    running: BTreeMap<Session, u32>,
    /// It wants to begin this session, and waits for what an earlier one began.
    joins: bool,
}

impl PeerState {
    fn is_quiet_before(&self, session: Session) -> bool {
        self.running.range(..session).next().is_none()
    }
}

/// A storage server in one life.
#[derive(Debug)]
pub struct Storage<B> {
    incarnation: Incarnation,
    files: BTreeMap<FileNo, File<B>>,
    peers: BTreeMap<Peer, PeerState>,
    running: BTreeMap<OpNo, Running>,
    next: u64,
    actions: VecDeque<Action<B>>,
}

impl<B> Storage<B> {
    /// A life begins, in which nothing of an earlier one is known.
    pub fn new(incarnation: Incarnation) -> Storage<B> {
        Storage {
            incarnation,
            files: BTreeMap::new(),
            peers: BTreeMap::new(),
            running: BTreeMap::new(),
            next: 0,
            actions: VecDeque::new(),
        }
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action<B>> {
        self.actions.pop_front()
    }

    /// A peer begins a session. Requests of it count from [`Action::Joined`] on; one of a number that is not
    /// higher than that of the last is late, and no session.
    pub fn handle_join(&mut self, peer: Peer, session: Session) {
        let state = self.peers.entry(peer).or_default();
        if state.session.is_some_and(|last| last >= session) {
            return;
        }
        state.session = Some(session);
        state.joins = true;
        self.join(peer);
    }

    fn join(&mut self, peer: Peer) {
        let Some(state) = self.peers.get_mut(&peer) else { return };
        if let Some(session) = state.session.filter(|session| state.joins && state.is_quiet_before(*session))
        {
            state.joins = false;
            self.actions.push_back(Action::Joined(peer, session, self.incarnation));
        }
    }

    fn is_of_now(&self, from: &From) -> bool {
        self.peers.get(&from.peer).is_some_and(|state| state.session == Some(from.session) && !state.joins)
    }

    /// A peer asks for something.
    pub fn handle_request(&mut self, peer: Peer, session: Session, number: RequestNo, request: Request<B>) {
        let from = From { peer, session, number };
        if !self.is_of_now(&from) {
            return;
        }
        match request {
            Request::Write { file, epoch, offset, bytes } => {
                self.change(from, file, epoch, Op::Write { file, offset, bytes });
            }
            Request::Cut { file, epoch, from: start } => {
                self.change(from, file, epoch, Op::Cut { file, from: start });
            }
            Request::Remove { file, epoch } => self.change(from, file, epoch, Op::Remove { file }),
            Request::Read { file, offset, len } => self.begin(from, None, Op::Read { file, offset, len }),
            Request::Sync { file } => self.begin(from, None, Op::Sync { file }),
        }
    }

    fn change(&mut self, from: From, file: FileNo, epoch: Epoch, op: Op<B>) {
        let state = self.files.entry(file).or_insert_with(|| File {
            epoch,
            is_gone: false,
            writing: BTreeMap::new(),
            is_alone: false,
            waiting: VecDeque::new(),
        });
        if epoch < state.epoch {
            let epoch = state.epoch;
            return self.answer(from, Answer::Void(epoch));
        }
        state.epoch = epoch;
        state.is_gone |= matches!(op, Op::Remove { .. });
        state.waiting.push_back(Waiting { from, epoch, op });
        self.begin_writes(file);
    }

    fn answer(&mut self, from: From, answer: Answer<B>) {
        self.actions.push_back(Action::Answer(from.peer, from.session, from.number, answer));
    }

    fn begin(&mut self, from: From, writes: Option<(FileNo, Epoch)>, op: Op<B>) {
        let number = OpNo(self.next);
        self.next += 1;
        *self.peers.entry(from.peer).or_default().running.entry(from.session).or_default() += 1;
        self.running.insert(number, Running { from, writes });
        self.actions.push_back(Action::Do(number, op));
    }

    /// Begins what waits in a file, in its order.
    fn begin_writes(&mut self, file: FileNo) {
        loop {
            let Some(state) = self.files.get_mut(&file) else { return };
            if !state.waiting.front().is_some_and(|one| state.is_free(one)) {
                return;
            }
            let Some(one) = state.waiting.pop_front() else { return };
            if one.epoch < state.epoch {
                let epoch = state.epoch;
                self.answer(one.from, Answer::Void(epoch));
            } else if state.is_gone && !matches!(one.op, Op::Remove { .. }) {
                self.answer(one.from, Answer::Gone);
            } else if self.is_of_now(&one.from) {
                let state = self.files.get_mut(&file).expect("it was just there");
                *state.writing.entry(one.epoch).or_default() += 1;
                state.is_alone = one.is_alone();
                self.begin(one.from, Some((file, one.epoch)), one.op);
            }
        }
    }

    /// An operation is over.
    ///
    /// # Panics
    /// It was not begun, or is over already.
    pub fn done(&mut self, number: OpNo, done: Done<B>) {
        let Running { from, writes } = self.running.remove(&number).expect("an operation is over once");
        let state = self.peers.get_mut(&from.peer).expect("whose operation runs is known");
        let left = state.running.get_mut(&from.session).expect("it counts");
        *left -= 1;
        if *left == 0 {
            state.running.remove(&from.session);
        }
        self.join(from.peer);
        if let Some((file, epoch)) = writes {
            let state = self.files.get_mut(&file).expect("what is written is known");
            let left = state.writing.get_mut(&epoch).expect("it counts");
            *left -= 1;
            if *left == 0 {
                state.writing.remove(&epoch);
            }
            state.is_alone = false;
            self.begin_writes(file);
        }
        if self.is_of_now(&from) {
            self.answer(
                from,
                match done {
                    Done::Written => Answer::Written(self.incarnation),
                    Done::Synced => Answer::Durable(self.incarnation),
                    Done::Read(bytes) => Answer::Read(bytes),
                    Done::Failed(errno) => Answer::Failed(errno),
                },
            );
        }
    }
}
