//! What the sink says of its storage targets.

use super::Source;
use crate::ids::{Class, FileId, Generation};
use crate::layout::Layout;
use crate::wire::TargetHealth;

impl Source {
    /// So many bytes may have been sent in all, or, of another class than [`Class::ANY`], in frames that name it.
    pub(super) fn handle_grant(&mut self, class: Class, total: u64) {
        if class == Class::ANY {
            self.credit = self.credit.max(total);
        }
    }

    /// How targets of the sink fare.
    pub(super) fn handle_sink_health(&mut self, _targets: &[TargetHealth]) {}

    /// A file was made at the sink, and lies so. Files that are over, and other generations, are ignored.
    pub(super) fn handle_file_targets(
        &mut self,
        _id: FileId,
        _generation: Generation,
        _layout: &Layout<Class>,
    ) {
    }
}
