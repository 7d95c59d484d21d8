//! Volumes of `--placement given`: files that a program placed, as commands and copies have them.

use std::fs;

use haul_volume::access::Access;
use haul_volume::api::{Given, OpenOptions, Volume};
use serde_json::Value;

use crate::support::compare::{ALL, assert_same};
use crate::support::run::Haul;
use crate::support::{read, tree};
use crate::volume_copy::User;

const STRIPE: usize = 65_536;

/// Goal: what a program placed lies there, and is copied, drained, looked at and shown as any other file,
/// also after a restart and with an access for reading; what copies bring lies in turns; with the volume all
/// of it goes from the servers' directories.
#[test]
fn what_a_program_placed_is_a_file_as_any_other() {
    let user = User::new();
    let (data, out) = (user.room.dir("data"), user.room.dir("out"));
    tree::plain(&data, 6, 10, 1_000_000);
    tree::settle(&data);
    let dirs = ["ga", "gb", "gc"].map(|name| user.room.at(name));
    let words = dirs.clone().map(|dir| dir.to_str().expect("UTF-8").to_owned()).join(",");
    let create = ["volume", "create", "g", "--stripe", "64KiB", "--placement", "given", "--server", &*words];
    let haul = |words: &[&str]| user.env(Haul::new(words)).run().sane();
    haul(&create).exits(0);
    user.cp(&["-r"], &data, "vol://g/").run().sane().exits(0);

    let bytes: Vec<u8> = (0..11 * STRIPE as u64 + 77).map(|at| (at * 7 + at / 65_536) as u8).collect();
    let access = Access::read(&user.room.at("state/haul"), "g").expect("it is known");
    let volume = Volume::open(&access).expect("it is there");
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).given(Given::new([(2, 3), (0, 1)]).expect("a list"));
    let file = volume.open_file("/data/placed", &options).expect("made");
    file.pwrite(&bytes, 0).expect("written");
    file.pwrite(b"small", 5 * STRIPE as u64 + 9).expect("written");
    file.close().expect("closed");
    drop(volume);
    let mut model = bytes;
    model[5 * STRIPE + 9..][..5].copy_from_slice(b"small");
    fs::write(data.join("placed"), &model).expect("written");
    tree::settle(&data);

    let stat = |path: &str| -> Value {
        let told = haul(&["volume", "stat", path, "--json"]).exits(0);
        serde_json::from_slice(&told.stdout).expect("JSON")
    };
    let told = stat("g/data/placed");
    assert_eq!(told["placement"], "given, stripes on servers 2 (3), 0, and again");
    assert_eq!((told["first_server"].as_u64(), told["size"].as_u64()), (Some(2), Some(model.len() as u64)));
    let human = haul(&["volume", "stat", "g/data/placed"]).exits(0);
    assert!(String::from_utf8_lossy(&human.stdout).contains("2 (3), 0, and again, from server 2 on"));
    assert_eq!(stat("g/data/big")["placement"], "round-robin");
    let listed = haul(&["volume", "ls"]).exits(0);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("stripes of 65.5 kB, given, all answer"));

    let copy = |from: &str, to: &str| {
        user.cp(&["-r"], from, user.room.dir(to)).run().sane().exits(0);
        assert_eq!(read(user.room.at(to).join("data/placed")), model);
    };
    copy("vol://g/data", "first");
    haul(&["volume", "fsck", "g"]).exits(0);
    haul(&["volume", "stop", "g"]).exits(0);
    haul(&["volume", "start", "g"]).exits(0);
    let known = user.room.at("state/haul/volumes/r");
    haul(&["volume", "access", "g", "--read-only", known.to_str().expect("UTF-8")]).exits(0);
    copy("vol://r/data", "second");
    // All that was gathered is brought by now, or read with it.
    let number = told["number"].as_u64().expect("a number");
    let name = format!("data/files/{:02x}/{number:016x}", number & 0xff);
    assert!(!dirs[1].join(&name).exists(), "nothing of it was placed there");
    // Twelve stripes, three and one in turns, the last one short.
    assert_eq!(read(dirs[0].join(&name)).len(), 2 * STRIPE + 77);
    assert_eq!(read(dirs[2].join(&name)).len(), 9 * STRIPE);

    let to = out.to_str().expect("UTF-8");
    haul(&["volume", "drain", "g", "--to", to]).exits(0);
    assert_eq!(read(out.join("data/placed")), model);
    // Another one takes its name, and lies as copies do.
    user.cp(&["-r"], "vol://g/data", "vol://v/").run().sane().exits(0);
    assert_eq!(stat("v/data/placed")["placement"], "round-robin");
    user.cp(&["-r", "--force"], &data, "vol://g/").run().sane().exits(0);
    assert_eq!(stat("g/data/placed")["placement"], "round-robin");
    user.cp(&["-r"], "vol://g/data", user.room.dir("third")).run().sane().exits(0);
    assert_same(&data, &user.room.at("third/data"), ALL);
    haul(&["volume", "fsck", "g"]).exits(0);
    haul(&["volume", "destroy", "g", "--yes"]).exits(0);
    assert!(dirs.iter().all(|dir| !dir.exists()), "all of it went, lists too");
}
