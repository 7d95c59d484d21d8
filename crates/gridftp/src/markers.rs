//! What a server says while it moves data: `111` restart markers and `112` performance markers.
//!
//! In: replies. Out: ranges that are safe, how far each stripe is; and the same written.
//! Invariants: as [`Ranges`]; a stripe's index is below the number of stripes, which is at most
//! [`STRIPES_MAX`].
//! Each `111` has what became safe since the one before: the union is the restart set.
//! Left out: whether "safe" is on media. Globus says it before any sync unless it is told `-sync-writes`.

use crate::FtpError;
use crate::address::STRIPES_MAX;
use crate::ranges::{RANGES_LEN_MAX, Ranges};
use crate::reply::{REPLY_LINE_LEN_MAX, Reply};
use crate::text::{DIGITS_MAX, fraction, number, split_at_byte, strip_ignoring_case, trim};

/// Code of a restart marker.
pub const RESTART: u16 = 111;
/// Code of a performance marker.
pub const PERFORMANCE: u16 = 112;

const RANGE_MARKER: &[u8] = b"Range Marker ";
const _: () = assert!(RANGE_MARKER.len() + RANGES_LEN_MAX + 4 <= REPLY_LINE_LEN_MAX);

/// Reads the ranges of a `111`.
///
/// # Errors
/// If the reply is another or its ranges are none.
pub fn parse_restart(reply: &Reply) -> Result<Ranges, FtpError> {
    let bad = FtpError::BadForm { what: "restart marker" };
    if reply.code() != RESTART || reply.lines().len() != 1 {
        return Err(bad);
    }
    Ranges::parse(trim(strip_ignoring_case(reply.text(), RANGE_MARKER).ok_or(bad)?))
}

/// Writes a `111`.
pub fn restart(ranges: &Ranges) -> Reply {
    let mut text = RANGE_MARKER.to_vec();
    ranges.encode(&mut text);
    Reply::new(RESTART, [text]).expect("a set's text fits a line")
}

/// A `112`: how far one stripe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Performance {
    /// Seconds since 1970 by the server's clock, and nanoseconds. It is written to tenths.
    pub secs: u64,
    pub nanos: u32,
    /// Which stripe, from 0.
    pub stripe: u32,
    /// Bytes that it has moved.
    pub moved: u64,
    /// How many stripes there are.
    pub stripes: u32,
}

impl Performance {
    /// Reads a `112`. Its fields may have any order, and others may stand among them.
    ///
    /// # Errors
    /// If the reply is another, a field is missing, told twice or no number, or the stripe is none of them.
    pub fn parse(reply: &Reply) -> Result<Performance, FtpError> {
        const WHAT: &str = "performance marker";
        let bad = FtpError::BadForm { what: WHAT };
        if reply.code() != PERFORMANCE {
            return Err(bad);
        }
        let mut fields: [Option<&[u8]>; 4] = [None; 4];
        for line in reply.inner() {
            let Some((name, value)) = split_at_byte(line, b':') else { continue };
            let name = trim(name);
            let names = ["Timestamp", "Stripe Index", "Stripe Bytes Transferred", "Total Stripe Count"];
            let field = names.iter().zip(&mut fields).find(|(n, _)| n.as_bytes().eq_ignore_ascii_case(name));
            let Some((_, field)) = field else { continue };
            if field.replace(trim(value)).is_some() {
                return Err(bad);
            }
        }
        let [Some(time), Some(stripe), Some(moved), Some(stripes)] = fields else { return Err(bad) };
        let (secs, nanos) = match split_at_byte(time, b'.') {
            Some((secs, digits)) => (secs, fraction(WHAT, digits)?),
            None => (time, 0),
        };
        let stripes = number("stripes", stripes, STRIPES_MAX as u64)? as u32;
        let stripe = number("stripe", stripe, STRIPES_MAX as u64)? as u32;
        if stripe >= stripes {
            return Err(FtpError::BadValue { what: "stripe", value: stripe.into() });
        }
        let (secs, moved) = (number(WHAT, secs, u64::MAX)?, number(WHAT, moved, u64::MAX)?);
        Ok(Performance { secs, nanos, stripe, moved, stripes })
    }

    /// Writes the `112`, in the words of Globus.
    pub fn reply(&self) -> Reply {
        let tenths = self.nanos.min(999_999_999) / 100_000_000;
        let lines = [
            "Perf Marker".to_owned(),
            format!(" Timestamp:  {}.{tenths}", self.secs),
            format!(" Stripe Index: {}", self.stripe),
            format!(" Stripe Bytes Transferred: {}", self.moved),
            format!(" Total Stripe Count: {}", self.stripes),
            "End.".to_owned(),
        ];
        const _: () = assert!(DIGITS_MAX + 64 < REPLY_LINE_LEN_MAX);
        Reply::new(PERFORMANCE, lines.map(String::into_bytes)).expect("short lines of plain text")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(code: u16, lines: &[&str]) -> Reply {
        Reply::new(code, lines.iter().map(|line| line.as_bytes())).expect("a reply")
    }

    /// Goal: the markers of a Globus server are understood and written as they are.
    /// Method: markers from the wire.
    #[test]
    fn markers_of_globus() {
        let perf = [
            "Perf Marker",
            " Timestamp:  1795210212.7",
            " Stripe Index: 0",
            " Stripe Bytes Transferred: 20000000",
            " Total Stripe Count: 1",
            "End.",
        ];
        let marker = Performance::parse(&reply(112, &perf)).expect("a marker");
        let expected =
            Performance { secs: 1_795_210_212, nanos: 700_000_000, stripe: 0, moved: 20_000_000, stripes: 1 };
        assert_eq!(marker, expected);
        assert_eq!(marker.reply(), reply(112, &perf));
        let text = "Range Marker 0-274202624,274464768-274726912,275251200-275513344";
        let ranges = parse_restart(&reply(111, &[text])).expect("a marker");
        assert_eq!(ranges.list()[2], (275_251_200, 275_513_344));
        assert_eq!(restart(&ranges), reply(111, &[text]));
    }

    /// Goal: a marker that lacks something, or tells it twice, is none.
    /// Method: each line left out, doubled, or given a value that is no number of its range.
    #[test]
    fn markers_are_whole_or_none() {
        let good = [
            "Perf Marker",
            "Timestamp: 1",
            "Stripe Index: 1",
            "Stripe Bytes Transferred: 3",
            "Total Stripe Count: 2",
            "End",
        ];
        assert!(Performance::parse(&reply(112, &good)).is_ok());
        assert!(Performance::parse(&reply(111, &good)).is_err());
        for at in 1..5 {
            let mut lines = good.to_vec();
            lines.remove(at);
            assert!(Performance::parse(&reply(112, &lines)).is_err());
            lines.insert(at, good[at]);
            lines.insert(at, good[at]);
            assert!(Performance::parse(&reply(112, &lines)).is_err());
        }
        for (at, bad) in [
            (1, "Timestamp: 1."),
            (1, "Timestamp: -1"),
            (2, "Stripe Index: 2"),
            (3, "Stripe Bytes Transferred: x"),
            (4, "Total Stripe Count: 99999"),
        ] {
            let mut lines = good;
            lines[at] = bad;
            assert!(Performance::parse(&reply(112, &lines)).is_err(), "{bad}");
        }
        for bad in ["Range Marker", "Range Marker ", "Range Marker 5", "0-5", "Range Marker 5-0"] {
            assert!(parse_restart(&reply(111, &[bad])).is_err(), "{bad}");
        }
        assert!(parse_restart(&reply(111, &["Range Marker 0-5", "x"])).is_err());
    }
}
