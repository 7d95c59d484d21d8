//! What stands in a volume already, as a copy sees it.
//!
//! In: a place. Out: what is there, how long it is, and what a link there would change.

use haul_core::change::Change;
use haul_core::entry::Meta;
use haul_core::transfer::op::{Existing, Inode, Seen};
use haul_core::volume::catalog::{Entry, Kind, Place as At};
use haul_core::wire::{Failure, FailureKind};
use haul_volume::client::VolumeError;

use super::Volume;
use super::tree::rights_of;

const SETID: u32 = 0o6000;

/// The permissions that an entry gets: setuid and setgid go with their owner.
pub(super) fn mode_of(mode: u32, owner: bool) -> u32 {
    mode & if owner { 0o7777 } else { 0o7777 & !SETID }
}

/// What stands at a place, as a copy sees it.
///
/// # Errors
/// It cannot be looked at; the failure has the path that `path` tells.
pub(super) fn existing_at(
    volume: &Volume,
    at: &At,
    path: &dyn Fn() -> Vec<u8>,
) -> Result<Option<(Entry, Existing, Seen)>, Failure> {
    let entry = volume.at(at).map_err(|why| volume.refused(FailureKind::Open, "look up", &path(), &why))?;
    let Some(entry) = entry else { return Ok(None) };
    let (existing, size) = match (&entry.kind, entry.file()) {
        (Kind::Directory, _) => (Existing::Dir, 0),
        (_, Some(file)) => {
            let size = match volume.len(file) {
                Ok(len) => len,
                // It was removed a moment ago.
                Err(VolumeError::Gone) => return Ok(None),
                Err(why) => return Err(volume.broke(FailureKind::Open, "look at", &path(), &why)),
            };
            let (mtime, rights) = (entry.meta.mtime, rights_of(&entry.meta));
            (Existing::File { size, mtime, grain: 1, rights }, size)
        }
        (_, None) => (Existing::Link, 0),
    };
    let mtime = entry.meta.mtime;
    // No other entry ever has its number.
    let inode = Inode { dev: 0, ino: entry.id.0 };
    let seen = Seen { inode, size, mtime, ctime: mtime, links: 1 };
    Ok(Some((entry, existing, seen)))
}

/// What a symbolic link to `target` changes of what stands there.
pub(super) fn link_change(stands: &Entry, target: &[u8], meta: &Meta, owner: bool) -> Change {
    match &stands.kind {
        Kind::Link(leads) if **leads == *target => Change::of_link(rights_of(&stands.meta), meta, owner),
        Kind::Link(_) => Change::TARGET.with(Change::TIME, stands.meta.mtime != meta.mtime),
        Kind::File | Kind::Directory => Change::NEW,
    }
}
