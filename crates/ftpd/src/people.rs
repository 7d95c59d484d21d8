//! Who comes by a certificate, and as which user of this host: the files that say so.
//!
//! In: the host's certificate and key, a gridmap, the name that somebody has shown. Out: as whom this host
//! comes; a login, and as whom a process serves it.
//! Invariants: only the monitor asks; root is nobody's user unless that is allowed; a monitor that is not
//! root serves its own user and no other. Files that cannot be used leave what was read before.
//! Left out: authorities, whose directory each session reads anew.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use haul_base::users;
use haul_base::way::{self, Blocked, Manner};
use haul_gsi::gridmap::GRIDMAP_LEN_MAX;
use haul_gsi::{Credential, Dn, Gridmap};

use crate::config::{Access, Login, Parts, Secret};

/// So long the system may take to say who a user is; nobody else is listened to meanwhile.
const LOOK_UP_WITHIN: Duration = Duration::from_secs(5);

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
        let (host, map) = (read_host(&files)?, read_map(&files)?);
        Ok(People { files, allow_root, host, map })
    }

    /// Reads the files again, each on its own: what cannot be used leaves what was read of it before, and the
    /// other counts. What could not be, in words with what to do.
    pub fn read_again(&mut self) -> Vec<String> {
        let host = read_host(&self.files).map(|host| self.host = host);
        if host.is_err() && haul_mutant::removed("ftpd-maps-count-by-themselves") {
            return host.err().into_iter().collect();
        }
        let map = read_map(&self.files).map(|map| self.map = map);
        [host, map].into_iter().filter_map(Result::err).collect()
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
        let ids = match users::look_up(user, LOOK_UP_WITHIN) {
            Ok(Some((uid, gid, groups))) => Ids { uid, gid, groups },
            Ok(None) => return Err(refused(format!("there is no user {user} here"))),
            Err(users::TooLate) => {
                return Err(refused(format!("nobody says in time who {user} is here; come again later")));
            }
        };
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
/// It or one of the certificates in it cannot be read, or others can change it.
pub fn has_authority(dir: &Path) -> std::io::Result<bool> {
    only_ours(dir).map_err(std::io::Error::other)?;
    haul_gsi::Directory::can_be_read(dir)
}

/// Whether nobody may change what a directory says, or a file in it, but root and who this process is.
///
/// # Errors
/// Somebody may, or it cannot be read; in words with what to do.
pub fn only_ours(dir: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| haul_base::errno::text(&error);
    let ours = [0, rustix::process::geteuid().as_raw()];
    let check = |path: &Path| match fs::metadata(path) {
        Ok(_) if haul_mutant::removed("ftpd-authorities-are-ours") => Ok(()),
        Ok(facts) if !ours.contains(&facts.uid()) || facts.mode() & 0o022 != 0 => Err(format!(
            "others can change {} (uid {}, mode {:03o}), and it says whom to believe; chown it, and chmod go-w",
            path.display(),
            facts.uid(),
            facts.mode() & 0o777
        )),
        // A link that leads nowhere says nothing.
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {}", path.display(), failed(error)))
        }
        _ => Ok(()),
    };
    check(dir)?;
    if !haul_mutant::removed("ftpd-the-way-to-authorities-is-ours") {
        is_reached_by_ours(dir)?;
    }
    for entry in fs::read_dir(dir).map_err(failed)? {
        check(&entry.map_err(failed)?.path())?;
    }
    Ok(())
}

/// Nobody else can put another directory in the place of this one, not even a group that one of ours was
/// given to.
fn is_reached_by_ours(dir: &Path) -> Result<(), String> {
    match way::open_dir(dir, Manner::default()) {
        Ok(_) => Ok(()),
        // Whoever reads it says so.
        Err(blocked) if blocked.is_missing() => Ok(()),
        Err(Blocked::BySystem { at, source }) => {
            Err(format!("{}: {}", at.display(), haul_base::errno::text(source)))
        }
        Err(blocked @ Blocked::ByOthers { .. }) => Err(format!(
            "{blocked}, and it leads to {}, which says whom to believe; put it elsewhere, or chown that directory and chmod go-w it",
            dir.display()
        )),
    }
}

fn read_host(files: &Files) -> Result<Parts, String> {
    let host = Credential::read(&files.host_cert, &files.host_key)?;
    host.check()?;
    Ok(host.to_der().into_iter().map(Secret).collect())
}

fn read_map(files: &Files) -> Result<Gridmap, String> {
    let shown = files.gridmap.display();
    let text = map_text(&files.gridmap).map_err(|why| format!("{shown}: {why}"))?;
    Gridmap::parse(&text).map_err(|why| format!("{shown}: {why}"))
}

/// The text of a gridmap, which nobody may write whom this process does not trust anyway.
fn map_text(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| haul_base::errno::text(&error);
    // Where a FIFO is there instead, nobody waits for who writes to it.
    let flags = rustix::fs::OFlags::NONBLOCK.union(rustix::fs::OFlags::NOCTTY).bits();
    let flags = i32::try_from(flags).map_err(|error| error.to_string())?;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let facts = file.metadata().map_err(failed)?;
    if !facts.is_file() && !haul_mutant::removed("ftpd-maps-are-files") {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn files(dir: &Path) -> Files {
        let at = |name: &str| dir.join(name);
        Files { host_cert: at("host.pem"), host_key: at("host.key"), gridmap: at("gridmap") }
    }

    /// Goal: a FIFO in the place of a gridmap is refused, not waited for.
    #[test]
    fn a_gridmap_that_is_a_fifo_is_not_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = files(dir.path());
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
        rustix::fs::mknodat(rustix::fs::CWD, &files.gridmap, kind, mode, 0).expect("make a FIFO");
        let (told, hears) = std::sync::mpsc::channel();
        std::thread::spawn(move || told.send(read_map(&files).map(|_| ())));
        let said = hears.recv_timeout(Duration::from_secs(60)).expect("it waits for who writes");
        assert!(said.expect_err("it is used").contains("no regular file"));
    }

    /// Goal: authorities that others may write, the directory or one file, are nobody's word.
    #[test]
    fn authorities_that_others_may_write_are_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("0a1b2c3d.0");
        fs::write(&file, "").expect("write");
        let set = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
        };
        for (dir_mode, file_mode, is_ours) in
            [(0o755, 0o644, true), (0o777, 0o644, false), (0o755, 0o664, false), (0o700, 0o600, true)]
        {
            set(dir.path(), dir_mode);
            set(&file, file_mode);
            let said = has_authority(dir.path()).map_err(|error| error.to_string());
            assert_eq!(said.is_ok(), is_ours, "{said:?}");
            assert!(said.is_ok_and(|there| there) || !is_ours);
        }
        set(dir.path(), 0o755);
        set(&file, 0o644);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&file, Some(1), None).expect("give it away");
            assert!(only_ours(dir.path()).expect_err("it is another's").contains("0a1b2c3d.0"));
        }
    }

    /// Goal: a directory of authorities that is reached by a name which others can make lead elsewhere is
    /// nobody's word, however well it is kept itself; one in `/tmp` of ours is.
    #[test]
    fn the_way_to_authorities_is_ours() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let room = tempfile::tempdir().expect("a directory");
        let at = |name: &str| room.path().join(name);
        let set = |name: &str, mode| {
            fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).expect("chmod");
        };
        for name in ["own", "own/certificates", "open", "open/certificates"] {
            fs::create_dir(at(name)).expect("make a directory");
            set(name, 0o755);
        }
        symlink(at("open/certificates"), at("own/far")).expect("a link");
        symlink("../own/certificates", at("open/near")).expect("a link");
        symlink("round", at("own/round")).expect("a link");
        let is_ours = |name: &str| only_ours(&at(name));
        for name in ["own/certificates", "own/far", "open/near", "open/certificates"] {
            assert_eq!(is_ours(name), Ok(()), "{name}");
        }
        set("open", 0o777);
        assert_eq!(is_ours("own/certificates"), Ok(()));
        for name in ["own/far", "open/near", "open/certificates"] {
            let said = is_ours(name).expect_err("it may lead elsewhere tomorrow");
            assert!(said.contains("0777") && said.contains("open"), "{said}");
        }
        // Nobody takes another's names away there.
        set("open", 0o1777);
        assert_eq!(is_ours("own/far"), Ok(()));
        assert!(is_ours("own/round").is_err());
    }

    /// Goal: who was taken out of the map is nobody from then on, also where the host's key is broken; and
    /// what is broken is named and leaves what was.
    #[test]
    fn the_map_counts_though_the_key_is_broken() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = files(dir.path());
        let host = vec![Secret(b"a key".to_vec())];
        let map = Gridmap::parse(b"\"/O=Grid/CN=alice\" alice\n").expect("a map");
        let mut people = People { files: files.clone(), allow_root: false, host: host.clone(), map };
        let new = "\"/O=Grid/CN=bob\" bob\n";
        fs::write(&files.gridmap, new).expect("write the map");
        let broken = people.read_again();
        assert!(broken.len() == 1 && broken[0].contains("host.pem"), "{broken:?}");
        assert_eq!((&people.host, &people.map), (&host, &Gridmap::parse(new.as_bytes()).expect("a map")));
        fs::write(&files.gridmap, "\"/O=Grid/CN=alice\n").expect("write the map");
        let broken = people.read_again();
        assert!(broken.len() == 2 && broken[1].contains("line 1 has a quote"), "{broken:?}");
        assert_eq!(people.map, Gridmap::parse(new.as_bytes()).expect("a map"));
    }
}
