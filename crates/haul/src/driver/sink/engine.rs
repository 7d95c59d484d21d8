//! What carries out the sink's operations: files, or nothing at all.

use haul_core::wire::Placed;

use crate::storage::null::NullSink;
use crate::storage::sink::WriteEngine;
use crate::storage::{SinkEngine, SinkJob, Stuck};

/// What carries out operations.
pub(super) enum Engine {
    Files(WriteEngine),
    Null(NullSink),
}

impl Engine {
    pub(super) fn submit(&mut self, job: SinkJob) {
        match self {
            Engine::Files(engine) => engine.submit(job),
            Engine::Null(engine) => engine.submit(job),
        }
    }

    pub(super) fn set_width(&mut self, width: Option<u16>) -> Option<u16> {
        match self {
            Engine::Files(engine) => engine.set_width(width),
            Engine::Null(engine) => engine.set_width(width),
        }
    }

    pub(super) fn stuck(&self) -> Vec<Stuck> {
        match self {
            Engine::Files(engine) => engine.stuck(),
            Engine::Null(engine) => engine.stuck(),
        }
    }

    /// Which stripes files got.
    pub(super) fn placed(&self) -> Placed {
        match self {
            Engine::Files(engine) => engine.placed(),
            Engine::Null(_) => Placed::default(),
        }
    }

    pub(super) fn report(&self) -> Vec<(String, String)> {
        match self {
            Engine::Files(engine) => engine.report(),
            Engine::Null(engine) => engine.report(),
        }
    }

    /// What of temporaries was left, and the command that removes it.
    pub(super) fn left(&self) -> Option<String> {
        match self {
            Engine::Files(engine) => engine.left(),
            Engine::Null(_) => None,
        }
    }

    /// Ends it; what hangs and was left, in words.
    pub(super) fn end(&mut self) -> Vec<String> {
        match self {
            Engine::Files(engine) => engine.end(),
            Engine::Null(_) => Vec::new(),
        }
    }
}
