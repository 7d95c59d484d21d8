//! Replies: what real servers sent, in any pieces, and what no server should.

use haul_gridftp::FtpError;
use haul_gridftp::address::{parse_227, parse_spas};
use haul_gridftp::features::Features;
use haul_gridftp::line::Iac;
use haul_gridftp::listing::parse_mlst;
use haul_gridftp::markers::{Performance, parse_restart};
use haul_gridftp::ranges::Ranges;
use haul_gridftp::reply::{Class, REPLY_LEN_MAX, REPLY_LINE_LEN_MAX, REPLY_LINES_MAX, Reply, ReplyReader};

/// A session with globus-gridftp-server 13.24 as it was on the wire, shortened.
const SESSION: &[u8] = b"220 vm GridFTP Server 13.24 (gcc64, 1600000000-85) [unknown] ready.\r\n\
    331 Password required for anonymous.\r\n\
    230 User anonymous logged in.\r\n\
    211-Extensions supported\r\n AUTH GSSAPI\r\n MLST Type*;Size*;Modify*;Perm*;Unique*;\r\n REST STREAM\r\n\
    \x20PARALLEL\r\n211 End.\r\n\
    200 Type set to I.\r\n\
    227 Entering Passive Mode (127,0,0,1,176,247)\r\n\
    150 Beginning transfer.\r\n\
    112-Perf Marker\r\n Timestamp:  1795210212.7\r\n Stripe Index: 0\r\n Stripe Bytes Transferred: 20000000\r\n\
    \x20Total Stripe Count: 1\r\n112 End.\r\n\
    111 Range Marker 0-274202624,274464768-274726912,275251200-275513344\r\n\
    226 Transfer Complete.\r\n\
    229-Entering Striped Passive Mode.\r\n 127,0,0,1,144,255\r\n 127,0,0,1,186,207\r\n229 End\r\n\
    553-GlobusError: v=1 c=PATH_EXISTS\r\n553-GridFTP-Errno: 17\r\n553-GridFTP-Error-String: File exists\r\n\
    553 End.\r\n\
    250-status of /path\r\n\
    \x20Type=file;Modify=20261120212930;Size=20000000;Perm=awr;UNIX.mode=0644;Unique=fe00-5224fc; /path\r\n\
    250 End.\r\n\
    632 NjMy\r\n";

fn read(pieces: &[&[u8]], iac: Iac) -> Result<Vec<Reply>, FtpError> {
    let mut reader = ReplyReader::new(iac);
    let mut replies = Vec::new();
    for mut piece in pieces.iter().copied() {
        while !piece.is_empty() {
            let (taken, reply) = reader.feed(piece)?;
            assert!(taken > 0, "a reader that takes nothing would be fed for ever");
            piece = &piece[taken..];
            replies.extend(reply);
        }
    }
    Ok(replies)
}

/// Goal: a session of a real server is understood, each reply by the part that is for it.
/// Method: the golden session.
#[test]
fn a_session_of_globus_is_understood() {
    let replies = read(&[SESSION], Iac::Doubled).expect("replies");
    let codes: Vec<u16> = replies.iter().map(Reply::code).collect();
    assert_eq!(codes, [220, 331, 230, 211, 200, 227, 150, 112, 111, 226, 229, 553, 250, 632]);
    let features = Features::parse(&replies[3]).expect("features");
    assert!(features.has("parallel") && features.has_rest_stream() && features.mlst().count() == 5);
    assert_eq!(parse_227(replies[5].text()), Ok("127.0.0.1:45303".parse().expect("an address")));
    assert_eq!(replies[6].class(), Class::Preliminary);
    assert_eq!(Performance::parse(&replies[7]).map(|marker| marker.moved), Ok(20_000_000));
    assert_eq!(parse_restart(&replies[8]).map(|ranges| ranges.list().len()), Ok(3));
    let stripes = parse_spas(&replies[10]).expect("stripes");
    assert_eq!(stripes.iter().map(|a| a.port()).collect::<Vec<_>>(), [37_119, 47_823]);
    assert_eq!(replies[11].inner().next(), Some(&b"GridFTP-Errno: 17"[..]));
    assert_eq!(replies[11].class(), Class::Permanent);
    let (facts, path) = parse_mlst(&replies[12].lines()[1]).expect("facts");
    assert_eq!((facts.size, path), (Some(20_000_000), &b"/path"[..]));
    assert_eq!(replies[13].class(), Class::Protected);
}

/// Goal: it makes no difference in which pieces the bytes come.
/// Method: every split of the golden session into two, each byte alone, and every split of a multi-line reply
/// into three.
#[test]
fn pieces_make_no_difference() {
    let whole = read(&[SESSION], Iac::Doubled);
    for at in 0..=SESSION.len() {
        assert_eq!(read(&[&SESSION[..at], &SESSION[at..]], Iac::Doubled), whole, "split at {at}");
    }
    let bytes: Vec<&[u8]> = SESSION.chunks(1).collect();
    assert_eq!(read(&bytes, Iac::Doubled), whole);
    let text = b"211-a\n211\n212 b\r\n211-c\r\n 211 d\r\n211 e\r\n";
    let whole = read(&[text], Iac::Doubled);
    for i in 0..=text.len() {
        for j in i..=text.len() {
            assert_eq!(read(&[&text[..i], &text[i..j], &text[j..]], Iac::Doubled), whole, "{i} {j}");
        }
    }
}

/// Goal: only the own code and a space end a multi-line reply.
/// Method: lines that begin with other digits, the bare code, a hyphen, four digits.
#[test]
fn lines_within_a_reply_do_not_end_it() {
    let text = b"213-a\r\n213\r\n213-x\r\n200 b\r\n2130 c\r\n 213 d\r\n\r\n213 e\r\n200 f\r\n";
    let replies = read(&[text], Iac::Doubled).expect("replies");
    assert_eq!(replies.len(), 2);
    let lines: Vec<&[u8]> = replies[0].lines().iter().map(|line| &**line).collect();
    assert_eq!(lines, [&b"a"[..], b"213", b"213-x", b"200 b", b"2130 c", b" 213 d", b"", b"e"]);
    assert_eq!(replies[1].lines(), [Box::from(&b"f"[..])]);
}

/// Goal: what cannot begin a reply is refused, and the reader stays so.
/// Method: heads that are nearly one; a good reply afterwards. A bare code, and LF alone, are accepted.
#[test]
fn what_begins_no_reply_is_refused() {
    for bad in
        ["\r\n", "20 x\r\n", "099 x\r\n", "700 x\r\n", "2000 x\r\n", "200x\r\n", "abc\r\n", "\x16\x03\x01\n"]
    {
        let mut reader = ReplyReader::new(Iac::Plain);
        assert!(reader.feed(bad.as_bytes()).is_err(), "{bad:?}");
        assert!(reader.feed(b"200 x\r\n").is_err());
    }
    let replies = read(&[b"226\r\n200 x\n"], Iac::Plain).expect("replies");
    assert_eq!((replies[0].text(), replies[1].text()), (&b""[..], &b"x"[..]));
}

/// Goal: lines, their number and a reply's bytes have maxima, and memory is never above them.
/// Method: a line, a reply and a number of lines that are one too large, and such as just fit.
#[test]
fn replies_are_bounded() {
    let line = |len: usize| [b"200 ".to_vec(), vec![b'x'; len - 4], b"\r\n".to_vec()].concat();
    assert!(read(&[&line(REPLY_LINE_LEN_MAX)], Iac::Plain).is_ok());
    assert!(read(&[&line(REPLY_LINE_LEN_MAX + 1)], Iac::Plain).is_err());
    assert!(read(&[&vec![b'2'; REPLY_LINE_LEN_MAX + 2]], Iac::Plain).is_err(), "without an end");
    let lines =
        |count: usize| [b"211-\r\n".to_vec(), b"\r\n".repeat(count - 2), b"211 \r\n".to_vec()].concat();
    assert!(read(&[&lines(REPLY_LINES_MAX)], Iac::Plain).is_ok());
    assert!(read(&[&lines(REPLY_LINES_MAX + 1)], Iac::Plain).is_err());
    let row = [vec![b'x'; REPLY_LINE_LEN_MAX], b"\n".to_vec()].concat();
    let long = |rows: usize| [b"211-\n".to_vec(), row.repeat(rows), b"211 \n".to_vec()].concat();
    let longest = long(REPLY_LEN_MAX / REPLY_LINE_LEN_MAX);
    let two = read(&[&longest, &longest], Iac::Plain).expect("each by itself is bounded, not all of them");
    assert_eq!(two.len(), 2);
    assert!(read(&[&long(REPLY_LEN_MAX / REPLY_LINE_LEN_MAX + 1)], Iac::Plain).is_err());
}

/// Goal: every reply that can be made is read as it is, and one that could not be is not made.
/// Method: seeded lines of the bytes that are hard; the refusals by hand.
#[test]
fn replies_survive_their_round_trip() {
    let mut rng = fastrand::Rng::with_seed(959);
    let mut made = 0;
    for _ in 0..5_000 {
        let code = rng.u16(100..700);
        let line = |rng: &mut fastrand::Rng| -> Vec<u8> {
            let mut line = match rng.u8(0..4) {
                0 => format!("{code} ").into_bytes(),
                1 => format!("{code}-").into_bytes(),
                _ => Vec::new(),
            };
            line.extend(
                (0..rng.usize(0..6)).map(|_| *rng.choice(b"\xff\xff 12-\x01a\x80").expect("not empty")),
            );
            line
        };
        let lines: Vec<Vec<u8>> = (0..rng.usize(1..5)).map(|_| line(&mut rng)).collect();
        let Ok(reply) = Reply::new(code, lines) else { continue };
        made += 1;
        for iac in [Iac::Doubled, Iac::Plain] {
            let mut bytes = Vec::new();
            reply.encode(iac, &mut bytes);
            assert_eq!(read(&[&bytes], iac), Ok(vec![reply.clone()]), "{bytes:?}");
        }
    }
    assert!(made > 2_000, "only {made} of the replies were legal");
    assert!(Reply::new(200, Vec::<Vec<u8>>::new()).is_err());
    assert!(Reply::new(200, [&b"a"[..], b"200 b", b"c"]).is_err());
    for bad in [&b"a\r"[..], b"a\nb", b"\0"] {
        assert!(Reply::new(200, [bad]).is_err());
    }
    assert!(Reply::new(99, [&b""[..]]).is_err() && Reply::new(700, [&b""[..]]).is_err());
}

/// Goal: damage never panics, and never makes a reply that breaks the rules of one.
/// Method: every byte of the session with every value; each reply through every part that takes one.
#[test]
fn damage_at_every_byte_does_no_harm() {
    for at in 0..SESSION.len() {
        let start = SESSION[..at].iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
        // From the damaged line on, so that an error before it does not hide what comes.
        let mut bytes = SESSION[start..(at + 400).min(SESSION.len())].to_vec();
        for value in 0..=255 {
            bytes[at - start] = value;
            for reply in read(&[&bytes], Iac::Doubled).unwrap_or_default() {
                assert!((100..700).contains(&reply.code()) && !reply.lines().is_empty());
                let _ = (parse_227(reply.text()), parse_spas(&reply), Performance::parse(&reply));
                let _ =
                    (Features::parse(&reply).map(|f| (f.mlst().count(), f.sums().count())), reply.class());
                if let Ok(ranges) = parse_restart(&reply) {
                    let mut text = Vec::new();
                    ranges.encode(&mut text);
                    assert_eq!(Ranges::parse(&text), Ok(ranges));
                }
            }
        }
    }
}
