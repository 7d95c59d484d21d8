//! A client of a volume: writes, reads and syncs of files by their numbers.
//!
//! In: what the application wants, of any length. Out: what became of it. Each write is cut at stripes, and
//! the pieces go all at once; what is smaller than the write threshold goes to the gatherer of its file,
//! everything else directly. A read has what the gatherer has over what the storage servers have. What has
//! not come to an end within the patience fails with who was waited for; it may still be done. Left out:
//! names, which the catalog has; small writes put together before they are sent.

mod brain;
mod came;
mod renew;

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded, unbounded};
use haul_core::volume::client::{Striping, Where};
use haul_core::volume::threshold::Counts;
use haul_core::volume::wire::{BYTES_MAX, MAP_MAX, Who};
use haul_core::volume::{ClientNo, ContentVersion, FileNo, ServerNo};
use haul_core::wire::FILE_LEN_MAX;

use self::brain::{Brain, Event, Want};
pub use self::came::Came;
use self::renew::Renewal;
use crate::catalog::client::{Client as Catalog, Tickets};
use crate::dial::{Dialler, Keys, To};
use crate::lists::Known;

/// A piece that its gatherer may have bytes of has so many bytes at most: so that what it has of it fits one
/// answer.
pub const READ_MAX: u64 = 256 * 1024;

/// What a client is told.
pub struct Config {
    pub keys: Keys,
    /// One that no other client of the volume ever had or will have, below 2^63.
    pub number: ClientNo,
    /// Where each server of the volume listens, in the volume's order.
    pub servers: Vec<SocketAddr>,
    /// Bytes.
    pub stripe_size: u64,
    /// What is smaller is gathered, bytes: 0 gathers nothing, `u64::MAX` everything. `None`: it sets itself.
    pub write_threshold: Option<u64>,
    /// So long something may take.
    pub patience: Duration,
}

/// Why something failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeError {
    /// Its bytes end behind what a file may have, or there are too many at a time.
    #[error("a range of a volume's file ends at most at 2^63 - 1 and has at most 64 MiB")]
    Range,
    /// A server's disk says no, as a gatherer's or a storage server's.
    #[error("server {} of the volume: {}", .0.0, haul_base::errno::text(io::Error::from_raw_os_error(*.1)))]
    Failed(ServerNo, i32),
    /// A server was started anew, or its host was, with what no sync was for.
    #[error("{} was lost with what was not synced", server(.0))]
    Lost(Where),
    /// The file was removed.
    #[error("the file was removed from the volume")]
    Gone,
    /// A look came to no end.
    #[error("somebody writes into the file all the time, or a server that has a part of it is away")]
    Busy,
    /// Nothing came of it in time.
    #[error("no answer within {} s; {}", .0.as_secs(), .1)]
    Late(Duration, String),
    /// The client was closed.
    #[error("the client of the volume was closed")]
    Closed,
    /// Who named the file did not ask its catalog how it lies.
    #[error("how the file lies on the servers is not known here")]
    Unplaced,
    /// A server has not all of the bytes any more that were written to it: from that offset on none.
    #[error(
        "server {} of the volume has lost its bytes at {offset}: all {whole} of them were there when it was copied in",
        .server.0
    )]
    Missing { server: ServerNo, offset: u64, whole: u64 },
    /// The server that gathers the file tells of another length than the catalog knows.
    #[error(
        "server {} of the volume, which gathers it, knows of {end} bytes, and {whole} were there when it was copied in: \
         its directory is older than the file, or its log lost something",
        .server.0
    )]
    OtherLength { server: ServerNo, end: u64, whole: u64 },
}

impl VolumeError {
    /// Bytes are lost that were written.
    pub fn is_loss(&self) -> bool {
        matches!(self, VolumeError::Missing { .. } | VolumeError::OtherLength { .. })
    }
}

/// What helps where bytes are lost, for people.
pub const LOST_HELP: &str = "bring that server's files back, or copy it into the volume again, which replaces it, or \
                             remove it; `haul volume fsck` names all that are so";

fn server(of: &Where) -> String {
    match of {
        Where::Gatherer => "the server that gathers the file".into(),
        Where::Storage(number) => format!("storage server {} of the volume", number.0),
    }
}

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// As many as were asked for: what was never written is zeros, behind the end too.
    pub bytes: Vec<u8>,
    /// Where the file ends, as far as its gatherer knows.
    pub end: u64,
    /// Where the first byte before the end is of those that were asked for and no server has: it was never
    /// written, or is lost, which [`contents::is_lost`](crate::contents::is_lost) tells.
    pub nowhere: Option<u64>,
}

/// What a look at a file showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Of its bytes.
    pub version: ContentVersion,
    /// Where it ends.
    pub end: u64,
    /// It was written since somebody told the catalog: see [`contents`](crate::contents).
    pub untold: bool,
}

/// What a map of some stripes showed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Map {
    /// Those of them that were gathered, in their order.
    pub gathered: Vec<Range<u64>>,
    /// Where the file ends, as far as its gatherer knows.
    pub end: u64,
    /// Of its bytes, if nobody can write it directly.
    pub version: Option<ContentVersion>,
}

impl Map {
    /// Whether that stripe was gathered, of those that were asked for.
    pub fn is_gathered(&self, stripe: u64) -> bool {
        let at = self.gathered.partition_point(|range| range.end <= stripe);
        self.gathered.get(at).is_some_and(|range| range.contains(&stripe))
    }
}

/// A range of one stripe that is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub file: FileNo,
    /// Bytes.
    pub offset: u64,
    /// Bytes: at least one, and of what may be gathered [`READ_MAX`] at most.
    pub len: u64,
    /// Its stripe was not gathered, as a [`Map`] showed that is of this same read, and the file ended there:
    /// its server is asked alone. Never set from an older map: what was gathered since would be missed.
    pub not_gathered: Option<u64>,
}

/// A server that is not heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Away {
    pub server: ServerNo,
    /// Since it was heard last, or since the client was started.
    pub time: Duration,
    /// Why, as far as anybody knows.
    pub why: String,
}

/// A client that is connected, or tries to be. Many threads may use it.
pub struct Client {
    to: Sender<Event>,
    striping: Striping,
    brain: Option<std::thread::JoinHandle<()>>,
    _lines: Vec<Dialler>,
}

/// Waits for what was begun.
#[must_use]
pub struct Waiting<T>(crossbeam_channel::Receiver<Result<T, VolumeError>>);

impl<T> Waiting<T> {
    /// What became of it.
    ///
    /// # Errors
    /// See [`VolumeError`].
    pub fn wait(self) -> Result<T, VolumeError> {
        self.0.recv().unwrap_or(Err(VolumeError::Closed))
    }

    /// The same, if it is over within `time`.
    pub fn wait_for(&self, time: Duration) -> Option<Result<T, VolumeError>> {
        match self.0.recv_timeout(time) {
            Ok(result) => Some(result),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(VolumeError::Closed)),
        }
    }
}

impl Client {
    /// Begins to connect to all servers.
    ///
    /// # Errors
    /// The volume has no server, or no bytes in a stripe; the system gives no threads.
    pub fn start(config: Config) -> io::Result<Client> {
        Client::begin(config, Arc::default(), None)
    }

    /// The same with what a client of the volume's catalog, whose number this has, knows: its tickets, and
    /// how files lie whose placement a program gave.
    ///
    /// # Errors
    /// As of [`Client::start`].
    pub fn start_for(config: Config, catalog: &Catalog) -> io::Result<Client> {
        let tickets = catalog.tickets();
        let needed = tickets.needed();
        Client::begin(config, catalog.lists(), needed.then_some(tickets))
    }

    fn begin(config: Config, lists: Arc<Known>, tickets: Option<Tickets>) -> io::Result<Client> {
        if config.servers.is_empty()
            || config.servers.len() > usize::from(u16::MAX)
            || config.stripe_size == 0
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (to, events) = unbounded();
        let mut lines = Vec::new();
        let servers = u16::try_from(config.servers.len()).unwrap_or(u16::MAX);
        let striping = Striping::new(config.stripe_size, servers).with_lists(lists);
        for (number, at) in config.servers.iter().enumerate() {
            let (server, events) = (ServerNo(number as u16), to.clone());
            let post = move |line| _ = events.send(Event::Line(server, line));
            let to = To { server, at: *at, striping: striping.clone() };
            lines.push(Dialler::start(config.keys.clone(), to, Who::Client(config.number), 1, post)?);
        }
        let mut brain = Brain::new(&config, striping.clone());
        let events_of = to.clone();
        let tells = move |files, given| events_of.send(Event::Tickets(files, given)).is_ok();
        brain.tickets = tickets.map(|tickets| Renewal::start(tickets, tells)).transpose()?;
        let thread = std::thread::Builder::new().name("haul-vol-client".into());
        let brain = Some(thread.spawn(move || brain.run(&events))?);
        Ok(Client { to, striping, brain, _lines: lines })
    }

    /// How files lie on the servers.
    pub fn striping(&self) -> &Striping {
        &self.striping
    }

    fn want<T>(&self, want: impl FnOnce(Sender<Result<T, VolumeError>>) -> Want) -> Waiting<T> {
        let (reply, waiting) = bounded(1);
        let _ = self.to.send(Event::Want(want(reply)));
        Waiting(waiting)
    }

    /// The same of a file.
    fn want_of<T>(
        &self,
        file: FileNo,
        want: impl FnOnce(Sender<Result<T, VolumeError>>) -> Want,
    ) -> Waiting<T> {
        match self.striping.knows(file) {
            true => self.want(want),
            false => Client::refuse(VolumeError::Unplaced),
        }
    }

    fn refuse<T>(why: VolumeError) -> Waiting<T> {
        let (reply, waiting) = bounded(1);
        let _ = reply.send(Err(why));
        Waiting(waiting)
    }

    fn is_sound(offset: u64, len: u64) -> bool {
        len <= BYTES_MAX && offset.checked_add(len).is_some_and(|end| end <= FILE_LEN_MAX)
    }

    /// Begins to write bytes to a place of a file. Writes that overlap are done in the order in which they
    /// were begun. It is over when others can read it; a sync makes it last.
    pub fn write(&self, file: FileNo, offset: u64, bytes: Vec<u8>) -> Waiting<()> {
        if !Client::is_sound(offset, bytes.len() as u64) {
            return Client::refuse(VolumeError::Range);
        }
        self.want_of(file, |reply| Want::Write { file, offset, bytes: Arc::new(bytes), reply })
    }

    /// Begins to read a range of a file: what was written before, by whoever heard that it was. Of no bytes
    /// the server that gathers the file is asked alone, and what comes is where the file ends.
    pub fn read(&self, file: FileNo, offset: u64, len: u64) -> Waiting<Read> {
        if !Client::is_sound(offset, len) {
            return Client::refuse(VolumeError::Range);
        }
        self.want_of(file, |reply| Want::Read { file, offset, len, reply })
    }

    /// Begins to ask which of these stripes are gathered: at least one, and 4096 at most.
    pub fn map(&self, file: FileNo, stripes: Range<u64>) -> Waiting<Map> {
        let is_sound = stripes.start < stripes.end && stripes.end - stripes.start <= MAP_MAX;
        match is_sound && stripes.end <= FILE_LEN_MAX {
            true => self.want_of(file, |reply| Want::Map { file, stripes, reply }),
            false => Client::refuse(VolumeError::Range),
        }
    }

    /// Begins to read a piece. `to` is called once, from a thread of the client, which it must not hold up.
    pub fn piece(&self, piece: Piece, to: impl FnOnce(Result<Came, VolumeError>) + Send + 'static) {
        let Piece { offset, len, .. } = piece;
        let max = if piece.not_gathered.is_some() { BYTES_MAX } else { READ_MAX };
        let is_sound = (1..=max).contains(&len) && Client::is_sound(offset, len);
        let stripe_size = self.striping.stripe_size;
        if !is_sound || offset / stripe_size != (offset + len - 1) / stripe_size {
            return to(Err(VolumeError::Range));
        }
        if !self.striping.knows(piece.file) {
            return to(Err(VolumeError::Unplaced));
        }
        let _ = self.to.send(Event::Want(Want::Piece { piece, to: Box::new(to) }));
    }

    /// Begins to put bytes behind the file's end, and tells where they stand: behind what was gathered or
    /// appended, what a sync of anybody was for, and what this client wrote.
    pub fn append(&self, file: FileNo, bytes: Vec<u8>) -> Waiting<u64> {
        if bytes.is_empty() || !Client::is_sound(0, bytes.len() as u64) {
            return Client::refuse(VolumeError::Range);
        }
        self.want_of(file, |reply| Want::Append { file, bytes: Arc::new(bytes), reply })
    }

    /// Begins to cut or extend a file to a length: what was behind it is gone, what was not there is zeros.
    /// That lasts when it is over.
    pub fn truncate(&self, file: FileNo, len: u64) -> Waiting<()> {
        if len > FILE_LEN_MAX {
            return Client::refuse(VolumeError::Range);
        }
        self.want_of(file, |reply| Want::Truncate { file, len, reply })
    }

    /// Begins to remove a file for good: its number is never used again. Nobody may have it open.
    pub fn remove(&self, file: FileNo) -> Waiting<()> {
        self.want_of(file, |reply| Want::Remove { file, reply })
    }

    /// Begins to look which version of its bytes a file has, and how long it is. All of that lasts; who could
    /// write it directly gives that up for it. [`VolumeError::Busy`]: somebody writes all the time.
    pub fn look(&self, file: FileNo) -> Waiting<Look> {
        self.want_of(file, |reply| Want::Look { file, reply })
    }

    /// Begins to say that the catalog knows of all that was written to a file up to this version of it. It is
    /// false where the file is of another by now, to which a server that starts anew brings it, too: then
    /// that counts for nothing.
    pub fn told(&self, file: FileNo, version: ContentVersion) -> Waiting<bool> {
        self.want_of(file, |reply| Want::Told { file, version, reply })
    }

    /// The write threshold as it is now, bytes; and how many writes began, were gathered, and went the other
    /// way to see what that costs.
    ///
    /// # Errors
    /// The client is closed.
    pub fn threshold(&self) -> Result<(u64, Counts), VolumeError> {
        self.want(|reply| Want::Threshold { reply }).wait()
    }

    /// What is smaller is gathered from here on, and the threshold does not move any more: 0 gathers nothing,
    /// `u64::MAX` everything.
    pub fn pin_threshold(&self, threshold: u64) {
        let _ = self.to.send(Event::Want(Want::Pin { threshold }));
    }

    /// Which servers are not there at the moment, or are connected and say nothing for some seconds.
    ///
    /// # Errors
    /// The client is closed.
    pub fn away(&self) -> Result<Vec<Away>, VolumeError> {
        self.want(|reply| Want::Away { reply }).wait()
    }

    /// Begins to make last what this client wrote to a file before. If it fails, what was not synced before
    /// may be lost, in part or whole.
    pub fn sync(&self, file: FileNo) -> Waiting<()> {
        self.want_of(file, |reply| Want::Sync { file, reply })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.to.send(Event::Stop);
        if let Some(brain) = self.brain.take() {
            let _ = brain.join();
        }
    }
}
