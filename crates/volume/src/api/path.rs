//! Where a path of a volume leads: names of several components, and symbolic links on the way.
//!
//! In: a path. Out: what it leads to, or the place of the last name, where nothing is. The volume's root is
//! where absolute links begin, and nothing leads above it.

use haul_core::entry::Name;
use haul_core::volume::catalog::{Entry, EntryNo, Kind, Place, ROOT};
use rustix::io::Errno;

use super::error::Why;
use crate::catalog::client::Client as Catalog;

/// Links that are followed on one way.
const LINKS_MAX: usize = 40;
/// Components of one way, links on it included.
const PARTS_MAX: usize = 65_536;

/// Where a path leads.
pub(super) struct Led {
    /// The place of its last name; `None`: it ends in dots or a slash, at a directory.
    pub(super) at: Option<Place>,
    /// `None`: nothing is there.
    pub(super) entry: Option<Entry>,
}

impl Led {
    /// What is there.
    pub(super) fn found(self) -> Result<Entry, Why> {
        self.entry.ok_or_else(|| Why::refused(Errno::NOENT, "it is not there"))
    }

    /// The place of a name that something is done to.
    pub(super) fn name(self) -> Result<Place, Why> {
        let why = "its path ends in a slash or in dots, and not in a name";
        self.at.ok_or_else(|| Why::refused(Errno::INVAL, why))
    }
}

/// Follows a path; with `follow` also the link that it ends at.
pub(super) fn lead(catalog: &Catalog, path: &[u8], follow: bool) -> Result<Led, Why> {
    let (mut todo, mut way): (Vec<Vec<u8>>, Vec<EntryNo>) = (parts(path), vec![ROOT]);
    let (mut links, mut walked) = (0, 0);
    while let Some(part) = todo.pop() {
        walked += 1;
        if walked > PARTS_MAX {
            return Err(Why::refused(Errno::LOOP, "the way is too long"));
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
        let errno = if part.len() > 255 { Errno::NAMETOOLONG } else { Errno::INVAL };
        let name = Name::new(&part).map_err(|why| Why::refused(errno, why.to_string()))?;
        let parent = way.last().copied().unwrap_or(ROOT);
        let (at, is_last) = (Place { parent, name }, todo.is_empty());
        let entry = match catalog.lookup(at.clone()) {
            Ok(entry) => entry,
            Err(why) if why.errno == Errno::NOENT.raw_os_error() && is_last => {
                return Ok(Led { at: Some(at), entry: None });
            }
            Err(why) if why.errno == Errno::NOENT.raw_os_error() => {
                return Err(Why::refused(Errno::NOENT, "a directory on its way is not there"));
            }
            Err(why) => return Err(why.into()),
        };
        match &entry.kind {
            Kind::Link(target) if !is_last || follow => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Why::refused(Errno::LOOP, "too many symbolic links on the way"));
                }
                if target.starts_with(b"/") {
                    way.truncate(1);
                }
                todo.append(&mut parts(target));
            }
            _ if is_last => return Ok(Led { at: Some(at), entry: Some(entry) }),
            Kind::Directory => way.push(entry.id),
            Kind::File | Kind::Link(_) => {
                return Err(Why::refused(Errno::NOTDIR, "something on its way is no directory"));
            }
        }
    }
    let entry = catalog.stat(way.last().copied().unwrap_or(ROOT))?;
    Ok(Led { at: None, entry: Some(entry) })
}

/// The components of a path, the last one first.
fn parts(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec).collect()
}
