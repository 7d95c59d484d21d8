//! Commands: what globus-url-copy says, and what must never be said.

use haul_gridftp::command::{
    COMMAND_LEN_MAX, Command, DataAuth, PARALLELISM_MAX, StripeLayout, VERB_LEN_MAX, split_command,
};
use haul_gridftp::line::{Iac, LineReader};
use haul_gridftp::ranges::{FILE_LEN_MAX, RANGES_MAX, Ranges};

fn said(command: &Command<'_>) -> Option<String> {
    let mut out = Vec::new();
    match command.encode(Iac::Plain, &mut out) {
        Ok(()) => Some(String::from_utf8(out).expect("these are UTF-8")),
        Err(_) => {
            assert!(out.is_empty(), "what is refused leaves nothing behind");
            None
        }
    }
}

/// Goal: commands are said as globus-url-copy says them, where it does.
/// Method: one of each form, against the wire or its standard.
#[test]
fn commands_are_said_as_on_the_wire() {
    let ranges = Ranges::parse(b"0-274202624,274464768-274726912,275251200-275513344").expect("ranges");
    let stripes =
        ["127.0.0.1:37119".parse().expect("an address"), "127.0.0.1:47823".parse().expect("an address")];
    let six = "[::1]:2811".parse().expect("an address");
    let path = b"/abs/a b";
    let table = [
        (Command::With("USER", b"anonymous"), "USER anonymous"),
        (Command::With("PASS", b""), "PASS "),
        (
            Command::With("SITE", b"CLIENTINFO scheme=ftp;appname=\"haul\";"),
            "SITE CLIENTINFO scheme=ftp;appname=\"haul\";",
        ),
        (Command::Bare("FEAT"), "FEAT"),
        (Command::Type(b'I'), "TYPE I"),
        (Command::Mode(b'E'), "MODE E"),
        (Command::Prot(b'P'), "PROT P"),
        (Command::Pbsz(1_048_576), "PBSZ 1048576"),
        (Command::Dcau(DataAuth::None), "DCAU N"),
        (Command::Dcau(DataAuth::Own), "DCAU A"),
        (Command::Dcau(DataAuth::Subject(b"/O=x/CN=y z")), "DCAU S /O=x/CN=y z"),
        (Command::Sbuf(4_194_304), "SBUF 4194304"),
        (Command::Allo(20_000_000), "ALLO 20000000"),
        (Command::Path("RETR", path), "RETR /abs/a b"),
        (Command::Rest(5), "REST 5"),
        (Command::RestRanges(&ranges), "REST 0-274202624,274464768-274726912,275251200-275513344"),
        (Command::Eret { offset: 1, len: 2, path }, "ERET P 1 2 /abs/a b"),
        (Command::Esto { offset: 1, path }, "ESTO A 1 /abs/a b"),
        (Command::Epsv, "EPSV"),
        (Command::Bare("SPAS"), "SPAS"),
        (Command::Spas6, "SPAS 2"),
        (Command::Port(stripes[0]), "PORT 127,0,0,1,144,255"),
        (Command::Eprt(six), "EPRT |2|::1|2811|"),
        (Command::Spor(&stripes), "SPOR 127,0,0,1,144,255 127,0,0,1,186,207"),
        (Command::OptsRetr { parallelism: 4, layout: None }, "OPTS RETR Parallelism=4,4,4;"),
        (
            Command::OptsRetr { parallelism: 2, layout: Some(StripeLayout::Blocked(524_288)) },
            "OPTS RETR StripeLayout=Blocked;BlockSize=524288;Parallelism=2,2,2;",
        ),
        (
            Command::OptsRetr { parallelism: 1, layout: Some(StripeLayout::Partitioned) },
            "OPTS RETR StripeLayout=Partitioned;Parallelism=1,1,1;",
        ),
        (Command::OptsDelayedPassive, "OPTS PASV AllowDelayed=1;"),
        (Command::OptsStorTickets, "OPTS STOR Tickets=1;"),
        (Command::OptsMlst(&["Type", "UNIX.mode"]), "OPTS MLST Type;UNIX.mode;"),
        (Command::Cksm { algorithm: "MD5", offset: 0, len: None, path }, "CKSM MD5 0 -1 /abs/a b"),
        (Command::Cksm { algorithm: "SHA256", offset: 1, len: Some(2), path }, "CKSM SHA256 1 2 /abs/a b"),
        (Command::Mfmt { moment: "20261120212930", path }, "MFMT 20261120212930 /abs/a b"),
        (Command::SiteChmod { mode: 0o644, path }, "SITE CHMOD 0644 /abs/a b"),
    ];
    for (command, line) in table {
        assert_eq!(said(&command).as_deref(), Some(&*format!("{line}\r\n")));
        let (verb, argument) = split_command(line.as_bytes()).expect("a command");
        let expected = line.split_once(' ').unwrap_or((line, ""));
        assert_eq!((&*verb, argument), (expected.0, expected.1.as_bytes()));
    }
}

/// Goal: no argument becomes a second command, whatever name a file has.
/// Method: CR, LF and NUL in each place where bytes of others go; all other bytes pass as they are.
#[test]
fn an_argument_is_never_a_command() {
    for bad in [&b"a\r\nDELE b"[..], b"a\nb", b"a\r", b"\0"] {
        let commands = [
            Command::Path("RETR", bad),
            Command::With("USER", bad),
            Command::Dcau(DataAuth::Subject(bad)),
            Command::Eret { offset: 0, len: 1, path: bad },
            Command::Esto { offset: 0, path: bad },
            Command::Cksm { algorithm: "MD5", offset: 0, len: None, path: bad },
            Command::Mfmt { moment: "20261120212930", path: bad },
            Command::SiteChmod { mode: 0, path: bad },
        ];
        for command in commands {
            assert_eq!(said(&command), None, "{command:?}");
        }
        assert!(split_command(&[b"RETR ", bad].concat()).is_err());
    }
    let all: Vec<u8> = (1..=255).filter(|b| !b"\r\n".contains(b)).collect();
    for iac in [Iac::Doubled, Iac::Plain] {
        let mut out = b"before ".to_vec();
        Command::Path("STOR", &all).encode(iac, &mut out).expect("a command");
        let mut reader = LineReader::new("command", COMMAND_LEN_MAX);
        let (_, line) = reader.feed(&out[7..]).expect("a line");
        let mut line = line.expect("a whole line");
        iac.decode(&mut line);
        assert_eq!(split_command(&line), Ok(("STOR".to_owned(), &all[..])));
    }
}

/// Goal: what makes no sense is not said.
/// Method: empty paths, letters, numbers and words that are none, addresses of the wrong family.
#[test]
fn nonsense_is_refused() {
    let six = "[::1]:2811".parse().expect("an address");
    let commands = [
        Command::Path("RETR", b""),
        Command::Path("RE TR", b"x"),
        Command::Bare(""),
        Command::Bare("FEAT\r\nQUIT"),
        Command::Type(b'E'),
        Command::Mode(b'B'),
        Command::Prot(b'x'),
        Command::Rest(FILE_LEN_MAX + 1),
        Command::Eret { offset: u64::MAX, len: 1, path: b"x" },
        Command::Port(six),
        Command::Spor(&[]),
        Command::OptsRetr { parallelism: 0, layout: None },
        Command::OptsRetr { parallelism: PARALLELISM_MAX + 1, layout: None },
        Command::OptsRetr { parallelism: 1, layout: Some(StripeLayout::Blocked(0)) },
        Command::OptsMlst(&["Type;Size"]),
        Command::Cksm { algorithm: "MD5 0", offset: 0, len: None, path: b"x" },
        Command::SiteChmod { mode: 0o10000, path: b"x" },
    ];
    for command in commands {
        assert_eq!(said(&command), None, "{command:?}");
    }
    for bad in [&b""[..], b" RETR x", b"\xff\xf4ABOR", b"RETR\tx", &[b'x'; VERB_LEN_MAX + 1]] {
        assert!(split_command(bad).is_err(), "{bad:?}");
    }
    assert_eq!(split_command(b"retr  x "), Ok(("RETR".to_owned(), &b" x "[..])));
}

/// Goal: the longest that must be said can be, and no more.
/// Method: `REST` with as many of the widest ranges as a set may have; a path at the maximum and above.
#[test]
fn commands_are_bounded() {
    let mut ranges = Ranges::new();
    for i in 0..RANGES_MAX as u64 {
        let end = FILE_LEN_MAX - 3 * i;
        ranges.insert(end - 1, end).expect("below the maximum");
    }
    assert!(said(&Command::RestRanges(&ranges)).is_some());
    let path = vec![b'x'; COMMAND_LEN_MAX - 4];
    assert!(said(&Command::Path("RETR", &path)).is_none());
    assert!(said(&Command::Path("RETR", &path[1..])).is_some());
    let mut out = Vec::new();
    assert!(Command::Path("RETR", &[0xff; COMMAND_LEN_MAX / 2]).encode(Iac::Doubled, &mut out).is_err());
    assert!(out.is_empty());
}
