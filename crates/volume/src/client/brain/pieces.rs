//! Maps of stripes, and pieces that are told one by one when they come.

use std::ops::Range;

use haul_core::volume::FileNo;

use super::{Answer, Asked, Brain, Map, Reply, Tell};

impl Brain {
    pub(super) fn want_map(&mut self, file: FileNo, stripes: Range<u64>, reply: Reply<Map>) {
        let (now, machine) = (self.now(), self.machine_of(file));
        let of = self.servers_of(machine, file, &[]);
        let wanted = self.wants(1, Answer::Map(reply, Map::default()), of);
        let op = self.op(machine, wanted, (0, 0));
        self.machines[machine].map(now, op, file, stripes);
    }

    pub(super) fn want_piece(&mut self, piece: &Asked, to: Tell) {
        let (now, file, at) = (self.now(), piece.file, (piece.offset, piece.len));
        let machine = self.machine_of(file);
        let of = self.servers_of(machine, file, &[at]);
        let wanted = self.wants(1, Answer::Piece(to, None), of);
        let op = self.op(machine, wanted, at);
        match piece.not_gathered {
            Some(end) => self.machines[machine].read_stored(now, op, file, at, end),
            None => self.machines[machine].read(now, op, file, piece.offset, piece.len),
        }
    }
}
