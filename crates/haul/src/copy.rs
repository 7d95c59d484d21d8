//! A copy from end to end: which end runs where, how they are joined, and the summary of both.
//!
//! In: a `CopyRequest`. Out: a `Summary`. Local to local, both ends run in this process over memory links;
//! else one end runs here and the other as an agent that ssh started.

use std::ffi::OsStr;
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use haul_core::ids::StreamId;
use haul_core::stage::{StageTime, verdict};
use haul_core::transfer::SessionEnd;
use haul_core::tune::Choice;
use haul_core::wire::{EndReport, NotKept, RATE_UNLIMITED, STREAMS_MAX, SourceRoot};

use crate::api::{Control, CopyRequest, Endpoint, Event, Observer, Status, Summary};
use crate::driver::sink::SinkRequest;
use crate::driver::source::SourceRequest;
use crate::driver::{
    Links, PATIENCE, Protection, Report, Watch, cpu_time, dry, merge_stages, policy, rss_max, sink, source,
};
use crate::job::{AgentRequest, Options, PathBytes, Role};
use crate::probe::path as path_probe;
use crate::storage::descriptors::raise_nofile;
use crate::storage::null::{self, Made};
use crate::storage::source::roots::{RootTarget, is_inside, resolve_sources};
use crate::storage::source::wall_clock;
use crate::transport::bootstrap::{self, AgentEnv, RemoteSpec};
use crate::transport::pace::Pacer;
use crate::transport::path::{self, EndFacts, Plan};
use crate::transport::rejoin::Joins;
use crate::transport::{memory, tcp};

mod passport;
mod policy;
pub(crate) mod trial;

/// Bytes that may lie in a memory link.
const PIPE_LEN: usize = 1024 * 1024;
/// Payload buffers of an end are never less than this, bytes: two of the smallest bundles.
const MEMORY_MIN: u64 = 8 * 1024 * 1024;
/// Streams that waited for `--rate` for this share of their time were limited by it.
const RATE_WAITS: f64 = 0.2;
/// And so was a transfer that reached this share of it, where nobody here saw the streams wait.
const RATE_REACHED: f64 = 0.85;

/// Runs a copy; what goes wrong is in the summary.
pub(crate) fn run(request: &CopyRequest, observer: Arc<dyn Observer>, control: Control) -> Summary {
    let start = Instant::now();
    let forbidden = request.options.protect < policy::least_protect(None);
    let refused = forbidden.then_some(policy::FORBIDDEN).or(request.options.check().err());
    if let Some(error) = refused {
        return Summary { error: Some(error.into()), ..Summary::default() };
    }
    raise_nofile();
    let (request, adopted) = &passport::adopt_local(request);
    let joined = match join(request, &observer, &control) {
        Ok(joined) => joined,
        Err(error) => {
            let status = if control.stopped() { Status::Interrupted } else { Status::Failed };
            let seconds = start.elapsed().as_secs_f64();
            return Summary { status, error: Some(error), seconds, ..Summary::default() };
        }
    };
    let mut summary = summarise(request, joined, start);
    passport::explain(&mut summary.chosen, adopted);
    summary
}

/// A session that is over.
struct Joined {
    near: Report,
    /// The other end ran in this process.
    local: Option<Report>,
    protect: String,
    path: String,
    streams: Choice<u16>,
    /// The setting of the system that would help.
    advice: Option<String>,
    rate_limited: bool,
}

impl Joined {
    fn local(near: Report, far: Report, rate_limited: bool) -> Joined {
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

/// Data streams of a copy within one process.
const LOCAL_STREAMS: u16 = 2;

fn join(request: &CopyRequest, observer: &Arc<dyn Observer>, control: &Control) -> Result<Joined, String> {
    let (manifest, hasher) = match request.options.manifest && !request.dry_run {
        true => {
            let (sender, paths) = unbounded();
            let (request, observer) = (request.clone(), observer.clone());
            let work = move || hash_unchanged(&request, &paths, &*observer);
            let thread = thread::Builder::new().name("haul-manifest".into()).spawn(work);
            (Some(sender), Some(thread.map_err(|e| format!("starting a thread: {e}"))?))
        }
        false => (None, None),
    };
    let watch = Watch {
        observer: Some(observer.clone()),
        control: control.clone(),
        verbose: request.verbose,
        manifest,
    };
    let joined = run_ends(request, observer, &watch);
    drop(watch);
    if let Some(hasher) = hasher {
        hasher.join().map_err(|_| "hashing for the manifest failed".to_owned())?;
    }
    joined
}

fn run_ends(request: &CopyRequest, observer: &Arc<dyn Observer>, watch: &Watch) -> Result<Joined, String> {
    let sources: Vec<PathBytes> =
        request.sources.iter().map(|source| PathBytes(path_of(source).to_vec())).collect();
    let destination = PathBytes(path_of(&request.destination).to_vec());
    let remote_source = request.sources.iter().find_map(host_of);
    let what = format!("copy to {}", String::from_utf8_lossy(&destination.0));
    let pacer = Arc::new(Pacer::new(request.options.rate));
    let memory_for = |links: &Links| memory(&request.options, path::rtt(&links.control));
    let here = |destination, links: &Links| {
        sink_request(destination, &request.options, None, memory_for(links).value, what.clone())
    };
    let from_here =
        |links: &Links| source_request(sources.clone(), &request.options, None, memory_for(links), &pacer);
    let begin = Instant::now();
    let paced = |streams: u16| {
        let whole = begin.elapsed().as_secs_f64() * f64::from(streams.max(1));
        // Nobody waits where there is no limit, and it may come and go while the copy runs.
        pacer.waited().as_secs_f64() > RATE_WAITS * whole
    };
    match (remote_source, host_of(&request.destination)) {
        (None, None) => {
            refuse_inside(request, &destination.0)?;
            let (near, far) = memory_links(&request.options);
            let (from, to) = (from_here(&near), here(destination.clone(), &far));
            let local = thread::scope(|scope| {
                let from = scope.spawn(|| source::run(near, &from, watch));
                let far = match request.dry_run {
                    true => dry::run(far, &destination.0, to.memory, watch),
                    false => sink::run(far, &to, &Watch::silent()),
                };
                from.join().map(|near| (near, far))
            });
            let (near, far) = local.map_err(|_| "internal error in the source end".to_owned())?;
            let (near, far) = if request.dry_run { (far, near) } else { (near, far) };
            Ok(Joined::local(near, far, paced(LOCAL_STREAMS)))
        }
        (None, Some(_)) if request.dry_run => {
            let (near, far) = memory_links(&request.options);
            let (from, memory) = (from_here(&near), memory_for(&far).value);
            let shown = display_destination(request);
            let both = thread::scope(|scope| {
                let from = scope.spawn(|| source::run(near, &from, &Watch::silent()));
                let far = dry::run(far, &shown, memory, watch);
                from.join().map(|near| (far, near))
            });
            let (near, far) = both.map_err(|_| "internal error in the source end".to_owned())?;
            Ok(Joined::local(near, far, false))
        }
        (None, Some(host)) => {
            let ask = AgentRequest::new(Role::Sink, Vec::new(), Some(destination), request.options.clone());
            if let Some(name) = &request.options.congestion {
                tcp::usable(name).map_err(|e| e.to_string())?;
            }
            let (links, remote) = connect(request, host, &ask, observer)?;
            let from = from_here(&links);
            let near = source::run(links, &from, watch);
            let limited = paced(remote.streams.value);
            Ok(remote.joined(near, limited))
        }
        (Some(host), None) => {
            let typed = sources.clone();
            let ask = AgentRequest::new(Role::Source, sources, None, request.options.clone());
            let (links, remote) = connect(request, host, &ask, observer)?;
            let begin = Instant::now();
            let memory = memory_for(&links).value;
            let near = match request.dry_run {
                true => dry::run(links, &destination.0, memory, watch),
                false => {
                    let asked = Some((typed, policy(&request.options)));
                    let to = SinkRequest { asked, ..here(destination, &links) };
                    sink::run(links, &to, watch)
                }
            };
            let reached =
                near.far.as_ref().map_or(0, |far| far.payload) as f64 / begin.elapsed().as_secs_f64();
            // The last limit: what it was before is not known here.
            let rate = match watch.control.knobs().rate {
                0 => request.options.rate,
                RATE_UNLIMITED => None,
                rate => Some(rate),
            };
            let limited = rate.is_some_and(|rate| reached > RATE_REACHED * rate as f64);
            Ok(remote.joined(near, limited))
        }
        (Some(_), Some(_)) => Err("copying from one remote host to another is not supported yet".into()),
    }
}

/// What is left of a connection when its links are in use.
struct Remote {
    guard: bootstrap::SshGuard,
    protect: String,
    path: String,
    paths: Option<String>,
    /// Of the ssh connection, where all goes through it.
    channels: Option<String>,
    streams: Choice<u16>,
    advice: Option<String>,
    /// The far end's address, if it was dialled, and what it says of itself.
    address: Option<IpAddr>,
    far: Option<EndFacts>,
}

impl Remote {
    fn joined(self, mut near: Report, rate_limited: bool) -> Joined {
        let Remote { guard, protect, path, paths, channels, streams, advice, .. } = self;
        match near.end {
            SessionEnd::Complete => guard.leave(),
            SessionEnd::Stopped | SessionEnd::Failed(_) => drop(guard),
        }
        near.chosen.extend(paths.map(|paths| ("paths".into(), paths)));
        near.chosen.extend(channels.map(|channels| ("ssh channels".into(), channels)));
        Joined { near, local: None, protect, path, streams, advice, rate_limited }
    }
}

fn connect(
    request: &CopyRequest,
    host: &str,
    ask: &AgentRequest,
    observer: &Arc<dyn Observer>,
) -> Result<(Links, Remote), String> {
    connect_and_hear(request, host, ask, observer, &mut |_| false)
}

/// `hear`: see [`bootstrap::connect_and_hear`].
fn connect_and_hear(
    request: &CopyRequest,
    host: &str,
    ask: &AgentRequest,
    observer: &Arc<dyn Observer>,
    hear: &mut dyn FnMut(&str) -> bool,
) -> Result<(Links, Remote), String> {
    let remote = &request.remote;
    let spec = RemoteSpec {
        host: host.to_owned(),
        user: None,
        ssh: remote.ssh.clone(),
        remote_haul: remote.remote_haul.clone(),
        push: if remote.no_push { None } else { remote.binary.clone() },
        via: remote.via.clone(),
        dial: remote.dial,
        ports: remote.ports,
        interactive: remote.interactive,
        streams: request.options.streams.map(|n| n.clamp(1, STREAMS_MAX)),
        storage_rate: passport::near_rate(request),
        ssh_channels: remote.ssh_channels,
        sockets: remote.sockets.clone(),
    };
    let mut notes = |note| observer.event(Event::Note(note));
    let connected = bootstrap::connect_and_hear(&spec, ask, &mut notes, hear).map_err(|e| e.to_string())?;
    let paths = show_paths(&connected.paths());
    let Plan { streams, advice, .. } = connected.plan;
    let links = Links {
        session: connected.session,
        control: connected.control,
        data: connected.data,
        streams: streams.value,
        joins: connected.joins,
        patience: patience(&request.options),
        strays: connected.strays,
        protection: protection(&request.options, connected.protect),
    };
    let (path, address) = match connected.path {
        bootstrap::Path::Direct { addr } => (format!("tcp to {addr}"), Some(addr.ip())),
        bootstrap::Path::Reverse { addr } => (format!("tcp from the far end to {addr}"), None),
        bootstrap::Path::Ssh => (through_ssh(connected.ssh_channels.as_ref()), None),
    };
    let channels = connected.ssh_channels.map(|Choice { value, why }| format!("{value} ({why})"));
    let (protect, far) = (connected.protect.to_owned(), connected.far);
    if links.protection.auth_only {
        observer.event(Event::Note(
            "data goes unencrypted, as asked; what is changed on its way is found".into(),
        ));
    }
    Ok((
        links,
        Remote { guard: connected.guard, protect, path, paths, channels, streams, advice, address, far },
    ))
}

/// The way through ssh in words.
fn through_ssh(channels: Option<&Choice<u16>>) -> String {
    match channels {
        Some(Choice { value: channels @ 2.., .. }) => format!("through ssh, {channels} channels"),
        _ => "through ssh".into(),
    }
}

/// Several paths in words.
fn show_paths(paths: &[(IpAddr, IpAddr, usize)]) -> Option<String> {
    let show = |(from, to, streams): &(IpAddr, IpAddr, usize)| format!("{from} -> {to} ({streams} streams)");
    let all: Vec<String> = paths.iter().map(show).collect();
    (all.len() > 1).then(|| format!("{} paths: {}", all.len(), all.join(", ")))
}

/// `haul agent`: the far end of one session. Returns the exit code.
pub(crate) fn serve(home: Option<PathBuf>, ssh_connection: Option<String>) -> i32 {
    raise_nofile();
    let least_protect = policy::least_protect(home.as_deref());
    let storage_rate = home.clone().map(passport::rate_at);
    let answers = {
        let home = home.clone();
        bootstrap::Answers(Arc::new(move |question, tell| {
            let state = home.as_deref().map(passport::state_of);
            path_probe::answer(question, (home.as_deref(), state.as_deref()), tell);
        }))
    };
    let answers = Some(answers);
    let env = AgentEnv { ssh_connection, least_protect, storage_rate, answers, ..AgentEnv::default() };
    // Bare descriptors: a buffer in between would hold back what the other end waits for.
    let pipe = || {
        Ok::<_, std::io::Error>((
            rustix::stdio::stdin().try_clone_to_owned()?,
            rustix::stdio::stdout().try_clone_to_owned()?,
        ))
    };
    let Ok((input, output)) = pipe() else { return 1 };
    let (mut request, connected) = match bootstrap::agent(File::from(input), File::from(output), env) {
        Ok(served) => served,
        // The near end was told, or is gone.
        Err(_) => return 1,
    };
    let links = Links {
        session: connected.session,
        control: connected.control,
        data: connected.data,
        streams: connected.streams,
        joins: connected.joins,
        patience: patience(&request.options),
        strays: connected.strays.clone(),
        protection: protection(&request.options, connected.protect),
    };
    adopt_passport(&mut request, home.as_deref());
    let memory = memory(&request.options, path::rtt(&links.control));
    let report = match (request.role, request.destination) {
        (Role::Source, _) => {
            let pacer = Arc::new(Pacer::new(request.options.rate));
            let mut from = source_request(request.sources, &request.options, home, memory, &pacer);
            let watch = Watch::silent();
            if let Some(ask) = &request.trial {
                from.trial = Some(trial::far(ask, &links, &watch.control));
            }
            source::run(links, &from, &watch)
        }
        (Role::Sink, Some(destination)) => {
            let what = format!("copy to {}", String::from_utf8_lossy(&destination.0));
            sink::run(
                links,
                &sink_request(destination, &request.options, home, memory.value, what),
                &Watch::silent(),
            )
        }
        (Role::Sink, None) => return 2,
    };
    match report.end {
        SessionEnd::Complete => 0,
        SessionEnd::Stopped => 130,
        SessionEnd::Failed(_) => 1,
    }
}

/// Starting values from the passport of this host's storage.
fn adopt_passport(request: &mut AgentRequest, home: Option<&Path>) {
    let Some(state) = home.map(passport::state_of) else { return };
    let (path, options) = match request.role {
        Role::Source => (request.sources.first(), &mut request.options.source_storage),
        Role::Sink => (request.destination.as_ref(), &mut request.options.sink_storage),
    };
    if let Some(path) = path {
        passport::adopt(&state, &path.0, home, request.role, options);
    }
}

fn source_request(
    sources: Vec<PathBytes>,
    options: &Options,
    home: Option<PathBuf>,
    memory: Choice<u64>,
    pacer: &Arc<Pacer>,
) -> SourceRequest {
    let readers = options.readers.unwrap_or_else(|| cpus().clamp(2, 8));
    let (pacer, clock) = (pacer.clone(), wall_clock());
    let Choice { value: memory, why: memory_why } = memory;
    SourceRequest {
        sources,
        options: options.clone(),
        home,
        memory,
        memory_why,
        readers,
        pacer,
        clock,
        trial: None,
    }
}

fn sink_request(
    destination: PathBytes,
    options: &Options,
    home: Option<PathBuf>,
    memory: u64,
    what: String,
) -> SinkRequest {
    // More writers than processors: most of their time goes into waiting for syncs.
    let writers = options.writers.unwrap_or_else(|| (cpus() * 4).clamp(8, 32));
    SinkRequest {
        destination,
        state_dir: options.state_dir.clone(),
        home,
        memory,
        writers,
        window: options.window,
        storage: options.sink_storage.clone(),
        layout: options.layout,
        what,
        asked: None,
        hears: None,
    }
}

/// Processors that this process may use.
fn cpus() -> u16 {
    thread::available_parallelism().map_or(1, |n| n.get().min(256) as u16)
}

fn patience(options: &Options) -> Duration {
    options.patience.map_or(PATIENCE, |seconds| Duration::from_secs(seconds.into()))
}

/// Payload bytes in buffers: as asked, else what a path of this round-trip time holds twice and 64 objects, an eighth of
/// RAM or a quarter of the cgroup's limit at most. It is a bound: memory is made when payload comes.
fn memory(options: &Options, rtt: Option<Duration>) -> Choice<u64> {
    if let Some(asked) = options.memory {
        return Choice { value: asked.max(MEMORY_MIN), why: "as asked".into() };
    }
    let ram = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let ram = ram.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let ram = ram.and_then(|rest| rest.trim().split(' ').next()?.parse::<u64>().ok()).map(|kib| kib * 1024);
    let groups = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let group = groups.iter().find_map(|path| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok());
    let known = options.start.as_ref().map(|start| start.rate);
    let Choice { value: wanted, why } = path::memory(rtt, known);
    let limits = [
        (wanted, why),
        (ram.map_or(u64::MAX, |ram| ram / 8), "an eighth of the memory".to_owned()),
        (group.map_or(u64::MAX, |max| max / 4), "a quarter of the cgroup's limit".to_owned()),
    ];
    let least = limits.into_iter().min_by_key(|(bytes, _)| *bytes);
    let (value, why) = least.unwrap_or((MEMORY_MIN, String::new()));
    Choice { value: value.max(MEMORY_MIN), why }
}

/// What this end's hello says of it.
fn protection(options: &Options, protect: &str) -> Protection {
    Protection { digest: options.digest.kind(), auth_only: protect == bootstrap::INTEGRITY }
}

fn memory_links(options: &Options) -> (Links, Links) {
    let (near, far) = memory::pair(PIPE_LEN);
    let mut data: (Vec<_>, Vec<_>) = (Vec::new(), Vec::new());
    for stream in 1..=LOCAL_STREAMS {
        let (near, far) = memory::pair(PIPE_LEN);
        data.0.push((StreamId(stream), near));
        data.1.push((StreamId(stream), far));
    }
    let links = |control, data| {
        let (joins, patience, strays) = (Joins::Never, Duration::ZERO, Arc::new(AtomicU64::new(0)));
        Links {
            session: [0; 16],
            control,
            data,
            streams: LOCAL_STREAMS,
            joins,
            patience,
            strays,
            protection: protection(options, "local"),
        }
    };
    (links(near, data.0), links(far, data.1))
}

fn path_of(endpoint: &Endpoint) -> &[u8] {
    match endpoint {
        Endpoint::Local(path) | Endpoint::Remote { path, .. } => path,
    }
}

fn host_of(endpoint: &Endpoint) -> Option<&str> {
    match endpoint {
        Endpoint::Local(_) => None,
        Endpoint::Remote { host, .. } => Some(host),
    }
}

fn display_destination(request: &CopyRequest) -> Vec<u8> {
    match &request.destination {
        Endpoint::Local(path) => path.clone(),
        Endpoint::Remote { host, path } => [host.as_bytes(), b":", path].concat(),
    }
}

/// Refuses a local destination that lies inside a local source: such a copy would never end.
fn refuse_inside(request: &CopyRequest, destination: &[u8]) -> Result<(), String> {
    let options = &request.options;
    let paths: Vec<Vec<u8>> = request.sources.iter().map(|source| path_of(source).to_vec()).collect();
    if destination == null::SINK || paths.iter().any(|path| Made::parse(path).is_some()) {
        return Ok(());
    }
    let recursive = options.recursive || options.archive;
    let specs = resolve_sources(&paths, recursive, None).map_err(|e| e.to_string())?;
    let mut above: &Path = Path::new(OsStr::from_bytes(destination));
    let dir = loop {
        match File::open(above) {
            Ok(dir) if dir.metadata().is_ok_and(|m| m.is_dir()) => break dir,
            _ => match above.parent() {
                Some(parent) if parent.as_os_str().is_empty() => above = Path::new("."),
                Some(parent) => above = parent,
                None => return Ok(()),
            },
        }
    };
    match is_inside(dir.as_fd(), &specs) {
        Ok(Some(index)) => Err(format!(
            "the destination {} lies inside the source {}: the copy would copy itself",
            String::from_utf8_lossy(destination),
            specs[index].path.display()
        )),
        // A loop of directories or one that cannot be looked at will be named by the walk.
        Ok(None) | Err(_) => Ok(()),
    }
}

/// Hashes the near end's copy of files that were not moved, for the manifest.
fn hash_unchanged(request: &CopyRequest, paths: &Receiver<Vec<u8>>, observer: &dyn Observer) {
    let candidates = |path: &[u8]| -> Vec<PathBuf> {
        let below = |base: &Path, rest: &[u8]| base.join(OsStr::from_bytes(rest));
        match &request.destination {
            Endpoint::Local(destination) => {
                let sources: Vec<SourceRoot> = Vec::new();
                let root = sink::destination(destination, &sources, None);
                let whole = PathBuf::from(OsStr::from_bytes(destination));
                root.map(|(root, _)| below(&root, path)).into_iter().chain([whole]).collect()
            }
            Endpoint::Remote { .. } => {
                let typed: Vec<Vec<u8>> =
                    request.sources.iter().map(|source| path_of(source).to_vec()).collect();
                let specs = resolve_sources(&typed, true, None).unwrap_or_default();
                let single = specs.len() == 1;
                let found = specs.into_iter().filter_map(|spec| match &spec.target {
                    RootTarget::Contents => Some(below(&spec.path, path)),
                    RootTarget::Named(name) => {
                        let rest = path.strip_prefix(name.as_bytes());
                        match rest.and_then(|rest| rest.strip_prefix(b"/")) {
                            Some(rest) => Some(below(&spec.path, rest)),
                            None if rest == Some(b"") || single => Some(spec.path),
                            None => None,
                        }
                    }
                });
                found.collect()
            }
        }
    };
    for path in paths {
        let hashed = candidates(&path).into_iter().find(|path| path.is_file()).map(|file| {
            let mut hasher = blake3::Hasher::new();
            File::open(&file).and_then(|file| hasher.update_reader(file).map(|h| *h.finalize().as_bytes()))
        });
        match hashed {
            Some(Ok(root)) => observer.event(Event::Digest { path, root }),
            Some(Err(e)) => {
                let (stage, errno) = ("read".to_owned(), e.raw_os_error().unwrap_or(0));
                observer.event(Event::Failed {
                    path,
                    stage,
                    errno,
                    text: format!("hashing for the manifest: {e}"),
                });
            }
            None => {
                let text = "the file is gone, it is not in the manifest".to_owned();
                observer.event(Event::Failed { path, stage: "read".into(), errno: 2, text });
            }
        }
    }
}

/// Buffers, and so grants, held the rate down: the source waited most of the time, but nobody behind it was busy.
fn memory_limited(stages: &[StageTime; 5]) -> bool {
    let (_, _, blocked) = stages[0].shares();
    blocked > 0.5 && stages[1..].iter().all(|stage| stage.shares().0 < 0.5)
}

fn summarise(request: &CopyRequest, joined: Joined, start: Instant) -> Summary {
    let Joined { near, local, protect, path, streams, advice, rate_limited } = joined;
    let far: EndReport = match (&local, near.far) {
        (Some(far), _) => far.own,
        (None, Some(far)) => far,
        (None, None) => EndReport::default(),
    };
    let stages = merge_stages(&near.own.stages, &far.stages);
    let not_kept = NotKept::ALL.iter().map(|what| {
        let count = near.own.not_kept[*what as usize] + far.not_kept[*what as usize];
        (what.name().to_owned(), count)
    });
    let tally = near.tally;
    let end = match (&near.end, local.as_ref().map(|far| &far.end)) {
        (SessionEnd::Complete, Some(SessionEnd::Failed(failure))) => SessionEnd::Failed(failure.clone()),
        (end, _) => end.clone(),
    };
    let (status, error) = match end {
        SessionEnd::Complete if tally.failed > 0 => (Status::Partial, None),
        SessionEnd::Complete => (Status::Complete, None),
        SessionEnd::Stopped => (Status::Interrupted, None),
        SessionEnd::Failed(failure) => (Status::Failed, Some(failure.text.to_string())),
    };
    let is_remote = local.is_none();
    let mut chosen = near.chosen;
    // Some of what one end found the other one was told.
    for (name, text) in local.map(|far| far.chosen).unwrap_or_default() {
        if !chosen.iter().any(|(known, _)| *known == name) {
            chosen.push((name, text));
        }
    }
    let Choice { value: streams, why } = streams;
    chosen.push(("streams".into(), format!("{streams} ({why})")));
    chosen.extend(advice.map(|advice| ("would help".into(), advice)));
    Summary {
        status,
        files: tally.files,
        dirs: tally.dirs,
        symlinks: tally.symlinks,
        unchanged: tally.unchanged,
        skipped: tally.skipped,
        failed: tally.failed,
        bytes: tally.bytes,
        bytes_sent: near.own.payload.max(far.payload),
        objects_resent: near.own.objects_resent.max(far.objects_resent),
        seconds: start.elapsed().as_secs_f64(),
        cpu_seconds_near: cpu_time().as_secs_f64(),
        cpu_seconds_far: near.far.filter(|_| is_remote).map(|far| far.cpu as f64 / 1e9),
        rss_near: rss_max(),
        rss_far: near.far.filter(|_| is_remote).map(|far| far.rss_max),
        streams,
        protect,
        digest: request.options.digest,
        verify: request.options.verify,
        rewritten: 0,
        path,
        durability: request.options.durability,
        stages,
        limited_by: verdict(&stages),
        not_kept: not_kept.filter(|(_, count)| *count > 0).collect(),
        strays: near.own.strays + far.strays,
        resumed: near.resumed,
        error,
        rate_limited,
        memory_limited: memory_limited(&stages) && !rate_limited,
        chosen,
    }
}
