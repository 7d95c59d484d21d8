//! A copy that is begun again, because the connection between its ends was lost or never came up.
//!
//! In: how an attempt ended. Out: whether the same copy runs once more, and when; one summary of all of them.
//! Each attempt is what a user does who repeats the command: it launches the far end anew and goes on from
//! the journal, so that nothing finished moves twice and no effect happens twice; a sink that is still there
//! from before owns the job until it ends, and is waited for. Streams and control that are lost within an
//! attempt come back by themselves, as long as there is patience (`haul_transport::rejoin`): that is not
//! asked here, for nothing has failed by then.
//! Where a number was asked for, it is begun again that often at most, whatever else was asked for.
//! Invariants: nothing is begun again unless somebody asked for that, within one host, after a stop, in a dry
//! run, or with a manifest, of which each file is told once; entries that failed are told of the last attempt
//! alone.
//! Left out: what is tried again within a source (`haul_storage::ftp`), by the same policy.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use haul_base::stop::LOOK;
use haul_core::reliability::{Bounded, Decision, Patient, Reliability, Step, Trouble, pause};
use haul_core::wire::FailureKind;
use haul_launch::retry_command::RetryCommand;

use crate::endpoint::Endpoint;
use crate::error::ErrorKind;
use crate::events::{Event, Observer};
use crate::handle::Handle;
use crate::options::Options;
use crate::request::CopyRequest;
use crate::summary::{ATTEMPTS, Chosen, Status, Summary};

/// Failed entries of one attempt that are held back until it is known to be the last. What is more comes at
/// once.
const HELD_BACK_MAX: usize = 10_000;
/// The number of "Device or resource busy", which a sink says where another run has the job.
const EBUSY: i32 = 16;

/// What becomes of what fails, as it was asked for, without a command.
pub(super) fn policy(options: &Options) -> Arc<dyn Reliability> {
    match options.retry_for {
        None if options.retries.is_some() => Arc::new(Counted),
        None => Arc::new(Bounded),
        Some(seconds) => Arc::new(Patient { for_so_long: Duration::from_secs(seconds.into()) }),
    }
}

/// As [`Bounded`], but for a copy as a whole, which is begun again as often as it is let.
struct Counted;

impl Reliability for Counted {
    fn decide(&self, trouble: &Trouble<'_>) -> Decision {
        match trouble.step {
            Step::Copy if trouble.passing => Decision::After(pause(trouble.attempts)),
            _ => Bounded.decide(trouble),
        }
    }

    fn name(&self) -> String {
        Bounded.name()
    }
}

/// The same at the end where the user is, where a command may be asked.
pub(super) fn policy_here(
    options: &Options,
    observer: &Arc<dyn Observer>,
    handle: &Handle,
) -> Arc<dyn Reliability> {
    let otherwise = policy(options);
    if options.retry_command.is_empty() {
        return otherwise;
    }
    let observer = observer.clone();
    let say = Arc::new(move |text| observer.event(Event::Note(text)));
    Arc::new(RetryCommand::new(options.retry_command.clone(), otherwise, say, handle.as_stop()))
}

/// Somebody asked for more than what was always done.
fn is_asked(options: &Options) -> bool {
    let asked = options.retry_for.is_some() || !options.retry_command.is_empty();
    options.retries.map_or(asked, |most| most > 0)
}

/// Runs `attempt` until it ends well, or the policy gives it up.
pub(super) fn run(
    request: &CopyRequest,
    (observer, handle): (&Arc<dyn Observer>, &Handle),
    retry: &Arc<dyn Reliability>,
    attempt: impl Fn(&Arc<dyn Observer>) -> Summary,
) -> Summary {
    let far = request.sources.iter().chain([&request.destination]).any(|end| end.host().is_some());
    if !far || !is_asked(&request.options) || request.options.dry_run || request.options.manifest {
        return attempt(observer);
    }
    let held = Arc::new(HeldBack { observer: observer.clone(), failed: Mutex::default() });
    let begun = Instant::now();
    // How often it failed without having moved anything, and since when.
    let (mut attempts, mut since, mut all) = (0, Instant::now(), Vec::new());
    let summary = loop {
        let began = Instant::now();
        let summary = attempt(&(held.clone() as Arc<dyn Observer>));
        let Some(error) = summary.error.as_ref().filter(|_| summary.status == Status::Failed) else {
            break summary;
        };
        if summary.usage || error.kind == ErrorKind::Usage || handle.stopped() {
            break summary;
        }
        let again = all.len() as u64 + 1;
        if request.options.retries.is_some_and(|most| again > u64::from(most)) {
            break summary;
        }
        match (moved(&summary), attempts) {
            (true, _) => (attempts, since) = (1, Instant::now()),
            (false, 0) => (attempts, since) = (1, began),
            (false, _) => attempts += 1,
        }
        let destination = String::from_utf8_lossy(&request.destination.shown()).into_owned();
        let source = request.sources.first().map(Endpoint::shown).unwrap_or_default();
        let about = format!("{} to {destination}", String::from_utf8_lossy(&source));
        // Whoever has the job after the first attempt may well be its far end, which does not know yet that
        // nobody is there any more.
        let is_busy = error.errno() == Some(EBUSY) && !all.is_empty();
        let trouble = Trouble {
            step: Step::Copy,
            about: &about,
            text: &error.text,
            kind: if error.kind == ErrorKind::Network { FailureKind::Network } else { FailureKind::Local },
            passing: error.kind == ErrorKind::Network || is_busy,
            silent: false,
            attempts,
            since: since.elapsed(),
            marker: summary.bytes.saturating_add(summary.kept),
            others: 0,
        };
        let Decision::After(pause) = retry.decide(&trouble) else { break summary };
        let of = request.options.retries.map(|most| format!(" ({again} of {most})")).unwrap_or_default();
        let text = format!("{}; the copy is begun again in {}{of}", error.text, in_words(pause));
        held.forget();
        observer.event(Event::Note(text));
        let waited = wait(pause, handle);
        all.push(summary.clone());
        if !waited {
            // Whoever wanted it to stop got that.
            break Summary { status: Status::Interrupted, error: None, ..nothing_more(summary) };
        }
    };
    held.tell();
    merged(all, summary, begun.elapsed())
}

/// What a summary counts is in those before it already.
fn nothing_more(summary: Summary) -> Summary {
    Summary {
        files: 0,
        dirs: 0,
        symlinks: 0,
        hard_links: 0,
        specials: 0,
        bytes: 0,
        bytes_sent: 0,
        cloned: 0,
        cloned_bytes: 0,
        objects_resent: 0,
        came_back: 0,
        strays: 0,
        ..summary
    }
}

/// An attempt came on.
fn moved(summary: &Summary) -> bool {
    let entries = summary.files + summary.dirs + summary.symlinks + summary.specials + summary.hard_links;
    entries + summary.bytes_sent > 0
}

/// One summary of all attempts: `last` says how it ended.
fn merged(before: Vec<Summary>, mut last: Summary, took: Duration) -> Summary {
    if before.is_empty() {
        return last;
    }
    last.seconds = took.as_secs_f64();
    let attempts = before.len() + usize::from(last.status != Status::Interrupted || moved(&last));
    for one in &before {
        // The last one found them there.
        last.unchanged = last.unchanged.saturating_sub(one.files);
        last.files = last.files.saturating_add(one.files);
        last.dirs = last.dirs.saturating_add(one.dirs);
        last.symlinks = last.symlinks.saturating_add(one.symlinks);
        last.hard_links = last.hard_links.saturating_add(one.hard_links);
        last.specials = last.specials.saturating_add(one.specials);
        last.bytes = last.bytes.saturating_add(one.bytes);
        last.bytes_sent = last.bytes_sent.saturating_add(one.bytes_sent);
        last.cloned = last.cloned.saturating_add(one.cloned);
        last.cloned_bytes = last.cloned_bytes.saturating_add(one.cloned_bytes);
        last.objects_resent = last.objects_resent.saturating_add(one.objects_resent);
        last.came_back = last.came_back.saturating_add(one.came_back);
        last.strays = last.strays.saturating_add(one.strays);
    }
    let mut why: HashMap<&str, usize> = HashMap::new();
    for error in before.iter().filter_map(|one| one.error.as_ref()) {
        *why.entry(&error.text).or_default() += 1;
    }
    let mut why: Vec<String> = why.into_iter().map(|(text, times)| format!("{times} x {text}")).collect();
    why.sort();
    last.chosen.push(Chosen::new(ATTEMPTS, format!("{attempts} ({})", why.join("; "))));
    last
}

/// Waits for `pause`. False: somebody wants an end.
fn wait(pause: Duration, handle: &Handle) -> bool {
    let until = Instant::now() + pause;
    while !handle.stopped() && Instant::now() < until {
        thread::sleep(until.saturating_duration_since(Instant::now()).min(LOOK));
    }
    !handle.stopped()
}

fn in_words(pause: Duration) -> String {
    format!("{:.1} s", pause.as_secs_f64())
}

/// An observer that hears of entries that failed when the attempt is known to be the last.
struct HeldBack {
    observer: Arc<dyn Observer>,
    failed: Mutex<Vec<Event>>,
}

impl HeldBack {
    fn take(&self) -> Vec<Event> {
        std::mem::take(&mut *self.failed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// They are tried again.
    fn forget(&self) {
        drop(self.take());
    }

    fn tell(&self) {
        self.take().into_iter().for_each(|event| self.observer.event(event));
    }
}

impl Observer for HeldBack {
    fn event(&self, event: Event) {
        if let Event::Failed { .. } = &event {
            let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
            if failed.len() < HELD_BACK_MAX {
                return failed.push(event);
            }
        }
        self.observer.event(event);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::error::Error;
    use crate::error::Operation;
    use crate::events::OnEvent;

    /// What one attempt does.
    type Attempt = fn(&Arc<dyn Observer>) -> Summary;

    fn lost(files: u64) -> Summary {
        let error = Some(Error::new(ErrorKind::Network, "the network was lost"));
        Summary { status: Status::Failed, files, bytes: 10 * files, error, ..Summary::default() }
    }

    fn failed_entry(path: &str) -> Event {
        let (kind, operation) = (ErrorKind::Storage, Operation::Read);
        Event::Failed { path: path.into(), kind, operation, errno: 5, text: "x".into() }
    }

    /// Runs these attempts, the last one again and again; the summary, how many ran, and what was told.
    fn runs(options: Options, attempts: &[Attempt]) -> (Summary, usize, Vec<Event>) {
        let told = Arc::new(Mutex::new(Vec::new()));
        let (tell, count) = (told.clone(), AtomicUsize::new(0));
        let observer: Arc<dyn Observer> = Arc::new(OnEvent(move |event| tell.lock().unwrap().push(event)));
        let mut request = super::super::bare(vec![Endpoint::local("a")], Endpoint::remote("h", "b"));
        request.options = options;
        let retry = policy(&request.options);
        let attempt = |observer: &Arc<dyn Observer>| {
            let at = count.fetch_add(1, Ordering::SeqCst);
            attempts[at.min(attempts.len() - 1)](observer)
        };
        let summary = run(&request, (&observer, &Handle::new()), &retry, attempt);
        drop(observer);
        let told = std::mem::take(&mut *told.lock().unwrap());
        (summary, count.into_inner(), told)
    }

    fn patient() -> Options {
        Options { retry_for: Some(60), ..Options::default() }
    }

    /// Goal: a copy is begun again only where somebody asked, for what may pass.
    #[test]
    fn a_copy_is_begun_again_only_where_that_was_asked() {
        for options in [
            Options::default(),
            Options { dry_run: true, ..patient() },
            Options { manifest: true, ..patient() },
        ] {
            let (summary, count, _) = runs(options, &[|_| lost(3)]);
            assert_eq!((summary.status, summary.files, count), (Status::Failed, 3, 1));
        }
        let lasting: Attempt = |_| {
            let error = Some(Error::new(ErrorKind::NoSpace, "full"));
            Summary { status: Status::Failed, error, ..Summary::default() }
        };
        assert_eq!(runs(patient(), &[lasting]).1, 1);
    }

    /// Goal: a number bounds how often a copy is begun again, whatever else was asked for, and nothing is
    /// tried for what does not pass.
    /// Method: what fails for ever, and at the third attempt no more; what is told of each.
    #[test]
    fn a_copy_is_begun_again_so_often_at_most() {
        let counted = |retries| Options { retries: Some(retries), ..Options::default() };
        for (options, attempts) in [
            (counted(0), 1),
            (counted(2), 3),
            (Options { retries: Some(2), ..patient() }, 3),
            (Options { retries: Some(0), ..patient() }, 1),
        ] {
            assert_eq!(runs(options, &[|_| lost(0)]).1, attempts);
        }
        // Each comes on, so that the pauses stay short.
        let done: Attempt = |_| Summary { status: Status::Complete, files: 1, ..Summary::default() };
        let (summary, count, told) = runs(counted(5), &[|_| lost(1), |_| lost(1), done]);
        assert_eq!((summary.status, summary.files, count), (Status::Complete, 3, 3));
        let notes: Vec<&str> = told
            .iter()
            .filter_map(|event| if let Event::Note(text) = event { Some(text.as_str()) } else { None })
            .collect();
        assert_eq!(notes.len(), 2);
        assert!(notes[0].ends_with("(1 of 5)") && notes[1].ends_with("(2 of 5)"), "{notes:?}");
        let refused: Attempt = |_| {
            let error = Some(Error::new(ErrorKind::Launch, "Permission denied"));
            Summary { status: Status::Failed, error, ..Summary::default() }
        };
        let wrong: Attempt = |_| Summary { usage: true, ..lost(0) };
        assert_eq!((runs(counted(5), &[refused]).1, runs(counted(5), &[wrong]).1), (1, 1));
    }

    /// Goal: one summary of all attempts counts each file once; entries that failed are those of the last
    /// attempt.
    #[test]
    fn attempts_are_told_as_one() {
        let (summary, count, told) = runs(
            patient(),
            &[
                |observer| {
                    observer.event(failed_entry("old"));
                    lost(3)
                },
                |_| lost(0),
                |observer| {
                    observer.event(failed_entry("new"));
                    Summary {
                        status: Status::Partial,
                        files: 2,
                        unchanged: 7,
                        bytes: 20,
                        failed: 1,
                        ..Summary::default()
                    }
                },
            ],
        );
        assert_eq!((summary.status, count), (Status::Partial, 3));
        assert_eq!((summary.files, summary.unchanged, summary.bytes, summary.failed), (5, 4, 50, 1));
        let attempts = summary.chosen.iter().find(|line| line.name == "attempts").expect("it is said");
        assert_eq!(attempts.value, "3 (2 x the network was lost)");
        let paths: Vec<_> = told
            .iter()
            .filter_map(
                |event| if let Event::Failed { path, .. } = event { Some(path.as_slice()) } else { None },
            )
            .collect();
        assert_eq!(paths, [b"new"]);
        assert_eq!(told.iter().filter(|event| matches!(event, Event::Note(_))).count(), 2);
    }

    /// Goal: a far end from before that still has the job is waited for, and one that has it at the first
    /// attempt is somebody else's.
    #[test]
    fn a_job_that_the_attempt_before_left_is_waited_for() {
        let busy = |_: &Arc<dyn Observer>| {
            let error = Some(Error::new(ErrorKind::Storage, "running already").with_errno(EBUSY));
            Summary { status: Status::Failed, error, ..Summary::default() }
        };
        assert_eq!(runs(patient(), &[busy]).1, 1);
        let done = |_: &Arc<dyn Observer>| Summary { status: Status::Complete, ..Summary::default() };
        let (summary, count, _) = runs(patient(), &[|_| lost(1), busy, done]);
        assert_eq!((summary.status, count), (Status::Complete, 3));
    }
}
