//! `haul volume access`: who is given an access for reading copies out of a volume, and changes nothing in
//! it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::support::compare::{ALL, assert_same};
use crate::support::run::Haul;
use crate::support::tree;
use crate::volume_copy::User;

/// Goal: with an access for reading all can be listed and copied out, as it is, and every change of the
/// volume is refused with a word, by its servers too; nothing was changed, and the volume goes on. Method:
/// each command, and those that look at the access first once more with one that lies.
#[test]
fn an_access_for_reading_reads() {
    let user = User::new();
    let (source, out) = (user.room.at("in"), user.room.at("out"));
    tree::mixed(&source, 7, 60, 2);
    user.cp(&["-r"], &source, "vol://v/").run().sane().exits(0);
    let known = user.room.at("state/haul/volumes");
    let file = known.join("r");
    let told = file.to_str().expect("UTF-8");
    let haul = |words: &[&str]| user.env(Haul::new(words)).run().sane();
    haul(&["volume", "access", "v", told]).exits(2).says("--read-only");
    haul(&["volume", "access", "v", "--read-only", told]).exits(0);
    haul(&["volume", "access", "v", "--read-only", told]).exits(1).says("is there already");
    let before = fs::read_to_string(&file).expect("written");
    assert_eq!(fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o600);

    haul(&["volume", "health", "r"]).exits(0);
    haul(&["volume", "ls", "r/in"]).exits(0);
    haul(&["volume", "stat", "r"]).exits(0);
    user.cp(&["-r"], "vol://r/in/", &out).run().sane().exits(0);
    assert_same(&source, &out, ALL);

    user.cp(&["-r"], &source, "vol://r/again").run().sane().exits(1).says("for reading");
    user.cp(&["-r", "--force"], &source, "vol://r/").run().sane().exits(1).says("for reading");
    haul(&["volume", "rm", "-r", "r/in"]).exits(1).says("for reading");
    let refused = |code: i32| {
        for words in [
            &["volume", "drain", "r", "--to", told][..],
            &["volume", "fsck", "r"],
            &["volume", "fsck", "r", "--repair"],
            &["volume", "stop", "r"],
            &["volume", "destroy", "r", "--yes"],
        ] {
            haul(words).exits(code).says("for reading");
        }
    };
    refused(1);
    haul(&["volume", "start", "r"]).exits(1).says("for reading");
    haul(&["volume", "access", "r", "--read-only", user.room.at("s").to_str().expect("UTF-8")])
        .exits(1)
        .says("for reading");
    // One that says of itself that it is for everything.
    assert!(before.contains("\"read_only\": true"));
    fs::write(&file, before.replace("\"read_only\": true", "\"read_only\": false")).expect("written");
    for words in
        [&["volume", "stop", "r"][..], &["volume", "destroy", "r", "--yes"], &["volume", "fsck", "r"]]
    {
        haul(words).exits(1).says("for reading");
    }
    fs::write(&file, before).expect("written");

    haul(&["volume", "health", "v"]).exits(0);
    haul(&["volume", "fsck", "v"]).exits(0);
    let again = user.room.at("again");
    user.cp(&["-r"], "vol://v/in/", &again).run().sane().exits(0);
    assert_same(&source, &again, ALL);
    haul(&["volume", "destroy", "v", "--yes"]).exits(0);
}
