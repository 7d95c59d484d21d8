//! A far end that sends back each byte on the stream that it came on. The bootstrap's tests start it where a
//! user would have `haul`.
//!
//! `AGENT_ECHO_PORT` and `AGENT_ECHO_VERSIONS` (`MIN-MAX`) let it lie about its port and its protocol; with
//! `AGENT_ECHO_NO_DIAL` it cannot dial, with `AGENT_ECHO_BARE` its owner allows data without encryption.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};

use haul::options::AgentRequest;
use haul_launch::{AgentEnv, AgentHooks, agent, channel, protocol_line};
use haul_transport::Link;
use haul_transport::Protect;
use haul_transport::rejoin::{JoinEvent, Joins};

fn main() -> ExitCode {
    haul::process::keep_secrets();
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["agent", "--protocol"] => println!("{}", protocol_line()),
        ["agent"] => return serve(),
        ["agent", "--channel"] => {
            let handed = channel(std::io::stdin().as_fd(), std::io::stdout().as_fd());
            return if handed.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        _ => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}

fn serve() -> ExitCode {
    let var = |name: &str| std::env::var(name).ok();
    let versions = var("AGENT_ECHO_VERSIONS").and_then(|v| {
        let (min, max) = v.split_once('-')?;
        Some((min.parse().ok()?, max.parse().ok()?))
    });
    let hooks = AgentHooks {
        port: var("AGENT_ECHO_PORT").and_then(|p| p.parse().ok()),
        versions,
        no_dial: var("AGENT_ECHO_NO_DIAL").is_some(),
    };
    let least_protect = var("AGENT_ECHO_BARE").map_or(Protect::Tls, |_| Protect::Integrity);
    let env: AgentEnv<AgentRequest> =
        AgentEnv { ssh_connection: var("SSH_CONNECTION"), least_protect, hooks, ..AgentEnv::default() };
    let bare = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().map(File::from);
    let (Ok(input), Ok(output)) = (bare(std::io::stdin().as_fd()), bare(std::io::stdout().as_fd())) else {
        return ExitCode::FAILURE;
    };
    let connected = match agent(input, output, env) {
        Ok(Some((_, connected))) => connected,
        // It does no errands.
        Ok(None) => return ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}");
            return ExitCode::FAILURE;
        }
    };
    let (ends, ended) = mpsc::channel();
    let serve: Arc<dyn Fn(Link) + Send + Sync> = Arc::new(move |link| {
        let ends = ends.clone();
        std::thread::spawn(move || ends.send(echo(link)));
    });
    if let Joins::Accept(door) = &connected.joins {
        let serve = serve.clone();
        door.open(Arc::new(move |event| match event {
            JoinEvent::Stream { link, .. } | JoinEvent::Control { link, .. } => serve(link),
            JoinEvent::Failed { .. } => {}
        }));
    }
    let links = std::iter::once(connected.control).chain(connected.data.into_iter().map(|(_, link)| link));
    links.for_each(|link| serve(link));
    // Handle, and all data streams of the start, which may still be on their way.
    for _ in 0..=connected.streams {
        let _ = ended.recv();
    }
    ExitCode::SUCCESS
}

fn echo(mut link: Link) -> std::io::Result<()> {
    let mut chunk = vec![0; 64 * 1024];
    loop {
        match link.reader.read(&mut chunk)? {
            0 => return Ok(()),
            n => link.writer.write_all(&chunk[..n])?,
        }
        link.writer.flush()?;
    }
}
