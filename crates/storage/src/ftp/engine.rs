//! Reads files over several sessions, each on a thread of its own.
//!
//! In: operations of the session machine. Out: their completions. An object of a file goes to the session
//! that it lies on ([`Names::session_of`](super::names::Names::session_of)), which goes on where it stopped
//! as long as the next object follows the last; everything else goes to whichever session is free.
//! Invariants: each operation is answered once, also of a thread that panics; a session that the server
//! refuses because it has too many, or that was lost and is not taken again, leaves its work to the others,
//! as long as there are any, and is tried again later.

use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use haul_core::entry::FileRange;
use haul_core::extents::ExtentMap;
use haul_core::ids::FileId;
use haul_core::layout::Layout;
use haul_core::transfer::op::{SourceDone, SourceOp};
use haul_core::wire::FailureKind;

use super::names::{Names, Shared};
use super::session::Sites;
use super::{protection_of, shown, unprotected};
use crate::store::{NetworkFacet, Reading};
use crate::{SourceCompletion, SourceEngine, SourceJob, Stuck};
use ends::Ends;
use parts::Parts;
use queues::{Common, Network, Queues, Work, owed};
use reader::Reader;
use ways::Ways;

mod blocks;
mod came;
mod ends;
mod line;
mod logins;
mod moves;
mod parts;
mod queues;
mod reader;
mod spot;
#[cfg(test)]
mod tests;
mod ways;

/// Sessions that read, if nobody asks for another number; servers often take no more than ten of one user.
const SESSIONS: usize = 8;
/// Most sessions.
const SESSIONS_MAX: u16 = 64;
/// How long the end of sessions is waited for that have nothing to do any more.
const ENDS_WITHIN: Duration = Duration::from_secs(1);
/// Objects that one session may have before it: one that comes, and one that it goes on with.
const AHEAD: u32 = 2;
/// The same of one that reads in blocks: what comes over several connections at a time, and in any order.
const AHEAD_BLOCKS: u32 = 16;

/// Small files that one session reads one after the other before it looks at them again, together: each costs
/// round trips, so that many in one session's hands are few in the others'.
const BUNDLE_FILES: usize = 8;
/// The same where they come in blocks, without a round trip for each.
const BUNDLE_FILES_BLOCKS: usize = 64;

/// The engine of a source at a server.
pub(super) struct FtpEngine {
    common: Arc<Common>,
    threads: Vec<JoinHandle<()>>,
    banner: String,
    memory: u64,
    in_flight: Option<u16>,
}

impl FtpEngine {
    /// Starts the threads; each opens its session when it has something to do.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn start(
        sites: &Arc<Sites>,
        reading: &Reading,
        (banner, round_trip, has_blocks, trusts): (String, Option<Duration>, bool, bool),
        part: Option<FileRange>,
    ) -> std::io::Result<FtpEngine> {
        let fitting = reading.memory / u64::from(reading.object_size.max(1)) / u64::from(AHEAD);
        let sessions = usize::try_from(fitting).unwrap_or(SESSIONS).clamp(1, SESSIONS);
        let mut nonce = [0; 16];
        aws_lc_rs::rand::fill(&mut nonce).map_err(|_| std::io::Error::other("no random numbers"))?;
        let names = Arc::new(Names::new(sessions, nonce, (part, reading.kept)));
        let common = Arc::new(Common {
            sites: sites.clone(),
            names,
            clock: reading.clock.clone(),
            kind: reading.agreed.digest,
            meter: reading.meter.clone(),
            post: reading.post.clone(),
            queues: Mutex::new(Queues::new(sessions)),
            ends: Ends::default(),
            ways: Ways::new(has_blocks, round_trip),
            parts: Parts::default(),
            trusts,
            ready: Condvar::new(),
            network: Network { round_trip, ..Network::default() },
        });
        // Whoever has a session and nothing to read leaves it to the walk, should that wait for one.
        let readers = Arc::downgrade(&common);
        sites.seats.wake_readers_by(move || {
            if let Some(common) = readers.upgrade() {
                // Nobody looked before and waits behind this.
                drop(common.lock());
                common.ready.notify_all();
            }
        });
        let mut engine = FtpEngine {
            common: common.clone(),
            threads: Vec::new(),
            banner,
            memory: reading.memory,
            in_flight: reading.storage.in_flight,
        };
        for index in 0..sessions {
            let common = common.clone();
            let name = format!("haul-ftp-{index}");
            engine
                .threads
                .push(thread::Builder::new().name(name).spawn(move || Reader::new(common, index).run())?);
        }
        Ok(engine)
    }

    pub(super) fn names(&self) -> Shared {
        self.common.names.clone()
    }
}

impl Drop for FtpEngine {
    fn drop(&mut self) {
        let mut queues = self.common.lock();
        queues.ends = true;
        // What nobody began is given up, which tells it.
        let left: Vec<Work> = queues.objects.iter_mut().flat_map(std::mem::take).collect();
        let other = std::mem::take(&mut queues.other);
        drop(queues);
        self.common.ready.notify_all();
        drop((left, other));
        // Who has nothing to do ends his session, which is over soon. A thread that waits for a server ends
        // by itself; nobody waits for it.
        let until = Instant::now() + ENDS_WITHIN;
        let is_stopped = || self.common.sites.all.iter().any(|site| site.settings.stop.is_asked());
        let ends = |(index, thread): (usize, &JoinHandle<()>)| {
            let queues = self.common.lock();
            !thread.is_finished() && queues.open[index] && queues.busy[index].is_none()
        };
        while self.threads.iter().enumerate().any(ends) && Instant::now() < until && !is_stopped() {
            thread::sleep(Duration::from_millis(2));
        }
        self.threads.clear();
    }
}

impl SourceEngine for FtpEngine {
    fn submit(&mut self, job: SourceJob) {
        let SourceJob { op, buffer } = job;
        let names = &self.common.names;
        let done = match op {
            SourceOp::Forget { id } => {
                self.common.ends.forget(id);
                self.common.ways.forget(id);
                self.common.parts.forget(id);
                self.common.lock().forget(id);
                return names.forget(id);
            }
            SourceOp::ForgetDir { id } => return names.forget(id.as_file()),
            SourceOp::Locate { files } => {
                let lies = |(id, generation)| (id, generation, Arc::new(Layout::flat(names.session_of(id))));
                SourceDone::Locate { files: files.into_iter().map(lies).collect() }
            }
            // No server tells of holes.
            SourceOp::Map { id, generation } => {
                let size = names.look(id).and_then(|told| told.facts.size).unwrap_or(0);
                SourceDone::Map { id, generation, result: Ok(ExtentMap::full(size)) }
            }
            // What an earlier run left is of a file that nobody can prove to be the same: it starts afresh,
            // unless the user believes what the server tells.
            SourceOp::Verify { id, generation, .. } if !self.common.trusts => {
                SourceDone::Verify { id, generation, result: Ok(false) }
            }
            SourceOp::HashFile { id, generation, .. } => {
                let (path, site) = names.look(id).map(|told| (told.path, told.site)).unwrap_or_default();
                let why = "the server tells of no change that a digest would settle";
                let result = Err(self.common.say(site, FailureKind::Changed, &path, why));
                SourceDone::HashFile { id, generation, result }
            }
            op => {
                let owed = owed(&self.common.post, &op);
                let mut queues = self.common.lock();
                // Whoever gave the bytes is asked whether the file is still what it was.
                let session = match &op {
                    SourceOp::Read { target, .. } => usize::from(target.0),
                    SourceOp::Look { id, .. } | SourceOp::Verify { id, .. } => {
                        usize::from(names.session_of(*id).0)
                    }
                    _ => 0,
                };
                let session = session.min(queues.objects.len() - 1);
                queues.add(session, Work { op, buffer, owed });
                drop(queues);
                self.common.ready.notify_all();
                return;
            }
        };
        (self.common.post)(SourceCompletion { done, buffer });
    }

    fn set_width(&mut self, _: Option<u16>) -> u16 {
        self.common.lock().objects.len().min(usize::from(SESSIONS_MAX)) as u16
    }

    fn reads_max(&self, object_size: u32) -> (u32, u32) {
        let sessions = self.common.lock().objects.len() as u32;
        let fitting = (self.memory / 2 / u64::from(object_size.max(1))).clamp(1, u64::from(u32::MAX)) as u32;
        let asked = self.in_flight.map_or(u32::MAX, u32::from).max(1);
        let ahead = if self.common.ways.is_on() { AHEAD_BLOCKS } else { AHEAD };
        let one = ahead.min(asked).min(fitting.max(AHEAD));
        (one, (sessions * ahead).min(fitting).min(asked).max(one))
    }

    fn bundle_files(&self) -> usize {
        if self.common.ways.is_on() { BUNDLE_FILES_BLOCKS } else { BUNDLE_FILES }
    }

    fn compares(&self) -> bool {
        self.common.trusts
    }

    fn stuck(&self) -> Vec<Stuck> {
        let queues = self.common.lock();
        let late = |(since, what, id): &(Instant, &'static str, FileId)| {
            let since = since.elapsed();
            (since > Duration::from_secs(10)).then(|| {
                let told = self.common.names.look(*id).map(|told| (told.path, told.site));
                let (path, site) = told.unwrap_or_default();
                Stuck { what, name: shown(self.common.sites.server(site), &path), offset: 0, since }
            })
        };
        let mut stuck: Vec<Stuck> = queues.busy.iter().flatten().filter_map(late).collect();
        stuck.sort_by_key(|stuck| std::cmp::Reverse(stuck.since));
        stuck
    }

    fn report(&self) -> Vec<(String, String)> {
        let queues = self.common.lock();
        let refused = queues.refused.iter().filter(|refused| **refused).count();
        let (all, open) = (queues.objects.len(), queues.open.iter().filter(|open| **open).count());
        let fewer = if refused > 0 { format!("; the server refused {refused} more") } else { String::new() };
        let sites = &self.common.sites;
        let server = sites.server(0).url();
        let what = format!("{server} ({}), {open} of at most {all} sessions{fewer}", self.banner);
        let ways = self.common.ways.words().map(|words| ("source streams".into(), words));
        let mut all: Vec<&str> = Vec::new();
        for said in sites.all.iter().map(|site| protection_of(&site.server, &site.settings)) {
            if !all.contains(&said) {
                all.push(said);
            }
        }
        let mut rows = vec![
            ("source storage".into(), what),
            ("source protection".into(), all.join("; of other replicas: ")),
            ("compared with the server".into(), "sizes and times; its content was not hashed there".into()),
        ];
        rows.extend(self.common.names.rows());
        rows.extend(sites.used().map(|used| ("replicas".into(), used)));
        rows.extend(ways);
        rows.extend(sites.lost().map(|words| ("connection to the source lost".into(), words)));
        // Of one that was never reached nothing went anywhere.
        let open = sites.all.iter().filter(|site| site.was_reached());
        let open = open.filter_map(|site| unprotected(&site.server, &site.settings));
        rows.extend(open.map(|words| ("NOT protected".into(), words)));
        rows
    }

    fn network(&self) -> Option<&dyn NetworkFacet> {
        Some(&self.common.network)
    }
}
