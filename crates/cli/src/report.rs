//! What a run tells: lines for people on stderr, events for programs on stdout, lists in files.
//!
//! In: events from haul's threads, which must never wait for a terminal or a reader. Out: see [`human`],
//! [`json`], and the files of `--manifest` and `--failures`.
//! Two threads: the *screen* writes stderr and stdout; when its queue is full, because whoever reads is slow,
//! events are dropped and counted. The *lists* thread writes the files; nothing of theirs may be lost, so
//! when its queue is full the sender waits, for a disk and never for a person.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use haul::api::{CopyRequest, Event, Observer, Side, Sides, Status, Summary, TargetTable};
use haul::errno;
use haul::options::Role;

use crate::command::FAILED;
use crate::live::Block;
use crate::manifest::Part;
use crate::progress::Tracker;
use crate::table;
use crate::typed::typed;

pub mod html;
pub mod human;
pub mod json;
mod labels;
pub mod list;
pub mod lists;
pub mod network;
pub mod path;
pub mod probe;

use human::Manner;
use json::Events;
use list::List;
use lists::{Files, How, Lists, ToLists};

/// Most events that wait for the screen, and for the lists.
const SCREEN_QUEUE_MAX: usize = 16_384;
const LISTS_QUEUE_MAX: usize = 4_096;
/// In a dry run a slow reader is waited for so long, well within what the other end takes for silence; and
/// how often one looks.
const READER_WAITS_MAX: Duration = Duration::from_secs(20);
const READER_LOOK: Duration = Duration::from_millis(5);
/// Failures shown one by one without `-v`; the rest is counted.
const FAILED_SHOWN_MAX: u64 = 20;
/// A cause that is no shorter is said once, and so many of the other entries that it is of are named.
const LONG_CAUSE: usize = 100;
const OTHERS_NAMED_MAX: usize = 5;
/// A live line is drawn once in each slot of this length.
pub const REDRAW: Duration = Duration::from_millis(200);
/// Without a terminal there is a line this often.
pub const LOG_EVERY: Duration = Duration::from_secs(60);
/// The width and the height of a terminal that does not say.
const WIDTH_DEFAULT: usize = 80;
const HEIGHT_DEFAULT: usize = 24;

/// What to tell, and how.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub manner: Manner,
    pub quiet: bool,
    pub json: bool,
    /// stderr is a terminal that can redraw a line.
    pub live: bool,
    /// The table of storage targets stands below that line.
    pub watch: bool,
    pub manifest: Option<PathBuf>,
    /// What the manifest says of the only file, if that is a part.
    pub part: Option<Part>,
    pub failures: Option<PathBuf>,
    /// The run copies by the list that stands there: it stays until the new one is whole.
    pub failures_wait: bool,
}

/// How a run ended, as the reports need it.
pub struct Ending {
    pub summary: Summary,
    pub exit_code: i32,
    pub lists: Lists,
    /// Events that were never shown.
    pub dropped: u64,
}

enum ToScreen {
    Event(Event),
    Note(String),
    End(Box<Ending>),
}

/// Hears a run and reports it.
pub struct Reporter {
    screen: SyncSender<ToScreen>,
    lists: Option<SyncSender<ToLists>>,
    /// The lists know that the two ends agreed.
    lists_began: AtomicBool,
    dry_run: bool,
    dropped: AtomicU64,
    threads: Mutex<Option<Threads>>,
}

struct Threads {
    screen: JoinHandle<Option<i32>>,
    lists: Option<JoinHandle<Lists>>,
}

impl Reporter {
    /// Opens the lists and says that the run starts.
    ///
    /// # Errors
    /// A sentence for people and the exit code: a list cannot be written, or may not have its name. Better
    /// now than after hours.
    pub fn start(settings: &Settings, request: &CopyRequest) -> Result<Arc<Reporter>, (String, i32)> {
        let files = Files::open(settings)?;
        let (lists, lists_thread) = match files {
            None => (None, None),
            Some(files) => {
                let (sender, receiver) = sync_channel(LISTS_QUEUE_MAX);
                (Some(sender), Some(spawn("lists", move || files.run(&receiver))?))
            }
        };
        let (screen, receiver) = sync_channel(SCREEN_QUEUE_MAX);
        let out = settings.json.then(|| BufWriter::new(io::stdout()));
        let list = (!settings.json).then(|| BufWriter::new(io::stdout()));
        let list = List::new(list, settings.manner);
        let mut page = Screen::new(settings, (Events::new(out), list), io::stderr());
        page.start(request, now());
        let screen_thread = spawn("screen", move || page.run(&receiver))?;
        let threads = Mutex::new(Some(Threads { screen: screen_thread, lists: lists_thread }));
        let dry_run = settings.manner.dry_run;
        let (lists_began, dropped) = (AtomicBool::new(false), AtomicU64::new(0));
        Ok(Arc::new(Reporter { screen, lists, lists_began, dry_run, dropped, threads }))
    }

    /// A line for people that is not the engine's.
    pub fn note(&self, text: String) {
        self.post(ToScreen::Note(text));
    }

    /// Finishes the lists, says how the run ended, and returns the exit code: that of the run, or 1 if a list
    /// that was asked for, in a file or on stdout, could not be written. `interrupted_code`: which signal it
    /// was.
    pub fn finish(&self, mut summary: Summary, interrupted_code: i32) -> i32 {
        if let Some(error) = &mut summary.error {
            error.text = typed(&error.text);
        }
        for line in &mut summary.chosen {
            line.value = typed(&line.value);
        }
        let threads = self.threads.lock().ok().and_then(|mut threads| threads.take());
        let Some(Threads { screen, lists }) = threads else { return exit_code(&summary, interrupted_code) };
        let keep = matches!(summary.status, Status::Complete | Status::Partial);
        if let Some(sender) = &self.lists {
            let usage = summary.status == Status::Failed && summary.usage;
            let _ = sender.send(ToLists::End { keep, usage, how: self.how(&summary) });
        }
        let lists = lists.and_then(|thread| thread.join().ok()).unwrap_or_default();
        let mut exit_code = exit_code(&summary, interrupted_code);
        if exit_code == 0 && !lists.errors.is_empty() {
            exit_code = 1;
        }
        let dropped = self.dropped.load(Ordering::Relaxed);
        let ending = Box::new(Ending { summary, exit_code, lists, dropped });
        let _ = self.screen.send(ToScreen::End(ending));
        screen.join().ok().flatten().unwrap_or(exit_code)
    }

    /// What the list of failures is worth.
    fn how(&self, summary: &Summary) -> How {
        match (summary.status, &summary.error) {
            (Status::Complete | Status::Partial, _) if self.dry_run => {
                How::Short(0, "it was a dry run, which copies nothing".into())
            }
            (Status::Complete | Status::Partial, _) => How::Whole(summary.failed),
            (Status::Interrupted, _) if haul_mutant::removed("stopped-lists-are-not-whole") => {
                How::Whole(summary.failed)
            }
            (Status::Interrupted, _) => How::Short(0, "it was stopped".into()),
            (Status::Failed, Some(error)) => How::Short(error.errno().unwrap_or(0), error.text.clone()),
            (Status::Failed, None) => How::Short(0, "it failed".into()),
        }
    }

    fn post(&self, message: ToScreen) {
        let countable =
            !matches!(message, ToScreen::Event(Event::Progress(_) | Event::Waiting(_) | Event::Targets(_)));
        // A dropped one is made good by the next.
        let Err(mut refused) = self.screen.try_send(message) else { return };
        if !countable {
            return;
        }
        // The list of a dry run is what was asked for: nothing moves that a slow reader could hold up. Of one
        // that did not come back once, no more is expected until it takes something.
        let begun = Instant::now();
        while self.dry_run && self.dropped.load(Ordering::Relaxed) == 0 && begun.elapsed() < READER_WAITS_MAX
        {
            let TrySendError::Full(message) = refused else { break };
            thread::sleep(READER_LOOK);
            match self.screen.try_send(message) {
                Ok(()) => return,
                Err(again) => refused = again,
            }
        }
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

impl Observer for Reporter {
    fn event(&self, mut event: Event) {
        if let Event::Note(text) | Event::Failed { text, .. } = &mut event {
            *text = typed(text);
        }
        if let Some(lists) = &self.lists {
            match &event {
                Event::Progress(_) if !self.lists_began.swap(true, Ordering::Relaxed) => {
                    let _ = lists.send(ToLists::Begin);
                }
                Event::Failed { path, operation, errno, text, .. } => {
                    let (path, stage, text) = (path.clone(), operation.name(), text.clone());
                    let _ = lists.send(ToLists::Failed { path, stage, errno: *errno, text });
                }
                Event::Digest { path, root, bytes } => {
                    let _ = lists.send(ToLists::Digest { path: path.clone(), root: *root, bytes: *bytes });
                }
                _ => {}
            }
        }
        if !matches!(event, Event::Digest { .. }) {
            self.post(ToScreen::Event(event));
        }
    }
}

fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, (String, i32)> {
    thread::Builder::new()
        .name(name.into())
        .spawn(body)
        .map_err(|error| (format!("cannot start a thread: {}", errno::text(error)), FAILED))
}

fn exit_code(summary: &Summary, interrupted_code: i32) -> i32 {
    match summary.status {
        Status::Complete => 0,
        Status::Failed if summary.usage => 2,
        Status::Failed => 1,
        Status::Partial if summary.failed > 0 && summary.vanished == summary.failed => 4,
        Status::Partial => 3,
        Status::Interrupted => interrupted_code,
    }
}

/// The time of the day, RFC 3339, UTC.
pub fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

/// Why entries failed.
struct Cause {
    text: String,
    /// Without the name of the entry.
    bare: String,
    first: String,
    others: u64,
    /// The first [`OTHERS_NAMED_MAX`] of these.
    named: Vec<String>,
}

/// What stands on stderr and stdout.
struct Screen<O: Write, E: Write> {
    events: Events<O>,
    list: List<O>,
    err: E,
    manner: Manner,
    quiet: bool,
    live: bool,
    watch: bool,
    tracker: Tracker,
    targets: Sides,
    /// When each end's table came, in the run's own time.
    tables_at: [Duration; 2],
    /// The live lines, to be erased before anything else is written.
    block: Block,
    /// The slot of [`REDRAW`] or [`LOG_EVERY`] in which the last line was written.
    slot: u128,
    /// The last state was one of waiting.
    waits: bool,
    failed_shown: u64,
    /// Long causes that were said, of which entry first, and of how many others.
    causes: Vec<Cause>,
    /// What was asked for on stdout is not whole, and its reader did not leave.
    lost: bool,
}

impl<O: Write, E: Write> Screen<O, E> {
    fn new(settings: &Settings, (events, list): (Events<O>, List<O>), err: E) -> Screen<O, E> {
        Screen {
            events,
            list,
            err,
            manner: settings.manner,
            quiet: settings.quiet,
            live: settings.live,
            watch: settings.watch,
            tracker: Tracker::default(),
            targets: Sides::default(),
            tables_at: [Duration::ZERO; 2],
            block: Block::default(),
            slot: 0,
            waits: false,
            failed_shown: 0,
            causes: Vec::new(),
            lost: false,
        }
    }

    fn start(&mut self, request: &CopyRequest, time: String) {
        let wrote = self.events.start(request, time).and_then(|()| self.events.flush());
        self.heard(wrote);
    }

    /// The exit code, once the run ended.
    fn run(mut self, receiver: &Receiver<ToScreen>) -> Option<i32> {
        loop {
            let message = match receiver.try_recv() {
                Ok(message) => message,
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => {
                    let wrote = self.events.flush().and_then(|()| self.flush_list());
                    self.heard(wrote);
                    let Ok(message) = receiver.recv() else { return None };
                    message
                }
            };
            match message {
                ToScreen::Event(event) => self.event(&event),
                ToScreen::Note(text) => self.note(&text),
                ToScreen::End(ending) => return Some(self.end(&ending)),
            }
        }
    }

    fn event(&mut self, event: &Event) {
        match event {
            Event::Progress(progress) => self.tracker.update(progress),
            Event::Waiting(what) => self.tracker.wait(what),
            _ => {}
        }
        let wrote = self.events.event(event, &self.tracker);
        self.heard(wrote);
        match event {
            Event::Note(text) if !self.quiet => self.say(&crate::escape::text(text)),
            Event::Plan { source, destination, bytes, metadata_only } => {
                let wrote = self.list.mapping(source, destination, (*bytes, *metadata_only));
                self.heard(wrote);
            }
            Event::Entry { path, kind, end, change, bytes, link_of } => {
                let listed = self.list.entry(path, *kind, (*end, *change), *bytes, link_of.as_deref());
                let elsewhere = *listed.as_ref().unwrap_or(&true);
                self.heard(listed.map(drop));
                if let Some(line) = human::entry(path, (*kind, *end), self.manner).filter(|_| !elsewhere) {
                    self.say(&line);
                }
                if self.live {
                    let wrote = self.flush_list();
                    self.heard(wrote);
                }
            }
            Event::Failed { path, operation, text, .. } => self.failed(path, operation.name(), text),
            // What a dry run looks at is not moved.
            Event::Progress(_) if !self.quiet && !self.manner.dry_run => self.progress(),
            Event::Waiting(_) if !self.quiet => {
                // The run's time has not begun.
                self.slot = if self.live { u128::MAX } else { self.slot };
                self.progress();
            }
            Event::Targets(table) => {
                self.tables_at[table.end as usize] = self.tracker.shown().elapsed;
                self.side(table.end).table = Some(TargetTable::clone(table));
            }
            Event::NoTargets { end, why } => self.side(*end).why_not = Some(why.clone()),
            _ => {}
        }
    }

    fn side(&mut self, end: Role) -> &mut Side {
        match end {
            Role::Source => &mut self.targets.source,
            Role::Sink => &mut self.targets.sink,
        }
    }

    fn note(&mut self, text: &str) {
        let wrote = self.events.note(text).and_then(|()| self.events.flush());
        self.heard(wrote);
        if !self.quiet {
            self.say(text);
        }
    }

    fn failed(&mut self, path: &[u8], stage: &str, text: &str) {
        if self.was_said(path, text) {
            return;
        }
        self.failed_shown += 1;
        if self.failed_shown <= FAILED_SHOWN_MAX || self.manner.verbose > 0 {
            self.say(&human::failed(path, stage, text, self.manner));
        } else if self.failed_shown == FAILED_SHOWN_MAX + 1 {
            self.say(&self.manner.error("further failures are only counted; --failures FILE lists them all"));
        }
    }

    /// Whether what is long was said of another entry: it is counted, and said once more at the end, with
    /// that.
    fn was_said(&mut self, path: &[u8], text: &str) -> bool {
        if self.manner.verbose > 0 || haul_mutant::removed("one-cause-is-said-once") {
            return false;
        }
        let path = haul::escape::name(path);
        // The entry's own name makes no other cause of it.
        let bare = text.replace(&*path, "");
        if bare.len() < LONG_CAUSE {
            return false;
        }
        let is_same = |cause: &&mut Cause| cause.text == text || cause.bare == bare;
        if let Some(cause) = self.causes.iter_mut().find(is_same) {
            cause.others += 1;
            if cause.named.len() < OTHERS_NAMED_MAX {
                cause.named.push(path);
            }
            return true;
        }
        if self.failed_shown < FAILED_SHOWN_MAX {
            let text = text.to_owned();
            self.causes.push(Cause { text, bare, first: path, others: 0, named: Vec::new() });
        }
        false
    }

    /// How many others failed as one did that was named.
    fn others(&mut self) {
        for Cause { first, others, named, .. } in std::mem::take(&mut self.causes) {
            if others == 0 {
                continue;
            }
            let more = match others > named.len() as u64 {
                true => ", ...; --failures FILE lists them all",
                false => "",
            };
            let others = crate::progress::plural(others, "other entry", "other entries");
            let text = format!("{others} failed as {first} did: {}{more}", named.join(", "));
            self.say(&self.manner.error(&text));
        }
    }

    fn progress(&mut self) {
        let elapsed = self.tracker.shown().elapsed.as_nanos();
        let every = if self.live { REDRAW } else { LOG_EVERY };
        let slot = elapsed / every.as_nanos();
        // What it begins to wait for is said at once.
        let waits = self.tracker.shown().waiting.is_some();
        let begins = waits && !std::mem::replace(&mut self.waits, waits);
        self.waits = waits;
        if slot == self.slot && !begins {
            return;
        }
        self.slot = slot;
        if self.live {
            // One column stays free: a full line would wrap on some terminals.
            let width = width().saturating_sub(1);
            let mut lines = vec![self.tracker.line(width)];
            if self.watch {
                for end in [Role::Source, Role::Sink] {
                    let age = self.tracker.shown().elapsed.saturating_sub(self.tables_at[end as usize]);
                    self.side(end).age = Some(age.as_secs_f64());
                }
                lines.extend(table::lines(&self.targets, width, height().saturating_sub(2)));
            }
            let drawn = self.block.draw(&lines);
            let _ = self.err.write_all(drawn.as_bytes()).and_then(|()| self.err.flush());
        } else {
            let line = self.tracker.line(usize::MAX);
            let _ = writeln!(self.err, "{} {line}", now());
        }
    }

    /// On one terminal the list goes above the live lines.
    fn flush_list(&mut self) -> io::Result<()> {
        if !self.list.is_pending() {
            return Ok(());
        }
        let erase = self.block.erase();
        let _ = self.err.write_all(erase.as_bytes()).and_then(|()| self.err.flush());
        self.list.flush()
    }

    /// Says how the run ended; returns its exit code.
    fn end(&mut self, ending: &Ending) -> i32 {
        let s = &ending.summary;
        self.others();
        let wrote = self.flush_list().and_then(|()| self.list.end(s));
        self.heard(wrote);
        // What never began has nothing to sum up but its error.
        let began =
            s.status != Status::Failed || s.files + s.dirs + s.unchanged + s.failed + s.bytes_sent > 0;
        if !self.quiet && began {
            let summary = human::summary(ending, self.manner);
            self.say(summary.trim_end());
        }
        for line in human::verdict(ending, self.manner) {
            self.say(&line);
        }
        let wrote = self.events.summary(ending, self.manner.dry_run);
        self.heard(wrote);
        // A list on stdout that was asked for and is not whole is no success. No event tells of it: they went
        // the same way.
        if self.lost && ending.exit_code == 0 { FAILED } else { ending.exit_code }
    }

    /// A line on stderr. Errors there are not worth a copy.
    fn say(&mut self, text: &str) {
        let erase = self.block.erase();
        let _ = self.err.write_all(format!("{erase}{text}\n").as_bytes()).and_then(|()| self.err.flush());
    }

    /// Says once that stdout is lost. A reader that went away knows it; anything else is news.
    fn heard(&mut self, wrote: io::Result<()>) {
        match wrote {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                self.lost = !haul_mutant::removed("lost-stdout-is-no-success");
                self.say(&self.manner.error(&format!(
                    "stdout cannot be written any more: {}; the run goes on, but does not end as a success",
                    errno::text(error)
                )));
            }
            _ => {}
        }
    }
}

/// Columns of the terminal that is stderr, asked anew each time: windows are resized.
pub fn width() -> usize {
    match rustix::termios::tcgetwinsize(rustix::stdio::stderr()) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col),
        _ => WIDTH_DEFAULT,
    }
}

/// Rows of the same.
fn height() -> usize {
    match rustix::termios::tcgetwinsize(rustix::stdio::stderr()) {
        Ok(size) if size.ws_row > 0 => usize::from(size.ws_row),
        _ => HEIGHT_DEFAULT,
    }
}

#[cfg(test)]
#[path = "report/tests.rs"]
mod tests;
#[cfg(test)]
mod validator;
