//! How the small files of a commit get to media: each by a sync of its own, or all of them by one of the file
//! system that they lie on.
//!
//! In: how many there are, how long both ways took, how much else waits to be written. Out: how many of them
//! are synced by themselves; the others go together.
//!
//! - A sync of the file system costs about as much for a thousand small files as for a few: one commit of its
//!   journal, and what is dirty. It writes what is dirty of others, too, for which we would wait: so it is
//!   not tried while that is much, and left as soon as it costs more than syncs of the files do.
//! - What the way costs that is not taken is looked at again from time to time, on a few files where those
//!   are synced by themselves, and more and more rarely where all of them together were dearer.
//! - A file system that told of an error is not synced as a whole again: what it tells is said once, and
//!   belongs to any of its files.

use std::time::Duration;

/// Fewer are not worth a sync of a whole file system.
const FEWEST: usize = 8;
/// So many are synced by themselves to see what that costs.
const TRIED: usize = 32;
/// The way that is not taken is looked at again after so many commits; one that was dearer after twice as
/// many each time, up to [`AGAIN_MAX`].
const AGAIN: u32 = 16;
const AGAIN_MAX: u32 = 256;
/// Where more bytes of others are dirty, nobody wants to wait for them.
const OTHERS_MAX: u64 = 128 << 20;

/// See the module.
#[derive(Clone, Debug)]
pub struct Together {
    /// Nanoseconds of a file, and of a sync of the file system.
    each: Option<f64>,
    all: Option<f64>,
    /// Commits since the way that is not taken was looked at, and how many there are to be.
    since: u32,
    again: u32,
    failed: bool,
}

impl Default for Together {
    fn default() -> Together {
        Together { each: None, all: None, since: 0, again: AGAIN, failed: false }
    }
}

impl Together {
    /// How many of the next `files` are synced each by itself; the others go together. `others`: bytes of
    /// others that are dirty.
    pub fn plan(&mut self, files: usize, others: u64) -> usize {
        if self.failed || files < FEWEST {
            return files;
        }
        let is_free = others <= OTHERS_MAX;
        let (all, each) = match (self.all, self.each) {
            (None, _) => return if is_free { 0 } else { files },
            (Some(_), None) => return TRIED.min(files),
            (Some(all), Some(each)) => (all, each),
        };
        self.since += 1;
        let looks = self.since >= self.again;
        match all <= each * files as f64 {
            true if looks => {
                self.since = 0;
                TRIED.min(files / 4)
            }
            true => 0,
            false if looks && is_free => {
                self.since = 0;
                self.again = (self.again * 2).min(AGAIN_MAX);
                0
            }
            false => files,
        }
    }

    /// So many were synced by themselves, and that took so long.
    pub fn each_took(&mut self, files: usize, took: Duration) {
        if files > 0 {
            mean(&mut self.each, took.as_nanos() as f64 / files as f64);
        }
    }

    /// A sync of the file system took so long, for so many.
    pub fn all_took(&mut self, files: usize, took: Duration) {
        let took = took.as_nanos() as f64;
        if self.each.is_some_and(|each| took <= each * files as f64) {
            self.again = AGAIN;
        }
        mean(&mut self.all, took);
    }

    /// A sync of the file system failed.
    pub fn failed(&mut self) {
        self.failed = true;
    }

    /// What a file costs that is synced by itself, and a sync of the file system, where both are known.
    pub fn costs(&self) -> Option<(Duration, Duration)> {
        let time = |nanos: f64| Duration::from_nanos(nanos as u64);
        Some((time(self.each?), time(self.all?)))
    }
}

/// What is new counts as much as all that was before.
fn mean(of: &mut Option<f64>, new: f64) {
    *of = Some(of.map_or(new, |old| (old + new) / 2.0));
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A run of `commits` commits of `files` on a storage where both ways cost so much; how many went
    /// together.
    fn run(way: &mut Together, (commits, files): (usize, usize), each: Duration, all: Duration) -> usize {
        (0..commits).map(|_| commit(way, files, each, all)).sum()
    }

    fn commit(way: &mut Together, files: usize, each: Duration, all: Duration) -> usize {
        let alone = way.plan(files, 0);
        assert!(alone <= files);
        way.each_took(alone, each * alone as u32);
        if alone < files {
            way.all_took(files - alone, all);
        }
        files - alone
    }

    /// Goal: nearly all files go the way that costs less, and what is dearer is found out by a few of them.
    #[test]
    fn the_cheaper_way_is_taken() {
        let mut way = Together::default();
        let together = run(&mut way, (100, 500), MS, 50 * MS);
        assert!(together > 49_000, "{together}");
        let mut way = Together::default();
        let together = run(&mut way, (100, 50), MS, 200 * MS);
        assert!(together < 6 * 50, "{together}");
    }

    /// Goal: where it becomes dear to sync the file system, for others write to it, it is left at once; and
    /// taken again when they are done.
    #[test]
    fn it_goes_back_and_comes_again() {
        let mut way = Together::default();
        run(&mut way, (20, 200), MS, 40 * MS);
        let together = run(&mut way, (20, 200), MS, 4_000 * MS);
        assert!(together <= 3 * 200, "{together}");
        run(&mut way, (600, 200), MS, 40 * MS);
        let together = run(&mut way, (20, 200), MS, 40 * MS);
        assert!(together >= 18 * 200, "{together}");
    }

    /// Goal: nothing is tried where much of others is dirty, nor for a few files, nor behind an error.
    #[test]
    fn it_is_not_tried_where_it_would_cost_others() {
        let mut way = Together::default();
        assert_eq!(way.plan(500, OTHERS_MAX + 1), 500);
        assert_eq!(way.plan(FEWEST - 1, 0), FEWEST - 1);
        assert_eq!(way.plan(500, 0), 0);
        way.failed();
        assert_eq!(way.plan(500, 0), 500);
    }
}
