//! Data connections that the server makes, over which blocks come (MODE E).
//!
//! In: the address of the control connection's two ends. Out: a place where the server may connect to, the
//! connections that it made, and for each what comes over it.
//! Invariants: where data connections show whose they are (`DCAU`), nothing comes over one before it did
//! (`callers.rs`), and it may come from anywhere; else a connection counts only if it comes from the host of
//! the control connection, or from one that the server named over that as a node of its own (`nodes.rs`).
//! There are at most [`LANES_MAX`], and all others are closed at once; nothing here waits.
//! Left out: where nothing is shown, who is at the other end of a connection beyond its address. That is
//! anybody at that host, or behind it; see `blocks.rs` for what he can do.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::Duration;

use haul_base::stop::Stop;
use haul_gridftp::mode_e::{Channel, Event, HEADER_LEN};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Error;
use crate::callers::Callers;
use crate::tls::{Bounded, Wire};

/// Most connections of one session.
pub(crate) const LANES_MAX: usize = 64;
/// Connections that are looked at together; what others want waits.
const ACCEPTS_MAX: usize = 16;
const LISTENING: &str = "listening for data connections";
const READING: &str = "reading from the server";

/// Where the server connects to, and its connections.
pub(crate) struct Lanes {
    pub(crate) listener: TcpListener,
    peer: IpAddr,
    /// Further hosts that the server has its data at.
    nodes: Vec<IpAddr>,
    /// So many nodes send, each of which says for itself when it is at its end.
    pub(crate) senders: u32,
    stop: Stop,
    /// How many connections the server was asked for.
    pub(crate) wanted: u32,
    pub(crate) all: Vec<Lane>,
    /// Those who must show whose they are first, where they must.
    pub(crate) callers: Option<Callers>,
    /// What was asked for and not taken yet.
    pub(crate) lined_up: usize,
    /// Somebody else who came last.
    pub(crate) stranger: Option<IpAddr>,
}

/// One connection.
pub(crate) struct Lane {
    pub(crate) wire: Wire,
    pub(crate) channel: Channel,
    /// How much of a header was read.
    header_len: usize,
    /// There may be more that the system does not tell of, for it was read already, or left.
    pub(crate) more: bool,
}

/// What one look at a connection came to.
pub(crate) enum Heard {
    /// Nothing is there now.
    Nothing,
    /// So many bytes of payload, which is all that was wanted, or all that was there.
    Payload(usize),
    Event(Event),
    /// A part of a header.
    Part,
}

impl Lanes {
    /// Listens at the address that the control connection has here.
    pub(crate) fn listen(
        (mut local, peer): (SocketAddr, SocketAddr),
        nodes: &[IpAddr],
        (wanted, senders): (u32, u32),
        callers: Option<Callers>,
        stop: &Stop,
    ) -> Result<Lanes, Error> {
        let failed = |cause| Error::Lost { doing: LISTENING, cause };
        local.set_port(0);
        let listener = TcpListener::bind(local).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let peer = peer.ip().to_canonical();
        let (stop, all, stranger) = (stop.clone(), Vec::new(), None);
        let nodes = nodes.to_vec();
        Ok(Lanes { listener, peer, nodes, senders, stop, wanted, all, callers, lined_up: 0, stranger })
    }

    /// Where each of the nodes that send is to connect to: here.
    pub(crate) fn places(&self) -> Result<Vec<SocketAddr>, Error> {
        let at = self.listener.local_addr().map_err(|cause| Error::Lost { doing: LISTENING, cause })?;
        Ok(vec![SocketAddr::new(at.ip().to_canonical(), at.port()); self.senders as usize])
    }

    /// Takes the connections that came; how many of them are the server's. More than there may be are an
    /// error.
    pub(crate) fn accept(&mut self) -> Result<usize, Error> {
        let had = self.all.len();
        for _ in 0..ACCEPTS_MAX {
            let (stream, from) = match self.listener.accept() {
                Ok(came) => came,
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => break,
                // Of that connection alone: it was gone before it was looked at.
                Err(cause) if cause.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
                Err(cause) => return Err(Error::Lost { doing: LISTENING, cause }),
            };
            let from = from.ip().to_canonical();
            let is_near = from == self.peer || self.nodes.contains(&from);
            if let Some(callers) = &mut self.callers
                && !haul_mutant::removed("ftp-lanes-show-whose-they-are")
            {
                // Small pieces go to and fro.
                if stream.set_nodelay(true).is_ok() {
                    callers.add(Bounded::new(stream, self.stop.clone()), is_near)?;
                }
                continue;
            }
            if !is_near && !haul_mutant::removed("ftp-lanes-of-the-server") {
                self.stranger = Some(from);
                continue;
            }
            self.add(Wire::plain(stream, self.stop.clone()))?;
        }
        Ok(self.all.len() - had)
    }

    fn add(&mut self, wire: Wire) -> Result<(), Error> {
        if self.all.len() == LANES_MAX {
            return Err(Error::Misfit(format!("the server makes more than {LANES_MAX} data connections")));
        }
        self.all.push(Lane { wire, channel: Channel::new(), header_len: 0, more: true });
        Ok(())
    }

    /// Takes those that showed whose they are, up to so many connections together; how many these are.
    pub(crate) fn admit(&mut self, max: usize) -> Result<usize, Error> {
        let had = self.all.len();
        while self.all.len() < max
            && let Some(wire) = self.callers.as_mut().and_then(Callers::next)
        {
            self.add(wire)?;
        }
        Ok(self.all.len() - had)
    }

    /// The server is not in this host's network, and that one has addresses that only it knows.
    pub(crate) fn are_behind_a_gateway(&self) -> bool {
        let local = self.listener.local_addr();
        local.is_ok_and(|local| is_private(local.ip()) && !is_private(self.peer))
    }

    /// Somebody connected who was not looked at yet, or did not show yet whose he is.
    pub(crate) fn has_callers(&self) -> bool {
        if self.callers.as_ref().is_some_and(Callers::has_some) {
            return true;
        }
        let mut fds = [PollFd::new(&self.listener, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Why somebody who connected was refused, where nobody else came.
    pub(crate) fn refused(&self) -> Option<&str> {
        self.callers.as_ref().filter(|_| self.all.is_empty())?.refused()
    }

    /// Nobody came within this time.
    pub(crate) fn uncalled(&self, within: Duration) -> Error {
        let refused = self.refused().map(str::to_owned);
        Error::Uncalled { within, stranger: self.stranger, refused }
    }

    /// Whether all connections that are kept from one transfer to the next are still there. Between the two
    /// nothing may come.
    pub(crate) fn are_kept(&mut self) -> Result<bool, Error> {
        for lane in &mut self.all {
            match lane.wire.read_now(&mut [0]) {
                Ok(None) => {}
                Ok(Some(0)) | Err(_) => return Ok(false),
                Ok(Some(_)) => {
                    return Err(Error::Misfit("the server sends data that nobody asked for".into()));
                }
            }
        }
        Ok(true)
    }
}

impl Lane {
    /// Looks at what comes: payload goes to `room` if there is any, which is for the payload that is
    /// expected.
    pub(crate) fn look(&mut self, room: Option<&mut [u8]>) -> Result<Heard, Error> {
        let failed = |cause| Error::Lost { doing: READING, cause };
        if let Some(room) = room {
            return match self.wire.read_now(room).map_err(failed)? {
                None => Ok(Heard::Nothing),
                Some(0) => Err(Error::Closed { doing: READING }),
                Some(len) => {
                    self.channel.skip(len);
                    Ok(Heard::Payload(len))
                }
            };
        }
        // What is told behind the payload of a block.
        if let (_, Some(event)) = self.channel.feed(&[])? {
            return Ok(Heard::Event(event));
        }
        let mut header = [0; HEADER_LEN];
        let rest = &mut header[self.header_len..];
        match self.wire.read_now(rest).map_err(failed)? {
            None => Ok(Heard::Nothing),
            Some(0) => Err(Error::Closed { doing: READING }),
            Some(len) => {
                let came = &rest[..len];
                self.header_len = (self.header_len + len) % HEADER_LEN;
                let (_, event) = self.channel.feed(came)?;
                Ok(event.map_or(Heard::Part, Heard::Event))
            }
        }
    }
}

/// An address that only its own network can reach.
fn is_private(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_private() || ip.is_loopback() || ip.is_link_local(),
        // Unique local, link-local and loopback ones.
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}
