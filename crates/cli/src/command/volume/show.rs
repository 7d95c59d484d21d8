//! `haul volume ls` and `health`: which volumes are known here, and whether they answer.
//!
//! In: accesses in the state directory. Out: a line of each volume, or of each server.

use std::fmt::Write as _;
use std::time::Duration;

use haul_volume::access::Access;
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
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
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
    print(&text).map(|()| code)
}

fn words(met: &Met) -> String {
    let up = humantime::format_duration(Duration::from_secs(met.visited.since.as_secs()));
    let round_trip = met.round_trip.as_secs_f64() * 1e3;
    format!("answers in {round_trip:.1} ms, process {}, up {up}", met.visited.process)
}
