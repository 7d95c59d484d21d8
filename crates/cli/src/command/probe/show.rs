//! `haul probe show [PATH]`: the storage passports of this host.

use std::path::Path;
use std::time::Duration;

use haul_probe::network;
use haul_probe::passport::{self, Passport};

use super::super::surroundings::state_dir;
use super::super::{FAILED, complain};
use crate::args::probe::Show;
use crate::report::network::{json as network_json, table as network_table};
use crate::report::probe::{json, page, table};
use crate::{escape, output};

/// From this age on a passport is called old: disks fill, wear and get other neighbours.
const OLD: Duration = Duration::from_secs(30 * 86400);
/// How far the size of a file system may move before its passport is doubted.
const SIZE_DRIFT: f64 = 0.05;

/// A passport, and what is to be said about it.
type Shown = (Passport, Vec<String>);

pub fn run(args: &Show) -> i32 {
    if let Some(path) = &args.html
        && let Err(error) = output::check(path)
    {
        return complain(&error, FAILED);
    }
    let Some(state) = state_dir() else {
        return complain("there is no state directory: neither XDG_STATE_HOME nor HOME is set", FAILED);
    };
    let (found, refused) = match find(&state, args.path.as_deref()) {
        Ok(found) => found,
        Err(error) => return complain(&error, FAILED),
    };
    for error in &refused {
        complain(error, FAILED);
    }
    if let Some(path) = &args.html {
        let text = match (&args.path, &found[..]) {
            (Some(_), [(passport, _)]) => page::probe(&passport.probe),
            _ => page::passports(&found),
        };
        return match output::write(path, text.as_bytes()) {
            Ok(()) => 0,
            Err(error) => complain(&error, FAILED),
        };
    }
    let mut out = Vec::new();
    if args.json {
        for (passport, hints) in &found {
            json::passport(&mut out, passport, hints).expect("memory takes all that is written");
        }
        for error in refused {
            json::refused(&mut out, error).expect("memory takes all that is written");
        }
    } else if args.path.is_some() {
        out = found.iter().map(whole).collect::<String>().into_bytes();
    } else {
        out = table::passports(&found).into_bytes();
    }
    if args.path.is_none() {
        out.extend(networks(&state, args.json));
    }
    super::print(&out)
}

/// The passports of networks, in the form of the others.
fn networks(state: &Path, json: bool) -> Vec<u8> {
    let listing = match network::passport::list(state) {
        Ok(listing) => listing,
        Err(error) => {
            complain(&error.to_string(), FAILED);
            return Vec::new();
        }
    };
    let mut out = Vec::new();
    for error in &listing.refused {
        complain(&error.to_string(), FAILED);
        if json {
            json::refused(&mut out, error.to_string()).expect("memory takes all that is written");
        }
    }
    match json {
        true => {
            for passport in &listing.passports {
                network_json::passport(&mut out, &passport.probe, passport.age.as_secs())
                    .expect("memory takes all that is written");
            }
        }
        false if listing.passports.is_empty() => {}
        false => out = network_table::passports(&listing.passports).into_bytes(),
    }
    out
}

/// One passport with all that it says.
fn whole((passport, hints): &Shown) -> String {
    let mut out = table::probe(&passport.probe);
    out += &format!("taken {} ago\n", passport.age_text());
    for hint in hints {
        out += &format!("hint: {}\n", escape::text(hint));
    }
    out
}

/// The passport of the storage at `path`, or all of them; and the files that are none, in words.
fn find(state: &Path, path: Option<&Path>) -> Result<(Vec<Shown>, Vec<String>), String> {
    let hinted = |passport: Passport| {
        let hints = hints(&passport);
        (passport, hints)
    };
    let Some(path) = path else {
        let listing = passport::list(state).map_err(|error| error.to_string())?;
        let refused = listing.refused.iter().map(ToString::to_string).collect();
        return Ok((listing.passports.into_iter().map(hinted).collect(), refused));
    };
    let identity = haul_probe::identify(path).map_err(|error| error.to_string())?;
    match passport::load(state, &identity).map_err(|error| error.to_string())? {
        Some(passport) => Ok((vec![hinted(passport)], Vec::new())),
        None => Err(format!(
            "no storage passport of {} ({}) on {}: `haul probe storage {}` makes one",
            identity.source,
            identity.kind,
            identity.mount_point,
            path.display()
        )),
    }
}

/// Why this passport may no longer be true.
fn hints(passport: &Passport) -> Vec<String> {
    let storage = &passport.probe.storage;
    let mut hints = Vec::new();
    if passport.age >= OLD {
        hints.push("old: probe again to be sure".into());
    }
    if passport.probe.haul != env!("CARGO_PKG_VERSION") {
        hints.push(format!("taken by haul {}, this is {}", passport.probe.haul, env!("CARGO_PKG_VERSION")));
    }
    // A network file system whose server is gone would hold up the whole list.
    if storage.network {
        return hints;
    }
    match haul_probe::identify(Path::new(&storage.mount_point)) {
        Ok(now) if now.id == storage.id => {
            let (was, is) = (storage.size as f64, now.size as f64);
            if (is - was).abs() > SIZE_DRIFT * was {
                hints.push("its size has changed since: probe again".into());
            }
        }
        Ok(_) => hints.push(format!(
            "another file system is mounted on {} now, or this haul knows it by another name: probe again",
            storage.mount_point
        )),
        Err(_) => hints.push(format!("not mounted on {} now", storage.mount_point)),
    }
    hints
}
