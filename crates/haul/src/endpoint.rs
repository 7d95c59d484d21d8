//! What a SRC or DST of a command names: a place here, or one at a host.
//!
//! In: words as typed, as bytes. Out: [`Endpoint`]s, all sources on one side, at most one side far away.
//! Invariants: a path goes through unchanged, whatever bytes it holds; nobody else looks at how a word
//! begins. What stands behind the host's colon, or alone, [`Place`] reads; every word that begins with a
//! scheme is of a scheme, never of a host.
//! Left out: `~`, `~name`, variables and globs; the first two are expanded at the far end, the others by
//! nobody.

use std::ffi::{OsStr, OsString};
use std::net::Ipv6Addr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use haul_base::escape;
use haul_base::role::Role;
pub use haul_storage::place::without_password;
pub use haul_storage::place::{Place, PlaceError, Scheme};
use haul_storage::place::{half_login, half_scheme, named_behind, replicas_fit, sources_fit, split_scheme};

/// Longest `user@host`, bytes: a host name has at most 253, a user name at most 256.
const HOST_LEN_MAX: usize = 512;
/// What stands in an IPv6 address, or around it, and in no name.
const OF_ADDRESSES: [char; 3] = [':', '[', ']'];

/// A place that data comes from or goes to, and the host whose haul reaches it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// As for ssh: may hold `user@`, no brackets. `None`: this host. A host that a scheme itself speaks with
    /// is in the place.
    host: Option<String>,
    place: Place,
}

/// Why words are no endpoints.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // The text of each says it.
pub enum EndpointError {
    #[error("nothing to copy")]
    Nothing,
    #[error("a source and a destination are needed")]
    NoDestination,
    #[error("an empty path; write . for the current directory")]
    EmptyPath,
    #[error("all sources must be on one side: one is {}, another {}", side(one), side(other))]
    Sides { one: Option<String>, other: Option<String> },
    #[error("both ends are at {host}: log in there and run haul with local paths")]
    SameHost { host: String },
    #[error("copying from {from} to {to} through this host is not supported yet: run haul on one of the two")]
    TwoHosts { from: String, to: String },
    #[error(
        "'{}' is a local file, but its colon would make it a host: write ./{}",
        escape::name(typed),
        escape::name(typed)
    )]
    LocalFile { typed: Vec<u8> },
    #[error(
        "'{}' has no host before its colon; for a local file write ./{}",
        escape::name(typed),
        escape::name(typed)
    )]
    NoHost { typed: Vec<u8> },
    /// `host::module` is how rsync names what its daemon serves; nobody means a file whose name begins with a
    /// colon.
    #[error(
        "'{}' is how rsync names a module of its daemon, which haul does not speak with: write {}:PATH, which goes through ssh. \
         For the file '{}' at that host write {}:./{}, for a local file ./{}, for an IPv6 address [ADDRESS]:PATH",
        escape::name(typed),
        escape::name(host),
        escape::name(path),
        escape::name(host),
        escape::name(path),
        escape::name(typed)
    )]
    Daemon { typed: Vec<u8>, host: Vec<u8>, path: Vec<u8> },
    #[error(
        "'{name}:/{}' has one slash: for a {} write {name}://{}, for a path at a host called {name} {name}:/./{}",
        escape::name(rest),
        named_behind(name),
        escape::name(rest),
        escape::name(rest)
    )]
    HalfScheme { name: String, rest: Vec<u8> },
    /// A login, where a server was meant and a host or a path was written.
    #[error(
        "'{}' holds a login and names no server: write SCHEME://USER:PASSWORD@SERVER/PATH, with two slashes; for a path of \
         that name write ./ before it",
        escape::name(shown)
    )]
    HalfLogin { shown: Vec<u8> },
    /// What begins as a scheme does, where only a path will do.
    #[error(
        "'{}': {taker} takes a path of a file system, and that is none; for a file of that name write ./ before it",
        escape::name(shown)
    )]
    NoPath { taker: String, shown: Vec<u8> },
    #[error("'{}': {why}", escape::name(typed))]
    BadHost { typed: Vec<u8>, why: &'static str },
    #[error("an empty host; write HOST or USER@HOST")]
    EmptyHost,
    #[error("'{}' is more than a host: write HOST or USER@HOST, and no path", escape::name(typed))]
    NotAlone { typed: Vec<u8> },
    #[error(transparent)]
    Place(#[from] PlaceError),
}

fn side(host: &Option<String>) -> String {
    host.as_ref().map_or("local".into(), |host| format!("at {host}"))
}

/// A path of this host, whatever it looks like, as a path is for the standard library: what a user typed is
/// read by [`Endpoint::parse`].
impl From<&str> for Endpoint {
    fn from(path: &str) -> Endpoint {
        Endpoint::local(path)
    }
}

impl From<&Path> for Endpoint {
    fn from(path: &Path) -> Endpoint {
        Endpoint::local(path.as_os_str().as_bytes())
    }
}

impl From<&PathBuf> for Endpoint {
    fn from(path: &PathBuf) -> Endpoint {
        path.as_path().into()
    }
}

impl From<PathBuf> for Endpoint {
    fn from(path: PathBuf) -> Endpoint {
        path.as_path().into()
    }
}

impl Endpoint {
    /// A place of this host, or of `host`.
    pub fn new(host: Option<String>, place: Place) -> Endpoint {
        Endpoint { host, place }
    }

    /// A file of this host, whatever the bytes of its path are.
    pub fn local(path: impl Into<Vec<u8>>) -> Endpoint {
        Endpoint::new(None, Place::file(path))
    }

    /// A file at a host.
    pub fn remote(host: impl Into<String>, path: impl Into<Vec<u8>>) -> Endpoint {
        Endpoint::new(Some(host.into()), Place::file(path))
    }

    /// What one word means. A colon before the first slash means a host; `exists` says whether a local file
    /// has this name.
    ///
    /// # Errors
    /// What to write instead.
    pub fn parse(word: &OsStr, exists: impl Fn(&OsStr) -> bool) -> Result<Endpoint, EndpointError> {
        let typed = word.as_bytes();
        if typed.is_empty() {
            return Err(EndpointError::EmptyPath);
        }
        let slash = typed.iter().position(|b| *b == b'/').unwrap_or(typed.len());
        let colon = if split_scheme(typed).is_some() { None } else { host_end(&typed[..slash]) };
        let Some(colon) = colon else {
            return Ok(Endpoint::new(None, Place::parse(typed)?));
        };
        if exists(word) && !haul_mutant::removed("colons-are-asked-about") {
            return Err(EndpointError::LocalFile { typed: without_password(typed) });
        }
        let (host, path) = (&typed[..colon], &typed[colon + 1..]);
        if host.is_empty() {
            return Err(EndpointError::NoHost { typed: without_password(typed) });
        }
        if let Some((name, rest)) = half_scheme(typed) {
            let whole = without_password(&[name.as_bytes(), b"://", rest].concat());
            let rest = whole[name.len() + 3..].to_vec();
            return Err(EndpointError::HalfScheme { name: name.to_owned(), rest });
        }
        if half_login(typed) || half_login(path) {
            return Err(EndpointError::HalfLogin { shown: without_password(typed) });
        }
        if path.starts_with(b":") {
            let shown = without_password(typed);
            let path = shown.get(colon + 1..).unwrap_or_default().to_vec();
            let (typed, host) = (shown, host.to_vec());
            return Err(EndpointError::Daemon { typed, host, path });
        }
        let bad = |why| EndpointError::BadHost { typed: without_password(typed), why };
        let host = check_host(host).map_err(bad)?;
        let place = Place::parse(if path.is_empty() { b"." } else { path })?;
        Ok(Endpoint::new(Some(host), place))
    }

    /// The host whose haul reaches the place, as for ssh; `None`: this one.
    pub fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// What was typed behind the host, as a place of its scheme.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The path of a file of this host; `None`: it lies elsewhere, or is no file.
    pub fn local_path(&self) -> Option<&[u8]> {
        self.place.file_path().filter(|_| self.host.is_none())
    }

    /// Its words name a server and bring no password: [`Endpoint::with_login`] may know one.
    pub fn wants_login(&self) -> bool {
        #[cfg(feature = "ftp")]
        return haul_storage::ftp::wants_login(&self.place).is_some();
        #[cfg(not(feature = "ftp"))]
        false
    }

    /// The same endpoint with the login that the text of a `.netrc` has for its server; `None`: it has none.
    ///
    /// # Errors
    /// What the text has for it cannot be used, in words without the password.
    pub fn with_login(&self, netrc: &str) -> Result<Option<Endpoint>, String> {
        #[cfg(feature = "ftp")]
        return haul_storage::ftp::with_login(&self.place, netrc)
            .map(|place| place.map(|place| Endpoint::new(self.host.clone(), place)));
        #[cfg(not(feature = "ftp"))]
        {
            let _ = netrc;
            Ok(None)
        }
    }

    /// As it can be typed: [`Endpoint::parse`] gives the same, or the same file by a longer path.
    pub fn shown(&self) -> Vec<u8> {
        let place = self.place.shown();
        let is_file = self.place.file_path().is_some();
        let Some(host) = &self.host else {
            let head = place.split(|b| *b == b'/').next().unwrap_or_default();
            let dot: &[u8] = if is_file && host_end(head).is_some() { b"./" } else { b"" };
            return [dot, &place].concat();
        };
        let (user, name) = host.rsplit_once('@').unwrap_or(("", host));
        let at = if user.is_empty() { "" } else { "@" };
        let host = match name.contains(':') {
            true => format!("{user}{at}[{name}]:"),
            false => format!("{user}{at}{name}:"),
        };
        let word = [host.as_bytes(), &place].concat();
        let dot: &[u8] = match (place.first(), split_scheme(&word)) {
            (Some(b':'), _) if is_file => b"./",
            (_, Some(_)) => b"/.",
            _ if half_scheme(&word).is_some() => b"/.",
            _ if is_file && (half_login(&word) || half_login(&place)) => b"./",
            _ => return word,
        };
        [host.as_bytes(), dot, &place].concat()
    }
}

/// The endpoints of one copy. `words`: the sources and, last, the destination; at least two.
///
/// # Errors
/// What does not fit together, or is no endpoint.
pub fn resolve(words: &[OsString]) -> Result<(Vec<Endpoint>, Endpoint), EndpointError> {
    let exists = |path: &OsStr| Path::new(path).symlink_metadata().is_ok();
    let parsed = words.iter().map(|word| Endpoint::parse(word, exists));
    let mut sources = parsed.collect::<Result<Vec<_>, _>>()?;
    let destination = sources.pop().ok_or(EndpointError::Nothing)?;
    if sources.is_empty() {
        return Err(EndpointError::NoDestination);
    }
    fit(&sources, &destination)?;
    Ok((sources, destination))
}

/// Whether these can be the ends of one copy, however they were made: one host reads all sources, and only
/// one of the two ends is elsewhere.
///
/// # Errors
/// What does not fit together, or names nothing.
pub(crate) fn fit(sources: &[Endpoint], destination: &Endpoint) -> Result<(), EndpointError> {
    let (first, others) = sources.split_first().ok_or(EndpointError::Nothing)?;
    for one in sources.iter().chain([destination]) {
        if one.place.file_path().is_some_and(<[u8]>::is_empty) {
            return Err(EndpointError::EmptyPath);
        }
        if one.host.as_ref().is_some_and(String::is_empty) {
            return Err(EndpointError::EmptyHost);
        }
    }
    if let Some(other) = others.iter().find(|other| other.host != first.host) {
        return Err(EndpointError::Sides { one: first.host.clone(), other: other.host.clone() });
    }
    if let (Some(from), Some(to)) = (&first.host, &destination.host) {
        let (from, to) = (from.clone(), to.clone());
        return Err(match from == to {
            true => EndpointError::SameHost { host: to },
            false => EndpointError::TwoHosts { from, to },
        });
    }
    sources_fit(sources.iter().map(Endpoint::place))?;
    if !is_pair(sources, destination) {
        destination.place.fits(Role::Sink)?;
    }
    Ok(())
}

/// The replicas that these words name.
///
/// # Errors
/// What does not fit together, or is no endpoint, in words for people.
pub fn replicas_typed(words: &[OsString], sources: &[Endpoint]) -> Result<Vec<Endpoint>, String> {
    let exists = |path: &OsStr| Path::new(path).symlink_metadata().is_ok();
    let parsed = words.iter().map(|word| Endpoint::parse(word, exists));
    let found = parsed.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
    replicas(sources, &found)?;
    Ok(found)
}

/// Whether these can be replicas of the source.
///
/// # Errors
/// What to write instead.
pub(crate) fn replicas(sources: &[Endpoint], replicas: &[Endpoint]) -> Result<(), String> {
    replicas_fit(sources.iter().map(Endpoint::place), replicas.iter().map(Endpoint::place))?;
    let host = sources.first().and_then(Endpoint::host);
    match replicas.iter().find(|replica| replica.host() != host) {
        None => Ok(()),
        Some(other) => {
            let shown = escape::name(&other.shown());
            let whose = host.map_or("this host".to_owned(), |host| format!("{host}, as {host}:ftp://..."));
            Err(format!("replica {shown}: it is read by the same host as the source: {whose}"))
        }
    }
}

/// Whether the stores of both ends, which this host reaches, move the data between them.
pub(crate) fn is_pair(sources: &[Endpoint], destination: &Endpoint) -> bool {
    let places: Vec<Place> = sources.iter().map(|source| source.place.clone()).collect();
    let is_here = sources.iter().chain([destination]).all(|end| end.host.is_none());
    is_here && haul_storage::stores::is_pair(&places, &destination.place)
}

/// Checks a word that names a file, or a directory, where nothing else will do. `taker`: what it was given
/// to.
///
/// # Errors
/// It begins as a scheme does.
pub fn path_alone(taker: &str, word: &OsStr) -> Result<(), EndpointError> {
    let typed = word.as_bytes();
    let shown = without_password(typed);
    let is_path = typed.starts_with(b"/") || typed.starts_with(b".");
    match split_scheme(typed).is_some() || !is_path && shown != typed {
        false => Ok(()),
        true => Err(EndpointError::NoPath { taker: taker.to_owned(), shown }),
    }
}

/// A host by itself, as for ssh.
///
/// # Errors
/// It is none, or one with a path.
pub fn host_alone(word: &str) -> Result<String, EndpointError> {
    let typed = without_password(word.as_bytes());
    if word.is_empty() {
        return Err(EndpointError::EmptyHost);
    }
    let is_bracketed = word.ends_with(']');
    if word.contains('/') || (!is_bracketed && word.contains(':')) {
        return Err(EndpointError::NotAlone { typed });
    }
    check_host(word.as_bytes()).map_err(|why| EndpointError::BadHost { typed, why })
}

/// Where the host's colon is, if there is one: after `]` when the host (behind `user@`) begins with `[`.
fn host_end(head: &[u8]) -> Option<usize> {
    let first = head.iter().position(|b| *b == b':')?;
    let at = head[..first].iter().rposition(|b| *b == b'@').map_or(0, |at| at + 1);
    if head[at] == b'['
        && let Some(close) = head.windows(2).position(|pair| pair == b"]:")
    {
        return Some(close + 1);
    }
    Some(first)
}

/// The host as ssh takes it: `user@` kept, brackets gone. Refuses what ssh could take for an option.
fn check_host(bytes: &[u8]) -> Result<String, &'static str> {
    let text = std::str::from_utf8(bytes).map_err(|_| "the host name is not UTF-8")?;
    if text.len() > HOST_LEN_MAX {
        return Err("the host name is too long");
    }
    let (user, name) = match text.rsplit_once('@') {
        Some((user, name)) => (Some(user), name),
        None => (None, text),
    };
    let name = match name.strip_prefix('[') {
        Some(inner) => {
            let inner = inner.strip_suffix(']').ok_or("write an IPv6 address as [ADDRESS]:PATH")?;
            let (address, zone) = inner.split_once('%').unwrap_or((inner, "x"));
            if address.parse::<Ipv6Addr>().is_err() || zone.is_empty() {
                return Err("in brackets there must be an IPv6 address");
            }
            inner
        }
        None if name.contains(OF_ADDRESSES) => return Err("write an IPv6 address as [ADDRESS]:PATH"),
        None => name,
    };
    if user.is_some_and(|user| user.contains(OF_ADDRESSES)) {
        return Err("a user's name must not hold what IPv6 addresses are written with");
    }
    if name.is_empty() || user == Some("") {
        return Err("the user or host is empty");
    }
    if name.starts_with('-') || user.is_some_and(|user| user.starts_with('-')) {
        return Err("a host or user must not begin with '-', for ssh would take it for an option");
    }
    if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err("a host must not hold blanks or control characters");
    }
    Ok(user.map_or_else(|| name.to_owned(), |user| format!("{user}@{name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    use haul_storage::null::{NULL, ZERO};

    fn parsed(word: &[u8]) -> Result<Endpoint, String> {
        let exists = |name: &OsStr| ["old:file", "[::1]:x", "null:", "dtn1:"].iter().any(|old| name == *old);
        Endpoint::parse(OsStr::from_bytes(word), exists).map_err(|e| e.to_string())
    }

    /// Goal: a colon before the first slash means a host, and only that.
    #[test]
    fn colon_before_slash_is_a_host() {
        for path in ["a", "a/b:c", "./a:b", "/a:b", "~", "-x", "a b", "[x]", "*", "a@b", "dir/", "//x"] {
            assert_eq!(parsed(path.as_bytes()), Ok(Endpoint::local(path)), "{path}");
        }
        for path in [&b"\xff\xfe"[..], b"./\xff:\n", b"dir/\x80:x"] {
            assert_eq!(parsed(path), Ok(Endpoint::local(path)));
        }
        for (word, host, path) in [
            (&b"h:p"[..], "h", &b"p"[..]),
            (b"h:", "h", b"."),
            (b"h:/", "h", b"/"),
            (b"h:/a:b", "h", b"/a:b"),
            (b"h:a:b", "h", b"a:b"),
            (b"h:~/x $HOME *", "h", b"~/x $HOME *"),
            (b"u@h:p", "u@h", b"p"),
            (b"u@d@h:p", "u@d@h", b"p"),
            (b"10.0.0.1:p", "10.0.0.1", b"p"),
            (b"[::1]:p", "::1", b"p"),
            (b"[::1]:", "::1", b"."),
            (b"[::1]:a]:b", "::1", b"a]:b"),
            (b"user@[fe80::1]:p", "user@fe80::1", b"p"),
            (b"user@[fe80::1%eth0]:/p", "user@fe80::1%eth0", b"/p"),
            (b"h:\xff\xfe\n", "h", b"\xff\xfe\n"),
            (b"10.0.0.1://x", "10.0.0.1", b"//x"),
            (b"u@h://x", "u@h", b"//x"),
            (b"h:./null://4K", "h", b"./null://4K"),
            (b"h:null:/4K", "h", b"null:/4K"),
            (b"h:-p", "h", b"-p"),
            (b"h:./:p", "h", b"./:p"),
            (b"h:/:p", "h", b"/:p"),
            (b"h:[x]:y", "h", b"[x]:y"),
        ] {
            assert_eq!(parsed(word), Ok(Endpoint::remote(host, path)), "{}", escape::name(word));
        }
    }

    /// Goal: what is no endpoint is refused with a sentence that says what to write.
    #[test]
    fn doubtful_words_are_refused() {
        for (word, hint) in [
            (&b""[..], "empty path"),
            (b":p", "no host"),
            (b"old:file", "write ./old:file"),
            (b"h::mod", "write h:./:mod"),
            (b"u@h::mod/x", "daemon"),
            (b"h::", "daemon"),
            (b"fe80::1:/p", "[ADDRESS]:PATH"),
            (b"http://x/y", "http:// is not supported yet"),
            (b"s3://bucket", "not supported yet"),
            (b"sftp://h/x", "is HOST:PATH"),
            (b"gridftp://h/x", "is gsiftp://SERVER/PATH"),
            (b"dtn1://scratch", "known are PATH, HOST:PATH, null://SIZE, null://, zero://SIZE"),
            (b"dtn1://scratch", "write ./dtn1://scratch"),
            (b"h:dtn1://scratch", "write ./dtn1://scratch"),
            (b"h:file:///x", "without file://"),
            (b"a\x1bb://x", "blanks"),
            (b"null://\x1b", "whole number"),
            (b"null://5\x1b", "no unit"),
            (b"null://5\nx", "no unit"),
            (b"[::1]@x[::1]:p", "IPv6"),
            (b"[x:y@h]:p", "IPv6"),
            (b"[x:@[::1]:p", "IPv6"),
            (b"-oProxyCommand=x:p", "begin with '-'"),
            (b"-x@h:p", "begin with '-'"),
            (b"u@-h:p", "begin with '-'"),
            (b"u@:p", "empty"),
            (b"@h:p", "empty"),
            (b"[]:p", "IPv6"),
            (b"[h]:p", "IPv6"),
            (b"[-o]:p", "IPv6"),
            (b"[::1%]:p", "IPv6"),
            (b"[::1]", "IPv6"),
            (b"[::1]:x", "local file"),
            (b"[::1]x:p", "IPv6"),
            (b"a b:p", "blanks"),
            (b"a\n:p", "blanks"),
            (b"a\x1b:p", "blanks"),
            (b"\xff:p", "UTF-8"),
        ] {
            let error = parsed(word).expect_err(&escape::name(word));
            assert!(error.contains(hint), "{error}");
            assert!(!error.chars().any(char::is_control), "{error}");
        }
        assert!(parsed(&[&[b'h'; HOST_LEN_MAX + 1][..], b":p"].concat()).is_err());
    }

    /// Goal: a word of a server with one slash is no host in silence, and a host of that name can be reached.
    #[cfg(feature = "ftp")]
    #[test]
    fn half_a_scheme_is_asked_about() {
        for (word, hint) in [
            (&b"ftp:/h/x"[..], "write ftp://h/x, for a path at a host called ftp ftp:/./h/x"),
            (b"FTP:/h", "write FTP://h,"),
            (b"ftp:/", "one slash"),
            (b"ftp:/.x", "ftp:/./.x"),
            (b"ftp:/u:geheim@h/x", "write ftp://u@h/x"),
        ] {
            let error = parsed(word).expect_err("no host");
            assert!(error.contains(hint) && !error.contains("geheim"), "{error}");
        }
        for (word, host, path) in [
            (&b"ftp:x"[..], "ftp", &b"x"[..]),
            (b"ftp:", "ftp", b"."),
            (b"ftp:/.", "ftp", b"/."),
            (b"ftp:/./h/x", "ftp", b"/./h/x"),
            (b"ftp:~/x", "ftp", b"~/x"),
            (b"u@ftp:/x", "u@ftp", b"/x"),
            (b"ftp.org:/x", "ftp.org", b"/x"),
            (b"sftp:/x", "sftp", b"/x"),
            (b"null:/x", "null", b"/x"),
            (b"h:ftp:/x", "h", b"ftp:/x"),
        ] {
            let endpoint = parsed(word).expect("a host");
            assert_eq!(endpoint, Endpoint::remote(host, path), "{}", escape::name(word));
            assert_eq!(endpoint.shown(), if path == b"." { b"ftp:." } else { word });
        }
        for path in ["/x", "/", "/.x", "//x", "/.", "/./x"] {
            let made = Endpoint::remote("ftp", path);
            let read = Endpoint::parse(OsStr::from_bytes(&made.shown()), |_| false).expect("a host");
            assert!(
                [path.to_owned(), format!("/.{path}")]
                    .iter()
                    .any(|path| read.place.path() == path.as_bytes())
            );
            assert_eq!(read.host, made.host);
        }
    }

    /// Goal: what takes a path alone takes no server, and shows no password of one.
    #[test]
    fn paths_alone_are_no_places() {
        for word in ["a", "./ftp://h/x", "h:x", "a/ftp://h", ""] {
            assert_eq!(path_alone("x", OsStr::new(word)), Ok(()), "{word}");
        }
        let error =
            path_alone("--state", OsStr::new("ftp://u:geheim@h/x")).expect_err("a server").to_string();
        assert!(error.starts_with("'ftp://u@h/x': --state takes a path"), "{error}");
        let error = host_alone("ftp://u:geheim@h/x").expect_err("more than a host").to_string();
        assert!(error.contains("'ftp://u@h/x' is more than a host"), "{error}");
    }

    /// Goal: no text of a word that is refused shows the password in it, however the word was mistyped; and a
    /// file that is called so can be named.
    #[cfg(feature = "ftp")]
    #[test]
    fn what_is_refused_shows_no_password() {
        for word in [
            "h:ftps:/u:geheim@h/x",
            "h:ftps:u:geheim@h",
            "ftps:u:geheim@h",
            "FTPS:u:geheim@h/x",
            "file://u:geheim@h/d",
            "h:file://u:geheim@h/d",
            " ftp://u:geheim@h/d",
            "sftp://u:geheim@h/d",
            "h:sftp://u:ge/geheim@h/d",
            "ftp:\\\\u:geheim@h/d",
            "ftp://:geheim@h/d",
            ":ftp://u:geheim@h/d",
            "h::ftp://u:geheim@h/d",
            "ftps:///u:geheim@h/d",
        ] {
            // What has a server is refused, if at all, where that is read.
            let shown = parsed(word.as_bytes()).map(|endpoint| escape::name(&endpoint.shown()));
            let text = shown.unwrap_or_else(|error| error);
            assert!(!text.contains("geheim"), "{word}: {text}");
        }
        for word in ["far:ftps://u:geheim@h/d", "ftps:/u:geheim@h/d", "ftps:u:geheim@h", " ftp://u:geheim@h"]
        {
            let error = path_alone("FILE", OsStr::new(word)).expect_err(word).to_string();
            assert!(!error.contains("geheim"), "{error}");
            let error = host_alone(word).expect_err(word).to_string();
            assert!(!error.contains("geheim"), "{error}");
        }
        for (word, host, path) in [
            ("ftp:./u:x@h", "ftp", "./u:x@h"),
            ("h:./ftps:/u:x@h", "h", "./ftps:/u:x@h"),
            ("backupftp:a:b@c", "backupftp", "a:b@c"),
            ("h:ftp:x@y", "h", "ftp:x@y"),
        ] {
            assert_eq!(parsed(word.as_bytes()), Ok(Endpoint::remote(host, path)), "{word}");
        }
        assert_eq!(path_alone("FILE", OsStr::new("./ftps:u:x@h")), Ok(()));
    }

    /// Goal: a scheme is known on both sides, and whatever is called so is reached as a file.
    #[test]
    fn schemes_are_known_at_both_sides() {
        for (word, host, place) in [
            (&b"null://"[..], None, Place::root(&NULL)),
            (b"null://2KiB", None, Place::sized(&NULL, 2048)),
            (b"zero://1G", None, Place::sized(&ZERO, 1 << 30)),
            (b"h:null://", Some("h"), Place::root(&NULL)),
            (b"u@[::1]:null://4K", Some("u@::1"), Place::sized(&NULL, 4096)),
            (b"./null://4K", None, Place::file("./null://4K")),
            (b"./dtn1://scratch", None, Place::file("./dtn1://scratch")),
            (b"h:./s3://x", Some("h"), Place::file("./s3://x")),
            (b"h:a/s3://x", Some("h"), Place::file("a/s3://x")),
        ] {
            assert_eq!(
                parsed(word),
                Ok(Endpoint::new(host.map(str::to_owned), place)),
                "{}",
                escape::name(word)
            );
        }
    }

    /// Goal: what an endpoint of words shows can be typed and means the same, and that of one made of parts
    /// at least the same file.
    /// Method: random words of the pieces that matter, and random hosts and paths of them.
    #[test]
    fn what_is_shown_means_the_same() {
        const PIECES: [&[u8]; 24] = [
            b"a",
            b"h",
            b":",
            b":",
            b"::",
            b"/",
            b"//",
            b"://",
            b"@",
            b"[",
            b"]",
            b"[::1]",
            b"[fe80::1%e]",
            b".",
            b"./",
            b"..",
            b"~",
            b"null://",
            b"zero://1",
            b"4KiB",
            b"-",
            b"\xff",
            b"\n",
            b"s3",
        ];
        let mut rng = fastrand::Rng::with_seed(20);
        let mut word = |most: usize| -> Vec<u8> {
            let pieces: Vec<&[u8]> =
                (0..rng.usize(0..most)).map(|_| PIECES[rng.usize(..PIECES.len())]).collect();
            pieces.concat()
        };
        let read = |word: &[u8]| Endpoint::parse(OsStr::from_bytes(word), |_| false);
        let mut kinds = [0; 3];
        for _ in 0..200_000 {
            let typed = word(7);
            if let Ok(endpoint) = read(&typed) {
                assert_eq!(read(&endpoint.shown()).as_ref(), Ok(&endpoint), "{}", escape::name(&typed));
                let kind = match (endpoint.place.file_path(), &endpoint.host) {
                    (None, _) => 2,
                    (Some(_), host) => usize::from(host.is_some()),
                };
                kinds[kind] += 1;
            }
            let path = word(5);
            for host in [None, Some("u@fe80::1%e"), Some("h"), Some("ftp")] {
                let host = host.map(str::to_owned);
                let made = Endpoint::new(host, Place::file(path.clone()));
                if let (false, Ok(endpoint)) = (path.is_empty(), read(&made.shown())) {
                    let longer = ["", "./", "/."].map(|dot| [dot.as_bytes(), &path].concat());
                    let same = longer.iter().any(|path| endpoint.place.path() == path);
                    assert!(same && endpoint.host == made.host, "{made:?} {endpoint:?}");
                } else {
                    assert!(path.is_empty(), "{made:?}");
                }
            }
        }
        assert!(kinds.iter().all(|kind| *kind > 1000), "{kinds:?}");
    }

    /// Goal: sources share a side, and one end is here.
    #[test]
    fn sources_share_a_side_and_one_end_is_here() {
        let resolved = |words: &[&str]| resolve(&words.iter().map(OsString::from).collect::<Vec<_>>());
        for words in [&["a", "b"][..], &["a", "b", "h:c"], &["h:a", "h:b", "c"], &["u@h:a", "u@h:", "c"]] {
            let (sources, _) = resolved(words).unwrap();
            assert_eq!(sources.len(), words.len() - 1);
        }
        for (words, hint) in [
            (&["a", "h:b", "c"][..], "one side"),
            (&["h:a", "b", "c"], "one side"),
            (&["h:a", "u@h:b", "c"], "one side"),
            (&["h:a", "g:b"], "not supported yet"),
            (&["h:a", "h:b"], "log in there"),
            (&["null://", "b"], "needs a size"),
            (&["null://1G", "null://1G"], "without a size"),
            (&["a", "null://1G", "b"], "alone"),
            (&["a", "h:zero://1"], "no destination"),
            (&["h:null://5X", "b"], "no unit"),
            (&["h:a"], "needed"),
            (&[], "nothing"),
        ] {
            let error = resolved(words).expect_err(&words.join(" ")).to_string();
            assert!(error.contains(hint), "{error}");
        }
    }
}
