//! The acceptor against the client of Globus, over a control connection of a few lines. Skipped aloud where
//! there is no `globus-url-copy`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use data_encoding::BASE64;
use haul_gsi::channel::{self, Level, Side};
use haul_gsi::{Acceptor, Authorities, Credential, Directory, Expects, Gridmap, Rights, Step, Verified};

const CLIENT: &str = "/usr/bin/globus-url-copy";
/// What a client may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A grid of one authority, a host and alice, who has a proxy, in a directory of its own.
struct Grid(PathBuf);

impl Grid {
    fn new() -> Grid {
        let dir = std::env::temp_dir().join(format!("haul-gsi-{}", std::process::id()));
        fs::create_dir(&dir).expect("make a directory");
        let grid = Grid(dir);
        // Globus takes nothing that is valid for as long as a test in a repository must be, and delegates
        // by RSA alone.
        grid.run(
            r#"
            u='basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature,keyEncipherment\n'
            printf "${u}subjectAltName=IP:127.0.0.1\n" >host.cnf; printf "$u" >user.cnf
            printf "${u}proxyCertInfo=critical,language:id-ppl-inheritAll\n" >proxy.cnf
            openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -days 30 -subj /CN=Authority -out ca.pem \
                -addext keyUsage=critical,keyCertSign,cRLSign
            signed() { # NAME SUBJECT BY
                openssl genrsa -out $1.key 2048
                openssl req -new -key $1.key -subj "$2" |
                    openssl x509 -req -CA $3.pem -CAkey $3.key -set_serial 77 -days 20 -extfile $1.cnf -out $1.pem
            }
            signed host /O=Grid/CN=host ca; signed user /O=Grid/CN=alice ca; signed proxy /O=Grid/CN=alice/CN=7 user
            cat proxy.pem proxy.key user.pem >alice; chmod 600 alice host.key
            mkdir authorities; hash=$(openssl x509 -in ca.pem -noout -hash)
            cp ca.pem authorities/$hash.0
            printf "access_id_CA X509 '/CN=Authority'\npos_rights globus CA:sign\ncond_subjects globus '\"/O=Grid/*\"'\n" \
                >authorities/$hash.signing_policy
            "#,
        );
        grid
    }

    fn run(&self, script: &str) {
        let output = Command::new("sh").args(["-ec", script]).current_dir(&self.0).output().expect("run sh");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn authorities(&self) -> Authorities {
        Authorities::new(Directory(self.at("authorities")))
    }

    fn client(&self, more: &[&str], from: &str, to: &str) -> Child {
        Command::new(CLIENT)
            .args(more)
            .args([from, to])
            .env("X509_CERT_DIR", self.at("authorities"))
            .env("X509_USER_PROXY", self.at("alice"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start the client")
    }
}

impl Drop for Grid {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What a session brought.
struct Served {
    peer: Option<Verified>,
    delegated: Option<Credential>,
    heard: Vec<String>,
}

/// One control connection, which gives a file as data connections are asked for.
fn serve(socket: TcpStream, grid: &Grid, content: &[u8]) -> Served {
    socket.set_read_timeout(Some(PATIENCE)).expect("set a patience");
    let host = Credential::read(&grid.at("host.pem"), &grid.at("host.key")).expect("a host");
    let authorities = grid.authorities();
    let mut context = Acceptor::new(&host, &authorities).expect("an acceptor");
    let mut writer = socket.try_clone().expect("one more descriptor");
    let mut served = Served { peer: None, delegated: None, heard: Vec::new() };
    let (mut listener, mut level) = (None::<TcpListener>, Level::Clear);
    writer.write_all(b"220 ready\r\n").expect("it is said");
    for line in BufReader::new(socket).lines() {
        let Ok(line) = line else { break };
        let (verb, argument) = line.split_once(' ').unwrap_or((&line, ""));
        let mut say = |text: &str| writer.write_all(format!("{text}\r\n").as_bytes()).is_ok();
        match verb {
            "AUTH" => drop(say("334 go on")),
            "ADAT" => match context.step(&BASE64.decode(argument.as_bytes()).expect("base64")) {
                Ok(Step::Goes(token)) => drop(say(&format!("335 ADAT={}", BASE64.encode(&token)))),
                Ok(Step::Stands(token)) => {
                    assert!(token.is_empty());
                    (served.peer, served.delegated) = (context.peer(), context.delegated().cloned());
                    say("235 it stands");
                }
                Err(error) => drop(say(&format!("535 {error}"))),
            },
            "ENC" => {
                let token = BASE64.decode(argument.as_bytes()).expect("base64");
                let command = context.unwrap(&token).expect("a command");
                let command = String::from_utf8(command).expect("UTF-8").trim_end().to_owned();
                served.heard.push(command.clone());
                let mut answer = |text: &str| {
                    let mut lines = text.lines().peekable();
                    while let Some(line) = lines.next() {
                        let token = context.wrap(format!("{line}\r\n").as_bytes()).expect("a token");
                        let sign = if lines.peek().is_some() { '-' } else { ' ' };
                        say(&format!("632{sign}{}", BASE64.encode(&token)));
                    }
                };
                match command.split(' ').next().unwrap_or_default() {
                    "USER" => answer("331 password"),
                    "PASS" => answer("230 in"),
                    // It does not show whose it is where nobody says that this is known.
                    "FEAT" => answer("211-this\n DCAU\n PROT\n211 end"),
                    "TYPE" | "DCAU" | "PBSZ" | "MODE" => answer("200 yes"),
                    "PROT" => {
                        level = if command == "PROT P" { Level::Private } else { Level::Clear };
                        answer("200 yes")
                    }
                    "PASV" => {
                        let socket = TcpListener::bind("127.0.0.1:0").expect("listen");
                        let port = socket.local_addr().expect("where it listens").port();
                        listener = Some(socket);
                        answer(&format!("227 here (127,0,0,1,{},{})", port >> 8, port & 255))
                    }
                    "RETR" => {
                        let (data, _) = listener.take().expect("PASV came").accept().expect("it dials");
                        data.set_read_timeout(Some(PATIENCE)).expect("set a patience");
                        let mine = served.delegated.as_ref().expect("it delegated");
                        let expects = Expects::Identity(mine.identity().clone());
                        let (mut data, who) =
                            channel::wrap(data, Side::Listened, level, (mine, &authorities, &expects))
                                .expect("the client shows that it is alice");
                        assert_eq!(&who.identity, mine.identity());
                        answer("150 begins");
                        data.write_all(content).expect("it is sent");
                        data.end().expect("it is ended");
                        drop(data);
                        answer("226 done")
                    }
                    _ => answer("500 what?"),
                };
            }
            _ => drop(say("533 protect it")),
        }
    }
    served
}

fn ended(mut client: Child) -> (bool, String) {
    let until = Instant::now() + PATIENCE;
    while client.try_wait().expect("look").is_none() {
        if Instant::now() > until {
            client.kill().expect("end it");
        }
        thread::sleep(Duration::from_millis(20));
    }
    let output = client.wait_with_output().expect("what it said");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn is_here(grid_of: &str) -> bool {
    let here = Path::new(CLIENT).exists();
    if !here {
        eprintln!("SKIPPED {grid_of}: there is no globus-url-copy");
    }
    here
}

/// Goal: the client of Globus makes a context with the acceptor, delegates to it, is known for whom it is,
/// and gets a file over data connections that show whose they are, clear and private.
#[test]
fn the_client_of_globus_is_served() {
    if !is_here("the_client_of_globus_is_served") {
        return;
    }
    let grid = Grid::new();
    assert_eq!(fs::metadata(grid.at("alice")).expect("look").permissions().mode() & 0o777, 0o600);
    let map = Gridmap::parse(b"\"/O=Grid/CN=alice\" root\n").expect("a map");
    let content: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = listener.local_addr().expect("where it listens").port();
    let result = grid.at("result");
    for (options, asks) in [(&[][..], None), (&["-dcpriv"], Some("PROT P"))] {
        let _ = fs::remove_file(&result);
        let to = format!("file://{}", result.display());
        let client = grid.client(options, &format!("gsiftp://127.0.0.1:{port}/x"), &to);
        let (socket, _) = listener.accept().expect("it comes");
        let served = serve(socket, &grid, &content);
        let (well, said) = ended(client);
        assert!(well, "{options:?}: {said}");
        assert_eq!(fs::read(&result).expect("the file"), content, "{options:?}");
        let peer = served.peer.expect("somebody");
        assert_eq!(map.user(&peer.identity, None), Some("root"));
        let delegated = served.delegated.expect("a proxy");
        assert_eq!(delegated.identity().text(), "/O=Grid/CN=alice");
        assert_eq!(peer.rights, Rights::All);
        assert_eq!(served.heard[0], "USER :globus-mapping:");
        assert!(asks.is_none_or(|asks| served.heard.iter().any(|heard| heard == asks)), "{:?}", served.heard);
    }
}
