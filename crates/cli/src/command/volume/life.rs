//! `haul volume start`, `stop` and `destroy`: servers of a volume that is there; `access`: who else uses it.
//!
//! In: the access to a volume. Out: all of its servers run, or none does, or nothing is left of it.
//! Servers are told to end over connections of the volume, which only those can make who hold its key, and
//! which find a server whatever became of the shell that started it; a process number could be another's by
//! now. What they had is removed by a haul on their host, when nobody serves it any more.
//! Left out: what a drain brings (`drain.rs`), beyond the names of what it never brought.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use haul_core::volume::ServerNo;
use haul_volume::access::{Access, ServerAt};
use haul_volume::boot::{Begin, Say, Told};
use haul_volume::dial::Keys;
use haul_volume::drain::Homeless;
use serde::Serialize;

use super::show::unknown;
use super::talk::{Hosts, Talk};
use super::{
    Absent, FAILED, Kind, Trouble, USAGE, access_to_change, called, each, interrupted, keys, known, meet,
    names, note, print, role,
};
use crate::args::volume::{AccessOf, Begins, Destroy};
use crate::escape;
use crate::progress::plural;

/// How often it is looked whether a server has ended.
const LOOK: Duration = Duration::from_millis(50);
/// Who does not answer is asked to end so often, within 5 s each time.
const SILENT_MAX: u32 = 2;
/// Names of files that are told before a volume goes.
const NAMED_MAX: usize = 10;

type One<'a> = (Option<ServerNo>, &'a ServerAt);

/// `haul volume access`: writes an access for somebody else.
pub(super) fn access_for(args: &AccessOf) -> Result<i32, Trouble> {
    if !args.read_only {
        let path = known()?.join("volumes").join(&args.name);
        let why = format!(
            "--read-only is the one that can be made; the access for everything is {}, and is copied as it is",
            escape::name(path.as_os_str().as_encoded_bytes())
        );
        return Err(Trouble(why, USAGE));
    }
    let (_, access) = access_to_change(&args.name)?;
    let shown = escape::name(args.file.as_os_str().as_encoded_bytes());
    let name = args.file.file_name().and_then(|name| name.to_str());
    let no_name = || Trouble(format!("{shown}: its last name is to be what the volume is called"), USAGE);
    let above = args.file.parent().filter(|above| !above.as_os_str().is_empty());
    access.for_reading(name.ok_or_else(no_name)?)?.write_beside(above.unwrap_or(Path::new(".")))?;
    print(&format!("volume {}: {shown} is an access for reading\n", access.name)).map(|()| 0)
}

pub(super) fn start(args: &Begins) -> Result<i32, Trouble> {
    let (_, access) = access_to_change(&args.name)?;
    let (keys, hosts) = (keys(&access)?, super::hosts(&access, args.within));
    let all: Vec<One<'_>> = access.all().collect();
    let started = each(&all, |(server, at)| match meet(&keys, *server, at, false) {
        Ok(_) => Ok(false),
        Err(_) => run_again(&hosts, &access, *server, at).map(|()| true),
    });
    let count = started.iter().filter(|started| matches!(started, Ok(true))).count();
    let failed = tell_failures(&all, started.iter().map(|one| one.as_ref().err()), "does not start");
    let ran = all.len() - count - failed;
    let code = if failed == 0 { 0 } else { FAILED };
    if args.json {
        let done = Done { started: Some(count), ran: Some(ran), failed, ..Done::of(&access.name) };
        return print(&super::super::ctl::to_json(&done)?).map(|()| code);
    }
    print(&format!(
        "volume {}: {} started, {ran} ran already\n",
        access.name,
        plural(count as u64, "server", "servers")
    ))?;
    Ok(code)
}

/// What a command came to; the catalog counts as a server.
#[derive(Serialize)]
struct Done<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    started: Option<usize>,
    /// Those that ran already.
    #[serde(skip_serializing_if = "Option::is_none")]
    ran: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    destroyed: Option<bool>,
    /// Files that are at home elsewhere, if that was looked at, and some of the places.
    #[serde(skip_serializing_if = "Option::is_none")]
    at_home: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    places: Vec<String>,
    failed: usize,
}

impl Done<'_> {
    fn of(name: &str) -> Done<'_> {
        let (started, ran, ended, destroyed, at_home) = (None, None, None, None, None);
        Done { name, started, ran, ended, destroyed, at_home, places: Vec::new(), failed: 0 }
    }
}

fn run_again(hosts: &Hosts, access: &Access, server: Option<ServerNo>, at: &ServerAt) -> Result<(), String> {
    let mut talk = Talk::begin(hosts, at, role(server))?;
    let begin = Begin { volume: access.volume, role: role(server), dir: at.dir.clone(), listen: Vec::new() };
    let odd = || "haul there says something else than it should".to_owned();
    let Told::Listening { .. } = talk.ask(at, &Say::Begin(begin))? else { return Err(odd()) };
    let Told::Ready { .. } = talk.ask(at, &Say::Start)? else { return Err(odd()) };
    let Told::Kept = talk.ask(at, &Say::Keep)? else { return Err(odd()) };
    Ok(())
}

/// Names each that failed; how many did.
fn tell_failures<'a>(
    all: &[One<'_>],
    failures: impl Iterator<Item = Option<&'a String>>,
    what: &str,
) -> usize {
    let failed: Vec<_> = all.iter().zip(failures).filter_map(|(one, why)| Some((one, why?))).collect();
    for ((server, at), why) in &failed {
        note(&format!("{} of the volume, {at}, {what}: {why}", called(*server)));
    }
    failed.len()
}

pub(super) fn stop(args: &Begins) -> Result<i32, Trouble> {
    let (_, access) = access_to_change(&args.name)?;
    let (keys, hosts) = (keys(&access)?, super::hosts(&access, args.within));
    let all: Vec<One<'_>> = access.all().collect();
    let ended = end_all(&hosts, &keys, &all, false);
    let failed = tell_failures(&all, ended.iter().map(|one| one.as_ref().err()), "was not seen to end");
    let count = ended.iter().filter(|ended| matches!(ended, Ok(true))).count();
    let code = if failed == 0 { 0 } else { interrupted().unwrap_or(FAILED) };
    if args.json {
        let done = Done { ended: Some(count), failed, ..Done::of(&access.name) };
        return print(&super::super::ctl::to_json(&done)?).map(|()| code);
    }
    print(&format!("volume {}: {} ended\n", access.name, plural(count as u64, "server", "servers")))?;
    Ok(code)
}

/// Ends them all; of each whether it ran. `taken`: one whose port somebody else has does not run.
fn end_all(hosts: &Hosts, keys: &Keys, all: &[One<'_>], taken: bool) -> Vec<Result<bool, String>> {
    each(all, |(server, at)| match meet(keys, *server, at, true) {
        Err(Absent { kind: Kind::Gone, .. }) => Ok(false),
        Err(Absent { kind: Kind::Stranger, .. }) if taken => Ok(false),
        Err(Absent { kind: Kind::Stranger | Kind::Away, why }) => Err(why),
        Err(Absent { kind: Kind::Unknown, why }) => match end_who_is_silent(hosts, keys, *server, at) {
            Some(ended) => ended,
            // Whose it is shows where its directory lies: it is not removed while somebody serves it.
            None if taken => Ok(false),
            None => Err(why),
        },
        // Whoever was asked may have ended before his answer was heard.
        Ok(_) => wait_for_end(hosts, keys, *server, at),
    })
}

/// Who was met and did not answer is asked some times more; `None`: he never does.
fn end_who_is_silent(
    hosts: &Hosts,
    keys: &Keys,
    server: Option<ServerNo>,
    at: &ServerAt,
) -> Option<Result<bool, String>> {
    for _ in 0..SILENT_MAX {
        thread::sleep(LOOK);
        match meet(keys, server, at, true) {
            Ok(_) => return Some(wait_for_end(hosts, keys, server, at)),
            Err(Absent { kind: Kind::Gone | Kind::Stranger, .. }) => return Some(Ok(true)),
            Err(Absent { kind: Kind::Away, why }) => return Some(Err(why)),
            Err(Absent { kind: Kind::Unknown, .. }) if hosts.limit.is_ended() => break,
            Err(Absent { kind: Kind::Unknown, .. }) => {}
        }
    }
    None
}

fn wait_for_end(hosts: &Hosts, keys: &Keys, server: Option<ServerNo>, at: &ServerAt) -> Result<bool, String> {
    loop {
        match meet(keys, server, at, true) {
            Err(Absent { kind: Kind::Gone | Kind::Stranger, .. }) => return Ok(true),
            Ok(_) => {}
            Err(Absent { why, .. }) if hosts.limit.left().is_zero() => return Err(why),
            Err(_) => {}
        }
        if hosts.limit.is_ended() {
            return Err(
                "it was told to end, and this command was interrupted before it was seen to: it may \
                        end yet"
                    .into(),
            );
        }
        if hosts.limit.left().is_zero() {
            return Err("it was told to end, and still runs".into());
        }
        thread::sleep(LOOK);
    }
}

pub(super) fn destroy(args: &Destroy) -> Result<i32, Trouble> {
    let (dir, mut access) = access_to_change(&args.name)?;
    let (keys, hosts) = (keys(&access)?, super::hosts(&access, args.within));
    let homes = if args.yes { None } else { Some(until_interrupted(&access, &keys)?) };
    let all: Vec<One<'_>> = access.all().collect();
    // One that runs all the same has its directory, and is found there.
    let ended = end_all(&hosts, &keys, &all, true);
    if tell_failures(&all, ended.iter().map(|one| one.as_ref().err()), "was not seen to end") > 0 {
        return Err(Trouble(kept(&access, &dir), FAILED));
    }
    // It may lie in the directory of the first server.
    let (catalog, servers) = all.split_last().expect("there is a catalog");
    let mut removed = vec![clear(&hosts, &access, catalog.0, catalog.1)];
    removed.extend(each(servers, |(server, at)| clear(&hosts, &access, *server, at)));
    let order: Vec<One<'_>> = [*catalog].into_iter().chain(servers.iter().copied()).collect();
    if tell_failures(&order, removed.iter().map(|one| one.as_ref().err()), "was not removed") > 0 {
        // They are not looked for when this goes on.
        let gone = order.iter().zip(&removed).filter(|(_, removed)| removed.is_ok());
        let gone: Vec<String> = gone.map(|((_, at), _)| at.to_string()).collect();
        access.may_be_gone.extend(gone);
        access.may_be_gone.sort();
        access.may_be_gone.dedup();
        access.replace(&dir)?;
        return Err(Trouble(kept(&access, &dir), FAILED));
    }
    for ((_, at), left) in order.iter().zip(removed.iter().flatten()) {
        for path in left {
            note(&format!("{at}: {} is none of haul's, and was left", escape::name(path.as_bytes())));
        }
    }
    Access::remove(&dir, &access.name)?;
    if args.json {
        let at_home = homes.as_ref().map(|homes| homes.at_home);
        let places =
            homes.map_or_else(Vec::new, |homes| homes.places.iter().map(ToString::to_string).collect());
        let done = Done { destroyed: Some(true), at_home, places, ..Done::of(&access.name) };
        return print(&super::super::ctl::to_json(&done)?).map(|()| 0);
    }
    let homes = homes.map_or_else(String::new, |homes| homes_in_words(&homes));
    print(&format!("volume {}: destroyed{homes}\n", access.name)).map(|()| 0)
}

/// That what was in it is at home, and where.
fn homes_in_words(Homeless { at_home, places, .. }: &Homeless) -> String {
    let places: Vec<String> = places.iter().map(|place| escape::text(place)).collect();
    match at_home {
        0 => String::new(),
        1 => format!("; 1 file is at home in {}", places.join(", ")),
        many => format!("; {} are at home in {}", plural(*many, "file", "files"), places.join(", ")),
    }
}

/// The same as [`may_go`], until a signal ends it: it waits for servers that may be away, and changes
/// nothing.
fn until_interrupted(access: &Access, keys: &Keys) -> Result<Homeless, Trouble> {
    let (asked, keys_of, (to, answer)) = (access.clone(), keys.clone(), mpsc::channel());
    thread::spawn(move || drop(to.send(may_go(&asked, &keys_of))));
    loop {
        let answer = answer.recv_timeout(LOOK);
        if interrupted().is_some() && !haul_mutant::removed("destroy-is-interrupted") {
            let why = format!("the volume {}: it was interrupted; nothing was ended or removed", access.name);
            return Err(Trouble(why, FAILED));
        }
        match answer {
            Ok(answer) => return answer,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Trouble("looking at what is in the volume: a thread panicked".into(), FAILED));
            }
        }
    }
}

/// What remains where not all of it could be removed.
fn kept(access: &Access, dir: &Path) -> String {
    let file =
        Access::path(dir, &access.name).map_or_else(|_| String::new(), |path| path.display().to_string());
    format!(
        "the volume {} is not all gone: the same command goes on; where a host, or a directory, never comes back, \
         give it up by removing {file}",
        access.name
    )
}

/// Nobody loses a file that he did not mean to: says what of those that have a home is known.
fn may_go(access: &Access, keys: &Keys) -> Result<Homeless, Trouble> {
    let yes = "--yes destroys it all the same";
    // Where the catalog is not there whoever asks it next says so.
    if let Ok(Some(words)) = unknown(access, keys) {
        return Err(Trouble(format!("volume {}: {words}; {yes}", access.name), FAILED));
    }
    let found = match names::homeless(access, NAMED_MAX) {
        Ok(found) => found,
        Err(Trouble(why, _)) => {
            let why = format!(
                "what is in the volume {0} cannot be known: {why}; where it was stopped, `haul volume start {0}` \
                 starts it again; {yes}, with all that is in it",
                access.name
            );
            return Err(Trouble(why, FAILED));
        }
    };
    let Homeless { some, count, is_all, .. } = &found;
    let count = *count;
    if count == 0 && found.unknown == 0 {
        return Ok(found);
    }
    let unknown = names::unknown_in_words(&access.name, &found);
    if count == 0 {
        let unknown = unknown.unwrap_or_default();
        return Err(Trouble(format!("volume {}: {unknown}; {yes}", access.name), FAILED));
    }
    let unknown = unknown.map_or_else(String::new, |unknown| format!("; {unknown}"));
    let lost = names::lost_in_words(&found).map_or_else(String::new, |lost| format!("; {lost}"));
    let some: Vec<String> =
        some.iter().map(|path| format!("{}/{}", access.name, escape::name(path))).collect();
    let more = if count > some.len() as u64 { ", ..." } else { "" };
    let why = format!(
        "there {}{} in the volume {} that {} no home outside of it: {}{more}{lost}{unknown}; `haul volume drain {} --to DST` brings them to one, \
         and {yes}",
        if count == 1 { "is 1 file".into() } else { format!("are {}", plural(count, "file", "files")) },
        if *is_all { "" } else { " at least" },
        access.name,
        if count == 1 { "has" } else { "have" },
        some.join(", "),
        access.name,
    );
    Err(Trouble(why, FAILED))
}

/// Removes what one had; what is left and is none of haul's.
fn clear(
    hosts: &Hosts,
    access: &Access,
    server: Option<ServerNo>,
    at: &ServerAt,
) -> Result<Vec<String>, String> {
    let mut talk = Talk::begin(hosts, at, role(server))?;
    let begin = Begin { volume: access.volume, role: role(server), dir: at.dir.clone(), listen: Vec::new() };
    match talk.ask(at, &Say::Remove(begin))? {
        Told::Removed { left } => Ok(left),
        Told::Absent if access.may_be_gone.contains(&at.to_string()) => Ok(Vec::new()),
        Told::Absent => {
            Err("there is nothing of the volume in that directory, or no such directory: it was moved, or \
                             what is mounted there is not; bring it back"
                .to_owned())
        }
        _ => Err("haul there says something else than it should".into()),
    }
}
