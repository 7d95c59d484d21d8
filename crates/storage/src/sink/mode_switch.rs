//! One file's way to storage: through the page cache or past it, never both at once.
//!
//! In: writes that want to go, and the mode that is wished for now. Out: which may go, which are held, and
//! when the file changes its mode. Pure bookkeeping: the syncing and the writing are done by who asks.
//!
//! What must hold: writes in flight of one file all have its mode; the mode changes only when none is in
//! flight and all that was written before was synced. A page that is dirty in the cache and written past it
//! at the same time may lose either.
//!
//! What is held is bounded by the session, for each write holds a buffer that was granted.

use haul_core::io::IoMode;

/// The books of one file.
pub(super) struct ModeSwitch<W> {
    mode: IoMode,
    /// Writes let through that have not ended.
    in_flight: u32,
    /// Writes let through so far.
    begun: u64,
    /// How many of these the last good sync covers.
    synced: u64,
    /// Payload bytes that were written.
    written: u64,
    /// The mode that the file is changing to.
    next: Option<IoMode>,
    held: Vec<W>,
    /// The file failed: nothing goes any more.
    over: bool,
}

/// What becomes of a write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admit<W> {
    /// It goes now, in the file's mode.
    Go(W),
    /// It goes after the change of mode.
    Held,
    /// As `Held`, and the change is to be made now, by who is told so.
    Change,
    /// The file failed before, and nobody would ever let it go.
    Over(W),
}

impl<W> Default for ModeSwitch<W> {
    fn default() -> ModeSwitch<W> {
        ModeSwitch::new(IoMode::default())
    }
}

impl<W> ModeSwitch<W> {
    pub(super) fn new(mode: IoMode) -> ModeSwitch<W> {
        ModeSwitch {
            mode,
            in_flight: 0,
            begun: 0,
            synced: 0,
            written: 0,
            next: None,
            held: Vec::new(),
            over: false,
        }
    }

    pub(super) fn mode(&self) -> IoMode {
        self.mode
    }

    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Something was written that no sync covers.
    pub(super) fn needs_sync(&self) -> bool {
        self.synced < self.begun
    }

    /// A write wants to go, in the mode `wish`.
    pub(super) fn admit(&mut self, wish: IoMode, write: W) -> Admit<W> {
        if self.over {
            return Admit::Over(write);
        }
        if self.next.is_none() && wish == self.mode {
            self.in_flight += 1;
            self.begun += 1;
            return Admit::Go(write);
        }
        self.held.push(write);
        if self.next.is_some() {
            return Admit::Held;
        }
        self.next = Some(wish);
        if self.in_flight == 0 { Admit::Change } else { Admit::Held }
    }

    /// A write ended, with so many bytes written. True: a change of mode is to be made now.
    pub(super) fn ended(&mut self, written: u64) -> bool {
        self.in_flight -= 1;
        self.written = self.written.saturating_add(written);
        self.in_flight == 0 && self.next.is_some()
    }

    /// A write ended because the file system refuses its mode: it goes again, buffered. True: the change is
    /// to be made now.
    ///
    /// # Errors
    /// The file failed meanwhile; the write comes back.
    pub(super) fn refused(&mut self, write: W) -> Result<bool, W> {
        if self.over {
            self.ended(0);
            return Err(write);
        }
        self.held.push(write);
        self.next = Some(IoMode::Buffered);
        Ok(self.ended(0))
    }

    /// What a sync that begins now will cover, to be told to [`ModeSwitch::synced`] if it is good.
    pub(super) fn sync_begins(&self) -> u64 {
        // A write in flight may or may not be covered, and nobody knows which of those it is.
        if self.in_flight == 0 { self.begun } else { 0 }
    }

    /// A sync was good.
    pub(super) fn synced(&mut self, covered: u64) {
        self.synced = self.synced.max(covered);
    }

    /// The mode that the file shall change to.
    pub(super) fn next(&self) -> Option<IoMode> {
        self.next
    }

    /// The change is made: all before is synced, and `mode` it is. The held writes count as in flight.
    pub(super) fn changed(&mut self, mode: IoMode) -> Vec<W> {
        debug_assert!(self.in_flight == 0);
        self.mode = mode;
        self.next = None;
        let held = std::mem::take(&mut self.held);
        self.in_flight += held.len() as u32;
        self.begun += held.len() as u64;
        held
    }

    /// The file failed: nothing is held any longer, and nothing goes.
    pub(super) fn give_up(&mut self) -> Vec<W> {
        self.over = true;
        self.next = None;
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Goal: in flight there is one mode; a change comes only after a sync that began when nothing was in
    /// flight; no write is lost or let through twice.
    /// Method: seeded random wishes, completions, refusals and syncs, against a model of what is dirty.
    #[test]
    fn one_mode_at_a_time_and_a_sync_between() {
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut switch = ModeSwitch::new(IoMode::Buffered);
            let mut flying: Vec<(u32, IoMode)> = Vec::new();
            let (mut next_id, mut ended, mut dirty) = (0, HashSet::new(), false);
            let mut mode = IoMode::Buffered;
            let mut due = false;
            let check = |flying: &[(u32, IoMode)], mode| assert!(flying.iter().all(|(_, m)| *m == mode));
            while ended.len() < 300 {
                match rng.u8(..10) {
                    0..4 if next_id < 300 => {
                        let wish = if rng.u8(..6) == 0 { IoMode::Direct } else { mode };
                        match switch.admit(wish, next_id) {
                            Admit::Go(id) => {
                                flying.push((id, switch.mode()));
                                dirty = true;
                            }
                            Admit::Held => {}
                            Admit::Change => due = true,
                            Admit::Over(_) => unreachable!("the file did not fail"),
                        }
                        next_id += 1;
                    }
                    4..8 if !flying.is_empty() => {
                        let (id, how) = flying.swap_remove(rng.usize(..flying.len()));
                        let refused = how == IoMode::Direct && rng.u8(..4) == 0;
                        due |= if refused { switch.refused(id).expect("not over") } else { switch.ended(1) };
                        if !refused {
                            assert!(ended.insert(id), "twice");
                        }
                    }
                    8 => {
                        let covered = switch.sync_begins();
                        if flying.is_empty() {
                            dirty = false;
                        }
                        switch.synced(covered);
                    }
                    _ => {}
                }
                if std::mem::take(&mut due) {
                    assert!(flying.is_empty());
                    assert_eq!(switch.needs_sync(), dirty);
                    let covered = switch.sync_begins();
                    switch.synced(covered);
                    assert!(!switch.needs_sync());
                    mode = switch.next().expect("a change is due");
                    for id in switch.changed(mode) {
                        flying.push((id, mode));
                    }
                    dirty = !flying.is_empty();
                }
                check(&flying, switch.mode());
            }
            assert_eq!(switch.written(), 300);
            assert_eq!((switch.in_flight, switch.next), (0, None));
        }
    }

    /// Goal: a file that failed holds nothing, whatever comes and in whichever mode.
    #[test]
    fn nothing_is_held_once_it_is_over() {
        let mut switch = ModeSwitch::new(IoMode::Direct);
        assert_eq!(switch.admit(IoMode::Direct, 1), Admit::Go(1));
        assert_eq!(switch.admit(IoMode::Buffered, 2), Admit::Held);
        assert_eq!(switch.give_up(), [2]);
        assert_eq!(switch.admit(IoMode::Buffered, 3), Admit::Over(3));
        assert_eq!(switch.admit(IoMode::Direct, 4), Admit::Over(4));
        assert_eq!(switch.refused(1), Err(1));
        assert_eq!((switch.in_flight, switch.held.len()), (0, 0));
    }
}
