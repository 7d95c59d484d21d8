//! What data comes from or goes to at one host: a scheme, and what that scheme calls a path.
//!
//! In: a word as typed, without the host before its colon. Out: a [`Place`]; what was named as sources, or as
//! destination. Invariants: the bytes of a file's path go through unchanged; a place exists only if its
//! scheme's entry has read it, so that nobody who holds one looks at how a word begins.
//! Left out: who keeps which scheme's data; a back end enters its own in [`SCHEMES`](super::SCHEMES), and is
//! asked by its scheme. `~` and globs, too: the first is expanded where the path lies, the others by nobody.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use haul_core::entry::Part;
use haul_core::reliability::Reliability;
use haul_core::wire::{Failure, FailureKind};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::SCHEMES;
use super::manners::{LinkRule, LinksThere};
use super::options::DataChannel;
use super::store::{SinkStore, SourceStore};
use haul_base::escape;
use haul_base::stop::Stop;
use haul_base::{bytes::PathBytes, role::Role};

/// Longest server in a place, bytes: a host name has at most 253, a user name at most 256.
const SERVER_LEN_MAX: usize = 512;

/// Most replicas of a source.
const REPLICAS_MAX: usize = 16;

/// A kind of place, as its words begin: a back end's entry in [`SCHEMES`](super::SCHEMES).
pub struct Scheme {
    /// `null` of `null://`: a letter, then letters, digits, `+`, `-` and `.`, none of them large.
    pub name: &'static str,
    /// How one is written that data comes from, and one that it goes to; `None`: there is none.
    pub source: Option<Form>,
    pub sink: Option<Form>,
    /// Its words begin with a server that speaks the scheme, as `ftp://SERVER/PATH`. No haul is needed there;
    /// one before the word (`HOST:ftp://SERVER/PATH`) is the haul that speaks with it.
    pub server: bool,
    /// Who keeps what lies there is no haul, but a server that says itself what lasts there, and takes files
    /// a few at a time, each in ascending order.
    pub foreign: bool,
    /// One of its places is copied without other sources.
    pub alone: bool,
    /// What goes there can be found there.
    pub keeps: bool,
    /// It tells by what a file is known from one run to the next, so that what an interrupted run left of an
    /// unfinished one can be gone on with. What comes from elsewhere is sent again, from its beginning.
    pub resumes: bool,
    /// Reads what stands behind the slashes, or behind the server.
    pub read: fn(&[u8]) -> Result<Rest, String>,
    /// Opens the store that such sources, or such a destination, lie in; `None`: there is none of its own,
    /// see [`stores`](super::stores).
    pub open_source: Option<OpenSource>,
    pub open_sink: Option<OpenSink>,
}

/// Finds sources of one scheme.
pub type OpenSource = fn(&Sources<'_>) -> Result<Box<dyn SourceStore>, Failure>;
/// Names a destination of one scheme.
pub type OpenSink = fn(&Destination<'_>) -> Result<Box<dyn SinkStore>, Failure>;

/// How a place is written.
pub struct Form {
    /// For people, as `null://SIZE`; and with the words that somebody might want.
    pub written: &'static str,
    pub example: &'static str,
    /// It says how many bytes there are.
    pub sized: bool,
}

/// What a scheme reads of a word.
pub struct Rest {
    /// In one form, whatever was typed: what it is read from again gives the same.
    pub path: Vec<u8>,
    pub size: Option<u64>,
}

/// Plain paths, of the file systems of a host.
pub static FILE: Scheme = Scheme {
    name: "file",
    source: Some(PATH),
    sink: Some(PATH),
    server: false,
    foreign: false,
    alone: false,
    keeps: true,
    resumes: true,
    read: read_path,
    open_source: None,
    open_sink: None,
};

const PATH: Form = Form { written: "PATH", example: "dir/file", sized: false };

/// Reads any path.
///
/// # Errors
/// Never; see [`Scheme::read`].
pub fn read_path(path: &[u8]) -> Result<Rest, String> {
    Ok(Rest { path: path.to_vec(), size: None })
}

impl PartialEq for Scheme {
    fn eq(&self, other: &Scheme) -> bool {
        self.name == other.name
    }
}

impl Eq for Scheme {}

impl fmt::Debug for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A place at one host.
#[derive(Clone, PartialEq, Eq)]
pub struct Place {
    scheme: &'static Scheme,
    server: Option<String>,
    path: Vec<u8>,
    size: Option<u64>,
}

impl fmt::Debug for Place {
    /// As it is shown: a server's password is nobody's business, nor a log's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", escape::name(&self.shown()))
    }
}

/// What people write for it elsewhere.
fn meant(scheme: &str) -> &'static str {
    match scheme {
        "gridftp" | "gftp" | "gsi" => " (a GridFTP server is gsiftp://SERVER/PATH)",
        "ftpes" | "ftpse" => " (FTP under TLS is ftps://SERVER/PATH)",
        "sftp" | "scp" | "ssh" | "rsync" => " (another host by ssh is HOST:PATH)",
        _ => "",
    }
}

/// Why a word is no place, or one that cannot be used so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    #[error(
        "'{}': {scheme}:// is not supported yet{}; known are {known}; for a file of that name write ./{}",
        escape::name(typed),
        meant(scheme),
        escape::name(typed)
    )]
    Unknown { typed: Vec<u8>, scheme: String, known: String },
    #[error(
        "'{}': write the path alone, without file://; for a file of that name write ./{}",
        escape::name(typed),
        escape::name(typed)
    )]
    FileScheme { typed: Vec<u8> },
    #[error("'{}': {}", escape::name(typed), escape::name(why.as_bytes()))]
    Unread { typed: Vec<u8>, why: String },
    #[error("{scheme}:// as a source needs a size: {example}")]
    NoSize { scheme: &'static str, example: &'static str },
    #[error("as a destination write {written} without a size")]
    Sized { written: &'static str },
    #[error("{scheme}:// is no {end}; known are PATH, HOST:PATH{known}")]
    NotAs { scheme: &'static str, end: &'static str, known: String },
    #[error("{scheme}:// is copied alone, without other sources")]
    NotAlone { scheme: &'static str },
    #[error(
        "{} and {} do not lie in one place: copy them one after the other",
        escape::name(one),
        escape::name(other)
    )]
    Mixed { one: Vec<u8>, other: Vec<u8> },
    #[error("{} is no path of a file system, and this haul has nothing else for it", escape::name(shown))]
    NoFile { shown: Vec<u8> },
}

/// What the user named as sources.
pub struct Sources<'a> {
    pub places: &'a [Place],
    pub recursive: bool,
    /// This of the only one, which is a file.
    pub part: Option<Part>,
    /// Where `~` and relative paths begin.
    pub home: Option<&'a Path>,
    /// Where else the only source lies, under whatever name.
    pub replicas: &'a [Place],
    /// What becomes of what fails there, where it may go well again or elsewhere.
    pub retry: Arc<dyn Reliability>,
    /// How a server is reached that ssh starts: the remote shell and its arguments, and whether somebody can
    /// answer what it asks.
    pub ssh: (&'a [String], bool),
    /// How long a server may be silent; `None`: as its scheme has it.
    pub patience: Option<Duration>,
    /// What is protected on data connections of servers that leave that open.
    pub data_channel: DataChannel,
    /// The directory of this user in which accesses to volumes are kept, if there is one.
    pub volumes: Option<&'a Path>,
    /// What an earlier run left of a file is gone on with where nothing but the length and time that a server
    /// tells says that it is the same file.
    pub trust: bool,
    /// Which of them are followed, of those that are symbolic links.
    pub links: LinkRule,
    /// Whoever can have enough while they are looked for.
    pub stop: Stop,
}

/// What the user named as destination.
#[derive(Clone)]
pub struct Destination<'a> {
    pub place: &'a Place,
    /// Where `~` and relative paths begin.
    pub home: Option<&'a Path>,
    /// Where the journal lies, if not with the data.
    pub state: Option<&'a Path>,
    /// Where this host has on record what servers have of unfinished files; `None`: nowhere.
    pub parts: Option<&'a Path>,
    /// How a server is reached that ssh starts, as of [`Sources::ssh`].
    pub ssh: (&'a [String], bool),
    /// What a server's data connections show and hide, where its scheme has a choice.
    pub data_channel: DataChannel,
    /// As of [`Sources::volumes`].
    pub volumes: Option<&'a Path>,
    /// How long a server may be silent; `None`: as its scheme has it.
    pub patience: Option<Duration>,
    /// What becomes of what fails there, where it may go well again.
    pub retry: Arc<dyn Reliability>,
    /// What becomes of symbolic links there.
    pub links: LinksThere,
    /// Whoever can have enough: before anything is written of all, and then of waiting for another attempt.
    pub stop: Stop,
}

impl PlaceError {
    /// The command says so, and not what lies there.
    pub(super) fn misused(self) -> Failure {
        Failure { kind: FailureKind::Usage, errno: 0, text: self.to_string().into() }
    }
}

impl Place {
    /// A path of a host's file systems, whatever its bytes are.
    pub fn file(path: impl Into<Vec<u8>>) -> Place {
        Place { scheme: &FILE, server: None, path: path.into(), size: None }
    }

    /// The place that a scheme's words name without a path.
    ///
    /// # Panics
    /// If the scheme has no such place.
    pub fn root(scheme: &'static Scheme) -> Place {
        Place::read(scheme, None, b"").expect("a scheme whose words may end behind the slashes")
    }

    /// As [`Place::root`], of `size` bytes.
    ///
    /// # Panics
    /// If the scheme has no sizes, or not this one.
    pub fn sized(scheme: &'static Scheme, size: u64) -> Place {
        Place::read(scheme, None, size.to_string().as_bytes())
            .expect("a scheme of sizes, and one within its bounds")
    }

    /// What a word means at the host that it belongs to.
    ///
    /// # Errors
    /// It begins as a scheme does, and nobody knows this one, or that one does not read the rest.
    pub fn parse(typed: &[u8]) -> Result<Place, PlaceError> {
        Place::parse_with(typed, SCHEMES)
    }

    fn parse_with(typed: &[u8], schemes: &[&'static Scheme]) -> Result<Place, PlaceError> {
        let Some((name, rest)) = split_scheme(typed) else { return Ok(Place::file(typed)) };
        let Some(scheme) = schemes.iter().find(|known| known.name.eq_ignore_ascii_case(name)) else {
            if haul_mutant::removed("schemes-are-no-names") {
                return Ok(Place::file(typed));
            }
            let known = known(schemes, |scheme| [&scheme.source, &scheme.sink]);
            let known = format!("PATH, HOST:PATH{known}");
            return Err(PlaceError::Unknown {
                typed: without_password(typed),
                scheme: name.to_owned(),
                known,
            });
        };
        if **scheme == FILE {
            return Err(PlaceError::FileScheme { typed: without_password(typed) });
        }
        let unread = |why| PlaceError::Unread { typed: without_password(typed), why };
        let (server, rest) = match scheme.server {
            true => {
                let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
                let server = check_server(scheme, &rest[..end]).map_err(unread)?;
                (Some(server), &rest[end..])
            }
            false => (None, rest),
        };
        Place::read(scheme, server, rest).map_err(unread)
    }

    fn read(scheme: &'static Scheme, server: Option<String>, rest: &[u8]) -> Result<Place, String> {
        let Rest { path, size } = (scheme.read)(rest)?;
        Ok(Place { scheme, server, path, size })
    }

    pub fn scheme(&self) -> &'static Scheme {
        self.scheme
    }

    /// Who speaks the scheme, where it names somebody.
    pub fn server(&self) -> Option<&str> {
        self.server.as_deref()
    }

    /// The same place at a server that is written otherwise, with a login say.
    ///
    /// # Errors
    /// It cannot be one, or the scheme has none.
    pub fn at_server(&self, server: &str) -> Result<Place, PlaceError> {
        let unread = |why: String| PlaceError::Unread { typed: self.shown(), why };
        if self.server.is_none() {
            return Err(unread("it has no server".into()));
        }
        let server = check_server(self.scheme, server.as_bytes()).map_err(unread)?;
        Ok(Place { server: Some(server), ..self.clone() })
    }

    /// What its scheme calls a path. Of a file: as typed.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// How many bytes there are, where its words say so.
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// The path of a file system; `None`: it lies on none.
    pub fn file_path(&self) -> Option<&[u8]> {
        (*self.scheme == FILE).then_some(&self.path)
    }

    /// The same where nothing else will do.
    ///
    /// # Errors
    /// It lies on none.
    pub fn as_file(&self) -> Result<&[u8], PlaceError> {
        self.file_path().ok_or_else(|| PlaceError::NoFile { shown: self.shown() })
    }

    /// As it can be typed where no host is: [`Place::parse`] gives the same place, or one with `./` before
    /// the same path. A password is left out.
    pub fn shown(&self) -> Vec<u8> {
        if *self.scheme == FILE {
            let dot: &[u8] = if split_scheme(&self.path).is_some() { b"./" } else { b"" };
            return [dot, &self.path].concat();
        }
        let server = hidden(self.server.as_deref().unwrap_or_default());
        [self.scheme.name.as_bytes(), b"://", server.as_bytes(), &self.path].concat()
    }

    /// Whether it can have a role in a copy.
    ///
    /// # Errors
    /// What to write instead.
    pub fn fits(&self, role: Role) -> Result<(), PlaceError> {
        let scheme = self.scheme.name;
        let (end, form): (_, fn(&Scheme) -> &Option<Form>) = match role {
            Role::Source => ("source", |scheme| &scheme.source),
            Role::Sink => ("destination", |scheme| &scheme.sink),
        };
        match form(self.scheme) {
            None => {
                let known = known(SCHEMES, |known| [form(known), &None]);
                Err(PlaceError::NotAs { scheme, end, known })
            }
            Some(form) if form.sized && self.size.is_none() => {
                Err(PlaceError::NoSize { scheme, example: form.example })
            }
            Some(form) if !form.sized && self.size.is_some() => {
                Err(PlaceError::Sized { written: form.written })
            }
            Some(_) => Ok(()),
        }
    }
}

/// A server without the password of its user: `USER:PASSWORD@HOST`.
fn hidden(server: &str) -> String {
    match server.rsplit_once('@') {
        Some((login, host)) => format!("{}@{host}", login.split(':').next().unwrap_or_default()),
        None => server.to_owned(),
    }
}

/// A word as it was typed, without a password that it may hold, however it was mistyped: for texts of what is
/// wrong with it. What stands from a colon to the last `@` behind something like a scheme is left out.
pub fn without_password(typed: &[u8]) -> Vec<u8> {
    // A password with a slash in it, which should be %2F, ends the server too early.
    let hidden = login_at(typed).and_then(|start| {
        let at = start + typed[start..].iter().rposition(|byte| *byte == b'@')?;
        let colon = start + typed[start..at].iter().position(|byte| *byte == b':')?;
        Some((colon, at))
    });
    match hidden {
        Some((colon, at)) => [&typed[..colon], &typed[at..]].concat(),
        None => typed.to_vec(),
    }
}

/// Where a login may begin in a word: behind `://`, or what is called like FTP and its colon or slashes.
fn login_at(typed: &[u8]) -> Option<usize> {
    let slashes = typed.windows(3).position(|part| part == b"://");
    let called = typed.windows(3).position(|part| part.eq_ignore_ascii_case(b"ftp")).and_then(|at| {
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
        let end = at + typed[at..].iter().position(|byte| !is_name(byte))?;
        b":/\\".contains(&typed[end]).then_some(end)
    });
    let mut start = slashes.into_iter().chain(called).min()?;
    start += usize::from(typed[start] == b':');
    let is_slash = |byte: &&u8| b"/\\ ".contains(byte);
    Some(start + typed[start..].iter().take_while(is_slash).count())
}

/// Whether a word begins with a scheme with servers and what looks like a login, but without two slashes.
/// With a dot and a slash there it is a path at a host called so.
pub fn half_login(typed: &[u8]) -> bool {
    let Some(colon) = typed.iter().position(|byte| *byte == b':') else { return false };
    let (name, rest) = (&typed[..colon], &typed[colon + 1..]);
    let is_named = |scheme: &&Scheme| scheme.server && scheme.name.as_bytes().eq_ignore_ascii_case(name);
    let is_hosts = [&b"//"[..], b"./", b"/./"].iter().any(|head| rest.starts_with(head));
    SCHEMES.iter().any(is_named) && !is_hosts && without_password(typed) != typed
}

/// Whether these can be the sources of one copy.
///
/// # Errors
/// One cannot be a source at all, or not beside others.
pub fn sources_fit<'a>(sources: impl IntoIterator<Item = &'a Place>) -> Result<(), PlaceError> {
    let (mut count, mut alone) = (0, None);
    let (mut first, mut mixed): (Option<&Place>, _) = (None, None);
    for place in sources {
        place.fits(Role::Source)?;
        let first = first.get_or_insert(place);
        if mixed.is_none() && (first.scheme, &first.server) != (place.scheme, &place.server) {
            mixed = Some(PlaceError::Mixed { one: first.shown(), other: place.shown() });
        }
        count += 1;
        alone = alone.or(place.scheme.alone.then_some(place.scheme.name));
    }
    match alone {
        Some(scheme) if count > 1 => Err(PlaceError::NotAlone { scheme }),
        _ => mixed.map_or(Ok(()), Err),
    }
}

/// Whether these can be replicas of what is copied: other servers that have the same.
///
/// # Errors
/// What to write instead.
pub fn replicas_fit<'a>(
    sources: impl IntoIterator<Item = &'a Place>,
    replicas: impl IntoIterator<Item = &'a Place>,
) -> Result<(), String> {
    let (mut count, mut plain) = (0, None);
    for place in sources {
        count += 1;
        plain = plain.or((!place.scheme.foreign).then_some(place));
    }
    let (mut most, mut seen) = (0, Vec::new());
    for place in replicas {
        let shown = escape::name(&place.shown());
        if count != 1 {
            return Err(format!("replica {shown}: it is of one source, and there are {count}"));
        }
        if let Some(source) = plain {
            let source = escape::name(&source.shown());
            return Err(format!(
                "replica {shown}: of {source} there are none: only files at FTP and GridFTP servers have them"
            ));
        }
        if !place.scheme.foreign {
            return Err(format!("replica {shown}: a replica lies at a server, as ftp://SERVER/PATH"));
        }
        if seen.contains(&place) {
            return Err(format!("replica {shown} is given twice"));
        }
        seen.push(place);
        most += 1;
        if most > REPLICAS_MAX {
            return Err(format!("there are more than {REPLICAS_MAX} replicas"));
        }
    }
    Ok(())
}

/// The scheme that a word begins with, and what is behind its slashes. RFC 3986: a letter, then letters,
/// digits, `+`, `-`, `.`
pub fn split_scheme(typed: &[u8]) -> Option<(&str, &[u8])> {
    let colon = typed.iter().position(|byte| *byte == b':')?;
    let (name, rest) = (std::str::from_utf8(&typed[..colon]).ok()?, typed[colon + 1..].strip_prefix(b"//")?);
    let is_scheme = name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    is_scheme.then_some((name, rest))
}

/// The name of a scheme with servers that a word begins with, and what stands behind its only slash: `h/x` of
/// `ftp:/h/x`, where `ftp://h/x` was meant, or a host called so. With a dot and a slash there it is a host's.
pub fn half_scheme(typed: &[u8]) -> Option<(&str, &[u8])> {
    let colon = typed.iter().position(|byte| *byte == b':')?;
    let (name, rest) = (std::str::from_utf8(&typed[..colon]).ok()?, typed[colon + 1..].strip_prefix(b"/")?);
    let is_named = |scheme: &&Scheme| scheme.server && scheme.name.eq_ignore_ascii_case(name);
    let is_hosts = rest.starts_with(b"/") || rest.starts_with(b"./") || rest == b".";
    (SCHEMES.iter().any(is_named) && !is_hosts).then_some((name, rest))
}

/// What is named behind the slashes of this scheme, for people: a server, or a volume.
pub fn named_behind(scheme: &str) -> &'static str {
    if scheme.eq_ignore_ascii_case("vol") { "volume" } else { "server" }
}

/// The server of a place, as its scheme takes it.
fn check_server(scheme: &Scheme, bytes: &[u8]) -> Result<String, String> {
    let named = named_behind(scheme.name);
    let text = std::str::from_utf8(bytes).map_err(|_| format!("the {named}'s name is not UTF-8"))?;
    match text {
        "" => Err(format!("there is no {named} behind the slashes")),
        text if text.contains('/') => Err(format!("a {named}'s name holds no slash")),
        text if text.len() > SERVER_LEN_MAX => Err(format!("the {named}'s name is too long")),
        text if text.chars().any(|c| c.is_control() || c.is_whitespace()) => {
            Err(format!("a {named}'s name must not hold blanks or control characters"))
        }
        text => Ok(text.to_owned()),
    }
}

/// How places of the schemes are written, each behind a comma; those of files left out.
fn known<'a>(schemes: &[&'a Scheme], forms: impl Fn(&'a Scheme) -> [&'a Option<Form>; 2]) -> String {
    let mut all: Vec<&str> = Vec::new();
    for scheme in schemes.iter().filter(|scheme| ***scheme != FILE) {
        for form in forms(scheme).into_iter().flatten() {
            if !all.contains(&form.written) {
                all.push(form.written);
            }
        }
    }
    all.iter().fold(String::new(), |text, form| text + ", " + form)
}

/// As a place is told to another haul: the file's scheme is left out, and what a scheme has read is read
/// there again.
#[derive(Serialize, Deserialize)]
struct Told {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scheme: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    path: PathBytes,
}

impl Serialize for Place {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let scheme = (*self.scheme != FILE).then(|| self.scheme.name.to_owned());
        Told { scheme, server: self.server.clone(), path: PathBytes(self.path.clone()) }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Place {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Place, D::Error> {
        let Told { scheme, server, path } = Told::deserialize(deserializer)?;
        let name = scheme.as_deref().unwrap_or(FILE.name);
        let Some(scheme) = SCHEMES.iter().find(|known| known.name == name) else {
            return Err(D::Error::custom(format!(
                "there is no scheme {}:// here",
                escape::name(name.as_bytes())
            )));
        };
        let server = match (scheme.server, server) {
            (true, server) => {
                let server = check_server(scheme, server.unwrap_or_default().as_bytes());
                Some(server.map_err(D::Error::custom)?)
            }
            (false, None) => None,
            (false, Some(_)) => return Err(D::Error::custom(format!("{name}:// has no server"))),
        };
        Place::read(scheme, server, &path.0).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::super::null::{NULL, ZERO};
    use super::*;

    /// One that is not there yet, whose words begin with a server.
    static FAR: Scheme = Scheme {
        name: "x-far",
        source: Some(Form { written: "x-far://SERVER/PATH", example: "x-far://h/data", sized: false }),
        sink: None,
        server: true,
        foreign: true,
        alone: false,
        keeps: true,
        resumes: true,
        read: read_path,
        open_source: None,
        open_sink: None,
    };

    /// Goal: every entry is one that words can name: its name is a scheme and its own, its examples are
    /// places of it and fit.
    #[test]
    fn entries_keep_their_word() {
        for (at, scheme) in SCHEMES.iter().enumerate() {
            let word = format!("{}://x", scheme.name);
            assert_eq!(split_scheme(word.as_bytes()), Some((scheme.name, &b"x"[..])));
            assert_eq!(scheme.name, scheme.name.to_ascii_lowercase());
            assert!(SCHEMES[..at].iter().all(|other| other != scheme), "{scheme:?} is there twice");
            for (form, role) in [(&scheme.source, Role::Source), (&scheme.sink, Role::Sink)] {
                let Some(form) = form else { continue };
                let place = Place::parse(form.example.as_bytes()).expect(form.example);
                assert_eq!((place.scheme(), place.fits(role)), (*scheme, Ok(())), "{}", form.example);
            }
        }
    }

    /// Goal: only the scheme at the beginning of a word counts, and a file's path is taken as it is.
    #[test]
    fn words_are_read_by_their_scheme() {
        for path in [
            &b"data"[..],
            b"./null://4K",
            b"/null://4K",
            b"null:/1",
            b"null:1",
            b"nu ll://",
            b"1null://",
            b"://x",
            b"\xff://x",
            b"\xff\xfe\n",
            b"a/b://c",
            b"~/x",
            b"",
        ] {
            let place = Place::parse(path).expect("a file");
            assert_eq!(place, Place::file(path));
            assert_eq!((place.file_path(), place.size(), &*place.shown()), (Some(path), None, path));
        }
        for (word, scheme, path, size) in [
            ("null://", &NULL, "", None),
            ("null://2KiB", &NULL, "2048", Some(2048)),
            ("NULL://1", &NULL, "1", Some(1)),
            ("zero://1G", &ZERO, "1073741824", Some(1 << 30)),
            ("null://1152921504606846976", &NULL, "1152921504606846976", Some(1 << 60)),
        ] {
            let place = Place::parse(word.as_bytes()).expect(word);
            assert_eq!(
                (place.scheme(), place.path(), place.size()),
                (scheme, path.as_bytes(), size),
                "{word}"
            );
            assert_eq!((place.file_path(), place.server()), (None, None));
            assert!(place.as_file().is_err_and(|e| e.to_string().contains("no path")));
        }
        for (word, hint) in [
            (&b"zero://"[..], "whole number"),
            (b"null://x", "whole number"),
            (b"null://-1", "whole number"),
            (b"null://0", "too few"),
            (b"null://5X", "no unit"),
            (b"null://\xff", "whole number"),
            (b"null://1152921504606846977", "at most 1 EiB"),
            (b"zero://99999999T", "2^64"),
            (b"file:///data", "without file://"),
            (b"dtn1://scratch", "known are PATH, HOST:PATH, null://SIZE, null://, zero://SIZE"),
            (b"s3://bucket", "write ./s3://bucket"),
        ] {
            let error = Place::parse(word).expect_err(&escape::name(word)).to_string();
            assert!(error.contains(hint) && error.contains(&*escape::name(word)), "{error}");
        }
    }

    /// Goal: a password goes to the server, and to nobody who reads what haul says.
    #[test]
    fn passwords_are_not_shown() {
        let place = Place::parse_with(b"x-far://u:geheim@h:21/a", &[&FILE, &FAR]).expect("known here");
        assert_eq!(place.server(), Some("u:geheim@h:21"));
        assert_eq!(place.shown(), b"x-far://u@h:21/a");
        for word in [&b"nftp://u:geheim@h/a"[..], b"x-far://u:geheim@h\x1b/a", b"nftp://u:ge/geheim@h/a"] {
            let error = Place::parse_with(word, &[&FILE, &FAR]).expect_err("no place").to_string();
            assert!(!error.contains("geheim") && error.contains("u@h"), "{error}");
        }
    }

    /// Goal: what lies at two servers, or here and at one, is not taken for one source.
    #[test]
    fn sources_of_one_copy_lie_together() {
        let far = |word: &[u8]| Place::parse_with(word, &[&FILE, &FAR]).expect("known here");
        assert!(sources_fit(&[far(b"x-far://h/a"), far(b"x-far://h/b")]).is_ok());
        for other in [far(b"x-far://i/a"), far(b"x-far://u@h/a"), Place::file("a")] {
            let mixed = sources_fit(&[far(b"x-far://h/a"), other]);
            assert!(matches!(mixed, Err(PlaceError::Mixed { .. })), "{mixed:?}");
        }
    }

    /// Goal: a scheme with a server has it apart from the path, whatever the path's bytes are.
    #[test]
    fn servers_are_no_path() {
        let schemes = [&FILE, &FAR];
        for (word, server, path) in [
            (&b"x-far://h/a"[..], "h", &b"/a"[..]),
            (b"x-far://u@h:21//a\xff", "u@h:21", b"//a\xff"),
            (b"X-Far://[::1]:21", "[::1]:21", b""),
        ] {
            let place = Place::parse_with(word, &schemes).expect("known here");
            assert_eq!((place.scheme(), place.server(), place.path()), (&FAR, Some(server), path));
            assert_eq!(Place::parse_with(&place.shown(), &schemes), Ok(place));
        }
        for (word, hint) in
            [(&b"x-far:///a"[..], "no server"), (b"x-far://a b/c", "blanks"), (b"x-far://\xff/c", "UTF-8")]
        {
            assert!(Place::parse_with(word, &schemes).is_err_and(|e| e.to_string().contains(hint)));
        }
        assert!(
            Place::parse_with(b"y://a", &schemes)
                .is_err_and(|e| e.to_string().contains("x-far://SERVER/PATH"))
        );
    }

    /// Goal: each role takes what can have it, and says what to write instead of the others.
    #[test]
    fn roles_are_facts_of_the_entries() {
        let place = |word: &str| Place::parse(word.as_bytes()).expect(word);
        for (word, role, refusal) in [
            ("a", Role::Source, ""),
            ("a", Role::Sink, ""),
            ("null://5", Role::Source, ""),
            ("null://", Role::Sink, ""),
            ("zero://5", Role::Source, ""),
            ("null://", Role::Source, "null:// as a source needs a size: null://200GiB"),
            ("null://5", Role::Sink, "write null:// without a size"),
            ("zero://5", Role::Sink, "zero:// is no destination; known are PATH, HOST:PATH, null://"),
        ] {
            match (place(word).fits(role), refusal) {
                (fits, "") => assert_eq!(fits, Ok(()), "{word}"),
                (fits, refusal) => assert!(fits.is_err_and(|e| e.to_string().contains(refusal)), "{word}"),
            }
        }
        let together = |words: &[&str]| {
            let places: Vec<Place> = words.iter().map(|word| place(word)).collect();
            sources_fit(&places).map_err(|e| e.to_string())
        };
        assert!(together(&["a", "b"]).is_ok() && together(&["zero://1"]).is_ok() && together(&[]).is_ok());
        for words in [&["a", "null://1"][..], &["zero://1", "a"], &["null://1", "null://1"]] {
            assert!(together(words).is_err_and(|why| why.contains("alone")), "{words:?}");
        }
        assert!(together(&["a", "null://"]).is_err_and(|why| why.contains("needs a size")));
    }

    /// Goal: another haul is told the scheme and the bytes of the path, and takes no place that its own words
    /// could not name.
    #[test]
    fn places_are_told_with_their_scheme() {
        for (place, json) in [
            (Place::file(b"a\xff".as_slice()), r#"{"path":"Yf8="}"#),
            // No scheme, whatever its path looks like.
            (Place::file("null://5"), r#"{"path":"bnVsbDovLzU="}"#),
            (Place::root(&NULL), r#"{"scheme":"null","path":""}"#),
            (Place::sized(&ZERO, 4096), r#"{"scheme":"zero","path":"NDA5Ng=="}"#),
        ] {
            assert_eq!(serde_json::to_string(&place).unwrap(), json);
            assert_eq!(serde_json::from_str::<Place>(json).unwrap(), place);
        }
        for (json, why) in [
            (r#"{"scheme":"s3","path":""}"#, "no scheme s3:// here"),
            (r#"{"scheme":"zero","path":""}"#, "whole number"),
            (r#"{"scheme":"null","path":"eA=="}"#, "whole number"),
            (r#"{"scheme":"null","server":"h","path":""}"#, "no server"),
            (r#"{"path":"?"}"#, "invalid"),
            (r#""Yf8=""#, "invalid type"),
        ] {
            let error = serde_json::from_str::<Place>(json).expect_err(json).to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
