//! The way of one file's objects to storage: its descriptors, the mode that they are written in, and the
//! writes that wait for it.
//!
//! Left out: who sends a write on this way, and what becomes of it (`engine/data.rs`).

use std::sync::Arc;

use haul_core::io::IoMode;
use haul_core::transfer::op::Took;
use haul_core::wire::Failure;

use super::mode::{Alignment, DirectSlot};
use super::mode_switch::ModeSwitch;
use super::syncs::Syncs;
use crate::io::IoFile;
use crate::owed::Owed;
use haul_base::buffer::Buffer;

/// How the objects of one file reach storage.
#[derive(Default)]
pub(super) struct Path {
    pub(super) switch: ModeSwitch<Pending>,
    /// Set before the first object.
    pub(super) buffered: Option<Arc<IoFile>>,
    pub(super) direct: Option<DirectFile>,
    /// What direct I/O asks for; `None`: this file is written through the cache, from now on for good.
    pub(super) alignment: Option<Alignment>,
    /// Written and not on its way to media: from, to. Somebody is about to see to it.
    pub(super) write_back: Option<(u64, u64)>,
    pub(super) syncs: Arc<Syncs>,
}

/// The way that a write takes, as it is when the switch lets it through.
pub(super) struct Way {
    pub(super) mode: IoMode,
    pub(super) file: Arc<IoFile>,
    pub(super) alignment: Option<Alignment>,
}

/// A write with its payload.
pub(super) struct Pending {
    pub(super) buffer: Buffer,
    pub(super) start: usize,
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) owed: Owed<Took>,
}

/// A descriptor for direct I/O.
pub(super) struct DirectFile {
    pub(super) file: Arc<IoFile>,
    pub(super) _slot: DirectSlot,
}

impl Pending {
    /// It is answered with a failure; its buffer is back before.
    pub(super) fn fail(self, failure: Failure) {
        let Pending { buffer, owed, .. } = self;
        drop(buffer);
        owed.settle(Err(failure));
    }
}

impl Path {
    /// Payload bytes that were written in this session.
    pub(super) fn written(&self) -> u64 {
        self.switch.written()
    }

    pub(super) fn way(&self) -> Way {
        let mode = self.switch.mode();
        let direct = self.direct.as_ref().map(|direct| &direct.file);
        let file = match mode {
            IoMode::Buffered => self.buffered.as_ref(),
            IoMode::Direct => direct,
        };
        let file = file.expect("a file has the descriptor of its mode").clone();
        Way { mode, file, alignment: self.alignment }
    }
}
