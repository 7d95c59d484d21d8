//! What the source's end holds of storage and of payload under way.

use std::collections::HashMap;
use std::sync::Arc;

use haul_base::buffer::{Buffer, Pool};
use haul_core::ids::BufferId;
use haul_storage::SourceEngine;
use haul_storage::store::SourceNames;

use crate::driver::spill::Spill;

/// Where the data comes from.
pub(super) struct Storage {
    pub(super) names: Arc<dyn SourceNames>,
    pub(super) engine: Box<dyn SourceEngine>,
    pub(super) object_size: u32,
}

/// Payload on its way from storage to a stream.
pub(super) struct Payload {
    pub(super) pool: Pool,
    pub(super) spill: Spill,
    pub(super) buffers: HashMap<BufferId, Buffer>,
}
