//! One file after another: the order in which files came, and in each by offset. What most movers do.
//!
//! In: the next object of each target. Out: the target whose next object is the first of all.
//! Left out: targets that are busy or slow. That is the point.

use std::collections::BTreeSet;

use super::history::History;
use super::queue::{Head, Queues};
use super::{Limits, PolicyKind, Rule, Sample};
use crate::ids::{SinkTarget, Time};

/// One file after another, whatever targets they lie on: to compare with.
pub(super) const POLICY: PolicyKind =
    PolicyKind { name: "file", numbers: "", meaning: "", rule: |_| Box::new(FileOrder::default()) };

#[derive(Clone, Debug, Default)]
struct FileOrder {
    heads: Heads,
    history: History,
}

impl Rule for FileOrder {
    fn on_done(&mut self, t: usize, _: u32, sample: Option<Sample>, limits: &Limits, _: Time) {
        if let Some(sample) = sample {
            self.history.add(t, sample, limits.each);
        }
    }

    /// Shown, and not heeded.
    fn window(&self, _: usize, limits: &Limits) -> u32 {
        limits.each
    }

    fn is_in_order(&self) -> bool {
        true
    }

    fn on_waiting(&mut self, t: usize, queues: &mut Queues) {
        self.heads.set(t, queues.head(t, SinkTarget::ANY));
    }

    fn first(&mut self, queues: &mut Queues) -> Option<usize> {
        loop {
            let (t, head) = self.heads.first()?;
            let found = queues.head(t, SinkTarget::ANY);
            self.heads.set(t, found);
            if found == Some(head) {
                return Some(t);
            }
        }
    }

    fn history(&self) -> &History {
        &self.history
    }
}

/// The next objects of all targets, in order.
#[derive(Clone, Debug, Default)]
struct Heads {
    order: BTreeSet<(Head, usize)>,
    /// By target.
    heads: Vec<Option<Head>>,
}

impl Heads {
    fn set(&mut self, t: usize, head: Option<Head>) {
        if self.heads.len() <= t {
            self.heads.resize(t + 1, None);
        }
        let before = std::mem::replace(&mut self.heads[t], head);
        if before != head {
            if let Some(before) = before {
                self.order.remove(&(before, t));
            }
            self.order.extend(head.map(|head| (head, t)));
        }
    }

    /// The target whose next object is the first, and that object.
    fn first(&self) -> Option<(usize, Head)> {
        self.order.first().map(|(head, t)| (*t, *head))
    }
}
