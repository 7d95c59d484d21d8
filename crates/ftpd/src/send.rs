//! Data to a client: one connection in stream mode, several with blocks in MODE E.
//!
//! In: a [`Feed`], which yields pieces of a file or of a listing. Out: bytes on connections.
//! What must hold: a block's header is sent only with all its bytes behind it, or the connections are reset;
//! a transfer that fails never looks like one that ended.
//! From the page cache to a socket in the clear no byte passes this process (`sendfile`).
//! What is large goes from several threads ([`threads`]).

mod threads;

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;

use haul_gridftp::mode_e::Header;
use rustix::event::PollFlags;
use rustix::io::Errno;

use crate::control::Control;
use crate::data::{Conn, Data, Stream};
use crate::listing::Listing;
use crate::progress::Progress;
use crate::store::File;
use crate::transfer::Stop;
use crate::tree::Lost;

/// Bytes of a block in MODE E, and what of a file goes in one piece.
pub const BLOCK_LEN: u64 = 1 << 20;
/// What is read at a time where a connection is protected.
const COPY_LEN: usize = 64 << 10;
/// Pieces that are read ahead where a file is no file of the system.
const AHEAD: usize = 8;

/// A piece of what is sent.
pub enum Piece {
    /// Of the file: from here, so long; its place on the wire.
    File { from: u64, len: u64, at: u64 },
    Text {
        text: Vec<u8>,
        /// Bytes of it that have gone.
        sent: usize,
        at: u64,
    },
}

/// What is sent.
pub trait Feed {
    /// The next piece, if there is one.
    ///
    /// # Errors
    /// It cannot be read.
    fn next(&mut self) -> Result<Option<Piece>, Lost>;
    /// The file of the system that pieces are of.
    fn file(&self) -> Option<BorrowedFd<'_>>;
    /// The same for several threads, and how many bytes are left, at least; `None`: for one alone.
    fn shared(&mut self) -> Option<(&mut (dyn Feed + Send), u64)> {
        None
    }
}

/// What of a file goes, piece by piece: from where up to where, none longer than a block.
pub trait Pieces: Iterator<Item = (u64, u64)> + Send {
    /// Bytes that are left, at least, where several threads may send them.
    fn left(&self) -> Option<u64> {
        None
    }
}

/// Ranges in pieces of a block at most.
pub struct Blocks {
    /// What is left, the next one last: from where up to where.
    left: Vec<(u64, u64)>,
}

impl Blocks {
    pub fn new(ranges: impl Iterator<Item = (u64, u64)>) -> Blocks {
        let mut left: Vec<(u64, u64)> = ranges.collect();
        left.reverse();
        Blocks { left }
    }
}

impl Iterator for Blocks {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        let (start, end) = self.left.pop()?;
        let to = end.min(start.saturating_add(BLOCK_LEN));
        if to < end {
            self.left.push((to, end));
        }
        Some((start, to))
    }
}

impl Pieces for Blocks {
    fn left(&self) -> Option<u64> {
        Some(self.left.iter().map(|(start, end)| end - start).sum())
    }
}

/// Parts of a file.
pub struct FileFeed<R> {
    file: Box<dyn File>,
    /// From where up to where, in the order in which they go; a block at most.
    pieces: R,
    /// Those of them that the file was told of.
    next: VecDeque<(u64, u64)>,
    /// The byte of the file that is the first of the wire.
    base: u64,
}

impl<R: Pieces> FileFeed<R> {
    /// `pieces`: what of the file goes, none longer than [`BLOCK_LEN`].
    pub fn new(file: Box<dyn File>, pieces: R, base: u64) -> FileFeed<R> {
        FileFeed { file, pieces, next: VecDeque::new(), base }
    }

    pub fn into_file(self) -> Box<dyn File> {
        self.file
    }

    /// Has some pieces read ahead; the next one.
    fn announced(&mut self) -> Option<(u64, u64)> {
        if self.next.len() <= AHEAD / 2 {
            let more: Vec<(u64, u64)> = self.pieces.by_ref().take(AHEAD - self.next.len()).collect();
            self.next.extend(&more);
            // One alone is read at once.
            if self.next.len() > 1 && !more.is_empty() {
                self.file.ahead(&more);
            }
        }
        self.next.pop_front()
    }
}

impl<R: Pieces> Feed for FileFeed<R> {
    fn next(&mut self) -> Result<Option<Piece>, Lost> {
        if self.file.fd().is_some() {
            let piece = self.pieces.next();
            let piece = piece.map(|(from, to)| Piece::File { from, len: to - from, at: from - self.base });
            return Ok(piece);
        }
        let Some((from, to)) = self.announced() else { return Ok(None) };
        let mut text = vec![0; usize::try_from(to - from).map_err(|_| Errno::FBIG)?];
        let mut filled = 0;
        while filled < text.len() {
            match self.file.read_at(&mut text[filled..], from + filled as u64)? {
                0 => return Err(Lost::Shrank),
                len => filled += len,
            }
        }
        Ok(Some(Piece::Text { text, sent: 0, at: from - self.base }))
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.fd()
    }
    fn shared(&mut self) -> Option<(&mut (dyn Feed + Send), u64)> {
        // What is no file of the system is read by one thread, from all of its servers at once.
        let left = self.pieces.left().filter(|_| self.file.fd().is_some())?;
        Some((self, left))
    }
}

/// A listing.
pub struct TextFeed {
    pub listing: Listing,
    at: u64,
}

impl TextFeed {
    pub fn new(listing: Listing) -> TextFeed {
        TextFeed { listing, at: 0 }
    }
}

impl Feed for TextFeed {
    fn next(&mut self) -> Result<Option<Piece>, Lost> {
        let text = self.listing.piece()?;
        let at = self.at;
        self.at += text.len() as u64;
        Ok((!text.is_empty()).then_some(Piece::Text { text, sent: 0, at }))
    }
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// What is on its way into one connection.
#[derive(Default)]
struct Out {
    head: Vec<u8>,
    head_at: usize,
    piece: Option<Piece>,
    /// This connection has had its last header.
    ended: bool,
}

impl Out {
    fn is_empty(&self) -> bool {
        self.head_at == self.head.len() && self.piece.is_none()
    }

    /// Pushes as much as goes; `moved` hears how much. True: all of it went.
    fn push(
        &mut self,
        to: &mut dyn Stream,
        file: Option<BorrowedFd<'_>>,
        moved: impl Fn(usize),
    ) -> Result<bool, Stop> {
        while self.head_at < self.head.len() {
            match to.write(&self.head[self.head_at..]) {
                Ok(0) => return Err(Stop::Data(ErrorKind::WriteZero.into())),
                Ok(len) => self.head_at += len,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Ok(false),
                    ErrorKind::Interrupted => {}
                    _ => return Err(Stop::Data(error)),
                },
            }
        }
        while let Some(piece) = &mut self.piece {
            let sent = match piece {
                Piece::Text { text, .. } if text.is_empty() => None,
                Piece::File { len: 0, .. } => None,
                Piece::Text { text, sent, .. } => Some(to.write(&text[*sent..])),
                Piece::File { from, len, .. } => {
                    Some(from_file(to, file.expect("pieces of a file have one"), *from, *len)?)
                }
            };
            let len = match sent {
                None => {
                    self.piece = None;
                    break;
                }
                Some(Ok(0)) => return Err(Stop::Data(ErrorKind::WriteZero.into())),
                Some(Ok(len)) => len,
                Some(Err(error)) => match error.kind() {
                    ErrorKind::WouldBlock => return Ok(false),
                    ErrorKind::Interrupted => 0,
                    _ => return Err(Stop::Data(error)),
                },
            };
            moved(len);
            match piece {
                Piece::Text { text, sent, .. } => {
                    *sent += len;
                    if *sent == text.len() {
                        (*text, *sent) = (Vec::new(), 0);
                    }
                }
                Piece::File { from, len: left, .. } => {
                    *from += len as u64;
                    *left -= len as u64;
                }
            }
        }
        Ok(true)
    }
}

/// Some bytes of a file into a connection.
fn from_file(
    to: &mut dyn Stream,
    file: BorrowedFd<'_>,
    from: u64,
    len: u64,
) -> Result<std::io::Result<usize>, Stop> {
    let want = usize::try_from(len).unwrap_or(usize::MAX);
    if let Some(socket) = to.plain() {
        let mut offset = from;
        return match rustix::fs::sendfile(socket, file, Some(&mut offset), want) {
            Ok(0) => Err(Stop::Shrank),
            Ok(len) => Ok(Ok(len)),
            Err(Errno::IO) => Err(Stop::Read(Lost::System(Errno::IO))),
            Err(errno) => Ok(Err(errno.into())),
        };
    }
    let mut bytes = [0; COPY_LEN];
    match rustix::io::pread(file, &mut bytes[..want.min(COPY_LEN)], from) {
        Ok(0) => Err(Stop::Shrank),
        Ok(len) => Ok(to.write(&bytes[..len])),
        Err(Errno::INTR) => Ok(Err(ErrorKind::Interrupted.into())),
        Err(errno) => Err(Stop::Read(Lost::System(errno))),
    }
}

/// Sends all of `feed` through one connection.
///
/// # Errors
/// It was not all; then the connection was reset.
pub fn stream(
    control: &mut Control,
    mut conn: Conn,
    feed: &mut dyn Feed,
    progress: &Progress,
) -> Result<(), Stop> {
    let sent = send_stream(control, &mut conn, feed, progress);
    match sent {
        Ok(()) => Ok(()),
        Err(stop) => {
            conn.reset();
            Err(stop)
        }
    }
}

fn send_stream(
    control: &mut Control,
    conn: &mut Conn,
    feed: &mut dyn Feed,
    progress: &Progress,
) -> Result<(), Stop> {
    while let Some(piece) = feed.next()? {
        let mut out = Out { piece: Some(piece), ..Out::default() };
        while !out.push(&mut *conn.stream, feed.file(), |len| progress.add(len))? {
            control.wait(&[(conn.stream.fd(), PollFlags::OUT)], progress.deadline(), Some(progress))?;
        }
        // A fast connection never blocks, and `ABOR` is heard all the same.
        control.wait(&[(conn.stream.fd(), PollFlags::OUT)], progress.deadline(), Some(progress))?;
    }
    drain(
        &mut *conn.stream,
        |stream| stream.end(),
        |wanted| Ok(control.wait(&[wanted], progress.deadline(), Some(progress)).map(drop)?),
    )
}

/// Has what protects a connection send what it still holds; `wait` waits for it.
fn drain(
    stream: &mut dyn Stream,
    mut send: impl FnMut(&mut dyn Stream) -> std::io::Result<()>,
    mut wait: impl FnMut((BorrowedFd<'_>, PollFlags)) -> Result<(), Stop>,
) -> Result<(), Stop> {
    loop {
        match send(stream) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait((stream.fd(), PollFlags::OUT))?,
            Err(error) => return Err(Stop::Data(error)),
        }
    }
}

/// Sends all of `feed` in MODE E through `conns`, which are kept for the next transfer.
///
/// # Errors
/// It was not all; then the connections were reset.
pub fn blocks(
    control: &mut Control,
    data: &mut Data,
    mut conns: Vec<Conn>,
    feed: &mut dyn Feed,
    progress: &Progress,
) -> Result<(), Stop> {
    let many = feed.shared().and_then(|(feed, left)| Some((feed, threads::count(conns.len(), left)?)));
    let sent = match many {
        Some((feed, count)) => threads::send(control, &mut conns, feed, progress, count),
        None => {
            let ends = Header::ends(conns.len() as u64, false)?;
            send_blocks(&mut conns, &mut Alone { control, feed, progress, ends, is_over: false })
        }
    };
    match sent {
        Ok(()) => {
            data.kept = conns;
            Ok(())
        }
        Err(stop) => {
            conns.into_iter().for_each(Conn::reset);
            Err(stop)
        }
    }
}

/// What a thread that sends blocks asks for.
trait Turn {
    /// The next piece; none is left.
    fn next(&mut self) -> Result<Option<Piece>, Stop>;
    /// The header that ends the next connection.
    fn end(&mut self) -> Header;
    /// The file that pieces are of.
    fn file(&self) -> Option<BorrowedFd<'_>>;
    fn moved(&self, len: usize);
    /// Waits for one of these, and says which are ready.
    fn wait(&mut self, wanted: &[(BorrowedFd<'_>, PollFlags)]) -> Result<Vec<bool>, Stop>;
}

/// One thread sends all, and hears the client.
struct Alone<'a, E> {
    control: &'a mut Control,
    feed: &'a mut dyn Feed,
    progress: &'a Progress,
    ends: E,
    is_over: bool,
}

impl<E: Iterator<Item = Header>> Turn for Alone<'_, E> {
    fn next(&mut self) -> Result<Option<Piece>, Stop> {
        let piece = if self.is_over { None } else { self.feed.next()? };
        self.is_over = piece.is_none();
        Ok(piece)
    }
    fn end(&mut self) -> Header {
        self.ends.next().expect("one for each connection")
    }
    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.feed.file()
    }
    fn moved(&self, len: usize) {
        self.progress.add(len);
    }
    fn wait(&mut self, wanted: &[(BorrowedFd<'_>, PollFlags)]) -> Result<Vec<bool>, Stop> {
        Ok(self.control.wait(wanted, self.progress.deadline(), Some(self.progress))?)
    }
}

fn send_blocks(conns: &mut [Conn], turn: &mut dyn Turn) -> Result<(), Stop> {
    let mut outs: Vec<Out> = conns.iter().map(|_| Out::default()).collect();
    let mut ready = vec![true; conns.len()];
    loop {
        for (i, conn) in conns.iter_mut().enumerate() {
            let out = &mut outs[i];
            // A block at a time, so that all have their turn.
            if !ready[i] || out.ended && out.is_empty() {
                continue;
            }
            if out.is_empty() {
                out.head_at = 0;
                match turn.next()? {
                    Some(piece) => {
                        let (at, len) = match &piece {
                            Piece::File { at, len, .. } => (*at, *len),
                            Piece::Text { text, at, .. } => (*at, text.len() as u64),
                        };
                        out.head = Header::data(at, len)?.encode().to_vec();
                        out.piece = Some(piece);
                    }
                    None => {
                        out.head = turn.end().encode().to_vec();
                        out.ended = true;
                    }
                }
            }
            ready[i] = out.push(&mut *conn.stream, turn.file(), |len| turn.moved(len))?;
        }
        if outs.iter().all(|out| out.ended && out.is_empty()) {
            for conn in conns {
                drain(&mut *conn.stream, |stream| stream.flush(), |wanted| turn.wait(&[wanted]).map(drop))?;
            }
            return Ok(());
        }
        let waiting: Vec<usize> =
            (0..conns.len()).filter(|i| !(outs[*i].ended && outs[*i].is_empty())).collect();
        let wanted: Vec<(BorrowedFd<'_>, PollFlags)> =
            waiting.iter().map(|i| (conns[*i].stream.fd(), PollFlags::OUT)).collect();
        let now = turn.wait(&wanted)?;
        for (i, is_ready) in waiting.into_iter().zip(now) {
            ready[i] = is_ready;
        }
    }
}

/// Connections for a transfer in MODE E to the client: those that are kept and live, or new ones.
///
/// # Errors
/// There is none.
pub fn channels(
    control: &mut Control,
    data: &mut Data,
    count: usize,
    progress: &Progress,
) -> Result<(Vec<Conn>, bool), Stop> {
    let kept = std::mem::take(&mut data.kept);
    let live: Vec<Conn> = kept.into_iter().filter_map(alive).collect();
    if !live.is_empty() {
        return Ok((live, true));
    }
    let dialled = data.dial(count, control, progress);
    Ok((dialled.map_err(Stop::from)?.map_err(Stop::Data)?, false))
}

/// Nothing ever comes through a connection to the client: what does is its end.
fn alive(mut conn: Conn) -> Option<Conn> {
    match conn.stream.read(&mut [0; 1]) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Some(conn),
        _ => None,
    }
}
