//! Pushes of a gatherer: pieces that go to the storage servers, and are synced there.
//!
//! Invariant: a push is durable only if all its pieces and then the sync were answered in one life of its
//! server, over one connection.

use std::collections::{BTreeMap, BTreeSet};

use haul_core::volume::gather::{Part, PushNo};
use haul_core::volume::storage::{Answer, Request};
use haul_core::volume::wire::Message;
use haul_core::volume::{Epoch, FileNo, Incarnation, RequestNo, ServerNo};

use crate::line::{Bytes, Mouth};

struct Push {
    server: ServerNo,
    file: FileNo,
    epoch: Epoch,
    parts: Vec<Part>,
    /// The server's life in which it began; `None`: it waits for the server.
    life: Option<Incarnation>,
    /// What is not answered.
    open: BTreeSet<RequestNo>,
    syncing: bool,
}

/// See the head of this module.
pub(super) struct Pushes {
    all: BTreeMap<PushNo, Push>,
    /// Of which push a request is.
    of: BTreeMap<RequestNo, PushNo>,
    servers: BTreeMap<ServerNo, Incarnation>,
    mouths: BTreeMap<ServerNo, Mouth>,
    next: u64,
}

type Said = (ServerNo, RequestNo, Request<Bytes>);

impl Pushes {
    pub(super) fn new() -> Pushes {
        Pushes {
            all: BTreeMap::new(),
            of: BTreeMap::new(),
            servers: BTreeMap::new(),
            mouths: BTreeMap::new(),
            next: 0,
        }
    }

    /// A push is to be made; returned if it can begin: its parts are to be read.
    pub(super) fn wanted(
        &mut self,
        push: PushNo,
        server: ServerNo,
        file: FileNo,
        epoch: Epoch,
        parts: Vec<Part>,
    ) -> Option<(PushNo, Vec<Part>)> {
        let life = self.servers.get(&server).copied();
        let begins = life.is_some().then(|| (push, parts.clone()));
        let new = Push { server, file, epoch, parts, life, open: BTreeSet::new(), syncing: false };
        self.all.insert(push, new);
        begins
    }

    /// A connection to a server stands; it is not joined yet.
    pub(super) fn up(&mut self, server: ServerNo, mouth: Mouth) {
        self.mouths.insert(server, mouth);
    }

    /// A server hears requests: what waits for it begins.
    pub(super) fn joined(&mut self, server: ServerNo, life: Incarnation) -> Vec<(PushNo, Vec<Part>)> {
        self.servers.insert(server, life);
        let waiting = self.all.iter_mut().filter(|(_, push)| push.server == server && push.life.is_none());
        waiting
            .map(|(no, push)| {
                push.life = Some(life);
                (*no, push.parts.clone())
            })
            .collect()
    }

    /// The connection to a server is gone: so are the pushes that began.
    pub(super) fn down(&mut self, server: ServerNo) -> Vec<PushNo> {
        self.servers.remove(&server);
        self.mouths.remove(&server);
        let lost = self.all.iter().filter(|(_, push)| push.server == server && push.life.is_some());
        lost.map(|(no, _)| *no).collect()
    }

    fn ask(&mut self, push: PushNo) -> RequestNo {
        let number = RequestNo(self.next);
        self.next += 1;
        self.of.insert(number, push);
        self.all.get_mut(&push).expect("who asks is there").open.insert(number);
        number
    }

    /// The pieces of a push were read.
    pub(super) fn read(&mut self, no: PushNo, pieces: Vec<(u64, Bytes)>) -> Vec<Said> {
        // It may have been given up since.
        let Some(push) = self.all.get(&no) else { return Vec::new() };
        let (server, file, epoch) = (push.server, push.file, push.epoch);
        let write = |(offset, bytes)| Request::Write { file, epoch, offset, bytes };
        pieces.into_iter().map(|piece| (server, self.ask(no), write(piece))).collect()
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

    /// A server answers: what is said next, and which push is over, and whether it lasts.
    pub(super) fn answered(
        &mut self,
        number: RequestNo,
        answer: &Answer<Bytes>,
    ) -> (Vec<Said>, Option<(PushNo, bool)>) {
        let Some(no) = self.of.remove(&number) else { return (Vec::new(), None) };
        let Some(push) = self.all.get_mut(&no) else { return (Vec::new(), None) };
        push.open.remove(&number);
        let is_well = match answer {
            Answer::Written(life) => !push.syncing && push.life == Some(*life),
            Answer::Durable(life) => push.syncing && push.life == Some(*life),
            Answer::Void(_) | Answer::Read(_) | Answer::Failed(_) => false,
        };
        if !is_well {
            return (Vec::new(), Some((no, false)));
        }
        if !push.open.is_empty() {
            return (Vec::new(), None);
        }
        if push.syncing {
            return (Vec::new(), Some((no, true)));
        }
        push.syncing = true;
        let (server, file) = (push.server, push.file);
        let number = self.ask(no);
        (vec![(server, number, Request::Sync { file })], None)
    }

    /// Nothing is to be done for it any more.
    pub(super) fn is_over(&mut self, no: PushNo) {
        if let Some(push) = self.all.remove(&no) {
            push.open.iter().for_each(|number| _ = self.of.remove(number));
        }
    }
}
