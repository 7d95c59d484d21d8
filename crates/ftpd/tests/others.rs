//! What uploads of other users left, or are about to leave, in a directory that several share: no session
//! shows it, reads it or changes it; and what somebody does to a part beside the server is seen.

#[allow(dead_code)]
mod rig;

use std::fs;
use std::os::unix::fs::symlink;

use haul_core::entry::Name;
use haul_ftpd::config::Access;
use haul_ftpd::tree::Tree;
use rig::{Served, Talk, block, end};

/// A user who is not the one that these sessions are of.
const OTHER: u32 = 4_242;

fn by_blocks(served: &Served) -> Talk {
    let mut talk = served.talk();
    assert!(talk.ask("MODE E").starts_with("200"));
    assert!(talk.ask("OPTS RETR Markers=1;").starts_with("200"));
    talk
}

/// Goal: a part of another user's upload, and its record, are in no listing, and no command reads, writes,
/// renames or removes them, by their names or by a link; a name that only looks similar is anybody's file.
/// Method: every command that takes a path, for the names that a session of another user makes.
#[test]
fn parts_of_others_are_not_there() {
    let served = Served::new(Access::Write);
    let other = Tree::open(&served.at(""), OTHER).expect("the root");
    let f = Name::new(b"f").expect("a name");
    let similar = ".f.haul~aaaaaaaaaaaaab";
    fs::write(served.at(similar), "mine").expect("write");
    fs::create_dir(served.at("d")).expect("make");
    let names = [other.part_of(&f), other.record_of(&f), other.next_part_of(&f), other.next_record_of(&f)];
    let names = names.map(|name| String::from_utf8(name.as_bytes().to_vec()).expect("ASCII"));
    for name in &names {
        fs::write(served.at(name), "theirs").expect("write");
        symlink(name, served.at("peek")).expect("symlink");
        let mut talk = served.talk();
        let only_names = ["DELE", "RNFR", "RMD"];
        for verb in
            ["SIZE", "MDTM", "STAT", "CWD", "RETR", "STOR", "APPE", "ESTO A 0", "LIST", "NLST", "MLSD"]
                .into_iter()
                .chain(["CKSM MD5 0 -1", "MFMT 20200101000000", "SITE CHMOD 644", "MLST", "MKD"])
                .chain(only_names)
        {
            talk.passive();
            let said = talk.ask(&format!("{verb} {name}"));
            assert!(said.starts_with("553"), "{verb} {name}: {said}");
            if only_names.contains(&verb) || ["MLST", "MKD"].contains(&verb) {
                continue;
            }
            talk.passive();
            let said = talk.ask(&format!("{verb} peek"));
            assert!(said.starts_with("553"), "{verb} by a link: {said}");
        }
        assert!(talk.ask(&format!("RNFR {similar}")).starts_with("350"));
        assert!(talk.ask(&format!("RNTO {name}")).starts_with("553"));
        fs::remove_file(served.at("peek")).expect("remove the link");
        for verb in ["NLST", "LIST", "MLSD"] {
            let list = String::from_utf8(talk.fetch(verb)).expect("ASCII");
            assert!(!list.contains(name.as_str()) && list.contains(similar), "{verb}: {list}");
        }
        let list = talk.ask("STAT /");
        assert!(!list.contains(name.as_str()) && list.contains(similar), "{list}");
        assert_eq!(fs::read(served.at(name)).expect("read"), b"theirs");
        assert_eq!(talk.fetch(&format!("RETR {similar}")), b"mine");
    }
    // Nor does a directory take with it what another user was told is safe.
    fs::write(served.at("d").join(&names[0]), "theirs").expect("write");
    let said = served.talk().ask("RMD d");
    assert!(said.starts_with("550") && said.contains("another user"), "{said}");
    assert_eq!(fs::read(served.at("d").join(&names[0])).expect("read"), b"theirs");
}

/// Goal: where somebody who may write in the directory takes a part away while it comes, its sender is told
/// so, hears of no byte more that it is safe, and brings none more into what the part became.
/// Method: behind a marker the part is given the name that is asked for; then before the end of another one.
#[test]
fn a_part_that_is_taken_away_is_told() {
    for before_the_end in [false, true] {
        let served = Served::new(Access::Write);
        let mut talk = by_blocks(&served);
        let mut data = talk.begin("STOR f");
        block(&mut data, 0, b"1111");
        while !talk.reply().starts_with("111 Range Marker 0-4") {}
        let names = served.names();
        let part = names.iter().find(|name| fs::read(served.at(name)).is_ok_and(|bytes| bytes == b"1111"));
        fs::rename(served.at(part.expect("a part")), served.at("f")).expect("take it away");
        block(&mut data, 4, b"2222");
        if before_the_end {
            end(&mut data, Some(1));
        }
        let mut said = talk.reply();
        while said.starts_with('1') {
            assert!(!said.starts_with("111"), "{said}");
            said = talk.reply();
        }
        assert!(said.starts_with("451") && said.contains("was moved or removed"), "{said}");
        assert!(!said.contains("Nothing was changed"), "{said}");
        drop((data, talk));
        served.wait_idle();
        assert_eq!(served.names(), ["f"], "no record speaks for it");
    }
}
