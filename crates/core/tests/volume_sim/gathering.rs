//! The gatherer's driver: its log, its pushes and cuts, its clients.

use super::*;

impl World {
    pub(super) fn poll_gatherer(&mut self) {
        while let Some(action) = self.gatherer.machine.as_mut().and_then(|machine| machine.poll_action()) {
            // What has to be read from the log first may come late, and after what was asked for later.
            let is_slow = matches!(action, gather::Action::Push { .. } | gather::Action::Fence { .. });
            let is_slow = is_slow && self.random.u32(0..12) == 0;
            match is_slow {
                true => self.after(0, 15_000 * MS, Event::Later(self.gatherer.life, action)),
                false => self.gatherer_does(action),
            }
        }
    }

    pub(super) fn gatherer_does(&mut self, action: gather::Action<Bytes>) {
        let life = self.gatherer.life;
        match action {
            gather::Action::Append(seq, record) => {
                // In their order: none is over before the one before it.
                let last = self.what.values().filter(|event| matches!(event, Event::Appended(..))).count();
                let when = self.now + 1 + last as u64;
                self.at(when, Event::Appended(life, seq, record));
            }
            gather::Action::Sync => {
                let upto = self.gatherer.log.back().map_or(0, |(seq, _)| seq.0 + 1);
                self.after(0, 10 * MS, Event::LogSynced(life, upto as usize));
            }
            gather::Action::Answer(client, number, answer) => {
                let parts = match &answer {
                    gather::Answer::Read { parts, .. } => {
                        parts.iter().map(|part| (*part, part_bytes(&self.gatherer.log, part))).collect()
                    }
                    _ => Vec::new(),
                };
                if let Some(host) = self.host_of(client) {
                    self.send(Host::Gatherer, host, Message::FromGatherer(number, answer, parts));
                }
            }
            gather::Action::Drop(client) => {
                self.judge.expired(client.0, self.now);
                let lines = self.lines.iter();
                let line = lines.filter(|((_, to), _)| *to == Host::Gatherer);
                let line = line.filter(|(_, (number, ..))| self.numbers.get(number) == Some(&client.0));
                let line = line.map(|((from, _), _)| *from).next();
                if let Some(from) = line {
                    self.cut(from, Host::Gatherer);
                }
            }
            gather::Action::Recall(client, file, stripes) => {
                if let Some(host) = self.host_of(client) {
                    self.send(Host::Gatherer, host, Message::Recall(file, stripes));
                }
            }
            gather::Action::Push { push, file, stripe, epoch, ref parts } => {
                let server = self.striping().server(file, stripe).0;
                let Some(incarnation) = self.gatherer.servers.get(&server).copied() else {
                    return self.gatherer.waiting.push(action);
                };
                let write = |part: &gather::Part| {
                    let bytes = part_bytes(&self.gatherer.log, part);
                    storage::Request::Write { file, epoch, offset: part.offset, bytes }
                };
                let requests = parts.iter().map(write).collect();
                self.begin_task(Task::Push(push), server, file, incarnation, requests);
            }
            gather::Action::Cut { cut, file, epoch, from } => {
                let request = storage::Request::Cut { file, epoch, from };
                self.begin_cut(cut, file, request, action);
            }
            gather::Action::Remove { cut, file, epoch } => {
                let request = storage::Request::Remove { file, epoch };
                self.begin_cut(cut, file, request, action);
            }
            gather::Action::Fence { cut, file, epoch, ref stripes } => {
                let of: Vec<u16> = self.striping().servers_of(file, stripes).map(|one| one.0).collect();
                let lives = of.iter().map(|server| Some((*server, *self.gatherer.servers.get(server)?)));
                let Some(lives) = lives.collect::<Option<Vec<_>>>() else {
                    return self.gatherer.waiting.push(action);
                };
                self.gatherer.cuts.insert(cut, (of.len() as u16, true));
                for (server, incarnation) in lives {
                    let request = storage::Request::Cut { file, epoch, from: 2 * NOWHERE };
                    self.begin_task(Task::Cut(cut), server, file, incarnation, vec![request]);
                }
            }
            gather::Action::Forget(seq) => {
                self.gatherer.first = seq;
                while self.gatherer.log.front().is_some_and(|(first, _)| *first < seq) {
                    self.gatherer.log.pop_front();
                }
            }
        }
    }

    fn begin_cut(
        &mut self,
        cut: CutNo,
        file: FileNo,
        request: storage::Request<Bytes>,
        action: gather::Action<Bytes>,
    ) {
        let servers = self.gatherer.servers.clone();
        if servers.len() < self.storages.len() {
            return self.gatherer.waiting.push(action);
        }
        self.say(|| format!("{request:?}"));
        self.gatherer.cuts.insert(cut, (servers.len() as u16, true));
        for (server, incarnation) in servers {
            self.begin_task(Task::Cut(cut), server, file, incarnation, vec![request.clone()]);
        }
    }

    fn begin_task(
        &mut self,
        task: Task,
        server: u16,
        file: FileNo,
        incarnation: Incarnation,
        requests: Vec<storage::Request<Bytes>>,
    ) {
        let mut open = BTreeSet::new();
        for request in requests {
            let number = RequestNo(self.gatherer.next);
            self.gatherer.next += 1;
            open.insert(number);
            self.send(Host::Gatherer, Host::Storage(server), Message::ToStorage(number, request));
        }
        let push = Push { task, server, file, open, incarnation, syncing: false, failed: None };
        self.gatherer.pushes.push(push);
    }

    /// A storage server did what it was asked for and synced it, or did not.
    pub(super) fn end_task(&mut self, task: Task, failed: Option<Option<i32>>) {
        let Some(machine) = &mut self.gatherer.machine else { return };
        let is_well = failed.is_none();
        match (task, failed) {
            (Task::Push(push), Some(Some(errno))) => machine.push_refused(push, errno),
            (Task::Push(push), _) => machine.pushed(push, is_well),
            (Task::Cut(cut), _) => {
                let (left, all_well) = self.gatherer.cuts.get_mut(&cut).expect("it was begun");
                *left -= 1;
                *all_well &= is_well;
                if let (0, all_well) = (*left, *all_well) {
                    self.gatherer.cuts.remove(&cut);
                    machine.was_cut(cut, all_well);
                }
            }
        }
    }

    pub(super) fn push_answered(&mut self, number: RequestNo, answer: storage::Answer<Bytes>) {
        let Some(at) = self.gatherer.pushes.iter().position(|push| push.open.contains(&number)) else {
            return;
        };
        let push = &mut self.gatherer.pushes[at];
        push.open.remove(&number);
        let failed = match answer {
            storage::Answer::Written(incarnation) | storage::Answer::Durable(incarnation)
                if incarnation == push.incarnation =>
            {
                None
            }
            storage::Answer::Written(_) | storage::Answer::Durable(_) | storage::Answer::Void(_) => {
                Some(None)
            }
            storage::Answer::Failed(errno) => Some(Some(errno)),
            // Nobody wants the bytes; there may be nothing to sync either, but that is well too.
            storage::Answer::Gone => None,
            other => panic!("{:?} is answered by {other:?}", push.task),
        };
        push.failed = push.failed.flatten().map(Some).or(failed).or(push.failed);
        // What is under way would go over what is written there after this.
        if !push.open.is_empty() {
            return;
        }
        if push.failed.is_none() && !push.syncing {
            push.syncing = true;
            let number = RequestNo(self.gatherer.next);
            self.gatherer.next += 1;
            push.open.insert(number);
            let (server, request) = (push.server, storage::Request::Sync { file: push.file });
            return self.send(Host::Gatherer, Host::Storage(server), Message::ToStorage(number, request));
        }
        let push = self.gatherer.pushes.remove(at);
        self.end_task(push.task, push.failed);
    }

    pub(super) fn host_of(&self, client: ClientNo) -> Option<Host> {
        let no = self.clients.iter().position(|host| host.number == client.0 && host.machine.is_some());
        no.map(|no| Host::Client(no as u16))
    }
}
