//! What a copy leaves out, for its summary: the first names, and how many there are.
//!
//! In: paths of entries. Out: how many, and a line of a report.
//! Invariants: a line is bounded whatever is left out, and no name ends it.

use haul_base::escape;

/// Names that a report has, and the longest, in characters.
const SHOWN: usize = 8;
const CHARS: usize = 120;

/// Entries of one kind that were left out.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeftOut {
    count: u64,
    names: Vec<String>,
}

impl LeftOut {
    pub(crate) fn add(&mut self, path: &[u8]) {
        self.count += 1;
        if self.names.len() < SHOWN {
            // A line of names must not be told where it ends by one of them.
            self.names.push(escape::name(path).chars().take(CHARS).collect());
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// `a, b and 7 more (WHAT)`; `None`: nothing was left out.
    pub(crate) fn in_words(&self, what: &str) -> Option<String> {
        let more = self.count.saturating_sub(self.names.len() as u64);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        (self.count > 0).then(|| format!("{}{more} ({what})", self.names.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a line names the first of what was left out and counts the rest, and is one line.
    #[test]
    fn the_first_are_named_and_all_are_counted() {
        let mut left = LeftOut::default();
        assert_eq!(left.in_words("links"), None);
        left.add(b"a\nb");
        assert_eq!(left.in_words("links").as_deref(), Some("a\\nb (links)"));
        for n in 1..10_u8 {
            left.add(&[b'0' + n]);
        }
        assert_eq!(left.in_words("links").as_deref(), Some("a\\nb, 1, 2, 3, 4, 5, 6, 7 and 2 more (links)"));
        assert_eq!(left.count(), 10);
        left = LeftOut::default();
        left.add(&[b'x'; 1000]);
        assert_eq!(left.in_words("links").map(|line| line.len()), Some(CHARS + " (links)".len()));
    }
}
