//! An FTP server that lies, by a script: wrong replies, wrong listings, wrong data connections.
//!
//! In: what it has, and what it says wrong of it. What the script leaves alone it does as any server would,
//! so that a client comes as far as the lie, whatever it asks on its way. It is no stand-in for a real one,
//! for which there is [`super::ftpd`].

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::ftpd::escaped;

/// How often the end of the test is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// A client that was given an address dials it within this.
const DIALLED_WITHIN: Duration = Duration::from_secs(10);
/// When everything here was last changed.
const MODIFY: &str = "20200102030405";
const ALL: &[u8] = b"226 that is all\r\n";
const FEW_FEATURES: &str = "211-Features\r\n SIZE\r\n MDTM\r\n REST STREAM\r\n EPSV\r\n211 End\r\n";
const FEATURES: &str = "211-Features\r\n MLST type*;size*;modify*;\r\n SIZE\r\n MDTM\r\n REST STREAM\r\n EPSV\r\n UTF8\r\n211 End\r\n";

/// How a file is sent.
#[derive(Clone, Copy)]
pub enum Manner {
    Whole,
    /// So many bytes of it only, and then that this was all.
    Short(usize),
    /// The data connection ends before this byte, and this line follows, or none.
    Cut(usize, Option<&'static str>),
    /// All connections of the client's end before this byte.
    HangUp(usize),
    /// Nothing more comes from this byte on, and nothing ends.
    Stall(usize),
    /// Nothing of it, but this line.
    Refuse(&'static str),
    /// All of it, and then preliminary replies without an end.
    Flood,
}

/// What it makes of `REST`, which it always answers as it should.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Rest {
    #[default]
    Obeyed,
    /// Files begin at their beginning.
    Ignored,
    /// All files from then on begin there, until it is told another offset.
    Kept,
}

struct File {
    /// One for each version of it; sessions take them in turn.
    contents: Vec<Vec<u8>>,
    told: usize,
    modify: &'static str,
    listed: bool,
    /// How it is sent the first time, the second and so on, the last of them up to `times`; then as a whole.
    manners: Vec<Manner>,
    times: usize,
    asked: AtomicUsize,
}

impl File {
    fn new(versions: &[&[u8]], told: usize, manners: &[Manner]) -> File {
        let contents = versions.iter().map(|content| content.to_vec()).collect();
        let (manners, times) = (manners.to_vec(), manners.len());
        let (modify, listed, asked) = (MODIFY, true, AtomicUsize::new(0));
        File { contents, told, modify, listed, manners, times, asked }
    }

    fn next_manner(&self) -> Manner {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        if asked < self.times { self.manners[asked.min(self.manners.len() - 1)] } else { Manner::Whole }
    }
}

/// What becomes of sessions that are too many.
#[derive(Clone, Copy, Debug, Default)]
pub enum Further {
    /// They hear 421.
    #[default]
    Told,
    /// They are closed without a word.
    Closed,
    /// They are taken, and hear nothing.
    Silent,
}

/// The script; see the module.
#[derive(Default)]
pub struct Lies {
    files: BTreeMap<Vec<u8>, File>,
    listings: BTreeMap<Vec<u8>, Vec<u8>>,
    everywhere: Option<Vec<u8>>,
    replies: BTreeMap<&'static str, Vec<u8>>,
    silent: bool,
    /// Instead of MLSD and MLST; of whatever directory.
    list: Option<Vec<u8>>,
    elsewhere: Option<Ipv4Addr>,
    hangs_up_while_listing: bool,
    /// How long it takes before each listing.
    lists_in: Duration,
    /// It leaves out blanks at the ends of a path.
    trims: bool,
    rest: Rest,
    /// In place of what is said behind a listing.
    listing_end: Option<Vec<u8>>,
    /// What is answered by preliminary replies without an end.
    flooded: Option<&'static str>,
    /// It takes no more sessions at a time; 0: as many as come.
    sessions_max: usize,
    further: Further,
    /// Sessions that it does not take either, by their numbers.
    refuses: Range<usize>,
    /// How long it takes before it sends a file.
    sends_in: Duration,
    serving: AtomicUsize,
    /// Bytes of files that it sent.
    sent: AtomicUsize,
    /// At the other host, where nobody should come.
    bystanders: Mutex<Vec<TcpListener>>,
    /// Replies to a command about one path, and how often they still come.
    said: Vec<(&'static str, Vec<u8>, Vec<u8>, AtomicUsize)>,
    /// What a command lists of one directory.
    listed: BTreeMap<(&'static str, Vec<u8>), Vec<u8>>,
    listed_first: BTreeMap<(&'static str, Vec<u8>), (Vec<u8>, AtomicUsize)>,
}

impl Lies {
    /// It has this file.
    pub fn file(self, path: &str, content: &[u8]) -> Lies {
        self.odd(path, content, content.len(), Manner::Whole, usize::MAX)
    }

    /// It has this file, tells another length of it, and sends it in this manner so many times.
    pub fn odd(self, path: &str, content: &[u8], told: usize, manner: Manner, times: usize) -> Lies {
        self.insert(path, File { times, ..File::new(&[content], told, &[manner]) })
    }

    /// It has this file, and sends it in these manners one after another, then as a whole. Where there are
    /// several versions, of one length, one session has the first, the next the second, in turns.
    pub fn in_turn(self, path: &str, versions: &[&[u8]], manners: &[Manner]) -> Lies {
        self.insert(path, File::new(versions, versions[0].len(), manners))
    }

    fn insert(mut self, path: &str, file: File) -> Lies {
        self.files.insert(path.as_bytes().to_vec(), file);
        self
    }

    /// This file, which it has already, was changed then.
    pub fn modified(mut self, path: &str, modify: &'static str) -> Lies {
        self.files.get_mut(path.as_bytes()).expect("a file that it has").modify = modify;
        self
    }

    /// It sends this file to whoever asks, and lists it nowhere.
    pub fn unlisted(self, path: &str, content: &[u8]) -> Lies {
        self.insert(path, File { listed: false, ..File::new(&[content], content.len(), &[]) })
    }

    /// These lines stand in the listing of `dir` too, as they are.
    pub fn lines(mut self, dir: &str, lines: &[u8]) -> Lies {
        self.listings.entry(dir.as_bytes().to_vec()).or_default().extend_from_slice(lines);
        self
    }

    /// Whatever directory is asked for is there and holds this.
    pub fn everywhere(mut self, lines: &[u8]) -> Lies {
        self.everywhere = Some(lines.to_vec());
        self
    }

    /// The bytes that answer a command, or the greeting, which is `""`.
    pub fn reply(mut self, command: &'static str, bytes: &[u8]) -> Lies {
        self.replies.insert(command, bytes.to_vec());
        self
    }

    /// The bytes that answer a command about one path so many times: `LIST` and `LIST -a` are about the
    /// directory that they are said in.
    pub fn says(mut self, command: &'static str, path: &str, bytes: &[u8], times: usize) -> Lies {
        self.said.push((command, path.as_bytes().to_vec(), bytes.to_vec(), AtomicUsize::new(times)));
        self
    }

    /// A command, as of [`Lies::says`], lists this of one directory, and nothing else.
    pub fn lists(mut self, command: &'static str, dir: &str, lines: &[u8]) -> Lies {
        self.listed.insert((command, dir.as_bytes().to_vec()), lines.to_vec());
        self
    }

    /// It lists this so many times before it does as [`Lies::lists`] says.
    pub fn lists_first(mut self, command: &'static str, dir: &str, lines: &[u8], times: usize) -> Lies {
        let about = (command, dir.as_bytes().to_vec());
        self.listed_first.insert(about, (lines.to_vec(), AtomicUsize::new(times)));
        self
    }

    /// It knows no MLSD, and LIST tells this of whatever directory.
    pub fn list(mut self, lines: &[u8]) -> Lies {
        self.list = Some(lines.to_vec());
        self
    }

    /// It accepts, and says nothing.
    pub fn silent(mut self) -> Lies {
        self.silent = true;
        self
    }

    /// It says that its data connections are at this host, and counts who goes there.
    pub fn elsewhere(mut self, host: Ipv4Addr) -> Lies {
        self.elsewhere = Some(host);
        self
    }

    /// It sends a listing and closes everything, without a word of its end.
    pub fn hangs_up_while_listing(mut self) -> Lies {
        self.hangs_up_while_listing = true;
        self
    }

    /// It takes so long before it sends a listing.
    pub fn lists_in(mut self, time: Duration) -> Lies {
        self.lists_in = time;
        self
    }

    /// It leaves out blanks at the ends of a path that it is told.
    pub fn trims(mut self) -> Lies {
        self.trims = true;
        self
    }

    /// It makes this of `REST`.
    pub fn rest(mut self, rest: Rest) -> Lies {
        self.rest = rest;
        self
    }

    /// It says this behind a listing.
    pub fn listing_ends(mut self, bytes: &[u8]) -> Lies {
        self.listing_end = Some(bytes.to_vec());
        self
    }

    /// It answers this command, or greets where it is `""`, with preliminary replies without an end.
    pub fn floods(mut self, command: &'static str) -> Lies {
        self.flooded = Some(command);
        self
    }

    /// It says 421 to whoever comes while it serves so many.
    pub fn sessions_max(mut self, max: usize) -> Lies {
        self.sessions_max = max;
        self
    }

    /// It does not take these sessions, counted from 0.
    pub fn refuses_sessions(mut self, which: Range<usize>) -> Lies {
        self.refuses = which;
        self
    }

    /// It takes so long before it sends a file.
    pub fn sends_in(mut self, time: Duration) -> Lies {
        self.sends_in = time;
        self
    }

    /// What becomes of those that it does not take, in place of the 421.
    pub fn further(mut self, further: Further) -> Lies {
        self.further = further;
        self
    }

    /// Starts it.
    pub fn start(self) -> Liar {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bind any port");
        let port = listener.local_addr().expect("know the port").port();
        let (over, heard) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let lies = Arc::new(self);
        let all = lies.clone();
        let (ends, hears) = (over.clone(), heard.clone());
        std::thread::spawn(move || {
            let mut number = 0;
            while let Some(control) = accept(&listener, None, &ends) {
                let (lies, over, heard) = (all.clone(), ends.clone(), hears.clone());
                std::thread::spawn(move || Session::new(number, control, lies, over, heard).serve());
                number += 1;
            }
        });
        Liar { port, lies, over, heard }
    }

    fn is_dir(&self, path: &[u8]) -> bool {
        let below = [path, b"/"].concat();
        path.is_empty()
            || self.everywhere.is_some()
            || self.listings.contains_key(path)
            || self.files.keys().any(|file| file.starts_with(&below))
    }

    fn listing(&self, dir: &[u8]) -> Vec<u8> {
        let mut lines = format!("type=cdir;modify={MODIFY}; .\r\n").into_bytes();
        let below = [dir, b"/"].concat();
        let mut dirs = BTreeSet::new();
        for (path, file) in self.files.iter().filter(|(_, file)| file.listed) {
            let Some(rest) = path.strip_prefix(&below[..]) else { continue };
            match rest.iter().position(|byte| *byte == b'/') {
                Some(end) => drop(dirs.insert(&rest[..end])),
                None => {
                    lines.extend(
                        format!("type=file;size={};modify={}; ", file.told, file.modify).into_bytes(),
                    );
                    lines.extend([rest, b"\r\n"].concat());
                }
            }
        }
        for dir in dirs {
            lines.extend([format!("type=dir;modify={MODIFY}; ").as_bytes(), dir, b"\r\n"].concat());
        }
        lines.extend_from_slice(self.listings.get(dir).map_or(&[], Vec::as_slice));
        lines.extend_from_slice(self.everywhere.as_deref().unwrap_or_default());
        lines
    }
}

/// A running liar; ended on drop.
pub struct Liar {
    pub port: u16,
    lies: Arc<Lies>,
    over: Arc<AtomicBool>,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Liar {
    pub fn url(&self, path: impl AsRef<Path>) -> String {
        format!("ftp://127.0.0.1:{}{}", self.port, escaped(path.as_ref()))
    }

    /// What it was told so far, by all who came.
    pub fn heard(&self) -> Vec<String> {
        self.heard.lock().expect("no session panics").clone()
    }

    /// Bytes of files that it sent so far, to all.
    pub fn sent(&self) -> usize {
        self.lies.sent.load(Ordering::Relaxed)
    }

    /// How many places there were at the other host, and whether somebody came to one; see
    /// [`Lies::elsewhere`].
    pub fn strayed(&self) -> (usize, bool) {
        let bystanders = self.lies.bystanders.lock().expect("no session panics");
        (bystanders.len(), bystanders.iter().any(|bystander| bystander.accept().is_ok()))
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if std::thread::panicking() {
            let heard = self.heard();
            eprintln!("the liar heard {} lines: {:?}", heard.len(), &heard[heard.len().saturating_sub(60)..]);
        }
    }
}

/// The next connection, unless it is over, or none comes `within`.
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

/// One control connection.
struct Session {
    /// The first one is 0.
    number: usize,
    control: BufReader<TcpStream>,
    lies: Arc<Lies>,
    over: Arc<AtomicBool>,
    heard: Arc<Mutex<Vec<String>>>,
    cwd: Vec<u8>,
    offset: usize,
    passive: Option<TcpListener>,
}

impl Session {
    fn new(
        number: usize,
        control: TcpStream,
        lies: Arc<Lies>,
        over: Arc<AtomicBool>,
        heard: Arc<Mutex<Vec<String>>>,
    ) -> Session {
        control.set_read_timeout(Some(Duration::from_millis(50))).expect("set a patience");
        let control = BufReader::new(control);
        Session { number, control, lies, over, heard, cwd: Vec::new(), offset: 0, passive: None }
    }

    /// Until either side hangs up.
    fn serve(mut self) {
        let lies = self.lies.clone();
        let serving = lies.serving.fetch_add(1, Ordering::Relaxed) + 1;
        let is_too_many = lies.sessions_max > 0 && serving > lies.sessions_max;
        if is_too_many || lies.refuses.contains(&self.number) {
            match lies.further {
                Further::Told => drop(self.say(b"421 too many sessions\r\n")),
                Further::Closed => {}
                // Until they hang up.
                Further::Silent => while self.next_line().is_some() {},
            }
        } else {
            self.serve_on();
        }
        lies.serving.fetch_sub(1, Ordering::Relaxed);
    }

    fn serve_on(mut self) {
        if self.lies.silent {
            // Nobody said anything yet, and somebody is there.
            self.heard.lock().expect("no session panics").push(String::new());
            while self.next_line().is_some() {}
            return;
        }
        if self.lies.flooded == Some("") {
            return self.flood();
        }
        let greeting = self.lies.replies.get("").cloned();
        if !self.say(&greeting.unwrap_or_else(|| b"220 at your service\r\n".to_vec())) {
            return;
        }
        while let Some(line) = self.next_line() {
            self.heard.lock().expect("no session panics").push(String::from_utf8_lossy(&line).into_owned());
            let (verb, argument) = match line.iter().position(|byte| *byte == b' ') {
                Some(at) => (&line[..at], &line[at + 1..]),
                None => (&line[..], &[][..]),
            };
            let verb = String::from_utf8_lossy(verb).to_ascii_uppercase();
            if self.lies.flooded == Some(&verb[..]) {
                return self.flood();
            }
            let lie = self.lies.replies.get(&verb[..]).cloned().or_else(|| self.lie_of(&verb, argument));
            let goes_on = match (lie, self.listing_of(&verb, argument)) {
                (Some(bytes), _) => self.say(&bytes),
                (None, Some(listing)) => self.send_listing(&listing, Manner::Whole),
                (None, None) => self.answer(&verb, argument),
            };
            if !goes_on {
                return;
            }
        }
    }

    /// A command and the path that it is about.
    fn about<'a>(&self, verb: &'a str, argument: &[u8]) -> (&'a str, Vec<u8>) {
        match (verb, argument) {
            ("LIST", b"-a") => ("LIST -a", self.cwd.clone()),
            (verb, argument) => (verb, self.path(argument)),
        }
    }

    fn lie_of(&self, verb: &str, argument: &[u8]) -> Option<Vec<u8>> {
        let (command, path) = self.about(verb, argument);
        let fits = |said: &&(&str, Vec<u8>, Vec<u8>, AtomicUsize)| said.0 == command && said.1 == path;
        let (_, _, bytes, left) = self.lies.said.iter().find(fits)?;
        takes_one(left).then(|| bytes.clone())
    }

    fn listing_of(&self, verb: &str, argument: &[u8]) -> Option<Vec<u8>> {
        let about = self.about(verb, argument);
        let first = self.lies.listed_first.get(&about).filter(|(_, left)| takes_one(left));
        first.map(|(lines, _)| lines).or_else(|| self.lies.listed.get(&about)).cloned()
    }

    /// What it is told next; `None` when that was all.
    fn next_line(&mut self) -> Option<Vec<u8>> {
        let mut line = Vec::new();
        while !self.over.load(Ordering::Relaxed) {
            match self.control.read_until(b'\n', &mut line) {
                Ok(_) if line.ends_with(b"\n") => {
                    line.truncate(line.trim_ascii_end().len().max(line.len().saturating_sub(2)));
                    return Some(line);
                }
                Ok(_) => return None,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => return None,
            }
        }
        None
    }

    fn say(&mut self, bytes: &[u8]) -> bool {
        self.control.get_mut().write_all(bytes).is_ok()
    }

    /// Until the other side hangs up.
    fn flood(&mut self) {
        let wait = Some(LOOK_EVERY);
        self.control.get_ref().set_write_timeout(wait).expect("set a patience");
        let many = b"110 soon\r\n".repeat(1000);
        let mut at = 0;
        while !self.over.load(Ordering::Relaxed) {
            match self.control.get_mut().write(&many[at..]) {
                Ok(len) => at = (at + len) % many.len(),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => return,
            }
        }
    }

    fn path(&self, argument: &[u8]) -> Vec<u8> {
        let argument = if self.lies.trims { argument.trim_ascii() } else { argument };
        let mut path = match argument {
            [b'/', ..] => argument.to_vec(),
            b"" | b"." => self.cwd.clone(),
            _ => [&self.cwd, &b"/"[..], argument].concat(),
        };
        while path.last() == Some(&b'/') {
            path.pop();
        }
        path
    }

    fn answer(&mut self, verb: &str, argument: &[u8]) -> bool {
        let lies = self.lies.clone();
        let path = self.path(argument);
        let file = lies.files.get(&path);
        match (verb, file) {
            ("USER", _) => self.say(b"331 who says so?\r\n"),
            ("PASS", _) => self.say(b"230 welcome\r\n"),
            ("SYST", _) => self.say(b"215 UNIX Type: L8\r\n"),
            ("FEAT", _) if lies.list.is_some() => self.say(FEW_FEATURES.as_bytes()),
            ("FEAT", _) => self.say(FEATURES.as_bytes()),
            ("MLSD" | "MLST", _) if lies.list.is_some() => self.say(b"500 unknown\r\n"),
            ("LIST", _) => match &lies.list {
                Some(lines) => self.send_listing(lines, Manner::Whole),
                None => self.say(b"500 unknown\r\n"),
            },
            ("TYPE" | "MODE" | "STRU" | "OPTS" | "NOOP" | "CLNT" | "ALLO", _) => self.say(b"200 done\r\n"),
            ("PWD", _) => self.say(&[b"257 \"", &self.cwd[..], b"/\"\r\n"].concat()),
            ("QUIT", _) => {
                self.say(b"221 farewell\r\n");
                false
            }
            ("ABOR", _) => self.say(b"226 nothing was under way\r\n"),
            ("CWD", _) if lies.is_dir(&path) => {
                self.cwd = path;
                self.say(b"250 there\r\n")
            }
            ("MLST", _) => {
                let facts = match file {
                    Some(file) => format!("type=file;size={};modify={};", file.told, file.modify),
                    None if lies.is_dir(&path) => format!("type=dir;modify={MODIFY};"),
                    None => return self.say(b"550 no such file\r\n"),
                };
                let named = [facts.as_bytes(), b" ", &path, b"\r\n250 end\r\n"].concat();
                self.say(&[&b"250-it is\r\n "[..], &named].concat())
            }
            ("SIZE", Some(file)) => self.say(format!("213 {}\r\n", file.told).as_bytes()),
            ("MDTM", Some(file)) => self.say(format!("213 {}\r\n", file.modify).as_bytes()),
            ("REST", _) => {
                let offset = String::from_utf8_lossy(argument).parse().unwrap_or(0);
                self.offset = if lies.rest == Rest::Ignored { 0 } else { offset };
                self.say(b"350 from there\r\n")
            }
            ("EPSV", _) if lies.elsewhere.is_some() => self.say(b"500 unknown\r\n"),
            ("EPSV" | "PASV", _) => self.listen(verb),
            ("MLSD", _) if lies.is_dir(&path) => {
                let listing = lies.listing(&path);
                std::thread::sleep(lies.lists_in);
                let how =
                    if lies.hangs_up_while_listing { Manner::HangUp(listing.len()) } else { Manner::Whole };
                self.send_listing(&listing, how)
            }
            ("RETR", Some(file)) => {
                std::thread::sleep(lies.sends_in);
                let (manner, from) = (file.next_manner(), self.offset);
                if lies.rest != Rest::Kept {
                    self.offset = 0;
                }
                self.send(&file.contents[self.number % file.contents.len()], from, manner)
            }
            ("CWD" | "SIZE" | "MDTM" | "MLSD" | "RETR", _) => self.say(b"550 no such file\r\n"),
            _ => self.say(b"500 unknown\r\n"),
        }
    }

    fn listen(&mut self, verb: &str) -> bool {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bind any port");
        let port = listener.local_addr().expect("know the port").port();
        self.passive = Some(listener);
        if let Some(host) = self.lies.elsewhere
            && let Ok(bystander) = TcpListener::bind((host, port))
        {
            bystander.set_nonblocking(true).expect("a listener that does not wait");
            self.lies.bystanders.lock().expect("no session panics").push(bystander);
        }
        let [high, low] = port.to_be_bytes();
        let host = self.lies.elsewhere.unwrap_or(Ipv4Addr::LOCALHOST).to_string().replace('.', ",");
        self.say(
            match verb {
                "EPSV" => format!("229 here (|||{port}|)\r\n"),
                _ => format!("227 here ({host},{high},{low})\r\n"),
            }
            .as_bytes(),
        )
    }

    /// Sends a listing, as [`Session::send`].
    fn send_listing(&mut self, listing: &[u8], manner: Manner) -> bool {
        let end = self.lies.listing_end.clone();
        self.send_ending(listing, 0, manner, end.as_deref().unwrap_or(ALL))
    }

    /// Sends `content` from `from` on through the data connection; whether the control connection goes on.
    fn send(&mut self, content: &[u8], from: usize, manner: Manner) -> bool {
        self.send_ending(content, from, manner, ALL)
    }

    fn send_ending(&mut self, content: &[u8], from: usize, manner: Manner, end_line: &[u8]) -> bool {
        let Some(listener) = self.passive.take() else {
            return self.say(b"425 where to?\r\n");
        };
        if let Manner::Refuse(line) = manner {
            return self.say(&[line.as_bytes(), b"\r\n"].concat());
        }
        if !self.say(b"150 here it comes\r\n") {
            return false;
        }
        let Some(mut data) = accept(&listener, Some(DIALLED_WITHIN), &self.over) else {
            return self.say(b"425 nobody came\r\n");
        };
        let end = match manner {
            Manner::Whole | Manner::Flood | Manner::Refuse(_) => content.len(),
            Manner::Short(at) | Manner::Cut(at, _) | Manner::HangUp(at) | Manner::Stall(at) => at,
        };
        let mut sent = Ok(());
        for part in content.get(from..end).unwrap_or_default().chunks(64 << 10) {
            sent = data.write_all(part);
            if sent.is_err() {
                break;
            }
            self.lies.sent.fetch_add(part.len(), Ordering::Relaxed);
        }
        if let Manner::Stall(_) = manner {
            while !self.over.load(Ordering::Relaxed) && !is_closed(&self.control) && !is_closed_data(&data) {
                std::thread::sleep(LOOK_EVERY);
            }
            return false;
        }
        drop(data);
        match manner {
            Manner::HangUp(_) => false,
            Manner::Flood => {
                self.flood();
                false
            }
            Manner::Cut(_, None) => true,
            Manner::Cut(_, Some(line)) => self.say(&[line.as_bytes(), b"\r\n"].concat()),
            _ if sent.is_err() => self.say(b"426 you hung up\r\n"),
            _ => self.say(end_line),
        }
    }
}

fn takes_one(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}

fn is_closed(control: &BufReader<TcpStream>) -> bool {
    is_closed_data(control.get_ref())
}

/// Whether the other side has closed it.
fn is_closed_data(socket: &TcpStream) -> bool {
    let waits = socket.read_timeout().expect("a socket has one");
    socket.set_read_timeout(Some(LOOK_EVERY)).expect("set a patience");
    let closed = match socket.peek(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    };
    socket.set_read_timeout(waits).expect("set a patience");
    closed
}
