//! How further ssh clients share the connection of the first.
//!
//! In: the user's ssh. Out: [`Sharing`]: options for the first client, and the words of the others. The
//! user's own control socket is used where he configured one and its master is up, or will be by our first
//! client; else the first client opens one of ours, in a directory that is closed to others. Only ssh is
//! asked (`ssh -G`), not the host.
//!
//! Invariants: a further client never logs in, whatever becomes of the first: it reads no configuration, and
//! its way to the host is `false`. The user's master is never told to end. Our socket is gone as soon as
//! nobody needs it any more.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use rustix::fs::{FileType, Mode};

use super::happy_eyeballs::hear;
use super::join_handshake::random;
use super::ssh::destination;
use super::{Dialler, RemoteSpec};
use haul_base::errno;
use haul_base::stop::Stop;

/// How long ssh may take to tell its configuration.
const CONFIG_WAIT: Duration = Duration::from_secs(10);
/// Longest configuration that is read, bytes.
const CONFIG_LEN_MAX: u64 = 1 << 20;
/// ssh puts 17 bytes behind the path of its socket, and the address of one has 108.
const SOCKET_LEN_MAX: usize = 88;
/// Channels besides the first: sshd allows ten sessions of a connection unless told otherwise.
const FURTHER_OWN_MAX: u16 = 9;
/// The same where the user has sessions of his own in the connection.
const FURTHER_USERS_MAX: u16 = 8;

/// See the module.
pub(super) struct Sharing {
    ssh: OsString,
    destination: String,
    socket: Socket,
}

enum Socket {
    Own(OwnSocket),
    Users(PathBuf),
}

/// Removed when dropped.
struct OwnSocket(PathBuf);

impl Drop for OwnSocket {
    fn drop(&mut self) {
        let _ = rustix::fs::unlink(&self.0);
    }
}

impl Sharing {
    /// How it is with the ssh of `spec`.
    ///
    /// # Errors
    /// It cannot be shared: why.
    pub(super) fn find(spec: &RemoteSpec) -> Result<Sharing, String> {
        if spec.ssh_channels == Some(1) {
            return Err("as asked".into());
        }
        if spec.dial != Dialler::Auto {
            return Err("nothing goes through ssh".into());
        }
        let ssh = spec.ssh.first().map_or("ssh", String::as_str);
        if Path::new(ssh).file_name() != Some("ssh".as_ref()) {
            return Err("only OpenSSH shares its connection".into());
        }
        let destination = destination(spec).map_err(|error| error.what)?;
        let mut ask = Command::new(ssh);
        ask.args(spec.ssh.iter().skip(1)).args(["-T", "-G", "--", &destination]);
        let told = output(&mut ask, &spec.stop).ok_or("this ssh does not tell its configuration")?;
        let socket = match configured(&told)? {
            Some(path) => Socket::Users(path),
            None => Socket::Own(own_socket(&spec.sockets)?),
        };
        Ok(Sharing { ssh: ssh.into(), destination, socket })
    }

    /// Most channels besides the first that are asked for when the user does not say.
    pub(super) fn further_max(&self) -> u16 {
        match self.socket {
            Socket::Own(_) => FURTHER_OWN_MAX,
            Socket::Users(_) => FURTHER_USERS_MAX,
        }
    }

    /// Options for the first client, behind the user's.
    pub(super) fn first(&self) -> Vec<OsString> {
        match &self.socket {
            Socket::Own(OwnSocket(path)) => {
                vec!["-oControlMaster=yes".into(), "-oControlPersist=no".into(), control_path(path)]
            }
            Socket::Users(_) => Vec::new(),
        }
    }

    /// Program and arguments of a further client that runs `remote`.
    pub(super) fn further(&self, remote: &str) -> Vec<OsString> {
        let (Socket::Own(OwnSocket(path)) | Socket::Users(path)) = &self.socket;
        let mut words = vec![self.ssh.clone()];
        words.extend(["-F", "none", "-oControlMaster=no"].map(OsString::from));
        if !haul_mutant::removed("clients-cannot-log-in") {
            words.push("-oProxyCommand=false".into());
        }
        words.extend(["-oBatchMode=yes".into(), control_path(path)]);
        words.extend(["-T", "--", &self.destination, remote].map(OsString::from));
        words
    }
}

/// `%` and `$` mean something to ssh, of which only the first can be meant literally; [`own_socket`] and
/// [`configured`] know.
fn control_path(path: &Path) -> OsString {
    let mut option = b"-oControlPath=".to_vec();
    for byte in path.as_os_str().as_bytes() {
        option.extend(if *byte == b'%' { &b"%%"[..] } else { std::slice::from_ref(byte) });
    }
    OsString::from_vec(option)
}

/// ssh reads the path as one word of a configuration line.
fn is_plain(path: &Path) -> bool {
    let odd = |byte: &u8| byte.is_ascii_whitespace() || b"\"'\\$~".contains(byte);
    path.is_absolute() && !path.as_os_str().as_bytes().iter().any(odd)
}

/// What `command` says, if it ends well and in time, and nobody wants an end before.
fn output(command: &mut Command, stop: &Stop) -> Option<Vec<u8>> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let stdout = child.stdout.take()?;
    let (sender, told) = bounded(1);
    let read = move || {
        let mut text = Vec::new();
        let result = stdout.take(CONFIG_LEN_MAX).read_to_end(&mut text);
        let _ = sender.send(result.map(|_| text));
    };
    let reading = thread::Builder::new().name("haul-ssh-config".into()).spawn(read);
    let told = reading.ok().and_then(|_| hear(&told, Instant::now() + CONFIG_WAIT, stop).ok());
    if told.is_none() {
        let _ = child.kill();
    }
    let ended = child.wait().is_ok_and(|status| status.success());
    told?.ok().filter(|_| ended)
}

/// The user's control socket, of what `ssh -G` says, if our first client uses it or makes it.
///
/// # Errors
/// It is no OpenSSH, or its user wants to be asked.
fn configured(told: &[u8]) -> Result<Option<PathBuf>, String> {
    let value = |name: &[u8]| {
        let lines = told.split(|byte| *byte == b'\n');
        lines.filter_map(|line| line.strip_prefix(name)).find_map(|rest| rest.strip_prefix(b" "))
    };
    let master = value(b"controlmaster").ok_or("this ssh cannot share its connection")?;
    let Some(path) = value(b"controlpath").filter(|path| *path != b"none") else { return Ok(None) };
    let path = PathBuf::from(OsString::from_vec(path.to_vec()));
    let opens = matches!(master, b"yes" | b"true" | b"auto");
    match master {
        b"ask" | b"autoask" => Err("ssh would ask for each channel".into()),
        // A path with odd characters may be one that an older ssh did not expand.
        _ if !is_plain(&path) => Err("the path of ssh's control socket is odd".into()),
        _ if opens || UnixStream::connect(&path).is_ok() => Ok(Some(path)),
        _ => Ok(None),
    }
}

/// A path for a socket of ours, in the first of `dirs` that is closed to others and takes one.
fn own_socket(dirs: &[PathBuf]) -> Result<OwnSocket, String> {
    let mut last = "there is no place for a socket".to_owned();
    for dir in dirs {
        match own_socket_in(dir) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = format!("no socket in {}: {}", dir.display(), errno::text(error)),
        }
    }
    Err(last)
}

fn own_socket_in(dir: &Path) -> io::Result<OwnSocket> {
    match rustix::fs::mkdir(dir, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    let stat = rustix::fs::lstat(dir)?;
    let ours = FileType::from_raw_mode(stat.st_mode) == FileType::Directory
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && (stat.st_mode & 0o077 == 0 || haul_mutant::removed("closed-control-directory"));
    if !ours {
        return Err(io::Error::other("it is not this user's alone"));
    }
    let mut tag = [0; 8];
    random(&mut tag)?;
    let path = dir.join(format!("ssh-{}", data_encoding::HEXLOWER.encode(&tag)));
    if path.as_os_str().len() > SOCKET_LEN_MAX || !is_plain(&path) {
        return Err(io::Error::other("its path is too long or odd"));
    }
    let socket = OwnSocket(path);
    // ssh ends where it cannot make its socket.
    drop(UnixListener::bind(&socket.0)?);
    rustix::fs::unlink(&socket.0)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Result<Option<PathBuf>, String> {
        configured(text.as_bytes())
    }

    /// Goal: the user's socket is used where ssh will use it, and only there.
    #[test]
    fn the_users_socket_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cm");
        let config = |master: &str, path: &Path| {
            told(&format!("hostname h\ncontrolmaster {master}\ncontrolpath {}\n", path.display()))
        };
        assert_eq!(told("hostname h\ncontrolmaster false\ncontrolpersist no\n"), Ok(None));
        assert_eq!(config("auto", &path), Ok(Some(path.clone())));
        assert_eq!(config("false", &path), Ok(None), "nobody is there");
        let _master = UnixListener::bind(&path).unwrap();
        assert_eq!(config("false", &path), Ok(Some(path.clone())));
        assert!(config("autoask", &path).is_err());
        assert!(config("auto", Path::new("/x/$HOME")).is_err());
        assert!(told("usage: plink\n").is_err());
    }

    /// Goal: our socket lies where nobody else can reach it, or nowhere; nothing lies there before ssh makes
    /// it.
    #[test]
    fn our_socket_is_ours_alone() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let (open, fresh) = (dir.path().join("open"), dir.path().join("fresh"));
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(own_socket(&[]).is_err());
        assert!(own_socket(std::slice::from_ref(&open)).is_err());
        std::os::unix::fs::symlink(&fresh, dir.path().join("link")).unwrap();
        assert!(own_socket(&[dir.path().join("link")]).is_err());
        assert!(own_socket(&[dir.path().join("x".repeat(100))]).is_err());
        let socket = own_socket(&[open, fresh.clone()]).unwrap();
        assert_eq!(std::fs::metadata(&fresh).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(!socket.0.exists());
        std::fs::write(&socket.0, "").unwrap();
        drop(socket);
        assert_eq!(std::fs::read_dir(&fresh).unwrap().count(), 0);
    }

    /// Goal: a further client cannot log in, whatever the user's words and files say.
    #[test]
    fn further_clients_only_share() {
        let socket = Socket::Users("/run/a%b".into());
        let sharing = Sharing { ssh: "/usr/bin/ssh".into(), destination: "u@h".into(), socket };
        assert!(sharing.first().is_empty());
        let words = sharing.further("REMOTE");
        let words: Vec<_> = words.iter().map(|word| word.to_str().unwrap()).collect();
        let expected = "/usr/bin/ssh -F none -oControlMaster=no -oProxyCommand=false -oBatchMode=yes \
                        -oControlPath=/run/a%%b -T -- u@h REMOTE";
        assert_eq!(words.join(" "), expected);
    }
}
