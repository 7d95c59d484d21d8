//! What is said to start a server of a volume on its host, and the end of it that is there.
//!
//! In: lines of JSON from whoever starts the servers. Out: lines of JSON, and a server that runs.
//! Each is said and answered in turn: `begin` is answered by `listening`, `settle` or `start` by `ready`,
//! `keep` by `kept`; anything by `failed`, which is the last. So the ports of all servers are known before
//! one of them is set up, and all run before one is kept.
//! Invariants: the key comes only when haul itself has spoken; until `keep`, the end of what is said undoes
//! all that was done, also where whoever started this was killed.
//! Left out: how a process goes on without who started it, which the program knows.

use std::io::{self, BufRead, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use haul_core::volume::wire::VolumeId;
use serde::{Deserialize, Serialize};

use crate::home::{Home, HomeError, Role, Running, Setup};
use crate::key::volume_id;
use crate::private::PrivateError;

/// Longest line, bytes.
pub const LINE_LEN_MAX: usize = 1 << 20;

/// What is said to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Say {
    Begin(Begin),
    /// What a new one is; `made` and `listen` of it are known better there.
    Settle(Box<Setup>),
    /// One that is set up is to run again.
    Start,
    Keep,
    /// In place of all else: what it was set up as is over.
    Remove(Begin),
}

/// Which directory, and of what.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Begin {
    #[serde(with = "volume_id")]
    pub volume: VolumeId,
    pub role: Role,
    /// Relative to where the process starts, if it is relative.
    pub dir: String,
    /// Of a new one: where to listen, each tried in turn; the first port that is free is taken.
    #[serde(default)]
    pub listen: Vec<SocketAddr>,
}

/// What it answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// The directory, whole, and the port.
    Listening {
        dir: String,
        port: u16,
    },
    Ready {
        process: u32,
    },
    Kept,
    /// What lies there that is none of haul's.
    Removed {
        left: Vec<String>,
    },
    /// There is nothing of a volume there to be removed: it was removed before, or is elsewhere.
    Absent,
    Failed(String),
}

impl Told {
    /// One of a line, if it is one: others may speak before it.
    pub fn of_line(line: &[u8]) -> Option<Told> {
        serde_json::from_slice(line).ok()
    }
}

/// Why it does not run.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    #[error(transparent)]
    Home(#[from] HomeError),
    #[error("who starts it is gone")]
    Gone,
    #[error("who starts it says what cannot be understood")]
    Nonsense,
    #[error("listening: {}", haul_base::errno::text(.0))]
    Listen(#[source] io::Error),
    #[error("the path '{}' is not UTF-8", .0.display())]
    Path(PathBuf),
    #[error("speaking to who starts it: {}", haul_base::errno::text(.0))]
    Say(#[source] io::Error),
}

/// What became of it.
pub enum Booted {
    /// It runs; it was not told yet that it is kept. In the order in which they are dropped.
    Runs { running: Box<Running>, setup: Box<Setup>, home: Home },
    /// There is nothing to run.
    Removed,
}

/// Hears `input`, answers on `output`, until the server is to be kept. What goes wrong has been said.
///
/// # Errors
/// It does not run, and what was done is undone.
pub fn boot(
    input: &mut dyn BufRead,
    output: &mut dyn Write,
    of_role: impl Fn(Role) -> bool,
    notice: Arc<dyn Fn(&str) + Send + Sync>,
) -> Result<Booted, BootError> {
    let mut made = None;
    let booted = try_boot(input, output, of_role, notice, &mut made);
    if let Err(error) = &booted
        && !matches!(error, BootError::Gone | BootError::Say(_))
    {
        let _ = say(output, &Told::Failed(error.to_string()));
    }
    // Whoever has it now may go only when he hears of this.
    if let Some(made) = made {
        Home::unmake(&made);
    }
    booted
}

fn try_boot(
    input: &mut dyn BufRead,
    output: &mut dyn Write,
    of_role: impl Fn(Role) -> bool,
    notice: Arc<dyn Fn(&str) + Send + Sync>,
    unmakes: &mut Option<PathBuf>,
) -> Result<Booted, BootError> {
    let (begin, removes) = match hear(input)? {
        Say::Begin(begin) => (begin, false),
        Say::Remove(begin) => (begin, true),
        _ => return Err(BootError::Nonsense),
    };
    if !of_role(begin.role) {
        return Err(BootError::Nonsense);
    }
    let path = std::path::absolute(&begin.dir).map_err(|source| HomeError::Io {
        op: "find",
        path: begin.dir.clone().into(),
        source,
    })?;
    let dir = path.to_str().ok_or_else(|| BootError::Path(path.clone()))?.to_owned();
    if removes {
        return remove(output, &path, &begin);
    }
    // A new one is told where to listen; one that is set up knows.
    let is_new = !begin.listen.is_empty();
    let (home, known) = match is_new {
        true => {
            let made = Home::make(&path)?;
            let claimed = Home::claim(&path, made);
            if claimed.is_err() && made {
                *unmakes = Some(path);
            }
            (claimed?, None)
        }
        false => {
            let (home, setup) = Home::open(&path, Some(begin.volume))?;
            is_role(&path, setup.role, begin.role)?;
            (home, Some(setup))
        }
    };
    let mut heard = || {
        let listener = match &known {
            None => bind(&begin.listen).map_err(BootError::Listen)?,
            Some(setup) => listen(setup.listen)?,
        };
        let at = listener.local_addr().map_err(BootError::Listen)?;
        say(output, &Told::Listening { dir: dir.clone(), port: at.port() })?;
        let setup = match (hear(input)?, &known) {
            (Say::Settle(setup), None) if (setup.volume, setup.role) == (begin.volume, begin.role) => {
                let setup = Setup { listen: at, made: home.is_made(), ..*setup };
                home.settle(&setup)?;
                setup
            }
            (Say::Start, Some(setup)) => setup.clone(),
            _ => return Err(BootError::Nonsense),
        };
        let running = home.serve(&setup, is_new, listener, notice.clone())?;
        say(output, &Told::Ready { process: std::process::id() })?;
        match hear(input)? {
            Say::Keep => Ok((setup, running)),
            _ => Err(BootError::Nonsense),
        }
    };
    match heard() {
        Ok((setup, running)) => Ok(Booted::Runs { home, setup: setup.into(), running: running.into() }),
        Err(error) => {
            // What ran has ended with `heard`.
            if is_new && let Err(why) = home.clear() {
                notice(&format!("undoing what was begun: {why}"));
            }
            Err(error)
        }
    }
}

/// Says that it is kept, which is the last that is said.
///
/// # Errors
/// Nobody hears it, which is no reason to end.
pub fn say_kept(output: &mut dyn Write) -> Result<(), BootError> {
    say(output, &Told::Kept)
}

fn remove(output: &mut dyn Write, path: &Path, begin: &Begin) -> Result<Booted, BootError> {
    let left = match Home::open(path, Some(begin.volume)) {
        Ok((home, setup)) => {
            is_role(path, setup.role, begin.role)?;
            home.clear()?
        }
        Err(HomeError::NoHome(_)) => return absent(output),
        Err(HomeError::Io { source, .. } | HomeError::Private(PrivateError::Io { source, .. }))
            if source.kind() == io::ErrorKind::NotFound =>
        {
            return absent(output);
        }
        Err(error) => return Err(error.into()),
    };
    let left = left.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    say(output, &Told::Removed { left })?;
    Ok(Booted::Removed)
}

/// Which of both it is, whoever asks knows better.
fn absent(output: &mut dyn Write) -> Result<Booted, BootError> {
    let removed = Told::Removed { left: Vec::new() };
    say(output, if haul_mutant::removed("volume-absent-is-not-removed") { &removed } else { &Told::Absent })?;
    Ok(Booted::Removed)
}

fn is_role(path: &Path, is: Role, wanted: Role) -> Result<(), HomeError> {
    let name = |role| match role {
        Role::Catalog => "the volume's catalog",
        Role::Server(_) => "one of the volume's servers",
    };
    match is == wanted {
        true => Ok(()),
        false if name(is) == name(wanted) => Err(HomeError::Role {
            path: path.into(),
            is: "another of the volume's servers",
            wanted: "that one",
        }),
        false => Err(HomeError::Role { path: path.into(), is: name(is), wanted: name(wanted) }),
    }
}

/// Listens at the first of these that can be had.
fn bind(all: &[SocketAddr]) -> io::Result<TcpListener> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for at in all {
        match TcpListener::bind(at) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Listens where a server that was set up does.
///
/// # Errors
/// Its port is taken, say.
pub fn listen(at: SocketAddr) -> Result<TcpListener, HomeError> {
    TcpListener::bind(at).map_err(|source| HomeError::Listen { at, source })
}

fn hear(input: &mut dyn BufRead) -> Result<Say, BootError> {
    let mut line = zeroize::Zeroizing::new(Vec::new());
    let read = input.take(LINE_LEN_MAX as u64).read_until(b'\n', &mut line);
    match read {
        Ok(0) | Err(_) => Err(BootError::Gone),
        Ok(_) if line.last() != Some(&b'\n') => Err(BootError::Gone),
        Ok(_) => serde_json::from_slice(&line).map_err(|_| BootError::Nonsense),
    }
}

fn say(output: &mut dyn Write, told: &Told) -> Result<(), BootError> {
    let mut line = serde_json::to_vec(told).map_err(|error| BootError::Say(error.into()))?;
    line.push(b'\n');
    output.write_all(&line).and_then(|()| output.flush()).map_err(BootError::Say)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;

    fn begin(dir: &Path) -> Begin {
        let dir = dir.to_str().expect("UTF-8").to_owned();
        let listen = vec!["127.0.0.1:0".parse().expect("an address")];
        Begin { volume: VolumeId([3; 16]), role: Role::Server(0), dir, listen }
    }

    fn run(said: &[Say]) -> (Result<Booted, BootError>, Vec<Told>) {
        let lines: String = said.iter().map(|say| serde_json::to_string(say).expect("text") + "\n").collect();
        let mut output = Vec::new();
        let booted = boot(&mut lines.as_bytes(), &mut output, |_| true, Arc::new(|_| ()));
        (booted, output.split(|byte| *byte == b'\n').filter_map(Told::of_line).collect())
    }

    fn settle() -> Say {
        Say::Settle(Box::new(Setup {
            format: 1,
            volume: VolumeId([3; 16]),
            key: Key::generate().expect("randomness"),
            owner: None,
            reader: None,
            role: Role::Server(0),
            listen: "127.0.0.1:0".parse().expect("an address"),
            servers: vec!["127.0.0.1:1".into()],
            catalog: "127.0.0.1:2".into(),
            stripe: 1 << 20,
            placement: "round-robin".into(),
            made: false,
        }))
    }

    /// Goal: whoever starts a server and goes before it is kept leaves nothing of it behind, wherever he
    /// stops; what is kept stays, starts again, and is removed when it is told to.
    #[test]
    fn what_is_not_kept_is_undone() {
        let room = tempfile::tempdir().expect("a directory");
        let dir = room.path().join("d");
        let all = [Say::Begin(begin(&dir)), settle(), Say::Keep];
        for len in 1..all.len() {
            let (booted, told) = run(&all[..len]);
            assert!(matches!(booted, Err(BootError::Gone)));
            assert_eq!(told.len(), len);
            assert!(!dir.exists(), "after {len}");
        }
        let (booted, told) = run(&all);
        assert!(matches!(booted, Ok(Booted::Runs { .. })) && matches!(told[..], [_, Told::Ready { .. }]));
        drop(booted);
        let (booted, told) = run(&all);
        assert!(booted.is_err());
        assert!(matches!(&told[..], [Told::Failed(why)] if why.contains("of a volume already")), "{told:?}");
        let again = Begin { listen: Vec::new(), ..begin(&dir) };
        let (booted, _) = run(&[Say::Begin(again.clone()), Say::Start]);
        assert!(matches!(booted, Err(BootError::Gone)) && dir.exists(), "it was there before");
        let (booted, _) = run(&[Say::Begin(again.clone()), Say::Start, Say::Keep]);
        assert!(matches!(booted, Ok(Booted::Runs { .. })));
        let (_, told) = run(&[Say::Remove(again.clone())]);
        assert!(matches!(&told[..], [Told::Failed(why)] if why.contains("served already")), "{told:?}");
        drop(booted);
        let wrong = Begin { volume: VolumeId([4; 16]), ..again.clone() };
        assert!(matches!(run(&[Say::Remove(wrong)]).1[..], [Told::Failed(_)]) && dir.exists());
        for told in [Told::Removed { left: Vec::new() }, Told::Absent] {
            assert_eq!(run(&[Say::Remove(again.clone())]).1, [told]);
            assert!(!dir.exists());
        }
        std::fs::create_dir(&dir).expect("an empty place to mount something");
        assert_eq!(run(&[Say::Remove(again)]).1, [Told::Absent]);
    }
}
