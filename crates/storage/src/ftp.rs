//! FTP servers as sources: `ftp://SERVER/PATH`, `ftps://SERVER/PATH`, `gsiftp://SERVER/PATH`,
//! `sshftp://SERVER/PATH`; and replicas of a source, at other servers.
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
//! Nor are the bytes of two replicas ever put together unproven: see `engine/moves.rs`.
//! Under `ftps://` it is the same with everything under TLS, and the server is the one of its certificate.
//! Where the server gives files in blocks, each byte of a file comes once, at its place, over several
//! connections of one session; a block that does not fit ends that way of reading.
//! As destinations they are in `ftp/sink.rs`. Left out: stripes.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use haul_core::entry::{FileRange, Meta, NOBODY, Name, Part, Timestamp};
use haul_core::reliability::Step;
use haul_core::wire::{Failure, FailureKind, SourceRoot};
use haul_ftp::{
    Asked, Credential, DataSecurity, Error, Facts, Kind, Listed, Protocol, Security, Server, Session,
    Settings, Ssh, Trust, says_gone, server,
};

use crate::options::DataChannel;
use crate::place::{Form, Place, Rest, Scheme, Sources as Places};
use crate::source::failure::own_failure;
use crate::store::{
    Capabilities, Directories, Durable, Publishing, Reading, SourceParts, SourceStore, WriteOrder,
};
use crate::walk::Walk;
use engine::FtpEngine;
use haul_base::escape;
use haul_base::stop::{LOOK, Stop};
use names::Names;
use rustix::io::Errno;
use session::{Next, Sites, Tries, Why};

mod begun;
mod engine;
mod line;
mod lines;
mod names;
pub(crate) mod pair;
mod seats;
mod session;
mod share;
mod sink;
#[cfg(test)]
pub(crate) mod test_server;
mod there;
mod times;
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
/// Files of GridFTP servers that ssh starts.
pub static SSHFTP: Scheme =
    scheme("sshftp", Form { written: "sshftp://SERVER/PATH", example: "sshftp://host/data", sized: false });

/// How the server of a place is spoken to.
fn protocol_of(place: &Place) -> Option<Protocol> {
    let all = [
        (&FTP, Protocol::Ftp),
        (&FTPS, Protocol::Ftps),
        (&GSIFTP, Protocol::Gsiftp),
        (&SSHFTP, Protocol::Sshftp),
    ];
    all.into_iter().find_map(|(scheme, protocol)| (scheme == place.scheme()).then_some(protocol))
}

/// What protects what is said to a server, and what it gives or takes, for people.
fn protection_of(server: &Server, settings: &Settings) -> &'static str {
    match server.protocol() {
        Protocol::Ftp => "none: FTP sends password and data as they are; ftps:// does not",
        Protocol::Ftps => match &settings.security {
            Security::Tls(trust) if !trust.is_tied() => {
                "TLS, with a server that showed its certificate; data connections may be of another session"
            }
            _ => "TLS, with a server that showed its certificate",
        },
        Protocol::Sshftp => "commands by ssh; data go as they are",
        Protocol::Gsiftp => match &settings.security {
            Security::Gsi(credential) if credential.data() == DataSecurity::Private => {
                "commands and data by GSI, with a server that showed its certificate, and has a limited proxy of yours"
            }
            Security::Gsi(credential) if credential.data() == DataSecurity::Shown => {
                "commands by GSI, with a server that showed its certificate, and has a limited proxy of yours; data go as \
                 they are, over connections that showed whose they are"
            }
            _ => "commands by GSI, with a server that showed its certificate; data go as they are",
        },
    }
}

/// A shorter part of a file comes over one connection.
const IN_BLOCKS_MIN: u64 = 16 << 20;

/// What somebody on the way can read and change, if anything: said in every summary.
fn unprotected(server: &Server, settings: &Settings) -> Option<String> {
    let what = match (server.protocol(), &settings.security) {
        (Protocol::Ftp, _) if server.is_anonymous() => "data",
        (Protocol::Ftp, _) => "password and data",
        (Protocol::Sshftp, _) => "data",
        (Protocol::Ftps, _) => return None,
        (Protocol::Gsiftp, Security::Gsi(credential)) if credential.data() == DataSecurity::Private => {
            return None;
        }
        (Protocol::Gsiftp, _) => "data",
    };
    Some(format!("{what} of {} can be read and changed on their way", server.url()))
}

const fn scheme(name: &'static str, form: Form) -> Scheme {
    let sink = Form { written: form.written, example: form.example, sized: false };
    Scheme {
        name,
        source: Some(form),
        sink: Some(sink),
        server: true,
        foreign: true,
        alone: false,
        keeps: true,
        resumes: false,
        read: |rest| {
            let path = server::canonical(rest).map_err(str::to_owned)?;
            Ok(Rest { path, size: None })
        },
        open_source: Some(open),
        open_sink: Some(sink::open),
    }
}

/// How long a server may be silent, if nobody says; and at least, for without patience there is no answer.
const PATIENCE: Duration = Duration::from_secs(30);
const PATIENCE_MIN: Duration = Duration::from_secs(1);
/// A session that said nothing for so long is asked whether it is there before it is given what others may
/// do: its connection may stand while nobody is at the other end.
const SILENT_AFTER: Duration = Duration::from_secs(3);

const CAPABILITIES: Capabilities = Capabilities {
    name_len_max: 255,
    line_ends: false,
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
    exclusive: false,
    journal: false,
    parts: None,
};

/// A source as it was found at the server.
struct Found {
    /// As the first server takes it.
    path: Vec<u8>,
    /// As the others take it.
    replicas: Vec<Vec<u8>>,
    /// The name that it gets; `None`: its contents go into the destination itself.
    name: Option<Name>,
    /// What the server tells that it was found at.
    facts: Facts,
    site: usize,
}

/// Sources that were found.
struct FtpSource {
    sites: Arc<Sites>,
    found: Vec<Found>,
    /// An earlier run is believed.
    trust: bool,
    /// What of the only one comes, if not all.
    part: Option<FileRange>,
    /// The server that they were found at, and the session with it.
    site: usize,
    session: Session,
}

fn usage(text: String) -> Failure {
    Failure { kind: FailureKind::Usage, errno: 0, text: text.into() }
}

fn open(sources: &Places<'_>) -> Result<Box<dyn SourceStore>, Failure> {
    let first = sources.places.first().ok_or_else(|| usage("no source given".into()))?;
    if sources.part.is_some() && !sources.replicas.is_empty() {
        let why = "`range` takes a part of a file of one server; leave `replicas` out";
        return Err(usage(why.into()));
    }
    let sites = [first].into_iter().chain(sources.replicas).map(|place| site_of(place, sources));
    let sites = Arc::new(Sites::new(sites.collect::<Result<Vec<_>, _>>()?, sources.retry.clone()));
    let mut replicas = Vec::new();
    for place in sources.replicas {
        let shown = || escape::name(&place.shown());
        let path =
            server::path_of(place.path()).map_err(|why| usage(format!("replica {}: {why}", shown())))?;
        if !path.starts_with(b"/") {
            return Err(usage(format!("replica {}: write its whole path, without ~", shown())));
        }
        // Also of a file the slash says nothing more: what it is is asked.
        replicas.push(if path.len() > 1 { path.strip_suffix(b"/").unwrap_or(&path).to_vec() } else { path });
    }
    let mut tries = Tries::new(Step::Start, &sites, 0);
    loop {
        let site = tries.site;
        let (failure, why, path) = match find(&sites, site, sources, &replicas) {
            Ok((session, found)) => {
                // Two replicas tell other things of one file.
                let trust = sources.trust && !sites.has_replicas();
                let part = sources.part.map(|part| range_of(&found, &part, sites.server(site)));
                let part = part.transpose()?;
                return Ok(Box::new(FtpSource { sites, found, trust, part, site, session }));
            }
            Err(Unfound::Misused(failure)) => return Err(failure),
            Err(Unfound::Failed(failure, why, path)) => (failure, why, path),
        };
        match tries.failed(&sites, why, &path, 0) {
            Next::After(pause) if unless(&sources.stop, pause) => {}
            Next::Site(_) => {}
            Next::After(_) | Next::Over => return Err(failure),
        }
    }
}

/// Waits, unless somebody wants an end: false then.
fn unless(stop: &Stop, pause: Duration) -> bool {
    let until = Instant::now() + pause;
    while !stop.is_asked() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(LOOK));
    }
    false
}

/// The range that the part is of the only source.
fn range_of(found: &[Found], part: &Part, server: &Server) -> Result<FileRange, Failure> {
    let [Found { path, facts, .. }] = found else {
        let text = format!("`range` takes a part of one file, and {} sources are given", found.len());
        return Err(usage(text));
    };
    let shown = shown(server, path);
    let size = match facts {
        facts if is_dir(facts) => {
            return Err(usage(format!(
                "`range` takes a part of one file, and source {shown} is a directory"
            )));
        }
        Facts { size: Some(size), .. } if !facts.is_symlink() => *size,
        _ => {
            let text = format!("`range` takes a part of one file, and source {shown} is no regular file");
            return Err(usage(text));
        }
    };
    let rest = size.saturating_sub(part.source);
    match part.len.unwrap_or(rest) {
        len @ 1.. if len <= rest => Ok(part.of_len(len)),
        _ => {
            let asked = Part { sink: None, ..*part }.in_words();
            Err(usage(format!(
                "source {shown} has {size} bytes, and no such part: {asked}; nothing was copied"
            )))
        }
    }
}

fn site_of(place: &Place, sources: &Places<'_>) -> Result<(Server, Settings), Failure> {
    // From when the sources were found a stop is the session machine's, which ends in good order.
    server_of(place, (sources.patience, sources.data_channel), (sources.ssh, &Stop::never()))
}

/// A server, and how it is spoken to.
fn server_of(
    place: &Place,
    (patience, data_channel): (Option<Duration>, DataChannel),
    ((words, interactive), stop): ((&[String], bool), &Stop),
) -> Result<(Server, Settings), Failure> {
    let protocol = protocol_of(place).unwrap_or(Protocol::Ftp);
    let unread = |why: &str| usage(format!("{}://: {why}", protocol.scheme()));
    let server = Server::parse(protocol, place.server().unwrap_or_default()).map_err(unread)?;
    let unable = |why: String| {
        let text = format!("{}: {why}", server.url());
        Failure { kind: FailureKind::Local, errno: 0, text: text.into() }
    };
    let security = match protocol {
        Protocol::Ftp => Security::None,
        Protocol::Ftps => {
            let trust = Trust::system().map_err(unable)?;
            Security::Tls(if data_channel == DataChannel::Untied { trust.untied() } else { trust })
        }
        Protocol::Gsiftp => {
            let data = match data_channel {
                DataChannel::Private | DataChannel::Untied => DataSecurity::Private,
                DataChannel::Shown => DataSecurity::Shown,
                DataChannel::Plain => DataSecurity::None,
            };
            let credential = Credential::find().map_err(unable)?.with_data(data);
            Security::Gsi(if data_channel == DataChannel::Untied { credential.untied() } else { credential })
        }
        Protocol::Sshftp => Security::Ssh(Ssh { words: words.to_vec(), interactive }),
    };
    let patience = patience.map_or(PATIENCE, |asked| asked.max(PATIENCE_MIN));
    let settings = Settings { patience, at: None, security, stop: stop.clone() };
    Ok((server, settings))
}

/// The path of a place as its server takes it: absolute.
fn path_at(
    session: &mut Session,
    server: &Server,
    place: &Place,
    home: &mut Option<Vec<u8>>,
) -> Result<Vec<u8>, Failure> {
    let unread = |why: &str| usage(format!("{}://: {why}", server.protocol().scheme()));
    let path = server::path_of(place.path()).map_err(unread)?;
    // A path that begins where the login leads would be another one after the first change of directory.
    let Some(below) = path.strip_prefix(b".") else { return Ok(path) };
    let home = match home {
        Some(home) => home,
        None => home.insert(session.home().map_err(|error| unreached(server, &error))?),
    };
    let path = [home.strip_suffix(b"/").unwrap_or(home), below].concat();
    Ok(if path.is_empty() { b"/".to_vec() } else { path })
}

/// Why the sources were not found at a server.
enum Unfound {
    /// What was asked for makes no sense, wherever it lies.
    Misused(Failure),
    Failed(Failure, Why, Vec<u8>),
}

/// Looks for the sources at one of the servers.
fn find(
    sites: &Sites,
    site: usize,
    sources: &Places<'_>,
    replicas: &[Vec<u8>],
) -> Result<(Session, Vec<Found>), Unfound> {
    let server = sites.server(site);
    let misused = |text: String| Unfound::Misused(usage(text));
    let unread = |why: &str| misused(format!("{}://: {why}", server.protocol().scheme()));
    let unreached = |error: Error| {
        let why = Why::from(&error);
        Unfound::Failed(self::unreached(server, &error), why, Vec::new())
    };
    let mut session = sites.open(site, &sources.stop).map_err(unreached)?;
    let mut found: Vec<Found> = Vec::new();
    let mut home: Option<Vec<u8>> = None;
    for place in sources.places {
        let mut path = server::path_of(place.path()).map_err(unread)?;
        let typed = path.clone();
        // A path that begins where the login leads would be another one after the first change of directory.
        if let Some(below) = path.strip_prefix(b".").filter(|_| site == 0) {
            let home = match &home {
                Some(home) => home,
                None => home.insert(session.home().map_err(unreached)?),
            };
            path = [home.strip_suffix(b"/").unwrap_or(home), below].concat();
            if path.is_empty() {
                path = b"/".to_vec();
            }
        }
        // Of the same source, whose name is that of the command.
        let here = if site == 0 { &path } else { &replicas[site - 1] };
        let shown = || shown(server, here);
        let name = name_of(&typed).map_err(|why| misused(format!("source {}: {why}", shown())))?;
        let failed = |failure: Failure, why| Unfound::Failed(failure, why, here.clone());
        let found_at = look(&mut session, here, name.is_some());
        let facts = match found_at {
            Ok(Asked::Is(facts)) => facts,
            Ok(Asked::Not(text) | Asked::Untold(text)) => {
                let why = Why::lasting(FailureKind::Walk, format!("the server says: {text}"));
                let is_gone = says_gone(&text) || is_not_listed(&mut session, here);
                let errno = if is_gone { Errno::NOENT.raw_os_error() } else { 0 };
                let hint = unfound_hint(here, &text, is_gone);
                let text = format!("source {}: the server says: {text}{hint}; nothing was copied", shown());
                return Err(failed(Failure { kind: FailureKind::Walk, errno, text: text.into() }, why));
            }
            Err(error) => {
                let why = Why::from(&error);
                return Err(failed(self::failed(server, FailureKind::Walk, here, &error), why));
            }
        };
        match leads_there(&mut session, here) {
            Ok(None) => {}
            Ok(Some(path)) => {
                let why = format!(
                    "the server does not list it under that name in its directory, and may show another one in its place: {}",
                    self::shown(server, &path)
                );
                let text = format!("source {}: {why}; nothing was copied", shown());
                let failure = Failure { kind: FailureKind::Walk, errno: 0, text: text.into() };
                return Err(failed(failure, Why::lasting(FailureKind::Walk, why)));
            }
            Err(error) => {
                let why = Why::from(&error);
                return Err(failed(self::failed(server, FailureKind::Walk, here, &error), why));
            }
        }
        let is_dir = is_dir(&facts);
        if is_dir && !sources.recursive {
            return Err(misused(format!("source {} is a directory (use -r)", shown())));
        }
        if !is_dir && name.is_none() {
            return Err(misused(format!("source {} is no directory", shown())));
        }
        let clash = found.iter().find(|other| name.is_some() && other.name == name);
        if let (Some(other), Some(name)) = (clash, &name) {
            let (one, name) = (self::shown(server, &other.path), escape::name(name.as_bytes()));
            return Err(misused(format!(
                "sources {one} and {} would both become {name} at the destination",
                shown()
            )));
        }
        found.push(Found { path, replicas: replicas.to_vec(), name, facts, site });
    }
    session.heed(&Stop::never());
    Ok((session, found))
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

/// The directory that an absolute path lies in, and its name there.
fn parted(path: &[u8]) -> (&[u8], &[u8]) {
    let path = if path.len() > 1 { path.strip_suffix(b"/").unwrap_or(path) } else { path };
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(0) => (b"/", &path[1..]),
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b".", path),
    }
}

/// A directory lists this name, with these facts: with what the server calls it, or where that is not told,
/// with its size and time.
fn is_listed(listed: &[Listed], name: &[u8], facts: &Facts) -> bool {
    listed.iter().any(|line| {
        let Listed::Entry { name: other, facts: told, exact } = line else { return false };
        other == name
            && match (&told.unique, &facts.unique) {
                (Some(told), Some(asked)) => told == asked,
                _ => {
                    let size = told.size.is_some() && facts.size.is_some() && told.size != facts.size;
                    let time = told.modify.is_some() && facts.modify.is_some() && told.modify != facts.modify;
                    is_dir(facts) || !(size || time && *exact)
                }
            }
    })
}

/// Its directory comes as a listing, and does not have it: what a server says of the path alone may mean that
/// this user may not see it.
fn is_not_listed(session: &mut Session, path: &[u8]) -> bool {
    let (dir, name) = parted(path);
    !name.is_empty() && session.list(dir).is_ok_and(|listed| lacks(&listed, name))
}

/// A directory was listed whole, and this name is not in it.
fn lacks(listed: &[Listed], name: &[u8]) -> bool {
    listed.iter().all(|line| match line {
        Listed::Entry { name: other, .. } | Listed::Bad { name: other, .. } => other != name,
        Listed::Itself(_) => true,
        Listed::Cut(_) | Listed::Short(_) => false,
    })
}

/// Bytes of names that some servers leave out of a path, or change.
fn is_odd(name: &[u8]) -> bool {
    !name.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ')
}

/// A name as servers know it that make no difference between large and small letters, of any alphabet: one
/// letter for one, as file systems do it, so that no name becomes another's that no server takes for it.
fn folded(name: &[u8]) -> Vec<u8> {
    let small = |letter: char| {
        let mut small = letter.to_lowercase();
        match (small.next(), small.next()) {
            (Some(one), None) => one,
            _ => letter,
        }
    };
    let mut folded = Vec::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        let mut space = [0; 4];
        for letter in chunk.valid().chars() {
            folded.extend_from_slice(small(letter).encode_utf8(&mut space).as_bytes());
        }
        folded.extend_from_slice(chunk.invalid());
    }
    folded
}

/// A name of which some servers leave something out, or take it for another one.
fn is_doubted(name: &[u8]) -> bool {
    let ends = [name.first(), name.last()].contains(&Some(&b' ')) || name.ends_with(b".");
    (ends || is_odd(name)) && !matches!(name, b"." | b"..")
}

/// Where a path has names of which some servers leave something out, each of them is in the directory that it
/// should be in, and is what is told under the path so far: the first of which that is not so.
fn leads_there(session: &mut Session, path: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    let whole = path.strip_suffix(b"/").unwrap_or(path);
    let ends = whole.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    for end in ends.chain([whole.len()]) {
        let part = &whole[..end];
        let (dir, name) = parted(part);
        if !is_doubted(name) {
            continue;
        }
        let listed = session.list(dir)?;
        let asked = session.facts(part)?;
        let is_link = |line: &Listed| match line {
            Listed::Entry { name: other, facts, .. } => {
                other == name && (facts.is_symlink() || facts.kind == Some(Kind::Symlink))
            }
            _ => false,
        };
        // What is told under the path of a link is of the link or of what it leads to.
        let is_there = match &asked {
            _ if listed.iter().any(is_link) => true,
            Asked::Is(facts) => is_listed(&listed, name, facts),
            Asked::Not(_) | Asked::Untold(_) => false,
        };
        if !is_there {
            return Ok(Some(part.to_vec()));
        }
        let is_known = |longer: &[u8]| listed.iter().any(|line| line.name() == Some(longer));
        for longer in names::longer_at_its_ends(name, is_known) {
            let longer = [dir.strip_suffix(b"/").unwrap_or(dir), b"/", &longer].concat();
            if matches!(session.facts(&longer)?, Asked::Is(_))
                && !haul_mutant::removed("ftp-ends-of-names-are-asked-about")
            {
                return Ok(Some(part.to_vec()));
            }
        }
    }
    Ok(None)
}

/// A directory, and no link to one.
fn is_dir(facts: &Facts) -> bool {
    matches!(facts.kind, Some(Kind::Dir | Kind::CurrentDir | Kind::ParentDir)) && !facts.is_symlink()
}

/// The host and the user of a place whose words bring no password: a login for them may be kept elsewhere.
pub fn wants_login(place: &Place) -> Option<(String, Option<String>)> {
    // Elsewhere somebody comes by his certificate, or by ssh.
    let protocol = protocol_of(place).filter(|known| matches!(known, Protocol::Ftp | Protocol::Ftps))?;
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

/// A server that was asked for no protection says that it wants some; in words, for numbers differ.
fn wants_protection(server: &Server, text: &str) -> bool {
    const WORDS: [&str; 5] = ["tls", "ssl", "encrypt", "gssapi", "must perform"];
    let text = text.to_ascii_lowercase();
    server.protocol() == Protocol::Ftp && WORDS.iter().any(|word| text.contains(word))
}

/// A refused login is not of who asks but of how many there are, by the server's words: numbers say the same
/// of a wrong password.
fn says_full(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    let words = ["too many", "maximum number", "max clients", "limit", "server is full", "try again later"];
    words.iter().any(|words| text.contains(words))
}

/// Why a name that is not ASCII is not said to such a server.
const DROPS: &str = "the server drops bytes that are not ASCII from names that it is told over ftp://, and would take another \
                     file; gsiftp:// keeps them";

/// Why what has blanks or dots at the ends of its name is not asked for.
const DROPS_ENDS: &str = "the server leaves blanks or dots at the ends of a name out, and would give what lies beside it; give it a name \
                          without them there";

/// Whether a server drops bytes of names. That of Globus does, but over the security of the grid.
fn drops_bytes(server: &Server, session: &Session) -> bool {
    let banner = session.banner();
    server.protocol() == Protocol::Ftp && banner.windows(14).any(|words| words == b"GridFTP Server")
}

fn unreached(server: &Server, error: &Error) -> Failure {
    let of_grid = server.protocol() == Protocol::Gsiftp;
    let by_password = matches!(server.protocol(), Protocol::Ftp | Protocol::Ftps);
    let hint = match error {
        // Globus makes the key of a proxy as long as the user's, in bits: of RSA, whatever the user's is.
        Error::Refused { said, .. } if of_grid && said == haul_ftp::DELEGATED_BY_NO_RSA => {
            "; a server of Globus takes nothing delegated by a key that is not RSA: `data_channel=plain` delegates nothing"
        }
        Error::Refused { said, .. } if of_grid && matches!(&**said, "DCAU" | "PBSZ" | "PROT") => {
            "; `data_channel` says what of the data is to be protected"
        }
        Error::Refused { said, .. } if said == "AUTH GSSAPI" => {
            "; it knows nothing of the security of the grid: ftps:// asks for TLS, ftp:// for no protection"
        }
        Error::Refused { said, .. } if said == "AUTH TLS" => {
            "; it has no TLS at this port: gsiftp:// asks for the security of the grid, ftp:// for no protection"
        }
        Error::Refused { text, .. } if wants_protection(server, text) => {
            "; it wants the session protected: ftps:// asks for TLS, gsiftp:// for the security of the grid"
        }
        Error::Untied => UNTIED,
        Error::Refused { code: 421, .. } => {
            "; it takes no session now: `retry_for` comes again until it does"
        }
        Error::Refused { code: 530, text, .. } if says_full(text) => {
            "; by its words it is full, which may pass: give the same command again later"
        }
        error if error.errno() == Errno::ACCESS.raw_os_error() && by_password && server.has_no_password() => {
            "; no password was given: write USER:PASSWORD@ before the host, or keep it in ~/.netrc"
        }
        _ => "",
    };
    let text = format!("{}: {error}{hint}", server.url());
    // What does not pass is not the network's fault, whoever it was told by.
    let passes = error.is_network() && error.is_passing();
    let kind = if passes { FailureKind::Network } else { FailureKind::Walk };
    Failure { kind, errno: error.errno(), text: text.into() }
}

/// What is to be done where a server has no room.
const NO_ROOM: &str =
    "; there is no room at the server, or none for this user: make some, and run the same command again";

/// What is to be done where no data connection shows that it is the session's own. It is said of what failed
/// for that, and not where another session did it: who takes any gives something up.
const UNTIED: &str = "; `data_channel=untied` takes such ones, and then whoever can redirect connections can swap those of two sessions";

/// What went wrong with a path.
fn failed(server: &Server, kind: FailureKind, path: &[u8], error: &Error) -> Failure {
    let hint = if matches!(error, Error::Untied) { UNTIED } else { "" };
    Failure { errno: error.errno(), ..said(server, kind, path, &format!("{error}{hint}")) }
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

/// What a refusal of something that was named in the command may mean, where the server's words leave that
/// open; and that no server looks for patterns.
fn unfound_hint(path: &[u8], text: &str, is_gone: bool) -> &'static str {
    let is_pattern = path.iter().any(|byte| b"*?[".contains(byte));
    match (is_pattern, says_gone(text)) {
        (true, _) => {
            " (`*`, `?` and `[` are bytes of names here, and no patterns: name the files, or the directory that they are in)"
        }
        (false, true) => "",
        (false, false) if is_gone => {
            " (its directory does not list it: it may not be there, or this user may not see it)"
        }
        (false, false) => " (it may not be there, or this user may not see it: to a server that is one)",
    }
}

/// What the server tells of an entry's metadata. Whose it is says nothing here.
fn meta_of(facts: &Facts, is_dir: bool) -> Meta {
    let mode = facts.unix_mode.map_or(if is_dir { 0o755 } else { 0o644 }, |mode| mode & 0o7777);
    Meta { mode, uid: NOBODY, gid: NOBODY, mtime: time_of(facts) }
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
        let FtpSource { sites, found, trust, part, site, session } = *self;
        let (object_size, clock, no_links) = (reading.object_size, reading.clock.clone(), reading.no_links);
        let banner = escape::name(session.banner());
        // What is proven of a replica is proven of what comes in order.
        let is_long = part.is_none_or(|part| part.len >= IN_BLOCKS_MIN);
        let has_blocks = !sites.has_replicas() && is_long && session.has_blocks();
        let facts = (banner, session.round_trip(), has_blocks, trust);
        let engine = FtpEngine::start(&sites, &reading, facts, part).map_err(|e| {
            let text = format!("starting the reading threads: {e}");
            Failure { kind: FailureKind::Local, errno: 0, text: text.into() }
        })?;
        let names = engine.names();
        let walk = walk::start(walk::Job {
            sites,
            session,
            site,
            found,
            names: names.clone(),
            object_size,
            clock,
            no_links,
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
