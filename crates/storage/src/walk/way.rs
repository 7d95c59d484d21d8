//! A level of the walk of a source.
//!
//! In: directories that are entered. Out: what of them is still to be walked.
//! Left out: which levels are open (`levels`).

use std::sync::Arc;
use std::vec;

use haul_core::entry::{Meta, Name, Version};
use haul_core::ids::DirId;
use rustix::fs::{Mode, openat};
use rustix::io::Errno;

use crate::levels;
pub(super) use crate::levels::{DIR_FLAGS, Names};
use crate::source::view::Place;

/// What is announced of a directory that was seen and not entered yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct About {
    pub(super) meta: Meta,
    pub(super) version: Version,
}

/// What is known of a directory on the way down.
pub(super) struct Here {
    /// `ROOT` for the directory whose contents are a source. Of a level that is only counted: of the last
    /// that is not.
    pub(super) id: DirId,
    pub(super) place: Place,
    /// Directories of the last read that are still to be entered.
    pub(super) subdirs: vec::IntoIter<(Name, About)>,
    /// It lies too deep: its entries are counted and nothing else.
    pub(super) counted: bool,
}

pub(super) type Level = levels::Level<Here>;
pub(super) type Way = levels::Way<Here>;

impl Here {
    pub(super) fn new(id: DirId, place: Place) -> Here {
        Here { id, place, subdirs: Vec::new().into_iter(), counted: false }
    }
}

impl Level {
    /// A directory in this one, of which only the number of entries is wanted.
    ///
    /// # Errors
    /// Of its opening.
    pub(super) fn below(&self, name: Name) -> Result<Level, Errno> {
        let fd = openat(&*self.fd(), name.as_bytes(), DIR_FLAGS, Mode::empty())?;
        Ok(Level::new(Here { counted: true, ..Here::new(self.id, self.place) }, Some(name), Arc::new(fd)))
    }

    /// Nothing of it is left to be done.
    pub(super) fn is_over(&self) -> bool {
        self.is_read() && self.subdirs.len() == 0
    }

    /// The rest of it cannot be walked.
    pub(super) fn give_up(&mut self) {
        self.end_reading();
        self.subdirs = Vec::new().into_iter();
    }
}
