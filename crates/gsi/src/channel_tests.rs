//! Both ends of a data connection over a pair of sockets.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use super::*;
use crate::testing::*;

fn sockets() -> (UnixStream, UnixStream) {
    let (one, two) = UnixStream::pair().expect("a pair of sockets");
    for socket in [&one, &two] {
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a patience");
    }
    (one, two)
}

type Ended = Result<(Wrapped<UnixStream>, Verified), ChannelError>;

/// Both ends; `dials`, `listens`: as whom, and whom they expect.
fn both(
    grid: &Grid,
    level: Level,
    dials: (&Somebody, &Somebody),
    listens: (&Somebody, &Somebody),
) -> (Ended, Ended) {
    let (one, two) = sockets();
    let authorities = grid.authorities();
    let run = |stream, side, (mine, other): (&Somebody, &Somebody)| {
        let (mine, expects, authorities) =
            (mine.credential(), Expects::Identity(other.name.clone()), authorities.clone());
        thread::spawn(move || wrap(stream, side, level, (&mine, &authorities, &expects)))
    };
    let (one, two) = (run(one, Side::Dialled, dials), run(two, Side::Listened, listens));
    (one.join().expect("it ends"), two.join().expect("it ends"))
}

/// Goal: who are the same user's, whichever proxies they show, talk in both directions, clear or private;
/// what was protected is seen to have ended well.
#[test]
fn the_same_users_ends_talk() {
    let grid = Grid::new();
    let alice = grid.user("alice");
    let proxy = alice.proxy(ProxyForm::default());
    let limited = proxy.proxy(ProxyForm { language: LIMITED, ..ProxyForm::default() });
    let content: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
    for level in [Level::Clear, Level::Private] {
        let (dialled, listened) = both(&grid, level, (&proxy, &alice), (&limited, &alice));
        let ((mut dialled, one), (mut listened, two)) = (dialled.expect("an end"), listened.expect("an end"));
        assert_eq!((one.identity, one.proxies, two.proxies), (alice.name.clone(), 2, 1));
        let sent = content.clone();
        let sender = thread::spawn(move || {
            dialled.write_all(&sent).expect("it is sent");
            dialled.end().expect("an end");
            if level == Level::Clear {
                dialled.stream().shutdown(std::net::Shutdown::Write).expect("an end");
            }
            let mut back = Vec::new();
            dialled.read_to_end(&mut back).expect("an answer");
            back
        });
        let mut got = Vec::new();
        listened.read_to_end(&mut got).expect("it comes, and ends well");
        assert_eq!(got, content);
        listened.write_all(b"thanks").expect("it is sent");
        listened.end().expect("an end");
        drop(listened);
        assert_eq!(sender.join().expect("it ends"), b"thanks");
    }
}

/// Goal: not a byte behind the handshake is taken from a connection that goes on in the clear.
#[test]
fn what_follows_in_the_clear_is_not_swallowed() {
    let grid = Grid::new();
    let alice = grid.user("alice");
    for side in [Side::Dialled, Side::Listened] {
        let (one, two) = sockets();
        let (mine, authorities) = (alice.credential(), grid.authorities());
        let expects = Expects::Identity(alice.name.clone());
        let other = if side == Side::Dialled { Side::Listened } else { Side::Dialled };
        let with = (mine.clone(), authorities.clone(), expects.clone());
        let sender = thread::spawn(move || {
            let (mut wrapped, _) =
                wrap(one, side, Level::Clear, (&with.0, &with.1, &with.2)).expect("an end");
            // Right behind it, and it looks like TLS.
            wrapped.write_all(&[0x17, 3, 3, 0, 5, 1, 2, 3, 4, 5]).expect("it is sent");
        });
        let (mut wrapped, _) =
            wrap(two, other, Level::Clear, (&mine, &authorities, &expects)).expect("an end");
        let mut got = Vec::new();
        wrapped.read_to_end(&mut got).expect("it comes");
        assert_eq!(got, [0x17, 3, 3, 0, 5, 1, 2, 3, 4, 5]);
        sender.join().expect("it ends");
    }
}

/// Goal: an end that shows another user, one of another grid, or an expired proxy, is refused by the other
/// before any data.
#[test]
fn another_users_proxy_is_refused() {
    let (grid, other) = (Grid::new(), Grid::called("Other"));
    let (alice, bob) = (grid.user("alice"), grid.user("bob"));
    let (of_alice, of_bob) = (alice.proxy(ProxyForm::default()), bob.proxy(ProxyForm::default()));
    let foreign = other.user("alice").proxy(ProxyForm::default());
    for level in [Level::Clear, Level::Private] {
        for (shown, why) in
            [(&of_bob, "should be /O=Grid/CN=alice"), (&foreign, "no authority that this host trusts")]
        {
            let (dialled, _) = both(&grid, level, (&of_alice, &alice), (shown, &alice));
            let error = dialled.err().expect("it is refused").to_string();
            assert!(error.contains(why), "{error}");
            let (_, listened) = both(&grid, level, (shown, &alice), (&of_alice, &alice));
            let error = listened.err().expect("it is refused").to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}

/// Goal: by its text, too, an end must be whom it should be.
#[test]
fn a_subject_is_expected_by_its_text() {
    let grid = Grid::new();
    let alice = grid.user("alice");
    for (text, fits) in
        [("/O=Grid/CN=alice", true), ("/O=Grid/CN=bob", false), ("/O=Grid/CN=alice/CN=1", false)]
    {
        let (one, two) = sockets();
        let (mine, authorities) = (alice.credential(), grid.authorities());
        let expects = Expects::Subject(text.into());
        let with = (mine.clone(), authorities.clone(), Expects::Identity(alice.name.clone()));
        let other = thread::spawn(move || {
            wrap(one, Side::Listened, Level::Clear, (&with.0, &with.1, &with.2)).is_ok()
        });
        let result = wrap(two, Side::Dialled, Level::Clear, (&mine, &authorities, &expects));
        assert_eq!(result.is_ok(), fits, "{text}");
        drop(result);
        assert_eq!(other.join().expect("it ends"), fits, "{text}");
    }
}

/// Goal: garbage, an end that hangs up anywhere, and protected data that are cut off are errors.
#[test]
fn cut_handshakes_and_cut_data_are_errors() {
    let grid = Grid::new();
    let alice = grid.user("alice");
    let with = || (alice.credential(), grid.authorities(), Expects::Identity(alice.name.clone()));
    for said in [
        &b""[..],
        b"\x16",
        b"\x16\x03\x03\x40\x00",
        b"\x16\x03\x03\xff\xff",
        b"220 ready\r\n",
        &[0x16, 3, 3, 0, 0],
    ] {
        for side in [Side::Dialled, Side::Listened] {
            let (one, mut two) = sockets();
            two.write_all(said).expect("it is sent");
            two.shutdown(std::net::Shutdown::Write).expect("an end");
            let (mine, authorities, expects) = with();
            assert!(wrap(one, side, Level::Clear, (&mine, &authorities, &expects)).is_err(), "{said:?}");
        }
    }
    let (dialled, listened) = both(&grid, Level::Private, (&alice, &alice), (&alice, &alice));
    let ((mut dialled, _), (mut listened, _)) = (dialled.expect("an end"), listened.expect("an end"));
    dialled.write_all(b"half").expect("it is sent");
    drop(dialled);
    let mut got = Vec::new();
    let error = listened.read_to_end(&mut got).expect_err("it was cut off");
    assert_eq!((error.kind(), &got[..]), (io::ErrorKind::UnexpectedEof, &b"half"[..]));
}
