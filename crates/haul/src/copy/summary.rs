//! What is told of a copy when it is over, from the reports of both ends.

use std::time::{Duration, Instant};

use haul_core::schedule::table::{Unwell, UnwellTargets};
use haul_core::stage::{Processors, StageTime, verdict};
use haul_core::transfer::SessionEnd;
use haul_core::tune::Choice;
use haul_core::wire::{EndReport, FailureKind, HeldReport, NotKept};

use super::LOCAL_STREAMS;
use crate::driver::choices::with_far;
use crate::driver::{MEMORY_HELD, Report, cpu_time, merge_stages, rss_max};
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::options::Resume;
use crate::request::CopyRequest;
use crate::summary::{Chosen, Held, KEPT_UNSEEN, Status, Summary};
use crate::target_tables::SlowTarget;
use haul_base::escape;
use haul_base::role::Role;

/// A run is judged from so many seconds on, if it moved so many bytes or copied so many files: what less took
/// was mostly the start and the end.
const JUDGED_AFTER: f64 = 1.0;
const JUDGED_BYTES: u64 = 1_000_000;
const JUDGED_FILES: u64 = 1000;

/// What is counted as not kept where symbolic links are not wanted.
pub(super) const LINKS_LEFT_OUT: &str = "symbolic links and special files left out";

/// A session that is over.
pub(super) struct Joined {
    pub near: Report,
    /// The other end ran in this process.
    pub local: Option<Report>,
    pub protect: String,
    pub path: String,
    pub streams: Choice<u16>,
    /// The setting of the system that would help.
    pub advice: Option<String>,
    pub rate_limited: bool,
}

impl Joined {
    pub fn local(near: Report, far: Report, rate_limited: bool) -> Joined {
        Joined {
            near,
            local: Some(far),
            protect: "local".into(),
            path: "local".into(),
            streams: Choice { value: LOCAL_STREAMS, why: "both ends are in one process".into() },
            advice: None,
            rate_limited,
        }
    }
}

/// The sink's buffers, and so grants, held the rate down: one of the ends' choices says so.
fn memory_limited(chosen: &[(String, String)]) -> bool {
    chosen.iter().any(|(name, _)| name == MEMORY_HELD)
}

/// A failure with the host before the path that it begins with. Whichever end says it, it names paths as that
/// end has them.
fn placed(text: &str, request: &CopyRequest) -> String {
    let sides = [("source ", request.sources.first()), ("destination ", Some(&request.destination))];
    for (word, endpoint) in sides {
        if let (Some(rest), Some(host)) = (text.strip_prefix(word), endpoint.and_then(Endpoint::host)) {
            let open = rest.starts_with(host) && rest[host.len()..].starts_with(':');
            return if open { text.to_owned() } else { format!("{word}{host}:{rest}") };
        }
    }
    text.to_owned()
}

/// The error with the end and the path that its text begins with, if it does.
pub(super) fn named(error: Error, request: &CopyRequest) -> Error {
    let sources: Vec<&Endpoint> = request.sources.iter().collect();
    for (word, end, endpoints) in
        [("source ", Role::Source, &sources[..]), ("destination ", Role::Sink, &[&request.destination][..])]
    {
        let Some(rest) = error.text.strip_prefix(word) else { continue };
        let paths = || endpoints.iter().filter_map(|endpoint| endpoint.place().file_path());
        let path = match endpoints {
            // However it is written: the far end may have put a home directory before it.
            [_] => paths().next(),
            _ => paths().filter(|path| rest.starts_with(&escape::within(path))).max_by_key(|path| path.len()),
        };
        return error.about(end, path);
    }
    error
}

/// The summary of a copy that began at `start`.
pub(super) fn summarise(request: &CopyRequest, joined: Joined, start: Instant) -> Summary {
    let Joined { near, local, protect, path, streams, advice, rate_limited } = joined;
    let far: EndReport = match (&local, near.far) {
        (Some(far), _) => far.own,
        (None, Some(far)) => far,
        (None, None) => EndReport::default(),
    };
    let mut stages = merge_stages(&near.own.stages, &far.stages);
    if local.is_some() {
        // There is no network, and handing buffers over is work of neither end.
        stages[haul_core::stage::Stage::Network as usize] = StageTime::default();
    }
    let not_kept = NotKept::ALL.iter().map(|what| {
        let count = near.own.not_kept[*what as usize] + far.not_kept[*what as usize];
        let name = match what {
            NotKept::Special if request.options.no_links => LINKS_LEFT_OUT,
            what => what.name(),
        };
        (name.to_owned(), count)
    });
    let tally = near.tally;
    let links: Vec<_> = tally.links_left().into_iter().chain(tally.nodes_left()).collect();
    let not_kept = not_kept.chain(links.iter().map(|(links, _)| links.clone()));
    let (seconds, payload) = (start.elapsed().as_secs_f64(), near.own.payload.max(far.payload));
    // What moved next to nothing was limited by nothing.
    let is_trifle = seconds < JUDGED_AFTER || (payload < JUDGED_BYTES && tally.files < JUDGED_FILES);
    let slow_targets = near.unwell.iter().flat_map(|(end, unwell)| slow_targets(*end, unwell)).collect();
    let slow_others = near.unwell.iter().map(|(_, unwell)| u64::from(unwell.others)).sum();
    let end = match (&near.end, local.as_ref().map(|far| &far.end)) {
        (SessionEnd::Complete, Some(SessionEnd::Failed(failure))) => SessionEnd::Failed(failure.clone()),
        (end, _) => end.clone(),
    };
    let usage = matches!(&end, SessionEnd::Failed(failure) if failure.kind == FailureKind::Usage);
    let (status, error) = match end.clone() {
        SessionEnd::Complete if tally.failed > 0 => (Status::Partial, None),
        SessionEnd::Complete => (Status::Complete, None),
        SessionEnd::Stopped => (Status::Interrupted, None),
        SessionEnd::Failed(failure) => {
            let mut error = named(Error::failed(&failure), request);
            error.text = placed(&error.text, request);
            (Status::Failed, Some(error))
        }
    };
    let is_remote = local.is_none();
    let [here, there] = near.processors;
    let processors = match (is_remote, request.destination.host()) {
        // Within one process both ends have the same.
        (false, _) => [here; 2],
        (true, Some(_)) => [here, there],
        (true, None) => [there, here],
    };
    let cpu_near = cpu_time().as_secs_f64();
    let cpu_far = near.far.filter(|_| is_remote).map(|far| far.cpu as f64 / 1e9);
    let cpu = match (is_remote, request.destination.host()) {
        (false, _) => [Some(cpu_near); 2],
        (true, Some(_)) => [Some(cpu_near), cpu_far],
        (true, None) => [cpu_far, Some(cpu_near)],
    };
    let own_shares = [own_share(cpu[0], processors[0], seconds), own_share(cpu[1], processors[1], seconds)];
    let keeps = request.destination.place().scheme().keeps;
    let ends = request.sources.iter().chain([&request.destination]);
    let trusts = request.options.resume == Resume::Trust && request.replicas.is_empty();
    let proves = ends.map(|end| end.place().scheme()).all(|scheme| scheme.resumes);
    let resumes = keeps && (proves || trusts);
    // Where both ends are here, what counts is what goes to the server.
    let spared = local.as_ref().map_or(0, |far| far.spared.max(near.spared));
    // A server keeps parts of some files, and of others nothing.
    let at_server = keeps && request.destination.place().scheme().foreign;
    let kept = near.kept.max(local.as_ref().map_or(0, |far| far.kept));
    let chosen = with_far(near.chosen, local.as_ref().map(|far| far.chosen.clone()).unwrap_or_default());
    let is_unseen = chosen.iter().any(|(name, _)| name == KEPT_UNSEEN);
    let resumes = resumes || at_server && (kept > 0 || is_unseen);
    // At a server nothing stays for a later run to believe, unless this one did.
    // Nor where nothing was durable yet.
    let would_resume_by_trust = keeps && !resumes && !at_server && request.replicas.is_empty() && kept > 0;
    let resumed = match at_server {
        true => near.resumed || local.as_ref().is_some_and(|far| far.resumed),
        false => near.resumed && resumes,
    };
    let kept = match (&end, resumes) {
        (SessionEnd::Stopped | SessionEnd::Failed(_), true) => kept,
        _ => 0,
    };
    let mut chosen = chosen;
    let Choice { value: streams, why } = streams;
    chosen.push(("streams".into(), format!("{streams} ({why})")));
    chosen.extend(advice.map(|advice| ("would help".into(), advice)));
    chosen.extend(links.iter().map(|(_, names)| names.clone()));
    Summary {
        status,
        files: tally.files,
        dirs: tally.dirs,
        amended_dirs: tally.amended_dirs,
        symlinks: tally.symlinks,
        hard_links: tally.hard_links,
        specials: tally.specials,
        unchanged: tally.unchanged,
        amended: near.own.amended.saturating_add(far.amended),
        changed: request.options.changed,
        prefixes: near.own.prefixes.saturating_add(far.prefixes),
        prefix_bytes: near.own.prefix_bytes.saturating_add(far.prefix_bytes),
        cloned: tally.cloned,
        cloned_bytes: tally.cloned_bytes,
        skipped: tally.skipped,
        failed: tally.failed,
        vanished: tally.vanished,
        lasting: tally.lasting,
        usage,
        bytes: tally.bytes,
        bytes_sent: payload.saturating_sub(spared),
        objects_resent: near.own.objects_resent.max(far.objects_resent),
        seconds,
        cpu_seconds_near: cpu_near,
        cpu_seconds_far: cpu_far,
        rss_near: rss_max(),
        rss_far: near.far.filter(|_| is_remote).map(|far| far.rss_max),
        streams,
        protect,
        digest: request.options.digest,
        verify: request.options.verify,
        came_back: tally.came_back,
        resume: request.options.resume,
        held: held(if near.own.held == HeldReport::default() { far.held } else { near.own.held }),
        path,
        third_party: None,
        in_place: request.options.is_in_place() && keeps,
        part: request.options.part().map(|part| part.known((tally.files == 1).then_some(tally.bytes))),
        durability: keeps.then_some(request.options.durability),
        servers_word: request.destination.place().scheme().foreign,
        from_server: request.sources.first().is_some_and(|source| source.place().scheme().foreign),
        stages,
        limited_by: verdict(&stages, processors, own_shares).filter(|_| !is_trifle),
        processors,
        own_shares,
        not_kept: not_kept.filter(|(_, count)| *count > 0).collect(),
        strays: near.own.strays + far.strays,
        resumes,
        would_resume_by_trust,
        resumed,
        kept,
        error,
        rate_limited,
        memory_limited: memory_limited(&chosen) && !rate_limited,
        chosen: chosen.into_iter().map(|(name, value)| Chosen::new(name, value)).collect(),
        slow_targets,
        slow_others,
    }
}

/// The share of a host's processors that so many seconds of one are.
fn own_share(cpu: Option<f64>, processors: Option<Processors>, seconds: f64) -> Option<f64> {
    let all = seconds * f64::from(processors?.count.max(1));
    Some((cpu? / all.max(1e-9)).clamp(0.0, 1.0))
}

fn held(HeldReport { checked, wrong, trusted, time }: HeldReport) -> Held {
    Held { checked, wrong, trusted, seconds: Duration::from_nanos(time).as_secs_f64() }
}

/// The storage targets of one end that were unwell.
fn slow_targets(end: Role, unwell: &UnwellTargets) -> impl Iterator<Item = SlowTarget> {
    unwell.named.iter().map(move |Unwell { name, congested, hung }| SlowTarget {
        end,
        name: name.to_string(),
        congested: *congested,
        hung: *hung,
    })
}
