//! Starting a far end, through a stand-in for ssh.
//!
//! `ssh` here is a shell script that drops its options and runs the remote command on this machine, in an
//! empty environment with a home of its own. `haul` is `examples/agent_echo.rs`. The real sshd is used by the
//! end-to-end tests.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path as FsPath, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use haul::options::{AgentRequest, Digest, Options};
use haul_base::role::Role;
use haul_base::stop::Stop;
use haul_launch::{BootstrapError, BootstrapKind, Connected, Dialler, Path, RemoteSpec, connect};
use haul_transport::Protect;
use tempfile::TempDir;

#[path = "bootstrap/push.rs"]
mod push;
#[path = "bootstrap/stop.rs"]
mod stop;

/// The far end's program, built by `cargo test` along with this test.
fn echo_program() -> PathBuf {
    let exe = std::env::current_exe().expect("tests have a path");
    let program =
        exe.parent().and_then(FsPath::parent).expect("target/PROFILE/deps").join("examples/agent_echo");
    assert!(program.exists(), "{} is missing: cargo build -p haul --examples", program.display());
    program
}

/// A far host: a directory with a home, a PATH, and the `ssh` that leads there.
struct Far {
    dir: TempDir,
    /// PATH of the remote command.
    path: String,
    /// Shell lines that run before the remote command.
    before: String,
    /// More environment of the remote command, `NAME=value` for the shell.
    env: String,
}

impl Far {
    fn new() -> Far {
        let dir = tempfile::tempdir().unwrap();
        for name in ["bin", "home", "tmp"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::set_permissions(dir.path().join("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
        let path = format!("{}:/usr/bin:/bin", dir.path().join("bin").display());
        Far { dir, path, before: String::new(), env: String::new() }
    }

    fn with_haul() -> Far {
        let far = Far::new();
        symlink(echo_program(), far.dir.path().join("bin/haul")).unwrap();
        far
    }

    fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// An executable shell script in the far PATH.
    fn script(&self, name: &str, text: &str) {
        write_script(&self.dir.path().join("bin").join(name), text);
    }

    fn spec(&self) -> RemoteSpec {
        let ssh = self.dir.path().join("ssh");
        write_script(
            &ssh,
            &format!(
                "for last; do :; done\n{}\nenv -i PATH='{}' HOME='{}' TMPDIR='{}' SSH_CONNECTION='127.0.0.1 9 127.0.0.1 22' {} /bin/sh -c \"$last\"",
                self.before,
                self.path,
                self.home().display(),
                self.dir.path().join("tmp").display(),
                self.env
            ),
        );
        RemoteSpec {
            host: "far.invalid".into(),
            user: None,
            ssh: vec![ssh.to_str().unwrap().into(), "-p".into(), "1".into()],
            remote_haul: None,
            push: None,
            via: Vec::new(),
            dial: Dialler::Auto,
            ports: None,
            interactive: false,
            patience: None,
            stop: Stop::never(),
            streams: Some(3),
            storage_rate: None,
            ssh_channels: None,
            sockets: vec![self.dir.path().join("sockets")],
        }
    }

    fn pushing(&self) -> RemoteSpec {
        RemoteSpec { push: Some(echo_program()), ..self.spec() }
    }

    /// The cached program, if there is exactly one, and nothing else lies with it.
    fn cached(&self) -> PathBuf {
        self.kept_in(&self.home().join(".cache"))
    }

    /// The user's own directory for temporary files.
    fn private(&self) -> PathBuf {
        self.dir.path().join(format!("tmp/haul-{}", rustix::process::getuid().as_raw()))
    }

    /// The same of another place.
    fn kept_in(&self, place: &FsPath) -> PathBuf {
        let only = |dir: &FsPath| {
            let entries: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
            assert_eq!(entries.len(), 1, "{entries:?}");
            entries[0].clone()
        };
        only(&only(&place.join("haul")))
    }
}

/// Makes a program. Another process writes it: a file that this one has open for writing is also open in
/// whatever another thread starts at that moment, and the system runs no file that is (`ETXTBSY`).
fn write_script(path: &FsPath, text: &str) {
    let mut install = Command::new("install")
        .args(["-m", "755", "/dev/stdin"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    install.stdin.take().unwrap().write_all(format!("#!/bin/sh\n{text}\n").as_bytes()).unwrap();
    assert!(install.wait().unwrap().success(), "{}", path.display());
}

fn request() -> AgentRequest {
    AgentRequest::new(Role::Sink, vec![], None, Options::default())
}

fn start(spec: &RemoteSpec) -> (Result<Connected, BootstrapError>, Vec<String>) {
    let mut notes = Vec::new();
    let result = connect(spec, &request(), &mut |line| notes.push(line));
    (result, notes)
}

/// Sends bytes of its own over each stream, all at once, and compares what comes back.
fn check_echo(connected: Connected) {
    let Connected { control, data, guard, .. } = connected;
    assert_eq!(
        data.iter().map(|(id, _)| id.0).collect::<Vec<_>>(),
        (1..=data.len() as u16).collect::<Vec<_>>()
    );
    let links = std::iter::once(control).chain(data.into_iter().map(|(_, link)| link));
    let threads: Vec<_> = links
        .zip(1u64..)
        .map(|(mut link, seed)| {
            thread::spawn(move || {
                let mut bytes = vec![0; 300_000];
                fastrand::Rng::with_seed(seed).fill(&mut bytes);
                let sent = bytes.clone();
                let mut writer = link.writer;
                let sender = thread::spawn(move || {
                    writer.write_all(&sent).and_then(|()| writer.flush()).expect("send");
                    writer
                });
                let mut back = vec![0; bytes.len()];
                link.reader.read_exact(&mut back).expect("receive");
                assert!(bytes == back);
                drop(sender.join().unwrap());
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    drop(guard);
}

/// A port on loopback that nobody listens on just now.
/// None of those that connections get for themselves: who dials a port that nobody listens on yet can be
/// given that very one, and then is connected to itself and holds it.
fn free_port() -> u16 {
    let mut rng = fastrand::Rng::new();
    let mut ports = std::iter::repeat_with(|| rng.u16(10_000..12_000));
    ports.find(|port| std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()).unwrap()
}

/// Goal: with a haul there and an open port, all streams come up over TLS and belong to the right ids; the
/// far end's port stays open for those that join later.
#[test]
fn direct_streams_come_up() {
    let far = Far::with_haul();
    let (result, notes) = start(&far.spec());
    let mut connected = result.unwrap();
    assert!(notes.is_empty(), "{notes:?}");
    assert_eq!(connected.protect, "tls");
    let Path::Direct { addr } = connected.path else { panic!("{:?}", connected.path) };
    // The far end serves streams when all have come.
    connected.control.writer.write_all(b"x").and_then(|()| connected.control.writer.flush()).unwrap();
    connected.control.reader.read_exact(&mut [0]).unwrap();
    assert!(TcpStream::connect(addr).is_ok(), "nothing can join later");
    check_echo(connected);
}

/// Goal: the far end need not speak before it has all that it must know: its first words answer it.
/// Method: a haul that says nothing before it has read the beginning of the near end's words.
#[test]
fn the_far_end_is_told_before_it_speaks() {
    let far = Far::new();
    far.script(
        "haul",
        &format!(
            "case $2 in --protocol) exec '{0}' agent --protocol;; esac\n\
             first=$(head -c 4); test \"$first\" = HAUL || exit 1; {{ printf %s \"$first\"; cat; }} | '{0}' agent",
            echo_program().display()
        ),
    );
    check_echo(start(&far.spec()).0.unwrap());
}

/// Goal: where the user names no number of streams the path decides, both ends agree on it, and the reason is
/// said; through ssh too.
#[test]
fn the_path_decides_how_many_streams() {
    let far = Far::with_haul();
    let spec = RemoteSpec { streams: None, ..far.spec() };
    let connected = start(&spec).0.unwrap();
    assert!(matches!(connected.path, Path::Direct { .. }), "{:?}", connected.path);
    let plan = connected.plan.clone();
    // A first wave comes up at once; what the path needs beyond it would follow.
    assert_eq!(connected.data.len(), usize::from(plan.streams.value).min(4));
    let rtt = plan.rtt.expect("the control connection was measured");
    assert!(rtt.as_nanos() > 0 && (1..=4).contains(&plan.streams.value), "{plan:?}");
    assert!(!plan.streams.why.is_empty());
    check_echo(connected);

    let port = free_port();
    let mut far = Far::with_haul();
    far.env = format!("AGENT_ECHO_NO_DIAL=1 AGENT_ECHO_PORT={port}");
    let connected = start(&RemoteSpec { streams: None, ..far.spec() }).0.unwrap();
    assert_eq!((connected.path, connected.data.len(), connected.plan.rtt), (Path::Ssh, 4, None));
    check_echo(connected);
}

/// Goal: a congestion control that the sending host does not allow is refused by it, and those that it allows
/// are named.
#[test]
fn a_strange_congestion_control_is_refused() {
    let far = Far::with_haul();
    let options = Options { congestion: Some("nonesuch".into()), ..Options::default() };
    let as_source = AgentRequest { role: Role::Source, options: options.clone(), ..request() };
    let error = connect(&far.spec(), &as_source, &mut |_| {}).unwrap_err();
    assert_eq!(error.kind, BootstrapKind::Refused, "{error}");
    assert!(error.to_string().contains("'nonesuch'") && error.to_string().contains("reno"), "{error}");
    // At a sink it means nothing.
    let as_sink = AgentRequest { options, ..request() };
    check_echo(connect(&far.spec(), &as_sink, &mut |_| {}).unwrap());
}

/// Goal: data goes unencrypted only where the far end's owner allows it; then control stays as it was, the
/// data streams have keys, and bytes pass in both directions; through ssh nothing changes.
#[test]
fn what_the_far_end_forbids_is_refused() {
    let mut far = Far::with_haul();
    let options = Options { protect: Protect::Integrity, ..Options::default() };
    let ask = AgentRequest { options: options.clone(), ..request() };
    let error = connect(&far.spec(), &ask, &mut |_| {}).unwrap_err();
    assert_eq!(error.kind, BootstrapKind::Refused, "{error}");
    assert!(error.to_string().contains("forbidden"), "{error}");
    far.env = "AGENT_ECHO_BARE=1".into();
    let connected = connect(&far.spec(), &ask, &mut |_| {}).unwrap();
    assert_eq!(connected.protect, "integrity");
    assert!(connected.control.guard.keys.is_none() && connected.data.len() == 3);
    assert!(connected.data.iter().all(|(_, link)| link.guard.keys.is_some()));
    check_echo(connected);
    // A digest that stops nobody is refused by the far end too, whatever the near one says.
    let ask = AgentRequest { options: Options { digest: Digest::Xxh3, ..options.clone() }, ..request() };
    assert_eq!(connect(&far.spec(), &ask, &mut |_| {}).unwrap_err().kind, BootstrapKind::Refused);
    far.env = format!("AGENT_ECHO_BARE=1 AGENT_ECHO_NO_DIAL=1 AGENT_ECHO_PORT={}", free_port());
    let ask = AgentRequest { options, ..request() };
    let connected = connect(&far.spec(), &ask, &mut |_| {}).unwrap();
    assert_eq!((connected.path, connected.protect), (Path::Ssh, "ssh"));
    assert!(connected.data.iter().all(|(_, link)| link.guard.keys.is_none()));
    check_echo(connected);
}

/// Goal: a window that the user names fixes the receive buffers of the end that is the sink, before its
/// connections are made, and control's is left alone.
#[test]
fn a_window_fixes_the_buffers_of_the_sink() {
    let far = Far::with_haul();
    let options = Options { window: Some(100_000), ..Options::default() };
    let as_source = AgentRequest { role: Role::Source, options, ..request() };
    let connected = connect(&far.spec(), &as_source, &mut |_| {}).unwrap();
    let buffer = |link: &haul_transport::Link| {
        let connection = link.connection.as_ref().expect("a connection of its own");
        connection.receive_buffer().unwrap()
    };
    assert!(connected.data.iter().all(|(_, link)| buffer(link) == 200_000));
    assert_ne!(buffer(&connected.control), 200_000);
    check_echo(connected);
}

/// Goal: a port given by the user is used; a range in use goes through ssh, and says so.
#[test]
fn port_range_is_honoured() {
    let far = Far::with_haul();
    let port = free_port();
    let spec = RemoteSpec { ports: Some((port, port)), ..far.spec() };
    let connected = start(&spec).0.unwrap();
    assert!(matches!(connected.path, Path::Direct { addr } if addr.port() == port), "{:?}", connected.path);
    check_echo(connected);

    let taken = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let (result, notes) = start(&RemoteSpec { ports: Some((port, port)), ..spec });
    let connected = result.unwrap();
    assert_eq!(connected.path, Path::Ssh);
    assert!(notes.iter().any(|n| n.contains(&port.to_string())), "{notes:?}");
    check_echo(connected);
}

/// Goal: where packets to the port vanish, or the port is closed, everything goes through ssh, with a line
/// for the firewall office.
/// Method: the far end names a port with a full queue (connects hang), and one that nobody listens on.
#[test]
fn blocked_port_falls_back_to_ssh() {
    let hole = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    hole.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    hole.listen(0).unwrap();
    let address = hole.local_addr().unwrap().as_socket().unwrap();
    let _queued = TcpStream::connect(address).unwrap();
    for port in [address.port(), free_port()] {
        let mut far = Far::with_haul();
        far.env = format!("AGENT_ECHO_NO_DIAL=1 AGENT_ECHO_PORT={port}");
        let (result, notes) = start(&far.spec());
        let connected = result.unwrap();
        assert_eq!((connected.path, connected.protect), (Path::Ssh, "ssh"));
        let note = notes.iter().find(|n| n.contains("closed to us")).expect("a note");
        for fact in
            [&format!("tcp port {port} of far.invalid"), "from 127.0.0.1 to 127.0.0.1", "`ports` 50000-50031"]
        {
            assert!(note.contains(fact), "{note}");
        }
        check_echo(connected);
    }
}

/// Goal: further channels carry streams of their own where ssh shares its connection; those that do not come
/// up are fewer, and a far shell may talk. Nothing stays of the control socket, nor of the clients.
/// Method: a stand-in that says it can share, and whose further clients do what each case says.
#[test]
fn further_channels_carry_streams() {
    for (further, channels) in
        [(":", 4), ("echo motd; printf 'HAUL\\001'", 4), ("exit 255", 1), ("kill -9 $$", 1)]
    {
        let mut far = Far::with_haul();
        far.env = format!("AGENT_ECHO_NO_DIAL=1 AGENT_ECHO_PORT={}", free_port());
        far.before = format!(
            "case \"$*\" in *' -G '*) printf 'hostname h\\ncontrolmaster false\\n'; exit 0;; *ProxyCommand=false*) {further};; esac"
        );
        let spec = RemoteSpec { streams: None, ssh_channels: Some(4), ..far.spec() };
        let connected = start(&spec).0.unwrap();
        assert_eq!((connected.path, connected.protect), (Path::Ssh, "ssh"));
        let told = connected.ssh_channels.clone().expect("it is told");
        assert_eq!((told.value, connected.data.len()), (channels, 4), "{further}: {}", told.why);
        assert_eq!(told.why, if channels == 1 { "as asked, 3 refused" } else { "as asked" });
        assert_eq!(fs::read_dir(far.dir.path().join("sockets")).unwrap().count(), 0);
        check_echo(connected);
    }
}

/// Goal: the far end dials where the user says so, or where its port cannot be reached; all streams come up
/// over TLS.
/// Method: both roles of the pinned directions; a far end that names a port that nobody listens on.
#[test]
fn the_far_end_dials() {
    let far = Far::with_haul();
    let as_source = AgentRequest { role: Role::Source, ..request() };
    for (dial, request, reverse) in [
        (Dialler::Sink, request(), true),
        (Dialler::Source, as_source.clone(), true),
        (Dialler::Source, request(), false),
        (Dialler::Sink, as_source, false),
    ] {
        let port = free_port();
        let spec = RemoteSpec { dial, ports: Some((port, port)), ..far.spec() };
        let connected = connect(&spec, &request, &mut |_| {}).unwrap();
        match connected.path {
            Path::Reverse { addr } => assert!(reverse && addr.port() == port, "{dial:?}"),
            Path::Direct { addr } => assert!(!reverse && addr.port() == port, "{dial:?}"),
            Path::Ssh => panic!("{dial:?}"),
        }
        assert_eq!((connected.protect, connected.data.len()), ("tls", 3));
        check_echo(connected);
    }
    let mut far = Far::with_haul();
    far.env = format!("AGENT_ECHO_PORT={}", free_port());
    let (result, notes) = start(&RemoteSpec { streams: None, ..far.spec() });
    let connected = result.unwrap();
    assert!(matches!(connected.path, Path::Reverse { .. }), "{:?}", connected.path);
    assert_eq!(connected.data.len(), usize::from(connected.plan.streams.value));
    assert!(connected.plan.rtt.is_some() && notes.is_empty(), "{notes:?}");
    check_echo(connected);
}

/// Goal: a direction that the user named and that is closed is an error that says what to do, not a way
/// through ssh.
/// Method: a far end that names a port that nobody listens on; a port here that is taken.
#[test]
fn a_pinned_direction_that_is_closed_is_an_error() {
    let mut far = Far::with_haul();
    far.env = format!("AGENT_ECHO_PORT={}", free_port());
    let error = start(&RemoteSpec { dial: Dialler::Source, ..far.spec() }).0.unwrap_err();
    assert_eq!(error.kind, BootstrapKind::Closed, "{error}");
    assert!(error.to_string().contains("allow tcp") && error.to_string().contains("`dial` auto"), "{error}");
    let taken = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let far = Far::with_haul();
    let spec = RemoteSpec { dial: Dialler::Sink, ports: Some((port, port)), ..far.spec() };
    let error = start(&spec).0.unwrap_err();
    assert_eq!(error.kind, BootstrapKind::Closed, "{error}");
    assert!(error.to_string().contains(&port.to_string()), "{error}");
}

/// Goal: without knowing the address that ssh reached, the far end opens no port.
#[test]
fn unknown_address_opens_no_port() {
    let mut far = Far::with_haul();
    far.env = "SSH_CONNECTION=".into();
    let (result, notes) = start(&far.spec());
    let connected = result.unwrap();
    assert_eq!(connected.path, Path::Ssh);
    assert!(notes.iter().any(|n| n.contains("`via`")), "{notes:?}");
    check_echo(connected);
    let spec = RemoteSpec { via: vec![Ipv4Addr::LOCALHOST.into()], ..far.spec() };
    assert!(matches!(start(&spec).0.unwrap().path, Path::Direct { .. }));
}

/// Goal: up to 64 KiB of whatever bytes before haul starts are skipped; beyond that the error quotes them,
/// harmlessly.
#[test]
fn chatter_is_skipped_or_named() {
    let pieces: [(&str, usize); 5] =
        [("x", 0), ("motd\n", 1024), ("y", 65535), ("y", 65536), ("HAUL\x1b[2J\u{1}", 2000)];
    for (text, len) in pieces {
        let mut far = Far::with_haul();
        let chatter: Vec<u8> = text.bytes().cycle().take(len).collect();
        fs::write(far.dir.path().join("motd"), chatter).unwrap();
        far.before = format!("cat '{}/motd'", far.dir.path().display());
        let connected = start(&far.spec()).0.unwrap_or_else(|e| panic!("{len} of {text:?}: {e}"));
        check_echo(connected);
    }
    for (text, len) in [("\x1b]0;evil\x07", 65537), ("z", 10_000_000)] {
        let mut far = Far::with_haul();
        fs::write(far.dir.path().join("motd"), text.bytes().cycle().take(len).collect::<Vec<u8>>()).unwrap();
        far.before = format!("cat '{}/motd'", far.dir.path().display());
        let error = start(&far.spec()).0.unwrap_err();
        assert_eq!(error.kind, BootstrapKind::Chatter, "{error}");
        assert!(error.to_string().chars().all(|c| !c.is_control()), "{error}");
        assert!(error.to_string().contains(if text == "z" { "zzz" } else { "\\x1b]0;evil\\x07" }), "{error}");
    }
}

/// Goal: when ssh fails, its own words and exit code are in the error, escaped, and said once: what came
/// before, and what `ssh -v` says of itself, came as notes, each line as one.
#[test]
fn ssh_failure_is_quoted() {
    let mut far = Far::new();
    far.before = "printf 'u@far: Permission denied\\033[2J (publickey).\\r\\n' >&2; exit 255".into();
    let (result, notes) = start(&far.spec());
    let error = result.unwrap_err();
    assert_eq!((error.kind, error.ssh_exit), (BootstrapKind::Ssh, Some(255)));
    let words = "u@far: Permission denied\\x1b[2J (publickey).";
    assert_eq!(notes, [""; 0]);
    assert!(error.to_string().contains(words), "{error}");

    let mut talks = Far::new();
    talks.before =
        "printf 'Banner\\n' >&2; echo HAUL-STAGE0 1 uname Linux x86_64 6.1; head -c 1 >/dev/null; \
                    printf 'debug1: one\\ndebug1: two\\nConnection reset\\n' >&2; exit 255"
            .into();
    // What is said half a second before the end is told, and not quoted: a machine that is busy elsewhere may
    // take so long.
    let mut starts = (0..5).map(|_| start(&talks.spec()));
    let (result, notes) =
        starts.find(|(_, notes)| !notes.contains(&"Connection reset".to_owned())).expect("quoted");
    let error = result.unwrap_err().to_string();
    assert_eq!(notes, ["Banner", "debug1: one", "debug1: two"]);
    assert!(
        error.contains("Connection reset") && !error.contains("debug1") && !error.contains("Banner"),
        "{error}"
    );

    let spec = RemoteSpec { ssh: vec!["/nonexistent/ssh".into()], ..far.spec() };
    let error = start(&spec).0.unwrap_err();
    assert_eq!((error.kind, error.ssh_exit), (BootstrapKind::Ssh, Some(127)));
    assert!(error.to_string().contains("/nonexistent/ssh"), "{error}");
}

/// Goal: the real ssh takes the command line, and its words about a host that does not exist come through.
#[test]
fn real_ssh_names_an_unknown_host() {
    if Command::new("ssh").arg("-V").output().is_err() {
        eprintln!("skipped: no ssh here");
        return;
    }
    let far = Far::new();
    let spec = RemoteSpec { ssh: vec![], host: "u@no-such-host.invalid".into(), ..far.spec() };
    let error = start(&spec).0.unwrap_err();
    assert_eq!((error.kind, error.ssh_exit), (BootstrapKind::Ssh, Some(255)), "{error}");
    assert!(error.to_string().contains("no-such-host.invalid: "), "{error}");
}

/// Goal: programs without a common protocol part with both versions named, where the other one was asked for
/// by name.
#[test]
fn version_mismatch_names_both() {
    let mut far = Far::with_haul();
    far.env = "AGENT_ECHO_VERSIONS=40-41".into();
    let named = RemoteSpec { remote_haul: Some(far.dir.path().join("bin/haul")), ..far.pushing() };
    let error = start(&named).0.unwrap_err();
    assert_eq!(error.kind, BootstrapKind::Version);
    assert!(error.to_string().contains("40 to 41") && error.remedy.is_some(), "{error}");
}

/// Goal: a haul in the far PATH that speaks other versions, or is none, is passed over for a pushed one, and
/// one line says so; where none may be pushed the error says it.
/// Method: programs that name older and newer versions, none, and what is no number.
#[test]
fn an_unfit_haul_is_passed_over() {
    let says = |text: &str| format!("case $2 in --protocol) {text};; *) exit 9;; esac");
    for (text, why) in [
        ("echo haul-protocol 40-41", "speaks protocol 40-41"),
        ("echo welcome; echo haul-protocol 0-0", "speaks protocol 0-0"),
        ("echo haul-protocol x-y", "speaks protocol x-y"),
        ("echo haul-protocol", "does not answer as haul does"),
        ("exit 2", "does not answer as haul does"),
    ] {
        let far = Far::new();
        far.script("haul", &says(text));
        let (result, notes) = start(&far.pushing());
        check_echo(result.unwrap_or_else(|e| panic!("{text}: {e}")));
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes[0].contains(why) && notes[0].contains("passed over"), "{notes:?}");
        let error = start(&far.spec()).0.unwrap_err();
        assert_eq!(error.kind, BootstrapKind::Version, "{error}");
        assert!(error.to_string().contains(why) && error.to_string().contains("`no_push`"), "{error}");
    }
}

/// Goal: a kernel on which haul cannot run is told by one sentence, and nothing is sent there.
/// Method: a far `uname` that names an old release.
#[test]
fn an_old_kernel_is_named() {
    let far = Far::with_haul();
    far.script(
        "uname",
        "case $1 in -s) echo Linux;; -m) echo x86_64;; -r) echo 3.10.0-1160.el7.x86_64;; esac",
    );
    let (result, notes) = start(&far.pushing());
    let error = result.unwrap_err();
    assert_eq!(error.kind, BootstrapKind::Kernel);
    let sentence = "far.invalid runs Linux 3.10.0-1160.el7.x86_64, and haul needs Linux 4.18 or newer";
    assert_eq!((error.to_string().as_str(), notes.len()), (sentence, 0));
    assert!(!far.home().join(".cache").exists());
}

/// Goal: haul at the far end has the umask of the user's login, whether it was found or brought there.
/// Method: a login under an odd umask; what the program there says it has.
#[test]
fn the_users_umask_is_kept() {
    for brought in [false, true] {
        let mut far = if brought { Far::new() } else { Far::with_haul() };
        far.before = "umask 0026".into();
        let connected = start(&far.pushing()).0.unwrap();
        let agents = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let at = entry.ok()?.path();
            let environment = fs::read(at.join("environ")).ok()?;
            let ours =
                String::from_utf8_lossy(&environment).contains(&format!("HOME={}", far.home().display()));
            let line = fs::read(at.join("cmdline")).ok()?;
            (ours && line.ends_with(b"\0agent\0")).then(|| fs::read_to_string(at.join("status")).ok())?
        });
        let masks: Vec<String> = agents
            .filter_map(|status| {
                status.lines().find_map(|line| line.strip_prefix("Umask:")).map(|m| m.trim().to_owned())
            })
            .collect();
        assert_eq!(masks, ["0026"], "brought: {brought}");
        check_echo(connected);
    }
}

/// Goal: a program named by path is used whatever bytes the path has; a wrong one is an error, not a reason
/// to take another.
#[test]
fn remote_path_is_never_interpreted() {
    let far = Far::with_haul();
    let odd = far.home().join("it's \"$HOME\" `id` $(id) \\ ; * haul");
    symlink(echo_program(), &odd).unwrap();
    check_echo(start(&RemoteSpec { remote_haul: Some(odd), ..far.spec() }).0.unwrap());
    symlink(echo_program(), far.home().join("tilde")).unwrap();
    check_echo(start(&RemoteSpec { remote_haul: Some("~/tilde".into()), ..far.spec() }).0.unwrap());
    for wrong in ["/nonexistent/haul", "/bin/true", "-n"] {
        let error = start(&RemoteSpec { remote_haul: Some(wrong.into()), ..far.pushing() }).0.unwrap_err();
        assert_eq!(error.kind, BootstrapKind::NoProgram, "{error}");
    }
}

/// Goal: strangers at the port do not disturb the session.
/// Method: junk from several threads all the while that sessions are set up on a known port.
#[test]
fn strangers_do_not_disturb() {
    let far = Far::with_haul();
    let port = free_port();
    let over = Arc::new(AtomicBool::new(false));
    let strangers: Vec<_> = (0..2)
        .map(|seed| {
            let over = Arc::clone(&over);
            thread::spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                let mut held = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    if let Ok(mut socket) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
                        let junk: Vec<u8> = (0..rng.usize(..200)).map(|_| rng.u8(..)).collect();
                        let _ = socket.write_all(&junk);
                        // Some stay open and silent.
                        if held.len() < 10 && rng.bool() {
                            held.push(socket);
                        }
                    }
                    thread::yield_now();
                }
            })
        })
        .collect();
    for _ in 0..5 {
        let spec = RemoteSpec { ports: Some((port, port)), ..far.spec() };
        check_echo(start(&spec).0.unwrap());
    }
    over.store(true, Ordering::Relaxed);
    for stranger in strangers {
        stranger.join().unwrap();
    }
}

/// Goal: once the streams are up, the end of ssh loses nothing.
#[test]
fn loss_of_ssh_loses_nothing() {
    let far = Far::with_haul();
    let connected = start(&far.spec()).0.unwrap();
    let pid = rustix::process::Pid::from_raw(connected.guard.pid() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let other = start(&far.spec()).0.unwrap();
    check_echo(Connected { guard: other.guard, ..connected });
}

/// Goal: input that cannot be meant is refused before anything runs.
#[test]
fn bad_input_is_refused_at_once() {
    let far = Far::with_haul();
    let spec = far.spec();
    let bad = [
        RemoteSpec { host: "-oProxyCommand=touch x".into(), ..spec.clone() },
        RemoteSpec { host: "".into(), ..spec.clone() },
        RemoteSpec { streams: Some(0), ..spec.clone() },
        RemoteSpec { streams: Some(65), ..spec.clone() },
        RemoteSpec { ports: Some((9, 8)), ..spec.clone() },
        RemoteSpec { remote_haul: Some("a\nb".into()), ..spec },
    ];
    for spec in bad {
        let error = start(&spec).0.unwrap_err();
        assert_eq!(error.kind, BootstrapKind::Usage, "{error}");
    }
}
