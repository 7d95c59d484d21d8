//! How the two come to a data connection: who listens, and where the other one is sent.
//!
//! In: two sessions. Out: each knows its part, or why it comes to none.
//! Invariant: no server is sent to an address that the other one could only have named to do harm.

use std::net::{IpAddr, SocketAddr};

use haul_gridftp::address::{Passive, parse_227, parse_229, parse_spas};
use haul_gridftp::command::Command;
use haul_gridftp::reply::Class;

use super::{End, Fault, Move, Pair, Step, as_no_restart, words};
use crate::Error;
use crate::control::said;
use crate::nodes::believed;

impl Pair {
    /// The data connections of MODE E, to which the sender connects. Whether `STOR` was said, so that it is
    /// not said again.
    pub(super) fn open_extended(&mut self, first: &Move<'_>) -> Result<bool, Fault> {
        let at = |error: Error| Fault::At { end: End::To, error, other: None };
        let (to, from) = (self.peer(End::To)?, self.peer(End::From)?);
        let ask = match (self.striped, to.is_ipv6()) {
            (true, true) => Command::Spas6,
            (true, false) => Command::Bare("SPAS"),
            (false, true) => Command::Epsv,
            (false, false) => Command::Bare("PASV"),
        };
        let mut reply = self.to.control.ask(&ask).map_err(at)?;
        let mut sent = false;
        if self.delayed && reply.code() == 200 {
            // Where it listens depends on what comes.
            let (words, steps) = words(End::To, first, 0, true);
            self.to.control.send(&words).map_err(at)?;
            for step in &steps {
                reply = self.to.control.reply().map_err(at)?;
                let ok = match step {
                    Step::Allo => !matches!(reply.code(), 421 | 452 | 552),
                    Step::Rest => reply.class() == Class::Intermediate,
                    Step::Data(_) => matches!(reply.code(), 127 | 129),
                };
                if !ok {
                    let error = self.to.control.refused(&words[words.len() - 1], &reply);
                    let fault = self.wind_up(End::To, error);
                    return Err(if first.restarts() { as_no_restart(fault) } else { fault });
                }
            }
            sent = true;
        }
        let lines = |error: haul_gridftp::FtpError| at(error.into());
        let told = match (reply.code(), self.striped, to.is_ipv6()) {
            (229, true, _) => parse_spas(&reply).map_err(lines)?,
            (129, ..) => parse_spas(&reply).map_err(lines)?,
            (227 | 127, ..) => vec![parse_227(reply.text()).map_err(lines)?],
            (229, false, _) => vec![match parse_229(reply.text()).map_err(lines)? {
                Passive::Port(port) => SocketAddr::new(to, port),
                Passive::Address(address) => address,
            }],
            (code, ..) if reply.class() == Class::Completed => {
                return Err(at(Error::OutOfStep { said: said(&ask), code }));
            }
            _ => return Err(at(self.to.control.refused(&ask, &reply))),
        };
        let mut addresses = Vec::with_capacity(told.len());
        for address in told {
            addresses.push(
                self.believe(address, (to, from), true)
                    .map_err(|why| Fault::NoWay { listens: End::To, why })?,
            );
        }
        self.stripes = addresses.len();
        let port = match addresses[..] {
            [address] if address.is_ipv4() => Command::Port(address),
            [address] => Command::Eprt(address),
            _ => Command::Spor(&addresses),
        };
        let reply = self.from.control.ask(&port);
        match reply.and_then(|reply| self.from.control.done(&port, reply)) {
            Ok(_) => Ok(sent),
            Err(error) if error.ends_session() => Err(self.wind_up(End::From, error)),
            Err(error) => Err(Fault::NoWay { listens: End::To, why: self.in_words(End::From, &error) }),
        }
    }

    /// One listens, and the other is told where.
    pub(super) fn open_stream(&mut self, listens: End) -> Result<bool, Fault> {
        let (peer, other) = (self.peer(listens)?, self.peer(listens.other())?);
        let ask = if peer.is_ipv6() { Command::Epsv } else { Command::Bare("PASV") };
        let no_way = |why| Fault::NoWay { listens, why };
        let wanted = if peer.is_ipv6() { 229 } else { 227 };
        let reply = self.control(listens).ask(&ask);
        let control = self.control(listens);
        let told = match reply.and_then(|reply| control.exactly(&ask, wanted, reply)) {
            Ok(reply) if peer.is_ipv6() => parse_229(reply.text()).map(|told| match told {
                Passive::Port(port) => SocketAddr::new(peer, port),
                Passive::Address(address) => address,
            }),
            Ok(reply) => parse_227(reply.text()),
            Err(error) if error.ends_session() => return Err(self.wind_up(listens, error)),
            Err(error) => return Err(no_way(self.in_words(listens, &error))),
        };
        let told = told.map_err(|error| Fault::At { end: listens, error: error.into(), other: None })?;
        let address = self.believe(told, (peer, other), false).map_err(no_way)?;
        let port = if address.is_ipv4() { Command::Port(address) } else { Command::Eprt(address) };
        let reply = self.control(listens.other()).ask(&port);
        let control = self.control(listens.other());
        match reply.and_then(|reply| control.done(&port, reply)) {
            Ok(_) => Ok(false),
            Err(error) if error.ends_session() => Err(self.wind_up(listens.other(), error)),
            Err(error) => Err(no_way(self.in_words(listens.other(), &error))),
        }
    }

    fn peer(&mut self, end: End) -> Result<IpAddr, Fault> {
        let peer = self.control(end).peer();
        let lost = |cause| Error::Lost { doing: "opening a data connection", cause };
        peer.map(|peer| peer.ip().to_canonical()).map_err(|cause| Fault::At {
            end,
            error: lost(cause),
            other: None,
        })
    }

    /// The address that the other server is sent to. `nodes`: data may go to other hosts than commands do.
    fn believe(
        &mut self,
        told: SocketAddr,
        (control, other): (IpAddr, IpAddr),
        nodes: bool,
    ) -> Result<SocketAddr, String> {
        let address = believed(told, control, other, nodes)?;
        if address.ip() != told.ip() {
            self.replaced = Some((told.ip(), address.ip()));
        }
        Ok(address)
    }

    fn in_words(&mut self, end: End, error: &Error) -> String {
        let peer = self.control(end).peer().map_or("?".to_owned(), |peer| peer.to_string());
        format!("{peer}: {error}")
    }
}
