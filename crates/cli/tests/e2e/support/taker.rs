//! An FTP server that takes files, and lies about that by a script: it keeps less than it says, breaks off,
//! refuses, stalls. What it holds lies in memory, for the test to see.
//!
//! It is the other side of [`super::liar`]. What the script leaves alone it does as any server would.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use blocks::Lane;

mod blocks;
mod into;

pub use blocks::InBlocks;
pub use into::Into;

const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Where nothing came for so long, nothing comes before an answer.
const QUIET: Duration = Duration::from_millis(50);
/// A session that says nothing for so many times of that has nothing to do.
const QUIETS: u32 = 4;
/// Fewer bytes of files are those of a session that it may end.
const FEW: usize = 256 << 10;
const DIALLED_WITHIN: Duration = Duration::from_secs(10);

/// How a file is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    Whole,
    /// It says that it has all of it, and keeps so many bytes only.
    Short(usize),
    /// It says that it has all of it, and keeps one byte otherwise.
    Wrong,
    /// It keeps so many bytes, ends the data connection, and says this.
    Cut(usize, &'static str),
    /// All connections of that session end there.
    HangUp(usize),
    /// It takes no more from there on, and says nothing.
    Stall(usize),
    /// The same, and who comes from then on is not even greeted.
    Mute(usize),
    /// Nothing of it, but this.
    Refuse(&'static str),
}

/// What it does when it is told to go on with a file (`REST`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoesOn {
    Well,
    /// It cuts off what stands there, and keeps what comes.
    CutsOff,
    /// It says that it will, and then this.
    Refuses(&'static str),
}

/// What a server does with a command that comes while a file does, in stream mode. Else it is answered behind
/// that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupted {
    /// It is refused at once, before the word on the file.
    Busy(&'static str),
    /// It is never answered.
    Lost,
    /// It says these in place of its answer and of its word on the file, of which it keeps other bytes.
    Breaks(&'static [&'static str]),
}

/// When a part that it gave back is gone; it makes zeros of what is missing before the byte at which it goes
/// on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgets {
    WhenRead,
    WhenToldToGoOn,
}

struct Held {
    content: Vec<u8>,
    modify: String,
    /// As it was called last, where names that differ in case are one.
    path: Vec<u8>,
}

/// What it holds.
#[derive(Default)]
struct Shelf {
    files: BTreeMap<Vec<u8>, Held>,
    dirs: BTreeSet<Vec<u8>>,
}

/// The script.
#[derive(Default)]
pub struct Script {
    shelf: Mutex<Shelf>,
    /// What it says to `DELE`, of what is there as well or not.
    removes_not: Option<(&'static str, bool)>,
    /// What it says to `DELE` of what is not there.
    removes_none: Option<&'static str>,
    /// Nobody listens where it says that it does.
    unreachable: bool,
    /// When so many bytes of files came, it ends the sessions that took few, and takes no other any more.
    evicts: Option<usize>,
    closes: bool,
    /// Logins so far; which of them are refused, and how.
    logins: AtomicUsize,
    refuses_logins: Option<(std::ops::Range<usize>, &'static str)>,
    /// What it does with a command that comes while a file does.
    interrupted: Option<Interrupted>,
    /// How files whose path holds this are taken, one after the other; then whole.
    takes: Vec<(&'static str, Vec<Takes>, AtomicUsize)>,
    /// It takes files in blocks, too: how those whose path holds this, one after the other; then whole.
    blocks: bool,
    takes_blocks: Vec<(&'static str, Vec<InBlocks>, AtomicUsize)>,
    /// Files that got what was left of another one.
    mixed: Mutex<Vec<Vec<u8>>>,
    /// The reply to `MODE E`.
    mode: Option<&'static str>,
    /// It makes sums.
    sums: bool,
    /// It replaces nothing by a rename.
    keeps_names: bool,
    /// The reply to every RNTO.
    rnto: Option<&'static str>,
    /// What it says, so often, to a command with this verb whose argument holds that, and nothing else.
    says: Vec<(&'static str, &'static str, &'static str, AtomicUsize)>,
    /// When a file whose path holds this is to get its name first, what was sent is gone, this stands at the
    /// name, and it hangs up.
    swaps: Option<(&'static str, Vec<u8>, AtomicBool)>,
    folds: bool,
    /// It lets nobody rename or remove anything.
    drop_box: bool,
    /// It says that nobody may rename what is not there.
    denies_nothing: bool,
    /// It takes so many sessions at a time; 0: as many as come.
    sessions_max: usize,
    serving: AtomicUsize,
    /// Nobody is greeted any more; how many came since.
    mute: AtomicBool,
    ungreeted: AtomicUsize,
    /// It has no MFMT.
    no_times: bool,
    /// It leaves bytes that are not ASCII out of paths, and lists directories (MLSD).
    drops: bool,
    /// It says that it makes sums, and this whenever it is asked for one.
    sums_say: Option<&'static str>,
    /// It says nothing when it is asked for a sum.
    thinks: AtomicBool,
    /// It waits before it answers this; that it does, and that it is to go on.
    waits_at: Option<(&'static str, &'static str)>,
    waits_after: AtomicUsize,
    waits: AtomicBool,
    goes_on_now: AtomicBool,
    /// It makes no sum of files whose path holds this.
    no_sum_of: Option<&'static str>,
    /// It makes sums of whole files alone.
    no_part_sums: bool,
    /// It says of directories that are there that it made them.
    makes_again: bool,
    /// A session opens so many data connections for files, and refuses all further ones; 0: as many as are
    /// asked for.
    connections_max: usize,
    /// It goes on with files, and makes sums of parts.
    goes_on: Option<GoesOn>,
    /// It goes on with files, gives them back and makes no sums; and forgets one, once.
    forgets: Option<(Forgets, AtomicBool)>,
    /// It writes into files that stand there, by `ESTO` or by `REST`, and gives them back.
    into: Option<(Into, bool)>,
    /// It calls files by names of its own (`Unique`).
    calls: bool,
    /// Paths that lead to others: a file, or a directory with all that is in it.
    links: Vec<(&'static str, &'static str)>,
    /// Bytes of files that came, as they are.
    taken: AtomicUsize,
    /// It is far away: see [`Script::far`].
    far: bool,
    /// How often it had nothing more to do, and let go what it had said.
    turns: AtomicUsize,
}

impl Script {
    /// Files whose path holds `part` are taken so.
    pub fn takes(mut self, part: &'static str, how: &[Takes]) -> Script {
        self.takes.push((part, how.to_vec(), AtomicUsize::new(0)));
        self
    }

    /// It takes files in blocks, too; those whose path holds `part` so.
    pub fn in_blocks(mut self, part: &'static str, how: &[InBlocks]) -> Script {
        self.blocks = true;
        self.takes_blocks.push((part, how.to_vec(), AtomicUsize::new(0)));
        self
    }

    /// It says that it takes files in blocks, and to `MODE E` this.
    pub fn refuses_blocks(mut self, reply: &'static str) -> Script {
        (self.blocks, self.mode) = (true, Some(reply));
        self
    }

    /// It is far away: what it says arrives when it has nothing more to do, for nothing comes. So whoever
    /// waits for an answer before he goes on waits a round trip, and each of them is counted; whoever does
    /// not, does not.
    pub fn far(mut self) -> Script {
        self.far = true;
        self
    }

    pub fn with_sums(mut self) -> Script {
        self.sums = true;
        self
    }

    /// Its port for data is closed to everybody.
    pub fn unreachable(mut self) -> Script {
        self.unreachable = true;
        self
    }

    pub fn connections_max(mut self, max: usize) -> Script {
        self.connections_max = max;
        self
    }

    /// It takes files from their middle, and makes sums of parts.
    pub fn goes_on(mut self, how: GoesOn) -> Script {
        (self.goes_on, self.sums) = (Some(how), true);
        self
    }

    /// It takes files from their middle, gives them back and makes no sums; the first that it gave back is
    /// gone then.
    pub fn forgets(mut self, when: Forgets) -> Script {
        (self.goes_on, self.forgets) = (Some(GoesOn::Well), Some((when, AtomicBool::new(false))));
        self
    }

    /// It writes into files that stand there, by `ESTO` or else by `REST`, and gives them back.
    pub fn into(mut self, how: Into, by_esto: bool) -> Script {
        self.into = Some((how, by_esto));
        self
    }

    /// It tells a name of its own for each file (`Unique`), by which two paths of one file are known.
    pub fn calls_files(mut self) -> Script {
        self.calls = true;
        self
    }

    /// What is at `path`, or below it, is what is at `to`.
    pub fn leads(mut self, path: &'static str, to: &'static str) -> Script {
        self.links.push((path, to));
        self
    }

    pub fn keeps_names(mut self) -> Script {
        self.keeps_names = true;
        self
    }

    pub fn rnto(mut self, reply: &'static str) -> Script {
        self.rnto = Some(reply);
        self
    }

    /// It says this, so often, to a command with this verb whose argument holds `part`.
    pub fn says(
        mut self,
        verb: &'static str,
        part: &'static str,
        reply: &'static str,
        times: usize,
    ) -> Script {
        self.says.push((verb, part, reply, AtomicUsize::new(times)));
        self
    }

    /// When a file whose path holds `part` is to get its name first, what was sent is gone, this content of
    /// somebody else stands at the name, and it hangs up.
    pub fn swaps_at_rename(mut self, part: &'static str, content: &[u8]) -> Script {
        self.swaps = Some((part, content.to_vec(), AtomicBool::new(false)));
        self
    }

    fn said(&self, verb: &str, argument: &[u8]) -> Option<&'static str> {
        let argument = String::from_utf8_lossy(argument);
        let is_it = |told: &&(&'static str, &'static str, &'static str, AtomicUsize)| {
            let less = |times: usize| times.checked_sub(1);
            told.0 == verb
                && argument.contains(told.1)
                && told.3.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
        };
        self.says.iter().find(is_it).map(|(_, _, reply, _)| *reply)
    }

    /// It says that nobody may rename what is not there.
    pub fn denies_nothing(mut self) -> Script {
        self.denies_nothing = true;
        self
    }

    /// It takes files, and lets nobody rename or remove any.
    pub fn drop_box(mut self) -> Script {
        self.drop_box = true;
        self
    }

    pub fn folds(mut self) -> Script {
        self.folds = true;
        self
    }

    pub fn drops_bytes(mut self) -> Script {
        self.drops = true;
        self
    }

    pub fn without_sum_of(mut self, part: &'static str) -> Script {
        self.no_sum_of = Some(part);
        self
    }

    pub fn without_part_sums(mut self) -> Script {
        self.no_part_sums = true;
        self
    }

    pub fn sums_say(mut self, reply: &'static str) -> Script {
        (self.sums, self.sums_say) = (true, Some(reply));
        self
    }

    pub fn thinks_about_sums(mut self) -> Script {
        self.thinks = AtomicBool::new(true);
        self
    }

    /// The command with this verb whose argument holds `part` that comes behind so many of them it answers
    /// when it is let go on.
    pub fn waits_at(mut self, after: usize, verb: &'static str, part: &'static str) -> Script {
        (self.waits_at, self.waits_after) = (Some((verb, part)), AtomicUsize::new(after));
        self
    }

    pub fn makes_again(mut self) -> Script {
        self.makes_again = true;
        self
    }

    /// It says this to `DELE` of what is not there, and when it is asked whether a temporary is; `all`: to
    /// `DELE` of what is there as well, and tells what there is.
    pub fn removes_not(mut self, reply: &'static str, all: bool) -> Script {
        self.removes_not = Some((reply, all));
        self
    }

    /// It says this to `DELE` of what is not there, and tells then that it is not.
    pub fn removes_none(mut self, reply: &'static str) -> Script {
        self.removes_none = Some(reply);
        self
    }

    pub fn interrupted(mut self, how: Interrupted) -> Script {
        self.interrupted = Some(how);
        self
    }

    /// These logins, counted from 0, are refused with that reply.
    pub fn refuses_logins(mut self, which: std::ops::Range<usize>, reply: &'static str) -> Script {
        self.refuses_logins = Some((which, reply));
        self
    }

    /// When so many bytes of files came, it ends the sessions that took few, and takes no other any more.
    pub fn evicts(mut self, at: usize) -> Script {
        self.evicts = Some(at);
        self
    }

    /// Sessions that it does not take are closed without a word.
    pub fn closes(mut self, closes: bool) -> Script {
        self.closes = closes;
        self
    }

    fn is_evicting(&self) -> bool {
        self.evicts.is_some_and(|at| self.taken.load(Ordering::Relaxed) >= at)
    }

    /// It has this directory already.
    pub fn has_dir(self, path: &str) -> Script {
        self.shelf().dirs.insert(path.as_bytes().to_vec());
        self
    }

    pub fn without_times(mut self) -> Script {
        self.no_times = true;
        self
    }

    pub fn sessions_max(mut self, max: usize) -> Script {
        self.sessions_max = max;
        self
    }

    /// It has this already.
    pub fn has(self, path: &str, content: &[u8]) -> Script {
        let held = Held {
            content: content.to_vec(),
            modify: "20200102030405".into(),
            path: path.as_bytes().to_vec(),
        };
        self.shelf().files.insert(path.as_bytes().to_vec(), held);
        self
    }

    pub fn start(self) -> Taker {
        self.shelf().dirs.insert(b"/d".to_vec());
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bind any port");
        let port = listener.local_addr().expect("know the port").port();
        let (over, heard) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let script = Arc::new(self);
        let (all, ends, hears) = (script.clone(), over.clone(), heard.clone());
        std::thread::spawn(move || {
            while let Some(control) = accept(&listener, None, &ends) {
                let (script, over, heard) = (all.clone(), ends.clone(), hears.clone());
                std::thread::spawn(move || Session::new(control, script, over, heard).serve());
            }
        });
        Taker { port, script, over, heard }
    }

    /// The file at this path is gone, where that is so at this moment.
    fn forget(&self, now: Forgets, path: &[u8]) {
        let Some((_, done)) = self.forgets.as_ref().filter(|(when, _)| *when == now) else { return };
        if !done.swap(true, Ordering::SeqCst) {
            self.shelf().files.remove(path);
        }
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().expect("no session panics")
    }

    fn key(&self, path: &[u8]) -> Vec<u8> {
        let path = match std::str::from_utf8(path) {
            Ok(path) if self.folds => path.to_lowercase().into_bytes(),
            _ => path.to_vec(),
        };
        let path = self.kept(&path);
        let led = self.links.iter().find_map(|(link, to)| {
            let rest = path.strip_prefix(link.as_bytes())?;
            (rest.is_empty() || rest.starts_with(b"/")).then(|| [to.as_bytes(), rest].concat())
        });
        led.unwrap_or(path)
    }

    /// What it keeps of the bytes of a path.
    fn kept(&self, path: &[u8]) -> Vec<u8> {
        path.iter().copied().filter(|byte| !self.drops || byte.is_ascii()).collect()
    }
}

/// A running taker; ended on drop.
pub struct Taker {
    pub port: u16,
    script: Arc<Script>,
    over: Arc<AtomicBool>,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Taker {
    pub fn url(&self, path: &str) -> String {
        format!("ftp://127.0.0.1:{}{path}", self.port)
    }

    /// What it has at a path.
    pub fn file(&self, path: &str) -> Option<Vec<u8>> {
        self.script.shelf().files.get(path.as_bytes()).map(|held| held.content.clone())
    }

    /// One byte of the first file whose path holds `part` is another one from now on.
    pub fn spoil(&self, part: &str, at: usize) {
        let mut shelf = self.script.shelf();
        let found = shelf.files.iter_mut().find(|(path, _)| String::from_utf8_lossy(path).contains(part));
        found.expect("it is there").1.content[at] ^= 1;
    }

    /// From now on it says what sums it makes.
    pub fn tells_sums(&self) {
        self.script.thinks.store(false, Ordering::SeqCst);
    }

    /// It waits where it was told to.
    pub fn waits(&self) -> bool {
        self.script.waits.load(Ordering::SeqCst)
    }

    /// It waits no longer.
    pub fn let_go_on(&self) {
        self.script.goes_on_now.store(true, Ordering::SeqCst);
    }

    /// Bytes that came so far, but for those in blocks.
    pub fn taken(&self) -> usize {
        self.script.taken.load(Ordering::Relaxed)
    }

    /// All files, by their paths.
    pub fn paths(&self) -> Vec<String> {
        let shelf = self.script.shelf();
        shelf.files.keys().map(|path| String::from_utf8_lossy(path).into_owned()).collect()
    }

    /// Files, by what they were called then, that got what was left of another one.
    pub fn mixed(&self) -> Vec<String> {
        let mixed = self.script.mixed.lock().expect("no session panics");
        mixed.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect()
    }

    /// Round trips that were waited for at a server that is far, by all sessions together.
    pub fn turns(&self) -> usize {
        self.script.turns.load(Ordering::SeqCst)
    }

    /// How many came who were not greeted.
    pub fn ungreeted(&self) -> usize {
        self.script.ungreeted.load(Ordering::SeqCst)
    }

    /// What it was told so far, by all who came.
    pub fn heard(&self) -> Vec<String> {
        self.heard.lock().expect("no session panics").clone()
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if std::thread::panicking() {
            let heard = self.heard();
            eprintln!(
                "the taker heard {} lines: {:?}",
                heard.len(),
                &heard[heard.len().saturating_sub(60)..]
            );
        }
    }
}

fn accept(listener: &TcpListener, within: Option<Duration>, over: &AtomicBool) -> Option<TcpStream> {
    listener.set_nonblocking(true).expect("a listener that does not wait");
    let started = Instant::now();
    while !over.load(Ordering::Relaxed) && within.is_none_or(|within| started.elapsed() < within) {
        match listener.accept() {
            Ok((socket, _)) => {
                socket.set_nonblocking(false).expect("a socket that waits");
                // Two answers in a row would wait for each other else, 40 ms each time.
                let _ = socket.set_nodelay(true);
                return Some(socket);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(LOOK_EVERY),
            Err(error) => panic!("accept: {error}"),
        }
    }
    None
}

/// Whether the other side has closed it. What it says meanwhile stays.
fn is_closed(control: &BufReader<TcpStream>) -> bool {
    let socket = control.get_ref();
    socket.set_nonblocking(true).expect("set an option");
    let closed = match socket.peek(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    };
    socket.set_nonblocking(false).expect("set an option");
    closed
}

struct Session {
    control: BufReader<TcpStream>,
    script: Arc<Script>,
    over: Arc<AtomicBool>,
    heard: Arc<Mutex<Vec<String>>>,
    passive: Option<TcpListener>,
    /// Data connections that it opened for files.
    connections: usize,
    /// Bytes of files that came over it.
    took: usize,
    /// The last file that came over it, by the name that it came under.
    stored: Option<Vec<u8>>,
    from: Option<Vec<u8>>,
    /// What the next file stands there up to.
    rest: usize,
    /// Where in what stands there the next file goes.
    into_at: Option<usize>,
    in_blocks: bool,
    /// Connections that are kept.
    lanes: Vec<Lane>,
    /// They hold, or will hold, what is left of a file that was broken off.
    holds_rest: bool,
    /// What it said and what did not arrive yet.
    held: Vec<u8>,
}

impl Session {
    fn new(
        control: TcpStream,
        script: Arc<Script>,
        over: Arc<AtomicBool>,
        heard: Arc<Mutex<Vec<String>>>,
    ) -> Session {
        control.set_read_timeout(Some(QUIET)).expect("set a patience");
        let control = BufReader::new(control);
        Session {
            control,
            script,
            over,
            heard,
            passive: None,
            from: None,
            rest: 0,
            into_at: None,
            connections: 0,
            took: 0,
            stored: None,
            in_blocks: false,
            lanes: Vec::new(),
            holds_rest: false,
            held: Vec::new(),
        }
    }

    fn serve(mut self) {
        let script = self.script.clone();
        if script.mute.load(Ordering::SeqCst) {
            script.ungreeted.fetch_add(1, Ordering::SeqCst);
            while !self.over.load(Ordering::Relaxed) {
                std::thread::sleep(LOOK_EVERY);
            }
            return;
        }
        let serving = script.serving.fetch_add(1, Ordering::SeqCst) + 1;
        if script.is_evicting() || script.sessions_max > 0 && serving > script.sessions_max {
            if !script.closes {
                self.say("421 too many sessions");
            }
        } else if self.say("220 at your service") {
            while let Some(line) = self.next_line() {
                self.heard
                    .lock()
                    .expect("no session panics")
                    .push(String::from_utf8_lossy(&line).into_owned());
                let (verb, argument) = match line.iter().position(|byte| *byte == b' ') {
                    Some(at) => (&line[..at], &line[at + 1..]),
                    None => (&line[..], &[][..]),
                };
                if !self.answer(&String::from_utf8_lossy(verb).to_ascii_uppercase(), argument) {
                    break;
                }
            }
        }
        self.let_go();
        script.serving.fetch_sub(1, Ordering::SeqCst);
    }

    fn next_line(&mut self) -> Option<Vec<u8>> {
        let (mut line, mut quiet) = (Vec::new(), 0);
        while !self.over.load(Ordering::Relaxed) {
            match self.control.read_until(b'\n', &mut line) {
                Ok(_) if line.ends_with(b"\r\n") => {
                    line.truncate(line.len() - 2);
                    return Some(line);
                }
                Ok(_) => return None,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    self.let_go();
                    quiet += 1;
                    let is_idle = line.is_empty() && quiet >= QUIETS && !self.has_unnamed();
                    if is_idle && self.took < FEW && self.script.is_evicting() {
                        return None;
                    }
                }
                Err(_) => return None,
            }
        }
        None
    }

    /// What came over it last has not its final name yet: whoever sends it has more to do.
    fn has_unnamed(&self) -> bool {
        self.stored.as_ref().is_some_and(|key| self.script.shelf().files.contains_key(key))
    }

    /// A line that is there, or comes soon.
    fn next_line_now(&mut self) -> Option<Vec<u8>> {
        let mut line = Vec::new();
        self.control.read_until(b'\n', &mut line).ok()?;
        line.truncate(line.len().checked_sub(2)?);
        Some(line)
    }

    fn say(&mut self, line: &str) -> bool {
        let line = format!("{line}\r\n");
        if self.script.far {
            self.held.extend_from_slice(line.as_bytes());
            return true;
        }
        self.control.get_mut().write_all(line.as_bytes()).is_ok()
    }

    /// What it said arrives.
    fn let_go(&mut self) {
        if !self.held.is_empty() {
            self.script.turns.fetch_add(1, Ordering::SeqCst);
            let _ = self.control.get_mut().write_all(&std::mem::take(&mut self.held));
        }
    }

    fn answer(&mut self, verb: &str, argument: &[u8]) -> bool {
        let script = self.script.clone();
        let path = script.key(argument);
        let is_it =
            |(what, part): (&str, &str)| what == verb && String::from_utf8_lossy(argument).contains(part);
        let less = |after: usize| after.checked_sub(1);
        let is_due = script.waits_at.is_some_and(is_it)
            && script.waits_after.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_err();
        if is_due && !script.waits.swap(true, Ordering::SeqCst) {
            while !script.goes_on_now.load(Ordering::SeqCst) && !self.over.load(Ordering::Relaxed) {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
        if let Some(reply) = script.said(verb, argument) {
            return self.say(reply);
        }
        match verb {
            "USER" => self.say("331 who says so?"),
            "PASS" => {
                let login = script.logins.fetch_add(1, Ordering::SeqCst);
                let refuses = script.refuses_logins.as_ref().filter(|(which, _)| which.contains(&login));
                self.say(refuses.map_or("230 welcome", |(_, reply)| reply))
            }
            "FEAT" => {
                let blocks = if script.blocks { " PARALLEL\r\n" } else { "" };
                let unique = if script.calls { "unique*;" } else { "" };
                let sums = if script.sums { " CKSM SHA256:1;\r\n" } else { "" };
                let rest = match script.into {
                    Some((_, true)) => " ESTO\r\n",
                    Some((_, false)) => " REST STREAM\r\n",
                    None if script.goes_on.is_some() => " REST STREAM\r\n",
                    None => "",
                };
                self.say(&format!(
                    "211-Features\r\n MLST type*;size*;modify*;UNIX.mode*;UNIX.slink*;{unique}\r\n SIZE\r\n MDTM\r\n MFMT\r\n EPSV\r\n{blocks}{sums}{rest}211 End"
                ))
            }
            "TYPE" | "OPTS" | "NOOP" => self.say("200 done"),
            "MODE" if script.blocks => {
                let refused = script.mode.filter(|_| argument == b"E");
                self.in_blocks = argument == b"E" && refused.is_none();
                self.lanes.clear();
                self.holds_rest = false;
                self.say(refused.unwrap_or("200 done"))
            }
            "REST" if script.goes_on.is_some() || script.into.is_some() => {
                let text = String::from_utf8_lossy(argument).into_owned();
                self.rest = text.trim_start_matches("0-").parse().expect("a number");
                self.say("350 go on")
            }
            "QUIT" => {
                self.say("221 farewell");
                false
            }
            "EPSV" => {
                let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bind any port");
                let port = listener.local_addr().expect("know the port").port();
                self.passive = Some(listener).filter(|_| !script.unreachable);
                self.say(&format!("229 here (|||{port}|)"))
            }
            "MKD" if script.shelf().dirs.insert(path.clone()) || script.makes_again => self.say("257 made"),
            "MLSD" if script.drops || script.folds => self.list(&path),
            "CWD" if script.shelf().dirs.contains(&path) => self.say("250 there"),
            "MLST" => {
                let facts = {
                    let shelf = script.shelf();
                    match shelf.files.get(&path) {
                        Some(held) => Some(format!(
                            "type=file;size={};modify={};UNIX.mode=0644;{}",
                            held.content.len(),
                            held.modify,
                            if script.calls { format!("unique=f{};", hex(&path)) } else { String::new() }
                        )),
                        None if shelf.dirs.contains(&path) => Some("type=dir;UNIX.mode=0755;".into()),
                        None => None,
                    }
                };
                match facts {
                    Some(facts) => {
                        let path = String::from_utf8_lossy(argument).into_owned();
                        self.say(&format!("250-it is\r\n {facts} {path}\r\n250 end"))
                    }
                    None => {
                        let is_temporary = argument.windows(6).any(|part| part == b".haul~");
                        let untold = script.removes_not.filter(|(_, all)| is_temporary && !all);
                        self.say(untold.map_or("550 no such file", |(reply, _)| reply))
                    }
                }
            }
            "RNFR" | "DELE" if script.drop_box => self.say("550 Permission denied."),
            "DELE" if script.removes_not.is_some_and(|(_, all)| all) => {
                let (reply, _) = script.removes_not.expect("it is");
                self.say(reply)
            }
            "DELE" if script.shelf().files.remove(&path).is_some() => self.say("250 removed"),
            "RNFR" if script.shelf().files.contains_key(&path) => {
                self.from = Some(path);
                self.say("350 and to?")
            }
            "RNFR" if script.denies_nothing => self.say("550 Permission denied."),
            "RNTO" => self.rename(path, argument),
            "MFMT" if script.no_times => self.say("500 unknown"),
            "MFMT" => {
                let at = argument.iter().position(|byte| *byte == b' ').unwrap_or(0);
                let (moment, path) =
                    (String::from_utf8_lossy(&argument[..at]).into_owned(), &argument[at + 1..]);
                let path = script.key(path);
                if let Some(held) = script.shelf().files.get_mut(&path) {
                    held.modify = moment;
                }
                self.say("213 set")
            }
            "SITE" if argument.starts_with(b"CHMOD") => self.say("200 done"),
            "CKSM"
                if script.no_sum_of.is_some_and(|part| String::from_utf8_lossy(argument).contains(part)) =>
            {
                self.say("504 not of that")
            }
            "CKSM" if script.thinks.load(Ordering::SeqCst) => true,
            "CKSM" if let Some(reply) = script.sums_say => self.say(reply),
            "CKSM" if script.sums => {
                let at =
                    argument.iter().enumerate().filter(|(_, byte)| **byte == b' ').nth(2).expect("three").0;
                let path = script.key(&argument[at + 1..]);
                let words = String::from_utf8_lossy(&argument[..at]).into_owned();
                let mut words = words.split(' ').skip(1).map(|word| word.parse::<i64>().expect("a number"));
                let (offset, len) = (words.next().expect("an offset"), words.next().expect("a length"));
                if script.no_part_sums && len >= 0 {
                    return self.say("504 of whole files alone");
                }
                let sum = script.shelf().files.get(&path).map(|held| {
                    let all = held.content.len();
                    let part = match script.goes_on.is_some() || script.into.is_some() {
                        true if len >= 0 => {
                            let start = (offset as usize).min(all);
                            start..(start + len as usize).min(all)
                        }
                        _ => 0..all,
                    };
                    sha256(&held.content[part])
                });
                match sum {
                    Some(sum) => self.say(&format!("213 {sum}")),
                    None => self.say("550 no such file"),
                }
            }
            "STOR" if script.connections_max > 0 && self.connections == script.connections_max => {
                self.say("425 no data connection for this session")
            }
            "STOR" | "ESTO" if script.into.is_some() => {
                let at = std::mem::take(&mut self.rest);
                self.into_at = Some(at).filter(|at| *at > 0);
                if verb == "ESTO" { self.esto(argument) } else { self.take(path, argument) }
            }
            "RETR" if script.into.is_some() || script.forgets.is_some() => self.give(&path),
            "STOR" => {
                self.connections += 1;
                self.stored = Some(script.key(&path));
                self.take(path, argument)
            }
            "DELE" => {
                let reply = script.removes_not.map(|(reply, _)| reply).or(script.removes_none);
                self.say(reply.unwrap_or("550 no"))
            }
            "MKD" | "CWD" | "RNFR" => self.say("550 no"),
            _ => self.say("500 unknown"),
        }
    }

    /// Says what is in a directory.
    fn list(&mut self, dir: &[u8]) -> bool {
        let Some(listener) = self.passive.take() else { return self.say("425 where to?") };
        if !self.say("150 here it is") {
            return false;
        }
        let Some(mut data) = accept(&listener, Some(DIALLED_WITHIN), &self.over) else {
            return self.say("425 nobody came");
        };
        let mut text = Vec::new();
        {
            let shelf = self.script.shelf();
            let below = |path: &[u8]| {
                let name = path.strip_prefix(dir)?.strip_prefix(b"/")?;
                (!name.contains(&b'/')).then(|| name.to_vec())
            };
            let files = shelf.files.values().filter_map(|held| {
                let facts = format!("type=file;size={};modify={}; ", held.content.len(), held.modify);
                Some((facts, below(&held.path)?))
            });
            let dirs = shelf.dirs.iter().filter_map(|path| Some(("type=dir; ".to_owned(), below(path)?)));
            for (facts, name) in files.chain(dirs) {
                text.extend([facts.as_bytes(), &name, b"\r\n"].concat());
            }
        }
        let sent = data.write_all(&text).is_ok();
        drop(data);
        sent && self.say("226 that is all")
    }

    fn rename(&mut self, to: Vec<u8>, said: &[u8]) -> bool {
        let script = self.script.clone();
        let Some(from) = self.from.take() else { return self.say("503 from what?") };
        if let Some(reply) = script.rnto {
            return self.say(reply);
        }
        let mut shelf = script.shelf();
        if let Some((part, content, done)) = &script.swaps
            && String::from_utf8_lossy(&to).contains(part)
            && !done.swap(true, Ordering::SeqCst)
        {
            shelf.files.remove(&from);
            let other = Held { content: content.clone(), modify: "20150101000000".into(), path: to.clone() };
            shelf.files.insert(to, other);
            return false;
        }
        if script.keeps_names && shelf.files.contains_key(&to) {
            drop(shelf);
            return self.say("553 it is there");
        }
        let held = shelf.files.remove(&from);
        if let Some(held) = held {
            shelf.files.insert(to, Held { path: script.kept(said), ..held });
        }
        drop(shelf);
        self.say("250 renamed")
    }

    fn take(&mut self, path: Vec<u8>, said: &[u8]) -> bool {
        let script = self.script.clone();
        let said_path = said;
        let at = std::mem::take(&mut self.rest);
        if at > 0 {
            script.forget(Forgets::WhenToldToGoOn, &path);
        }
        let stands =
            script.shelf().files.get(&path).map(|held| held.content[..at.min(held.content.len())].to_vec());
        let zeros = script.forgets.as_ref().map(|_| vec![0; at]);
        let stands = stands.or(zeros);
        let stands = stands.filter(|stands| !stands.is_empty());
        if let (Some(_), Some(GoesOn::Refuses(line))) = (&stands, script.goes_on) {
            return self.say(line);
        }
        let stands = stands.filter(|_| script.goes_on != Some(GoesOn::CutsOff)).unwrap_or_default();
        let said = String::from_utf8_lossy(said).into_owned();
        if self.in_blocks {
            let how = script.takes_blocks.iter().find(|(part, ..)| said.contains(part));
            let how = how.and_then(|(_, how, times)| how.get(times.fetch_add(1, Ordering::SeqCst)).copied());
            return self.take_blocks(path, how.unwrap_or(InBlocks::Whole), stands);
        }
        let how = script
            .takes
            .iter()
            .find(|(part, ..)| said.contains(part))
            .map_or(Takes::Whole, |(_, how, times)| {
                how.get(times.fetch_add(1, Ordering::SeqCst)).copied().unwrap_or(Takes::Whole)
            });
        let Some(listener) = self.passive.take() else { return self.say("425 where from?") };
        if let Takes::Refuse(line) = how {
            return self.say(line);
        }
        if !self.say("150 go on") {
            return false;
        }
        self.let_go();
        let Some(mut data) = accept(&listener, Some(DIALLED_WITHIN), &self.over) else {
            return self.say("425 nobody came");
        };
        let most = match how {
            Takes::Cut(most, _) | Takes::HangUp(most) | Takes::Stall(most) | Takes::Mute(most) => most,
            _ => usize::MAX,
        };
        let before = stands.len();
        let (mut content, mut buffer) = (stands, vec![0; 64 << 10]);
        let mut ended = false;
        data.set_read_timeout(Some(Duration::from_millis(50))).expect("set a patience");
        while content.len() - before < most && !self.over.load(Ordering::Relaxed) {
            let room = buffer.len().min(most - (content.len() - before));
            match data.read(&mut buffer[..room]) {
                Ok(0) => {
                    ended = true;
                    break;
                }
                Ok(len) => {
                    content.extend_from_slice(&buffer[..len]);
                    script.taken.fetch_add(len, Ordering::Relaxed);
                    self.took += len;
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => break,
            }
        }
        if let Some(how) = script.interrupted
            && let Some(line) = self.next_line_now()
        {
            self.heard.lock().expect("no session panics").push(String::from_utf8_lossy(&line).into_owned());
            match how {
                Interrupted::Busy(reply) => drop(self.say(reply)),
                Interrupted::Lost => {}
                Interrupted::Breaks(words) => {
                    content.iter_mut().for_each(|byte| *byte ^= 1);
                    let (modify, kept) = ("20200102030405".into(), script.kept(said_path));
                    let held = Held { content, modify, path: kept };
                    script.shelf().files.insert(path, held);
                    return words.iter().all(|word| self.say(word));
                }
            }
        }
        match how {
            Takes::Short(len) => content.truncate(len),
            Takes::Wrong => {
                if let Some(byte) = content.first_mut() {
                    *byte ^= 1;
                }
            }
            _ => {}
        }
        if let (Some((into, _)), Some(at)) = (script.into, self.into_at.take()) {
            let stood = script.shelf().files.get(&path).map(|held| held.content.clone()).unwrap_or_default();
            content = into.put(&stood, at, content, &path);
        }
        let held = Held { content, modify: "20200102030405".into(), path: script.kept(said_path) };
        script.shelf().files.insert(path, held);
        match how {
            Takes::Cut(_, line) if !ended => {
                drop(data);
                self.say(line)
            }
            Takes::HangUp(_) if !ended => false,
            Takes::Stall(_) | Takes::Mute(_) if !ended => {
                script.mute.fetch_or(matches!(how, Takes::Mute(_)), Ordering::SeqCst);
                while !self.over.load(Ordering::Relaxed) {
                    std::thread::sleep(LOOK_EVERY);
                }
                false
            }
            _ if ended => self.say("226 that is all"),
            _ => self.say("426 you hung up"),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// By other code than haul's.
fn sha256(bytes: &[u8]) -> String {
    let mut sum = std::process::Command::new("sha256sum")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("run sha256sum");
    sum.stdin.take().expect("a pipe").write_all(bytes).expect("write to it");
    let output = sum.wait_with_output().expect("it ends");
    String::from_utf8_lossy(&output.stdout).split(' ').next().unwrap_or_default().to_owned()
}
