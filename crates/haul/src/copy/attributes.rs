//! `xattrs`, `acls` and `hard_links` where an end is a server or a volume: neither has a place for them.
//!
//! In: what was asked for; the summary. Out: the same without them; with the number of what they were not
//! kept of, whether it had any or not: nobody looks. Files with several names a walk counts, as where nobody
//! asks for hard links.

use crate::request::CopyRequest;
use crate::summary::Summary;

/// What there is for files of this host and of hosts with haul.
const FILE: &str = "file";

/// Leaves them out of what is asked for, where an end has none. True: they were asked for, and would have
/// been looked for.
pub(super) fn leave(request: &mut CopyRequest) -> bool {
    let asked = request.options.xattrs || request.options.acls;
    let mut ends = request.sources.iter().chain([&request.destination]).map(|end| end.place().scheme());
    let all_have = ends.all(|scheme| scheme.name == FILE);
    // A part of a file is no name of it.
    request.options.hard_links &= all_have && request.options.range.is_none();
    if !asked || all_have {
        return false;
    }
    (request.options.xattrs, request.options.acls) = (false, false);
    // What is read for nothing, or comes from nowhere, has none to lose.
    let ends = request.sources.iter().chain([&request.destination]).map(|end| end.place().scheme());
    ends.filter(|scheme| scheme.name != FILE).all(|scheme| scheme.keeps)
}

/// Says that they were not kept, of how much.
pub(super) fn without(mut summary: Summary) -> Summary {
    let made = summary.dirs.saturating_sub(summary.amended_dirs);
    let copied = summary.files + made + summary.symlinks;
    if copied > 0 && summary.durability.is_some() {
        let what = "extended attributes and ACLs, which servers and volumes do not keep";
        summary.not_kept.push((what.into(), copied));
    }
    summary
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Endpoint;

    /// Goal: an end that has no place for attributes is no failure, and what it does not keep is counted;
    /// what is read for nothing loses none.
    /// Method: destinations of each kind.
    #[test]
    fn what_has_no_place_is_counted() {
        let cases = [("/tmp/x", true, false), ("host:/tmp/x", true, false), ("null://", false, false)];
        let ftp = cfg!(feature = "ftp").then_some(("ftp://server/x", false, true));
        let volume = cfg!(feature = "volume").then_some(("vol://name/x", false, true));
        for (destination, keeps, tells) in cases.into_iter().chain(ftp).chain(volume) {
            let end = Endpoint::parse(destination.as_ref(), |_| false).expect("an end");
            let mut request = CopyRequest::new(vec![Endpoint::from("/tmp/a")], end);
            (request.options.xattrs, request.options.acls) = (true, true);
            request.options.hard_links = true;
            assert_eq!(leave(&mut request), tells, "{destination}");
            assert_eq!((request.options.xattrs, request.options.acls), (keeps, keeps), "{destination}");
            assert_eq!(request.options.hard_links, keeps, "{destination}");
            request.options = crate::options::Options::default();
            assert!(!leave(&mut request), "nobody asked for them");
        }
        let durability = crate::options::Durability::Disk;
        let summary = Summary { files: 3, dirs: 1, durability: Some(durability), ..Summary::default() };
        assert_eq!(without(summary).not_kept[0].1, 4);
    }
}
