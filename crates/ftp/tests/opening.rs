//! How often a session waits for its server until it is open, and until a file comes or goes, by a server of
//! the test's own. Far away each of these times costs a round trip.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use haul_base::stop::Stop;
use haul_ftp::pair::{Manner, Pair};
use haul_ftp::{Asked, Error, Protocol, Ranges, Security, Server, Session, Settings, steer};

/// Far above what anything takes here.
const PATIENCE: Duration = Duration::from_secs(30);

/// Answers all lines that have come, and only then waits for more; what came together, by verbs.
fn serve(mut socket: TcpStream, refuses: &str) -> io::Result<Vec<String>> {
    let (mut came, mut bytes) = (Vec::new(), [0; 4096]);
    socket.write_all(b"220 a test\r\n")?;
    loop {
        // A client that goes away is the end of it.
        let len = socket.read(&mut bytes).unwrap_or(0);
        if len == 0 {
            return Ok(came);
        }
        let lines = String::from_utf8_lossy(&bytes[..len]).into_owned();
        let verbs: Vec<&str> = lines.lines().filter_map(|line| line.split(' ').next()).collect();
        came.push(verbs.join(" "));
        for verb in verbs {
            let reply = match verb {
                _ if verb == refuses => "500 no",
                "USER" => "331 who says so?",
                "PASS" => "230 welcome",
                "FEAT" => "211-Features\r\n EPSV\r\n SPAS\r\n MLST Type*;Size*;Modify;\r\n211 End",
                "SPAS" => "229-Entering Striped Passive Mode.\r\n 127,0,0,1,200,1\r\n229 End",
                _ => "200 done",
            };
            let _ = socket.write_all(format!("{reply}\r\n").as_bytes());
        }
    }
}

/// A session with what `serve` does with its connection, and what that returns.
fn with<T: Send + 'static>(
    serve: impl FnOnce(TcpStream) -> io::Result<T> + Send + 'static,
    work: impl FnOnce(Session),
) -> T {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = listener.local_addr().expect("where it listens").port();
    let served = thread::spawn(move || serve(listener.accept()?.0));
    let server = Server::parse(Protocol::Ftp, &format!("127.0.0.1:{port}")).expect("a server");
    let settings = Settings { patience: PATIENCE, at: None, security: Security::None, stop: Stop::never() };
    work(Session::open(&server, &settings).expect("a session"));
    served.join().expect("no panic").expect("served")
}

/// Goal: what does not depend on an answer is asked before it comes; what the server refuses of it is missed
/// by nobody.
#[test]
fn a_session_waits_for_its_server_no_more_than_it_must() {
    for refuses in ["", "OPTS", "SPAS"] {
        let came = with(move |socket| serve(socket, refuses), drop);
        assert_eq!(came[..3], ["USER", "PASS FEAT", "TYPE OPTS SPAS"], "without {refuses}");
    }
}

/// Goal: a file in blocks is asked for together with the blocks; files behind it that come over the same
/// connections are asked for alone.
#[test]
fn blocks_are_asked_for_in_one_round_trip() {
    let came = with(
        |socket| serve(socket, ""),
        |mut session| {
            drop(session.begin_blocks(b"/f", (1 << 30, &Ranges::new()), 4).expect("it is asked for"));
        },
    );
    assert_eq!(came[3], "MODE OPTS PORT RETR", "{came:?}");
}

/// A server that takes files, and no further connection for the second one before it heard what for.
fn take_two(mut socket: TcpStream) -> io::Result<Vec<String>> {
    let (mut heard, mut line) = (Vec::new(), String::new());
    let mut lines = BufReader::new(socket.try_clone()?);
    let (mut place, mut others) = (None::<TcpListener>, Vec::new());
    socket.write_all(b"220 a test\r\n")?;
    // A client that goes away is the end of it, whatever is on its way to it.
    while lines.read_line(&mut line).unwrap_or(0) > 0 {
        let verb = line.trim_end().split(' ').next().unwrap_or_default().to_owned();
        line.clear();
        let stored = heard.iter().filter(|verb| *verb == "STOR").count();
        let reply = match verb.as_str() {
            "USER" => "331 who says so?".to_owned(),
            "PASS" => "230 welcome".to_owned(),
            "FEAT" => "211-Features\r\n EPSV\r\n MLST Type*;Size*;Modify*;\r\n211 End".to_owned(),
            "EPSV" => {
                let listener = TcpListener::bind("127.0.0.1:0")?;
                let at = listener.local_addr()?;
                if stored == 1 {
                    // The system lets nobody in whom it has no place for; who was not is tried again by it a
                    // second later.
                    rustix::net::listen(&listener, 0)?;
                    others.push(TcpStream::connect(at)?);
                }
                place = Some(listener);
                format!("229 here (|||{}|)", at.port())
            }
            "STOR" => {
                let listener = place.take().expect("it was asked where");
                for _ in others.drain(..) {
                    listener.accept()?;
                }
                socket.write_all(b"150 go on\r\n")?;
                io::copy(&mut listener.accept()?.0, &mut io::sink())?;
                "226 it is here".to_owned()
            }
            _ => "200 done".to_owned(),
        };
        heard.push(verb);
        let _ = socket.write_all(format!("{reply}\r\n").as_bytes());
    }
    Ok(heard)
}

/// Goal: from the second data connection on a server hears what it is for while it is made.
/// Method: the second one is not made before the server has heard that.
#[test]
fn a_later_connection_is_dialled_with_its_command() {
    let heard = with(take_two, |mut session| {
        for _ in 0..2 {
            let outgoing = session.store(b"/f").expect("it is taken");
            session.stored(outgoing, b"/f", false).expect("it is there");
        }
    });
    assert_eq!(heard.iter().filter(|verb| *verb == "STOR").count(), 2);
}

/// Refuses the password, says this of what was asked together with it, and hangs up.
fn turn_away(mut socket: TcpStream, behind: &str) -> io::Result<()> {
    let mut lines = BufReader::new(socket.try_clone()?).lines();
    socket.write_all(b"220 a test\r\n")?;
    while let Some(Ok(line)) = lines.next() {
        let is_password = line.starts_with("PASS");
        if is_password {
            // Whatever was asked together with it.
            let _ = lines.next();
        }
        socket.write_all(if is_password { b"530 no more of you\r\n" } else { b"331 who says so?\r\n" })?;
        if is_password {
            socket.write_all(behind.as_bytes())?;
            break;
        }
    }
    Ok(())
}

/// Goal: why a server takes no login is told, also of one that hangs up behind its word and answers nothing
/// else that was asked together with it, or says 421 of that.
#[test]
fn a_refused_login_is_heard() {
    for behind in ["", "421 too many attempts\r\n"] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let port = listener.local_addr().expect("where it listens").port();
        let served = thread::spawn(move || turn_away(listener.accept()?.0, behind));
        let server = Server::parse(Protocol::Ftp, &format!("127.0.0.1:{port}")).expect("a server");
        let settings =
            Settings { patience: PATIENCE, at: None, security: Security::None, stop: Stop::never() };
        let Err(error) = Session::open(&server, &settings) else { panic!("it is refused") };
        assert!(matches!(error, Error::Refused { code: 530, .. }) && error.is_full(), "{error}");
        served.join().expect("no panic").expect("served");
    }
}

/// A server whose words on `REST` and on a file these are, until it hangs up or is hung up on; the verbs that
/// it heard.
fn take_from(mut socket: TcpStream, rest: &str, word: &str) -> io::Result<Vec<String>> {
    let mut heard = Vec::new();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let lines = BufReader::new(socket.try_clone()?).lines();
    socket.write_all(b"220 a test\r\n")?;
    for line in lines.map_while(Result::ok) {
        let verb = line.split(' ').next().unwrap_or_default().to_owned();
        let reply = match verb.as_str() {
            "USER" => "331 who says so?".to_owned(),
            "PASS" => "230 welcome".to_owned(),
            "FEAT" => "211-Features\r\n EPSV\r\n REST STREAM\r\n211 End".to_owned(),
            "EPSV" => format!("229 here (|||{port}|)"),
            "REST" => rest.to_owned(),
            "STOR" => {
                socket.write_all(b"150 go on\r\n")?;
                io::copy(&mut listener.accept()?.0, &mut io::sink())?;
                word.to_owned()
            }
            "RETR" | "LIST" => {
                socket.write_all(b"150 go on\r\n")?;
                listener.accept()?.0.write_all(b"-rw-r--r-- 1 a a 5 Jan  1  2020 f\r\n")?;
                word.to_owned()
            }
            "MKD" => word.to_owned(),
            "SIZE" | "MLST" | "MLSD" => "500 what".to_owned(),
            _ => "200 done".to_owned(),
        };
        heard.push(verb);
        let _ = socket.write_all(format!("{reply}\r\n").as_bytes());
    }
    Ok(heard)
}

/// Goal: a server that refuses to go on within a file is not told to take it: it would cut off what stands
/// there.
#[test]
fn who_refuses_a_place_in_a_file_gets_none_of_it() {
    for (rest, stored) in [("350 go on", 1), ("451 not now", 0), ("501 too large", 0), ("200 done", 0)] {
        let heard = with(
            move |socket| take_from(socket, rest, "226 it is here"),
            |mut session| match session.store_from(b"/f", 300_000) {
                Ok(outgoing) => session.stored(outgoing, b"/f", false).expect("it is there"),
                Err(error) => assert_ne!(stored, 1, "{error}"),
            },
        );
        assert_eq!(heard.iter().filter(|verb| *verb == "STOR").count(), stored, "{rest}: {heard:?}");
    }
}

/// Goal: that a server has a file is believed of the two words alone that are a file's; what says that
/// something else is done is of that, and so may be what comes next.
#[test]
fn a_file_has_words_of_its_own() {
    for (word, is_its) in [
        ("226 it is here", true),
        ("250 it is here", true),
        ("200 done", false),
        ("221 farewell", false),
        ("225 nothing is under way", false),
        ("227 here (127,0,0,1,200,1)", false),
        ("229 here (|||9|)", false),
    ] {
        with(
            move |socket| take_from(socket, "350 go on", word),
            |mut session| {
                let outgoing = session.store(b"/f").expect("it is taken");
                let stored = session.stored(outgoing, b"/f", false);
                assert_eq!((stored.is_ok(), session.is_broken()), (is_its, !is_its), "{word}: {stored:?}");
            },
        );
    }
}

/// Goal: the same of what comes, of a file and of a listing, and of a directory that is made: only what says
/// that of itself is believed.
#[test]
fn what_comes_and_what_is_made_have_words_of_their_own() {
    for (word, comes, made) in [
        ("226 that is all", true, false),
        ("250 that is all", true, true),
        ("257 made", false, true),
        ("200 done", false, false),
        ("221 farewell", false, false),
        ("227 here (127,0,0,1,200,1)", false, false),
    ] {
        let serve = move |socket| take_from(socket, "350 go on", word);
        with(serve, |mut session| {
            let mut incoming = session.begin(b"/f", 0).expect("it comes");
            let mut came = [0; 100];
            assert!(incoming.fill(&mut came).expect("all of it") > 0);
            let ended = session.finish(incoming, b"/f");
            assert_eq!((ended.is_ok(), session.is_broken()), (comes, !comes), "{word}: {ended:?}");
        });
        with(serve, |mut session| {
            let listed = session.list(b"/d");
            assert_eq!((listed.is_ok(), session.is_broken()), (comes, !comes), "{word}: {listed:?}");
        });
        with(serve, |mut session| {
            let all = session.make_dirs(&[b"/d", b"/e"]);
            let is_made = matches!(&all, Ok(all) if all.iter().all(Result::is_ok));
            assert_eq!((is_made, session.is_broken()), (made, !made), "{word}: {all:?}");
            assert!(made || matches!(all, Err(Error::OutOfStep { .. })), "{word}");
        });
        with(serve, |mut session| {
            let one = steer::make_dir(&mut session, b"/d");
            assert_eq!(one.is_ok(), made, "{word}: {one:?}");
        });
    }
}

/// Goal: who leaves a session hears the server end it, so that a server that takes one has room for the next.
/// Method: a server that takes its time, and counts the session as over when it closes the connection.
#[test]
fn a_session_is_seen_to_end() {
    let is_over = Arc::new(AtomicBool::new(false));
    let over = is_over.clone();
    let serve = move |mut socket: TcpStream| {
        let lines = BufReader::new(socket.try_clone()?).lines();
        socket.write_all(b"220 a test\r\n")?;
        for line in lines.map_while(Result::ok) {
            let reply = match line.split(' ').next().unwrap_or_default() {
                "USER" => "331 who says so?",
                "PASS" => "230 welcome",
                "QUIT" => {
                    thread::sleep(Duration::from_millis(50));
                    socket.write_all(b"221 farewell\r\n")?;
                    thread::sleep(Duration::from_millis(20));
                    over.store(true, Ordering::Relaxed);
                    break;
                }
                _ => "200 done",
            };
            socket.write_all(format!("{reply}\r\n").as_bytes())?;
        }
        Ok(())
    };
    with(serve, |session| {
        drop(session);
        assert!(is_over.load(Ordering::Relaxed), "the server has it still");
    });
}

/// What a server does with the first file that is said to go to a place within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    Refused,
    /// Nobody listens where it says that it does.
    Unreachable,
}

/// A server that keeps a place in a file over all other commands until a file goes there, and says
/// `beginning` of going back to the first byte. Out: where files went.
fn keep_places(mut socket: TcpStream, first: First, beginning: &str) -> io::Result<Vec<String>> {
    let (mut went, mut rest, mut listener, mut asked) = (Vec::new(), "0".to_owned(), None, 0);
    let lines = BufReader::new(socket.try_clone()?).lines();
    socket.write_all(b"220 a test\r\n")?;
    for line in lines.map_while(Result::ok) {
        let (verb, argument) = line.split_once(' ').unwrap_or((&line, ""));
        let reply = match verb {
            "USER" => "331 who says so?".to_owned(),
            "PASS" => "230 welcome".to_owned(),
            "FEAT" => "211-Features\r\n EPSV\r\n REST STREAM\r\n211 End".to_owned(),
            "EPSV" => {
                asked += 1;
                let place = TcpListener::bind("127.0.0.1:0")?;
                let port = place.local_addr()?.port();
                listener = Some(place).filter(|_| asked > 1 || first == First::Refused);
                format!("229 here (|||{port}|)")
            }
            "REST" if argument == "0" && !beginning.starts_with("350") => beginning.to_owned(),
            "REST" => {
                rest = argument.to_owned();
                "350 from there".to_owned()
            }
            "STOR" | "RETR" if asked == 1 => "550 not that".to_owned(),
            "STOR" | "RETR" => {
                went.push(std::mem::replace(&mut rest, "0".to_owned()));
                socket.write_all(b"150 go on\r\n")?;
                let place = listener.take().expect("it was asked where");
                let mut data = place.accept()?.0;
                if verb == "STOR" {
                    io::copy(&mut data, &mut io::sink())?;
                }
                "226 that is all".to_owned()
            }
            _ => "200 done".to_owned(),
        };
        let _ = socket.write_all(format!("{reply}\r\n").as_bytes());
    }
    Ok(went)
}

/// Goal: the place within a file that a server agreed to, and that nothing went to, is no later file's,
/// whichever way that goes; where the server does not take it back, the session is over.
#[test]
fn a_place_in_a_file_is_of_no_later_one() {
    for (first, stores, beginning) in [
        (First::Refused, true, "350 well"),
        (First::Refused, false, "350 well"),
        (First::Unreachable, true, "350 well"),
        (First::Refused, true, "501 not the beginning"),
    ] {
        let takes_back = beginning.starts_with("350");
        let went = with(
            move |socket| keep_places(socket, first, beginning),
            move |mut session| {
                let begun = match stores {
                    true => session.store_from(b"/f", 300).map(drop),
                    false => session.begin(b"/f", 300).map(drop),
                };
                assert!(begun.is_err() && !session.is_broken(), "{first:?}");
                if stores {
                    match session.store(b"/g") {
                        Ok(outgoing) => session.stored(outgoing, b"/g", false).expect("it is there"),
                        Err(error) => assert!(!takes_back && error.ends_session(), "{error}"),
                    }
                } else {
                    let mut incoming = session.begin(b"/g", 0).expect("it comes");
                    assert_eq!(incoming.read(&mut [0]).expect("its end"), 0);
                    session.finish(incoming, b"/g").expect("that is all");
                }
                assert_eq!(session.is_broken(), !takes_back, "{first:?}");
            },
        );
        assert_eq!(went, vec!["0"; usize::from(takes_back)], "{first:?} {stores} {beginning}");
    }
}

/// One that knows blocks, and listens only when it has heard what comes; `refuses` them or not.
fn know_blocks(mut socket: TcpStream, refuses: bool) -> io::Result<Vec<String>> {
    let mut heard = Vec::new();
    let lines = BufReader::new(socket.try_clone()?).lines();
    socket.write_all(b"220 a test\r\n")?;
    for line in lines.map_while(Result::ok) {
        let reply = match line.as_str() {
            line if line.starts_with("USER") => "331 who says so?",
            line if line.starts_with("PASS") => "230 welcome",
            "FEAT" => "211-Features\r\n EPSV\r\n PARALLEL\r\n PASV AllowDelayed;\r\n211 End",
            "MODE E" if refuses => "504 no blocks",
            _ => "200 done",
        };
        heard.push(line);
        let _ = socket.write_all(format!("{reply}\r\n").as_bytes());
    }
    Ok(heard)
}

/// Goal: where a source says that it knows blocks and refuses them, the destination is told that it is asked
/// again where it listens before it hears what comes.
#[test]
fn without_blocks_no_place_is_delayed() {
    let mut served = Vec::new();
    let mut sessions = Vec::new();
    for refuses in [true, false] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let port = listener.local_addr().expect("where it listens").port();
        served.push(thread::spawn(move || know_blocks(listener.accept()?.0, refuses)));
        let server = Server::parse(Protocol::Ftp, &format!("127.0.0.1:{port}")).expect("a server");
        let settings =
            Settings { patience: PATIENCE, at: None, security: Security::None, stop: Stop::never() };
        sessions.push(Session::open(&server, &settings).expect("a session"));
    }
    let (to, from) = (sessions.pop().expect("two"), sessions.pop().expect("two"));
    let manner = Manner { parallelism: 4, layout: None, patience: PATIENCE, stream: false };
    let Ok(pair) = Pair::new(from, to, manner, Stop::never()) else { panic!("they are a pair") };
    assert!(!pair.is_extended());
    drop(pair);
    let to = served.pop().expect("two").join().expect("no panic").expect("served");
    let passive: Vec<_> = to.iter().filter(|line| line.starts_with("OPTS PASV")).collect();
    assert_eq!(passive, ["OPTS PASV AllowDelayed=1;", "OPTS PASV AllowDelayed=0;"], "{to:?}");
}

/// Says which names it heard, byte by byte, and that it was asked for help; `greeting` and the answer to that
/// are the caller's. Of a name that begins with `twice` it says all twice; of one with `other`, what stands
/// under another one.
fn read_names(mut socket: TcpStream, greeting: &str, help: &str) -> io::Result<Vec<Vec<u8>>> {
    let (mut heard, mut line) = (Vec::new(), Vec::new());
    let mut lines = BufReader::new(socket.try_clone()?);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let mut taken = Vec::new();
    socket.write_all(format!("220 {greeting}\r\n").as_bytes())?;
    while lines.read_until(b'\n', &mut line).unwrap_or(0) > 0 {
        let said = line.trim_ascii_end().to_vec();
        line.clear();
        let path = said.iter().position(|byte| *byte == b'/').map_or(&b""[..], |at| &said[at..]);
        // As it has it.
        let mut path = path.to_vec();
        path.dedup_by(|one, other| (*one, *other) == (0xff, 0xff));
        let path = &path[..];
        let facts = |path: &[u8]| [b"250-It is\r\n Type=file;Size=4; ", path, b"\r\n250 End"].concat();
        let reply = match said.split(|byte| *byte == b' ').next().unwrap_or_default() {
            b"USER" => b"331 who says so?".to_vec(),
            b"PASS" => b"230 welcome".to_vec(),
            b"FEAT" => {
                b"211-Features\r\n PARALLEL\r\n EPSV\r\n MLST Type*;Size*;Modify*;\r\n211 End".to_vec()
            }
            b"EPSV" => format!("229 here (|||{port}|)").into_bytes(),
            b"STOR" => {
                taken.extend(listener.accept());
                b"125 go on".to_vec()
            }
            b"HELP" => help.as_bytes().to_vec(),
            b"MLST" if path.starts_with(b"/twice") => [&facts(path)[..], b"\r\n", &facts(path)].concat(),
            b"MLST" if path.starts_with(b"/none") => b"500 Command failed".to_vec(),
            b"MLST" if path.starts_with(b"/other") => facts(b"/another"),
            b"MLST" => facts(path),
            b"PWD" => b"257 \"/\"".to_vec(),
            _ => b"200 done".to_vec(),
        };
        let is_told = ["MLST", "HELP", "PWD", "STOR"].iter().any(|verb| said.starts_with(verb.as_bytes()));
        heard.extend(is_told.then_some(said));
        let _ = socket.write_all(&[&reply[..], b"\r\n"].concat());
    }
    Ok(heard)
}

const TELNET: &str = "214-These are known (* =>'s unimplemented):\r\n USER\r\n214 end";

/// Goal: a server that does not say which one it is is asked how it reads the byte 0xff, once, and only if a
/// name has one; where it knows no help, the byte goes as it is. One that says that it is ProFTPD is not
/// asked.
#[test]
fn a_server_that_hides_is_asked_how_it_reads() {
    let (plain, doubled): (&[u8], &[u8]) = (b"MLST /a\xffb", b"MLST /a\xff\xffb");
    for (greeting, help, asked, wanted) in [
        ("a test", TELNET, true, doubled),
        ("a test", "214 ask your neighbour", true, plain),
        ("a test", "502 no", true, plain),
        ("a test", "500 what?", true, plain),
        ("ProFTPD Server ready", "502 no", false, doubled),
    ] {
        let heard = with(
            move |socket| read_names(socket, greeting, help),
            |mut session| {
                session.facts(b"/plain").expect("facts");
                session.facts_of(&[b"/c", b"/a\xffb", b"/d"]).expect("facts");
                session.facts(b"/a\xffb").expect("facts");
            },
        );
        let help: &[&[u8]] = if asked { &[b"HELP"] } else { &[] };
        let wanted = [&[&b"MLST /plain"[..]][..], help, &[b"MLST /c", wanted, b"MLST /d", wanted]].concat();
        assert_eq!(heard, wanted, "{greeting}, {help:?}");
    }
}

/// Goal: of a server that keeps what it says of itself to itself nothing is taken for granted: a name with
/// the byte is refused alone.
#[test]
fn a_server_that_refuses_help_is_told_no_such_name() {
    let heard = with(
        |socket| read_names(socket, "a test", "501 not for you"),
        |mut session| {
            let told = session.facts_of_each(&[b"/c", b"/a\xffb", b"/d"]).expect("the session goes on");
            assert!(matches!(told[1], Err(Error::Unsayable(_))), "{told:?}");
            assert!(told[0].is_ok() && told[2].is_ok(), "{told:?}");
        },
    );
    assert_eq!(heard, [&b"HELP"[..], b"MLST /c", b"MLST /d"]);
}

/// Goal: nobody is asked how he reads a byte while other answers of his are due, for nobody could tell which
/// answer is whose: the name is refused alone, and the session goes on.
#[test]
fn nobody_is_asked_for_help_while_answers_are_due() {
    let heard = with(
        |socket| read_names(socket, "a test", TELNET),
        |mut session| {
            session.line_up_stores(&[b"/plain"], 1).expect("it is said");
            let behind = session.line_up_stores(&[b"/a\xffb"], 1);
            assert!(matches!(behind, Err(Error::Unsayable(_))), "{behind:?}");
            session.next_store(b"/plain", 4).expect("it is begun");
            drop(session);
        },
    );
    assert_eq!(heard, [b"STOR /plain"]);
}

/// Goal: where a server answers one question twice, what is said of those before it stands, none of those
/// behind it gets what is another's, and the session is over. One that names in its answers something else
/// than it was asked about is asked no more about that, and goes on.
#[test]
fn an_answer_is_of_the_path_that_was_asked_about() {
    let heard = with(
        |socket| read_names(socket, "a test", TELNET),
        |mut session| {
            let all: [&[u8]; 5] = [b"/a", b"/twice", b"/c", b"/d", b"/e"];
            let told = session.facts_of_each(&all).expect("it is told which");
            assert!(told[..2].iter().all(|told| matches!(told, Ok(Asked::Is(_)))), "{told:?}");
            let open = told[2..].iter().all(|told| matches!(told, Err(Error::OutOfStep { .. })));
            assert!(open && session.is_broken(), "{told:?}");
        },
    );
    // The answer that is left over may be a refusal, as of a command that is not known.
    let _ = with(
        |socket| read_names(socket, "a test", TELNET),
        |mut session| {
            let told = session.facts_of_each(&[b"/a", b"/twice", b"/c", b"/none"]).expect("it is told which");
            let open = told[2..].iter().all(|told| matches!(told, Err(Error::OutOfStep { .. })));
            assert!(open && session.is_broken(), "{told:?}");
        },
    );
    assert_eq!(heard.last().map(Vec::as_slice), Some(&b"PWD"[..]), "what it says next tells");
    let heard = with(
        |socket| read_names(socket, "a test", TELNET),
        |mut session| {
            for paths in [[&b"/other1"[..], b"/other2"], [b"/other3", b"/other4"], [b"/f", b"/g"]] {
                let told = session.facts_of(&paths).expect("facts");
                assert!(told.iter().all(|told| matches!(told, Asked::Is(_))), "{told:?}");
            }
        },
    );
    assert_eq!(heard.iter().filter(|line| *line == b"PWD").count(), 1, "{heard:?}");
}

/// Says of the first listings that there is no such thing, and lists one file from then on; how often it was
/// asked for one.
fn lists_after(socket: TcpStream, refusals: usize, is_there: bool) -> io::Result<usize> {
    let mut control = socket.try_clone()?;
    let mut say = move |reply: &str| control.write_all(format!("{reply}\r\n").as_bytes());
    let (mut listens, mut asked) = (None::<TcpListener>, 0);
    say("220 a test")?;
    for line in BufReader::new(socket).lines().map_while(Result::ok) {
        match line.split(' ').next().unwrap_or_default() {
            "USER" => say("331 who says so?")?,
            "PASS" => say("230 welcome")?,
            "FEAT" => say("211-Features\r\n EPSV\r\n MLST Type*;Size*;Modify*;UNIX.slink*;\r\n211 End")?,
            "EPSV" => {
                let listener = TcpListener::bind("127.0.0.1:0")?;
                say(&format!("229 here (|||{}|)", listener.local_addr()?.port()))?;
                listens = Some(listener);
            }
            "MLST" if is_there => say("250-it is\r\n Type=dir; /d\r\n250 end")?,
            "MLST" => say("550 No such file or directory")?,
            "MLSD" => {
                asked += 1;
                if asked <= refusals {
                    say("550 No such file or directory")?;
                    continue;
                }
                say("150 go on")?;
                let mut data = listens.take().ok_or(io::ErrorKind::NotConnected)?.accept()?.0;
                data.write_all(b"Type=file;Size=1;UNIX.slink=; f\r\n")?;
                drop(data);
                say("226 that is all")?;
            }
            _ => say("200 done")?,
        }
    }
    Ok(asked)
}

/// Goal: what a server says of a name in a directory that was renamed while it listed that, in words that are
/// of the directory, is not taken for the directory's end; where it stays so that may go well later, and is
/// told as what it is. A directory that is not there is asked for once.
#[test]
fn listings_that_do_not_hold_still_are_asked_for_again() {
    for (refusals, is_there) in [(2, true), (usize::MAX, true), (usize::MAX, false)] {
        let asked = with(
            move |socket| lists_after(socket, refusals, is_there),
            |mut session| match (session.list(b"/d"), refusals, is_there) {
                (Ok(listed), 2, _) => assert_eq!(listed.len(), 1),
                (Err(error @ Error::Restless { .. }), usize::MAX, true) => {
                    assert!(error.is_passing() && !error.wants_another_session(), "{error}");
                    assert!(error.to_string().contains("renamed or removed while"), "{error}");
                }
                (Err(error @ Error::Refused { .. }), usize::MAX, false) => assert!(error.is_unavailable()),
                (other, ..) => panic!("{refusals} {is_there}: {other:?}"),
            },
        );
        let expected = match (refusals, is_there) {
            (2, _) => 3,
            (_, true) => 5,
            _ => 1,
        };
        assert_eq!(asked, expected, "{refusals} {is_there}");
    }
}
