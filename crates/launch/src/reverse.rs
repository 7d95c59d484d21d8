//! The far end dials the near one: for sites where only that direction is open.
//!
//! In: at the near end where to listen and what was agreed; at the far end where the near one listens. Out:
//! the links of the start, and how others come up later: the end that dialled dials again. The near end opens
//! its port and says so over the ssh pipe; the far end dials control over the ways that there are
//! ([`happy_eyeballs`]), hears how many streams the path needs, dials those, and says each time how that
//! went.
//! Invariants: the same keys, secret and joins as in the other direction, and the same [`Listener`]; the near
//! end's port is open only while it is tried, and while a session uses it.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use haul_base::errno;
use haul_base::escape;
use haul_base::stop::Stop;
use haul_core::ids::StreamId;

use super::arrived::{Arrived, Decided, JOIN_WAIT, watch_pipe};
use super::happy_eyeballs::{self, Caller, HappyEyeballs, Rules, Way, hear};
use super::join_handshake::{Connected, Session};
use super::listener::{At, FIRST_EPOCH, Listener};
use super::message::{self, Decision, FarDialled, Listening};
use super::named;
use super::redial::{Other, Redial, Redialler};
use super::shell::Notes;
use super::ssh::Ssh;
use super::start::{DIAL_WAIT, connect_all};
use super::{BootstrapError, BootstrapKind};
use haul_transport::path::{self, Plan};
use haul_transport::rejoin::Joins;
use haul_transport::{Link, routes, tls};

/// A stream that the far end says it has joined is here by then.
const ARRIVAL_WAIT: Duration = Duration::from_secs(5);
/// Most bytes of the far end's reasons that are shown.
const WHY_LEN_MAX: usize = 200;

/// What the near end listens with.
pub(super) struct Terms<'a> {
    /// Addresses of this host that the user named.
    pub vias: &'a [IpAddr],
    /// This host's address as the far end's ssh server sees it.
    pub client: Option<IpAddr>,
    /// The far end's address, as far as it is known before it dials.
    pub peer: Option<IpAddr>,
    pub ports: Option<(u16, u16)>,
    pub session: Session,
    pub identity: tls::Identity,
    /// The far end's key.
    pub pin: tls::Pin,
    /// Most data streams.
    pub most: u16,
    /// Bytes under way that each receive buffer shall hold; `None` leaves it to the system.
    pub window: Option<u64>,
    pub strays: Arc<AtomicU64>,
    pub stop: Stop,
}

/// The streams of the start, all of which the far end dialled.
pub(super) struct Taken {
    pub listener: Listener,
    /// Control, then the data streams in order.
    pub links: Vec<Link>,
    pub plan: Plan,
}

/// The near end's half. The inner error: that way is closed, and why; the far end waits for the next word
/// then. `plan`: from control's round-trip time and the number of paths.
pub(super) fn offer(
    terms: Terms<'_>,
    plan: impl FnOnce(Option<Duration>, usize) -> Plan,
    ssh: &mut Ssh,
    notes: Notes<'_>,
) -> Result<Result<Taken, String>, BootstrapError> {
    let (most, stop) = (terms.most, terms.stop.clone());
    let (mut listener, at) = match listen(terms) {
        Ok(opened) => opened,
        Err(why) => return Ok(Err(why)),
    };
    // The far end is dead when its shell says so; the end of ssh alone may be that of the network.
    listener.orphaned = ssh.far_ended();
    say(ssh, &Decision::Reverse(at.clone()), notes)?;
    let paths = match ssh.read_frame(notes)? {
        FarDialled::Joined { paths } => usize::from(paths.clamp(1, most)),
        FarDialled::Failed(why) => {
            let why = escape::line(&why.as_bytes()[..why.len().min(WHY_LEN_MAX)]);
            return Ok(Err(format!("port {} of this host is closed to {}: {why}", at.port, ssh.host())));
        }
    };
    let mut links: Vec<Option<Link>> = (0..=most).map(|_| None).collect();
    let missing = || Ok(Err(format!("connections to port {} of this host were lost", at.port)));
    if !arrive(&listener, &mut links, 0, &stop) {
        return missing();
    }
    let plan = plan(links[0].as_ref().and_then(path::rtt), paths);
    let streams = plan.streams.value;
    say(ssh, &Decision::Streams(streams), notes)?;
    match ssh.read_frame(notes)? {
        FarDialled::Joined { .. } if arrive(&listener, &mut links, streams, &stop) => {}
        FarDialled::Joined { .. } | FarDialled::Failed(_) => return missing(),
    }
    let links = links.into_iter().take(usize::from(streams) + 1).flatten().collect();
    Ok(Ok(Taken { listener, links, plan }))
}

/// Waits until streams 0 to `last` are here; `false`: they do not come, or a stop did.
fn arrive(listener: &Listener, links: &mut [Option<Link>], last: u16, stop: &Stop) -> bool {
    let deadline = Instant::now() + ARRIVAL_WAIT;
    while links.iter().take(usize::from(last) + 1).any(Option::is_none) {
        match hear(&listener.joined, deadline, stop) {
            Ok((stream, link)) => match links.get_mut(usize::from(stream.0)) {
                Some(place) => *place = Some(link),
                None => return false,
            },
            Err(_) => return false,
        }
    }
    true
}

fn say(ssh: &mut Ssh, word: &Decision, notes: Notes<'_>) -> Result<(), BootstrapError> {
    let frame = message::encode(word)
        .map_err(|e| BootstrapError::local("cannot tell the far end where to connect", e))?;
    match ssh.send(&frame, notes)? {
        true => Ok(()),
        false => Err(ssh.ended(notes)),
    }
}

/// Opens the near end's port: at the user's addresses, or everywhere, as the far end does.
fn listen(terms: Terms<'_>) -> Result<(Listener, Listening), String> {
    let Terms { vias, client, peer, ports, session, identity, pin, most, window, strays, .. } = terms;
    let Some(place) = named::place(vias, client) else {
        return Err("the address that ssh came from is not known".into());
    };
    let known = peer.into_iter().collect();
    let opened = Listener::open(&place, ports, (session, most), (identity, pin), known, strays, window);
    let listener = opened.map_err(|e| {
        let ports = ports.map(|(a, b)| format!(" port {a}-{b}")).unwrap_or_default();
        let at = match place {
            At::Everywhere => "any address".into(),
            At::Only(list) => list.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", "),
        };
        format!("this host cannot listen on {at}{ports}: {}", errno::text(e))
    })?;
    let works = |via: &&IpAddr| listener.failed.iter().all(|(failed, _)| failed != *via);
    let vias: Vec<IpAddr> = vias.iter().filter(works).copied().collect();
    let first = client.unwrap_or(listener.addr.ip());
    let at = named::named(&vias, first, &routes::addresses(), listener.addr.port(), Vec::new());
    Ok((listener, at))
}

/// What the far end dialled: all of it.
struct Up {
    /// Control's.
    way: Way,
    control: Link,
    data: Vec<(StreamId, Link)>,
    /// The streams of each path.
    used: Vec<(Way, BTreeSet<StreamId>)>,
}

/// The far end's half: dials the near end at `at`. Out: links that this end dialled, or the pipe, and the
/// number of data streams, at most `most`. `say` tells the near end; `decided` brings its words.
///
/// # Errors
/// The near end is gone, or says what cannot be.
pub(super) fn answer(
    at: Listening,
    caller: Caller,
    most: u16,
    decided: &Receiver<Decided>,
    say: &mut dyn FnMut(&FarDialled) -> Result<(), BootstrapError>,
) -> Result<(Arrived, u16), BootstrapError> {
    let deadline = Instant::now() + JOIN_WAIT;
    let wrong = |what: &str| BootstrapError::new(BootstrapKind::Peer, what);
    let caller = Arc::new(caller);
    // The near end's stop is the end of the pipe, which is heard of below.
    let stop = Stop::never();
    let rules = Rules { paths: most > 1, wave: 0, deadline: Instant::now() + DIAL_WAIT, stop };
    let mut dials = HappyEyeballs::start(caller.clone(), happy_eyeballs::ways(&at), rules);
    let mut dialled = match dials.control(FIRST_EPOCH) {
        Ok((won, control)) => {
            let others =
                dials.others(won).into_iter().map(|(way, connected)| (way, VecDeque::from([connected])));
            let first = dials.way(won);
            let paths: Vec<_> = std::iter::once((first, VecDeque::new())).chain(others).collect();
            say(&FarDialled::Joined { paths: u16::try_from(paths.len()).unwrap_or(u16::MAX) })?;
            Some((first, control, paths))
        }
        Err(_) => {
            say(&FarDialled::Failed(format!("{} does not answer", at.address)))?;
            None
        }
    };
    drop(dials);
    let join = |connected: Connected, stream| {
        let left = deadline.saturating_duration_since(Instant::now());
        connected
            .join(&caller.session, (stream, FIRST_EPOCH), left)
            .map_err(|_| "takes our connections and closes them")
    };
    // All that were dialled, and the way and streams of each path.
    let mut up: Option<Up> = None;
    let mut streams = most;
    loop {
        let word = match decided.recv_deadline(deadline) {
            Ok(word) => word,
            Err(RecvTimeoutError::Timeout) => return Err(wrong("the near end did not decide in time")),
            Err(RecvTimeoutError::Disconnected) => return Err(wrong("the near end said too much")),
        };
        match word {
            (Ok(Decision::Streams(n)), None) if (1..=most).contains(&n) => {
                streams = n;
                let Some((first, control, mut paths)) = dialled.take() else { continue };
                paths.truncate(n.into());
                let mut used: Vec<_> = paths.iter().map(|(way, _)| (*way, BTreeSet::new())).collect();
                let dialled = connect_all(&caller, paths, n, &Stop::never()).and_then(|connected| {
                    let mut data = Vec::new();
                    for (stream, (connected, path)) in (1..).map(StreamId).zip(connected) {
                        data.push((stream, join(connected, stream)?));
                        used[path].1.insert(stream);
                    }
                    Ok(Up { way: first, control, data, used })
                });
                match dialled {
                    Ok(all) => {
                        up = Some(all);
                        say(&FarDialled::Joined { paths: 0 })?;
                    }
                    Err(why) => say(&FarDialled::Failed(format!("{} {why}", at.address)))?,
                }
            }
            (Ok(Decision::Mux), Some(input)) => {
                return Ok((Arrived::Mux { input, channels: Vec::new() }, streams));
            }
            (Ok(Decision::Channels), None) => {
                return Ok((Arrived::Channels { decided: decided.clone() }, streams));
            }
            // That the pipe ends when all is up loses nothing.
            (Ok(Decision::Direct) | Err(_), pipe) if up.is_some() => {
                let Some(Up { way, control, data, used }) = up else { unreachable!("it was just seen") };
                let orphaned = Arc::new(AtomicBool::new(pipe.is_none()));
                pipe.into_iter().for_each(|pipe| watch_pipe(pipe, orphaned.clone()));
                let redial = Redial::new(caller, at, used, way, None, Other::Far { orphaned });
                let joins = Joins::Dial(Arc::new(Redialler(Arc::new(redial))));
                return Ok((Arrived::Dialled { addr: way.remote, control, data, joins }, streams));
            }
            (Err(_), _) => return Err(wrong("ssh ended before this end had connected")),
            (Ok(_), _) => return Err(wrong("the near end asked for what is not possible")),
        }
    }
}
