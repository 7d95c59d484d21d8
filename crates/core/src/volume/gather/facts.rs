//! What the gatherer knows of files at this moment, for who checks them.
//!
//! Invariant: nothing is changed by who asks, and nobody is recalled or held up.

use std::ops::Bound;

use super::{Gatherer, Part};
use crate::volume::{ContentVersion, FileNo};

/// A file at this moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub version: ContentVersion,
    pub end: u64,
    /// Nobody may write it directly, nothing of it is on its way into the log, it is not being cut, and the
    /// catalog knows of all that was written.
    pub quiet: bool,
    /// It was removed, in this life or before.
    pub removed: bool,
    /// What the log has of it, in ascending order.
    pub parts: Vec<Part>,
}

impl<B> Gatherer<B> {
    /// What is known of a file. Of one that nobody asked for in this life that is little, and true.
    pub fn facts(&self, file: FileNo) -> Facts {
        let Some(state) = self.files.get(&file) else {
            let version = ContentVersion { gatherer: self.life, changes: 0 };
            let removed = self.gone.contains(&file);
            return Facts { version, quiet: !removed, removed, ..Facts::default() };
        };
        let stripes = || state.stripes.values();
        Facts {
            version: ContentVersion { gatherer: self.life, changes: state.contents.changes },
            end: state.end,
            removed: self.gone.contains(&file),
            quiet: state.contents.is_quiet()
                && state.cutting.is_none()
                && stripes().all(|stripe| stripe.leases.is_empty() && stripe.appending == 0),
            parts: stripes().flat_map(|stripe| stripe.parts.values().copied()).collect(),
        }
    }

    /// Files above `after` of which the log has bytes; at most `max`.
    pub fn gathered_behind(&self, after: FileNo, max: usize) -> Vec<FileNo> {
        let behind = self.files.range((Bound::Excluded(after), Bound::Unbounded));
        let has = behind.filter(|(_, state)| state.stripes.values().any(|stripe| !stripe.parts.is_empty()));
        has.map(|(file, _)| *file).take(max).collect()
    }
}
