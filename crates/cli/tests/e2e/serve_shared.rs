//! `haul serve gridftp` where several users share a directory: what one of them sends is nothing to the
//! others until it is whole.

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt as _, chown, symlink};
use std::process::{Command, Stdio};

use haul_core::entry::Name;
use haul_ftpd::tree::Tree;

use crate::support::ftpd::{Talk, grid};
use crate::support::run::{Haul, Running};
use crate::support::serve::{self, CLIENT_SECONDS};
use crate::support::{Room, read, set_mode};

/// Users of every Linux: `daemon` and `nobody`.
const USERS: [(&str, u32); 2] = [("daemon", 1), ("nobody", 65_534)];

/// A server of the room's root for one user.
fn served(room: &Room, user: &str) -> (u16, Running) {
    serve::started("127.0.0.1", " listen ftp://", |port| {
        let words = ["serve", "gridftp", "--anonymous", "write", "--user", user, "--listen"];
        Haul::new(words).args([format!("127.0.0.1:{port}"), "--root".into()]).args([room.at("root")])
    })
}

fn talk(port: u16) -> Talk {
    let mut talk = Talk::to(port);
    assert!(talk.ask("USER anonymous").starts_with("331"));
    assert!(talk.ask("PASS x").starts_with("230"));
    assert!(talk.ask("TYPE I").starts_with("200"));
    talk
}

fn block(data: &mut TcpStream, flags: u8, len: u64, offset: u64, bytes: &[u8]) {
    let head = [&[flags][..], &len.to_be_bytes(), &offset.to_be_bytes()].concat();
    data.write_all(&[&head, bytes].concat()).expect("send a block");
}

/// Goal: while an upload runs no session of another user sees its part or its record, gets them, renames
/// them, removes them or writes over them, also by a link; and the name is whole from its first byte on.
/// Method: servers of two users on one root; one upload stands still behind a marker, while the other user's
/// clients try each; then it comes to its end.
#[test]
fn an_upload_is_nothing_to_other_users() {
    need!("root");
    let room = Room::new();
    set_mode(&room.dir("root"), 0o777);
    let [(ours, _first), (theirs, _second)] = USERS.map(|(user, _)| served(&room, user));
    let mut up = talk(ours);
    for line in ["MODE E", "OPTS RETR Markers=1;"] {
        assert!(up.ask(line).starts_with("200"), "{line}");
    }
    let said = up.ask("EPSV");
    let port: u16 = said.split('|').nth(3).and_then(|port| port.parse().ok()).expect("a port");
    let mut data = TcpStream::connect(("127.0.0.1", port)).expect("dial");
    up.say(b"STOR f");
    let half = vec![b'x'; 1_000_000];
    block(&mut data, 0, half.len() as u64, 0, &half);
    while !up.reply().starts_with("111") {}

    let list = || -> Vec<String> {
        let entries = fs::read_dir(room.at("root")).expect("list");
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
    };
    let names = list();
    assert!(names.len() == 2 && names.iter().all(|name| name.starts_with(".f.haul~")), "{names:?}");
    let mut other = talk(theirs);
    for name in &names {
        for verb in ["SIZE", "RNFR", "DELE", "CKSM MD5 0 -1", "SITE CHMOD 666", "RETR"] {
            let said = other.ask(&format!("{verb} {name}"));
            assert!(said.starts_with("553"), "{verb} {name}: {said}");
        }
        symlink(name, room.at("root/peek")).expect("symlink");
        for verb in ["SIZE", "CKSM MD5 0 -1"] {
            for talk in [&mut other, &mut talk(ours)] {
                let said = talk.ask(&format!("{verb} peek"));
                assert!(said.starts_with("553"), "{verb} by a link: {said}");
            }
        }
        fs::remove_file(room.at("root/peek")).expect("remove the link");
    }
    // A copy of all that is there has nothing of it, and is complete.
    let back = room.dir("back");
    Haul::cp(["-r", &format!("ftp://127.0.0.1:{theirs}/")]).args([&back]).run().sane().exits(0);
    assert_eq!(fs::read_dir(&back).expect("list").count(), 0);
    assert!(!room.at("root/f").exists());

    let rest = vec![b'y'; 1_000_000];
    block(&mut data, 0, rest.len() as u64, half.len() as u64, &rest);
    block(&mut data, 0x48, 0, 1, &[]);
    let mut said = up.reply();
    while said.starts_with('1') {
        said = up.reply();
    }
    assert!(said.starts_with("226"), "{said}");
    assert_eq!(list(), ["f"]);
    assert!(read(room.at("root/f")) == [half, rest].concat());
}

/// Goal: a part with its record that somebody else laid down in the directory, or may have written into, is
/// believed by no restart, and is in the way of no upload.
/// Method: what a killed session leaves, by whom and with which modes it may lie there; a restart behind its
/// bytes, and then the whole file. Once another user makes both himself.
#[test]
fn parts_of_somebody_else_are_not_gone_on_with() {
    need!("root");
    const HALF: usize = 500_000;
    let [(_, own), (_, other)] = USERS;
    let room = Room::new();
    set_mode(&room.dir("root"), 0o777);
    let (port, _running) = served(&room, USERS[0].0);
    let tree = Tree::open(&room.at("root"), own).expect("the root");
    let name = Name::new(b"f").expect("a name");
    let [part, record] = [tree.part_of(&name), tree.record_of(&name)]
        .map(|name| room.at("root").join(String::from_utf8(name.as_bytes().to_vec()).expect("ASCII")));
    let (sent, laid) = (vec![b'x'; 2 * HALF], vec![b'y'; HALF]);
    let put = |from: usize| {
        let mut talk = talk(port);
        assert!(talk.ask("MODE E").starts_with("200"));
        let said = talk.ask("EPSV");
        let port: u16 = said.split('|').nth(3).and_then(|port| port.parse().ok()).expect("a port");
        let mut data = TcpStream::connect(("127.0.0.1", port)).expect("dial");
        if from > 0 {
            assert!(talk.ask(&format!("REST 0-{from}")).starts_with("350"));
        }
        talk.say(b"STOR f");
        let mut said = talk.reply();
        if said.starts_with('1') {
            let rest = &sent[from..];
            block(&mut data, 0, rest.len() as u64, from as u64, rest);
            block(&mut data, 0x48, 0, 1, &[]);
        }
        while said.starts_with('1') {
            said = talk.reply();
        }
        said
    };
    let lay = |(part_uid, part_mode): (u32, u32), (record_uid, record_mode): (u32, u32)| {
        fs::write(&part, &laid).expect("lay it down");
        let text = format!("haul part of inode {}\n0-{HALF}\n", fs::metadata(&part).expect("look").ino());
        fs::write(&record, text).expect("lay it down");
        for (path, uid, mode) in [(&part, part_uid, part_mode), (&record, record_uid, record_mode)] {
            chown(path, Some(uid), None).expect("give it away");
            set_mode(path, mode);
        }
    };
    let file = room.at("root/f");
    for (part_is, record_is, counts) in [
        ((own, 0o600), (own, 0o600), true),
        ((other, 0o666), (other, 0o644), false),
        ((other, 0o666), (own, 0o600), false),
        ((own, 0o600), (other, 0o644), false),
        ((own, 0o602), (own, 0o600), false),
        ((own, 0o620), (own, 0o600), false),
        ((own, 0o600), (own, 0o606), false),
    ] {
        lay(part_is, record_is);
        let said = put(HALF);
        if counts {
            assert!(said.starts_with("226"), "{said}");
            assert!(read(&file) == [&laid[..], &sent[HALF..]].concat());
        } else {
            assert!(said.starts_with("554"), "{part_is:?} {record_is:?}: {said}");
            assert!(!file.exists(), "{part_is:?} {record_is:?}");
            let said = put(0);
            assert!(said.starts_with("226"), "{part_is:?} {record_is:?}: {said}");
            assert!(read(&file) == sent, "{part_is:?} {record_is:?}");
        }
        assert_eq!(fs::metadata(&file).expect("look").uid(), own, "{part_is:?} {record_is:?}");
        fs::remove_file(&file).expect("remove it");
        assert_eq!(fs::read_dir(room.at("root")).expect("list").count(), 0, "{part_is:?} {record_is:?}");
    }
    // By himself, as far as the system lets him.
    let script = format!(
        "umask 0; head -c {HALF} /dev/zero >'{0}'; printf 'haul part of inode %s\n0-{HALF}\n' $(stat -c %i '{0}') >'{1}'",
        part.display(),
        record.display()
    );
    let mut planted = Command::new("setpriv");
    let ids = format!("--reuid={other}");
    planted.args([&ids, "--clear-groups", "sh", "-c", &script]);
    assert!(planted.status().expect("run setpriv").success());
    let said = put(HALF);
    assert!(said.starts_with("554") && !file.exists(), "{said}");
}

/// Goal: the same at one server with `--gsi` whose gridmap has several users: what an upload of one of them
/// left is not shown to the other, who copies the directory as if it were not there, and puts nothing over
/// it. Method: one certificate that may be either user; what a killed session of one of them leaves is laid
/// down by hand, as its user's.
#[test]
fn users_of_a_gridmap_do_not_see_each_others_parts() {
    need!("root");
    need!("gridftp", "globus-url-copy");
    let room = Room::new();
    grid(&room);
    room.file("gridmap", "\"/O=Grid/CN=alice\" daemon,nobody\n");
    set_mode(&room.dir("root"), 0o777);
    let (port, _running) = serve::started("127.0.0.1", " listen gsiftp://", |port| {
        let haul = Haul::new(["serve", "gridftp", "--gsi", "--listen", &format!("127.0.0.1:{port}")]);
        let files = [
            ("--root", "root"),
            ("--host-cert", "host.pem"),
            ("--host-key", "host.key"),
            ("--gridmap", "gridmap"),
            ("--authorities", "authorities"),
        ];
        files.into_iter().fold(haul, |haul, (option, name)| haul.args([option]).args([room.at(name)]))
    });
    let copy = |words: &[&str]| {
        let mut command = Command::new("timeout");
        command.args([CLIENT_SECONDS, "globus-url-copy"]).args(words).stdin(Stdio::null());
        command.env("X509_CERT_DIR", room.at("authorities")).env("X509_USER_PROXY", room.at("alice"));
        let output = command.output().expect("run a client");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let url = |user: &str, path: &str| format!("gsiftp://{user}@127.0.0.1:{port}/{path}");
    let near = room.file("near", "whole");
    let near = format!("file://{}", near.display());
    for (user, uid) in USERS {
        let (done, said) = copy(&[&near, &url(user, user)]);
        assert!(done, "{user}: {said}");
        assert_eq!(fs::metadata(room.at("root").join(user)).expect("look").uid(), uid);
        let of = Tree::open(&room.at("root"), uid).expect("the root");
        let part = of.part_of(&Name::new(b"f").expect("a name"));
        let part = String::from_utf8(part.as_bytes().to_vec()).expect("ASCII");
        let at = room.file(&format!("root/{part}"), "half");
        chown(&at, Some(uid), None).expect("give it away");
        for (other, _) in USERS {
            let (done, said) = copy(&[&url(other, &part), &format!("{near}-got")]);
            assert!(!done && said.contains("553"), "{other}: {said}");
            let (done, said) = copy(&[&near, &url(other, &part)]);
            assert!(!done && said.contains("553"), "{other}: {said}");
            let back = room.dir(&format!("back-{user}-{other}"));
            let haul = Haul::cp(["-r", &url(other, "")]).args([&back]);
            let haul = haul.env("X509_CERT_DIR", room.at("authorities"));
            haul.env("X509_USER_PROXY", room.at("alice")).run().sane().exits(0);
            let got = fs::read_dir(&back).expect("list").map(|entry| entry.expect("an entry").file_name());
            assert!(got.into_iter().all(|name| !name.to_string_lossy().contains(".haul~")), "{other}");
        }
        assert_eq!(read(&at), b"half");
    }
}
