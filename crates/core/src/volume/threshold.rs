//! The write threshold: which path a write takes, directly to the storage servers or through the server
//! that gathers; and it sets itself.
//!
//! In: writes as they begin and end, what each was for the servers that had to do with it, how long it waited
//! before it was sent, and syncs. Out: the path of each, and the threshold: what is smaller is gathered,
//! everything else goes directly.
//!
//! - How long a request takes tells little of what it costs: one that is alone waits for the network, one
//!   of many waits for the others. So servers say how long they were busy with it. For each power of two it
//!   is known what the requests of the last seconds would make each server do if what is smaller were
//!   gathered. All together they take as long as the server that has most to do, or as what they wait for
//!   divided by how many are under way at a time, whichever is more; and each sync stops them. The threshold
//!   belongs where that is least.
//! - What a request waits before it is sent is not its own. A direct write to a *fresh* stripe, which this
//!   client did not write lately, waits for a lease: that counts as often as there is such a stripe. One to a
//!   stripe of which the gatherer's log has bytes waits until they are brought: that is the price of a move,
//!   and nothing that the path costs from then on.
//! - What is gathered goes twice over the network and to two disks. The second time nobody waits for it, and
//!   nothing that a client measures has it; but it has to be done, so it is reckoned where bytes cost.
//! - The way to a server is the same whether what is written is gathered there or belongs there. A look at
//!   one path while all others take the other one sees a way that is free; so it is not told apart.
//! - Only what was measured is reckoned ([`Curve`] says how near that must be). A threshold among sizes of
//!   which nothing is known stays where it began.
//! - So the threshold moves when what was lost by its standing still is more than the price of a move, as
//!   long as somewhere else it would be [`GAIN`] better all that time.
//! - A small write to a stripe that is leased would end its lease, and the next large one would have it
//!   brought from the log: writes of both kinds among each other would have stripes go to and fro. So a small
//!   one goes directly where the stripe is leased, until what was lost by that, since a write went there that
//!   had to, is more than the price of a move.
//! - A sync costs most of what it costs for itself, also if it is for a few requests that only looked at a
//!   path: it is reckoned by the sync, not by the request.
//! - What a size costs on the path that it does not take is found by *exploration*: now and then a few
//!   requests of that size, as many as are under way at a time, go there. That is at most one request in
//!   [`EXPLORED_ONE_IN`], and only as long as what was lost by it is at most [`LOST`] of what the requests
//!   of that size cost ([`LOST_FIRST`], as long as nothing is known of the path): a path that is a hundred
//!   times dearer is looked at a hundred times more rarely. A move of a stripe is lost as well. So a client
//!   that gathers explores where a stripe is fresh, which takes a lease alone, and one that writes directly
//!   at the end of a stripe, to which it does not come back soon.
//!
//! Source: Hildebrand, Ward, Honeyman, "Large files, small writes, and pNFS" (ICS '06), whose threshold
//! stood still; the bounds of Denning and Buzen, "The Operational Analysis of Queueing Network Models"
//! (1978); for moving only when standing still has cost as much, Karlin et al., "Competitive Snoopy Caching"
//! (1988).

mod lane;
mod reckon;
mod stripes;
mod traffic;

use std::ops::Range;
use std::time::Duration;

use self::lane::{Lane, Mean, Ways};
use self::stripes::{State, Stripes};
use self::traffic::Traffic;
use super::FileNo;
use super::cost::{CLASSES, Curve, Syncs, class_of, class_start};
use crate::ids::Time;

/// The threshold as long as nothing is known of one of the paths. Up to there a thousand writes have so few
/// bytes that the syncs and leases of the direct path weigh more than they do.
pub const START: u64 = 4 * 1024;
/// It moves if the requests cost so much less then.
const GAIN: f64 = 0.1;
/// What a move of a stripe from the gatherer's log costs as long as none was seen, nanoseconds: it is
/// brought, and synced four times.
const MOVE: f64 = 50e6;
/// No move is believed to cost more.
const MOVE_MAX: f64 = 1e9;
/// And the first lease: two syncs.
const LEASE: f64 = 20e6;
/// At most one request in so many is for exploration.
pub const EXPLORED_ONE_IN: u64 = 50;
/// What exploration may lose, of what requests of that size cost; and before anything is known.
const LOST: f64 = 0.02;
const LOST_FIRST: f64 = 0.1;
/// Requests that explore in a row: no more than cost so much more than they should.
const BURST_MAX: u32 = 16;
const BURST_LOSES: f64 = 50e6;
/// Requests that came so long ago count a third in what the threshold is for.
const MEMORY: Duration = Duration::from_secs(5);
/// The threshold is looked at again after so long.
const EVERY: Duration = Duration::from_millis(5);
/// No server is so busy with others that it does less than this part of what it could.
const LEFT_MIN: f64 = 0.02;

/// One of two ways of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// To the servers on which its stripes lie.
    Direct,
    /// To the server that gathers small writes of its file.
    Gather,
}

impl Path {
    /// Not this one.
    pub fn other(self) -> Path {
        match self {
            Path::Direct => Path::Gather,
            Path::Gather => Path::Direct,
        }
    }
}

/// A part of a write for one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which server, from 0.
    pub server: usize,
    /// Which stripe of the file.
    pub stripe: u64,
    /// Bytes.
    pub len: u64,
    /// Bytes of the stripe behind it.
    pub behind: u64,
}

/// What a server says of a part of a write.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Served {
    /// Which server, from 0.
    pub server: usize,
    /// Bytes.
    pub len: u64,
    /// How long the server was busy with it, what it did beside that at the same time taken off.
    pub busy: Duration,
    /// From its last byte's arrival to the answer.
    pub stayed: Duration,
    /// The part of its time, 0 to 1, for which the server was busy with other clients lately.
    pub others: f64,
    /// From when it was sent until the answer was heard.
    pub took: Duration,
    /// It waited so long before it was sent: for a lease, or for what goes to its stripe over the other path.
    pub waited: Duration,
}

/// A write that is under way.
#[derive(Debug)]
#[must_use = "a request ends, or is given up"]
pub struct Request {
    /// Where it goes.
    pub path: Path,
    len: u64,
    file: FileNo,
    stripes: Range<u64>,
    found: Found,
    /// It goes there to see what that costs; on the other path it would have cost so many nanoseconds.
    instead: Option<f64>,
}

/// Requests that began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub begun: u64,
    /// Those that were gathered.
    pub gathered: u64,
    /// Those that went elsewhere to see what that costs.
    pub explored: u64,
}

/// Which class explores, and how many requests more.
#[derive(Clone, Copy, Debug)]
struct Exploring {
    class: usize,
    path: Path,
    left: u32,
}

/// The threshold of one client of a volume.
#[derive(Clone, Debug)]
pub struct Threshold {
    pinned: Option<u64>,
    direct: Lane,
    gather: Lane,
    ways: Ways,
    /// Nanoseconds that direct writes to stripes which were leased waited because others write there too.
    disturbed: Curve,
    traffic: Vec<Traffic>,
    /// Syncs of both paths, and how many the application made lately.
    all_syncs: Syncs,
    syncs: f64,
    stripes: Stripes,
    /// Nanoseconds that direct writes waited for a lease on a fresh stripe, and for one on a stripe of which
    /// the gatherer's log had bytes.
    leases: Mean,
    moves: Mean,
    was_leased: bool,
    exploring: Option<Exploring>,
    /// Classes below this one are gathered; [`CLASSES`]: all are. And where that began.
    from: usize,
    began: usize,
    /// Nanoseconds that were lost by its being there, since that was not the right place.
    regret: f64,
    looked: Time,
    under_way: Crowd,
    syncing: Crowd,
    /// Nanoseconds since it was looked at in which anything was under way.
    busy: f64,
    at: Time,
    counts: Counts,
}

/// How many of something are under way.
#[derive(Clone, Copy, Debug, Default)]
struct Crowd {
    now: u32,
    /// Of all that is under way while any of it is, integrated over time, and that time; both fade.
    all: f64,
    time: f64,
}

impl Crowd {
    fn pass(&mut self, passed: Duration, all: u32) {
        if self.now > 0 {
            let kept = (-(passed.as_secs_f64() / MEMORY.as_secs_f64())).exp();
            let passed = passed.as_nanos() as f64;
            self.all = self.all * kept + passed * f64::from(all);
            self.time = self.time * kept + passed;
        }
    }

    fn ends(&mut self) {
        self.now = self.now.checked_sub(1).expect("what begins ends once");
    }

    /// How many are under way at a time, while any of these are.
    fn mean(&self) -> f64 {
        if self.time > 0.0 { (self.all / self.time).max(1.0) } else { 1.0 }
    }
}

/// What a write finds at its stripes.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    fresh: u32,
    gathered: u32,
    explored: u32,
    leased: u32,
    /// Writes of its size until its last stripe ends, itself among them.
    left: u64,
}

impl Threshold {
    /// One that sets itself, or with `pinned` (bytes) stands still: 0 gathers nothing, `u64::MAX` everything.
    ///
    /// # Panics
    /// There is no server.
    pub fn new(servers: usize, pinned: Option<u64>) -> Threshold {
        assert!(servers > 0);
        Threshold {
            pinned,
            direct: Lane::new(servers),
            gather: Lane::new(servers),
            ways: Ways::new(servers),
            disturbed: Curve::default(),
            traffic: vec![Traffic::new(servers); CLASSES],
            all_syncs: Syncs::default(),
            syncs: 0.0,
            stripes: Stripes::default(),
            leases: Mean::default(),
            moves: Mean::default(),
            was_leased: false,
            exploring: None,
            from: class_of(START),
            began: class_of(START),
            regret: 0.0,
            looked: Time::default(),
            under_way: Crowd::default(),
            syncing: Crowd::default(),
            busy: 0.0,
            at: Time::default(),
            counts: Counts::default(),
        }
    }

    /// What is smaller is gathered, bytes. `u64::MAX`: everything is.
    pub fn threshold(&self) -> u64 {
        self.pinned.unwrap_or(match self.from {
            0 => 0,
            CLASSES => u64::MAX,
            from => class_start(from),
        })
    }

    /// Another client found it to be there lately: so it begins there, if no write has begun yet.
    pub fn start_at(&mut self, threshold: u64) {
        if self.counts.begun == 0 {
            self.from = match threshold {
                0 => 0,
                u64::MAX => CLASSES,
                threshold => class_of(threshold),
            };
            self.began = self.from;
        }
    }

    /// It stands still from here on: 0 gathers nothing, `u64::MAX` everything.
    pub fn pin(&mut self, threshold: u64) {
        self.pinned = Some(threshold);
    }

    /// Whether it stands still.
    pub fn is_pinned(&self) -> bool {
        self.pinned.is_some()
    }

    /// What a server needs for requests on a path, without syncs.
    pub fn curve(&self, path: Path, server: usize) -> &Curve {
        &self.lane(path).servers[server]
    }

    /// Requests that began so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn lane(&self, path: Path) -> &Lane {
        match path {
            Path::Direct => &self.direct,
            Path::Gather => &self.gather,
        }
    }

    fn lane_mut(&mut self, path: Path) -> &mut Lane {
        match path {
            Path::Direct => &mut self.direct,
            Path::Gather => &mut self.gather,
        }
    }

    /// Time passes.
    fn move_to(&mut self, now: Time) {
        let passed = now.since(self.at);
        self.at = self.at.max(now);
        let all = self.under_way.now + self.syncing.now;
        if all > 0 {
            self.busy += passed.as_nanos() as f64;
        }
        self.under_way.pass(passed, self.under_way.now);
        self.syncing.pass(passed, all);
    }

    /// A write of `len` bytes to a file begins, which `gatherer` would gather, and which would go directly in
    /// `pieces`, in the order of their stripes. With `only` it can take no other path.
    ///
    /// The request goes to [`Threshold::end`] or [`Threshold::give_up`].
    ///
    /// # Panics
    /// There is no such server.
    pub fn begin(
        &mut self,
        now: Time,
        (file, len): (FileNo, u64),
        gatherer: usize,
        pieces: &[Piece],
        only: Option<Path>,
    ) -> Request {
        self.move_to(now);
        self.counts.begun += 1;
        let class = class_of(len);
        let found = self.find(file, len, pieces);
        self.traffic[class].add(len, gatherer, pieces, found.fresh);
        let by_size = match len < self.threshold() {
            true => Path::Gather,
            false => Path::Direct,
        };
        let free = only.is_none() && self.pinned.is_none();
        let stays = match by_size {
            Path::Gather if free => self.stays(now, class, file, pieces),
            _ => None,
        };
        let usual = if stays.is_some() { Path::Direct } else { by_size };
        let instead = match only {
            None if self.pinned.is_none() => {
                let more = if usual == Path::Gather { self.more_sync(gatherer, pieces) } else { 0.0 };
                self.explores(now, class, (usual, stays.is_some()), found, more)
                    .then(|| self.alone(now, class, usual))
                    .flatten()
            }
            _ => None,
        };
        let path = only.unwrap_or(if instead.is_some() { usual.other() } else { usual });
        self.counts.explored += u64::from(instead.is_some());
        self.counts.gathered += u64::from(path == Path::Gather);
        self.under_way.now += 1;
        for piece in pieces {
            self.stripes.goes(file, piece.stripe, path, instead.is_some(), stays);
        }
        let stripes =
            pieces.first().map_or(0, |first| first.stripe)..pieces.last().map_or(0, |last| last.stripe + 1);
        Request { path, len, file, stripes, found, instead }
    }

    /// Whether a small write goes directly because its stripes are leased: by how many nanoseconds that is
    /// dearer than to gather it.
    fn stays(&mut self, now: Time, class: usize, file: FileNo, pieces: &[Piece]) -> Option<f64> {
        let lost = pieces.iter().map(|piece| self.stripes.lost(file, piece.stripe));
        // The one that lost most. Of none nothing is leased.
        let lost = lost.reduce(|most, lost| Some(most?.max(lost?))).flatten()?;
        if lost > self.moves.mean().unwrap_or(MOVE) || haul_mutant::removed("volume-small-writes-keep-leases")
        {
            return None;
        }
        let [direct, gather] = [Path::Direct, Path::Gather].map(|path| self.alone(now, class, path));
        // Directly it is twice as dear as far as nobody knows better.
        let dearer = match (direct, gather) {
            (Some(direct), Some(gather)) => direct - gather,
            (None, Some(gather)) => gather,
            (Some(direct), None) => direct / 2.0,
            (None, None) => 0.0,
        };
        Some(dearer.max(0.0))
    }

    fn find(&self, file: FileNo, len: u64, pieces: &[Piece]) -> Found {
        let left = pieces.last().map_or(1, |last| last.behind / len.max(1) + 1);
        let mut found = Found { left, ..Found::default() };
        for piece in pieces {
            match self.stripes.state(file, piece.stripe) {
                None => found.fresh += 1,
                Some(State::Gathered) => found.gathered += 1,
                Some(State::Explored) => found.explored += 1,
                Some(State::Leased) => found.leased += 1,
                Some(State::Leasing) => {}
            }
        }
        found
    }

    /// Whether a request goes where it does not belong, to see what that costs. `stays`: it belongs there
    /// only because its stripes are leased. `more`: what the next sync takes longer then.
    fn explores(
        &mut self,
        now: Time,
        class: usize,
        (usual, stays): (Path, bool),
        found: Found,
        more: f64,
    ) -> bool {
        if let Some(exploring) = &mut self.exploring
            && exploring.class == class
        {
            let goes_on = exploring.left > 0 && exploring.path != usual;
            exploring.left = exploring.left.saturating_sub(1);
            if goes_on {
                return true;
            }
            self.exploring = None;
        }
        let free = (self.counts.begun / EXPLORED_ONE_IN).saturating_sub(self.counts.explored);
        if free == 0 || self.exploring.is_some() {
            return false;
        }
        let Some(here) = self.alone(now, class, usual) else { return false };
        // Of what nothing is known nobody knows what it loses either: one request tells more.
        let loses = self.alone(now, class, usual.other()).map(|there| (there - here).max(1.0));
        let burst = loses.map_or(1.0, |loses| (BURST_LOSES / loses).clamp(1.0, f64::from(BURST_MAX)));
        let mut burst = burst.min(self.under_way.mean().round());
        let price = match usual {
            Path::Gather if found.gathered + found.explored > 0 => self.moves.mean().unwrap_or(MOVE),
            Path::Gather if found.fresh > 0 => self.leases.mean().unwrap_or(LEASE),
            Path::Gather => 0.0,
            // Others come to that stripe soon, and wait as well.
            Path::Direct if stays => self.moves.mean().unwrap_or(MOVE) * self.under_way.mean(),
            // What is gathered up to the end of a stripe is brought when nobody waits for it.
            Path::Direct if found.left <= free.min(u64::from(BURST_MAX)) => {
                burst = found.left as f64;
                0.0
            }
            Path::Direct => self.moves.mean().unwrap_or(MOVE),
        };
        // A path that was never used is opened first: files, logs, their syncs.
        let price = if loses.is_some() { price } else { price.max(LEASE) };
        let traffic = &mut self.traffic[class];
        traffic.wanted = loses.unwrap_or(here) * burst + price + more;
        if traffic.allowed < traffic.wanted || free < burst as u64 {
            return false;
        }
        traffic.allowed -= more;
        self.exploring = Some(Exploring { class, path: usual.other(), left: burst as u32 - 1 });
        true
    }

    /// It is written, as far as its path says so; the servers say what it was for them.
    ///
    /// # Panics
    /// There is no such server.
    pub fn end(&mut self, now: Time, request: Request, served: &[Served]) {
        self.move_to(now);
        self.under_way.ends();
        let lane = self.lane_mut(request.path);
        for piece in served {
            let left = (1.0 - piece.others).clamp(LEFT_MIN, 1.0);
            let cost = piece.busy.as_nanos() as f64 / left;
            lane.servers[piece.server].add(now, piece.len, cost);
            lane.all.add(now, piece.len, cost);
            lane.is_written(piece.server, piece.len);
        }
        self.ways.add(now, served);
        let waited = served.iter().map(|piece| piece.waited).max().unwrap_or_default().as_nanos() as f64;
        if request.path == Path::Direct {
            // Who waits where everything was leased waits because others write there too.
            let all = request.stripes.end - request.stripes.start;
            let is_disturbed = u64::from(request.found.leased) == all;
            self.disturbed.add(now, request.len, if is_disturbed { waited } else { 0.0 });
        }
        let class = class_of(request.len);
        if self.pinned.is_some() {
            return;
        }
        let (moves, explored) = (request.found.gathered, request.found.explored);
        // While a stripe waits for its lease everything stands still; behind others it goes on.
        let is_first = request.path == Path::Direct && moves + explored + request.found.fresh > 0;
        let lost = match request.path {
            Path::Direct if is_first => waited,
            Path::Direct => 0.0,
            Path::Gather => waited / self.under_way.mean(),
        };
        if request.path == Path::Direct {
            for stripe in request.stripes.clone() {
                self.stripes.written(request.file, stripe);
            }
            if moves + explored > 0 {
                self.moves.add(waited.min(MOVE_MAX));
            } else if request.found.fresh > 0 {
                // With the first of all the gatherer gets to know the client.
                if std::mem::replace(&mut self.was_leased, true) {
                    self.leases.add(waited);
                    self.traffic[class].leases.add(waited);
                }
            }
        }
        if request.instead.is_some() {
            // What it tells counts from now on.
            self.traffic[class].worked_out = None;
        }
        let cost = self.alone(now, class, request.path).unwrap_or(0.0);
        let is_known = self.alone(now, class, request.path.other()).is_some();
        let traffic = &mut self.traffic[class];
        match request.instead {
            Some(usual) => traffic.allowed -= (cost - usual).max(0.0) + lost,
            None if request.path == Path::Direct && explored > 0 => traffic.allowed -= lost,
            None => {
                let most = 2.0 * traffic.wanted.max(cost);
                let part = if is_known { LOST } else { LOST_FIRST };
                traffic.allowed = (traffic.allowed + cost * part).min(most.max(traffic.allowed));
            }
        }
        let passed = now.since(self.looked);
        if passed >= EVERY {
            self.looked = now;
            self.look();
            let kept = (-(passed.as_secs_f64() / MEMORY.as_secs_f64())).exp();
            self.traffic.iter_mut().for_each(|traffic| traffic.scale(kept));
            self.syncs *= kept;
        }
    }

    /// It failed, or nobody waits for it: it tells nothing of what requests cost.
    pub fn give_up(&mut self, now: Time, request: Request) {
        self.move_to(now);
        drop(request);
        self.under_way.ends();
    }

    /// The application waits for a sync, and then not any more.
    pub fn sync_begins(&mut self, now: Time) {
        self.move_to(now);
        self.syncing.now += 1;
    }

    /// # Panics
    /// None had begun.
    pub fn sync_ends(&mut self, now: Time) {
        self.move_to(now);
        self.syncing.ends();
        self.syncs += 1.0;
    }

    /// All that went over a path to a server is on media there; the server was busy with that for so long.
    ///
    /// # Panics
    /// There is no such server.
    pub fn synced(&mut self, path: Path, server: usize, busy: Duration) {
        let lane = match path {
            Path::Direct => &mut self.direct,
            Path::Gather => &mut self.gather,
        };
        lane.is_synced(server, busy.as_nanos() as f64, &mut self.all_syncs);
    }

    /// Moves the threshold to where the requests of late cost least, when it has cost enough that it was not
    /// there.
    fn look(&mut self) {
        let busy = std::mem::take(&mut self.busy);
        let Some((least, at, here)) = self.best() else { return };
        match least < here * (1.0 - GAIN) {
            true => self.regret += busy * (1.0 - least / here),
            false => self.regret = 0.0,
        }
        let price = self.moves.mean().unwrap_or(MOVE);
        if self.regret > price {
            self.regret = 0.0;
            self.from = at;
        }
    }
}

#[cfg(test)]
#[path = "threshold_tests.rs"]
mod tests;
