//! Where a server listens for data, and one connection there that is being made.
//!
//! In: what it answered so far. Out: a place that it told ahead, whether more is asked ahead; a connection,
//! while something else is said.
//! Invariant: a place that was told ahead is used once, and soon, for the server has it open as long.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use haul_base::stop::Stop;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

/// A place that was told longer ago is not used.
const KNOWN_FOR: Duration = Duration::from_secs(5);
/// Of a server whose answers take less nothing is asked ahead.
const FAR: Duration = Duration::from_millis(2);
/// One that was busy is asked this part of a round trip later, within these bounds, so that it has the end of
/// the file by then; and after so many times in a row not any more.
const LATER_SHARE: u32 = 8;
const LATER_MIN: Duration = Duration::from_millis(2);
const LATER_MAX: Duration = Duration::from_millis(20);
const BUSY_MAX: u32 = 3;

/// How a server listens for data.
#[derive(Debug, Default)]
pub(crate) struct Listens {
    /// It knows no `EPSV`, only `PASV`.
    plain: bool,
    /// A data connection with it came up.
    came_up: bool,
    /// Where it listens, by what it was asked ahead.
    known: Option<(SocketAddr, Instant)>,
    /// How often in a row it was busy when it was asked ahead.
    busy: u32,
    /// It is not asked so.
    never: bool,
}

impl Listens {
    /// `EPSV` was answered, or not tried yet.
    pub(crate) fn is_extended(&self) -> bool {
        !self.plain
    }

    pub(crate) fn set_plain(&mut self) {
        self.plain = true;
    }

    pub(crate) fn come_up(&self) -> bool {
        self.came_up
    }

    pub(crate) fn set_come_up(&mut self) {
        self.came_up = true;
    }

    /// Where it listens, if that was told.
    pub(crate) fn take_known(&mut self) -> Option<SocketAddr> {
        let (address, since) = self.known.take()?;
        (since.elapsed() < KNOWN_FOR).then_some(address)
    }

    /// Whether it is asked for the next place behind a file, and how long after its end.
    pub(crate) fn asks_ahead(&self, round_trip: Option<Duration>) -> Option<Duration> {
        let trip = round_trip.filter(|trip| *trip >= FAR)?;
        if self.plain || self.never || haul_mutant::removed("ftp-places-are-asked-for-ahead") {
            return None;
        }
        Some(if self.busy == 0 { Duration::ZERO } else { (trip / LATER_SHARE).clamp(LATER_MIN, LATER_MAX) })
    }

    /// It told the place.
    pub(crate) fn told(&mut self, address: SocketAddr) {
        (self.known, self.busy) = (Some((address, Instant::now())), 0);
    }

    /// It was busy, or told nothing.
    pub(crate) fn told_nothing(&mut self) {
        self.busy += 1;
        self.never |= self.busy >= BUSY_MAX;
    }

    /// It does not answer what it is asked so.
    pub(crate) fn set_never(&mut self) {
        self.never = true;
    }

    pub(crate) fn is_never(&self) -> bool {
        self.never
    }
}

/// A connection that is being made.
pub(crate) struct Dialling(OwnedFd);

impl Dialling {
    pub(crate) fn begin(address: SocketAddr) -> io::Result<Dialling> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        match connect(&socket, &address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS | rustix::io::Errno::INTR) => Ok(Dialling(socket)),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Waits until it is made.
    ///
    /// # Errors
    /// It is not, within the patience, or somebody wants an end.
    pub(crate) fn end(self, patience: Duration, stop: &Stop) -> io::Result<TcpStream> {
        let Dialling(socket) = self;
        let begun = Instant::now();
        loop {
            stop.check_of(begun)?;
            let left = patience.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it was not made in time"));
            }
            let time = Timespec::try_from(stop.until_look(left)).map_err(|_| io::ErrorKind::InvalidInput)?;
            match poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&time)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        sockopt::socket_error(&socket)??;
        let stream = TcpStream::from(socket);
        stream.set_nonblocking(false)?;
        Ok(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIP: Option<Duration> = Some(Duration::from_millis(50));

    /// Goal: a near server, one that knows no `EPSV`, and one that is always busy, is asked nothing ahead; a
    /// place is used once.
    #[test]
    fn places_are_known_once() {
        let mut listens = Listens::default();
        assert_eq!(listens.asks_ahead(None), None);
        assert_eq!(listens.asks_ahead(Some(Duration::from_micros(100))), None);
        assert_eq!(listens.asks_ahead(TRIP), Some(Duration::ZERO));
        let place = SocketAddr::from(([127, 0, 0, 1], 7));
        listens.told(place);
        assert_eq!((listens.take_known(), listens.take_known()), (Some(place), None));
        listens.told_nothing();
        assert!(listens.asks_ahead(TRIP).is_some_and(|later| later > Duration::ZERO));
        listens.told(place);
        assert_eq!(listens.asks_ahead(TRIP), Some(Duration::ZERO));
        (0..BUSY_MAX).for_each(|_| listens.told_nothing());
        assert_eq!(listens.asks_ahead(TRIP), None);
        let mut plain = Listens::default();
        plain.set_plain();
        assert_eq!(plain.asks_ahead(TRIP), None);
    }

    /// Goal: a connection is made, and one that is refused is an error of that kind.
    #[test]
    fn dials_end() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listen");
        let address = listener.local_addr().expect("where");
        let dialling = Dialling::begin(address).expect("begin");
        let stream = dialling.end(Duration::from_secs(20), &Stop::never()).expect("it is made");
        assert_eq!(stream.peer_addr().expect("where"), address);
        drop(listener);
        let made = Dialling::begin(address).and_then(|it| it.end(Duration::from_secs(20), &Stop::never()));
        assert_eq!(made.map(drop).map_err(|error| error.kind()), Err(io::ErrorKind::ConnectionRefused));
    }
}
