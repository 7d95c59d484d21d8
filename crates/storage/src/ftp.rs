//! FTP servers as sources: `ftp://SERVER/PATH`, `ftps://SERVER/PATH`, `gsiftp://SERVER/PATH`.
//!
//! In: places of one server. Out: a [`SourceStore`] whose files are read over several sessions with it, each
//! of which is a storage target of its own, so that the schedule sees which of them is slow.
//! Invariants: a file counts as read only if its facts (size, time, what the server calls it) are after the
//! last read what they were when it was announced, and the server said that it sent the whole of what was
//! read to its end; a file that was changed within a day is read only when a later change would show.
//! Each file is read by one session, from its beginning on: nothing else binds bytes to their place, for a
//! server may say that it goes on at an offset and not do so. Where a session was lost in the middle, the
//! last bytes before are read once more and compared. All sessions go to the one address that was reached
//! first. What a server tells proves nothing about content: its times are of whole seconds and anybody may
//! set them. So what an earlier run left of a file that was not finished is never gone on with.
//! Under `ftps://` it is the same with everything under TLS, and the server is the one of its certificate.
//! Where the server gives files in blocks, each byte of a file comes once, at its place, over several
//! connections of one session; a block that does not fit ends that way of reading.
//! Left out: the server as a sink; stripes.

use std::sync::Arc;
use std::time::Duration;

use haul_core::entry::{Meta, Name, Timestamp};
use haul_core::wire::{Failure, FailureKind, SourceRoot};
use haul_ftp::{
    Asked, Credential, Error, Facts, Kind, Protocol, Security, Server, Session, Settings, Trust, server,
};

use crate::place::{Form, Place, Rest, Scheme, Sources};
use crate::source::failure::own_failure;
use crate::store::{
    Capabilities, Directories, Durable, Publishing, Reading, SourceParts, SourceStore, WriteOrder,
};
use crate::walk::Walk;
use engine::FtpEngine;
use haul_base::escape;
use haul_base::stop::Stop;
use names::Names;
use rustix::io::Errno;
use session::Line;

mod engine;
mod names;
mod session;
mod walk;

/// Files of FTP servers.
pub static FTP: Scheme =
    scheme("ftp", Form { written: "ftp://SERVER/PATH", example: "ftp://host/data", sized: false });
/// The same under TLS.
pub static FTPS: Scheme =
    scheme("ftps", Form { written: "ftps://SERVER/PATH", example: "ftps://host/data", sized: false });
/// Files of GridFTP servers, with commands under the security of the grid.
pub static GSIFTP: Scheme =
    scheme("gsiftp", Form { written: "gsiftp://SERVER/PATH", example: "gsiftp://host/data", sized: false });

/// How the server of a place is spoken to.
fn protocol_of(place: &Place) -> Option<Protocol> {
    [(&FTP, Protocol::Ftp), (&FTPS, Protocol::Ftps), (&GSIFTP, Protocol::Gsiftp)]
        .into_iter()
        .find_map(|(scheme, protocol)| (scheme == place.scheme()).then_some(protocol))
}

const fn scheme(name: &'static str, form: Form) -> Scheme {
    Scheme {
        name,
        source: Some(form),
        sink: None,
        server: true,
        alone: false,
        keeps: true,
        resumes: false,
        read: |rest| {
            let path = server::canonical(rest).map_err(str::to_owned)?;
            Ok(Rest { path, size: None })
        },
        open_source: Some(open),
        open_sink: None,
    }
}

/// How long a server may be silent, if nobody says; and at least, for without patience there is no answer.
const PATIENCE: Duration = Duration::from_secs(30);
const PATIENCE_MIN: Duration = Duration::from_secs(1);

const CAPABILITIES: Capabilities = Capabilities {
    name_len_max: 255,
    directories: Directories::Kept,
    links: true,
    write_order: WriteOrder::Ascending,
    durable: Durable::ServersWord,
    publishing: Publishing::OnClose,
    ranges: true,
    in_place: false,
    append: false,
    digests: false,
    many_open: true,
    journal: false,
    parts: None,
};

/// A source as it was found at the server.
struct Found {
    /// As the server takes it.
    path: Vec<u8>,
    /// The name that it gets; `None`: its contents go into the destination itself.
    name: Option<Name>,
    facts: Facts,
}

/// Sources that were found.
struct FtpSource {
    server: Server,
    found: Vec<Found>,
    /// The session that they were found over.
    session: Session,
    settings: Settings,
}

fn open(sources: &Sources<'_>) -> Result<Box<dyn SourceStore>, Failure> {
    let usage = |text: String| Failure { kind: FailureKind::Usage, errno: 0, text: text.into() };
    let first = sources.places.first().ok_or_else(|| usage("no source given".into()))?;
    let word = first.server().unwrap_or_default();
    let protocol = protocol_of(first).unwrap_or(Protocol::Ftp);
    let unread = |why: &str| usage(format!("{}://: {why}", protocol.scheme()));
    let server = Server::parse(protocol, word).map_err(unread)?;
    let unable = |why: String| {
        let text = format!("{}: {why}", server.url());
        Failure { kind: FailureKind::Local, errno: 0, text: text.into() }
    };
    let security = match protocol {
        Protocol::Ftp => Security::None,
        Protocol::Ftps => Security::Tls(Trust::system().map_err(unable)?),
        Protocol::Gsiftp => Security::Gsi(Credential::find().map_err(unable)?),
    };
    let patience = sources.patience.map_or(PATIENCE, |asked| asked.max(PATIENCE_MIN));
    let settings = Settings { patience, at: None, security, stop: sources.stop.clone() };
    let mut session = Session::open(&server, &settings).map_err(|error| unreached(&server, &error))?;
    let mut found: Vec<Found> = Vec::new();
    let mut home: Option<Vec<u8>> = None;
    for place in sources.places {
        let mut path = server::path_of(place.path()).map_err(unread)?;
        let typed = path.clone();
        // A path that begins where the login leads would be another one after the first change of directory.
        if let Some(below) = path.strip_prefix(b".") {
            let home = match &home {
                Some(home) => home,
                None => home.insert(session.home().map_err(|error| unreached(&server, &error))?),
            };
            path = [home.strip_suffix(b"/").unwrap_or(home), below].concat();
            if path.is_empty() {
                path = b"/".to_vec();
            }
        }
        let shown = || shown(&server, &path);
        let name = name_of(&typed).map_err(|why| usage(format!("source {}: {why}", shown())))?;
        let found_at = look(&mut session, &path, name.is_some());
        let facts = match found_at.map_err(|error| failed(&server, FailureKind::Walk, &path, &error))? {
            Asked::Is(facts) => facts,
            Asked::Not(text) | Asked::Untold(text) => {
                let text = format!("source {}: the server says: {text}; nothing was copied", shown());
                return Err(Failure { kind: FailureKind::Walk, errno: 0, text: text.into() });
            }
        };
        let is_dir = is_dir(&facts);
        if is_dir && !sources.recursive {
            return Err(usage(format!("source {} is a directory (use -r)", shown())));
        }
        if !is_dir && name.is_none() {
            return Err(usage(format!("source {} is no directory", shown())));
        }
        let clash = found.iter().find(|other| name.is_some() && other.name == name);
        if let (Some(other), Some(name)) = (clash, &name) {
            let (one, name) = (self::shown(&server, &other.path), escape::name(name.as_bytes()));
            return Err(usage(format!(
                "sources {one} and {} would both become {name} at the destination",
                shown()
            )));
        }
        found.push(Found { path, name, facts });
    }
    // Where the server was reached first: behind one name there may be several that differ.
    let settings = Settings { at: session.address(), stop: Stop::never(), ..settings };
    // From here on a stop is the session machine's, which ends in good order.
    session.heed_no_stop();
    Ok(Box::new(FtpSource { server, found, session, settings }))
}

/// What is at a path. `itself`: of a symbolic link what it is, as of one in a file system; else what it leads
/// to, as of one with a slash behind it.
fn look(session: &mut Session, path: &[u8], itself: bool) -> Result<Asked, Error> {
    let asked = session.facts(path)?;
    Ok(match (asked, itself) {
        (Asked::Is(mut facts), false) => {
            if facts.unix_slink.take().is_some() {
                // Of the link, perhaps, and not of what it leads to.
                facts.unique = None;
            }
            Asked::Is(facts)
        }
        (Asked::Is(facts), true) if facts.is_symlink() => Asked::Is(facts),
        (Asked::Is(facts), true) => match session.link_at(path, facts.kind == Some(Kind::File))? {
            Some(link) => Asked::Is(Facts { modify: facts.modify, ..link }),
            None => Asked::Is(facts),
        },
        (asked, true) => session.link_at(path, false)?.map_or(asked, Asked::Is),
        (asked, false) => asked,
    })
}

/// A directory, and no link to one.
fn is_dir(facts: &Facts) -> bool {
    matches!(facts.kind, Some(Kind::Dir | Kind::CurrentDir | Kind::ParentDir)) && !facts.is_symlink()
}

/// The host and the user of a place whose words bring no password: a login for them may be kept elsewhere.
pub fn wants_login(place: &Place) -> Option<(String, Option<String>)> {
    // Of the grid somebody comes by his certificate.
    let protocol = protocol_of(place).filter(|protocol| *protocol != Protocol::Gsiftp)?;
    let word = place.server()?;
    let user = Server::wants_login(word)?;
    Some((Server::parse(protocol, word).ok()?.host, user))
}

/// The place with the login that the text of a `.netrc` has for it; `None`: there is none, or it brings one.
///
/// # Errors
/// What the text has for it cannot be used, in words without the password.
pub fn with_login(place: &Place, netrc: &str) -> Result<Option<Place>, String> {
    let Some((host, user)) = wants_login(place) else { return Ok(None) };
    let Some((user, password)) = haul_ftp::netrc::find(netrc, &host, user.as_deref())? else {
        return Ok(None);
    };
    let place = place.at_server(&Server::with_login(place.server().unwrap_or_default(), &user, &password));
    place.map(Some).map_err(|_| format!("the login for {host} cannot be used"))
}

/// The name that a source takes at the destination, by the text of its path alone, as of a file system's.
fn name_of(path: &[u8]) -> Result<Option<Name>, String> {
    match path.rsplit(|byte| *byte == b'/').next().unwrap_or_default() {
        b"" | b"." | b".." => Ok(None),
        last => {
            haul_gridftp::listing::check_name(last).map_err(|error| error.to_string())?;
            Name::new(last).map(Some).map_err(|error| error.to_string())
        }
    }
}

/// What a source at a server becomes at the destination, by its text alone: something of this name, or its
/// contents (`None`). Nothing of a place that is at no server, or cannot be read.
pub fn becomes(place: &Place) -> Option<Option<Name>> {
    protocol_of(place)?;
    name_of(&server::path_of(place.path()).ok()?).ok()
}

/// A path at a server, for people.
fn shown(server: &Server, path: &[u8]) -> String {
    let slash = if path.starts_with(b"/") { "" } else { "/" };
    format!("{}{slash}{}", server.url(), escape::name(path))
}

fn unreached(server: &Server, error: &Error) -> Failure {
    let hint = match error.errno() == Errno::ACCESS.raw_os_error() && server.has_no_password() {
        true => "; no password was given: write USER:PASSWORD@ before the host, or keep it in ~/.netrc",
        false => "",
    };
    let text = format!("{}: {error}{hint}", server.url());
    let kind = if error.is_network() { FailureKind::Network } else { FailureKind::Walk };
    Failure { kind, errno: error.errno(), text: text.into() }
}

/// What went wrong with a path.
fn failed(server: &Server, kind: FailureKind, path: &[u8], error: &Error) -> Failure {
    Failure { errno: error.errno(), ..said(server, kind, path, &error.to_string()) }
}

/// The same in our words.
fn said(server: &Server, kind: FailureKind, path: &[u8], why: &str) -> Failure {
    let head = shown(server, b"");
    let head = head.strip_suffix('/').unwrap_or(&head);
    own_failure(kind, head, path, why)
}

/// What is said of an entry that was there, of which the server tells nothing any more. A server has one
/// answer for what is not there and for what may not be seen: only its words may tell which one.
fn untold(server: &Server, path: &[u8], asked: &Asked) -> Failure {
    let (kind, text) = match asked {
        Asked::Not(text) if says_gone(text) => (FailureKind::Vanished, &text[..]),
        Asked::Not(text) | Asked::Untold(text) => (FailureKind::Read, &text[..]),
        Asked::Is(_) => (FailureKind::Read, "it is there"),
    };
    said(server, kind, path, &format!("the server says: {text}"))
}

/// The words of a refusal say that there is nothing of that name.
fn says_gone(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    ["no such", "not found", "not exist", "cannot find"].iter().any(|words| text.contains(words))
}

/// What the server tells of an entry's metadata. Whose it is says nothing here.
fn meta_of(facts: &Facts, is_dir: bool) -> Meta {
    let mode = facts.unix_mode.map_or(if is_dir { 0o755 } else { 0o644 }, |mode| mode & 0o7777);
    Meta { mode, uid: u32::MAX, gid: u32::MAX, mtime: time_of(facts) }
}

/// What has no time is never taken for a file, whose time is told: see the walk.
fn time_of(facts: &Facts) -> Timestamp {
    facts.modify.map_or(Timestamp { secs: 0, nanos: 0 }, |at| Timestamp { secs: at.secs, nanos: at.nanos })
}

impl SourceStore for FtpSource {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn roots(&self) -> Result<Vec<SourceRoot>, Failure> {
        let root = |found: &Found| match &found.name {
            Some(name) => SourceRoot::Named { name: name.clone(), is_dir: is_dir(&found.facts) },
            None => {
                let mut meta = meta_of(&found.facts, true);
                if found.facts.modify.is_none() {
                    meta.mtime = crate::source::wall_clock()();
                }
                SourceRoot::Contents { of: last_name(&found.path), meta }
            }
        };
        Ok(self.found.iter().map(root).collect())
    }

    fn start(self: Box<Self>, reading: Reading) -> Result<SourceParts, Failure> {
        let FtpSource { server, found, session, settings } = *self;
        let (object_size, clock) = (reading.object_size, reading.clock.clone());
        let banner = escape::name(session.banner());
        let facts = (banner, session.round_trip(), session.has_blocks());
        let engine = FtpEngine::start((server.clone(), settings.clone()), &reading, facts).map_err(|e| {
            let text = format!("starting the reading threads: {e}");
            Failure { kind: FailureKind::Local, errno: 0, text: text.into() }
        })?;
        let names = engine.names();
        let walk = walk::start(walk::Job {
            line: Line::with(server, settings, session),
            found,
            names: names.clone(),
            object_size,
            clock,
        });
        let walk: Walk = walk.map_err(|e| {
            let text = format!("starting the walk: {e}");
            Failure { kind: FailureKind::Local, errno: 0, text: text.into() }
        })?;
        Ok(SourceParts { names: names as Arc<Names>, engine: Box::new(engine), walk })
    }
}

/// What the directory whose contents are copied is called, if its path says so.
fn last_name(path: &[u8]) -> Option<Name> {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    name_of(path).ok().flatten()
}
