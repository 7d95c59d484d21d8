//! The other side: which jobs of this user run on this host, and one request to one of them.
//!
//! What a job says is read as text of bounded length and parsed; it is the same user's, and still shown
//! escaped.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Pid;

use super::{CtlError, PATIENCE, Place, REPLY_LEN_MAX, Reply, Request, parse_file, system};
use haul_base::errno;

/// Most jobs that are looked at.
const JOBS_MAX: usize = 1024;

/// A job's socket.
pub struct Found {
    /// Of the process that runs it.
    pub pid: u32,
    /// The name of the job.
    pub name: String,
    pub(super) place: std::sync::Arc<Place>,
    pub(super) file: String,
}

impl Found {
    /// Pid and name, as it is listed.
    pub fn id(&self) -> String {
        format!("{}-{}", self.pid, self.name)
    }
}

/// No one job is meant by what was typed.
#[derive(Debug, PartialEq, Eq)]
pub enum Lost {
    /// None is called so.
    Unknown,
    /// These are.
    Ambiguous(Vec<String>),
}

/// The jobs of this user that run on this host, by pid; sockets that dead ones left are removed.
///
/// # Errors
/// A directory is there and cannot be read, or is not private.
pub fn jobs(dirs: &[PathBuf]) -> Result<Vec<Found>, CtlError> {
    let mut found = Vec::new();
    for path in dirs {
        let Some(place) = Place::open(path)? else { continue };
        let place = std::sync::Arc::new(place);
        let dir = rustix::fs::Dir::read_from(&place.dir).map_err(system("list", path))?;
        for entry in dir {
            let entry = entry.map_err(system("list", path))?;
            let name = std::ffi::OsStr::from_bytes(entry.file_name().to_bytes());
            let Some((pid, name)) = parse_file(name.as_bytes()) else { continue };
            let (name, file) = (name.to_owned(), format!("{pid}-{name}.sock"));
            let refused = is_refused(&place, &file);
            if is_dead(pid) && (refused || !is_served(&place, &file)) {
                place.remove(&file);
            } else if refused {
                // Another process has the number of a dead job. (Or this job is about to listen: its socket
                // stays.)
            } else if found.len() < JOBS_MAX {
                found.push(Found { pid, name, place: place.clone(), file });
            }
        }
    }
    found.sort_by_key(|job| job.pid);
    Ok(found)
}

/// No process has this number here. (One in another pid namespace may; it is then still served.)
fn is_dead(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_none_or(|pid| rustix::process::test_kill_process(pid) == Err(Errno::SRCH))
}

/// Nobody listens at this socket.
fn is_refused(place: &Place, file: &str) -> bool {
    let refused = |error: &CtlError| match error {
        CtlError::System { source, .. } => source.kind() == ErrorKind::ConnectionRefused,
        CtlError::NotPrivate { .. } | CtlError::NoAnswer { .. } => false,
    };
    connect(place, file).is_err_and(|error| refused(&error))
}

/// Somebody listens at this socket.
pub(super) fn is_served(place: &Place, file: &str) -> bool {
    connect(place, file).is_ok()
}

fn connect(place: &Place, file: &str) -> Result<UnixStream, CtlError> {
    let path = place.path.join(file);
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let socket = socket.map_err(system("make a socket for", &path))?;
    for which in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&socket, which, Some(PATIENCE)).map_err(system("set up a socket for", &path))?;
    }
    rustix::net::connect(&socket, &place.address(file)?).map_err(system("connect to", &path))?;
    Ok(socket.into())
}

/// The one that is meant by `word`: a pid, a name, or what only one name or `PID-NAME` begins with.
///
/// # Errors
/// None or several are meant.
pub fn find<'a>(jobs: &'a [Found], word: &str) -> Result<&'a Found, Lost> {
    let number = word.parse::<u32>().ok();
    let tests: [&dyn Fn(&Found) -> bool; 3] =
        [&|job| Some(job.pid) == number || job.id() == word, &|job| job.name == word, &|job| {
            !word.is_empty() && (job.name.starts_with(word) || job.id().starts_with(word))
        }];
    for test in tests {
        let meant: Vec<&Found> = jobs.iter().filter(|job| test(job)).collect();
        match meant[..] {
            [] => {}
            [one] => return Ok(one),
            _ => return Err(Lost::Ambiguous(meant.iter().map(|job| job.id()).collect())),
        }
    }
    Err(Lost::Unknown)
}

/// Asks a job.
///
/// # Errors
/// It does not answer within 2 s, or not as a job does.
pub fn ask(job: &Found, request: &Request) -> Result<Reply, CtlError> {
    let no_answer = |what: String| CtlError::NoAnswer { pid: job.pid, what };
    let mut stream = connect(&job.place, &job.file)?;
    let mut line = serde_json::to_vec(request).map_err(|error| no_answer(error.to_string()))?;
    line.push(b'\n');
    let mut reply = Vec::new();
    let said =
        stream.write_all(&line).and_then(|()| stream.take(REPLY_LEN_MAX as u64).read_to_end(&mut reply));
    match said {
        Ok(_) => {}
        // It was answered before it had read all.
        Err(error) if error.kind() == ErrorKind::ConnectionReset && reply.ends_with(b"\n") => {}
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            return Err(no_answer(format!("no answer within {} s; is it stopped?", PATIENCE.as_secs())));
        }
        Err(error) => return Err(no_answer(errno::text(error))),
    }
    if reply.is_empty() {
        return Err(no_answer("it ended before it answered".into()));
    }
    serde_json::from_slice(&reply).map_err(|error| no_answer(format!("no reply of a job: {error}")))
}
