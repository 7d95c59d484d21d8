//! `haul clean DST`: what dead jobs left there. The list is the product, so it goes to stdout.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use haul::api::{CleanReport, age_in_words};
use haul::errno;
use serde::Serialize;

use super::{FAILED, USAGE, complain};
use crate::args::Clean;
use crate::escape;
use crate::progress::{bytes, plural};
use crate::report::json::PathFields;

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    path: PathFields,
    jobs: Vec<Job<'a>>,
    /// Files named like temporaries, of no job here.
    strays: u64,
}

#[derive(Serialize)]
struct Job<'a> {
    key: &'a str,
    state: &'a str,
    what: Option<&'a str>,
    user: Option<&'a str>,
    age_seconds: Option<u64>,
    files: u64,
    bytes: u64,
    removed: bool,
    failed: bool,
}

impl super::Run for Clean {
    fn run(&self) -> i32 {
        run(self)
    }
}

fn run(args: &Clean) -> i32 {
    let path = Path::new(&args.root);
    if path.symlink_metadata().is_err() && looks_remote(&args.root) {
        return complain(&there(&args.root), USAGE);
    }
    let report = match haul::api::clean(path, args.state.as_deref(), !args.dry_run) {
        Ok(report) => report,
        Err(error) => return complain(&error.text, FAILED),
    };
    let text = if args.json { json(args.root.as_bytes(), &report) } else { table(&report, !args.dry_run) };
    if let Err(error) = std::io::stdout().write_all(text.as_bytes()) {
        return complain(&format!("cannot write to stdout: {}", errno::text(error)), FAILED);
    }
    report.jobs.iter().filter(|job| job.failed).fold(0, |_, job| {
        let (key, state) = (escape::name(job.key.as_bytes()), escape::text(&job.state));
        complain(&format!("what the job {key} left could not be removed: {state}"), FAILED)
    })
}

fn looks_remote(root: &OsStr) -> bool {
    root.as_bytes().split(|b| *b == b'/').next().is_some_and(|head| head.contains(&b':'))
}

/// How to clean at another host, where haul may be no more than the program that a copy sent there.
fn there(root: &OsStr) -> String {
    let root = root.to_string_lossy();
    let (host, path) = root.split_once(':').unwrap_or((&root, ""));
    let (host, path) = (escape::text(host), escape::text(if path.is_empty() { "." } else { path }));
    format!(
        "clean works on the host that it runs on: ssh {host} haul clean -n -- {path}\n      Where haul is not in the PATH there, a copy \
         has sent the program: ssh {host} '$(ls -t ~/.cache/haul/*/haul | head -n 1) clean -n -- {path}'"
    )
}

fn json(root: &[u8], report: &CleanReport) -> String {
    let jobs = report.jobs.iter().map(|job| Job {
        key: &job.key,
        state: &job.state,
        what: job.what.as_deref(),
        user: job.user.as_deref(),
        age_seconds: job.age.map(|age| age.as_secs()),
        files: job.files,
        bytes: job.bytes,
        removed: job.removed,
        failed: job.failed,
    });
    let report = Report { path: PathFields::new(root), jobs: jobs.collect(), strays: report.strays };
    serde_json::to_string(&report).expect("plain fields serialise") + "\n"
}

fn table(report: &CleanReport, remove: bool) -> String {
    let mut out = String::new();
    if report.jobs.is_empty() {
        out += "nothing left by any job whose journal is here\n";
    }
    for job in &report.jobs {
        let (files, size) = (plural(job.files, "file", "files"), bytes(job.bytes));
        let end = if job.removed { ", removed" } else { "" };
        let (key, state) = (escape::name(job.key.as_bytes()), escape::text(&job.state));
        let by = job.user.as_ref().map(|user| format!("by {user}"));
        let age = job.age.map(|age| format!("{} ago", age_in_words(age)));
        let known: Vec<String> = [job.what.clone(), by, age].into_iter().flatten().collect();
        let known = if known.is_empty() { "not known whose".into() } else { escape::text(&known.join(", ")) };
        let _ = writeln!(out, "{key}  {state}  {known}  {files}, {size}{end}");
    }
    if report.strays > 0 {
        let files = plural(report.strays, "file is", "files are");
        let _ = writeln!(
            out,
            "{files} named like temporaries of haul's, of no journal here that can be read, and stay: they may be yours, or the journal is \
             of another version of haul, or lies in the destination of that copy, above this directory, or in the directory of its --state"
        );
    }
    if !remove && !report.jobs.is_empty() {
        out += "nothing was removed; without --dry-run what dead jobs left is deleted, and they cannot be resumed\n";
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use haul::api::CleanJob;
    use serde_json::Value;
    use std::time::Duration;

    fn report() -> CleanReport {
        let known = CleanJob {
            key: "ab12".into(),
            state: "dead\x1b".into(),
            what: Some("copy of data to /w".into()),
            user: Some("alice".into()),
            age: Some(Duration::from_secs(3 * 3600 + 7)),
            files: 3,
            bytes: 4096,
            removed: true,
            failed: false,
        };
        let unknown =
            CleanJob { what: None, user: None, age: None, files: 1, removed: false, ..known.clone() };
        CleanReport { jobs: vec![known, unknown], strays: 0 }
    }

    /// Goal: both forms carry all that was found, made safe to show.
    #[test]
    fn reports_carry_what_was_found() {
        assert_eq!(
            table(&report(), true),
            "ab12  dead\\x1b  copy of data to /w, by alice, 3 hours ago  3 files, 4.10 kB, removed\n\
             ab12  dead\\x1b  not known whose  1 file, 4.10 kB\n"
        );
        assert!(table(&CleanReport::default(), false).starts_with("nothing"));
        let told = table(&CleanReport { strays: 2, ..CleanReport::default() }, true);
        assert!(told.contains("2 files are named like temporaries") && told.contains("--state"), "{told}");
        let value: Value = serde_json::from_str(&json(b"/x\xff", &report())).unwrap();
        assert_eq!(value["jobs"][0]["bytes"], 4096);
        assert_eq!(value["jobs"][0]["user"], "alice");
        assert_eq!(
            (&value["jobs"][0]["age_seconds"], &value["jobs"][1]["what"]),
            (&10_807.into(), &Value::Null)
        );
        assert_eq!(value["path_b64"], "L3j/");
    }

    /// Goal: a host is told from a path with a colon further on.
    #[test]
    fn hosts_are_noticed() {
        assert!(looks_remote(OsStr::new("host:/x")));
        assert!(!looks_remote(OsStr::new("./host:/x")));
        let hint = there(OsStr::new("me@host:/x"));
        assert!(hint.contains("ssh me@host haul clean -n -- /x\n"), "{hint}");
        assert!(
            hint.contains("ssh me@host '$(ls -t ~/.cache/haul/*/haul | head -n 1) clean -n -- /x'"),
            "{hint}"
        );
    }
}
