//! Logins of servers that the user keeps in `~/.netrc`, so that no password stands in a command.
//!
//! In: endpoints as typed. Out: those without a password, with the login that the file has for them.
//! The file is `$NETRC`, or `.netrc` in the home directory; one that others may read is refused, as by other
//! clients.

use std::env;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use haul::endpoint::Endpoint;
use haul::errno;
use rustix::fs::OFlags;

/// Most bytes of the file.
const LEN_MAX: u64 = 1 << 20;
/// `/dev/null`, by its numbers, on any Linux.
const NULL_DEVICE: (u32, u32) = (1, 3);

/// Where the file would be.
fn path() -> Option<PathBuf> {
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".netrc"));
    env::var_os("NETRC").map(PathBuf::from).or_else(home)
}

/// Where a login came from that a server refused, for people; nothing where `typed` brought all of them, or
/// the error is another one.
pub fn refused(error: &haul::api::Error, typed: &[Endpoint], used: &[Endpoint]) -> Option<String> {
    let is_added = typed.iter().zip(used).any(|(typed, used)| typed.wants_login() && !used.wants_login());
    let is_login = error.text.contains(" 530 ") || error.text.contains(" 532 ");
    let path = path().filter(|_| is_added && is_login)?;
    Some(format!("; the login came from {}", path.display()))
}

/// # Errors
/// The file is there and cannot be used, in a sentence for people.
pub fn add_logins(endpoints: &mut [Endpoint]) -> Result<(), String> {
    if !endpoints.iter().any(Endpoint::wants_login) {
        return Ok(());
    }
    let Some(path) = path() else { return Ok(()) };
    let shown = path.display();
    let failed = |what: &str, error: std::io::Error| format!("{what} {shown}: {}", errno::text(error));
    // Of a FIFO nobody waits for who writes into it.
    let nonblock = OFlags::NONBLOCK.bits() as i32;
    let file = match File::options().read(true).custom_flags(nonblock).open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("open", error)),
    };
    let numbers = |device| (rustix::fs::major(device), rustix::fs::minor(device));
    let about = file.metadata().map_err(|error| failed("look at", error))?;
    let is_null = about.file_type().is_char_device() && numbers(about.rdev()) == NULL_DEVICE;
    if is_null {
        // Whoever names it has no list.
        return Ok(());
    }
    if !about.is_file() {
        return Err(format!("{shown} is no regular file, and no list of logins"));
    }
    let mut text = Vec::new();
    file.take(LEN_MAX + 1).read_to_end(&mut text).map_err(|error| failed("read", error))?;
    if text.len() as u64 > LEN_MAX {
        return Err(format!("{shown} is longer than 1 MiB, and no list of logins"));
    }
    let text = String::from_utf8_lossy(&text);
    for endpoint in endpoints {
        if let Some(found) = endpoint.with_login(&text).map_err(|why| format!("{shown}: {why}"))? {
            if about.mode() & 0o077 != 0 {
                return Err(format!("{shown} holds a password and others may read it: chmod 600 {shown}"));
            }
            *endpoint = found;
        }
    }
    Ok(())
}
