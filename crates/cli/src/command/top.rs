//! `haul top`: the storage targets of a copy that runs here, asked for through its control socket.
//!
//! In: which copy. Out: a table on stdout, drawn anew while the copy lasts, or once; or JSON lines.
//! Left out: what is in the table, see [`crate::table`]; copies of other hosts (log in there).

use std::io::{ErrorKind, IsTerminal, Write};
use std::thread::sleep;
use std::time::{Duration, Instant};

use haul::api::{CopyPhase, Side, Sides};
use haul::ctl::{self, Found, Job, Request};
use haul::errno;
use serde::Serialize;

use super::surroundings::{Surroundings, control_dirs};
use super::{FAILED, complain, ctl as control};
use crate::args::top::Top;
use crate::live::Block;
use crate::{escape, table};

/// Between two questions while the table is drawn, and between two JSON lines.
const DRAW_EVERY: Duration = Duration::from_millis(500);
const JSON_EVERY: Duration = Duration::from_secs(1);
/// A copy at which nobody looked has no tables yet: they are waited for, and asked for so often.
const FIRST_MAX: Duration = Duration::from_secs(3);
const FIRST_EVERY: Duration = Duration::from_millis(100);
/// The size of what is no terminal.
const NO_EDGE: usize = 1000;
const WIDTH: usize = 120;

/// What a job says.
#[derive(Serialize)]
struct Answer {
    job: Job,
    #[serde(flatten)]
    sides: Sides,
}

impl super::Run for Top {
    fn run(&self) -> i32 {
        run(self)
    }
}

fn run(args: &Top) -> i32 {
    let found = match ctl::jobs(&control_dirs()) {
        Ok(found) => found,
        Err(error) => return complain(&error.to_string(), FAILED),
    };
    let job = match (&args.job, &found[..]) {
        (Some(word), found) => ctl::find(found, word).map_err(|lost| control::lost_text(&lost, word, found)),
        (None, [one]) => Ok(one),
        (None, []) => Err("no copy of this user runs on this host".into()),
        (None, found) => {
            let list = control::list(found, args.json).unwrap_or_default();
            let text = "several copies run: name the one that is meant";
            Err(print(&list).err().unwrap_or_else(|| text.into()))
        }
    };
    let done = job.and_then(|job| {
        let surroundings = Surroundings::look();
        let live = surroundings.stdout_terminal && surroundings.capable;
        match (args.json, args.once) {
            (true, true) => print(&control::to_json(&first(job)?)?),
            (true, false) => follow(job),
            (false, false) if live => draw(job),
            (false, _) => print(&(page(&first(job)?).join("\n") + "\n")),
        }
    });
    match done {
        Ok(()) => 0,
        Err(error) => complain(&error, FAILED),
    }
}

fn ask(job: &Found) -> Result<Answer, String> {
    let reply = ctl::ask(job, &Request::Targets).map_err(|error| escape::text(&error.to_string()))?;
    match reply {
        ctl::Reply { error: Some(error), .. } => Err(escape::text(&error)),
        ctl::Reply { job: Some(job), targets: Some(sides), .. } => Ok(Answer { job, sides }),
        _ => Err("the job says nothing of its storage targets".into()),
    }
}

/// The first answer that is whole, if one comes soon; else what there is.
fn first(job: &Found) -> Result<Answer, String> {
    let begin = Instant::now();
    let known = |side: &Side| side.table.is_some() || side.why_not.is_some();
    loop {
        let answer = ask(job)?;
        let whole = known(&answer.sides.source) && known(&answer.sides.sink);
        if whole
            || begin.elapsed() >= FIRST_MAX
            || matches!(answer.job.state, CopyPhase::Stopping | CopyPhase::Ended)
        {
            return Ok(answer);
        }
        sleep(FIRST_EVERY);
    }
}

/// A JSON line a second until the job is gone.
fn follow(job: &Found) -> Result<(), String> {
    let mut answer = first(job)?;
    loop {
        print(&control::to_json(&answer)?)?;
        sleep(JSON_EVERY);
        match ask(job) {
            Ok(next) => answer = next,
            Err(error) => return over(job, error),
        }
    }
}

/// The table, drawn anew until the job is gone.
fn draw(job: &Found) -> Result<(), String> {
    let mut block = Block::default();
    let mut answer = ask(job)?;
    loop {
        print(&block.draw(&page(&answer)))?;
        sleep(DRAW_EVERY);
        match ask(job) {
            Ok(next) => answer = next,
            Err(error) => {
                print("\n")?;
                over(job, error)?;
                return print("the copy is over\n");
            }
        }
    }
}

/// That a job is gone is the end of it; another error is one.
fn over(job: &Found, error: String) -> Result<(), String> {
    let found = ctl::jobs(&control_dirs()).unwrap_or_default();
    match found.iter().any(|other| (other.pid, &other.name) == (job.pid, &job.name)) {
        true => Err(error),
        false => Ok(()),
    }
}

/// A line of the job, and the table.
fn page(answer: &Answer) -> Vec<String> {
    let (width, height) = match rustix::termios::tcgetwinsize(rustix::stdio::stdout()) {
        // One column stays free, and the line of the cursor.
        Ok(size) if size.ws_col > 1 && size.ws_row > 2 && std::io::stdout().is_terminal() => {
            (usize::from(size.ws_col) - 1, usize::from(size.ws_row) - 2)
        }
        _ => (WIDTH, NO_EDGE),
    };
    let Job { pid, name, .. } = &answer.job;
    let listed =
        control::Listed { pid: *pid, name: name.clone(), job: Some(answer.job.clone()), error: None };
    let head = control::line(&listed, control::now());
    let head = head.trim_end().chars().map(|c| if c == '\n' { ' ' } else { c }).take(width).collect();
    [head].into_iter().chain(table::lines(&answer.sides, width, height)).collect()
}

/// To stdout; who reads no further is no error.
fn print(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        wrote => wrote.map_err(|error| format!("cannot write to stdout: {}", errno::text(error))),
    }
}
