//! The matrix of `docs/interop.md`: haul's client with the servers of others, and the clients of others with
//! haul's server. Each cell puts a tree and gets it back, and other code than haul's compares every byte.
//!
//! Clients of others stand in `interop_clients`.
//!
//! A cell that fails is named, and the others run all the same. What cannot pass stands in its row (`lost`),
//! and is shown: exactly these names are missing, and the client says so. With `HAUL_TEST_INTEROP` set the
//! trees are large: 10,000 files, and one of 5 GiB that is nearly all hole. What other tests show of the same
//! pairs is named on that page, and not done again here.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;

use crate::interop_clients::{ALL_AT_ONCE, GLOBUS};
use crate::support::Room;
use crate::support::ftpd::Kind;
use crate::support::matrix::{
    Data, LOST_AT_GLOBUS, Matrix, Peer, QUOTE, Server, assert_arrived, furnish, is_here, place, remove, rows,
    slash,
};
use crate::support::run::Outcome;
use crate::support::wire::Seen;

/// A server as haul's client sees it.
struct Row {
    peer: Peer,
    options: &'static [&'static str],
    lost: &'static [&'static [u8]],
    /// Files go and come in blocks, or as they are.
    blocks: bool,
    /// The sum by which the server's content is compared, if it makes one.
    sum: Option<&'static str>,
    data: Data,
    /// What is said to protect commands and data.
    said: &'static str,
}

const fn row(peer: Peer, ways: (bool, Option<&'static str>), data: Data, said: &'static str) -> Row {
    let lost: &[&[u8]] = match peer {
        Peer::Theirs(Kind::Gridftp | Kind::GridftpStriped | Kind::GridftpFourfold) => &LOST_AT_GLOBUS,
        _ => &[],
    };
    Row { peer, options: &[], lost, blocks: ways.0, sum: ways.1, data, said }
}

/// The same under GSI; what the user wants of data connections follows from how they are protected.
const fn grid(peer: Peer, data: Data) -> Row {
    let (options, said) = match data {
        Data::Clear => (PLAIN, BY_GSI),
        Data::Shown => (SHOWN, SHOWN_BY_GSI),
        Data::Sealed => (PRIVATE, ALL_BY_GSI),
    };
    Row { peer, options, lost: &[], blocks: true, sum: SHA256, data, said }
}

const PLAIN: &[&str] = &["--data-channel=plain"];
const SHOWN: &[&str] = &["--data-channel=shown"];
const PRIVATE: &[&str] = &["--data-channel=private"];

const SHA256: Option<&str> = Some("SHA256");
const NOTHING: &str = "none: FTP sends password and data as they are; ftps:// does not";
const BY_TLS: &str = "TLS, with a server that showed its certificate";
/// Nothing is delegated.
const BY_GSI: &str = "commands by GSI, with a server that showed its certificate; data go as they are";
const SHOWN_BY_GSI: &str = "commands by GSI, with a server that showed its certificate, and has a limited proxy of yours; \
                            data go as they are, over connections that showed whose they are";
const ALL_BY_GSI: &str =
    "commands and data by GSI, with a server that showed its certificate, and has a limited proxy of yours";

/// In blocks, with a sum; the front end of a striped server does not say that it makes one.
const IN_BLOCKS: (bool, Option<&str>) = (true, SHA256);
const STRIPED: (bool, Option<&str>) = (true, None);
const AS_THEY_ARE: (bool, Option<&str>) = (false, None);

const OF_HAULS_CLIENT: [Row; 16] = [
    row(Peer::Theirs(Kind::Gridftp), IN_BLOCKS, Data::Clear, NOTHING),
    row(Peer::Theirs(Kind::GridftpStriped), STRIPED, Data::Clear, NOTHING),
    row(Peer::Theirs(Kind::GridftpFourfold), STRIPED, Data::Clear, NOTHING),
    grid(Peer::Theirs(Kind::GridftpGsi), Data::Clear),
    grid(Peer::Theirs(Kind::GridftpGsi), Data::Shown),
    grid(Peer::Theirs(Kind::GridftpGsi), Data::Sealed),
    row(Peer::Theirs(Kind::Vsftpd), AS_THEY_ARE, Data::Clear, NOTHING),
    row(Peer::Theirs(Kind::VsftpdTls), AS_THEY_ARE, Data::Sealed, BY_TLS),
    row(Peer::Theirs(Kind::Proftpd), AS_THEY_ARE, Data::Clear, NOTHING),
    row(Peer::Theirs(Kind::ProftpdList), AS_THEY_ARE, Data::Clear, NOTHING),
    row(Peer::Theirs(Kind::ProftpdTls), AS_THEY_ARE, Data::Sealed, BY_TLS),
    row(Peer::Haul, IN_BLOCKS, Data::Clear, NOTHING),
    row(Peer::HaulTls, (false, SHA256), Data::Sealed, BY_TLS),
    grid(Peer::HaulGsi, Data::Clear),
    grid(Peer::HaulGsi, Data::Shown),
    grid(Peer::HaulGsi, Data::Sealed),
];

impl Row {
    /// The copy went the way of this row and no plainer one, at this end, as haul says it.
    #[track_caller]
    fn was_used(&self, end: &str, ended: &Outcome) {
        let summary = ended.summary();
        let told = |what: &str| summary.chosen(&format!("{end} {what}"));
        let is = |what: bool, why: &str| assert!(what, "{why}: {}", ended.describe());
        is(told("protection") == self.said, "another protection");
        let storage = told("storage");
        is(storage.contains(" sessions") && !storage.contains("refused"), "fewer sessions");
        let streams = told("streams");
        let most = streams.strip_prefix("in blocks, up to ").and_then(|rest| {
            let (count, rest) = rest.split_once(' ')?;
            (rest == "connections a file").then(|| count.parse::<u32>().ok()).flatten()
        });
        // Fewer than four where other files were under way when the large one began; more where a busy
        // machine took long for a round trip.
        let in_blocks = most.is_some_and(|most| (2..=16).contains(&most));
        is(if self.blocks { in_blocks } else { streams.is_empty() }, "another way than blocks, or blocks");
        // What is sent and comes to lie under another name is compared, too, before that is seen.
        let files = summary.number("files")..=summary.number("files") + self.lost.len() as u64;
        let by_sum = |sum| files.map(move |count| format!("{sum} of what it keeps (CKSM), of {count} files"));
        let compared: Vec<String> = match (end, self.sum) {
            ("source", _) => vec!["sizes and times; its content was not hashed there".into()],
            (_, None) => vec!["sizes; not its content, for it makes no sum that is known here (CKSM)".into()],
            (_, Some(sum)) => by_sum(sum).map(|how| format!("sizes; {how}")).collect(),
        };
        let told = summary.chosen("compared with the server");
        // Large ones are.
        let told = told.split_once(" files, ").filter(|(_, how)| how.ends_with(" of them part by part"));
        let told = told
            .map_or(summary.chosen("compared with the server").to_owned(), |(all, _)| format!("{all} files"));
        is(compared.contains(&told), "not compared so");
    }

    /// The same as the packets have it, of what was said in the clear.
    fn was_said(&self, seen: &Seen) {
        let is_gsi = matches!(self.peer, Peer::HaulGsi | Peer::Theirs(Kind::GridftpGsi));
        let is_tls = self.said == BY_TLS;
        assert_eq!(seen.says("AUTH GSSAPI"), is_gsi, "{seen:?}");
        assert_eq!(seen.says("AUTH TLS"), is_tls, "{seen:?}");
        // What is said behind these is not heard.
        if is_gsi || is_tls {
            let plain = ["USER", "PASS", "RETR", "STOR", "PASV", "EPSV", "PORT"];
            assert!(!plain.iter().any(|verb| seen.says(verb)), "commands in the clear: {seen:?}");
        } else {
            assert_eq!(seen.says("MODE E"), self.blocks, "{seen:?}");
            let is_striped = matches!(self.peer, Peer::Theirs(Kind::GridftpStriped | Kind::GridftpFourfold));
            assert!(!is_striped || seen.says("SPAS") || seen.says("RETR"), "{seen:?}");
        }
    }
}

/// Goal: haul's client puts a tree to each server and gets it back, whole, by the best way that both have,
/// and protected as it should be; what a server cannot be asked for fails by name, and all else arrives.
/// Method: what haul says of its way, and what packets hold that nobody's word is needed for.
#[test]
fn interop_of_hauls_client() {
    let room = Room::new();
    let data = furnish(&room);
    let matrix = Matrix::default();
    rows(OF_HAULS_CLIENT, |row, net| {
        let Row { peer, options, lost, .. } = row;
        if !is_here(peer) {
            return;
        }
        let server = Server::start(peer);
        let ends = |ended: Outcome| ended.exits(if lost.is_empty() { 0 } else { 3 });
        net.forget();
        matrix.cell(format!("haul puts to {peer:?} {options:?}"), || {
            let ended = ends(server.cp(&[options, &[&slash(&data), &server.url("put/")]].concat()));
            assert_arrived(&data, &server.at("put"), lost);
            row.was_used("sink", &ended);
            if let Some(seen) = net.showed(row.data) {
                row.was_said(&seen);
                let is_compared = row.sum.is_none() || row.said != NOTHING || seen.says("CKSM SHA256");
                assert!(is_compared, "{seen:?}");
            }
        });
        remove(&server.at("put"));
        let held = server.at("got");
        place(&data, &held);
        net.forget();
        matrix.cell(format!("haul gets from {peer:?} {options:?}"), || {
            let near = Room::new();
            let sink = near.dir("sink");
            let ended = ends(server.cp(&[options, &[&server.url("got/"), &slash(&sink)]].concat()));
            assert_arrived(&data, &sink, lost);
            row.was_used("source", &ended);
            if let Some(seen) = net.showed(row.data) {
                row.was_said(&seen);
            }
        });
    });
    matrix.ends();
}

/// Goal: trees go between two servers, each of haul's or of Globus, steered by haul or by globus-url-copy, in
/// blocks and protected as was asked for, and content is compared by a sum of both; under GSI with and
/// without what was delegated.
/// Method: what haul says of its way, and what packets hold that nobody's word is needed for.
#[test]
fn interop_between_two_servers() {
    need!("gridftp", "globus-url-copy");
    const GLOBUS_PLAIN: Peer = Peer::Theirs(Kind::Gridftp);
    const GLOBUS_GSI: Peer = Peer::Theirs(Kind::GridftpGsi);
    let room = Room::new();
    let data = furnish(&room);
    let matrix = Matrix::default();
    let pairings = [
        (GLOBUS_PLAIN, GLOBUS_PLAIN),
        (GLOBUS_PLAIN, Peer::Haul),
        (Peer::Haul, GLOBUS_PLAIN),
        (Peer::Haul, Peer::Haul),
        (GLOBUS_GSI, GLOBUS_GSI),
        (GLOBUS_GSI, Peer::HaulGsi),
        (Peer::HaulGsi, GLOBUS_GSI),
        (Peer::HaulGsi, Peer::HaulGsi),
    ];
    rows(pairings, |(from, to), net| {
        let a = Server::of(from, None);
        let b = Server::of(to, a.grid.as_deref());
        let theirs = [from, to].contains(&GLOBUS_PLAIN);
        let lost: &[&[u8]] = if theirs { &LOST_AT_GLOBUS } else { &[] };
        place(&data, &a.at("data"));
        let (from_url, to_url) = (a.url("data/"), b.url("copy/"));
        let under_gsi = a.grid.is_some();
        let of_gsi = [
            (PLAIN, Data::Clear, BY_GSI),
            (SHOWN, Data::Shown, SHOWN_BY_GSI),
            (PRIVATE, Data::Sealed, ALL_BY_GSI),
        ];
        let no_gsi = [(&[][..], Data::Clear, NOTHING)];
        net.forget();
        for (options, protection, said) in if under_gsi { &of_gsi[..] } else { &no_gsi } {
            matrix.cell(format!("haul steers {from:?} to {to:?} {options:?}"), || {
                let own = Room::new();
                let state = format!("--state={}", own.at("state").display());
                let ended = a.cp(&[*options, &[&state, &from_url, &to_url]].concat());
                let ended = ended.exits(if lost.is_empty() { 0 } else { 3 });
                assert_arrived(&data, &b.at("copy"), lost);
                let summary = ended.summary();
                assert_eq!(summary.text("protect"), "servers", "{}", ended.describe());
                for (what, value) in [
                    ("third party", "MODE E"),
                    ("sum of both servers", "SHA256 (both servers know it)"),
                    ("protection of the source", said),
                    ("protection of the destination", said),
                ] {
                    assert_eq!(summary.chosen(what), value, "{what}: {}", ended.describe());
                }
                let third = |what: &str| summary.0["third_party"][what].as_u64();
                let all = (Some(summary.number("files")), Some(0));
                assert_eq!((third("compared"), third("not_compared")), all, "{}", ended.describe());
                if let Some(seen) = net.showed(*protection) {
                    assert_eq!((seen.says("AUTH GSSAPI"), seen.says("MODE E")), (under_gsi, !under_gsi));
                }
            });
            remove(&b.at("copy"));
            net.forget();
        }
        // It ends at the first name that a server cannot be asked for.
        for name in lost.iter().chain([&QUOTE]) {
            fs::remove_file(a.at("data/odd").join(OsStr::from_bytes(name))).expect("remove a file");
        }
        let lost: Vec<&[u8]> = lost.iter().copied().chain([QUOTE]).collect();
        let of_gsi: [(&[&str], Data); 3] =
            [(&["-nodcau"], Data::Clear), (&["-fast"], Data::Shown), (&["-fast", "-dcpriv"], Data::Sealed)];
        for (options, protection) in if under_gsi { &of_gsi[..] } else { &[(ALL_AT_ONCE, Data::Clear)] } {
            matrix.cell(format!("globus-url-copy steers {from:?} to {to:?} {options:?}"), || {
                a.does(&[&[GLOBUS, "-cd", "-r"], *options, &[&from_url, &to_url]].concat());
                assert_arrived(&data, &b.at("copy"), &lost);
                if let Some(seen) = net.showed(*protection) {
                    assert_eq!((seen.says("AUTH GSSAPI"), seen.says("MODE E")), (under_gsi, !under_gsi));
                }
            });
            remove(&b.at("copy"));
            net.forget();
        }
    });
    matrix.ends();
}
