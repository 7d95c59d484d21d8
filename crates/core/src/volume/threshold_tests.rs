//! The threshold against a model of a volume: a client that keeps so many writes under way, storage servers
//! that write stripes, and a server that gathers.
//!
//! Nothing of the model is known to the threshold. Each run is compared with the same run in which everything
//! is gathered, and the one in which nothing is.

#[path = "threshold_tests/bytes.rs"]
mod bytes;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::*;

const SECOND: u64 = 1_000_000_000;
const STRIPE: u64 = 1 << 20;
const SERVERS: usize = 4;
/// The server that gathers, which has a device for that alone.
const GATHERER: usize = SERVERS;

/// How long each part of the volume takes; nanoseconds, and nanoseconds a byte.
#[derive(Clone)]
struct Model {
    /// A write at a storage server.
    write: f64,
    write_byte: f64,
    /// One that is gathered; its part of the pushes too.
    gather: f64,
    gather_byte: f64,
    rtt: u64,
    under_way: usize,
    /// The client's own work for a write and a byte of it, whichever way it goes. A lease that it asks for
    /// waits behind what goes to that server.
    client: u64,
    client_byte: f64,
    /// What is gathered is brought to where it lies, when nobody waits for it; and that takes the servers
    /// there as long as its bytes take them directly.
    brings: bool,
    /// What takes a server so long takes it that long in the mean: this part of it by chance. And some of
    /// what is sent waits for a processor, for so long in the mean.
    chance: f64,
    stall: f64,
    /// Writes lie side by side, not each in stripes of its own.
    is_dense: bool,
    /// They lie anywhere in so many stripes; 0: one behind the other.
    among: u64,
    /// So many writes, and then a sync of all; 0: none.
    commit: u64,
    /// A sync of one server.
    sync: f64,
    sync_byte: f64,
    /// A lease on a stripe, the first of all besides, and when the log has bytes of it.
    lease: u64,
    first: u64,
    bring: u64,
    /// From then to then a server takes so many times as long.
    slow: Vec<(usize, u64, u64, f64)>,
    /// When the client begins.
    begins: u64,
}

/// A stripe in the model.
#[derive(Clone, Copy, Default)]
struct Stripe {
    path: Option<Path>,
    /// Nothing goes there before.
    ready: u64,
    /// The last write to it is over.
    over: u64,
}

/// What there is of the volume while it runs.
struct State {
    random: fastrand::Rng,
    free: [u64; SERVERS + 1],
    client_free: u64,
    stripes: BTreeMap<u64, Stripe>,
    was_leased: bool,
    unsynced: [u64; SERVERS + 1],
    offset: u64,
}

impl State {
    fn new() -> State {
        State {
            random: fastrand::Rng::with_seed(7),
            free: [0; SERVERS + 1],
            client_free: 0,
            stripes: BTreeMap::new(),
            was_leased: false,
            unsynced: [0; SERVERS + 1],
            offset: 0,
        }
    }

    /// So much in the mean: many are shorter, and a few much longer.
    fn about(&mut self, mean: f64) -> f64 {
        -mean * self.random.f64().max(1e-9).ln()
    }
}

impl Model {
    fn flash() -> Model {
        Model {
            write: 240_000.0,
            write_byte: 2.0,
            gather: 16_000.0,
            gather_byte: 4.0,
            rtt: 100_000,
            under_way: 16,
            client: 0,
            client_byte: 0.0,
            brings: false,
            chance: 0.0,
            stall: 0.0,
            is_dense: false,
            among: 0,
            commit: 0,
            sync: 0.0,
            sync_byte: 0.0,
            lease: 0,
            first: 0,
            bring: 0,
            slow: Vec::new(),
            begins: 0,
        }
    }

    /// As the lab's experiment was seen: writes cost as much on both paths, what fills a page cache is fast,
    /// and syncs are not.
    fn lab() -> Model {
        Model {
            write: 12_000.0,
            write_byte: 0.5,
            gather: 12_000.0,
            gather_byte: 0.8,
            rtt: 300_000,
            client: 20_000,
            is_dense: true,
            commit: 1000,
            sync: 8e6,
            sync_byte: 20.0,
            lease: 300_000,
            first: 20_000_000,
            bring: 40_000_000,
            ..Model::flash()
        }
    }

    fn times(&self, server: usize, at: u64) -> f64 {
        let slow = |slow: &&(usize, u64, u64, f64)| slow.0 == server && (slow.1..slow.2).contains(&at);
        self.slow.iter().find(slow).map_or(1.0, |slow| slow.3)
    }

    fn service(&self, state: &mut State, server: usize, arrives: u64, len: u64) -> u64 {
        let (each, byte) = match server {
            GATHERER => (self.gather, self.gather_byte),
            _ => (self.write, self.write_byte),
        };
        let mean = (each + byte * len as f64) * self.times(server, arrives);
        let by_chance = if self.chance > 0.0 { state.about(mean * self.chance) } else { 0.0 };
        (mean * (1.0 - self.chance) + by_chance) as u64
    }

    /// How long something that is sent waits for a processor.
    fn stalls(&self, state: &mut State) -> u64 {
        match self.stall > 0.0 && state.random.u32(0..4) == 0 {
            true => state.about(4.0 * self.stall) as u64,
            false => 0,
        }
    }

    /// When a piece can be sent that comes at `now`.
    fn sends(&self, state: &mut State, now: u64, path: Path, at: u64) -> u64 {
        let behind = match self.client_byte > 0.0 {
            true => state.client_free.saturating_sub(now) / SERVERS as u64,
            false => 0,
        };
        let stripe = state.stripes.entry(at).or_default();
        let mut sent = now.max(stripe.ready);
        if stripe.path.is_some_and(|before| before != path) {
            sent = sent.max(stripe.over);
        }
        if path == Path::Direct {
            sent += match stripe.path {
                Some(Path::Direct) => 0,
                Some(Path::Gather) => (self.bring as f64 * self.times(GATHERER, sent)) as u64,
                None if state.was_leased => self.lease + behind,
                None => self.lease + behind + self.first,
            };
            state.was_leased = true;
        }
        (stripe.path, stripe.ready) = (Some(path), sent);
        sent
    }

    fn write(&self, state: &mut State, now: u64, path: Path, piece: &Piece) -> (u64, Served) {
        let sent = self.sends(state, now, path, piece.stripe);
        let server = if path == Path::Gather { GATHERER } else { piece.server };
        let stalls = self.stalls(state);
        let arrives = (sent + self.rtt / 2).max(state.client_free) + stalls;
        // It is as slow as when its turn comes; what waits to be sent keeps nobody else from that.
        let begins = arrives.max(state.free[server]);
        let busy = self.service(state, server, begins, piece.len);
        let is_late = sent > now || stalls > 0;
        state.free[server] = if is_late { state.free[server].max(now) + busy } else { begins + busy };
        state.unsynced[server] += piece.len;
        if path == Path::Gather && self.brings {
            let takes = self.write_byte * piece.len as f64 * self.times(piece.server, begins);
            state.free[piece.server] = state.free[piece.server].max(now) + takes as u64;
        }
        let over = begins + busy + self.rtt / 2;
        let stripe = state.stripes.get_mut(&piece.stripe).expect("it was just sent");
        stripe.over = stripe.over.max(over);
        let nanos = Duration::from_nanos;
        let served = Served {
            server,
            len: piece.len,
            busy: nanos(busy),
            stayed: nanos(begins + busy - arrives),
            others: 0.0,
            took: nanos(over - sent),
            waited: nanos(sent - now),
        };
        (over, served)
    }

    /// All that is not synced is, and when.
    fn sync(&self, state: &mut State, threshold: &mut Threshold, now: u64) -> u64 {
        threshold.sync_begins(Time(now));
        let mut longest = 0;
        for server in 0..=GATHERER {
            let bytes = std::mem::take(&mut state.unsynced[server]);
            if bytes > 0 || server == GATHERER {
                let takes = (self.sync + self.sync_byte * bytes as f64) * self.times(server, now);
                let path = if server == GATHERER { Path::Gather } else { Path::Direct };
                threshold.synced(path, server, Duration::from_nanos(takes as u64));
                longest = longest.max(takes as u64);
            }
        }
        let over = now + self.rtt + longest;
        threshold.sync_ends(Time(over));
        over
    }

    /// Goes on as long as `more` of the time and of the writes that began, and tells `done` of each that is
    /// over, and when. Returns when all is.
    fn drive(
        &self,
        threshold: &mut Threshold,
        mut size: impl FnMut() -> u64,
        more: impl Fn(u64, u64) -> bool,
        mut done: impl FnMut(u64, u64),
    ) -> u64 {
        let mut state = State::new();
        let (mut ends, mut open) = (BinaryHeap::new(), BTreeMap::new());
        let (mut number, mut since, mut now) = (0, 0, self.begins);
        loop {
            let is_due = |since| self.commit > 0 && since == self.commit;
            while open.len() < self.under_way && !is_due(since) && more(now, number) {
                let len = size();
                (number, since) = (number + 1, since + 1);
                if self.among > 0 {
                    state.offset = state.random.u64(0..self.among * STRIPE);
                } else if !self.is_dense {
                    state.offset = state.offset.next_multiple_of(STRIPE);
                }
                let (mut at, end, mut pieces) = (state.offset, state.offset + len, Vec::new());
                while at < end {
                    let len = (end - at).min(STRIPE - at % STRIPE);
                    let (stripe, behind) = (at / STRIPE, STRIPE - at % STRIPE - len);
                    pieces.push(Piece { server: stripe as usize % SERVERS, stripe, len, behind });
                    at += len;
                }
                state.offset = end;
                let request = threshold.begin(Time(now), (FileNo(4), len), GATHERER, &pieces, None);
                let takes = self.client + (self.client_byte * len as f64) as u64;
                state.client_free = state.client_free.max(now) + takes;
                let path = request.path;
                let pieces = pieces.iter().map(|piece| self.write(&mut state, now, path, piece));
                let (over, served): (Vec<u64>, Vec<Served>) = pieces.unzip();
                ends.push(Reverse((over.into_iter().max().expect("at least one"), number)));
                open.insert(number, (request, served));
            }
            match ends.pop() {
                Some(Reverse((ended, number))) => {
                    now = ended;
                    let (request, served) = open.remove(&number).expect("it ends once");
                    let len = request.len;
                    threshold.end(Time(now), request, &served);
                    done(now, len);
                }
                None if self.commit > 0 && since > 0 => {
                    now = self.sync(&mut state, threshold, now);
                    since = 0;
                }
                None => return now,
            }
        }
    }

    /// Runs for `seconds` with sizes as they are drawn: out come the bytes that were written in each second.
    fn run(&self, threshold: &mut Threshold, seconds: u64, size: impl FnMut() -> u64) -> Vec<u64> {
        let mut bytes = vec![0; seconds as usize];
        self.drive(
            threshold,
            size,
            |now, _| now < self.begins + seconds * SECOND,
            |now, len| {
                if let Some(second) = bytes.get_mut(((now - self.begins) / SECOND) as usize) {
                    *second += len;
                }
            },
        );
        bytes
    }

    /// How long so many writes take with their syncs.
    fn takes(&self, threshold: &mut Threshold, writes: u64, size: u64) -> u64 {
        self.drive(threshold, || size, |_, begun| begun < writes, |_, _| ())
    }

    /// The same with each path alone: the better one of each second.
    fn better(&self, seconds: u64, size: impl Fn() -> u64) -> Vec<u64> {
        let only = |pinned| self.run(&mut Threshold::new(SERVERS + 1, Some(pinned)), seconds, &size);
        only(0).into_iter().zip(only(u64::MAX)).map(|(direct, gather)| direct.max(gather)).collect()
    }
}

fn sizes() -> impl Iterator<Item = u64> {
    (4..=24).step_by(2).map(|bits| 1 << bits)
}

/// Bytes of some seconds, of the same seconds of another run.
fn ratio(run: &[u64], other: &[u64], seconds: std::ops::Range<usize>) -> f64 {
    let sum = |run: &[u64]| run[seconds.clone()].iter().sum::<u64>() as f64;
    sum(run) / sum(other)
}

/// Goal: at every size the threshold comes to within a tenth of the better path, though it knows of neither,
/// and no more than one request in fifty looks at the other.
/// Method: all sizes, one write at a time and many, networks of no length and of some.
#[test]
fn every_size_takes_the_better_path() {
    for under_way in [1, 16] {
        for rtt in [20_000, 2_000_000] {
            let model = Model { under_way, rtt, ..Model::flash() };
            for size in sizes() {
                let mut threshold = Threshold::new(SERVERS + 1, None);
                let run = model.run(&mut threshold, 4, || size);
                let ratio = ratio(&run, &model.better(4, || size), 2..4);
                assert!(
                    ratio > 0.9,
                    "{size} bytes, {under_way}, {rtt}: {ratio:.3} {}",
                    threshold.threshold()
                );
                let Counts { begun, explored, .. } = threshold.counts();
                assert!(explored * EXPLORED_ONE_IN <= begun, "{explored} of {begun}");
            }
        }
    }
}

/// Goal: a client that knows nothing comes to within a tenth of the better path also where it writes only a
/// thousand times and then syncs; and so it does with the tenth thousand.
/// Method: writes side by side, each thousand and its sync, of every size; leases and moves take as long as
/// syncs make them.
#[test]
fn a_thousand_writes_and_a_sync_are_enough() {
    let model = Model::lab();
    for size in sizes().filter(|size| *size <= 4 << 20) {
        let writes = |times: u64| times * 1000;
        let only =
            |pinned, times| model.takes(&mut Threshold::new(SERVERS + 1, Some(pinned)), writes(times), size);
        for times in [1, 10] {
            let mut threshold = Threshold::new(SERVERS + 1, None);
            let takes = model.takes(&mut threshold, writes(times), size);
            let (direct, gather) = (only(0, times), only(u64::MAX, times));
            let more = takes as f64 / direct.min(gather) as f64;
            let counts = threshold.counts();
            assert!(more < 1.1, "{size} bytes, {times}: {more:.3}; {direct} {gather} {takes}, {counts:?}");
        }
    }
}

/// Goal: when a storage server or the gather server takes ten times as long it is right again within 5
/// seconds; and again when that is over, within 20.
#[test]
fn a_slow_server_is_left() {
    for slow in [0, GATHERER] {
        let model = Model { slow: vec![(slow, 5 * SECOND, 12 * SECOND, 10.0)], ..Model::flash() };
        for size in sizes().step_by(2) {
            let mut threshold = Threshold::new(SERVERS + 1, None);
            let run = model.run(&mut threshold, 35, || size);
            let better = model.better(35, || size);
            let (during, after) = (ratio(&run, &better, 10..12), ratio(&run, &better, 32..35));
            assert!(during > 0.9, "{size} bytes, {slow} is slow: {during:.3}");
            assert!(after > 0.9, "{size} bytes, {slow} was slow: {after:.3}");
        }
    }
}

/// Goal: the same where leases, moves of stripes and syncs take what they take.
#[test]
fn a_slow_server_is_left_where_syncs_count() {
    for slow in [0, GATHERER] {
        let model = Model { slow: vec![(slow, 3 * SECOND, 10 * SECOND, 10.0)], ..Model::lab() };
        for size in [64, 4096, 16384] {
            let mut threshold = Threshold::new(SERVERS + 1, None);
            let run = model.run(&mut threshold, 30, || size);
            let better = model.better(30, || size);
            let (during, after) = (ratio(&run, &better, 8..10), ratio(&run, &better, 27..30));
            assert!(during > 0.9, "{size} bytes, {slow} is slow: {during:.3}");
            assert!(after > 0.9, "{size} bytes, {slow} was slow: {after:.3}");
        }
    }
}

/// Goal: of a mixture the small ones are gathered and the large ones go directly, and together that is better
/// than either path alone.
/// Method: sizes as in the paper's trace: 96 of 100 requests are small and carry few of the bytes.
#[test]
fn a_mixture_is_divided() {
    let model = Model::flash();
    let draw = |seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        move || match random.u32(0..100) {
            0..96 => random.u64(16..2048),
            _ => random.u64(100 << 10..4 << 20),
        }
    };
    let mut threshold = Threshold::new(SERVERS + 1, None);
    let run = model.run(&mut threshold, 10, draw(1));
    let direct = model.run(&mut Threshold::new(SERVERS + 1, Some(0)), 10, draw(1));
    let gather = model.run(&mut Threshold::new(SERVERS + 1, Some(u64::MAX)), 10, draw(1));
    let pinned = model.run(&mut Threshold::new(SERVERS + 1, Some(32 << 10)), 10, draw(1));
    let found = threshold.threshold();
    assert!((2 << 10..=1 << 20).contains(&found), "{found}");
    for (other, least) in [(direct, 1.0), (gather, 1.0), (pinned, 0.9)] {
        let ratio = ratio(&run, &other, 3..10);
        assert!(ratio > least, "{ratio:.3} at {found}");
    }
}

/// Goal: where small and large writes lie among each other in the same stripes these do not go to and fro: it
/// comes to within a tenth of either path alone, and of a fixed threshold between them; and so it does where
/// all of them become small.
/// Method: sizes as above, anywhere in 64 stripes, with moves that take what they take in the lab, and less.
#[test]
fn stripes_do_not_go_to_and_fro() {
    for model in [Model::lab(), Model { bring: 10_000_000, lease: 300_000, ..Model::flash() }] {
        let model = Model { among: 64, is_dense: true, commit: 0, ..model };
        let draw = |seed| {
            let mut random = fastrand::Rng::with_seed(seed);
            move || match random.u32(0..100) {
                0..96 => random.u64(16..2048),
                _ => random.u64(100 << 10..1 << 20),
            }
        };
        let run = |pinned| model.run(&mut Threshold::new(SERVERS + 1, pinned), 10, draw(1));
        let free = run(None);
        for other in [0, 32 << 10, u64::MAX] {
            let ratio = ratio(&free, &run(Some(other)), 1..10);
            assert!(ratio > 0.9, "{ratio:.3} of {other}");
        }
    }
    let model = Model { among: 64, is_dense: true, bring: 10_000_000, lease: 300_000, ..Model::flash() };
    let mut threshold = Threshold::new(SERVERS + 1, None);
    model.run(&mut threshold, 2, || 1 << 20);
    let later = Model { begins: 2 * SECOND, ..model };
    let small = later.run(&mut threshold, 8, || 512);
    let ratio = ratio(&small, &later.better(8, || 512), 5..8);
    assert!(ratio > 0.9, "{ratio:.3} behind large ones");
}

/// Goal: a client begins where another one found the threshold, as long as it has written nothing itself.
#[test]
fn what_others_found_is_where_it_begins() {
    let found = [0, 2, 512, START, u64::MAX];
    for threshold in found {
        let mut other = Threshold::new(SERVERS + 1, None);
        assert_eq!(other.threshold(), START);
        other.start_at(threshold);
        assert_eq!(other.threshold(), threshold);
        assert_eq!(
            other.begin(Time(0), (FileNo(1), 511), GATHERER, &[], None).path == Path::Gather,
            threshold > 511
        );
        other.start_at(64);
        assert_eq!(other.threshold(), threshold);
    }
}

/// Goal: one that is pinned stands still, and looks at nothing.
#[test]
fn a_pinned_threshold_stands_still() {
    for pinned in [0, 1, 4096, u64::MAX] {
        let mut threshold = Threshold::new(SERVERS + 1, Some(pinned));
        Model::flash().run(&mut threshold, 2, || 4096);
        assert_eq!((threshold.threshold(), threshold.counts().explored), (pinned, 0));
    }
}

/// Goal: where the paths hardly differ the threshold does not wander.
#[test]
fn what_hardly_differs_moves_nothing() {
    let model = Model { gather: 60_000.0, gather_byte: 0.5, ..Model::flash() };
    let mut random = fastrand::Rng::with_seed(3);
    let mut threshold = Threshold::new(SERVERS + 1, None);
    let mut moves = 0;
    for _ in 0..20 {
        let before = threshold.threshold();
        model.run(&mut threshold, 1, || 1 << random.u32(4..24));
        moves += u32::from(threshold.threshold() != before);
    }
    assert!(moves <= 4, "{moves}");
}
