//! Tests of happy eyeballs.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::listener::{At, FIRST_EPOCH, Listener};
use super::super::message::Named;
use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn listening(addresses: &[(&str, u32)]) -> Listening {
    let named = addresses.iter().map(|(a, device)| Named { address: ip(a), device: *device });
    let mut named: Vec<Named> = named.collect();
    let first = named.remove(0);
    Listening { address: first.address, port: 9, device: first.device, also: named, failed: Vec::new() }
}

/// Goal: each pair of devices that packets really pass is a path; addresses that mean somebody else are none.
/// Method: two subnets and a default route; the same with rules that route by source address.
#[test]
fn pairs_are_those_of_the_routes() {
    let at = listening(&[
        ("10.0.0.2", 7),
        ("10.0.1.2", 8),
        ("172.17.0.1", 9),
        ("127.0.0.1", 9),
        ("fe80::1", 8),
        ("10.0.0.2", 7),
        ("2001:db8::2", 7),
    ]);
    let own = [(1, "10.0.0.1"), (2, "10.0.1.1"), (3, "172.17.0.1")];
    let own: Vec<_> = own.iter().map(|(device, a)| Address { device: *device, ip: ip(a) }).collect();
    let plain = |to: IpAddr, _: Option<IpAddr>| match to.to_string().as_str() {
        "2001:db8::2" => None,
        "10.0.1.2" => Some(Route { device: 2, from: None }),
        _ => Some(Route { device: 1, from: None }),
    };
    let seen = |ways: Vec<Way>| {
        ways.iter().map(|w| (w.remote.ip().to_string(), w.local, w.pair)).collect::<Vec<_>>()
    };
    let way = |to: &str, from: Option<&str>, pair| (to.to_string(), from.map(ip), pair);
    let expected =
        [way("10.0.0.2", None, (1, 7)), way("10.0.1.2", None, (2, 8)), way("2001:db8::2", None, (1, 7))];
    assert_eq!(seen(ways_by(&at, &own, plain)), expected);
    let by_source = |to: IpAddr, from: Option<IpAddr>| match from {
        Some(from) => {
            own.iter().find(|own| own.ip == from).map(|own| Route { device: own.device, from: None })
        }
        None => plain(to, None),
    };
    let at = listening(&[("10.0.0.2", 7)]);
    let expected = [
        way("10.0.0.2", None, (1, 7)),
        way("10.0.0.2", Some("10.0.1.1"), (2, 7)),
        way("10.0.0.2", Some("172.17.0.1"), (3, 7)),
    ];
    assert_eq!(seen(ways_by(&at, &own, by_source)), expected);
    let nothing = ways_by(&listening(&[("10.0.0.2", 7), ("10.0.1.2", 8)]), &[], |_, _| None);
    assert!(
        nothing.iter().all(|way| way.pair == (0, 7)),
        "one path where the kernel does not say: {nothing:?}"
    );
}

/// Goal: paths share no device if there are enough; else they share one at one end; none is taken twice, and
/// a device that is not known is no new one.
#[test]
fn paths_are_disjoint_where_they_can_be() {
    let choose = |won, connected: &[(u32, u32)]| choose(won, connected.to_vec(), |pair| *pair);
    assert_eq!(choose((1, 7), &[(1, 8), (2, 7), (2, 8), (1, 7)]), [(2, 8)]);
    assert_eq!(choose((1, 7), &[(1, 8), (1, 9), (1, 8)]), [(1, 8), (1, 9)]);
    assert_eq!(choose((1, 7), &[(1, 7), (1, 0), (0, 7), (0, 0)]), []);
    assert_eq!(choose((1, 0), &[(1, 0), (2, 0)]), [(2, 0)]);
}

/// Goal: IPv6 and IPv4 take turns after the first, and none is forgotten.
#[test]
fn families_take_turns() {
    let (v4, v6): (SocketAddr, SocketAddr) = ("10.0.0.1:1".parse().unwrap(), "[fd00::1]:1".parse().unwrap());
    let rest = |addrs: &[SocketAddr]| addrs.iter().copied().enumerate().collect::<Vec<_>>();
    assert_eq!(in_turn(&v6, rest(&[v6, v6, v4, v4, v4])), [2, 0, 3, 1, 4]);
    assert_eq!(in_turn(&v4, rest(&[v4, v4, v6])), [2, 0, 1]);
    assert!(in_turn(&v4, Vec::new()).is_empty());
}

/// A listener of the session on loopback, and a caller that knows it.
fn bench() -> (Listener, Arc<Caller>, Arc<AtomicU64>) {
    let (near, far) = (tls::Identity::generate().unwrap(), tls::Identity::generate().unwrap());
    let session = Session::new().unwrap();
    let (pin_near, pin) = (tls::Pin(near.public()), tls::Pin(far.public()));
    let strays = Arc::new(AtomicU64::new(0));
    let at = At::Only(vec![Ipv4Addr::LOCALHOST.into(), "127.0.0.2".parse().unwrap()]);
    let listener = Listener::open(
        &at,
        None,
        (session.clone(), 2),
        (far, pin_near),
        BTreeSet::new(),
        strays.clone(),
        None,
    )
    .unwrap();
    let caller = Caller { name: Some("far.invalid".into()), session, identity: near, pin, window: None };
    (listener, Arc::new(caller), strays)
}

fn rules() -> Rules {
    Rules { paths: true, wave: 0, deadline: Instant::now() + Duration::from_secs(20), stop: Stop::never() }
}

/// Goal: a stranger, a refusal and silence at the addresses before it do not keep control from the one that
/// is the far end; other pairs come out as paths, and what nobody needs is no stray.
/// Method: a socket that listens and says nothing (as a black hole does, but for the connection), one that
/// hangs up, one that nobody listens on; the first way and any place in the queue.
#[test]
fn control_finds_the_far_end() {
    let (listener, caller, strays) = bench();
    let port = listener.addr.port();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let rude = TcpListener::bind("127.0.0.1:0").unwrap();
    let (silent_at, rude_at) = (silent.local_addr().unwrap(), rude.local_addr().unwrap());
    thread::spawn(move || rude.incoming().for_each(drop));
    let refused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let way = |remote: SocketAddr, pair| Way { local: None, remote, pair };
    let good = way(listener.addr, (1, 1));
    let other = way(format!("127.0.0.2:{port}").parse().unwrap(), (2, 2));
    let list = vec![
        way(silent_at, (1, 1)),
        way(refused, (1, 1)),
        way(rude_at, (1, 1)),
        good,
        other,
        way(silent_at, (3, 3)),
    ];
    let mut dials = HappyEyeballs::start(caller.clone(), list, rules());
    let (won, _control) = dials.control(FIRST_EPOCH).unwrap();
    assert!(dials.way(won).is_same(&good) || dials.way(won).is_same(&other));
    let paths = dials.others(won);
    for (path, connected) in paths {
        assert!(path.remote.port() == port && path.pair != dials.way(won).pair, "{path:?}");
        connected.join(&caller.session, (StreamId(1), FIRST_EPOCH), Duration::from_secs(5)).unwrap();
    }
    drop(dials);
    // The last thread may still be on its way.
    let until = Instant::now() + Duration::from_secs(20);
    while strays.load(Ordering::Relaxed) > 0 && Instant::now() < until {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(strays.load(Ordering::Relaxed), 0);
    drop(silent);
}

/// Goal: a first way that refuses is no answer where another leads to the far end; where none does it is
/// said.
#[test]
fn a_way_that_refuses_is_not_the_last_word() {
    let (listener, caller, _) = bench();
    let refused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let way = |remote| Way { local: None, remote, pair: (1, 1) };
    let list = vec![way(refused), way(listener.addr)];
    let run = |list: &[Way]| {
        HappyEyeballs::start(caller.clone(), list.to_vec(), rules()).control(FIRST_EPOCH).map(|won| won.0)
    };
    assert_eq!(run(&list[..1]).err(), Some(Lost::Refused));
    assert_eq!(run(&list).ok(), Some(1));
}

/// Goal: the one address of the far end whose first connection is reset is not given up; one that cuts off
/// every time is.
/// Method: a go-between that resets the first connection and passes on all that follow; one that never passes
/// any.
#[test]
fn a_connection_that_is_cut_off_is_dialled_once_more() {
    let (listener, caller, _) = bench();
    let between = TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, far) = (between.local_addr().unwrap(), listener.addr);
    thread::spawn(move || {
        let mut come = between.incoming().flatten();
        // Closed with something unread, which resets it.
        let first = come.next().unwrap();
        first.peek(&mut [0]).unwrap();
        drop(first);
        let near = come.next().unwrap();
        let far = TcpStream::connect(far).unwrap();
        for (mut from, mut to) in
            [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far.try_clone().unwrap(), near)]
        {
            thread::spawn(move || io::copy(&mut from, &mut to));
        }
    });
    let caller = Arc::new(Caller { name: None, ..Arc::into_inner(caller).unwrap() });
    let run = |remote| {
        let list = vec![Way { local: None, remote, pair: (1, 1) }];
        HappyEyeballs::start(caller.clone(), list, rules()).control(FIRST_EPOCH).map(|won| won.0)
    };
    assert_eq!(run(at).ok(), Some(0));
    let rude = TcpListener::bind("127.0.0.1:0").unwrap();
    let rude_at = rude.local_addr().unwrap();
    let cuts = Arc::new(AtomicU64::new(0));
    let counted = cuts.clone();
    thread::spawn(move || {
        for stream in rude.incoming() {
            drop(stream);
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    assert_eq!(run(rude_at).err(), Some(Lost::Unreachable));
    assert_eq!(cuts.load(Ordering::Relaxed), 2);
}
