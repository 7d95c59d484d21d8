//! One connection of a volume: messages with their bytes, over any link.
//!
//! In: a [`Link`] that is authenticated, messages to send. Out: messages that came, one after the other.
//! Invariants: frames are in their order, on the stream of volumes; bytes are handed out only if they fit the
//! root that came with them; nothing is allocated from a length before it was held against its limit and
//! against what the reader allows. What cannot be believed ends the connection.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TryRecvError, unbounded};
use haul_base::digest;
use haul_base::errno;
use haul_core::ids::{FileId, Generation, SessionEpoch, SinkTarget, StreamId};
use haul_core::volume::wire::{Message, STREAM, decode, encode};
use haul_core::wire::{
    DATA_ENTRY_LEN, DataEntry, DataHeader, DataPreamble, DigestKind, FrameHeader, HEADER_LEN, PREAMBLE_LEN,
    WireError, decode_data_descriptor, encode_data_header, kind,
};
use haul_transport::Link;

/// Payload, shared by who keeps it to send it again and who sends it.
pub type Bytes = Arc<Vec<u8>>;

/// Frames of volumes are of one epoch; what is late is told by sessions.
const EPOCH: SessionEpoch = SessionEpoch(0);
/// A descriptor of one entry with its root.
const DESCRIPTOR_LEN: usize = DATA_ENTRY_LEN + 32;
/// Who was told that it is over has so long to read that.
const LINGER: Duration = Duration::from_secs(1);

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The other end ended it, or it broke.
    #[error("the connection was cut off by the peer or the network")]
    Cut,
    #[error("the connection broke: {}", errno::text(.0))]
    Io(#[source] io::Error),
    /// Bytes that are none of this protocol.
    #[error("the peer sent a bad frame: {0}")]
    Wire(#[from] WireError),
    /// What cannot be believed.
    #[error("the peer sent {0}")]
    Bad(&'static str),
    /// What it may not say here or now, or no more of it.
    #[error("{0}")]
    Refused(String),
}

fn broke(error: io::Error) -> LineError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => LineError::Cut,
        _ => LineError::Io(error),
    }
}

/// What comes over a connection.
pub struct Incoming {
    reader: Box<dyn Read + Send>,
    seq: u64,
}

impl Incoming {
    /// Of a link of which nothing was read.
    pub fn new(reader: Box<dyn Read + Send>) -> Incoming {
        Incoming { reader, seq: 0 }
    }

    fn header(&mut self) -> Result<Option<FrameHeader>, LineError> {
        let mut bytes = [0; HEADER_LEN];
        let first = loop {
            match self.reader.read(&mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result.map_err(broke)?,
            }
        };
        if first == 0 {
            return Ok(None);
        }
        self.reader.read_exact(&mut bytes[first..]).map_err(broke)?;
        let header = FrameHeader::decode_of_volume(&bytes)?;
        if header.seq != self.seq || header.stream != StreamId(STREAM) || header.epoch != EPOCH {
            return Err(LineError::Bad("a frame out of its turn"));
        }
        self.seq += 1;
        Ok(Some(header))
    }

    /// The next message and its bytes; `None` when the other end said that it is over. `allow` is asked
    /// before its bytes are read: what it refuses ends the connection.
    ///
    /// # Errors
    /// See [`LineError`]; nothing can be read after any of them.
    pub fn receive(
        &mut self,
        allow: impl FnOnce(&Message) -> Result<(), String>,
    ) -> Result<Option<(Message, Bytes)>, LineError> {
        let Some(header) = self.header()? else { return Ok(None) };
        if !header.is_of_volume() {
            return Err(LineError::Bad("a frame that is none of a volume"));
        }
        let mut body = vec![0; header.len as usize];
        self.reader.read_exact(&mut body).map_err(broke)?;
        let message = decode(header.kind, &body)?;
        allow(&message).map_err(LineError::Refused)?;
        let bytes = match message.following() {
            0 => Vec::new(),
            len => self.bytes(len)?,
        };
        Ok(Some((message, Arc::new(bytes))))
    }

    fn bytes(&mut self, len: u32) -> Result<Vec<u8>, LineError> {
        let header = self.header()?.ok_or(LineError::Cut)?;
        if header.kind != kind::DATA {
            return Err(LineError::Bad("no bytes where they should follow"));
        }
        let mut preamble = [0; PREAMBLE_LEN];
        self.reader.read_exact(&mut preamble).map_err(broke)?;
        let preamble = DataPreamble::decode(&header, &preamble)?;
        if preamble.descriptor_len as usize != DESCRIPTOR_LEN || preamble.payload_len != len {
            return Err(LineError::Bad("other bytes than it said"));
        }
        let mut descriptor = [0; DESCRIPTOR_LEN];
        self.reader.read_exact(&mut descriptor).map_err(broke)?;
        let DataHeader { entries, .. } = decode_data_descriptor(&preamble, &descriptor)?;
        let [DataEntry { root: true, len: told, digest, ref cvs, .. }] = entries[..] else {
            return Err(LineError::Bad("bytes without their root"));
        };
        if told != len {
            return Err(LineError::Bad("other bytes than it said"));
        }
        let mut bytes = vec![0; len as usize];
        self.reader.read_exact(&mut bytes).map_err(broke)?;
        if cvs[..] != [digest::root(digest, &bytes)] && !haul_mutant::removed("volume-bytes-fit-their-root") {
            return Err(LineError::Bad("bytes that do not fit their root: they were changed on their way"));
        }
        Ok(bytes)
    }
}

/// What goes over a connection.
pub struct Outgoing {
    writer: Box<dyn Write + Send>,
    seq: u64,
    frame: Vec<u8>,
}

impl Outgoing {
    /// Of a link to which nothing was written.
    pub fn new(writer: Box<dyn Write + Send>) -> Outgoing {
        Outgoing { writer, seq: 0, frame: Vec::new() }
    }

    fn next(&mut self) -> u64 {
        self.seq += 1;
        self.seq - 1
    }

    /// Writes a message with its bytes. They go at the latest with [`Outgoing::flush`].
    ///
    /// # Panics
    /// There are other bytes than the message says.
    ///
    /// # Errors
    /// The connection broke.
    pub fn send(&mut self, message: &Message, bytes: &[u8]) -> Result<(), LineError> {
        assert_eq!(message.following() as usize, bytes.len(), "{message:?}");
        self.frame.clear();
        self.frame.resize(HEADER_LEN, 0);
        encode(message, &mut self.frame);
        let header = FrameHeader {
            len: (self.frame.len() - HEADER_LEN) as u32,
            kind: message.kind(),
            flags: 0,
            stream: StreamId(STREAM),
            epoch: EPOCH,
            seq: self.next(),
        };
        self.frame[..HEADER_LEN].copy_from_slice(&header.encode());
        self.writer.write_all(&self.frame).map_err(broke)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let digest = DigestKind::Blake3;
        let entry = DataEntry {
            id: FileId(0),
            generation: Generation(0),
            offset: 0,
            len: bytes.len() as u32,
            root: true,
            hole: false,
            tail: true,
            sealed: false,
            pass: 0,
            digest,
            cvs: vec![digest::root(digest, bytes)],
        };
        let header = DataHeader { sink_target: SinkTarget::ANY, entries: vec![entry] };
        let seq = self.next();
        let header = encode_data_header(&header, StreamId(STREAM), EPOCH, seq);
        self.writer.write_all(&header).map_err(broke)?;
        self.writer.write_all(bytes).map_err(broke)
    }

    /// Nothing waits here any more.
    ///
    /// # Errors
    /// The connection broke.
    pub fn flush(&mut self) -> Result<(), LineError> {
        self.writer.flush().map_err(broke)
    }
}

/// Says things to the other end, from any thread, without waiting for it.
#[derive(Clone)]
pub struct Mouth {
    to: Sender<(Message, Bytes)>,
    /// What waits to be written, and how many that may be. Not a bounded channel, which takes the memory for
    /// as many at once.
    waiting: Arc<AtomicUsize>,
    waiting_max: usize,
    closer: Arc<dyn Fn() + Send + Sync>,
}

impl Mouth {
    /// Says it. To who does not listen nothing is said: the connection ends, which its reader hears.
    pub fn say(&self, message: Message, bytes: Bytes) {
        let before = self.waiting.fetch_add(1, Ordering::AcqRel);
        if before >= self.waiting_max || self.to.send((message, bytes)).is_err() {
            self.close();
        }
    }

    /// Ends the connection at once.
    pub fn close(&self) {
        (self.closer)();
    }

    /// What ends the connection, without keeping it: one that nobody has a mouth of ends.
    pub fn closer(&self) -> Arc<dyn Fn() + Send + Sync> {
        self.closer.clone()
    }
}

/// Starts the thread that writes what is said, and returns what is read by. A peer that lets more than
/// `waiting` messages wait is cut off; `None`: what waits is bounded by who speaks.
///
/// # Errors
/// No thread can be started.
pub fn speak(link: Link, name: &str, waiting: Option<usize>) -> io::Result<(Incoming, Mouth)> {
    let Link { reader, writer, closer, .. } = link;
    let (to, said) = unbounded();
    let waiting_max = waiting.unwrap_or(usize::MAX);
    let waiting = Arc::new(AtomicUsize::new(0));
    let mouth = Mouth { to, waiting: waiting.clone(), waiting_max, closer: closer.clone() };
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        // With the writer gone the other end hears that it is over, after all that was said.
        if write_all(Outgoing::new(writer), &said, &waiting).is_ok() {
            std::thread::sleep(LINGER);
        }
        closer();
    })?;
    Ok((Incoming::new(reader), mouth))
}

fn write_all(
    mut outgoing: Outgoing,
    said: &Receiver<(Message, Bytes)>,
    waiting: &AtomicUsize,
) -> Result<(), LineError> {
    loop {
        let next = match said.try_recv() {
            Ok(next) => next,
            Err(TryRecvError::Empty) => {
                outgoing.flush()?;
                match said.recv() {
                    Ok(next) => next,
                    Err(_) => return Ok(()),
                }
            }
            Err(TryRecvError::Disconnected) => return outgoing.flush(),
        };
        waiting.fetch_sub(1, Ordering::AcqRel);
        let (message, bytes) = next;
        outgoing.send(&message, &bytes)?;
        if matches!(message, Message::Refused(_)) {
            return outgoing.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use haul_core::volume::{Epoch, FileNo, RequestNo, storage};
    use haul_transport::memory;

    use super::*;

    fn write(bytes: &[u8]) -> Message {
        let (file, epoch) = (FileNo(1), Epoch::default());
        Message::Store(
            RequestNo(1),
            storage::Request::Write { file, epoch, offset: 3, bytes: bytes.len() as u32 },
        )
    }

    /// Goal: what is said comes in its order with its bytes, and the end is told from a break.
    #[test]
    fn what_is_said_comes() {
        let (here, there) = memory::pair(1 << 16);
        let join = Message::Ping(7);
        let big = vec![7; 300_000];
        let (_, mouth) = speak(here, "test", None).expect("a thread");
        mouth.say(join.clone(), Bytes::default());
        mouth.say(write(&big), Arc::new(big.clone()));
        drop(mouth);
        let mut incoming = Incoming::new(there.reader);
        let mut next = || incoming.receive(|_| Ok(())).expect("it is good");
        assert_eq!(next(), Some((join, Bytes::default())));
        assert_eq!(next(), Some((write(&big), Arc::new(big))));
    }

    /// Goal: to who does not listen so much is said and no more, and then the connection ends.
    #[test]
    fn who_does_not_listen_is_cut_off() {
        let (here, there) = memory::pair(1 << 16);
        let (_, mouth) = speak(here, "test", Some(8)).expect("a thread");
        let big = Arc::new(vec![7; 300_000]);
        // More than the pipe and what may wait.
        (0..20).for_each(|_| mouth.say(write(&big), big.clone()));
        let mut incoming = Incoming::new(there.reader);
        let heard = (0..20).take_while(|_| matches!(incoming.receive(|_| Ok(())), Ok(Some(_)))).count();
        assert!(heard < 20, "all of it was kept for who did not listen");
    }

    /// Goal: what was changed on its way, what is not allowed, and what is cut off ends the connection.
    #[test]
    fn what_cannot_be_believed_is_refused() {
        let said = |change: &dyn Fn(&mut Vec<u8>)| {
            let (here, there) = memory::pair(1 << 16);
            let mut frame = Vec::new();
            {
                let (into, from) = memory::pair(1 << 16);
                let mut outgoing = Outgoing::new(into.writer);
                outgoing.send(&write(b"some bytes"), b"some bytes").expect("said");
                outgoing.flush().expect("said");
                drop(outgoing);
                let mut reader = from.reader;
                let _ = reader.read_to_end(&mut frame);
            }
            change(&mut frame);
            let mut writer = here.writer;
            writer.write_all(&frame).expect("written");
            writer.flush().expect("written");
            drop(writer);
            Incoming::new(there.reader).receive(|_| Ok(()))
        };
        let good = said(&|_| ()).expect("good").expect("there");
        assert_eq!(*good.1, b"some bytes");
        let end = said(&|frame| *frame.last_mut().expect("a byte") ^= 1);
        assert!(matches!(end, Err(LineError::Bad(text)) if text.contains("root")), "{end:?}");
        assert!(matches!(said(&|frame| frame.truncate(frame.len() - 1)), Err(LineError::Cut)));
        assert!(matches!(said(&|frame| frame[16] = 1), Err(LineError::Bad(_))));
        assert!(matches!(said(&|frame| frame[4] = kind::PING), Err(LineError::Wire(_))));
        assert!(matches!(said(&|frame| frame.truncate(0)), Ok(None)));
    }
}
