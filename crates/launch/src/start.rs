//! The start at the end that dials: control and the data streams together.
//!
//! In: the ways to the other end, how many streams are asked for or what decides it. Out: [`Dialled`], or
//! nothing at all. No connection waits for another: a first wave of data streams is dialled with control, the
//! rest of them as soon as a connection has answered and so the path is known ([`Coming`]). Nor does any wait
//! for the answer to its name: what a stream has to say follows its name at once, two round trips after the
//! first packet.
//! Invariants: no stream is named before control and the whole wave have met the other end's key: the direct
//! path is all of these or none.

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::unbounded;
use haul_base::stop::Stop;
use haul_core::ids::StreamId;
use haul_core::tune::start::STREAMS_LONG_MIN;

use super::coming::Coming;
use super::happy_eyeballs::{Caller, HappyEyeballs, Rules, Way, hear};
use super::join_handshake::Connected;
use super::listener::{FIRST_EPOCH, PLACES_FEW};
use haul_transport::Link;
use haul_transport::path::Plan;

/// How long the port is tried before everything goes through ssh.
pub(super) const DIAL_WAIT: Duration = Duration::from_secs(3);
/// How long the data streams may take once control is up.
const DATA_WAIT: Duration = Duration::from_secs(10);
/// How long a further path may take to connect again once it has answered.
const PATH_CONNECT_WAIT: Duration = Duration::from_secs(2);
/// Connections for data streams that are dialled before any has joined; more are left to whoever keeps their
/// number.
const AT_ONCE_MAX: u16 = 48;

const _: () =
    assert!((AT_ONCE_MAX as usize) < PLACES_FEW, "or the other end takes ours for too many strangers");

/// What the start brought: control and the data streams of the wave in order, the streams of each path,
/// control's path, and the streams that are still to come.
pub(super) struct Dialled {
    pub addr: SocketAddr,
    pub links: Vec<Link>,
    /// Its number of streams is that of all, those to come included.
    pub plan: Plan,
    pub used: Vec<(Way, BTreeSet<StreamId>)>,
    pub control: Way,
    pub coming: Option<Arc<Coming>>,
}

/// Dials `ways`. `asked`: the user's number of data streams; else `plan_for` says it by the path's round-trip
/// time, its address, and how many paths there are. Never more than `most`. A `stop` ends it with whatever
/// error.
///
/// # Errors
/// What the other end's port does, in words that follow its name.
pub(super) fn dial(
    caller: &Arc<Caller>,
    ways: Vec<Way>,
    (asked, most): (Option<u16>, u16),
    plan_for: &dyn Fn(Option<Duration>, IpAddr, usize) -> Plan,
    stop: &Stop,
) -> Result<Dialled, &'static str> {
    let wave = asked.unwrap_or(STREAMS_LONG_MIN).min(most).min(AT_ONCE_MAX);
    let deadline = Instant::now() + DIAL_WAIT;
    let rules = Rules { paths: asked != Some(1), wave, deadline, stop: stop.clone() };
    let mut dials = HappyEyeballs::start(caller.clone(), ways, rules);
    let mut early = None;
    let connected = dials.handshake(&mut |way, rtt| {
        let plan = plan_for(Some(rtt), way.remote.ip(), 1);
        let rest = wave + 1..=plan.streams.value.min(AT_ONCE_MAX);
        let coming = (!rest.is_empty()).then(|| Coming::dial(caller, way, rest));
        early = Some((plan, coming));
    });
    let (won, control) = connected.map_err(|_| "is closed to us")?;
    let others = dials.others(won);
    let first = dials.way(won);
    let (plan, coming, at_once) = match early.filter(|_| won == 0 && others.is_empty()) {
        Some((plan, coming)) => (plan, coming, wave),
        None => {
            let plan = plan_for(control.rtt(), first.remote.ip(), others.len() + 1);
            (plan, None, AT_ONCE_MAX)
        }
    };
    let streams = plan.streams.value.min(at_once);
    let mut paths = vec![(first, VecDeque::new())];
    paths.extend(others.into_iter().map(|(way, connected)| (way, VecDeque::from([connected]))));
    paths.truncate(streams.into());
    if won == 0 {
        let least = usize::from(streams).div_ceil(paths.len()).min(wave.into());
        paths[0].1.extend(dials.wave(least as u16));
    }
    let mut used: Vec<_> = paths.iter().map(|(way, _)| (*way, BTreeSet::new())).collect();
    let data = connect_all(caller, paths, streams, stop)?;
    let join = |connected: Connected, stream| {
        let link = connected.join_at_once(&caller.session, (stream, FIRST_EPOCH));
        link.map_err(|_| "takes our connections and closes them")
    };
    let mut links = vec![join(control, StreamId(0))?];
    for (stream, (connected, path)) in (1..).map(StreamId).zip(data) {
        links.push(join(connected, stream)?);
        used[path].1.insert(stream);
    }
    used[0].1.extend(coming.iter().flat_map(|coming| &coming.ids));
    Ok(Dialled { addr: first.remote, links, plan, used, control: first, coming })
}

/// Connections for all streams over `paths` in turn, or none. What is up on a path already is used first; a
/// path that fails now is done without, but for the first. Returns each stream's connection and the path that
/// it took. Each is dialled by a thread of its own, which a `stop` leaves to itself: it ends by its deadline,
/// and what it made is closed.
pub(super) fn connect_all(
    caller: &Arc<Caller>,
    paths: Vec<(Way, VecDeque<Connected>)>,
    streams: u16,
    stop: &Stop,
) -> Result<Vec<(Connected, usize)>, &'static str> {
    const FEWER: &str = "took only a part of our connections";
    let deadline = Instant::now() + DATA_WAIT;
    let (ways, mut connected): (Vec<Way>, Vec<VecDeque<Connected>>) = paths.into_iter().unzip();
    let first = ways[0];
    let dial = move |caller: &Caller, way: Way, path: usize| {
        // A path that answered a moment ago does so again, or leaves time for the first.
        let connect = if path == 0 { DATA_WAIT } else { PATH_CONNECT_WAIT };
        match caller.handshake(&way, true, connect, deadline) {
            Ok(connected) => Some((connected, path)),
            Err(_) if path > 0 => {
                caller.handshake(&first, true, DATA_WAIT, deadline).ok().map(|connected| (connected, 0))
            }
            Err(_) => None,
        }
    };
    let (sender, dialled) = unbounded();
    let mut data: Vec<Option<(Connected, usize)>> = Vec::new();
    for stream in 0..usize::from(streams) {
        let path = stream % ways.len();
        data.push(connected[path].pop_front().map(|connected| (connected, path)));
        if data[stream].is_none() {
            let (caller, way, sender) = (caller.clone(), ways[path], sender.clone());
            let work = move || drop(sender.send((stream, dial(&caller, way, path))));
            thread::Builder::new().name("haul-dial".into()).spawn(work).map_err(|_| FEWER)?;
        }
    }
    // A thread that panics made none.
    drop(sender);
    while data.iter().any(Option::is_none) {
        match hear(&dialled, deadline + DATA_WAIT, stop) {
            Ok((stream, Some(made))) => data[stream] = Some(made),
            Ok((_, None)) | Err(_) => return Err(FEWER),
        }
    }
    data.into_iter().collect::<Option<_>>().ok_or(FEWER)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};

    use haul_core::wire::{JOIN_LEN, Join, Joined};

    use super::super::join_handshake::Session;
    use super::*;
    use haul_transport::path::EndFacts;
    use haul_transport::rejoin::JoinEvent;
    use haul_transport::{Post, path, tls};

    /// The end that listens, played by hand.
    struct Far {
        port: TcpListener,
        identity: tls::Identity,
        pin: tls::Pin,
        caller: Arc<Caller>,
    }

    const PATIENCE: Duration = Duration::from_secs(20);

    impl Far {
        fn new() -> Far {
            let (near, identity) = (tls::Identity::generate().unwrap(), tls::Identity::generate().unwrap());
            let (pin, far) = (tls::Pin(near.public()), tls::Pin(identity.public()));
            let session = Session::new().unwrap();
            let caller =
                Caller { name: Some("far.invalid".into()), session, identity: near, pin: far, window: None };
            let port = TcpListener::bind("127.0.0.1:0").unwrap();
            Far { port, identity, pin, caller: Arc::new(caller) }
        }

        fn way(&self) -> Way {
            Way { local: None, remote: self.port.local_addr().unwrap(), pair: (1, 1) }
        }

        fn accept(&self, count: usize) -> Vec<TcpStream> {
            (0..count).map(|_| self.port.accept().unwrap().0).collect()
        }

        /// Finishes TLS and reads the name, without a word to it.
        fn shake(&self, socket: TcpStream) -> (Join, Link) {
            let mut link = tls::server(socket, &self.identity, &self.pin, PATIENCE).unwrap();
            let mut name = [0; JOIN_LEN];
            link.reader.read_exact(&mut name).unwrap();
            (Join::decode(&name).unwrap(), link)
        }
    }

    fn plan(streams: u16) -> impl Fn(Option<Duration>, IpAddr, usize) -> Plan {
        move |rtt, _, _| {
            let here = EndFacts::here(None, None, None);
            path::plan(rtt, &here, &here, None, Some(streams))
        }
    }

    /// Goal: connections wait neither for one another nor for an answer: two round trips after the first
    /// packet every stream has said its name and what it has to say.
    /// Method: a far end that begins no handshake before all connections are there, and answers no name
    /// before each stream has brought a byte more. Who waited would wait for ever.
    #[test]
    fn every_stream_speaks_after_two_round_trips() {
        let far = Far::new();
        let near = thread::spawn({
            let (caller, ways) = (far.caller.clone(), vec![far.way()]);
            move || {
                let mut dialled = dial(&caller, ways, (None, 8), &plan(4), &Stop::never())
                    .unwrap_or_else(|why| panic!("{why}"));
                for (link, byte) in dialled.links.iter_mut().zip(b'0'..) {
                    link.writer.write_all(&[byte]).and_then(|()| link.writer.flush()).unwrap();
                }
                let mut heard = [0; 1];
                dialled.links.iter_mut().for_each(|link| link.reader.read_exact(&mut heard).unwrap());
                dialled
            }
        });
        let sockets = far.accept(5);
        let far = &far;
        let mut joined: Vec<(Join, Link)> = thread::scope(|scope| {
            let shaken: Vec<_> = sockets.into_iter().map(|s| scope.spawn(move || far.shake(s))).collect();
            shaken.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        joined.sort_by_key(|(name, _)| name.stream);
        for (i, (name, link)) in joined.iter_mut().enumerate() {
            let mut byte = [0; 1];
            link.reader.read_exact(&mut byte).unwrap();
            assert_eq!((usize::from(name.stream.0), usize::from(byte[0] - b'0')), (i, i));
            assert!(name.is_proved_by(&far.caller.session.secret) && name.epoch == FIRST_EPOCH);
        }
        for (name, link) in &mut joined {
            let answer = Joined::Accepted.encode(name.stream, name.epoch);
            link.writer.write_all(&answer).and_then(|()| link.writer.write_all(b"!")).unwrap();
            link.writer.flush().unwrap();
        }
        let dialled = near.join().unwrap();
        assert_eq!((dialled.links.len(), dialled.plan.streams.value), (5, 4));
        assert!(dialled.coming.is_none() && dialled.used[0].1.len() == 4);
    }

    /// Goal: what the path needs beyond the first wave is dialled before control has its keys, and named only
    /// when the session runs.
    /// Method: no handshake begins before all connections are there.
    #[test]
    fn the_rest_comes_to_a_session_that_runs() {
        let far = Far::new();
        let near = thread::spawn({
            let (caller, ways) = (far.caller.clone(), vec![far.way()]);
            move || {
                dial(&caller, ways, (None, 64), &plan(7), &Stop::never())
                    .unwrap_or_else(|why| panic!("{why}"))
            }
        });
        let sockets = far.accept(8);
        let (sender, named) = crossbeam_channel::unbounded();
        let far = &far;
        thread::scope(|scope| {
            for socket in sockets {
                let sender = sender.clone();
                scope.spawn(move || sender.send(far.shake(socket)).unwrap());
            }
            let names = |count: usize| {
                let some: Vec<(Join, Link)> =
                    (0..count).map(|_| named.recv_timeout(PATIENCE).unwrap()).collect();
                let mut ids: Vec<u16> = some.iter().map(|(name, _)| name.stream.0).collect();
                ids.sort();
                (ids, some)
            };
            let first = names(5);
            assert_eq!(first.0, [0, 1, 2, 3, 4]);
            let dialled = near.join().unwrap();
            let counts = (dialled.links.len(), dialled.plan.streams.value, dialled.used[0].1.len());
            assert_eq!(counts, (5, 7, 7));
            assert!(named.is_empty(), "a name that nobody asked for");
            let (post, events) = crossbeam_channel::unbounded();
            let post: Post<JoinEvent> = Arc::new(move |event| drop(post.send(event)));
            dialled.coming.expect("three are to come").open(&post);
            let rest = names(3);
            assert_eq!(rest.0, [5, 6, 7]);
            for _ in 0..3 {
                let event = events.recv_timeout(PATIENCE).unwrap();
                assert!(matches!(
                    event,
                    JoinEvent::Stream { stream: StreamId(5..=7), epoch: FIRST_EPOCH, .. }
                ));
            }
        });
    }

    /// Goal: a far end that takes a part of the connections gets no stream at all.
    #[test]
    fn all_of_the_wave_or_none() {
        let far = Far::new();
        let near = thread::spawn({
            let (caller, ways) = (far.caller.clone(), vec![far.way()]);
            move || dial(&caller, ways, (Some(3), 8), &plan(3), &Stop::never()).err()
        });
        let over = std::sync::atomic::AtomicBool::new(false);
        thread::scope(|scope| {
            let (far, over) = (&far, &over);
            scope.spawn(move || {
                let mut good = 2;
                for socket in far.port.incoming() {
                    if over.load(std::sync::atomic::Ordering::SeqCst) {
                        return;
                    }
                    if good > 0 {
                        good -= 1;
                        scope.spawn(move || {
                            let link = tls::server(socket.unwrap(), &far.identity, &far.pin, PATIENCE);
                            let Ok(mut link) = link else { return };
                            assert!(link.reader.read_exact(&mut [0]).is_err(), "a name was said");
                        });
                    }
                }
            });
            let why = near.join().unwrap();
            over.store(true, std::sync::atomic::Ordering::SeqCst);
            drop(TcpStream::connect(far.port.local_addr().unwrap()));
            // Which two were taken is chance.
            assert!(
                matches!(why, Some("took only a part of our connections" | "is closed to us")),
                "{why:?}"
            );
        });
    }
}
