//! `haul volume`: striped volumes, from their making to their end.
//!
//! In: options, and what is known of volumes in the state directory. Out: servers that run on their hosts,
//! what is in a volume, or what is wrong with it.
//! Invariant: what one command began and could not bring to its end is undone, or named.

use std::io::Write as _;
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use haul_core::volume::ServerNo;
use haul_volume::access::{Access, AccessError, ServerAt};
use haul_volume::catalog::client::{Attends, Client as Catalog};
use haul_volume::dial::Keys;
use haul_volume::home::Role;
use haul_volume::visit::{Met, VisitError, visit};

use super::surroundings::{Surroundings, state_dir};
use super::{FAILED, USAGE, complain, on_one_line};
use crate::args::volume::Volume;
use crate::{escape, signals};

mod create;
mod drain;
mod fsck;
mod life;
mod names;
mod show;
mod talk;
mod threshold;

use talk::{Hosts, Limit};

/// A wait that is longer is said.
const SAID_AFTER: Duration = Duration::from_secs(1);
/// A server that is there answers within this.
const VISIT_WITHIN: Duration = Duration::from_secs(5);
/// One that is being started listens within this.
const STARTS_WITHIN: Duration = Duration::from_secs(1);

/// Some of what was asked for was done, as of copies.
const PARTIAL: i32 = 3;

/// Which signal asked for an end.
static ASKED: OnceLock<signals::Asked> = OnceLock::new();

/// Why a command ends, and its exit code.
struct Trouble(String, i32);

impl From<AccessError> for Trouble {
    fn from(error: AccessError) -> Trouble {
        let code = match error {
            AccessError::Name(_) => USAGE,
            _ => FAILED,
        };
        Trouble(error.to_string(), code)
    }
}

impl From<String> for Trouble {
    fn from(why: String) -> Trouble {
        Trouble(why, FAILED)
    }
}

impl super::Run for Volume {
    fn run(&self) -> i32 {
        haul::process::keep_secrets();
        let done = match self {
            Volume::Create(args) => create::run(args),
            Volume::Ls(args) => match &args.path {
                None => show::list(args.json),
                Some(path) => names::list(path, args.json),
            },
            Volume::Stat(args) => names::stat(&args.path, args.json),
            Volume::Rm(args) => names::remove(&args.paths, args.recursive),
            Volume::Health(args) => show::health(&args.name, args.json),
            Volume::Drain(args) => drain::run(args),
            Volume::Fsck(args) => fsck::run(args),
            Volume::Access(args) => life::access_for(args),
            Volume::Start(args) => life::start(args),
            Volume::Stop(args) => life::stop(args),
            Volume::Destroy(args) => life::destroy(args),
        };
        done.unwrap_or_else(|Trouble(why, code)| complain(&why, interrupted().unwrap_or(code)))
    }

    fn works(&self) -> bool {
        true
    }
}

/// The exit code, if a signal asked for an end.
fn interrupted() -> Option<i32> {
    ASKED.get().filter(|asked| asked.is_asked()).map(signals::Asked::exit_code)
}

/// Where this user's volumes are known.
fn known() -> Result<PathBuf, Trouble> {
    let why = "there is no place for what is known of volumes: neither XDG_STATE_HOME nor HOME is set";
    state_dir().ok_or_else(|| Trouble(why.into(), FAILED))
}

fn access(name: &str) -> Result<(PathBuf, Access), Trouble> {
    let dir = known()?;
    let access = Access::read(&dir, name)?;
    Ok((dir, access))
}

/// The same, if whoever holds it may change something in the volume.
fn access_to_change(name: &str) -> Result<(PathBuf, Access), Trouble> {
    let (dir, access) = access(name)?;
    access.may_change()?;
    Ok((dir, access))
}

fn keys(access: &Access) -> Result<Keys, Trouble> {
    access.keys().map_err(|error| Trouble(error.to_string(), FAILED))
}

/// Connects to the catalog of a volume; says so where that takes longer than a moment.
fn catalog(access: &Access, patience: Duration) -> Result<Catalog, Trouble> {
    let (name, place) = (access.name.clone(), access.catalog.to_string());
    let said = AtomicBool::new(false);
    let attends: Attends = Arc::new(move |since, patience, why| {
        if let Some(why) = why.filter(|_| since.elapsed() >= SAID_AFTER && !said.swap(true, Ordering::AcqRel))
        {
            let (seconds, why) = (patience.as_secs(), escape::text(why));
            note(&format!("waiting for the catalog of volume {name}, {place}, for up to {seconds} s: {why}"));
        }
        interrupted().is_none()
    });
    let at = access.catalog.address()?;
    Catalog::connect_with(keys(access)?, at, patience, Some(attends)).map_err(|failure| {
        let words = escape::text(&failure.words);
        Trouble(
            format!("the catalog of {}: {words}; `haul volume health {0}` says who answers", access.name),
            FAILED,
        )
    })
}

/// How the hosts of a volume are reached, until the limit or a signal ends it.
fn hosts(access: &Access, within: Duration) -> Hosts {
    let limit = Limit::new(within);
    let ended = limit.clone();
    // Without it a signal ends this at once, and what was begun undoes itself.
    if let Ok(asked) = signals::watch(None, move |_| ended.end()) {
        let _ = ASKED.set(asked);
    }
    Hosts { reach: access.reach.clone(), binary: Surroundings::look().binary, limit }
}

/// Looks whether somebody listens where the catalog should be, for who would wait for it otherwise: one that
/// was stopped does not come by itself.
fn must_run(access: &Access) -> Result<(), Trouble> {
    let begun = Instant::now();
    while let Some(why) = does_not_run(&access.catalog)? {
        // One that is just being started anew is there within a moment.
        if begun.elapsed() >= STARTS_WITHIN || interrupted().is_some() {
            let (name, at) = (&access.name, &access.catalog);
            let why = format!(
                "the catalog of {name}, {at}, does not run: {why}; `haul volume start {name}` starts what was stopped"
            );
            return Err(Trouble(why, FAILED));
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Why nobody can be met there, where that is known at once: nobody listens.
fn does_not_run(at: &ServerAt) -> Result<Option<String>, Trouble> {
    if talk::elsewhere(at).is_some() || haul_mutant::removed("stopped-volumes-are-seen") {
        return Ok(None);
    }
    let address = at.address()?;
    let refused = match TcpStream::connect_timeout(&address, VISIT_WITHIN) {
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => true,
        Ok(_) | Err(_) => false,
    };
    Ok(refused.then(|| format!("nobody listens at {address}")))
}

/// What a server, or the catalog, is called.
fn called(server: Option<ServerNo>) -> String {
    server.map_or_else(|| "catalog".to_owned(), |server| format!("server {}", server.0))
}

fn role(server: Option<ServerNo>) -> Role {
    server.map_or(Role::Catalog, |server| Role::Server(server.0))
}

/// Does the same with all of them at once; what came of it is in their order.
fn each<A: Sync, T: Send>(all: &[A], work: impl Fn(&A) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let begun: Vec<_> = all.iter().map(|one| scope.spawn(|| work(one))).collect();
        begun
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// Visits a server, or the catalog.
fn meet(keys: &Keys, server: Option<ServerNo>, at: &ServerAt, end: bool) -> Result<Met, Absent> {
    let away = |why| Absent { kind: Kind::Away, why };
    if let Some(on) = talk::elsewhere(at) {
        return Err(away(format!("it is on the host {on}, and reached there alone")));
    }
    let address = at.address().map_err(|error| away(error.to_string()))?;
    visit(keys, address, server, end, VISIT_WITHIN).map_err(|error| Absent {
        kind: match error {
            VisitError::Nobody(_) => Kind::Gone,
            VisitError::Stranger { .. } => Kind::Stranger,
            // It will not be told otherwise.
            VisitError::Connect { .. } | VisitError::Refused { .. } => Kind::Away,
            _ => Kind::Unknown,
        },
        why: escape::text(&error.to_string()),
    })
}

/// Why a server was not met.
struct Absent {
    kind: Kind,
    why: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Nobody listens there.
    Gone,
    /// Who listens there does not show this volume's key.
    Stranger,
    /// Its host cannot be reached, or is not known; or it refuses to be asked.
    Away,
    /// It was reached, and then nothing came of it.
    Unknown,
}

/// Says something to people, beside what a command is for.
fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "haul: {}", on_one_line(text));
}

/// Prints what a command is for.
fn print(text: &str) -> Result<(), Trouble> {
    let written = std::io::stdout().write_all(text.as_bytes());
    written.map_err(|error| Trouble(format!("cannot write to stdout: {}", haul::errno::text(error)), FAILED))
}
