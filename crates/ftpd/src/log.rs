//! One line a transfer, a change of names, a session's end, or a refusal: as text or as JSON.
//!
//! In: what happened. Out: a line of at most 4 KiB, in one write, so that lines of several processes do not
//! mix. Names and words of clients are made safe to show.

use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use haul_base::escape;
use haul_gridftp::listing::{Moment, write_moment};
use serde::Serialize;

/// Longest name in a line; what is cut off is marked.
const NAME_SHOWN_MAX: usize = 1_024;

/// Where lines go.
pub struct Log {
    out: Box<dyn Write + Send>,
    json: bool,
}

/// What happened.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    event: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// The name that it had before.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connections: Option<usize>,
    result: &'a str,
}

/// A transfer that is over.
pub struct Transfer<'a> {
    pub verb: &'a str,
    pub path: &'a [u8],
    pub bytes: u64,
    pub took: Duration,
    pub connections: usize,
    /// What the client was told.
    pub result: &'a str,
}

/// A name that was made, changed or removed, or should have been.
pub struct Change<'a> {
    pub verb: &'a str,
    pub path: &'a [u8],
    /// What it was called before.
    pub from: Option<&'a [u8]>,
    /// What the client was told.
    pub result: &'a str,
}

impl Log {
    pub fn new(out: Box<dyn Write + Send>, json: bool) -> Log {
        Log { out, json }
    }

    pub fn transfer(&mut self, peer: SocketAddr, user: &str, over: &Transfer<'_>) {
        self.write(&Line {
            event: over.verb,
            peer: Some(peer),
            user: Some(user),
            path: Some(shown(over.path)),
            from: None,
            bytes: Some(over.bytes),
            seconds: Some(over.took.as_secs_f64()),
            connections: Some(over.connections),
            result: over.result,
            time: now(),
        });
    }

    pub fn change(&mut self, peer: SocketAddr, user: &str, change: &Change<'_>) {
        self.write(&Line {
            event: change.verb,
            peer: Some(peer),
            user: Some(user),
            path: Some(shown(change.path)),
            from: change.from.map(shown),
            bytes: None,
            seconds: None,
            connections: None,
            result: change.result,
            time: now(),
        });
    }

    /// Whatever else a session has to tell.
    pub fn note(&mut self, event: &str, peer: Option<SocketAddr>, user: Option<&str>, result: &str) {
        let line = Line {
            time: now(),
            event,
            peer,
            user,
            path: None,
            from: None,
            bytes: None,
            seconds: None,
            connections: None,
            result,
        };
        self.write(&line);
    }

    fn write(&mut self, line: &Line<'_>) {
        let mut text = if self.json {
            serde_json::to_string(line).expect("plain fields serialise")
        } else {
            let mut words = vec![line.time.clone(), line.event.to_owned()];
            words.extend(line.peer.map(|peer| peer.to_string()));
            words.extend(line.user.map(escape::text));
            // A quote within is marked, so that the path ends where it does.
            let quoted = |path: &String| format!("\"{}\"", path.replace('"', "\\\""));
            words.extend(line.path.as_ref().map(quoted));
            words.extend(line.from.as_ref().map(|from| format!("from {}", quoted(from))));
            words.extend(line.bytes.map(|bytes| format!("{bytes} bytes")));
            words.extend(line.seconds.map(|seconds| format!("{seconds:.3} s")));
            words.extend(line.connections.map(|count| format!("{count} connections")));
            words.push(escape::line(line.result.as_bytes()));
            words.join(" ")
        };
        text.push('\n');
        // A log that cannot be written stops no transfer.
        let _ = self.out.write_all(text.as_bytes());
    }
}

fn shown(path: &[u8]) -> String {
    match path.get(..NAME_SHOWN_MAX) {
        Some(head) if path.len() > NAME_SHOWN_MAX => escape::name(head) + "..",
        _ => escape::name(path),
    }
}

fn now() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let secs = i64::try_from(since.as_secs()).unwrap_or(0);
    let digits = write_moment(Moment { secs, nanos: 0 }).unwrap_or_default();
    match digits.is_ascii() && digits.len() == 14 {
        true => format!(
            "{}-{}-{}T{}:{}:{}.{:03}Z",
            &digits[..4],
            &digits[4..6],
            &digits[6..8],
            &digits[8..10],
            &digits[10..12],
            &digits[12..14],
            since.subsec_millis()
        ),
        false => secs.to_string(),
    }
}
