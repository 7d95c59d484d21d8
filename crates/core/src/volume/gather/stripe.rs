//! A stripe as its gatherer knows it: what the log has of it, who may write it directly, and what waits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use super::Part;
use crate::volume::{ClientNo, FileNo, RequestNo};

#[derive(Debug)]
pub(super) enum Queued<B> {
    Write {
        client: ClientNo,
        number: RequestNo,
        offset: u64,
        len: u64,
        bytes: B,
    },
    /// Where it stands is said when it is done.
    Append {
        client: ClientNo,
        len: u64,
        bytes: B,
    },
    /// A lease that waits in each of its stripes.
    Lease(u64),
}

impl<B> Queued<B> {
    /// Whose write or append it is.
    pub(super) fn writer(&self) -> Option<ClientNo> {
        match self {
            Queued::Write { client, .. } | Queued::Append { client, .. } => Some(*client),
            Queued::Lease(_) => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct WantedLease {
    pub(super) client: ClientNo,
    pub(super) number: RequestNo,
    pub(super) file: FileNo,
    pub(super) stripes: Range<u64>,
}

#[derive(Debug)]
pub(super) struct Stripe<B> {
    /// What the log has, by offset: no two overlap.
    pub(super) parts: BTreeMap<u64, Part>,
    /// Appends under way.
    pub(super) appending: u32,
    pub(super) leases: BTreeSet<ClientNo>,
    /// Those of whom their leases were asked back.
    pub(super) recalled: BTreeSet<ClientNo>,
    pub(super) queue: VecDeque<Queued<B>>,
    pub(super) pushing: bool,
    /// So many times it is to be on media in the log that something was brought.
    pub(super) noting: u32,
}

impl<B> Default for Stripe<B> {
    fn default() -> Stripe<B> {
        Stripe {
            parts: BTreeMap::new(),
            appending: 0,
            leases: BTreeSet::new(),
            recalled: BTreeSet::new(),
            queue: VecDeque::new(),
            pushing: false,
            noting: 0,
        }
    }
}

impl<B> Stripe<B> {
    pub(super) fn is_clean(&self) -> bool {
        self.parts.is_empty() && self.appending == 0 && !self.pushing && self.noting == 0
    }

    pub(super) fn is_idle(&self) -> bool {
        self.is_clean() && self.leases.is_empty() && self.queue.is_empty()
    }

    /// These bytes are the newest of their place.
    pub(super) fn cover(&mut self, part: Part) {
        cut(&mut self.parts, part.offset, part.offset + part.len, |_| true);
        self.parts.insert(part.offset, part);
    }
}

/// Takes a range out of what lies there, as far as `takes` says so of each part.
pub(super) fn cut(parts: &mut BTreeMap<u64, Part>, start: u64, end: u64, takes: impl Fn(&Part) -> bool) {
    let touched = parts.range(..end).rev().take_while(|(_, part)| part.offset + part.len > start);
    let touched: Vec<Part> = touched.map(|(_, part)| *part).filter(|part| takes(part)).collect();
    for part in touched {
        parts.remove(&part.offset);
        if part.offset < start {
            parts.insert(part.offset, Part { len: start - part.offset, ..part });
        }
        let part_end = part.offset + part.len;
        if part_end > end {
            let skipped = end - part.offset;
            parts.insert(end, Part { offset: end, len: part_end - end, from: part.from + skipped, ..part });
        }
    }
}

/// What of a part lies in a range.
pub(super) fn within(part: Part, start: u64, end: u64) -> Option<Part> {
    let (from, to) = (part.offset.max(start), (part.offset + part.len).min(end));
    (from < to).then(|| Part { offset: from, len: to - from, from: part.from + (from - part.offset), ..part })
}
