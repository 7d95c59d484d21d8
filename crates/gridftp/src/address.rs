//! Where data connections go: `227`, `229`, the lines of `SPAS`, and the arguments of `PORT`, `EPRT`, `SPOR`.
//!
//! In: texts of replies and arguments. Out: addresses; and the same written.
//! Invariants: no port is 0; a list has at least one and at most [`STRIPES_MAX`] addresses.
//! Left out: whether an address is to be believed. A `227` behind NAT names another host than the control
//! connection's, and a `PORT` to a third host is an attack or a third-party transfer: that is for who asks.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::FtpError;
use crate::reply::Reply;
use crate::text::{number, trim};

/// Most stripes of one transfer.
pub const STRIPES_MAX: usize = 1_024;
/// Longest text of an address that is looked at.
pub const ADDRESS_LEN_MAX: usize = 64;

const WHAT: &str = "address of a data connection";

/// What a passive server says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passive {
    /// Host and port.
    Address(SocketAddr),
    /// The port alone: at the host of the control connection (`EPSV`).
    Port(u16),
}

/// Reads `h1,h2,h3,h4,p1,p2`: the argument of `PORT`.
///
/// # Errors
/// If it is anything else, or the port is 0.
pub fn parse_host_port(text: &[u8]) -> Result<SocketAddr, FtpError> {
    let mut parts = [0_u8; 6];
    let mut words = text.split(|b| *b == b',');
    for part in &mut parts {
        let word = words.next().ok_or(FtpError::BadForm { what: WHAT })?;
        *part = number(WHAT, word, u8::MAX.into())? as u8;
    }
    if words.next().is_some() {
        return Err(FtpError::BadForm { what: WHAT });
    }
    let [a, b, c, d, high, low] = parts;
    with_port(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), u16::from_be_bytes([high, low]))
}

/// Writes `h1,h2,h3,h4,p1,p2`.
///
/// # Errors
/// If the address is not of IPv4: `PORT` and `227` have no form for others.
pub fn host_port(address: SocketAddr) -> Result<String, FtpError> {
    let IpAddr::V4(ip) = address.ip() else { return Err(FtpError::BadForm { what: WHAT }) };
    let ([a, b, c, d], [high, low]) = (ip.octets(), address.port().to_be_bytes());
    Ok(format!("{a},{b},{c},{d},{high},{low}"))
}

/// Reads the text of `227`, and of `127` after a delayed `PASV`: the first six numbers with commas between.
///
/// Source: RFC 1123, 4.1.2.6 - the parentheses are not to be relied on.
///
/// # Errors
/// If there are no such numbers.
pub fn parse_227(text: &[u8]) -> Result<SocketAddr, FtpError> {
    let is_part = |b: &u8| b.is_ascii_digit() || *b == b',';
    let runs = text.split(|b| !is_part(b)).filter(|run| run.contains(&b','));
    // A comma of the sentence itself may stand before the numbers, or behind them.
    let mut runs = runs.map(|run| run.strip_suffix(b",").unwrap_or(run)).filter(|run| run.contains(&b','));
    parse_host_port(runs.next().ok_or(FtpError::BadForm { what: WHAT })?)
}

/// Writes the text of `227` and `127`.
///
/// # Errors
/// As [`host_port`].
pub fn text_227(address: SocketAddr) -> Result<String, FtpError> {
    Ok(format!("Entering Passive Mode ({})", host_port(address)?))
}

/// Reads `|protocol|host|port|`: the argument of `EPRT` (RFC 2428). Any graphic byte may stand for `|`.
///
/// # Errors
/// If the form is another, protocol and host do not fit each other, or the port is 0.
pub fn parse_extended(text: &[u8]) -> Result<SocketAddr, FtpError> {
    match parse_parts(text)? {
        Passive::Address(address) => Ok(address),
        Passive::Port(_) => Err(FtpError::BadForm { what: WHAT }),
    }
}

/// Writes the argument of `EPRT`.
pub fn extended(address: SocketAddr) -> String {
    let protocol = if address.is_ipv4() { 1 } else { 2 };
    format!("|{protocol}|{}|{}|", address.ip(), address.port())
}

/// Reads the text of a `229` of `EPSV`: what is in its parentheses, `(|||port|)`. Some servers name the host
/// too, and then it counts.
///
/// # Errors
/// If it is anything else.
pub fn parse_229(text: &[u8]) -> Result<Passive, FtpError> {
    let start = text.iter().position(|b| *b == b'(').ok_or(FtpError::BadForm { what: WHAT })?;
    let rest = &text[start + 1..];
    let end = rest.iter().position(|b| *b == b')').ok_or(FtpError::BadForm { what: WHAT })?;
    parse_parts(&rest[..end])
}

/// Writes the text of a `229` of `EPSV`.
///
/// # Errors
/// If the port is 0.
pub fn text_229(port: u16) -> Result<String, FtpError> {
    match port {
        0 => Err(FtpError::BadValue { what: WHAT, value: 0 }),
        _ => Ok(format!("Entering Extended Passive Mode (|||{port}|)")),
    }
}

/// Reads the `229` of `SPAS`: one address a line between the first and the last, in stripe order. `SPAS 2`
/// yields IPv6 in the form of `EPRT`.
///
/// # Errors
/// If the reply has no such lines, too many, or one that is no address: a stripe that is left out would get
/// another's data.
pub fn parse_spas(reply: &Reply) -> Result<Vec<SocketAddr>, FtpError> {
    list(reply.inner().map(trim))
}

/// Writes the reply to `SPAS`.
///
/// # Errors
/// If there is no address or there are too many.
pub fn spas_reply(addresses: &[SocketAddr]) -> Result<Reply, FtpError> {
    let inner = texts(addresses)?.into_iter().map(|text| format!(" {text}").into_bytes());
    let first = std::iter::once(b"Entering Striped Passive Mode.".to_vec());
    Reply::new(229, first.chain(inner).chain([b"End".to_vec()]))
}

/// Reads the argument of `SPOR`: addresses with spaces between, in stripe order.
///
/// # Errors
/// As [`parse_spas`].
pub fn parse_spor(text: &[u8]) -> Result<Vec<SocketAddr>, FtpError> {
    list(text.split(|b| *b == b' ').filter(|word| !word.is_empty()))
}

/// Writes the argument of `SPOR`.
///
/// # Errors
/// If there is no address or there are too many.
pub fn spor(addresses: &[SocketAddr]) -> Result<String, FtpError> {
    Ok(texts(addresses)?.join(" "))
}

fn list<'a>(words: impl Iterator<Item = &'a [u8]>) -> Result<Vec<SocketAddr>, FtpError> {
    let mut addresses = Vec::new();
    for word in words {
        if addresses.len() == STRIPES_MAX {
            return Err(FtpError::TooMany { what: "stripes", max: STRIPES_MAX as u64 });
        }
        let is_host_port = word.first().is_some_and(u8::is_ascii_digit);
        addresses.push(if is_host_port { parse_host_port(word)? } else { parse_extended(word)? });
    }
    match addresses.is_empty() {
        false => Ok(addresses),
        true => Err(FtpError::BadForm { what: "list of stripes" }),
    }
}

fn texts(addresses: &[SocketAddr]) -> Result<Vec<String>, FtpError> {
    if addresses.len() > STRIPES_MAX {
        return Err(FtpError::TooMany { what: "stripes", max: STRIPES_MAX as u64 });
    }
    if addresses.is_empty() {
        return Err(FtpError::BadForm { what: "list of stripes" });
    }
    Ok(addresses.iter().map(|a| host_port(*a).unwrap_or_else(|_| extended(*a))).collect())
}

fn parse_parts(text: &[u8]) -> Result<Passive, FtpError> {
    let bad = FtpError::BadForm { what: WHAT };
    if text.len() > ADDRESS_LEN_MAX {
        return Err(FtpError::TooMany { what: WHAT, max: ADDRESS_LEN_MAX as u64 });
    }
    let delimiter = *text.first().filter(|b| b.is_ascii_graphic()).ok_or(bad.clone())?;
    let parts: Vec<&[u8]> = text.split(|b| *b == delimiter).collect();
    let [b"", protocol, host, port, b""] = parts[..] else { return Err(bad) };
    let port = number(WHAT, port, u16::MAX.into())? as u16;
    let host = std::str::from_utf8(host).map_err(|_| bad.clone())?;
    let ip = match protocol {
        b"" if host.is_empty() && port > 0 => return Ok(Passive::Port(port)),
        b"1" => host.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
        b"2" => host.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        _ => None,
    };
    with_port(ip.ok_or(bad)?, port).map(Passive::Address)
}

fn with_port(ip: IpAddr, port: u16) -> Result<SocketAddr, FtpError> {
    match port {
        0 => Err(FtpError::BadValue { what: WHAT, value: 0 }),
        _ => Ok(SocketAddr::new(ip, port)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    /// Goal: what servers were seen to send is understood, and what is nearly so is refused.
    /// Method: texts of Globus, vsftpd and the standards; the same with one thing wrong.
    #[test]
    fn addresses_of_servers_are_understood() {
        let local = address("127.0.0.1:45303");
        assert_eq!(parse_227(b"Entering Passive Mode (127,0,0,1,176,247)"), Ok(local));
        assert_eq!(parse_227(b"Entering Passive Mode (127,0,0,1,176,247)."), Ok(local));
        assert_eq!(parse_227(b"Entering Passive Mode 127,0,0,1,176,247"), Ok(local));
        assert_eq!(parse_227(b"Passive, of course, 127,0,0,1,176,247, go"), Ok(local));
        for bad in
            ["", "Entering", "(127,0,0,1,176)", "(127,0,0,1,0,0)", "(256,0,0,1,1,1)", "(1,2,3,4,5,6,7)"]
        {
            assert!(parse_227(bad.as_bytes()).is_err(), "{bad}");
        }
        assert_eq!(parse_229(b"Entering Extended Passive Mode (|||6446|)"), Ok(Passive::Port(6446)));
        assert_eq!(parse_229(b"x (!!!6446!)"), Ok(Passive::Port(6446)));
        assert_eq!(parse_229(b"x (|2|::1|2811|)"), Ok(Passive::Address(address("[::1]:2811"))));
        for bad in [
            "",
            "()",
            "(|||0|)",
            "(|||65536|)",
            "(||||)",
            "(|||1)",
            "|||1|",
            "(|2|1.2.3.4|1|)",
            "(|1|::1|1|)",
        ] {
            assert!(parse_229(bad.as_bytes()).is_err(), "{bad}");
        }
        assert_eq!(parse_extended(b"|1|132.235.1.2|6275|"), Ok(address("132.235.1.2:6275")));
        let six = address("[1080::8:800:200c:417a]:5282");
        assert_eq!(parse_extended(b"|2|1080::8:800:200C:417A|5282|"), Ok(six));
        assert!(parse_extended(b"|||5282|").is_err());
        assert!(host_port(six).is_err());
        assert!(text_229(0).is_err());
    }

    /// Goal: every address is read as it was written, alone and in lists.
    /// Method: seeded addresses of both families in each form.
    #[test]
    fn addresses_survive_their_round_trip() {
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..2_000 {
            let four = SocketAddr::new(Ipv4Addr::from(rng.u32(..)).into(), rng.u16(1..));
            let six =
                SocketAddr::new(Ipv6Addr::from(rng.u128(..) >> (rng.u32(0..5) * 24)).into(), rng.u16(1..));
            assert_eq!(parse_host_port(host_port(four).expect("of IPv4").as_bytes()), Ok(four));
            assert_eq!(parse_227(text_227(four).expect("of IPv4").as_bytes()), Ok(four));
            assert_eq!(parse_extended(extended(four).as_bytes()), Ok(four));
            assert_eq!(parse_extended(extended(six).as_bytes()), Ok(six));
            let port = four.port();
            assert_eq!(parse_229(text_229(port).expect("not 0").as_bytes()), Ok(Passive::Port(port)));
            let all = [four, six, four];
            assert_eq!(parse_spas(&spas_reply(&all).expect("a reply")), Ok(all.to_vec()));
            assert_eq!(parse_spor(spor(&all).expect("an argument").as_bytes()), Ok(all.to_vec()));
        }
    }

    /// Goal: a list of stripes is whole or none, and bounded.
    /// Method: a line that is no address among others; none; one more than the maximum.
    #[test]
    fn stripes_are_all_or_none() {
        assert!(parse_spor(b"127,0,0,1,144,255 127,0,0,1,186").is_err());
        assert!(parse_spor(b"").is_err());
        assert!(spor(&[]).is_err());
        let many = vec!["1,2,3,4,5,6"; STRIPES_MAX];
        assert_eq!(parse_spor(many.join(" ").as_bytes()).map(|list| list.len()), Ok(STRIPES_MAX));
        assert!(parse_spor([&many[..], &["1,2,3,4,5,6"]].concat().join(" ").as_bytes()).is_err());
        let odd = Reply::new(229, [&b"x"[..], b" 1,2,3,4,5,6", b" later", b"End"]).expect("a reply");
        assert!(parse_spas(&odd).is_err());
    }
}
