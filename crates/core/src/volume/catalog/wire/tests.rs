//! Messages of the catalog and their bytes.

use super::super::super::wire as volume;
use super::super::ROOT;
use super::*;

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("legal")
}

fn place(text: &str) -> Place {
    Place { parent: ROOT, name: name(text) }
}

fn meta() -> Meta {
    Meta { mode: 0o640, uid: 7, gid: 8, mtime: Timestamp { secs: -1, nanos: 999_999_999 } }
}

fn entry(kind: Kind) -> Entry {
    Entry { id: EntryNo(9), parent: Some(ROOT), kind, meta: meta() }
}

fn requests() -> Vec<Request> {
    let target = Box::from(*b"../x");
    vec![
        Request::Mkdir { at: place("a"), meta: meta() },
        Request::Create {
            at: place("a"),
            meta: meta(),
            exclusive: true,
            open: false,
            placing: Placing::partitioned(1000, 3),
        },
        Request::Symlink { at: place("a"), meta: meta(), target },
        Request::Lookup(place("\u{e9}")),
        Request::Stat(EntryNo(i64::MAX as u64)),
        Request::ReadDir { dir: ROOT, after: None, max: 1 },
        Request::ReadDir { dir: ROOT, after: Some(name("b")), max: PAGE_MAX as u16 },
        Request::SetAttr { id: ROOT, set: Setting::default() },
        Request::SetAttr {
            id: ROOT,
            set: Setting {
                mode: Some(0),
                uid: Some(1),
                gid: Some(2),
                mtime: Some(Timestamp::default()),
                written: true,
                whole: Some(i64::MAX as u64),
            },
        },
        Request::Rename { from: place("a"), to: place("b"), noreplace: true },
        Request::Unlink(place("a")),
        Request::Rmdir(place("a")),
        Request::Open(vec![EntryNo(2), EntryNo(3)]),
        Request::Close(vec![]),
        Request::ToRemove { server: ServerNo(1), after: FileNo(0) },
        Request::Removed { server: ServerNo(1), files: vec![FileNo(2)] },
        Request::Leave,
        Request::Known(vec![EntryNo(2)]),
        Request::Note { place: "n1:/home/me".into(), files: notings() },
        Request::Check,
        Request::Tickets(vec![EntryNo(2), EntryNo(3)]),
        Request::Create {
            at: place("a"),
            meta: meta(),
            exclusive: false,
            open: true,
            placing: Placing::given(7).expect("one"),
        },
        Request::Place(list()),
        Request::List(Placing::given(7).expect("one")),
    ]
}

fn list() -> Given {
    Given::new([(0, 3), (2, 1)]).expect("a list")
}

fn notings() -> Vec<Noting> {
    let version = ContentVersion { gatherer: 3, changes: u64::MAX };
    let noting = Noting { id: EntryNo(4), state: i64::MAX as u64, version, whole: None, home: None };
    let homes = [None, Some(Brought::In), Some(Brought::Out([7; 32]))];
    homes.into_iter().map(|home| Noting { whole: home.map(|_| 9), home, ..noting }).collect()
}

fn answers() -> Vec<Answer> {
    vec![
        Answer::Made { entry: entry(Kind::File), new: true },
        Answer::Entry(entry(Kind::Link(Box::from(*b"t")))),
        Answer::Entry(Entry { parent: None, ..entry(Kind::Directory) }),
        Answer::Page {
            entries: vec![(name("a"), entry(Kind::File)), (name("b"), entry(Kind::Directory))],
            more: true,
        },
        Answer::Page { entries: vec![], more: false },
        Answer::Done,
        Answer::Opened { lost: vec![EntryNo(4)] },
        Answer::Files(vec![FileNo(4), FileNo(5)]),
        Answer::Failed(Failure { errno: 2, words: "no".into() }),
        Answer::Known(vec![
            None,
            Some(Known::default()),
            Some(Known {
                state: 3,
                whole: Some(0),
                home: Some(Home {
                    place: "n1:/home/me".into(),
                    version: ContentVersion { gatherer: 1, changes: 2 },
                }),
            }),
        ]),
        Answer::Checked(Checked {
            faults: vec!["no".into(), "nor this".into()],
            last: 9,
            skipped: vec![3..5, 7..9],
            named: 1,
            nameless: 2,
            open: 3,
            open_of_gone: 4,
        }),
        Answer::Placed(Placing::given(7).expect("one")),
        Answer::List(list()),
    ]
}

fn all() -> Vec<Message> {
    let facts = Facts {
        stripe: 1 << 20,
        placement: "round-robin".into(),
        servers: vec!["n1:7000".into(), "[::1]:7001".into()],
    };
    let volume = VolumeId([5; 16]);
    let mut all = vec![
        Message::Join { volume, client: None, session: Session(1) },
        Message::Join { volume, client: Some(ClientNo(3)), session: Session(2) },
        Message::Joined { client: ClientNo(3), facts },
    ];
    all.extend(requests().into_iter().map(|request| Message::Ask(RequestNo(6), request)));
    all.extend(answers().into_iter().map(|answer| Message::Answer(RequestNo(6), answer)));
    all
}

fn bytes_of(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    volume::encode(&volume::Message::Catalog(message.clone()), &mut bytes);
    bytes
}

fn refused(message: &Message) {
    assert!(volume::decode(message.kind(), &bytes_of(message)).is_err(), "{message:?}");
}

/// Goal: each message survives its bytes, and no shorter or longer bytes are it.
#[test]
fn what_is_said_is_heard() {
    for message in all() {
        let mut bytes = bytes_of(&message);
        let heard = volume::decode(message.kind(), &bytes);
        assert_eq!(heard, Ok(volume::Message::Catalog(message.clone())));
        for len in 0..bytes.len() {
            assert!(volume::decode(message.kind(), &bytes[..len]).is_err(), "{message:?} cut at {len}");
        }
        bytes.push(0);
        assert!(volume::decode(message.kind(), &bytes).is_err(), "{message:?} and a byte more");
    }
    for answer in answers() {
        assert_eq!(decode_answer(&encode_answer(&answer)), Ok(answer));
    }
}

/// Goal: whatever bytes come, they are taken or refused; nothing panics.
/// Method: each message with each byte changed to a few others.
#[test]
fn changed_bytes_are_no_trap() {
    for message in all() {
        let bytes = bytes_of(&message);
        for at in 0..bytes.len() {
            for value in [0, 1, 2, 127, 128, 255, b'/', b'.'] {
                let mut changed = bytes.clone();
                changed[at] = value;
                if let Ok(heard) = volume::decode(message.kind(), &changed) {
                    let mut again = Vec::new();
                    volume::encode(&heard, &mut again);
                    assert_eq!(again, changed, "there is one way to say it");
                }
            }
        }
    }
}

/// Goal: what nobody may say is refused before anybody acts on it.
#[test]
fn what_is_not_legal_is_refused() {
    let ask = |request| Message::Ask(RequestNo(1), request);
    refused(&ask(Request::Mkdir { at: place("a"), meta: Meta { mode: 0o10000, ..meta() } }));
    let mtime = Timestamp { secs: 0, nanos: 1_000_000_000 };
    refused(&ask(Request::Mkdir { at: place("a"), meta: Meta { mtime, ..meta() } }));
    refused(&ask(Request::SetAttr { id: ROOT, set: Setting { mtime: Some(mtime), ..Setting::default() } }));
    for id in [0, u64::MAX, 1 << 63] {
        refused(&ask(Request::Stat(EntryNo(id))));
        refused(&ask(Request::Open(vec![EntryNo(id)])));
    }
    for max in [0, PAGE_MAX as u16 + 1, u16::MAX] {
        refused(&ask(Request::ReadDir { dir: ROOT, after: None, max }));
    }
    for target in [&b""[..], b"a\0b"] {
        refused(&ask(Request::Symlink { at: place("a"), meta: meta(), target: target.into() }));
    }
    refused(&Message::Answer(RequestNo(1), Answer::Page { entries: vec![], more: true }));
    refused(&ask(Request::List(Placing::ROUND_ROBIN)));
    refused(&Message::Answer(RequestNo(1), Answer::Placed(Placing::ROUND_ROBIN)));
    let entries = vec![(name("b"), entry(Kind::File)), (name("a"), entry(Kind::File))];
    refused(&Message::Answer(RequestNo(1), Answer::Page { entries, more: false }));
    // Names are legal by their type: their bytes are changed.
    let good = bytes_of(&ask(Request::Unlink(place("ab"))));
    for wrong in [*b"..", *b"a/", *b"\0b"] {
        let mut bytes = good.clone();
        let at = bytes.len() - 2;
        bytes[at..].copy_from_slice(&wrong);
        assert!(volume::decode(kind::CATALOG_ASK, &bytes).is_err(), "{wrong:?}");
    }
}

/// Goal: the longest page and the longest words fit a frame.
#[test]
fn the_longest_fits() {
    let long = |n: usize| Name::new(format!("{n:0255}").as_bytes()).expect("legal");
    let entries = (0..PAGE_MAX).map(|n| (long(n), entry(Kind::File))).collect();
    let page = bytes_of(&Message::Answer(RequestNo(1), Answer::Page { entries, more: true }));
    assert!(page.len() <= CONTROL_LEN_MAX);
    let words = "\u{e9}".repeat(WORDS_LEN_MAX).into();
    let failed = Message::Answer(RequestNo(1), Answer::Failed(Failure { errno: 5, words }));
    assert!(volume::decode(failed.kind(), &bytes_of(&failed)).is_ok());
}
