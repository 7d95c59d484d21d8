//! A directory that is open, and what is done by one name in it at a time.
//!
//! In: a directory, names of one component. Out: what stands there, and changes of it.
//! Invariant: a directory is known by its number, and no link is followed at a name: so whatever is renamed
//! meanwhile, nothing leads out of where somebody began.

use std::collections::VecDeque;
use std::sync::Arc;

use haul_core::entry::{Name, Timestamp};
use haul_core::volume::ContentVersion;
use haul_core::volume::catalog::{Entry, EntryNo, Kind, MODE_MAX, Place, Setting};
use rustix::io::Errno;

use super::error::{Error, Why};
use super::file::File;
use super::options::OpenOptions;
use super::path::Led;
use super::{Shared, Stat, Volume, made, stat_of};
use crate::client::{Look, VolumeError, Waiting};
use crate::contents;

/// A directory that is open. Clones are the same one.
#[derive(Clone)]
pub struct Dir {
    shared: Arc<Shared>,
    no: EntryNo,
    /// As it was found, to be shown.
    path: Vec<u8>,
}

impl Dir {
    /// The directory that an entry is.
    pub(super) fn of(shared: &Arc<Shared>, entry: &Entry, path: Vec<u8>) -> Result<Dir, Why> {
        match entry.kind {
            Kind::Directory => Ok(Dir { shared: shared.clone(), no: entry.id, path }),
            Kind::File | Kind::Link(_) => Err(Why::refused(Errno::NOTDIR, "it is no directory")),
        }
    }

    /// The volume that it is in.
    pub fn volume(&self) -> Volume {
        Volume { shared: self.shared.clone() }
    }

    /// No other entry of the volume ever has it.
    pub fn number(&self) -> u64 {
        self.no.0
    }

    fn below(&self, name: &Name) -> Vec<u8> {
        let path = self.path.strip_suffix(b"/").unwrap_or(&self.path);
        [path, b"/", name.as_bytes()].concat()
    }

    fn at(&self, name: &Name) -> Place {
        Place { parent: self.no, name: name.clone() }
    }

    fn told<T>(
        &self,
        doing: &'static str,
        name: &Name,
        work: impl FnOnce(&Arc<Shared>) -> Result<T, Why>,
    ) -> Result<T, Error> {
        work(&self.shared).map_err(|why| Error::new(doing, self.shared.url(&self.below(name)), why))
    }

    /// What the directory itself is.
    ///
    /// # Errors
    /// It was removed, or the catalog does not answer.
    pub fn stat(&self) -> Result<Stat, Error> {
        self.shared.told("look at", &self.path, |shared| Ok(stat_of(shared.catalog().stat(self.no)?, 0)))
    }

    /// What a name is, a link itself, and of a file the version of its bytes; see [`File::look`].
    ///
    /// # Errors
    /// Nothing is there; and as of [`File::look`].
    pub fn lookup(&self, name: &Name) -> Result<(Stat, Option<ContentVersion>), Error> {
        self.told("look at", name, |shared| shared.looked(shared.catalog().lookup(self.at(name))?))
    }

    /// The number of what has a name, which no server but the catalog is asked for.
    ///
    /// # Errors
    /// Nothing is there.
    pub fn number_of(&self, name: &Name) -> Result<u64, Error> {
        self.told("look at", name, |shared| Ok(shared.catalog().lookup(self.at(name))?.id.0))
    }

    /// Opens a directory in it.
    ///
    /// # Errors
    /// It is none (nor is a link to one), or not there.
    pub fn open_dir(&self, name: &Name) -> Result<Dir, Error> {
        self.told("open the directory", name, |shared| {
            Dir::of(shared, &shared.catalog().lookup(self.at(name))?, self.below(name))
        })
    }

    /// Opens a file in it, or makes it.
    ///
    /// # Errors
    /// As of [`Volume::open_file`]; a link is not followed.
    pub fn open_file(&self, name: &Name, options: &OpenOptions) -> Result<File, Error> {
        self.told("open", name, |shared| {
            options.check()?;
            let at = self.at(name);
            let entry = match options.create_new {
                // The catalog says whether its name is taken.
                true => None,
                false => match shared.catalog().lookup(at.clone()) {
                    Ok(entry) => Some(entry),
                    Err(why) if why.errno == Errno::NOENT.raw_os_error() => None,
                    Err(why) => return Err(why.into()),
                },
            };
            shared.open_led(Led { at: Some(at), entry }, options, shared.url(&self.below(name)))
        })
    }

    /// Makes a directory in it, of these bits of permission.
    ///
    /// # Errors
    /// The name is taken.
    pub fn mkdir(&self, name: &Name, mode: u32) -> Result<(), Error> {
        self.told("make the directory", name, |shared| {
            Ok(shared.catalog().mkdir(self.at(name), made(mode & MODE_MAX)).map(drop)?)
        })
    }

    /// Takes the name of a file or link away.
    ///
    /// # Errors
    /// It is not there, or is a directory.
    pub fn unlink(&self, name: &Name) -> Result<(), Error> {
        self.told("remove", name, |shared| Ok(shared.catalog().unlink(self.at(name))?))
    }

    /// Removes a directory in it.
    ///
    /// # Errors
    /// It is not there, not empty, or none.
    pub fn rmdir(&self, name: &Name) -> Result<(), Error> {
        self.told("remove the directory", name, |shared| Ok(shared.catalog().rmdir(self.at(name))?))
    }

    /// Gives what has a name another one, in a directory of the same volume. What was there is replaced, as
    /// POSIX has it.
    ///
    /// # Errors
    /// As of `rename(2)`; the other directory is another volume's.
    pub fn rename(&self, from: &Name, to_dir: &Dir, to: &Name) -> Result<(), Error> {
        self.told("rename", from, |shared| {
            if !Arc::ptr_eq(shared, &to_dir.shared) {
                return Err(Why::refused(Errno::XDEV, "the other directory is not of this volume"));
            }
            Ok(shared.catalog().rename(self.at(from), to_dir.at(to), false)?)
        })
    }

    /// Gives what has a name these bits of permission.
    ///
    /// # Errors
    /// Nothing is there, or it is a link.
    pub fn set_mode(&self, name: &Name, mode: u32) -> Result<(), Error> {
        self.set(name, Setting { mode: Some(mode & MODE_MAX), ..Setting::default() })
    }

    /// Gives what has a name a time: seconds since 1970, and nanoseconds below one second.
    ///
    /// # Errors
    /// Nothing is there, or it is a link.
    pub fn set_mtime(&self, name: &Name, secs: i64, nanos: u32) -> Result<(), Error> {
        self.set(name, Setting { mtime: Some(Timestamp { secs, nanos }), ..Setting::default() })
    }

    fn set(&self, name: &Name, set: Setting) -> Result<(), Error> {
        self.told("change", name, |shared| {
            let entry = shared.catalog().lookup(self.at(name))?;
            if matches!(entry.kind, Kind::Link(_)) {
                return Err(Why::refused(Errno::LOOP, "it is a symbolic link"));
            }
            if let Some(file) = entry.file().filter(|_| set.mtime.is_some()) {
                // What was written before moves the time first, and not over this one later.
                match contents::look(shared.catalog(), &shared.client, file) {
                    Ok(_) | Err(contents::ContentsError::Servers(VolumeError::Busy)) => {}
                    Err(contents::ContentsError::Servers(why)) => return Err(why.into()),
                    Err(contents::ContentsError::Catalog(why)) => return Err(why.into()),
                }
            }
            Ok(shared.catalog().set_attr(entry.id, set).map(drop)?)
        })
    }

    /// What is in it, in the order of the names' bytes. With `looks` each file's length and time are those
    /// that [`Dir::lookup`] tells; else its length is 0, and its time the one that the catalog has. What
    /// comes and goes meanwhile may be missing.
    pub fn entries(&self, looks: bool) -> Entries {
        Entries { dir: self.clone(), looks, page: VecDeque::new(), after: None, more: true }
    }

    /// A page of them behind a name, and behind which name there are more, if there are.
    fn page(&self, after: Option<Name>, looks: bool) -> Result<(Vec<(Name, Stat)>, Option<Name>), Why> {
        let (page, more) = self.shared.catalog().read_dir(self.no, after)?;
        let next = page.last().map(|(name, _)| name.clone()).filter(|_| more);
        // All servers look at the same time.
        let look = |entry: &Entry| entry.file().filter(|_| looks).map(|file| self.shared.client.look(file));
        let looks: Vec<Option<Waiting<Look>>> = page.iter().map(|(_, entry)| look(entry)).collect();
        let mut found = Vec::with_capacity(page.len());
        for ((name, entry), looked) in page.into_iter().zip(looks) {
            let stat = match looked.map(Waiting::wait) {
                None => stat_of(entry, 0),
                Some(Ok(look)) if !look.untold => stat_of(entry, look.end),
                // It was removed meanwhile.
                Some(Err(VolumeError::Gone)) => continue,
                // The catalog is to be told, or somebody writes.
                Some(Ok(_) | Err(VolumeError::Busy)) => match self.shared.looked(entry) {
                    Ok((stat, _)) => stat,
                    Err(why) if is_gone(&why) => continue,
                    Err(why) => return Err(why),
                },
                Some(Err(why)) => return Err(why.into()),
            };
            found.push((name, stat));
        }
        Ok((found, next))
    }
}

/// It was removed meanwhile.
fn is_gone(why: &Why) -> bool {
    match why {
        Why::Servers(why) => *why == VolumeError::Gone,
        Why::Catalog(failure) => failure.errno == Errno::NOENT.raw_os_error(),
        Why::Refused(..) => false,
    }
}

/// What is in a directory, page by page.
pub struct Entries {
    dir: Dir,
    looks: bool,
    page: VecDeque<(Name, Stat)>,
    after: Option<Name>,
    more: bool,
}

impl Iterator for Entries {
    type Item = Result<(Name, Stat), Error>;

    fn next(&mut self) -> Option<Result<(Name, Stat), Error>> {
        while self.page.is_empty() && self.more {
            match self.dir.page(self.after.take(), self.looks) {
                Ok((page, next)) => {
                    (self.page, self.more) = (page.into(), next.is_some());
                    self.after = next;
                }
                Err(why) => {
                    self.more = false;
                    let shown = self.dir.shared.url(&self.dir.path);
                    return Some(Err(Error::new("read the directory", shown, why)));
                }
            }
        }
        self.page.pop_front().map(Ok)
    }
}
