//! Looks at a file, a read between two of them, and what the catalog knows of writes.

use haul_core::volume::ContentVersion;
use haul_core::volume::client::Where;

use super::*;

/// In place of how often the catalog was told, where nobody looked.
const NO_LOOK: u64 = u64::MAX - 1;

/// A look or a map, a read, and a look or a map.
#[derive(Clone, Debug)]
pub struct Probe {
    pub file: u64,
    pub offset: u64,
    pub len: u64,
    /// The version that the first look showed, and how often the catalog was told by then.
    pub first: Option<(ContentVersion, u64)>,
    pub bytes: Option<Bytes>,
}

impl World {
    /// A part of a probe is over.
    pub(super) fn probed(&mut self, no: u16, probe: Probe, outcome: Outcome<Bytes>) {
        let now = Time(self.now);
        let (file, offset) = (probe.file, probe.offset);
        match outcome {
            Outcome::Gone => assert!(self.judge.removed.contains(&file), "a look hears that {file} is gone"),
            // Somebody writes, or a server is away.
            Outcome::Failed(Where::Gatherer, gather::BUSY) => {}
            Outcome::Looked { version, untold, .. } => {
                self.say(|| format!("client {no} sees {version:?} of {file}, untold {untold}"));
                let told = self.judge.told(file, untold);
                if untold {
                    self.go_on_probe(no, Op::Told, |machine, op| {
                        machine.told(now, op, numbered(file), version)
                    });
                }
                self.seen(no, probe, (version, told));
            }
            // A map tells a version too, as long as nobody can write directly; and nothing of the catalog.
            Outcome::Map { version: None, .. } => {}
            Outcome::Map { version: Some(version), .. } => {
                let told = NO_LOOK + u64::from(probe.first.is_some());
                self.seen(no, probe, (version, told));
            }
            Outcome::Read { gathered, stored, .. } => {
                let mut bytes = stored;
                for part in gathered {
                    let over = &self.clients[no as usize].parts[&(part.seq, part.offset, part.len)];
                    for (i, byte) in over.iter().enumerate() {
                        bytes[(part.offset - offset) as usize + i] = *byte;
                    }
                }
                let by_map = self.random.bool();
                let stripe = offset / STRIPE;
                self.go_on_probe(no, Op::Probe(Probe { bytes: Some(bytes), ..probe }), |machine, op| {
                    match by_map {
                        true => machine.map(now, op, numbered(file), stripe..stripe + 1),
                        false => machine.look(now, op, numbered(file)),
                    }
                });
            }
            other => panic!("a probe of {file} came to {other:?}"),
        }
    }

    /// A look or a map showed a version.
    fn seen(&mut self, no: u16, probe: Probe, seen: (ContentVersion, u64)) {
        let (now, file, offset, len) = (Time(self.now), probe.file, probe.offset, probe.len);
        match (probe.first, &probe.bytes) {
            (Some(first), Some(bytes)) => self.judge.probed((file, offset), bytes, first, seen),
            _ => {
                let first = Some(seen);
                self.go_on_probe(no, Op::Probe(Probe { first, ..probe }), |machine, op| {
                    machine.read(now, op, numbered(file), offset, len);
                });
            }
        }
    }

    fn go_on_probe(&mut self, no: u16, what: Op, ask: impl FnOnce(&mut Client<Bytes>, OpNo)) {
        let op = OpNo(self.next_op);
        self.next_op += 1;
        let client = &mut self.clients[no as usize];
        client.ops.insert(op, what);
        ask(client.machine.as_mut().expect("it is up"), op);
    }
}
