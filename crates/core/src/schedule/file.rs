//! One file after another: the order in which files came, and in each by offset. What most movers do.
//!
//! In: the next object of each target. Out: the target whose next object is the first of all.
//! Left out: targets that are busy or slow. That is the point.

use std::collections::BTreeSet;

use super::queue::Head;

/// The next objects of all targets, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Heads {
    order: BTreeSet<(Head, usize)>,
    /// By target.
    heads: Vec<Option<Head>>,
}

impl Heads {
    pub(super) fn set(&mut self, t: usize, head: Option<Head>) {
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
    pub(super) fn first(&self) -> Option<(usize, Head)> {
        self.order.first().map(|(head, t)| (*t, *head))
    }
}
