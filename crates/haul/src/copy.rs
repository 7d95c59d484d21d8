//! A copy from end to end: which end runs where, and how they are joined.
//!
//! In: a `CopyRequest`. Out: a `Summary`. Local to local, both ends run in this process over memory links;
//! else one end runs here and the other as an agent that ssh started.

use std::cell::Cell;
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

use crossbeam_channel::unbounded;
use haul_core::ids::StreamId;
use haul_core::reliability::Reliability;
use haul_core::transfer::SessionEnd;
use haul_core::tune::Choice;
use haul_core::wire::STREAMS_MAX;
use rustix::fs::{Mode, OFlags};

use crate::contained::Contained;
use crate::driver::{Links, Mapping, Protection, Report, Watch};
use crate::endpoint::Endpoint;
use crate::error::{Error, ErrorKind};
use crate::events::{Event, Observer};
use crate::handle::Handle;
use crate::options::{AgentRequest, Changed, Options, Reflink};
use crate::request::CopyRequest;
use crate::summary::{Status, Summary};
use haul_base::role::Role;
use haul_launch::{AgentEnv, RemoteSpec};
use haul_storage::descriptors::Share;
use haul_storage::source::roots::{SourceError, is_inside, resolve_sources_by};
use haul_transport::pace::Pacer;
use haul_transport::path::{self, EndFacts};
use haul_transport::rejoin::Joins;
use haul_transport::{memory, tcp};

mod again;
mod attributes;
mod ends;
pub(crate) mod lists;
mod manifest;
mod manners;
mod owners;
mod passport;
mod plan;
mod policy;
mod same;
mod summary;
pub(crate) mod third;
pub(crate) mod trial;

use ends::{End, memory, patience, sink_request, source_request, waits};
use manifest::hash_unchanged;
use plan::Plan;
use summary::{Joined, summarise};

/// Bytes that may lie in a memory link.
const PIPE_LEN: usize = 1024 * 1024;

/// Runs a copy; what goes wrong is in the summary.
pub(crate) fn run(request: &CopyRequest, observer: Arc<dyn Observer>, handle: Handle) -> Summary {
    /// Also where something panics.
    struct Ends<'a>(&'a Handle);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.end();
        }
    }
    if !handle.begin() {
        let text = "its handle steers another copy that runs; give each copy a handle of its own";
        return Summary { error: Some(Error::usage(text)), usage: true, ..Summary::default() };
    }
    let _ends = Ends(&handle);
    let observer = Arc::new(Contained::new(observer, handle.clone()));
    let summary = run_begun(request, observer.clone(), &handle);
    observer.resume();
    summary
}

/// A part of a file that grows counts only when it was read twice, which no server is asked for.
fn no_prefix(request: &CopyRequest) -> Option<String> {
    // Two servers have words of their own for it.
    let is_pair = crate::endpoint::is_pair(&request.sources, &request.destination);
    let asked = request.options.changed == Changed::Prefix && !is_pair;
    let server = request.sources.iter().find(|source| source.place().scheme().foreign)?;
    asked.then(|| {
        let shown = String::from_utf8_lossy(&server.shown()).into_owned();
        format!(
            "{shown}: `changed=prefix` is not possible where a server is the source: what was read of a file that grows would have to be \
             read twice to count; leave that out, and copy such a file when nobody writes to it"
        )
    })
}

/// What lies elsewhere is never cloned.
fn no_clones(request: &CopyRequest) -> Option<String> {
    let mut ends = request.sources.iter().chain([&request.destination]);
    let away = |end: &&Endpoint| end.host().is_some() || end.place().as_file().is_err();
    let end = ends.find(away).filter(|_| request.options.reflink == Reflink::Always)?;
    let shown = String::from_utf8_lossy(&end.shown()).into_owned();
    Some(format!(
        "{shown}: `reflink=always` clones files within one file system of this host; leave it out where an end is elsewhere"
    ))
}

fn run_begun(request: &CopyRequest, observer: Arc<dyn Observer>, handle: &Handle) -> Summary {
    let forbidden = request.options.protect < policy::least_protect(None);
    let refused = forbidden.then(|| policy::FORBIDDEN.to_owned());
    let refused = refused.or_else(|| request.options.check().err().map(|error| error.text));
    let refused = refused.or_else(|| gathers_nowhere(request).then(|| NO_VOLUME.to_owned()));
    let fit = || crate::endpoint::fit(&request.sources, &request.destination).err().map(|e| e.to_string());
    let fit = || fit().or_else(|| crate::endpoint::replicas(&request.sources, &request.replicas).err());
    let fit = || fit().or_else(|| no_prefix(request)).or_else(|| no_clones(request));
    let fit = || fit().or_else(|| manners::refused(request));
    if let Some(error) = refused.or_else(fit) {
        return Summary { error: Some(Error::usage(error)), usage: true, ..Summary::default() };
    }
    let mut request = request.clone();
    let loses_owners = has_server(&request) && owners::leave(&mut request);
    let loses_attributes = attributes::leave(&mut request);
    let summary = run_checked(request, observer, handle);
    let summary = if loses_owners { owners::without(summary) } else { summary };
    if loses_attributes { attributes::without(summary) } else { summary }
}

fn run_checked(mut request: CopyRequest, observer: Arc<dyn Observer>, handle: &Handle) -> Summary {
    // Whoever says it in one of the two places means it.
    let dry_run = request.dry_run || request.options.dry_run;
    (request.dry_run, request.options.dry_run) = (dry_run, dry_run);
    let start = Instant::now();
    let retry = again::policy_here(&request.options, &observer, handle);
    // Where there are replicas this host compares what it gets of them.
    if request.replicas.is_empty() && crate::endpoint::is_pair(&request.sources, &request.destination) {
        match third::run(&request, &observer, handle, (start, &retry)) {
            third::Third::Over(summary) => return *summary,
            third::Third::Relay(why) => match relay(&request, &why) {
                Ok(note) => {
                    observer.event(Event::Note(note));
                    // It was for what the two had of unfinished files; of what goes by here nothing is kept.
                    request.options.state_dir = None;
                }
                Err(error) => {
                    let seconds = start.elapsed().as_secs_f64();
                    return Summary { error: Some(error), seconds, ..Summary::default() };
                }
            },
        }
    }
    let (request, adopted) = &passport::adopt_local(&request);
    let again = Cell::new(false);
    let mut summary = again::run(request, (&observer, handle), &retry, |observer| {
        let begun = again.replace(true).then(|| start.elapsed());
        let start = Instant::now();
        let error = match join((request, begun), observer, handle, &retry) {
            Ok(joined) => return summarise(request, joined, start),
            Err(error) => error,
        };
        let seconds = start.elapsed().as_secs_f64();
        let usage = error.kind == ErrorKind::Usage;
        // Whoever wanted it to stop got that.
        let (status, error) = match handle.stopped() && !usage {
            true => (Status::Interrupted, None),
            false => (Status::Failed, Some(error)),
        };
        Summary { status, usage, error, seconds, ..Summary::default() }
    });
    if summary.status == Status::Failed && summary.streams == 0 {
        // The two ends never met: nothing was chosen.
        return summary;
    }
    passport::explain(&mut summary.chosen, adopted);
    summary
}

/// Two servers cannot move the data between them: whether it goes by this host instead, as it does from any
/// source to any destination, and what is said of that.
///
/// # Errors
/// The destination takes nothing from here.
fn relay(request: &CopyRequest, why: &str) -> Result<String, Error> {
    match request.destination.place().fits(Role::Sink) {
        Ok(()) => Ok(format!("{why}; the data goes by this host")),
        Err(_) => Err(Error::new(
            ErrorKind::Network,
            format!("{why}; and haul cannot pass the data on through this host yet"),
        )),
    }
}

/// Data streams of a copy within one process.
const LOCAL_STREAMS: u16 = 2;

/// `begun`: how long ago the first attempt began, if this is another.
fn join(
    (request, begun): (&CopyRequest, Option<Duration>),
    observer: &Arc<dyn Observer>,
    handle: &Handle,
    retry: &Arc<dyn Reliability>,
) -> Result<Joined, Error> {
    let (manifest, hasher) = match request.options.manifest && !request.dry_run {
        true => {
            let (sender, paths) = unbounded();
            let (request, observer) = (request.clone(), observer.clone());
            let work = move || hash_unchanged(&request, &paths, &*observer);
            let thread = thread::Builder::new().name("haul-manifest".into()).spawn(work);
            (
                Some(sender),
                Some(thread.map_err(|e| {
                    Error::local(format!("starting a thread: {}", haul_base::errno::text(e)))
                })?),
            )
        }
        false => (None, None),
    };
    let watch = Watch {
        observer: Some(observer.clone()),
        handle: handle.clone(),
        verbose: request.verbose,
        manifest,
        targets: request.targets,
        plan: request.dry_run.then(|| {
            let source = request.sources.first().map(Endpoint::shown).unwrap_or_default();
            Arc::new(Mapping { source, destination: request.destination.shown() })
        }),
        source_host: request.sources.first().and_then(|source| source.host()).map(str::to_owned),
        leaves_links: leaves_links(request),
        asked_nodes: request.options.nodes().asked,
    };
    let joined = run_ends((request, begun), observer, &watch, retry);
    drop(watch);
    if let Some(hasher) = hasher {
        hasher.join().map_err(|_| Error::local("internal error: hashing for the manifest failed"))?;
    }
    joined
}

/// Where the destination is a server, which may have no symbolic links: what the sources are called, as
/// typed.
fn leaves_links(request: &CopyRequest) -> Option<Arc<[Vec<u8>]>> {
    let last =
        |source: &Endpoint| source.place().path().rsplit(|byte| *byte == b'/').next().map(<[u8]>::to_vec);
    let is_server = request.destination.place().scheme().foreign;
    is_server.then(|| request.sources.iter().filter_map(last).collect())
}

fn run_ends(
    (request, begun): (&CopyRequest, Option<Duration>),
    observer: &Arc<dyn Observer>,
    watch: &Watch,
    retry: &Arc<dyn Reliability>,
) -> Result<Joined, Error> {
    let plan = Plan::of(request, retry)?.begun(begun);
    let Some(host) = plan.host else {
        refuse_inside(request)?;
        if has_server(request) {
            watch.handle.rule_out_streams(NO_STREAMS);
        }
        let (near_links, far_links) = memory_links(&request.options);
        let (near, far) = (plan.near_end(&near_links), plan.other_end(&far_links));
        let begin = Instant::now();
        let (near, far) = thread::scope(|scope| {
            let far = scope.spawn(move || far.run(far_links, &Watch::silent()));
            let near = near.run(near_links, watch);
            far.join().map(|far| (near, far))
        })
        .map_err(|_| Error::local("internal error in the other end"))?;
        let limited = plan.was_limited(&near, LOCAL_STREAMS, begin.elapsed(), watch);
        return Ok(Joined::local(near, far, limited));
    };
    if let (Role::Source, Some(name)) = (plan.near, &request.options.congestion) {
        tcp::usable(name).map_err(|e| Error::usage(e.to_string()))?;
    }
    let (links, remote) = connect(request, host, &plan.ask(), observer, &watch.handle)?;
    let end = plan.near_end(&links);
    let begin = Instant::now();
    let near = end.run(links, watch);
    let limited = plan.was_limited(&near, remote.streams.value, begin.elapsed(), watch);
    Ok(remote.joined(near, limited))
}

/// What is left of a connection when its links are in use.
struct Remote {
    guard: haul_launch::SshGuard,
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
    /// See [`haul_launch::Connected::took`].
    took: Duration,
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
    handle: &Handle,
) -> Result<(Links, Remote), Error> {
    connect_and_hear((request, host), ask, observer, handle, &mut |_| false)
}

/// `hear`: see [`haul_launch::connect_and_hear`].
fn connect_and_hear(
    (request, host): (&CopyRequest, &str),
    ask: &AgentRequest,
    observer: &Arc<dyn Observer>,
    handle: &Handle,
    hear: &mut dyn FnMut(&str) -> bool,
) -> Result<(Links, Remote), Error> {
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
        patience: request.options.patience.map(|seconds| Duration::from_secs(seconds.into())),
        stop: handle.as_stop(),
        streams: request.options.streams.map(|n| n.clamp(1, STREAMS_MAX)),
        storage_rate: passport::near_rate(request),
        ssh_channels: remote.ssh_channels,
        sockets: remote.sockets.clone(),
    };
    let mut notes = |note| observer.event(Event::Note(note));
    let connected = haul_launch::connect_and_hear(&spec, ask, &mut notes, hear)
        .map_err(|error| Error::launch(&error, ask.role))?;
    let paths = show_paths(&connected.paths());
    let path::Plan { streams, advice, .. } = connected.plan;
    let links = Links {
        session: connected.session,
        control: connected.control,
        data: connected.data,
        streams: streams.value,
        joins: connected.joins,
        patience: patience(&request.options),
        waits: waits(&request.options),
        strays: connected.strays,
        protection: protection(&request.options, connected.protect),
    };
    let (path, address) = match connected.path {
        haul_launch::Path::Direct { addr } => (format!("tcp to {addr}"), Some(addr.ip())),
        haul_launch::Path::Reverse { addr } => (format!("tcp from the far end to {addr}"), None),
        haul_launch::Path::Ssh => (through_ssh(connected.ssh_channels.as_ref()), None),
    };
    let channels = connected.ssh_channels.map(|Choice { value, why }| format!("{value} ({why})"));
    let (protect, far, took) = (connected.protect.to_owned(), connected.far, connected.took);
    if links.protection.auth_only {
        observer.event(Event::Note(
            "data goes unencrypted, as asked; what is changed on its way is found".into(),
        ));
    }
    Ok((
        links,
        Remote {
            guard: connected.guard,
            protect,
            path,
            paths,
            channels,
            streams,
            advice,
            address,
            far,
            took,
        },
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

/// The same at one server, as far as the two are written alike.
fn refuse_inside_server(request: &CopyRequest) -> Result<(), Error> {
    let to = request.destination.place();
    let Some(server) = to.server() else { return Ok(()) };
    let below = |path: &[u8]| {
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        [&path[..end], b"/"].concat()
    };
    let is_below = |from: &&Endpoint| {
        let from = from.place();
        let alike = from.scheme() == to.scheme() && from.server() == Some(server);
        alike && below(to.path()).starts_with(&below(from.path()))
    };
    let recursive = request.options.recursive || request.options.archive;
    match request.sources.iter().find(is_below).filter(|_| recursive) {
        Some(from) => Err(Error::usage(format!(
            "the destination {} lies inside the source {}: the copy would copy itself",
            String::from_utf8_lossy(&request.destination.shown()),
            String::from_utf8_lossy(&from.shown())
        ))),
        None => Ok(()),
    }
}

/// `haul agent`: the far end of one session. Returns the exit code.
pub(crate) fn serve(
    home: Option<PathBuf>,
    ssh_connection: Option<String>,
    prober: &'static dyn trial::Prober,
    errands: haul_launch::Errands,
) -> i32 {
    let least_protect = policy::least_protect(home.as_deref());
    let storage_rate = home.clone().map(passport::rate_at);
    let answers = {
        let home = home.clone();
        haul_launch::Answers(Arc::new(move |question, tell| {
            let state = home.as_deref().map(passport::state_of);
            prober.answer(question, (home.as_deref(), state.as_deref()), tell);
        }))
    };
    let answers = Some(answers);
    let errands = Some(errands);
    let env =
        AgentEnv { ssh_connection, least_protect, storage_rate, answers, errands, ..AgentEnv::default() };
    // Bare descriptors: a buffer in between would hold back what the other end waits for.
    let pipe = || {
        Ok::<_, std::io::Error>((
            rustix::stdio::stdin().try_clone_to_owned()?,
            rustix::stdio::stdout().try_clone_to_owned()?,
        ))
    };
    let Ok((input, output)) = pipe() else { return 1 };
    let (mut request, connected) = match haul_launch::agent(File::from(input), File::from(output), env) {
        Ok(Some(served)) => served,
        // An errand, which is done.
        Ok(None) => return 0,
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
        waits: waits(&request.options),
        strays: connected.strays.clone(),
        protection: protection(&request.options, connected.protect),
    };
    adopt_passport(&mut request, home.as_deref());
    let memory = memory(&request.options, path::rtt(&links.control));
    let watch = Watch::silent();
    // An agent is a process of its own.
    let share = Share::whole();
    let end = match (request.role, request.destination) {
        (Role::Source, _) => {
            let pacer = Arc::new(Pacer::new(request.options.rate));
            let mut from = source_request(request.sources, &request.options, home, memory, (&share, &pacer));
            from.replicas = request.replicas;
            if let Some(ask) = &request.trial {
                from.trial = Some(trial::far(prober, ask, &links, &watch.handle));
            }
            End::Source(from.into())
        }
        (Role::Sink, Some(destination)) => {
            let mut to = sink_request(destination, &request.options, home, memory.value, &share);
            to.links.begun = request.begun_ms.map(Duration::from_millis);
            End::sink(to, request.options.dry_run)
        }
        (Role::Sink, None) => return 2,
    };
    let report = end.run(links, &watch);
    match report.end {
        SessionEnd::Complete => 0,
        SessionEnd::Stopped => 130,
        SessionEnd::Failed(_) => 1,
    }
}

/// Why a write threshold says nothing of a copy.
const NO_VOLUME: &str = "a write threshold (--write-threshold) is a volume's, and the destination is none: leave it \
                         out, or copy to vol://NAME/PATH";

/// A write threshold is wanted where nothing is gathered.
fn gathers_nowhere(request: &CopyRequest) -> bool {
    request.options.sink_storage.write_threshold.is_some()
        && request.destination.place().scheme().name != "vol"
}

/// Why a number of streams says nothing of a copy whose other end is a server.
const NO_STREAMS: &str = "they are connections between two hauls; what goes to or comes from a server takes as many \
                          sessions as it allows";

fn has_server(request: &CopyRequest) -> bool {
    request.sources.iter().chain([&request.destination]).any(|end| end.place().scheme().foreign)
}

/// Of two servers it is how many connections a file takes, where they move it themselves.
fn are_servers(request: &CopyRequest) -> bool {
    request.sources.iter().chain([&request.destination]).all(|end| end.place().scheme().foreign)
}

/// Starting values from the passport of this host's storage.
fn adopt_passport(request: &mut AgentRequest, home: Option<&Path>) {
    let Some(state) = home.map(passport::state_of) else { return };
    let (place, options) = match request.role {
        Role::Source => (request.sources.first(), &mut request.options.source_storage),
        Role::Sink => (request.destination.as_ref(), &mut request.options.sink_storage),
    };
    if let Some(place) = place {
        passport::adopt(&state, place, home, request.role, options);
    }
}

/// What this end's hello says of it.
fn protection(options: &Options, protect: &str) -> Protection {
    Protection {
        digest: options.digest.kind(),
        auth_only: protect == haul_launch::INTEGRITY,
        parts: options.range.is_some(),
        in_place: options.is_in_place(),
        metadata: options.xattrs || options.acls,
        hard_links: options.hard_links,
        manners: options.walks_otherwise() || options.keep_dirlinks || options.owners,
    }
}

fn memory_links(options: &Options) -> (Links, Links) {
    let (near, far) = memory::pair(PIPE_LEN);
    let mut data: (Vec<_>, Vec<_>) = (Vec::new(), Vec::new());
    for stream in 1..=LOCAL_STREAMS {
        let (near, far) = memory::handing_pair(PIPE_LEN);
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
            waits: waits(options),
            strays,
            protection: protection(options, "local"),
        }
    };
    (links(near, data.0), links(far, data.1))
}

/// Refuses a local destination that lies inside a local source, for such a copy would never end, and one that
/// is the source.
fn refuse_inside(request: &CopyRequest) -> Result<(), Error> {
    let options = &request.options;
    refuse_inside_server(request)?;
    if options.streams.is_some() && has_server(request) && !are_servers(request) {
        return Err(Error::usage(format!("`streams` cannot be kept: {NO_STREAMS}; leave that out")));
    }
    let paths = request.sources.iter().map(|source| source.local_path().map(<[u8]>::to_vec));
    let (Some(paths), Some(destination)) =
        (paths.collect::<Option<Vec<_>>>(), request.destination.local_path())
    else {
        return Ok(());
    };
    let recursive = options.recursive || options.archive || options.range.is_some();
    let refused = |e: SourceError| summary::named(Error::failed(&e.into()), request);
    let specs = resolve_sources_by(&paths, recursive, None, options.link_rule()).map_err(refused)?;
    same::refuse_itself(&specs, destination, options.is_in_place())?;
    let mut above: &Path = Path::new(OsStr::from_bytes(destination));
    let dir = loop {
        // Never opened for reading: a FIFO would wait for its other end for ever.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(above, flags, Mode::empty()) {
            Ok(dir) => break dir,
            Err(_) => match above.parent() {
                Some(parent) if parent.as_os_str().is_empty() => above = Path::new("."),
                Some(parent) => above = parent,
                None => return Ok(()),
            },
        }
    };
    match is_inside(dir.as_fd(), &specs) {
        Ok(Some(_)) if haul_mutant::removed("no-copy-into-itself") => Ok(()),
        Ok(Some(index)) => Err(Error::usage(format!(
            "the destination {} lies inside the source {}: the copy would copy itself",
            String::from_utf8_lossy(destination),
            specs[index].path.display()
        ))),
        // A loop of directories or one that cannot be looked at will be named by the walk.
        Ok(None) | Err(_) => Ok(()),
    }
}

/// A copy for which nothing else was asked.
#[cfg(test)]
fn bare(sources: Vec<Endpoint>, destination: Endpoint) -> CopyRequest {
    let remote = crate::request::RemoteOptions {
        ssh: vec!["ssh".into()],
        remote_haul: None,
        no_push: false,
        via: Vec::new(),
        dial: Default::default(),
        ports: None,
        interactive: false,
        ssh_channels: None,
        sockets: Vec::new(),
        binary: None,
    };
    CopyRequest {
        sources,
        destination,
        replicas: Vec::new(),
        options: Options::default(),
        remote,
        dry_run: false,
        verbose: false,
        targets: false,
        state_home: None,
        picks: None,
    }
}
