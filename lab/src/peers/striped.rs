//! Two striped GridFTP servers of Globus, four data movers each, and who steers a copy between them: haul or
//! Globus's own client. The bytes go from the near host to the far one and not by whom steers.
//!
//! As in the paper on GridFTP (Argonne National Laboratory, 2005), figure 5: partitioned, four nodes to four,
//! four streams, four files at a time. Settings: `receiver-dies` (a time, as `8s`): one data mover of the far
//! host is killed so long after the start, and is there again a second later; `caching=no` (Globus's client
//! alone): each file has new data connections.
//! Left out: haul without channel caching, for it has no such switch.

use std::any::Any;
use std::fs;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::gridftp::with_names;
use super::{Job, Peer, Said, ask_version, haul};
use crate::host::{self, Bench, Host};
use crate::process::{self, Server};
use crate::wan::parse_time;

/// Data movers of each host, and what each file has at a time.
const NODES: usize = 4;
const FILES: &str = "4";
const STREAMS: &str = "4";
/// A mover that was killed starts again: $@ is its command.
const AGAIN: &str = r#"while :; do "$@"; sleep 1; done"#;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    Haul,
    Globus,
}

/// Who steers.
pub struct Striped(Client);

pub static STRIPED_HAUL: Striped = Striped(Client::Haul);
pub static STRIPED_GLOBUS: Striped = Striped(Client::Globus);

impl Peer for Striped {
    fn name(&self) -> &'static str {
        match self.0 {
            Client::Haul => "striped-haul",
            Client::Globus => "striped-globus",
        }
    }

    fn about(&self) -> &'static str {
        match self.0 {
            Client::Haul => {
                "haul cp ftp:// ftp:// --stripes=partitioned --streams=4, two servers of 4 data movers, 4 files at a time; UNPROTECTED, anonymous; the servers' sums compared; not on media when it ends"
            }
            Client::Globus => {
                "globus-url-copy -fast -stripe -sbs 0 -p 4 -cc 4 -rst, two servers of 4 data movers; UNPROTECTED, anonymous; nothing compared; not on media when it ends"
            }
        }
    }

    fn packages(&self) -> &'static [&'static str] {
        match self.0 {
            Client::Globus => &["globus-gass-copy-progs", "globus-gridftp-server-progs"],
            Client::Haul => &["globus-gridftp-server-progs"],
        }
    }

    fn version(&self) -> anyhow::Result<String> {
        let client = match self.0 {
            Client::Haul => {
                ask_version(&host::haul().to_string_lossy(), &["--version"], "none, build it: make build")
            }
            Client::Globus => ask_version("globus-url-copy", &["-version"], "globus-gass-copy-progs"),
        }?;
        let server = ask_version("globus-gridftp-server", &["-version"], "globus-gridftp-server-progs")?;
        Ok(format!("{client}, servers {server}"))
    }

    fn start(&self, bench: &Bench) -> anyhow::Result<Box<dyn Any>> {
        let mut all = Vec::new();
        for (host, side) in [(bench.near(), "near"), (bench.far(), "far")] {
            let mut movers = Vec::new();
            for node in 0..NODES {
                let port = bench.port(&format!("mover-{side}-{node}"))?;
                all.push(mover(bench, host, port)?);
                movers.push(format!("{}:{port}", host.address));
            }
            all.push(front(bench, host, bench.port(&format!("front-{side}"))?, &movers.join(","))?);
        }
        Ok(Box::new(all))
    }

    fn copy(&self, job: &Job<'_>) -> anyhow::Result<Said> {
        let near = job.bench.near();
        let (program, args) = match self.0 {
            Client::Haul => (job.bench.haul.display().to_string(), haul_arguments(job)?),
            Client::Globus => ("globus-url-copy".to_owned(), globus_arguments(job)?),
        };
        let mut words = with_names(job.bench, near)?;
        words.push(program);
        words.extend(args);
        let mut command = near.command(&words[0]);
        command.env("GLOBUS_HOSTNAME", &near.address).args(&words[1..]);
        let dies = match job.settings.get("receiver-dies") {
            Some(text) => {
                let after =
                    parse_time(text).map_err(anyhow::Error::msg).context("the setting receiver-dies")?;
                Some(Duration::from_nanos(after))
            }
            None => None,
        };
        let port = job.bench.port("mover-far-0")?;
        let mark = format!("{}-sh-{port}", job.bench.far().mark);
        let (done, over) = channel::<()>();
        let (said, killed) = std::thread::scope(|scope| {
            let killer = scope.spawn(move || {
                dies.map(|after| match over.recv_timeout(after) {
                    Err(RecvTimeoutError::Timeout) => kill(&mark),
                    _ => 0,
                })
            });
            let said = job.bench.run(&mut command, job.limit);
            drop(done);
            (said, killer.join().unwrap_or_default())
        });
        let said = said?;
        let said = match self.0 {
            Client::Haul => haul::summary(&said.stdout, false)?,
            Client::Globus => Said { more: json!({}), ..Said::default() },
        };
        let mut more = said.more.clone();
        if let (Some(killed), Value::Object(more)) = (killed, &mut more) {
            anyhow::ensure!(killed > 0, "the copy ended before its receiver was to die");
            more.insert("receivers_killed".to_owned(), json!(killed));
        }
        Ok(Said { more, ..said })
    }
}

/// Kills the processes of one mover, but not who starts it again. How many there were.
fn kill(mark: &str) -> usize {
    let is_server = |pid: &u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.starts_with("globus-gridftp")
    };
    let found: Vec<u32> = process::marked(&[mark]).into_iter().filter(is_server).collect();
    let raw = found.iter().filter_map(|pid| rustix::process::Pid::from_raw(*pid as i32));
    raw.filter(|pid| rustix::process::kill_process(*pid, rustix::process::Signal::KILL).is_ok()).count()
}

fn mover(bench: &Bench, host: &Host, port: u16) -> anyhow::Result<Server> {
    let mut words = with_names(bench, host)?;
    words.extend(["sh", "-c", AGAIN, "sh"].map(str::to_owned));
    words.extend(common(host, port));
    words.push("-dn".to_owned());
    host.server("sh", port, |command| {
        command.env("GLOBUS_HOSTNAME", &host.address).args(["-c", r#"exec "$@""#, "sh"]).args(&words);
    })
}

fn front(bench: &Bench, host: &Host, port: u16, movers: &str) -> anyhow::Result<Server> {
    let mut words = with_names(bench, host)?;
    words.extend(common(host, port));
    words.extend(["-r", movers].map(str::to_owned));
    host.server(&words[0], port, |command| {
        command.env("GLOBUS_HOSTNAME", &host.address).args(&words[1..]);
    })
}

fn common(host: &Host, port: u16) -> Vec<String> {
    let port = port.to_string();
    let words = ["globus-gridftp-server", "-c", "", "-s", "-aa", "-anonymous-user", &super::user()]
        .map(str::to_owned)
        .to_vec();
    let more = ["-allow-root", "-allow-disabled-login", "-p", &port, "-control-interface", &host.address];
    let data = ["-data-interface", &host.address];
    [words, more.map(str::to_owned).to_vec(), data.map(str::to_owned).to_vec()].concat()
}

/// Where the near server has the workload, and where it goes at the far one.
fn urls(job: &Job<'_>) -> anyhow::Result<[String; 2]> {
    let bench = job.bench;
    let [near, far] = [bench.port("front-near")?, bench.port("front-far")?];
    Ok([
        format!("ftp://{}:{near}{}/", bench.near().address, job.from.display()),
        format!("ftp://{}:{far}{}/", bench.far().address, job.to.display()),
    ])
}

fn haul_arguments(job: &Job<'_>) -> anyhow::Result<Vec<String>> {
    job.check_settings(&["receiver-dies"])?;
    let streams = format!("--streams={STREAMS}");
    let mut words =
        ["cp", "--json", "-q", "-r", "--stripes=partitioned", &streams].map(str::to_owned).to_vec();
    words.extend(urls(job)?);
    Ok(words)
}

fn globus_arguments(job: &Job<'_>) -> anyhow::Result<Vec<String>> {
    job.check_settings(&["receiver-dies", "caching"])?;
    let mut words =
        ["-r", "-cd", "-stripe", "-sbs", "0", "-p", STREAMS, "-cc", FILES].map(str::to_owned).to_vec();
    // Again and again, from what the receiver said that it has.
    words.extend(["-rst", "-rst-retries", "0", "-rst-interval", "1"].map(str::to_owned));
    if job.setting("caching", "yes") != "no" {
        words.push("-fast".to_owned());
    }
    words.extend(urls(job)?);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::super::tests::Fixture;
    use super::*;

    /// Goal: both steer from the near host's server to the far one's, in the paper's setting; a setting that
    /// is none is refused.
    #[test]
    fn peer_striped_arguments() {
        let job = Fixture::new(&[]);
        let words = haul_arguments(&job.job()).unwrap().join(" ");
        assert_eq!(
            words,
            "cp --json -q -r --stripes=partitioned --streams=4 ftp://10.77.0.1:2821/from/ ftp://10.77.0.2:2820/to/"
        );
        let words = globus_arguments(&job.job()).unwrap().join(" ");
        assert!(
            words.contains("-sbs 0 -p 4 -cc 4") && words.contains("-fast ftp://10.77.0.1:2821/"),
            "{words}"
        );
        let without = Fixture::new(&[("caching", "no")]);
        assert!(!globus_arguments(&without.job()).unwrap().join(" ").contains("-fast"));
        assert!(haul_arguments(&without.job()).unwrap_err().to_string().contains("no setting"));
    }
}
