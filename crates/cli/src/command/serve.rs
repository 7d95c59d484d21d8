//! `haul serve`: a directory of this host, or a volume, for clients of other protocols.
//!
//! In: options, sockets and signals of the service manager. Out: log lines on stderr; a server until it is
//! told to end.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::args::plain;

mod manager;
pub mod volume;

#[derive(Subcommand, Debug)]
pub enum Serve {
    /// Serve FTP and GridFTP
    #[command(name = "gridftp")]
    Gridftp(Box<Gridftp>),
    /// Serve a directory as a storage server of a striped volume
    Volume(volume::Volume),
    /// Serve the catalog of a striped volume
    Catalog(volume::Catalog),
    /// One session of a server; started by haul itself
    #[command(hide = true)]
    Session {
        /// Only see whether this directory, or place in a volume, can be served
        #[arg(long, value_name = "DIR", value_parser = plain::path_or_volume())]
        looks_at: Option<PathBuf>,
        /// Where the access to the volume is
        #[arg(long, value_name = "DIR", value_parser = plain::path(), requires = "looks_at")]
        state: Option<PathBuf>,
        /// It is to be changed
        #[arg(long, requires = "looks_at")]
        to_write: bool,
        /// Only see whether the authorities of a grid can be read there
        #[arg(long, value_name = "DIR", value_parser = plain::path(), conflicts_with = "looks_at")]
        looks_for_authorities: Option<PathBuf>,
    },
}

#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub struct Gridftp {
    /// Directory to serve, or vol://NAME[/PATH] for a volume that this user knows here; clients see it as
    /// `/`, and nothing outside
    #[arg(long, value_name = "DIR", value_parser = plain::path_or_volume())]
    root: PathBuf,

    /// Address to listen at; may be given several times. A service manager that passes sockets comes first
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:2811")]
    listen: Vec<SocketAddr>,

    /// Ports of data connections [default: what the system gives]
    #[arg(long, value_name = "A-B", value_parser = parse_ports)]
    data_ports: Option<(u16, u16)>,

    /// What anonymous clients may [default: read; with --gsi nobody is anonymous unless this is given]
    #[arg(long, value_name = "ACCESS", value_enum)]
    anonymous: Option<Anonymous>,

    /// As root: the user whom anonymous clients are served as [default: nobody]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,

    /// Certificate of this host, and those that lead to its authority, in PEM: anonymous clients may come
    /// under TLS (AUTH TLS)
    #[arg(long, value_name = "FILE", value_parser = plain::path(), requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// Its key in PEM, which nobody else may read
    #[arg(long, value_name = "FILE", value_parser = plain::path(), requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Anonymous clients must come under TLS, and move data under it (PROT P)
    #[arg(long, requires = "tls_cert")]
    tls_required: bool,

    /// Take data connections that do not go on with the TLS session of the commands: for clients that
    /// cannot, as Python's ftplib. Who can redirect connections can then lead them to other sessions
    #[arg(long, requires = "tls_cert")]
    tls_any_data: bool,

    /// Let people of a grid log in by their certificates (GSI), each as the user that the gridmap names
    #[arg(long)]
    gsi: bool,

    /// The certificate of this host, for --gsi [default: /etc/grid-security/hostcert.pem]
    #[arg(long, value_name = "FILE", value_parser = plain::path(), requires = "gsi")]
    host_cert: Option<PathBuf>,

    /// Its key, which nobody else may read [default: /etc/grid-security/hostkey.pem]
    #[arg(long, value_name = "FILE", value_parser = plain::path(), requires = "gsi")]
    host_key: Option<PathBuf>,

    /// Who is which user [default: /etc/grid-security/grid-mapfile]
    #[arg(long, value_name = "FILE", value_parser = plain::path(), requires = "gsi")]
    gridmap: Option<PathBuf>,

    /// Authorities that are trusted to say who somebody is [default: X509_CERT_DIR, else
    /// /etc/grid-security/certificates]; for --gsi, and for the data nodes (--node) of such a server
    #[arg(long, value_name = "DIR", value_parser = plain::path())]
    authorities: Option<PathBuf>,

    /// As root: serve as root whom the gridmap takes for root
    #[arg(long, requires = "gsi")]
    allow_root: bool,

    /// A data node that sees the same files: data of several stripes go by these (SPAS, SPOR); may be given
    /// several times. With --gsi they serve those people alone who are the user of --user
    #[arg(long, value_name = "HOST:PORT", requires = "node_key", conflicts_with = "node")]
    data_node: Vec<String>,

    /// Be a data node at --listen: serve no clients, but data of a front end (--data-node) that holds the
    /// same key
    #[arg(long, requires = "node_key", conflicts_with_all = ["gsi", "tls_cert", "anonymous"])]
    node: bool,

    /// What front end and data nodes know each other by: a key of Ed25519 in PEM, the same file on all hosts,
    /// which nobody else may read
    #[arg(long, value_name = "FILE", value_parser = plain::path())]
    node_key: Option<PathBuf>,

    /// Let data connections go to, and come from, other hosts than the client's, as transfers between two
    /// servers need it where they do not show whose they are. Whoever may connect can then have this host
    /// connect to others
    #[arg(long)]
    third_party: bool,

    /// Most sessions at a time
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    sessions: u32,

    /// Most sessions of one host at a time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    sessions_per_host: u32,

    /// Between two markers of an upload in extended block mode, 100ms to 1h
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_interval)]
    markers: Duration,

    /// On SIGTERM: how long transfers that run may still take
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    grace: Duration,

    /// Log lines on stderr, one a transfer
    #[arg(long, value_name = "FORM", value_enum, default_value_t = LogForm::Text)]
    log: LogForm,
}

const AFTER: &str = "\
Uploads get their name when all of their bytes are on media; until then a reader sees what was there before. Logins are \
anonymous, and nothing is encrypted, unless clients ask for TLS (--tls-cert) or people come by certificates (--gsi). SIGHUP has \
certificates, keys and gridmap read again. The server runs in the foreground until SIGTERM or Ctrl-C; the second ends it at \
once. See docs/gridftp-server.md.";

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Anonymous {
    /// Look and read
    Read,
    /// Change everything that the user of the process may
    Write,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum LogForm {
    Text,
    Json,
}

fn parse_ports(text: &str) -> Result<(u16, u16), String> {
    let parse = || {
        let (first, last) = text.split_once('-')?;
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        (first > 0 && first <= last).then_some((first, last))
    };
    parse().ok_or_else(|| "two ports with a hyphen between, as 50000-51000".to_owned())
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    match (Duration::from_millis(100)..=Duration::from_secs(3_600)).contains(&time) {
        true => Ok(time),
        false => Err("from 100ms to 1h".to_owned()),
    }
}

impl super::Run for Serve {
    fn run(&self) -> i32 {
        match self {
            Serve::Gridftp(args) => run(args),
            Serve::Volume(args) => args.run(),
            Serve::Catalog(args) => args.run(),
            Serve::Session { looks_at, state, to_write, looks_for_authorities } => {
                let looks = looks_at.as_deref().map(|root| (root, state.as_deref(), *to_write));
                session(looks, looks_for_authorities.as_deref())
            }
        }
    }

    fn works(&self) -> bool {
        true
    }
}

#[cfg(not(feature = "ftpd"))]
fn run(_: &Gridftp) -> i32 {
    super::complain("this haul was built without the server of FTP and GridFTP", super::FAILED)
}

#[cfg(not(feature = "ftpd"))]
fn session(
    _: Option<(&std::path::Path, Option<&std::path::Path>, bool)>,
    _: Option<&std::path::Path>,
) -> i32 {
    super::complain("this haul was built without the server of FTP and GridFTP", super::FAILED)
}

#[cfg(feature = "ftpd")]
use server::{run, session};

#[cfg(feature = "ftpd")]
mod server {
    use std::ffi::OsStr;
    use std::io;
    use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _};
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use haul::errno;
    use haul_base::{sys, users};
    use haul_ftpd::config::{Access, Config, LOGIN_WITHIN, Volume};
    use haul_ftpd::log::Log;
    use haul_ftpd::monitor::{Bells, Monitor, Options, serve_session};
    use haul_ftpd::people::{Files, Ids, People};
    use haul_ftpd::tls::Host;
    use haul_ftpd::tree::Tree;
    use haul_volume::access::{check_name, without_scheme};

    use super::super::surroundings::state_dir;
    use super::super::{FAILED, USAGE, complain};
    use super::manager::tell_manager;
    use super::{Anonymous, Gridftp, LogForm};
    use crate::signals;

    /// First descriptor that a service manager passes.
    const PASSED_FIRST: i32 = 3;
    /// What sessions have of the environment: where libraries are, and what tests of this program set.
    const PASSED_ON: [&str; 4] = ["LD_LIBRARY_PATH", "RUST_BACKTRACE", "HAUL_MUTANT", "HAUL_TEST_MARK"];
    /// Most of them.
    const PASSED_MAX: i32 = 64;
    /// Who owns nothing, by name; by number where no such name is.
    const NOBODY: (&str, Ids) = ("nobody", Ids { uid: 65_534, gid: 65_534, groups: Vec::new() });
    /// Where a host of a grid has its files.
    const GRID: &str = "/etc/grid-security";

    pub(super) fn run(args: &Gridftp) -> i32 {
        match serve(args) {
            Ok(()) => 0,
            Err((text, code)) => complain(&text, code),
        }
    }

    fn serve(args: &Gridftp) -> Result<(), (String, i32)> {
        let failed = |what: &str, error: io::Error| (format!("{what}: {}", errno::text(error)), FAILED);
        let shown = args.root.display();
        let (root, volume) = served(&args.root)?;
        let (before_login, anonymous) = whom(args)?;
        let user = args.user.as_deref().unwrap_or(NOBODY.0);
        match &volume {
            Some(volume) => volume_is_open_to(args, volume, anonymous.as_ref(), user)?,
            None => {
                let root = Path::new(OsStr::from_bytes(&root));
                if let Some(ids) = anonymous.as_ref().filter(|_| !args.gsi || args.anonymous.is_some()) {
                    is_open_to(root, ids, user)?;
                }
            }
        }
        let (people, of_people) = people(args)?.unzip();
        let authorities = match (&args.authorities, args.gsi, args.node) {
            (Some(_), false, true) => Some(authorities(args)?),
            (Some(_), false, false) => {
                let why = "--authorities is for --gsi, and for the data nodes (--node) of such a server";
                return Err((why.into(), USAGE));
            }
            _ => of_people,
        };
        let tls = tls(args)?;
        let (stop, reload) = signals::for_server().map_err(|error| failed("watch for signals", error))?;
        let listeners = listeners(args)?;
        // What else whoever started this has open is not for who talks with strangers.
        sys::keep_descriptors()
            .map_err(|errno| (format!("keep open files from sessions: {}", errno::text(errno)), FAILED))?;
        let config = Config {
            root,
            volume,
            anonymous: match args.anonymous {
                Some(Anonymous::Write) => Some(Access::Write),
                Some(Anonymous::Read) => Some(Access::Read),
                None => (!args.gsi).then_some(Access::Read),
            },
            authorities,
            tls: tls.is_some(),
            tls_required: args.tls_required,
            tls_any_data: args.tls_any_data,
            data_ports: args.data_ports,
            third_party: args.third_party,
            login_within: LOGIN_WITHIN,
            marker_interval: args.markers,
            json_log: args.log == LogForm::Json,
            nodes: data_nodes(args)?,
            is_node: args.node,
        };
        let node_key = match &args.node_key {
            None => None,
            Some(path) => {
                let key = haul_ftpd::link::read_key(path);
                Some(key.map_err(|why| (format!("--node-key: {why}"), FAILED))?)
            }
        };
        // Nobody talks to a node before it knows who that is: it needs no process of nobody's for that.
        let before_login = if args.node { anonymous.clone() } else { before_login };
        if let (Some(dir), Some(ids)) = (&config.authorities, &before_login) {
            show_authorities(dir, ids)?;
        }
        let mut log = Log::new(Box::new(io::stderr()), config.json_log);
        for listener in &listeners {
            let at = listener.local_addr().map_err(|error| failed("look at a socket", error))?;
            let scheme = match (args.gsi, args.node) {
                (true, _) => "gsiftp",
                (_, true) => "node",
                _ => "ftp",
            };
            let may = match (&config.anonymous, args.node, args.user.as_deref()) {
                (Some(Access::Write), false, Some("root")) => ", and anybody may write as root",
                (Some(Access::Write), false, _) => ", and anybody may write",
                _ => "",
            };
            log.note("listen", None, None, &format!("{scheme}://{at} serves {shown}{may}"));
        }
        let options = Options {
            config,
            sessions_max: args.sessions as usize,
            // All come from front ends.
            sessions_per_host_max: if args.node { args.sessions } else { args.sessions_per_host } as usize,
            grace: args.grace,
            before_login,
            anonymous,
            people,
            tls,
            node_key,
        };
        tell_manager("READY=1");
        let mut monitor = Monitor::new(options, log, Box::new(session_program));
        let served = monitor.run(listeners, Bells { stop, reload }, || tell_manager("STOPPING=1"));
        served.map_err(|error| failed("serve", error))
    }

    /// What is served: a directory, or a path in a volume.
    fn served(root: &Path) -> Result<(Vec<u8>, Option<Volume>), (String, i32)> {
        let shown = root.display();
        if let Some((name, path)) = in_volume(root) {
            check_name(name).map_err(|why| (format!("--root {shown}: {why}"), USAGE))?;
            let Some(state) = state_dir() else {
                let why =
                    "where the access to the volume is is not known: neither HOME nor XDG_STATE_HOME is set";
                return Err((format!("--root {shown}: {why}"), FAILED));
            };
            return Ok((path.into(), Some(Volume { name: name.into(), state })));
        }
        let open = root.canonicalize();
        let open = open.map_err(|error| (format!("open {shown}: {}", errno::text(error)), FAILED))?;
        if !open.is_dir() {
            return Err((format!("{shown} is no directory, and only one can be served"), USAGE));
        }
        Ok((open.into_os_string().into_vec(), None))
    }

    /// The name of a volume and a path in it, if that is what is said.
    fn in_volume(root: &Path) -> Option<(&str, &str)> {
        let text = root.to_str()?;
        let bare = without_scheme(text);
        (bare.len() < text.len()).then(|| bare.split_once('/').unwrap_or((bare, "")))
    }

    /// Whom clients are served as can use the volume, and what is asked of it can be: told now, and not to
    /// the first who logs in.
    fn volume_is_open_to(
        args: &Gridftp,
        volume: &Volume,
        ids: Option<&Ids>,
        user: &str,
    ) -> Result<(), (String, i32)> {
        let shown = args.root.display();
        if args.gsi && ids.is_some() {
            let why = "root cannot serve a volume to people of a grid, who are several users, and an access is one's own; let the \
                       user of the volume start the server";
            return Err((format!("--root {shown}: {why}"), USAGE));
        }
        let mut words = vec![OsStr::new("--looks-at"), args.root.as_os_str()];
        words.extend([OsStr::new("--state"), volume.state.as_os_str()]);
        if args.anonymous == Some(Anonymous::Write) {
            words.push(OsStr::new("--to-write"));
        }
        let Some(why) = looks(&words, ids)? else { return Ok(()) };
        let whom = if ids.is_some() { format!(", as {user}") } else { String::new() };
        Err((format!("--root {shown} cannot be served{whom}: {why}"), FAILED))
    }

    /// How the process of a session is started.
    fn session_program() -> Command {
        // This program, also if its file has been replaced.
        let mut command = Command::new("/proc/self/exe");
        command.args(["serve", "session"]).current_dir("/");
        // Words that were meant for who started this may be secret ones.
        command.env_clear();
        for name in PASSED_ON {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command
    }

    /// Whom clients are served as can have the root: told now, and not to the first who logs in. A process of
    /// that user looks, for whatever keeps him out.
    fn is_open_to(root: &Path, ids: &Ids, user: &str) -> Result<(), (String, i32)> {
        let Some(why) = looks(&[OsStr::new("--looks-at"), root.as_os_str()], Some(ids))? else {
            return Ok(());
        };
        if haul_mutant::removed("ftpd-roots-are-open") {
            return Ok(());
        }
        let shown = root.display();
        let text = format!(
            "--root {shown}: {user}, as whom clients are served, cannot open it ({why}); let him read it and each directory above, or name \
             another one (--user)"
        );
        Err((text, FAILED))
    }

    /// Whoever serves strangers can read who is to be believed; else each of them would be sent away.
    fn show_authorities(dir: &Path, ids: &Ids) -> Result<(), (String, i32)> {
        let Some(why) = looks(&[OsStr::new("--looks-for-authorities"), dir.as_os_str()], Some(ids))? else {
            return Ok(());
        };
        if haul_mutant::removed("ftpd-authorities-are-seen-at-the-start") {
            return Ok(());
        }
        let shown = dir.display();
        let text = format!(
            "the authorities in {shown}: a process of uid {}, which talks with whoever has not logged in, cannot read them ({why}); let \
             others read that directory and its files, and pass each directory above",
            ids.uid
        );
        Err((text, FAILED))
    }

    /// What keeps a process of this user from it, if anything does; `None`: of who starts this.
    fn looks(words: &[&OsStr], ids: Option<&Ids>) -> Result<Option<String>, (String, i32)> {
        let mut command = session_program();
        command.args(words);
        if let Some(ids) = ids {
            sys::start_as(&mut command, ids.uid, ids.gid, &ids.groups);
        }
        let looked = command.output().map_err(|error| {
            let of = ids.map_or(String::new(), |ids| format!(" of uid {}", ids.uid));
            (format!("start a process{of}: {error}"), FAILED)
        })?;
        if looked.status.success() {
            return Ok(None);
        }
        let why = String::from_utf8_lossy(&looked.stderr);
        Ok(Some(why.trim().trim_start_matches("haul: ").to_owned()))
    }

    /// Where the data nodes are.
    fn data_nodes(args: &Gridftp) -> Result<Vec<SocketAddr>, (String, i32)> {
        let find = |name: &String| {
            let wrong = |why: String| (format!("--data-node {name}: {why}"), USAGE);
            let mut found = name.to_socket_addrs().map_err(|error| wrong(error.to_string()))?;
            found.next().ok_or_else(|| wrong("this name has no address".into()))
        };
        args.data_node.iter().map(find).collect()
    }

    /// As whom this host comes under TLS.
    fn tls(args: &Gridftp) -> Result<Option<Host>, (String, i32)> {
        let (Some(cert), Some(key)) = (&args.tls_cert, &args.tls_key) else { return Ok(None) };
        if args.gsi && args.anonymous.is_none() {
            return Err((
                "--tls-cert is for anonymous clients, and with --gsi there are none: give --anonymous".into(),
                USAGE,
            ));
        }
        // A link stays one, for what it leads to may be another one later.
        let path = |path: &PathBuf, option: &str| {
            std::path::absolute(path)
                .map_err(|error| (format!("{option}: {}: {error}", path.display()), FAILED))
        };
        let host = Host::read(path(cert, "--tls-cert")?, path(key, "--tls-key")?);
        Ok(Some(host.map_err(|why| (why, FAILED))?))
    }

    /// Where the authorities of a grid are.
    fn authorities(args: &Gridftp) -> Result<PathBuf, (String, i32)> {
        let option = if args.gsi { "--gsi" } else { "--authorities" };
        let named = || std::env::var_os("X509_CERT_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
        let path = args.authorities.clone().or_else(named);
        let path = path.unwrap_or_else(|| Path::new(GRID).join("certificates"));
        // Sessions stand elsewhere. A link stays one, for what it leads to may be another one later.
        let path = std::path::absolute(&path)
            .map_err(|error| (format!("{option}: {}: {error}", path.display()), FAILED))?;
        let shown = path.display();
        match haul_ftpd::people::has_authority(&path) {
            Ok(true) => Ok(path),
            Ok(false) => Err((
                format!(
                    "{option}: {shown} holds no certificate of an authority; name the directory that has them by --authorities"
                ),
                FAILED,
            )),
            Err(_)
                if std::fs::metadata(&path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) =>
            {
                Err((
                    format!(
                        "{option}: there is no {shown}, where authorities of the grid are looked for; name the directory by --authorities"
                    ),
                    FAILED,
                ))
            }
            Err(error) => Err((format!("{option}: {shown}: {}", errno::text(error)), FAILED)),
        }
    }

    /// Who comes by a certificate, and where the authorities are that say so.
    fn people(args: &Gridftp) -> Result<Option<(People, PathBuf)>, (String, i32)> {
        if !args.gsi {
            return Ok(None);
        }
        let authorities = authorities(args)?;
        let grid = |given: &Option<PathBuf>, name: &str| {
            // Sessions stand elsewhere. A link stays one, for what it leads to may be another one later.
            let path = given.clone().unwrap_or_else(|| Path::new(GRID).join(name));
            std::path::absolute(&path)
                .map_err(|error| (format!("--gsi: {}: {error}", path.display()), FAILED))
        };
        let files = Files {
            host_cert: grid(&args.host_cert, "hostcert.pem")?,
            host_key: grid(&args.host_key, "hostkey.pem")?,
            gridmap: grid(&args.gridmap, "grid-mapfile")?,
        };
        let people = People::read(files, args.allow_root).map_err(|why| (format!("--gsi: {why}"), FAILED))?;
        Ok(Some((people, authorities)))
    }

    /// Whom processes are before a login and behind an anonymous one.
    fn whom(args: &Gridftp) -> Result<(Option<Ids>, Option<Ids>), (String, i32)> {
        let find = |name: &str| users::ids_of(name).map(|(uid, gid)| Ids { uid, gid, groups: Vec::new() });
        if !rustix::process::geteuid().is_root() {
            return match args.user {
                None => Ok((None, None)),
                Some(_) => Err((
                    "--user is for a server that root starts; this one serves as who started it".into(),
                    USAGE,
                )),
            };
        }
        let nobody = find(NOBODY.0).unwrap_or(NOBODY.1);
        let anonymous = match &args.user {
            None => nobody.clone(),
            Some(name) => {
                find(name).ok_or_else(|| (format!("--user {name}: there is no such user here"), USAGE))?
            }
        };
        Ok((Some(nobody), Some(anonymous)))
    }

    /// Sockets that a service manager passes, or those of `--listen`.
    fn listeners(args: &Gridftp) -> Result<Vec<TcpListener>, (String, i32)> {
        let number = |name: &str| std::env::var(name).ok()?.parse::<i32>().ok();
        let ours = number("LISTEN_PID") == i32::try_from(std::process::id()).ok();
        let passed = number("LISTEN_FDS").filter(|count| ours && *count > 0).unwrap_or(0);
        if passed > PASSED_MAX {
            return Err((format!("LISTEN_FDS says {passed} sockets, which is too many"), FAILED));
        }
        let mut listeners = Vec::new();
        for fd in PASSED_FIRST..PASSED_FIRST + passed {
            let socket = sys::inherited(fd).map_err(|errno| {
                (format!("take the socket {fd} of the service manager: {}", errno::text(errno)), FAILED)
            })?;
            let listens = rustix::net::sockopt::socket_acceptconn(&socket).unwrap_or(false);
            if !listens {
                return Err((
                    format!("descriptor {fd} of the service manager is no socket that listens"),
                    FAILED,
                ));
            }
            listeners.push(TcpListener::from(socket));
        }
        if listeners.is_empty() {
            for address in &args.listen {
                let listener = TcpListener::bind(address).map_err(|error| {
                    (format!("listen at {address}: {}; --listen takes another", errno::text(error)), FAILED)
                })?;
                listeners.push(listener);
            }
        }
        Ok(listeners)
    }

    /// Whether this process can serve it.
    fn looks_here(root: &Path, state: Option<&Path>, to_write: bool) -> Result<(), String> {
        let Some((name, path)) = in_volume(root) else {
            let looked = Tree::open(root, rustix::process::geteuid().as_raw());
            return looked.map(drop).map_err(errno::text);
        };
        let state = state.ok_or("where its access is was not said")?.to_owned();
        let volume = Volume { name: name.into(), state };
        let tree = Tree::of(path.as_bytes(), Some(&volume))?;
        match tree.can_change() || !to_write {
            true => Ok(()),
            false => Err("the access to the volume is for reading, and it is to be changed".into()),
        }
    }

    pub(super) fn session(
        looks_at: Option<(&Path, Option<&Path>, bool)>,
        looks_for_authorities: Option<&Path>,
    ) -> i32 {
        if let Some((root, state, to_write)) = looks_at {
            return match looks_here(root, state, to_write) {
                Ok(()) => 0,
                Err(why) => complain(&why, FAILED),
            };
        }
        if let Some(dir) = looks_for_authorities {
            return match haul_ftpd::people::has_authority(dir) {
                Ok(true) => 0,
                Ok(false) => complain("it holds no certificate of an authority", FAILED),
                Err(error) => complain(&errno::text(error), FAILED),
            };
        }
        let take = |fd: &dyn Fn() -> io::Result<OwnedFd>| fd();
        let control = take(&|| io::stdin().as_fd().try_clone_to_owned());
        let monitor = take(&|| io::stdout().as_fd().try_clone_to_owned());
        // Without it such a signal ends the session, which is no reason not to serve.
        let _ = signals::outlive_ends();
        let served = control.and_then(|control| serve_session(control, monitor?, Box::new(io::stderr())));
        match served {
            Ok(()) => 0,
            Err(error) => complain(&format!("serve a session: {}", errno::text(error)), FAILED),
        }
    }
}
