//! Which server, and as whom; and paths as URLs have them.
//!
//! In: what stands between `ftp://` and the next slash, and what stands behind. Out: a [`Server`]; a path as
//! the server has it.
//! Source: RFC 3986 (percent-encoding), RFC 1738, 3.2. Paths are absolute, as with GridFTP's tools; `/~/x` is
//! relative to where the login leads.

use std::fmt;

/// The port of FTP.
pub const PORT: u16 = 21;
/// The port at which FTP is under TLS from the first byte on, without a word before.
pub const PORT_TLS: u16 = 990;
/// The port of GridFTP.
pub const PORT_GSI: u16 = 2811;
/// The port of ssh.
pub const PORT_SSH: u16 = 22;
/// As whom somebody comes who says no name, RFC 1635.
const ANONYMOUS: &str = "anonymous";
const ANONYMOUS_PASSWORD: &str = "haul@";

/// A server and a user.
#[derive(Clone, PartialEq, Eq)]
pub struct Server {
    user: String,
    password: String,
    /// A name or an address, without brackets.
    pub host: String,
    pub port: u16,
    protocol: Protocol,
}

/// How a server is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// As it is.
    Ftp,
    /// Commands and data under TLS.
    Ftps,
    /// Commands under the security of the grid, users by certificates.
    Gsiftp,
    /// Commands through ssh, which starts the server; data as they are.
    Sshftp,
}

impl Protocol {
    /// As URLs begin.
    pub fn scheme(self) -> &'static str {
        match self {
            Protocol::Ftp => "ftp",
            Protocol::Ftps => "ftps",
            Protocol::Gsiftp => "gsiftp",
            Protocol::Sshftp => "sshftp",
        }
    }

    fn port(self) -> u16 {
        match self {
            Protocol::Ftp | Protocol::Ftps => PORT,
            Protocol::Gsiftp => PORT_GSI,
            Protocol::Sshftp => PORT_SSH,
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

impl Server {
    /// Reads `USER:PASSWORD@HOST:PORT`; user, password and port may be missing. User and password may hold
    /// percent-encoded bytes.
    ///
    /// # Errors
    /// What is wrong with it, in words without the password.
    pub fn parse(protocol: Protocol, text: &str) -> Result<Server, &'static str> {
        let (login, host) = text.rsplit_once('@').unwrap_or(("", text));
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        if text.contains('@') && user.is_empty() {
            return Err("there is no user before the server's '@'");
        }
        let word = |text: &str| {
            let bytes = decode(text.as_bytes())?;
            let word = String::from_utf8(bytes).map_err(|_| "user or password is not UTF-8")?;
            match word.chars().any(char::is_control) {
                true => Err("user or password holds a control character"),
                false => Ok(word),
            }
        };
        let (user, password) = match user {
            "" => (ANONYMOUS.to_owned(), ANONYMOUS_PASSWORD.to_owned()),
            user => (word(user)?, word(password)?),
        };
        if protocol == Protocol::Sshftp
            && (!password.is_empty() && user != ANONYMOUS || user.starts_with('-'))
        {
            return Err("ssh knows by itself who somebody is: write USER@HOST, without a password");
        }
        let (host, port) = match host.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or("an IPv6 address ends with ']'")?;
                (host, if port.is_empty() { None } else { Some(port.strip_prefix(':').unwrap_or("x")) })
            }
            None => host.split_once(':').map_or((host, None), |(host, port)| (host, Some(port))),
        };
        if host.is_empty() || host.starts_with('-') || host.contains(['[', ']', '@', '/']) {
            return Err("the server's name is none");
        }
        if text.len() - login.len() > 0 && !text.contains('[') && host.contains(':') {
            return Err("write an IPv6 address as [ADDRESS]");
        }
        let port = match port {
            None | Some("") => protocol.port(),
            Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
                port.parse().ok().filter(|port| *port > 0).ok_or("a port is 1 to 65535")?
            }
            Some(_) => {
                return Err(
                    "a port is a number; in a user or a password write / as %2F, : as %3A and @ as %40",
                );
            }
        };
        Ok(Server { user, password, host: host.to_owned(), port, protocol })
    }

    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Nobody said as whom.
    pub fn is_anonymous(&self) -> bool {
        self.user == ANONYMOUS
    }

    /// The word brings no password: `Some` of the user whose one is wanted, `Some(None)` if it names none.
    pub fn wants_login(text: &str) -> Option<Option<String>> {
        let server = Server::parse(Protocol::Ftp, text).ok()?;
        match text.rsplit_once('@') {
            None => Some(None),
            Some((login, _)) if !login.contains(':') => Some(Some(server.user)),
            Some(_) => None,
        }
    }

    /// The same server with a login, as [`Server::parse`] reads it.
    pub fn with_login(text: &str, user: &str, password: &str) -> String {
        let host = text.rsplit_once('@').map_or(text, |(_, host)| host);
        let encode = |word: &str| {
            let byte = |byte: u8| match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                    char::from(byte).to_string()
                }
                byte => format!("%{byte:02X}"),
            };
            word.bytes().map(byte).collect::<String>()
        };
        format!("{}:{}@{host}", encode(user), encode(password))
    }

    pub fn user(&self) -> &str {
        &self.user
    }

    pub(crate) fn password(&self) -> &str {
        &self.password
    }

    /// Nobody gave a password, or the user comes as nobody in particular.
    pub fn has_no_password(&self) -> bool {
        self.password.is_empty() || self.user == ANONYMOUS
    }

    /// For people, as the beginning of a URL: without the password.
    pub fn url(&self) -> String {
        format!("{}://{}", self.protocol.scheme(), self.shown())
    }

    /// The same without its scheme.
    pub fn shown(&self) -> String {
        let user = if self.user == ANONYMOUS { String::new() } else { format!("{}@", self.user) };
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let port = if self.port == self.protocol.port() { String::new() } else { format!(":{}", self.port) };
        format!("{user}{host}{port}")
    }
}

/// The path that an URL means: percent-encoded bytes decoded; `/~` and `/~/x` become relative.
///
/// # Errors
/// A `%` without two digits behind it, or a byte that no command can carry.
pub fn path_of(url: &[u8]) -> Result<Vec<u8>, &'static str> {
    let path = decode(url)?;
    if path.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
        return Err("a path holds no line end and no NUL");
    }
    Ok(match path.strip_prefix(b"/~") {
        Some(b"") => b".".to_vec(),
        Some(b"/") => b"./".to_vec(),
        Some([b'/', rest @ ..]) => [b"./", rest].concat(),
        _ if path.is_empty() => b"/".to_vec(),
        _ => path,
    })
}

/// One form for what was typed: bytes that a URL has no room for are encoded, all others are as they are.
///
/// # Errors
/// As [`path_of`].
pub fn canonical(url: &[u8]) -> Result<Vec<u8>, &'static str> {
    path_of(url)?;
    let mut out = Vec::new();
    for byte in decode(url)? {
        match byte {
            b'%' | 0..=b' ' | 0x7f.. => out.extend(format!("%{byte:02X}").into_bytes()),
            byte => out.push(byte),
        }
    }
    Ok(out)
}

fn decode(text: &[u8]) -> Result<Vec<u8>, &'static str> {
    let (mut out, mut at) = (Vec::with_capacity(text.len()), 0);
    while let Some(byte) = text.get(at) {
        if *byte != b'%' {
            out.push(*byte);
            at += 1;
            continue;
        }
        let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(text.get(at + 1)), digit(text.get(at + 2))) else {
            return Err("behind a % there are two hexadecimal digits; write the sign itself as %25");
        };
        out.push((high * 16 + low) as u8);
        at += 3;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: servers are read as URLs have them.
    #[test]
    fn servers_are_read() {
        for (text, user, password, host, port) in [
            ("h", "anonymous", "haul@", "h", 21),
            ("h:2121", "anonymous", "haul@", "h", 2121),
            ("u@h", "u", "", "h", 21),
            ("u:p@h:1", "u", "p", "h", 1),
            ("u:p:q@h", "u", "p:q", "h", 21),
            ("u%40d:p%2f@h", "u@d", "p/", "h", 21),
            ("u@d:p@h", "u@d", "p", "h", 21),
            ("[::1]", "anonymous", "haul@", "::1", 21),
            ("u:p@[fe80::1%25eth0]:99", "u", "p", "fe80::1%25eth0", 99),
        ] {
            let server = Server::parse(Protocol::Ftp, text).expect(text);
            assert_eq!((server.user(), server.password()), (user, password), "{text}");
            assert_eq!((server.host.as_str(), server.port), (host, port), "{text}");
        }
        for text in
            ["", ":21", "h:0", "h:65536", "h:x", "@h", "u:%zz@h", "u:%0a@h", "[::1", "[::1]x", "-h", "h:1:2"]
        {
            assert!(Server::parse(Protocol::Ftp, text).is_err(), "{text}");
        }
    }

    /// Goal: nobody sees the password.
    #[test]
    fn a_password_is_not_shown() {
        let server = Server::parse(Protocol::Ftp, "alice:geheim@h:2121").expect("a server");
        assert_eq!(server.shown(), "alice@h:2121");
        assert!(!format!("{server:?}").contains("geheim"));
    }

    /// Goal: what is under TLS is shown as such.
    #[test]
    fn the_scheme_is_shown() {
        let server = Server::parse(Protocol::Ftp, "alice:geheim@[::1]:990").expect("a server");
        assert_eq!(server.url(), "ftp://alice@[::1]:990");
        let server = |protocol, text| Server::parse(protocol, text).expect("a server");
        assert_eq!(server(Protocol::Ftps, "alice:geheim@[::1]:990").url(), "ftps://alice@[::1]:990");
        let (here, there) = (server(Protocol::Gsiftp, "h"), server(Protocol::Gsiftp, "h:21"));
        assert_eq!((here.port, here.url(), there.url()), (2811, "gsiftp://h".into(), "gsiftp://h:21".into()));
    }

    /// Goal: a login from elsewhere is read as it was.
    #[test]
    fn logins_can_be_added() {
        for (text, wants) in
            [("h:21", Some(None)), ("u@h", Some(Some("u".to_owned()))), ("u:@h", None), ("u:p@h", None)]
        {
            assert_eq!(Server::wants_login(text), wants, "{text}");
        }
        let text = Server::with_login("u@[::1]:5", "ü@:x", "a/b:%@ c");
        let server = Server::parse(Protocol::Ftp, &text).expect("a server");
        assert_eq!((server.user(), server.password()), ("ü@:x", "a/b:%@ c"));
        assert_eq!((server.host.as_str(), server.port), ("::1", 5));
        assert!(!text.contains('/'), "{text}");
    }

    /// Goal: paths are bytes, one form of each reads as the same.
    #[test]
    fn paths_are_read() {
        for (url, path, again) in [
            (&b""[..], &b"/"[..], &b""[..]),
            (b"/a/b", b"/a/b", b"/a/b"),
            (b"/a%20b%FF", b"/a b\xff", b"/a%20b%FF"),
            (b"/a b\xff", b"/a b\xff", b"/a%20b%FF"),
            (b"/%2541", b"/%41", b"/%2541"),
            (b"/~", b".", b"/~"),
            (b"/~/", b"./", b"/~/"),
            (b"/~/x y", b"./x y", b"/~/x%20y"),
            (b"/~x", b"/~x", b"/~x"),
            (b"//etc", b"//etc", b"//etc"),
        ] {
            assert_eq!(path_of(url).as_deref(), Ok(path));
            let form = canonical(url).expect("legal");
            assert_eq!(form, again);
            assert_eq!((path_of(&form).as_deref(), canonical(&form)), (Ok(path), Ok(form.clone())));
        }
        for url in [&b"/%"[..], b"/%4", b"/%zz", b"/%00", b"/%0d%0aDELE x"] {
            assert!(path_of(url).is_err() && canonical(url).is_err());
        }
    }
}
