use super::*;
use crate::testing::*;

fn verify(grid: &Grid, who: &Somebody) -> Result<Verified, String> {
    let authorities = grid.authorities();
    authorities.verify(&who.chain, &Purpose::Somebody, now()).map_err(|error| error.to_string())
}

fn refused(grid: &Grid, who: &Somebody, why: &str) {
    let error = verify(grid, who).expect_err(why);
    assert!(error.contains(why), "{why}: {error}");
}

/// Goal: a user, his proxy and the proxy of that are he; a limited one is that.
#[test]
fn people_and_their_proxies_are_known() {
    let grid = Grid::new();
    let alice = grid.user("alice");
    let proxy = alice.proxy(ProxyForm::default());
    let second =
        proxy.proxy(ProxyForm { language: LIMITED, times: (NOW - 10, NOW + 10), ..ProxyForm::default() });
    for (who, proxies, rights) in
        [(&alice, 0, Rights::All), (&proxy, 1, Rights::All), (&second, 2, Rights::Limited)]
    {
        let verified = verify(&grid, who).expect("she is known");
        assert_eq!(verified.identity.text(), "/O=Grid/CN=alice");
        assert_eq!((verified.proxies, verified.rights), (proxies, rights));
    }
    assert_eq!(verify(&grid, &second).expect("known").ends, NOW + 10);
}

/// Goal: nothing counts that is not of an authority of this host, in its time, by its policy.
#[test]
fn nobody_is_known_without_an_authority_and_its_policy() {
    let mut grid = Grid::new();
    let alice = grid.user("alice");
    refused(&Grid::new(), &alice, "no authority that this host trusts");
    refused(&Grid::called("Other"), &alice, "no authority that this host trusts");
    let early = grid.signs(&dn(&[("O", "Grid"), ("CN", "x")]), vec![], (NOW + 10, NOW + 20));
    refused(&grid, &early, "not valid yet");
    let late = grid.signs(&dn(&[("O", "Grid"), ("CN", "x")]), vec![], (NOW - 20, NOW - 10));
    refused(&grid, &late, "has expired");
    let other = grid.signs(&dn(&[("O", "Elsewhere"), ("CN", "alice")]), vec![constraints(false)], ALWAYS);
    refused(&grid, &other, "may not sign for /O=Elsewhere/CN=alice");
    let mut chain = alice.chain.clone();
    chain.clear();
    refused(&grid, &Somebody { chain, ..grid.user("x") }, "it shows no certificate");
    let authority = Somebody { chain: vec![grid.cert.clone()], ..grid.user("x") };
    refused(&grid, &authority, "which is an authority");
    let policy = format!("{}.signing_policy", grid.name.hash());
    let text = grid.shelf.remove(&policy).expect("there is one");
    refused(&grid, &alice, "no signing policy");
    grid.shelf.insert(policy.clone(), b"access_id_CA".to_vec());
    refused(&grid, &alice, "ends where X509 should be");
    grid.shelf.insert(policy, text);
    verify(&grid, &alice).expect("she is known again");
}

/// Goal: an authority that has expired speaks for nobody, although webpki would not look.
#[test]
fn an_expired_authority_speaks_for_nobody() {
    let mut grid = Grid::new();
    let alice = grid.user("alice");
    let made = Made {
        subject: &grid.name,
        issuer: &grid.name,
        by: &grid.key,
        times: (NOW - 20, NOW - 10),
        extensions: vec![constraints(true), usage(CERTIFIES)],
        serial: 1,
    };
    let cert = pem("CERTIFICATE", &certificate(&grid.key, made));
    grid.put("0", cert);
    refused(&grid, &alice, "/CN=Authority has expired");
}

/// Goal: an authority between is as good as its own policy lets it be; in the directory alone it is no root.
#[test]
fn authorities_between_need_policies_of_their_own() {
    let mut grid = Grid::new();
    let middle = Grid::called("Middle");
    let between = certificate(
        &middle.key,
        Made {
            subject: &middle.name,
            issuer: &grid.name,
            by: &grid.key,
            times: ALWAYS,
            extensions: vec![constraints(true), usage(CERTIFIES)],
            serial: 9,
        },
    );
    let mut alice = middle.user("alice");
    let file = |what: &str| format!("{}.{what}", middle.name.hash());
    grid.shelf.insert(file("signing_policy"), middle.policy("\"/O=Grid/*\""));
    // It is shown by the user.
    let own = alice.chain.clone();
    alice.chain.push(between.clone());
    refused(&grid, &alice, "may not sign for /CN=Middle");
    let policy = grid.policy("\"/CN=Middle\" \"/O=Grid/*\"");
    grid.put("signing_policy", policy);
    verify(&grid, &alice).expect("she is known");
    // Or it is in the directory.
    alice.chain = own;
    refused(&grid, &alice, "no authority that this host trusts");
    grid.shelf.insert(file("0"), pem("CERTIFICATE", &between));
    verify(&grid, &alice).expect("she is known");
    grid.shelf.insert(file("signing_policy"), middle.policy("\"/O=Grid/CN=bob\""));
    refused(&grid, &alice, "may not sign for /O=Grid/CN=alice");
    grid.shelf.insert(file("signing_policy"), middle.policy("\"/O=Grid/*\""));
    let root = format!("{}.0", grid.name.hash());
    grid.shelf.remove(&root);
    refused(&grid, &alice, "no authority that this host trusts");
}

/// Goal: what was revoked is refused, and so is everything while the list has expired, is not valid yet, is
/// of somebody else, or cannot be read. Without a list nothing is.
#[test]
fn revocation_lists_count_and_so_does_their_age() {
    let mut grid = Grid::new();
    let alice = grid.user("alice");
    let proxy = alice.proxy(ProxyForm::default());
    let good = (NOW - 100, NOW + 100);
    let list = grid.list(&grid.key, &[], good);
    grid.put("r0", list);
    verify(&grid, &proxy).expect("she is known");
    let list = grid.list(&grid.key, &[42], good);
    grid.put("r0", list);
    for who in [&alice, &proxy] {
        refused(&grid, who, "/O=Grid/CN=alice was revoked");
    }
    // Where there are two, both count.
    let (first, second) = (grid.list(&grid.key, &[1], good), grid.list(&grid.key, &[42], good));
    grid.put("r0", [first, second].concat());
    for (list, why) in [
        (grid.list(&grid.key, &[], (NOW - 100, NOW - 10)), "has expired"),
        (grid.list(&grid.key, &[], (NOW + 10, NOW + 100)), "is not valid yet"),
        (grid.list(&Key::new(), &[], good), "is not signed by it"),
        (b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n".to_vec(), "cannot be read"),
        (b"nothing".to_vec(), "holds none"),
    ] {
        grid.put("r0", list);
        refused(&grid, &proxy, why);
    }
    // In the place of its own, it would count for nobody, and nobody were revoked any more.
    let mut other = Grid::new();
    other.name = alice.name.clone();
    let list = other.list(&other.key, &[], good);
    grid.put("r0", list);
    refused(&grid, &proxy, "another authority's");
}

/// Goal: each rule of RFC 3820 for proxies is held, and so are the kinds before it refused by their names.
#[test]
fn proxies_that_break_a_rule_are_refused() {
    let grid = Grid::new();
    let (alice, bob) = (grid.user("alice"), grid.user("bob"));
    let of = |form| alice.proxy(form);
    let plain = ProxyForm::default;
    let behind = |who: &Dn, common| {
        Dn::of_der(&crate::proxy::below(who.der(), common).expect("a name")).expect("a name")
    };
    let unknown =
        crate::proxy::extension(der::asn1::ObjectIdentifier::new_unwrap("1.2.3.4"), b"x").expect("one");
    for (form, why) in [
        (ProxyForm { times: (NOW - 20, NOW - 10), ..plain() }, "has expired"),
        (ProxyForm { times: (NOW + 10, NOW + 20), ..plain() }, "not valid yet"),
        (ProxyForm { by: Some(&bob.key), ..plain() }, "was not signed by"),
        (
            ProxyForm { issuer: Some(bob.name.clone()), ..plain() },
            "not of whose certificate stands behind it",
        ),
        (ProxyForm { subject: Some(behind(&bob.name, "1")), ..plain() }, "another name than its issuer's"),
        (ProxyForm { subject: Some(alice.name.clone()), ..plain() }, "another name than its issuer's"),
        (ProxyForm { subject: Some(behind(&behind(&alice.name, "1"), "2")), ..plain() }, "another name than"),
        (ProxyForm { critical: false, ..plain() }, "not critical"),
        (ProxyForm { usage: 0x20, ..plain() }, "another use than a proxy's"),
        (ProxyForm { usage: 0x84, ..plain() }, "another use than a proxy's"),
        (ProxyForm { language: "1.3.6.1.5.5.7.21.2", ..plain() }, "independent"),
        (ProxyForm { language: "1.3.6.1.5.5.7.21.0", ..plain() }, "agreed upon"),
        (ProxyForm { language: "1.2.3.4", ..plain() }, "language 1.2.3.4"),
        (ProxyForm { more: vec![constraints(true)], ..plain() }, "a proxy and an authority at once"),
        (ProxyForm { more: vec![unknown], ..plain() }, "critical extension 1.2.3.4"),
        (ProxyForm { more: vec![usage(SIGNS)], ..plain() }, "twice"),
        (ProxyForm { more: vec![alternative(&crate::name::tlv(0x82, b"host"))], ..plain() }, "further name"),
    ] {
        refused(&grid, &of(form), why);
    }
    // A path length.
    let last = of(ProxyForm { path_len: Some(0), ..plain() });
    verify(&grid, &last).expect("it is good itself");
    refused(&grid, &last.proxy(plain()), "lets no further proxy come");
    let two = of(ProxyForm { path_len: Some(1), ..plain() }).proxy(plain());
    verify(&grid, &two).expect("one may come");
    refused(&grid, &two.proxy(plain()), "lets no further proxy come");
    // One that says more does not give more.
    let more =
        of(ProxyForm { path_len: Some(1), ..plain() }).proxy(ProxyForm { path_len: Some(9), ..plain() });
    refused(&grid, &more.proxy(plain()), "lets no further proxy come");
    // What was limited stays so.
    let limited = of(ProxyForm { language: LIMITED, ..plain() });
    refused(&grid, &limited.proxy(plain()), "claims more than the limited one");
    // Whose key is not for signing has no proxies.
    let only_enciphers = grid.signs(&alice.name, vec![constraints(false), usage(0x20)], ALWAYS);
    refused(&grid, &only_enciphers.proxy(plain()), "not for signing");
    // The kinds before RFC 3820.
    for common in ["proxy", "limited proxy"] {
        let key = Key::new();
        let (subject, extensions) = (behind(&alice.name, common), vec![usage(SIGNS)]);
        let made = Made {
            subject: &subject,
            issuer: &alice.name,
            by: &alice.key,
            times: ALWAYS,
            extensions,
            serial: 1,
        };
        let chain = [certificate(&key, made)].into_iter().chain(alice.chain.clone()).collect();
        refused(&grid, &Somebody { chain, name: subject.clone(), key }, "old kind of Globus 2");
    }
    let draft = der::asn1::ObjectIdentifier::new_unwrap("1.3.6.1.4.1.3536.1.222");
    let extensions = vec![crate::proxy::extension(draft, b"\x30\x00").expect("one")];
    refused(&grid, &grid.signs(&behind(&alice.name, "1"), extensions, ALWAYS), "draft before RFC 3820");
}

/// Goal: nothing foreign stands in a chain, and a chain is bounded.
#[test]
fn chains_have_nothing_foreign_in_them() {
    let grid = Grid::new();
    let (alice, bob) = (grid.user("alice"), grid.user("bob"));
    let mut proxy = alice.proxy(ProxyForm::default());
    proxy.chain.insert(1, bob.chain[0].clone());
    refused(&grid, &proxy, "is no authority");
    let mut proxy = alice.proxy(ProxyForm::default());
    proxy.chain[1] = bob.chain[0].clone();
    refused(&grid, &proxy, "not of whose certificate stands behind it");
    // A proxy of bob's in alice's chain.
    let mut proxy = alice.proxy(ProxyForm::default());
    let second = proxy.proxy(ProxyForm::default());
    proxy.chain = vec![
        second.chain[0].clone(),
        bob.proxy(ProxyForm::default()).chain[0].clone(),
        alice.chain[0].clone(),
    ];
    refused(&grid, &proxy, "not of whose certificate");
    let mut alone = alice.proxy(ProxyForm::default());
    alone.chain.truncate(1);
    refused(&grid, &alone, "nothing that says whose");
    let mut long = grid.user("alice");
    long.chain = vec![long.chain[0].clone(); CHAIN_MAX + 1];
    refused(&grid, &long, "longer than any real one");
    long.chain = vec![vec![0x30; 100_000].into()];
    refused(&grid, &long, "longer than any real one");
    long.chain = vec![b"nothing".to_vec().into()];
    refused(&grid, &long, "cannot be read");
    // Behind an authority comes no user, and an authority is no proxy's issuer.
    let mut ca = grid.user("x");
    ca.chain = vec![grid.cert.clone()];
    let by_ca = Somebody { chain: ca.chain, name: grid.name.clone(), key: Key::new() };
    let by_ca = by_ca.proxy(ProxyForm { by: Some(&grid.key), ..ProxyForm::default() });
    refused(&grid, &by_ca, "which is an authority");
}

/// Goal: a host is the one of its further names, or, where it has none, of its common name, with or without
/// `host/`; a wildcard stands for one whole label, and never in a common name.
#[test]
fn hosts_are_known_by_their_names() {
    let grid = Grid::new();
    let dns = |name: &str| crate::name::tlv(0x82, name.as_bytes());
    let named = |common: &str, names: Vec<u8>| {
        let mut extensions = vec![constraints(false), usage(SIGNS)];
        if !names.is_empty() {
            extensions.push(alternative(&names));
        }
        grid.signs(&dn(&[("O", "Grid"), ("CN", common)]), extensions, ALWAYS)
    };
    let is = |who: &Somebody, host: &str| {
        grid.authorities()
            .verify(&who.chain, &Purpose::Host(host), now())
            .map(drop)
            .map_err(|e| e.to_string())
    };
    let plain = named("a.example.org", vec![]);
    assert_eq!(is(&plain, "a.example.org"), Ok(()));
    assert_eq!(is(&plain, "A.Example.org"), Ok(()));
    assert!(is(&plain, "b.example.org").expect_err("another").contains("not for b.example.org"));
    assert_eq!(is(&named("host/a.example.org", vec![]), "a.example.org"), Ok(()));
    assert!(is(&named("ldap/a.example.org", vec![]), "a.example.org").is_err());
    assert!(is(&named("*.example.org", vec![]), "a.example.org").is_err());
    assert_eq!(is(&named("127.0.0.1", vec![]), "127.0.0.1"), Ok(()));
    let other = named("a.example.org", dns("b.example.org"));
    assert_eq!(is(&other, "b.example.org"), Ok(()));
    assert!(is(&other, "a.example.org").expect_err("not that").contains("b.example.org"));
    let wild = named("x", dns("*.example.org"));
    assert_eq!(is(&wild, "a.example.org"), Ok(()));
    assert!(is(&wild, "a.b.example.org").is_err());
    assert!(is(&wild, "example.org").is_err());
    assert!(is(&named("x", dns("a*.example.org")), "ab.example.org").is_err());
    // A mail address is no name of a host.
    let mail = named("a.example.org", crate::name::tlv(0x81, b"a@example.org"));
    assert_eq!(is(&mail, "a.example.org"), Ok(()));
    let address = named("a.example.org", crate::name::tlv(0x87, &[127, 0, 0, 1]));
    assert!(is(&address, "a.example.org").expect_err("not that").contains("127.0.0.1"));
    assert!(is(&named("a.example.org", vec![0x82, 0x7f]), "a.example.org").is_err());
    let host = grid.host();
    assert_eq!(is(&host, "127.0.0.1"), Ok(()));
    assert!(is(&host, "127.0.0.2").is_err());
}

/// Goal: bytes that are no certificates, or were changed anywhere, end in an error.
/// Method: each byte of a proxy's certificate changed in turn.
#[test]
fn changed_certificates_are_refused() {
    let grid = Grid::new();
    let proxy = grid.user("alice").proxy(ProxyForm::default());
    let authorities = grid.authorities();
    for link in 0..2 {
        for at in 0..proxy.chain[link].len() {
            let mut chain = proxy.chain.clone();
            let mut der = chain[link].to_vec();
            der[at] ^= 0x10;
            chain[link] = der.into();
            assert!(authorities.verify(&chain, &Purpose::Somebody, now()).is_err(), "{link} {at}");
        }
    }
}
