//! Starting values from the passports of storage and network.
//!
//! In: where an end's data lies, the state directory of the host that this is, the options. Out: the options
//! with values for what the user left open, and a line for each that says where it comes from.
//!
//! A passport that cannot be read changes nothing but one line: a copy never fails over it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use haul_core::io::IoPolicy;

use crate::driver::choices::InWords;
use crate::endpoint::{Endpoint, Place};
use crate::options::{AgentRequest, Options};
use crate::passport::network::Way;
use crate::passport::{Direction, identity::identify, pair, storage as passport};
use crate::request::CopyRequest;
use crate::summary::Chosen;
use haul_base::role::Role;
use haul_base::users;
use haul_launch::StorageRate;
use haul_storage::options::StorageOptions;

/// The request with starting values for the ends that lie on this host.
pub(super) fn adopt_local(request: &CopyRequest) -> (CopyRequest, InWords) {
    let (mut request, mut chosen) = (request.clone(), InWords::new());
    let Some(state) = request.state_home.clone() else { return (request, chosen) };
    // The first stands for all of them: they share one set of settings.
    if let Some(source) = request.sources.first().filter(|source| source.host().is_none()) {
        chosen.extend(adopt(&state, source.place(), None, Role::Source, &mut request.options.source_storage));
    }
    if request.destination.host().is_none() {
        chosen.extend(adopt(
            &state,
            request.destination.place(),
            None,
            Role::Sink,
            &mut request.options.sink_storage,
        ));
    }
    let from = request.sources.first().and_then(Endpoint::host).map(|host| (host, Way::From));
    let to = request.destination.host().map(|host| (host, Way::To));
    if let Some((host, way)) = to.or(from) {
        chosen.extend(adopt_network(&state, host, way, &mut request.options));
    }
    (request, chosen)
}

/// Says in `chosen`, where an end took a value for the user's, that it is the passport's; adds what is
/// missing.
pub(super) fn explain(chosen: &mut Vec<Chosen>, adopted: &InWords) {
    for (name, text) in adopted {
        let reason = text.split_once(" (").map_or("", |(_, reason)| reason.trim_end_matches(')'));
        match chosen.iter_mut().find(|line| line.name == *name) {
            Some(line) => line.value = line.value.replace("as asked", reason).replace("asked for", reason),
            None => chosen.push(Chosen::new(&**name, &**text)),
        }
    }
}

/// The state directory of a far end: its environment holds no more than the home.
pub(super) fn state_of(home: &Path) -> PathBuf {
    home.join(".local/state/haul")
}

/// Fills in what the user left open from the passport of the file system that `place` lies on.
/// `home`: what `~` stands for at the beginning of a path that no shell has seen.
pub(super) fn adopt(
    state: &Path,
    place: &Place,
    home: Option<&Path>,
    role: Role,
    options: &mut StorageOptions,
) -> InWords {
    let (end, direction) = match role {
        Role::Source => ("source", Direction::Read),
        Role::Sink => ("sink", Direction::Write),
    };
    match load(state, place, home) {
        Ok(Some(passport)) => {
            let reason = format!("from the storage passport of {} ago", passport.age_text());
            merge(options, &passport::starting_values(&passport, direction), end, &reason)
        }
        Ok(None) => InWords::new(),
        Err(error) => vec![(format!("{end} storage"), format!("as without a passport ({error})"))],
    }
}

/// The rate of this host's storage, where this is the near end; see [`rate`].
pub(super) fn near_rate(request: &CopyRequest) -> Option<u64> {
    let state = request.state_home.as_deref()?;
    let (source, destination) = (request.sources.first(), &request.destination);
    match (source.filter(|source| source.host().is_none()), destination.host()) {
        (Some(source), _) => rate(state, source.place(), None, Role::Source),
        (None, None) => rate(state, destination.place(), None, Role::Sink),
        (None, Some(_)) => None,
    }
}

/// The same where it is the far end; `home`: its home directory.
pub(super) fn rate_at(home: PathBuf) -> StorageRate<AgentRequest> {
    StorageRate(Arc::new(move |request: &AgentRequest| {
        let place = match request.role {
            Role::Source => request.sources.first(),
            Role::Sink => request.destination.as_ref(),
        };
        rate(&state_of(&home), place?, Some(&home), request.role)
    }))
}

/// What the storage of `place` gives by its passport, bytes per second. `home` as in [`adopt`].
pub(super) fn rate(state: &Path, place: &Place, home: Option<&Path>, role: Role) -> Option<u64> {
    let passport = load(state, place, home).ok()??;
    let best = match role {
        Role::Source => passport.probe.read_best,
        Role::Sink => passport.probe.write_best,
    };
    // `as` stops at the ends of the range, whatever the file says.
    best.filter(|_| passport.age <= passport::AGE_MAX).map(|best| best.rate as u64).filter(|rate| *rate > 0)
}

fn load(
    state: &Path,
    place: &Place,
    home: Option<&Path>,
) -> Result<Option<passport::Passport>, passport::PassportError> {
    let Some(path) = place.file_path() else { return Ok(None) };
    let path = match home.map(|home| users::expand(path, home)) {
        Some(Ok(path)) => path,
        // The copy itself will say what is wrong with it.
        Some(Err(_)) => return Ok(None),
        None => PathBuf::from(OsStr::from_bytes(path)),
    };
    // What cannot be looked at has no passport; the copy itself will say what is wrong with it.
    let Ok(identity) = identify(&path) else { return Ok(None) };
    passport::load(state, &identity)
}

/// Fills in what the passport of the way to `host` or from it says; it counts where its address is the one
/// that is dialled. A congestion control that the user named makes the rest another's.
fn adopt_network(state: &Path, host: &str, way: Way, options: &mut Options) -> InWords {
    match pair::load(state, host, way) {
        Ok(passport) => {
            let start = passport.as_ref().and_then(pair::start);
            options.start =
                start.filter(|start| options.congestion.is_none() || options.congestion == start.congestion);
            InWords::new()
        }
        Err(error) => vec![("network".to_owned(), format!("as without a passport ({error})"))],
    }
}

fn merge(options: &mut StorageOptions, values: &StorageOptions, end: &str, reason: &str) -> InWords {
    let mut chosen = InWords::new();
    let mut tell =
        |what: &str, value: String| chosen.push((format!("{end} {what}"), format!("{value} ({reason})")));
    if options.io == IoPolicy::Auto && values.io != IoPolicy::Auto {
        options.io = values.io;
        tell("io", values.io.name().into());
    }
    if let (None, Some(order)) = (options.order, values.order) {
        options.order = Some(order);
        tell("order", order.policy().name().into());
    }
    if let (None, Some(size)) = (options.request_size, values.request_size) {
        options.request_size = Some(size);
        tell("request size", format!("{size} bytes"));
    }
    if let (None, Some(depth)) = (options.depth, values.depth) {
        options.depth = Some(depth);
        tell("depth", depth.to_string());
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passport::{Best, FORMAT, Io, Probe, Setting};
    use haul_storage::null::NULL;
    use haul_storage::options::Order;

    fn keep_passport(state: &Path, of: &Path) {
        let setting = Setting { request_size: 1 << 20, depth: 8, order: Order::Strict, io: Io::Direct };
        let probe = Probe {
            format: FORMAT,
            haul: "0.1.0".into(),
            host: "h".into(),
            path: "/data".into(),
            storage: identify(of).unwrap(),
            taken: std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() - 3 * 86_400,
            engine: "pread".into(),
            size: 0,
            seconds: 0.0,
            bytes_read: 0,
            bytes_written: 0,
            points: Vec::new(),
            read_best: Some(Best { rate: 1e9, setting }),
            write_best: Some(Best { rate: 1e9, setting: Setting { depth: 2, ..setting } }),
            read_flatness: 0.0,
            write_flatness: 0.0,
            mistakes: Vec::new(),
            remarks: Vec::new(),
        };
        passport::save(state, &probe).unwrap();
    }

    /// Goal: what the user set stays as it is, what was left open comes from the passport of the end's file
    /// system, and each such value has its reason.
    /// Method: every combination of settings set and left open, for both ends.
    #[test]
    fn only_what_was_left_open_is_filled_in() {
        let dir = tempfile::tempdir().unwrap();
        keep_passport(dir.path(), dir.path());
        let path = dir.path().join("to/be/made");
        let place = Place::file(path.as_os_str().as_bytes());
        assert_eq!(rate(dir.path(), &place, None, Role::Source), Some(1_000_000_000));
        assert_eq!(
            [rate(dir.path(), &Place::root(&NULL), None, Role::Sink), rate(&path, &place, None, Role::Sink)],
            [None; 2]
        );
        for set in 0..8_u8 {
            for (role, end, depth) in [(Role::Source, "source", 8), (Role::Sink, "sink", 2)] {
                let is = |bit: u8| set & bit != 0;
                let asked = StorageOptions {
                    order: is(1).then_some(Order::Loose),
                    request_size: is(2).then_some(4096),
                    depth: is(4).then_some(77),
                    threads: Some(3),
                    ..StorageOptions::default()
                };
                let mut options = asked.clone();
                let chosen = adopt(dir.path(), &place, None, role, &mut options);
                let expected = StorageOptions {
                    order: Some(if is(1) { Order::Loose } else { Order::Strict }),
                    request_size: Some(if is(2) { 4096 } else { 1 << 20 }),
                    depth: Some(if is(4) { 77 } else { depth }),
                    ..asked
                };
                assert_eq!(options, expected);
                assert_eq!(chosen.len(), 3 - set.count_ones() as usize);
                for (name, value) in chosen {
                    assert!(name.starts_with(end), "{name}");
                    assert!(value.ends_with("(from the storage passport of 3 days ago)"), "{value}");
                }
            }
        }
    }

    /// Goal: nobody is told that he asked for what the passport chose, nor twice; what an end says beyond
    /// that stays.
    #[test]
    fn values_of_the_passport_are_named_once() {
        let line = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let mut chosen = vec![
            Chosen::new("source depth", "4 (as asked)"),
            Chosen::new("source io", "buffered (direct was refused)"),
        ];
        let reason = "from the storage passport of 3 days ago";
        let with = |value: &str| format!("{value} ({reason})");
        let adopted = vec![
            line("source depth", &with("4")),
            line("source io", &with("direct")),
            line("source order", &with("strict")),
        ];
        explain(&mut chosen, &adopted);
        let expected = [with("4"), "buffered (direct was refused)".to_owned(), with("strict")];
        assert!(chosen.iter().map(|line| &line.value).eq(&expected), "{chosen:?}");
    }

    /// Goal: no passport, one that is damaged, and endpoints that are no files leave the options alone.
    #[test]
    fn without_a_passport_nothing_changes() {
        let dir = tempfile::tempdir().unwrap();
        let try_with = |state: &Path, place: &Place| {
            let mut options = StorageOptions::default();
            let chosen = adopt(state, place, Some(dir.path()), Role::Source, &mut options);
            (chosen, options == StorageOptions::default())
        };
        let here = &Place::file(dir.path().as_os_str().as_bytes());
        assert_eq!(try_with(dir.path(), here), (InWords::new(), true));
        keep_passport(dir.path(), dir.path());
        assert!(!try_with(dir.path(), here).1 && !try_with(dir.path(), &Place::file("~/x")).1);
        assert_eq!(try_with(dir.path(), &Place::sized(&NULL, 1 << 30)), (InWords::new(), true));
        let identity = identify(dir.path()).unwrap();
        std::fs::write(dir.path().join(format!("passports/{}.json", identity.id)), "{").unwrap();
        let (chosen, same) = try_with(dir.path(), here);
        assert!(same && chosen.len() == 1 && chosen[0].1.contains("damaged"), "{chosen:?}");
    }
}
