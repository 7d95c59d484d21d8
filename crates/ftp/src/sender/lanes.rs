//! Connections that this end makes, over which blocks go (MODE E).
//!
//! In: where the server listens, how many; blocks, ends. Out: what each connection takes now, without a wait.
//! Invariants: a block is given to one connection, whole, and what that one does not take at once it holds
//! itself, one block and its end at most; a server says nothing over a connection that brings it data.

use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use haul_base::stop::Stop;
use haul_gridftp::mode_e::HEADER_LEN;

use crate::Error;
use crate::tls::{Bounded, Wire};

/// Most connections of one session.
pub(crate) const OUTLETS_MAX: u32 = 64;
/// Longest block, as Globus has them; and one of which TLS takes all at a time.
const BLOCK_LEN: usize = 256 << 10;
const SEALED_LEN: usize = (64 << 10) - 2 * HEADER_LEN;
pub(super) const SENDING: &str = "sending to the server";

/// The connections of a session in MODE E.
#[derive(Default)]
pub(crate) struct Outlets {
    /// They were dialled, and nothing went over them so far.
    pub(super) fresh: Vec<Bounded>,
    /// Those of one node are as many places apart as there are nodes.
    pub(super) all: Vec<Outlet>,
    /// Nodes that they go to.
    pub(super) nodes: usize,
    /// `STOR`s that were said and not answered.
    pub(super) lined_up: usize,
    /// Whose turn it is.
    pub(super) turn: usize,
}

/// One connection.
pub(super) struct Outlet {
    pub(super) wire: Wire,
    /// What it was given and did not take yet, from `at` on.
    rest: Vec<u8>,
    at: usize,
    /// Bytes that it was given in all, those of headers among them.
    given: u64,
    /// The server closed it.
    pub(super) is_closed: bool,
}

impl Outlets {
    /// They are there, so many of them, and the server closed none; nothing came over them.
    pub(super) fn are_kept(&mut self, connections: u32) -> Result<bool, Error> {
        if self.all.len() != connections as usize {
            return Ok(false);
        }
        for lane in &mut self.all {
            if !lane.hears_nothing()? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Outlet {
    pub(super) fn new(wire: Wire) -> Outlet {
        Outlet { wire, rest: Vec::new(), at: 0, given: 0, is_closed: false }
    }

    /// How much of a file goes into one block here.
    pub(super) fn block_len(&self) -> usize {
        if self.wire.seals() { SEALED_LEN } else { BLOCK_LEN }
    }

    /// It holds nothing that it was given.
    pub(super) fn is_free(&self) -> bool {
        self.rest.is_empty()
    }

    /// Gives it these parts, if it takes any of them now. It must be free.
    pub(super) fn put(&mut self, parts: [&[u8]; 3]) -> Result<bool, Error> {
        debug_assert!(self.is_free());
        let slices = parts.map(IoSlice::new);
        let mut taken = self.wire.write_now(&slices).map_err(lost)?;
        if taken == 0 {
            return Ok(false);
        }
        self.given += parts.iter().map(|part| part.len() as u64).sum::<u64>();
        for part in parts {
            let own = taken.min(part.len());
            self.rest.extend_from_slice(&part[own..]);
            taken -= own;
        }
        Ok(true)
    }

    /// Gives it this behind all else.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        self.given += bytes.len() as u64;
    }

    /// Bytes that it was given so far, and how many of them went.
    pub(super) fn given(&self) -> u64 {
        self.given
    }

    /// The same of those that went.
    pub(super) fn taken(&self) -> u64 {
        self.given - (self.rest.len() - self.at) as u64
    }

    /// Whether it takes something of what it holds now.
    pub(super) fn push(&mut self) -> Result<bool, Error> {
        let mut moved = false;
        while self.at < self.rest.len() {
            match self.wire.write_now(&[IoSlice::new(&self.rest[self.at..])]).map_err(lost)? {
                0 => return Ok(moved),
                len => self.at += len,
            }
            moved = true;
        }
        self.rest.clear();
        self.at = 0;
        Ok(moved)
    }

    /// All that it was given is the system's to send.
    pub(super) fn is_out(&mut self) -> Result<bool, Error> {
        Ok(self.is_free() && self.wire.flush_now().map_err(lost)?)
    }

    /// The server did not close it. It has nothing to say here.
    pub(super) fn hears_nothing(&mut self) -> Result<bool, Error> {
        match self.wire.read_now(&mut [0]) {
            Ok(None) => Ok(true),
            Ok(Some(0)) | Err(_) => Ok(false),
            Ok(Some(_)) => {
                Err(Error::Misfit("the server sends over a connection that should bring it data".into()))
            }
        }
    }
}

fn lost(cause: io::Error) -> Error {
    Error::Lost { doing: SENDING, cause }
}

/// Makes so many connections at a time, for each takes a round trip; to each address in its turn.
pub(super) fn dial(
    addresses: &[SocketAddr],
    connections: u32,
    (patience, stop): (Duration, &Stop),
) -> Result<Vec<Bounded>, Error> {
    let failed = |(to, cause)| Error::unreached_for_data(to, patience, cause);
    let one = move |to: SocketAddr| {
        let dialled = TcpStream::connect_timeout(&to, patience).and_then(|stream| {
            // Blocks go as they are given.
            stream.set_nodelay(true)?;
            Ok(stream)
        });
        dialled.map_err(|cause| (to, cause))
    };
    let first = addresses[0];
    let to: Vec<SocketAddr> = addresses.iter().copied().cycle().take(connections as usize).collect();
    let all = move || {
        thread::scope(|scope| {
            let dials: Vec<_> = to[1..].iter().map(|to| scope.spawn(move || one(*to))).collect();
            let first = one(to[0]);
            let others = dials
                .into_iter()
                .zip(&to[1..])
                .map(|(dial, to)| dial.join().unwrap_or_else(|_| Err((*to, io::ErrorKind::Other.into()))));
            std::iter::once(first).chain(others).collect::<Result<Vec<TcpStream>, _>>()
        })
    };
    let dialled = stop.unless_asked("haul-ftp-dial", all).map_err(|cause| (first, cause));
    let dialled = dialled.and_then(|dialled| dialled).map_err(failed)?;
    Ok(dialled.into_iter().map(|stream| Bounded::new(stream, stop.clone())).collect())
}
