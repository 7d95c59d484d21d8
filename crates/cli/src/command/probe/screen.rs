//! What all probes share at the terminal: events on stdout, a live line or now and then a plain one on
//! stderr, and the reports.

use std::io::{self, Stdout, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::surroundings::Surroundings;
use super::super::{FAILED, USAGE, complain};
use crate::args::forms::Forms;
use crate::report::{LOG_EVERY, REDRAW, now, width};
use crate::signals::{self, Asked};
use crate::typed::typed;
use crate::{escape, output};
use haul::api::Handle;
use haul::errno;

/// How the CSV's path names stdout.
const STDOUT: &str = "-";

/// A line for people. A closed stderr is no reason to end.
pub fn say(text: &str) {
    let _ = writeln!(io::stderr(), "haul: {}", typed(text));
}

/// What stops a probe, and what asked it to. The first signal says what happens then: `stopping`.
///
/// # Errors
/// Signals cannot be watched; it is said, and this is the exit code.
pub fn watched(stopping: &'static str) -> Result<(Handle, Asked), i32> {
    let handle = Handle::new();
    let stopper = handle.clone();
    let asked = signals::watch(None, move |_| {
        stopper.stop();
        say(stopping);
    });
    match asked {
        Ok(asked) => Ok((handle, asked)),
        Err(error) => Err(complain(&format!("cannot watch for signals: {}", errno::text(error)), FAILED)),
    }
}

/// What events and the end of a probe share.
pub fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // Plain fields, whole at every panic that could happen under the lock.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the reports can be written to where they shall go; if not, a sentence and an exit code. `others`:
/// further files.
pub fn check(forms: &Forms, others: &[&Path]) -> Result<(), (String, i32)> {
    if forms.json && forms.csv.as_deref().is_some_and(is_stdout) {
        return Err(("--json and --csv - both want stdout: give one of them a file".into(), USAGE));
    }
    let files =
        [&forms.csv, &forms.html].into_iter().flatten().map(AsRef::as_ref).chain(others.iter().copied());
    for path in files.filter(|path| !is_stdout(path)) {
        output::check(path).map_err(|error| (error, FAILED))?;
    }
    Ok(())
}

fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == STDOUT
}

/// A probe that is over, in all its forms.
pub struct Reports<'a> {
    pub csv: &'a dyn Fn() -> String,
    pub page: &'a dyn Fn() -> String,
    pub text: &'a dyn Fn() -> String,
    /// Writes the last event: with this status, exit code and error.
    pub summary: &'a dyn Fn(&mut Stdout, &str, i32, Option<&str>) -> io::Result<()>,
}

/// See the module.
pub struct Screen {
    json: bool,
    live: bool,
    /// The slot of [`REDRAW`] or [`LOG_EVERY`] in which the last line was written.
    slot: u64,
    drawn: bool,
    /// The first error of stdout; nothing is written there after it.
    broken: Option<io::Error>,
}

impl Screen {
    pub fn new(json: bool, surroundings: &Surroundings) -> Screen {
        let terminal = surroundings.stderr_terminal && surroundings.capable;
        // A line that redraws itself between events on the same terminal would spoil both.
        let live = terminal && !(json && surroundings.stdout_terminal);
        Screen { json, live, slot: 0, drawn: false, broken: None }
    }

    pub fn say(&mut self, text: &str) {
        self.erase();
        say(&escape::text(text));
    }

    /// Shows the line for so many columns that `line` makes, if it is time for one. `seconds`: since the
    /// probe began.
    pub fn progress(&mut self, seconds: f64, line: impl FnOnce(usize) -> String) {
        let every = if self.live { REDRAW } else { LOG_EVERY };
        // Saturates.
        let slot = (seconds / every.as_secs_f64()) as u64;
        if slot == self.slot {
            return;
        }
        self.slot = slot;
        let mut err = io::stderr();
        if self.live {
            // One column stays free: a full line would wrap on some terminals.
            let line = line(width().saturating_sub(1));
            let _ = write!(err, "\r{line}\x1b[K").and_then(|()| err.flush());
            self.drawn = true;
        } else {
            let _ = writeln!(err, "{} {}", now(), line(usize::MAX));
        }
    }

    pub fn erase(&mut self) {
        if std::mem::take(&mut self.drawn) {
            let mut err = io::stderr();
            let _ = err.write_all(b"\r\x1b[K").and_then(|()| err.flush());
        }
    }

    /// Writes an event, where events are asked for.
    pub fn write(&mut self, line: impl FnOnce(&mut Stdout) -> io::Result<()>) {
        if self.json && self.broken.is_none() {
            self.broken = line(&mut io::stdout()).err();
        }
    }

    /// Writes all reports that were asked for; the exit code. `errors`: what went wrong before. What cannot
    /// be written is said, and the rest is written all the same.
    pub fn finish(&mut self, forms: &Forms, reports: &Reports, mut errors: Vec<String>) -> i32 {
        let csv = forms.csv.as_ref().map(|path| (path, (reports.csv)()));
        if let Some((path, text)) = csv.as_ref().filter(|(path, _)| !is_stdout(path)) {
            errors.extend(output::write(path, text.as_bytes()).err());
        }
        if let Some(path) = &forms.html {
            errors.extend(output::write(path, (reports.page)().as_bytes()).err());
        }
        let mut code = i32::from(!errors.is_empty());
        if self.json {
            let error = errors.join("; ");
            let error = Some(error.as_str()).filter(|error| !error.is_empty());
            let status = if code == 0 { "complete" } else { "failed" };
            self.write(|out| (reports.summary)(out, status, code, error));
            if let Some(error) = self.broken.take() {
                code = FAILED;
                // A reader that went away knows it.
                if error.kind() != io::ErrorKind::BrokenPipe {
                    complain(
                        &format!("events cannot be written to stdout any more: {}", errno::text(error)),
                        FAILED,
                    );
                }
            }
        } else if let Some((_, text)) = csv.filter(|(path, _)| is_stdout(path)) {
            code = code.max(super::print(text.as_bytes()));
        } else {
            code = code.max(super::print((reports.text)().as_bytes()));
        }
        for error in errors {
            complain(&error, FAILED);
        }
        code
    }
}
