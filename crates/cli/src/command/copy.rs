//! `haul cp`: from the command line to a request, from a summary to an exit code.
//!
//! Left out: the environment, the terminal and the program's own path, see `surroundings`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use haul::api::{
    CopyRequest, Dialler, Endpoint, ErrorKind, Event, Handle, Observer, Picks, RemoteOptions, Summary,
};
use haul::ctl::Server;
use haul::endpoint;
use haul::errno;
use haul::options;

use super::surroundings::{self, Surroundings};
use super::{FAILED, USAGE, complain, failed};
use crate::args::{Changed, Cp, Dial, Durability, Reflink};
use crate::manifest::Part as OfPart;
use crate::report::human::Manner;
use crate::report::{Reporter, Settings, lists};
use crate::signals;

/// Most characters that a job says of what it copies.
const WHAT_MAX: usize = 1000;
/// What to use instead of `--watch`.
const NO_TERMINAL: &str = "--watch draws on a terminal, and stderr is none here, or --json writes to the same one: `haul top` \
                           shows the storage targets of this copy from elsewhere, and --json tells of them";

/// What a copy is for besides, where it is a part of another command.
pub struct Part {
    /// What of its source comes.
    pub picks: Arc<dyn Picks>,
    /// Hears all that happens, and must not block.
    pub hears: Arc<dyn Fn(&Event) + Send + Sync>,
    /// Hears how it ended.
    pub ends: Arc<dyn Fn(&Summary) + Send + Sync>,
}

/// Tells the reporter what it wants to show, and a part all.
struct Both {
    reporter: Arc<Reporter>,
    part: Part,
    /// Entries that ended well are shown.
    shows: bool,
}

impl Observer for Both {
    fn event(&self, event: Event) {
        (self.part.hears)(&event);
        if self.shows || !matches!(event, Event::Entry { .. }) {
            self.reporter.event(event);
        }
    }
}

impl super::Run for Cp {
    fn run(&self) -> i32 {
        run(self, None)
    }

    fn works(&self) -> bool {
        true
    }
}

/// Copies, and says what came of it.
pub fn run(args: &Cp, part: Option<Part>) -> i32 {
    let handle = Handle::new();
    // First of all: a signal that comes before has the system's way, and no exit code of ours.
    let (stopper, teller) = (handle.clone(), Arc::new(OnceLock::<Arc<Reporter>>::new()));
    let tells = Arc::clone(&teller);
    let watched = signals::watch(args.stop_after, move |wish| {
        stopper.stop();
        if let Some(reporter) = tells.get() {
            reporter.note(wish.text().into());
        }
    });
    let surroundings = Surroundings::look();
    let mut request = match request(args, &surroundings) {
        Ok(request) => request,
        Err(error) => return complain(&error, USAGE),
    };
    if request.sources.iter().chain([&request.destination]).any(|end| end.host().is_some()) {
        haul::process::keep_secrets();
    }
    let mut settings = settings(args, &surroundings);
    let shows = request.verbose;
    if let Some(part) = &part {
        (request.picks, request.verbose) = (Some(part.picks.clone()), true);
    }
    settings.part = request.options.range.zip(request.sources.first()).map(|(range, source)| OfPart {
        source: source.shown(),
        offset: range.offset,
        len: range.len,
        to: request.options.to,
    });
    settings.manner.part = request.options.part();
    settings.manner.sends = request.destination.host().is_some();
    if let Err(error) = haul::api::lists_are_apart(&request, &lists::files(&settings)) {
        return complain(&error.text, USAGE);
    }
    let reporter = match Reporter::start(&settings, &request) {
        Ok(reporter) => reporter,
        Err((error, code)) => return complain(&error, code),
    };
    let _ = teller.set(Arc::clone(&reporter));
    if settings.watch && !settings.live {
        reporter.note(NO_TERMINAL.into());
    }
    // Removed when it is dropped, after the run.
    let _reachable =
        if args.dry_run { None } else { open_socket(&request, &handle, args.verbose > 0, &reporter) };
    match watched {
        Ok(asked) => {
            let ends = part.as_ref().map(|part| part.ends.clone());
            let observer: Arc<dyn Observer> = match part {
                None => reporter.clone(),
                Some(part) => Arc::new(Both { reporter: reporter.clone(), part, shows }),
            };
            let used = [&request.sources[..], std::slice::from_ref(&request.destination)].concat();
            let mut summary = haul::api::copy(request, observer, handle);
            if let Some(ends) = ends {
                ends(&summary);
            }
            if let Some(error) = &mut summary.error
                && let Ok((mut typed, destination)) = endpoint::resolve(&args.paths.all())
            {
                typed.push(destination);
                let from = super::netrc::refused(error, &typed, &used);
                error.text.push_str(&from.unwrap_or_default());
            }
            reporter.finish(summary, asked.exit_code())
        }
        Err(error) => {
            let text = format!("cannot watch for signals: {}", errno::text(error));
            let error = Some(haul::api::Error::new(ErrorKind::Local, text));
            reporter.finish(Summary { error, ..Summary::default() }, FAILED)
        }
    }
}

/// The socket of `haul ctl`. Without one the copy runs as well.
fn open_socket(request: &CopyRequest, handle: &Handle, verbose: bool, reporter: &Reporter) -> Option<Server> {
    let shown = |end: &Endpoint| String::from_utf8_lossy(&end.shown()).into_owned();
    let first = request.sources.first()?;
    let more = match request.sources.len() {
        0 | 1 => String::new(),
        n => format!(" and {} more", n - 1),
    };
    let part = request.options.part().map(|part| format!(" ({})", part.in_words())).unwrap_or_default();
    let what = format!("{}{more}{part} to {}", shown(first), shown(&request.destination));
    // For people: a path of 4 KiB helps nobody, and a reply has its bound.
    let what = what.chars().take(WHAT_MAX).collect();
    match Server::start(&surroundings::control_dirs(), &job_name(first), what, handle.clone()) {
        Ok(server) => Some(server),
        Err(error) => {
            if verbose {
                reporter.note(format!("haul ctl cannot reach this copy: {error}"));
            }
            None
        }
    }
}

/// The name of a job: its first source's last component; of one at a server behind the server's host.
fn job_name(source: &Endpoint) -> String {
    let place = source.place();
    let last = |path: &[u8]| {
        let last = path.split(|byte| *byte == b'/').rfind(|part| !part.is_empty() && *part != b".");
        last.unwrap_or_default().to_vec()
    };
    let name = match (place.file_path(), place.server()) {
        (Some(path), _) => last(path),
        (None, Some(server)) => {
            // Without who comes and by which port.
            let host = server.rsplit('@').next().unwrap_or_default();
            let host = match host.strip_prefix('[') {
                Some(address) => address.split(']').next(),
                None => host.split(':').next(),
            };
            let parts = [host.unwrap_or_default().as_bytes(), &last(place.path())];
            parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(&b'-')
        }
        (None, None) => place.scheme().name.as_bytes().to_vec(),
    };
    haul::ctl::short_name(&name)
}

/// The request that the arguments mean.
///
/// # Errors
/// A sentence for people about wrong usage.
fn request(args: &Cp, surroundings: &Surroundings) -> Result<CopyRequest, String> {
    stream_named(&args.paths.all())?;
    let (mut sources, destination) = endpoint::resolve(&args.paths.all()).map_err(|e| e.to_string())?;
    super::netrc::add_logins(&mut sources)?;
    let mut destination = [destination];
    super::netrc::add_logins(&mut destination)?;
    let [destination] = destination;
    let mut replicas = endpoint::replicas_typed(&args.retry.replica, &sources)?;
    super::netrc::add_logins(&mut replicas)?;
    let object_size = args.object_size.map_or(options::OBJECT_SIZE_DEFAULT, u64::from);
    // One object at rest and one in flight is the least that moves at all.
    if args.memory.is_some_and(|memory| memory < 2 * object_size) {
        return Err(format!(
            "--memory must hold two objects at least, {} MiB here",
            (2 * object_size).div_ceil(1 << 20)
        ));
    }
    if args.print0 && !(args.itemize_changes > 0 || args.dry_run) {
        return Err("-0 belongs to a list: -i, -n or both".into());
    }
    let (source_storage, sink_storage) = args.storage.options();
    args.kept.check()?;
    let (usermap, groupmap) = args.given.maps(args.archive || args.kept.owners())?;
    let options = options::Options {
        recursive: args.recursive || args.archive,
        archive: args.archive,
        chmod: args.given.chmod(),
        usermap,
        groupmap,
        durability: match args.durability {
            Durability::Disk => options::Durability::Disk,
            Durability::None => options::Durability::None,
        },
        force: args.force,
        no_clobber: args.no_clobber,
        update: args.update,
        no_links: args.tree.no_links,
        one_file_system: match args.tree.one_file_system {
            0 => options::Mounted::Copied,
            1 => options::Mounted::Empty,
            _ => options::Mounted::Out,
        },
        copy_links: args.tree.copy_links,
        copy_dirlinks: args.tree.copy_dirlinks,
        copy_unsafe_links: args.tree.copy_unsafe_links,
        safe_links: args.tree.safe_links,
        keep_dirlinks: args.tree.keep_dirlinks,
        only: args.retry.retry_from.as_deref().map(failed::listed).transpose()?,
        memory: args.memory,
        streams: args.streams,
        rate: args.rate,
        window: args.window,
        congestion: args.congestion.clone(),
        readers: args.readers,
        writers: args.writers,
        object_size: args.object_size,
        layout: args.layout,
        stripes: args.stripes,
        range: args.range,
        to: args.to,
        in_place: args.in_place,
        state_dir: args.state.clone(),
        manifest: args.manifest.is_some(),
        dry_run: args.dry_run,
        patience: args.patience,
        retry_for: args.retry.retry_for,
        retries: args.retry.retries,
        retry_command: args.retry.retry_command.clone().map(|command| command.0).unwrap_or_default(),
        digest: args.protection.digest(),
        protect: args.protection.protect(),
        data_channel: args.protection.data_channel(),
        verify: args.protection.verify(),
        resume: args.protection.resume(),
        changed: match args.changed {
            Changed::Fail => options::Changed::Fail,
            Changed::Retry => options::Changed::Retry,
            Changed::Prefix => options::Changed::Prefix,
        },
        reflink: match args.reflink {
            Reflink::Auto => options::Reflink::Auto,
            Reflink::Always => options::Reflink::Always,
            Reflink::Never => options::Reflink::Never,
        },
        start: None,
        spill_dir: args.spill.clone(),
        spill_size: args.spill_size,
        schedule: args.schedule,
        source_storage,
        sink_storage,
        ..args.kept.put(options::Options::default())
    };
    options.check().map_err(|error| error.text)?;
    let dial = match args.dial {
        Dial::Auto => Dialler::Auto,
        Dial::Source => Dialler::Source,
        Dial::Sink => Dialler::Sink,
    };
    let remote = RemoteOptions {
        ssh_channels: args.ssh_channels,
        sockets: surroundings::control_dirs(),
        ..surroundings.remote(&args.far, dial)
    };
    Ok(CopyRequest {
        sources,
        destination,
        replicas,
        options,
        remote,
        dry_run: args.dry_run,
        verbose: args.verbose > 0 || args.itemize_changes > 0 || args.print0,
        targets: args.json || args.watch,
        state_home: surroundings::state_dir(),
        picks: None,
    })
}

fn settings(args: &Cp, surroundings: &Surroundings) -> Settings {
    let terminal = surroundings.stderr_terminal && surroundings.capable;
    Settings {
        manner: Manner {
            colour: terminal && !surroundings.no_color,
            verbose: args.verbose,
            dry_run: args.dry_run,
            itemize: args.itemize_changes > 0,
            unchanged: args.verbose > 1 || args.itemize_changes > 1,
            print0: args.print0,
            sends: false,
            part: None,
            skips: match (args.no_clobber, args.update) {
                (true, _) => Some("it is there already, and --no-clobber leaves that"),
                (_, true) => Some("it is newer there, and --update leaves that"),
                (false, false) => None,
            },
        },
        quiet: args.quiet,
        json: args.json,
        // A line that redraws itself between events on the same terminal would spoil both.
        live: terminal && !(args.json && surroundings.stdout_terminal),
        watch: args.watch,
        manifest: args.manifest.as_deref().map(list_name),
        part: None,
        failures: args.failures.as_deref().map(list_name),
        failures_wait: match (&args.retry.retry_from, &args.failures) {
            (Some(old), Some(new)) => failed::is_one(old, &list_name(new)),
            _ => false,
        },
    }
}

/// `-` beside a server, where curl and others have it for a stream.
///
/// # Errors
/// A sentence for people.
fn stream_named(typed: &[impl AsRef<OsStr>]) -> Result<(), String> {
    let begins = |word: &OsStr, with: &str| word.as_bytes().starts_with(with.as_bytes());
    let is_server =
        |word: &OsStr| ["ftp://", "ftps://", "gsiftp://", "sshftp://"].iter().any(|with| begins(word, with));
    let words = || typed.iter().map(AsRef::as_ref);
    if words().any(is_server) && words().any(|word| word == "-") {
        let why = "`-` is no stream to haul, which copies files: name a file, or write ./- for one that is called so";
        return Err(why.into());
    }
    Ok(())
}

/// Where a list goes: `-` is stdout, as it is for `haul probe`.
fn list_name(typed: &Path) -> PathBuf {
    PathBuf::from(if typed == Path::new("-") { Path::new("/proc/self/fd/1") } else { typed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Args, Command};
    use clap::Parser;
    use haul::api::RemoteOptions;

    fn cp(line: &str) -> Cp {
        match Args::parse_from(["haul", "cp"].into_iter().chain(line.split(' '))).command {
            Command::Cp(cp) => *cp,
            other => panic!("{other:?}"),
        }
    }

    fn terminal() -> Surroundings {
        Surroundings {
            stdin_terminal: true,
            answers: true,
            stdout_terminal: true,
            stderr_terminal: true,
            capable: true,
            no_color: false,
            binary: None,
        }
    }

    /// Goal: every option reaches the request.
    #[test]
    fn options_reach_the_request() {
        let line = "-aHAXkKxx --no-links --copy-unsafe-links --retries 3 --usermap 1:a,*:b --chown :c --durability=none --force --memory 64MiB --streams 3 --bwlimit 1MB/s --window 8MiB --congestion reno --readers 4 --writers 5 \
                    --object-size 1MiB --via ::1,10.0.0.1 --port 7000-7009 --dial sink --ssh-channels 5 --no-push --remote-haul /h --state /s \
                    --manifest m --patience 2m --protect integrity --data-channel shown --verify disk --resume check --spill /flash --spill-size 1GiB --schedule file --layout copy -v a b u@h:c";
        let got = request(&cp(&line.split_whitespace().collect::<Vec<_>>().join(" ")), &terminal()).unwrap();
        let want = options::Options {
            recursive: true,
            archive: true,
            xattrs: true,
            acls: true,
            hard_links: true,
            usermap: options::OwnerMap::parse("1:a,*:b").ok(),
            groupmap: options::OwnerMap::parse("*:c").ok(),
            durability: options::Durability::None,
            force: true,
            no_clobber: false,
            update: false,
            no_links: true,
            one_file_system: options::Mounted::Out,
            copy_dirlinks: true,
            copy_unsafe_links: true,
            keep_dirlinks: true,
            retries: Some(3),
            memory: Some(64 << 20),
            streams: Some(3),
            rate: Some(1_000_000),
            window: Some(8 << 20),
            congestion: Some("reno".into()),
            readers: Some(4),
            writers: Some(5),
            object_size: Some(1 << 20),
            state_dir: Some("/s".into()),
            manifest: true,
            patience: Some(120),
            protect: options::Protect::Integrity,
            data_channel: options::DataChannel::Shown,
            verify: options::Verify::Disk,
            spill_dir: Some("/flash".into()),
            spill_size: Some(1 << 30),
            schedule: options::Policy::FILE,
            layout: options::LayoutChoice::Copy,
            ..options::Options::default()
        };
        assert_eq!(got.options, want);
        let remote = RemoteOptions {
            ssh: vec!["ssh".into()],
            remote_haul: Some("/h".into()),
            no_push: true,
            dial: Dialler::Sink,
            via: vec!["::1".parse().unwrap(), "10.0.0.1".parse().unwrap()],
            ports: Some((7000, 7009)),
            interactive: true,
            ssh_channels: Some(5),
            sockets: surroundings::control_dirs(),
            binary: None,
        };
        assert_eq!(got.remote, remote);
        assert_eq!(got.sources, [Endpoint::local("a"), Endpoint::local("b")]);
        assert_eq!(got.destination, Endpoint::remote("u@h", "c"));
        assert!(got.verbose && !got.dry_run && !got.targets);
        assert!(
            ["--json", "--watch"]
                .iter()
                .all(|o| request(&cp(&format!("{o} a b")), &terminal()).unwrap().targets)
        );
        let plain = request(&cp("-r --no-clobber a b"), &terminal()).unwrap();
        assert_eq!(
            plain.options,
            options::Options { recursive: true, no_clobber: true, ..Default::default() }
        );
        assert!(request(&cp("-u a b"), &terminal()).unwrap().options.update);
        let got = request(&cp("-xL a b"), &terminal()).unwrap().options;
        assert!(got.copy_links && got.one_file_system == options::Mounted::Empty);
        assert!(request(&cp("--safe-links a b"), &terminal()).unwrap().options.safe_links);
    }

    /// Goal: values that make no sense together are refused.
    #[test]
    fn memory_holds_two_objects() {
        assert!(request(&cp("--memory 7MiB a b"), &terminal()).unwrap_err().contains("8 MiB"));
        assert!(request(&cp("--memory 8MiB a b"), &terminal()).is_ok());
        let modes = request(&cp("--chmod D700 --chmod F600 a b"), &terminal()).unwrap().options.chmod;
        assert_eq!(modes, options::Chmod::parse("D700,F600", 0).ok());
        assert!(request(&cp("--memory 128KiB --object-size 64KiB a b"), &terminal()).is_ok());
    }

    /// Goal: no choice of protection is silently worth less than its name.
    #[test]
    fn protections_that_contradict_are_refused() {
        let asked = |line: &str| request(&cp(line), &terminal());
        assert_eq!(asked("--digest xxh3 a b").unwrap().options.digest, options::Digest::Xxh3);
        assert!(asked("--digest xxh3 --protect integrity a b").unwrap_err().contains("attacker"));
        assert!(asked("--digest xxh3 --manifest m a b").unwrap_err().contains("manifest"));
        assert!(asked("--digest blake3 --protect integrity --manifest m a b").is_ok());
    }

    /// Goal: a job is called as its first source is, whatever form that has.
    #[test]
    fn jobs_are_named_by_their_source() {
        let local = |path: &str| {
            job_name(&Endpoint::new(None, haul::endpoint::Place::parse(path.as_bytes()).unwrap()))
        };
        assert_eq!(local("/a/b/data"), "data");
        assert_eq!(local("/a/my data/"), "my_data");
        assert_eq!(local("runs/."), "runs");
        assert_eq!(
            (local("/"), local("."), local("zero://100")),
            ("copy".into(), "copy".into(), "zero".into())
        );
        assert_eq!(job_name(&Endpoint::remote("h", "~/x")), "x");
        for (url, name) in [
            ("ftp://archive.example.org/pub/run42/", "archive.example.org-run42"),
            ("ftp://alice:secret@10.0.0.7:2121/data/a%20b", "10.0.0.7-a_20b"),
            ("ftps://[fe80::1]:990/~/notes.txt", "fe80__1-notes.txt"),
            ("gsiftp://h/", "h"),
        ] {
            assert_eq!(local(url), name, "{url}");
        }
    }

    /// Goal: a live line and colours only where they do no harm.
    #[test]
    fn colour_and_live_line_only_on_terminals() {
        let all = settings(&cp("a b"), &terminal());
        assert!(all.live && all.manner.colour);
        assert!(!settings(&cp("--json a b"), &terminal()).live);
        assert!(settings(&cp("--watch a b"), &terminal()).watch && !all.watch);
        let piped = Surroundings { stdout_terminal: false, ..terminal() };
        assert!(settings(&cp("--json a b"), &piped).live);
        for dull in [
            Surroundings { stderr_terminal: false, ..terminal() },
            Surroundings { capable: false, ..terminal() },
        ] {
            let got = settings(&cp("a b"), &dull);
            assert!(!got.live && !got.manner.colour);
        }
        let plain = settings(&cp("a b"), &Surroundings { no_color: true, ..terminal() });
        assert!(plain.live && !plain.manner.colour);
    }
}
