//! The storage of one end: targets on servers, what others do to them, and how long a request takes.
//!
//! A target serves [`Shape::units`] requests at a time, first come, first served. A request is *work*, the
//! time that it takes where nobody else is; foreign load slows the target down, and work goes on at the speed
//! of each moment, so that a request that is being served when the load comes or goes feels it. All requests
//! of a server's targets pass its network device one after another.

use std::time::Duration;

use fastrand::Rng;
use haul_core::ids::Time;

/// Foreign load is somewhere else after so long, as in the LADS paper.
pub const PHASE: Duration = Duration::from_secs(5);

/// What one end's storage is made of.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub targets: usize,
    pub servers: usize,
    /// Requests that a target serves at a time.
    pub units: usize,
    /// What a request takes beside its bytes, and a unit's bytes a second.
    pub overhead: Duration,
    pub unit_rate: f64,
    /// Of a server's network device, bytes a second.
    pub server_rate: f64,
}

/// What others do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    /// The part of the targets that is slow in a phase, each time another.
    pub share: f64,
    /// What is left of a slow target's speed.
    pub left: f64,
    /// Nothing comes from this target between the first second and the second.
    pub frozen: Option<(usize, u64, u64)>,
}

/// See the module's head.
pub struct Farm {
    shape: Shape,
    load: Load,
    /// By phase and target.
    speeds: Vec<Vec<f64>>,
    /// When each unit of a target is free.
    units: Vec<Vec<Time>>,
    servers: Vec<Time>,
    rng: Rng,
}

impl Farm {
    pub fn new(shape: Shape, load: Load, seed: u64) -> Farm {
        let mut rng = Rng::with_seed(seed);
        let each = shape.targets.div_ceil(shape.servers);
        // Others move on: each target has its turn to be slow, half of them together with their whole server.
        let slices = if load.share > 0.0 { (1.0 / load.share).round() as usize } else { 0 };
        let slices_of: Vec<usize> = (0..shape.servers)
            .flat_map(|_| {
                let (together, slice) = (rng.bool(), rng.usize(0..slices.max(1)));
                let slice = |_| if together { slice } else { rng.usize(0..slices.max(1)) };
                (0..each).map(slice).collect::<Vec<_>>()
            })
            .collect();
        let speed = |phase: usize, t: usize| {
            if slices > 0 && phase % slices == slices_of[t] { load.left } else { 1.0 }
        };
        let phases = (0..slices.max(1)).map(|p| (0..shape.targets).map(|t| speed(p, t)).collect());
        let speeds = phases.collect();
        Farm {
            shape,
            load,
            speeds,
            units: vec![vec![Time(0); shape.units]; shape.targets],
            servers: vec![Time(0); shape.servers],
            rng,
        }
    }

    /// The end of a request that comes now.
    pub fn serve(&mut self, t: usize, len: u64, now: Time) -> Time {
        let each = self.shape.targets.div_ceil(self.shape.servers);
        let server = &mut self.servers[t / each];
        let begin = now.max(*server);
        *server = begin.after(Duration::from_secs_f64(len as f64 / self.shape.server_rate));
        let begin = *server;
        let unit = (0..self.shape.units).min_by_key(|i| self.units[t][*i]).expect("it has units");
        let begin = begin.max(self.units[t][unit]);
        // Most vary by a third; one in a hundred takes four times as long.
        let odd = if self.rng.u8(..100) == 0 { 4.0 } else { 1.0 };
        let work = self.work(len).mul_f64(odd * (0.67 + 0.66 * self.rng.f64()));
        let end = self.end_of(t, begin, work);
        self.units[t][unit] = end;
        end
    }

    fn work(&self, len: u64) -> Duration {
        self.shape.overhead + Duration::from_secs_f64(len as f64 / self.shape.unit_rate)
    }

    /// When this much work of one unit is done that begins at `begin`.
    fn end_of(&self, t: usize, begin: Time, work: Duration) -> Time {
        let (mut at, mut left) = (begin, work.as_nanos() as f64);
        loop {
            let (speed, until) = self.speed(t, at);
            let need = left / speed;
            let span = until.since(at).as_nanos() as f64;
            if need <= span {
                return at.after(Duration::from_nanos(need as u64));
            }
            left -= span * speed;
            at = until;
        }
    }

    /// The target's speed at a moment, and until when.
    fn speed(&self, t: usize, at: Time) -> (f64, Time) {
        let phase = at.0 / PHASE.as_nanos() as u64;
        let mut until = Time((phase + 1) * PHASE.as_nanos() as u64);
        if let Some((frozen, from, to)) = self.load.frozen.filter(|(frozen, ..)| *frozen == t) {
            let [from, to] = [from, to].map(|s| Time(s * 1_000_000_000));
            debug_assert_eq!(frozen, t);
            if (from..to).contains(&at) {
                return (1e-9, to);
            }
            if at < from {
                until = until.min(from);
            }
        }
        (self.speeds[phase as usize % self.speeds.len()][t], until)
    }

    /// The earliest that these numbers of requests, each of one target, can be over, if no target ever waits.
    pub fn bound(&self, requests: &[u64], len: u64) -> Time {
        // One in a hundred takes four times as long.
        let each = self.work(len).mul_f64(1.03) / self.shape.units as u32;
        let ends = requests
            .iter()
            .enumerate()
            .map(|(t, n)| self.end_of(t, Time(0), Duration::from_nanos(each.as_nanos() as u64 * n)));
        ends.max().expect("there are targets")
    }
}
