//! What becomes of what fails, and where else a source lies.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueHint};
use haul::options::{RETRIES_MAX, RETRY_FOR_MAX};

use super::far::parse_ssh;

#[derive(ClapArgs, Debug)]
pub struct Retry {
    /// Try what fails and may pass again for so long, as 30m or 12h
    ///
    /// What an FTP server is asked for, sends or is sent; and, where the connection to the far end is lost
    /// for longer than --patience, or does not come up, the copy as a whole, which then goes on where it
    /// stopped. Counted from when it last came on, with pauses of up to a minute. Default: a few times over
    /// some seconds, and the copy not. Not with --manifest, what the copy as a whole is concerned.
    #[arg(long, value_name = "TIME", value_parser = parse_retry_for)]
    pub retry_for: Option<u32>,

    /// Begin the copy as a whole again so often, where the connection to the far end is lost or not made
    ///
    /// It goes on where it stopped, after pauses that grow to a minute; Ctrl-C ends a pause at once. Never
    /// for what would fail again: a wrong command, a login that is refused, a full disk. With --retry-for
    /// what ends first counts. Within one host, and at servers, nothing is begun again. Default: none, and
    /// with --retry-for as many as fit.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=i64::from(RETRIES_MAX)))]
    pub retries: Option<u32>,

    /// Copy only what FILE lists, as --failures FILE of an earlier run wrote it
    ///
    /// With the same SRC and DST: entries that failed, with all that is below them. What is not there any
    /// more is an error of its own. A list that is not whole is refused: of a run that was stopped or killed,
    /// where the command itself copies what is missing. FILE may be that of --failures, too, and stays as it
    /// was until the new list is whole. With -H names of a file that are not in FILE are not joined, and
    /// that is told.
    #[arg(long, value_name = "FILE", value_parser = super::plain::path())]
    pub retry_from: Option<PathBuf>,

    /// Ask this command what becomes of what failed: retry, replica, give_up or default
    ///
    /// Started for each question, without a shell, on this host; quotes work as in one. It reads a line of
    /// JSON (step, about, text, kind, passing, silent, attempts, seconds, marker, others) and prints one of
    /// these words, or JSON: {"do": "retry", "after": 30}, in seconds. One that does not answer within 10 s,
    /// or with anything else, is told of once, and what --retry-for says is done, as with default.
    #[arg(long, value_name = "CMD", value_parser = parse_command)]
    pub retry_command: Option<RetryCommand>,

    /// Where else the same lies, as ftp://HOST/PATH: used where SRC cannot be had; may be given often
    ///
    /// For one SRC at a server. No file is put together of two versions: one that goes on at another server
    /// was shown to be the same there up to that point, or begins anew. The summary says what came from
    /// where.
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    pub replica: Vec<OsString>,
}

/// A command, split into words; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryCommand(pub Vec<String>);

fn parse_command(text: &str) -> Result<RetryCommand, String> {
    parse_ssh(text).map(|words| RetryCommand(words.0))
}

/// Seconds, at most thirty days.
fn parse_retry_for(text: &str) -> Result<u32, String> {
    let time: Duration = super::parse_duration(text)?;
    match u32::try_from(time.as_secs()) {
        Ok(seconds @ 1..=RETRY_FOR_MAX) => Ok(seconds),
        _ => Err("write a time from 1s to 30d".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a time within its bounds, in whole seconds.
    #[test]
    fn times_have_bounds() {
        assert_eq!(parse_retry_for("12h"), Ok(43_200));
        assert_eq!(parse_retry_for("30d"), Ok(RETRY_FOR_MAX));
        for text in ["0s", "31d", "5", "1ms", "x"] {
            assert!(parse_retry_for(text).is_err(), "{text}");
        }
    }
}
