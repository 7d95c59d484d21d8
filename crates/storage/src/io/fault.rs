//! An engine for tests that fails as planned.
//!
//! In: any engine and a plan. Out: that engine, but for the operations that the plan names: they are short,
//! fail, or hang until they are released.
//!
//! Invariant: a short transfer really moves only as many bytes, so that who believes it was whole has a wrong
//! file.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::{Engine, EngineFacts, Full, IoDone, IoKind, IoOp, Waker};

/// Which operations a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The nth of its kind, from 0, counted over the engine's life.
    Nth(IoKind, u64),
    /// Each of its kind from the nth on.
    From(IoKind, u64),
    /// Each that asks for `uncached`.
    Uncached,
}

/// What happens to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// At most so many bytes are moved, and that is said.
    Short(usize),
    /// Nothing is moved, and this is the answer.
    Fail(Errno),
    /// It begins when it is released by [`Hung::release`].
    Hang,
}

/// An engine with a plan; the first entry that fits an operation counts.
pub struct Faulty {
    inner: Box<dyn Engine>,
    plan: Vec<(When, What)>,
    counts: [u64; 3],
    /// What ended here.
    ended: VecDeque<IoDone>,
    hung: Hung,
    /// Released, and not yet taken by the inner engine.
    released: VecDeque<IoOp>,
    /// The callers' keys, and when their operations came, by the keys that the inner engine sees.
    callers: HashMap<u64, (u64, Instant)>,
    next_key: u64,
}

/// The operations that hang.
#[derive(Clone)]
pub struct Hung {
    state: Arc<Mutex<HungState>>,
    wake: Waker,
}

#[derive(Default)]
struct HungState {
    held: VecDeque<IoOp>,
    free: bool,
}

impl Hung {
    fn lock(&self) -> MutexGuard<'_, HungState> {
        self.state.lock().expect("nobody panics under the lock")
    }

    /// Operations that hang now.
    pub fn count(&self) -> usize {
        self.lock().held.len()
    }

    /// Lets all go on, those too that would hang later.
    pub fn release(&self) {
        self.lock().free = true;
        (self.wake)();
    }
}

impl Faulty {
    /// `inner` with faults, and the handle of those that hang.
    pub fn new(inner: Box<dyn Engine>, plan: Vec<(When, What)>) -> (Faulty, Hung) {
        let hung = Hung { state: Arc::default(), wake: inner.waker() };
        let faulty = Faulty {
            inner,
            plan,
            counts: [0; 3],
            ended: VecDeque::new(),
            hung: hung.clone(),
            released: VecDeque::new(),
            callers: HashMap::new(),
            next_key: 0,
        };
        (faulty, hung)
    }

    /// The fault of the next operation.
    fn fault_of(&mut self, op: &IoOp) -> Option<What> {
        let count = &mut self.counts[op.kind as usize];
        let nth = *count;
        *count += 1;
        let hits = |when: &When| match *when {
            When::Nth(kind, n) => kind == op.kind && n == nth,
            When::From(kind, n) => kind == op.kind && nth >= n,
            When::Uncached => op.uncached,
        };
        self.plan.iter().find(|(when, _)| hits(when)).map(|(_, what)| *what)
    }

    fn end(&mut self, op: IoOp, result: Result<usize, Errno>) {
        self.ended.push_back(IoDone { op, result, submitted: Instant::now(), completed: Instant::now() });
    }

    /// Passes on what was released.
    fn pass_on(&mut self) {
        let mut state = self.hung.lock();
        if state.free {
            self.released.append(&mut state.held);
        }
        drop(state);
        while let Some(op) = self.released.pop_front() {
            if let Err(Full(op)) = self.inner.submit(op) {
                self.released.push_front(op);
                break;
            }
        }
    }
}

impl Engine for Faulty {
    fn submit(&mut self, mut op: IoOp) -> Result<(), Full> {
        let (key, counts) = (op.key, self.counts);
        op.key = self.next_key;
        let now = Instant::now();
        match self.fault_of(&op) {
            Some(What::Fail(errno)) => self.end(op, Err(errno)),
            Some(What::Short(most)) => {
                let result = move_some(&mut op, most);
                self.end(op, result);
            }
            Some(What::Hang) if !self.hung.lock().free => {
                self.hung.lock().held.push_back(op);
            }
            _ => {
                if let Err(Full(mut op)) = self.inner.submit(op) {
                    // It did not come, so it does not count.
                    self.counts = counts;
                    op.key = key;
                    return Err(Full(op));
                }
            }
        }
        self.callers.insert(self.next_key, (key, now));
        self.next_key += 1;
        Ok(())
    }

    fn reap(&mut self, done: &mut VecDeque<IoDone>, wait: Duration) -> std::io::Result<()> {
        self.pass_on();
        let mut ended = std::mem::take(&mut self.ended);
        let wait = if ended.is_empty() { wait } else { Duration::ZERO };
        self.inner.reap(&mut ended, wait)?;
        self.pass_on();
        for mut one in ended {
            (one.op.key, one.submitted) = self.callers.remove(&one.op.key).expect("an operation ends once");
            done.push_back(one);
        }
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.ended.len() + self.hung.count() + self.released.len()
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn facts(&self) -> EngineFacts {
        self.inner.facts()
    }
}

/// Moves the first `most` bytes, part by part.
fn move_some(op: &mut IoOp, most: usize) -> Result<usize, Errno> {
    let wanted = op.wanted();
    let IoOp { file, kind, offset, parts, pad, .. } = op;
    let Some(fd) = &file.fd else { return Ok(most.min(wanted)) };
    let mut moved = 0;
    let last = parts.len().wrapping_sub(1);
    for (i, part) in parts.iter_mut().enumerate() {
        let len = part.len() + if i == last { *pad } else { 0 };
        let slice = &mut part.room_mut()[..len.min(most - moved)];
        let at = *offset + moved as u64;
        let count = match kind {
            IoKind::Read => rustix::io::pread(fd, &mut *slice, at)?,
            IoKind::Write => rustix::io::pwrite(fd, slice, at)?,
            IoKind::Sync => 0,
        };
        moved += count;
        if count < slice.len() {
            break;
        }
    }
    Ok(moved)
}
