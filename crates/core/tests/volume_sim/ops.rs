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
            let file = self.random.u64(0..self.files);
            let stripe = self.random.u64(0..self.stripes);
            let from = self.random.u64(0..STRIPE);
            let len = self.random.u64(1..=STRIPE - from);
            let offset = stripe * STRIPE + from;
            let machine = client.machine.as_mut().expect("it is up");
            match self.random.u32(0..22) {
                0..2 => {
                    let number = self.next_write;
                    self.next_write += 1;
                    let from = self.random.u64(0..STRIPE * (self.stripes + 1));
                    let of = client.number;
                    let cut = Cut { client: of, file, from, begun: now, over: None };
                    self.judge.cuts.insert(number, cut);
                    client.ops.insert(op, Op::Cut(number));
                    machine.truncate(Time(now), op, FileNo(file), from);
                    self.say(|| format!("client {no} cuts {number}: {file} at {from}"));
                }
                2..14 => {
                    let path = if self.random.bool() { Path::Direct } else { Path::Gather };
                    let number = self.next_write;
                    self.next_write += 1;
                    // A client orders what overlaps by waiting for it; what it does not wait for has no
                    // order.
                    self.judge.writes.insert(
                        number,
                        Write {
                            client: client.number,
                            begun: now,
                            over: None,
                            synced: None,
                            may_be_lost: false,
                            is_given_up: false,
                            is_direct: path == Path::Direct,
                            sent: 0,
                            epoch: None,
                            file,
                            offset,
                            len,
                        },
                    );
                    client.ops.insert(op, Op::Write(number));
                    machine.write(
                        Time(now),
                        op,
                        path,
                        FileNo(file),
                        (offset, len),
                        vec![number; len as usize],
                    );
                    self.say(|| format!("client {no} writes {number} {path:?} to {file} {offset}+{len}"));
                }
                14..18 => {
                    client.ops.insert(op, Op::Read { file, offset, len, begun: now });
                    machine.read(Time(now), op, FileNo(file), offset, len);
                }
                _ => {
                    let of = client.number;
                    let is_its =
                        |write: &Write| write.client == of && write.file == file && write.over.is_some();
                    let writes = self.judge.writes.iter().filter(|(_, write)| is_its(write));
                    client.ops.insert(op, Op::Sync { writes: writes.map(|(number, _)| *number).collect() });
                    machine.sync(Time(now), op, FileNo(file));
                    self.say(|| format!("client {no} syncs {file}"));
                }
            }
            self.poll_client(no);
        }
        let pause = if self.random.u32(0..10) == 0 { 8000 * MS } else { 300 * MS };
        self.after(0, pause, Event::Act(no, life));
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
                    if let gather::Request::Write { bytes, .. } = &request {
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
            (Op::Cut(number), Outcome::Truncated) => {
                self.judge.cuts.get_mut(&number).expect("it was begun").over = Some(now);
                self.say(|| format!("client {no} has cut {number}"));
            }
            (Op::Sync { writes }, Outcome::Synced) => {
                for number in writes {
                    let write = self.judge.writes.get_mut(&number).expect("it was begun");
                    if !write.is_given_up {
                        write.synced.get_or_insert(now);
                        write.may_be_lost = false;
                    }
                }
                self.say(|| format!("client {no} has synced"));
            }
            (Op::Sync { writes }, Outcome::Lost(of)) => {
                // What was not synced before is not promised by a later one either.
                for number in writes {
                    let write = self.judge.writes.get_mut(&number).expect("it was begun");
                    write.is_given_up |= write.synced.is_none();
                }
                self.say(|| format!("client {no} hears that {of:?} lost"));
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
            (what, outcome) => panic!("{what:?} came to {outcome:?}"),
        }
    }
}
