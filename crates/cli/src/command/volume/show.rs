//! `haul volume ls` and `health`: which volumes are known here, and whether they answer.
//!
//! In: accesses in the state directory. Out: a line of each volume, or of each server.

use std::fmt::Write as _;
use std::time::Duration;

use haul_core::volume::ServerNo;
use haul_core::volume::cost::straight;
use haul_core::volume::wire::Heard;
use haul_volume::access::{Access, ServerAt};
use haul_volume::visit::Met;
use serde::Serialize;

use super::{Absent, FAILED, Trouble, access, called, each, keys, known, meet, print};
use crate::progress::{bytes, plural};

#[derive(Serialize)]
struct Volume {
    name: String,
    servers: usize,
    stripe: u32,
    placement: String,
    /// Servers that answered, the catalog among them.
    reached: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub(super) fn list(json: bool) -> Result<i32, Trouble> {
    let dir = known()?;
    let names = Access::names(&dir)?;
    let volumes = each(&names, |name| look(Access::read(&dir, name), name));
    let mut text = String::new();
    for volume in &volumes {
        if json {
            text += &super::super::ctl::to_json(volume)?;
            continue;
        }
        let _ = match &volume.error {
            Some(error) => writeln!(text, "{}  {error}", volume.name),
            None => writeln!(
                text,
                "{}  {}, stripes of {}, {}",
                volume.name,
                plural(volume.servers as u64, "server", "servers"),
                bytes(volume.stripe.into()),
                match volume.reached {
                    0 => "nobody answers".to_owned(),
                    all if all == volume.servers + 1 => "all answer".to_owned(),
                    some => format!("{some} of {} answer", volume.servers + 1),
                }
            ),
        };
    }
    print(&text).map(|()| 0)
}

fn look(read: Result<Access, haul_volume::access::AccessError>, name: &str) -> Volume {
    let empty = Volume {
        name: name.into(),
        servers: 0,
        stripe: 0,
        placement: String::new(),
        reached: 0,
        error: None,
    };
    let access = match read {
        Ok(access) => access,
        Err(error) => return Volume { error: Some(error.to_string()), ..empty },
    };
    let all: Vec<_> = access.all().collect();
    let reached = match access.keys() {
        Ok(keys) => each(&all, |(server, at)| meet(&keys, *server, at, false).is_ok()),
        Err(error) => return Volume { error: Some(error.to_string()), ..empty },
    };
    Volume {
        servers: access.servers.len(),
        stripe: access.stripe,
        placement: access.placement.clone(),
        reached: reached.into_iter().filter(|reached| *reached).count(),
        ..empty
    }
}

#[derive(Serialize)]
struct Health {
    name: String,
    stripe: u32,
    placement: String,
    healthy: bool,
    servers: Vec<Server>,
}

#[derive(Serialize)]
struct Server {
    /// `None`: the catalog.
    server: Option<u16>,
    host: Option<String>,
    dir: String,
    address: String,
    reached: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    up_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    round_trip_us: Option<u64>,
    /// `None`: no client has said what writes to it cost, since it started and in the last day.
    #[serde(skip_serializing_if = "Option::is_none")]
    costs: Option<Costs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// What writes to a server cost, as the client said that spoke of it last.
#[derive(Serialize)]
struct Costs {
    age_seconds: u64,
    /// Clients that spoke of it in the last minute.
    clients: u16,
    /// Writes that are smaller are gathered, bytes; `None`: all are.
    threshold: Option<u64>,
    pinned: bool,
    /// That client began so many, to all servers.
    writes: u64,
    direct: Curve,
    gathered: Curve,
}

#[derive(Serialize)]
struct Curve {
    /// `None`: fewer than two sizes are known.
    request_us: Option<f64>,
    mib_us: Option<f64>,
    /// Mean length of what is known of each power of two, bytes, and microseconds.
    points: Vec<(u64, f64)>,
}

impl Costs {
    fn new(heard: &Heard) -> Costs {
        let Heard { costs, age, clients } = heard;
        let threshold = (costs.threshold != u64::MAX).then_some(costs.threshold);
        let (direct, gathered) = (Curve::new(&costs.direct), Curve::new(&costs.gather));
        let (pinned, writes) = (costs.pinned, costs.writes);
        Costs { age_seconds: age.as_secs(), clients: *clients, threshold, pinned, writes, direct, gathered }
    }

    fn in_words(&self) -> String {
        let age = humantime::format_duration(Duration::from_secs(self.age_seconds));
        let threshold = match self.threshold {
            None => "all are gathered".into(),
            Some(0) => "none is gathered".into(),
            Some(threshold) => format!("below {} gathered", bytes(threshold)),
        };
        format!(
            "directly {}; gathered {}; {threshold}{}; said {age} ago, {} in the last minute",
            self.direct.in_words(),
            self.gathered.in_words(),
            if self.pinned { " (pinned)" } else { "" },
            plural(self.clients.into(), "client", "clients")
        )
    }
}

impl Curve {
    fn new(points: &[(u64, u64)]) -> Curve {
        let line = straight(points);
        let us = |nanos: f64| (nanos / 100.0).round() / 10.0;
        Curve {
            request_us: line.map(|(request, _)| us(request)),
            mib_us: line.map(|(_, each)| us(each * f64::from(1 << 20))),
            points: points.iter().map(|(len, cost)| (*len, us(*cost as f64))).collect(),
        }
    }

    fn in_words(&self) -> String {
        match (self.request_us, self.mib_us, &self.points[..]) {
            (Some(request), Some(mib), _) => {
                format!("{} a request and {} a MiB", micros(request), micros(mib))
            }
            (.., [(len, cost)]) => format!("{} for {}", micros(*cost), bytes(*len)),
            _ => "not measured".into(),
        }
    }
}

/// A time of a request, to read.
fn micros(micros: f64) -> String {
    match micros {
        1000.0.. => format!("{:.1} ms", micros / 1000.0),
        _ => format!("{micros:.0} us"),
    }
}

pub(super) fn health(name: &str, json: bool) -> Result<i32, Trouble> {
    let (_, access) = access(name)?;
    let keys = keys(&access)?;
    let all: Vec<_> = access.all().collect();
    let met = each(&all, |(server, at)| meet(&keys, *server, at, false));
    let healthy = met.iter().all(Result::is_ok);
    let code = if healthy { 0 } else { FAILED };
    if json {
        let servers = all.iter().zip(&met).map(|((server, at), met)| {
            let (ok, error) = match met {
                Ok(met) => (Some(met), None),
                Err(Absent { why, .. }) => (None, Some(why.clone())),
            };
            Server {
                server: server.map(|server| server.0),
                host: at.host.clone(),
                dir: at.dir.clone(),
                address: at.at.clone(),
                reached: ok.is_some(),
                process: ok.map(|met| met.visited.process),
                up_seconds: ok.map(|met| met.visited.since.as_secs()),
                round_trip_us: ok.map(|met| met.round_trip.as_micros() as u64),
                costs: ok.and_then(|met| met.visited.heard.as_deref()).map(Costs::new),
                error,
            }
        });
        let servers = servers.collect();
        let (stripe, placement) = (access.stripe, access.placement.clone());
        let health = Health { name: name.into(), stripe, placement, healthy, servers };
        return print(&super::super::ctl::to_json(&health)?).map(|()| code);
    }
    let mut text = String::new();
    for ((server, at), met) in all.iter().zip(&met) {
        let _ = match met {
            Ok(met) => writeln!(text, "{}  {at}  {}  {}", called(*server), at.at, words(met)),
            Err(Absent { why, .. }) => {
                writeln!(text, "{}  {at}  {}  not reached: {why}", called(*server), at.at)
            }
        };
    }
    text += &costs(&all, &met);
    print(&text).map(|()| code)
}

/// What writes cost at each server, for people.
fn costs(all: &[(Option<ServerNo>, &ServerAt)], met: &[Result<Met, Absent>]) -> String {
    let mut text = String::new();
    for ((server, _), met) in all.iter().zip(met) {
        let (Some(server), Ok(met)) = (server, met) else { continue };
        if let Some(heard) = &met.visited.heard {
            let _ = writeln!(text, "writes to server {}: {}", server.0, Costs::new(heard).in_words());
        }
    }
    if text.is_empty() {
        text = "what writes cost: no client has said so since the servers started\n".into();
    }
    text
}

fn words(met: &Met) -> String {
    let up = humantime::format_duration(Duration::from_secs(met.visited.since.as_secs()));
    let round_trip = met.round_trip.as_secs_f64() * 1e3;
    format!("answers in {round_trip:.1} ms, process {}, up {up}", met.visited.process)
}
