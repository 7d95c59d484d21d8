//! `archive` and `owners` where an end is a server: all but owners and groups.
//!
//! In: what was asked for; the summary. Out: the same without owners; with the number of what they were not
//! kept of.
//! Why: of owners a server tells numbers and names of its own host at best, and takes none (`SITE CHOWN` is
//! of few, and for root alone). rsync keeps none, either, where it may not, nor does lftp.

use crate::request::CopyRequest;
use crate::summary::Summary;

/// Leaves owners out of what is asked for, where an end is a server. True: they were asked for.
pub(super) fn leave(request: &mut CopyRequest) -> bool {
    let options = &mut request.options;
    let leaves = options.keeps_owners() && !haul_mutant::removed("archive-leaves-owners-of-servers");
    if leaves {
        options.recursive |= options.archive;
        (options.archive, options.owners) = (false, false);
    }
    leaves
}

/// Says that they were not kept, of how much.
pub(super) fn without(mut summary: Summary) -> Summary {
    let made = summary.dirs.saturating_sub(summary.amended_dirs);
    let copied = summary.files + made + summary.symlinks;
    if copied > 0 && summary.durability.is_some() {
        summary.not_kept.push(("owners and groups, which servers do not keep".into(), copied));
    }
    summary
}
