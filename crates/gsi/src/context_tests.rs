//! Both ends of a context, one against the other, and against who does not keep to it.

use std::time::Duration;

use crate::testing::*;
use crate::tokens::TOKEN_LEN_MAX;
use crate::{Acceptor, Authorities, Credential, Delegates, GsiError, Initiator, Rights, Step};

const LIMITED_DAY: Delegates = Delegates::Proxy(Rights::Limited, Duration::from_secs(86_400));

fn pair(grid: &Grid, mine: &Credential, delegates: Delegates) -> (Initiator, Acceptor) {
    let authorities = grid.authorities();
    let initiator = Initiator::new(mine, &authorities, "127.0.0.1", delegates).expect("an initiator");
    (initiator, Acceptor::new(&grid.host().credential(), &authorities).expect("an acceptor"))
}

/// Runs both to their end; the first error.
fn run(initiator: &mut Initiator, acceptor: &mut Acceptor) -> Result<(), GsiError> {
    let mut token = Vec::new();
    loop {
        let said = match initiator.step(&token)? {
            Step::Goes(said) | Step::Stands(said) => said,
        };
        match acceptor.step(&said)? {
            Step::Goes(said) => token = said,
            Step::Stands(last) => {
                assert!(last.is_empty() && initiator.stands());
                return Ok(());
            }
        }
    }
}

/// Goal: both know each other and hear what the other wraps, by a certificate and by a proxy, with and
/// without delegation.
#[test]
fn both_ends_know_each_other() {
    let grid = Grid::new();
    let alice = grid.user("alice");
    let proxy = alice.proxy(ProxyForm::default());
    for (who, delegates) in [
        (&alice, Delegates::Nothing),
        (&proxy, Delegates::Nothing),
        (&alice, LIMITED_DAY),
        (&proxy, Delegates::Proxy(Rights::All, Duration::from_secs(60))),
    ] {
        let (mut initiator, mut acceptor) = pair(&grid, &who.credential(), delegates);
        assert!(initiator.wrap(b"too early").is_err() && acceptor.unwrap(b"").is_err());
        run(&mut initiator, &mut acceptor).expect("a context");
        let peer = acceptor.peer().expect("somebody");
        assert_eq!((peer.identity.text(), peer.proxies), ("/O=Grid/CN=alice", who.chain.len() - 1));
        assert_eq!(initiator.peer().expect("a host").identity.text(), "/O=Grid/CN=host");
        for len in [0, 1, 70_000, 1 << 20] {
            let said = vec![7; len];
            let token = initiator.wrap(&said).expect("a token");
            assert_eq!(acceptor.unwrap(&token).expect("what was said"), said);
            let token = acceptor.wrap(&said).expect("a token");
            assert_eq!(initiator.unwrap(&token).expect("what was said"), said);
        }
        match (acceptor.delegated(), delegates) {
            (None, Delegates::Nothing) => {}
            (Some(delegated), Delegates::Proxy(rights, lifetime)) => {
                assert_eq!(delegated.identity(), &alice.name);
                let now = rustls::pki_types::UnixTime::now();
                let verified = grid.authorities().verify(delegated.chain(), &crate::Purpose::Somebody, now);
                let verified = verified.expect("it is alice's");
                assert_eq!((verified.rights, verified.proxies), (rights, who.chain.len()));
                let lasts = verified.ends - now.as_secs();
                assert!(lasts <= lifetime.as_secs() && lasts + 60 >= lifetime.as_secs(), "{lasts}");
            }
            (delegated, _) => panic!("{delegated:?}"),
        }
    }
}

/// Goal: what is delegated is never valid longer than what it comes from, nor gives more than that.
#[test]
fn a_delegated_proxy_is_never_more_than_its_issuer() {
    let grid = Grid::new();
    let ends = rustls::pki_types::UnixTime::now().as_secs() + 50;
    let short = ProxyForm { times: (ALWAYS.0, ends), language: LIMITED, ..ProxyForm::default() };
    let proxy = grid.user("alice").proxy(short);
    let all = Delegates::Proxy(Rights::All, Duration::from_secs(86_400));
    let (mut initiator, mut acceptor) = pair(&grid, &proxy.credential(), all);
    run(&mut initiator, &mut acceptor).expect("a context");
    let delegated = acceptor.delegated().expect("a proxy");
    let leaf = crate::cert::Cert::read(&delegated.chain()[0]).expect("a certificate");
    assert_eq!((delegated.ends(), leaf.ends.as_secs()), (ends, ends));
    let now = rustls::pki_types::UnixTime::now();
    let verified =
        grid.authorities().verify(delegated.chain(), &crate::Purpose::Somebody, now).expect("known");
    assert_eq!(verified.rights, Rights::Limited);
    // One that lets none come delegates none.
    let last = grid.user("alice").proxy(ProxyForm { path_len: Some(0), ..ProxyForm::default() });
    let (mut initiator, mut acceptor) = pair(&grid, &last.credential(), all);
    let error = run(&mut initiator, &mut acceptor).expect_err("no delegation");
    assert!(matches!(&error, GsiError::Here(why) if why.contains("lets no further one come")), "{error}");
}

/// Goal: whoever is nobody, or not whom he should be, ends the context at the end that sees it.
#[test]
fn strangers_get_no_context() {
    let (grid, other) = (Grid::new(), Grid::called("Other"));
    let alice = grid.user("alice").credential();
    // A host of another grid; another host of this one.
    let mut initiator = Initiator::new(&alice, &grid.authorities(), "127.0.0.1", LIMITED_DAY).expect("one");
    let mut acceptor = Acceptor::new(&other.host().credential(), &grid.authorities()).expect("one");
    let error = run(&mut initiator, &mut acceptor).expect_err("no context");
    assert!(matches!(&error, GsiError::Untrusted(why) if why.contains("no authority")), "{error}");
    let mut initiator =
        Initiator::new(&alice, &grid.authorities(), "elsewhere.example.org", LIMITED_DAY).expect("one");
    let mut acceptor = Acceptor::new(&grid.host().credential(), &grid.authorities()).expect("one");
    let error = run(&mut initiator, &mut acceptor).expect_err("no context");
    assert!(matches!(&error, GsiError::Untrusted(why) if why.contains("not for elsewhere")), "{error}");
    // A user is no host by his name.
    let mut initiator = Initiator::new(&alice, &grid.authorities(), "127.0.0.1", LIMITED_DAY).expect("one");
    let mut acceptor = Acceptor::new(&grid.user("bob").credential(), &grid.authorities()).expect("one");
    assert!(run(&mut initiator, &mut acceptor).is_err());
    // A user of another grid.
    let both: std::collections::HashMap<_, _> =
        grid.shelf.clone().into_iter().chain(other.shelf.clone()).collect();
    let (bob, both) = (other.user("bob").credential(), Authorities::new(both));
    let mut initiator = Initiator::new(&bob, &both, "127.0.0.1", LIMITED_DAY).expect("one");
    let mut acceptor = Acceptor::new(&grid.host().credential(), &grid.authorities()).expect("one");
    let error = run(&mut initiator, &mut acceptor).expect_err("no context");
    assert!(matches!(&error, GsiError::Untrusted(why) if why.contains("no authority")), "{error}");
    assert!(acceptor.peer().is_none() && !acceptor.stands());
    assert!(!acceptor.last_words().is_empty(), "it is not told");
    assert!(acceptor.step(b"").is_err());
    // A proxy that has expired.
    let late = grid.user("alice").proxy(ProxyForm { times: (NOW - 20, NOW - 10), ..ProxyForm::default() });
    let (mut initiator, mut acceptor) = pair(&grid, &late.credential(), LIMITED_DAY);
    let error = run(&mut initiator, &mut acceptor);
    // Where the clock of this machine is behind that time, it has not expired: nobody looks at it here.
    if rustls::pki_types::UnixTime::now().as_secs() > NOW - 10 {
        assert!(error.expect_err("no context").to_string().contains("has expired"));
    }
}

/// Goal: garbage, tokens without an end, tokens out of turn and cut ones are errors at either end; both stay
/// so.
#[test]
fn tokens_that_are_none_end_the_context() {
    let grid = Grid::new();
    let alice = grid.user("alice").credential();
    let first = |initiator: &mut Initiator| match initiator.step(b"").expect("a hello") {
        Step::Goes(token) => token,
        Step::Stands(_) => panic!("it stands at once"),
    };
    for bad in
        [vec![0; 10], b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![0x16; 1 << 20], vec![0x17, 3, 3, 0, 1, 0]]
    {
        let (mut initiator, mut acceptor) = pair(&grid, &alice, LIMITED_DAY);
        assert!(acceptor.step(&bad).is_err(), "{:?}", &bad[..6]);
        assert!(acceptor.step(&first(&mut initiator)).is_err(), "it goes on");
        let (mut initiator, _) = pair(&grid, &alice, LIMITED_DAY);
        first(&mut initiator);
        assert!(initiator.step(&bad).is_err(), "{:?}", &bad[..6]);
    }
    // Longer than any token, in the shape of one.
    let long: Vec<u8> =
        [0x16, 3, 1, 0x3f, 0xff].into_iter().chain([0; 0x3fff]).cycle().take(TOKEN_LEN_MAX + 1).collect();
    let (_, mut acceptor) = pair(&grid, &alice, LIMITED_DAY);
    let error = acceptor.step(&long).expect_err("no token").to_string();
    assert!(error.contains("longer than any real token"), "{error}");
    // Nothing, again and again.
    let (mut initiator, mut acceptor) = pair(&grid, &alice, LIMITED_DAY);
    first(&mut initiator);
    assert!((0..100).any(|_| initiator.step(b"").is_err()));
    assert!((0..100).any(|_| acceptor.step(b"").is_err()));
    // Each token of a context cut or changed at some of its bytes.
    for round in 0..4 {
        for at in [0, 5, 9, 40] {
            for cut in [false, true] {
                let (mut initiator, mut acceptor) = pair(&grid, &alice, LIMITED_DAY);
                let (mut token, mut failed, mut spoilt) = (Vec::new(), false, false);
                for turn in 0..8 {
                    let result = if turn % 2 == 0 { initiator.step(&token) } else { acceptor.step(&token) };
                    let Ok(Step::Goes(mut said) | Step::Stands(mut said)) = result else {
                        failed = true;
                        break;
                    };
                    if turn == round && at < said.len() {
                        spoilt = true;
                        if cut {
                            said.truncate(at);
                        } else {
                            said[at] ^= 0x40;
                        }
                    }
                    token = said;
                }
                assert!(failed || !acceptor.stands() || !spoilt, "round {round}, byte {at}, cut {cut}");
            }
        }
    }
}

/// Goal: an acceptor takes no proxy but one for the key that it asked for, of who came.
#[test]
fn foreign_proxies_are_not_taken() {
    use crate::proxy::{Asked, Form, answer, issue};
    let grid = Grid::new();
    let (alice, bob) = (grid.user("alice"), grid.user("bob"));
    let now = rustls::pki_types::UnixTime::now();
    let authorities = grid.authorities();
    let who = authorities.verify(&alice.chain, &crate::Purpose::Somebody, now).expect("alice");
    let day = (Duration::from_secs(1000), now);
    let mine = alice.credential();
    let (asked, request) = Asked::new().expect("a request");
    let good = answer(&request, &mine, Rights::All, day).expect("an answer");
    assert!(asked.answered(&good, &alice.chain, &who, (&authorities, now)).is_ok());
    // With the chain behind it, as some send it.
    let (asked, request) = Asked::new().expect("a request");
    let good =
        [answer(&request, &mine, Rights::All, day).expect("an answer"), alice.chain[0].to_vec()].concat();
    assert!(asked.answered(&good, &alice.chain, &who, (&authorities, now)).is_ok());
    let other_key = Key::new();
    let form =
        Form { rights: Rights::All, path_len: None, begins: now.as_secs() - 10, ends: now.as_secs() + 10 };
    let for_other = issue(&mine, &other_key.spki(), &form).expect("a proxy");
    let (asked, request) = Asked::new().expect("a request");
    let of_bob = answer(&request, &bob.credential(), Rights::All, day).expect("an answer");
    assert!(asked.answered(&of_bob, &alice.chain, &who, (&authorities, now)).is_err());
    for (bad, why) in
        [(for_other, "another key"), (b"nothing".to_vec(), "no certificate"), (Vec::new(), "no certificate")]
    {
        let (asked, _) = Asked::new().expect("a request");
        let error = asked.answered(&bad, &alice.chain, &who, (&authorities, now)).expect_err(why);
        assert!(error.to_string().contains(why), "{error}");
    }
    // A request whose signature is another key's, and what is none.
    let mut changed = request.clone();
    let last = changed.len() - 1;
    changed[last] ^= 1;
    let error = answer(&changed, &mine, Rights::All, day).expect_err("no answer");
    assert!(error.to_string().contains("is not signed by the key"), "{error}");
    for bad in [&b"nothing"[..], b"", &[0x30; 100_000]] {
        assert!(answer(bad, &mine, Rights::All, day).is_err());
    }
}

/// Goal: who shows a chain must have its key, a proxy's too, in either version of TLS and at either end.
#[test]
fn who_has_no_key_is_nobody() {
    use std::sync::Arc;

    use rustls::client::Resumption;
    use rustls::sign::CertifiedKey;
    use rustls::version::{TLS12, TLS13};
    use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};

    use crate::peer::{Mine, Peer, Who};
    use crate::tokens::Tokens;
    use crate::verify::provider;

    let grid = Grid::new();
    let (authorities, proxy, host) =
        (grid.authorities(), grid.user("alice").proxy(ProxyForm::default()), grid.host());
    let other = Key::new();
    for version in [&TLS12, &TLS13] {
        for (clients, servers) in [(&proxy.key, &host.key), (&other, &host.key), (&proxy.key, &other)] {
            let mine = |chain: &Somebody, key: &Key| {
                Arc::new(Mine(Arc::new(CertifiedKey::new(chain.chain.clone(), key.signing.clone()))))
            };
            let peers = [Peer::new(&authorities, Who::Anybody), Peer::new(&authorities, Who::Anybody)];
            let mut config = ClientConfig::builder_with_provider(Arc::new(provider()))
                .with_protocol_versions(&[version])
                .expect("a version")
                .dangerous()
                .with_custom_certificate_verifier(peers[0].clone())
                .with_client_cert_resolver(mine(&proxy, clients));
            config.resumption = Resumption::disabled();
            let client = ClientConnection::new(Arc::new(config), "peer.invalid".try_into().expect("a name"));
            let config = ServerConfig::builder_with_provider(Arc::new(provider()))
                .with_protocol_versions(&[version])
                .expect("a version")
                .with_client_cert_verifier(peers[1].clone())
                .with_cert_resolver(mine(&host, servers));
            let server = ServerConnection::new(Arc::new(config));
            let ends: [Connection; 2] = [client.expect("an end").into(), server.expect("an end").into()];
            let [client, server] = ends;
            let [of_client, of_server] = peers;
            let mut ends = [Tokens::new(client, of_client), Tokens::new(server, of_server)];
            let (mut token, mut failed) = (Vec::new(), false);
            for turn in 0..8 {
                let end = &mut ends[turn % 2];
                failed |= end.hear(&token).is_err();
                token = end.token().expect("a token");
            }
            let is_right = clients.spki() == proxy.key.spki() && servers.spki() == host.key.spki();
            let stand = ends.iter().all(|end| !end.is_handshaking());
            assert_eq!((!failed && stand, failed), (is_right, !is_right), "{version:?}");
        }
    }
}
