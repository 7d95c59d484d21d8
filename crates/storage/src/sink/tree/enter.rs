//! One directory of the destination: found or made, and opened, in the one above that is open.
//!
//! What must hold: what stands there is looked at before it is entered; one that is ours and closed to us is
//! opened to us, and that is noted before. A link is followed only where the user wants that, and then by
//! [`standing`](super::standing) alone; what it leads to is not opened to us, and is no other entry's.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use haul_core::entry::{DEPTH_MAX, Name};
use haul_core::ids::DirId;
use haul_core::wire::{Failure, FailureKind};
use rustix::fs::{FileType, Mode, Stat};
use rustix::io::Errno;

use super::standing::{CAME, Refused, Standing};
use super::{DirState, Node, SinkTree, not_a_directory};
use crate::io::IoTarget;
use crate::meta_rate::cost;
use crate::sink::fold::is_exact;
use crate::sink::stat::inode_of;
use crate::sink::{fault, lock};

impl SinkTree {
    /// Opens one directory whose parent is open.
    pub(super) fn enter(&self, id: DirId, node: &Node, parent: &OwnedFd) -> Result<Arc<OwnedFd>, Failure> {
        let ours = self.was_created(node.parent);
        let mut slot = lock(&node.slot);
        if let Some(fd) = &slot.fd {
            return Ok(fd.clone());
        }
        let opened = match &slot.state {
            DirState::Failed(failure) => return Err(failure.clone()),
            _ if self.looks && !haul_mutant::removed("dry-run-looks-only") => {
                self.jail.stat(parent, &node.name).and_then(|stat| {
                    let opened = self.open_dir(parent, &node.name, id);
                    let stat = stood(stat, opened.as_ref().ok())?;
                    if would_be_opened(&stat, opened.as_ref().err()) {
                        slot.closed = true;
                    }
                    let fd = opened.and_then(|fd| if slot.closed { Err(Errno::ACCESS) } else { Ok(fd) });
                    if fd.is_ok() || slot.closed {
                        slot.state = DirState::There { created: false, stood: Some(Box::new(stat)) };
                    }
                    fd
                })
            }
            DirState::There { .. } => {
                self.charge(cost::OPEN);
                self.open(parent, &node.name, id)
            }
            DirState::Unmade => {
                if let Err(failure) = self.may_take(parent, node.parent, &node.name) {
                    slot.state = DirState::Failed(failure.clone());
                    return Err(failure);
                }
                self.make(&mut slot.state, parent, &node.name, id).and_then(|fd| {
                    let created = matches!(slot.state, DirState::There { created: true, .. });
                    match self.is_free(node, parent, &fd, (ours, created), id)? {
                        true => Ok(fd),
                        false => Err(Errno::NOTUNIQ),
                    }
                })
            }
        };
        let fd = match opened {
            Ok(fd) => match self.take(id, node, &fd) {
                Ok(()) => Arc::new(fd),
                Err(failure) => {
                    slot.state = DirState::Failed(failure.clone());
                    return Err(failure);
                }
            },
            Err(errno) => {
                let path = self.path_of(node.parent, &node.name);
                let failure = match errno {
                    Errno::NOTUNIQ => self.folded(node.parent, &node.name),
                    Errno::NOTDIR | Errno::LOOP => match self.jail.stat(parent, &node.name) {
                        Ok(stat) if is_link(&stat) => {
                            a_link(&path, self.standing.as_ref().map(|_| errno == CAME))
                        }
                        _ => not_a_directory(&path),
                    },
                    _ => fault::os_at(FailureKind::Create, "create directory", &path, errno, parent),
                };
                // What this process ran out of may be there again for the next operation.
                if !slot.closed && !matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM) {
                    slot.state = DirState::Failed(failure.clone());
                }
                return Err(failure);
            }
        };
        slot.fd = Some(fd.clone());
        drop(slot);
        if *node.target.get_or_init(|| IoTarget::of(&*fd)) != self.root_target {
            self.several.store(true, Ordering::Relaxed);
        }
        self.touch(id);
        Ok(fd)
    }

    /// No other entry of this session has the directory that was made or found. `ours`: this session made the
    /// directory above, so that what stands in it is of another entry, unless every name is its own there.
    fn is_free(
        &self,
        node: &Node,
        parent: &OwnedFd,
        fd: &OwnedFd,
        (ours, created): (bool, bool),
        id: DirId,
    ) -> rustix::io::Result<bool> {
        if ours {
            return Ok(created || is_exact(parent) || haul_mutant::removed("one-entry-per-inode"));
        }
        let inode = inode_of(&rustix::fs::fstat(fd)?);
        Ok(self.claim(node.parent, parent, &node.name, inode, id.as_file()))
    }

    /// Where links are followed: the directory that was opened is no other entry's by one of them.
    fn take(&self, id: DirId, node: &Node, fd: &OwnedFd) -> Result<(), Failure> {
        let Some(standing) =
            self.standing.as_ref().filter(|_| !haul_mutant::removed("links-join-no-entries"))
        else {
            return Ok(());
        };
        let path = || self.path_of(node.parent, &node.name);
        self.charge(cost::LOOK);
        let stat =
            rustix::fs::fstat(fd).map_err(|errno| fault::os(FailureKind::Open, "stat", &path(), errno))?;
        let why = match standing.take(inode_of(&stat), id, self.link_above(standing, id)) {
            Ok(()) => return Ok(()),
            Err(Refused::Unknown) => {
                "so many directories came before it that nobody remembers them, and one of them may be \
                 where it leads; copy it with a command of its own"
                    .to_owned()
            }
            Err(Refused::Anothers(link)) => {
                let there = rustix::fs::readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new());
                let there =
                    there.map_or_else(|_| path(), |there| haul_base::escape::within(there.as_bytes()));
                format!(
                    "another directory of this copy is {there} as well, for the symbolic link {link} stands there and is followed; \
                     leave `keep_dirlinks` out, or remove the link"
                )
            }
        };
        let text = format!("{}: {why}", path());
        Err(fault::failure(FailureKind::Create, Errno::NOTUNIQ.raw_os_error(), text))
    }

    /// The link by which the directory, or the nearest one above it, was entered.
    fn link_above(&self, standing: &Standing, id: DirId) -> Option<Arc<str>> {
        let mut at = id;
        for _ in 0..=DEPTH_MAX {
            if let Some(link) = standing.link_of(at) {
                return Some(link);
            }
            at = self.node(at).ok()?.parent;
        }
        None
    }

    /// Makes the directory, or opens the one that stands there; `state` says which, also if it cannot be
    /// opened then. One that stands there is looked at first, for where it is closed to us it is opened up.
    fn make(
        &self,
        state: &mut DirState,
        parent: &OwnedFd,
        name: &Name,
        id: DirId,
    ) -> rustix::io::Result<OwnedFd> {
        let stands = || {
            let stat = self.jail.stat(parent, name)?;
            let fd = self.open(parent, name, id)?;
            let stat = stood(stat, Some(&fd))?;
            Ok((fd, stat))
        };
        let (fd, stood) = match self.jail.make_dir(parent, name) {
            Ok(()) => {
                *state = DirState::There { created: true, stood: None };
                return self.jail.open_dir(parent, name);
            }
            Err(Errno::EXIST) => stands()?,
            // Some file systems check the permission to create before they look whether it exists.
            Err(errno @ (Errno::ACCESS | Errno::PERM | Errno::ROFS)) => match stands() {
                Ok(stood) => stood,
                Err(Errno::NOENT) => return Err(errno),
                Err(other) => return Err(other),
            },
            Err(errno) => return Err(errno),
        };
        *state = DirState::There { created: false, stood: Some(Box::new(stood)) };
        Ok(fd)
    }

    /// Opens a directory that stands there, or, where that is wanted, what a link that stands there leads to.
    fn open_dir(&self, parent: &OwnedFd, name: &Name, id: DirId) -> rustix::io::Result<OwnedFd> {
        match (self.jail.open_dir(parent, name), &self.standing) {
            (Err(Errno::NOTDIR | Errno::LOOP), Some(standing)) => {
                let shown = || self.path_of_dir(id);
                standing.open(parent, name, (id, &shown), &|steps| self.charge(steps)).map_err(|errno| {
                    match errno {
                        // Nothing is made where it leads.
                        Errno::NOENT => Errno::NOTDIR,
                        errno => errno,
                    }
                })
            }
            (opened, _) => opened,
        }
    }

    /// Opens a directory by the names that lead to it from the root, on the way that entries take, though it
    /// may be over.
    pub(in crate::sink) fn reach(&self, names: &[Name]) -> rustix::io::Result<Arc<OwnedFd>> {
        let mut at = self.root.clone();
        for name in names {
            self.charge(cost::OPEN);
            let opened = match (self.jail.open_dir(&*at, name), &self.standing) {
                (Err(Errno::NOTDIR | Errno::LOOP), Some(standing)) => {
                    standing.lead(&at, name, &|steps| self.charge(steps))?.0
                }
                (opened, _) => opened?,
            };
            at = Arc::new(opened);
        }
        Ok(at)
    }

    /// Opens a directory that stood there before. Where it is ours and closed to us, it is opened to us until
    /// it is finished, for read-only directories are legal and must be filled.
    fn open(&self, parent: &OwnedFd, name: &Name, id: DirId) -> rustix::io::Result<OwnedFd> {
        let is_followed =
            || self.standing.is_some() && self.jail.stat(parent, name).is_ok_and(|stat| is_link(&stat));
        let fd = match self.open_dir(parent, name, id) {
            Err(Errno::ACCESS) if is_followed() => return Err(Errno::ACCESS),
            Err(Errno::ACCESS) => {
                return self.jail.open_dir_by_force(parent, name, |stat| self.before_widening(id, stat));
            }
            other => other?,
        };
        let me = rustix::process::geteuid();
        if !me.is_root() {
            let stat = rustix::fs::fstat(&fd)?;
            if stat.st_uid == me.as_raw() && stat.st_mode & 0o300 != 0o300 && !is_followed() {
                self.before_widening(id, &stat)?;
                rustix::fs::fchmod(&fd, Mode::from_raw_mode(stat.st_mode & 0o7777) | Mode::RWXU)?;
            }
        }
        Ok(fd)
    }
}

/// Whether a copy would open this directory to us (`SinkTree::open`); `denied`: why it cannot be opened as it
/// is.
fn would_be_opened(stat: &Stat, denied: Option<&Errno>) -> bool {
    let me = rustix::process::geteuid();
    let ours = !me.is_root() && stat.st_uid == me.as_raw();
    let searchable = stat.st_mode & 0o100 != 0;
    ours && (denied == Some(&Errno::ACCESS) || (denied.is_none() && !searchable))
}

fn is_link(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Symlink
}

/// What stood there: what was seen, or what was opened where that is a link.
fn stood(seen: Stat, opened: Option<&OwnedFd>) -> rustix::io::Result<Stat> {
    match opened {
        Some(fd) if is_link(&seen) => rustix::fs::fstat(fd),
        _ => Ok(seen),
    }
}

/// `came`: where links that stand there are followed, whether this one came with the copy.
fn a_link(path: &str, came: Option<bool>) -> Failure {
    let why = match came {
        None => {
            "and no link below the destination is followed; remove the link, or copy to where it leads (or follow such links with \
             `keep_dirlinks`)"
        }
        Some(true) => {
            "and it, or one that it leads through, came with this copy, or may have: only what stood there before is followed"
        }
        Some(false) => "and it leads to no directory; remove the link",
    };
    let text = format!("{path} is a symbolic link where a directory should go, {why}");
    fault::failure(FailureKind::Create, Errno::NOTDIR.raw_os_error(), text)
}
