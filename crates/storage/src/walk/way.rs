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
use crate::manners::{OnlyThese, Wanted};
use crate::source::view::Place;

/// What is announced of a directory that was seen and not entered yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct About {
    pub(super) meta: Meta,
    pub(super) version: Version,
    /// Device and inode.
    pub(super) identity: (u64, u64),
    /// Its name is a link, which is followed.
    pub(super) followed: bool,
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
    /// Directories between what lies in it and the destination's root.
    pub(super) depth: usize,
    /// Device and inode, where somebody asks for them.
    pub(super) identity: (u64, u64),
    /// What of it is wanted; `None`: all. Then only those names are looked for that were not yet.
    pub(super) only: Option<(OnlyThese, vec::IntoIter<Name>)>,
}

pub(super) type Level = levels::Level<Here>;
pub(super) type Way = levels::Way<Here>;

impl Here {
    pub(super) fn new(id: DirId, place: Place) -> Here {
        let subdirs = Vec::new().into_iter();
        Here { id, place, subdirs, counted: false, depth: 0, identity: (0, 0), only: None }
    }

    /// The same, so deep, of which this is wanted.
    pub(super) fn wanted(self, depth: usize, only: Option<OnlyThese>) -> Here {
        let only = only.map(|only| {
            let names = only.names().into_iter();
            (only, names)
        });
        Here { depth, only, ..self }
    }

    /// What of an entry in it is wanted.
    pub(super) fn wants(&self, name: &Name) -> Wanted {
        self.only.as_ref().map_or(Wanted::All, |(only, _)| only.below(name))
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

    /// The names of it that come next, where not all are wanted, as they were told.
    pub(super) fn wanted_names(&mut self) -> Option<Vec<Name>> {
        /// Looked for at a time.
        const NAMES_MAX: usize = 1024;
        let (_, left) = self.only.as_mut()?;
        let names = left.by_ref().take(NAMES_MAX).collect();
        if left.len() == 0 {
            self.end_reading();
        }
        Some(names)
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
