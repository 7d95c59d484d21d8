//! The same server in MODE E: files that come in blocks, over connections that it keeps from one file to the
//! next, and what it does wrong with them.

use std::io::{ErrorKind, Read as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{Held, Session};

/// How a file in blocks is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InBlocks {
    Whole,
    /// With markers of what it has, among them more than anybody can need. What is not whole when its session
    /// ends is dropped, and nobody was shown it before.
    Marked,
    /// Nothing of it, but this, before anybody looks at its connections.
    Refuse(&'static str),
    /// It says that it has all when so many bytes came, and goes on to read.
    Early(usize),
    /// It says that it has all when the first connection is at its end.
    FirstEnd,
    /// It says that it has bytes that nobody sent.
    Claims,
    /// It keeps one byte otherwise; or so many bytes only.
    Wrong,
    Short(usize),
    /// It closes one connection after so many bytes, and says this, if anything.
    LosesOne(usize, Option<&'static str>),
    /// It says this when something comes, keeps all connections, and takes what came and comes there for the
    /// next file's.
    Confuses(&'static str),
    /// The session ends after so many bytes.
    HangUp(usize),
    /// It reads no more after so many bytes; of one connection alone; says nothing at all.
    Stall(usize),
    StallsOne,
    Deaf,
    /// It says that it wants other connections.
    Begins,
    /// It closes all connections behind it.
    Closes,
}

/// A connection, and what of it was not looked at yet.
pub(super) struct Lane {
    socket: TcpStream,
    bytes: Vec<u8>,
    is_over: bool,
    at_end: bool,
}

/// What came of a file.
#[derive(Default)]
struct Came {
    content: Vec<u8>,
    count: usize,
    ends: u64,
    promised: Option<u64>,
}

impl Lane {
    fn new(socket: TcpStream) -> Lane {
        socket.set_nonblocking(true).expect("a socket that does not wait");
        Lane { socket, bytes: Vec::new(), is_over: false, at_end: false }
    }

    /// Reads what is there; whether that was something.
    fn read(&mut self) -> bool {
        let mut buffer = [0; 64 << 10];
        match self.socket.read(&mut buffer) {
            Ok(0) => self.is_over = true,
            Ok(len) => {
                self.bytes.extend_from_slice(&buffer[..len]);
                return true;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.is_over = true,
        }
        false
    }

    /// Takes whole blocks out of what came, up to the end of data.
    fn take(&mut self, came: &mut Came) {
        while !self.at_end && self.bytes.len() >= 17 {
            let number =
                |at: usize| u64::from_be_bytes(self.bytes[at..at + 8].try_into().expect("eight of them"));
            let (descriptor, count, offset) = (self.bytes[0], number(1), number(9));
            if descriptor & 0x40 != 0 {
                assert!(came.promised.replace(offset).is_none(), "two connections say the end of file");
            }
            let len = if descriptor & 0x40 == 0 { count as usize } else { 0 };
            if self.bytes.len() < 17 + len {
                break;
            }
            let (start, end) = (offset as usize, offset as usize + len);
            if len > 0 {
                came.content.resize(came.content.len().max(end), 0);
                came.content[start..end].copy_from_slice(&self.bytes[17..17 + len]);
                came.count += len;
            }
            self.bytes.drain(..17 + len);
            if descriptor & 0x08 != 0 {
                self.at_end = true;
                came.ends += 1;
            }
        }
    }
}

impl Session {
    /// Takes a file in blocks.
    pub(super) fn take_blocks(&mut self, path: Vec<u8>, how: InBlocks, stands: Vec<u8>) -> bool {
        let fresh = self.passive.take();
        if let InBlocks::Refuse(line) = how {
            // As Globus has it: those that are there are there for the next one, with what came over them.
            self.passive = fresh;
            return self.say(line);
        }
        if how == InBlocks::Deaf {
            return self.stay();
        }
        match &fresh {
            Some(listener) => {
                self.lanes.clear();
                self.holds_rest = false;
                listener.set_nonblocking(true).expect("a listener that does not wait");
            }
            None if self.lanes.is_empty() => return self.say("425 where from?"),
            None => {
                // What came behind the end of the file before is this one's.
                if self.holds_rest {
                    self.script.mixed.lock().expect("no session panics").push(path.clone());
                }
                self.lanes.iter_mut().for_each(|lane| lane.at_end = false);
            }
        }
        let begins = fresh.is_some() || how == InBlocks::Begins;
        if !self.say(if begins { "150 go on" } else { "125 over the same ones" }) {
            return false;
        }
        if how == InBlocks::Begins {
            return self.stay();
        }
        let mut came = Came { content: stands, ..Came::default() };
        if !self.read_blocks(fresh.as_ref(), &mut came, how) {
            return false;
        }
        self.holds_rest |= self.lanes.iter().any(|lane| !lane.at_end);
        match how {
            InBlocks::Wrong => came.content.iter_mut().take(1).for_each(|byte| *byte ^= 1),
            InBlocks::Short(len) => came.content.truncate(len),
            _ => {}
        }
        let (whole, lanes) = (came.promised == Some(came.ends), self.lanes.len());
        if how == InBlocks::Marked && !whole {
            return false;
        }
        let held = Held { content: came.content, modify: "20200102030405".into(), path: path.clone() };
        self.script.shelf().files.insert(path, held);
        match how {
            InBlocks::LosesOne(_, Some(line)) | InBlocks::Confuses(line) => self.say(line),
            InBlocks::LosesOne(_, None) => self.stay(),
            InBlocks::HangUp(_) => false,
            InBlocks::Stall(_) | InBlocks::StallsOne => self.stay(),
            InBlocks::Closes => {
                self.lanes.clear();
                self.say("226 that is all")
            }
            InBlocks::Early(_) | InBlocks::FirstEnd => self.say("226 that is all"),
            _ if whole => self.say("226 that is all"),
            _ => self.say(&format!("426 {lanes} connections, and not their ends")),
        }
    }

    /// Reads until all is there, or so much as `how` wants. False: the session is over.
    fn read_blocks(&mut self, fresh: Option<&TcpListener>, came: &mut Came, how: InBlocks) -> bool {
        let most = match how {
            InBlocks::Early(most)
            | InBlocks::LosesOne(most, _)
            | InBlocks::HangUp(most)
            | InBlocks::Stall(most) => most,
            _ => usize::MAX,
        };
        let (mut marks, mut quiet) = (0, Instant::now());
        while !self.over.load(Ordering::Relaxed) {
            let mut moved = false;
            while let Some(Ok((socket, _))) = fresh.map(TcpListener::accept) {
                self.lanes.push(Lane::new(socket));
                moved = true;
            }
            let spared = usize::from(how == InBlocks::StallsOne);
            for lane in self.lanes.iter_mut().skip(spared) {
                if let InBlocks::Confuses(_) = how {
                    if !lane.bytes.is_empty() || lane.read() {
                        return true;
                    }
                } else if !lane.at_end {
                    // What came with the end of the file before is of this one.
                    lane.take(came);
                    moved |= !lane.at_end && lane.read();
                    lane.take(came);
                }
                if came.count >= most {
                    break;
                }
            }
            if came.count >= most {
                if let InBlocks::LosesOne(..) = how {
                    let _ = self.lanes.remove(0).socket.shutdown(Shutdown::Both);
                }
                return true;
            }
            if how == InBlocks::Claims && marks == 0 {
                marks = 1;
                self.say("111 Range Marker 0-1,1000000000-1000000001");
            }
            if how == InBlocks::Marked && marks < 2000 {
                marks += 1;
                let len = if came.count == came.content.len() { came.count } else { 0 };
                let range = if len > 0 { format!("0-{len}") } else { "nonsense".into() };
                let perf = format!(
                    "112-Perf Marker\r\n Timestamp:  1.0\r\n Stripe Index: 0\r\n Stripe Bytes Transferred: {len}\r\n Total \
                     Stripe Count: 1\r\n112 End."
                );
                if !self.say(&format!("111 Range Marker {range}\r\n{perf}\r\n110 whatever")) {
                    return false;
                }
            }
            let at_end = came.promised.is_some_and(|promised| came.ends >= promised);
            if at_end || (how == InBlocks::FirstEnd && came.ends > 0) {
                return true;
            }
            if self.lanes.iter().any(|lane| lane.is_over && !lane.at_end) {
                return true;
            }
            if moved {
                quiet = Instant::now();
            } else {
                if super::is_closed(&self.control) {
                    return false;
                }
                if quiet.elapsed() >= super::QUIET {
                    self.let_go();
                }
                std::thread::sleep(super::LOOK_EVERY / 5);
            }
        }
        false
    }

    /// Says nothing more, until the other side hangs up or the test is over.
    fn stay(&mut self) -> bool {
        self.let_go();
        while !self.over.load(Ordering::Relaxed) && !super::is_closed(&self.control) {
            std::thread::sleep(super::LOOK_EVERY);
        }
        false
    }
}
