//! What stands at a server of a file that was broken off, held against the bytes of its source as they come
//! again.
//!
//! In: how long it is, what the server says of it, part by part; the source's bytes in their order. Out: up
//! to which byte it is the source's.
//! Invariant: no byte of what stands there counts that is not in a part whose sum was compared, unless the
//! user said that it is to be believed: then its end at least was read and compared. What a server shows to
//! nobody before it is whole has no sum but that of the whole, which is compared in any case.
//! A server's own crash, and blocks that did not come, leave gaps near the end of what stands: so there the
//! parts are short, and the bytes of one are held here until it was compared.

use std::collections::VecDeque;

use haul_ftp::Sum;

use super::sums::Summing;

/// So much before the end of what stands is compared in short parts.
const FINE_LEN: u64 = 512 << 20;
/// Length of these, and of what is held here of one file.
const PART_LEN: u64 = 4 << 20;
/// Where there are no sums: what is sent again, for it may be torn, and what before it is read and compared.
const TORN_LEN: u64 = 64 << 10;
const TAIL_LEN: u64 = 1 << 20;

/// See the module.
pub(super) struct Standing {
    parts: VecDeque<Part>,
    /// The source's byte that comes next.
    at: u64,
    sum: Option<Sum>,
    summing: Summing,
    /// Bytes of the part that is compared now: all of a short one; the end, where that alone is compared.
    held: Vec<u8>,
}

struct Part {
    start: u64,
    end: u64,
    proof: Proof,
}

enum Proof {
    Sum(Vec<u8>),
    /// Its last bytes, as the server gave them back.
    Tail(Vec<u8>),
    /// The server said that it has it (`111`), and shows it to nobody before it is whole.
    Word,
}

/// What follows from bytes that came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step<'a> {
    More,
    /// What stands there is the source's up to this byte. Behind it come these bytes again, and the rest.
    GoesOn {
        at: u64,
        again: Vec<u8>,
        rest: &'a [u8],
    },
    /// It is something else, and what came is not here any more.
    Lost,
}

/// How what stands there is compared, if it is so long: parts, each by its offset and length.
pub(super) fn parts_of(len: u64) -> Vec<(u64, u64)> {
    let fine = len.saturating_sub(FINE_LEN);
    let short = (fine..len).step_by(PART_LEN as usize).map(|at| (at, PART_LEN.min(len - at)));
    Some((0, fine)).filter(|_| fine > 0).into_iter().chain(short).collect()
}

/// Where there are no sums: what of so many bytes is read again, if any of them can be gone on with.
pub(super) fn tail_of(len: u64) -> Option<(u64, u64)> {
    let end = len.saturating_sub(TORN_LEN);
    let tail = end.min(TAIL_LEN);
    (tail > 0).then(|| (end - tail, tail))
}

impl Standing {
    /// Of these parts the server told these sums.
    pub(super) fn by_sums(sum: Sum, parts: Vec<(u64, u64)>, sums: Vec<Vec<u8>>) -> Standing {
        let part = |((start, len), sum)| Part { start, end: start + len, proof: Proof::Sum(sum) };
        Standing::new(Some(sum), parts.into_iter().zip(sums).map(part).collect())
    }

    /// Nobody makes sums: from this byte on it has these.
    pub(super) fn by_tail(from: u64, tail: Vec<u8>) -> Standing {
        let end = from + tail.len() as u64;
        Standing::new(None, VecDeque::from([Part { start: 0, end, proof: Proof::Tail(tail) }]))
    }

    /// The server shows nothing of it, and said that it has so much. The sum of the whole decides.
    pub(super) fn by_word(end: u64) -> Standing {
        Standing::new(None, VecDeque::from([Part { start: 0, end, proof: Proof::Word }]))
    }

    /// What was compared of what is believed up to `at`: from which byte on, and these bytes.
    pub(super) fn into_tail(self, at: u64) -> Option<(u64, Vec<u8>)> {
        let from = at.checked_sub(self.held.len() as u64)?;
        (self.sum.is_none() && !self.held.is_empty()).then_some((from, self.held))
    }

    /// Only the sum of the whole can prove it.
    pub(super) fn is_by_word(&self) -> bool {
        self.parts.iter().any(|part| matches!(part.proof, Proof::Word))
    }

    fn new(sum: Option<Sum>, parts: VecDeque<Part>) -> Standing {
        Standing { parts, at: 0, sum, summing: Summing::new(sum), held: Vec::new() }
    }

    /// Bytes that were compared so far, and of these what was the source's, if it is so up to `good`; and
    /// bytes that are believed, as the user said.
    pub(super) fn compared(&self, good: u64) -> (u64, u64, u64) {
        let tail = self.held.len() as u64;
        match (self.sum, tail, good) {
            (Some(_), ..) => (self.at, good, 0),
            (None, 0, _) => (0, 0, 0),
            (None, tail, 0) => (tail, 0, 0),
            (None, tail, good) => (tail, tail, good - tail),
        }
    }

    /// Holds the source's next bytes against it.
    pub(super) fn compare<'a>(&mut self, mut bytes: &'a [u8]) -> Step<'a> {
        while let Some(part) = self.parts.front() {
            let now = bytes.len().min(usize::try_from(part.end - self.at).unwrap_or(usize::MAX));
            let (of_it, rest) = bytes.split_at(now);
            self.at += now as u64;
            bytes = rest;
            let is_short = part.end - part.start <= PART_LEN;
            match &part.proof {
                Proof::Sum(_) => {
                    self.summing.update(of_it);
                    if is_short {
                        self.held.extend_from_slice(of_it);
                    }
                }
                Proof::Tail(tail) => {
                    let kept = &of_it[of_it.len().saturating_sub(tail.len())..];
                    self.held.extend_from_slice(kept);
                    self.held.drain(..self.held.len().saturating_sub(tail.len()));
                }
                Proof::Word => {}
            }
            if self.at < part.end {
                return Step::More;
            }
            let is_same = match &part.proof {
                Proof::Sum(told) => {
                    std::mem::replace(&mut self.summing, Summing::new(self.sum)).finish().as_ref()
                        == Some(told)
                        || haul_mutant::removed("ftp-what-stands-is-compared")
                }
                Proof::Word => true,
                Proof::Tail(tail) => *tail == self.held || haul_mutant::removed("ftp-a-tail-is-compared"),
            };
            if !is_same {
                return match &part.proof {
                    Proof::Sum(_) if is_short => {
                        Step::GoesOn { at: part.start, again: std::mem::take(&mut self.held), rest: bytes }
                    }
                    Proof::Sum(_) | Proof::Tail(_) | Proof::Word => Step::Lost,
                };
            }
            if let Proof::Sum(_) = part.proof {
                self.held.clear();
            }
            self.parts.pop_front();
        }
        Step::GoesOn { at: self.at, again: Vec::new(), rest: bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUM: Sum = Sum::Sha256;

    fn sum_of(bytes: &[u8]) -> Vec<u8> {
        let mut summing = Summing::new(Some(SUM));
        summing.update(bytes);
        summing.finish().expect("a sum")
    }

    fn bytes(len: usize) -> Vec<u8> {
        let mut rng = fastrand::Rng::with_seed(len as u64);
        (0..len).map(|_| rng.u8(..)).collect()
    }

    /// What comes of a file if that stands there: where it goes on, and all that is sent of it then.
    fn compared(standing: &mut Standing, source: &[u8], object: usize) -> Option<(u64, Vec<u8>)> {
        let mut at = 0;
        for bytes in source.chunks(object) {
            at += bytes.len();
            match standing.compare(bytes) {
                Step::More => {}
                Step::GoesOn { at: good, again, rest } => {
                    let sent = [&again, rest, &source[at..]].concat();
                    return Some((good, sent));
                }
                Step::Lost => return None,
            }
        }
        panic!("all came, and nothing follows")
    }

    /// Goal: with sums, what is gone on with is the source's up to there, and all behind it is sent; a byte
    /// that differs costs its part and what is behind it.
    /// Method: objects of several lengths; no byte differs, or one of each part.
    #[test]
    fn what_goes_on_is_the_sources() {
        let part = PART_LEN as usize;
        let source = bytes(4 * part + 99);
        for len in [1, part, 2 * part + 7, 4 * part + 99] {
            let parts = parts_of(len as u64);
            let cases = std::iter::once(None).chain(parts.iter().map(|(at, len)| Some(at + len / 2)));
            for (object, wrong) in
                [1 << 20, 3_000_001].into_iter().flat_map(|o| cases.clone().map(move |c| (o, c)))
            {
                let mut there = source[..len].to_vec();
                if let Some(wrong) = wrong {
                    there[wrong as usize] ^= 1;
                }
                let sums =
                    parts.iter().map(|(at, len)| sum_of(&there[*at as usize..(at + len) as usize])).collect();
                let mut standing = Standing::by_sums(SUM, parts.clone(), sums);
                let (at, sent) = compared(&mut standing, &source, object).expect("short parts are here");
                let good = wrong.map_or(len as u64, |wrong| wrong - wrong % PART_LEN);
                assert_eq!(at, good, "{len} {wrong:?}");
                assert!(
                    sent == source[at as usize..],
                    "{len} {wrong:?}: something is left out, or sent twice"
                );
            }
        }
    }

    /// Goal: parts are all of what stands there, in their order, and short ones are few.
    #[test]
    fn parts_are_all_of_it() {
        for len in [1, PART_LEN, FINE_LEN, FINE_LEN + 1, 10 * FINE_LEN + 5, u64::MAX / 2] {
            let parts = parts_of(len);
            let end = parts.iter().fold(0, |end, (at, len)| {
                assert_eq!(*at, end);
                end + len
            });
            assert_eq!(end, len);
            assert!(parts.len() as u64 <= FINE_LEN / PART_LEN + 1);
        }
    }

    /// Goal: without sums the end of what stands is compared, and nothing of it counts where that differs.
    #[test]
    fn an_end_that_differs_is_lost() {
        let source = bytes(5 << 20);
        let len = 4_500_000u64;
        let (from, tail) = tail_of(len).expect("long enough");
        assert_eq!(from + tail, len - TORN_LEN);
        let end = (from + tail) as usize;
        for wrong in [false, true] {
            let mut told = source[from as usize..end].to_vec();
            told[777] ^= u8::from(wrong);
            let came = compared(&mut Standing::by_tail(from, told), &source, 1 << 20);
            assert_eq!(came.is_none(), wrong);
            if let Some((at, sent)) = came {
                assert!(at == end as u64 && sent == source[end..]);
            }
        }
        assert_eq!(tail_of(TORN_LEN), None);
    }
}
