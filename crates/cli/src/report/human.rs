//! Texts for people: the summary at the end, and lines about single entries.
//!
//! In: what a run did. Out: text without control characters but line ends; colours only when asked for.

use std::fmt::Write;
use std::time::Duration;

use haul::api::{
    Chosen, ChosenKind, EntryEnd, EntryKind, Held, Processors, SlowTarget, Stage, Status, Summary,
};
use haul::options::{Digest, Durability, Part, Verify};

use super::Ending;
use super::labels;
use crate::escape;
use crate::progress::{bytes, count, plural, time};

/// How to write.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manner {
    pub colour: bool,
    pub verbose: u8,
    pub dry_run: bool,
    /// `-i`: what changed of each entry is listed on stdout.
    pub itemize: bool,
    /// `-ii` or `-vv`: also of what is unchanged.
    pub unchanged: bool,
    /// `-0`: that list has names as they are, each ended by NUL.
    pub print0: bool,
    /// The destination is at another host.
    pub sends: bool,
    /// The part of one file that is copied, if not files as a whole.
    pub part: Option<Part>,
    /// Why files that are there already are left as they are, if the user asked for that.
    pub skips: Option<&'static str>,
}

const RED: &str = "31";
const GREEN: &str = "32";
const YELLOW: &str = "33";

impl Manner {
    fn paint(self, text: &str, colour: &str) -> String {
        if self.colour { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.into() }
    }
    /// A line about something that went wrong.
    pub fn error(self, text: &str) -> String {
        format!("{} {text}", self.paint("haul:", RED))
    }
}

/// An entry, if `-v` (copied or skipped), `-i` (skipped) or `-vv` (all) wants to see it.
pub fn entry(path: &[u8], (kind, end): (EntryKind, EntryEnd), manner: Manner) -> Option<String> {
    let (path, verbose) = (escape::name(path), manner.verbose);
    match end {
        EntryEnd::Copied if verbose >= 1 => Some(path),
        EntryEnd::Unchanged if verbose >= 2 || manner.unchanged => Some(format!("{path} (unchanged)")),
        EntryEnd::Skipped if verbose >= 1 || manner.itemize => {
            // A link may have been left out because the destination has none.
            let why = manner.skips.filter(|_| kind != EntryKind::Symlink);
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            Some(format!("{path} (skipped{why})"))
        }
        _ => None,
    }
}

/// A mapping of a dry run, of a part if it is one.
pub fn plan(
    source: &[u8],
    destination: &[u8],
    (size, metadata_only): (Option<u64>, bool),
    part: Option<Part>,
) -> String {
    let what = match (size, metadata_only) {
        (_, true) => " (metadata only)".into(),
        (Some(size), _) => {
            let from = part.map(|part| format!(" {}", place(part))).unwrap_or_default();
            format!(" ({}{from})", bytes(size))
        }
        (None, _) => String::new(),
    };
    format!("{} -> {}{what}", escape::name(source), escape::name(destination))
}

/// Where a part begins, and where it goes.
fn place(part: Part) -> String {
    let to = part.sink.map(|to| format!(", to byte {to}")).unwrap_or_default();
    format!("from byte {} on{to}", part.source)
}

/// An entry that failed.
pub fn failed(path: &[u8], stage: &str, text: &str, manner: Manner) -> String {
    let (bytes, path, text) = (path, escape::name(path), escape::text(text));
    // The path stands there once.
    let head = format!("copy {}: ", escape::text(&escape::within(bytes)));
    let text =
        text.strip_prefix(&head).or_else(|| text.strip_prefix(&format!("copy {path}: "))).unwrap_or(&text);
    manner.error(&format!("{path}: {text} ({})", escape::text(stage)))
}

/// What is said even with `-q`: nothing, unless the run did not end well.
pub fn verdict(ending: &Ending, manner: Manner) -> Vec<String> {
    let s = &ending.summary;
    let mut lines = Vec::new();
    if let Some(error) = &s.error {
        lines.push(manner.error(&escape::text(&error.text)));
    }
    if s.status == Status::Partial || s.failed > 0 {
        let why = match s.vanished {
            0 => String::new(),
            n if n == s.failed => ": vanished from the source meanwhile".into(),
            n => format!(", {} of them vanished from the source meanwhile", count(n)),
        };
        lines.push(manner.error(&format!("{} not copied{why}", entries(s.failed))));
    }
    lines.extend(ending.lists.errors.iter().map(|error| manner.error(&escape::text(error))));
    if s.status == Status::Failed && s.error.is_none() {
        lines.push(manner.error("the copy failed"));
    }
    match s.status {
        // `null://` keeps nothing.
        Status::Interrupted if s.durability.is_none() => lines.push("interrupted".into()),
        Status::Interrupted => lines.push(format!("interrupted; {}", go_on(s))),
        Status::Failed if s.durability.is_none() => {}
        Status::Failed if s.bytes_sent > 0 || s.files > 0 => lines.push(go_on(s)),
        Status::Partial if s.vanished == s.failed && s.failed > 0 => {}
        Status::Partial => {
            if s.lasting > 0 {
                let names = match s.lasting {
                    1 if s.failed == 1 => "it".to_owned(),
                    n if n == s.failed => "they".to_owned(),
                    n => format!("{} of them", count(n)),
                };
                lines.push(format!("{names} will fail again until what is said above is mended"));
            }
            if s.failed == 0 || s.lasting + s.vanished < s.failed {
                let which = if s.lasting > 0 { "the others" } else { "those" };
                lines.push(format!("to try {which} again, run the same command again"));
            }
        }
        _ => {}
    }
    lines
}

/// How to go on after a run that did not come to its end.
fn go_on(s: &Summary) -> String {
    let again = match s.resumes {
        true => "to resume, run the same command again: what is finished is not moved again",
        false => {
            "to complete it, run the same command again: finished files are not moved again, \
             unfinished ones from their beginning"
        }
    };
    again.into()
}

fn entries(n: u64) -> String {
    match n {
        0 => "some entries were".into(),
        n => plural(n, "entry was", "entries were"),
    }
}

/// The whole summary, without what [`verdict`] says.
pub fn summary(ending: &Ending, manner: Manner) -> String {
    let s = &ending.summary;
    let mut out = String::new();
    head(&mut out, s, manner);
    if let Some(part) = s.part {
        let of = Part { sink: None, ..part }.in_words();
        let to = part.sink.map_or(", which are all of the destination".to_owned(), |to| {
            format!(", to byte {to} of the destination")
        });
        let _ = writeln!(out, "  part: {of} of the source{to}");
    }
    if manner.dry_run {
        if s.in_place {
            out += "  in place: it would be written into the files that stand there\n";
        }
        not_kept(&mut out, s);
        for line in s.chosen.iter().filter(|line| line.kind == ChosenKind::Unseen) {
            let _ = writeln!(out, "  {}: {}", line.name, one_line(&line.value));
        }
        return out;
    }
    transport(&mut out, s);
    if s.digest == Digest::Xxh3 && (s.cloned == 0 || s.files > s.cloned) {
        out += "  checked with xxh3: accidents were looked for, attackers not\n";
    }
    read_back(&mut out, s);
    held(&mut out, s);
    if let (Some(kind), Some(_)) = (s.in_memory(), s.durability) {
        let kind = escape::text(kind);
        let _ = writeln!(
            out,
            "  NOT durable: the destination is memory ({kind}): what was copied is gone with the next boot"
        );
    }
    third_party(&mut out, s);
    out += match s.durability {
        // Of nothing nothing is said.
        Some(_) if s.files == 0 && (s.servers_word || s.third_party.is_some()) => "",
        Some(_) if s.third_party.is_some() => {
            "  NOT known to be durable: that it is stored is what the destination's server says\n"
        }
        Some(_) if s.in_memory().is_some() => "",
        Some(_) if s.servers_word => {
            "  durable by the server's word alone: it said of each file that it has all of it; FTP tells nothing of media\n"
        }
        Some(Durability::Disk) if s.status == Status::Complete => {
            "  durable: everything is on media under its name\n"
        }
        Some(Durability::Disk) => "  durable: what was copied is on media under its name\n",
        Some(Durability::None) => "  NOT durable (--durability=none): a power cut may lose files\n",
        None => "  NOT kept: null:// checks what arrives and forgets it\n",
    };
    // Where nothing was sent nothing was begun.
    if s.in_place && (s.files > 0 || (s.status != Status::Complete && s.bytes_sent > 0)) {
        out += match s.status {
            Status::Complete => "  in place: it was written into the files that stood there\n",
            _ if s.servers_word => {
                "  in place: files that were begun and not ended may be partly new, as their server has it, until the same command has completed \
                 them\n"
            }
            _ => {
                "  in place: files that were begun and not ended are partly new, until the same command has completed them\n"
            }
        };
    }
    costs(&mut out, s);
    if s.stages.iter().any(|stage| stage.shares() != (0.0, 0.0, 0.0)) {
        // Where the time went is told if somebody wants to know, or if something was slow.
        let slow = !s.slow_targets.is_empty() || s.slow_others > 0;
        stages(&mut out, s, manner.verbose > 0 || slow);
    }
    slow_targets(&mut out, s);
    if s.memory_limited {
        out += "  memory held the rate down: --memory SIZE allows more\n";
    }
    not_kept(&mut out, s);
    if s.strays > 0 {
        let strays = plural(s.strays, "connection from strangers was", "connections from strangers were");
        let _ = writeln!(out, "  {strays} turned away");
    }
    if let Some(counts) = &ending.lists.manifest {
        let goes_into = manner.part.is_some_and(|part| part.sink.is_some());
        if goes_into {
            let _ =
                writeln!(out, "  manifest: {} of a file, in its .json", plural(counts.json, "part", "parts"));
        } else {
            let _ = writeln!(out, "  manifest: {}", plural(counts.plain, "file", "files"));
        }
        if counts.json > 0 && !goes_into {
            let _ = writeln!(
                out,
                "  manifest: {} more, whose names b3sum cannot check, are in its .json",
                count(counts.json)
            );
        }
    }
    if ending.dropped > 0 {
        let lines = plural(ending.dropped, "line was", "lines were");
        let _ = writeln!(out, "  {lines} not shown: the reader was too slow");
    }
    for Chosen { kind, name, value, .. } in s.chosen.iter().filter(|line| is_always_told(line.kind)) {
        // What can be resumed is no rubbish.
        let name = if *kind == ChosenKind::Debris { "left here" } else { name };
        let _ = writeln!(out, "  {name}: {}", one_line(value));
    }
    if manner.verbose > 0 {
        for Chosen { name, value, .. } in s.chosen.iter().filter(|line| !is_always_told(line.kind)) {
            let _ = writeln!(out, "  chosen: {} = {}", one_line(name), one_line(value));
        }
    }
    out
}

/// Whether such a line stands in every report.
fn is_always_told(kind: ChosenKind) -> bool {
    use ChosenKind::{
        Attempts, CameAlong, ConnectionLost, Debris, KeptUnseen, LeftOut, NotCompared, NotKnown,
        NotProtected, NotRecorded, OthersDirs, Replicas, SentAgain, Skipped,
    };
    matches!(
        kind,
        Attempts
            | CameAlong
            | Debris
            | KeptUnseen
            | LeftOut
            | NotCompared
            | NotKnown
            | NotProtected
            | NotRecorded
            | OthersDirs
            | Replicas
            | SentAgain
            | ConnectionLost
            | Skipped
    )
}

fn head(out: &mut String, s: &Summary, manner: Manner) {
    let colour = match s.status {
        Status::Complete => GREEN,
        Status::Partial | Status::Interrupted => YELLOW,
        Status::Failed => RED,
    };
    let word = manner.paint(labels::status(s.status), colour);
    let mut what = vec![plural(s.files, "file", "files")];
    // One that stood there was not copied, whatever of it was set.
    let dirs = s.dirs.saturating_sub(s.amended_dirs);
    let others = [
        (dirs, "directory", "directories"),
        (s.symlinks, "symlink", "symlinks"),
        (s.hard_links, "hard link", "hard links"),
        (s.specials, "special file", "special files"),
    ];
    for (n, one, many) in others {
        if n > 0 {
            what.push(plural(n, one, many));
        }
    }
    let what = what.join(", ");
    if manner.dry_run {
        let _ = writeln!(out, "dry run {word}: would copy {what}, {}; nothing was changed", bytes(s.bytes));
    } else {
        // Holes and what an earlier run left are part of the files, and were not moved by this run.
        let rate = if s.seconds > 0.0 { s.bytes_sent as f64 / s.seconds } else { 0.0 };
        let (all, moved, rate) = (bytes(s.bytes), bytes(s.bytes_sent), bytes(rate as u64));
        let rate = match all == moved {
            true => format!(", {rate}/s"),
            false if s.cloned > 0 && s.bytes_sent == 0 => String::new(),
            // What it had is read to be compared, and not sent.
            false if s.servers_word && s.resumed => format!("; sent {moved}, {rate}/s"),
            // Whether it came to lie there is the server's to say.
            false if s.servers_word => format!("; read {moved} of the source, {rate}/s"),
            false => format!("; moved {moved}, {rate}/s"),
        };
        let resumed = if s.resumed { " (resumed)" } else { "" };
        let _ = writeln!(out, "{word}{resumed}: copied {what}, {all} in {}{rate}", time(s.seconds));
    }
    // Of what was unchanged, metadata alone has a line of its own.
    let unchanged = s.unchanged.saturating_sub(s.amended);
    let others: Vec<String> = [(unchanged, "unchanged"), (s.skipped, "skipped"), (s.failed, "failed")]
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, name)| format!("{} {name}", count(*n)))
        .collect();
    if !others.is_empty() {
        let _ = writeln!(out, "  {}", others.join(", "));
    }
    if s.kept > 0 && matches!(s.status, Status::Interrupted | Status::Failed) {
        let _ = writeln!(out, "  kept for the resume: {} of unfinished files", bytes(s.kept));
    }
    let ended_early = matches!(s.status, Status::Interrupted | Status::Failed);
    if !s.resumes && s.durability.is_some() && ended_early && s.bytes_sent > 0 {
        let finished = match s.files.saturating_add(s.unchanged) {
            0 => "nothing of unfinished files",
            _ => "finished files; nothing of unfinished ones",
        };
        let trust = if s.would_resume_by_trust { ", unless it has --resume=trust" } else { "" };
        let _ = writeln!(out, "  kept for the next run: {finished}{trust}");
    }
    for (n, one, many) in [(s.amended, "file", "files"), (s.amended_dirs, "directory", "directories")] {
        if n > 0 {
            let _ = writeln!(out, "  {}: metadata only", plural(n, one, many));
        }
    }
    if s.cloned > 0 {
        let files = plural(s.cloned, "file shares its blocks", "files share their blocks");
        let _ = writeln!(
            out,
            "  cloned: {files} with the source, {}: nothing of that was read, moved or checked",
            bytes(s.cloned_bytes)
        );
    }
    let first = bytes(s.prefix_bytes);
    match s.prefixes {
        0 => {}
        // Of a file that grew a part may be copied that is not its beginning.
        _ if let Some(Part { source: from @ 1.., .. }) = s.part => {
            let _ = writeln!(
                out,
                "  the file grew while it was copied: of it {first} from byte {from} on were copied"
            );
        }
        1 => {
            let _ = writeln!(out, "  1 file grew while it was copied: its first {first} were copied");
        }
        n => {
            let n = count(n);
            let _ = writeln!(
                out,
                "  {n} files grew while they were copied: of each the first bytes were, {first} in all"
            );
        }
    }
}

fn transport(out: &mut String, s: &Summary) {
    let how = match s.protect.as_str() {
        "local" => return,
        "servers" => {
            let _ = writeln!(
                out,
                "  moved by the servers, {}: nothing of it came by this host",
                escape::text(&s.path)
            );
            return;
        }
        "tls" => format!("in {}", plural(s.streams.into(), "TLS 1.3 stream", "TLS 1.3 streams")),
        "integrity" => {
            let streams = plural(s.streams.into(), "stream", "streams");
            format!("in {streams}, data unencrypted (--protect=integrity)")
        }
        "ssh" => "through the ssh connection".into(),
        other => escape::text(other),
    };
    let path = if s.path.is_empty() { String::new() } else { format!(", {}", escape::text(&s.path)) };
    let again = match s.objects_resent {
        0 => String::new(),
        n => format!("; {} sent again", plural(n, "object was", "objects were")),
    };
    let _ = writeln!(out, "  sent {} {how}{path}{again}", bytes(s.bytes_sent));
}

/// What is known of the content of files that two servers moved.
fn third_party(out: &mut String, s: &Summary) {
    let Some(third) = &s.third_party else { return };
    if third.compared > 0 {
        let files = plural(third.compared, "file", "files");
        let sum = escape::text(third.sum.as_deref().unwrap_or("a sum"));
        let _ = writeln!(out, "  compared: {files} by {sum}, which each of the two servers told of its own");
    }
    if third.not_compared > 0 {
        let files = plural(third.not_compared, "file", "files");
        let _ = writeln!(
            out,
            "  NOT compared: the content of {files}, for no sum was told by both servers; the sizes are alike"
        );
    }
    if third.held > 0 {
        let _ = writeln!(out, "  held from an earlier run: {}", bytes(third.held));
    }
}

/// Which files were read back from the destination's storage, if that was asked for. What was unchanged was
/// not.
fn read_back(out: &mut String, s: &Summary) {
    if s.verify != Verify::Disk || s.durability.is_none() || s.third_party.is_some() {
        return;
    }
    if s.files > 0 {
        let which = if s.unchanged > 0 { "each file that was copied" } else { "each file" };
        let again = match s.came_back {
            0 => String::new(),
            1 => "; once a file came back wrong, and was written again".into(),
            n => format!(
                "; {} times a file came back wrong, and was written again if it was the first",
                count(n)
            ),
        };
        let whence = match s.servers_word {
            // Whether it came from its storage nobody can see.
            true => "through the server",
            false => "from the destination's storage",
        };
        let _ = writeln!(out, "  verified: {which} was read back {whence}{again}");
    }
    if s.unchanged > 0 {
        let files = plural(s.unchanged, "unchanged file was", "unchanged files were");
        let _ = writeln!(out, "  NOT verified: {files} not read back; --force copies and verifies them too");
    }
}

/// What became of the parts of files that an earlier run left.
fn held(out: &mut String, s: &Summary) {
    let Held { checked, wrong, trusted, seconds } = s.held;
    if checked > 0 {
        let again = match wrong {
            0 => "all of it as it was left".into(),
            n => format!("{} were not as they were left, and were sent again", bytes(n)),
        };
        let _ = writeln!(
            out,
            "  held from an earlier run: {} read in {}, {again}",
            bytes(checked),
            time(seconds)
        );
    }
    if trusted > 0 {
        let _ = writeln!(
            out,
            "  NOT read: {} held from an earlier run, which --resume=trust believes; these files were not hashed whole",
            bytes(trusted)
        );
    }
}

fn costs(out: &mut String, s: &Summary) {
    let _ = write!(out, "  processor {:.1} s, memory {}", s.cpu_seconds_near, bytes(s.rss_near));
    if s.cpu_seconds_far.is_some() || s.rss_far.is_some() {
        out.push_str("; far end");
        if let Some(cpu) = s.cpu_seconds_far {
            let _ = write!(out, " {cpu:.1} s");
        }
        if let Some(rss) = s.rss_far {
            let _ = write!(out, " {}", bytes(rss));
        }
    }
    out.push('\n');
}

/// The stage in words. Within one process there is neither a network nor a second host.
fn stage_name(stage: Stage, is_local: bool) -> &'static str {
    match stage {
        Stage::SourceHost if is_local => "hashing",
        Stage::SinkHost if is_local => "checking",
        Stage::SourceStorage => "source storage",
        Stage::SourceHost => "source host",
        Stage::Network => "network",
        Stage::SinkHost => "sink host",
        Stage::SinkStorage => "sink storage",
    }
}

/// What limited the rate; with `all` where the time went, too.
fn stages(out: &mut String, s: &Summary, all: bool) {
    if all {
        stage_table(out, s);
        processors(out, s);
    }
    if s.rate_limited {
        // What was waited for is in the time, and was nobody's limit.
        let lost = s.chosen.iter().any(|line| line.kind == ChosenKind::ConnectionLost);
        let while_there = if lost { ", while there was a connection" } else { "" };
        let _ = writeln!(out, "  limited by the rate limit (--rate){while_there}");
    } else if let (Some(stage), Some(own)) = (s.limited_by, s.others_busy()) {
        let host = match (s.protect.as_str(), stage) {
            ("local", _) => "this host",
            (_, Stage::SourceHost) => "the source host",
            _ => "the sink host",
        };
        let own = own * 100.0;
        let _ = writeln!(
            out,
            "  limited by the processors of {host}, used up by other programs (haul itself: {own:.0} %)"
        );
    } else if let Some(stage) = s.limited_by {
        let words = match stage {
            Stage::SourceHost | Stage::SinkHost if s.protect == "local" => {
                "the processors of this host (hashing, checking)"
            }
            Stage::SourceStorage if s.from_server => "the source's server, and the way from it",
            Stage::SourceStorage => "reading from the source's storage",
            Stage::SourceHost => "the source host (hashing, sealing, sending)",
            Stage::Network => "the network between the hosts",
            Stage::SinkHost => "the sink host (receiving, opening, checking)",
            Stage::SinkStorage if s.servers_word => "the destination's server, and the way to it",
            Stage::SinkStorage => "writing to the sink's storage",
        };
        let _ = writeln!(out, "  limited by {words}");
    }
}

fn stage_table(out: &mut String, s: &Summary) {
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let _ = writeln!(out, "  {:<16}{:>8}{:>9}{:>9}", "stage", "busy", "starved", "blocked");
    let is_local = s.protect == "local";
    for (stage, spent) in Stage::ALL.iter().zip(&s.stages) {
        if is_local && *stage == Stage::Network {
            continue;
        }
        let (busy, starved, blocked) = spent.shares();
        let name = match stage {
            Stage::SourceStorage if s.from_server => "source's server",
            Stage::SinkStorage if s.servers_word => "sink's server",
            _ => stage_name(*stage, is_local),
        };
        let _ =
            writeln!(out, "  {name:<16}{:>8}{:>9}{:>9}", percent(busy), percent(starved), percent(blocked));
    }
}

/// How busy they were, by whomever.
fn processors(out: &mut String, s: &Summary) {
    let busy = |of: Processors, own: Option<f64>| {
        let own = own.map(|own| format!(" (haul itself: {:.0} %)", own * 100.0)).unwrap_or_default();
        format!("{:.0} % of {} busy{own}", of.share() * 100.0, of.count)
    };
    let told = |end: usize| s.processors[end].map(|of| busy(of, s.own_shares[end]));
    let (source, sink) = (told(0), told(1));
    let hosts = match s.protect.as_str() {
        "local" => [(None, source), (None, None)],
        _ => [(Some("source host "), source), (Some("sink host "), sink)],
    };
    let told =
        hosts.into_iter().filter_map(|(host, busy)| Some(host.unwrap_or_default().to_owned() + &busy?));
    let told: Vec<String> = told.collect();
    if !told.is_empty() {
        let _ = writeln!(out, "  processors: {}", told.join(", "));
    }
}

fn slow_targets(out: &mut String, s: &Summary) {
    for target in &s.slow_targets {
        let SlowTarget { end, name, congested, hung } = target;
        let for_so_long = |word: &str, spent: Duration| format!("{word} for {}", time(spent.as_secs_f64()));
        // Less than a tenth of a second is none.
        let told = [("hung", *hung), ("was congested", *congested)];
        let told: Vec<String> = told
            .into_iter()
            .filter(|(_, spent)| *spent >= Duration::from_millis(100))
            .map(|(word, spent)| for_so_long(word, spent))
            .collect();
        let (end, name) = (end.name(), escape::name(name.as_bytes()));
        let _ = writeln!(out, "  the {end}'s storage target {name} {}", told.join(" and "));
    }
    match s.slow_others {
        0 => {}
        1 => *out += "  and so was one other storage target\n",
        n => drop(writeln!(out, "  and so were {} other storage targets", count(n))),
    }
}

/// What either end says of itself, in a line of the summary: it ends where we end it, or a far end could
/// write lines of ours.
fn one_line(text: &str) -> String {
    escape::text(text).replace('\n', "\\n")
}

fn not_kept(out: &mut String, s: &Summary) {
    let kinds: Vec<String> =
        s.not_kept.iter().map(|(what, n)| format!("{} ({})", escape::text(what), count(*n))).collect();
    if !kinds.is_empty() {
        let _ = writeln!(out, "  not kept: {}", kinds.join(", "));
    }
}

#[cfg(test)]
mod tests;
