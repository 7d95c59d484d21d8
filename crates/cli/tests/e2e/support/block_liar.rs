//! A GridFTP server that lies about blocks, by a script: connections that drop, blocks that come twice or lie
//! elsewhere, ends that are counted wrongly, strangers who send as well.
//!
//! In: files, and in which manner each transfer in blocks goes, one after the other; then, and in stream
//! mode, all is as it should be. Out: what it was told. See [`super::liar`] for lies of another kind.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::ftpd::escaped;

/// Bytes of a block, if nothing else is said.
const BLOCK: usize = 64 << 10;
const EOF: u8 = 0x40;
const EOD: u8 = 0x08;
const CLOSE: u8 = 0x04;
/// What waits looks so often whether the test is over.
const LOOK: Duration = Duration::from_millis(20);
/// In place of the content, where somebody else sends.
const FALSE: u8 = 0xaa;

/// How a transfer in blocks goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    Honest,
    /// One block comes again, as it was.
    Twice,
    /// One block comes again, and is another.
    TwiceOther,
    /// The first block is another, and comes as it should be behind all others.
    FalseFirst,
    /// Two blocks have some bytes in common.
    Overlaps,
    /// A block lies behind the end of the file; far behind it.
    Outside,
    FarOutside,
    /// One block never comes.
    Gap,
    /// The last block never comes.
    Short,
    /// The end of file promises so many ends of data.
    Promises(u64),
    /// It is told first, before any data; and among them.
    EofFirst,
    EofAmong,
    /// EOF and EOD in blocks of their own, as the standard has it, with CLOSE.
    Apart,
    /// One connection ends in the middle of a block; between two blocks.
    Drops,
    DropsBetween,
    /// The same with CLOSE and without EOD.
    ClosesEarly,
    /// One connection sends no more, and nothing ends.
    Stalls,
    /// The control connection ends in the middle.
    HangsUp,
    /// The answer is this, and no connection is made.
    Refuses(&'static str),
    /// Nothing is answered and no connection is made; it is said that it begins.
    Nobody,
    BeginsAlone,
    /// All is well, and then it is not.
    Regrets,
    /// From the end on; in parts of so many bytes, in any order; one half over each connection.
    Backwards,
    Parts(usize),
    Halves,
    /// What was asked for by `REST` is not heard.
    FromTheStart,
    /// Somebody at the same address sends all of it, and the server does, too.
    Injected,
    /// Somebody at the same address sends a part of it first, and hangs up, or does not.
    InjectedCut,
    InjectedHeld,
    /// Somebody at another address sends all of it.
    Stranger,
    /// The server's own connections come from another address.
    Movers,
    /// A connection more is made, which sends nothing.
    OneMore,
    /// Something comes behind the end of data.
    GoesOn,
    /// The answer names connections that are not there.
    Reuses,
    /// The descriptor of a block has bits that nobody knows.
    OddBits,
}

/// The script; see the module.
#[derive(Default)]
pub struct BlockLies {
    /// One for each version; sessions take them in turn.
    files: BTreeMap<Vec<u8>, Vec<Vec<u8>>>,
    manners: Mutex<VecDeque<Manner>>,
    /// The last manner is that of all transfers that follow.
    always: Option<Manner>,
    /// These come without their answer when they are asked for in blocks.
    refused: Vec<Vec<u8>>,
    /// No stream mode.
    blocks_only: bool,
    /// What it says that its nodes are.
    nodes: Vec<&'static str>,
    /// So many logins are answered, and no others.
    logins: Option<usize>,
    heard: Mutex<Vec<String>>,
}

impl BlockLies {
    pub fn file(mut self, path: &str, content: &[u8]) -> BlockLies {
        self.files.insert(path.as_bytes().to_vec(), vec![content.to_vec()]);
        self
    }

    /// As [`BlockLies::file`], in versions that sessions have in turn.
    pub fn in_turn(mut self, path: &str, versions: &[&[u8]]) -> BlockLies {
        let versions = versions.iter().map(|version| version.to_vec()).collect();
        self.files.insert(path.as_bytes().to_vec(), versions);
        self
    }

    pub fn manners(self, manners: &[Manner]) -> BlockLies {
        self.manners.lock().expect("no session panics").extend(manners);
        self
    }

    pub fn always(mut self, manner: Manner) -> BlockLies {
        self.always = Some(manner);
        self
    }

    pub fn refuses(mut self, path: &str) -> BlockLies {
        self.refused.push(path.as_bytes().to_vec());
        self
    }

    pub fn blocks_only(mut self) -> BlockLies {
        self.blocks_only = true;
        self
    }

    /// It is striped, and says that its nodes listen there.
    pub fn nodes(mut self, nodes: &[&'static str]) -> BlockLies {
        self.nodes = nodes.to_vec();
        self
    }

    pub fn logins(mut self, answered: usize) -> BlockLies {
        self.logins = Some(answered);
        self
    }

    pub fn start(self) -> BlockLiar {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bind any port");
        let port = listener.local_addr().expect("know the port").port();
        let (over, lies) = (Arc::new(AtomicBool::new(false)), Arc::new(self));
        let (ends, all) = (over.clone(), lies.clone());
        std::thread::spawn(move || {
            for (number, control) in listener.incoming().enumerate() {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(control), lies, over) = (control, all.clone(), ends.clone()) else { return };
                std::thread::spawn(move || Session::new(number, control, lies, over).serve());
            }
        });
        BlockLiar { port, lies, over }
    }

    fn next(&self) -> Manner {
        let next = self.manners.lock().expect("no session panics").pop_front();
        next.or(self.always).unwrap_or(Manner::Honest)
    }
}

/// A running liar; ended on drop.
pub struct BlockLiar {
    pub port: u16,
    lies: Arc<BlockLies>,
    over: Arc<AtomicBool>,
}

impl BlockLiar {
    pub fn url(&self, path: &str) -> String {
        format!("ftp://127.0.0.1:{}{}", self.port, escaped(path))
    }

    /// What it was told so far, by all who came.
    pub fn heard(&self) -> Vec<String> {
        self.lies.heard.lock().expect("no session panics").clone()
    }

    /// How often it was told something that begins so.
    pub fn heard_of(&self, start: &str) -> usize {
        self.heard().iter().filter(|line| line.starts_with(start)).count()
    }
}

impl Drop for BlockLiar {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // Whoever waits for the next one sees it.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if std::thread::panicking() {
            let heard = self.heard();
            eprintln!("it heard {} lines: {:?}", heard.len(), &heard[heard.len().saturating_sub(60)..]);
        }
    }
}

struct Session {
    number: usize,
    control: BufReader<TcpStream>,
    lies: Arc<BlockLies>,
    over: Arc<AtomicBool>,
    blocks: bool,
    parallel: usize,
    port: Option<SocketAddr>,
    passive: Option<TcpListener>,
    /// Connections that are kept.
    lanes: Vec<TcpStream>,
    /// What is not wanted.
    rest: Vec<(usize, usize)>,
}

impl Session {
    fn new(number: usize, control: TcpStream, lies: Arc<BlockLies>, over: Arc<AtomicBool>) -> Session {
        control.set_nodelay(true).expect("set an option");
        control.set_read_timeout(Some(LOOK)).expect("set a patience");
        Session {
            number,
            control: BufReader::new(control),
            lies,
            over,
            blocks: false,
            parallel: 1,
            port: None,
            passive: None,
            lanes: Vec::new(),
            rest: Vec::new(),
        }
    }

    fn say(&mut self, text: &str) -> bool {
        self.control.get_mut().write_all(format!("{text}\r\n").as_bytes()).is_ok()
    }

    fn next_line(&mut self) -> Option<Vec<u8>> {
        let mut line = Vec::new();
        while !self.over.load(Ordering::Relaxed) {
            match self.control.read_until(b'\n', &mut line) {
                Ok(_) if line.ends_with(b"\r\n") => {
                    line.truncate(line.len() - 2);
                    return Some(line);
                }
                Ok(_) => return None,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return None,
            }
        }
        None
    }

    fn serve(mut self) {
        self.say("220 at your service");
        while let Some(line) = self.next_line() {
            let text = String::from_utf8_lossy(&line).into_owned();
            self.lies.heard.lock().expect("no session panics").push(text.clone());
            let (verb, argument) = text.split_once(' ').unwrap_or((&text, ""));
            if !self.answer(verb, argument) {
                return;
            }
        }
    }

    fn content(&self, path: &str) -> Option<Vec<u8>> {
        let versions = self.lies.files.get(path.as_bytes())?;
        Some(versions[self.number % versions.len()].clone())
    }

    fn facts(&self, path: &str) -> Option<String> {
        if let Some(content) = self.content(path) {
            return Some(format!("type=file;size={};modify=20200102030405;", content.len()));
        }
        let below = format!("{}/", path.trim_end_matches('/'));
        let is_dir = self.lies.files.keys().any(|file| file.starts_with(below.as_bytes()));
        is_dir.then(|| "type=dir;modify=20200102030405;".to_owned())
    }

    fn answer(&mut self, verb: &str, argument: &str) -> bool {
        match verb {
            "USER" if self.lies.logins.is_some_and(|answered| self.number >= answered) => self.wait(),
            "USER" => self.say("331 who says so?"),
            "PASS" => self.say("230 welcome"),
            "FEAT" => {
                let more = if self.lies.nodes.is_empty() { "" } else { " SPAS\r\n" };
                self.say(&format!(
                    "211-Features\r\n MLST type*;size*;modify*;UNIX.slink*;\r\n SIZE\r\n REST STREAM\r\n PARALLEL\r\n{more}211 End",
                ))
            }
            "SPAS" if !self.lies.nodes.is_empty() => {
                let nodes = self.lies.nodes.join("\r\n ");
                self.say(&format!("229-Entering Striped Passive Mode.\r\n {nodes}\r\n229 End"))
            }
            "TYPE" | "NOOP" => self.say("200 done"),
            "OPTS" => {
                if let Some(words) = argument.strip_prefix("RETR Parallelism=") {
                    self.parallel = words.split(',').next().and_then(|n| n.parse().ok()).unwrap_or(1);
                    self.lanes.clear();
                }
                self.say("200 done")
            }
            "MODE" => {
                self.blocks = argument == "E";
                self.lanes.clear();
                self.say("200 done")
            }
            "PORT" => {
                let n: Vec<u16> = argument.split(',').map(|n| n.parse().expect("a number")).collect();
                let ip = Ipv4Addr::new(n[0] as u8, n[1] as u8, n[2] as u8, n[3] as u8);
                self.port = Some(SocketAddr::from((ip, n[4] * 256 + n[5])));
                self.lanes.clear();
                self.say("200 done")
            }
            "EPSV" if !self.lies.blocks_only => {
                let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bind any port");
                let port = listener.local_addr().expect("know the port").port();
                self.passive = Some(listener);
                self.say(&format!("229 here (|||{port}|)"))
            }
            "REST" => {
                let ranges = argument.split(',').map(|range| range.split_once('-').unwrap_or(("0", range)));
                let number = |text: &str| text.parse().expect("a number");
                self.rest = ranges.map(|(start, end)| (number(start), number(end))).collect();
                self.say("350 but for that")
            }
            "MLST" => match self.facts(argument) {
                Some(facts) => self.say(&format!("250-it is\r\n {facts} {argument}\r\n250 end")),
                None => self.say("550 no such file"),
            },
            "MLSD" => {
                let below = format!("{}/", argument.trim_end_matches('/'));
                let mut listing = Vec::new();
                for path in self.lies.files.keys() {
                    let path = String::from_utf8_lossy(path).into_owned();
                    if let (Some(name), Some(facts)) = (path.strip_prefix(&below), self.facts(&path)) {
                        listing.extend(format!("{facts} {name}\r\n").into_bytes());
                    }
                }
                self.stream(&listing)
            }
            "RETR" => {
                let rest = std::mem::take(&mut self.rest);
                let Some(content) = self.content(argument) else { return self.say("550 no such file") };
                if self.blocks {
                    if self.lies.refused.iter().any(|path| path == argument.as_bytes()) {
                        return self.say("550 not now");
                    }
                    let manner = self.lies.next();
                    self.blocks(&content, rest, manner)
                } else {
                    let from = rest.first().map_or(0, |(_, end)| *end);
                    self.stream(content.get(from..).unwrap_or_default())
                }
            }
            "QUIT" => {
                self.say("221 farewell");
                false
            }
            _ => self.say("500 unknown"),
        }
    }

    fn stream(&mut self, content: &[u8]) -> bool {
        let Some(listener) = self.passive.take() else { return self.say("425 where to?") };
        self.say("150 here it comes");
        let Ok((mut data, _)) = listener.accept() else { return false };
        let sent = data.write_all(content);
        drop(data);
        self.say(if sent.is_ok() { "226 that is all" } else { "426 you hung up" })
    }

    /// Until the other side hangs up, or the test is over.
    fn wait(&mut self) -> bool {
        while self.next_line().is_some() {}
        false
    }

    fn blocks(&mut self, content: &[u8], rest: Vec<(usize, usize)>, manner: Manner) -> bool {
        let Some(port) = self.port else { return self.say("425 where to?") };
        match manner {
            Manner::Refuses(line) => return self.say(line),
            Manner::Nobody => return self.wait(),
            Manner::BeginsAlone => return self.say("150 here it comes") && self.wait(),
            Manner::Reuses => {
                self.lanes.clear();
                return self.say("125 over the same") && self.wait();
            }
            _ => {}
        }
        let is_injected = matches!(manner, Manner::Injected | Manner::InjectedCut | Manner::InjectedHeld);
        if is_injected || manner == Manner::Stranger {
            let from = if is_injected { Ipv4Addr::LOCALHOST } else { Ipv4Addr::new(127, 0, 0, 2) };
            if let Some(mut stranger) = dial(from, port) {
                let len = content.len();
                std::thread::spawn(move || {
                    if let Manner::InjectedCut | Manner::InjectedHeld = manner {
                        // An object of the client's, in the middle of what it asks for first.
                        let _ = block(&mut stranger, 0, len / 20, &vec![FALSE; len / 20]);
                        if manner == Manner::InjectedCut {
                            return;
                        }
                    } else {
                        let _ = block(&mut stranger, 0, 0, &vec![FALSE; len]);
                        let _ = header(&mut stranger, EOF | EOD, 0, 1);
                    }
                    // Whether it was let in or not: until it is closed.
                    let _ = stranger.read(&mut [0]);
                });
                // It has come first.
                std::thread::sleep(LOOK);
            }
        }
        let reused = !self.lanes.is_empty();
        if !reused {
            let from =
                if manner == Manner::Movers { Ipv4Addr::new(127, 0, 0, 3) } else { Ipv4Addr::LOCALHOST };
            for _ in 0..self.parallel + usize::from(manner == Manner::OneMore) {
                match dial(from, port) {
                    Some(lane) => self.lanes.push(lane),
                    None => return self.say("425 nobody there"),
                }
            }
        }
        self.say(if reused { "125 over the same" } else { "150 here it comes" });
        if is_injected {
            // What the other one sends is read first.
            std::thread::sleep(10 * LOOK);
        }
        let mut lanes = std::mem::take(&mut self.lanes);
        if self.send(&mut lanes, content, &rest, manner).is_err() {
            // Whoever reads has closed it, or this manner has.
            return match manner {
                Manner::HangsUp => false,
                Manner::Stalls => self.wait(),
                _ => self.say("426 the connection is lost"),
            };
        }
        if manner == Manner::Regrets {
            return self.say("451 the disk is broken");
        }
        if !matches!(manner, Manner::Apart | Manner::OneMore) {
            self.lanes = lanes;
            return self.say("226 that is all");
        }
        self.say("226 that is all")
    }

    /// An error: the transfer is broken off.
    fn send(
        &self,
        lanes: &mut [TcpStream],
        content: &[u8],
        rest: &[(usize, usize)],
        manner: Manner,
    ) -> std::io::Result<()> {
        let wanted = |at: usize| {
            manner == Manner::FromTheStart || !rest.iter().any(|(start, end)| (*start..*end).contains(&at))
        };
        let size = if let Manner::Parts(len) = manner { len } else { BLOCK };
        // Ranges begin wherever they like; no block reaches into one.
        let (mut parts, mut at) = (Vec::new(), 0);
        while at < content.len() {
            if !wanted(at) {
                at = rest
                    .iter()
                    .filter(|(start, end)| (*start..*end).contains(&at))
                    .map(|r| r.1)
                    .max()
                    .unwrap_or(at + 1);
                continue;
            }
            let next = rest.iter().map(|(start, _)| *start).filter(|start| *start > at && wanted(at)).min();
            let limit =
                if manner == Manner::FromTheStart { content.len() } else { next.unwrap_or(content.len()) };
            let end = (at + size).min(content.len()).min(limit);
            parts.push((at, end));
            at = end;
        }
        match manner {
            Manner::Backwards => parts.reverse(),
            Manner::Parts(_) => fastrand::Rng::with_seed(7).shuffle(&mut parts),
            _ => {}
        }
        let count = lanes.len() - usize::from(manner == Manner::OneMore);
        let broken = || std::io::Error::other("on purpose");
        let middle = parts.len() / 2;
        if manner == Manner::EofFirst {
            header(&mut lanes[0], EOF, 0, count as u64)?;
        }
        for (n, (start, end)) in parts.iter().copied().enumerate() {
            let lane = match manner {
                // The half that lies behind is sent first, as far as anybody reads it.
                Manner::Halves => usize::from(n < middle) % count,
                _ => n % count,
            };
            let bytes = &content[start..end];
            match manner {
                Manner::Gap if n == middle => continue,
                Manner::Short if n + 1 == parts.len() => continue,
                Manner::Twice if n == middle => block(&mut lanes[lane], 0, start, bytes)?,
                Manner::TwiceOther if n == middle => {
                    block(&mut lanes[lane], 0, start, &vec![FALSE; bytes.len()])?;
                }
                Manner::FalseFirst if n == 0 => {
                    block(&mut lanes[lane], 0, start, &vec![FALSE; bytes.len()])?;
                    continue;
                }
                Manner::Overlaps if n == middle && start > 0 => {
                    block(&mut lanes[lane], 0, start - 1, &content[start - 1..end])?;
                    continue;
                }
                Manner::Outside if n == middle => block(&mut lanes[lane], 0, content.len() - 1, b"xy")?,
                Manner::FarOutside if n == middle => header(&mut lanes[lane], 0, u64::MAX, u64::MAX)?,
                Manner::OddBits if n == middle => block(&mut lanes[lane], 0x21, start, bytes)?,
                Manner::EofAmong if n == middle => header(&mut lanes[count - 1], EOF, 7, count as u64)?,
                Manner::Drops if n == middle => {
                    header(&mut lanes[lane], 0, bytes.len() as u64, start as u64)?;
                    lanes[lane].write_all(&bytes[..bytes.len() / 2])?;
                    // What came before is read by then.
                    std::thread::sleep(10 * LOOK);
                    let _ = lanes[lane].shutdown(std::net::Shutdown::Both);
                    return Err(broken());
                }
                Manner::DropsBetween if n == middle => {
                    let _ = lanes[lane].shutdown(std::net::Shutdown::Both);
                    return Err(broken());
                }
                Manner::ClosesEarly if n == middle => {
                    header(&mut lanes[lane], CLOSE, 0, 0)?;
                    let _ = lanes[lane].shutdown(std::net::Shutdown::Both);
                    return Err(broken());
                }
                Manner::HangsUp if n == middle => return Err(broken()),
                Manner::Stalls if n >= middle && lane == count - 1 => {
                    if n + count >= parts.len() {
                        return Err(broken());
                    }
                    continue;
                }
                _ => {}
            }
            block(&mut lanes[lane], 0, start, bytes)?;
        }
        if let (Manner::FalseFirst, Some((start, end))) = (manner, parts.first().copied()) {
            // What came before is heard by then.
            std::thread::sleep(10 * LOOK);
            block(&mut lanes[0], 0, start, &content[start..end])?;
        }
        let promised = if let Manner::Promises(count) = manner { count } else { count as u64 };
        for (n, lane) in lanes.iter_mut().take(count).enumerate() {
            match manner {
                Manner::EofFirst | Manner::EofAmong => header(lane, EOD, 0, 0)?,
                Manner::Apart => {
                    if n == 0 {
                        header(lane, EOF, 0, promised)?;
                    }
                    header(lane, EOD | CLOSE, 0, 0)?;
                }
                // As Globus does, on the last one.
                _ if n + 1 == count => header(lane, EOF | EOD, 0, promised)?,
                _ => header(lane, EOD, 0, 0)?,
            }
        }
        if manner == Manner::GoesOn {
            block(&mut lanes[0], 0, 0, &vec![FALSE; content.len().min(BLOCK)])?;
        }
        Ok(())
    }
}

fn header(lane: &mut TcpStream, descriptor: u8, count: u64, offset: u64) -> std::io::Result<()> {
    let mut bytes = vec![descriptor];
    bytes.extend(count.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    lane.write_all(&bytes)
}

fn block(lane: &mut TcpStream, descriptor: u8, offset: usize, bytes: &[u8]) -> std::io::Result<()> {
    header(lane, descriptor, bytes.len() as u64, offset as u64)?;
    lane.write_all(bytes)
}

/// Connects from an address of this host.
fn dial(from: Ipv4Addr, to: SocketAddr) -> Option<TcpStream> {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let fd: OwnedFd = socket(AddressFamily::INET, SocketType::STREAM, None).ok()?;
    bind(&fd, &SocketAddr::from((from, 0))).ok()?;
    connect(&fd, &to).ok()?;
    let stream = TcpStream::from(fd);
    stream.set_nodelay(true).ok()?;
    Some(stream)
}
