//! Logins of servers that the user keeps in `~/.netrc`, so that no password stands in a command.
//!
//! In: endpoints as typed. Out: those without a password, with the login that the file has for them.
//! The file is `$NETRC`, or `.netrc` in the home directory; one that others may read is refused, as by other
//! clients.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::{env, fs};

use haul::endpoint::Endpoint;
use haul::errno;

/// Most bytes of the file.
const LEN_MAX: u64 = 1 << 20;

/// # Errors
/// The file is there and cannot be used, in a sentence for people.
pub fn add_logins(endpoints: &mut [Endpoint]) -> Result<(), String> {
    if !endpoints.iter().any(Endpoint::wants_login) {
        return Ok(());
    }
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".netrc"));
    let Some(path) = env::var_os("NETRC").map(PathBuf::from).or_else(home) else { return Ok(()) };
    let shown = path.display();
    let failed = |what: &str, error: std::io::Error| format!("{what} {shown}: {}", errno::text(error));
    let about = match fs::metadata(&path) {
        Ok(about) => about,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("look at", error)),
    };
    if about.len() > LEN_MAX {
        return Err(format!("{shown} is longer than 1 MiB, and no list of logins"));
    }
    let text = fs::read(&path).map_err(|error| failed("read", error))?;
    let text = String::from_utf8_lossy(&text);
    for endpoint in endpoints {
        if let Some(found) = endpoint.with_login(&text) {
            if about.mode() & 0o077 != 0 {
                return Err(format!("{shown} holds a password and others may read it: chmod 600 {shown}"));
            }
            *endpoint = found;
        }
    }
    Ok(())
}
