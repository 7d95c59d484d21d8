//! Copies from GridFTP servers that know users by certificates alone.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crate::support::compare::{BELOW, assert_same};
use crate::support::ftpd::{Ftpd, Kind, contents};
use crate::support::run::Haul;
use crate::support::{Room, set_mode, tree};

/// Who trusts the server's grid, and comes by what is said of him.
fn of(ftpd: &Ftpd) -> Haul {
    Haul::cp(["-r", "-v"]).env("X509_CERT_DIR", ftpd.of_grid("authorities"))
}

fn filled(room: &Room) -> PathBuf {
    let (data, mut rng) = (room.dir("data"), fastrand::Rng::with_seed(51));
    for n in 0..30 {
        let len = if n == 0 { 9_000_000 } else { rng.usize(..300_000) };
        let path = data.join(format!("f{n}"));
        fs::write(&path, tree::bytes(&mut rng, len)).expect("write a file");
        tree::set_mtime(&path, SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000 + n));
    }
    data
}

/// Goal: a user comes by his proxy, or by his certificate and key, and gets every byte; it is said that data
/// are not protected.
/// Method: the server of Globus, which maps the certificate's name to a user.
#[test]
fn trees_come_by_a_certificate() {
    need!("gridftp");
    let (room, ftpd) = (Room::new(), Ftpd::start(Kind::GridftpGsi));
    let data = filled(&room);
    let url = ftpd.url(contents(&data));
    assert!(url.starts_with("gsiftp://127.0.0.1"), "{url}");
    let proxy = of(&ftpd).env("X509_USER_PROXY", ftpd.of_grid("alice"));
    let own = of(&ftpd)
        .env("X509_USER_CERT", ftpd.of_grid("user.pem"))
        .env("X509_USER_KEY", ftpd.of_grid("user.key"));
    for (haul, sink) in [(proxy, room.dir("one")), (own, room.dir("two"))] {
        let ended = haul.args([url.as_str(), sink.to_str().expect("UTF-8")]).run().sane().exits(0);
        assert_same(&data, &sink, BELOW);
        ended.says("commands by GSI, with a server that showed its certificate; data go as they are");
    }
}

/// Goal: without a credential, with one that others can read, without authorities or with those of another
/// grid there is a clear error and no copy.
#[test]
fn what_is_missing_is_said() {
    need!("gridftp");
    let (room, ftpd, other) = (Room::new(), Ftpd::start(Kind::GridftpGsi), Ftpd::start(Kind::GridftpGsi));
    let data = filled(&room);
    let proxy = ftpd.of_grid("alice");
    let open = room.file("open", fs::read(&proxy).expect("read the proxy"));
    set_mode(&open, 0o644);
    let none = room.file("none", "");
    let fifo = room.at("fifo");
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600));
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, mode, 0).expect("make a FIFO");
    for (haul, says) in [
        (of(&ftpd), "grid-proxy-init"),
        (of(&ftpd).env("X509_USER_PROXY", &open), "chmod 600"),
        (of(&ftpd).env("X509_USER_PROXY", room.at("missing")), "No such file"),
        (of(&ftpd).env("X509_USER_PROXY", &none), "holds no certificate"),
        (of(&ftpd).env("X509_USER_PROXY", &fifo), "is no regular file"),
        (of(&other).env("X509_USER_PROXY", &proxy), "no authority that this host trusts"),
        (of(&ftpd).env("X509_USER_PROXY", other.of_grid("alice")), "the server answers 5"),
        (
            Haul::cp(["-r"]).env("X509_USER_PROXY", &proxy).env("X509_CERT_DIR", room.dir("empty")),
            "holds no certificate of an authority",
        ),
    ] {
        let sink = room.at("sink");
        let url = ftpd.url(&data);
        haul.args([url.as_str(), sink.to_str().expect("UTF-8")]).run().sane().exits(1).says(says);
        assert!(!sink.exists(), "{says}: something was made");
    }
}
