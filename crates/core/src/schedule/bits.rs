//! Sets of small numbers, searched from any place on.
//!
//! In: numbers below some thousands. Out: the next one of a set, in a ring.
//! What was never set costs nothing: a set is as long as its largest number.

/// Numbers per word.
const WORD: usize = 64;

/// A set of small numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    pub(super) fn contains(&self, number: usize) -> bool {
        self.word(number / WORD) >> (number % WORD) & 1 == 1
    }

    /// Puts a number in or takes it out; says whether that changed the set.
    pub(super) fn set(&mut self, number: usize, on: bool) -> bool {
        if self.contains(number) == on {
            return false;
        }
        if self.0.len() <= number / WORD {
            self.0.resize(number / WORD + 1, 0);
        }
        self.0[number / WORD] ^= 1 << (number % WORD);
        true
    }

    /// The numbers from `64 * index` on, the lowest in the lowest bit.
    pub(super) fn word(&self, index: usize) -> u64 {
        self.0.get(index).copied().unwrap_or(0)
    }

    /// Takes out all that are in `other`.
    pub(super) fn remove_all(&mut self, other: &Bits) {
        for (word, gone) in self.0.iter_mut().zip(&other.0) {
            *word &= !gone;
        }
    }

    /// The first of the set from `from` on, in a ring, of those whose bits stand in what `mask` says of their
    /// word.
    pub(super) fn next(&self, from: usize, mask: impl Fn(usize) -> u64) -> Option<usize> {
        let words = self.0.len();
        if words == 0 {
            return None;
        }
        let from = if from < words * WORD { from } else { 0 };
        let (first, above) = (from / WORD, u64::MAX << (from % WORD));
        // The word of `from` comes twice: at first what lies above, in the end what lies below.
        (0..=words).find_map(|step| {
            let index = (first + step) % words;
            let part = match step {
                0 => above,
                step if step == words => !above,
                _ => u64::MAX,
            };
            let found = self.0[index] & part;
            let found = if found == 0 { 0 } else { found & mask(index) };
            (found != 0).then(|| index * WORD + found.trailing_zeros() as usize)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the next in the ring is the next in the ring.
    /// Method: random sets and masks, against a search number by number.
    #[test]
    fn the_next_in_the_ring() {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..2000 {
            let size = rng.usize(1..200);
            let (mut set, mut mask) = (Bits::default(), Bits::default());
            for _ in 0..rng.usize(0..20) {
                set.set(rng.usize(0..size), true);
                mask.set(rng.usize(0..size), rng.bool());
            }
            let from = rng.usize(0..size);
            let all: Vec<usize> = (from..size).chain(0..from).collect();
            let model = all.iter().copied().find(|n| set.contains(*n) && mask.contains(*n));
            assert_eq!(set.next(from, |word| mask.word(word)), model, "{set:?} {mask:?} from {from}");
            set.remove_all(&mask);
            assert_eq!(set.next(from, |word| mask.word(word)), None);
        }
    }
}
