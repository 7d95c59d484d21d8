//! Extended block mode, MODE E (GFD.020): headers, one connection's blocks, one transfer's end.
//!
//! In: bytes of each data connection, in any pieces. Out: blocks, their payload as lengths, and when all is
//! there; headers to send.
//! Invariants: no block reaches beyond [`FILE_LEN_MAX`]; a transfer has at most [`CHANNELS_MAX`] connections;
//! nothing is allocated. Payload is never copied here.
//!
//! A header is `descriptor: u8 | count: u64 | offset: u64`, big endian. The sender connects; nobody tells the
//! receiver how often. Each connection's part ends with EOD. One connection of each sender also carries EOF,
//! whose *offset* field is the number of EODs that sender's part of the transfer has and whose count field
//! means nothing. The transfer is complete when as many EODs came, and EOF may come before, among or after
//! them. It may not come behind the EOD of its own connection: what follows that belongs to the next
//! transfer, if the connection is kept.
//! Left out: blocks that a sender suspects and restart markers in blocks are refused, for what they hold
//! cannot be written. `126` (EOD counts in a reply) was never seen and is not waited for.

use crate::FtpError;
use crate::ranges::FILE_LEN_MAX;

/// Length of a header.
pub const HEADER_LEN: usize = 17;
/// Most data connections of one transfer at one receiver.
pub const CHANNELS_MAX: u64 = 4_096;
/// Most senders (stripes) that send to one receiver.
pub const SENDERS_MAX: u32 = crate::address::STRIPES_MAX as u32;

// The sum of all counts fits whatever the senders say.
const _: () = assert!(CHANNELS_MAX.checked_mul(SENDERS_MAX as u64).is_some());

/// End of a record: legacy, and without meaning for files.
const EOR: u8 = 0x80;
const EOF: u8 = 0x40;
const SUSPECT: u8 = 0x20;
const MARKER: u8 = 0x10;
const EOD: u8 = 0x08;
const CLOSE: u8 = 0x04;

/// The header of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub descriptor: u8,
    pub count: u64,
    pub offset: u64,
}

impl Header {
    /// The header of a block of data.
    ///
    /// # Errors
    /// If the block reaches beyond the longest file.
    pub fn data(offset: u64, len: u64) -> Result<Header, FtpError> {
        end_of(offset, len)?;
        Ok(Header { descriptor: 0, count: len, offset })
    }

    /// The headers that end a transfer over `channels` connections, one for each: the first has EOF too.
    /// Empty connections have theirs as well, and so does an empty file.
    ///
    /// # Errors
    /// If there is no connection or there are too many.
    pub fn ends(channels: u64, close: bool) -> Result<impl Iterator<Item = Header>, FtpError> {
        if channels == 0 || channels > CHANNELS_MAX {
            return Err(FtpError::BadValue { what: "data connections", value: channels });
        }
        // CLOSE never without EOD: Globus takes that for its own mistake and aborts.
        let end = EOD | if close { CLOSE } else { 0 };
        Ok((0..channels).map(move |i| match i {
            0 => Header { descriptor: end | EOF, count: 0, offset: channels },
            _ => Header { descriptor: end, count: 0, offset: 0 },
        }))
    }

    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = self.descriptor;
        bytes[1..9].copy_from_slice(&self.count.to_be_bytes());
        bytes[9..].copy_from_slice(&self.offset.to_be_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Header {
        let field = |at: usize| bytes[at..at + 8].iter().fold(0, |value, b| value << 8 | u64::from(*b));
        Header { descriptor: bytes[0], count: field(1), offset: field(9) }
    }
}

/// What a connection yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A block of `len` bytes for `offset` begins: `len` is not 0.
    Block { offset: u64, len: u64 },
    /// The next `len` bytes of what was fed are the file's, from `offset` on.
    Payload { offset: u64, len: usize },
    /// What the last block said at its end.
    Mark(Mark),
}

/// The end of something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// This connection's part of the transfer is over.
    pub eod: bool,
    /// The sender has no more, and there are so many EODs of it.
    pub eof: Option<u64>,
    /// The sender closes this connection. Should it do so without `eod`, [`Transfer::handle_closed`] tells.
    pub close: bool,
}

/// Reads one data connection.
#[derive(Debug, Default)]
pub struct Channel {
    header: [u8; HEADER_LEN],
    header_len: usize,
    /// What is left of the block's payload, and where it belongs.
    left: u64,
    offset: u64,
    /// What is told when the payload is over.
    mark: Mark,
    at_end: bool,
    failed: Option<FtpError>,
}

impl Channel {
    pub fn new() -> Channel {
        Channel::default()
    }

    /// Takes bytes up to the next event: how many were taken, and the event. It is to be called until it has
    /// none, also with nothing to feed: a mark follows the payload that it ends. Without an event all bytes
    /// were taken, unless the connection's part is over: then none is, until [`Channel::next_transfer`].
    ///
    /// # Errors
    /// If a header cannot be believed, now or before.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(usize, Option<Event>), FtpError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let mut taken = 0;
        while !self.at_end {
            let rest = &bytes[taken..];
            if self.left > 0 {
                let len = usize::try_from(self.left).unwrap_or(usize::MAX).min(rest.len());
                let event = (len > 0).then_some(Event::Payload { offset: self.offset, len });
                self.pass(len);
                return Ok((taken + len, event));
            }
            let event = if self.header_len == HEADER_LEN {
                self.finish_block()
            } else {
                let len = (HEADER_LEN - self.header_len).min(rest.len());
                self.header[self.header_len..][..len].copy_from_slice(&rest[..len]);
                self.header_len += len;
                taken += len;
                if self.header_len < HEADER_LEN {
                    break;
                }
                match self.begin_block(Header::decode(&self.header)) {
                    Ok(event) => event,
                    Err(error) => return Err(self.failed.insert(error).clone()),
                }
            };
            if event.is_some() {
                return Ok((taken, event));
            }
        }
        Ok((taken, None))
    }

    /// How many bytes of payload come next and where they belong: a caller may read them into its own buffer
    /// and tell it by [`Channel::skip`]. 0 where a header comes next.
    pub fn expected(&self) -> (u64, u64) {
        (self.offset, self.left)
    }

    /// `len` bytes of payload were read past this reader.
    ///
    /// # Panics
    /// If so many are not expected: the caller has read into the next header.
    pub fn skip(&mut self, len: usize) {
        assert!(len as u64 <= self.left, "{len} bytes were skipped where {} are expected", self.left);
        self.pass(len);
    }

    /// The connection's part of this transfer is over; what comes next belongs to another.
    pub fn is_at_end(&self) -> bool {
        self.at_end
    }

    /// Nothing of a block is open: the connection may be lost here without the loss of a part of a block.
    pub fn is_between_blocks(&self) -> bool {
        self.header_len == 0
    }

    /// The connection is used again for the next transfer.
    ///
    /// # Panics
    /// If its part of this one is not over.
    pub fn next_transfer(&mut self) {
        assert!(self.at_end, "a data connection is used again before its end of data");
        self.at_end = false;
    }

    fn pass(&mut self, len: usize) {
        self.left -= len as u64;
        self.offset += len as u64;
    }

    fn begin_block(&mut self, header: Header) -> Result<Option<Event>, FtpError> {
        let Header { descriptor, count, offset } = header;
        if descriptor & (SUSPECT | MARKER) != 0 || descriptor & !(EOR | EOF | EOD | CLOSE) != 0 {
            return Err(FtpError::BadValue { what: "descriptor of a block", value: descriptor.into() });
        }
        let is_eof = descriptor & EOF != 0;
        let eof = is_eof.then_some(offset);
        self.mark = Mark { eod: descriptor & EOD != 0, eof, close: descriptor & CLOSE != 0 };
        if is_eof || count == 0 {
            return Ok(self.finish_block());
        }
        end_of(offset, count)?;
        (self.offset, self.left) = (offset, count);
        Ok(Some(Event::Block { offset, len: count }))
    }

    fn finish_block(&mut self) -> Option<Event> {
        self.header_len = 0;
        let mark = std::mem::take(&mut self.mark);
        self.at_end = mark.eod;
        (mark != Mark::default()).then_some(Event::Mark(mark))
    }
}

/// Counts the ends of one transfer at one receiver.
#[derive(Debug)]
pub struct Transfer {
    senders: u32,
    /// EOFs, EODs and connections so far, and how many EODs the EOFs promised.
    eofs: u32,
    eods: u64,
    channels: u64,
    promised: u64,
    failed: Option<FtpError>,
}

impl Transfer {
    /// A transfer from `senders` stripes: from one, unless the far side is striped and this one is not.
    ///
    /// # Errors
    /// If there is none or there are too many.
    pub fn new(senders: u32) -> Result<Transfer, FtpError> {
        match senders {
            1..=SENDERS_MAX => {
                Ok(Transfer { senders, eofs: 0, eods: 0, channels: 0, promised: 0, failed: None })
            }
            _ => Err(FtpError::BadValue { what: "senders", value: senders.into() }),
        }
    }

    /// A connection came, or one that is kept is used again.
    ///
    /// # Errors
    /// If there are too many, or more than were promised.
    pub fn handle_channel(&mut self) -> Result<(), FtpError> {
        self.check()?;
        self.channels += 1;
        self.check()
    }

    /// A connection told its mark.
    ///
    /// # Errors
    /// If the promise cannot be kept any more: a count of 0, one that is too large, more EODs than promised
    /// or than there are connections, one EOF too many.
    pub fn handle_mark(&mut self, mark: Mark) -> Result<(), FtpError> {
        self.check()?;
        self.eods += u64::from(mark.eod);
        if let Some(count) = mark.eof {
            if count == 0 || count > CHANNELS_MAX {
                return Err(self.fail(FtpError::BadValue { what: "count of ends of data", value: count }));
            }
            self.eofs += 1;
            self.promised += count;
        }
        self.check()
    }

    /// A connection ended. At its end (`at_end`) nothing is missing; elsewhere its EOD will never come, and
    /// the transfer cannot be completed.
    ///
    /// # Errors
    /// If it was not at its end.
    pub fn handle_closed(&mut self, at_end: bool) -> Result<(), FtpError> {
        match at_end {
            true => self.check(),
            false => Err(self.fail(FtpError::BadForm { what: "data connection without its end of data" })),
        }
    }

    /// All that was sent has come.
    pub fn is_complete(&self) -> bool {
        self.failed.is_none() && self.eofs == self.senders && self.eods == self.promised
    }

    /// How many connections are still to come, if the senders have said how many there are.
    pub fn channels_to_come(&self) -> Option<u64> {
        (self.eofs == self.senders).then(|| self.promised.saturating_sub(self.channels))
    }

    fn check(&mut self) -> Result<(), FtpError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let too_many = |what, max| Err(FtpError::TooMany { what, max });
        let verdict = if self.channels > CHANNELS_MAX {
            too_many("data connections", CHANNELS_MAX)
        } else if self.eofs > self.senders {
            too_many("ends of file", self.senders.into())
        } else if self.promised > CHANNELS_MAX {
            too_many("count of ends of data", CHANNELS_MAX)
        } else if self.eods > self.channels {
            too_many("ends of data", self.channels)
        } else if self.eofs == self.senders && self.eods.max(self.channels) > self.promised {
            too_many("data connections, as was promised", self.promised)
        } else {
            Ok(())
        };
        verdict.map_err(|error| self.fail(error))
    }

    fn fail(&mut self, error: FtpError) -> FtpError {
        self.failed.get_or_insert(error).clone()
    }
}

fn end_of(offset: u64, len: u64) -> Result<u64, FtpError> {
    let end = offset.checked_add(len).filter(|end| *end <= FILE_LEN_MAX);
    end.ok_or(FtpError::TooMany { what: "end of a block", max: FILE_LEN_MAX })
}
