//! A peer that says anything: the wire format once more, with no check in it.

use std::io::{Read, Write};
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use haul_core::digest::DigestKind;
use haul_core::entry::{EntryKind, Extras, Fingerprint, Meta, Name, Timestamp, Version};
use haul_core::ids::{DirId, FileId, Generation, SessionEpoch, SinkTarget, StreamId};
use haul_core::schedule::Health;
use haul_core::wire::{
    Announced, Capability, Decoded, Failure, FailureKind, Hello, Limits, Message, SinkOptions, SourceRoot,
    TargetHealth, VERSION, VERSION_MIN, capability, decode_message, encode_frame,
};

use super::{SESSION, bytes};
use haul_base::digest;
use haul_transport::Link;

/// How long the evil peer waits for a word that must come.
const WORD_MAX: Duration = Duration::from_secs(20);

/// A frame with every field free.
#[derive(Clone)]
pub(super) struct RawFrame {
    pub(super) len: Option<u32>,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u16,
    pub(super) epoch: u32,
    pub(super) reserved: u32,
    pub(super) seq: u64,
    pub(super) body: Vec<u8>,
}

impl RawFrame {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.len.unwrap_or(self.body.len() as u32).to_le_bytes());
        out.extend([self.kind, self.flags]);
        out.extend(self.stream.to_le_bytes());
        out.extend(self.epoch.to_le_bytes());
        out.extend(self.reserved.to_le_bytes());
        out.extend(self.seq.to_le_bytes());
        out.extend(&self.body);
        out
    }
}

/// An entry of a data frame with every field free.
#[derive(Clone)]
pub(super) struct RawEntry {
    pub(super) id: u64,
    pub(super) generation: u32,
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) pass: u16,
    pub(super) flags: u8,
    pub(super) digest: u8,
    pub(super) cvs: Vec<[u8; 32]>,
}

pub(super) const ROOT: u8 = 1;
pub(super) const HOLE: u8 = 2;
pub(super) const TAIL: u8 = 4;
pub(super) const SEALED: u8 = 8;

impl RawEntry {
    /// A whole small file, sealed, with its right digest.
    pub(super) fn whole(id: u64, data: &[u8]) -> RawEntry {
        let (len, cvs) = (data.len() as u32, vec![digest::root(DigestKind::Blake3, data)]);
        RawEntry { id, generation: 0, offset: 0, len, pass: 0, flags: ROOT | TAIL | SEALED, digest: 1, cvs }
    }
    /// A part of a file with its right digest.
    pub(super) fn part(id: u64, offset: u64, data: &[u8], tail: bool) -> RawEntry {
        let (len, cvs) = (data.len() as u32, digest::chaining_values(DigestKind::Blake3, offset, data, tail));
        let flags = if tail { TAIL } else { 0 };
        RawEntry { id, generation: 0, offset, len, pass: 0, flags, digest: 1, cvs }
    }
    fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.id.to_le_bytes());
        out.extend(self.generation.to_le_bytes());
        out.extend(self.offset.to_le_bytes());
        out.extend(self.len.to_le_bytes());
        out.extend(self.pass.to_le_bytes());
        out.extend([self.flags, self.digest]);
        out.extend((self.cvs.len() as u16).to_le_bytes());
        out.extend([0, 0]);
        self.cvs.iter().for_each(|cv| out.extend(cv));
        out
    }
}

/// The body of a data frame.
pub(super) fn data_body(entries: &[RawEntry], payload: &[u8]) -> Vec<u8> {
    let descriptor: Vec<u8> = entries.iter().flat_map(RawEntry::bytes).collect();
    let mut out = Vec::new();
    out.extend((entries.len() as u16).to_le_bytes());
    out.extend([0, 0]);
    out.extend((descriptor.len() as u32).to_le_bytes());
    out.extend((payload.len() as u32).to_le_bytes());
    out.extend([0; 4]);
    out.extend(descriptor);
    out.extend(payload);
    out
}

/// The evil end of a session. Whatever it writes goes out at once; what it hears is collected by a thread.
pub(super) struct Evil {
    control: Option<Box<dyn Write + Send>>,
    data: Vec<Option<Box<dyn Write + Send>>>,
    pub(super) heard: Receiver<Message>,
    pub(super) seq: u64,
    pub(super) data_seq: Vec<u64>,
}

impl Evil {
    pub(super) fn new(links: Vec<Link>) -> Evil {
        let mut links = links.into_iter();
        let Link { mut reader, writer, .. } = links.next().expect("control comes first");
        let (sender, heard) = unbounded();
        std::thread::spawn(move || {
            let mut head = [0; 24];
            while reader.read_exact(&mut head).is_ok() {
                let mut body = vec![0; u32::from_le_bytes(head[..4].try_into().unwrap()) as usize];
                if reader.read_exact(&mut body).is_err() {
                    break;
                }
                match decode_message(head[4], &body).expect("our own end speaks well") {
                    Decoded::Message(message) => drop(sender.send(message)),
                    Decoded::Ignored => {}
                }
            }
        });
        let data = links.map(|Link { mut reader, writer, .. }| {
            // A sink that is evil drains what the source sends.
            std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
            Some(writer)
        });
        let data: Vec<_> = data.collect();
        Evil { control: Some(writer), data_seq: vec![0; data.len()], data, heard, seq: 0 }
    }

    /// Writes bytes to control; a peer that hung up is no error here.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        if let Some(control) = &mut self.control {
            let _ = control.write_all(bytes);
        }
    }

    pub(super) fn say(&mut self, message: Message) {
        self.seq += 1;
        let bytes = encode_frame(&message, StreamId(0), SessionEpoch(1), self.seq);
        self.write(&bytes);
    }

    /// A control frame with a body made by hand.
    pub(super) fn say_raw(&mut self, kind: u8, body: Vec<u8>) {
        let frame = self.raw(kind, body);
        self.write(&frame.bytes());
    }

    /// The next control frame, to be spoilt.
    pub(super) fn raw(&mut self, kind: u8, body: Vec<u8>) -> RawFrame {
        self.seq += 1;
        RawFrame { len: None, kind, flags: 0, stream: 0, epoch: 1, reserved: 0, seq: self.seq, body }
    }

    /// A data frame on stream 1.
    pub(super) fn data(&mut self, entries: &[RawEntry], payload: &[u8]) {
        let frame = self.data_frame(data_body(entries, payload));
        self.write_data(0, &frame.bytes());
    }

    /// The next data frame of stream 1, to be spoilt.
    pub(super) fn data_frame(&mut self, body: Vec<u8>) -> RawFrame {
        self.data_seq[0] += 1;
        RawFrame {
            len: None,
            kind: 3,
            flags: 0,
            stream: 1,
            epoch: 1,
            reserved: 0,
            seq: self.data_seq[0],
            body,
        }
    }

    pub(super) fn write_data(&mut self, stream: usize, bytes: &[u8]) {
        if let Some(data) = &mut self.data[stream] {
            let _ = data.write_all(bytes);
        }
    }

    pub(super) fn close_data(&mut self, stream: usize) {
        self.data[stream] = None;
    }

    /// The next message; `None` when the other end hung up.
    pub(super) fn hear(&mut self) -> Option<Message> {
        match self.heard.recv_timeout(WORD_MAX) {
            Ok(message) => Some(message),
            Err(crossbeam_channel::RecvTimeoutError::Disconnected) => None,
            Err(crossbeam_channel::RecvTimeoutError::Timeout) => panic!("the other end says nothing"),
        }
    }

    /// Hears until `want` finds what it wants; `None` when the other end gave up before.
    pub(super) fn until<T>(&mut self, mut want: impl FnMut(&Message) -> Option<T>) -> Option<T> {
        loop {
            let message = self.hear()?;
            if let Some(found) = want(&message) {
                return Some(found);
            }
            if let Message::Abort(_) | Message::Complete | Message::Stopped = message {
                return None;
            }
        }
    }

    /// Plays a source up to the first grant.
    pub(super) fn greet_sink(&mut self) {
        self.greet_sink_as(hello());
    }

    /// The same with a hello of its own.
    pub(super) fn greet_sink_as(&mut self, hello: Hello) {
        self.say(Message::Hello(hello));
        self.say(sources(vec![all()]));
        self.until(|message| matches!(message, Message::Grant { .. }).then_some(()));
    }

    /// Plays a sink up to the first word of the source about what comes.
    pub(super) fn greet_source(&mut self, wait: bool) {
        self.greet_source_as(hello(), wait);
    }

    /// The same with a hello of its own.
    pub(super) fn greet_source_as(&mut self, hello: Hello, wait: bool) {
        self.say(Message::Hello(hello));
        self.until(|message| matches!(message, Message::Sources { .. }).then_some(()));
        self.say(Message::Destination { wait, rename: None, epoch: 1, resumed: false });
    }

    /// Hears the announcements until the source's tree is known.
    pub(super) fn announced(&mut self, count: usize) -> Vec<Announced> {
        let mut all = Vec::new();
        while all.len() < count {
            match self.until(|m| if let Message::Announce(list) = m { Some(list.clone()) } else { None }) {
                Some(list) => all.extend(list),
                None => break,
            }
        }
        all
    }
}

pub(super) fn hello() -> Hello {
    let limits = Limits { object_len: 1 << 20, entries: 32 * 1024, streams: 2 };
    Hello {
        version_min: VERSION_MIN,
        version_max: VERSION,
        session: SESSION,
        capabilities: Vec::new(),
        limits,
    }
}

/// One that knows a capability, and does not insist on it.
pub(super) fn hello_knowing(kind: u16) -> Hello {
    let known = Capability { kind, required: false, value: Box::default() };
    Hello { capabilities: vec![known], ..hello() }
}

/// One that knows sparse files, and insists on them.
pub(super) fn hello_holes() -> Hello {
    let holes = Capability { kind: capability::HOLES, required: true, value: Box::default() };
    Hello { capabilities: vec![holes], ..hello() }
}

/// One that knows storage targets.
pub(super) fn hello_targets() -> Hello {
    hello_knowing(capability::TARGETS)
}

/// One that knows how files are cut.
pub(super) fn hello_layouts() -> Hello {
    hello_knowing(capability::LAYOUTS)
}

pub(super) fn target_health(sink_target: u16) -> TargetHealth {
    let all = u32::MAX;
    TargetHealth {
        sink_target: SinkTarget(sink_target),
        health: Health::Hung,
        waiting: all,
        in_flight: all,
        service: u64::MAX,
        best: u64::MAX,
        done: u64::MAX,
    }
}

pub(super) fn policy() -> SinkOptions {
    SinkOptions { durable: false, ..SinkOptions::PLAIN }
}

pub(super) fn all() -> SourceRoot {
    SourceRoot::Contents { of: None, meta: Meta::default() }
}

pub(super) fn sources(roots: Vec<SourceRoot>) -> Message {
    Message::Sources { roots, policy: policy() }
}

pub(super) fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn entry(id: u64, parent: u64, text: &str, kind: EntryKind) -> Announced {
    let mtime = Timestamp { secs: 1_000_000_000, nanos: 5 };
    let meta = Meta { mode: 0o755, uid: 0, gid: 0, mtime };
    let (id, parent) = (FileId(id), DirId(parent));
    let extras = Extras::default();
    Announced { id, generation: Generation(0), parent, name: name(text), meta, kind, extras }
}

pub(super) fn dir(id: u64, parent: u64, text: &str) -> Announced {
    entry(id, parent, text, EntryKind::Dir { version: Version::NONE })
}

pub(super) fn link(id: u64, parent: u64, text: &str, target: &[u8]) -> Announced {
    entry(id, parent, text, EntryKind::Symlink { target: target.into() })
}

pub(super) fn file(id: u64, parent: u64, text: &str, size: u64) -> Announced {
    let mtime = Timestamp { secs: 1_000_000_000, nanos: 5 };
    let fingerprint = Fingerprint { size, mtime, version: Version::NONE };
    entry(
        id,
        parent,
        text,
        EntryKind::File { fingerprint, object_size: 64 * 1024, sparse: false, striped: false },
    )
}

pub(super) fn again(mut entry: Announced, generation: u32) -> Announced {
    entry.generation = Generation(generation);
    entry
}

/// The content of file `id`.
pub(super) fn content(id: u64, len: usize) -> Vec<u8> {
    bytes(id, len)
}

pub(super) fn a_failure() -> Failure {
    Failure { kind: FailureKind::Read, errno: 5, text: "no".into() }
}
