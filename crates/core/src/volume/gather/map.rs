//! Which stripes of a file are gathered, so that all others are read from where they lie and nobody else is
//! asked.
//!
//! Invariant: what is not named was not gathered when it was asked for. Whoever then reads it from its server
//! may miss what was gathered since, as if he had read before that.

use std::ops::Range;

use super::{Answer, Gatherer};
use crate::volume::{ClientNo, ContentVersion, FileNo, RequestNo};

impl<B> Gatherer<B> {
    pub(super) fn map(&mut self, client: ClientNo, number: RequestNo, file: FileNo, stripes: Range<u64>) {
        let state = self.files.get(&file);
        let mut gathered: Vec<Range<u64>> = Vec::new();
        let of_it = state.into_iter().flat_map(|state| state.stripes.range(stripes.clone()));
        for (at, _) in of_it.filter(|(_, stripe)| !stripe.parts.is_empty()) {
            match gathered.last_mut() {
                Some(last) if last.end == *at => last.end += 1,
                _ => gathered.push(*at..at + 1),
            }
        }
        let end = state.map_or(0, |state| state.end);
        let changes = match state {
            None => Some(0),
            Some(state) => state.contents.settled().filter(|_| state.cutting.is_none()),
        };
        // In a grace clients may have leases of which nothing is known here.
        let changes = changes.filter(|_| self.grace.is_none());
        let version = changes.map(|changes| ContentVersion { gatherer: self.life, changes });
        self.answer(client, number, Answer::Map { gathered, end, version });
    }
}
