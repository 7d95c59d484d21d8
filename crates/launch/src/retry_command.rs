//! A command of the user's that says what becomes of what failed.
//!
//! In: a [`Trouble`]. Out: a [`Decision`]. The command is started for each question, without a shell, gets
//! one line of JSON on its stdin, and answers on its stdout, in a word or in JSON, within [`ANSWER_WAIT`].
//! Invariants: one that is missing, dies, hangs, prints too much or what is no answer, or names a replica
//! where there is none, costs that time at most, and the policy behind it decides; that is said once. After
//! [`FAILURES_MAX`] such answers in a row it is asked no more. One question at a time. A stop ends it.
//! Left out: what the policy does with the answer; which host it runs on: always that of the user.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use haul_base::escape;
use haul_base::stop::{LOOK, Stop};
use haul_core::reliability::{Decision, Reliability, Trouble, pause};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};

/// How long a command may think.
pub const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Most bytes of an answer.
const ANSWER_LEN_MAX: usize = 4096;
/// Most characters of each text in a question: it fits into a pipe that nobody reads from yet.
const TEXT_LEN_MAX: usize = 500;
/// Wrong answers in a row.
const FAILURES_MAX: u32 = 3;
/// The pause that a command can ask for; the least, for one that asks for none would keep a processor busy.
const AFTER_MIN: Duration = Duration::from_millis(100);
const AFTER_MAX: Duration = Duration::from_secs(86_400);

/// Says something to people.
pub type Say = Arc<dyn Fn(String) + Send + Sync>;

/// Asks a command, and where that has no answer a policy.
pub struct RetryCommand {
    /// The program and its arguments; at least one word.
    words: Vec<String>,
    otherwise: Arc<dyn Reliability>,
    say: Say,
    stop: Stop,
    wait: Duration,
    /// Wrong answers in a row, and whether one was told of.
    failures: Mutex<(u32, bool)>,
}

/// What a command is told, one line of JSON.
#[derive(Serialize)]
struct Question {
    step: &'static str,
    about: String,
    text: String,
    kind: &'static str,
    passing: bool,
    silent: bool,
    attempts: u32,
    seconds: f64,
    marker: u64,
    others: u16,
}

/// What it says, where that is JSON.
#[derive(Deserialize)]
struct Answer {
    r#do: String,
    #[serde(default)]
    after: Option<f64>,
}

impl RetryCommand {
    /// # Panics
    /// If there is no word.
    pub fn new(words: Vec<String>, otherwise: Arc<dyn Reliability>, say: Say, stop: Stop) -> RetryCommand {
        assert!(!words.is_empty(), "a command is a word at least");
        RetryCommand { words, otherwise, say, stop, wait: ANSWER_WAIT, failures: Mutex::new((0, false)) }
    }

    fn ask(&self, trouble: &Trouble<'_>) -> Result<Option<Decision>, String> {
        let short = |text: &str| text.chars().take(TEXT_LEN_MAX).collect();
        let question = Question {
            step: trouble.step.name(),
            about: short(trouble.about),
            text: short(trouble.text),
            kind: trouble.kind.name(),
            passing: trouble.passing,
            silent: trouble.silent,
            attempts: trouble.attempts,
            seconds: trouble.since.as_secs_f64(),
            marker: trouble.marker,
            others: trouble.others,
        };
        let mut line = serde_json::to_string(&question).map_err(|error| error.to_string())?;
        line.push('\n');
        let said = self.run(line.as_bytes())?;
        understood(&said, trouble)
    }

    /// Starts the command, tells it the question, and takes its answer.
    fn run(&self, question: &[u8]) -> Result<Vec<u8>, String> {
        let until = Instant::now() + self.wait;
        let mut command = Command::new(&self.words[0]);
        // Of a group of its own: Ctrl-C is haul's to answer, and all of it can be ended.
        command.args(&self.words[1..]).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| format!("cannot be started: {}", words(&error)))?;
        let mut running = Running(Some(child));
        let child = running.0.as_mut().expect("just started");
        if let Some(mut stdin) = child.stdin.take() {
            // It need not read it, and has room for all of it.
            let _ = stdin.write_all(question);
        }
        let stdout = child.stdout.take().expect("it was piped");
        let said = self.hear(stdout, until)?;
        loop {
            let child = running.0.as_mut().expect("it runs");
            match child.try_wait().map_err(|error| words(&error))? {
                Some(status) => {
                    running.0 = None;
                    return match (status.code(), status.signal()) {
                        (Some(0), _) => Ok(said),
                        (Some(code), _) => Err(format!("ends with code {code}")),
                        (None, signal) => Err(format!("was ended by signal {}", signal.unwrap_or(0))),
                    };
                }
                None => self.bear(until)?,
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// All that it says until it closes its stdout.
    fn hear(&self, mut stdout: ChildStdout, until: Instant) -> Result<Vec<u8>, String> {
        let (mut said, mut buffer) = (Vec::new(), [0; 1024]);
        loop {
            self.bear(until)?;
            let left = until.saturating_duration_since(Instant::now()).min(LOOK);
            let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
            let ready = {
                let mut fds = [PollFd::from_borrowed_fd(stdout.as_fd(), PollFlags::IN)];
                match poll(&mut fds, Some(&timeout)) {
                    Ok(ready) => ready > 0,
                    Err(rustix::io::Errno::INTR) => false,
                    Err(error) => return Err(words(&error.into())),
                }
            };
            if !ready {
                continue;
            }
            match stdout.read(&mut buffer) {
                Ok(0) => return Ok(said),
                Ok(len) => said.extend_from_slice(&buffer[..len]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(words(&error)),
            }
            if said.len() > ANSWER_LEN_MAX {
                return Err(format!("says more than {ANSWER_LEN_MAX} bytes"));
            }
        }
    }

    /// # Errors
    /// Its time is over, or somebody wants an end.
    fn bear(&self, until: Instant) -> Result<(), String> {
        self.stop.check().map_err(|stopped| stopped.to_string())?;
        match Instant::now() >= until {
            true => Err(format!("has not answered within {} s", self.wait.as_secs_f64())),
            false => Ok(()),
        }
    }
}

impl Reliability for RetryCommand {
    fn decide(&self, trouble: &Trouble<'_>) -> Decision {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let (in_a_row, told) = &mut *failures;
        if *in_a_row >= FAILURES_MAX {
            return self.otherwise.decide(trouble);
        }
        match self.ask(trouble) {
            Ok(said) => {
                *in_a_row = 0;
                return said.unwrap_or_else(|| self.otherwise.decide(trouble));
            }
            Err(_) if self.stop.is_asked() => {}
            Err(why) => {
                *in_a_row += 1;
                let name = escape::line(self.words[0].as_bytes());
                if !std::mem::replace(told, true) {
                    (self.say)(format!("the retry command {name} {why}; haul decides by itself instead"));
                }
                if *in_a_row == FAILURES_MAX {
                    (self.say)(format!(
                        "the retry command {name} is asked no more: it failed {FAILURES_MAX} times in a row"
                    ));
                }
            }
        }
        self.otherwise.decide(trouble)
    }

    fn name(&self) -> String {
        format!(
            "asks {}; without an answer: {}",
            escape::line(self.words[0].as_bytes()),
            self.otherwise.name()
        )
    }
}

/// A command that runs; ended, with all of its group, where it is dropped before it ended by itself.
struct Running(Option<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        let Some(child) = &mut self.0 else { return };
        if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            // It was not waited for, so that its number is nobody else's.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = child.wait();
    }
}

/// What an answer means; `None`: what haul would do by itself.
///
/// # Errors
/// It means nothing, or nothing that is possible here.
fn understood(said: &[u8], trouble: &Trouble<'_>) -> Result<Option<Decision>, String> {
    let text = std::str::from_utf8(said).unwrap_or("").trim();
    let answer = match text.starts_with('{') {
        true => serde_json::from_str(text).map_err(|_| "answers with JSON that is no answer".to_owned())?,
        false => Answer { r#do: text.to_owned(), after: None },
    };
    let after = match answer.after {
        None => pause(trouble.attempts),
        Some(seconds) => Duration::try_from_secs_f64(seconds)
            .ok()
            .filter(|after| *after <= AFTER_MAX)
            .ok_or("asks for a pause that is none, or longer than a day")?,
    };
    match &*answer.r#do {
        "retry" => Ok(Some(Decision::After(after.max(AFTER_MIN)))),
        "replica" if trouble.others > 0 => Ok(Some(Decision::Replica)),
        "replica" => Err("asks for another replica where there is none".into()),
        "give_up" => Ok(Some(Decision::GiveUp)),
        "default" => Ok(None),
        "" => Err("answers nothing".into()),
        _ => Err("answers what is none of retry, replica, give_up and default".into()),
    }
}

fn words(error: &io::Error) -> String {
    haul_base::errno::text(error)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use haul_core::reliability::{Bounded, Step};
    use haul_core::wire::FailureKind;

    use super::*;

    fn trouble(others: u16) -> Trouble<'static> {
        Trouble {
            step: Step::File,
            about: "ftp://h/a 'b' $(touch x)",
            text: "the connection was cut off",
            kind: FailureKind::Network,
            passing: true,
            silent: false,
            attempts: 2,
            since: Duration::from_secs(3),
            marker: 4 << 20,
            others,
        }
    }

    /// A policy that is recognised.
    struct Marked;
    impl Reliability for Marked {
        fn decide(&self, _: &Trouble<'_>) -> Decision {
            Decision::After(Duration::from_secs(4242))
        }
        fn name(&self) -> String {
            "marked".into()
        }
    }

    /// What a script of sh makes of a trouble, and how often something was said.
    fn asks(script: &str, others: u16, times: usize) -> (Vec<Decision>, usize) {
        let said = Arc::new(AtomicUsize::new(0));
        let count = said.clone();
        let say: Say = Arc::new(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let words = ["sh", "-c", script].map(str::to_owned).into();
        let mut command = RetryCommand::new(words, Arc::new(Marked), say, Stop::never());
        command.wait = Duration::from_millis(800);
        let all = (0..times).map(|_| command.decide(&trouble(others))).collect();
        (all, said.load(Ordering::SeqCst))
    }

    /// Goal: words and JSON are understood, and the question is one line with all that is known.
    #[test]
    fn answers_are_understood() {
        let after = |ms| Decision::After(Duration::from_millis(ms));
        let marked = after(4_242_000);
        for (script, wanted) in [
            ("echo retry", after(600)),
            ("echo replica", Decision::Replica),
            ("printf give_up", Decision::GiveUp),
            ("echo default", marked),
            (r#"echo '{"do": "retry", "after": 1.5, "more": 1}'"#, after(1500)),
            (r#"echo '{"do":"retry","after":0}'"#, after(100)),
            (
                "read -r line; case $line in *'\"marker\":4194304'*'\"others\":1}') echo give_up;; *) echo no;; esac",
                Decision::GiveUp,
            ),
            ("read -r line; read -r more && echo no || echo give_up", Decision::GiveUp),
        ] {
            assert_eq!(asks(script, 1, 1), (vec![wanted], 0), "{script}");
        }
    }

    /// Goal: whatever the command does instead of answering, the policy behind it decides, and it is said
    /// once.
    #[test]
    fn what_is_no_answer_leaves_it_to_the_policy() {
        let marked = Decision::After(Duration::from_secs(4242));
        for script in [
            "exit 3",
            "echo retry; exit 3",
            "echo nonsense",
            "true",
            "kill -9 $$",
            "sleep 600",
            "sleep 600 & wait",
            // Somebody else keeps its stdout.
            "sleep 600 & echo retry",
            // It has answered, and does not end.
            "echo retry; exec >&-; sleep 600",
            "yes",
            "printf '\\377\\376'",
            "echo replica",
            r#"echo '{"do":"retry","after":-1}'"#,
            r#"echo '{"do":"retry","after":1e300}'"#,
            r#"echo '{"do":"retry","after":NaN}'"#,
            r#"echo '{"do":7}'"#,
            "echo '{'",
        ] {
            assert_eq!(asks(script, 0, 1), (vec![marked], 1), "{script}");
        }
        let nowhere = RetryCommand::new(
            vec!["/nonexistent/x".into()],
            Arc::new(Bounded),
            Arc::new(|why| assert!(why.contains("cannot be started"), "{why}")),
            Stop::never(),
        );
        assert_eq!(nowhere.decide(&trouble(0)), Decision::After(Duration::from_millis(600)));
    }

    /// Goal: one that fails again and again is asked no more, and one that answers between is.
    #[test]
    fn one_that_only_fails_is_asked_no_more() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("asked");
        let script = format!("echo x >>'{}'; exit 1", file.display());
        let (all, said) = asks(&script, 0, 6);
        assert_eq!((all.len(), said), (6, 2));
        let asked = std::fs::read_to_string(&file).expect("it was asked").lines().count();
        assert_eq!(asked, FAILURES_MAX as usize);
    }

    /// Goal: nothing of it is left when its time is over.
    #[test]
    fn a_command_that_hangs_is_ended_with_all_that_it_started() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("pid");
        asks(&format!("sleep 600 & echo $! >'{}'; wait", file.display()), 0, 1);
        let pid: i32 = std::fs::read_to_string(&file).expect("it began").trim().parse().expect("a number");
        let ends = (0..500).any(|_| {
            thread::sleep(Duration::from_millis(10));
            let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            state.rsplit(')').next().is_none_or(|rest| rest.is_empty() || rest.starts_with(" Z"))
        });
        assert!(ends, "{pid} goes on");
    }

    /// Goal: a stop does not wait for it.
    #[test]
    fn a_stop_ends_the_question() {
        let words = ["sleep", "600"].map(str::to_owned).into();
        let say: Say = Arc::new(|why| panic!("{why}"));
        let command = RetryCommand::new(words, Arc::new(Marked), say, Stop::when(|| true));
        assert_eq!(command.decide(&trouble(0)), Decision::After(Duration::from_secs(4242)));
    }
}
