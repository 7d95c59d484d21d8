//! The targets of a model together: places new files, and sends what is read and written to the targets it
//! lies on.
//!
//! In: files with layouts, ranges, and what to do when they are served. Out: these calls, when all targets
//! concerned have served their part. Invariant: nothing here waits; a frozen target keeps its calls and
//! nobody else's.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::file::FileBody;
use super::lane::{Dirty, Done, Lane};
use super::lov::Wish;
use super::service::{Congestion, Request, ServiceSpec};
use super::spec::ModelSpec;
use super::stripe::{Layout, ObjectPlace, Part};

pub struct Volume {
    lanes: Vec<Lane>,
    /// What the targets can do, as long as they are not eased.
    specs: Vec<ServiceSpec>,
    stripe_size: u32,
    stripe_count: u32,
    pool: String,
    next_object: AtomicU64,
    next_target: AtomicU32,
}

/// A change of one target or of all, from the control socket.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Setting {
    pub slow: Option<f64>,
    pub extra_us: Option<u64>,
    pub freeze: Option<bool>,
    pub read_rate: Option<u64>,
    pub write_rate: Option<u64>,
}

impl Volume {
    pub fn start(spec: &ModelSpec) -> std::io::Result<Volume> {
        let lanes: std::io::Result<Vec<Lane>> = (0..)
            .zip(&spec.targets)
            .map(|(at, target)| Lane::start(at, target.clone(), spec.seed.wrapping_add(at as u64)))
            .collect();
        Ok(Volume {
            lanes: lanes?,
            specs: spec.targets.clone(),
            stripe_size: spec.stripe_size,
            stripe_count: spec.stripe_count,
            pool: spec.pool.clone(),
            next_object: AtomicU64::new(1),
            next_target: AtomicU32::new(0),
        })
    }

    pub fn targets(&self) -> u32 {
        u32::try_from(self.lanes.len()).expect("no more than TARGETS_MAX")
    }

    /// Whether there is a target that a wish names.
    pub fn can(&self, wish: &Wish) -> bool {
        wish.first.is_none_or(|first| first < self.targets())
    }

    /// Objects for a new file: in turn over the targets, each file one further, unless its wish says where to
    /// start.
    pub fn place(&self, wish: Option<&Wish>) -> Arc<Layout> {
        let targets = self.targets();
        let none = Wish::default();
        let wish = wish.unwrap_or(&none);
        let count = match wish.stripe_count {
            0 => self.stripe_count,
            count => u32::from(count).min(targets),
        };
        let first = wish.first.unwrap_or_else(|| self.next_target.fetch_add(1, Ordering::Relaxed));
        let objects = (0..count)
            .map(|at| ObjectPlace {
                target: first.wrapping_add(at) % targets,
                id: self.next_object.fetch_add(1, Ordering::Relaxed),
            })
            .collect();
        let stripe_size = if wish.stripe_size == 0 { self.stripe_size } else { wish.stripe_size };
        let pool = if wish.pool.is_empty() { &self.pool } else { &wish.pool };
        Arc::new(Layout { stripe_size, objects, pool: pool.clone() })
    }

    /// The layout of a file that is about to be used: placed now if it was not.
    pub fn layout(&self, body: &FileBody) -> Arc<Layout> {
        if let Some(layout) = body.layout() {
            return layout;
        }
        let mut layout = body.layout.write().expect("no panic under this lock");
        layout.get_or_insert_with(|| self.place(body.wish.as_ref())).clone()
    }

    /// Calls `done` when all targets of the range have served it.
    pub fn read(&self, body: &FileBody, offset: u64, len: u64, done: Done) {
        let parts = self.layout(body).parts(offset, len);
        let cached = parts.iter().map(|_| None).collect();
        self.send(parts, cached, false, done);
    }

    /// Calls `done` when the write is answered: served, or held by the write-back caches of all its targets.
    pub fn write(&self, body: &Arc<FileBody>, offset: u64, len: u64, done: Done) {
        let parts = self.layout(body).parts(offset, len);
        let number = body.begin_write();
        let of_end = body.clone();
        let cached: Option<Vec<Dirty>> =
            parts.iter().map(|part| self.lane(part).take_dirty(part.len)).collect();
        match cached {
            Some(cached) => {
                done();
                let cached = cached.into_iter().map(Some).collect();
                self.send(parts, cached, true, Box::new(move || of_end.end_write(number)));
            }
            None => {
                let cached = parts.iter().map(|_| None).collect();
                let served = move || {
                    of_end.end_write(number);
                    done();
                };
                self.send(parts, cached, true, Box::new(served));
            }
        }
    }

    fn lane(&self, part: &Part) -> &Lane {
        &self.lanes[part.place.target as usize]
    }

    fn send(&self, parts: Vec<Part>, cached: Vec<Option<Dirty>>, write: bool, done: Done) {
        if parts.is_empty() {
            done();
            return;
        }
        let join = Arc::new((AtomicUsize::new(parts.len()), Mutex::new(Some(done))));
        for (part, dirty) in parts.iter().zip(cached) {
            let join = join.clone();
            let tag = move || {
                drop(dirty);
                if join.0.fetch_sub(1, Ordering::AcqRel) == 1 {
                    let done = join.1.lock().expect("no panic under this lock").take();
                    done.expect("one part is the last")();
                }
            };
            let Part { place, offset, len } = *part;
            self.lane(part).submit(Request { object: place.id, offset, len, write, tag: Box::new(tag) });
        }
    }

    /// Lets all targets take no time at all, or what they are specified to take. (What was changed of a
    /// target's rates since it is up is as it was at first then.)
    pub fn ease(&self, eased: bool) {
        let null = ServiceSpec::preset("null").expect("a preset");
        for (lane, spec) in self.lanes.iter().zip(&self.specs) {
            lane.set_spec(if eased { null.clone() } else { spec.clone() });
        }
    }

    /// Sets what is wrong with all targets, in their order.
    pub fn set_all_congestion(&self, all: &[Congestion]) {
        self.lanes.iter().zip(all).for_each(|(lane, congestion)| lane.set_congestion(*congestion));
    }

    /// Changes one target, or all.
    ///
    /// Errors: no such target; a factor that is not positive.
    pub fn set(&self, target: Option<u32>, setting: &Setting) -> Result<(), String> {
        let lanes = match target {
            None => &self.lanes[..],
            Some(at) => {
                let at = at as usize;
                let count = self.lanes.len();
                self.lanes.get(at..at + 1).ok_or(format!("no target {at}: there are 0 to {}", count - 1))?
            }
        };
        if setting.slow.is_some_and(|slow| !(0.001..=1e6).contains(&slow)) {
            return Err("slow must be within 0.001 and 1e6".into());
        }
        for lane in lanes {
            let now = lane.congestion();
            if setting.read_rate.is_some() || setting.write_rate.is_some() {
                let spec = lane.spec();
                lane.set_spec(ServiceSpec {
                    read_rate: setting.read_rate.unwrap_or(spec.read_rate),
                    write_rate: setting.write_rate.unwrap_or(spec.write_rate),
                    ..spec
                });
            }
            lane.set_congestion(Congestion {
                slow: setting.slow.unwrap_or(now.slow),
                extra_us: setting.extra_us.unwrap_or(now.extra_us),
                frozen: setting.freeze.unwrap_or(now.frozen),
            });
        }
        Ok(())
    }

    pub fn stats(&self) -> Value {
        let stats = (0..).zip(&self.lanes).map(|(at, lane)| {
            let mut stats = lane.stats();
            stats["target"] = json!(at as u64);
            stats
        });
        Value::Array(stats.collect())
    }
}
