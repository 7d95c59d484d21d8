//! Copies from FTP servers under TLS: real ones that take nothing else.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crate::support::compare::{BELOW, assert_same};
use crate::support::ftpd::{Ftpd, Kind, PASSWORD, certificate, contents};
use crate::support::run::Haul;
use crate::support::{Room, tree};

/// A copy of a tree, by who trusts the tests' authority.
fn trusting() -> Haul {
    Haul::cp(["-r", "-v"]).env("SSL_CERT_FILE", certificate("ca.pem"))
}

/// Files, more than a server gives tickets for, one of them with several objects, of times as servers tell
/// them.
fn filled(room: &Room) -> PathBuf {
    let (data, mut rng) = (room.dir("data"), fastrand::Rng::with_seed(41));
    for n in 0..40 {
        let len = if n == 0 { 9_000_000 } else { rng.usize(..300_000) };
        let path = data.join(format!("f{n}"));
        fs::write(&path, tree::bytes(&mut rng, len)).expect("write a file");
        tree::set_mtime(&path, SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000 + n));
    }
    // Telnet's own byte, which ProFTPD reads twice for once; of these names either is the other one's double.
    for name in [&b"x\xffy"[..], b"x\xff\xffy"] {
        let path = data.join(OsStr::from_bytes(name));
        fs::write(&path, name).expect("write a file");
        tree::set_mtime(&path, SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000));
    }
    data
}

/// Goal: trees come whole from servers that want TLS for commands and data, and data only by who resumes the
/// session of the commands; it is said that they were protected.
/// Method: ProFTPD and vsftpd; the first refuses a session without TLS.
#[test]
fn trees_come_under_tls() {
    for kind in Kind::these(&Kind::UNDER_TLS) {
        let (room, ftpd) = (Room::new(), Ftpd::start(kind));
        let (data, sink) = (filled(&room), room.dir("sink"));
        let url = ftpd.url(contents(&data));
        assert!(url.starts_with("ftps://"), "{url}");
        let ended = trusting().args([url.as_str(), sink.to_str().expect("UTF-8")]).run().sane().exits(0);
        assert_same(&data, &sink, BELOW);
        ended.says("TLS, with a server that showed its certificate");

        // Without TLS it takes no login.
        let plain = url.replacen("ftps://", "ftp://", 1);
        let other = room.dir("other");
        trusting().args([plain.as_str(), other.to_str().expect("UTF-8")]).run().sane().exits(1);
        assert_eq!(fs::read_dir(&other).expect("list it").count(), 0, "{kind:?}");
    }
}

/// Goal: a server of which nobody that this host trusts says who it is, or that is another one, gets no
/// password, and one that has no TLS neither.
#[test]
fn a_server_that_is_not_the_one_is_refused() {
    need!("proftpd", "proftpd-tls");
    let (room, ftpd) = (Room::new(), Ftpd::start(Kind::ProftpdTls));
    let data = filled(&room);
    let refused = |haul: Haul, url: &str, says: &str| {
        let sink = room.at("sink");
        let ended = haul.args([url, sink.to_str().expect("UTF-8")]).run().sane().exits(1).says(says);
        assert!(!ended.describe().contains(PASSWORD), "{}", ended.describe());
        assert!(!sink.exists(), "{url}: something was made");
    };
    refused(Haul::cp(["-r"]), &ftpd.url(&data), "no authority that this host trusts");
    let url = ftpd.url(&data).replacen("127.0.0.1", "localhost", 1);
    refused(trusting(), &url, "not valid for name");
    let none = room.file("none.pem", "");
    let nobody = Haul::cp(["-r"]).env("SSL_CERT_FILE", &none).env("SSL_CERT_DIR", room.dir("none"));
    refused(nobody, &ftpd.url(&data), "this host trusts no authority");
    let missing = Haul::cp(["-r"]).env("SSL_CERT_FILE", room.at("missing.pem"));
    refused(missing, &ftpd.url(&data), "missing.pem, which cannot be read: No such file");
    let plain = Ftpd::start(Kind::Proftpd);
    let url = plain.url(&data).replacen("ftp://", "ftps://", 1);
    refused(trusting(), &url, "AUTH TLS: the server answers 5");
    refused(trusting(), &url, "it has no TLS at this port");
    let bare = ftpd.url(&data).replacen("ftps://", "ftp://", 1);
    refused(trusting(), &bare, "ftps:// asks for TLS");
}
