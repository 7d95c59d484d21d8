//! `haul volume create`: all servers of a volume and its catalog, or none.
//!
//! In: which directories of which hosts. Out: a volume that runs, and an access to it in the state directory.
//! Each step is taken with all of them before the next one begins: directories are taken and ports had, each
//! is set up with all addresses and runs, the access is written, all are kept. Whoever is not kept undoes
//! what it did as soon as this process says no more, however it ends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Component, Path};

use haul_core::volume::ServerNo;
use haul_volume::access::{Access, Reach, ServerAt, check_name};
use haul_volume::boot::{Begin, Say, Told};
use haul_volume::home::{CATALOG, FORMAT, Setup};
use haul_volume::key::{Key, Public, new_volume};
use serde::Serialize;

use super::talk::{Hosts, Talk, this_host};
use super::{FAILED, Trouble, USAGE, called, each, known, print, role};
use crate::args::volume::{Create, Place};
use crate::progress::{bytes, plural};

#[derive(Serialize)]
struct Made<'a> {
    name: &'a str,
    servers: Vec<String>,
    catalog: String,
    stripe: u32,
    placement: &'a str,
}

pub(super) fn run(args: &Create) -> Result<i32, Trouble> {
    check_name(&args.name)?;
    let dir = known()?;
    if Access::path(&dir, &args.name)?.exists() {
        let name = &args.name;
        let why = format!(
            "a volume {name} is known here already: choose another name; `haul volume start {name}` starts that one where \
             it was stopped, and `haul volume destroy {name}` ends it"
        );
        return Err(Trouble(why, FAILED));
    }
    let places = places(args)?;
    let beside = args.catalog.is_none();
    let catalog = args.catalog.clone().unwrap_or_else(|| Place {
        host: places[0].host.clone(),
        dir: format!("{}/{CATALOG}", places[0].dir.trim_end_matches('/')),
    });
    reach_each_other(&places, &catalog)?;
    let random = |error| Trouble(format!("making a key: {}", haul::errno::text(error)), FAILED);
    let at = |place: &Place| ServerAt {
        host: place.host.clone(),
        on: place.host.is_none().then(this_host),
        dir: place.dir.clone(),
        at: String::new(),
    };
    let servers = places.iter().map(at).collect();
    let parts = (servers, at(&catalog));
    let [servers_key, owner, reader] = [(); 3].map(|()| Key::generate());
    let (servers_key, owner, reader) =
        (servers_key.map_err(random)?, owner.map_err(random)?, reader.map_err(random)?);
    let public = |key: &Key| key.public().map_err(|error| Trouble(error.to_string(), FAILED));
    let known_by = public(&servers_key)?;
    let guests = (public(&owner)?, public(&reader)?);
    let mut access =
        Access::new(&args.name, new_volume().map_err(random)?, owner, parts).guarded(known_by, reader);
    (access.stripe, access.placement) = (args.stripe, args.placement.clone());
    access.reach = reach(args)?;
    let hosts = super::hosts(&access, args.within);

    let mut talks = begin_all(&hosts, &mut access, beside)?;
    settle_all(&access, &servers_key, guests, &mut talks)?;
    // Until all are kept each of them undoes itself where nobody speaks to it any more.
    access.may_be_gone = access.all().map(|(_, at)| at.to_string()).collect();
    // From here on it is there: of those who are told to stay some would, and others not.
    if !hosts.limit.goes_through() {
        undo(talks.into_iter());
        return Err(Trouble(format!("the volume {}: it was stopped; nothing was made", args.name), FAILED));
    }
    if let Err(error) = access.write_new(&dir) {
        undo(talks.into_iter());
        return Err(error.into());
    }
    keep_all(&access, talks)?;
    access.may_be_gone = Vec::new();
    access.replace(&dir)?;
    if args.json {
        let made = Made {
            name: &access.name,
            servers: access.servers.iter().map(ToString::to_string).collect(),
            catalog: access.catalog.to_string(),
            stripe: access.stripe,
            placement: &access.placement,
        };
        return print(&super::super::ctl::to_json(&made)?).map(|()| 0);
    }
    let words = format!(
        "volume {}: {}, the catalog at {}, stripes of {}\n",
        access.name,
        plural(access.servers.len() as u64, "server", "servers"),
        access.catalog,
        bytes(access.stripe.into())
    );
    print(&words).map(|()| 0)
}

fn places(args: &Create) -> Result<Vec<Place>, Trouble> {
    let utf8 = |path: &Path| {
        let why = || Trouble(format!("the path {} is not UTF-8", path.display()), USAGE);
        path.to_str().map(str::to_owned).ok_or_else(why)
    };
    let places = match (&args.hosts, &args.root) {
        (Some(hosts), Some(root)) => {
            let dir = utf8(root)?;
            hosts.0.iter().map(|host| Place { host: Some(host.clone()), dir: dir.clone() }).collect()
        }
        _ => args.server.clone(),
    };
    // Which directories are the same, or lie in another, is told by their names.
    let is_up = |place: &&Place| Path::new(&place.dir).components().any(|part| part == Component::ParentDir);
    if let Some(place) = places.iter().chain(&args.catalog).find(is_up) {
        return Err(Trouble(
            format!("the directory {} has `..` in it: name it without", shown(place)),
            USAGE,
        ));
    }
    for (number, place) in places.iter().enumerate() {
        let is_same =
            |other: &Place| other.host == place.host && Path::new(&other.dir) == Path::new(&place.dir);
        if places[..number].iter().any(is_same) {
            return Err(Trouble(format!("the directory {} is named twice", shown(place)), USAGE));
        }
        // What one of them removes, or finds in its directory, would be the other's.
        let lies_in = |one: &Place, other: &Place| {
            one.host == other.host && Path::new(&one.dir).starts_with(Path::new(&other.dir))
        };
        if let Some(other) = places[..number].iter().find(|one| lies_in(one, place) || lies_in(place, one)) {
            let why =
                format!("of the directories {} and {} one lies in the other", shown(other), shown(place));
            return Err(Trouble(why, USAGE));
        }
    }
    match places.len() {
        1..=haul_core::volume::catalog::SERVERS_MAX => Ok(places),
        _ => Err(Trouble("a volume has 1 to 1,024 servers".into(), USAGE)),
    }
}

fn shown(place: &Place) -> String {
    match &place.host {
        Some(host) => format!("{host}:{}", place.dir),
        None => place.dir.clone(),
    }
}

fn reach(args: &Create) -> Result<Reach, Trouble> {
    let words = |command: &Option<crate::args::far::SshCommand>| {
        command.as_ref().map_or_else(Vec::new, |command| command.0.clone())
    };
    let remote_haul = match &args.remote_haul {
        None => None,
        Some(path) => {
            let why = || Trouble(format!("the path {} is not UTF-8", path.display()), USAGE);
            Some(path.to_str().ok_or_else(why)?.to_owned())
        }
    };
    Ok(Reach { ssh: words(&args.ssh), launch: words(&args.launch), remote_haul, no_push: args.no_push })
}

/// The host's name or address, without who logs in there.
fn name_of(host: &str) -> &str {
    host.rsplit_once('@').map_or(host, |(_, host)| host)
}

/// The address of this host that only it can reach, if the host is one.
fn loopback(host: Option<&str>) -> Option<IpAddr> {
    let Some(host) = host.map(name_of) else { return Some(Ipv4Addr::LOCALHOST.into()) };
    if host == "localhost" {
        return Some(Ipv4Addr::LOCALHOST.into());
    }
    host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok().filter(IpAddr::is_loopback)
}

/// Servers reach each other by the names that they were given here.
fn reach_each_other(places: &[Place], catalog: &Place) -> Result<(), Trouble> {
    let is_here = |place: &&Place| loopback(place.host.as_deref()).is_some();
    let all = || places.iter().chain([catalog]);
    match (all().find(is_here), all().find(|place| !is_here(place))) {
        (Some(here), Some(there)) => Err(Trouble(
            format!(
                "{} cannot be reached from the host of {}: name this host as the others reach it, HOST:DIR",
                shown(here),
                shown(there)
            ),
            USAGE,
        )),
        _ => Ok(()),
    }
}

/// Where to listen, and what others call that, without the port.
fn listens(host: Option<&str>) -> (Vec<SocketAddr>, String) {
    if let Some(ip) = loopback(host) {
        let name = if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() };
        return (vec![(ip, 0).into()], name);
    }
    let name = host.map(name_of).unwrap_or_default().to_owned();
    // One without IPv6 refuses the first.
    (vec![(Ipv6Addr::UNSPECIFIED, 0).into(), (Ipv4Addr::UNSPECIFIED, 0).into()], name)
}

/// One that runs, or is about to.
type Begun = (Option<ServerNo>, Talk);

/// Takes the directories and gets the ports. The last is the catalog.
fn begin_all(hosts: &Hosts, access: &mut Access, beside: bool) -> Result<Vec<Begun>, Trouble> {
    let volume = access.volume;
    let begin = |server: Option<ServerNo>, at: &ServerAt| {
        let begun = (|| {
            let (listen, name) = listens(at.host.as_deref());
            let mut talk = Talk::begin(hosts, at, role(server))?;
            let begin = Begin { volume, role: role(server), dir: at.dir.clone(), listen };
            match talk.ask(at, &Say::Begin(begin))? {
                Told::Listening { dir, port } => {
                    Ok((ServerAt { dir, at: format!("{name}:{port}"), ..at.clone() }, (server, talk)))
                }
                _ => Err("haul there says something else than it should".to_owned()),
            }
        })();
        if begun.is_err() {
            // The others need not go on.
            hosts.limit.end();
        }
        begun
    };
    let all: Vec<_> = access.all().collect();
    let (catalog, servers) = all.split_last().expect("there is a catalog");
    // The directory of the catalog is in that of the first server, which makes it.
    let begun = each(servers, |(server, at)| {
        let first = begin(*server, at);
        let too = beside && *server == Some(ServerNo(0)) && first.is_ok();
        (first, too.then(|| begin(catalog.0, catalog.1)))
    });
    let mut found = Vec::new();
    let mut last = None;
    for (first, too) in begun {
        found.push(first);
        last = last.or(too);
    }
    let last = match (beside, last) {
        (false, None) => begin(catalog.0, catalog.1),
        (_, Some(last)) => last,
        (true, None) => Err(String::new()),
    };
    found.push(last);
    let failed = first_failure(&all, found.iter().map(|one| one.as_ref().err()));
    if let Some(why) = failed {
        undo(found.into_iter().flatten().map(|(_, begun)| begun));
        return Err(why);
    }
    let (mut at, talks): (Vec<ServerAt>, Vec<Begun>) = found.into_iter().flatten().unzip();
    access.catalog = at.pop().expect("the catalog is the last");
    access.servers = at;
    Ok(talks)
}

/// Ends them, all of them at once but for the catalog, which comes first: it may lie in another's directory.
fn undo(begun: impl Iterator<Item = Begun>) {
    let (catalog, servers): (Vec<_>, Vec<_>) = begun.partition(|(server, _)| server.is_none());
    drop(catalog);
    std::thread::scope(|scope| {
        for one in servers {
            scope.spawn(move || drop(one));
        }
    });
}

/// Of what failed, the reason: what ended only because others failed says nothing of that.
fn first_failure<'a>(
    all: &[(Option<ServerNo>, &ServerAt)],
    failures: impl Iterator<Item = Option<&'a String>>,
) -> Option<Trouble> {
    let failed: Vec<_> = all.iter().zip(failures).filter_map(|(one, why)| Some((one, why?))).collect();
    let is_reason = |why: &str| !why.is_empty() && !why.ends_with("it was stopped");
    let ((server, at), why) = failed.iter().find(|(_, why)| is_reason(why)).or(failed.first())?;
    let why = if why.is_empty() { "it was stopped" } else { why };
    Some(Trouble(format!("{} of the volume, {at}: {why}; nothing was made", called(*server)), FAILED))
}

/// Sets all up, so that they run.
fn settle_all(
    access: &Access,
    key: &Key,
    (owner, reader): (Public, Public),
    talks: &mut Vec<Begun>,
) -> Result<(), Trouble> {
    let setup = |server: Option<ServerNo>| Setup {
        format: FORMAT,
        volume: access.volume,
        key: key.clone(),
        owner: Some(owner.clone()),
        reader: Some(reader.clone()),
        role: role(server),
        // These are known better there.
        listen: (Ipv4Addr::UNSPECIFIED, 0).into(),
        made: false,
        servers: access.servers.iter().map(|at| at.at.clone()).collect(),
        catalog: access.catalog.at.clone(),
        stripe: access.stripe,
        placement: access.placement.clone(),
    };
    let all: Vec<_> = access.all().collect();
    let settled: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let begun: Vec<_> = talks
            .iter_mut()
            .zip(&all)
            .map(|((server, talk), (_, at))| {
                let say = Say::Settle(Box::new(setup(*server)));
                scope.spawn(move || match talk.ask(at, &say)? {
                    Told::Ready { .. } => Ok(()),
                    _ => Err("haul there says something else than it should".to_owned()),
                })
            })
            .collect();
        begun
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into())))
            .collect()
    });
    match first_failure(&all, settled.iter().map(|one| one.as_ref().err())) {
        None => Ok(()),
        Some(why) => {
            undo(std::mem::take(talks).into_iter());
            Err(why)
        }
    }
}

/// All go on without this process.
fn keep_all(access: &Access, talks: Vec<Begun>) -> Result<(), Trouble> {
    let all: Vec<_> = access.all().collect();
    let kept: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let begun: Vec<_> = talks
            .into_iter()
            .zip(&all)
            .map(|((_, mut talk), (_, at))| {
                scope.spawn(move || match talk.ask(at, &Say::Keep)? {
                    Told::Kept => Ok(()),
                    _ => Err("haul there says something else than it should".to_owned()),
                })
            })
            .collect();
        begun
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into())))
            .collect()
    });
    let failed =
        all.iter().zip(&kept).find_map(|((server, at), kept)| Some((server, at, kept.as_ref().err()?)));
    let Some((server, at, why)) = failed else { return Ok(()) };
    let (name, server) = (&access.name, called(*server));
    let why = format!(
        "{server} of the volume, {at}: {why}; it was lost when all else was made: `haul volume destroy {name}` \
         removes that"
    );
    Err(Trouble(why, FAILED))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(host: &str, dir: &str) -> Place {
        Place { host: (!host.is_empty()).then(|| host.to_owned()), dir: dir.into() }
    }

    /// Goal: what only this host can reach is not one volume with what is elsewhere.
    #[test]
    fn servers_can_reach_each_other() {
        let here = ["", "localhost", "u@127.0.0.1", "[::1]"].map(|host| place(host, "/a"));
        let there = ["n1", "u@10.0.0.1", "[fd00::1]"].map(|host| place(host, "/a"));
        for (places, other) in [(&here[..], &there[..]), (&there, &here)] {
            assert!(reach_each_other(places, &places[0]).is_ok());
            for one in other {
                assert!(reach_each_other(places, one).is_err_and(|why| why.1 == USAGE));
            }
        }
        assert_eq!(listens(Some("localhost")).1, "127.0.0.1");
        assert_eq!(listens(Some("u@[::1]")).1, "[::1]");
        assert_eq!(listens(Some("u@n1")).1, "n1");
        assert!(listens(None).0.iter().all(|at| at.ip().is_loopback() && at.port() == 0));
    }

    /// Goal: the reason is told, and not what ended because of it.
    #[test]
    fn the_reason_is_told() {
        let at = ServerAt { host: None, on: None, dir: "/a".into(), at: String::new() };
        let all = [(Some(ServerNo(0)), &at), (Some(ServerNo(1)), &at), (None, &at)];
        let failures =
            [Some("hearing it: it was stopped".to_owned()), Some("no room".to_owned()), Some(String::new())];
        let why = first_failure(&all, failures.iter().map(Option::as_ref)).expect("it failed").0;
        assert_eq!(why, "server 1 of the volume, /a: no room; nothing was made");
        assert!(first_failure(&all, [None, None, None].into_iter()).is_none());
    }
}
