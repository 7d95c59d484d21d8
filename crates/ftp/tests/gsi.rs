//! GSI on a control connection, against an acceptor of the test's own that can do what Globus does not. The
//! real server is in the end-to-end tests.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use data_encoding::BASE64;
use haul_ftp::{DataSecurity, Error};
use haul_gsi::channel::{self, Level, Side};
use haul_gsi::{Acceptor, Expects, Step};

mod grid;

use grid::{AUTHORITY, CERTIFICATE, authorities, credential, open, somebody_else};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Odd {
    Nothing,
    /// It does not know AUTH GSSAPI.
    NoGsi,
    /// It says that the context stands after the first token.
    DoneEarly,
    /// It wants tokens without an end.
    Endless,
    /// A token is no base64.
    NoToken,
    /// It refuses the first token; what comes last, which is a proxy where anything is delegated.
    RefusesFirst,
    RefusesLast,
    /// It, or somebody in its name, answers USER as it is.
    Plain,
    /// A protected answer was changed on its way.
    Changed,
    /// It does not know how data connections show whose they are.
    NoDcau,
    /// It does not protect data.
    NoProt,
    /// It says that a transfer begins before anybody showed who he is.
    BeginsEarly,
    /// It refuses while it is waited for on the data connection.
    RefusesSilently,
    /// It shows on the data connection that it is somebody else.
    OtherUser,
    /// It shows the user's own certificate there, but not what was delegated in this session.
    OtherSession,
    /// On the data connection is somebody that does not speak TLS.
    NoTls,
    /// It hangs up on the data connection, and says why.
    HangsUp,
    /// It ends what is protected as if somebody had cut it off.
    Cuts,
    /// The same, and it has no listings in replies.
    CutsListings,
}

/// The lines that it understood.
type Heard = Arc<Mutex<Vec<String>>>;

fn start(odd: Odd) -> (u16, Heard, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = listener.local_addr().expect("where it listens").port();
    let heard = Heard::default();
    let hears = heard.clone();
    let thread = thread::spawn(move || {
        let (socket, _) = listener.accept().expect("somebody comes");
        // The client that goes away is the end of it.
        let _ = serve(socket, odd, &hears);
    });
    (port, heard, thread)
}

fn serve(mut socket: TcpStream, odd: Odd, heard: &Heard) -> std::io::Result<()> {
    let mut context = Acceptor::new(&credential(), &authorities(AUTHORITY)).expect("an acceptor");
    let mut lines = BufReader::new(socket.try_clone()?).lines();
    let (mut listener, mut level) = (None, Level::Clear);
    socket.write_all(b"220 ready\r\n")?;
    while let Some(line) = lines.next().transpose()? {
        let (verb, argument) = line.split_once(' ').unwrap_or((&line, ""));
        let mut say = |text: String| socket.write_all(format!("{text}\r\n").as_bytes());
        match verb {
            "AUTH" if odd == Odd::NoGsi => say("504 what?".into())?,
            "AUTH" => say("334 go on".into())?,
            "ADAT" if odd == Odd::DoneEarly => say("235 done".into())?,
            "ADAT" if odd == Odd::NoToken => say("335 ADAT=???".into())?,
            "ADAT" if odd == Odd::Endless => say("335 ADAT=".into())?,
            "ADAT" if odd == Odd::RefusesFirst => say("535 not you".into())?,
            "ADAT" => {
                let token = BASE64.decode(argument.as_bytes()).expect("base64");
                match context.step(&token) {
                    Ok(Step::Goes(token)) => say(format!("335 ADAT={}", BASE64.encode(&token)))?,
                    Ok(Step::Stands(_)) if odd == Odd::RefusesLast => say("535 not that".into())?,
                    Ok(Step::Stands(_)) => say("235 done".into())?,
                    Err(error) => say(format!("535 {error}"))?,
                }
            }
            "ENC" if context.stands() => {
                let token = BASE64.decode(argument.as_bytes()).expect("base64");
                let command = context.unwrap(&token).expect("a command");
                let command = String::from_utf8(command).expect("UTF-8");
                let command = command.trim_end().to_owned();
                heard.lock().expect("whole").push(command.clone());
                let delegated = context.delegated().cloned();
                let mut answer = |text: &str| {
                    let mut lines = text.lines().peekable();
                    while let Some(line) = lines.next() {
                        let mut token = context.wrap(format!("{line}\r\n").as_bytes()).expect("a token");
                        if odd == Odd::Changed {
                            *token.last_mut().expect("some") ^= 1;
                        }
                        let sign = if lines.peek().is_some() { '-' } else { ' ' };
                        say(format!("632{sign}{}", BASE64.encode(&token)))?;
                    }
                    Ok::<_, std::io::Error>(())
                };
                match command.split(' ').next().unwrap_or_default() {
                    "USER" if odd == Odd::Plain => say("331 password".into())?,
                    "USER" => answer("331 password")?,
                    "PASS" => answer("230 you are in")?,
                    "DCAU" if odd == Odd::NoDcau => answer("500 no")?,
                    "PROT" if odd == Odd::NoProt => answer("536 no")?,
                    "PROT" => {
                        level = if command == "PROT P" { Level::Private } else { Level::Clear };
                        answer("200 yes")?;
                    }
                    "FEAT" if odd == Odd::CutsListings => answer("211-\n MLST Type*;UNIX.slink*;\n211 end")?,
                    "FEAT" => answer("211-\n MLST Type*;UNIX.slink*;\n MLSC\n211 end")?,
                    // As Globus has it: so many in a reply, and all but the last are preliminary.
                    "MLSC" => {
                        answer("150-here\n Type=file;Size=1; one\n Type=file;Size=1; two\n150 end")?;
                        answer("250-here\n Type=dir; three\n250 end")?;
                    }
                    "EPSV" => {
                        let socket = TcpListener::bind("127.0.0.1:0")?;
                        let port = socket.local_addr()?.port();
                        listener = Some(socket);
                        answer(&format!("229 here (|||{port}|)"))?;
                    }
                    "RETR" | "MLSD" => {
                        let (mut data, _) = listener.take().expect("EPSV came").accept()?;
                        match odd {
                            Odd::RefusesSilently => {
                                answer("550 there is none")?;
                                continue;
                            }
                            Odd::NoTls => data.write_all(b"HTTP/1.1 200 OK\r\n")?,
                            Odd::BeginsEarly => answer("150 it begins")?,
                            _ => {}
                        }
                        if matches!(odd, Odd::HangsUp | Odd::NoTls) {
                            drop(data);
                            answer("425 I have no credential")?;
                            continue;
                        }
                        let mine = match odd {
                            Odd::OtherUser => somebody_else(),
                            Odd::OtherSession => credential(),
                            _ => delegated.expect("it was delegated"),
                        };
                        let expects = Expects::Identity(credential().identity().clone());
                        let with = (&mine, &authorities(AUTHORITY), &expects);
                        let Ok((mut data, _)) = channel::wrap(data, Side::Listened, level, with) else {
                            answer("425 the client shows nobody")?;
                            continue;
                        };
                        if odd != Odd::BeginsEarly {
                            answer("150 it begins")?;
                        }
                        data.write_all(if command.starts_with("MLSD") {
                            b"Type=file; one\r\n"
                        } else {
                            b"content"
                        })?;
                        if !matches!(odd, Odd::Cuts | Odd::CutsListings) {
                            data.end()?;
                        }
                        drop(data);
                        answer("226 done")?;
                    }
                    _ => answer("200 yes")?,
                }
            }
            // Nothing goes as it is once the context stands, and no login before.
            _ => {
                heard.lock().expect("whole").push(format!("PLAIN {line}"));
                say("533 protect it".into())?;
            }
        }
    }
    Ok(())
}

/// Goal: commands go wrapped, replies of one and of several lines are read, the user comes as the server's
/// map has him or by the name that was typed, and no password is said; data connections are asked for as they
/// are wanted.
#[test]
fn commands_and_replies_are_wrapped() {
    for (who, user) in [("", "USER :globus-mapping:"), ("alice:geheim@", "USER alice")] {
        for (data, asks) in [
            (DataSecurity::Private, &["DCAU A", "PBSZ 1048576", "PROT P"][..]),
            (DataSecurity::Shown, &["DCAU A", "PBSZ 1048576", "PROT C"]),
            (DataSecurity::None, &["DCAU N"]),
        ] {
            let (port, heard, thread) = start(Odd::Nothing);
            drop(open(port, AUTHORITY, who, data).expect("a session"));
            thread.join().expect("it ends well");
            let heard = heard.lock().expect("whole").clone();
            assert_eq!(heard, [&[user, "PASS"], asks, &["FEAT", "TYPE I", "QUIT"]].concat(), "{who}");
        }
    }
}

/// Goal: what is not this session's, not protected, or not to come to an end is an error, before any login
/// where the context does not stand.
#[test]
fn nothing_counts_that_is_not_protected() {
    for (odd, says, logs_in) in [
        (Odd::NoGsi, "AUTH GSSAPI: the server answers 504", false),
        (Odd::DoneEarly, "do not come to an end", false),
        (Odd::Endless, "do not come to an end", false),
        (Odd::NoToken, "no base64", false),
        (Odd::Plain, "not protected", true),
        (Odd::Changed, "", true),
        (Odd::NoDcau, "DCAU: the server answers 500", true),
        (Odd::NoProt, "PROT: the server answers 536", true),
    ] {
        let (port, heard, thread) = start(odd);
        let error = open(port, AUTHORITY, "", DataSecurity::Private)
            .err()
            .unwrap_or_else(|| panic!("{odd:?}: a session"));
        assert!(error.to_string().contains(says), "{odd:?}: {error}");
        thread.join().expect("it ends well");
        let heard = heard.lock().expect("whole").clone();
        assert_eq!(heard.first().map(String::as_str), logs_in.then_some("USER :globus-mapping:"), "{odd:?}");
    }
}

/// Goal: that a key is not RSA is told as the cause where a server refuses what was delegated by it, and
/// nowhere else.
/// Method: the key of the test is one of ECDSA; before anything is delegated, then, and where nothing is.
#[test]
fn the_kind_of_the_key_is_told_where_it_matters() {
    for (odd, data, said) in [
        (Odd::RefusesFirst, DataSecurity::Private, "ADAT"),
        (Odd::RefusesLast, DataSecurity::Private, haul_ftp::DELEGATED_BY_NO_RSA),
        (Odd::RefusesLast, DataSecurity::None, "ADAT"),
    ] {
        let (port, _, thread) = start(odd);
        let error = open(port, AUTHORITY, "", data).err().expect("no session");
        let told = format!("{said}: the server answers 535 ");
        assert!(error.to_string().starts_with(&told), "{odd:?} {data:?}: {error}");
        thread.join().expect("it ends well");
    }
}

/// Goal: a server that nobody vouches for gets no login.
#[test]
fn a_stranger_gets_no_login() {
    let (port, heard, thread) = start(Odd::Nothing);
    let error = open(port, CERTIFICATE, "", DataSecurity::Private).err().expect("no session");
    assert!(matches!(error, Error::Untrusted { .. }), "{error}");
    assert!(error.to_string().contains("X509_CERT_DIR"), "{error}");
    thread.join().expect("it ends well");
    assert!(heard.lock().expect("whole").is_empty());
}

/// A session with a server that is odd, its answer to a listing and to a file.
fn asked(odd: Odd, data: DataSecurity) -> (Result<usize, Error>, Result<Vec<u8>, Error>, JoinHandle<()>) {
    let (port, _, thread) = start(odd);
    let mut session = open(port, AUTHORITY, "", data).expect("a session");
    let listed = session.list(b"/dir").map(|listed| listed.len());
    let content = session.begin(b"/file", 0).and_then(|mut incoming| {
        let mut content = vec![0; 100];
        let len = incoming.fill(&mut content)?;
        content.truncate(len);
        session.finish(incoming, b"/file")?;
        Ok(content)
    });
    (listed, content, thread)
}

/// Goal: data connections show whose they are and data come, however early the server says that it begins;
/// listings come over the control connection where the server has that.
#[test]
fn data_connections_show_whose_they_are() {
    for odd in [Odd::Nothing, Odd::BeginsEarly, Odd::Cuts] {
        for data in [DataSecurity::Private, DataSecurity::Shown] {
            let (listed, content, thread) = asked(odd, data);
            assert_eq!(
                (listed.expect("a listing"), &content.expect("content")[..]),
                (3, &b"content"[..]),
                "{odd:?}"
            );
            thread.join().expect("it ends well");
        }
    }
}

/// Goal: who shows somebody else, or nothing, on a data connection brings no byte; a server that refuses is
/// heard although it never comes to the data connection.
#[test]
fn a_data_connection_to_somebody_else_brings_nothing() {
    for (odd, says) in [
        (Odd::OtherUser, "the other end is /O=Grid/CN=alice, and should be /CN=server"),
        (Odd::OtherSession, "is of another session than this one"),
        (Odd::NoTls, "does not speak TLS"),
        (Odd::HangsUp, "425 I have no credential"),
        (Odd::RefusesSilently, "550 there is none"),
    ] {
        for data in [DataSecurity::Private, DataSecurity::Shown] {
            let (_, content, thread) = asked(odd, data);
            let error = content.expect_err("no content").to_string();
            assert!(error.contains(says), "{odd:?}: {error}");
            thread.join().expect("it ends well");
        }
    }
}

/// Goal: a listing that may have been cut off on its way is none.
#[test]
fn a_listing_that_may_be_cut_is_none() {
    let (listed, content, thread) = asked(Odd::CutsListings, DataSecurity::Private);
    let error = listed.expect_err("no listing").to_string();
    assert!(error.contains("somebody on the way may have cut it off"), "{error}");
    // Of a file, its length says so to who knows it.
    assert_eq!(content.expect("content"), b"content");
    thread.join().expect("it ends well");
}
