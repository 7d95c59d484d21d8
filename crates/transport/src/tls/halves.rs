//! The two halves of a connection after its handshake: records between a socket and the caller's buffers.
//!
//! In: a socket, the keys, what was read of it too much. Out: a [`Link`].
//!
//! Without records ([`Link::bare`]) bytes go between the socket and the caller's buffers as they are; their
//! frames carry codes ([`crate::frames`]).
//!
//! Invariants: payload is touched by the cipher and by the kernel only, but for the record that ends a
//! caller's buffer: that one is opened in place and copied. The halves share no lock but the one for new
//! keys, which is taken once in [`Keys::limit`] records. A half that failed stays failed. A socket that ends
//! without `close_notify` is an error.
//!
//! Keys: the writer changes its own when they are worn; the reader follows the peer's changes, and tells the
//! writer by a flag that the peer wants one of ours. How the reader failed the writer tells the peer when it
//! is dropped.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, CHACHA20_POLY1305, NONCE_LEN};
use rustls::kernel::KernelConnection;
use rustls::{ConnectionTrafficSecrets, ExtractedSecrets};

use super::invalid;
use super::open::Opener;
use super::record::{
    CLOSE_MESSAGE, Fault, HEADER_LEN, KEY_UPDATE_MESSAGE, Key, Kind, Meaning, PLAIN_LEN_MAX, RECORD_LEN_MAX,
    fatal_message, meaning, record_len,
};
use super::seal::Sealer;
use crate::{Connection, Guard, Link};

/// Sealed bytes that are written at once: large enough that a system call costs little, small enough that
/// they are still in the cache when the kernel copies them. Whole records of full length.
const WRITE_LEN: usize = 16 * RECORD_LEN_MAX;
/// What one read of the socket takes at most, bytes. While a frame is hashed its successor piles up in the
/// socket: half of that in one read saves a seventh of the CPU against a quarter; twice as much falls out of
/// the cache.
const READ_LEN: usize = 512 * 1024;
/// Without records: reads up to this length take as much, and what is longer goes to its place at once,
/// bytes.
const BARE_AHEAD: usize = 4096;
/// Records without payload that a peer may send in a row. It needs one or two.
const IDLE_RECORDS_MAX: u32 = 32;

/// Makes new keys.
trait Schedule: Send {
    fn next_tx(&mut self) -> Result<(u64, ConnectionTrafficSecrets), rustls::Error>;
    fn next_rx(&mut self) -> Result<(u64, ConnectionTrafficSecrets), rustls::Error>;
}

impl<Data: Send> Schedule for KernelConnection<Data> {
    fn next_tx(&mut self) -> Result<(u64, ConnectionTrafficSecrets), rustls::Error> {
        self.update_tx_secret()
    }
    fn next_rx(&mut self) -> Result<(u64, ConnectionTrafficSecrets), rustls::Error> {
        self.update_rx_secret()
    }
}

fn key((seq, secrets): (u64, ConnectionTrafficSecrets)) -> io::Result<Key> {
    let (algorithm, key, iv) = match &secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
        _ => return Err(io::Error::other("a TLS cipher that haul does not know")),
    };
    let iv = <[u8; NONCE_LEN]>::try_from(iv.as_ref()).ok();
    iv.and_then(|iv| Key::new(algorithm, key.as_ref(), iv, seq))
        .ok_or_else(|| io::Error::other("TLS keys of a wrong length"))
}

/// What a handshake leaves.
pub(super) struct Parts {
    incoming: Incoming,
    sealer: Sealer,
    opener: Opener,
    keys: Keys,
}

pub(super) struct Keys {
    schedule: Mutex<Box<dyn Schedule>>,
    /// Records that may be sealed with one key.
    limit: u64,
}

impl Keys {
    fn schedule(&self) -> MutexGuard<'_, Box<dyn Schedule>> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// The next key for what we send.
    pub(super) fn next_tx(&self) -> io::Result<Key> {
        key(self.schedule().next_tx().map_err(invalid)?)
    }
    /// The next key for what the peer sends.
    pub(super) fn next_rx(&self) -> io::Result<Key> {
        key(self.schedule().next_rx().map_err(invalid)?)
    }
}

impl Parts {
    pub(super) fn new<Data: Send + 'static>(
        incoming: Incoming,
        secrets: ExtractedSecrets,
        kernel: KernelConnection<Data>,
    ) -> io::Result<Parts> {
        let suite = kernel.negotiated_cipher_suite();
        let suite = suite.tls13().ok_or_else(|| io::Error::other("not TLS 1.3"))?;
        Ok(Parts {
            incoming: incoming.grow(READ_LEN),
            sealer: Sealer::new(key(secrets.tx)?),
            opener: Opener::new(key(secrets.rx)?),
            keys: Keys { limit: suite.common.confidentiality_limit, schedule: Mutex::new(Box::new(kernel)) },
        })
    }

    /// For a test that plays the peer.
    #[cfg(test)]
    pub(super) fn split(self) -> (Sealer, Opener, Keys) {
        (self.sealer, self.opener, self.keys)
    }

    pub(super) fn into_link(self, stream: TcpStream) -> Link {
        let Parts { incoming, sealer, opener, keys } = self;
        let stream = Arc::new(stream);
        let connection: Arc<dyn Connection> = stream.clone();
        let shared = Arc::new(Shared {
            stream,
            keys,
            answer: AtomicBool::new(false),
            bare_in: AtomicBool::new(false),
            bare_out: AtomicBool::new(false),
            fault: OnceLock::new(),
        });
        let (closer, incoming_bare, outgoing_bare) = (shared.clone(), shared.clone(), shared.clone());
        Link {
            connection: Some(connection),
            hands: None,
            guard: Guard::of(
                Arc::new(move || incoming_bare.bare_in.store(true, Ordering::Release)),
                Arc::new(move || outgoing_bare.bare_out.store(true, Ordering::Release)),
            ),
            reader: Box::new(Reader {
                shared: shared.clone(),
                opener,
                incoming,
                plain: 0..0,
                idle: 0,
                at_end: false,
            }),
            writer: Box::new(Writer { shared, sealer, out: Vec::new(), len: 0, broken: false }),
            closer: Arc::new(move || {
                let _ = closer.stream.shutdown(Shutdown::Both);
            }),
        }
    }
}

struct Shared {
    stream: Arc<TcpStream>,
    keys: Keys,
    /// The peer wants us to change our key.
    answer: AtomicBool,
    /// No records any more in that direction: what follows guards itself ([`Link::bare`]).
    bare_in: AtomicBool,
    bare_out: AtomicBool,
    /// How the reader failed. The connection is over then, in both directions.
    fault: OnceLock<Fault>,
}

/// Ciphertext from the socket: `bytes[start..end]` is not opened yet.
pub(super) struct Incoming {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Incoming {
    pub(super) fn new(len: usize) -> Incoming {
        Incoming { bytes: vec![0; len], start: 0, end: 0 }
    }
    pub(super) fn filled(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }
    pub(super) fn discard(&mut self, len: usize) {
        self.start += len;
    }
    /// The same bytes in a buffer of `len`, which is no shorter.
    fn grow(mut self, len: usize) -> Incoming {
        self.bytes.resize(len, 0);
        self
    }
    /// The length of the first record, if it is there whole.
    fn record(&mut self) -> Result<Option<usize>, Fault> {
        let filled = self.filled();
        Ok(record_len(filled)?.filter(|len| *len <= filled.len()))
    }
    /// One read of the socket into all the room there is. A record that is there in part moves to the front
    /// first, so that reads stay large.
    pub(super) fn read_from(&mut self, from: impl Read) -> io::Result<usize> {
        self.read_some(from, usize::MAX)
    }
    /// The same, of at most `len_max` bytes.
    fn read_some(&mut self, mut from: impl Read, len_max: usize) -> io::Result<usize> {
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.end == self.bytes.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the peer's TLS message is too long"));
        }
        let room = (self.bytes.len() - self.end).min(len_max);
        let n = from.read(&mut self.bytes[self.end..][..room])?;
        self.end += n;
        Ok(n)
    }
    /// Takes bytes that came, as many as there are room and bytes for.
    fn take(&mut self, out: &mut [u8]) -> usize {
        let n = self.filled().len().min(out.len());
        out[..n].copy_from_slice(&self.filled()[..n]);
        self.discard(n);
        n
    }
}

struct Reader {
    shared: Arc<Shared>,
    opener: Opener,
    incoming: Incoming,
    /// Where in `incoming` payload lies that was opened and not taken.
    plain: Range<usize>,
    /// Records without payload since the last one with it.
    idle: u32,
    /// `close_notify` came.
    at_end: bool,
}

impl Reader {
    /// Opens the first record, which has `len` bytes: into the front of `out` if there is room, else in
    /// place. Tells how much payload is in `out`.
    fn open(&mut self, len: usize, out: &mut [u8]) -> Result<usize, Fault> {
        let start = self.incoming.start;
        let record = &mut self.incoming.filled()[..len];
        let direct = out.len() >= Opener::room(len);
        let (kind, plain) = match direct {
            true => self.opener.open_into(record, out)?,
            false => self.opener.open_in_place(record)?,
        };
        let body = if direct { &out[..plain] } else { &record[HEADER_LEN..][..plain] };
        let meaning = meaning(kind, body)?;
        self.incoming.discard(len);
        self.idle = if meaning == Meaning::Data && plain > 0 { 0 } else { self.idle + 1 };
        if self.idle > IDLE_RECORDS_MAX && !haul_mutant::removed("idle-records") {
            return Err(Fault::Flood);
        }
        match meaning {
            Meaning::Data if direct => return Ok(plain),
            Meaning::Data => self.plain = start + HEADER_LEN..start + HEADER_LEN + plain,
            Meaning::Close => self.at_end = true,
            Meaning::KeyUpdate { answer } => {
                let key = self.shared.keys.next_rx();
                self.opener = Opener::new(key.map_err(|_| Fault::Exhausted)?);
                if answer {
                    self.shared.answer.store(true, Ordering::Release);
                }
            }
        }
        Ok(0)
    }

    /// Puts payload into `out`, as much as is here: 0 if there is none.
    fn take(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        let mut len = 0;
        while len < out.len() {
            if !self.plain.is_empty() {
                let n = self.plain.len().min(out.len() - len);
                let from = self.plain.start;
                out[len..len + n].copy_from_slice(&self.incoming.bytes[from..from + n]);
                self.plain.start += n;
                len += n;
            } else if !self.at_end
                && let Some(record) = self.incoming.record()?
            {
                len += self.open(record, &mut out[len..])?;
            } else {
                break;
            }
        }
        Ok(len)
    }
}

impl Reader {
    /// Bytes as they are: those that came with the last record first, then payload from the socket to where
    /// it is wanted. What is short is read ahead of, so that a frame's head costs one system call.
    fn read_bare(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if !self.plain.is_empty() {
            return self.take(out).map_err(failure);
        }
        if self.incoming.filled().is_empty() {
            if out.len() > BARE_AHEAD {
                return (&*self.shared.stream).read(out);
            }
            if self.incoming.read_some(&*self.shared.stream, BARE_AHEAD)? == 0 {
                return Ok(0);
            }
        }
        Ok(self.incoming.take(out))
    }
}

impl Read for Reader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        if self.shared.bare_in.load(Ordering::Acquire) {
            return self.read_bare(out);
        }
        loop {
            if let Some(fault) = self.shared.fault.get() {
                return Err(failure(*fault));
            }
            match self.take(out) {
                Ok(0) if self.at_end => return Ok(0),
                Ok(0) => {}
                Ok(n) => return Ok(n),
                Err(fault) => return Err(failure(*self.shared.fault.get_or_init(|| fault))),
            }
            if self.incoming.read_from(&*self.shared.stream)? == 0 {
                // The socket ended without close_notify: cut off by somebody, or the peer died.
                if haul_mutant::removed("close-notify") {
                    return Ok(0);
                }
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

fn failure(fault: Fault) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, fault)
}

/// Seals into `out` and writes it when no more full record has room in it, or on flush.
struct Writer {
    shared: Arc<Shared>,
    sealer: Sealer,
    out: Vec<u8>,
    /// Sealed bytes in `out`.
    len: usize,
    /// A write failed: what follows would not fit what came before.
    broken: bool,
}

impl Writer {
    /// Puts a record behind what is in `out`, which goes to the socket first if there is no room.
    fn seal(&mut self, kind: Kind, plain: &[u8]) -> io::Result<()> {
        if self.out.is_empty() {
            self.out = vec![0; WRITE_LEN];
        }
        if self.out.len() - self.len < RECORD_LEN_MAX {
            self.send()?;
        }
        self.len += self.sealer.seal(kind, plain, &mut self.out[self.len..]).map_err(failure)?;
        Ok(())
    }

    /// A new key, if this one is worn or the peer asks for it.
    fn refresh_key(&mut self) -> io::Result<()> {
        let worn = self.sealer.sealed() + 1 >= self.shared.keys.limit && !haul_mutant::removed("worn-keys");
        if self.shared.answer.load(Ordering::Acquire) || worn {
            // What the peer asks for from now on is asked of the new key.
            self.shared.answer.store(false, Ordering::Release);
            self.seal(Kind::Handshake, &KEY_UPDATE_MESSAGE)?;
            self.sealer = Sealer::new(self.shared.keys.next_tx()?);
        }
        Ok(())
    }

    /// To the socket as they are, behind the last record.
    fn write_bare(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.guarded(|writer| {
            if writer.len > 0 {
                writer.send()?;
            }
            loop {
                match (&*writer.shared.stream).write_vectored(parts) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    result => return result,
                }
            }
        })
    }

    fn send(&mut self) -> io::Result<()> {
        let result = (&*self.shared.stream).write_all(&self.out[..self.len]);
        self.len = 0;
        result
    }

    /// Nothing is written after a failure of either half.
    fn guarded<T>(&mut self, write: impl FnOnce(&mut Writer) -> io::Result<T>) -> io::Result<T> {
        if let Some(fault) = self.shared.fault.get() {
            return Err(failure(*fault));
        }
        if self.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        write(self).inspect_err(|_| self.broken = true)
    }
}

impl Write for Writer {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.shared.bare_out.load(Ordering::Acquire) {
            return self.write_bare(&[IoSlice::new(data)]);
        }
        self.guarded(|writer| {
            for plain in data.chunks(PLAIN_LEN_MAX) {
                writer.refresh_key()?;
                writer.seal(Kind::Data, plain)?;
            }
            Ok(data.len())
        })
    }
    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.shared.bare_out.load(Ordering::Acquire) {
            return self.write_bare(parts);
        }
        self.write(parts.iter().find(|part| !part.is_empty()).map_or(&[], |part| part))
    }
    fn flush(&mut self) -> io::Result<()> {
        self.guarded(Writer::send)
    }
}

impl Drop for Writer {
    /// Says goodbye, so that the peer knows that this was all, or why it is not. Nobody is left to hear of an
    /// error here: the peer then sees a truncation, which is the truth.
    fn drop(&mut self) {
        if self.broken {
            return;
        }
        let message = match self.shared.fault.get() {
            // The frames themselves say which is the last.
            _ if self.shared.bare_out.load(Ordering::Acquire) => None,
            None => Some(CLOSE_MESSAGE),
            Some(fault) => fault.alert().map(fatal_message),
        };
        let said =
            message.map_or(Ok(()), |message| self.seal(Kind::Alert, &message).and_then(|()| self.send()));
        if said.is_ok() {
            let _ = self.shared.stream.shutdown(Shutdown::Write);
        }
    }
}
