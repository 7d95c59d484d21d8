//! What goes wrong: crashes, freezes, connections that break and lines that stall.

use super::*;

impl World {
    /// A host's process ends; with `disk` its host does, and what was not synced may go with it.
    pub(super) fn crash(&mut self, host: Host, disk: bool) {
        if !self.is_up(host) {
            return;
        }
        self.say(|| format!("{host:?} crashes, disk {disk}"));
        self.frozen.remove(&host);
        self.parked.remove(&host);
        let all: Vec<(Host, Host)> = self.lines.keys().copied().collect();
        for (from, to) in all {
            if from == host || to == host {
                self.cut(from, to);
            }
        }
        match host {
            Host::Storage(server) => {
                let striping = self.striping();
                let storage = &mut self.storages[server as usize];
                storage.machine = None;
                if disk {
                    for (key, byte) in std::mem::take(&mut storage.cached) {
                        if self.random.bool() {
                            storage.kept.insert(key, byte);
                        }
                    }
                    let is_here = |write: &Write| {
                        striping.server(numbered(write.file), write.offset / STRIPE) == ServerNo(server)
                    };
                    self.judge.loses(|write| write.is_direct && is_here(write));
                }
            }
            Host::Gatherer => {
                let gatherer = &mut self.gatherer;
                gatherer.machine = None;
                gatherer.servers.clear();
                gatherer.pushes.clear();
                gatherer.cuts.clear();
                gatherer.waiting.clear();
                if disk {
                    let synced = gatherer.synced;
                    let unsynced = gatherer.log.iter().filter(|(seq, _)| seq.0 >= synced).count();
                    let kept = self.random.usize(0..=unsynced);
                    let len = gatherer.log.len() - (unsynced - kept);
                    gatherer.log.truncate(len);
                    self.judge.loses(|write| !write.is_direct);
                }
            }
            Host::Client(no) => {
                let client = &mut self.clients[no as usize];
                client.machine = None;
                // Nobody knows of what was under way, and nobody waits for it.
                client.ops.clear();
            }
        }
        self.after(MS, 8000 * MS, Event::Restart(host));
    }

    /// A connection breaks; who made it hears of it at some time, and until then speaks to nobody.
    pub(super) fn cut(&mut self, from: Host, to: Host) {
        if self.lines.remove(&(from, to)).is_none() {
            return;
        }
        self.say(|| format!("{from:?} to {to:?} breaks"));
        let hears = if self.random.bool() { 5 * MS } else { 30_000 * MS };
        let life = self.life(from);
        self.after(0, hears, Event::Lost(from, to, life));
    }

    /// A host hears that a connection broke, and makes another.
    pub(super) fn lost(&mut self, from: Host, to: Host) {
        match (from, to) {
            (Host::Client(client), Host::Gatherer) => {
                if let Some(machine) = &mut self.clients[client as usize].machine {
                    machine.gatherer_lost();
                }
                self.poll_client(client);
            }
            (Host::Client(client), Host::Storage(server)) => {
                if let Some(machine) = &mut self.clients[client as usize].machine {
                    machine.server_lost(ServerNo(server));
                }
                self.poll_client(client);
            }
            (Host::Gatherer, Host::Storage(server)) => {
                self.gatherer.servers.remove(&server);
                let (lost, kept) = std::mem::take(&mut self.gatherer.pushes)
                    .into_iter()
                    .partition(|push| push.server == server);
                self.gatherer.pushes = kept;
                let lost: Vec<Push> = lost;
                for push in lost {
                    self.end_task(push.task, Some(None));
                }
                self.poll_gatherer();
            }
            _ => unreachable!("nobody else connects"),
        }
        let life = self.life(from);
        self.after(MS, 300 * MS, Event::Connect(from, to, life));
    }

    pub(super) fn trouble(&mut self) {
        if self.now > TROUBLE {
            self.calm = true;
            self.has_room(Host::Gatherer);
            for server in 0..self.storages.len() as u16 {
                let host = Host::Storage(server);
                self.has_room(host);
                // What a disk did not sync nobody believes before the server starts anew.
                if !self.storages[server as usize].failed.is_empty() {
                    self.crash(host, false);
                }
            }
            for host in std::mem::take(&mut self.frozen) {
                self.at(self.now, Event::Thaw(host));
                self.frozen.insert(host);
            }
            return;
        }
        let any = match self.random.u32(0..3) {
            0 => Host::Client(self.random.u16(0..self.clients.len() as u16)),
            1 => Host::Gatherer,
            _ => Host::Storage(self.random.u16(0..self.storages.len() as u16)),
        };
        match self.random.u32(0..14) {
            0 => self.crash(any, false),
            1 => self.crash(any, true),
            2 | 3 if self.is_up(any) && self.frozen.insert(any) => {
                self.say(|| format!("{any:?} freezes"));
                self.after(MS, 25_000 * MS, Event::Thaw(any));
            }
            4..=7 => {
                let lines: Vec<(Host, Host)> = self.lines.keys().copied().collect();
                if !lines.is_empty() {
                    let (from, to) = lines[self.random.usize(0..lines.len())];
                    match self.random.bool() {
                        true => self.cut(from, to),
                        false => self.stall(from, to),
                    }
                }
            }
            8 | 9 => {
                // A client is parted from everybody.
                let client = Host::Client(self.random.u16(0..self.clients.len() as u16));
                let lines: Vec<(Host, Host)> =
                    self.lines.keys().copied().filter(|(from, _)| *from == client).collect();
                lines.into_iter().for_each(|(from, to)| self.stall(from, to));
            }
            10 | 11 => self.fill(any),
            12 => {
                let server = self.random.u16(0..self.storages.len() as u16);
                self.say(|| format!("the next sync of storage {server} fails"));
                self.storages[server as usize].sick = true;
            }
            _ => {}
        }
        self.after(0, 4000 * MS, Event::Trouble);
    }

    /// The disk of a host has no room for a while.
    fn fill(&mut self, host: Host) {
        match host {
            Host::Client(_) => return,
            Host::Gatherer => self.gatherer.full = true,
            Host::Storage(server) => self.storages[server as usize].full = true,
        }
        self.say(|| format!("{host:?} is full"));
        self.after(MS, 20_000 * MS, Event::Room(host));
    }

    /// And it has room again, and is as well as before.
    pub(super) fn has_room(&mut self, host: Host) {
        self.say(|| format!("{host:?} has room"));
        match host {
            Host::Client(_) => {}
            Host::Gatherer => self.gatherer.full = false,
            Host::Storage(server) => {
                let storage = &mut self.storages[server as usize];
                (storage.full, storage.sick) = (false, storage.sick && !self.calm);
            }
        }
    }

    /// What goes that way arrives late.
    pub(super) fn stall(&mut self, from: Host, to: Host) {
        self.say(|| format!("{from:?} to {to:?} stalls"));
        let stall = self.random.u64(0..25_000 * MS);
        let line = self.lines.get_mut(&(from, to)).expect("it stands");
        line.1 = line.1.max(self.now + stall);
    }
}
