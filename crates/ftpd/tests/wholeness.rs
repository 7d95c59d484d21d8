//! What a client did not say, or took back, changes no file: gaps, bytes that come twice, restarts that no
//! record covers, aborts, and names with the byte 0xff.

#[allow(dead_code)]
mod rig;

use std::ffi::OsString;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::ffi::OsStringExt as _;

use haul_ftpd::config::Access;
use rig::{Served, Talk, block, end};

/// Sends an upload of MODE E whose only connection has these blocks.
fn upload(talk: &mut Talk, line: &str, blocks: &[(u64, &[u8])]) -> u16 {
    let mut data = talk.begin(line);
    for (offset, bytes) in blocks {
        block(&mut data, *offset, bytes);
    }
    end(&mut data, Some(1));
    talk.last_reply()
}

fn in_blocks(served: &Served) -> Talk {
    let mut talk = served.talk();
    assert!(talk.ask("MODE E").starts_with("200"));
    talk
}

/// Goal: bytes that never came are not published as zeros, nor as old ones, whatever the upload begins with.
/// Method: `APPE`, `ESTO` and `STOR` with gaps before, within and behind what stands there; the one gap that
/// `ESTO` itself asks for.
#[test]
fn gaps_are_not_published() {
    let served = Served::new(Access::Write);
    fs::write(served.at("f"), "12345678").expect("write");
    let cases: [(&str, &[(u64, &[u8])]); 6] = [
        ("APPE f", &[(0, b"ab"), (4, b"cd")]),
        ("APPE f", &[(1, b"ab")]),
        ("ESTO A 0 f", &[(0, b"ab"), (4, b"cd")]),
        ("ESTO A 6 f", &[(0, b"ab"), (4, b"cd")]),
        ("ESTO A 10 f", &[(1, b"ab")]),
        ("STOR f", &[(0, b"ab"), (4, b"cd")]),
    ];
    for (line, blocks) in cases {
        assert_eq!(upload(&mut in_blocks(&served), line, blocks), 451, "{line}");
        assert_eq!(fs::read(served.at("f")).expect("read"), b"12345678", "{line}");
        fs::remove_file(served.at("f")).expect("remove");
        fs::write(served.at("f"), "12345678").expect("write");
    }
    assert_eq!(upload(&mut in_blocks(&served), "ESTO A 10 f", &[(1, b"b"), (0, b"a")]), 226);
    assert_eq!(fs::read(served.at("f")).expect("read"), b"12345678\0\0ab");
    // Where nothing stands it is the same, as globus-url-copy begins a part of a file (`-off`).
    fs::remove_file(served.at("f")).expect("remove");
    assert_eq!(upload(&mut in_blocks(&served), "ESTO A 3 f", &[(1, b"b")]), 451);
    assert_eq!(upload(&mut in_blocks(&served), "ESTO A 3 f", &[(0, b"a"), (2, b"c")]), 451);
    assert!(!served.at("f").exists());
    assert_eq!(upload(&mut in_blocks(&served), "ESTO A 3 f", &[(1, b"b"), (0, b"a")]), 226);
    assert_eq!(fs::read(served.at("f")).expect("read"), b"\0\0\0ab");
}

/// Goal: a byte that comes twice is refused, whether it is the same or another.
/// Method: blocks that overlap, in each kind of upload; `ALLO` of the sum of both.
#[test]
fn bytes_come_once() {
    for line in ["STOR f", "APPE f", "ESTO A 2 f"] {
        for second in [(0, &b"abc"[..]), (2, b"x")] {
            let served = Served::new(Access::Write);
            fs::write(served.at("f"), "old").expect("write");
            let mut talk = in_blocks(&served);
            assert!(talk.ask(&format!("ALLO {}", 3 + second.1.len())).starts_with("200"));
            assert_eq!(upload(&mut talk, line, &[(0, b"abc"), second]), 451, "{line}");
            assert_eq!(fs::read(served.at("f")).expect("read"), b"old", "{line}");
            assert_eq!(served.names(), ["f"], "{line}: which of the two is right nobody knows");
        }
    }
}

/// Goal: in MODE E a restart goes on with what a `111` told and with nothing else; in stream mode one offset
/// goes on with what stands there.
/// Method: both over a file for which there is no record.
#[test]
fn what_stands_there_is_no_part() {
    let served = Served::new(Access::Write);
    fs::write(served.at("f"), "12345678").expect("write");
    for said in ["REST 0-4", "REST 4"] {
        let mut talk = in_blocks(&served);
        talk.passive();
        assert!(talk.ask(said).starts_with("350"));
        assert!(talk.ask("STOR f").starts_with("554"), "{said}");
    }
    assert_eq!(fs::read(served.at("f")).expect("read"), b"12345678");
    let mut talk = served.talk();
    assert!(talk.ask("REST 4").starts_with("350"));
    talk.put("STOR f", b"abcd");
    assert_eq!(fs::read(served.at("f")).expect("read"), b"1234abcd");
}

/// An upload to `f` in MODE E is lost when a `111` has told of these pieces of it.
fn lose(served: &Served, restart: Option<&str>, pieces: &[(u64, &[u8])], told: &str) {
    let mut talk = in_blocks(served);
    assert!(talk.ask("OPTS RETR Markers=1;").starts_with("200"));
    talk.passive();
    if let Some(restart) = restart {
        assert!(talk.ask(restart).starts_with("350"));
    }
    let mut data = talk.begin("STOR f");
    for (at, bytes) in pieces {
        block(&mut data, *at, bytes);
    }
    while !talk.reply().starts_with(told) {}
    drop((data, talk));
    served.wait_idle();
}

/// Goal: bytes that a `111` told stay until the file is whole, also where somebody begins another upload that
/// comes to nothing; and nobody gets them who was not told of them.
/// Method: an upload in MODE E that is lost behind a marker; restarts in stream mode behind what stands there
/// and within it, and uploads that are aborted before a byte came; the directory's removal while it holds
/// something else; then the restart that the marker promised.
#[test]
fn a_broken_restart_keeps_what_was_confirmed() {
    let served = Served::new(Access::Write);
    fs::write(served.at("f"), "old").expect("write");
    lose(&served, None, &[(0, b"12345")], "111 Range Marker 0-5");

    let mut talk = served.talk();
    talk.passive();
    assert!(talk.ask("REST 5").starts_with("350"));
    assert!(talk.ask("STOR f").starts_with("554"), "the part is none of this client's");
    for line in ["STOR f", "APPE f"] {
        let data = talk.begin(line);
        talk.say("ABOR");
        assert!(talk.reply().starts_with("426"), "{line}");
        assert!(talk.reply().starts_with("226"), "{line}");
        drop(data);
    }
    assert!(talk.ask("REST 2").starts_with("350"));
    talk.say("ABOR");
    assert!(talk.reply().starts_with("2"));

    let mut talk = in_blocks(&served);
    talk.passive();
    assert!(talk.ask("REST 0-5").starts_with("350"));
    assert_eq!(upload(&mut talk, "STOR f", &[(5, b"678")]), 226);
    assert_eq!(fs::read(served.at("f")).expect("read"), b"12345678");
    assert_eq!(served.names(), ["f"]);
}

/// Goal: a restart in stream mode goes on with what stands there, never with a part that nobody sees.
/// Method: a part of another upload, longer than the file that stands there.
#[test]
fn a_stream_goes_on_with_what_it_sees() {
    let served = Served::new(Access::Write);
    fs::write(served.at("f"), "aaaa").expect("write");
    lose(&served, None, &[(0, b"bbbbbbbb")], "111 Range Marker 0-8");
    let mut talk = served.talk();
    assert!(talk.ask("REST 4").starts_with("350"));
    talk.put("STOR f", b"cc");
    assert_eq!(fs::read(served.at("f")).expect("read"), b"aaaacc");
    assert_eq!(served.names(), ["f"], "the other one's part is gone, with its record");
}

/// Goal: a restart that claims less than was confirmed writes over the rest, and nobody is told any more that
/// the rest is safe.
/// Method: two ranges are told; somebody goes on with the first alone, writes over the second and is lost;
/// who was told both comes back.
#[test]
fn what_is_written_over_is_not_confirmed() {
    let served = Served::new(Access::Write);
    lose(&served, None, &[(0, b"1111"), (8, b"1111")], "111 Range Marker 0-4,8-12");
    lose(&served, Some("REST 0-4"), &[(8, b"22")], "112");
    let mut talk = in_blocks(&served);
    talk.passive();
    assert!(talk.ask("REST 0-4,8-12").starts_with("350"));
    assert!(talk.ask("STOR f").starts_with("554"));
    assert!(talk.ask("REST 0-4").starts_with("350"));
    assert_eq!(upload(&mut talk, "STOR f", &[(4, b"3333")]), 226);
    assert_eq!(fs::read(served.at("f")).expect("read"), b"11113333");
}

/// Goal: of bytes that came twice nothing is confirmed, and what was confirmed before stays.
/// Method: an upload goes on with four bytes, is told of four more, and sends those once more.
#[test]
fn doubtful_bytes_are_not_confirmed() {
    let served = Served::new(Access::Write);
    lose(&served, None, &[(0, b"1111")], "111 Range Marker 0-4");
    let mut talk = in_blocks(&served);
    talk.ask("OPTS RETR Markers=1;");
    talk.passive();
    assert!(talk.ask("REST 0-4").starts_with("350"));
    let mut data = talk.begin("STOR f");
    block(&mut data, 4, b"2222");
    while !talk.reply().starts_with("111 Range Marker 4-8") {}
    block(&mut data, 4, b"3333");
    assert_eq!(talk.last_reply(), 451);
    drop((data, talk));
    served.wait_idle();
    let mut talk = in_blocks(&served);
    talk.passive();
    assert!(talk.ask("REST 0-8").starts_with("350"));
    assert!(talk.ask("STOR f").starts_with("554"));
    assert!(talk.ask("REST 0-4").starts_with("350"));
    assert_eq!(upload(&mut talk, "STOR f", &[(4, b"4444")]), 226);
    assert_eq!(fs::read(served.at("f")).expect("read"), b"11114444");
}

/// Goal: what an upload left, which no listing shows, can be removed by its name, and then nothing is left;
/// while the upload runs it cannot.
#[test]
fn what_an_upload_left_can_be_removed() {
    let served = Served::new(Access::Write);
    let mut talk = in_blocks(&served);
    talk.ask("OPTS RETR Markers=1;");
    let mut data = talk.begin("STOR f");
    block(&mut data, 0, b"1111");
    while !talk.reply().starts_with("111") {}
    let mut other = served.talk();
    assert!(other.ask("DELE f").starts_with("450"), "it runs");
    drop((data, talk, other));
    served.wait_idle();
    let mut talk = served.talk();
    assert!(talk.ask("DELE f").starts_with("250"));
    assert!(talk.ask("DELE f").starts_with("550"));
    assert!(served.names().is_empty());
}

/// Goal: a directory that cannot be removed keeps what uploads to it were told.
/// Method: one that holds a part and a file, and then the part alone.
#[test]
fn a_directory_that_stays_keeps_its_parts() {
    let served = Served::new(Access::Write);
    fs::create_dir(served.at("d")).expect("make");
    fs::write(served.at("d/other"), "x").expect("write");
    let mut talk = in_blocks(&served);
    talk.ask("OPTS RETR Markers=1;");
    let mut data = talk.begin("STOR d/f");
    block(&mut data, 0, b"1111");
    while !talk.reply().starts_with("111") {}
    drop((data, talk));
    served.wait_idle();
    let mut talk = in_blocks(&served);
    assert!(talk.ask("RMD d").starts_with("550"));
    assert_eq!(fs::read_dir(served.at("d")).expect("list").count(), 3, "part and record are there");
    assert!(talk.ask("DELE d/other").starts_with("250"));
    assert!(talk.ask("RMD d").starts_with("250"));
    assert!(!served.at("d").exists());
}

/// Goal: an `ABOR` that has come ends what is under way, also where nothing more is waited for.
/// Method: it comes in one write with the command, for an upload whose data are over already, and for a sum
/// of several pieces.
#[test]
fn an_abort_that_has_come_counts() {
    let served = Served::new(Access::Write);
    fs::write(served.at("f"), vec![7; 3 << 20]).expect("write");
    let mut talk = served.talk();
    let at = talk.passive();
    drop(TcpStream::connect(at).expect("dial"));
    talk.send_raw(b"STOR f\r\nABOR\r\n").expect("say both");
    assert_eq!(talk.last_reply(), 426);
    assert!(talk.reply().starts_with("226"));
    talk.send_raw(b"CKSM MD5 0 -1 f\r\nABOR\r\n").expect("say both");
    assert!(talk.reply().starts_with("426"));
    assert!(talk.reply().starts_with("226"));
    assert_eq!(fs::read(served.at("f")).expect("read"), vec![7; 3 << 20]);
}

/// Goal: what was said for a transfer that is refused is not for the next one.
/// Method: `REST` and `ALLO` before an upload that the login may not make, and before lines that are no
/// request; then a download, which has all bytes.
#[test]
fn a_refused_transfer_takes_its_restart_with_it() {
    let served = Served::new(Access::Read);
    fs::write(served.at("f"), "12345678").expect("write");
    let mut talk = served.talk();
    for line in ["STOR f", "APPE f", "ESTO A 0 f", "ESTO X f", "STOR", "RETR", "ERET P x y f"] {
        assert!(talk.ask("REST 5").starts_with("350"));
        let at = talk.passive();
        assert!(talk.ask(line).starts_with('5'), "{line}");
        assert!(talk.ask("RETR f").starts_with("425"), "{line}: {at} was for what was refused");
        assert_eq!(talk.fetch("RETR f"), b"12345678", "{line}");
    }
}

/// Goal: a name with the byte 0xff is the one that was said; the single form is taken only to read, and only
/// where the plain one names nothing. No file is made over another, or removed for another.
/// Method: names with one and two of the byte, each command as bytes.
#[test]
fn the_byte_of_telnet_is_one_of_names() {
    let served = Served::new(Access::Write);
    let at = |name: &[u8]| {
        let mut path = served.at("").into_os_string().into_vec();
        path.extend_from_slice(name);
        std::path::PathBuf::from(OsString::from_vec(path))
    };
    fs::write(at(b"x\xff"), "one").expect("write");
    fs::write(at(b"x\xff\xff"), "two").expect("write");
    fs::write(at(b"y\xff"), "single").expect("write");
    let mut talk = served.talk();
    for (name, content) in [(&b"x\xff"[..], "one"), (b"x\xff\xff", "two"), (b"y\xff\xff", "single")] {
        let mut data = TcpStream::connect(talk.passive()).expect("dial");
        talk.send_raw(&[b"RETR ", name, b"\r\n"].concat()).expect("say it");
        assert!(talk.reply().starts_with("150"), "{name:?}");
        let mut got = String::new();
        data.read_to_string(&mut got).expect("read");
        assert_eq!((talk.last_reply(), got.as_str()), (226, content), "{name:?}");
    }
    talk.send_raw(b"DELE y\xff\xff\r\n").expect("say it");
    assert!(talk.reply().starts_with("550"));
    let mut data = TcpStream::connect(talk.passive()).expect("dial");
    talk.send_raw(b"STOR y\xff\xff\r\n").expect("say it");
    data.write_all(b"new").expect("write");
    drop(data);
    assert_eq!(talk.last_reply(), 226);
    assert_eq!(fs::read(at(b"y\xff")).expect("read"), b"single");
    assert_eq!(fs::read(at(b"y\xff\xff")).expect("read"), b"new");
}

/// Goal: what an answer leaves out is said, and what is not served is refused.
/// Method: `STAT` of a directory with a name that no line holds; `SPOR` with two addresses.
#[test]
fn nothing_is_left_out_unsaid() {
    let served = Served::new(Access::Read);
    fs::write(served.at("a\nb"), "").expect("write");
    let mut talk = served.talk();
    assert!(talk.ask("STAT /").starts_with("550"));
    assert!(talk.ask("SPOR 127,0,0,1,200,1 127,0,0,1,200,2").starts_with("504"));
}
