//! Files that the user named to be written: lists, reports.
//!
//! In: a path. Out: the file behind it, replaced whole by rename beside itself, through symbolic links and with the mode that it
//! had; or what is no plain file (a device, a pipe, a terminal, `/dev/stdout`), which is written to as it is and never
//! replaced. It is looked at before the work begins.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, FsWord, OFlags, access, fcntl_setfl, statfs};
use rustix::io::Errno;

/// Symbolic links that are followed, as the kernel does.
const LINKS_MAX: usize = 40;
/// Names of temporaries that are tried.
const TEMPORARIES_MAX: u32 = 1000;
/// What `statfs` says of `/proc`, whose names of open descriptors are no links to be followed.
const PROC: FsWord = 0x9fa0;

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A regular file, or nothing yet: its name behind all symbolic links.
    File(PathBuf),
    /// What is written to as it is.
    Stream(PathBuf),
}

/// Follows a path to what is to be written.
///
/// # Errors
/// It is a directory, or cannot be looked at.
pub fn place(path: &Path) -> io::Result<Place> {
    let mut at = path.to_owned();
    for _ in 0..LINKS_MAX {
        if statfs(parent(&at)).is_ok_and(|system| system.f_type == PROC) {
            return Ok(Place::Stream(at));
        }
        match fs::symlink_metadata(&at) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Place::File(at)),
            Err(error) => return Err(error),
            Ok(meta) if meta.is_symlink() => at = parent(&at).join(fs::read_link(&at)?),
            Ok(meta) if meta.is_dir() => return Err(Errno::ISDIR.into()),
            Ok(meta) if meta.is_file() => return Ok(Place::File(at)),
            Ok(_) if haul_mutant::removed("streams-are-not-replaced") => return Ok(Place::File(at)),
            Ok(_) => return Ok(Place::Stream(at)),
        }
    }
    Err(Errno::LOOP.into())
}

/// Whether `path` could be written, as far as that can be told without doing it.
///
/// # Errors
/// A sentence for people.
pub fn check(path: &Path) -> Result<(), String> {
    let failed = |error: io::Error| format!("cannot write {}: {error}", path.display());
    let denied = match place(path).map_err(failed)? {
        Place::File(file) => access(parent(&file), Access::WRITE_OK),
        Place::Stream(stream) => access(&stream, Access::WRITE_OK),
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
    written.map_err(|error: io::Error| format!("cannot write {}: {error}", path.display()))
}

/// Begins to write: into a temporary beside a file, or straight into a stream.
pub fn begin(place: &Place) -> io::Result<(File, Option<Temporary>)> {
    match place {
        Place::File(path) => Temporary::begin(path).map(|(file, temporary)| (file, Some(temporary))),
        Place::Stream(path) => Ok((open_stream(path)?, None)),
    }
}

/// Opens what is written to as it is. A pipe that nobody reads is waited for, as every other program does.
pub fn open_stream(path: &Path) -> io::Result<File> {
    if let Some(fd) = own_output(path) {
        return Ok(File::from(fd?));
    }
    let mut options = OpenOptions::new();
    let flags = |more: OFlags| (OFlags::NOCTTY | more).bits().cast_signed();
    // What was opened by the shell may be a file with something in it.
    options.append(true).custom_flags(flags(OFlags::NONBLOCK));
    match options.open(path) {
        Ok(file) => {
            fcntl_setfl(&file, OFlags::APPEND)?;
            Ok(file)
        }
        Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) && is_fifo(path) => {
            let name = crate::escape::text(&path.display().to_string());
            let _ = writeln!(io::stderr(), "haul: waiting for somebody to read from {name}");
            options.custom_flags(flags(OFlags::empty())).open(path)
        }
        Err(error) => Err(error),
    }
}

/// The program's own stdout or stderr, if `path` is the kernel's name of it: opened anew, a file would be written from its start.
fn own_output(path: &Path) -> Option<io::Result<std::os::fd::OwnedFd>> {
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
pub fn is_stdout(stream: &Path) -> bool {
    own_descriptor(stream) == Some(OsStr::new("1"))
}

fn is_fifo(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.file_type().is_fifo())
}

/// The new content of a file, beside it. Dropped without [`Temporary::put`] it is removed.
pub struct Temporary {
    path: PathBuf,
    /// `None` once renamed.
    temporary: Option<PathBuf>,
}

impl Temporary {
    fn begin(path: &Path) -> io::Result<(File, Temporary)> {
        if haul_mutant::removed("manifests-appear-whole") {
            return Ok((File::create(path)?, Temporary { path: path.to_owned(), temporary: None }));
        }
        let old = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file);
        let mut number = 0;
        let (file, temporary) = loop {
            // Short, for the file's own name may be as long as names can be.
            let name = parent(path).join(format!(".haul-list-{}-{number}", std::process::id()));
            let mode = if old.is_some() { 0o600 } else { 0o666 };
            match OpenOptions::new().write(true).create_new(true).mode(mode).open(&name) {
                Ok(file) => break (file, name),
                // A leftover of a killed run, or of this run's other list.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < TEMPORARIES_MAX => {
                    number += 1;
                }
                Err(error) => return Err(error),
            }
        };
        let made = Temporary { path: path.to_owned(), temporary: Some(temporary.clone()) };
        if let Some(old) = old {
            let _ = chown(&temporary, Some(old.uid()), None);
            let _ = chown(&temporary, None, Some(old.gid()));
            let group_kept = file.metadata()?.gid() == old.gid();
            let mode = old.mode() & 0o777;
            // The group's rights were not meant for another group.
            let mode = if group_kept { mode } else { mode & 0o707 | mode & 0o070 & mode << 3 };
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        Ok((file, made))
    }

    /// Makes `file` durable and gives it the name.
    ///
    /// # Errors
    /// What stands there is as it was.
    pub fn put(mut self, file: &File) -> io::Result<()> {
        file.sync_data()?;
        if let Some(temporary) = &self.temporary {
            // It may have become something else meanwhile.
            if !matches!(place(&self.path)?, Place::File(path) if path == self.path) {
                return Err(io::Error::other("it is no plain file any more"));
            }
            fs::rename(temporary, &self.path)?;
        }
        self.temporary = None;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = fs::remove_file(temporary);
        }
    }
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
    use std::io::Read;
    use std::os::unix::fs::symlink;
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

    /// Goal: a link is followed and stays, also one that leads nowhere yet; a file that is replaced keeps its mode.
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
        assert_eq!((text.as_str(), is_fifo(&fifo)), ("through", true));
        for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/2"] {
            assert!(matches!(place(Path::new(name)).unwrap(), Place::Stream(_)), "{name}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary was made");
    }
}
