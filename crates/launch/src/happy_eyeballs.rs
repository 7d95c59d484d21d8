//! Dialling several addresses of the far end at once: the first that shows the far end's key carries control,
//! and those on other devices become paths of their own.
//!
//! In: what the far end names ([`Listening`]), this host's routes. Out: [`Way`]s, control's link, connections
//! on further paths. Happy eyeballs (RFC 8305): the address that the far end named first has a head start,
//! then one more is dialled each [`STAGGER`], IPv6 and IPv4 in turn, so that one that swallows packets costs
//! no more than that.
//! Invariants: an address is only where to dial, never whom to trust: nothing counts as connected before the
//! pinned key was shown. Each attempt has a thread of its own, for neither connecting nor resolving can be
//! interrupted; all end by their deadline, and what nobody takes is closed.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use haul_base::errno;
use haul_base::stop::Stop;
use haul_core::ids::{SessionEpoch, StreamId};

use super::join_handshake::{self, Connected, Session};
use super::message::{ADDRESSES_MAX, Listening};
use haul_transport::routes::{self, Address, Route};
use haul_transport::{Link, TransportError, tcp, tls};

/// How long the network may take to connect to an address.
const CONNECT_WAIT: Duration = Duration::from_secs(3);
/// Head start of an address over the next.
const STAGGER: Duration = Duration::from_millis(250);
/// How long a connection of the wave may take.
const WAVE_WAIT: Duration = Duration::from_secs(10);
/// Most ways that are tried.
const WAYS_MAX: usize = 16;
/// Further paths have twice the time of the first to answer, and so much; but no longer than [`STAGGER`]
/// after it.
const PATH_SLACK: Duration = Duration::from_millis(20);
/// One that did answer has so long to show its key.
const PATH_WAIT: Duration = Duration::from_secs(1);

/// From an address of this host to one of the far end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    /// `None`: as the kernel routes it.
    pub local: Option<IpAddr>,
    pub remote: SocketAddr,
    /// The devices here and there; ways with the same two are one path. 0: not known.
    pub pair: (u32, u32),
}

impl Way {
    pub(super) fn is_same(&self, other: &Way) -> bool {
        (self.local, self.remote) == (other.local, other.remote)
    }
}

/// The ways to where the far end listens, its first address first.
pub(super) fn ways(at: &Listening) -> Vec<Way> {
    ways_by(at, &routes::addresses(), routes::route)
}

fn ways_by(
    at: &Listening,
    own: &[Address],
    route: impl Fn(IpAddr, Option<IpAddr>) -> Option<Route>,
) -> Vec<Way> {
    let first = std::iter::once((at.address, at.device));
    let others = at.also.iter().take(ADDRESSES_MAX).map(|named| (named.address, named.device));
    // An address that is ours too (the bridge of a container system) means somebody else there.
    let others = others
        .filter(|(ip, _)| *ip != at.address && routes::is_global(*ip) && own.iter().all(|own| own.ip != *ip));
    let mut ways: Vec<Way> = Vec::new();
    for (ip, far) in first.chain(others) {
        let remote = SocketAddr::new(ip, at.port);
        let leaves = route(ip, None);
        let pair = match leaves {
            Some(route) => (route.device, far),
            // As good as the first: a path of its own is only what the kernel knows as one.
            None => ways.first().map_or((0, far), |first| first.pair),
        };
        ways.push(Way { local: None, remote, pair });
        // Other devices of ours that packets from their own address leave by, where rules route by address.
        for own in own.iter().filter(|own| own.ip.is_ipv4() == ip.is_ipv4()) {
            if leaves.is_some_and(|route| route.device != own.device)
                && route(ip, Some(own.ip)).is_some_and(|route| route.device == own.device)
            {
                ways.push(Way { local: Some(own.ip), remote, pair: (own.device, far) });
            }
        }
    }
    ways.truncate(WAYS_MAX);
    ways
}

/// In which order to try them: families in turn, beginning with the other than `first`'s.
fn in_turn(first: &SocketAddr, rest: Vec<(usize, SocketAddr)>) -> VecDeque<usize> {
    let (same, mut other): (VecDeque<_>, VecDeque<_>) =
        rest.into_iter().partition(|(_, addr)| addr.is_ipv4() == first.is_ipv4());
    let mut order = VecDeque::new();
    for (way, _) in same {
        order.extend(other.pop_front().map(|(way, _)| way));
        order.push_back(way);
    }
    order.extend(other.into_iter().map(|(way, _)| way));
    order
}

/// What every connection of a session's near end is made with.
pub(super) struct Caller {
    /// The host's name, for what it means here; `None`: it has none here.
    pub name: Option<String>,
    pub session: Session,
    pub identity: tls::Identity,
    pub pin: tls::Pin,
    /// Bytes under way that the receive buffer of a data stream shall hold; `None` leaves it to the system.
    pub window: Option<u64>,
}

impl Caller {
    /// One stream over `way`.
    pub(super) fn join(
        &self,
        way: &Way,
        (stream, epoch): (StreamId, SessionEpoch),
        connect: Duration,
        deadline: Instant,
    ) -> Result<Link, TransportError> {
        let connected = self.handshake(way, stream != StreamId(0), connect, deadline)?;
        connected.join(&self.session, (stream, epoch), deadline.saturating_duration_since(Instant::now()))
    }

    /// A connection over `way` without a name yet, for a data stream or for control.
    pub(super) fn handshake(
        &self,
        way: &Way,
        data: bool,
        connect: Duration,
        deadline: Instant,
    ) -> Result<Connected, TransportError> {
        let left = || deadline.saturating_duration_since(Instant::now());
        let window = self.window.filter(|_| data);
        let socket = tcp::connect(&way.remote, way.local, window, left().min(connect)).map_err(|e| {
            TransportError {
                what: format!("connecting to {}: {}", way.remote, errno::text(&e)),
                source: Some(e),
            }
        })?;
        join_handshake::handshake(socket, &self.identity, &self.pin, left())
    }
}

/// What the threads tell.
enum Word {
    /// Somebody is there, so far away.
    Answered(usize, Option<Duration>),
    /// One of the [`Rules::wave`], or none.
    Wave(Option<Connected>),
    /// It is the far end.
    Connected(usize, Connected),
    Failed(usize, io::ErrorKind),
    /// What the host's name means here.
    Names(Vec<SocketAddr>),
}

/// Why control could not be joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// The first way was refused, and no other led to the far end.
    Refused,
    /// Nobody who is the far end could be reached.
    Unreachable,
}

/// How a [`HappyEyeballs`] is run.
#[derive(Clone)]
pub(super) struct Rules {
    /// Other paths than the first way's are dialled at once, to become paths of data streams.
    pub paths: bool,
    /// Connections for data streams that are dialled over the first way together with control's.
    pub wave: u16,
    pub deadline: Instant,
    /// Whoever can want an end: then nobody could be reached.
    pub stop: Stop,
}

/// What comes until `until`; the same error if it does not, and if an end is wanted before.
pub(super) fn hear<T>(words: &Receiver<T>, until: Instant, stop: &Stop) -> Result<T, RecvTimeoutError> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match words.recv_timeout(stop.until_look(left)) {
            Err(RecvTimeoutError::Timeout) if !stop.is_asked() && Instant::now() < until => {}
            heard => return heard,
        }
    }
}

/// See the module.
pub(super) struct HappyEyeballs {
    caller: Arc<Caller>,
    ways: Vec<Way>,
    rules: Rules,
    begun: Instant,
    sender: Sender<Word>,
    words: Receiver<Word>,
    /// Dialled and not over.
    open: BTreeSet<usize>,
    answered: BTreeSet<usize>,
    connected: Vec<(usize, Connected)>,
    /// When the first of them did.
    first_met: Option<Instant>,
    /// Of the wave: those that are up, and how many are still on their way.
    wave: (Vec<Connected>, u16),
    /// The round-trip time of the first way, if it has answered.
    rtt: Option<Duration>,
    /// Not dialled yet.
    queue: VecDeque<usize>,
    /// Asked for, and answered.
    names: (bool, bool),
    refused: bool,
    /// Ways that answered and were cut off: they are dialled once more.
    again: BTreeSet<usize>,
}

impl HappyEyeballs {
    /// Begins to dial `ways`, at least one.
    pub(super) fn start(caller: Arc<Caller>, ways: Vec<Way>, rules: Rules) -> HappyEyeballs {
        let (sender, words) = unbounded();
        let (open, answered, connected) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        let (begun, queue, names) = (Instant::now(), VecDeque::new(), (false, false));
        let mut dials = HappyEyeballs {
            caller,
            ways,
            rules,
            begun,
            sender,
            words,
            open,
            answered,
            connected,
            wave: (Vec::new(), 0),
            rtt: None,
            queue,
            names,
            refused: false,
            again: BTreeSet::new(),
            first_met: None,
        };
        let Some(first) = dials.ways.first().copied() else { return dials };
        dials.launch(0);
        (0..dials.rules.wave).for_each(|_| dials.launch_wave());
        let mut later = Vec::new();
        for i in 1..dials.ways.len() {
            let way = dials.ways[i];
            match dials.rules.paths && way.pair != first.pair {
                true => dials.launch(i),
                false => later.push((i, way.remote)),
            }
        }
        dials.queue = in_turn(&first.remote, later);
        dials
    }

    pub(super) fn way(&self, way: usize) -> Way {
        self.ways[way]
    }

    fn launch(&mut self, i: usize) {
        let (way, caller, sender) = (self.ways[i], self.caller.clone(), self.sender.clone());
        // On a path of its own it will be a data stream.
        let data = self.rules.paths && way.pair != self.ways[0].pair;
        let deadline = self.rules.deadline;
        let attempt = move || {
            let answered = |rtt| drop(sender.send(Word::Answered(i, rtt)));
            let word = match dial(&caller, &way, data, deadline, &answered) {
                Ok(connected) => Word::Connected(i, connected),
                Err(kind) => Word::Failed(i, kind),
            };
            // Nobody takes it any more: it is closed.
            let _ = sender.send(word);
        };
        self.open.insert(i);
        if thread::Builder::new().name("haul-dial".into()).spawn(attempt).is_err() {
            let _ = self.sender.send(Word::Failed(i, io::ErrorKind::OutOfMemory));
        }
    }

    fn launch_wave(&mut self) {
        let (way, caller, sender) = (self.ways[0], self.caller.clone(), self.sender.clone());
        let deadline = self.begun + WAVE_WAIT;
        let attempt = move || {
            let connected = caller.handshake(&way, true, WAVE_WAIT, deadline).ok();
            let _ = sender.send(Word::Wave(connected));
        };
        let started = thread::Builder::new().name("haul-dial".into()).spawn(attempt);
        self.wave.1 += u16::from(started.is_ok());
    }

    fn ask_names(&mut self) {
        let Some(name) = self.caller.name.clone() else {
            self.names = (true, true);
            return;
        };
        let port = self.ways[0].remote.port();
        let sender = self.sender.clone();
        let ask = move || {
            let names = (name.as_str(), port).to_socket_addrs().map(Iterator::collect).unwrap_or_default();
            let _ = sender.send(Word::Names(names));
        };
        self.names = (true, thread::Builder::new().name("haul-dial".into()).spawn(ask).is_err());
    }

    fn handle(&mut self, word: Word) {
        match word {
            Word::Answered(i, rtt) => {
                self.answered.insert(i);
                self.rtt = rtt.filter(|_| i == 0).or(self.rtt);
            }
            Word::Wave(connected) => {
                self.wave.0.extend(connected);
                self.wave.1 -= 1;
            }
            Word::Connected(i, connected) => {
                self.open.remove(&i);
                self.first_met.get_or_insert_with(Instant::now);
                self.connected.push((i, connected));
            }
            Word::Failed(i, kind) => {
                self.open.remove(&i);
                self.refused |= i == 0 && kind == io::ErrorKind::ConnectionRefused;
                // A single packet of somebody on the way must not cost the direct path.
                if self.answered.contains(&i) && self.again.insert(i) {
                    self.launch(i);
                }
            }
            Word::Names(names) => {
                self.names.1 = true;
                let known = |addr: &SocketAddr| self.ways.iter().any(|way| way.remote == *addr);
                let names: Vec<_> = names.into_iter().filter(|addr| !known(addr)).collect();
                for remote in names.into_iter().take(WAYS_MAX.saturating_sub(self.ways.len())).rev() {
                    let device = routes::route(remote.ip(), None).map_or(0, |route| route.device);
                    self.queue.push_front(self.ways.len());
                    self.ways.push(Way { local: None, remote, pair: (device, 0) });
                }
            }
        }
    }

    /// Control, over the first way if that answers before its head start is over, else over the first that
    /// does.
    pub(super) fn control(&mut self, epoch: SessionEpoch) -> Result<(usize, Link), Lost> {
        loop {
            let (way, connected) = self.handshake(&mut |_, _| {})?;
            let left = self.rules.deadline.saturating_duration_since(Instant::now());
            if let Ok(link) = connected.join(&self.caller.session, (StreamId(0), epoch), left) {
                return Ok((way, link));
            }
        }
    }

    /// A connection for [`HappyEyeballs::control`], whose far end has shown its key. `answered` hears once
    /// how far away the first way's is, as soon as that is known, if no other way could become a path of its
    /// own.
    pub(super) fn handshake(
        &mut self,
        answered: &mut dyn FnMut(Way, Duration),
    ) -> Result<(usize, Connected), Lost> {
        let mut next = self.begun + STAGGER;
        let deadline = self.rules.deadline;
        let mut told = self.rules.paths && self.ways.iter().any(|way| way.pair != self.ways[0].pair);
        loop {
            if let (false, Some(rtt)) = (told, self.rtt) {
                told = true;
                answered(self.ways[0], rtt);
            }
            let now = Instant::now();
            let waits = self.open.contains(&0) && now < self.begun + STAGGER;
            let first = self.connected.iter().position(|(i, _)| *i == 0);
            if let Some(at) = first.or((!waits && !self.connected.is_empty()).then_some(0)) {
                return Ok(self.connected.remove(at));
            }
            let lost = if self.refused { Lost::Refused } else { Lost::Unreachable };
            if now >= deadline || self.rules.stop.is_asked() {
                return Err(lost);
            }
            let due = now >= next || self.open.is_empty();
            if due && !self.names.0 {
                self.ask_names();
            }
            if due && let Some(i) = self.queue.pop_front() {
                self.launch(i);
                next = now + STAGGER;
                continue;
            }
            if self.open.is_empty() && self.names.1 {
                return Err(lost);
            }
            // With nothing to begin only a word changes anything; the head start ends with `next` at the
            // latest.
            let idle = now >= next && self.queue.is_empty() && self.names.0;
            let until = if idle { deadline } else { next.min(deadline) };
            match hear(&self.words, until, &self.rules.stop) {
                Ok(word) => {
                    if matches!(word, Word::Failed(..) | Word::Names(_)) {
                        next = Instant::now();
                    }
                    self.handle(word);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(Lost::Unreachable),
            }
        }
    }

    /// Connections of the wave, at least `least` if so many come up.
    pub(super) fn wave(&mut self, least: u16) -> Vec<Connected> {
        let until = self.begun + WAVE_WAIT;
        while self.wave.0.len() < usize::from(least) && self.wave.1 > 0 {
            match hear(&self.words, until, &self.rules.stop) {
                Ok(word) => self.handle(word),
                Err(_) => break,
            }
        }
        std::mem::take(&mut self.wave.0)
    }

    /// Connections on other paths than that of `won`, one for each, as far as they have shown the key by now
    /// or soon.
    pub(super) fn others(&mut self, won: usize) -> Vec<(Way, Connected)> {
        let up = Instant::now();
        // Who won may have waited for the head start of one that says nothing.
        let took = self.first_met.unwrap_or(up).saturating_duration_since(self.begun);
        let answer = (self.begun + 2 * took + PATH_SLACK).min(up + STAGGER);
        loop {
            let pending: Vec<usize> =
                self.open.iter().copied().filter(|i| self.ways[*i].pair != self.ways[won].pair).collect();
            let until = match pending.iter().any(|i| self.answered.contains(i)) {
                true => up + PATH_WAIT,
                false => answer,
            };
            let over = Instant::now() >= until || self.rules.stop.is_asked();
            if pending.is_empty() || over {
                break;
            }
            if let Ok(word) = hear(&self.words, until, &self.rules.stop) {
                self.handle(word);
            }
        }
        // In the far end's order, not in that of the answers.
        self.connected.sort_by_key(|(i, _)| *i);
        let connected = self.connected.drain(..).map(|(i, connected)| (self.ways[i], connected)).collect();
        choose(self.ways[won].pair, connected, |(way, _)| way.pair)
    }
}

/// Those of `met` that make a path of their own beside `won`: first where both devices are new, then where
/// one is.
fn choose<T>(won: (u32, u32), mut connected: Vec<T>, pair: impl Fn(&T) -> (u32, u32)) -> Vec<T> {
    let (mut near, mut far) = (BTreeSet::from([0, won.0]), BTreeSet::from([0, won.1]));
    let mut chosen = Vec::new();
    for both in [true, false] {
        let mut kept = Vec::new();
        for one in connected.drain(..) {
            let (a, b) = pair(&one);
            let new = (!near.contains(&a), !far.contains(&b));
            if new == (true, true) || (!both && (new.0 || new.1)) {
                near.insert(a);
                far.insert(b);
                chosen.push(one);
            } else {
                kept.push(one);
            }
        }
        connected = kept;
    }
    chosen
}

/// Connects and has the far end show its key.
fn dial(
    caller: &Caller,
    way: &Way,
    data: bool,
    deadline: Instant,
    answered: &dyn Fn(Option<Duration>),
) -> Result<Connected, io::ErrorKind> {
    let left = || deadline.saturating_duration_since(Instant::now());
    if left().is_zero() {
        return Err(io::ErrorKind::TimedOut);
    }
    let window = caller.window.filter(|_| data);
    let wait = left().min(CONNECT_WAIT);
    let socket = tcp::connect(&way.remote, way.local, window, wait).map_err(|error| error.kind())?;
    answered(tcp::sample(&socket).ok().map(|sample| sample.rtt).filter(|rtt| !rtt.is_zero()));
    join_handshake::handshake(socket, &caller.identity, &caller.pin, left())
        .map_err(|_| io::ErrorKind::InvalidData)
}

#[cfg(test)]
#[path = "happy_eyeballs_tests.rs"]
mod tests;
