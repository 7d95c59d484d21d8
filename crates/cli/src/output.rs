//! Reports into files that the user named: looked at before the work begins, written whole or not at all after it.
//!
//! In: a path and the whole content. Out: the file, replaced by rename. What is no plain file (a terminal, a
//! pipe, `/dev/stdout`) is written to as it is.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{Access, access};

/// Whether `path` could be written, as far as that can be told without doing it.
///
/// # Errors
/// A sentence for people.
pub fn check(path: &Path) -> Result<(), String> {
    let failed = |error: io::Error| format!("cannot write {}: {error}", path.display());
    let target = match fs::metadata(path) {
        Ok(meta) if meta.is_dir() => {
            return Err(format!("cannot write {}: it is a directory", path.display()));
        }
        Ok(meta) if !meta.is_file() => path,
        _ => parent(path),
    };
    access(target, Access::WRITE_OK).map_err(|errno| failed(errno.into()))
}

/// Writes the whole of it.
///
/// # Errors
/// A sentence for people; an older file stays as it was.
pub fn write(path: &Path, content: &[u8]) -> Result<(), String> {
    place(path, content).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn place(path: &Path, content: &[u8]) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        return OpenOptions::new().write(true).open(path)?.write_all(content);
    }
    // Short, for the file's own name may be as long as names can be.
    let temporary = parent(path).join(format!(".haul-report-{}", std::process::id()));
    // A leftover of a killed run with our pid.
    let _ = fs::remove_file(&temporary);
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o666).open(&temporary)?;
        file.write_all(content)?;
        file.sync_data()?;
        fs::rename(&temporary, path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
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
}
