//! `haul volume ls` and `health`: which volumes are known here, and whether they answer.
//!
//! In: accesses in the state directory. Out: a line of each volume, or of each server; and of what disks do
//! not take, where, why and since when.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::thread;
use std::time::Duration;

use haul_core::volume::ServerNo;
use haul_core::volume::cost::straight;
use haul_core::volume::wire::{Heard, Ill, Illness, Room};
use haul_volume::access::{Access, ServerAt};
use haul_volume::dial::Keys;
use haul_volume::visit::Met;
use serde::Serialize;

use super::threshold::{Threshold, micros};
use super::{Absent, FAILED, Trouble, access, called, each, keys, known, meet, print};
use crate::progress::{bytes, plural};

/// A server that was started is reached by the others, and by the catalog, within this.
const REACHED_WITHIN: Duration = Duration::from_secs(10);
/// How often it is looked whether a catalog has asked them.
const ASKS: Duration = Duration::from_millis(50);

#[derive(Serialize)]
struct Volume {
    name: String,
    servers: usize,
    stripe: u32,
    placement: String,
    /// Servers that answered, the catalog among them.
    reached: usize,
    /// Bytes that are free on the disks of the servers that answered, each disk once.
    #[serde(skip_serializing_if = "Option::is_none")]
    free_bytes: Option<u64>,
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
                "{}  {}, stripes of {}, {}, {}",
                volume.name,
                plural(volume.servers as u64, "server", "servers"),
                bytes(volume.stripe.into()),
                volume.placement,
                match (volume.reached, volume.free_bytes) {
                    (0, _) => {
                        format!(
                            "nobody answers (`haul volume start {}` starts what was stopped)",
                            volume.name
                        )
                    }
                    (all, Some(free)) if all == volume.servers + 1 => {
                        format!("all answer, {} free", bytes(free))
                    }
                    (all, None) if all == volume.servers + 1 => "all answer".to_owned(),
                    (some, _) => format!("{some} of {} answer", volume.servers + 1),
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
        free_bytes: None,
        error: None,
    };
    let access = match read {
        Ok(access) => access,
        Err(error) => return Volume { error: Some(error.to_string()), ..empty },
    };
    let all: Vec<_> = access.all().collect();
    let met = match access.keys() {
        Ok(keys) => each(&all, |(server, at)| meet(&keys, *server, at, false)),
        Err(error) => return Volume { error: Some(error.to_string()), ..empty },
    };
    Volume {
        servers: access.servers.len(),
        stripe: access.stripe,
        placement: access.placement.clone(),
        reached: met.iter().filter(|met| met.is_ok()).count(),
        free_bytes: in_all(&all, &met).map(|all| all.free),
        ..empty
    }
}

#[derive(Serialize)]
struct Health {
    name: String,
    stripe: u32,
    placement: String,
    healthy: bool,
    /// `None`: no client has spoken of it.
    write_threshold: Option<Threshold>,
    /// Of the disks of the servers that answered, each once, whoever uses them.
    #[serde(skip_serializing_if = "Option::is_none")]
    free_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    used_bytes: Option<u64>,
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
    /// On its disk, whoever uses that.
    #[serde(skip_serializing_if = "Option::is_none")]
    free_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    used_bytes: Option<u64>,
    /// `None`: no client has said what writes to it cost, since it started and in the last day.
    #[serde(skip_serializing_if = "Option::is_none")]
    costs: Option<Costs>,
    /// What disks do not take.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ills: Vec<Refused>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Something that a disk does not take.
#[derive(Serialize)]
struct Refused {
    /// `gathered`: bytes that wait at this server for another one, or for itself; `log`: what it would
    /// gather;
    /// `catalog`: what the catalog would write; `stripes`: something of a file that lies there; `unknown`:
    /// files of a server that the catalog does not know; `unasked`: whether there are such is not known;
    /// `parted`: that server is not reached from this one.
    what: &'static str,
    /// The server that it is about, and where that is.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<u16>,
    /// The directory on the disk.
    dir: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    errno: i32,
    error: String,
    seconds: u64,
}

impl Refused {
    /// `at`: where it was told; `servers`: all of the volume.
    fn new(ill: &Ill, at: &ServerAt, servers: &[ServerAt]) -> Refused {
        let error = haul::errno::text(std::io::Error::from_raw_os_error(ill.errno));
        let (errno, seconds) = (ill.errno, ill.since.as_secs());
        let own = Refused {
            what: "log",
            by: None,
            dir: at.to_string(),
            files: None,
            bytes: None,
            errno,
            error,
            seconds,
        };
        match ill.what {
            Illness::Log => own,
            Illness::Catalog => Refused { what: "catalog", ..own },
            Illness::Stripes => Refused { what: "stripes", ..own },
            Illness::Unknown { server, files } => Refused {
                what: "unknown",
                by: Some(server.0),
                dir: servers.get(usize::from(server.0)).map_or_else(String::new, ToString::to_string),
                files: Some(files),
                ..own
            },
            Illness::Parted { server } => Refused {
                what: "parted",
                by: Some(server.0),
                dir: servers.get(usize::from(server.0)).map_or_else(String::new, ToString::to_string),
                ..own
            },
            Illness::Unasked { server } => Refused {
                what: "unasked",
                by: Some(server.0),
                dir: servers.get(usize::from(server.0)).map_or_else(String::new, ToString::to_string),
                ..own
            },
            Illness::Waits { server, files, bytes } => Refused {
                what: "gathered",
                by: Some(server.0),
                dir: servers.get(usize::from(server.0)).map_or_else(String::new, ToString::to_string),
                files: Some(files),
                bytes: Some(bytes),
                ..own
            },
        }
    }

    fn in_words(&self, server: Option<ServerNo>) -> String {
        let Refused { dir, error, seconds, .. } = self;
        let since = humantime::format_duration(Duration::from_secs(*seconds));
        let then = match haul_volume::is_full(self.errno) {
            true => "make room on that disk, and it goes on by itself",
            false => {
                "look after that disk; what was synced is safe, and goes on when that server is started again"
            }
        };
        let what = match (self.what, self.by) {
            ("unknown", Some(by)) => {
                return format!(
                    "server {by}, {dir}, holds {} that the catalog does not know, for it is older than the server: bring \
                     the newer catalog back if there is one; `haul volume fsck` names them",
                    plural(self.files.unwrap_or_default(), "file", "files"),
                );
            }
            ("unasked", Some(by)) => {
                return format!(
                    "server {by}, {dir}, has not said which files it has since the catalog began, {since} ago: nothing new \
                     is made before it has"
                );
            }
            ("parted", Some(by)) => {
                return format!(
                    "{} does not reach server {by}, {dir}, for {since}, though both answer here: what is gathered or \
                     moved between them waits; look after the network between their hosts",
                    called(server)
                );
            }
            ("gathered", Some(by)) => format!(
                "{} of {} gathered at {} wait for server {by}, {dir}, which does not take them",
                bytes(self.bytes.unwrap_or_default()),
                plural(self.files.unwrap_or_default(), "file", "files"),
                called(server),
            ),
            ("catalog", _) => format!("nothing is made or changed in the catalog, {dir}"),
            ("stripes", _) => {
                format!("something of a file is not taken or read at {}, {dir}", called(server))
            }
            _ => format!("nothing is gathered at {}, {dir}", called(server)),
        };
        format!("{what}: {error}, for {since}; {then}")
    }
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
    /// `None`: no writes below 64 KiB were measured, and for `mib_us` no others.
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
        let (request, byte) = straight(points);
        let us = |nanos: f64| (nanos / 100.0).round() / 10.0;
        Curve {
            request_us: request.map(us),
            mib_us: byte.map(|byte| us(byte * f64::from(1 << 20))),
            points: points.iter().map(|(len, cost)| (*len, us(*cost as f64))).collect(),
        }
    }

    fn in_words(&self) -> String {
        match (self.request_us, self.mib_us) {
            (Some(request), Some(mib)) => {
                format!("{} a request and {} a MiB", micros(request), micros(mib))
            }
            (Some(request), None) => {
                format!("{} a request, not measured for large writes", micros(request))
            }
            (None, Some(mib)) => format!("{} a MiB, not measured for small writes", micros(mib)),
            (None, None) => "not measured".into(),
        }
    }
}

pub(super) fn health(name: &str, json: bool) -> Result<i32, Trouble> {
    let (_, access) = access(name)?;
    let keys = keys(&access)?;
    let all: Vec<_> = access.all().collect();
    let mut met = each(&all, |(server, at)| meet_asked(&keys, *server, at));
    // That nobody else reaches who is away, or was until now, says nothing more.
    let is_there =
        |met: &Result<Met, Absent>| met.as_ref().is_ok_and(|met| met.visited.since >= REACHED_WITHIN);
    let there: Vec<bool> = met.iter().map(is_there).collect();
    for met in met.iter_mut().flatten() {
        let is_away = |server: ServerNo| !there.get(usize::from(server.0)).copied().unwrap_or(true);
        let ills = &mut met.visited.ills;
        ills.retain(|ill| !matches!(ill.what, Illness::Parted { server } if is_away(server)));
    }
    let is_well = |met: &Result<Met, Absent>| met.as_ref().is_ok_and(|met| met.visited.ills.is_empty());
    let healthy = met.iter().all(is_well);
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
                free_bytes: ok.and_then(|met| met.visited.room).map(|room| room.free),
                used_bytes: ok.and_then(|met| met.visited.room).map(|room| room.used),
                costs: ok.and_then(|met| met.visited.heard.as_deref()).map(Costs::new),
                ills: ok.map_or_else(Vec::new, |met| refused(met, at, &access.servers)),
                error,
            }
        });
        let servers = servers.collect();
        let (stripe, placement) = (access.stripe, access.placement.clone());
        let write_threshold = threshold(&all, &met);
        let (free_bytes, used_bytes) = in_all(&all, &met).map(|room| (room.free, room.used)).unzip();
        let name = name.into();
        let health =
            Health { name, stripe, placement, healthy, write_threshold, free_bytes, used_bytes, servers };
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
    for ((server, at), met) in all.iter().zip(&met) {
        for refused in met.as_ref().map_or_else(|_| Vec::new(), |met| refused(met, at, &access.servers)) {
            let _ = writeln!(text, "{}", refused.in_words(*server));
        }
    }
    let _ =
        writeln!(text, "new files lie {}, in stripes of {}", access.placement, bytes(access.stripe.into()));
    if let Some(Room { free, used, device: disks }) = in_all(&all, &met) {
        let disks = plural(disks, "disk", "disks");
        let _ = writeln!(
            text,
            "in all {} free, {} used, on {disks}, whoever uses them",
            bytes(free),
            bytes(used)
        );
    }
    text += &costs(&all, &met);
    text += &threshold(&all, &met).map_or_else(String::new, |threshold| threshold.in_words());
    print(&text).map(|()| code)
}

/// The room on the disks of all servers that were met, each disk once, and how many disks that is. Such as do
/// not say it, for they are older, leave all of it unsaid.
fn in_all(all: &[(Option<ServerNo>, &ServerAt)], met: &[Result<Met, Absent>]) -> Option<Room> {
    let servers = all.iter().zip(met).filter(|((server, _), _)| server.is_some());
    let mut disks = BTreeMap::new();
    for ((_, at), met) in servers {
        let Ok(met) = met else { continue };
        let room = met.visited.room?;
        disks.insert((at.host.clone(), room.device), room);
    }
    let sum = |part: fn(&Room) -> u64| disks.values().map(part).fold(0, u64::saturating_add);
    let count = disks.len() as u64;
    (count > 0).then(|| Room { free: sum(|room| room.free), used: sum(|room| room.used), device: count })
}

/// The same as [`meet`]; a catalog that just began has asked all servers what they have, if they answer.
fn meet_asked(keys: &Keys, server: Option<ServerNo>, at: &ServerAt) -> Result<Met, Absent> {
    loop {
        let met = meet(keys, server, at, false)?;
        let asks = |ill: &Ill| matches!(ill.what, Illness::Unasked { .. }) && ill.since < REACHED_WITHIN;
        if !met.visited.ills.iter().any(asks) {
            return Ok(met);
        }
        thread::sleep(ASKS);
    }
}

/// What servers hold that the catalog does not know, in words, as it says itself; or that it cannot say it.
pub(super) fn unknown(access: &Access, keys: &Keys) -> Result<Option<String>, Absent> {
    let met = meet_asked(keys, None, &access.catalog)?;
    let is_such = |refused: &Refused| matches!(refused.what, "unknown" | "unasked");
    let such = refused(&met, &access.catalog, &access.servers).into_iter().filter(is_such);
    let words: Vec<String> = such.map(|refused| refused.in_words(None)).collect();
    Ok((!words.is_empty()).then(|| words.join("; ")))
}

fn refused(met: &Met, at: &ServerAt, servers: &[ServerAt]) -> Vec<Refused> {
    met.visited.ills.iter().map(|ill| Refused::new(ill, at, servers)).collect()
}

/// The write threshold, as the client said that spoke of it last.
fn threshold(all: &[(Option<ServerNo>, &ServerAt)], met: &[Result<Met, Absent>]) -> Option<Threshold> {
    let heard = all.iter().zip(met).filter_map(|((server, _), met)| {
        let heard = met.as_ref().ok()?.visited.heard.as_deref()?;
        Some(((*server)?.0, heard))
    });
    Threshold::of(heard)
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
    let room = met.visited.room.map_or_else(String::new, |Room { free, used, .. }| {
        format!(", {} free, {} used", bytes(free), bytes(used))
    });
    format!("answers in {round_trip:.1} ms, process {}, up {up}{room}", met.visited.process)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is said of costs was measured: of large writes nothing where there were none, and the same
    /// of small ones.
    #[test]
    fn what_was_not_measured_is_not_told() {
        let said = |points: &[(u64, u64)]| Curve::new(points).in_words();
        assert_eq!(said(&[]), "not measured");
        assert_eq!(said(&[(300, 8_000), (2_000, 8_000)]), "8 us a request, not measured for large writes");
        assert_eq!(said(&[(1 << 20, 300_000)]), "300 us a MiB, not measured for small writes");
        assert_eq!(said(&[(16, 10_000), (1 << 20, 1_510_000)]), "10 us a request and 1.5 ms a MiB");
    }
}
