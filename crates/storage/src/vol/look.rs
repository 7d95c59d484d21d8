//! What stands in a volume already, as a copy sees it.
//!
//! In: a place. Out: what is there, how long it is, which version of its bytes it has, and what a link there
//! would change. Whoever looks at a file tells the catalog if it was written and nobody did.

use haul_core::change::Change;
use haul_core::entry::{Meta, Timestamp};
use haul_core::transfer::op::{Existing, Inode, Seen};
use haul_core::volume::catalog::{Entry, Failure as Refusal, Kind, Place as At, Setting};
use haul_core::volume::{ContentVersion, FileNo};
use haul_core::wire::{Failure, FailureKind};
use haul_volume::client::{Look, VolumeError};
use haul_volume::contents::{self, ContentsError};

use super::names::State;
use super::tree::rights_of;
use super::{Volume, is_missing};

const SETID: u32 = 0o6000;

/// The permissions that an entry gets: setuid and setgid go with their owner.
pub(super) fn mode_of(mode: u32, owner: bool) -> u32 {
    mode & if owner { 0o7777 } else { 0o7777 & !SETID }
}

/// Why nothing is known of a file.
pub(super) enum Unknown {
    Servers(VolumeError),
    Catalog(Refusal),
}

impl Unknown {
    /// It was removed.
    pub(super) fn is_gone(&self) -> bool {
        match self {
            Unknown::Servers(why) => *why == VolumeError::Gone,
            Unknown::Catalog(why) => is_missing(why),
        }
    }
}

impl Volume {
    /// What a file is by a look at it and an entry that was asked for after that, or before; and the entry,
    /// whose time tells then of all that the look showed.
    pub(super) fn state(
        &self,
        entry: &mut Entry,
        looked: Result<Look, VolumeError>,
    ) -> Result<State, Unknown> {
        let file = FileNo(entry.id.0);
        let (len, version) = match looked {
            Ok(look) => {
                if look.untold && !haul_mutant::removed("volume-writes-are-told") {
                    let set = Setting::default();
                    *entry = contents::tell(&self.catalog, &self.client, file, &look, set)
                        .map_err(Unknown::Catalog)?;
                }
                (look.end, Some(look.version))
            }
            Err(VolumeError::Busy) => (self.len(file).map_err(Unknown::Servers)?, None),
            Err(why) => return Err(Unknown::Servers(why)),
        };
        Ok(State { id: entry.id, len, mtime: entry.meta.mtime, version })
    }

    /// Errors: a file as it was looked at is of another length than the catalog knows; `known`: what it knew
    /// of its length before that.
    pub(super) fn has_its_length(&self, state: &State, known: Option<u64>) -> Result<(), Unknown> {
        if known.is_none_or(|whole| whole == state.len) || state.version.is_none() {
            return Ok(());
        }
        // Who wrote it since told the catalog.
        let file = FileNo(state.id.0);
        match contents::is_other(&self.catalog, &self.client, file, state.len).map_err(Unknown::Catalog)? {
            Some(why) if !haul_mutant::removed("volume-lengths-are-held-together") => {
                Err(Unknown::Servers(why))
            }
            _ => Ok(()),
        }
    }

    /// Where the first byte is that is lost of a file of which the catalog knows that it is whole, by the
    /// last byte that each server should have; `None`: nothing of it is known to be.
    fn lost_at(&self, file: FileNo, len: u64) -> Result<Option<u64>, Unknown> {
        let ends = contents::last_bytes(self.client.striping(), file, len);
        let reads: Vec<_> = ends.into_iter().map(|at| (at, self.client.read(file, at, 1))).collect();
        let mut nowhere = None;
        for (at, read) in reads {
            let needs = self.needed_for(file, at, 1);
            let read =
                self.wait_for_at(&needs, read, || self.client.read(file, at, 1)).map_err(Unknown::Servers)?;
            nowhere = nowhere.or(read.nowhere);
        }
        let Some(at) = nowhere else { return Ok(None) };
        match contents::is_lost(&self.catalog, &self.client, file, at) {
            Ok(lost) => Ok(lost.map(|_| at)),
            Err(ContentsError::Servers(why)) => Err(Unknown::Servers(why)),
            Err(ContentsError::Catalog(why)) => Err(Unknown::Catalog(why)),
        }
    }
}

/// The same as [`existing_at`], for who wants to know whether it need not come: what has lost some of its
/// bytes is as old as can be, and has those before the first of them.
///
/// # Errors
/// As of that.
pub(super) fn sound_at(
    volume: &Volume,
    at: &At,
    path: &dyn Fn() -> Vec<u8>,
) -> Result<Option<(Entry, Existing, Seen)>, Failure> {
    let Some((entry, existing, seen)) = existing_at(volume, at, path)? else { return Ok(None) };
    let Existing::File { size, grain, rights, .. } = existing else {
        return Ok(Some((entry, existing, seen)));
    };
    match volume.lost_at(FileNo(entry.id.0), size) {
        Ok(Some(size)) if !haul_mutant::removed("volume-lost-files-come-again") => {
            let existing = Existing::File { size, mtime: Timestamp::default(), grain, rights };
            Ok(Some((entry, existing, seen)))
        }
        Ok(_) => Ok(Some((entry, existing, seen))),
        Err(why) if why.is_gone() => Ok(None),
        Err(Unknown::Servers(why)) => Err(volume.broke(FailureKind::Open, "look at", &path(), &why)),
        Err(Unknown::Catalog(why)) => Err(volume.refused(FailureKind::Open, "look at", &path(), &why)),
    }
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
    let Some(mut entry) = entry else { return Ok(None) };
    let mut changed = entry.meta.mtime;
    let (existing, size) = match (entry.kind == Kind::Directory, entry.file()) {
        (true, _) => (Existing::Dir, 0),
        (_, Some(file)) => {
            let looked = volume.wait(|| volume.client.look(file));
            let size = match looked.map_err(Unknown::Servers).and_then(|look| {
                // In the place of a ctime, which a volume does not have: it is compared, and nothing else.
                let ContentVersion { gatherer, changes } = look.version;
                changed = Timestamp { secs: changes as i64, nanos: gatherer };
                volume.state(&mut entry, Ok(look))
            }) {
                Ok(is) => is.len,
                // It was removed a moment ago.
                Err(why) if why.is_gone() => return Ok(None),
                Err(Unknown::Servers(why)) => {
                    return Err(volume.broke(FailureKind::Open, "look at", &path(), &why));
                }
                Err(Unknown::Catalog(why)) => {
                    return Err(volume.refused(FailureKind::Open, "look at", &path(), &why));
                }
            };
            let (mtime, rights) = (entry.meta.mtime, rights_of(&entry.meta));
            (Existing::File { size, mtime, grain: 1, rights }, size)
        }
        (_, None) => (Existing::Link, 0),
    };
    let mtime = entry.meta.mtime;
    // No other entry ever has its number.
    let inode = Inode { dev: 0, ino: entry.id.0 };
    let seen = Seen { inode, size, mtime, ctime: changed, links: 1 };
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
