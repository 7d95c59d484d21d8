//! `haul volume fsck`: holds the catalog of a volume against what its servers have.
//!
//! In: the access to a volume. Out: a line of each fault, and what was looked at.

use std::time::Duration;

use haul_volume::catalog::client::Client as Catalog;
use haul_volume::client::{Client, Config};
use haul_volume::fsck::{Fault, Fsck, Kind, Sum};
use serde::Serialize;

use super::{FAILED, Trouble, access_to_change, keys, must_run, print};
use crate::args::volume::Fsck as Args;
use crate::escape;
use crate::progress::{count, plural};
use crate::report::json::PathFields;

/// The catalog, or a server, is met within this.
const MET: Duration = Duration::from_secs(10);
/// The catalog reads all that it has, and a server much of its log, for one answer.
const PATIENCE: Duration = Duration::from_secs(600);
/// A server removes what nobody has within this.
const REMOVED: Duration = Duration::from_secs(60);

#[derive(Serialize)]
struct Line<'a> {
    fault: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<u16>,
    /// The file's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<u64>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    path: Option<PathFields>,
    text: &'a str,
}

#[derive(Serialize)]
struct Summary<'a> {
    name: &'a str,
    clean: bool,
    servers: usize,
    /// Servers that answered to the end.
    reached: u16,
    files: u64,
    whole: u64,
    written: u64,
    nameless: u64,
    open: u64,
    open_of_gone: u64,
    faults: u64,
    removed: u64,
}

pub(super) fn run(args: &Args) -> Result<i32, Trouble> {
    let (_, access) = access_to_change(&args.name)?;
    let (keys, servers) = (keys(&access)?, access.addresses()?);
    must_run(&access)?;
    let mut catalog = Catalog::connect(keys.clone(), access.catalog.address()?, MET).map_err(|failure| {
        Trouble(format!("the catalog of {}: {}", args.name, escape::text(&failure.words)), FAILED)
    })?;
    catalog.be_patient(PATIENCE);
    let client = match args.repair {
        false => None,
        true => {
            let config = Config {
                keys: keys.clone(),
                number: catalog.number(),
                servers: servers.clone(),
                stripe_size: access.stripe.into(),
                write_threshold: None,
                patience: REMOVED,
            };
            Some(
                Client::start_for(config, &catalog)
                    .map_err(|error| Trouble(haul::errno::text(error), FAILED))?,
            )
        }
    };
    let fsck = Fsck {
        catalog: &catalog,
        keys: &keys,
        servers: &servers,
        stripe_size: access.stripe.into(),
        met: if haul_mutant::removed("fsck-meets-within-seconds") { PATIENCE } else { MET },
        patience: PATIENCE,
        repair: client.as_ref(),
    };
    let mut broken = None;
    let sum = fsck.run(&mut |fault| {
        let shown = if args.json { json(fault) } else { Ok(human(&args.name, fault)) };
        broken = shown.map_err(Trouble::from).and_then(|shown| print(&shown)).err();
        broken.is_none()
    });
    drop(client);
    let _ = catalog.leave();
    if let Some(broken) = broken {
        return Err(broken);
    }
    let sum = sum.map_err(|error| Trouble(escape::text(&error.to_string()), FAILED))?;
    match args.json {
        true => print(&super::super::ctl::to_json(&Summary {
            name: &args.name,
            clean: sum.faults == 0,
            servers: servers.len(),
            reached: sum.reached,
            files: sum.files,
            whole: sum.whole,
            written: sum.written,
            nameless: sum.checked.nameless,
            open: sum.checked.open,
            open_of_gone: sum.checked.open_of_gone,
            faults: sum.faults,
            removed: sum.removed,
        })?)?,
        false => print(&in_words(&args.name, servers.len(), &sum))?,
    }
    Ok(if sum.faults == 0 { 0 } else { FAILED })
}

fn json(fault: &Fault) -> Result<String, String> {
    super::super::ctl::to_json(&Line {
        fault: fault.kind.word(),
        server: fault.server.map(|server| server.0),
        number: fault.file.map(|file| file.0),
        path: fault.path.as_deref().map(|path| PathFields::new(&path[1.min(path.len())..])),
        text: &fault.text,
    })
}

fn human(name: &str, fault: &Fault) -> String {
    let file = match (&fault.path, fault.file) {
        (Some(path), _) => format!("{name}{}: ", escape::name(path)),
        (None, Some(file)) => format!("file {}: ", file.0),
        (None, None) => String::new(),
    };
    // Of an orphan the text says where.
    let server = fault.server.filter(|_| !matches!(fault.kind, Kind::Orphan | Kind::Foreign));
    let server = server.map_or_else(String::new, |server| format!("server {}: ", server.0));
    format!("{}: {file}{server}{}\n", fault.kind.word(), escape::text(&fault.text))
}

fn in_words(name: &str, servers: usize, sum: &Sum) -> String {
    let mut text = format!(
        "volume {name}: {} of {} and the catalog looked at; {}, {} of them known to have been copied in whole",
        sum.reached,
        plural(servers as u64, "server", "servers"),
        plural(sum.files, "file", "files"),
        count(sum.whole)
    );
    let checked = &sum.checked;
    let mut more = |number: u64, what: &str| {
        if number > 0 {
            text += &format!("; {} {what}", count(number));
        }
    };
    more(sum.written, "were being written, and can be looked at later");
    more(checked.nameless, "without a name whose bytes go by themselves");
    more(checked.open_of_gone, "open for clients that are gone and may come back");
    more(sum.removed, "that no entry has removed");
    text + &match sum.faults {
        0 => "; clean\n".to_owned(),
        faults => format!("; {}\n", plural(faults, "fault", "faults")),
    }
}
