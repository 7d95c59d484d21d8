//! The engines without storage: `null` moves nothing, `zero` fills what is read with zeros.
//!
//! In: operations on any file. Out: the full count, at once. They stand behind `null://` and `zero://SIZE`,
//! to measure the software itself.
//!
//! Invariant: null never touches payload; what a buffer held before, it holds after. `zero` writes every byte
//! that is read, each time, for a reader that costs memory bandwidth as a real one does.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};

use super::{DEPTH_MAX, Engine, EngineFacts, Full, IoDone, IoKind, IoOp, Waker};

/// An engine that is done at once.
pub struct Null {
    fill: bool,
    depth: usize,
    ended: VecDeque<IoDone>,
    wake: Sender<()>,
    woken: Receiver<()>,
}

impl Null {
    /// `fill`: reads are filled with zeros. `depth`: operations in flight (1 to [`DEPTH_MAX`]), so that who
    /// drives it meets [`Full`] as with other engines.
    pub fn new(fill: bool, depth: usize) -> Null {
        // One place: a second wake before the first was seen says nothing more.
        let (wake, woken) = bounded(1);
        Null { fill, depth: depth.clamp(1, DEPTH_MAX), ended: VecDeque::new(), wake, woken }
    }
}

impl Engine for Null {
    fn submit(&mut self, mut op: IoOp) -> Result<(), Full> {
        if self.ended.len() == self.depth {
            return Err(Full(op));
        }
        let submitted = Instant::now();
        let result = op.check().map(|()| match op.kind {
            IoKind::Sync => 0,
            IoKind::Read | IoKind::Write => op.wanted(),
        });
        if self.fill && op.kind == IoKind::Read && result.is_ok() {
            let pad = op.pad;
            let last = op.parts.len().wrapping_sub(1);
            for (i, part) in op.parts.iter_mut().enumerate() {
                let len = part.len() + if i == last { pad } else { 0 };
                part.room_mut()[..len].fill(0);
            }
        }
        self.ended.push_back(IoDone { op, result, submitted, completed: Instant::now() });
        Ok(())
    }

    fn reap(&mut self, done: &mut VecDeque<IoDone>, wait: Duration) -> std::io::Result<()> {
        let wait = if self.ended.is_empty() { wait } else { Duration::ZERO };
        // Woken or not: the caller looks around.
        let _ = self.woken.recv_timeout(wait);
        done.append(&mut self.ended);
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.ended.len()
    }

    fn waker(&self) -> Waker {
        let wake = self.wake.clone();
        Arc::new(move || {
            let _ = wake.try_send(());
        })
    }

    fn facts(&self) -> EngineFacts {
        EngineFacts { name: if self.fill { "zero" } else { "null" }, remarks: Vec::new() }
    }
}
