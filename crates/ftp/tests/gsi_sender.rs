//! Files in blocks to a server whose data connections show whose they are: one of the test's own, which takes
//! the connections in an order of its own. The real server is in the end-to-end tests.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use data_encoding::BASE64;
use haul_ftp::{DataSecurity, Error};
use haul_gsi::channel::{self, Level, Side, Wrapped};
use haul_gsi::{Acceptor, Expects};

#[expect(dead_code, reason = "others in these tests need more of it")]
mod grid;

use grid::{AUTHORITY, authorities, credential, open};

const CONNECTIONS: usize = 4;
const HEADER_LEN: usize = 17;
const EOD: u8 = 0x08;

/// Serves one client, and says that it begins with a file when the connection that came as number `first`
/// showed whose it is, and no sooner; out come the bytes of its file.
fn start(first: usize) -> (u16, JoinHandle<io::Result<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = listener.local_addr().expect("where it listens").port();
    let served = thread::spawn(move || {
        let (socket, _) = listener.accept()?;
        serve(socket, first)
    });
    (port, served)
}

fn serve(mut socket: TcpStream, first: usize) -> io::Result<Vec<u8>> {
    let mut context = Acceptor::new(&credential(), &authorities(AUTHORITY)).expect("an acceptor");
    let mut lines = BufReader::new(socket.try_clone()?).lines();
    let (mut level, mut place, mut content) = (Level::Clear, None, Vec::new());
    socket.write_all(b"220 ready\r\n")?;
    // The client that goes away is the end of it.
    while let Some(Ok(line)) = lines.next() {
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
            }
            _ => {
                let token = BASE64.decode(argument.as_bytes()).expect("base64");
                let command = context.unwrap(&token).expect("a command");
                let command = String::from_utf8(command).expect("UTF-8").trim_end().to_owned();
                let mine = context.delegated().cloned();
                let mut answer = |text: &str| {
                    let last = text.lines().count();
                    for (n, line) in text.lines().enumerate() {
                        let token = context.wrap(format!("{line}\r\n").as_bytes()).expect("a token");
                        let sign = if n + 1 < last { '-' } else { ' ' };
                        say(format!("632{sign}{}", BASE64.encode(&token)))?;
                    }
                    Ok::<(), io::Error>(())
                };
                match command.split(' ').next().unwrap_or_default() {
                    "USER" => answer("331 password")?,
                    "PASS" => answer("230 you are in")?,
                    "FEAT" => answer("211-\n EPSV\n PARALLEL\n211 end")?,
                    "PROT" => {
                        level = if command.ends_with('P') { Level::Private } else { Level::Clear };
                        answer("200 yes")?;
                    }
                    "EPSV" => {
                        let listens = TcpListener::bind("127.0.0.1:0")?;
                        answer(&format!("229 here (|||{}|)", listens.local_addr()?.port()))?;
                        place = Some(listens);
                    }
                    "STOR" => {
                        let place = place.take().ok_or(io::ErrorKind::InvalidInput)?;
                        let came = || place.accept().map(|(lane, _)| lane);
                        let mut all = (0..CONNECTIONS).map(|_| came()).collect::<io::Result<Vec<_>>>()?;
                        all.swap(0, first);
                        let mine = mine.ok_or(io::ErrorKind::InvalidInput)?;
                        let mut lanes = Vec::new();
                        for lane in all {
                            let expects = Expects::Identity(credential().identity().clone());
                            let with = (&mine, &authorities(AUTHORITY), &expects);
                            let wrapped = channel::wrap(lane, Side::Listened, level, with);
                            lanes.push(wrapped.map_err(io::Error::other)?.0);
                            if lanes.len() == 1 {
                                answer("150 it begins")?;
                            }
                        }
                        content = taken(&mut lanes)?;
                        answer("226 that is all")?;
                    }
                    _ => answer("200 yes")?,
                }
            }
        }
    }
    Ok(content)
}

/// All that comes over these, in its places.
fn taken(lanes: &mut [Wrapped<TcpStream>]) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    for lane in lanes {
        loop {
            let mut header = [0; HEADER_LEN];
            lane.read_exact(&mut header)?;
            let number = |at: usize| u64::from_be_bytes(header[at..at + 8].try_into().expect("eight bytes"));
            let (len, offset) = (number(1) as usize, number(9) as usize);
            if header[0] & EOD != 0 {
                break;
            }
            content.resize(content.len().max(offset + len), 0);
            lane.read_exact(&mut content[offset..offset + len])?;
        }
    }
    Ok(content)
}

/// Goal: a file goes whichever connection the server takes first, for these may arrive in another order than
/// they were made in.
/// Method: it begins when the one that came as first, second, third or fourth showed whose it is, as Globus
/// does with the one that it took first. A client that waits for that word with three of them waits for ever.
#[test]
fn any_connection_may_be_the_first() {
    let content: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
    for first in 0..CONNECTIONS {
        for data in [DataSecurity::Private, DataSecurity::Shown] {
            let (port, served) = start(first);
            let mut session = open(port, AUTHORITY, "", data).expect("a session");
            assert!(session.sends_blocks());
            let mut send = || {
                session.line_up_stores(&[b"/f"], CONNECTIONS as u32)?;
                let mut going = session.next_store(b"/f", content.len() as u64)?;
                session.send(&mut going, &content)?;
                session.sent(going)
            };
            let sent: Result<(), Error> = send();
            sent.unwrap_or_else(|error| panic!("number {first} is the first one, {data:?}: {error}"));
            drop(session);
            assert!(served.join().expect("no panic").expect("it was served") == content, "other bytes");
        }
    }
}
