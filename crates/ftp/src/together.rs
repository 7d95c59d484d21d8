//! Commands that are under way together: the first of them is answered while the last are on their way.
//!
//! In: what is asked about, and how long each command is. Out: parts that can be sent at once.
//! Invariant: no more bytes and commands are sent before their answers are heard than a server takes that
//! listens to nobody meanwhile, so that both ends never wait for each other.

use crate::control::COMMANDS_LEN_MAX;

/// Commands in a part: what is said of each may be long.
const TOGETHER_MAX: usize = 256;
/// Of a command with a path, beside that.
pub(crate) const COMMAND_LEN: usize = "MLST \r\n".len();

/// These in parts, in their order; `len`: bytes of what is asked about one. A part has one at least.
pub(crate) fn together<'a, T>(all: &'a [T], len: impl Fn(&T) -> usize + 'a) -> impl Iterator<Item = &'a [T]> {
    let mut rest = all;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |one: &&T| {
            bytes += len(one);
            bytes <= COMMANDS_LEN_MAX
        };
        let count = rest.iter().take(TOGETHER_MAX).take_while(fits).count();
        let (some, others) = rest.split_at(count.max(1).min(rest.len()));
        rest = others;
        (!some.is_empty()).then_some(some)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is under way together has bounds, each is in one part, in its order.
    #[test]
    fn parts_are_bounded() {
        for (count, len) in [(0, 1), (1, 1), (1000, 1), (1000, 100), (7, COMMANDS_LEN_MAX), (3, 1 << 20)] {
            let all: Vec<usize> = (0..count).collect();
            let parts: Vec<&[usize]> = together(&all, |_| len).collect();
            assert_eq!(parts.concat(), all);
            let is_bounded = |part: &&[usize]| {
                !part.is_empty()
                    && part.len() <= TOGETHER_MAX
                    && (part.len() == 1 || part.len() * len <= COMMANDS_LEN_MAX)
            };
            assert!(parts.iter().all(is_bounded), "{count} of {len}");
            assert!(count < 500 || parts.len() <= 10, "{count} of {len}: {} parts", parts.len());
        }
    }
}
