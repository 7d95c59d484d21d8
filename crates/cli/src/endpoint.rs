//! What a SRC or DST on the command line names: a local path, or a path at a host.
//!
//! In: the words as typed, as bytes. Out: [`haul::api::Endpoint`]s, all sources on one side, at most one
//! side far away. Invariant: a path goes through unchanged, whatever bytes it holds.
//! Left out: `~`, `~name`, variables and globs; the first two are expanded at the far end, the others by nobody.

use std::ffi::{OsStr, OsString};
use std::net::Ipv6Addr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use haul::api::Endpoint;

use crate::escape;
use haul::size::parse_size;

/// Longest `user@host`, bytes: a host name has at most 253, a user name at most 256.
const HOST_LEN_MAX: usize = 512;

/// The endpoints of one copy. `words`: the sources and, last, the destination; at least two.
///
/// # Errors
/// A sentence for people, to be shown as it is.
pub fn resolve(words: &[OsString]) -> Result<(Vec<Endpoint>, Endpoint), String> {
    let exists = |path: &OsStr| Path::new(path).symlink_metadata().is_ok();
    let endpoints = words.iter().map(|word| parse(word, exists)).collect::<Result<Vec<_>, _>>()?;
    let Some((destination, sources)) = endpoints.split_last() else {
        return Err("nothing to copy".into());
    };
    let Some((first, others)) = sources.split_first() else {
        return Err("a source and a destination are needed".into());
    };
    if let Some(other) = others.iter().find(|other| host(other) != host(first)) {
        return Err(format!(
            "all sources must be on one side: one is {}, another {}",
            side(first),
            side(other)
        ));
    }
    if let (Some(from), Some(to)) = (host(first), host(destination)) {
        return Err(if from == to {
            format!("both ends are at {from}: log in there and run haul with local paths")
        } else {
            format!(
                "copying from {from} to {to} through this host is not supported yet: run haul on one of the two"
            )
        });
    }
    // The scheme alone is a sink, with a size it is a source.
    let (sink, made) = (|path: &[u8]| path == b"null://", |path: &[u8]| made_up(path).is_some());
    if sources.iter().any(|source| sink(path(source))) {
        return Err("null:// as a source needs a size: null://200GiB".into());
    }
    if made(path(destination)) && !sink(path(destination)) {
        return Err("as a destination write null:// without a size".into());
    }
    if sources.len() > 1 && sources.iter().any(|source| made(path(source))) {
        return Err("null:// and zero:// are copied alone, without other sources".into());
    }
    Ok((sources.to_vec(), destination.clone()))
}

/// A host by itself, as for ssh.
///
/// # Errors
/// A sentence for people: it is none, or one with a path.
pub fn host_alone(word: &str) -> Result<String, String> {
    let shown = escape::text(word);
    if word.is_empty() {
        return Err("an empty host; write HOST or USER@HOST".into());
    }
    let is_bracketed = word.ends_with(']');
    if word.contains('/') || (!is_bracketed && word.contains(':')) {
        return Err(format!("'{shown}' is more than a host: write HOST or USER@HOST, and no path"));
    }
    check_host(word.as_bytes()).map_err(|why| format!("'{shown}': {why}"))
}

fn path(endpoint: &Endpoint) -> &[u8] {
    match endpoint {
        Endpoint::Local(path) | Endpoint::Remote { path, .. } => path,
    }
}

fn host(endpoint: &Endpoint) -> Option<&str> {
    match endpoint {
        Endpoint::Local(_) => None,
        Endpoint::Remote { host, .. } => Some(host),
    }
}

fn side(endpoint: &Endpoint) -> String {
    match host(endpoint) {
        Some(host) => format!("at {host}"),
        None => "local".into(),
    }
}

/// One word. A colon before the first slash means a host; `exists` says whether a local file has this name.
fn parse(word: &OsStr, exists: impl Fn(&OsStr) -> bool) -> Result<Endpoint, String> {
    let bytes = word.as_bytes();
    if bytes.is_empty() {
        return Err("an empty path; write . for the current directory".into());
    }
    let shown = escape::name(bytes);
    if let Some(made) = made_up(bytes) {
        return Ok(Endpoint::Local(made?));
    }
    let slash = bytes.iter().position(|b| *b == b'/').unwrap_or(bytes.len());
    let Some(colon) = host_end(&bytes[..slash]) else {
        return Ok(Endpoint::Local(bytes.to_vec()));
    };
    if exists(word) && !haul_mutant::removed("colons-are-asked-about") {
        return Err(format!(
            "'{shown}' is a local file, but its colon would make it a host: write ./{shown}"
        ));
    }
    let (host, path) = (&bytes[..colon], &bytes[colon + 1..]);
    if path.starts_with(b"//") && is_scheme(host) {
        let scheme = escape::name(host);
        return Err(format!(
            "'{shown}': {scheme}:// is not supported yet; known are PATH, HOST:PATH, null:// and zero://SIZE"
        ));
    }
    if host.is_empty() {
        return Err(format!("'{shown}' has no host before its colon; for a local file write ./{shown}"));
    }
    if path.starts_with(b":") {
        return Err(daemon_form(host, path, word));
    }
    let host = check_host(host).map_err(|why| format!("'{shown}': {why}"))?;
    let path = match made_up(path) {
        Some(made) => made?,
        None if path.is_empty() => b".".to_vec(),
        None => path.to_vec(),
    };
    Ok(Endpoint::Remote { host, path })
}

/// `host::module` is how rsync names what its daemon serves; nobody means a file whose name begins with a colon.
fn daemon_form(host: &[u8], path: &[u8], word: &OsStr) -> String {
    let (host, path, shown) = (escape::name(host), escape::name(path), escape::name(word.as_bytes()));
    format!(
        "'{shown}' is how rsync names a module of its daemon, which haul does not speak with: write {host}:PATH, which goes through \
         ssh. For the file '{path}' at that host write {host}:./{path}, for a local file ./{shown}, for an IPv6 address [ADDRESS]:PATH"
    )
}

/// `null://`, `null://SIZE` and `zero://SIZE`: no storage, or made-up content, to measure everything else. The
/// size is written out in bytes.
fn made_up(path: &[u8]) -> Option<Result<Vec<u8>, String>> {
    let scheme = [&b"null://"[..], b"zero://"].into_iter().find(|scheme| path.starts_with(scheme))?;
    let size = String::from_utf8_lossy(&path[scheme.len()..]).into_owned();
    if size.is_empty() && scheme == b"null://" {
        return Some(Ok(path.to_vec()));
    }
    let shown = escape::name(path);
    Some(match parse_size(&size) {
        Ok(size) => Ok([scheme, size.to_string().as_bytes()].concat()),
        Err(why) => Err(format!("'{shown}': {why}")),
    })
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

/// RFC 3986: a letter, then letters, digits, `+`, `-`, `.`
fn is_scheme(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(b))
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
        None => name,
    };
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

    fn parsed(word: &[u8]) -> Result<Endpoint, String> {
        parse(OsStr::from_bytes(word), |name| name == "old:file" || name == "[::1]:x")
    }

    /// Goal: a colon before the first slash means a host, and only that.
    #[test]
    fn colon_before_slash_is_a_host() {
        for path in ["a", "a/b:c", "./a:b", "/a:b", "~", "-x", "a b", "[x]", "*", "a@b", "dir/", "//x"] {
            assert_eq!(parsed(path.as_bytes()), Ok(Endpoint::Local(path.into())), "{path}");
        }
        for path in [&b"\xff\xfe"[..], b"./\xff:\n", b"dir/\x80:x"] {
            assert_eq!(parsed(path), Ok(Endpoint::Local(path.to_vec())));
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
            (b"h://x", "", b""),
            (b"h:-p", "h", b"-p"),
            (b"h:./:p", "h", b"./:p"),
            (b"h:/:p", "h", b"/:p"),
            (b"h:[x]:y", "h", b"[x]:y"),
        ] {
            if host.is_empty() {
                assert!(parsed(word).unwrap_err().contains("not supported yet"));
                continue;
            }
            let want = Endpoint::Remote { host: host.into(), path: path.to_vec() };
            assert_eq!(parsed(word), Ok(want), "{}", escape::name(word));
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

    /// Goal: made-up ends are known on both sides, with their size in bytes; only the exact scheme counts.
    #[test]
    fn made_up_ends_are_read() {
        assert_eq!(parsed(b"null://"), Ok(Endpoint::Local(b"null://".to_vec())));
        assert_eq!(parsed(b"null://2KiB"), Ok(Endpoint::Local(b"null://2048".to_vec())));
        assert_eq!(parsed(b"zero://1G"), Ok(Endpoint::Local(b"zero://1073741824".to_vec())));
        let far = Endpoint::Remote { host: "h".into(), path: b"null://4096".to_vec() };
        assert_eq!(parsed(b"h:null://4K"), Ok(far));
        assert_eq!(parsed(b"./null://4K"), Ok(Endpoint::Local(b"./null://4K".to_vec())));
        assert!(parsed(b"zero://").is_err() && parsed(b"null://x").is_err());
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
            (&["h:null://5X", "b"], "no unit"),
            (&["h:a"], "needed"),
            (&[], "nothing"),
        ] {
            let error = resolved(words).expect_err(&words.join(" "));
            assert!(error.contains(hint), "{error}");
        }
    }
}
