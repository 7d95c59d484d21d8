//! `haul ctl`: which copies run here, and changing the live settings of one. What was asked for goes to
//! stdout.

use std::fmt::Write as _;
use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use haul::api::{CopyPhase, LiveSetting, SettingState};
use haul::ctl::{self, Found, Job, Lost, Request};
use haul::errno;
use serde::Serialize;

use super::{FAILED, complain, surroundings};
use crate::args::ctl::{Ctl, Set, Verb};
use crate::escape;
use crate::progress::{bytes, count};

#[derive(Serialize)]
struct List {
    jobs: Vec<Listed>,
}

/// A job of the list.
#[derive(Serialize)]
pub(super) struct Listed {
    pub(super) pid: u32,
    pub(super) name: String,
    /// What it says of itself; `null`: it does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) job: Option<Job>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

impl super::Run for Ctl {
    fn run(&self) -> i32 {
        run(self)
    }
}

fn run(args: &Ctl) -> i32 {
    let found = match ctl::jobs(&surroundings::control_dirs()) {
        Ok(found) => found,
        Err(error) => return complain(&error.to_string(), FAILED),
    };
    let text = match &args.verb {
        None if args.job == "list" => list(&found, args.json),
        verb => one(&found, &args.job, verb.as_ref().unwrap_or(&Verb::Show), args.json),
    };
    let wrote = text.and_then(|text| {
        let mut out = std::io::stdout();
        out.write_all(text.as_bytes())
            .map_err(|error| format!("cannot write to stdout: {}", errno::text(error)))
    });
    match wrote {
        Ok(()) => 0,
        Err(error) => complain(&error, FAILED),
    }
}

/// The jobs, as `haul ctl list` shows them.
pub(super) fn list(found: &[Found], json: bool) -> Result<String, String> {
    let listed = found.iter().map(|found| {
        let reply = ctl::ask(found, &Request::Show);
        let (job, error) = match reply {
            Ok(reply) => (reply.job, reply.error),
            Err(error) => (None, Some(error.to_string())),
        };
        Listed { pid: found.pid, name: found.name.clone(), job, error }
    });
    let list = List { jobs: listed.collect() };
    if json {
        return to_json(&list);
    }
    if list.jobs.is_empty() {
        return Ok("no copy of this user runs on this host\n".into());
    }
    Ok(list.jobs.iter().map(|listed| line(listed, now())).collect())
}

/// One line of the list.
pub(super) fn line(listed: &Listed, now: u64) -> String {
    let name = escape::name(listed.name.as_bytes());
    match &listed.job {
        Some(job) => {
            let since = humantime::format_duration(Duration::from_secs(now.saturating_sub(job.since)));
            let what = escape::text(&job.what);
            format!("{}  {name}  {}, {}, for {since}: {what}\n", listed.pid, job.state, progress(job))
        }
        None => {
            let error = listed.error.as_deref().unwrap_or("it says nothing");
            format!("{}  {name}  {}\n", listed.pid, escape::text(error))
        }
    }
}

fn progress(job: &Job) -> String {
    match (job.counting, job.bytes_total) {
        (true, _) => format!("{} copied, still counting", bytes(job.bytes_done)),
        (false, 0) => format!("{} of {} files", count(job.files_done), count(job.files_total)),
        (false, total) => {
            // Down, so that 100 % means all; and never more than that, whatever the job says.
            let percent = (u128::from(job.bytes_done) * 100 / u128::from(total)).min(100);
            format!("{} of {} ({percent}%)", bytes(job.bytes_done), bytes(total))
        }
    }
}

fn one(found: &[Found], word: &str, verb: &Verb, json: bool) -> Result<String, String> {
    let job = ctl::find(found, word).map_err(|lost| lost_text(&lost, word, found))?;
    let request = match verb {
        Verb::Show => Request::Show,
        Verb::Pause => Request::Pause,
        Verb::Resume => Request::Resume,
        Verb::Set(set) => {
            let (setting, value) = setting_of(*set);
            Request::Set { setting, value }
        }
    };
    let reply = ctl::ask(job, &request).map_err(|error| escape::text(&error.to_string()))?;
    if let Some(error) = reply.error {
        return Err(escape::text(&error));
    }
    let job = reply.job.ok_or("the job says nothing of itself")?;
    if json {
        return to_json(&job);
    }
    Ok(match verb {
        Verb::Show => show(&job, now()),
        Verb::Pause => format!("{} pauses\n", job.pid),
        Verb::Resume => format!("{} goes on\n", job.pid),
        Verb::Set(set) => {
            let (setting, _) = setting_of(*set);
            format!("{} {}: {}\n", job.pid, setting.name(), asked(setting, job.setting(setting)))
        }
    })
}

fn setting_of(set: Set) -> (LiveSetting, u64) {
    match set {
        Set::Rate { value } => (LiveSetting::Rate, value),
        Set::Streams { value } => (LiveSetting::Streams, value),
        Set::Readers { value } => (LiveSetting::Readers, value),
        Set::Writers { value } => (LiveSetting::Writers, value),
    }
}

/// Why no job was found, and which there are.
pub(super) fn lost_text(lost: &Lost, word: &str, found: &[Found]) -> String {
    let word = escape::name(&haul::endpoint::without_password(word.as_bytes()));
    let ids = |ids: &mut dyn Iterator<Item = String>| ids.collect::<Vec<_>>().join(", ");
    match lost {
        Lost::Ambiguous(meant) => {
            format!("several jobs are meant by {word}: {}; take the number", ids(&mut meant.iter().cloned()))
        }
        Lost::Unknown if found.is_empty() => {
            format!("no job {word}: no copy of this user runs on this host")
        }
        Lost::Unknown => {
            format!("no job {word}; there run: {}", ids(&mut found.iter().map(Found::id)))
        }
    }
}

fn show(job: &Job, now: u64) -> String {
    let since = humantime::format_duration(Duration::from_secs(now.saturating_sub(job.since)));
    let mut out = format!("job      {} {}\n", job.pid, escape::name(job.name.as_bytes()));
    let _ = writeln!(out, "copies   {}", escape::text(&job.what));
    let _ = writeln!(out, "state    {}, for {since}", job.state);
    let _ = writeln!(out, "done     {}, {} files", progress(job), count(job.files_done));
    for setting in LiveSetting::ALL {
        let _ = writeln!(out, "{:<8} {}", setting.name(), stands(setting, job.setting(setting), job.state));
    }
    out
}

fn value(setting: LiveSetting, value: u64) -> String {
    match (setting, value) {
        (LiveSetting::Rate, 0) => "no limit".into(),
        (LiveSetting::Rate, rate) => format!("{}/s", bytes(rate)),
        (_, n) => count(n),
    }
}

fn asked(setting: LiveSetting, stands: &SettingState) -> String {
    stands.asked.map_or_else(|| "as it began".into(), |asked| value(setting, asked))
}

fn stands(setting: LiveSetting, stands: &SettingState, state: CopyPhase) -> String {
    let now = match (setting, stands.now) {
        (_, Some(now)) => value(setting, now),
        (LiveSetting::Rate, None) => "no limit".into(),
        (_, None) if state == CopyPhase::Starting => "not known before both ends have met".into(),
        (_, None) => "not known".into(),
    };
    let asked =
        stands.asked.filter(|asked| Some(*asked) != stands.now && (*asked > 0 || stands.now.is_some()));
    let asked = asked.map_or_else(String::new, |asked| format!(" ({} asked for)", value(setting, asked)));
    let fixed = stands.fixed.as_deref().map_or_else(String::new, |why| format!(" ({})", escape::text(why)));
    format!("{now}{asked}{fixed}")
}

pub(super) fn to_json(value: &impl Serialize) -> Result<String, String> {
    serde_json::to_string(value).map(|line| line + "\n").map_err(|error| error.to_string())
}

pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        Job {
            pid: 12,
            name: "data".into(),
            what: "data to h:/x\x1b".into(),
            since: 1000,
            state: CopyPhase::Running,
            bytes_done: 500,
            bytes_total: 1000,
            files_done: 3,
            rate: SettingState { asked: Some(0), now: None, fixed: None },
            streams: SettingState { asked: Some(2), now: Some(2), fixed: None },
            readers: SettingState { asked: Some(5), now: Some(4), fixed: None },
            writers: SettingState { asked: None, now: None, fixed: Some("too old".into()) },
            ..Job::default()
        }
    }

    /// Goal: a job is shown with all that is known, made safe for a terminal.
    #[test]
    fn jobs_are_shown() {
        let want = "job      12 data\ncopies   data to h:/x\\x1b\nstate    running, for 1m 5s\n\
                    done     500 B of 1.00 kB (50%), 3 files\nrate     no limit\nstreams  2\n\
                    readers  4 (5 asked for)\nwriters  not known (too old)\n";
        assert_eq!(show(&job(), 1065), want);
        let listed = Listed { pid: 12, name: "data".into(), job: Some(job()), error: None };
        assert_eq!(
            line(&listed, 1065),
            "12  data  running, 500 B of 1.00 kB (50%), for 1m 5s: data to h:/x\\x1b\n"
        );
        let silent = Listed { job: None, error: Some("no answer".into()), ..listed };
        assert_eq!(line(&silent, 1065), "12  data  no answer\n");
        // What a job says cannot make this panic.
        let odd = Job { bytes_done: u64::MAX, bytes_total: 1, since: u64::MAX, ..job() };
        assert!(show(&odd, 0).contains("(100%)"));
    }

    /// Goal: a word that is no job is told of without a password in it.
    #[test]
    fn a_word_that_is_no_job_shows_no_password() {
        let text = lost_text(&Lost::Unknown, "ftps://u:geheim@h/d", &[]);
        assert!(text.contains("no job ftps://u@h/d:") && !text.contains("geheim"), "{text}");
    }
}
