//! The socket of a copy: one thread that listens, and answers each client when its line is there.
//!
//! Invariant: it never waits for a client. All are polled together, at most [`CLIENTS_MAX`] at a time, each
//! for [`PATIENCE`]; a reply that does not fit the socket at once is dropped with its client.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, Mode};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::{CtlError, Job, Label, PATIENCE, Place, REQUEST_LEN_MAX, Reply, Request, system};
use crate::handle::Handle;

/// Clients that are listened to at a time; others wait in the kernel's queue.
const CLIENTS_MAX: usize = 16;
/// Clients that may wait there.
const BACKLOG: i32 = 16;

/// The control socket of a copy. Dropped, it is closed and removed.
pub struct Server {
    place: Arc<Place>,
    file: String,
    /// Closed to end the thread.
    end: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

struct Client {
    stream: UnixStream,
    heard: Vec<u8>,
    until: Instant,
}

impl Server {
    /// Opens a socket in the first of `dirs` where that is possible, and serves `handle` there. `name`: see
    /// [`super::short_name`]; `what`: for people.
    ///
    /// # Errors
    /// It is possible in none: why not in the last.
    pub fn start(dirs: &[PathBuf], name: &str, what: String, handle: Handle) -> Result<Server, CtlError> {
        let pid = std::process::id();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let label = Label { pid, name: name.to_owned(), what, since };
        let file = format!("{pid}-{name}.sock");
        let mut last = CtlError::NoAnswer { pid, what: "there is no place for a control socket".into() };
        for dir in dirs {
            match Place::make(dir).and_then(|place| listen(&place, &file).map(|socket| (place, socket))) {
                Ok((place, socket)) => return Server::serve(place, socket, file, label, handle),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn serve(
        place: Place,
        socket: OwnedFd,
        file: String,
        label: Label,
        handle: Handle,
    ) -> Result<Server, CtlError> {
        let failed = |path: &Place| {
            let path = path.path.clone();
            move |source| CtlError::System { op: "serve", path, source }
        };
        let (end, over) = UnixStream::pair().map_err(failed(&place))?;
        let place = Arc::new(place);
        let mut server = Server { place: place.clone(), file, end: Some(end), thread: None };
        let builder = std::thread::Builder::new().name("haul-control".into());
        let thread = builder.spawn(move || serve(&socket, &over, &label, &handle));
        server.thread = Some(thread.map_err(failed(&place))?);
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.place.remove(&self.file);
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // It waits for nobody. A panic in it was reported by its hook.
            let _ = thread.join();
        }
    }
}

/// A socket that listens.
fn listen(place: &Place, file: &str) -> Result<OwnedFd, CtlError> {
    let path = place.path.join(file);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let socket = socket.map_err(system("make a socket for", &path))?;
    let address = place.address(file)?;
    if let Err(errno) = rustix::net::bind(&socket, &address) {
        // A process with this number died and left it. If one of another pid namespace lives, it keeps it.
        if errno != rustix::io::Errno::ADDRINUSE || super::client::is_served(place, file) {
            return Err(system("bind", &path)(errno));
        }
        place.remove(file);
        rustix::net::bind(&socket, &address).map_err(system("bind", &path))?;
    }
    // Before anybody can connect, which is from `listen` on. The directory is closed to others anyway.
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::chmodat(&place.dir, file, mode, AtFlags::empty())
        .map_err(system("set the mode of", &path))?;
    rustix::net::listen(&socket, BACKLOG).map_err(system("listen at", &path))?;
    Ok(socket)
}

fn serve(socket: &OwnedFd, over: &UnixStream, label: &Label, handle: &Handle) {
    let mut clients: Vec<Client> = Vec::new();
    loop {
        let now = Instant::now();
        clients.retain(|client| client.until > now);
        let wait = clients.iter().map(|client| client.until - now).min();
        let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
        let room = clients.len() < CLIENTS_MAX;
        let mut fds = vec![PollFd::new(over, PollFlags::IN)];
        fds.extend(clients.iter().map(|client| PollFd::new(&client.stream, PollFlags::IN)));
        fds.extend(room.then(|| PollFd::new(socket, PollFlags::IN)));
        match poll(&mut fds, wait.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        if ready[0] {
            return;
        }
        let mut at = 0;
        clients.retain_mut(|client| {
            at += 1;
            !ready[at] || client.hear(label, handle)
        });
        if room && ready.last() == Some(&true) {
            clients.extend(accept(socket));
        }
    }
}

/// The next client that may speak, if there is one.
fn accept(socket: &OwnedFd) -> Option<Client> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let accepted = rustix::net::accept_with(socket, flags);
    let mut client = match accepted {
        Ok(fd) => Client { stream: fd.into(), heard: Vec::new(), until: Instant::now() + PATIENCE },
        Err(_) => {
            // Gone again, or no descriptor is left: not at full speed, for the socket stays ready.
            std::thread::sleep(std::time::Duration::from_millis(10));
            return None;
        }
    };
    if may_speak(&client.stream) {
        return Some(client);
    }
    client.answer(&refuse("this job belongs to another user"));
    None
}

/// The other side is this user or root, as the kernel says.
fn may_speak(stream: &impl AsFd) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(stream);
    peer.is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}

impl Client {
    /// Something came. False: the client is done with.
    fn hear(&mut self, label: &Label, handle: &Handle) -> bool {
        let mut bytes = [0; REQUEST_LEN_MAX];
        // One byte more than there may be tells what is too long.
        let room = REQUEST_LEN_MAX + 1 - self.heard.len();
        match self.stream.read(&mut bytes[..room.min(REQUEST_LEN_MAX)]) {
            Ok(0) => return false,
            Ok(len) => self.heard.extend_from_slice(&bytes[..len]),
            Err(error) => {
                use std::io::ErrorKind::{Interrupted, WouldBlock};
                return matches!(error.kind(), Interrupted | WouldBlock);
            }
        }
        let line = self.heard.iter().position(|byte| *byte == b'\n');
        let reply = match line {
            Some(end) if end < REQUEST_LEN_MAX => answer(&self.heard[..end], label, handle),
            None if self.heard.len() < REQUEST_LEN_MAX => return true,
            _ => refuse(&format!("a request is one line of at most {REQUEST_LEN_MAX} bytes")),
        };
        self.answer(&reply);
        false
    }

    fn answer(&mut self, reply: &Reply) {
        if let Ok(mut line) = serde_json::to_vec(reply) {
            line.push(b'\n');
            // A client that went away, or takes nothing, gets nothing.
            let _ = self.stream.write_all(&line);
        }
    }
}

fn answer(line: &[u8], label: &Label, handle: &Handle) -> Reply {
    let mut targets = None;
    let done = match serde_json::from_slice(line) {
        Ok(Request::Show) => Ok(()),
        Ok(Request::Targets) => {
            targets = Some(handle.targets());
            Ok(())
        }
        Ok(Request::Pause) => handle.pause(true),
        Ok(Request::Resume) => handle.pause(false),
        Ok(Request::Set { setting, value }) => handle.set(setting, value),
        Err(error) => return refuse(&format!("no request: {error}")),
    };
    Reply { error: done.err().map(|error| error.text), job: Some(Job::of(handle, label)), targets }
}

fn refuse(error: &str) -> Reply {
    Reply { error: Some(error.to_owned()), job: None, targets: None }
}
