//! Files in blocks over data connections that show whose they are, from a server of the test's own that
//! misbehaves, and with strangers at its address. The real server is in the end-to-end tests.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use data_encoding::BASE64;
use haul_ftp::{DataSecurity, Error, Ranges, Room, Session, Turn, Wanted};
use haul_gsi::channel::{self, Level, Side, Wrapped};
use haul_gsi::{Acceptor, Expects};

mod grid;

use grid::{AUTHORITY, authorities, credential, open, somebody_else};

const EOF: u8 = 0x40;
const EOD: u8 = 0x08;
/// Bytes of a block.
const BLOCK: usize = 50_000;
/// In place of the content, where somebody else sends.
const FALSE: u8 = 0xaa;
/// So that what was sent before is read first.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Odd {
    Nothing,
    /// It says that it begins before anybody showed who he is.
    BeginsEarly,
    /// The first connection is made first, and shows last whose it is.
    LateFirst,
    /// The last connection shows whose it is long after the server began, and said that it is at work.
    ShowsLate,
    /// It closes its connections behind each file, and makes others for the next one.
    Closes,
    /// It does so before a small file ends, so that both are there at a time.
    ConnectsAhead,
    /// Somebody at its address connects first and says nothing; half a word; so many are silent.
    Silent,
    HalfWord,
    Flood,
    /// The server's connections come from another address than its commands, behind a flood from a third one.
    Elsewhere,
    /// Somebody at its address sends all of a file, as it is; behind showing that he is somebody else.
    Plain,
    Other,
    /// The server itself connects, and says nothing more.
    SaysNothing,
    /// It shows that it is somebody else, and says `425`; it says `550`.
    IsOther,
    IsOtherAndHasNone,
    /// A connection ends in the middle of a block, as if it were cut off, or as TLS has it; and the server
    /// says that it was lost, or that all was sent.
    Cut,
    CutAndDone,
    Ends,
    EndsAndDone,
    /// The end of file promises so many ends of data.
    Promises(u64),
    /// A byte was changed on its way.
    Changed,
    /// One connection more than it says shows whose it is.
    OneMore,
}

/// A data connection on which something may be changed.
struct Wire {
    socket: TcpStream,
    changes: Arc<AtomicBool>,
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.read(buffer)
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut bytes = bytes.to_vec();
        if let Some(last) = bytes.last_mut()
            && self.changes.swap(false, Ordering::Relaxed)
        {
            *last ^= 1;
        }
        self.socket.write_all(&bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file of the server's: `/N`, N in its name alone. There is no `/missing`.
fn content(name: &str) -> Vec<u8> {
    let seed: usize = name.parse().expect("a number");
    let len = if seed == 0 { 3_000_000 } else { seed * 1_000 };
    (0..len).map(|n| (n * (seed + 3) % 251) as u8).collect()
}

struct Served {
    odd: Odd,
    level: Level,
    port: Option<SocketAddr>,
    parallel: usize,
    mine: Option<haul_gsi::Credential>,
    lanes: Vec<Wrapped<Wire>>,
    /// They are those of the next file.
    is_ahead: bool,
    /// Others who connected, as long as it takes.
    strangers: Vec<Wrapped<Wire>>,
    changes: Arc<AtomicBool>,
}

/// The lines that it understood.
type Heard = Arc<Mutex<Vec<String>>>;

fn start(odd: Odd) -> (u16, Heard) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = listener.local_addr().expect("where it listens").port();
    let heard = Heard::default();
    let hears = heard.clone();
    thread::spawn(move || {
        let (socket, _) = listener.accept().expect("somebody comes");
        // The client that goes away is the end of it.
        let _ = serve(socket, odd, &hears);
    });
    (port, heard)
}

fn serve(mut socket: TcpStream, odd: Odd, heard: &Heard) -> io::Result<()> {
    let mut context = Acceptor::new(&credential(), &authorities(AUTHORITY)).expect("an acceptor");
    let mut lines = BufReader::new(socket.try_clone()?).lines();
    let mut served = Served {
        odd,
        level: Level::Clear,
        port: None,
        parallel: 1,
        mine: None,
        lanes: Vec::new(),
        is_ahead: false,
        strangers: Vec::new(),
        changes: Arc::default(),
    };
    socket.write_all(b"220 ready\r\n")?;
    while let Some(line) = lines.next().transpose()? {
        let (verb, argument) = line.split_once(' ').unwrap_or((&line, ""));
        let mut say = |text: String| socket.write_all(format!("{text}\r\n").as_bytes());
        match verb {
            "AUTH" => say("334 go on".into())?,
            "ADAT" => {
                let token = BASE64.decode(argument.as_bytes()).expect("base64");
                match context.step(&token).expect("a token") {
                    haul_gsi::Step::Goes(token) => say(format!("335 ADAT={}", BASE64.encode(&token)))?,
                    haul_gsi::Step::Stands(_) => say("235 done".into())?,
                }
                served.mine = context.delegated().cloned();
            }
            _ => {
                let token = BASE64.decode(argument.as_bytes()).expect("base64");
                let command = context.unwrap(&token).expect("a command");
                let command = String::from_utf8(command).expect("UTF-8").trim_end().to_owned();
                heard.lock().expect("whole").push(command.clone());
                served.answer(&command, &mut |text: &str| {
                    for (n, line) in text.lines().enumerate() {
                        let token = context.wrap(format!("{line}\r\n").as_bytes()).expect("a token");
                        let sign = if n + 1 < text.lines().count() { '-' } else { ' ' };
                        say(format!("632{sign}{}", BASE64.encode(&token)))?;
                    }
                    Ok(())
                })?;
            }
        }
    }
    Ok(())
}

type Say<'a> = &'a mut dyn FnMut(&str) -> io::Result<()>;

impl Served {
    fn answer(&mut self, command: &str, say: Say<'_>) -> io::Result<()> {
        let (verb, argument) = command.split_once(' ').unwrap_or((command, ""));
        match verb {
            "USER" => say("331 password"),
            "PASS" => say("230 you are in"),
            "FEAT" => say("211-\n MLST Type*;UNIX.slink*;\n MLSC\n PARALLEL\n211 end"),
            "PROT" => {
                self.level = if argument == "P" { Level::Private } else { Level::Clear };
                say("200 yes")
            }
            "MODE" | "OPTS" | "PORT" => {
                self.lanes.clear();
                self.is_ahead = false;
                if let Some(numbers) = argument.strip_prefix("RETR Parallelism=") {
                    self.parallel = numbers.split(',').next().expect("a number").parse().expect("a number");
                }
                if verb == "PORT" {
                    let n: Vec<u16> = argument.split(',').map(|n| n.parse().expect("a number")).collect();
                    self.port = Some(SocketAddr::from(([127, 0, 0, 1], n[4] * 256 + n[5])));
                }
                say("200 yes")
            }
            "RETR" if argument == "/missing" => say("550 there is none"),
            "RETR" => {
                let content = content(argument.trim_start_matches('/'));
                let said = self.retr(&content, say);
                said.or_else(|_| say("426 the connection is lost"))
            }
            _ => say("200 yes"),
        }
    }

    fn dial(&self) -> io::Result<Wire> {
        self.dial_from(if self.odd == Odd::Elsewhere { 3 } else { 1 })
    }

    /// From an address of this host.
    fn dial_from(&self, last: u8) -> io::Result<Wire> {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        bind(&socket, &SocketAddr::from(([127, 0, 0, last], 0)))?;
        connect(&socket, &self.port.expect("PORT came"))?;
        let socket = TcpStream::from(socket);
        // Its small pieces go at once.
        socket.set_nodelay(true)?;
        Ok(Wire { socket, changes: self.changes.clone() })
    }

    fn shown(&self, wire: Wire, mine: &haul_gsi::Credential) -> io::Result<Wrapped<Wire>> {
        let expects = Expects::Identity(credential().identity().clone());
        let with = (mine, &authorities(AUTHORITY), &expects);
        let wrapped = channel::wrap(wire, Side::Dialled, self.level, with);
        wrapped.map(|(wrapped, _)| wrapped).map_err(io::Error::other)
    }

    /// Those who come before the server does.
    fn strangers(&mut self, len: usize) -> io::Result<()> {
        let all_false = |lane: &mut dyn Write| {
            // He sees whether anybody reads it, and nobody cares what he sees.
            let _ = block(lane, 0, &vec![FALSE; len]).and_then(|()| header(lane, EOF | EOD, 0, 1));
        };
        match self.odd {
            Odd::Silent => self.strangers.push(Wrapped::Clear(self.dial()?)),
            Odd::HalfWord => {
                let mut wire = self.dial()?;
                wire.write_all(&[0x16, 3, 1, 2, 0, 1, 0])?;
                self.strangers.push(Wrapped::Clear(wire));
            }
            Odd::Flood => {
                for _ in 0..100 {
                    self.strangers.push(Wrapped::Clear(self.dial()?));
                }
            }
            Odd::Elsewhere => {
                for _ in 0..100 {
                    self.strangers.push(Wrapped::Clear(self.dial_from(2)?));
                }
            }
            Odd::Plain => {
                let mut wire = self.dial()?;
                all_false(&mut wire);
                self.strangers.push(Wrapped::Clear(wire));
            }
            Odd::Other => {
                if let Ok(mut lane) = self.shown(self.dial()?, &somebody_else()) {
                    all_false(&mut lane);
                    self.strangers.push(lane);
                }
            }
            _ => {}
        }
        thread::sleep(LOOK);
        Ok(())
    }

    fn retr(&mut self, content: &[u8], say: Say<'_>) -> io::Result<()> {
        if self.is_ahead {
            self.is_ahead = false;
            say("150 it begins")?;
        } else if !self.lanes.is_empty() {
            say("125 over the same")?;
        } else {
            if self.odd == Odd::BeginsEarly {
                say("150 it begins")?;
            }
            self.strangers(content.len())?;
            let more = usize::from(self.odd == Odd::OneMore);
            let mut wires = (0..self.parallel + more).map(|_| self.dial()).collect::<io::Result<Vec<_>>>()?;
            match self.odd {
                Odd::SaysNothing => {
                    self.strangers.extend(wires.into_iter().map(Wrapped::Clear));
                    return Ok(());
                }
                Odd::IsOther | Odd::IsOtherAndHasNone => {
                    let shown = self.shown(wires.remove(0), &somebody_else());
                    // Under TLS 1.3 it may not know yet that it is refused.
                    let refused = shown.and_then(|mut lane| lane.read_exact(&mut [0]));
                    assert!(refused.is_err(), "somebody else was taken");
                    let none = self.odd == Odd::IsOtherAndHasNone;
                    return say(if none { "550 none" } else { "425 nobody takes me" });
                }
                Odd::LateFirst => wires.reverse(),
                _ => {}
            }
            let mine = self.mine.clone().expect("it was delegated");
            let late = if self.odd == Odd::ShowsLate { wires.pop() } else { None };
            for wire in wires {
                let lane = self.shown(wire, &mine)?;
                self.lanes.push(lane);
            }
            if self.odd != Odd::BeginsEarly {
                say("150 it begins")?;
            }
            if let Some(late) = late {
                // At each word the client looks at all who are there.
                for _ in 0..200 {
                    say("112 at work")?;
                }
                thread::sleep(LOOK);
                let lane = self.shown(late, &mine)?;
                self.lanes.push(lane);
            }
        }
        self.send(content, say)
    }

    fn send(&mut self, content: &[u8], say: Say<'_>) -> io::Result<()> {
        let count = self.lanes.len() - usize::from(self.odd == Odd::OneMore);
        let parts = content.chunks(BLOCK).count();
        for (n, bytes) in content.chunks(BLOCK).enumerate() {
            let lane = &mut self.lanes[n % count];
            let is_middle = n == parts / 2;
            if is_middle && matches!(self.odd, Odd::Cut | Odd::CutAndDone | Odd::Ends | Odd::EndsAndDone) {
                header(lane, 0, bytes.len() as u64, (n * BLOCK) as u64)?;
                lane.write_all(&bytes[..bytes.len() / 2])?;
                if matches!(self.odd, Odd::Ends | Odd::EndsAndDone) {
                    lane.end()?;
                }
                lane.stream().socket.shutdown(std::net::Shutdown::Write)?;
                thread::sleep(LOOK);
                let done = matches!(self.odd, Odd::CutAndDone | Odd::EndsAndDone);
                return say(if done { "226 that is all" } else { "426 it is lost" });
            }
            self.changes.store(self.odd == Odd::Changed && is_middle, Ordering::Relaxed);
            block(lane, n * BLOCK, bytes)?;
        }
        let mut ahead = Vec::new();
        if self.odd == Odd::ConnectsAhead && self.parallel == 1 {
            ahead.push(self.shown(self.dial()?, &self.mine.clone().expect("it was delegated"))?);
            // The client knows of it by then.
            thread::sleep(LOOK);
        }
        let promised = if let Odd::Promises(count) = self.odd { count } else { count as u64 };
        for (n, lane) in self.lanes.iter_mut().take(count).enumerate() {
            match n + 1 == count {
                true => header(lane, EOF | EOD, 0, promised)?,
                false => header(lane, EOD, 0, 0)?,
            }
        }
        if self.odd == Odd::Closes {
            self.lanes.clear();
        }
        if !ahead.is_empty() {
            (self.lanes, self.is_ahead) = (ahead, true);
        }
        say("226 that is all")
    }
}

fn header(lane: &mut (impl Write + ?Sized), descriptor: u8, count: u64, offset: u64) -> io::Result<()> {
    let mut bytes = vec![descriptor];
    bytes.extend(count.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    lane.write_all(&bytes)
}

fn block(lane: &mut (impl Write + ?Sized), offset: usize, bytes: &[u8]) -> io::Result<()> {
    header(lane, 0, bytes.len() as u64, offset as u64)?;
    lane.write_all(bytes)
}

struct Whole(Vec<u8>);

impl Room for Whole {
    fn room(&mut self, offset: u64, len: u64) -> Option<&mut [u8]> {
        self.0.get_mut(offset as usize..(offset + len) as usize)
    }
    fn came(&mut self, _: u64, _: usize) {}
}

/// A large file over four connections.
fn large(session: &mut Session) -> Result<Vec<u8>, Error> {
    let mut room = Whole(vec![0; content("0").len()]);
    let mut coming = session.begin_blocks(b"/0", (room.0.len() as u64, &Ranges::new()), 4)?;
    while session.receive(&mut coming, &mut room, LOOK)? != Turn::Whole {}
    Ok(room.0)
}

/// Small files in a line, each over the same connection if that stays.
fn small(session: &mut Session, names: &[&str]) -> Result<Vec<Result<Vec<u8>, Error>>, Error> {
    let paths: Vec<String> = names.iter().map(|name| format!("/{name}")).collect();
    let wanted: Vec<Wanted<'_>> = paths.iter().map(|path| Wanted::File(path.as_bytes())).collect();
    session.line_up(&wanted)?;
    let mut all = Vec::new();
    for (name, path) in names.iter().zip(&paths) {
        let mut room = if *name == "missing" { vec![0; 10] } else { vec![0; content(name).len()] };
        let came = session.next_file(path.as_bytes(), &mut room);
        all.push(came.map(|()| room));
        if session.is_broken() {
            break;
        }
    }
    Ok(all)
}

const BOTH: [DataSecurity; 2] = [DataSecurity::Private, DataSecurity::Shown];

/// Goal: a large file comes whole whoever else comes, in whatever order connections show whose they are, and
/// small ones do, one behind the other; so many connections are made as are needed, and are kept.
#[test]
fn whoever_is_not_the_users_own_changes_nothing() {
    for odd in [
        Odd::Nothing,
        Odd::BeginsEarly,
        Odd::LateFirst,
        Odd::ShowsLate,
        Odd::Closes,
        Odd::ConnectsAhead,
        Odd::Silent,
        Odd::HalfWord,
        Odd::Flood,
        Odd::Elsewhere,
        Odd::Plain,
        Odd::Other,
    ] {
        for data in BOTH {
            let (port, heard) = start(odd);
            let mut session = open(port, AUTHORITY, "", data).expect("a session");
            assert!(session.has_blocks(), "{odd:?}");
            let came = large(&mut session).unwrap_or_else(|error| panic!("{odd:?}, {data:?}: {error}"));
            assert!(came == content("0"), "{odd:?}, {data:?}: other bytes");
            for _ in 0..2 {
                let names = ["1", "2", "missing", "70", "3"];
                let came = small(&mut session, &names).unwrap_or_else(|error| panic!("{odd:?}: {error}"));
                assert_eq!(came.len(), names.len(), "{odd:?}, {data:?}: {:?}", came.last());
                for (name, came) in names.iter().zip(came) {
                    match came {
                        Err(error) => assert!(error.is_unavailable(), "{odd:?}, {data:?}, {name}: {error}"),
                        Ok(came) => assert!(came == content(name), "{odd:?}, {data:?}: {name}"),
                    }
                }
            }
            drop(session);
            let ports = heard.lock().expect("whole").iter().filter(|line| line.starts_with("PORT")).count();
            let closes = matches!(odd, Odd::Closes | Odd::ConnectsAhead);
            assert_eq!(ports, if closes { 3 } else { 2 }, "{odd:?}, {data:?}");
        }
    }
}

/// Goal: where the server's own connections are not the user's, say nothing, are cut off in the middle, in
/// whatever way, or are counted wrongly, there is an error in time and in clear words, and no file.
#[test]
fn what_is_not_whole_is_no_file() {
    for (odd, says) in [
        (Odd::SaysNothing, "made no data connection"),
        (Odd::IsOther, "the other end is /O=Grid/CN=alice, and should be /CN=server; the server says 425"),
        (Odd::IsOtherAndHasNone, "550 none"),
        (Odd::Cut, "cut off"),
        (Odd::CutAndDone, "a data connection was cut off, and the server says that all was sent"),
        (Odd::Ends, "closed the connection"),
        (Odd::EndsAndDone, "a data connection was cut off, and the server says that all was sent"),
        (Odd::Promises(3), "data connections, as was promised"),
        (Odd::Promises(5), "it did not come"),
        (Odd::OneMore, ""),
    ] {
        for data in BOTH {
            let (port, _) = start(odd);
            let mut session = open(port, AUTHORITY, "", data).expect("a session");
            let error = large(&mut session).err().unwrap_or_else(|| panic!("{odd:?}, {data:?}: a file"));
            // What is in the clear ends as it is closed.
            let says = if (odd, data) == (Odd::Cut, DataSecurity::Shown) { "closed" } else { says };
            assert!(error.to_string().contains(says), "{odd:?}, {data:?}: {error}");
            let broken = !matches!(odd, Odd::IsOther | Odd::IsOtherAndHasNone);
            assert!(!broken || session.is_broken(), "{odd:?}, {data:?}");
        }
    }
}

/// Goal: what was changed on its way is not taken, where it is protected.
#[test]
fn what_was_changed_is_no_file() {
    let (port, _) = start(Odd::Changed);
    let mut session = open(port, AUTHORITY, "", DataSecurity::Private).expect("a session");
    let error = large(&mut session).expect_err("no file");
    assert!(!matches!(error, Error::Silent { .. }), "{error}");
}
