//! What a gatherer has done at storage servers: pushes of stripes, cuts and removals of files; all are synced
//! there.
//!
//! Invariant: something is durable only if all that it asks of a server and then the sync were answered in
//! one life of that server, over one connection; nothing that is over has anything under way there.

use std::collections::{BTreeMap, BTreeSet};

use haul_core::volume::gather::{CutNo, Part, PushNo};
use haul_core::volume::storage::{Answer, Request};
use haul_core::volume::wire::Message;
use haul_core::volume::{Epoch, FileNo, Incarnation, RequestNo, ServerNo};

use crate::line::{Bytes, Mouth};

/// Something for one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Task {
    Push(PushNo),
    /// One server's part of a cut or a removal.
    Cut(CutNo, ServerNo),
}

enum What {
    /// The parts are to be read first.
    Push(Vec<Part>),
    Cut(u64),
    Remove,
}

struct Running {
    server: ServerNo,
    file: FileNo,
    epoch: Epoch,
    what: What,
    /// The server's life in which it began; `None`: it waits for the server.
    life: Option<Incarnation>,
    /// What is not answered.
    open: BTreeSet<RequestNo>,
    syncing: bool,
    /// It comes to nothing; but what is not answered may still be done.
    failed: Option<Refusal>,
}

/// Why something comes to nothing: what the server's disk said; `None`: it did not come to that.
pub(super) type Refusal = Option<i32>;

/// What is said to which server.
pub(super) type Said = (ServerNo, RequestNo, Request<Bytes>);

/// What can begin now.
#[derive(Default)]
pub(super) struct Begins {
    /// To be read from the log; then [`Tasks::read`].
    pub(super) reads: Vec<(PushNo, Vec<Part>)>,
    pub(super) said: Vec<Said>,
}

/// See the head of this module.
pub(super) struct Tasks {
    all: BTreeMap<Task, Running>,
    /// Of what a request is.
    of: BTreeMap<RequestNo, Task>,
    servers: BTreeMap<ServerNo, Incarnation>,
    mouths: BTreeMap<ServerNo, Mouth>,
    next: u64,
}

impl Tasks {
    pub(super) fn new() -> Tasks {
        Tasks {
            all: BTreeMap::new(),
            of: BTreeMap::new(),
            servers: BTreeMap::new(),
            mouths: BTreeMap::new(),
            next: 0,
        }
    }

    /// A stripe is to be brought to its server.
    pub(super) fn push(
        &mut self,
        push: PushNo,
        server: ServerNo,
        file: FileNo,
        epoch: Epoch,
        parts: Vec<Part>,
    ) -> Begins {
        self.begin(Task::Push(push), server, file, epoch, What::Push(parts))
    }

    /// A server is to cut a file.
    pub(super) fn cut(
        &mut self,
        cut: CutNo,
        server: ServerNo,
        file: FileNo,
        epoch: Epoch,
        from: u64,
    ) -> Begins {
        self.begin(Task::Cut(cut, server), server, file, epoch, What::Cut(from))
    }

    /// A server is to remove a file.
    pub(super) fn remove(&mut self, cut: CutNo, server: ServerNo, file: FileNo, epoch: Epoch) -> Begins {
        self.begin(Task::Cut(cut, server), server, file, epoch, What::Remove)
    }

    fn begin(&mut self, task: Task, server: ServerNo, file: FileNo, epoch: Epoch, what: What) -> Begins {
        let (open, syncing, failed) = (BTreeSet::new(), false, None);
        self.all.insert(task, Running { server, file, epoch, what, life: None, open, syncing, failed });
        let mut begins = Begins::default();
        if let Some(life) = self.servers.get(&server).copied() {
            self.go(task, life, &mut begins);
        }
        begins
    }

    fn go(&mut self, task: Task, life: Incarnation, begins: &mut Begins) {
        let running = self.all.get_mut(&task).expect("it was just there");
        running.life = Some(life);
        let (server, file, epoch) = (running.server, running.file, running.epoch);
        match (&running.what, task) {
            (What::Push(parts), Task::Push(push)) => begins.reads.push((push, parts.clone())),
            (What::Cut(from), _) => {
                let from = *from;
                begins.said.push((server, self.ask(task), Request::Cut { file, epoch, from }));
            }
            (What::Remove, _) => {
                begins.said.push((server, self.ask(task), Request::Remove { file, epoch }));
            }
            (What::Push(_), Task::Cut(..)) => unreachable!("parts are of pushes"),
        }
    }

    /// A connection to a server stands; it is not joined yet.
    pub(super) fn up(&mut self, server: ServerNo, mouth: Mouth) {
        self.mouths.insert(server, mouth);
    }

    /// A server hears requests: what waits for it begins.
    pub(super) fn joined(&mut self, server: ServerNo, life: Incarnation) -> Begins {
        self.servers.insert(server, life);
        let waiting = self.all.iter().filter(|(_, task)| task.server == server && task.life.is_none());
        let waiting: Vec<Task> = waiting.map(|(task, _)| *task).collect();
        let mut begins = Begins::default();
        waiting.into_iter().for_each(|task| self.go(task, life, &mut begins));
        begins
    }

    /// Whether a server hears requests.
    pub(super) fn hears(&self, server: ServerNo) -> bool {
        self.servers.contains_key(&server)
    }

    /// Of which server and file something is.
    pub(super) fn place(&self, task: Task) -> Option<(ServerNo, FileNo)> {
        self.all.get(&task).map(|running| (running.server, running.file))
    }

    /// The connection to a server is gone: so is what began there.
    pub(super) fn down(&mut self, server: ServerNo) -> Vec<Task> {
        self.servers.remove(&server);
        self.mouths.remove(&server);
        let lost = self.all.iter().filter(|(_, task)| task.server == server && task.life.is_some());
        lost.map(|(task, _)| *task).collect()
    }

    fn ask(&mut self, task: Task) -> RequestNo {
        let number = RequestNo(self.next);
        self.next += 1;
        self.of.insert(number, task);
        self.all.get_mut(&task).expect("who asks is there").open.insert(number);
        number
    }

    /// The pieces of a push were read.
    pub(super) fn read(&mut self, push: PushNo, pieces: Vec<(u64, Bytes)>) -> Vec<Said> {
        let task = Task::Push(push);
        // It may have been given up since.
        let Some(running) = self.all.get(&task) else { return Vec::new() };
        let (server, file, epoch) = (running.server, running.file, running.epoch);
        let write = |(offset, bytes)| Request::Write { file, epoch, offset, bytes };
        pieces.into_iter().map(|piece| (server, self.ask(task), write(piece))).collect()
    }

    /// Says it to another server.
    pub(super) fn say(&self, server: ServerNo, number: RequestNo, request: Request<Bytes>) {
        let Some(mouth) = self.mouths.get(&server) else { return };
        let mut bytes = Bytes::default();
        let request = request.map(|write| {
            bytes = write;
            bytes.len() as u32
        });
        mouth.say(Message::Store(number, request), bytes);
    }

    /// A server answers: what is said next, and what is over, and whether it lasts or why not.
    pub(super) fn answered(
        &mut self,
        number: RequestNo,
        answer: &Answer<Bytes>,
    ) -> (Option<Said>, Option<(Task, Result<(), Refusal>)>) {
        let Some(task) = self.of.remove(&number) else { return (None, None) };
        let Some(running) = self.all.get_mut(&task) else { return (None, None) };
        running.open.remove(&number);
        let failed = match answer {
            Answer::Written(life) if !running.syncing && running.life == Some(*life) => None,
            Answer::Durable(life) if running.syncing && running.life == Some(*life) => None,
            // Nobody wants what it brings.
            Answer::Gone => None,
            Answer::Failed(errno) => Some(Some(*errno)),
            Answer::Written(_) | Answer::Durable(_) | Answer::Void(_) | Answer::Read(_) => Some(None),
        };
        // What the disk said first is why.
        running.failed = running.failed.filter(Option::is_some).or(failed).or(running.failed);
        // What is under way would go over what is written there after this.
        if !running.open.is_empty() {
            return (None, None);
        }
        if let Some(failed) = running.failed {
            return (None, Some((task, Err(failed))));
        }
        if running.syncing {
            return (None, Some((task, Ok(()))));
        }
        running.syncing = true;
        let (server, file) = (running.server, running.file);
        let number = self.ask(task);
        (Some((server, number, Request::Sync { file })), None)
    }

    /// Nothing is to be done for it any more.
    pub(super) fn is_over(&mut self, task: Task) {
        if let Some(running) = self.all.remove(&task) {
            running.open.iter().for_each(|number| _ = self.of.remove(number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a push that a disk refused in part is over only when all of it was answered: else what is still
    /// under way would go over what a client writes there next.
    /// Method: of three pieces the first one is refused, then the others are written, or refused as well.
    #[test]
    fn nothing_that_is_over_is_under_way() {
        let (server, life, push) = (ServerNo(1), Incarnation(5), PushNo(3));
        for last in [Answer::Written(life), Answer::Failed(28)] {
            let mut tasks = Tasks::new();
            let _ = tasks.joined(server, life);
            let begins = tasks.push(push, server, FileNo(9), Epoch::default(), Vec::new());
            assert_eq!(begins.reads.len(), 1);
            let pieces = (0..3).map(|at| (at * 10, Bytes::default())).collect();
            let said: Vec<RequestNo> = tasks.read(push, pieces).into_iter().map(|(_, no, _)| no).collect();
            let over = |(next, over): (Option<Said>, Option<_>)| (next.is_some(), over);
            assert_eq!(over(tasks.answered(said[0], &Answer::Failed(5))), (false, None), "two are under way");
            assert_eq!(over(tasks.answered(said[2], &Answer::Written(life))), (false, None));
            let ended = over(tasks.answered(said[1], &last));
            let why = (Task::Push(push), Err(Some(5)));
            assert_eq!(ended, (false, Some(why)), "it is not synced, nor durable");
        }
    }
}
