//! Two sessions, with two servers or with one, of which data goes from one to the other: no byte of it comes
//! by here (RFC 959, 2.3 and 5.2; GFD.020).
//!
//! In: files by their paths at both. Out: how far each is, in the words of whoever receives it, and how it
//! ended.
//! Invariants:
//! - a file is over well only when both servers said so, each behind its own word that it began;
//! - after anything else the two sessions are of no use: a data connection that is kept may hold bytes of one
//!   file that the next one would get, with both servers content;
//! - after `ABOR` nothing counts as done: there are servers that say 226 of what they broke off.
//!
//! Source: the order of commands as globus-url-copy has it; RFC 1123, 4.1.2.6.
//! Left out: what is at the destination's name, sums, retries; data connections under TLS or GSI.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use haul_base::stop::Stop;
use haul_gridftp::command::{Command, StripeLayout};
use haul_gridftp::markers::{PERFORMANCE, Performance, RESTART, parse_restart};
use haul_gridftp::ranges::Ranges;
use haul_gridftp::reply::{Class, Reply};

use crate::control::{Control, said};
use crate::{Error, Session};

mod open;

/// How often a stop is looked at, and the time.
const LOOK: Duration = Duration::from_millis(100);
/// How long one of the two may take to say something of what the other one ended.
const WIND_UP: Duration = Duration::from_secs(2);
/// How long both may take to answer where nothing moves any more.
const PROBE: Duration = Duration::from_secs(5);
/// What a transfer is given of which nothing can be heard, and a server that puts what it has onto media;
/// bytes a second.
const UNHEARD_RATE: u64 = 1 << 20;
const FLUSH_RATE: u64 = 20 << 20;
/// From when on somebody looks how far a transfer is that does not say so; and how often.
const WATCHED_AFTER: Duration = Duration::from_secs(2);

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    From,
    To,
}

impl End {
    pub fn other(self) -> End {
        match self {
            End::From => End::To,
            End::To => End::From,
        }
    }
}

/// How the two are to do it.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// Data connections between two nodes, where they take several.
    pub parallelism: u32,
    /// How a file is laid out over several nodes.
    pub layout: Option<StripeLayout>,
    /// How long nothing may move.
    pub patience: Duration,
    /// Even where both know MODE E, in which the receiver must listen.
    pub stream: bool,
}

/// A file to move.
#[derive(Clone, Copy, Debug)]
pub struct Move<'a> {
    pub from: &'a [u8],
    pub to: &'a [u8],
    pub size: u64,
    /// What of it is at the destination already. Only in MODE E.
    pub held: Option<&'a Ranges>,
}

impl Move<'_> {
    fn restarts(&self) -> bool {
        self.held.is_some_and(|held| !held.is_empty())
    }
}

/// What is heard while files move; the first number says which.
#[derive(Debug)]
pub enum Heard<'a> {
    /// So many bytes came there in this transfer, as far as anybody knows.
    Moved(usize, u64),
    /// The receiver says of these ranges, beside those before, that it has them.
    Safe(usize, &'a Ranges),
}

/// Why files did not move.
#[derive(Debug)]
pub enum Fault {
    /// One of the two says so, or is lost; and the words of the other, where it had any.
    At { end: End, error: Error, other: Option<String> },
    /// No data connection comes to be while this one listens.
    NoWay { listens: End, why: String },
    /// Before it began it refused to go on with what is at the destination; in its words.
    NoRestart { end: End, why: String },
    /// Nothing moved for so long; whose fault that is, where it shows.
    Stalled { end: Option<End>, why: String },
    /// Somebody wanted an end.
    Stopped,
}

/// How a run of files ended: the first `done` are over well.
#[derive(Debug)]
pub struct Ran {
    pub done: usize,
    pub fault: Option<Fault>,
}

/// Two sessions.
pub struct Pair {
    from: Session,
    to: Session,
    manner: Manner,
    stop: Stop,
    /// MODE E at both.
    extended: bool,
    /// Its data connections are there, and kept.
    open: bool,
    /// `PASV` may be answered after `STOR`.
    delayed: bool,
    striped: bool,
    /// An address was not used as a server named it.
    replaced: Option<(IpAddr, IpAddr)>,
    stripes: usize,
}

/// What one of the two owes an answer to.
#[derive(Clone, Copy, Debug)]
enum Step {
    Allo,
    Rest,
    Data(usize),
}

struct Side {
    owes: VecDeque<Step>,
    begun: bool,
    done: usize,
    /// A marker of its own came since anything moved.
    marks: bool,
}

impl Pair {
    /// Both are logged in. They are of no other use from now on. `stop`: whoever can end a transfer.
    ///
    /// # Errors
    /// One of them is lost, or does not take the layout that was asked for.
    pub fn new(from: Session, to: Session, manner: Manner, stop: Stop) -> Result<Pair, Fault> {
        let mut pair = Pair {
            from,
            to,
            manner,
            stop,
            extended: false,
            open: false,
            delayed: false,
            striped: false,
            replaced: None,
            stripes: 1,
        };
        pair.set_up()?;
        Ok(pair)
    }

    fn set_up(&mut self) -> Result<(), Fault> {
        let can = |session: &Session| session.features.has("PARALLEL");
        if self.manner.stream || !can(&self.from) || !can(&self.to) {
            return Ok(());
        }
        self.striped = self.to.features.has("SPAS") && self.from.features.has("SPOR");
        let (parallelism, layout) = (self.manner.parallelism, self.manner.layout.filter(|_| self.striped));
        let (blocks, opts) = (Command::Mode(b'E'), Command::OptsRetr { parallelism, layout });
        // Who receives knows what markers are wanted by the words before it or by this one, as haul's own.
        let markers = Command::With("OPTS", b"RETR Markers=1;");
        // Each second what is safe and how far it is; who does not know that says so every five.
        let trev = |event: &'static [u8]| Command::With("TREV", event);
        let delayed = self.to.features.has_delayed_passive().then_some(Command::OptsDelayedPassive);
        let to = [blocks, trev(b"RESTART 1"), trev(b"PERF 1"), markers];
        let to: Vec<Command<'_>> = to.into_iter().chain(delayed).collect();
        // Far away each answer takes a round trip: all is asked of both before either answers.
        let [from, to] = self.ask_both([&[blocks, opts, markers], &to])?;
        let is_done = |reply: &Reply| reply.class() == Class::Completed;
        match (is_done(&from[0]), is_done(&to[0])) {
            (true, true) => {}
            (from, to) => {
                for (end, _) in [(End::From, from), (End::To, to)].into_iter().filter(|(_, is)| *is) {
                    self.ask(end, &Command::Mode(b'S'))?;
                }
                if delayed.is_some() && !haul_mutant::removed("ftp-delayed-places-are-unset") {
                    // In stream mode it is asked where it listens before it hears what comes.
                    self.ask(End::To, &Command::With("OPTS", b"PASV AllowDelayed=0;"))?;
                }
                self.striped = false;
                return Ok(());
            }
        }
        self.extended = true;
        let at = |error| Fault::At { end: End::From, error, other: None };
        self.from.control.done(&opts, from[1].clone()).map_err(at)?;
        self.delayed = delayed.is_some() && to.last().is_some_and(is_done);
        Ok(())
    }

    /// The replies of both to what is asked of them at the same time, of whom data comes from first.
    fn ask_both(&mut self, commands: [&[Command<'_>]; 2]) -> Result<[Vec<Reply>; 2], Fault> {
        const ENDS: [End; 2] = [End::From, End::To];
        let asked = Instant::now();
        let at = |end| move |error| Fault::At { end, error, other: None };
        for (end, commands) in ENDS.into_iter().zip(commands) {
            self.control(end).send(commands).map_err(at(end))?;
        }
        let mut told = [Vec::new(), Vec::new()];
        for ((end, commands), told) in ENDS.into_iter().zip(commands).zip(&mut told) {
            *told = self.control(end).answers(commands, asked).map_err(at(end))?;
        }
        Ok(told)
    }

    /// Whether it is done; a refusal is no matter.
    fn ask(&mut self, end: End, command: &Command<'_>) -> Result<bool, Fault> {
        let reply = self.control(end).ask(command);
        let reply = reply.map_err(|error| Fault::At { end, error, other: None })?;
        Ok(reply.class() == Class::Completed)
    }

    pub fn session(&mut self, end: End) -> &mut Session {
        match end {
            End::From => &mut self.from,
            End::To => &mut self.to,
        }
    }

    fn control(&mut self, end: End) -> &mut Control {
        &mut self.session(end).control
    }

    /// Both sessions, the one that data comes from first.
    pub fn both(&mut self) -> (&mut Session, &mut Session) {
        (&mut self.from, &mut self.to)
    }

    /// They speak MODE E: parts of files can be moved, and several files one after the other without a word
    /// between.
    pub fn is_extended(&self) -> bool {
        self.extended
    }

    /// Nodes of the receiver that data goes to.
    pub fn stripes(&self) -> usize {
        self.stripes
    }

    /// The address that was used in place of one that a server named, which comes first.
    pub fn replaced(&self) -> Option<(IpAddr, IpAddr)> {
        self.replaced
    }

    /// Moves files, one after the other. `listens`: which of the two, where that can be chosen; `proven`: so
    /// it was done before. `watch`: how long a file of that number is at the destination now, asked of
    /// whoever else may know, where the receiver tells nothing.
    ///
    /// After a fault the pair is of no use.
    pub fn run(
        &mut self,
        (listens, proven): (End, bool),
        moves: &[Move<'_>],
        hear: &mut dyn FnMut(Heard<'_>),
        watch: &mut dyn FnMut(usize) -> Option<u64>,
    ) -> Ran {
        let mut done = 0;
        // Where connections are kept, the first file opens them, and the others follow without a word.
        while done < moves.len() {
            let last = if self.open { moves.len() } else { done + 1 };
            let ran = self.some((listens, proven), moves, done..last, hear, watch);
            done = ran.done;
            if ran.fault.is_some() {
                return ran;
            }
        }
        Ran { done, fault: None }
    }

    fn some(
        &mut self,
        (listens, proven): (End, bool),
        moves: &[Move<'_>],
        which: std::ops::Range<usize>,
        hear: &mut dyn FnMut(Heard<'_>),
        watch: &mut dyn FnMut(usize) -> Option<u64>,
    ) -> Ran {
        let start = which.start;
        let begun = match (self.open, self.extended) {
            (true, _) => Ok(false),
            (false, true) => self.open_extended(&moves[start]),
            (false, false) => self.open_stream(listens),
        };
        let stor_sent = match begun {
            Ok(sent) => sent,
            Err(fault) => return Ran { done: start, fault: Some(fault) },
        };
        let mut sides = HashMap::from([(End::From, Side::new(start)), (End::To, Side::new(start))]);
        for end in [End::To, End::From] {
            let mut commands = Vec::new();
            for index in which.clone() {
                let (mut words, steps) = words(end, &moves[index], index, self.extended);
                let side = sides.get_mut(&end).expect("both are there");
                if stor_sent && end == End::To {
                    // All but the last word of it was answered.
                    words.clear();
                    side.owes.push_back(Step::Data(index));
                } else {
                    side.owes.extend(steps);
                }
                commands.append(&mut words);
            }
            if let Err(error) = self.control(end).send(&commands) {
                return Ran { done: start, fault: Some(self.wind_up(end, error)) };
            }
        }
        let ran = self.follow(&mut sides, moves, hear, watch);
        self.open = self.extended && ran.fault.is_none();
        let moved_none = ran.done == start && start == which.start;
        match ran.fault {
            Some(fault) if !self.extended && !proven && moved_none => {
                Ran { done: ran.done, fault: Some(as_no_way(fault, listens)) }
            }
            fault => Ran { done: ran.done, fault },
        }
    }

    /// Hears both until all is over.
    fn follow(
        &mut self,
        sides: &mut HashMap<End, Side>,
        moves: &[Move<'_>],
        hear: &mut dyn FnMut(Heard<'_>),
        watch: &mut dyn FnMut(usize) -> Option<u64>,
    ) -> Ran {
        let begun = Instant::now();
        let (mut grew, mut looked, mut heard_any, mut seen) = (begun, begun, false, false);
        let (mut stripes, mut moved): (HashMap<u32, u64>, u64) = (HashMap::new(), 0);
        loop {
            for end in [End::To, End::From] {
                loop {
                    let done = sides.values().map(|side| side.done).min().unwrap_or(0);
                    let reply = match self.control(end).ready_reply() {
                        Ok(None) => break,
                        Ok(Some(reply)) => reply,
                        Err(error) => return Ran { done, fault: Some(self.wind_up(end, error)) },
                    };
                    let side = sides.get_mut(&end).expect("both are there");
                    let before = (side.done, side.begun);
                    match self.take(end, &reply, side, moves) {
                        Ok(Said::Nothing) => {}
                        Ok(Said::Moved(mark)) => {
                            side.marks = true;
                            heard_any |= end == End::To;
                            stripes.insert(mark.stripe, mark.moved);
                            let sum = stripes.values().fold(0, |sum: u64, moved| sum.saturating_add(*moved));
                            if end == End::To && sum > moved {
                                (moved, grew) = (sum, Instant::now());
                                sides.values_mut().for_each(|side| side.marks = false);
                                hear(Heard::Moved(sides[&end].done, moved));
                            }
                        }
                        Ok(Said::Safe(ranges)) => {
                            (heard_any, grew) = (true, Instant::now());
                            hear(Heard::Safe(side.done, &ranges));
                        }
                        Err(error) => {
                            let done = sides.values().map(|side| side.done).min().unwrap_or(0);
                            let (to, of) = (&sides[&End::To], moves.get(sides[&end].done));
                            let restarts = !to.begun && of.is_some_and(Move::restarts);
                            let fault = self.wind_up(end, error);
                            let fault = if restarts { as_no_restart(fault) } else { fault };
                            return Ran { done, fault: Some(fault) };
                        }
                    }
                    let Some(side) = sides.get(&end) else { continue };
                    if before != (side.done, side.begun) {
                        grew = Instant::now();
                        if end == End::To && before.0 != side.done {
                            (stripes, moved) = (HashMap::new(), 0);
                        }
                    }
                }
            }
            let done = sides.values().map(|side| side.done).min().unwrap_or(0);
            if sides.values().all(|side| side.owes.is_empty()) {
                return Ran { done, fault: None };
            }
            if self.stop.is_asked() {
                self.abort(WIND_UP);
                return Ran { done, fault: Some(Fault::Stopped) };
            }
            let now = Instant::now();
            let file = sides[&End::To].done.min(moves.len() - 1);
            if !heard_any && grew.elapsed() > WATCHED_AFTER && looked.elapsed() > WATCHED_AFTER {
                looked = now;
                if let Some(len) = watch(file) {
                    seen = true;
                    if len > moved {
                        (moved, grew) = (len, Instant::now());
                        hear(Heard::Moved(file, moved));
                    }
                }
            }
            let both_began = sides.values().all(|side| side.begun || side.done > file);
            let is_deaf = both_began && !heard_any && !seen;
            if now.saturating_duration_since(grew) > self.allowed(&moves[file], moved, is_deaf) {
                return Ran { done, fault: Some(self.stalled(sides, now.duration_since(grew))) };
            }
            self.from.control.wait_for_either(&self.to.control, LOOK);
        }
    }

    /// How long nothing may move. `is_deaf`: nothing tells how far it is.
    fn allowed(&self, of: &Move<'_>, moved: u64, is_deaf: bool) -> Duration {
        let more = match is_deaf {
            true => of.size / UNHEARD_RATE,
            // It may be on its way onto media.
            false if moved >= of.size => of.size / FLUSH_RATE,
            false => 0,
        };
        self.manner.patience + Duration::from_secs(more)
    }

    /// What one of the two says.
    fn take(&mut self, end: End, reply: &Reply, side: &mut Side, moves: &[Move<'_>]) -> Result<Said, Error> {
        let extended = self.extended;
        let control = self.control(end);
        let Some(step) = side.owes.front().copied() else {
            let code = reply.code();
            return match code {
                421 => Err(Error::Closed { doing: "moving a file" }),
                _ => Err(Error::OutOfStep { said: "nothing more".into(), code }),
            };
        };
        let index = match step {
            Step::Data(index) => index,
            Step::Allo | Step::Rest => side.done,
        };
        let (words, _) = words(end, &moves[index], index, extended);
        let of = |step| match step {
            Step::Allo => Command::Allo(moves[index].size),
            Step::Rest => words[words.len() - 2],
            Step::Data(_) => words[words.len() - 1],
        };
        let out = |step| Error::OutOfStep { said: said(&of(step)), code: reply.code() };
        match (step, reply.class()) {
            (Step::Allo, Class::Transient | Class::Permanent) if matches!(reply.code(), 421 | 452 | 552) => {
                Err(control.refused(&of(step), reply))
            }
            // Whoever needs no word of what will come says so.
            (Step::Allo, Class::Completed | Class::Permanent | Class::Transient) => {
                side.owes.pop_front();
                Ok(Said::Nothing)
            }
            (Step::Rest, Class::Intermediate) => {
                side.owes.pop_front();
                Ok(Said::Nothing)
            }
            (Step::Data(_), Class::Preliminary) => match reply.code() {
                RESTART if side.begun => Ok(match end {
                    End::To => Said::Safe(parse_restart(reply)?),
                    End::From => Said::Nothing,
                }),
                PERFORMANCE if side.begun => Ok(Said::Moved(Performance::parse(reply)?)),
                125 | 150 => {
                    side.begun = true;
                    Ok(Said::Nothing)
                }
                100..=199 => Ok(Said::Nothing),
                _ => Err(out(step)),
            },
            (Step::Data(_), Class::Completed) if side.begun && matches!(reply.code(), 226 | 250) => {
                side.owes.pop_front();
                side.done += 1;
                side.begun = false;
                Ok(Said::Nothing)
            }
            (_, Class::Transient | Class::Permanent) => Err(control.refused(&of(step), reply)),
            _ => Err(out(step)),
        }
    }

    /// One of the two is at fault: what the other one says of it is heard, for a little.
    fn wind_up(&mut self, end: End, error: Error) -> Fault {
        let until = Instant::now() + WIND_UP.min(self.manner.patience);
        let other = self.control(end.other());
        let mut heard = None;
        while heard.is_none() && Instant::now() < until && !other.is_broken() {
            match other.ready_reply() {
                Ok(Some(reply)) => match reply.class() {
                    Class::Transient | Class::Permanent => {
                        heard = Some(other.refused(&Command::Bare("moving the file"), &reply));
                    }
                    // That it is done says nothing any more.
                    Class::Completed => break,
                    _ => {}
                },
                Ok(None) => other.wait_for_either(other, LOOK),
                Err(error) => heard = Some(error),
            }
        }
        self.abort(Duration::ZERO);
        let words = |error: &Error| Some(error.to_string());
        match heard {
            // The source says first, as a rule, that nobody takes its data any more.
            Some(cause) if end == End::From && cause.is_no_room() => {
                Fault::At { end: End::To, other: words(&error), error: cause }
            }
            heard => Fault::At { end, error, other: heard.as_ref().and_then(words) },
        }
    }

    /// Ends a transfer at both. Which of them answered within this time.
    fn abort(&mut self, time: Duration) -> HashMap<End, bool> {
        let mut answered = HashMap::new();
        for end in [End::From, End::To] {
            if !self.control(end).is_broken() {
                let _ = self.control(end).send(&[Command::Bare("ABOR")]);
            }
        }
        let until = Instant::now() + time;
        while answered.len() < 2 && Instant::now() < until {
            for end in [End::From, End::To] {
                // Markers that were on their way are no answer.
                while let Ok(Some(reply)) = self.control(end).ready_reply() {
                    if reply.class() != Class::Preliminary {
                        answered.insert(end, true);
                    }
                }
            }
            self.from.control.wait_for_either(&self.to.control, LOOK);
        }
        answered
    }

    /// Nothing moves: who is to blame, as far as that can be seen.
    fn stalled(&mut self, sides: &HashMap<End, Side>, time: Duration) -> Fault {
        let (from, to) = (&sides[&End::From], &sides[&End::To]);
        let seen = match () {
            () if from.done > to.done => Some((End::To, "the other one says that it sent all")),
            () if to.done > from.done => Some((End::From, "the other one says that it has all")),
            () if to.begun && !from.begun => Some((End::From, "it does not say that it begins")),
            () if from.begun && !to.begun => Some((End::To, "it does not say that it begins")),
            () if to.marks => Some((End::From, "the other one still tells that nothing comes")),
            () => None,
        };
        let answered = self.abort(PROBE.min(self.manner.patience));
        let has = |end| answered.contains_key(&end);
        let silent = |end| (end, "it does not answer any more, and the other one does");
        let seen = seen.or(match (has(End::From), has(End::To)) {
            (true, false) => Some(silent(End::To)),
            (false, true) => Some(silent(End::From)),
            _ => None,
        });
        let time = time.as_secs();
        let (end, why) = match seen {
            Some((end, why)) => (Some(end), format!("nothing moved for {time} s: {why}")),
            None => (None, format!("nothing moved for {time} s, and neither of the two says why")),
        };
        Fault::Stalled { end, why }
    }
}

impl Side {
    fn new(start: usize) -> Side {
        Side { owes: VecDeque::new(), begun: false, done: start, marks: false }
    }
}

/// What a reply says.
enum Said {
    Nothing,
    Moved(Performance),
    Safe(Ranges),
}

/// What is said to one of the two for a file, and what each word is.
fn words<'a>(end: End, of: &Move<'a>, index: usize, extended: bool) -> (Vec<Command<'a>>, Vec<Step>) {
    let (mut words, mut steps) = (Vec::new(), Vec::new());
    if end == End::To && extended {
        words.push(Command::Allo(of.size));
        steps.push(Step::Allo);
    }
    if let Some(held) = of.held.filter(|held| !held.is_empty()) {
        words.push(Command::RestRanges(held));
        steps.push(Step::Rest);
    }
    words.push(match end {
        End::From => Command::Path("RETR", of.from),
        End::To => Command::Path("STOR", of.to),
    });
    steps.push(Step::Data(index));
    (words, steps)
}

/// What went wrong before anything moved may be that the two cannot reach each other so.
fn as_no_way(fault: Fault, listens: End) -> Fault {
    let is_425 = |error: &Error| matches!(error, Error::Refused { code: 425, .. });
    match fault {
        Fault::At { end, error, other }
            if is_425(&error) || other.as_ref().is_some_and(|text| text.contains(" 425 ")) =>
        {
            let side = if end == End::From { "the source" } else { "the destination" };
            let other = other.map(|text| format!("; the other one: {text}")).unwrap_or_default();
            Fault::NoWay { listens, why: format!("{side}: {error}{other}") }
        }
        Fault::Stalled { why, .. } => Fault::NoWay { listens, why },
        fault => fault,
    }
}

/// What went wrong with a file of which the destination has a part, before it said that it begins, may be
/// that it does not go on with it.
fn as_no_restart(fault: Fault) -> Fault {
    match fault {
        Fault::At { end: End::To, error, .. } if refuses_restart(&error) => {
            Fault::NoRestart { end: End::To, why: error.to_string() }
        }
        // The source may hear first that nobody takes its data.
        Fault::At { end: End::From, other: Some(why), .. }
            if [" 501 ", " 554 "].iter().any(|code| why.contains(code)) =>
        {
            Fault::NoRestart { end: End::To, why }
        }
        Fault::At { end, error: error @ Error::Refused { code: 500..=599, .. }, .. } if matches!(&error, Error::Refused { said, .. } if said == "REST") => {
            Fault::NoRestart { end, why: error.to_string() }
        }
        fault => fault,
    }
}

fn refuses_restart(error: &Error) -> bool {
    match error {
        Error::Refused { code: 530 | 532, .. } => false,
        // Globus says 500 of all that goes wrong, and then in words that it was a connection.
        Error::Refused { code: 500, text, .. } if text.contains("xio") || text.contains("onnect") => false,
        Error::Refused { code: 500..=599, .. } => !error.is_no_room(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a restart that is refused is told from trouble that has nothing to do with it, where what is
    /// there is kept.
    #[test]
    fn a_refused_restart_is_told_from_other_trouble() {
        let at = |end, said: &str, code, text: &str, other: Option<&str>| {
            let error = Error::Refused { said: said.into(), code, text: text.into() };
            Fault::At { end, error, other: other.map(str::to_owned) }
        };
        let is_refused = |fault| matches!(as_no_restart(fault), Fault::NoRestart { .. });
        for code in [500, 501, 550, 554] {
            assert!(is_refused(at(End::To, "STOR x", code, "no", None)), "{code}");
        }
        assert!(is_refused(at(End::From, "REST", 501, "no", None)));
        let other = "moving the file: the server answers 554 these bytes were never confirmed here";
        assert!(is_refused(at(End::From, "RETR x", 426, "lost", Some(other))));
        for (code, text) in
            [(426, "lost"), (450, "busy"), (530, "no"), (552, "full"), (500, "globus_xio: eof")]
        {
            assert!(!is_refused(at(End::To, "STOR x", code, text, None)), "{code}");
        }
        assert!(!is_refused(at(End::From, "RETR x", 550, "no", None)));
        assert!(!is_refused(Fault::Stopped));
    }

    /// Goal: what may only be that the two cannot reach each other so is told from what will be so either
    /// way.
    #[test]
    fn the_other_way_is_tried_where_it_may_help() {
        let refused = |code| Error::Refused { said: "STOR x".into(), code, text: "no".into() };
        let at = |code, other: Option<&str>| Fault::At {
            end: End::To,
            error: refused(code),
            other: other.map(str::to_owned),
        };
        let is_way = |fault| matches!(as_no_way(fault, End::To), Fault::NoWay { .. });
        assert!(is_way(at(425, None)));
        assert!(is_way(at(426, Some("moving the file: the server answers 425 no"))));
        assert!(is_way(Fault::Stalled { end: None, why: "nothing moved".into() }));
        assert!(!is_way(at(553, None)) && !is_way(at(550, Some("it answers 426"))));
        assert!(!is_way(Fault::Stopped));
    }
}
