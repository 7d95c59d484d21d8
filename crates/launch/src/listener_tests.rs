use std::collections::VecDeque;
use std::io::Write;

use super::super::join_handshake::handshake;
use super::*;
use haul_transport::TransportError;

struct Bench {
    listener: Listener,
    strays: Arc<AtomicU64>,
    session: Session,
    near: tls::Identity,
    far: tls::Pin,
}

impl Bench {
    fn new() -> Bench {
        let (near, far) = (tls::Identity::generate().unwrap(), tls::Identity::generate().unwrap());
        let session = Session::new().unwrap();
        let strays = Arc::new(AtomicU64::new(0));
        let (pin_near, pin_far) = (tls::Pin(near.public()), tls::Pin(far.public()));
        let here = Ipv4Addr::LOCALHOST.into();
        let listener = Listener::open(
            &At::Only(vec![here]),
            None,
            (session.clone(), 2),
            (far, pin_near),
            BTreeSet::new(),
            Arc::clone(&strays),
            None,
        )
        .unwrap();
        Bench { listener, strays, session, near, far: pin_far }
    }
    fn socket(&self) -> TcpStream {
        TcpStream::connect(self.listener.addr).unwrap()
    }
    fn join(&self, identity: &tls::Identity, session: &Session, stream: u16) -> Result<Link, TransportError> {
        self.join_at(identity, session, stream, 1)
    }
    fn join_at(
        &self,
        identity: &tls::Identity,
        session: &Session,
        stream: u16,
        epoch: u32,
    ) -> Result<Link, TransportError> {
        let name = (StreamId(stream), SessionEpoch(epoch));
        handshake(self.socket(), identity, &self.far, HANDSHAKE_WAIT)?.join(session, name, HANDSHAKE_WAIT)
    }
    /// Waits until all handshakes are over.
    fn settle(&self, strays: u64) {
        while self.strays.load(Ordering::Relaxed) < strays {
            thread::yield_now();
        }
        assert_eq!(self.strays.load(Ordering::Relaxed), strays);
    }
}

/// Goal: only streams of this session, with its keys and its secret, each once, come out; all else is
/// counted, and does not keep ours from joining.
/// Method: each kind of stranger there is, before, between and after the streams.
#[test]
fn strangers_are_counted_and_nothing_else() {
    let bench = Bench::new();
    let mut strays = 0;
    let mut strangers = |bench: &Bench| {
        let half_open = bench.socket();
        let mut junk = bench.socket();
        junk.write_all(&[0x16; 600]).unwrap();
        let wrong_key = tls::Identity::generate().unwrap();
        assert!(bench.join(&wrong_key, &bench.session, 1).is_err());
        let other = |change: &dyn Fn(&mut Session)| {
            let mut session = bench.session.clone();
            change(&mut session);
            session
        };
        for wrong in [other(&|s| s.secret[31] ^= 1), other(&|s| s.id[0] ^= 1)] {
            assert!(bench.join(&bench.near, &wrong, 2).is_err());
        }
        assert!(bench.join_at(&bench.near, &bench.session, 2, 2).is_err(), "an epoch that is not");
        assert!(bench.join_at(&bench.near, &bench.session, 0, 0).is_err(), "an epoch before the first");
        assert!(bench.join(&bench.near, &bench.session, 3).is_err(), "more than were asked for");
        drop((half_open, junk));
        strays += 8;
        bench.settle(strays);
    };
    strangers(&bench);
    let mut links = Vec::new();
    for stream in [0, 2, 1] {
        links.push(bench.join(&bench.near, &bench.session, stream).unwrap());
        let (joined, link) = bench.listener.joined.recv().unwrap();
        assert_eq!(joined, StreamId(stream));
        links.push(link);
        strangers(&bench);
    }
    assert!(bench.join(&bench.near, &bench.session, 1).is_err(), "a stream joins once");
    assert!(bench.listener.joined.try_recv().is_err());
}

/// Goal: at the start data streams are taken before control has come, each once and under the first epoch
/// only.
#[test]
fn data_may_come_before_control() {
    let bench = Bench::new();
    let join = |stream, epoch| bench.join_at(&bench.near, &bench.session, stream, epoch);
    let mut kept = vec![join(2, 1).unwrap()];
    for (stream, epoch, why) in
        [(1, 0, "no epoch"), (1, 2, "a later epoch"), (2, 1, "twice"), (3, 1, "more than were asked for")]
    {
        assert!(join(stream, epoch).is_err(), "{why}");
    }
    kept.push(join(0, 1).unwrap());
    kept.push(join(1, 1).unwrap());
    // Each is handed on by a thread of its own, behind the answer.
    let mut came: Vec<u16> = (0..3).map(|_| bench.listener.joined.recv().unwrap().0.0).collect();
    came.sort();
    assert_eq!(came, [0, 1, 2]);
}

/// Goal: who does not wait for the answer to its name hears it before anything else: what follows an
/// acceptance is read whole, a refusal is an error that says so.
#[test]
fn an_answer_that_nobody_waited_for_is_heard() {
    let bench = Bench::new();
    let at_once = |stream| {
        let connected = handshake(bench.socket(), &bench.near, &bench.far, HANDSHAKE_WAIT).unwrap();
        connected.join_at_once(&bench.session, (StreamId(stream), FIRST_EPOCH)).unwrap()
    };
    let mut taken = at_once(1);
    taken.writer.write_all(b"at once").and_then(|()| taken.writer.flush()).unwrap();
    let (_, mut far) = bench.listener.joined.recv().unwrap();
    let mut bytes = [0; 7];
    far.reader.read_exact(&mut bytes).unwrap();
    far.writer.write_all(&bytes).and_then(|()| far.writer.flush()).unwrap();
    taken.reader.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"at once");
    let refused = at_once(1).reader.read(&mut bytes).unwrap_err();
    assert!(refused.to_string().contains("did not take stream 1: Ok((BadStream"), "{refused}");
}

/// Goal: no more than the maximum of strangers is held; for the next one the oldest goes, and ours are let in
/// meanwhile.
#[test]
fn strangers_are_bounded() {
    let bench = Bench::new();
    let mut held: Vec<TcpStream> = (0..places()).map(|_| bench.socket()).collect();
    bench.settle(places() as u64);
    held.push(bench.socket());
    // For the next one, and not because its time is over.
    let made_room = |mut socket: &TcpStream| {
        socket.set_read_timeout(Some(HANDSHAKE_WAIT / 2)).unwrap();
        match io::Read::read(&mut socket, &mut [0]) {
            Ok(n) => n == 0,
            Err(e) => e.kind() == io::ErrorKind::ConnectionReset,
        }
    };
    assert!(made_room(&held[0]), "the oldest of the silent");
    // Those who talk are others, and bounded as well.
    let talk: Vec<TcpStream> = (0..=places())
        .map(|_| {
            let mut socket = bench.socket();
            socket.write_all(&[0x16, 3, 1, 2, 0, 1, 0, 1]).unwrap();
            socket
        })
        .collect();
    assert!(talk.iter().any(made_room), "one of those who talk");
    bench.join(&bench.near, &bench.session, 0).unwrap();
    held[places()].set_nonblocking(true).unwrap();
    let still = io::Read::read(&mut held[places()], &mut [0]).unwrap_err();
    assert_eq!(still.kind(), io::ErrorKind::WouldBlock, "the last of the silent is still there");
}

/// Goal: a start, and joins after it, succeed under many silent connections that stay and many more that
/// come, whether they say nothing or a little.
/// Method: three times as many silent ones as there are places, and as many that say a little, each held
/// until so many more have come, and some hundred new ones a second, from the address that ours come from and
/// from others; each join has three tries.
#[test]
fn a_flood_keeps_nobody_out() {
    let bench = Bench::new();
    let (post, events) = crossbeam_channel::unbounded();
    let (over, came) = (AtomicBool::new(false), AtomicU64::new(0));
    let most = 3 * places();
    let addr = bench.listener.addr;
    let dial = |from: u8| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, from], 0)).into()).unwrap();
        socket.connect_timeout(&addr.into(), Duration::from_secs(5)).ok().map(|()| TcpStream::from(socket))
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut silent, mut talking) = (VecDeque::new(), VecDeque::new());
            let mut rng = fastrand::Rng::with_seed(14);
            while !over.load(Ordering::Relaxed) {
                if let Some(mut socket) = dial(rng.u8(1..5)) {
                    let talks = silent.len() == most && rng.bool();
                    if talks {
                        let _ = socket.write_all(&[0x16, 3, 1, 2, 0, 1, 0, 1]);
                    }
                    let held = if talks { &mut talking } else { &mut silent };
                    held.push_back(socket);
                    if held.len() > most {
                        held.pop_front();
                    }
                    came.fetch_add(1, Ordering::Relaxed);
                }
                // Those that stay are there at once.
                if silent.len() == most {
                    thread::sleep(Duration::from_millis(3));
                }
            }
        });
        // They are there before ours come.
        while came.load(Ordering::Relaxed) < most as u64 {
            thread::yield_now();
        }
        let join = |stream, epoch| {
            let tried = (0..3).find_map(|_| bench.join_at(&bench.near, &bench.session, stream, epoch).ok());
            if tried.is_none() {
                over.store(true, Ordering::Relaxed);
            }
            tried.unwrap_or_else(|| panic!("stream {stream} of epoch {epoch} does not come in"))
        };
        let mut kept: Vec<Link> = (0..=2).map(|stream| join(stream, 1)).collect();
        kept.extend((0..=2).map(|_| bench.listener.joined.recv().unwrap().1));
        bench.listener.open(Arc::new(move |event| drop(post.send(event))));
        for epoch in 2..8 {
            kept.push(join(0, epoch));
            kept.push(join(epoch as u16 + 1, epoch));
        }
        assert_eq!(events.iter().take(12).count(), 12);
        over.store(true, Ordering::Relaxed);
    });
}

/// Goal: the port is closed when the listener is dropped.
#[test]
fn port_dies_with_the_listener() {
    let bench = Bench::new();
    let addr = bench.listener.addr;
    drop(bench.listener);
    assert_eq!(TcpStream::connect(addr).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
}

/// Goal: once the door is open, streams join under new ids and control under higher epochs; what was used,
/// what is older, and more than there may be, is refused.
/// Method: a join of each kind, and then a flood of them.
#[test]
fn later_joins_are_new_and_bounded() {
    let bench = Bench::new();
    let mut kept: Vec<Link> =
        (0..=2).map(|stream| bench.join(&bench.near, &bench.session, stream).unwrap()).collect();
    // As the agent does: the door opens when those of the start have come.
    kept.extend((0..=2).map(|_| bench.listener.joined.recv().unwrap().1));
    let (post, events) = crossbeam_channel::unbounded();
    bench.listener.open(Arc::new(move |event| drop(post.send(event))));
    let join = |stream, epoch| bench.join_at(&bench.near, &bench.session, stream, epoch);
    kept.push(join(3, 1).unwrap());
    assert!(matches!(events.recv().unwrap(), JoinEvent::Stream { stream: StreamId(3), .. }));
    for (stream, epoch, why) in [
        (3, 1, "an id that is used"),
        (2, 1, "an id of the start"),
        (0, 1, "control under its present epoch"),
        (4, 2, "data ahead of control"),
    ] {
        assert!(join(stream, epoch).is_err(), "{why}");
    }
    kept.push(join(0, 5).unwrap());
    let control = |event| matches!(event, JoinEvent::Control { epoch: SessionEpoch(5), .. });
    assert!(control(events.recv().unwrap()));
    for (stream, epoch, why) in
        [(0, 5, "control twice"), (0, 4, "an older control"), (4, 1, "data of an older epoch")]
    {
        assert!(join(stream, epoch).is_err(), "{why}");
    }
    let wrong = Session { secret: [0; 32], ..bench.session.clone() };
    assert!(bench.join_at(&bench.near, &wrong, 4, 5).is_err(), "a wrong proof");
    let mut next = 4;
    while let Ok(link) = join(next, 5) {
        kept.push(link);
        next += 1;
    }
    assert_eq!(usize::from(next) - 1, LIVE_MAX, "so many are open");
    assert!(join(next + 1, 5).is_err());
    bench.listener.left(StreamId(3));
    kept.push(join(next + 2, 5).unwrap());
    assert!(join(next + 3, 5).is_err());
}
