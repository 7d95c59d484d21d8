//! Listings: lines of real servers, and lines that are wrong in one thing.

use haul_gridftp::line::LineReader;
use haul_gridftp::list::{ListEntry, ListTime, parse_list, parse_nlst, refused_in};
use haul_gridftp::listing::{
    FACTS_MAX, Facts, Kind, LISTING_LINE_LEN_MAX, Moment, NAME_LEN_MAX, parse_mlsd, parse_mlst, parse_moment,
    write_moment,
};

const GLOBUS: &[u8] =
    b"Type=file;Modify=20261120212930;Size=20000000;Perm=awr;UNIX.mode=0644;UNIX.owner=root;\
    UNIX.uid=0;UNIX.group=root;UNIX.gid=0;Unique=fe00-5224fc; f 1";

const LISTS: [&[u8]; 9] = [
    b"-rw-r--r--   1 root     root     20000000 Nov 20 21:29 f 1",
    b"drwxr-sr-t+  2 1000 users 4096 Feb 29  2024 d",
    b"lrwxrwxrwx 1 a b 7 Jan  1 00:00 link -> ../x y",
    b"-rwsr-Sr-T. 1 a b 0 dec 31 23:59  leading",
    b"crw-rw-rw- 1 root root 1, 3 Nov 25 06:30 null",
    b"prw------- 1 a b 0 Nov 25 2025 pipe",
    b"11-20-26  09:29PM             20000000 f 1",
    b"11-20-2026  12:00AM       <DIR>          d",
    b"01-01-99  23:59       <DIR>           blank first",
];

/// Goal: a line of Globus gives all that it says, in `MLSD` and in `MLST`.
/// Method: a line from the wire; names of facts in another case; facts that nobody knows.
#[test]
fn a_line_of_globus_is_understood() {
    let (facts, name) = parse_mlsd(GLOBUS).expect("a line").expect("a child");
    let text = |text: &[u8]| Some(Box::from(text));
    let expected = Facts {
        kind: Some(Kind::File),
        size: Some(20_000_000),
        modify: Some(Moment { secs: 1_795_210_170, nanos: 0 }),
        perm: text(b"awr"),
        unique: text(b"fe00-5224fc"),
        unix_mode: Some(0o644),
        unix_owner: text(b"root"),
        unix_group: text(b"root"),
        unix_uid: Some(0),
        unix_gid: Some(0),
        unix_slink: None,
        count: None,
        links: None,
    };
    assert_eq!((&facts, name), (&expected, &b"f 1"[..]));
    assert_eq!(parse_mlst(&[b" ", GLOBUS].concat()), Ok((expected.clone(), &b"f 1"[..])));
    let again = parse_mlsd(b"TYPE=FILE;x.odd=1=2;size=5; a;b=c; d").expect("a line").expect("a child");
    assert_eq!((again.0.size, again.0.kind, again.1), (Some(5), Some(Kind::File), &b"a;b=c; d"[..]));
    assert_eq!(parse_mlsd(b" bare"), Ok(Some((Facts::default(), &b"bare"[..]))));
    assert_eq!(
        parse_mlst(b"Type=dir; /a b/"),
        Ok((Facts { kind: Some(Kind::Dir), ..Facts::default() }, &b"/a b/"[..]))
    );
}

/// Goal: the directory itself and the one above are no children; symlinks are known in each way to say it.
/// Method: the types of the standard, of proftpd and of Globus.
#[test]
fn kinds_are_known() {
    for line in [&b"Type=cdir; ."[..], b"type=pdir; ..", b"Type=cdir; /abs/path"] {
        assert_eq!(parse_mlsd(line), Ok(None));
    }
    let facts = |line| parse_mlsd(line).expect("a line").expect("a child").0;
    let link = facts(b"Type=OS.unix=slink:/a/b; l");
    assert_eq!((link.kind, link.is_symlink()), (Some(Kind::Symlink), true));
    assert_eq!(link.unix_slink.as_deref(), Some(&b"/a/b"[..]));
    assert!(facts(b"Type=file;UNIX.slink=x; l").is_symlink());
    assert!(facts(b"Type=os.unix=symlink; l").is_symlink());
    assert_eq!(facts(b"Type=OS.unix=chr-13/29; l").kind, Some(Kind::Other));
    assert_eq!(facts(b"Size=1; l").kind, None);
}

/// Goal: no name comes through that is another path, or that a terminal would obey.
/// Method: each bad name in each listing; the longest name and one byte more; bytes that are no UTF-8.
#[test]
fn bad_names_are_refused() {
    let long = vec![b'n'; NAME_LEN_MAX + 1];
    let bad = [
        &b""[..],
        b".",
        b"..",
        b"/",
        b"a/b",
        b"../x",
        b"/etc/passwd",
        b"a\0b",
        b"a\x1b[2J",
        b"a\rb",
        b"\x7f",
        &long,
    ];
    for name in bad {
        assert!(parse_mlsd(&[b"Type=file; ", name].concat()).is_err(), "{name:?}");
        assert!(parse_mlsd(&[b"Type=dir; ", name].concat()).is_err(), "{name:?}");
        assert!(parse_nlst(name, b"/some/dir").is_err(), "{name:?}");
        let unix = [b"-rw-r--r-- 1 a b 1 Nov 20 21:29 ", name].concat();
        assert!(parse_list(&unix).is_err(), "{name:?}");
        assert!(parse_list(&[b"11-20-26  09:29PM 1 ", name].concat()).is_err(), "{name:?}");
    }
    for name in [&long[1..], b"...", b"\xff\xfe", b" x ", b"-> ", b"a -> b"] {
        assert_eq!(parse_mlsd(&[b"Type=file; ", name].concat()).map(|e| e.map(|e| e.1)), Ok(Some(name)));
        assert_eq!(parse_nlst(name, b"d"), Ok(name));
        let unix = [b"-rw-r--r-- 1 a b 1 Nov 20 21:29 ", name].concat();
        assert_eq!(parse_list(&unix).map(|e| e.map(|e| e.name)), Ok(Some(name)));
    }
    assert_eq!(parse_nlst(b"/some/dir/x", b"/some/dir/"), Ok(&b"x"[..]));
    assert_eq!(parse_nlst(b"/some/dir/x", b"/some/dir"), Ok(&b"x"[..]));
    assert_eq!(parse_nlst(b"/x", b"/"), Ok(&b"x"[..]));
    assert!(parse_nlst(b"/x", b"").is_err(), "an absolute path where no directory was asked for");
    for outside in [&b"/some/dirx/y"[..], b"/some/dir/../x", b"/some/dir/", b"/some/dir/.."] {
        assert!(parse_nlst(outside, b"/some/dir").is_err());
    }
}

/// Goal: a fact that is no value of its kind, or told twice, spoils the line.
/// Method: one wrong thing each.
#[test]
fn bad_facts_spoil_the_line() {
    let bad = [
        "",
        "x",
        "Type=file;x",
        "Type=file x",
        "Type; x",
        "Size=; x",
        "Size=-1; x",
        "Size=9223372036854775808; x",
        "Size=1;Size=1; x",
        "Type=file;type=dir; x",
        "Modify=2026112021293; x",
        "Modify=19100101000000; ",
        "Modify=20261320212930; x",
        "Modify=20260229000000; x",
        "Modify=191001010000000; x",
        "Modify=20261120212930.; x",
        "UNIX.mode=0644;UNIX.mode=0644; x",
        ";; x",
    ];
    for line in bad {
        assert!(parse_mlsd(line.as_bytes()).is_err(), "{line}");
    }
    let facts = |count: usize| [b"x.y=1;".repeat(count), b" n".to_vec()].concat();
    assert!(parse_mlsd(&facts(FACTS_MAX)).is_ok());
    assert!(parse_mlsd(&facts(FACTS_MAX + 1)).is_err());
    assert!(parse_mlst(&[b"Type=file; ".to_vec(), vec![b'x'; LISTING_LINE_LEN_MAX]].concat()).is_err());
}

/// Goal: a moment is read as it is written, fractions too, and stays in order.
/// Method: seeded moments over all years of four digits; some by hand.
#[test]
fn moments_survive_their_round_trip() {
    let mut rng = fastrand::Rng::with_seed(3659);
    for _ in 0..5_000 {
        let nanos = if rng.bool() { 0 } else { rng.u32(0..1_000_000_000) };
        let moment = Moment { secs: rng.i64(-62_135_596_800..253_402_300_800), nanos };
        let text = write_moment(moment).expect("a year of four digits");
        assert_eq!(parse_moment(text.as_bytes()), Ok(moment), "{text}");
    }
    assert_eq!(parse_moment(b"19700101000000.5"), Ok(Moment { secs: 0, nanos: 500_000_000 }));
    assert_eq!(write_moment(Moment { secs: 0, nanos: 500_000_000 }).as_deref(), Ok("19700101000000.5"));
    assert_eq!(
        parse_moment(b"19981231235960").map(|m| m.secs),
        parse_moment(b"19990101000000").map(|m| m.secs)
    );
    for secs in [i64::MIN, -62_135_596_801, 253_402_300_800, i64::MAX] {
        assert!(write_moment(Moment { secs, nanos: 0 }).is_err());
    }
    assert!(write_moment(Moment { secs: 0, nanos: 1_000_000_000 }).is_err());
}

/// Goal: facts are read as they are written.
/// Method: seeded facts and names of all bytes that may be there; values that may not are refused and leave
/// nothing behind.
#[test]
fn facts_survive_their_round_trip() {
    let mut rng = fastrand::Rng::with_seed(11);
    for _ in 0..3_000 {
        let word = |rng: &mut fastrand::Rng| -> Option<Box<[u8]>> {
            rng.bool()
                .then(|| (0..rng.usize(0..5)).map(|_| *rng.choice(b"a=,\xff:").expect("not empty")).collect())
        };
        let kinds = [Kind::File, Kind::Dir, Kind::Symlink, Kind::Other];
        let facts = Facts {
            kind: rng.bool().then(|| *rng.choice(&kinds).expect("not empty")),
            size: rng.bool().then(|| rng.u64(..) >> 1),
            modify: rng.bool().then(|| Moment { secs: rng.i64(0..4_000_000_000), nanos: rng.u32(0..10) }),
            perm: word(&mut rng),
            unique: word(&mut rng),
            unix_mode: rng.bool().then(|| rng.u32(0..0o10000)),
            unix_owner: word(&mut rng),
            unix_group: word(&mut rng),
            unix_uid: rng.bool().then(|| rng.u32(..)),
            unix_gid: rng.bool().then(|| rng.u32(..)),
            unix_slink: word(&mut rng),
            count: None,
            links: None,
        };
        let name: Vec<u8> =
            (0..rng.usize(1..5)).map(|_| *rng.choice(b"a ;=\xff\x80").expect("not empty")).collect();
        let mut line = Vec::new();
        facts.encode(&name, &mut line).expect("legal facts");
        assert_eq!(parse_mlsd(&line), Ok(Some((facts, &name[..]))), "{line:?}");
    }
    let mut out = b"kept".to_vec();
    for bad in [&b"a;b"[..], b"a b", b"a\r\n", b"\0"] {
        let facts = Facts { unix_owner: Some(bad.into()), ..Facts::default() };
        assert!(facts.encode(b"n", &mut out).is_err());
    }
    for bad in [&b""[..], b"a\nb", &[b'x'; LISTING_LINE_LEN_MAX]] {
        assert!(Facts::default().encode(bad, &mut out).is_err());
    }
    assert_eq!(out, b"kept");
}

/// Goal: both forms of `LIST` are understood in all their parts.
/// Method: lines of servers, one of each kind.
#[test]
fn lists_are_understood() {
    let recent = |month, day, hour, minute| ListTime::Recent { month, day, hour, minute };
    let day = |year, month, day| ListTime::Day { year, month, day };
    let minute = |year, month, day, hour, minute| ListTime::Minute { year, month, day, hour, minute };
    let entry = |kind, size, time, mode, name: &'static str| ListEntry {
        kind,
        size,
        time,
        mode,
        links: mode.map(|_| if kind == Kind::Dir { 2 } else { 1 }),
        name: name.as_bytes(),
        target: None,
    };
    let mut link = entry(Kind::Symlink, None, recent(1, 1, 0, 0), Some(0o777), "link");
    link.target = Some(b"../x y");
    let expected = [
        entry(Kind::File, Some(20_000_000), recent(11, 20, 21, 29), Some(0o644), "f 1"),
        entry(Kind::Dir, None, day(2024, 2, 29), Some(0o3755), "d"),
        link,
        entry(Kind::File, Some(0), recent(12, 31, 23, 59), Some(0o7744), " leading"),
        entry(Kind::Other, None, recent(11, 25, 6, 30), Some(0o666), "null"),
        entry(Kind::Other, None, day(2025, 11, 25), Some(0o600), "pipe"),
        entry(Kind::File, Some(20_000_000), minute(2026, 11, 20, 21, 29), None, "f 1"),
        entry(Kind::Dir, None, minute(2026, 11, 20, 0, 0), None, "d"),
        entry(Kind::Dir, None, minute(1999, 1, 1, 23, 59), None, " blank first"),
    ];
    for (line, expected) in LISTS.iter().zip(expected) {
        assert_eq!(parse_list(line), Ok(Some(expected)), "{}", String::from_utf8_lossy(line));
    }
    assert_eq!(parse_list(b"total 123"), Ok(None));
}

/// Goal: a line that is not understood is an error.
/// Method: other systems' lines, missing columns, other languages, dates that are none, two arrows.
#[test]
fn what_is_not_understood_is_told() {
    let bad = [
        "",
        "total",
        "total x",
        "-rw-r--r--",
        "-rw-r--r-- 1 root 20000000 Nov 20 21:29 no-group",
        "-rw-r--r-- 1 a b 1 Okt 20 21:29 german",
        "-rw-r--r-- 1 a b 1 Feb 30 21:29 x",
        "-rw-r--r-- 1 a b 1 Feb 29 2025 x",
        "-rw-r--r-- 1 a b 1 Nov 20 24:00 x",
        "-rw-r--r-- 1 a b 1 Nov 0 21:29 x",
        "-rw-r--r-- 1 a b 1 Nov 20 21:29",
        "-rw-r--r-- 1 a b -1 Nov 20 21:29 x",
        "-rw-r--r-- 1 a b c 1 Nov 20 21:29 x",
        "-rw-r--r-- 1 a b 1, 3 Nov 20 21:29 x",
        "?rw-r--r-- 1 a b 1 Nov 20 21:29 x",
        "-rw-r--r-z 1 a b 1 Nov 20 21:29 x",
        "-rwtr--r-- 1 a b 1 Nov 20 21:29 x",
        "lrwxrwxrwx 1 a b 7 Jan  1 00:00 a -> b -> c",
        "lrwxrwxrwx 1 a b 7 Jan  1 00:00 no-target",
        "FILE.TXT;1  2/3  20-NOV-2026 21:29",
        "+i8388621.48594,m825718503,r,s280,\tdjb.html",
        "13-20-26  09:29PM 1 x",
        "11-20-26  13:29PM 1 x",
        "11-20-26  00:29AM 1 x",
        "11-20-026  09:29PM 1 x",
        "20.11.26  21:29 1 x",
        "11-20-26  09:29PM  <JUNCTION> x",
        "11-20-26  09:29PM 1",
        "11-31-26  09:29PM 1 x",
        "11-20-26  9:29PM 1 x",
        "1-1-1-1",
    ];
    for line in bad {
        assert!(parse_list(line.as_bytes()).is_err(), "{line}");
    }
    assert!(parse_list(&[LISTS[0], &[b'x'; LISTING_LINE_LEN_MAX]].concat()).is_err());
}

/// Goal: of a line that is refused for its name alone the name is told; of any other nothing.
#[test]
fn refused_names_are_told_alone() {
    for (line, told) in [
        ("-rw-r--r-- 1 a b 1 Nov 20 21:29 x\x07y", Some((Kind::File, "x\x07y"))),
        ("drwxr-xr-x 2 a b 1 Nov 20 21:29 a/b", Some((Kind::Dir, "a/b"))),
        ("lrwxrwxrwx 1 a b 7 Jan  1 00:00 a -> b -> c", Some((Kind::Symlink, "a -> b -> c"))),
        ("11-20-26  09:29PM 1 x\x07", Some((Kind::File, "x\x07"))),
        ("-rw-r--r-- 1 a b 1 Nov 20 21:29 ", None),
        ("-rw-r--r-- 1 a b 1 Okt 20 21:29 german", None),
        ("/d: No such file or directory", None),
        ("", None),
    ] {
        let name =
            refused_in(line.as_bytes()).map(|(kind, name)| (kind, std::str::from_utf8(name).expect("ASCII")));
        assert_eq!(name, told, "{line}");
        assert!(parse_list(line.as_bytes()).is_err());
    }
}

/// Goal: damage never panics, and never lets a bad name through.
/// Method: every byte of every good line with every value, and each line cut at each place.
#[test]
fn damage_at_every_byte_does_no_harm() {
    let check = |line: &[u8]| {
        let listed = parse_list(line).ok().flatten();
        let is_itself = |kind| matches!(kind, Kind::CurrentDir | Kind::ParentDir);
        assert!(listed.as_ref().is_none_or(|e| is_itself(e.kind) == [&b"."[..], b".."].contains(&e.name)));
        let listed = listed.filter(|e| !is_itself(e.kind)).map(|e| e.name);
        let name = parse_mlsd(line).ok().flatten().map(|e| e.1);
        for name in [listed, name, parse_nlst(line, b"/d").ok()].into_iter().flatten() {
            let bad = |b: &u8| *b == b'/' || *b < b' ' || *b == 0x7f;
            assert!(!name.iter().any(bad) && ![&b""[..], b".", b".."].contains(&name));
        }
        let _ = parse_mlst(line);
    };
    for good in LISTS.iter().chain([&GLOBUS]) {
        for at in 0..good.len() {
            check(&good[..at]);
            for value in 0..=255 {
                let mut line = good.to_vec();
                line[at] = value;
                check(&line);
            }
        }
    }
}

/// Goal: a mode or an owner in a form that nobody knows costs the line nothing else, and that of pyftpdlib is
/// known.
#[test]
fn what_nobody_needs_is_passed_over() {
    let modes = [
        ("0o755", Some(0o755)),
        ("0o100644", Some(0o644)),
        ("0644", Some(0o644)),
        ("0o", None),
        ("0x1ed", None),
        ("9", None),
        ("", None),
        ("7777777", None),
        ("rwxr-xr-x", None),
    ];
    for (mode, read) in modes {
        let line = format!("Type=file;Size=7;UNIX.mode={mode};UNIX.uid=4294967296;UNIX.gid=-; x");
        let (facts, name) = parse_mlsd(line.as_bytes()).expect("a line").expect("an entry");
        assert_eq!((facts.unix_mode, facts.unix_uid, facts.unix_gid), (read, None, None), "{mode}");
        assert_eq!((facts.size, name), (Some(7), &b"x"[..]), "{mode}");
    }
}

/// Goal: a name is refused for a control byte, a slash or a NUL wherever it stands, and else is what stands
/// there, byte for byte, in each form of a listing: no blank of any alphabet ends one.
/// Method: each byte, and letters that are blanks or ends of lines elsewhere, before, in and behind a name;
/// and the same as lines of a whole.
#[test]
fn names_are_whole_or_refused() {
    let blanks = ["\u{85}", "\u{a0}", "\u{1680}", "\u{2003}", "\u{2028}", "\u{2029}", "\u{3000}", "\u{feff}"];
    let bytes = (0..=255_u8).map(|byte| vec![byte]);
    for odd in bytes.chain(blanks.map(|blank| blank.as_bytes().to_vec())) {
        let is_bad = matches!(odd[..], [0..=0x1f | 0x7f | b'/']);
        for name in [[&odd[..], b"x"].concat(), [b"x", &odd[..], b"y"].concat(), [b"x", &odd[..]].concat()] {
            let wanted = (!is_bad).then_some(&name[..]);
            let line = |before: &[u8], behind: &[u8]| [before, &name, behind].concat();
            let mlsd = line(b"type=file;size=1; ", b"");
            assert_eq!(parse_mlsd(&mlsd).ok().flatten().map(|(_, name)| name), wanted, "{name:?}");
            assert_eq!(parse_nlst(&name, b"").ok(), wanted, "{name:?}");
            let nlst = line(b"/d/", b"");
            assert_eq!(parse_nlst(&nlst, b"/d").ok(), wanted, "{name:?}");
            for (before, behind) in [
                (&b"-rw-r--r-- 1 a b 1 Nov 20 21:29 "[..], &b""[..]),
                (b"lrwxrwxrwx 1 a b 7 Jan  1 00:00 ", b" -> y"),
                (b"11-20-26  09:29PM             1 ", b""),
                (b"11-20-26  09:29PM       <DIR>          ", b""),
            ] {
                let list = line(before, behind);
                let entry = parse_list(&list).ok().flatten();
                assert_eq!(entry.map(|entry| entry.name), wanted, "{name:?} in {list:?}");
                // A line's end cuts it, and leaves no name that is another's.
                let mut reader = LineReader::new("line", LISTING_LINE_LEN_MAX);
                let whole = [&list[..], b"\r\n"].concat();
                let (taken, first) = reader.feed(&whole).expect("it is short");
                let is_whole = taken == whole.len() && first.as_deref() == Some(&list[..]);
                assert_eq!(is_whole, odd != b"\n", "{list:?}");
            }
        }
    }
}
