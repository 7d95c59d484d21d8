//! The near end after the start: dials further streams, and control again.
//!
//! In: what the first connections were made with, and over which paths. Out: joins, each tried once in a
//! thread of its own.
//! Invariants: the same keys and the same secret as at the start; ssh is not asked again. A new address of
//! the far end is only where to dial, never whom to trust. A path that is down keeps its share of the streams
//! for when it is back: the others carry what they were planned for, and one stream is tried on it now and
//! then.
//! Left out: how many streams there shall be: `haul_core::transfer::stream_dialler` and the driver.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use haul_base::errno;
use haul_base::stop::Stop;
use haul_core::ids::{SessionEpoch, StreamId};

use super::coming::Coming;
use super::happy_eyeballs::{self, Caller, HappyEyeballs, Lost, Rules, Way};
use super::message::Listening;
use haul_transport::rejoin::{Dial, JoinEvent, Peer};
use haul_transport::{Link, Post};

/// How long the network may take to connect, and all of it until the stream is joined.
const CONNECT_WAIT: Duration = Duration::from_secs(3);
const JOIN_WAIT: Duration = Duration::from_secs(8);
/// A path that failed rests so long, then twice as long each time, up to the second.
const REST_MIN: Duration = Duration::from_secs(1);
const REST_MAX: Duration = Duration::from_secs(30);
/// Paths that are remembered.
const PATHS_MAX: usize = 16;

/// One path, and what is on it.
struct Route {
    way: Way,
    /// Streams that it is meant to carry.
    share: usize,
    /// Streams that are up, or being dialled.
    live: BTreeSet<StreamId>,
    failures: u32,
    /// Not before then, unless there is nothing else.
    rests: Option<Instant>,
}

/// The paths, and where control is. At least one path.
struct Paths {
    routes: Vec<Route>,
    control: Way,
}

impl Paths {
    /// The path for one more stream: the one with the fewest of those that work; of those only one that has
    /// not its share while another is down. `None`: the missing streams are those of a path that is down.
    fn take(&mut self, stream: StreamId, now: Instant) -> Option<Way> {
        let resting = |route: &Route| route.rests.is_some_and(|until| until > now);
        let some_rest = self.routes.iter().any(resting);
        let all_rest = self.routes.iter().all(resting);
        let fits = |route: &&mut Route| {
            all_rest || !resting(route) && (!some_rest || route.live.len() < route.share)
        };
        let free = self.routes.iter_mut().filter(fits);
        let route = match all_rest {
            true => free.min_by_key(|route| route.rests),
            false => free.min_by_key(|route| route.live.len()),
        }?;
        route.live.insert(stream);
        Some(route.way)
    }

    fn worked(&mut self, way: &Way) {
        if let Some(route) = self.routes.iter_mut().find(|route| route.way.is_same(way)) {
            (route.failures, route.rests) = (0, None);
        }
    }

    fn failed(&mut self, way: &Way, now: Instant) {
        if let Some(route) = self.routes.iter_mut().find(|route| route.way.is_same(way)) {
            let rest = REST_MIN.saturating_mul(1 << route.failures.min(8)).min(REST_MAX);
            route.rests = Some(now + rest);
            route.failures = route.failures.saturating_add(1);
        }
    }

    fn left(&mut self, stream: StreamId) {
        for route in &mut self.routes {
            route.live.remove(&stream);
        }
    }

    /// Control is there now. One that is new is a path for the streams too: the far end, or this one, has
    /// moved.
    fn control_at(&mut self, way: Way) {
        self.control = way;
        self.worked(&way);
        if self.routes.iter().all(|route| !route.way.is_same(&way)) {
            let share = self.routes.first().map_or(1, |route| route.share);
            let gone = self.routes.iter().position(|route| route.live.is_empty() && route.rests.is_some());
            if let Some(gone) = gone.filter(|_| self.routes.len() >= PATHS_MAX) {
                self.routes.remove(gone);
            }
            self.routes.insert(0, Route { way, share, live: BTreeSet::new(), failures: 0, rests: None });
            self.routes.truncate(PATHS_MAX);
        }
    }
}

/// What is heard of the other end beside the connections.
pub(super) enum Other {
    /// This is the near end: the far end's shell says when haul has ended there.
    Near { ended: Arc<AtomicBool> },
    /// This is the far end: the pipe has ended, with the near end or with the network.
    Far { orphaned: Arc<AtomicBool> },
}

/// What later connections need.
pub(super) struct Redial {
    caller: Arc<Caller>,
    at: Listening,
    paths: Mutex<Paths>,
    /// Those of the start that are still dialled.
    coming: Option<Arc<Coming>>,
    other: Other,
}

/// Dials with what the start left.
pub(super) struct Redialler(pub Arc<Redial>);

struct Failed {
    why: String,
    refused: bool,
}

impl Redial {
    /// `used`: the paths of the start with their streams, control's first.
    pub(super) fn new(
        caller: Arc<Caller>,
        at: Listening,
        used: Vec<(Way, BTreeSet<StreamId>)>,
        control: Way,
        coming: Option<Arc<Coming>>,
        other: Other,
    ) -> Redial {
        let route = |(way, live): (Way, BTreeSet<StreamId>)| Route {
            way,
            share: live.len().max(1),
            live,
            failures: 0,
            rests: None,
        };
        let routes = used.into_iter().take(PATHS_MAX).map(route).collect();
        Redial { caller, at, paths: Mutex::new(Paths { routes, control }), coming, other }
    }

    fn paths(&self) -> MutexGuard<'_, Paths> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A data stream over one of the paths.
    fn join_data(&self, name: (StreamId, SessionEpoch)) -> Result<Link, Failed> {
        let deadline = Instant::now() + JOIN_WAIT;
        let mut why = "the other paths are down, and this one has its streams".to_string();
        while Instant::now() < deadline {
            let Some(way) = self.paths().take(name.0, Instant::now()) else { break };
            match self.caller.join(&way, name, CONNECT_WAIT, deadline) {
                Ok(link) => {
                    self.paths().worked(&way);
                    return Ok(link);
                }
                Err(error) => {
                    why = error.to_string();
                    let mut paths = self.paths();
                    paths.left(name.0);
                    paths.failed(&way, Instant::now());
                    if paths.routes.len() == 1 {
                        break;
                    }
                }
            }
        }
        Err(Failed { why, refused: false })
    }

    /// Control: where it was last, and wherever the far end may be now.
    fn join_control(&self, epoch: SessionEpoch) -> Result<Link, Failed> {
        let mut ways: Vec<Way> = {
            let paths = self.paths();
            std::iter::once(paths.control).chain(paths.routes.iter().map(|route| route.way)).collect()
        };
        ways.extend(happy_eyeballs::ways(&self.at));
        let mut known: Vec<Way> = Vec::new();
        for way in ways {
            if known.iter().all(|other| !other.is_same(&way)) {
                known.push(way);
            }
        }
        let at = known[0].remote;
        // One that refuses may be a gateway in the far end's name: the others are tried as well.
        // A stop of a session that runs is its driver's.
        let stop = Stop::never();
        let rules = Rules { paths: false, wave: 0, deadline: Instant::now() + JOIN_WAIT, stop };
        let mut dials = HappyEyeballs::start(self.caller.clone(), known, rules);
        match dials.control(epoch) {
            Ok((way, link)) => {
                self.paths().control_at(dials.way(way));
                Ok(link)
            }
            Err(Lost::Refused) => {
                Err(Failed { why: format!("connecting to {at}: connection refused"), refused: true })
            }
            Err(Lost::Unreachable) => Err(Failed { why: format!("{at} cannot be reached"), refused: false }),
        }
    }
}

impl Dial for Redialler {
    fn dial(&self, stream: StreamId, epoch: SessionEpoch, post: Post<JoinEvent>) {
        let redial = self.0.clone();
        let failed = post.clone();
        let work = move || {
            let joined = match stream {
                StreamId(0) => redial.join_control(epoch).map(|link| JoinEvent::Control { epoch, link }),
                _ => redial.join_data((stream, epoch)).map(|link| JoinEvent::Stream { stream, epoch, link }),
            };
            post(joined.unwrap_or_else(|Failed { why, refused }| JoinEvent::Failed { stream, why, refused }));
        };
        if let Err(e) = thread::Builder::new().name("haul-dial".into()).spawn(work) {
            failed(JoinEvent::Failed {
                stream,
                why: format!("starting a thread: {}", errno::text(e)),
                refused: false,
            });
        }
    }

    fn open(&self, post: Post<JoinEvent>) -> Vec<StreamId> {
        let Some(coming) = &self.0.coming else { return Vec::new() };
        let redial = self.0.clone();
        coming.open(
            &(Arc::new(move |event| {
                if let JoinEvent::Failed { stream, .. } = &event {
                    redial.paths().left(*stream);
                }
                post(event);
            }) as Post<JoinEvent>),
        );
        coming.ids.clone()
    }

    fn left(&self, stream: StreamId) {
        self.0.paths().left(stream);
    }

    fn peer(&self) -> Peer {
        match &self.0.other {
            Other::Near { ended } if ended.load(Ordering::Acquire) => Peer::Ended,
            Other::Far { orphaned } if orphaned.load(Ordering::Acquire) => Peer::Orphaned,
            Other::Near { .. } | Other::Far { .. } => Peer::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(shares: &[usize]) -> Paths {
        let mut ids = (1..).map(StreamId);
        let routes: Vec<Route> = (0u8..)
            .zip(shares)
            .map(|(i, share)| Route {
                way: Way { local: None, remote: ([10, 0, i, 2], 9).into(), pair: (i.into(), i.into()) },
                share: *share,
                live: ids.by_ref().take(*share).collect(),
                failures: 0,
                rests: None,
            })
            .collect();
        let control = routes[0].way;
        Paths { routes, control }
    }

    /// Goal: a stream goes where the fewest are; while a path is down the others keep their share, and its
    /// streams wait for it, but for a try now and then; one path alone is always tried.
    #[test]
    fn a_path_that_is_down_keeps_its_share() {
        let now = Instant::now();
        let mut two = paths(&[2, 2]);
        let [a, b] = [0, 1].map(|i| two.routes[i].way);
        two.left(StreamId(3));
        assert_eq!(two.take(StreamId(5), now), Some(b), "the fewest");
        two.left(StreamId(5));
        two.left(StreamId(4));
        two.failed(&b, now);
        assert_eq!(two.take(StreamId(6), now), None, "they are b's");
        two.left(StreamId(1));
        assert_eq!(two.take(StreamId(7), now), Some(a), "that one was a's");
        assert_eq!(two.take(StreamId(8), now), None);
        assert_eq!(two.take(StreamId(8), now + REST_MIN), Some(b), "a try");
        two.left(StreamId(8));
        two.failed(&b, now);
        assert_eq!(two.take(StreamId(9), now + REST_MIN), None, "a longer rest");
        two.worked(&b);
        assert_eq!(two.take(StreamId(10), now), Some(b));
        // More than the shares are wanted, and both work: in turn.
        assert_eq!(two.take(StreamId(11), now), Some(b));
        assert_eq!(two.take(StreamId(12), now).is_some(), two.take(StreamId(13), now).is_some());
        assert_eq!((two.routes[0].live.len(), two.routes[1].live.len()), (3, 3));
        two.failed(&a, now);
        two.failed(&b, now);
        assert!(two.take(StreamId(14), now).is_some(), "nothing else is left");
        let mut one = paths(&[1]);
        one.failed(&a, now);
        assert_eq!(one.take(StreamId(2), now), Some(a));
    }

    /// Goal: a far end that moved is followed by the data streams; paths are bounded.
    #[test]
    fn control_that_moved_is_a_path() {
        let now = Instant::now();
        let mut one = paths(&[2]);
        let old = one.routes[0].way;
        let moved = |i: u8| Way { local: None, remote: ([10, 9, i, 2], 9).into(), pair: (1, 0) };
        one.control_at(moved(0));
        one.failed(&old, now);
        assert_eq!((one.control, one.take(StreamId(3), now)), (moved(0), Some(moved(0))));
        for i in 0..=255 {
            one.control_at(moved(i));
            assert!(one.routes.iter().any(|route| route.way == moved(i)) && one.routes.len() <= PATHS_MAX);
        }
    }
}
