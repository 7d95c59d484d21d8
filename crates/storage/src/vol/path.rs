//! Where a path of a volume leads: names of several components, and symbolic links on the way.
//!
//! In: a path as typed. Out: what it leads to, or which names are not there. A volume's root is where
//! absolute links begin, and nothing leads above it.

use haul_core::entry::Name;
use haul_core::volume::catalog::{Entry, EntryNo, Kind, Place as At, ROOT};
use haul_core::wire::{Failure, FailureKind};
use rustix::io::Errno;

use super::Volume;

/// Links that are followed on one way.
const LINKS_MAX: usize = 40;
/// Components of one way, links on it included.
const PARTS_MAX: usize = 65_536;

/// Where a path leads.
pub(super) struct Led {
    /// The place of its last name, or of the first one that is not there; `None`: it ends in dots or a slash,
    /// at a directory.
    pub(super) at: Option<At>,
    /// `None`: nothing is there.
    pub(super) entry: Option<Entry>,
    /// Names behind the first one that is not there.
    pub(super) missing: Vec<Name>,
}

/// Follows a path; with `follow` also the link that it ends at.
///
/// # Errors
/// Of this kind: something on the way is no directory, or cannot be looked at; there are too many links.
pub(super) fn lead(volume: &Volume, path: &[u8], follow: bool, kind: FailureKind) -> Result<Led, Failure> {
    let fail = |errno: Errno, why: &str| volume.failed(kind, "open", path, errno.raw_os_error(), why);
    let refused = |why| volume.refused(kind, "look up", path, &why);
    let (mut todo, mut way): (Vec<Vec<u8>>, Vec<EntryNo>) = (parts(path), vec![ROOT]);
    let (mut links, mut walked) = (0, 0);
    while let Some(part) = todo.pop() {
        walked += 1;
        if walked > PARTS_MAX {
            return Err(fail(Errno::LOOP, "the way is too long"));
        }
        match &part[..] {
            b"" | b"." => continue,
            b".." => {
                // The root is its own parent.
                if way.len() > 1 {
                    way.pop();
                }
                continue;
            }
            _ => {}
        }
        let name = Name::new(&part).map_err(|why| fail(Errno::INVAL, &why.to_string()))?;
        let parent = way.last().copied().unwrap_or(ROOT);
        let (at, is_last) = (At { parent, name }, todo.is_empty());
        let Some(entry) = volume.at(&at).map_err(refused)? else {
            let rest = todo.into_iter().rev().filter(|part| !matches!(&part[..], b"" | b"."));
            let missing = rest
                .map(|part| match &part[..] {
                    b".." => Err(fail(Errno::NOENT, "there is no such directory")),
                    part => Name::new(part).map_err(|why| fail(Errno::INVAL, &why.to_string())),
                })
                .collect::<Result<_, _>>()?;
            return Ok(Led { at: Some(at), entry: None, missing });
        };
        match &entry.kind {
            Kind::Link(target) if !is_last || follow => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(fail(Errno::LOOP, "too many symbolic links on the way"));
                }
                if target.starts_with(b"/") {
                    way.truncate(1);
                }
                todo.append(&mut parts(target));
            }
            Kind::Directory if !is_last => way.push(entry.id),
            _ if is_last => return Ok(Led { at: Some(at), entry: Some(entry), missing: Vec::new() }),
            Kind::File | Kind::Link(_) | Kind::Directory => {
                return Err(fail(Errno::NOTDIR, "something on the way is no directory"));
            }
        }
    }
    let id = way.last().copied().unwrap_or(ROOT);
    let entry = volume.catalog.stat(id).map_err(refused)?;
    Ok(Led { at: None, entry: Some(entry), missing: Vec::new() })
}

/// The components of a path, the last one first.
fn parts(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec).collect()
}

/// What follows the last slash.
pub(super) fn last_part(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// A path that ends so is of a directory itself, and not of a name in one.
pub(super) fn is_dots(last: &[u8]) -> bool {
    matches!(last, b"" | b"." | b"..")
}

/// What the directory whose contents are meant is called, if its path says so.
pub(super) fn name_of_dir(path: &[u8]) -> Option<Name> {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    Name::new(last_part(path)).ok()
}
