//! FTP servers as destinations: `ftp://SERVER/PATH`, `ftps://SERVER/PATH`, `gsiftp://SERVER/PATH`.
//!
//! In: a place of one server. Out: a [`SinkStore`] that is written over several sessions, each with one file
//! at a time.
//! Invariants: nothing has a final name that the server did not take whole: each file is written under a name
//! of its own beside the final one, which it takes when the server said that it has all of it, tells the same
//! length, and, where it makes sums, the same sum as the one made here of what was sent. What stands under a
//! final name is replaced only if it is what was found there, and where a server refuses to replace, it keeps
//! another name until the new file has its own.
//! Nothing is known to be on media: FTP has no word for that. Nobody else can be kept out either, for there
//! are no locks: two runs into one place have names of their own for what is not whole (by the tag of the
//! run), and the last one to rename a file has its way, unless the other one sees that.
//! There is no journal. That a server tells the length of a part proves nothing; what an interrupted run left
//! of a large file is on record at this host, and is gone on with as far as the server's sums of it are those
//! of what the source has (`onward`). Finished files are unchanged for the next run by size and time.
//! Where the user wants it, files are written in place instead (`in_place`).
//! Left out: links and owners, which the server has no commands for, or none that all have.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use haul_core::change::{Change, Stood};
use haul_core::entry::{Meta, Name, Timestamp};
use haul_core::ids::DirId;
use haul_core::journal::{Replayed, RootId};
use haul_core::reliability::Reliability;
use haul_core::transfer::op::{Existing, Inode, Rights, Seen};
use haul_core::wire::{Failure, FailureKind, SourceRoot};
use haul_ftp::{Asked, Error, Facts, Kind, Server, Session, Settings, server, steer};
use rustix::io::Errno;

use super::line::{Line, Retry, reach};
use super::{NO_ROOM, failed, is_dir, is_doubted, look, said, server_of, shown, unreached};
use crate::SinkEngine;
use crate::place::Destination;
use crate::store::job::{begin_journal, fresh_tag, names_of};
use crate::store::{
    Capabilities, Claimed, Coming, Directories, Durable, HeldJob, Looks, Publishing, SinkStore,
    UNSEEN_AT_SERVERS, Waiting, WriteOrder, Writing, dir_stands,
};
use ending::Ending;
use engine::FtpWriter;
use haul_base::escape;
use placed::InPlace;
use renames::Refused;
use tree::Tree;

mod again;
mod blocks;
mod compare;
mod dirs;
mod ending;
mod engine;
mod in_place;
mod lanes;
mod large;
mod links;
mod logins;
mod onward;
mod opening;
mod parts;
mod placed;
mod publish;
mod queues;
mod rename;
mod renames;
mod room;
mod sending;
mod shown;
mod standing;
mod summed;
mod sums;
mod taking;
mod tree;
mod whole;
mod writer;

const CAPABILITIES: Capabilities = Capabilities {
    name_len_max: 255,
    line_ends: false,
    directories: Directories::Kept,
    links: false,
    write_order: WriteOrder::Ascending,
    durable: Durable::ServersWord,
    publishing: Publishing::Rename,
    ranges: true,
    // As far as the server can; for parts that is asked when one comes.
    in_place: true,
    append: false,
    digests: false,
    many_open: true,
    exclusive: false,
    journal: false,
    parts: None,
};

/// Times of servers are of whole seconds.
pub(super) const GRAIN: u32 = 1_000_000_000;

struct FtpSink {
    server: Server,
    settings: Settings,
    retry: Arc<dyn Reliability>,
    /// As the server takes it; it may be relative.
    typed: Vec<u8>,
    /// The user wants a journal elsewhere.
    state: bool,
    /// Where it is on record what servers have of unfinished files.
    parts: Option<PathBuf>,
}

pub(super) fn open(destination: &Destination<'_>) -> Result<Box<dyn SinkStore>, Failure> {
    let (server, settings) = server_of(
        destination.place,
        (destination.patience, destination.data_channel),
        (destination.ssh, &destination.stop),
    )?;
    let typed = server::path_of(destination.place.path()).map_err(|why| usage(&server, b"", why))?;
    let (retry, state) = (destination.retry.clone(), destination.state.is_some());
    let parts = destination.parts.map(Path::to_owned);
    Ok(Box::new(FtpSink { server, settings, retry, typed, state, parts }))
}

fn usage(server: &Server, path: &[u8], why: &str) -> Failure {
    let text = format!("destination {}: {why}", shown(server, path));
    Failure { kind: FailureKind::Usage, errno: 0, text: text.into() }
}

/// Where the copy goes: the directory that its names lie in, the new name of a single file, and whether that
/// directory was made by this run, or is not there.
struct Ground {
    root: Vec<u8>,
    rename: Option<Name>,
    made: bool,
    there: bool,
}

impl FtpSink {
    /// What no server can be asked for.
    fn check(&self, coming: &Coming<'_>) -> Result<(), Failure> {
        let refused = |why| Err(usage(&self.server, &self.typed, why));
        if coming.policy.owner {
            return refused(
                "a server keeps files of one user alone; leave `archive` out, and say `recursive`",
            );
        }
        if self.state {
            return refused(
                "nothing of a job is kept for a server, so that there is no state; leave `state_dir` out",
            );
        }
        Ok(())
    }

    fn reach(&self, retry: &Retry) -> Result<Session, Failure> {
        reach(&self.server, &self.settings, (retry, &self.typed))
            .map_err(|error| self.told(&unreached(&self.server, &error)))
    }

    /// What becomes of what fails, as long as nobody wants an end.
    fn retry(&self, ends: &Arc<Ending>) -> Arc<Retry> {
        let over = ends.of_attempts(self.settings.stop.clone());
        Retry::new((&self.server, FailureKind::Write), self.retry.clone(), over)
    }

    /// The same failure of what the command names.
    fn told(&self, failure: &Failure) -> Failure {
        let text = format!("destination {}", failure.text);
        Failure { text: text.into(), ..failure.clone() }
    }

    /// The names of a path lead where they say.
    fn leads_there(&self, session: &mut Session, path: &[u8]) -> Result<(), Failure> {
        let failure = match super::leads_there(session, path) {
            Ok(None) => return Ok(()),
            Ok(Some(part)) => {
                let why = "the server does not list it under that name in its directory, and may take another one for it; \
                           give it a name of plain letters";
                said(&self.server, FailureKind::Create, &part, why)
            }
            Err(error) => failed(&self.server, FailureKind::Create, path, &error),
        };
        Err(self.told(&failure))
    }

    /// Finds where the copy goes, and with `make` makes what is missing there.
    fn ground(&self, session: &mut Session, roots: &[SourceRoot], make: bool) -> Result<Ground, Failure> {
        let server = &self.server;
        let broken = |error: &Error| self.told(&unreached(server, error));
        let mut path = self.typed.clone();
        if let Some(below) = path.strip_prefix(b".") {
            let home = session.home().map_err(|error| broken(&error))?;
            path = [home.strip_suffix(b"/").unwrap_or(&home), below].concat();
        }
        let single = matches!(roots, [SourceRoot::Named { is_dir: false, .. }]);
        let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let names_dir = matches!(last, b"" | b"." | b"..");
        let path = trimmed(&path);
        let whole = Ground { root: path.clone(), rename: None, made: false, there: true };
        let at = |session: &mut Session, path: &[u8]| {
            look(session, path, false)
                .map_err(|error| self.told(&failed(server, FailureKind::Create, path, &error)))
        };
        let found = at(session, &path)?;
        match &found {
            Asked::Is(facts) if is_dir(facts) => {
                self.leads_there(session, &path)?;
                return Ok(whole);
            }
            Asked::Is(_) if !single || names_dir => {
                let text = format!("destination {}: it is no directory", shown(server, &path));
                let errno = Errno::NOTDIR.raw_os_error();
                return Err(Failure { kind: FailureKind::Create, errno, text: text.into() });
            }
            _ => {}
        }
        if single && !names_dir {
            let (parent, name) = split(&path);
            let name = Name::new(name).map_err(|error| usage(server, &path, &error.to_string()))?;
            return match at(session, &parent)? {
                Asked::Is(facts) if is_dir(&facts) => {
                    self.leads_there(session, &parent)?;
                    Ok(Ground { root: parent, rename: Some(name), made: false, there: true })
                }
                _ => {
                    let text = format!(
                        "destination {}: there is no directory {}; make it first, or end the destination with a slash: then it is a \
                         directory, and made",
                        shown(server, &path),
                        shown(server, &parent)
                    );
                    let errno = Errno::NOENT.raw_os_error();
                    Err(Failure { kind: FailureKind::Create, errno, text: text.into() })
                }
            };
        }
        if !make {
            return Ok(Ground { there: false, ..whole });
        }
        let ends = path.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        let above: Vec<&[u8]> = ends.chain([path.len()]).map(|end| &path[..end]).collect();
        // Below a name of which a server may leave something out nothing is made before that is listed.
        let name = |part: &[u8]| split(part).1.to_vec();
        let doubted = above.iter().any(|part| is_doubted(&name(part)));
        let mut made = Ok(());
        for some in above.chunks(if doubted { 1 } else { above.len() }) {
            let mut all = session.make_dirs(some).map_err(|error| broken(&error))?;
            made = all.pop().unwrap_or(Ok(()));
            if doubted {
                self.leads_there(session, some[0])?;
            }
        }
        match (at(session, &path)?, made) {
            (Asked::Is(facts), made) if is_dir(&facts) => {
                // There are servers that say of what is there that they made it.
                Ok(Ground { made: made.is_ok() && matches!(found, Asked::Not(_)), ..whole })
            }
            (_, Err(error)) => Err(self.told(&failed(server, FailureKind::Create, &path, &error))),
            (_, Ok(())) => {
                let why = "the server says that it made the directory, and has none there";
                Err(self.told(&said(server, FailureKind::Create, &path, why)))
            }
        }
    }
}

/// Without slashes and dots at its end.
fn trimmed(path: &[u8]) -> Vec<u8> {
    let mut path = path;
    loop {
        let shorter = path.strip_suffix(b"/").or_else(|| path.strip_suffix(b"/."));
        match shorter {
            Some(b"") => return b"/".to_vec(),
            Some(shorter) => path = shorter,
            None if path.is_empty() => return b"/".to_vec(),
            None => return path.to_vec(),
        }
    }
}

/// The directory that a path lies in, and its last name.
fn split(path: &[u8]) -> (Vec<u8>, &[u8]) {
    let at = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    let parent = if at == 0 { b"/".to_vec() } else { path[..at].to_vec() };
    (parent, path.get(at + 1..).unwrap_or_default())
}

impl SinkStore for FtpSink {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn claim(self: Box<Self>, coming: &Coming<'_>, _: &dyn Waiting) -> Result<Claimed, Failure> {
        self.check(coming)?;
        let ends = Arc::new(Ending::default());
        let retry = self.retry(&ends);
        let mut session = self.reach(&retry)?;
        let Ground { root, rename, made, .. } = self.ground(&mut session, coming.roots, true)?;
        let tag = fresh_tag();
        if !coming.in_place {
            match renames::check(&mut session, &self.server, (&root, tag)) {
                Ok(()) => {}
                Err(Refused::Renames(failure)) => return Err(failure),
                Err(Refused::Session) => session = self.reach(&retry)?,
            }
        }
        let settings = Settings { at: session.address(), stop: ends.of_waits(), ..self.settings };
        session.heed(&settings.stop);
        let nobody = RootId::new(b"ftp").expect("short");
        let (_, resume) = begin_journal(Replayed::default(), ([0; 16], nobody), (0, tag), coming);
        let names = names_of(coming.roots, rename.as_ref());
        let begun = self.parts.clone();
        // What is on record is of whole files.
        let (wanted, trusts) = (coming.part.is_none(), coming.policy.trust);
        // What is not to be replaced, or is anyway, needs no proof.
        let is_decided = coming.policy.no_clobber && !haul_mutant::removed("ftp-no-clobber-asks-nothing");
        let asks_times = !is_decided && !coming.policy.force;
        let (server, ends) = (self.server, ends.clone());
        let at = coming.part.and_then(|part| part.sink);
        let in_place = coming.in_place.then(|| InPlace::new(at, coming.in_place_asked));
        // Nor of files that have no other name meanwhile.
        let parts = (self.parts, wanted && in_place.is_none());
        let ends_here = ends.clone();
        let ready = Ready {
            server,
            settings,
            retry,
            ends: ends_here,
            session,
            root,
            made,
            tag,
            parts,
            begun,
            trusts,
            asks_times,
            in_place,
        };
        let job = HeldServer { ready: Mutex::new(Some(ready)), ends };
        Ok(Claimed {
            job: Box::new(job),
            resume,
            epoch: 0,
            tag,
            wait: true,
            rename,
            resumed: false,
            names,
            root: None,
            found: Vec::new(),
        })
    }

    fn look(self: Box<Self>, coming: &Coming<'_>) -> Result<(Box<dyn Looks>, Option<Name>), Failure> {
        self.check(coming)?;
        let retry = self.retry(&Arc::default());
        let mut session = self.reach(&retry)?;
        let Ground { root, rename, there, .. } = self.ground(&mut session, coming.roots, false)?;
        let settings = Settings { at: session.address(), ..self.settings };
        let drops = super::drops_bytes(&self.server, &session);
        let perm = match there.then(|| session.facts(&root)) {
            Some(Ok(Asked::Is(facts))) => facts.perm,
            _ => None,
        };
        let line = Mutex::new(Line::with(self.server.clone(), settings, &retry, session));
        let tree = Tree::new(root, false);
        Ok((Box::new(ServerLook { server: self.server, line, tree, there, drops, perm }), rename))
    }
}

/// What the engine is made of.
struct Ready {
    server: Server,
    settings: Settings,
    retry: Arc<Retry>,
    /// Nobody wants more of it.
    ends: Arc<Ending>,
    /// The session that the destination was found over.
    session: Session,
    root: Vec<u8>,
    /// The root was made by this run: nothing stands in it.
    made: bool,
    tag: u32,
    /// Where it is on record what servers have of unfinished files, and whether these are put there.
    parts: (Option<PathBuf>, bool),
    /// Where it is on record what was begun in place.
    begun: Option<PathBuf>,
    /// The user believes what stands there of unfinished files.
    trusts: bool,
    /// Size and time decide what is sent.
    asks_times: bool,
    in_place: Option<InPlace>,
}

/// A job that nobody can be kept out of.
struct HeldServer {
    ready: Mutex<Option<Ready>>,
    ends: Arc<Ending>,
}

impl HeldJob for HeldServer {
    fn start(&mut self, writing: Writing) -> Result<Box<dyn SinkEngine>, Failure> {
        let started = |why: &str| {
            let text = format!("starting the writing threads: {why}");
            Failure { kind: FailureKind::Local, errno: 0, text: text.into() }
        };
        let ready = self.ready.get_mut().ok().and_then(Option::take);
        let ready = ready.ok_or_else(|| started("it was started before"))?;
        self.ends.set_begun();
        let engine = FtpWriter::start(ready, writing).map_err(|error| started(&error.to_string()))?;
        Ok(Box::new(engine))
    }
    fn set_ends(&self, ends: bool) {
        self.ends.set_stopped(ends);
    }
    fn set_yields(&self, _: bool) {}
    fn finish(&self) {}
    fn leave(&self) {}
}

/// What a look shows of a name, as the session machine has it. Nothing, and what may not be seen, are one
/// to a server.
fn existing_of(asked: &Asked) -> (Existing, Option<Seen>) {
    let Asked::Is(facts) = asked else { return (Existing::Nothing, None) };
    (what_stands(facts), Some(seen_of(facts)))
}

fn what_stands(facts: &Facts) -> Existing {
    match facts.kind {
        _ if facts.is_symlink() => Existing::Link,
        Some(Kind::Dir | Kind::CurrentDir | Kind::ParentDir) => Existing::Dir,
        Some(Kind::File) | None => Existing::File {
            size: facts.size.unwrap_or(u64::MAX),
            mtime: mtime_of(facts),
            grain: GRAIN,
            rights: rights_of(facts),
        },
        Some(_) => Existing::Special,
    }
}

fn rights_of(facts: &Facts) -> Rights {
    let (mode, untold) = (facts.unix_mode.unwrap_or(0) & 0o7777, facts.unix_mode.is_none());
    Rights { mode, untold, ..Rights::default() }
}

fn mtime_of(facts: &Facts) -> Timestamp {
    super::time_of(facts)
}

fn seen_of(facts: &Facts) -> Seen {
    let unique = facts.unique.as_deref().unwrap_or_default();
    let hash = blake3::hash(unique);
    let ino = u64::from_le_bytes(hash.as_bytes()[..8].try_into().expect("eight of them"));
    let mtime = mtime_of(facts);
    let size = facts.size.filter(|_| !is_dir(facts)).unwrap_or(0);
    Seen { inode: Inode { dev: u64::from(facts.is_symlink()), ino }, size, mtime, ctime: mtime, links: 1 }
}

fn stood_of(facts: &Facts) -> Stood {
    let untold = facts.modify.is_none() && !haul_mutant::removed("ftp-untold-times-are-no-change");
    Stood { rights: rights_of(facts), mtime: mtime_of(facts), grain: GRAIN, untold }
}

/// A destination at a server that is looked at and never changed.
struct ServerLook {
    server: Server,
    line: Mutex<Line>,
    tree: Tree,
    there: bool,
    drops: bool,
    /// What the server says that this user may do in the directory, by letters.
    perm: Option<Box<[u8]>>,
}

impl ServerLook {
    fn ask(&self, path: &[u8]) -> Result<Asked, Failure> {
        if !self.there {
            return Ok(Asked::Not(String::new()));
        }
        let mut line = self.line.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        line.set_about(path);
        line.facts(path).map_err(|error| failed(&self.server, FailureKind::Open, path, &error))
    }
}

impl ServerLook {
    /// By a listing of the directory above, where nothing else tells.
    fn is_link(&self, path: &[u8]) -> Result<bool, Failure> {
        let mut line = self.line.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let link = line.again(|session| session.link_at(path, false));
        let link = link.map_err(|error| failed(&self.server, FailureKind::Open, path, &error))?;
        Ok(link.is_some())
    }
}

impl Looks for ServerLook {
    fn register(&self, id: DirId, parent: DirId, name: Name) {
        self.tree.register(id, parent, name);
    }
    fn forget(&self, id: DirId) {
        self.tree.forget(id);
    }
    fn dir(&self, id: DirId) -> Result<Option<Stood>, Failure> {
        let path = self.tree.dir(id);
        match self.ask(&path)? {
            Asked::Is(facts) if facts.unique.is_none() && self.is_link(&path)? => {
                Err(said(&self.server, FailureKind::Create, &path, steer::LINK_STANDS))
            }
            Asked::Is(facts) if is_dir(&facts) => Ok(Some(stood_of(&facts))),
            Asked::Is(_) => Err(dir_stands()),
            Asked::Not(_) | Asked::Untold(_) => Ok(None),
        }
    }
    fn is_closed(&self, _: DirId) -> bool {
        false
    }
    fn unseen(&self) -> Option<String> {
        let told = match &self.perm {
            // RFC 3659: `c` is for files that are made in it.
            Some(perm) if !perm.to_ascii_lowercase().contains(&b'c') => {
                let (dir, perm) = (self.tree.dir(DirId::ROOT), escape::name(perm));
                let dir = shown(&self.server, &dir);
                format!("; of {dir} it says that this user may make no files in it (perm={perm})")
            }
            _ => String::new(),
        };
        Some(format!("{UNSEEN_AT_SERVERS}{told}"))
    }
    fn file(&self, parent: DirId, name: &Name) -> Result<Existing, Failure> {
        tree::check(&self.server, &self.tree.path(parent, name), (name, self.drops))?;
        let path = self.tree.path(parent, name);
        match self.ask(&path)? {
            // There are servers that do not know the question.
            Asked::Untold(text) if !text.starts_with("50") => {
                let why = format!("the server does not tell what stands there: {text}");
                Err(said(&self.server, FailureKind::Open, &path, &why))
            }
            asked => Ok(existing_of(&asked).0),
        }
    }
    fn link(
        &self,
        parent: DirId,
        name: &Name,
        _: &[u8],
        _: (&Meta, bool),
    ) -> Result<(Change, Existing), Failure> {
        Err(no_links(&self.server, &self.tree.path(parent, name)))
    }
}

/// What becomes of a symbolic link. FTP has no command that makes one, and those that some servers have of
/// their own make another one: with the whole path of what it leads to, and only where that is there.
fn no_links(server: &Server, path: &[u8]) -> Failure {
    let why = "it is a symbolic link, of which haul makes none at servers: nothing was made; copy what it leads to by itself";
    Failure { errno: Errno::OPNOTSUPP.raw_os_error(), ..said(server, FailureKind::Create, path, why) }
}

/// What went wrong with a path that is written, in words with what to do.
fn unwritten(server: &Server, kind: FailureKind, path: &[u8], error: &Error) -> Failure {
    let failure = failed(server, kind, path, error);
    let (kind, errno, hint) = match error {
        error if error.is_no_room() => (FailureKind::Write, Errno::NOSPC.raw_os_error(), NO_ROOM),
        error if error.is_passing() => (FailureKind::Network, failure.errno, ""),
        Error::Refused { code: code @ (550 | 553), .. } if kind != FailureKind::Publish => (
            // 553 is of the name, if it is not of the user: the same name is refused again.
            if *code == 553 { FailureKind::Create } else { kind },
            if *code == 553 && !error.is_denied() { Errno::INVAL.raw_os_error() } else { failure.errno },
            "; look whether this user may write there, and whether the server takes such a name",
        ),
        _ => (kind, failure.errno, ""),
    };
    Failure { kind, errno, text: format!("{}{hint}", failure.text).into() }
}
