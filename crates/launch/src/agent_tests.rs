use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use super::super::message::{ADDRESSES_MAX, Listening, Named};
use super::super::{join_handshake, listener};
use super::*;
use haul_transport::rejoin::JoinEvent;
use haul_transport::routes::Address;
use serde::{Deserialize, Serialize};

use super::super::request::Needs;

/// A request, as far as launching cares.
#[derive(Clone, Serialize, Deserialize)]
struct Asked {
    role: Role,
    scheme: Scheme,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Scheme {
    File,
}

impl Request for Asked {
    type Question = ();

    fn needs(&self) -> Needs {
        let protect = Protect::default();
        Needs { role: self.role, protect, window: None, memory: None, congestion: None, start: None }
    }

    fn question(&self) -> Option<&()> {
        None
    }

    fn check(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

/// Goal: one address of each device is named first, that which ssh reached at the very front; a list of the
/// user's narrows it, and loopback stays among itself.
#[test]
fn addresses_are_named_in_order() {
    let ip = |s: &str| s.parse::<IpAddr>().unwrap();
    let own = [(2, "10.0.0.2"), (2, "fd00::2"), (3, "10.0.1.2"), (3, "fd01::2")];
    let own = own.map(|(device, a)| Address { device, ip: ip(a) });
    let seen = |l: Listening| {
        let first = Named { address: l.address, device: l.device };
        std::iter::once(first).chain(l.also).map(|n| (n.address.to_string(), n.device)).collect::<Vec<_>>()
    };
    let text = |list: &[(&str, u32)]| list.iter().map(|(a, d)| (a.to_string(), *d)).collect::<Vec<_>>();
    let of = |vias: &[IpAddr], server| seen(named(vias, ip(server), &own, 9, Vec::new()));
    assert_eq!(of(&[], "fd00::2"), text(&[("fd00::2", 2), ("10.0.1.2", 3), ("10.0.0.2", 2), ("fd01::2", 3)]));
    assert_eq!(of(&[], "127.0.0.1"), text(&[("127.0.0.1", 0)]));
    assert_eq!(of(&[ip("10.0.1.2"), ip("10.0.0.2")], "fd00::2"), text(&[("10.0.1.2", 1), ("10.0.0.2", 2)]));
    let many: Vec<_> =
        (1..100).map(|i| Address { device: i, ip: IpAddr::from([10, 1, 0, i as u8]) }).collect();
    let few = named(&[], ip("10.0.0.2"), &many, 9, Vec::new());
    assert_eq!(few.also.len() + 1, ADDRESSES_MAX);
    assert!(place(&[], None).is_none());
    assert!(matches!(place(&[], Some(ip("10.0.0.2"))), Some(At::Everywhere)));
    assert!(matches!(place(&[], Some(ip("::1"))), Some(At::Only(one)) if one == [ip("::1")]));
    assert!(matches!(place(&[ip("10.0.0.2")], None), Some(At::Only(one)) if one == [ip("10.0.0.2")]));
}

/// How long a test waits for what comes at once where nothing else runs.
const SOON: Duration = Duration::from_secs(20);

type Ended = Result<Option<(Asked, AgentConnected)>, BootstrapError>;

/// Goal: the server's address is the third field, and what is no plain address is none.
#[test]
fn ssh_connection_is_read() {
    let ip = |s: &str| Some(s.parse::<IpAddr>().unwrap());
    assert_eq!(addresses(Some("10.0.0.1 4000 10.0.0.2 22")), (ip("10.0.0.1"), ip("10.0.0.2")));
    assert_eq!(addresses(Some("::1 4000 ::1 22")), (ip("::1"), ip("::1")));
    assert_eq!(addresses(Some("fe80::1%eth0 4000 fe80::2%eth0 22")), (None, None));
    for none in [None, Some(""), Some("UNKNOWN"), Some("a b c d")] {
        assert_eq!(addresses(none), (None, None));
    }
}

/// Plays a near end up to the agent's reply; the agent runs on a thread.
fn near_end(streams: u16) -> (UnixStream, AgentReply, thread::JoinHandle<Ended>, tls::Identity) {
    let (mut near, far) = UnixStream::pair().unwrap();
    let env = AgentEnv { ssh_connection: Some("127.0.0.1 9 127.0.0.1 22".into()), ..AgentEnv::default() };
    let agent = thread::spawn(move || agent(far.try_clone().unwrap(), far, env));
    message::skip_to_magic(&mut near).unwrap();
    let hello: AgentHello = message::read_frame(&mut near).unwrap();
    let identity = tls::Identity::generate().unwrap();
    let hello = NearHello {
        protocol: hello.protocol_max,
        program: "0".into(),
        request: Asked { role: Role::Sink, scheme: Scheme::File },
        session: message::Fixed([1; 16]),
        key: Bytes(identity.public()),
        secret: message::Fixed([2; 32]),
        streams,
        ports: None,
        via: None,
        via_too: Vec::new(),
        dial: Wish::Either,
    };
    near.write_all(&[MAGIC, &message::encode(&hello).unwrap()].concat()).unwrap();
    let reply = message::read_frame(&mut near).unwrap();
    (near, reply, agent, identity)
}

/// Whether nobody listens there, now or within the patience: a child that another test starts has a copy of
/// every socket until it runs its program, and meanwhile the kernel takes connections for a socket that is
/// closed.
fn is_closed(at: &Listening) -> bool {
    let until = Instant::now() + SOON;
    loop {
        match TcpStream::connect((at.address, at.port)) {
            Err(_) => return true,
            Ok(_) if Instant::now() > until => return false,
            Ok(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Goal: until control is up, the port dies with the pipe.
#[test]
fn port_dies_with_the_pipe() {
    let (near, reply, agent, _) = near_end(2);
    let AgentReply::Ready { listening: Ok(at), .. } = reply else { panic!("not listening") };
    assert!(TcpStream::connect((at.address, at.port)).is_ok());
    drop(near);
    let error = agent.join().unwrap().err().unwrap();
    assert!(error.to_string().contains("ssh ended"), "not because of a timeout: {error}");
    assert!(is_closed(&at), "it still listens");
}

/// Goal: once control is up, the end of the pipe loses nothing: the data streams still join.
#[test]
fn pipe_may_end_when_control_is_up() {
    let (near, reply, agent, identity) = near_end(2);
    let AgentReply::Ready { listening: Ok(at), key, .. } = reply else { panic!("not listening") };
    let session = Session { id: [1; 16], secret: [2; 32], bare: false };
    let join = |stream| {
        let socket = TcpStream::connect((at.address, at.port)).unwrap();
        let wait = listener::HANDSHAKE_WAIT;
        let name = (StreamId(stream), listener::FIRST_EPOCH);
        let connected = join_handshake::handshake(socket, &identity, &tls::Pin(key.0.clone()), wait).unwrap();
        connected.join(&session, name, wait).unwrap()
    };
    let _control = join(0);
    drop(near);
    let _data = [join(2), join(1)];
    let connected = agent.join().unwrap().unwrap().expect("a session").1;
    assert_eq!((connected.protect, connected.streams), ("tls", 2));
    let Joins::Accept(door) = &connected.joins else { panic!("nothing can join later") };
    assert!(door.is_orphaned());
    // It waits for one, the other comes by then or to who opens the door.
    let (post, events) = crossbeam_channel::unbounded();
    door.open(Arc::new(move |event| drop(post.send(event))));
    let mut ids: Vec<u16> = connected.data.iter().map(|(id, _)| id.0).collect();
    while ids.len() < 2 {
        let JoinEvent::Stream { stream, .. } = events.recv().unwrap() else { panic!("no data stream") };
        ids.push(stream.0);
    }
    ids.sort();
    assert_eq!(ids, [1, 2]);
}

/// Goal: a near end that dies between its control and its word on the streams is not waited for.
#[test]
fn a_dead_near_end_is_not_waited_for() {
    let (near, reply, agent, identity) = near_end(STREAMS_MAX);
    let AgentReply::Ready { listening: Ok(at), key, .. } = reply else { panic!("not listening") };
    let session = Session { id: [1; 16], secret: [2; 32], bare: false };
    let socket = TcpStream::connect((at.address, at.port)).unwrap();
    let (wait, name) = (listener::HANDSHAKE_WAIT, (StreamId(0), listener::FIRST_EPOCH));
    let pin = tls::Pin(key.0.clone());
    let connected = join_handshake::handshake(socket, &identity, &pin, wait).unwrap();
    let control = connected.join(&session, name, wait).unwrap();
    drop(near);
    (control.closer)();
    let error = agent.join().unwrap().err().unwrap().to_string();
    assert!(error.contains("is gone") || error.contains("ssh ended"), "not because of a timeout: {error}");
}

/// Goal: a near end that asks for what is not possible is told so.
#[test]
fn impossible_wishes_are_refused() {
    for streams in [0, STREAMS_MAX + 1] {
        let (_near, reply, agent, _) = near_end(streams);
        assert!(matches!(reply, AgentReply::Error(_)));
        assert!(agent.join().unwrap().is_err());
    }
}

/// Goal: a near end that asks for what this haul cannot read is told why, instead of finding it gone.
/// Method: a request that names a scheme from later on.
#[test]
fn unknown_words_are_answered() {
    let (mut near, far) = UnixStream::pair().unwrap();
    let agent =
        thread::spawn(move || agent::<Asked, _, _>(far.try_clone().unwrap(), far, AgentEnv::default()));
    message::skip_to_magic(&mut near).unwrap();
    let hello: AgentHello = message::read_frame(&mut near).unwrap();
    let request = serde_json::json!({ "role": "sink", "scheme": "later" });
    let asked = serde_json::json!({ "protocol": hello.protocol_max, "program": "9", "request": request });
    near.write_all(&[MAGIC, &message::encode(&asked).unwrap()].concat()).unwrap();
    let AgentReply::Error(why) = message::read_frame(&mut near).unwrap() else { panic!("not refused") };
    assert!(why.contains("later") && why.contains("does not understand"), "{why}");
    assert!(agent.join().unwrap().is_err());
}

/// Goal: a near end that goes over to the pipe gets a listener that is closed and streams in the pipe.
#[test]
fn decision_for_the_pipe_closes_the_port() {
    let (mut near, reply, agent, _) = near_end(2);
    let AgentReply::Ready { listening: Ok(at), .. } = reply else { panic!("not listening") };
    near.write_all(&message::encode(&Decision::Mux).unwrap()).unwrap();
    let connected = agent.join().unwrap().unwrap().expect("a session").1;
    assert_eq!((connected.path, connected.data.len()), (Path::Ssh, 2));
    assert!(is_closed(&at), "it still listens");
}

/// Goal: an errand is done by its name, in words and answers, until the near end says no more; a haul that
/// does none says so instead of finding something wrong.
#[test]
fn errands_are_done() {
    let count = |name: &str, line: &mut ErrandLine<'_>| {
        while let Some(said) = line.hear() {
            let answer = serde_json::json!([name, said.as_u64().unwrap() + 1]);
            line.say(answer).unwrap();
        }
    };
    let errand = |env: AgentEnv<Asked>| {
        let (mut near, far) = UnixStream::pair().unwrap();
        let agent = thread::spawn(move || agent::<Asked, _, _>(far.try_clone().unwrap(), far, env));
        message::skip_to_magic(&mut near).unwrap();
        let hello: AgentHello = message::read_frame(&mut near).unwrap();
        let errand = message::ErrandHello { errand: "count".into(), protocol: hello.protocol_max };
        near.write_all(&[MAGIC, &message::encode(&errand).unwrap()].concat()).unwrap();
        (near, agent)
    };
    let (mut near, agent) =
        errand(AgentEnv { errands: Some(Errands(Arc::new(count))), ..AgentEnv::default() });
    for number in [1, 7] {
        near.write_all(&message::encode(&number).unwrap()).unwrap();
        let message::ErrandReply::Answer(answer) = message::read_frame(&mut near).unwrap() else {
            panic!("refused")
        };
        assert_eq!(answer, serde_json::json!(["count", number + 1]));
    }
    drop(near);
    assert!(agent.join().unwrap().unwrap().is_none());

    let (mut near, agent) = errand(AgentEnv::default());
    let message::ErrandReply::Error(why) = message::read_frame(&mut near).unwrap() else { panic!("done") };
    assert!(why.contains("does not understand"), "{why}");
    assert!(agent.join().unwrap().is_err());
}
