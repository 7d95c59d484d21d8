//! Who comes by a certificate, and as which user of this host: the files that say so.
//!
//! In: the host's certificate and key, a gridmap, the name that somebody has shown. Out: as whom this host
//! comes; a login, and as whom a process serves it.
//! Invariants: only the monitor asks; root is nobody's user unless that is allowed; a monitor that is not
//! root serves its own user and no other. Files that cannot be used leave what was read before.
//! Left out: authorities, whose directory each session reads anew.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use haul_base::users;
use haul_gsi::gridmap::GRIDMAP_LEN_MAX;
use haul_gsi::{Credential, Dn, Gridmap};

use crate::config::{Access, Login, Parts, Secret};

/// Whom processes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ids {
    pub uid: u32,
    pub gid: u32,
    /// Beside `gid`.
    pub groups: Vec<u32>,
}

/// Where all of it is.
#[derive(Clone, Debug)]
pub struct Files {
    pub host_cert: PathBuf,
    pub host_key: PathBuf,
    pub gridmap: PathBuf,
}

/// What the files say.
pub struct People {
    files: Files,
    /// Somebody may be root.
    allow_root: bool,
    host: Parts,
    map: Gridmap,
}

impl People {
    /// Of these files.
    ///
    /// # Errors
    /// One cannot be used; in words with what to do.
    pub fn read(files: Files, allow_root: bool) -> Result<People, String> {
        let (host, map) = read(&files)?;
        Ok(People { files, allow_root, host, map })
    }

    /// Reads the files again.
    ///
    /// # Errors
    /// One cannot be used; then nothing has changed.
    pub fn read_again(&mut self) -> Result<(), String> {
        (self.host, self.map) = read(&self.files)?;
        Ok(())
    }

    /// As whom this host comes.
    pub fn host(&self) -> Parts {
        self.host.clone()
    }

    /// Who it is that has shown this name and wants to come as `user`, or as whoever the map says first; and
    /// as whom a process serves him, if not as this one.
    ///
    /// # Errors
    /// The name as it is written, and why he is nobody here.
    pub fn find(&self, name: &Secret, user: Option<&str>) -> Result<(Login, Option<Ids>), (String, String)> {
        let name = Dn::of_der(&name.0).map_err(|error| (String::new(), error.to_string()))?;
        let refused = |why: String| (name.text().to_owned(), why);
        let Some(user) = self.map.user(&name, user) else {
            return Err(refused(match user {
                Some(user) => format!("the gridmap does not let this name come as {user}"),
                None => "the gridmap has no user for this name".into(),
            }));
        };
        let here = rustix::process::geteuid();
        let ids = ids_of(user).ok_or_else(|| refused(format!("there is no user {user} here")))?;
        let login =
            Login { user: user.to_owned(), access: Access::Write, identity: Some(name.text().to_owned()) };
        if !here.is_root() {
            let is_own = ids.uid == here.as_raw();
            let other = || refused(format!("this server can serve one user, and {user} is another"));
            return if is_own { Ok((login, None)) } else { Err(other()) };
        }
        if ids.uid == 0 && !self.allow_root {
            return Err(refused("nobody is served as root here (--allow-root)".into()));
        }
        Ok((login, Some(ids)))
    }
}

/// Whether there is a certificate of any authority in a directory.
///
/// # Errors
/// It cannot be read.
pub fn has_authority(dir: &Path) -> std::io::Result<bool> {
    haul_gsi::Directory::has_authority(dir)
}

fn ids_of(user: &str) -> Option<Ids> {
    let (uid, gid) = users::ids_of(user)?;
    Some(Ids { uid, gid, groups: users::groups_of(user)? })
}

fn read(files: &Files) -> Result<(Parts, Gridmap), String> {
    let host = Credential::read(&files.host_cert, &files.host_key)?;
    host.check()?;
    let parts = host.to_der().into_iter().map(Secret).collect();
    let shown = files.gridmap.display();
    let text = read_map(&files.gridmap).map_err(|why| format!("{shown}: {why}"))?;
    let map = Gridmap::parse(&text).map_err(|why| format!("{shown}: {why}"))?;
    Ok((parts, map))
}

/// The text of a gridmap, which nobody may write whom this process does not trust anyway.
fn read_map(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| haul_base::errno::text(&error);
    let file = fs::File::open(path).map_err(failed)?;
    let facts = file.metadata().map_err(failed)?;
    if !facts.is_file() {
        return Err("is no regular file".into());
    }
    let ours = [0, rustix::process::geteuid().as_raw()];
    if !ours.contains(&facts.uid()) || facts.mode() & 0o022 != 0 {
        return Err(format!(
            "others can change it (uid {}, mode {:03o}), and it says who is whom; chown and chmod 644 it",
            facts.uid(),
            facts.mode() & 0o777
        ));
    }
    let mut text = Vec::new();
    file.take(GRIDMAP_LEN_MAX as u64 + 1).read_to_end(&mut text).map_err(failed)?;
    Ok(text)
}
