//! The public API: run a copy, watch it, steer it, stop it.
//!
//! In: a [`CopyRequest`], an [`Observer`] that hears what happens, a [`Control`] that can stop and steer it.
//! Out: a [`Summary`]. Nothing here prints or exits.

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use haul_core::change::Change;
pub use haul_core::layout::{Component, Layout};
pub use haul_core::schedule::Health;
pub use haul_core::stage::{Processors, Stage, StageTime, others_use_up};
pub use haul_core::tune::rate::RATE_MIN;

pub use crate::board::{Side, Sides, SlowTarget, TargetRow, TargetTable};
pub use crate::clean::{CleanJob, CleanReport};
pub use crate::control::{Control, Knob, Phase, Setting, State};
pub use crate::endpoint::{Endpoint, EndpointError, Place, PlaceError, Scheme};
pub use crate::events::{Checking, EntryEnd, EntryKind, Event, Observer, Progress};
pub use crate::layout::{FileLayout, layout};
pub use crate::request::{CopyRequest, RemoteOptions};
pub use crate::summary::{DEBRIS, Held, IN_MEMORY, LEFT_OUT, SKIPPED, Status, Summary, UNSEEN};
pub use haul_launch::{Dialler, SSH_CHANNELS_MAX, protocol_line};
pub use haul_storage::sink::OTHERS_DIRS;
pub use haul_storage::sink::clean::age_in_words;

/// Runs a copy to its end. What goes wrong is in the summary.
pub fn copy(request: CopyRequest, observer: Arc<dyn Observer>, control: Control) -> Summary {
    crate::copy::run(&request, observer, control)
}

/// Whether plain files that the caller writes while the copy runs, by their names behind all links, are apart from what is
/// copied: none lies in a local source, is one, or has the name of a file that is copied.
///
/// # Errors
/// A sentence for people about the first that is not.
pub fn lists_are_apart(request: &CopyRequest, files: &[PathBuf]) -> Result<(), String> {
    crate::copy::lists::are_apart(request, files)
}

/// `haul agent`: serves one session over stdin and stdout. Returns the exit code.
///
/// `home`: the user's home directory; `ssh_connection`: what sshd says of the connection
/// (`SSH_CONNECTION`), from which the address to listen on is taken; `prober`: what it does where it is asked to measure.
pub fn agent(
    home: Option<PathBuf>,
    ssh_connection: Option<String>,
    prober: &'static dyn crate::trial::Prober,
) -> i32 {
    crate::copy::serve(home, ssh_connection, prober)
}

/// `haul agent --channel`: brings a further channel of an ssh connection to the agent of this user that the near end names on
/// stdin, and waits until that has done with it. Returns the exit code.
pub fn agent_channel() -> i32 {
    use std::os::fd::AsFd;
    let handed = haul_launch::channel(std::io::stdin().as_fd(), std::io::stdout().as_fd());
    i32::from(handed.is_err())
}

/// Lists what jobs left below `root`; `remove` deletes what dead ones left, never what a running one needs. `state`: the
/// directory of their journals, where they were told to keep them elsewhere.
pub fn clean(root: &Path, state: Option<&Path>, remove: bool) -> Result<CleanReport, String> {
    crate::clean::run(root, state, remove)
}
