//! What is in a volume: `haul volume ls NAME/PATH`, `stat` and `rm`.
//!
//! In: a volume's name and a path in it. Out: entries as the catalog has them, lengths as the gatherers know
//! them.
//! Invariant: a path is walked name by name, and no link in it is followed.
//! Left out: bytes, which `haul cp` brings.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use haul_core::entry::Name;
use haul_core::volume::ServerNo;
use haul_core::volume::catalog::{Entry, EntryNo, Failure, Kind, Place, ROOT};
use haul_core::volume::layout::{Placing, Striping};
use haul_volume::access::{Access, check_name, without_scheme};
use haul_volume::catalog::client::Client as Catalog;
use haul_volume::client::{Client, Config};
use haul_volume::drain::{self, HomeOf, Homeless};
use serde::Serialize;

use super::{FAILED, PARTIAL, Trouble, USAGE, access, catalog, does_not_run, each, keys, must_run, print};
use crate::escape;
use crate::progress::{count, plural};
use crate::report::json::PathFields;

/// The catalog, and servers that are asked for lengths, answer within this.
const PATIENCE: Duration = Duration::from_secs(20);
/// The same where one of them does not run, and what needs it waits in vain.
const PATIENCE_WITHOUT: Duration = Duration::from_secs(3);
/// Lengths that are asked for at a time. A gatherer tells them with bytes, of which it sends one at least.
const ASKED_MAX: usize = 256;
/// Files without a home that are named.
const NAMED_MAX: usize = 10;
/// Entries that are looked at where there are files without a home, to say how many.
const LOOKED_MAX: u64 = 100_000;

/// Behind what is of a copy into the volume that is not done.
const UNFINISHED: &str = "  (of an unfinished copy)";

/// A volume whose names are looked at.
struct Names {
    name: String,
    access: Access,
    catalog: Catalog,
    /// Servers that do not run, and why what needs one of them comes to nothing.
    stopped: BTreeMap<ServerNo, String>,
}

/// An entry, and the directory that it is in; the root is in none.
struct Found {
    entry: Entry,
    place: Option<Place>,
}

#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    path: PathFields,
    kind: &'static str,
    /// Of a file, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: i64,
    number: u64,
    /// Of a file, and the server that it begins on.
    #[serde(skip_serializing_if = "Option::is_none")]
    placement: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_server: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    /// It is of a copy into the volume that runs, or did not come to its end.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    unfinished: bool,
    /// Of `stat`: where it lies outside of the volume as it is here, if anywhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    home: Option<Option<String>>,
    /// That it had one, which is not there any more or another by now.
    #[serde(skip_serializing_if = "Option::is_none")]
    home_lost: Option<String>,
    /// Of `stat` of a volume: files and links in it that lie nowhere else, and those that do.
    #[serde(skip_serializing_if = "Option::is_none")]
    homeless: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    at_home: Option<u64>,
    /// Those without that had a home, which is not there any more or another by now.
    #[serde(skip_serializing_if = "Option::is_none")]
    homes_lost: Option<u64>,
    /// And of how many that is not known, or of this one, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    home_unknown: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    home_unknown_why: Option<String>,
    /// What servers hold that the catalog does not know, of the whole volume, if there is such.
    #[serde(skip_serializing_if = "Option::is_none")]
    unknown: Option<String>,
}

/// `NAME` or `vol://NAME`, and the names behind it.
fn split(text: &str) -> Result<(&str, Vec<Name>), Trouble> {
    let bare = without_scheme(text);
    let (volume, path) = bare.split_once('/').unwrap_or((bare, ""));
    check_name(volume)?;
    let shown = || escape::name(text.as_bytes());
    if path.split('/').any(|part| part == "..") {
        let why = format!("{}: no `..` is followed in a path of a volume; write it without", shown());
        return Err(Trouble(why, USAGE));
    }
    let names = path.split('/').filter(|part| !part.is_empty() && *part != ".");
    let names = names.map(|part| {
        Name::new(part.as_bytes()).map_err(|error| Trouble(format!("{}: {error}", shown()), USAGE))
    });
    Ok((volume, names.collect::<Result<_, _>>()?))
}

impl Names {
    fn open(volume: &str) -> Result<Names, Trouble> {
        let (_, access) = access(volume)?;
        Names::of(access)
    }

    fn of(access: Access) -> Result<Names, Trouble> {
        must_run(&access)?;
        let catalog = catalog(&access, PATIENCE)?;
        let servers: Vec<_> = access.servers.iter().enumerate().collect();
        let stopped = each(&servers, |(number, at)| {
            let why = does_not_run(at).ok().flatten()?;
            let (server, name) = (ServerNo(u16::try_from(*number).ok()?), &access.name);
            let why = format!(
                "server {number}, {at}, does not run: {why}; `haul volume start {name}` starts what was stopped"
            );
            Some((server, why))
        });
        let stopped = stopped.into_iter().flatten().collect();
        Ok(Names { name: access.name.clone(), access, catalog, stopped })
    }

    /// Walks to an entry.
    fn find(&self, names: &[Name]) -> Result<Found, Trouble> {
        let mut found = self.catalog.stat(ROOT).map(|entry| Found { entry, place: None });
        let mut path = self.name.clone();
        for name in names {
            let place = Place { parent: self.id(found, &path)?, name: name.clone() };
            let _ = write!(path, "/{}", escape::name(name.as_bytes()));
            found = self.catalog.lookup(place.clone()).map(|entry| Found { entry, place: Some(place) });
        }
        found.map_err(|failure| of_path(&path, &failure))
    }

    fn id(&self, found: Result<Found, Failure>, path: &str) -> Result<EntryNo, Trouble> {
        found.map(|found| found.entry.id).map_err(|failure| of_path(path, &failure))
    }

    /// All that is in a directory, page by page, until `with` has enough.
    fn read(
        &self,
        (dir, path): (EntryNo, &str),
        mut with: impl FnMut(Vec<(Name, Entry)>) -> Result<bool, Trouble>,
    ) -> Result<(), Trouble> {
        let mut after = None;
        loop {
            let (page, more) =
                self.catalog.read_dir(dir, after).map_err(|failure| of_path(path, &failure))?;
            after = page.last().map(|(name, _)| name.clone());
            if !with(page)? || !more || after.is_none() {
                return Ok(());
            }
        }
    }

    /// Asks for lengths.
    fn lengths(&self) -> Result<Client, Trouble> {
        let config = Config {
            keys: keys(&self.access)?,
            number: self.catalog.number(),
            servers: self.access.addresses()?,
            stripe_size: self.access.stripe.into(),
            write_threshold: None,
            patience: if self.stopped.is_empty() { PATIENCE } else { PATIENCE_WITHOUT },
        };
        Client::start_for(config, &self.catalog).map_err(|error| Trouble(haul::errno::text(error), FAILED))
    }

    /// Says of what is not known what to do, where a server does not run.
    fn explain(&self, mut found: Homeless) -> Homeless {
        if let (Some(why), Some(stopped)) = (&mut found.why, self.stopped.values().next()) {
            *why = format!("{why}; {stopped}");
        }
        found
    }

    /// Done with it: the catalog need not remember who looked.
    fn leave(self) {
        let _ = self.catalog.leave();
    }
}

fn of_path(path: &str, failure: &Failure) -> Trouble {
    Trouble(format!("{path}: {}", escape::text(&failure.words)), FAILED)
}

/// The lengths of those of these that are files, if a server says them.
fn sizes<'a>(
    volume: &Names,
    client: &Client,
    entries: impl Iterator<Item = &'a Entry>,
) -> Vec<Result<Option<u64>, String>> {
    let (mut all, entries) = (Vec::new(), entries.collect::<Vec<_>>());
    let stopped = |file| volume.stopped.get(&client.striping().gatherer(file));
    for some in entries.chunks(ASKED_MAX) {
        let ask = |entry: &&Entry| {
            let file = entry.file()?;
            Some(stopped(file).map_or_else(|| Ok(client.read(file, 0, 0)), |why| Err(why.clone())))
        };
        let asked: Vec<_> = some.iter().map(ask).collect();
        all.extend(asked.into_iter().map(|asked| match asked {
            None => Ok(None),
            Some(Err(why)) => Err(why),
            Some(Ok(waiting)) => waiting.wait().map(|read| Some(read.end)).map_err(|error| error.to_string()),
        }));
    }
    all
}

/// How a file is placed, and the server that it begins on.
fn placed(entry: &Entry, striping: &Striping) -> Option<(String, u16)> {
    entry.file().map(|file| {
        let words = match striping.list_of(file) {
            Some(list) => list.in_words(),
            None => Placing::of(file).in_words(),
        };
        (words, striping.server(file, 0).0)
    })
}

fn line(name: &[u8], entry: &Entry, size: Option<u64>, striping: &Striping) -> Line {
    let (placement, first_server) = placed(entry, striping).unzip();
    let target = match &entry.kind {
        Kind::Link(target) => Some(String::from_utf8_lossy(target).into_owned()),
        _ => None,
    };
    Line {
        path: PathFields::new(name),
        kind: match entry.kind {
            Kind::Directory => "directory",
            Kind::File => "file",
            Kind::Link(_) => "link",
        },
        size,
        mode: entry.meta.mode,
        uid: entry.meta.uid,
        gid: entry.meta.gid,
        mtime: entry.meta.mtime.secs,
        number: entry.id.0,
        placement,
        first_server,
        target,
        unfinished: false,
        home: None,
        home_lost: None,
        homeless: None,
        homes_lost: None,
        home_unknown: None,
        home_unknown_why: None,
        at_home: None,
        unknown: None,
    }
}

/// As `ls -l` has it.
fn human(name: &[u8], entry: &Entry, size: Option<u64>) -> String {
    let kind = match entry.kind {
        Kind::Directory => 'd',
        Kind::File => '-',
        Kind::Link(_) => 'l',
    };
    let bit = |shift: u32, letter| if entry.meta.mode >> shift & 1 == 1 { letter } else { '-' };
    let mode: String =
        (0..9).rev().zip("rwxrwxrwx".chars()).map(|(shift, letter)| bit(shift, letter)).collect();
    let size = match (&entry.kind, size) {
        (Kind::File, None) => "?".into(),
        (_, size) => size.map_or_else(|| "-".into(), count),
    };
    let seconds = u64::try_from(entry.meta.mtime.secs).unwrap_or(0);
    let time = UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).filter(|_| seconds < 253_402_300_800);
    let time = time.map_or_else(|| "?".into(), |time| humantime::format_rfc3339_seconds(time).to_string());
    let target = match &entry.kind {
        Kind::Link(target) => format!(" -> {}", escape::name(target)),
        _ => String::new(),
    };
    format!("{kind}{mode}  {size:>15}  {time}  {}{target}\n", escape::name(name))
}

pub(super) fn list(text: &str, json: bool) -> Result<i32, Trouble> {
    let (volume, names) = split(text)?;
    let volume = Names::open(volume)?;
    let found = volume.find(&names)?;
    let client = volume.lengths()?;
    let striping = client.striping().clone();
    let (mut code, mut unfinished) = (0, 0);
    let mut show = |dir: EntryNo, entries: Vec<(Name, Entry)>| {
        let of_runs = ours(&volume.catalog, dir, &entries).map_err(|failure| of_path(text, &failure))?;
        let mut shown = String::new();
        for (((name, entry), size), is_ours) in
            entries.iter().zip(sizes(&volume, &client, entries.iter().map(|(_, entry)| entry))).zip(of_runs)
        {
            let size = size.unwrap_or_else(|why| {
                code = FAILED;
                super::note(&format!("{}: its length: {why}", escape::name(name.as_bytes())));
                None
            });
            unfinished += u64::from(is_ours);
            match json {
                true => {
                    let line = Line { unfinished: is_ours, ..line(name.as_bytes(), entry, size, &striping) };
                    shown += &super::super::ctl::to_json(&line)?;
                }
                false => {
                    let line = human(name.as_bytes(), entry, size);
                    shown += line.trim_end_matches('\n');
                    shown += if is_ours { UNFINISHED } else { "" };
                    shown += "\n";
                }
            }
        }
        print(&shown).map(|()| true)
    };
    match (&found.entry.kind, found.place) {
        (Kind::Directory, _) | (_, None) => {
            let dir = found.entry.id;
            volume.read((dir, text), |page| show(dir, page))?;
        }
        (_, Some(place)) => drop(show(place.parent, vec![(place.name, found.entry)])?),
    }
    if unfinished > 0 && !json {
        super::note(&format!(
            "{} of a copy into the volume that runs, or did not come to its end: the same `haul cp` goes on with it and \
             removes that; where nobody wants to, `haul volume rm` does",
            match unfinished {
                1 => "1 entry is".into(),
                many => format!("{} are", plural(many, "entry", "entries")),
            }
        ));
    }
    volume.leave();
    Ok(code)
}

pub(super) fn stat(text: &str, json: bool) -> Result<i32, Trouble> {
    let (name, names) = split(text)?;
    let volume = Names::open(name)?;
    let found = volume.find(&names)?;
    let servers = u16::try_from(volume.access.servers.len()).unwrap_or(u16::MAX);
    let striping = Striping::new(volume.access.stripe.into(), servers).with_lists(volume.catalog.lists());
    let (mut size, mut home) = (None, None);
    if found.entry.kind != Kind::Directory {
        let client = volume.lengths()?;
        let told = sizes(&volume, &client, std::iter::once(&found.entry)).pop().unwrap_or(Ok(None));
        size = told.map_err(|why| Trouble(format!("{text}: its length: {why}"), FAILED))?;
        let path: Vec<&[u8]> = names.iter().map(Name::as_bytes).collect();
        let at = drain::home(&volume.catalog, &client, &found.entry, path.join(&b'/'));
        home = Some(at.map_err(|failure| of_path(text, &failure))?);
    }
    let all = match found.place {
        Some(_) => None,
        None => {
            let client = volume.lengths()?;
            let all = drain::homeless(&volume.catalog, &client, &ours, (NAMED_MAX, LOOKED_MAX));
            Some(volume.explain(all.map_err(|failure| of_path(text, &failure))?))
        }
    };
    let unknown = match found.place {
        Some(_) => None,
        None => super::show::unknown(&volume.access, &keys(&volume.access)?)
            .map_err(|absent| Trouble(format!("the catalog of {name}: {}", absent.why), FAILED))?,
    };
    volume.leave();
    match json {
        true => {
            let home_lost = match &home {
                Some(HomeOf::Lost(why)) => Some(why.clone()),
                _ => None,
            };
            let (home, why) = match home {
                None => (None, all.as_ref().and_then(|all| all.why.clone())),
                Some(HomeOf::At { own, .. }) => (Some(Some(own)), None),
                Some(HomeOf::Nowhere | HomeOf::Lost(_)) => (Some(None), None),
                Some(HomeOf::Unknown(why)) => (None, Some(why)),
            };
            let of_all = |count: fn(&Homeless) -> u64| all.as_ref().map(count);
            let line = Line {
                home,
                home_lost,
                homes_lost: of_all(|all| all.lost),
                homeless: of_all(|all| all.count),
                home_unknown: of_all(|all| all.unknown),
                home_unknown_why: why,
                at_home: of_all(|all| all.at_home),
                unknown,
                ..line(text.as_bytes(), &found.entry, size, &striping)
            };
            print(&super::super::ctl::to_json(&line)?)
        }
        false => {
            let home = match home {
                None => all.map_or_else(String::new, |all| in_words(name, &all)),
                Some(HomeOf::Nowhere) => "no home outside of the volume\n".into(),
                Some(HomeOf::Lost(why)) => {
                    format!("no home outside of the volume any more: {}\n", escape::text(&why))
                }
                Some(HomeOf::At { own, .. }) => format!("at home: {}\n", escape::text(&own)),
                Some(HomeOf::Unknown(why)) => {
                    format!(
                        "whether it has a home outside of the volume is not known: {}\n",
                        escape::text(&why)
                    )
                }
            };
            let unknown = unknown.map_or_else(String::new, |words| words + "\n");
            let placed = placed(&found.entry, &striping);
            let placed = placed.map(|(how, first)| format!("{how}, from server {first} on\n"));
            print(
                &(human(text.as_bytes(), &found.entry, size)
                    + &placed.unwrap_or_default()
                    + &home
                    + &unknown),
            )
        }
    }
    .map(|()| 0)
}

/// What in a volume has no home outside of it.
fn in_words(volume: &str, found: &Homeless) -> String {
    let Homeless { some, count: without, at_home, is_all, .. } = found;
    let unknown = unknown_in_words(volume, found).map_or_else(String::new, |unknown| unknown + "\n");
    if *without == 0 && found.unknown > 0 {
        return unknown;
    }
    if *without == 0 {
        return format!("all that is in it is at home elsewhere: {}\n", plural(*at_home, "file", "files"));
    }
    let some: Vec<String> = some.iter().map(|path| format!("{volume}/{}", escape::name(path))).collect();
    let more = if *without > some.len() as u64 { ", ..." } else { "" };
    let lost = lost_in_words(found).map_or_else(String::new, |lost| lost + "\n");
    format!(
        "no home outside of the volume: {}{}, {}{more}\n{lost}{unknown}",
        if *is_all { "" } else { "at least " },
        plural(*without, "file", "files"),
        some.join(", ")
    )
}

/// Those of the files without a home that had one.
pub(super) fn lost_in_words(found: &Homeless) -> Option<String> {
    let Homeless { lost, some_lost: some, is_all, .. } = found;
    if *lost == 0 {
        return None;
    }
    let some: Vec<String> = some.iter().map(|why| escape::text(why)).collect();
    let more = if *lost > some.len() as u64 { "; ..." } else { "" };
    let least = if *is_all { "" } else { "at least " };
    Some(format!("{least}{} had one: {}{more}", plural(*lost, "of them", "of them"), some.join("; ")))
}

/// The files of a volume of which nobody knows whether they have a home.
pub(super) fn unknown_in_words(volume: &str, found: &Homeless) -> Option<String> {
    let Homeless { unknown, some_unknown: some, why, is_all, .. } = found;
    if *unknown == 0 {
        return None;
    }
    let more = if *unknown > some.len() as u64 { ", ..." } else { "" };
    let some: Vec<String> = some.iter().map(|path| format!("{volume}/{}", escape::name(path))).collect();
    Some(format!(
        "not known to have a home outside of the volume: {}{}, {}{more} (they had one; {}; `haul volume health {volume}` says \
         who answers)",
        if *is_all { "" } else { "at least " },
        plural(*unknown, "file", "files"),
        some.join(", "),
        escape::text(why.as_deref().unwrap_or("a server does not say what became of them")),
    ))
}

pub(super) fn remove(paths: &[String], recursive: bool) -> Result<i32, Trouble> {
    // What is written wrong is said before anything is removed.
    let split: Vec<_> = paths.iter().map(|text| split(text)).collect::<Result<_, _>>()?;
    for (text, (name, names)) in paths.iter().zip(&split) {
        if names.is_empty() {
            let why = format!("{text} is the whole volume; `haul volume destroy {name}` ends that");
            return Err(Trouble(why, USAGE));
        }
    }
    let (mut removed, mut failed) = (0, 0);
    let mut open: Option<Names> = None;
    for (text, (name, names)) in paths.iter().zip(&split) {
        if open.as_ref().is_none_or(|open| open.name != *name)
            && let Some(before) = open.take()
        {
            before.leave();
        }
        let result = match &open {
            Some(volume) => volume.remove(text, names, recursive),
            None => Names::open(name).and_then(|volume| open.insert(volume).remove(text, names, recursive)),
        };
        match result {
            Ok(()) => removed += 1,
            Err(Trouble(why, _)) if paths.len() > 1 && !haul_mutant::removed("rm-goes-on") => {
                failed += 1;
                super::note(&why);
            }
            Err(trouble) => return Err(trouble),
        }
    }
    if let Some(open) = open {
        open.leave();
    }
    match (removed, failed) {
        (_, 0) => Ok(0),
        (0, _) => Ok(FAILED),
        _ => {
            super::note(&format!(
                "{} of {} not removed",
                failed,
                plural(paths.len() as u64, "name", "names")
            ));
            Ok(PARTIAL)
        }
    }
}

impl Names {
    /// Removes what a path leads to.
    fn remove(&self, text: &str, names: &[Name], recursive: bool) -> Result<(), Trouble> {
        let found = self.find(names)?;
        let refused = |failure| of_path(text, &failure);
        match (found.place, &found.entry.kind) {
            (None, _) => Err(Trouble(format!("{text} is the whole volume"), USAGE)),
            (Some(_), Kind::Directory) if !recursive => {
                let why = format!("{text} is a directory: -r removes it with all that is in it");
                Err(Trouble(why, FAILED))
            }
            (Some(place), Kind::Directory) => {
                self.clear(found.entry.id, text, 0)?;
                self.catalog.rmdir(place).map_err(refused)
            }
            (Some(place), _) => self.catalog.unlink(place).map_err(refused),
        }
    }

    /// Removes all that is in a directory.
    fn clear(&self, dir: EntryNo, path: &str, depth: usize) -> Result<(), Trouble> {
        if depth > haul_core::entry::DEPTH_MAX {
            return Err(Trouble(format!("{path}: too deep"), FAILED));
        }
        loop {
            // From the start each time: what was there is gone.
            let (page, more) = self.catalog.read_dir(dir, None).map_err(|failure| of_path(path, &failure))?;
            for (name, entry) in page {
                let below = format!("{path}/{}", escape::name(name.as_bytes()));
                let place = Place { parent: dir, name };
                let removed = match entry.kind {
                    Kind::Directory => {
                        self.clear(entry.id, &below, depth + 1)?;
                        self.catalog.rmdir(place)
                    }
                    _ => self.catalog.unlink(place),
                };
                removed.map_err(|failure| of_path(&below, &failure))?;
            }
            if !more {
                return Ok(());
            }
        }
    }
}

/// Which entries of a directory are a run's of haul, in their order.
#[cfg(feature = "volume")]
fn ours(catalog: &Catalog, dir: EntryNo, page: &[(Name, Entry)]) -> Result<Vec<bool>, Failure> {
    haul::volume::are_ours(catalog, dir, page.iter().map(|(name, _)| name))
}

/// A haul that copies into no volume knows no such names.
#[cfg(not(feature = "volume"))]
fn ours(_: &Catalog, _: EntryNo, page: &[(Name, Entry)]) -> Result<Vec<bool>, Failure> {
    Ok(vec![false; page.len()])
}

/// What in a volume has no home outside of it, and what has one.
pub(super) fn homeless(access: &Access, most: usize) -> Result<Homeless, Trouble> {
    let volume = Names::of(access.clone())?;
    let client = volume.lengths()?;
    let found = drain::homeless(&volume.catalog, &client, &ours, (most, LOOKED_MAX));
    let found = volume.explain(found.map_err(|failure| of_path(&volume.name, &failure))?);
    volume.leave();
    Ok(found)
}
