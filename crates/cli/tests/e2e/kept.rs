//! What each file system keeps of each kind of metadata, as docs/metadata.md has it: found out, not written
//! down.
//!
//! In: the file systems that can be mounted here. Out: the tables of that page, and a failure for everything
//! that a copy does not keep and does not say.
//! A cell is determined twice: by what the copy is (`facts`), and by what haul said. Where they differ there
//! is a fault, whatever the page says.

mod facts;
mod kinds;
mod places;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;
use std::thread;

use data_encoding::BASE64;
use serde_json::Value;

use crate::support::compare::assert_no_debris;
use crate::support::run::Outcome;
use crate::support::way::{Way, contents};
use crate::support::{Room, set_mode};
use facts::{Loss, Tree, is_below};
use kinds::{Aspect, KINDS, LARGE, Order, TRUSTED};
use places::{FILE_SYSTEMS, FileSystem, Place};
use table::{Column, DESTINATION, SOURCE};

/// The kernel allows no longer attribute.
const XATTR_LEN_MAX: usize = 64 << 10;
const NOBODY: u32 = 65534;
/// What became of a time that is not kept.
const NEAREST: &str = "nearest";
const ANOTHER: &str = "another";

/// What was found of one file system.
#[derive(Default)]
struct Found {
    destination: Column,
    source: Column,
    faults: Vec<String>,
}

/// What haul said of a copy.
struct Said {
    failed: Vec<(Vec<u8>, String)>,
    counted: BTreeMap<String, u64>,
    whole_seconds: bool,
    is_partial: bool,
    /// The first and the last time that the destination holds, seconds.
    holds: (i64, i64),
}

impl Said {
    fn by(run: &Outcome, holds: (i64, i64)) -> Said {
        let events = run.events();
        let path = |event: &Value| match event["path_b64"].as_str() {
            Some(bytes) => BASE64.decode(bytes.as_bytes()).expect("Base64"),
            None => event["path"].as_str().expect("a path").as_bytes().to_vec(),
        };
        let text = |event: &Value| event["text"].as_str().expect("text").to_owned();
        let failed = events.iter().filter(|event| event["event"] == "failed");
        let summary = run.summary();
        let counted = summary.0["not_kept"].as_array().expect("a list").iter();
        let class = |class: &Value| Some((class["what"].as_str()?.to_owned(), class["count"].as_u64()?));
        Said {
            failed: failed.map(|event| (path(event), text(event))).collect(),
            counted: counted.filter_map(class).collect(),
            whole_seconds: !summary.chosen("mtimes").is_empty(),
            is_partial: run.status.code() == Some(3),
            holds,
        }
    }

    /// Whether an entry is named, with what is lost of it. What lies in a directory that could not be made is
    /// named with that.
    fn names(&self, loss: &Loss, source: &Tree) -> bool {
        let facts = source.get(&loss.path);
        self.failed.iter().any(|(path, text)| {
            let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
            let is_it = loss.path == *path;
            // One that failed as a whole is no copy.
            if is_it && !text.contains("all else of it is as at the source") {
                return true;
            }
            match loss.aspect {
                Aspect::Entry => is_below(&loss.path, path),
                // One of them is named for each that is missing.
                Aspect::Names => facts.is_some_and(|facts| facts.has_name(path)),
                Aspect::Xattr => is_it && has(&[&loss.name, " more; all else"]),
                Aspect::Acl | Aspect::DefaultAcl => is_it && has(&["posix_acl", " more; all else"]),
                // The mode of what has a list is its mask, and goes with it.
                Aspect::Mode => {
                    let listed = facts.is_some_and(facts::Facts::has_list) && has(&["posix_acl"]);
                    is_it && (has(&["mode"]) || listed)
                }
                Aspect::SetId => is_it && has(&["mode"]),
                Aspect::Owner => is_it && has(&["owner"]),
                Aspect::Mtime => is_it && has(&["mtime"]),
                Aspect::Fraction | Aspect::Holes => false,
            }
        })
    }

    fn count_of(&self, class: &str) -> u64 {
        self.counted.get(class).copied().unwrap_or(0)
    }
}

/// The words of haul's that count such a loss.
fn classes(aspect: Aspect) -> &'static [&'static str] {
    match aspect {
        Aspect::Entry => &["special files that could not be made there"],
        Aspect::Mode => &["modes that the destination would not take"],
        Aspect::SetId => &["setuid or setgid bits dropped", "modes that the destination would not take"],
        Aspect::Owner => &["owners or groups not set"],
        Aspect::Mtime => &["mtimes outside what the destination can hold, clamped", "mtimes not set"],
        Aspect::Names => &["hard links copied as separate files"],
        Aspect::Holes => &["sparse files written in full"],
        Aspect::Fraction | Aspect::Xattr | Aspect::Acl | Aspect::DefaultAcl => &[],
    }
}

/// What became of a loss, in the words of the table; `None`: nothing was said.
fn word(loss: &Loss, said: &Said, source: &Tree) -> Option<String> {
    if said.names(loss, source) {
        return Some("named".to_owned());
    }
    let counted = |class: &&&str| said.count_of(class) > 0;
    match (loss.aspect, classes(loss.aspect).iter().find(counted)) {
        (Aspect::Fraction, _) if said.whole_seconds => Some(format!("to {}", loss.name)),
        (Aspect::Mtime, Some(_)) if facts::is_nearest(source, loss, said.holds) => Some(NEAREST.to_owned()),
        (Aspect::Mtime, Some(_)) => Some(ANOTHER.to_owned()),
        // A file that is missing is named.
        (Aspect::Entry, Some(_)) if !loss.special => None,
        (_, class) => class.map(|_| "counted".to_owned()),
    }
}

/// Everything that was lost and not said, and what was said and not lost.
fn faults(losses: &[Loss], said: &Said, source: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    let mut owed = BTreeMap::<&[&str], Vec<String>>::new();
    for loss in losses {
        let text = format!("{}: {}", String::from_utf8_lossy(&loss.path), loss.text);
        match word(loss, said, source) {
            None => faults.push(format!("not said: {text}")),
            Some(_) if said.names(loss, source) || classes(loss.aspect).is_empty() => {}
            Some(_) => owed.entry(classes(loss.aspect)).or_default().push(text),
        }
    }
    for (classes, lost) in &owed {
        let counted: u64 = classes.iter().map(|class| said.count_of(class)).sum();
        if counted < lost.len() as u64 {
            faults.push(format!("{counted} counted as {classes:?}: {}", lost.join("; ")));
        }
    }
    for (class, count) in &said.counted {
        if !losses.iter().any(|loss| classes(loss.aspect).contains(&class.as_str())) {
            faults.push(format!("counted and not lost: {class} ({count})"));
        }
    }
    if said.whole_seconds && !losses.iter().any(|loss| loss.aspect == Aspect::Fraction) {
        faults.push("whole seconds are told, and no fraction is lost".to_owned());
    }
    if said.is_partial == said.failed.is_empty() {
        faults.push(format!("{} are named, and partial is {}", said.failed.len(), said.is_partial));
    }
    for (path, text) in &said.failed {
        if !losses.iter().any(|loss| is_below(&loss.path, path)) {
            faults.push(format!("named and not lost: {}: {text}", String::from_utf8_lossy(path)));
        }
    }
    faults
}

/// Whether what is lost is of the kind whose directory it lies in. Where there can be no links, FIFOs and so
/// on, that is of their kinds alone; an attribute that is longer than it may be is lost everywhere.
fn counts(kind: &kinds::Kind, loss: &Loss) -> bool {
    let is_missing = loss.aspect == Aspect::Entry && !loss.special;
    is_below(&loss.path, kind.dir.as_bytes())
        && (kind.aspects.contains(&loss.aspect) || is_missing)
        && !loss.path.ends_with(b"/larger")
}

/// What became of each kind.
fn column(losses: &[Loss], said: &Said, source: &Tree, large: &str) -> Column {
    let mut column = Column::new();
    for kind in KINDS {
        let lost = losses.iter().filter(|loss| counts(kind, loss));
        let words: BTreeSet<String> =
            lost.map(|loss| word(loss, said, source).unwrap_or_else(|| "**not said**".to_owned())).collect();
        let cell = match (words.is_empty(), kind.dir == LARGE) {
            (true, true) => large.to_owned(),
            (true, false) => "kept".to_owned(),
            (false, _) => words.into_iter().collect::<Vec<_>>().join(", "),
        };
        column.insert(kind.title.to_owned(), cell);
    }
    column
}

/// The longest value that a file in this directory takes for one attribute; zero: none.
fn longest(dir: &Path) -> usize {
    let probe = dir.join("probe");
    fs::write(&probe, "").expect("write");
    let takes = |len: usize| {
        let set = rustix::fs::setxattr(&probe, "user.x", &vec![7; len], rustix::fs::XattrFlags::empty());
        set.is_ok() && crate::attributes::value_of(&probe, "user.x").is_some_and(|value| value.len() == len)
    };
    let (mut fits, mut more) = (0, if takes(1) { XATTR_LEN_MAX + 1 } else { 1 });
    while fits + 1 < more {
        let middle = fits.midpoint(more);
        if takes(middle) { fits = middle } else { more = middle }
    }
    fs::remove_file(&probe).expect("remove it");
    fits
}

/// The first and the last time that a file in this directory has, seconds: what it makes of others.
fn times_of(dir: &Path) -> (i64, i64) {
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
    use std::os::unix::fs::MetadataExt as _;
    const FAR: i64 = 1 << 40;
    let probe = dir.join("probe");
    fs::write(&probe, "").expect("write");
    let [first, last] = [-FAR, FAR].map(|tv_sec| {
        let time = Timespec { tv_sec, tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        let _ = utimensat(CWD, &probe, &times, AtFlags::empty());
        fs::metadata(&probe).expect("stat").mtime()
    });
    fs::remove_file(&probe).expect("remove it");
    (first, last)
}

/// What rsync would change.
fn rsync_would(source: &Path, copy: &Path) -> String {
    // XFS shows its lists as attributes, too; the second is what rsync has where it is told nothing.
    let filters = ["--filter=-x trusted.SGI_*", "--filter=-x system.*"];
    let output = Command::new("rsync")
        .args(["-aHAXn", "--delete", "-i"])
        .args(filters)
        .args([contents(source), contents(copy)])
        .output()
        .expect("run rsync");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Copies a tree, and says what became of it.
fn copy(
    (from, to): (&Path, &Path),
    (is_destination, by_a_user): (bool, bool),
    large: &str,
) -> (Column, Vec<String>) {
    let room = Room::new();
    let holds = times_of(to.parent().expect("it lies on it"));
    let run = || {
        let haul = Way::Here.cp(&["-aHAX", "--durability", "none"], &[contents(from)], to);
        let haul = if by_a_user { haul.run_by_nobody(&room) } else { haul };
        let run = haul.run().sane();
        assert!([Some(0), Some(3)].contains(&run.status.code()), "{}", run.describe());
        run
    };
    let source = facts::tree(from);
    let first = run();
    let said = Said::by(&first, holds);
    let mut losses = facts::losses(&source, &facts::tree(to));
    // A user does not see them, so that nobody knows of any to be kept.
    losses.retain(|loss| !by_a_user || !loss.name.starts_with("trusted."));
    let mut faults = faults(&losses, &said, &source);
    assert_no_debris(to);
    if losses.is_empty() && crate::support::needs::all_here(&["rsync"]) {
        let would = rsync_would(from, to);
        faults.extend((!would.is_empty()).then(|| format!("rsync would change: {would}")));
    }
    // What is not there is tried again, and what got a time of the file system's own.
    let column = column(&losses, &said, &source, large);
    let is_tried = losses.iter().any(|loss| loss.aspect == Aspect::Entry)
        || column.values().any(|cell| cell.contains(ANOTHER));
    if is_destination && !is_tried {
        let again = run().summary();
        let sent = again.number("bytes_sent");
        faults.extend((sent > 0).then(|| format!("a second run sends {sent} bytes: {}", again.0)));
    }
    if !faults.is_empty() {
        faults.push(first.describe());
    }
    (column, faults)
}

/// Looks at one file system as a destination and as a source.
fn look(place: &Place, title: &str, by_a_user: bool) -> Found {
    let (at_most, other_at_most) = (longest(&place.at), longest(&place.other));
    let me = if by_a_user { NOBODY } else { 0 };
    let (tree, to) = (place.other.join("tree"), place.at.join("copy"));
    let order =
        Order { me, strict: true, large: at_most.min(other_at_most), larger: at_most < other_at_most };
    let large = match (order.large >> 10, at_most > other_at_most) {
        (0, _) if order.large > 0 => "under 1 KiB".to_owned(),
        (0, _) => "none".to_owned(),
        (large, false) => format!("{large} KiB"),
        (large, true) => format!("{large} KiB at least"),
    };
    kinds::make(&tree, &order);
    fs::create_dir(&to).expect("make a directory");
    chown(&to, Some(me), Some(me)).expect("give it away");
    let (mut destination, mut all) = copy((&tree, &to), (true, by_a_user), &large);
    if by_a_user {
        let trusted = KINDS.iter().find(|kind| kind.dir == TRUSTED).expect("it is one of them");
        destination.insert(trusted.title.to_owned(), "unseen".to_owned());
    }
    let mut source = Column::new();
    if !by_a_user {
        let (here, back) = (place.at.join("tree"), place.other.join("back"));
        kinds::make(&here, &Order { strict: false, larger: false, ..order });
        fs::create_dir(&back).expect("make a directory");
        let (column, faults) = copy((&here, &back), (false, false), &large);
        source = column;
        all.extend(faults.into_iter().map(|fault| format!("as a source: {fault}")));
        // What it cannot have is not kept of it.
        let stands = facts::tree(&here);
        let absent = facts::losses(&facts::tree(&tree), &stands);
        let is_absent = |kind: &kinds::Kind| {
            let is_untold = kind.aspects == [Aspect::Holes] && !facts::any_tells_holes(&stands);
            is_untold || absent.iter().any(|loss| counts(kind, loss) && loss.aspect != Aspect::Fraction)
        };
        for kind in KINDS.iter().filter(|kind| is_absent(kind)) {
            source.insert(kind.title.to_owned(), "-".to_owned());
        }
    }
    let faults = all.into_iter().map(|fault| format!("{title}: {fault}")).collect();
    Found { destination, source, faults }
}

/// What the same test said in a guest.
fn heard(said: &str) -> Found {
    let mut found = Found::default();
    for line in said.lines().filter_map(|line| line.strip_prefix("KEPT\t")) {
        match line.splitn(3, '\t').collect::<Vec<_>>()[..] {
            ["fault", text, _] => found.faults.push(text.replace('\u{1}', "\n")),
            [column, kind, cell] => {
                let column = if column == SOURCE { &mut found.source } else { &mut found.destination };
                column.insert(kind.to_owned(), cell.to_owned());
            }
            _ => panic!("{line:?}"),
        }
    }
    assert_eq!(found.destination.len(), KINDS.len(), "{said}");
    found
}

fn found(system: &FileSystem) -> Option<Found> {
    if !system.is_here() {
        return None;
    }
    let room = Room::new();
    Some(match system.up(&room) {
        Ok(place) => look(&place, system.title, system.by_a_user),
        Err(said) => heard(&said),
    })
}

/// Goal: of each kind of metadata, on each file system, as a destination and as a source, a copy keeps what
/// it says that it keeps: what is lost is named (and the run partial), or counted, and nothing else is. Where
/// nothing is lost rsync would change nothing; a second run sends nothing. docs/metadata.md has what was
/// found, written by `REFRESH=1 cargo test -p haul-cli --test e2e kept`.
/// Method: one tree with every kind, copied to and from each file system that is here; the two trees by plain
/// system calls against the events and the summary.
#[test]
fn what_each_file_system_keeps() {
    need!("root", "tmpfs", "attributes-of-tmpfs");
    let columns: Vec<_> = thread::scope(|scope| {
        let look = |system: &'static FileSystem| {
            let named = thread::Builder::new().name(format!("kept, {}", system.title));
            named.spawn_scoped(scope, || found(system)).expect("a thread")
        };
        let threads: Vec<_> = FILE_SYSTEMS.iter().map(look).collect();
        threads.into_iter().map(thread::ScopedJoinHandle::join).collect()
    });
    let (mut destinations, mut sources) = (BTreeMap::new(), BTreeMap::new());
    let mut faults = Vec::new();
    for (system, found) in FILE_SYSTEMS.iter().zip(columns) {
        let found = match found {
            Ok(Some(found)) => found,
            Ok(None) => continue,
            // It said why.
            Err(_) => {
                faults.push(format!("{}: its thread panicked", system.title));
                continue;
            }
        };
        faults.extend(found.faults);
        destinations.insert(system.title.to_owned(), found.destination);
        if !found.source.is_empty() {
            sources.insert(system.title.to_owned(), found.source);
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metadata.md");
    let page = fs::read_to_string(path).expect("read the page");
    let fresh = table::with(&page, DESTINATION, &destinations);
    let fresh = table::with(&fresh, SOURCE, &sources);
    if std::env::var_os("REFRESH").is_some() {
        fs::write(path, &fresh).expect("write the page");
    } else {
        let differ: Vec<_> = fresh.lines().filter(|line| !page.contains(line)).collect();
        assert!(
            fresh == page,
            "docs/metadata.md is old: REFRESH=1 cargo test -p haul-cli --test e2e kept\n{}",
            differ.join("\n")
        );
    }
}

/// Goal: the same of a file system that this machine's kernel has not.
/// Method: run by the test above in a guest; prints what it finds.
#[test]
fn within_a_guest() {
    let Some((title, place)) = places::within() else { return };
    let found = look(&place, &title, false);
    println!();
    for (which, column) in [(DESTINATION, &found.destination), (SOURCE, &found.source)] {
        column.iter().for_each(|(kind, cell)| println!("KEPT\t{which}\t{kind}\t{cell}"));
    }
    found
        .faults
        .iter()
        .for_each(|fault| println!("KEPT\tfault\t{}\t", fault.replace('\n', "\u{1}").replace('\t', " ")));
}

/// Goal: an owner that a file system takes and does not keep is counted, and what was to be setuid for its
/// owner is not setuid for another.
/// Method: calls that change owners do nothing and say that they did.
#[test]
fn owners_that_are_taken_and_not_kept_are_told() {
    need!("root", "strace");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    for (name, mode) in [("f", 0o644), ("setuid", 0o4755), ("setgid", 0o2755)] {
        let file = room.file(&format!("data/{name}"), name);
        chown(&file, Some(1234), Some(77)).expect("give it away");
        set_mode(&file, mode);
    }
    std::os::unix::fs::symlink("f", data.join("l")).expect("a link");
    std::os::unix::fs::lchown(data.join("l"), Some(1234), Some(77)).expect("give it away");
    let deaf = ["fchown:retval=0", "fchownat:retval=0"].map(str::to_owned);
    let run = Way::Here.cp(&["-a"], &[contents(&data)], &sink).injected(&deaf).run().sane().exits(0);
    let said = Said::by(&run, (0, 0));
    assert_eq!(said.count_of("owners or groups not set"), 4, "{}", run.describe());
    assert_eq!(said.count_of("setuid or setgid bits dropped"), 2, "{}", run.describe());
    for name in ["f", "setuid", "setgid"] {
        use std::os::unix::fs::MetadataExt as _;
        let stat = fs::metadata(sink.join(name)).expect("stat");
        assert_eq!((stat.uid(), stat.mode() & 0o6000), (0, 0), "{name}");
    }
}

/// Goal: files whose holes the file system fills are counted, and no others.
/// Method: one with a hole and one without, to a file system that names no holes and counts all blocks.
#[test]
fn holes_that_are_none_are_counted() {
    need!("targets");
    let room = Room::new();
    let data = room.dir("data");
    fs::write(data.join("full"), vec![5; 1 << 20]).expect("write");
    fs::File::create(data.join("hole")).and_then(|file| file.set_len(2 << 20)).expect("make a hole");
    let model = crate::support::model::Model::up(1);
    for (to, count) in [(model.mount.join("to"), 1), (room.at("to"), 0)] {
        let run = Way::Here.cp(&["-r"], &[contents(&data)], &to).run().sane().exits(0);
        assert_eq!(
            Said::by(&run, (0, 0)).count_of("sparse files written in full"),
            count,
            "{}",
            run.describe()
        );
        assert_eq!(fs::read(to.join("hole")).expect("read"), vec![0; 2 << 20]);
    }
}
