//! Files that the user named to be written: lists, reports.
//!
//! In: a path. Out: the file behind it, replaced whole by rename beside itself, through symbolic links and
//! with the owner and mode that it had; or what is no plain file (a device, a pipe, a terminal,
//! `/dev/stdout`), which is written to as it is and never replaced. It is looked at before the work begins.
//! What must hold: others may write where the file lies. Its directory is opened once and everything is done
//! by that descriptor and by the file's own, never by a path that leads elsewhere a moment later; what gets
//! the name is what was written; and what another user planted in a directory that all may write is refused,
//! as the kernel does where it is told to. A file is never written in place, for it may have further names
//! (hard links) that nobody meant.

use haul::errno;
use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    Access, AtFlags, CWD, FileType, FsWord, Mode, OFlags, Stat, accessat, fcntl_setfl, fstat, fstatfs, fsync,
    openat, readlinkat, renameat, statat, unlinkat,
};
use rustix::io::{Errno, retry_on_intr};

/// Symbolic links that are followed, as the kernel does.
const LINKS_MAX: usize = 40;
/// Names of temporaries that are tried.
const TEMPORARIES_MAX: u32 = 100;
/// What `statfs` says of `/proc`, whose names of open descriptors are no links to be followed.
const PROC: FsWord = 0x9fa0;

/// A name in a directory that is open.
#[derive(Clone, Debug)]
pub struct Spot {
    dir: Arc<OwnedFd>,
    name: OsString,
    /// The same as a path, for people and for what is no longer to be trusted than that.
    path: PathBuf,
}

/// What a path leads to.
#[derive(Clone, Debug)]
pub enum Place {
    /// A regular file, or nothing yet: its name behind all symbolic links.
    File(Spot),
    /// What is written to as it is.
    Stream(Spot),
}

/// Follows a path to what is to be written.
///
/// # Errors
/// It is a directory, or cannot be looked at, or another user put it where all may.
pub fn place(path: &Path) -> io::Result<Place> {
    let mut spot = Spot::open(CWD, path, PathBuf::new())?;
    for _ in 0..LINKS_MAX {
        if fstatfs(&*spot.dir).is_ok_and(|system| system.f_type == PROC) {
            return Ok(Place::Stream(spot));
        }
        let Some(entry) = spot.look()? else { return Ok(Place::File(spot)) };
        match entry.kind {
            FileType::Symlink => {
                let target = retry_on_intr(|| readlinkat(&entry.fd, "", Vec::new()))?;
                let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                spot = Spot::open(&*spot.dir, &target, parent(&spot.path).to_owned())?;
            }
            FileType::Directory => return Err(Errno::ISDIR.into()),
            FileType::RegularFile => return Ok(Place::File(spot)),
            _ if haul_mutant::removed("streams-are-not-replaced") => return Ok(Place::File(spot)),
            _ => return Ok(Place::Stream(spot)),
        }
    }
    Err(Errno::LOOP.into())
}

/// What stands at a spot, held open.
struct Entry {
    fd: OwnedFd,
    stat: Stat,
    kind: FileType,
}

impl Spot {
    fn open(at: impl std::os::fd::AsFd, path: &Path, base: PathBuf) -> io::Result<Spot> {
        // What ends in `/`, `.` or `..` is a directory.
        let dots = matches!(path.as_os_str().as_encoded_bytes(), [.., b'/'] | [.., b'/', b'.']);
        let name = path.file_name().filter(|_| !dots).ok_or(Errno::ISDIR)?.to_owned();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = retry_on_intr(|| openat(&at, parent(path), flags, Mode::empty()))?;
        Ok(Spot { dir: Arc::new(dir), name, path: base.join(path) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The same name in the same directory, whatever leads there.
    pub fn is(&self, other: &Spot) -> bool {
        let dir = |spot: &Spot| fstat(&*spot.dir).ok().map(|stat| inode(&stat));
        self.name == other.name && dir(self).is_some_and(|ours| Some(ours) == dir(other))
    }

    /// What stands there now.
    fn look(&self) -> io::Result<Option<Entry>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match retry_on_intr(|| openat(&*self.dir, &self.name, flags, Mode::empty())) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened?,
        };
        let (stat, dir) = (fstat(&fd)?, fstat(&*self.dir)?);
        if is_planted(&dir, &stat) {
            let text = "another user put it into a directory that all may write";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        let kind = FileType::from_raw_mode(stat.st_mode);
        Ok(Some(Entry { fd, stat, kind }))
    }

    /// The plain file that stands there, to be read; `None` if nothing does.
    pub fn read(&self) -> io::Result<Option<File>> {
        let Some(entry) = self.look()? else { return Ok(None) };
        if entry.kind != FileType::RegularFile {
            return Err(io::Error::other("it is no plain file"));
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(retry_on_intr(|| openat(&*self.dir, &self.name, flags, Mode::empty()))?);
        match inode(&fstat(&file)?) == inode(&entry.stat) {
            true => Ok(Some(file)),
            false => Err(io::Error::other("it is being replaced")),
        }
    }

    /// Removes `file`, if that is what stands there.
    pub fn remove(&self, file: &File) -> io::Result<()> {
        if self.holds(&self.name, file) {
            unlinkat(&*self.dir, &self.name, AtFlags::empty())?;
        }
        Ok(())
    }

    /// Whether `name` in this directory is that very file.
    fn holds(&self, name: &OsStr, file: &File) -> bool {
        let there = statat(&*self.dir, name, AtFlags::SYMLINK_NOFOLLOW).map(|stat| inode(&stat));
        matches!((there, fstat(file)), (Ok(there), Ok(file)) if there == inode(&file))
    }

    /// Makes what became of the directory's names durable. One that may be written but not read cannot be
    /// asked to.
    fn sync_dir(&self) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match openat(&*self.dir, ".", flags, Mode::empty()) {
            Ok(dir) => match retry_on_intr(|| fsync(&dir)) {
                Err(Errno::INVAL) => Ok(()),
                synced => Ok(synced?),
            },
            Err(Errno::ACCESS | Errno::PERM) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

fn inode(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// The kernel's rule of `fs.protected_symlinks` and its siblings, which cannot see a link that is read and
/// then opened: in a sticky directory that all may write, only what is ours or the directory's owner's is
/// what it seems to be.
fn is_planted(dir: &Stat, entry: &Stat) -> bool {
    let shared = dir.st_mode & 0o1002 == 0o1002;
    let ours = entry.st_uid == rustix::process::geteuid().as_raw() || entry.st_uid == dir.st_uid;
    shared && !ours && !haul_mutant::removed("planted-lists")
}

/// Whether `path` could be written, as far as that can be told without doing it.
///
/// # Errors
/// A sentence for people.
pub fn check(path: &Path) -> Result<(), String> {
    let failed = |error: io::Error| format!("cannot write {}: {}", path.display(), errno::text(error));
    let denied = match place(path).map_err(failed)? {
        Place::File(spot) => accessat(&*spot.dir, ".", Access::WRITE_OK, AtFlags::EACCESS),
        Place::Stream(spot) => accessat(&*spot.dir, &spot.name, Access::WRITE_OK, AtFlags::EACCESS),
    };
    denied.map_err(|errno| failed(errno.into()))
}

/// Writes the whole of it.
///
/// # Errors
/// A sentence for people; an older file stays as it was.
pub fn write(path: &Path, content: &[u8]) -> Result<(), String> {
    let written = (|| {
        let (mut file, temporary) = begin(&place(path)?)?;
        file.write_all(content)?;
        temporary.map_or(Ok(()), |temporary| temporary.put(&file))
    })();
    written.map_err(|error: io::Error| format!("cannot write {}: {}", path.display(), errno::text(error)))
}

/// Begins to write: into a temporary beside a file, or straight into a stream.
pub fn begin(place: &Place) -> io::Result<(File, Option<Temporary>)> {
    match place {
        Place::File(spot) => Temporary::begin(spot).map(|(file, temporary)| (file, Some(temporary))),
        Place::Stream(spot) => Ok((open_stream(spot)?, None)),
    }
}

/// Opens what is written to as it is. A pipe that nobody reads is waited for, as every other program does.
fn open_stream(spot: &Spot) -> io::Result<File> {
    if let Some(fd) = own_output(&spot.path) {
        return Ok(File::from(fd?));
    }
    // The kernel's names of open descriptors are links that only it can follow.
    let kernels = fstatfs(&*spot.dir).is_ok_and(|system| system.f_type == PROC);
    let follow = if kernels { OFlags::empty() } else { OFlags::NOFOLLOW };
    // What was opened by the shell may be a file with something in it.
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOCTTY | OFlags::CLOEXEC | follow;
    let open = |more: OFlags| retry_on_intr(|| openat(&*spot.dir, &spot.name, flags | more, Mode::empty()));
    let fifo = || spot.look().is_ok_and(|entry| entry.is_some_and(|entry| entry.kind == FileType::Fifo));
    let file = match open(OFlags::NONBLOCK) {
        Ok(file) => {
            fcntl_setfl(&file, OFlags::APPEND)?;
            file
        }
        Err(Errno::NXIO) if fifo() => {
            let name = crate::escape::text(&spot.path.display().to_string());
            let _ = writeln!(io::stderr(), "haul: waiting for somebody to read from {name}");
            open(OFlags::empty())?
        }
        Err(errno) => return Err(errno.into()),
    };
    match FileType::from_raw_mode(fstat(&file)?.st_mode) {
        FileType::RegularFile if !kernels => Err(io::Error::other("it is being replaced")),
        _ => Ok(File::from(file)),
    }
}

/// The program's own stdout or stderr, if `path` is the kernel's name of it: opened anew, a file would be
/// written from its start.
fn own_output(path: &Path) -> Option<io::Result<OwnedFd>> {
    let duplicate = match own_descriptor(path)?.to_str()? {
        "1" => rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 0),
        "2" => rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 0),
        _ => return None,
    };
    Some(duplicate.map_err(io::Error::from))
}

/// The number in the kernel's name of a descriptor of this process.
fn own_descriptor(path: &Path) -> Option<&OsStr> {
    let of_ours = fs::canonicalize(parent(path)).ok()? == fs::canonicalize("/proc/self/fd").ok()?;
    path.file_name().filter(|_| of_ours)
}

/// Whether the stream is this program's stdout.
pub fn is_stdout(stream: &Spot) -> bool {
    own_descriptor(&stream.path) == Some(OsStr::new("1"))
}

/// The new content of a file, beside it. Dropped without [`Temporary::put`] it is removed.
pub struct Temporary {
    spot: Spot,
    /// A second descriptor of what was made.
    made: File,
    /// `None` once renamed.
    name: Option<OsString>,
}

impl Temporary {
    fn begin(spot: &Spot) -> io::Result<(File, Temporary)> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if haul_mutant::removed("manifests-appear-whole") {
            let mode = Mode::from_raw_mode(0o666);
            let file = File::from(openat(&*spot.dir, &spot.name, flags | OFlags::TRUNC, mode)?);
            let made = file.try_clone()?;
            return Ok((file, Temporary { spot: spot.clone(), made, name: None }));
        }
        let old = spot.look()?.filter(|entry| entry.kind == FileType::RegularFile).map(|entry| entry.stat);
        let mode = Mode::from_raw_mode(if old.is_some() { 0o600 } else { 0o666 });
        let mut tries = 0;
        let (file, name) = loop {
            let name = unguessable();
            match retry_on_intr(|| openat(&*spot.dir, &name, flags | OFlags::EXCL, mode)) {
                Ok(file) => break (File::from(file), name),
                Err(Errno::EXIST) if tries < TEMPORARIES_MAX => tries += 1,
                Err(errno) => return Err(errno.into()),
            }
        };
        let made = Temporary { spot: spot.clone(), made: file.try_clone()?, name: Some(name.clone()) };
        if let Some(old) = old {
            if haul_mutant::removed("lists-are-given-by-descriptor") {
                let by_name = PathBuf::from(parent(&spot.path)).join(&name);
                std::os::unix::fs::chown(by_name, Some(old.st_uid), Some(old.st_gid))?;
            }
            let _ = fchown(&file, Some(old.st_uid), None);
            let _ = fchown(&file, None, Some(old.st_gid));
            let group_kept = file.metadata()?.gid() == old.st_gid;
            let mode = old.st_mode & 0o777;
            // The group's rights were not meant for another group.
            let mode = if group_kept { mode } else { mode & 0o707 | mode & 0o070 & mode << 3 };
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        Ok((file, made))
    }

    /// Makes `file` durable and gives it the name. It can be written on after that.
    ///
    /// # Errors
    /// What stands there is as it was.
    pub fn put(mut self, file: &File) -> io::Result<()> {
        file.sync_data()?;
        let Some(temporary) = &self.name else { return Ok(()) };
        // Hours may have gone by: it may have become something else meanwhile.
        if self.spot.look()?.is_some_and(|entry| entry.kind != FileType::RegularFile) {
            return Err(io::Error::other("it is no plain file any more"));
        }
        // A name is renamed, not a descriptor: only what was written gets the name.
        if !self.spot.holds(temporary, file) && !haul_mutant::removed("lists-are-what-was-written") {
            return Err(io::Error::other("somebody moved or replaced its temporary, which was left"));
        }
        retry_on_intr(|| renameat(&*self.spot.dir, temporary, &*self.spot.dir, &self.spot.name))?;
        self.name = None;
        self.spot.sync_dir()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(name) = &self.name
            && self.spot.holds(name, &self.made)
        {
            let _ = unlinkat(&*self.spot.dir, name, AtFlags::empty());
        }
    }
}

/// A name that nobody can have taken in advance. Short, for the file's own name may be as long as names can
/// be.
fn unguessable() -> OsString {
    // Seeded by the system for each process, and another for each value.
    let random = RandomState::new().build_hasher().finish();
    format!(".haul-list-{random:016x}").into()
}

/// The directory that a name stands in.
pub fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Read;
    use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, lchown, symlink};
    use std::process::Command;

    use super::*;

    /// Goal: a file is replaced whole, a failure changes and leaves nothing, and is foreseen where it can be.
    #[test]
    fn files_are_written_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("out");
        fs::write(&file, "old").unwrap();
        check(&file).unwrap();
        write(&file, b"new").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
        for bad in [dir.path().to_owned(), dir.path().join("no/file")] {
            assert!(check(&bad).unwrap_err().contains("cannot write"));
            assert!(write(&bad, b"x").is_err());
        }
        let long = dir.path().join("n".repeat(255));
        write(&long, b"x").unwrap();
        fs::remove_file(long).unwrap();
        check(Path::new("/dev/null")).unwrap();
        write(Path::new("/dev/null"), b"x").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary stays");
    }

    /// Goal: a link is followed and stays, also one that leads nowhere yet; a file that is replaced keeps its
    /// mode.
    #[test]
    fn links_are_followed_and_modes_kept() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("far")).unwrap();
        fs::write(at("far/list"), "old").unwrap();
        fs::set_permissions(at("far/list"), Permissions::from_mode(0o640)).unwrap();
        symlink("far/list", at("one")).unwrap();
        symlink("one", at("two")).unwrap();
        symlink("far/made", at("dangling")).unwrap();
        write(&at("two"), b"new").unwrap();
        write(&at("dangling"), b"made").unwrap();
        assert_eq!(fs::read(at("far/list")).unwrap(), b"new");
        assert_eq!(fs::metadata(at("far/list")).unwrap().mode() & 0o7777, 0o640);
        assert_eq!(fs::read(at("far/made")).unwrap(), b"made");
        for link in ["one", "two", "dangling"] {
            assert!(fs::symlink_metadata(at(link)).unwrap().is_symlink(), "{link}");
        }
        symlink("loop", at("loop")).unwrap();
        assert!(write(&at("loop"), b"x").is_err());
        assert_eq!(fs::read_dir(at("far")).unwrap().count(), 2, "no temporary stays");
    }

    /// Goal: a FIFO is written to and stays one; so is what the kernel calls by the number of a descriptor.
    #[test]
    fn streams_are_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let nonblock = OFlags::NONBLOCK.bits().cast_signed();
        let mut reader = OpenOptions::new().read(true).custom_flags(nonblock).open(&fifo).unwrap();
        check(&fifo).unwrap();
        write(&fifo, b"through").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
        assert!(fs::metadata(&fifo).unwrap().file_type().is_fifo());
        for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/2"] {
            assert!(matches!(place(Path::new(name)).unwrap(), Place::Stream(_)), "{name}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary was made");
    }

    /// Goal: only what was written gets the name, and only that is removed: another's file under the
    /// temporary's name is left.
    /// Method: the temporary replaced by a link, by another file, and moved away, before it is put and before
    /// it is dropped.
    #[test]
    fn only_what_was_written_gets_the_name() {
        for put in [true, false] {
            for planted in ["link", "file", "none"] {
                let dir = tempfile::tempdir().unwrap();
                let at = |name: &str| dir.path().join(name);
                fs::write(at("secret"), "secret").unwrap();
                fs::write(at("out"), "old").unwrap();
                let (file, temporary) = begin(&place(&at("out")).unwrap()).unwrap();
                let name = at(temporary.as_ref().unwrap().name.as_ref().unwrap().to_str().unwrap());
                fs::rename(&name, at("kept")).unwrap();
                match planted {
                    "link" => symlink("secret", &name).unwrap(),
                    "file" => fs::write(&name, "another's").unwrap(),
                    _ => {}
                }
                match put {
                    true => assert!(temporary.unwrap().put(&file).is_err(), "{planted}"),
                    false => drop(temporary),
                }
                assert_eq!(fs::read(at("out")).unwrap(), b"old", "{planted}");
                assert_eq!(name.symlink_metadata().is_ok(), planted != "none", "{planted}");
            }
        }
    }

    /// Goal: what another user planted where all may write is refused, as the kernel does; what is ours or
    /// the directory's owner's is not, nor what stands in any other directory.
    /// Method: links, files and FIFOs of each owner in directories of each mode.
    #[test]
    fn what_others_planted_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: not root");
        }
        for (mode, dir_owner, owner, refused) in [
            (0o1777, 0, 65534, true),
            (0o1777, 65533, 65534, true),
            (0o1777, 65534, 65534, false),
            (0o1777, 65534, 0, false),
            (0o755, 0, 65534, false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let at = |name: &str| dir.path().join(name);
            fs::create_dir(at("shared")).unwrap();
            fs::write(at("precious"), "precious").unwrap();
            symlink("../precious", at("shared/link")).unwrap();
            fs::write(at("shared/file"), "file").unwrap();
            assert!(Command::new("mkfifo").arg(at("shared/fifo")).status().unwrap().success());
            for name in ["link", "file", "fifo"] {
                lchown(at("shared").join(name), Some(owner), None).unwrap();
            }
            lchown(at("shared"), Some(dir_owner), None).unwrap();
            fs::set_permissions(at("shared"), Permissions::from_mode(mode)).unwrap();
            for name in ["link", "file", "fifo"] {
                assert_eq!(check(&at("shared").join(name)).is_err(), refused, "{mode:o} {owner} {name}");
            }
            assert_eq!(write(&at("shared/link"), b"new").is_err(), refused);
            let left = fs::read(at("precious")).unwrap();
            assert_eq!(left, if refused { &b"precious"[..] } else { b"new" });
            write(&at("shared/own"), b"new").unwrap();
        }
    }
}
