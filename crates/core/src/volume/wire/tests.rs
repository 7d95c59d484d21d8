//! What is said over a connection of a volume survives its bytes, and nothing else is taken.

use super::*;
use crate::volume::check::{Ask, Gathered, Has};
use crate::volume::cost::CLASSES;
use crate::volume::ticket::{Rights, Term, Ticket};

fn costs() -> Costs {
    let direct = (0..CLASSES as u64).map(|class| (1 << class, 5 + class)).collect();
    Costs { threshold: u64::MAX, pinned: true, writes: 9, direct, gather: vec![(16, 0)] }
}

fn all() -> Vec<Message> {
    let (file, number) = (FileNo(7), RequestNo(9));
    let epoch = Epoch { gatherer: 3, fence: 4 };
    let version = ContentVersion { gatherer: 3, changes: u64::MAX };
    let part = |offset, len, from| Part { offset, len, seq: Seq(0), from };
    let gather = |request| Message::Gather(number, request);
    let join = |volume, who| {
        let striping = Striping::new(1 << 20, 3);
        let volume = VolumeId([volume; 16]);
        Message::Join { volume, who, session: Session(2), to: ServerNo(2), striping }
    };
    let work = Work { busy: Duration::from_nanos(7), stayed: Duration::from_secs(1), others: 9 };
    let gathered = |answer| Message::Gathered(number, answer, work);
    let store = |request| Message::Store(number, request);
    let stored = |answer| Message::Stored(number, answer, work);
    vec![
        join(5, Who::Client(ClientNo(1))),
        join(0, Who::Gatherer(ServerNo(9))),
        Message::StorageJoined(Incarnation(4)),
        Message::GathererJoined(5),
        Message::Refused("no".into()),
        Message::Ping(8),
        Message::Pong(8),
        gather(gather::Request::Write { file, offset: 13, len: 16, bytes: 16 }),
        gather(gather::Request::Lease { file, stripes: 1..3 }),
        gather(gather::Request::Release { file, stripes: 0..1 }),
        gather(gather::Request::Read { file, offset: 0, len: BYTES_MAX }),
        gather(gather::Request::Map { file, stripes: 5..5 + MAP_MAX }),
        gather(gather::Request::Sync { file }),
        gather(gather::Request::Grow { file, epoch, end: FILE_LEN_MAX }),
        gather(gather::Request::Append { file, number: AppendNo(4), len: 16, bytes: 16 }),
        gather(gather::Request::Truncate { file, len: 0 }),
        gather(gather::Request::Remove { file }),
        gather(gather::Request::Look { file }),
        gather(gather::Request::Told { file, version }),
        gathered(gather::Answer::Written),
        gathered(gather::Answer::Leased { stripes: 1..3, epoch }),
        gathered(gather::Answer::Read { parts: vec![part(3, 4, 0), part(7, 1, 4)], end: 12 }),
        gathered(gather::Answer::Read { parts: vec![], end: 0 }),
        gathered(gather::Answer::Map { gathered: vec![1..3, 7..8], end: 12, version: Some(version) }),
        gathered(gather::Answer::Map { gathered: vec![], end: 0, version: None }),
        gathered(gather::Answer::Durable),
        gathered(gather::Answer::Failed(28)),
        gathered(gather::Answer::Appended { offset: 17 }),
        gathered(gather::Answer::Reserved { offset: FILE_LEN_MAX }),
        gathered(gather::Answer::Truncated),
        gathered(gather::Answer::Removed),
        gathered(gather::Answer::Gone),
        gathered(gather::Answer::Told { counts: true }),
        gathered(gather::Answer::Refused(122)),
        gathered(gather::Answer::Looked { version, end: FILE_LEN_MAX, untold: true }),
        Message::Recall(file, 2..3),
        store(storage::Request::Write { file, epoch, offset: 1 << 40, bytes: 1 }),
        store(storage::Request::Read { file, offset: 1 << 40, len: 1 }),
        store(storage::Request::Sync { file }),
        store(storage::Request::Cut { file, epoch, from: 3 }),
        store(storage::Request::Remove { file, epoch }),
        stored(storage::Answer::Written(Incarnation(1))),
        stored(storage::Answer::Durable(Incarnation(1))),
        stored(storage::Answer::Read(16)),
        stored(storage::Answer::Read(0)),
        stored(storage::Answer::Void(epoch)),
        stored(storage::Answer::Failed(5)),
        stored(storage::Answer::Gone),
        Message::Visit(Visit { volume: VolumeId([5; 16]), to: Some(ServerNo(3)), end: false }),
        Message::Visit(Visit { volume: VolumeId([0; 16]), to: None, end: true }),
        Message::Visited(Visited {
            process: 7,
            since: Duration::from_secs(9),
            heard: None,
            ills: ills(),
            room: None,
        }),
        Message::Visited(Visited {
            ills: Vec::new(),
            process: 7,
            since: Duration::from_secs(9),
            heard: Some(Box::new(Heard { costs: costs(), age: Duration::from_secs(3), clients: 2 })),
            room: Some(Room { free: 1 << 40, used: 5, device: u64::MAX }),
        }),
        Message::Costs(costs()),
        Message::Costs(Costs::default()),
        Message::Ticket(sealed()),
        Message::TicketWanted(Wanted { number, file, had: None }),
        Message::TicketWanted(Wanted { number, file, had: Some(u64::MAX) }),
        Message::Tickets(GivenTickets::default()),
        Message::Tickets(GivenTickets {
            term: Term(7),
            needed: true,
            tickets: vec![sealed(), sealed()],
            raised: vec![(file, 1), (FileNo(8), u32::MAX)],
        }),
        check(Ask::Itself),
        check(Ask::Shelf { after: None }),
        check(Ask::Shelf { after: Some(file) }),
        check(Ask::Log { after: FileNo(0) }),
        check(Ask::Files(vec![file, FileNo(1)])),
        check(Ask::Numbers { last: 7, skipped: vec![1..3, 5..6] }),
        Message::Found(Found::Numbers { highest: 9, files: 2 }),
        Message::Found(Found::Itself { faults: vec!["no".into()] }),
        Message::Found(Found::Shelf { files: vec![(file, 9)], odd: vec!["x".into()], more: true }),
        Message::Found(Found::Log { files: vec![file], faults: vec![], more: false }),
        Message::Found(Found::Files(vec![Has::default(), has(vec![0..1, 2..FILE_LEN_MAX])])),
        Message::Found(Found::Failed(5)),
        Message::Learn(Learn {
            volume: VolumeId([5; 16]),
            to: ServerNo(1),
            placing: Placing::given(7).expect("one"),
            list: Given::new([(0, 3), (2, 1)]).expect("a list"),
        }),
        Message::Learnt,
    ]
}

fn sealed() -> Sealed {
    let (client, file, range, term) = (ClientNo(1), FileNo(7), 3..FILE_LEN_MAX, Term(9));
    let ticket = Ticket { client, file, epoch: 1, range, rights: Rights::WRITE, term };
    Sealed { ticket, code: [6; 32] }
}

fn check(ask: Ask) -> Message {
    Message::Check(Check { volume: VolumeId([5; 16]), to: ServerNo(1), ask })
}

fn has(ranges: Vec<Range<u64>>) -> Has {
    let version = ContentVersion { gatherer: 3, changes: 4 };
    let gathered = Gathered { version, end: 9, quiet: true, removed: true, ranges, more: true };
    Has { len: Some(7), gathered: Some(gathered) }
}

fn ills() -> Vec<Ill> {
    let waits = Illness::Waits { server: ServerNo(3), files: 2, bytes: 1 << 40 };
    let ill = |what| Ill { what, errno: 28, since: Duration::from_secs(4) };
    let (unknown, unasked) =
        (Illness::Unknown { server: ServerNo(1), files: 3 }, Illness::Unasked { server: ServerNo(2) });
    let parted = Illness::Parted { server: ServerNo(2) };
    [waits, Illness::Log, Illness::Catalog, Illness::Stripes, unknown, unasked, parted].map(ill).into()
}

/// Goal: each message survives its bytes, and no shorter or longer bytes are it.
#[test]
fn what_is_said_is_heard() {
    for message in all() {
        let mut bytes = Vec::new();
        encode(&message, &mut bytes);
        assert_eq!(decode(message.kind(), &bytes).as_ref(), Ok(&message));
        for len in 0..bytes.len() {
            assert!(decode(message.kind(), &bytes[..len]).is_err(), "{message:?} cut at {len}");
        }
        bytes.push(0);
        assert!(decode(message.kind(), &bytes).is_err(), "{message:?} and a byte more");
    }
}

/// Goal: ranges that overflow, that are empty or too long, and parts that overlap are refused.
#[test]
fn ranges_are_sound() {
    let refused = |message: Message| {
        let mut bytes = Vec::new();
        encode(&message, &mut bytes);
        assert!(decode(message.kind(), &bytes).is_err(), "{message:?}");
    };
    let (file, number) = (FileNo(7), RequestNo(9));
    for (offset, len) in [(u64::MAX, 1), (FILE_LEN_MAX, 1), (0, 0), (0, BYTES_MAX + 1)] {
        refused(Message::Gather(number, gather::Request::Read { file, offset, len }));
        refused(Message::Store(number, storage::Request::Read { file, offset, len }));
    }
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    for stripes in [3..3, 4..3, 0..u64::MAX] {
        refused(Message::Gather(number, gather::Request::Lease { file, stripes: stripes.clone() }));
        refused(Message::Gather(number, gather::Request::Map { file, stripes }));
    }
    refused(Message::Gather(number, gather::Request::Map { file, stripes: 0..MAP_MAX + 1 }));
    for gathered in [vec![0..2, 1..3], vec![5..6, 1..2]] {
        let map = gather::Answer::Map { gathered, end: 0, version: None };
        refused(Message::Gathered(number, map, Work::default()));
    }
    for direct in [vec![(0, 1)], vec![(5, 1), (5, 1)], vec![(5, 1), (4, 1)]] {
        refused(Message::Costs(Costs { direct, ..Costs::default() }));
    }
    for ranges in [&[(3, 3)][..], &[(4, 3)], &[(0, u64::MAX)], &[(0, 4), (4, 5)], &[(5, 6), (0, 1)]] {
        let ranges = ranges.iter().map(|(start, end)| *start..*end).collect();
        refused(Message::Found(Found::Files(vec![has(ranges)])));
    }
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    for range in [4..3, 0..u64::MAX] {
        let sealed = sealed();
        refused(Message::Ticket(Sealed { ticket: Ticket { range, ..sealed.ticket }, ..sealed }));
    }
    refused(Message::Found(Found::Shelf { files: vec![], odd: vec![], more: true }));
    refused(Message::Found(Found::Log { files: vec![], faults: vec![], more: true }));
    let part = |offset, len| Part { offset, len, seq: Seq(0), from: 0 };
    for parts in
        [vec![part(0, 4), part(3, 1)], vec![part(0, 0)], vec![part(0, BYTES_MAX), part(BYTES_MAX, 1)]]
    {
        refused(Message::Gathered(number, gather::Answer::Read { parts, end: 0 }, Work::default()));
    }
}
