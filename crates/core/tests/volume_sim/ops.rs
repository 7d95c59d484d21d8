//! What clients do, and what becomes of it.

use super::*;

impl World {
    /// A client writes, reads or syncs.
    pub(super) fn act(&mut self, no: u16, life: u32) {
        let now = self.now;
        let client = &mut self.clients[no as usize];
        if client.life != life || client.machine.is_none() {
            return;
        }
        if client.done >= self.ops_max && (!self.calm || client.ops.is_empty()) {
            if !self.calm {
                self.after(0, 2000 * MS, Event::Act(no, life));
            }
            return;
        }
        if client.ops.len() < 4 && client.done < self.ops_max {
            client.done += 1;
            let op = OpNo(self.next_op);
            self.next_op += 1;
            let is_late = self.random.u32(0..16) == 0;
            let file = match is_late {
                // One that may be removed: of a client that does not know.
                true => self.random.u64(0..self.files),
                false => self.names[self.random.usize(0..self.names.len())],
            };
            let far = if self.random.u32(0..4) == 0 { 4 } else { 0 };
            let stripe = self.random.u64(0..self.stripes + far);
            let from = self.random.u64(0..STRIPE);
            let len = self.random.u64(1..=STRIPE - from);
            let offset = stripe * STRIPE + from;
            let machine = client.machine.as_mut().expect("it is up");
            let looks = self.probes && self.random.u32(0..10) < 8;
            match if looks { 27 } else { self.random.u32(0..30) } {
                0..2 => {
                    let number = self.next_write;
                    self.next_write += 1;
                    let from = self.random.u64(0..STRIPE * (self.stripes + 1));
                    let of = client.number;
                    let cut = Cut { client: of, file, from, begun: now, over: None };
                    self.judge.cuts.insert(number, cut);
                    client.ops.insert(op, Op::Cut(number));
                    machine.truncate(Time(now), op, numbered(file), from);
                    self.say(|| format!("client {no} cuts {number}: {file} at {from}"));
                }
                2..14 => {
                    let path = if self.random.bool() { Path::Direct } else { Path::Gather };
                    self.begin_write(no, op, path, file, (offset, len));
                }
                26 if self.names.contains(&file) => {
                    let number = self.next_write;
                    self.next_write += 1;
                    let cut = Cut { client: client.number, file, from: 0, begun: now, over: None };
                    self.judge.cuts.insert(number, cut);
                    self.judge.removed.insert(file);
                    client.ops.insert(op, Op::Cut(number));
                    machine.remove(Time(now), op, numbered(file));
                    let name = self.names.iter().position(|name| *name == file).expect("it is there");
                    self.names[name] = self.files;
                    self.files += 1;
                    self.say(|| format!("client {no} removes {number}: {file}"));
                }
                22..26 => {
                    let len = self.random.u64(1..=STRIPE + STRIPE / 2);
                    let number = self.number_write(no, false, file, (NOWHERE, len));
                    let write = self.judge.writes.get_mut(&number).expect("it was just put there");
                    write.appended = Some((self.gatherer.life, None));
                    let client = &mut self.clients[no as usize];
                    client.ops.insert(op, Op::Append(number));
                    let machine = client.machine.as_mut().expect("it is up");
                    machine.append(Time(now), op, numbered(file), len, vec![number; len as usize]);
                    self.say(|| format!("client {no} appends {number}: {len} to {file}"));
                }
                27..30 => {
                    let (offset, len) = (stripe * STRIPE, STRIPE);
                    client.ops.insert(op, Op::Probe(Probe { file, offset, len, first: None, bytes: None }));
                    match self.random.bool() {
                        true => machine.map(Time(now), op, numbered(file), stripe..stripe + 1),
                        false => machine.look(Time(now), op, numbered(file)),
                    }
                }
                14..16 => {
                    client.ops.insert(op, Op::Read { file, offset, len, begun: now });
                    machine.read(Time(now), op, numbered(file), offset, len);
                }
                16..18 => {
                    client.ops.insert(op, Op::Map { file, offset, len, begun: now });
                    machine.map(Time(now), op, numbered(file), stripe..stripe + 1);
                }
                _ => {
                    let of = client.number;
                    let is_its = |write: &Write| write.client == of && write.file == file;
                    let all = self.judge.writes.iter().filter(|(_, write)| is_its(write));
                    let (mut writes, mut begun) = (Vec::new(), Vec::new());
                    for (number, write) in all {
                        begun.push(*number);
                        writes.extend(write.over.map(|_| *number));
                    }
                    client.ops.insert(op, Op::Sync { writes, begun });
                    machine.sync(Time(now), op, numbered(file));
                    self.say(|| format!("client {no} syncs {file}"));
                }
            }
            self.poll_client(no);
        }
        let pause = if self.random.u32(0..10) == 0 { 8000 * MS } else { 300 * MS };
        self.after(0, pause, Event::Act(no, life));
    }

    /// A client's next write, as the judge knows it.
    fn number_write(&mut self, no: u16, is_direct: bool, file: u64, (offset, len): (u64, u64)) -> u32 {
        let number = self.next_write;
        self.next_write += 1;
        let write = Write {
            client: self.clients[no as usize].number,
            begun: self.now,
            over: None,
            failed: None,
            synced: None,
            may_be_lost: false,
            is_given_up: false,
            is_direct,
            sent: 0,
            epoch: None,
            file,
            offset,
            len,
            appended: None,
        };
        self.judge.writes.insert(number, write);
        number
    }

    fn begin_write(&mut self, no: u16, op: OpNo, path: Path, file: u64, (offset, len): (u64, u64)) {
        let number = self.number_write(no, path == Path::Direct, file, (offset, len));
        let client = &mut self.clients[no as usize];
        client.ops.insert(op, Op::Write(number));
        let machine = client.machine.as_mut().expect("it is up");
        let bytes = vec![number; len as usize];
        machine.write(Time(self.now), op, path, numbered(file), (offset, len), bytes);
        self.say(|| format!("client {no} writes {number} {path:?} to {file} {offset}+{len}"));
    }

    /// An append was given its place, and is done if it is not only reserved.
    fn appended(&mut self, no: u16, number: u32, offset: u64, is_reserved: bool) {
        let (now, life) = (self.now, self.gatherer.life);
        let write = self.judge.writes.get_mut(&number).expect("it was begun");
        let (file, len, begun) = (write.file, write.len, write.begun);
        self.say(|| format!("client {no}: {number} stands at {offset}, reserved {is_reserved}"));
        self.judge.placed(Place { number: (!is_reserved).then_some(number), file, offset, len, begun });
        if is_reserved {
            self.judge.reserved(number, life, now);
            let mut at = offset;
            while at < offset + len {
                let end = (offset + len).min((at / STRIPE + 1) * STRIPE);
                let path = if self.random.bool() { Path::Direct } else { Path::Gather };
                let op = OpNo(self.next_op);
                self.next_op += 1;
                self.begin_write(no, op, path, file, (at, end - at));
                at = end;
            }
        } else {
            let write = self.judge.writes.get_mut(&number).expect("it was begun");
            (write.offset, write.over) = (offset, Some(now));
            write.appended = write.appended.map(|(begun, _)| (begun, Some(life)));
        }
    }

    pub(super) fn poll_client(&mut self, no: u16) {
        loop {
            let client = &mut self.clients[no as usize];
            let Some(action) = client.machine.as_mut().and_then(|machine| machine.poll_action()) else {
                return;
            };
            let host = Host::Client(no);
            match action {
                client::Action::ToGatherer(number, request) => {
                    if let gather::Request::Write { bytes, .. } | gather::Request::Append { bytes, .. } =
                        &request
                    {
                        self.judge.sent(bytes[0], self.now, None);
                    }
                    self.send(host, Host::Gatherer, Message::ToGatherer(number, request));
                }
                client::Action::ToStorage(server, number, request) => {
                    if let storage::Request::Write { epoch, bytes, .. } = &request {
                        self.judge.sent(bytes[0], self.now, Some(*epoch));
                    }
                    self.send(host, Host::Storage(server.0), Message::ToStorage(number, request));
                }
                client::Action::Done(op, outcome) => self.op_done(no, op, outcome),
            }
        }
    }

    pub(super) fn op_done(&mut self, no: u16, op: OpNo, outcome: Outcome<Bytes>) {
        let now = self.now;
        let client = &mut self.clients[no as usize];
        let what = client.ops.remove(&op).expect("an operation is over once");
        match (what, outcome) {
            (Op::Write(number), Outcome::Written) => {
                self.judge.writes.get_mut(&number).expect("it was begun").over = Some(now);
                self.say(|| format!("client {no} has written {number}"));
            }
            (Op::Write(number) | Op::Append(number), Outcome::Failed(of, errno)) => {
                assert!(matches!(errno, FULL | BROKEN), "{number} fails with {errno} at {of:?}");
                self.judge.writes.get_mut(&number).expect("it was begun").failed = Some(now);
                self.say(|| format!("client {no}: {number} fails at {of:?}"));
            }
            (Op::Sync { begun, .. }, Outcome::Failed(of, BROKEN)) => {
                // An append that was only reserved is none any more.
                for number in begun {
                    if let Some(write) = self.judge.writes.get_mut(&number) {
                        write.is_given_up |= write.synced.is_none();
                    }
                }
                self.say(|| format!("client {no} hears that {of:?} did not sync"));
            }
            (Op::Append(number), Outcome::Appended { offset }) => self.appended(no, number, offset, false),
            (Op::Append(number), Outcome::Reserved { offset }) => self.appended(no, number, offset, true),
            (Op::Write(number) | Op::Append(number), Outcome::Gone) => {
                let write = self.judge.writes.get(&number).expect("it was begun");
                assert!(self.judge.removed.contains(&write.file), "{number} hears that its file is gone");
            }
            (Op::Read { file, .. } | Op::Map { file, .. }, Outcome::Gone) => {
                assert!(self.judge.removed.contains(&file), "a read hears that {file} is gone");
            }
            (Op::Cut(number), Outcome::Gone) => {
                let file = self.judge.cuts[&number].file;
                assert!(self.judge.removed.contains(&file), "a cut hears that {file} is gone");
            }
            (Op::Cut(number), Outcome::Truncated | Outcome::Removed) => {
                self.judge.cuts.get_mut(&number).expect("it was begun").over = Some(now);
                self.say(|| format!("client {no} has cut {number}"));
            }
            (Op::Sync { writes, .. }, Outcome::Synced) => {
                for number in writes {
                    let write = self.judge.writes.get_mut(&number).expect("it was begun");
                    if !write.is_given_up {
                        write.synced.get_or_insert(now);
                        write.may_be_lost = false;
                    }
                }
                self.say(|| format!("client {no} has synced"));
            }
            (Op::Sync { writes, .. }, Outcome::Lost(of)) => {
                // What was not synced before is not promised by a later one either.
                for number in writes {
                    let write = self.judge.writes.get_mut(&number).expect("it was begun");
                    write.is_given_up |= write.synced.is_none();
                }
                self.say(|| format!("client {no} hears that {of:?} lost"));
            }
            (Op::Map { file, offset, len, begun }, Outcome::Map { gathered, end, .. }) => {
                self.judge.ends(file, end, begun);
                let op = OpNo(self.next_op);
                self.next_op += 1;
                let client = &mut self.clients[no as usize];
                client.ops.insert(op, Op::Read { file, offset, len, begun });
                let machine = client.machine.as_mut().expect("it is up");
                match gathered.is_empty() {
                    true => machine.read_stored(Time(now), op, numbered(file), (offset, len), end),
                    false => machine.read(Time(now), op, numbered(file), offset, len),
                }
                self.poll_client(no);
            }
            (Op::Read { file, offset, len, begun }, Outcome::Read { gathered, stored, end }) => {
                assert_eq!(stored.len() as u64, len);
                self.judge.ends(file, end, begun);
                let mut bytes = stored;
                for part in gathered {
                    let over = &self.clients[no as usize].parts[&(part.seq, part.offset, part.len)];
                    for (i, byte) in over.iter().enumerate() {
                        bytes[(part.offset - offset) as usize + i] = *byte;
                    }
                }
                for (i, byte) in bytes.into_iter().enumerate() {
                    let at = offset + i as u64;
                    let judged = self.judge.shown(file, at, byte, begun);
                    let judged = judged.and_then(|()| self.judge.turns_back(file, at, byte, (begun, now)));
                    if let Err(text) = judged {
                        panic!("a read of client {no} from {:.3}: {text}", begun as f64 / MS as f64);
                    }
                }
            }
            (Op::Told, Outcome::Told { .. } | Outcome::Gone) => {}
            (Op::Probe(probe), outcome) => self.probed(no, probe, outcome),
            (what, outcome) => panic!("{what:?} came to {outcome:?}"),
        }
    }
}
