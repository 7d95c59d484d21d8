//! Maps of sparse files.
//!
//! In: `HOLES` of files that were announced as sparse. Out: files that are looked up or open.
//! Invariants: a map is legal, comes once, and before anything else of its file is taken up; the extents of
//! all open files stay within [`EXTENTS_OPEN_MAX`]; parts of an earlier run count only if they were made
//! under the same map.
//! Left out: pre-allocation of the data extents, which is the engine's.

use super::Sink;
use super::file::{File, Mark, SinkPhase};
use crate::digest::SubtreeSet;
use crate::extents::{DataExtent, EXTENTS_MAX, EXTENTS_OPEN_MAX, ExtentMap, MapError, check_next};
use crate::ids::{FileId, Generation};

impl Sink {
    pub(super) fn handle_holes(
        &mut self,
        id: FileId,
        generation: Generation,
        extents: Vec<DataExtent>,
        last: bool,
    ) {
        if self.extents + extents.len() > EXTENTS_OPEN_MAX {
            return self.violation("more data extents of sparse files than the limit");
        }
        let Some(file) = self.files.get_mut(&id) else {
            if !self.announced.is_past(id) {
                self.violation("the map of a file that was never announced");
            }
            // Else it failed here, and the source had not heard of that yet.
            return;
        };
        let waits =
            file.is(Mark::WaitsMap) && file.phase == SinkPhase::Looking && file.kept.generation == generation;
        if !waits || (extents.is_empty() && !last) {
            return self
                .violation("a map that was not announced, came twice or late, or an empty part of one");
        }
        self.extents += extents.len();
        if let Err(error) = add_part(file, &extents) {
            return self.violation(&error.to_string());
        }
        if !last {
            return;
        }
        let map = match ExtentMap::new(file.size(), std::mem::take(&mut file.map_parts)) {
            Ok(map) => map,
            Err(error) => return self.violation(&error.to_string()),
        };
        file.unmark(Mark::WaitsMap);
        if map.is_full() {
            self.extents -= map.extents().len();
        } else {
            self.holes = self.holes.saturating_add(map.size() - map.data_len());
            file.kept.set_map(Some(map.clone()));
            file.digest = SubtreeSet::with_map(self.config.agreed.digest, map);
        }
        file.take_up(&mut self.earlier);
        let again = file.is(Mark::WaitsJournal);
        if !again && !self.drains.contains_key(&id) {
            self.look_up_or_open(id);
        }
    }

    /// The file ended or was withdrawn: its map is worth nothing any more.
    pub(super) fn drop_map(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        self.extents -= file.map_parts.len();
        file.map_parts = Vec::new();
        file.unmark(Mark::WaitsMap);
        if let Some(map) = file.digest.map() {
            self.extents -= map.extents().len();
            self.holes = self.holes.saturating_sub(map.size() - map.data_len());
            file.digest = SubtreeSet::new(self.config.agreed.digest, file.size());
            file.kept.set_map(None);
        }
    }
}

/// Checks and keeps extents that follow those which came before.
fn add_part(file: &mut File, extents: &[DataExtent]) -> Result<(), MapError> {
    if file.map_parts.len() + extents.len() > EXTENTS_MAX {
        return Err(MapError::TooMany);
    }
    let size = file.size();
    for extent in extents {
        check_next(size, file.map_parts.last(), extent)?;
        file.map_parts.push(*extent);
    }
    Ok(())
}
