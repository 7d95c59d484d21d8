//! `haul serve gridftp` over a volume: under TLS; and striped, where files lie in parts.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::serve_striped::{BIG, at, file_url, globus, some_bytes};
use crate::serve_volume::{SIZES, STRIPE, Served, client};
use crate::support::compare::{BELOW, Opts, assert_same};
use crate::support::ftpd::certificate;
use crate::support::run::Haul;
use crate::support::{read, tree};
use crate::volume_copy::User;

const BYTES_ALONE: Opts = Opts { metadata: false, ..BELOW };

/// Goal: under TLS what curl, lftp and haul put is in the volume, and what they get is what is there, of
/// sizes at the edges of stripes and under both versions of TLS; a tree goes there and back; who comes in the
/// clear gets nothing and puts nothing; an upload that is cut off gets no name, and what stood there stands.
#[test]
fn clients_come_under_tls() {
    need!("curl", "lftp");
    let user = User::new();
    crate::serve_tls::put(&user.room, "server");
    let (cert, key) = (at(&user.room, "cert.pem"), at(&user.room, "key.pem"));
    let words = ["--anonymous", "write", "--tls-required", "--tls-cert", &cert, "--tls-key", &key];
    let served = Served::new(user, "vol://v", &words);
    let ca = certificate("ca.pem").display().to_string();
    let curl = |words: &[&str]| client(&[&["curl", "-sS", "--ssl-reqd", "--cacert", &ca], words].concat());
    let haul = |words: &[&str]| Haul::cp(words).env("SSL_CERT_FILE", certificate("ca.pem"));
    let secure = |path: &str| format!("ftps://127.0.0.1:{}/{path}", served.port);
    let back = served.user.room.at("back");
    let shown = back.to_str().expect("UTF-8");
    let mut rng = fastrand::Rng::with_seed(31);
    for size in SIZES {
        let content = tree::bytes(&mut rng, size);
        let near = served.user.room.file("near", &content);
        let from = near.to_str().expect("UTF-8");
        let is_back = |by: &str| {
            assert!(fs::read(&back).unwrap_or_default() == content, "{size} bytes got by {by}");
            let _ = fs::remove_file(&back);
        };
        for version in [&[][..], &["--tls-max", "1.2"]] {
            curl(&[version, &["-T", from, &served.url("c")]].concat());
            assert!(served.content("c") == content, "{size} bytes put by curl {version:?}");
            curl(&[version, &["-o", shown, &served.url("c")]].concat());
            is_back("curl");
        }
        haul(&[from, &secure("h")]).run().sane().exits(0);
        assert!(served.content("h") == content, "{size} bytes put by haul");
        haul(&[&secure("c"), shown]).run().sane().exits(0);
        is_back("haul");
        let script = format!(
            "set ssl:ca-file {ca}; set ftp:ssl-force true; set ftp:ssl-allow-anonymous true; set ftp:ssl-protect-data true; \
             set cmd:fail-exit true; set net:max-retries 1; open ftp://127.0.0.1:{}; put {from} -o l; get c -o {shown}",
            served.port
        );
        client(&["lftp", "-c", &script]);
        assert!(served.content("l") == content, "{size} bytes put by lftp");
        is_back("lftp");
    }
    let (source, there) = (served.user.room.at("tree"), served.user.room.dir("there"));
    tree::plain(&source, 32, 40, 3);
    haul(&["-r", source.to_str().expect("UTF-8"), &secure("")]).run().sane().exits(0);
    haul(&["-r", &secure("tree/"), there.to_str().expect("UTF-8")]).run().sane().exits(0);
    assert_same(&source, &there, BYTES_ALONE);
    served.user.cp(&["-r"], "vol://v/tree/", served.user.room.dir("copied")).run().sane().exits(0);
    assert_same(&source, &served.user.room.at("copied"), BYTES_ALONE);

    // In the clear.
    let near = served.user.room.file("near", "in the clear");
    Haul::cp([served.url("c")]).args([&back]).run().sane().exits(1);
    Haul::cp([&near]).args([served.url("c")]).run().sane().exits(1);
    assert!(!back.exists());
    // One that is killed in the middle ends without the last word of TLS.
    let before = served.content("c");
    assert_eq!(before.len(), BIG);
    let near = served.user.room.file("near", some_bytes(BIG));
    let cut = Command::new("timeout")
        .args(["-s", "KILL", "2", "curl", "-sS", "--limit-rate", "1M", "--ssl-reqd", "--cacert", &ca, "-T"])
        .arg(near)
        .arg(served.url("c"))
        .stdin(Stdio::null())
        .output()
        .expect("run a client");
    assert!(!cut.status.success());
    assert!(served.content("c") == before, "half of an upload has the name");
    let gone = crate::support::procs::wait_until(crate::support::serve::SOON, || {
        served.user.names("v") == ["c", "h", "l", "tree"]
    });
    assert!(gone, "{:?}", served.user.names("v"));
    let log = served.running.stderr();
    assert!(log.contains("under TLS") && !log.contains("panicked"), "{log}");
    served.is_sound();
}

/// Goal: with a data node for each server, files that lie in parts come and go byte for byte, by the clients
/// of Globus and by haul, also what clients put without its length being known beforehand. Root serves a
/// volume to nobody by his certificate, and says why.
#[test]
fn nodes_move_files_that_lie_in_parts() {
    need!("globus-url-copy");
    let served = Served::striped_of(User::of(&["--placement", "partitioned"]));
    let room = &served.user.room;
    let content = some_bytes(BIG + 5);
    let near = room.file("near", &content);
    served.has("parts", &content);
    let told = served.user.env(Haul::new(["volume", "stat", "v/parts", "--json"])).run().sane().exits(0);
    let told: Value = serde_json::from_slice(&told.stdout).expect("JSON");
    assert_eq!(told["placement"], "partitioned, 7 stripes on each server", "{STRIPE} bytes a stripe");
    let got = room.at("got");
    let is_got = |by: &str| {
        assert!(read(&got) == content, "{by}");
        fs::remove_file(&got).expect("it is there");
    };
    for (name, options) in [("plain", &[][..]), ("striped", &["-stripe", "-fast", "-p", "2"])] {
        globus(&[options, &[&file_url(&near), &served.url(name)]].concat());
        assert!(served.content(name) == content, "put by Globus, {name}");
        for from in [name, "parts"] {
            globus(&[options, &[&served.url(from), &file_url(&got)]].concat());
            is_got(&format!("{from} got by Globus, {name}"));
        }
    }
    Haul::cp([&near]).args([served.url("haul")]).run().sane().exits(0);
    assert!(served.content("haul") == content, "put by haul");
    for name in ["haul", "parts"] {
        Haul::cp([served.url(name)]).args([&got]).run().sane().exits(0);
        is_got(&format!("{name} got by haul"));
    }
    let logs: Vec<String> = served.nodes.iter().map(|(_, node)| node.stderr()).collect();
    for (verb, name) in [(" RETR ", "\"/parts\""), (" RETR ", "\"/haul\""), (" STOR ", "haul~")] {
        let has_moved = |log: &String| log.lines().any(|line| line.contains(verb) && line.contains(name));
        assert!(logs.iter().all(has_moved), "each node has moved a part of {name}: {logs:?}");
    }
    served.is_sound();
    if rustix::process::geteuid().is_root() {
        let gsi = Haul::new(["serve", "gridftp", "--gsi", "--listen", "127.0.0.1:0", "--root", "vol://v"]);
        let ended = served.user.env(gsi).run().sane();
        assert!(!ended.status.success());
        let _ = ended.says("root cannot serve a volume to people of a grid");
    }
}
