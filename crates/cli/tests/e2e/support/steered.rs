//! FTP servers in memory for pairs that lie or stall: each moves files to and from others as it is steered,
//! and says whatever it is told to.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::ftpd::escaped;

/// What is done in place of what a command asks for.
#[derive(Clone, Debug)]
pub enum Odd {
    /// This line, and nothing else.
    Says(&'static str),
    /// Of a transfer: its data moves but for the last bytes, so many, and then this is said.
    Loses(usize, &'static str),
    /// Of a transfer: another byte stands in its middle; all is well in words.
    Changes,
    /// Of a transfer: it begins, and nothing more is done or said.
    Stalls,
    /// Of a transfer: half of it moves, and the control connection is closed.
    HangsUp,
    /// Nothing is said at all.
    Silent,
    /// Before the answer this line is said, too.
    Before(&'static str),
    /// It is answered twice, where it is of a file that is there.
    Twice,
    /// Somebody else puts a file there, and then it goes on.
    Meanwhile(&'static str),
}

struct Told {
    verb: &'static str,
    part: String,
    /// So many of them are answered as they should be first.
    after: usize,
    times: usize,
    odd: Odd,
}

#[derive(Default)]
struct Inside {
    files: HashMap<String, (Vec<u8>, String)>,
    dirs: Vec<String>,
    odd: Vec<Told>,
    /// Names that differ in case are one.
    folds: bool,
    heard: Vec<String>,
    /// Where data went to or came from.
    peers: Vec<SocketAddr>,
}

/// A server.
pub struct Steered {
    pub host: Ipv4Addr,
    pub port: u16,
    inside: Arc<Mutex<Inside>>,
    ends: Arc<AtomicBool>,
}

impl Steered {
    pub fn start(host: [u8; 4]) -> Steered {
        let host = Ipv4Addr::from(host);
        let listener = TcpListener::bind((host, 0)).expect("listen");
        let port = listener.local_addr().expect("an address").port();
        let (inside, ends) = (Arc::new(Mutex::new(Inside::default())), Arc::new(AtomicBool::new(false)));
        inside.lock().expect("whole").dirs.extend(["/".into(), "/d".into()]);
        let (shared, over) = (inside.clone(), ends.clone());
        thread::spawn(move || {
            for control in listener.incoming().flatten() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let shared = shared.clone();
                // Two answers in a row would wait for each other else, 40 ms each time.
                let _ = control.set_nodelay(true);
                thread::spawn(move || {
                    Session { host, inside: shared, peer: None, passive: None, from: None }.run(control)
                });
            }
        });
        Steered { host, port, inside, ends }
    }

    pub fn file(self, path: &str, content: &[u8]) -> Steered {
        let told = (content.to_vec(), "20200102030405".to_owned());
        self.inside.lock().expect("whole").files.insert(path.into(), told);
        self
    }

    /// Names that differ in case alone are one to it.
    pub fn folding(self) -> Steered {
        self.inside.lock().expect("whole").folds = true;
        self
    }

    /// Does this, so often, when a command comes whose argument has `part` in it.
    pub fn odd(self, verb: &'static str, part: &str, times: usize, odd: Odd) -> Steered {
        self.odd_after(0, (verb, part), times, odd)
    }

    /// The same from the one on that comes behind so many of them.
    pub fn odd_after(
        self,
        after: usize,
        (verb, part): (&'static str, &str),
        times: usize,
        odd: Odd,
    ) -> Steered {
        self.inside.lock().expect("whole").odd.push(Told { verb, part: part.into(), after, times, odd });
        self
    }

    pub fn url(&self, path: impl AsRef<Path>) -> String {
        format!("ftp://{}:{}{}", self.host, self.port, escaped(path.as_ref()))
    }

    pub fn content(&self, path: &str) -> Option<Vec<u8>> {
        self.inside.lock().expect("whole").files.get(path).map(|(content, _)| content.clone())
    }

    /// All files that are there.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.inside.lock().expect("whole").files.keys().cloned().collect();
        names.sort();
        names
    }

    pub fn heard(&self) -> Vec<String> {
        self.inside.lock().expect("whole").heard.clone()
    }

    pub fn peers(&self) -> Vec<SocketAddr> {
        self.inside.lock().expect("whole").peers.clone()
    }
}

impl Drop for Steered {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect((self.host, self.port));
    }
}

struct Session {
    host: Ipv4Addr,
    inside: Arc<Mutex<Inside>>,
    peer: Option<SocketAddr>,
    passive: Option<TcpListener>,
    from: Option<String>,
}

/// What somebody else put there.
pub const OTHERS: &[u8] = b"of somebody else";
/// More than any test waits.
const LONG: Duration = Duration::from_secs(60);

impl Session {
    fn run(mut self, control: TcpStream) {
        let mut out = control.try_clone().expect("a socket");
        let mut say = move |text: &str| out.write_all(format!("{text}\r\n").as_bytes());
        let _ = say("220 steered");
        for line in BufReader::new(control.try_clone().expect("a socket")).lines() {
            let Ok(line) = line else { break };
            let (verb, argument) = line.split_once(' ').unwrap_or((&line, ""));
            let folded = argument.to_lowercase();
            let folds = self.inside.lock().expect("whole").folds;
            let argument = if folds { folded.as_str() } else { argument };
            let odd = {
                let mut inside = self.inside.lock().expect("whole");
                inside.heard.push(line.clone());
                let mut told = None;
                let is_it =
                    |told: &&mut Told| told.verb == verb && argument.contains(&told.part) && told.times > 0;
                for one in inside.odd.iter_mut().filter(is_it) {
                    match one.after.checked_sub(1) {
                        Some(after) => one.after = after,
                        None => told = told.or(Some(one)),
                    }
                }
                told.map(|told| {
                    told.times -= 1;
                    told.odd.clone()
                })
            };
            match odd {
                Some(Odd::Says(text)) => drop(say(text)),
                Some(Odd::Silent) => {}
                Some(Odd::Before(text)) => {
                    let _ = say(text);
                    self.answer(verb, argument, None, &mut say);
                }
                Some(Odd::Twice) => {
                    if self.inside.lock().expect("whole").files.contains_key(argument) {
                        self.answer(verb, argument, None, &mut say);
                    }
                    self.answer(verb, argument, None, &mut say);
                }
                Some(Odd::Meanwhile(path)) => {
                    let other = (OTHERS.to_vec(), "20260102000000".to_owned());
                    self.inside.lock().expect("whole").files.insert(path.into(), other);
                    self.answer(verb, argument, None, &mut say);
                }
                odd => {
                    if self.answer(verb, argument, odd, &mut say) {
                        let _ = control.shutdown(std::net::Shutdown::Both);
                        return;
                    }
                }
            }
        }
    }

    /// Whether it hangs up.
    fn answer(
        &mut self,
        verb: &str,
        argument: &str,
        odd: Option<Odd>,
        say: &mut impl FnMut(&str) -> std::io::Result<()>,
    ) -> bool {
        let mut inside = self.inside.lock().expect("whole");
        let text = match verb {
            "USER" => "331 a password".into(),
            "PASS" => "230 welcome".into(),
            "TYPE" | "OPTS" | "NOOP" | "SITE" => "200 well".to_owned(),
            "FEAT" => "211-Features\r\n MLST Type*;Size*;Modify*;Unique*;\r\n MFMT\r\n CKSM MD5:10;ADLER32:10;\r\n211 End".into(),
            "PWD" => "257 \"/\" is it".into(),
            "MLST" => {
                let is_dir = inside.dirs.iter().any(|dir| dir.trim_end_matches('/') == argument.trim_end_matches('/'));
                let facts = match inside.files.get(argument) {
                    _ if is_dir => Some("Type=dir;".to_owned()),
                    Some((content, time)) => Some(format!("Type=file;Size={};Modify={time};", content.len())),
                    None => None,
                };
                facts.map_or("550 No such file".into(), |facts| format!("250-told\r\n {facts} {argument}\r\n250 End"))
            }
            "SIZE" => inside.files.get(argument).map_or("550 No such file".into(), |(content, _)| format!("213 {}", content.len())),
            "MKD" => {
                inside.dirs.push(argument.into());
                "257 made".into()
            }
            "RMD" => "250 gone".into(),
            "DELE" => inside.files.remove(argument).map_or("550 No such file".into(), |_| "250 gone".into()),
            "RNFR" => {
                self.from = Some(argument.into());
                "350 to what".into()
            }
            "RNTO" => match self.from.take().and_then(|from| inside.files.remove(&from)) {
                Some(file) => {
                    inside.files.insert(argument.into(), file);
                    "250 named".into()
                }
                None => "550 No such file".into(),
            },
            "MFMT" => {
                let (time, path) = argument.split_once(' ').unwrap_or_default();
                inside.files.get_mut(path).map_or("550 No such file".into(), |file| {
                    file.1 = time.into();
                    "213 set".into()
                })
            }
            "CKSM" => {
                let mut words = argument.splitn(4, ' ');
                let (path, is_adler) = (words.clone().nth(3).unwrap_or_default(), words.next() == Some("ADLER32"));
                inside.files.get(path).map_or("550 No such file".into(), |(content, _)| match is_adler {
                    true => format!("213 {:08x}", adler(content)),
                    false => format!("213 {:032x}", adler(content)),
                })
            }
            "PASV" => {
                let listener = TcpListener::bind((self.host, 0)).expect("listen");
                let port = listener.local_addr().expect("an address").port();
                let [a, b, c, d] = self.host.octets();
                (self.passive, self.peer) = (Some(listener), None);
                format!("227 Entering Passive Mode ({a},{b},{c},{d},{},{})", port / 256, port % 256)
            }
            "PORT" => {
                let numbers: Vec<u16> = argument.split(',').flat_map(str::parse).collect();
                let [a, b, c, d, high, low] = numbers[..] else { panic!("an address: {argument}") };
                let ip = Ipv4Addr::new(a as u8, b as u8, c as u8, d as u8);
                (self.peer, self.passive) = (Some((ip, high * 256 + low).into()), None);
                "200 there".into()
            }
            "ABOR" => "226 nothing is left".into(),
            "QUIT" => "221 bye".into(),
            "RETR" | "STOR" => {
                let content = inside.files.get(argument).map(|(content, _)| content.clone());
                drop(inside);
                return self.transfer(verb == "STOR", argument, content, odd, say);
            }
            _ => "500 what".into(),
        };
        drop(inside);
        let _ = say(&text);
        false
    }

    fn transfer(
        &mut self,
        stores: bool,
        path: &str,
        content: Option<Vec<u8>>,
        odd: Option<Odd>,
        say: &mut impl FnMut(&str) -> std::io::Result<()>,
    ) -> bool {
        if !stores && content.is_none() {
            let _ = say("550 No such file");
            return false;
        }
        let socket = match (&self.passive, self.peer) {
            (Some(listener), _) => listener.accept().map(|(socket, _)| socket),
            (None, Some(peer)) => TcpStream::connect(peer),
            (None, None) => Err(std::io::ErrorKind::NotConnected.into()),
        };
        let Ok(mut socket) = socket else {
            let _ = say("425 no connection");
            return false;
        };
        if let Ok(peer) = socket.peer_addr() {
            self.inside.lock().expect("whole").peers.push(peer);
        }
        let _ = say("150 begins");
        let mut data = content.unwrap_or_default();
        if stores {
            data.clear();
            if let Some(Odd::Stalls) = odd {
                // Its socket stays open, and nobody reads from it.
                thread::spawn(move || (thread::sleep(LONG), socket));
                return false;
            }
            let _ = socket.read_to_end(&mut data);
        }
        let mut said = "226 all is there";
        match odd {
            Some(Odd::Loses(bytes, text)) => {
                data.truncate(data.len().saturating_sub(bytes));
                said = text;
            }
            Some(Odd::Changes) => {
                let middle = data.len() / 2;
                data[middle] ^= 1;
            }
            Some(Odd::HangsUp) => data.truncate(data.len() / 2),
            Some(Odd::Stalls) => {
                let _ = socket.write_all(&data[..data.len() / 2]);
                thread::spawn(move || (thread::sleep(LONG), socket));
                return false;
            }
            _ => {}
        }
        if stores {
            let told = (data, "20260101000000".to_owned());
            self.inside.lock().expect("whole").files.insert(path.into(), told);
        } else {
            let _ = socket.write_all(&data);
        }
        drop(socket);
        if let Some(Odd::HangsUp) = odd {
            return true;
        }
        let _ = say(said);
        false
    }
}

/// ADLER32 of RFC 1950; as MD5 it is none, but the same for the same content.
fn adler(content: &[u8]) -> u32 {
    let (one, two) = content.iter().fold((1_u32, 0_u32), |(one, two), byte| {
        let one = (one + u32::from(*byte)) % 65_521;
        (one, (two + one) % 65_521)
    });
    two << 16 | one
}
