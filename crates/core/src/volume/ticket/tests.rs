//! Which tickets are good for what, and when they are not any more.

use super::*;
use crate::volume::{ContentVersion, Epoch};

const VOLUME: VolumeId = VolumeId([3; 16]);
const ME: ClientNo = ClientNo(7);
const FILE: FileNo = FileNo(9);
const PARTED: Duration = Duration::from_secs(300);

fn key() -> Key {
    Key::of_secret(b"what servers have in common")
}

fn ticket() -> Ticket {
    let term = Term::first_of(5).next();
    Ticket { client: ME, file: FILE, epoch: 0, range: 0..FILE_LEN_MAX, rights: Rights::ALL, term }
}

fn server() -> Tickets {
    Tickets::new(key(), VOLUME, PARTED, None)
}

fn at(secs: u64) -> Time {
    Time::default().after(Duration::from_secs(secs))
}

fn read(len: u64) -> Need {
    Need::new(FILE, Rights::READ, 0..len)
}

fn write(len: u64) -> Need {
    Need::new(FILE, Rights::WRITE, 0..len)
}

/// Goal: no ticket is good that the catalog did not give for this volume, with this key, to this client, and
/// exactly so.
/// Method: each part of a good one, and each byte of its code, is changed.
#[test]
fn tickets_are_not_made_up() {
    let good = key().seal(VOLUME, ticket());
    assert_eq!(server().show(at(1), ME, &good), Ok(()));
    let forged = |sealed: &Sealed| {
        let mut server = server();
        assert_eq!(server.show(at(1), ME, sealed), Err(Stale::Forged), "{sealed:?}");
        assert_eq!(server.term(), None, "it was believed in a part");
    };
    forged(&key().seal(VolumeId([4; 16]), ticket()));
    forged(&Key::of_secret(b"what somebody made up").seal(VOLUME, ticket()));
    assert_eq!(server().show(at(1), ClientNo(8), &good), Err(Stale::Forged));
    for byte in 0..CODE_LEN {
        let mut changed = good.clone();
        changed.code[byte] ^= 1;
        forged(&changed);
    }
    let changed: [(&str, fn(&mut Ticket)); 7] = [
        ("client", |one| one.client.0 += 1),
        ("file", |one| one.file.0 += 1),
        ("epoch", |one| one.epoch += 1),
        ("start", |one| one.range.start += 1),
        ("end", |one| one.range.end -= 1),
        ("rights", |one| one.rights = Rights::READ),
        ("term", |one| one.term = one.term.next()),
    ];
    for (what, change) in changed {
        let mut sealed = good.clone();
        change(&mut sealed.ticket);
        let client = sealed.ticket.client;
        assert_eq!(server().show(at(1), client, &sealed), Err(Stale::Forged), "{what}");
    }
    let mut other = good.clone();
    other.code = key().code(VOLUME, GENERATION + 1, &other.ticket).into();
    forged(&other);
}

/// Goal: a ticket is good for its term and the next one, as the server hears of terms, and for no longer; a
/// later one tells of its term; nothing sets a term back.
#[test]
fn terms_end() {
    let mut server = server();
    let first = ticket();
    let later = |terms: u64| Term(first.term.0 + terms);
    assert_eq!(server.show(at(1), ME, &key().seal(VOLUME, first.clone())), Ok(()));
    assert_eq!(server.check(at(2), Some(&first), &write(1)), Ok(()));
    server.told(at(60), later(1));
    assert_eq!(server.check(at(61), Some(&first), &write(1)), Ok(()));
    server.told(at(61), first.term);
    let next = Ticket { term: later(2), ..first.clone() };
    assert_eq!(server.show(at(120), ME, &key().seal(VOLUME, next.clone())), Ok(()));
    assert_eq!(server.term(), Some(later(2)));
    for need in [read(1), write(1)] {
        assert_eq!(server.check(at(121), Some(&first), &need), Err(Refusal::Stale(Stale::Term)));
        assert_eq!(server.check(at(121), Some(&next), &need), Ok(()));
    }
    assert_eq!(server.show(at(122), ME, &key().seal(VOLUME, first.clone())), Err(Stale::Term));
    // What was done under it is told all the same.
    let grow = gather::Request::<()>::Grow { file: FILE, epoch: Epoch::default(), end: 5 };
    let tells = Need::of_gather(&grow, 1).expect("it needs one");
    assert_eq!(server.check(at(122), Some(&first), &tells), Ok(()));
    assert_eq!(server.check(at(122), None, &tells), Err(Refusal::Stale(Stale::Missing)));
    // A catalog that was started anew is in a later term than ever.
    assert!(Term::first_of(6) > Term(Term::first_of(5).0 + u64::from(u32::MAX)));
}

/// Goal: of a file whose name is gone no ticket of before is good, once the server saw one of after, or the
/// catalog said so; and what is remembered of that is forgotten when those of before are over by their terms.
#[test]
fn lower_epochs_are_refused() {
    let mut server = server();
    let named = ticket();
    let nameless = Ticket { epoch: 1, ..ticket() };
    assert_eq!(server.show(at(1), ME, &key().seal(VOLUME, named.clone())), Ok(()));
    assert_eq!(server.show(at(2), ME, &key().seal(VOLUME, nameless.clone())), Ok(()));
    assert_eq!(server.check(at(3), Some(&named), &read(1)), Err(Refusal::Stale(Stale::Epoch)));
    assert_eq!(server.show(at(3), ME, &key().seal(VOLUME, named)), Err(Stale::Epoch));
    assert_eq!(server.check(at(3), Some(&nameless), &read(1)), Ok(()));

    let (other, of) = (FileNo(10), ticket().term);
    let held = Ticket { file: other, ..ticket() };
    let need = Need::new(other, Rights::READ, 0..1);
    server.show(at(4), ME, &key().seal(VOLUME, held.clone())).expect("good");
    assert_eq!(server.check(at(4), Some(&held), &need), Ok(()));
    server.raise(other, 1);
    // What is heard late sets nothing back.
    server.raise(other, 0);
    assert_eq!(server.check(at(5), Some(&held), &need), Err(Refusal::Stale(Stale::Epoch)));
    assert_eq!(server.epochs.len(), 2);
    server.told(at(60), of.next());
    assert_eq!(server.check(at(61), Some(&held), &need), Err(Refusal::Stale(Stale::Epoch)));
    server.told(at(120), of.next().next());
    assert_eq!(server.check(at(121), Some(&held), &need), Err(Refusal::Stale(Stale::Term)));
    assert!(server.epochs.is_empty(), "epochs are remembered for ever");
}

/// Goal: a server that was started anew takes no ticket that was over before; what the catalog itself says
/// counts more than what was kept, also if it is of earlier terms.
#[test]
fn who_is_started_anew_takes_nothing_old() {
    let of = |term: Term| Ticket { term, ..ticket() };
    let kept = Term(ticket().term.0 + 7);
    let begin = || Tickets::new(key(), VOLUME, PARTED, Some(kept));
    let show = |server: &mut Tickets, ticket: &Ticket| {
        let shown = server.show(at(1), ME, &key().seal(VOLUME, ticket.clone()));
        assert_eq!(server.check(at(1), Some(ticket), &write(1)), shown.map_err(Refusal::Stale));
        shown
    };
    let mut server = begin();
    assert_eq!(show(&mut server, &of(Term(kept.0 - 2))), Err(Stale::Term));
    assert_eq!(show(&mut server, &of(Term(kept.0 - 1))), Ok(()));
    assert_eq!(show(&mut server, &of(kept)), Ok(()));
    assert_eq!(show(&mut server, &of(kept.next())), Ok(()));
    let older = Term(kept.0 - 5);
    // A ticket told it of a later term than that: it is not what was kept any more.
    server.told(at(2), older);
    assert_eq!(server.term(), Some(kept.next()));
    let mut server = begin();
    // Of a catalog that counts no term yet nothing is learned.
    server.told(at(2), Term::default());
    assert_eq!(server.term(), Some(kept));
    server.told(at(2), older);
    assert_eq!(server.term(), Some(older));
    server.told(at(2), Term(older.0 - 1));
    assert_eq!(server.term(), Some(older));
}

/// Goal: of what was shown a bounded number is remembered, and always the last one.
#[test]
fn what_was_shown_is_bounded() {
    let mut shown = BTreeMap::new();
    for file in (0..3 * SHOWN_MAX as u64).rev().map(FileNo) {
        make_room(&mut shown, file);
        shown.insert(file, ());
        assert!(shown.len() <= SHOWN_MAX && shown.contains_key(&file));
    }
}

/// Goal: a server that did not hear its catalog for long lets nobody change anything, and goes on reading,
/// until it hears it, or of a later term by a ticket.
#[test]
fn who_is_parted_changes_nothing() {
    let mut server = server();
    let mine = ticket();
    server.show(at(10), ME, &key().seal(VOLUME, mine.clone())).expect("good");
    let last = at(10).after(PARTED - Duration::from_nanos(1));
    assert_eq!(server.check(last, Some(&mine), &write(1)), Ok(()));
    let later = at(10).after(PARTED);
    // That it was given before is no news.
    server.show(later, ME, &key().seal(VOLUME, mine.clone())).expect("good");
    assert_eq!(server.check(later, Some(&mine), &write(1)), Err(Refusal::Stale(Stale::Parted)));
    assert_eq!(server.check(later, Some(&mine), &read(1)), Ok(()));
    let newer = Ticket { term: mine.term.next(), ..mine.clone() };
    server.show(later, ME, &key().seal(VOLUME, newer)).expect("good");
    assert_eq!(server.check(later, Some(&mine), &write(1)), Ok(()));
    let again = later.after(PARTED);
    assert_eq!(server.check(again, Some(&mine), &write(1)), Err(Refusal::Stale(Stale::Parted)));
    // A catalog that was frozen is in its term still, and there.
    server.told(again, mine.term.next());
    assert_eq!(server.check(again, Some(&mine), &write(1)), Ok(()));
}

/// Goal: nothing is done outside of a ticket's file, range and rights.
/// Method: everything that can be asked, with tickets that have all but what it needs.
#[test]
fn tickets_are_for_what_they_say() {
    let mut server = server();
    server.told(at(1), ticket().term);
    let (epoch, version, bytes) = (Epoch::default(), ContentVersion::default(), ());
    let mut needs: Vec<(Need, Rights)> = Vec::new();
    for (request, rights) in [
        (gather::Request::Read { file: FILE, offset: 3, len: 2 }, Rights::READ),
        (gather::Request::Map { file: FILE, stripes: 1..2 }, Rights::READ),
        (gather::Request::Look { file: FILE }, Rights::READ),
        (gather::Request::Write { file: FILE, offset: 3, len: 2, bytes }, Rights::WRITE),
        (gather::Request::Lease { file: FILE, stripes: 1..2 }, Rights::WRITE),
        (gather::Request::Sync { file: FILE }, Rights::WRITE),
        (gather::Request::Told { file: FILE, version }, Rights::WRITE),
        (gather::Request::Append { file: FILE, number: gather::AppendNo(1), len: 2, bytes }, Rights::WRITE),
        (gather::Request::Grow { file: FILE, epoch, end: 5 }, Rights::WRITE),
        (gather::Request::Truncate { file: FILE, len: 3 }, Rights::CUT),
        (gather::Request::Remove { file: FILE }, Rights::CUT),
    ] {
        needs.push((Need::of_gather(&request, 4).expect("it needs one"), rights));
    }
    for (request, rights) in [
        (storage::Request::Read { file: FILE, offset: 3, len: 2 }, Rights::READ),
        (storage::Request::Write { file: FILE, epoch, offset: 3, bytes }, Rights::WRITE),
        (storage::Request::Sync { file: FILE }, Rights::WRITE),
        (storage::Request::Cut { file: FILE, epoch, from: 3 }, Rights::CUT),
        (storage::Request::Remove { file: FILE, epoch }, Rights::CUT),
    ] {
        needs.push((Need::of_store(&request, 2), rights));
    }
    let release = gather::Request::<()>::Release { file: FILE, stripes: 0..1 };
    assert_eq!(Need::of_gather(&release, 4), None);
    for (need, rights) in needs {
        let check = |ticket: &Ticket| server.check(at(2), Some(ticket), &need);
        assert_eq!(check(&ticket()), Ok(()), "{need:?}");
        assert_eq!(check(&Ticket { rights, ..ticket() }), Ok(()), "{need:?}");
        let but = Rights(Rights::ALL.0 & !rights.0);
        assert_eq!(check(&Ticket { rights: but, ..ticket() }), Err(Refusal::Beyond), "{need:?}");
        assert_eq!(check(&Ticket { file: FileNo(1), ..ticket() }), Err(Refusal::Stale(Stale::Missing)));
        if need.range.is_empty() {
            continue;
        }
        assert_eq!(check(&Ticket { range: need.range.clone(), ..ticket() }), Ok(()), "{need:?}");
        let narrow = need.range.start..need.range.end - 1;
        assert_eq!(check(&Ticket { range: narrow, ..ticket() }), Err(Refusal::Beyond), "{need:?}");
        let late = need.range.start + 1..FILE_LEN_MAX;
        assert_eq!(check(&Ticket { range: late, ..ticket() }), Err(Refusal::Beyond), "{need:?}");
    }
}
