//! Looks at a file, a read between two of them, and what the catalog knows of writes.

use haul_core::volume::ContentVersion;
use haul_core::volume::client::Where;

use super::*;

/// A look, a read, and a look.
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
        let (file, offset, len) = (probe.file, probe.offset, probe.len);
        match outcome {
            Outcome::Gone => assert!(self.judge.removed.contains(&file), "a look hears that {file} is gone"),
            // Somebody writes, or a server is away.
            Outcome::Failed(Where::Gatherer, gather::BUSY) => {}
            Outcome::Looked { version, untold, .. } => {
                self.say(|| format!("client {no} sees {version:?} of {file}, untold {untold}"));
                let told = self.judge.told(file, untold);
                if untold {
                    self.go_on_probe(no, Op::Told, |machine, op| {
                        machine.told(now, op, FileNo(file), version)
                    });
                }
                match (probe.first, &probe.bytes) {
                    (Some(first), Some(bytes)) => {
                        self.judge.probed((file, offset), bytes, first, (version, told));
                    }
                    _ => {
                        let first = Some((version, told));
                        self.go_on_probe(no, Op::Probe(Probe { first, ..probe }), |machine, op| {
                            machine.read(now, op, FileNo(file), offset, len);
                        });
                    }
                }
            }
            Outcome::Read { gathered, stored, .. } => {
                let mut bytes = stored;
                for part in gathered {
                    let over = &self.clients[no as usize].parts[&(part.seq, part.offset, part.len)];
                    for (i, byte) in over.iter().enumerate() {
                        bytes[(part.offset - offset) as usize + i] = *byte;
                    }
                }
                self.go_on_probe(no, Op::Probe(Probe { bytes: Some(bytes), ..probe }), |machine, op| {
                    machine.look(now, op, FileNo(file));
                });
            }
            other => panic!("a probe of {file} came to {other:?}"),
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
