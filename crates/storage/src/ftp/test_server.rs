//! Tests: an FTP server over the directories of this machine, as plain as a server can be that tells all.
//!
//! In: commands. Out: replies; paths are paths of this machine. It serves whoever comes until it is dropped.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use haul_ftp::{Moment, write_moment};

/// A running server.
pub(crate) struct TestServer {
    pub(crate) port: u16,
    over: Arc<AtomicBool>,
    still: Arc<Still>,
}

/// Which sessions stand still, if any: those that gave this file.
#[derive(Default)]
struct Still(Mutex<Option<PathBuf>>);

impl Still {
    /// Returns when a session that gave these files does not stand still, or somebody wants an end.
    fn wait(&self, given: &[PathBuf], over: &AtomicBool) {
        let stands = || {
            let path = self.0.lock().expect("no panic");
            path.as_ref().is_some_and(|path| given.contains(path)) && !over.load(Ordering::Relaxed)
        };
        while stands() {
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl TestServer {
    pub(crate) fn start() -> TestServer {
        TestServer::taking(usize::MAX)
    }

    /// It says 421 to whoever comes while it serves so many.
    pub(crate) fn taking(sessions_max: usize) -> TestServer {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bind any port");
        let port = listener.local_addr().expect("know the port").port();
        let over = Arc::new(AtomicBool::new(false));
        let (ends, still) = (over.clone(), Arc::<Still>::default());
        let (stands, serving) = (still.clone(), Arc::<AtomicUsize>::default());
        thread::spawn(move || {
            for control in listener.incoming().map_while(Result::ok) {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                if serving.fetch_add(1, Ordering::Relaxed) >= sessions_max {
                    serving.fetch_sub(1, Ordering::Relaxed);
                    let _ = (&control).write_all(b"421 too many sessions\r\n");
                    continue;
                }
                let (ends, stands, serving) = (ends.clone(), stands.clone(), serving.clone());
                thread::spawn(move || {
                    drop(serve(control, &|given: &[PathBuf]| stands.wait(given, &ends)));
                    serving.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
        TestServer { port, over, still }
    }

    /// From now on the sessions that gave this file stand still, and stay open.
    pub(crate) fn freeze(&self, gave: &Path) {
        *self.still.0.lock().expect("no panic") = Some(gave.to_owned());
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // So that it sees that.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn path_of(argument: &[u8]) -> PathBuf {
    Path::new(OsStr::from_bytes(argument)).to_owned()
}

fn facts(path: &Path) -> std::io::Result<String> {
    let stat = fs::symlink_metadata(path)?;
    let kind = if stat.is_dir() { "dir" } else { "file" };
    let moment = write_moment(Moment { secs: stat.mtime(), nanos: 0 }).expect("a time of today");
    let (mode, size) = (stat.mode() & 0o7777, stat.len());
    Ok(format!("type={kind};size={size};modify={moment};UNIX.mode={mode:04o};unique={:x};", stat.ino()))
}

fn number(word: &[u8]) -> u64 {
    std::str::from_utf8(word).ok().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// `wait`: stands still as long as a session does that gave these files.
fn serve(control: TcpStream, wait: &dyn Fn(&[PathBuf])) -> std::io::Result<()> {
    let mut reader = BufReader::new(control.try_clone()?);
    let mut control = control;
    let mut say = move |line: &[u8]| control.write_all(&[line, b"\r\n"].concat());
    say(b"220 a test")?;
    let (mut passive, mut from, mut rest) = (None::<TcpListener>, PathBuf::new(), 0);
    let mut given = Vec::new();
    loop {
        let mut line = Vec::new();
        if reader.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        wait(&given);
        line.truncate(line.len().saturating_sub(2));
        let at = line.iter().position(|byte| *byte == b' ').unwrap_or(line.len());
        let (verb, argument) = (line[..at].to_ascii_uppercase(), line.get(at + 1..).unwrap_or_default());
        let path = path_of(argument);
        let done = |result: std::io::Result<()>, good: &'static [u8]| match result {
            Ok(()) => good,
            Err(_) => b"550 no",
        };
        match &verb[..] {
            b"USER" => say(b"331 who says so?")?,
            b"PASS" => say(b"230 welcome")?,
            b"FEAT" => say(
                b"211-Features\r\n MLST type*;size*;modify*;UNIX.mode*;unique*;UNIX.slink*;\r\n SIZE\r\n MFMT\r\n REST STREAM\r\n ESTO\r\n EPSV\r\n211 End",
            )?,
            b"TYPE" => say(b"200 done")?,
            b"PWD" => say(b"257 \"/\"")?,
            b"REST" => {
                rest = number(argument);
                say(b"350 from there")?;
            }
            b"QUIT" => return say(b"221 farewell"),
            b"EPSV" => {
                let listener = TcpListener::bind(("127.0.0.1", 0))?;
                say(format!("229 here (|||{}|)", listener.local_addr()?.port()).as_bytes())?;
                passive = Some(listener);
            }
            b"MLST" => match facts(&path) {
                Ok(facts) => {
                    say(&[b"250-it is\r\n ", facts.as_bytes(), b" ", argument, b"\r\n250 end"].concat())?;
                }
                Err(_) => say(b"550 no such file")?,
            },
            b"SIZE" => match fs::metadata(&path).ok().filter(fs::Metadata::is_file) {
                Some(stat) => say(format!("213 {}", stat.len()).as_bytes())?,
                None => say(b"550 no such file")?,
            },
            b"MLSD" | b"STOR" | b"RETR" | b"ESTO" => {
                // `ESTO A OFFSET PATH`.
                let words: Vec<&[u8]> = argument.splitn(3, |byte| *byte == b' ').collect();
                let (at, path) = match (&verb[..], &words[..]) {
                    (b"ESTO", [_, at, path]) => (number(at), path_of(path)),
                    _ => (std::mem::take(&mut rest), path),
                };
                let Some(listener) = passive.take() else {
                    say(b"425 where?")?;
                    continue;
                };
                if !matches!(&verb[..], b"STOR" | b"ESTO") && !path.exists() {
                    say(b"550 no such file")?;
                    continue;
                }
                say(b"150 go on")?;
                let mut data = listener.accept()?.0;
                let moved = match &verb[..] {
                    b"ESTO" | b"STOR" => {
                        let cut = verb == b"STOR" && at == 0;
                        let file = fs::OpenOptions::new().write(true).create(true).truncate(cut).open(&path);
                        file.and_then(|mut file| {
                            file.seek(SeekFrom::Start(at))?;
                            std::io::copy(&mut data, &mut file)
                        })
                    }
                    b"RETR" => fs::File::open(&path).and_then(|mut file| {
                        file.seek(SeekFrom::Start(at))?;
                        given.push(path);
                        std::io::copy(&mut file, &mut data)
                    }),
                    _ => {
                        for entry in fs::read_dir(&path)?.flatten() {
                            let (facts, name) = (facts(&entry.path())?, entry.file_name());
                            data.write_all(&[facts.as_bytes(), b" ", name.as_bytes(), b"\r\n"].concat())?;
                        }
                        Ok(0)
                    }
                };
                let _ = data.shutdown(std::net::Shutdown::Write);
                let _ = data.read(&mut [0]);
                say(done(moved.map(drop), b"226 that is all"))?;
            }
            b"MKD" => say(done(fs::create_dir(&path), b"257 made"))?,
            b"DELE" => say(done(fs::remove_file(&path), b"250 removed"))?,
            b"RNFR" => {
                let there = path.symlink_metadata().map(drop);
                from = path;
                say(done(there, b"350 and to?"))?;
            }
            b"RNTO" => say(done(fs::rename(&from, &path), b"250 renamed"))?,
            b"MFMT" | b"SITE" => {
                let words: Vec<&[u8]> = argument.splitn(if verb == b"SITE" { 3 } else { 2 }, |b| *b == b' ').collect();
                let (word, path) = (words[words.len() - 2], path_of(words[words.len() - 1]));
                let word = std::str::from_utf8(word).unwrap_or_default();
                let set = match &verb[..] {
                    b"MFMT" => {
                        let told = haul_gridftp::listing::parse_moment(word.as_bytes()).map_or(0, |m| m.secs);
                        let since = Duration::from_secs(told.max(0).unsigned_abs());
                        fs::File::open(&path).and_then(|file| file.set_modified(SystemTime::UNIX_EPOCH + since))
                    }
                    _ => {
                        let mode = u32::from_str_radix(word, 8).unwrap_or(0o644);
                        fs::set_permissions(&path, fs::Permissions::from_mode(mode))
                    }
                };
                say(done(set, b"213 set"))?;
            }
            _ => say(b"500 unknown")?,
        }
    }
}
