//! Copies from GridFTP servers that know users by certificates alone.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::support::beside::beside;
use crate::support::compare::{BELOW, assert_same};
use crate::support::ftpd::{Ftpd, Kind, contents};
use crate::support::run::Haul;
use crate::support::{Room, read, set_mode, tree};

/// Who trusts the server's grid, and comes by what is said of him.
pub fn of(ftpd: &Ftpd) -> Haul {
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

/// Goal: a user comes by his proxy, or by his certificate and key, and gets every byte, however data are
/// protected; it is said what is.
/// Method: the server of Globus, which maps the certificate's name to a user, and shows on data connections
/// what was delegated to it.
#[test]
fn trees_come_by_a_certificate() {
    need!("gridftp");
    let (room, ftpd) = (Room::new(), Ftpd::start(Kind::GridftpGsi));
    let data = filled(&room);
    let url = ftpd.url(contents(&data));
    assert!(url.starts_with("gsiftp://127.0.0.1"), "{url}");
    let proxy = |name: &str| of(&ftpd).env("X509_USER_PROXY", ftpd.of_grid(name));
    let own = || {
        of(&ftpd)
            .env("X509_USER_CERT", ftpd.of_grid("user.pem"))
            .env("X509_USER_KEY", ftpd.of_grid("user.key"))
    };
    let limited = "has a limited proxy of yours";
    let rows = [
        (proxy("alice"), "private", [limited, "commands and data by GSI"]),
        (own(), "private", [limited, "commands and data by GSI"]),
        (proxy("alice"), "shown", [limited, "over connections that showed whose they are"]),
        (own(), "plain", ["commands by GSI", "showed its certificate; data go as they are"]),
        // Nothing is delegated, so that it need not be possible.
        (
            of(&ftpd).env("X509_USER_PROXY", ftpd.of_grid("last")),
            "plain",
            ["commands by GSI", "data go as they are"],
        ),
        (proxy("elliptic"), "plain", ["GSI", "data go as they are"]),
    ];
    beside(rows.into_iter().enumerate(), |(n, (haul, data_channel, says))| {
        let sink = room.dir(&format!("sink-{n}"));
        let haul = haul.args(["--data-channel", data_channel]);
        let mut ended = haul.args([url.as_str(), sink.to_str().expect("UTF-8")]).run().sane().exits(0);
        assert_same(&data, &sink, BELOW);
        for words in says {
            ended = ended.says(words);
        }
    });
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
    set_mode(&none, 0o600);
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
        (of(&ftpd).env("X509_USER_PROXY", ftpd.of_grid("last")), "lets no further one come"),
        (
            of(&ftpd).env("X509_USER_PROXY", ftpd.of_grid("elliptic")),
            "--data-channel=plain delegates nothing",
        ),
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
    let bare = ftpd.url(&data).replacen("gsiftp://", "ftp://", 1);
    let ended = Haul::cp(["-r", &bare]).args([room.at("sink")]).run().sane().exits(1);
    ended.says("gsiftp:// for the security of the grid");
}

/// Goal: a certificate of an old version, which no data connection takes, is refused before anything else,
/// with its file and what to do.
#[test]
fn an_old_certificate_is_refused_at_the_start() {
    need!("gridftp");
    let (room, ftpd) = (Room::new(), Ftpd::start(Kind::GridftpGsi));
    let data = filled(&room);
    // Without extensions it is one of version 1.
    let made = "openssl req -new -key user.key -subj '/O=Grid/CN=alice' | openssl x509 -req -CA ca.pem -CAkey ca.key \
                -set_serial 777 -days 20 -out old.pem";
    let made = Command::new("sh").args(["-ec", made]).current_dir(ftpd.of_grid("")).output().expect("run sh");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let sink = room.at("sink");
    let url = ftpd.url(&data);
    let haul = of(&ftpd)
        .env("X509_USER_CERT", ftpd.of_grid("old.pem"))
        .env("X509_USER_KEY", ftpd.of_grid("user.key"));
    let ended = haul.args([url.as_str(), sink.to_str().expect("UTF-8")]).run().sane().exits(1);
    ended.says("old.pem: the certificate of /O=Grid/CN=alice is of version 1 of X.509").says("-extfile");
    assert!(!sink.exists(), "something was made");
}

/// Goal: a policy that forbids or is missing, a list that revokes the server or has expired, end it before
/// the login; a list that revokes nobody does not.
#[test]
fn policies_and_lists_of_the_host_are_kept() {
    need!("gridftp");
    let (room, ftpd) = (Room::new(), Ftpd::start(Kind::GridftpGsi));
    let data = filled(&room);
    // The server's own stay as they are.
    let mine = room.dir("mine");
    let mut hash = String::new();
    for entry in fs::read_dir(ftpd.of_grid("authorities")).expect("read a directory") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("UTF-8");
        hash = name.split('.').next().expect("a part").to_owned();
        fs::copy(entry.path(), mine.join(name)).expect("copy a file");
    }
    let (policy, list) = (mine.join(format!("{hash}.signing_policy")), mine.join(format!("{hash}.r0")));
    let good = fs::read(&policy).expect("read the policy");
    let haul = || Haul::cp(["-r"]).env("X509_CERT_DIR", &mine).env("X509_USER_PROXY", ftpd.of_grid("alice"));
    let refused = |says: &str| {
        let sink = room.at("sink");
        let url = ftpd.url(&data);
        haul().args([url.as_str(), sink.to_str().expect("UTF-8")]).run().sane().exits(1).says(says);
        assert!(!sink.exists(), "{says}: something was made");
    };
    fs::remove_file(&policy).expect("remove the policy");
    refused("no signing policy");
    fs::write(&policy, String::from_utf8_lossy(&good).replace("/O=Grid/*", "/O=Other/*")).expect("write it");
    refused("may not sign for /O=Grid/CN=127.0.0.1");
    fs::write(&policy, &good).expect("write it");
    fs::copy(ftpd.of_grid("host.list"), &list).expect("copy a list");
    refused("the certificate of /O=Grid/CN=127.0.0.1 was revoked");
    fs::copy(ftpd.of_grid("old.list"), &list).expect("copy a list");
    refused("has expired");
    fs::copy(ftpd.of_grid("none.list"), &list).expect("copy a list");
    let sink = room.at("sink");
    let url = ftpd.url(&data);
    haul().args([url.as_str(), sink.to_str().expect("UTF-8")]).run().sane().exits(0);
}

/// Goal: a directory of thousands of names comes whole, however data are protected: with protected data its
/// listing comes in several replies.
#[test]
fn large_directories_come_whole() {
    need!("gridftp");
    let (room, ftpd) = (Room::new(), Ftpd::start(Kind::GridftpGsi));
    let data = room.dir("data");
    // Globus puts a thousand into a reply.
    for n in 0..1_100 {
        let path = data.join(format!("a-name-of-some-length-{n}"));
        fs::write(&path, n.to_string()).expect("write a file");
        tree::set_mtime(&path, SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000 + n));
    }
    let url = ftpd.url(contents(&data));
    for data_channel in ["private", "plain"] {
        let sink = room.dir(data_channel);
        let haul = of(&ftpd).env("X509_USER_PROXY", ftpd.of_grid("alice"));
        let haul = haul.args(["--data-channel", data_channel, &url, sink.to_str().expect("UTF-8")]);
        haul.run().sane().exits(0);
        assert_same(&data, &sink, BELOW);
    }
}

/// Goal: no large file waits for the patience, whichever of its connections the server takes first.
/// Method: Globus says that it begins when the connection that it took first showed whose it is; those of a
/// file reach it in any order. Several copies at a time, so that they do; a copy that waited for the patience
/// says that a connection was lost.
#[test]
fn large_files_go_at_once() {
    need!("gridftp");
    let (room, ftpd) = (Room::new(), Ftpd::start(Kind::GridftpGsi));
    let mut rng = fastrand::Rng::with_seed(53);
    let data = room.file("data", tree::bytes(&mut rng, 30_000_000));
    let sinks = room.dir("sinks");
    beside(0..12, |n| {
        let (sink, channel) = (sinks.join(n.to_string()), if n % 2 == 0 { "private" } else { "shown" });
        let haul = of(&ftpd).env("X509_USER_PROXY", ftpd.of_grid("alice"));
        let haul = haul.args(["--data-channel", channel, data.to_str().expect("UTF-8"), &ftpd.url(&sink)]);
        let ended = haul.run().sane().exits(0).says("in blocks, up to 4 connections");
        assert!(!ended.stderr.contains("connection lost"), "{}", ended.describe());
        assert!(read(&sink) == read(&data), "{channel}: other bytes");
    });
}
