//! Control over several connections: every message once and in order, although connections end at any point.
//!
//! In: frames to send and frames that came, with their numbers; what the other end says it has. Out: what is
//! written next, what is taken. An end has one [`Outgoing`] and one [`Incoming`] for the life of a session;
//! connections come and go below them.
//! Invariants: numbers go on over a re-join, without gaps; a frame is kept until the other end said that it
//! came; what is kept is bounded ([`KEPT_MAX`], [`KEPT_LEN_MAX`]), and a session whose bound is reached ends.
//! Left out: who may join again, and when (`wire::Join`, the transport).

use std::collections::VecDeque;

/// Most frames that are kept for a peer that has not said that they came.
pub const KEPT_MAX: usize = 16 * 1024;
/// Most bytes of them. All that can be open at a time (32,768 entries with names of usual length) takes a
/// tenth.
pub const KEPT_LEN_MAX: usize = 64 * 1024 * 1024;
/// The other end is told what came after so many frames, or so many bytes.
const TELL_FRAMES: u64 = 64;
const TELL_LEN: usize = 256 * 1024;
// An end that takes and tells is never taken for one that does not.
const _: () = assert!(TELL_FRAMES as usize * 16 <= KEPT_MAX && TELL_LEN * 16 <= KEPT_LEN_MAX);

/// Why control cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResendError {
    #[error(
        "the peer does not take control messages: {KEPT_MAX} of them, or {KEPT_LEN_MAX} bytes, wait for it"
    )]
    Full,
    #[error("the peer says that control message {said} came, of {sent} that were sent")]
    Overclaimed { said: u64, sent: u64 },
    #[error("the peer wants control messages from {wanted} on, but said before that {known} came")]
    Forgotten { wanted: u64, known: u64 },
    #[error("control message {came} came instead of {expected}")]
    Gap { came: u64, expected: u64 },
}

/// A control frame without its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    pub kind: u8,
    pub body: Vec<u8>,
}

/// What this end sends on control.
#[derive(Debug, Default)]
pub struct Outgoing {
    kept: VecDeque<Kept>,
    len: usize,
    /// The number of the last frame that the other end has: the first kept one is the next.
    known: u64,
    /// The number of the last frame that was given to the present connection.
    written: u64,
}

impl Outgoing {
    /// A frame to send, after all before.
    pub fn push(&mut self, frame: Kept) -> Result<(), ResendError> {
        if self.kept.len() >= KEPT_MAX || self.len + frame.body.len() > KEPT_LEN_MAX {
            return Err(ResendError::Full);
        }
        self.len += frame.body.len();
        self.kept.push_back(frame);
        Ok(())
    }

    /// The next frame for the present connection, and its number.
    pub fn take_next(&mut self) -> Option<(u64, &Kept)> {
        let frame = self.kept.get((self.written - self.known) as usize)?;
        self.written += 1;
        Some((self.written, frame))
    }

    /// Half of what may be kept is: who can wait with more does so.
    pub fn is_behind(&self) -> bool {
        self.kept.len() >= KEPT_MAX / 2 || self.len >= KEPT_LEN_MAX / 2
    }

    /// All that was to be sent was given to the present connection.
    pub fn is_written(&self) -> bool {
        self.written - self.known == self.kept.len() as u64
    }

    /// The other end has everything up to `number`. Told twice, or late, is no harm.
    pub fn received(&mut self, number: u64) -> Result<(), ResendError> {
        if number > self.written {
            return Err(ResendError::Overclaimed { said: number, sent: self.written });
        }
        while self.known < number {
            self.known += 1;
            self.len -= self.kept.pop_front().map_or(0, |frame| frame.body.len());
        }
        Ok(())
    }

    /// A new connection: the other end has everything up to `number`, the rest goes again.
    pub fn resume(&mut self, number: u64) -> Result<(), ResendError> {
        if number < self.known {
            return Err(ResendError::Forgotten { wanted: number + 1, known: self.known });
        }
        self.received(number)?;
        self.written = number;
        Ok(())
    }
}

/// What came on control.
#[derive(Debug, Default)]
pub struct Incoming {
    last: u64,
    told: u64,
    len: usize,
}

impl Incoming {
    /// The number of the last frame that came.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// A frame with a body of `len` bytes came on the present connection.
    pub fn take(&mut self, number: u64, len: usize) -> Result<(), ResendError> {
        let expected = self.last + 1;
        if number != expected {
            return Err(ResendError::Gap { came: number, expected });
        }
        self.last = number;
        self.len += len;
        Ok(())
    }

    /// What the other end shall be told now, if it is time to.
    pub fn to_tell(&mut self) -> Option<u64> {
        let due = self.last - self.told >= TELL_FRAMES || self.len >= TELL_LEN;
        due.then(|| {
            self.told = self.last;
            self.len = 0;
            self.last
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(n: u64) -> Kept {
        Kept { kind: 0x24, body: n.to_le_bytes().to_vec() }
    }

    /// Goal: every frame arrives once and in order, wherever connections break.
    /// Method: random pushes, transfers, tellings and breaks that lose any tail of what was on its way.
    #[test]
    fn all_arrive_once_and_in_order() {
        for seed in 0..2000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (mut out, mut into) = (Outgoing::default(), Incoming::default());
            let (mut wire, mut back, mut got) = (VecDeque::new(), VecDeque::new(), Vec::new());
            let mut pushed = 0;
            for step in 0..1200 {
                match rng.u8(..if step > 900 { 5 } else { 7 }) {
                    0 | 5 if pushed < 400 => {
                        pushed += 1;
                        out.push(frame(pushed)).unwrap();
                    }
                    1 => wire.extend(out.take_next().map(|(n, kept)| (n, kept.clone()))),
                    2 | 3 => {
                        if let Some((number, kept)) = wire.pop_front() {
                            into.take(number, kept.body.len()).unwrap();
                            got.push(kept);
                            back.extend(into.to_tell());
                        }
                    }
                    4 => back.drain(..).for_each(|number| out.received(number).unwrap()),
                    6 if rng.u8(..4) == 0 => {
                        wire.clear();
                        back.clear();
                        out.resume(into.last()).unwrap();
                    }
                    _ => {}
                }
            }
            out.resume(into.last()).unwrap();
            while let Some((number, kept)) = out.take_next() {
                into.take(number, 8).unwrap();
                got.push(kept.clone());
            }
            // What was on the wire at the end is sent again by the resume above.
            assert_eq!(got, (1..=pushed).map(frame).collect::<Vec<_>>(), "seed {seed}");
            assert!(out.is_written());
        }
    }

    /// Goal: a peer that claims what it cannot have, or wants back what it had, is named; what is kept is
    /// bounded.
    #[test]
    fn claims_are_checked_and_what_is_kept_is_bounded() {
        let mut out = Outgoing::default();
        out.push(frame(1)).unwrap();
        assert_eq!(out.received(1), Err(ResendError::Overclaimed { said: 1, sent: 0 }), "not yet written");
        assert_eq!(out.take_next().map(|(n, _)| n), Some(1));
        assert_eq!(out.take_next().map(|(n, _)| n), None);
        assert_eq!(out.received(2), Err(ResendError::Overclaimed { said: 2, sent: 1 }));
        out.received(1).unwrap();
        out.received(0).unwrap();
        assert_eq!(out.resume(0), Err(ResendError::Forgotten { wanted: 1, known: 1 }));
        assert_eq!(out.resume(u64::MAX), Err(ResendError::Overclaimed { said: u64::MAX, sent: 1 }));
        for n in 0..KEPT_MAX as u64 {
            out.push(frame(n)).unwrap();
        }
        assert_eq!(out.push(frame(0)), Err(ResendError::Full));
        let mut out = Outgoing::default();
        let large = || Kept { kind: 1, body: vec![0; 1 << 20] };
        for _ in 0..KEPT_LEN_MAX >> 20 {
            out.push(large()).unwrap();
        }
        assert_eq!(out.push(large()), Err(ResendError::Full));
        let mut into = Incoming::default();
        assert_eq!(into.take(2, 0), Err(ResendError::Gap { came: 2, expected: 1 }));
        into.take(1, 0).unwrap();
        assert_eq!(into.take(1, 0), Err(ResendError::Gap { came: 1, expected: 2 }));
    }
}
