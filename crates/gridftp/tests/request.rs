//! Requests: what real clients say, and what is refused with which words.

use haul_gridftp::command::{Command, DataAuth, StripeLayout};
use haul_gridftp::line::Iac;
use haul_gridftp::listing::Moment;
use haul_gridftp::ranges::Ranges;
use haul_gridftp::request::{Family, Opts, Request, Restart};

fn parse(line: &str) -> Request<'_> {
    Request::parse(line.as_bytes()).unwrap_or_else(|refused| panic!("{line}: {refused:?}"))
}

fn code(line: &[u8]) -> u16 {
    Request::parse(line).expect_err("refused").code
}

/// Goal: lines of curl, lftp, ftplib and globus-url-copy are understood.
/// Method: lines as these say them.
#[test]
fn lines_of_real_clients() {
    let path: &[u8] = b"/a b";
    assert_eq!(parse("USER anonymous"), Request::User(b"anonymous"));
    assert_eq!(parse("PASS "), Request::Pass(b""));
    assert_eq!(parse("retr /a b"), Request::Retr { path, part: None });
    assert_eq!(parse("RETR  x"), Request::Retr { path: b" x", part: None });
    assert_eq!(parse("ERET P 5 7 /a b"), Request::Retr { path, part: Some((5, 7)) });
    assert_eq!(parse("ESTO A 5 /a b"), Request::Stor { path, at: Some(5) });
    assert_eq!(parse("REST 5"), Request::Rest(Restart::Offset(5)));
    let ranges = Ranges::parse(b"0-5,9-12").expect("ranges");
    assert_eq!(parse("REST 0-5,9-12"), Request::Rest(Restart::Ranges(ranges)));
    assert_eq!(parse("REST 0-0"), Request::Rest(Restart::Offset(0)));
    let opts = Opts::Retr { parallelism: Some(4), markers: None, layout: None };
    assert_eq!(parse("OPTS RETR Parallelism=4,4,4;"), Request::Opts(opts));
    let layout = Some(StripeLayout::Blocked(524_288));
    let opts = Opts::Retr { parallelism: Some(2), markers: Some(1), layout };
    let line = "OPTS RETR StripeLayout=Blocked;BlockSize=524288;Parallelism=2,2,2;Markers=1;";
    assert_eq!(parse(line), Request::Opts(opts));
    let opts = Opts::Retr { parallelism: None, markers: None, layout: Some(StripeLayout::Partitioned) };
    assert_eq!(parse("OPTS RETR BlockSize=5;StripeLayout=Partitioned;"), Request::Opts(opts));
    assert_eq!(parse("OPTS PASV AllowDelayed=1;"), Request::Opts(Opts::DelayedPassive(true)));
    assert_eq!(parse("OPTS STOR Tickets=1;"), Request::Opts(Opts::StorTickets(true)));
    assert_eq!(parse("OPTS MLST Type;Size;"), Request::Opts(Opts::Mlst(vec!["type".into(), "size".into()])));
    assert_eq!(parse("OPTS UTF8 ON"), Request::Opts(Opts::Utf8));
    assert_eq!(parse("EPSV"), Request::Epsv(Family::Same));
    assert_eq!(parse("EPSV ALL"), Request::Epsv(Family::All));
    assert_eq!(parse("TYPE L 8"), Request::Type(b'I'));
    assert_eq!(parse("LIST -a"), Request::List(None));
    assert_eq!(parse("LIST -la /a b"), Request::List(Some(path)));
    assert_eq!(parse("NLST -"), Request::Nlst(Some(b"-")));
    let sum = Request::Cksm { algorithm: "MD5".into(), offset: 0, len: None, path };
    assert_eq!(parse("CKSM md5 0 -1 /a b"), sum);
    let moment = Moment { secs: 1_795_210_170, nanos: 0 };
    assert_eq!(parse("MFMT 20261120212930 /a b"), Request::Mfmt { moment, path });
    assert_eq!(parse("SITE CHMOD 0644 /a b"), Request::SiteChmod { mode: 0o644, path });
    assert_eq!(parse("DCAU S /O=x/CN=y"), Request::Dcau(DataAuth::Subject(b"/O=x/CN=y")));
    assert_eq!(Request::parse(b"\xff\xf4\xff\xf2ABOR"), Ok(Request::Abor));
    assert_eq!(Request::parse(b"\xf2ABOR"), Ok(Request::Abor));
}

/// Goal: what this crate says as a client it understands as a server.
/// Method: a command of each form that has numbers or paths, encoded and read.
#[test]
fn what_is_said_is_understood() {
    let path: &[u8] = b"/a;b  c\xff";
    let ranges = Ranges::parse(b"3-5,9-12").expect("ranges");
    let address = "127.0.0.1:4711".parse().expect("an address");
    let table = [
        (Command::Path("STOR", path), Request::Stor { path, at: None }),
        (Command::Eret { offset: 1, len: 2, path }, Request::Retr { path, part: Some((1, 2)) }),
        (Command::Esto { offset: 1, path }, Request::Stor { path, at: Some(1) }),
        (Command::RestRanges(&ranges), Request::Rest(Restart::Ranges(ranges.clone()))),
        (Command::Port(address), Request::Port(address)),
        (Command::Eprt(address), Request::Eprt(address)),
        (Command::Spor(&[address]), Request::Spor(vec![address])),
        (Command::Spas6, Request::Spas(true)),
        (Command::Prot(b'P'), Request::Prot(b'P')),
        (Command::Sbuf(7), Request::Sbuf(7)),
    ];
    for (command, request) in table {
        let mut line = Vec::new();
        command.encode(Iac::Plain, &mut line).expect("a command");
        assert_eq!(Request::parse(&line[..line.len() - 2]), Ok(request));
    }
}

/// Goal: what cannot be meant is refused, by the code that says what is wrong.
/// Method: unknown verbs, missing and malformed arguments, letters that are known and not served.
#[test]
fn nonsense_is_refused() {
    for line in [&b""[..], b" RETR x", b"RETR\tx", b"GET x", b"SITE FAULT", b"\xff\xff"] {
        assert_eq!(code(line), 500, "{line:?}");
    }
    let bad = [
        "RETR",
        "STOR ",
        "ERET P 1 x",
        "ERET P -1 2 x",
        "ERET P 1 2",
        "ESTO A x y",
        "REST -1",
        "REST 5-3",
        "PORT 1,2,3,4,5",
        "PORT 1,2,3,4,0,0",
        "EPRT |1|::1|5|",
        "CKSM MD5 0 -2 x",
        "CKSM MD5 0 -1",
        "MFMT 1 x",
        "SITE CHMOD 888 x",
        "SITE CHMOD 17777 x",
        "OPTS RETR Parallelism=0,0,0;",
        "OPTS RETR Parallelism=99999;",
        "OPTS X",
        "ALLO x",
        "MODE",
    ];
    for line in bad {
        assert_eq!(code(line.as_bytes()), 501, "{line}");
    }
    for line in ["MODE B", "STRU R", "TYPE E", "ERET X 1 2 x", "ESTO B 1 x", "OPTS UTF8 OFF"] {
        assert_eq!(code(line.as_bytes()), 504, "{line}");
    }
    assert_eq!(code(b"RETR a\rDELE b"), 501);
    assert_eq!(code(b"RETR a\0"), 501);
    assert_eq!(code(&vec![b'x'; 2 << 20]), 500);
}
