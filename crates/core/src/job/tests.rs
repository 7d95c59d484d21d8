//! The coordinator, event by event. What no order of events may break is shown by `tests/job_sim.rs`.

use super::*;
use crate::change::Change;
use crate::entry::Timestamp;
use crate::extents::DataExtent;
use crate::ids::{Holder, HostId};
use crate::journal::{Log, Record, Replay, Replayed, RootId};
use crate::wire::FailureKind;

const MIB: u64 = 1 << 20;

fn pair(source: u16, sink: u16) -> PairId {
    PairId { source: HostId(source), sink: HostId(sink) }
}

fn config() -> Config {
    Config {
        entries_max: 4096,
        digest: DigestKind::Blake3,
        durable: true,
        epoch: SessionEpoch(3),
        tag: 9,
        shared_min: 4 * MIB,
        range_max: 8 * MIB,
        lease_time: Some(Duration::from_secs(8)),
    }
}

/// A coordinator of a job that begins, and its journal so far.
fn begin(config: Config) -> (Coordinator, Vec<u8>) {
    let mut bytes = Vec::new();
    let mut log = Log::start(&mut bytes);
    log.append(&Record::Head { job: [1; 16], root: RootId::new(&[1]).expect("short") }, &mut bytes);
    let session = Record::Session { epoch: 3, tag: 9, boot: [1; 16], durable: true, lease: Holder::ALONE };
    log.append(&session, &mut bytes);
    let resume = Resume { replayed: Replayed::default(), log, next_slot: 0 };
    (Coordinator::new(config, resume), bytes)
}

fn spec(number: u64, size: u64) -> FileSpec {
    FileSpec {
        id: FileId(number),
        generation: Generation(0),
        parent: DirId::ROOT,
        name: Name::new(format!("f{number}").as_bytes()).unwrap(),
        fingerprint: Fingerprint { size, mtime: Timestamp { secs: 1, nanos: 0 }, ..Fingerprint::default() },
        object_size: 1 << 20,
        map: None,
    }
}

fn actions(job: &mut Coordinator) -> Vec<Action> {
    std::iter::from_fn(|| job.poll_action()).collect()
}

/// What was assigned, by pair.
fn works(actions: &[Action]) -> Vec<(PairId, Work)> {
    let assigned = actions.iter().filter_map(|action| match action {
        Action::Assign { pair, works, .. } => Some((*pair, works)),
        _ => None,
    });
    assigned.flat_map(|(pair, works)| works.iter().map(move |work| (pair, work.clone()))).collect()
}

fn parts(offset: u64, len: u64) -> Vec<Subtree> {
    (offset..offset + len)
        .step_by(MIB as usize)
        .map(|offset| Subtree { offset, len: MIB, cv: [7; 32] })
        .collect()
}

fn lost() -> Failure {
    Failure { kind: FailureKind::Write, errno: 5, text: "broken".into() }
}

/// Goal: with one pair every entry goes whole, is over when the journal says so, and directories follow from
/// the deepest up.
#[test]
fn one_pair_is_the_whole_flow() {
    let (mut job, mut journal) = begin(config());
    let at = (pair(0, 0), job.handle_joined(pair(0, 0), Time(0)).unwrap());
    let (upper, lower) = (DirId(1), DirId(2));
    let name = |text: &str| Name::new(text.as_bytes()).unwrap();
    job.handle_dir(upper, DirId::ROOT, name("a"), Default::default()).unwrap();
    job.handle_dir(lower, upper, name("b"), Default::default()).unwrap();
    job.handle_file(FileSpec { parent: lower, ..spec(3, 9 * MIB) }).unwrap();
    for dir in [lower, upper] {
        job.handle_dir_ended(dir).unwrap();
    }
    job.handle_walked();
    let given = works(&actions(&mut job));
    assert_eq!(given.len(), 1);
    assert_eq!((given[0].1.kind, given[0].1.len), (WorkKind::Whole, 9 * MIB));
    job.handle_published(at, FileId(3), Generation(0), Ok(Some([5; 32])));
    let [Action::Journal { bytes }] = &actions(&mut job)[..] else { panic!("only the journal is written") };
    journal.extend(bytes);
    job.handle_journaled(Ok(()), Time(1));
    let ended = actions(&mut job);
    assert!(
        matches!(&ended[0], Action::Ended { end: Ended::Copied, root: Some(root), .. } if *root == [5; 32])
    );
    let finish = |actions: &[Action], dir: DirId| {
        let finished = actions.iter().filter(|a| matches!(a, Action::FinishDir { .. })).count();
        let its = actions.iter().any(|a| matches!(a, Action::FinishDir { dir: d, .. } if *d == dir));
        finished == 1 && its
    };
    assert!(finish(&ended, lower), "{ended:?}");
    job.handle_finished_dir(at, lower, Ok(Change::NONE));
    assert!(finish(&actions(&mut job), upper));
    job.handle_finished_dir(at, upper, Ok(Change::NONE));
    assert_eq!(actions(&mut job).last(), Some(&Action::Finished(SessionEnd::Complete)));
    let mut replay = Replay::new();
    replay.feed(&journal).unwrap();
    assert_eq!(replay.finish([1; 16], true).unwrap().done.len(), 1);
}

/// A file of 16 MiB that two pairs share: what each has of it.
fn shared() -> (Coordinator, [(PairId, Lease); 2], Vec<(PairId, Work)>) {
    let (mut job, _) = begin(config());
    let at = [pair(0, 0), pair(1, 1)].map(|pair| (pair, job.handle_joined(pair, Time(0)).unwrap()));
    job.handle_file(spec(1, 16 * MIB)).unwrap();
    let given = works(&actions(&mut job));
    assert_eq!((given.len(), given[0].1.kind), (1, WorkKind::Begin));
    let first = at.into_iter().find(|at| at.0 == given[0].0).unwrap();
    job.handle_begun(first, FileId(1), Generation(0), false);
    let given = works(&actions(&mut job));
    (job, at, given)
}

/// Goal: ranges tile a file, begin at pages and objects, and go to all pairs.
/// Method: one file whose objects are shorter than a page, two pairs; and one with holes.
#[test]
fn ranges_tile_a_file_at_pages() {
    for object_size in [64 * 1024, 4 << 20] {
        let (mut job, _) = begin(config());
        for host in 0..2 {
            job.handle_joined(pair(host, host), Time(0)).unwrap();
        }
        let at = |job: &Coordinator, pair| (pair, job.lease_of(pair).unwrap());
        job.handle_file(FileSpec { object_size, ..spec(1, 21 * MIB + 5) }).unwrap();
        let first = works(&actions(&mut job))[0].0;
        job.handle_begun(at(&job, first), FileId(1), Generation(0), false);
        let mut given = works(&actions(&mut job));
        given.sort_by_key(|(_, work)| work.offset);
        let mut end = 0;
        for (_, work) in &given {
            assert_eq!((work.offset, work.kind), (end, WorkKind::Range));
            assert!(work.offset.is_multiple_of(MIB.max(u64::from(object_size))), "{work:?}");
            end = work.offset + work.len;
        }
        assert_eq!(end, 21 * MIB + 5);
        let hosts: std::collections::BTreeSet<PairId> = given.iter().map(|(pair, _)| *pair).collect();
        assert_eq!(hosts.len(), 2);
    }
    let (mut job, _) = begin(config());
    let first = (pair(0, 0), job.handle_joined(pair(0, 0), Time(0)).unwrap());
    job.handle_joined(pair(1, 1), Time(0)).unwrap();
    let data = |offset, len| DataExtent { offset, len };
    let map = ExtentMap::new(32 * MIB, vec![data(3 * MIB / 2, MIB), data(20 * MIB, MIB / 2)]).unwrap();
    job.handle_file(FileSpec { map: Some(map), ..spec(1, 32 * MIB) }).unwrap();
    actions(&mut job);
    job.handle_begun(first, FileId(1), Generation(0), false);
    let mut given: Vec<(u64, u64)> =
        works(&actions(&mut job)).iter().map(|(_, w)| (w.offset, w.len)).collect();
    given.sort_unstable();
    assert_eq!(given, [(MIB, MIB), (2 * MIB, MIB), (20 * MIB, MIB)]);
}

/// Goal: a range is durable when the journal says so, not before; and nothing of it under a lease that ended
/// before that.
#[test]
fn nothing_is_durable_before_the_journal_says_so() {
    for ends in [false, true] {
        let (mut job, at, given) = shared();
        let (holder, work) = given[0].clone();
        let at = at.into_iter().find(|at| at.0 == holder).unwrap();
        let told = parts(work.offset, work.len);
        job.handle_persisted(at, FileId(1), Generation(0), work.offset, told, true);
        let first = actions(&mut job);
        assert!(matches!(first[..], [Action::Journal { .. }]), "{first:?}");
        if ends {
            job.handle_lost(at, Proof::Settled, Time(1));
        }
        job.handle_journaled(Ok(()), Time(2));
        let then = actions(&mut job);
        let durable = then.iter().any(|action| matches!(action, Action::Durable { .. }));
        assert_eq!(durable, !ends);
        // What counts for nothing is moved again.
        let again = works(&then).iter().any(|(_, again)| again.offset == work.offset);
        assert_eq!(again, ends);
    }
}

/// Goal: whatever comes under a lease that ended has no effect.
#[test]
fn an_ended_lease_has_no_effect() {
    let (mut job, at, given) = shared();
    let (holder, work) = given[0].clone();
    let at = at.into_iter().find(|at| at.0 == holder).unwrap();
    job.handle_lost(at, Proof::Settled, Time(1));
    let again = job.handle_joined(holder, Time(1)).unwrap();
    assert_ne!(again, at.1);
    actions(&mut job);
    job.handle_persisted(at, FileId(1), Generation(0), work.offset, parts(work.offset, work.len), true);
    job.handle_published(at, FileId(1), Generation(0), Ok(Some([1; 32])));
    job.handle_withdrawn(at, FileId(1), Generation(0), false, None);
    job.handle_failed(at, FileId(1), Generation(0), lost());
    job.handle_lost(at, Proof::Unknown, Time(2));
    assert_eq!(actions(&mut job), []);
    assert_eq!(job.lease_of(holder), Some(again));
}

/// Goal: what a pair had goes to others when it is lost, whatever it was.
#[test]
fn ranges_of_a_lost_pair_go_to_others() {
    let (mut job, at, given) = shared();
    let (gone, stays) = (at[0], at[1]);
    let had: Vec<u64> = given.iter().filter(|(pair, _)| *pair == gone.0).map(|(_, w)| w.offset).collect();
    assert!(!had.is_empty());
    job.handle_lost(gone, Proof::Settled, Time(1));
    let again = works(&actions(&mut job));
    for offset in had {
        let work = again.iter().find(|(_, work)| work.offset <= offset && offset < work.offset + work.len);
        assert!(work.is_some_and(|(pair, _)| *pair == stays.0), "{again:?}");
    }
}

/// Goal: nobody has a name to give that a lost pair may still give, before it is written down that it must
/// not; and then it is told to take that pair's temporary away first.
#[test]
fn a_lost_pair_is_fenced_before_another_gives_the_name() {
    let (mut job, _) = begin(config());
    let gone = (pair(0, 0), job.handle_joined(pair(0, 0), Time(0)).unwrap());
    job.handle_file(spec(1, 1000)).unwrap();
    let before = works(&actions(&mut job));
    job.handle_joined(pair(1, 1), Time(0)).unwrap();
    job.handle_lost(gone, Proof::Unknown, Time(1));
    let then = actions(&mut job);
    assert!(then.iter().any(|a| matches!(a, Action::Fence { lease, .. } if *lease == gone.1)), "{then:?}");
    assert_eq!(works(&then), []);
    job.handle_fenced(gone.1);
    let after = works(&actions(&mut job));
    assert_eq!(after.len(), 1);
    assert_ne!(after[0].1.temp, before[0].1.temp);
    assert_eq!(after[0].1.former, [before[0].1.temp]);
}

/// Goal: nothing more goes into a temporary that a lost pair may still write into; what is durable in it is
/// taken over by reading.
#[test]
fn what_may_be_written_late_is_left() {
    let (mut job, at, given) = shared();
    let (holder, work) = given[0].clone();
    let keeps = at.into_iter().find(|at| at.0 == holder).unwrap();
    let gone = at.into_iter().find(|at| at.0 != holder).unwrap();
    job.handle_persisted(keeps, FileId(1), Generation(0), work.offset, parts(work.offset, work.len), true);
    actions(&mut job);
    job.handle_journaled(Ok(()), Time(1));
    actions(&mut job);
    job.handle_lost(gone, Proof::Unknown, Time(1));
    let again = works(&actions(&mut job));
    assert!(again.iter().all(|(_, again)| again.temp != work.temp), "{again:?}");
    let read = again.iter().find(|(_, again)| again.kind == WorkKind::Read).expect("it is taken over");
    assert_eq!(read.1.from, work.temp);
}

/// Goal: a file is published when all of it is durable and its source was looked at after that, by one end;
/// another one makes a new inode of it.
#[test]
fn a_file_is_published_once() {
    let (mut job, at, given) = shared();
    let cvs: std::collections::HashMap<PairId, (PairId, Lease)> = at.iter().map(|at| (at.0, *at)).collect();
    for (holder, work) in &given {
        let told = parts(work.offset, work.len);
        job.handle_persisted(cvs[holder], FileId(1), Generation(0), work.offset, told, true);
    }
    actions(&mut job);
    job.handle_journaled(Ok(()), Time(1));
    let seals = actions(&mut job);
    let seal = seals.iter().find_map(|action| match action {
        Action::Seal { pair, lease, .. } => Some((*pair, *lease)),
        _ => None,
    });
    let publish = |actions: &[Action]| {
        let told: Vec<_> = actions.iter().filter(|a| matches!(a, Action::Publish { .. })).cloned().collect();
        assert!(told.len() <= 1, "{told:?}");
        told.into_iter().next()
    };
    assert_eq!(publish(&seals), None);
    job.handle_sealed(seal.unwrap(), FileId(1), Generation(0), None);
    let Some(Action::Publish { pair, lease, publication }) = publish(&actions(&mut job)) else {
        panic!("nobody is told to publish it")
    };
    assert_eq!(publication.way, Way::Rename);
    job.handle_sealed(seal.unwrap(), FileId(1), Generation(0), None);
    job.handle_tick(Time(2));
    assert_eq!(publish(&actions(&mut job)), None);
    // The end is gone, and may have given the name or not.
    job.handle_lost((pair, lease), Proof::Settled, Time(3));
    let then = actions(&mut job);
    let seal = then.iter().find_map(|action| match action {
        Action::Seal { pair, lease, .. } => Some((*pair, *lease)),
        _ => None,
    });
    job.handle_sealed(seal.unwrap(), FileId(1), Generation(0), None);
    let Some(Action::Publish { publication, .. }) = publish(&actions(&mut job)) else {
        panic!("nobody is told to publish it")
    };
    assert!(matches!(publication.way, Way::Copy { .. }));
    job.handle_published(seal.unwrap(), FileId(1), Generation(0), Ok(Some([0; 32])));
    assert_eq!(job.lease_of(seal.unwrap().0), None, "another root is not believed");
}

/// Goal: an idle pair gets what a slow one has not begun, in the slow one's words.
#[test]
fn an_idle_pair_gets_the_rest_of_a_slow_one() {
    let (mut job, _) = begin(config());
    let slow = (pair(0, 0), job.handle_joined(pair(0, 0), Time(0)).unwrap());
    job.handle_file(spec(1, 64 * MIB)).unwrap();
    assert_eq!(works(&actions(&mut job))[0].1.kind, WorkKind::Whole);
    let idle = (pair(1, 1), job.handle_joined(pair(1, 1), Time(0)).unwrap());
    assert_eq!(actions(&mut job), []);
    job.handle_tick(Time(1_000_000_000));
    let asked = actions(&mut job);
    let [Action::GiveBack { pair, items, .. }] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!((*pair, items[0].from), (slow.0, 32 * MIB));
    job.handle_returned(slow, FileId(1), Generation(0), 0, Some(40 * MIB));
    let given = works(&actions(&mut job));
    assert!(given.iter().all(|(_, work)| work.offset >= 40 * MIB), "{given:?}");
    assert!(given.iter().any(|(pair, _)| *pair == idle.0));
    // It has not all of it any more.
    job.handle_published(slow, FileId(1), Generation(0), Ok(Some([1; 32])));
    assert_eq!(job.lease_of(slow.0), None);
}

/// Goal: entries that ended are forgotten, whatever their number; what is open is bounded.
/// Method: 200,000 small files through a window of the limit.
#[test]
fn entries_that_ended_are_forgotten() {
    let (mut job, _) = begin(Config { entries_max: 1000, ..config() });
    let at = (pair(0, 0), job.handle_joined(pair(0, 0), Time(0)).unwrap());
    let (mut next, mut ended, mut held_max) = (1, 0, 0);
    while ended < 200_000 {
        while job.handle_file(spec(next, 100)).is_ok() {
            next += 1;
        }
        assert_eq!(job.handle_file(spec(next, 100)), Err(Refused::TooMany));
        held_max = held_max.max(job.held());
        let mut now = actions(&mut job);
        while !now.is_empty() {
            for action in now {
                match action {
                    Action::Assign { works, .. } => {
                        for work in works {
                            job.handle_published(at, work.id, work.generation, Ok(Some([1; 32])));
                        }
                    }
                    Action::Journal { .. } => job.handle_journaled(Ok(()), Time(1)),
                    Action::Ended { .. } => ended += 1,
                    other => panic!("{other:?}"),
                }
            }
            now = actions(&mut job);
        }
    }
    assert!(held_max < 5000, "{held_max}");
}

/// Goal: a journal that refuses a record ends the job, and nothing is said to be durable or done by it.
#[test]
fn a_journal_that_refuses_ends_the_job() {
    let (mut job, at, given) = shared();
    let (holder, work) = given[0].clone();
    let at = at.into_iter().find(|at| at.0 == holder).unwrap();
    job.handle_persisted(at, FileId(1), Generation(0), work.offset, parts(work.offset, work.len), true);
    actions(&mut job);
    job.handle_journaled(Err(lost()), Time(1));
    assert_eq!(actions(&mut job), [Action::Finished(SessionEnd::Failed(lost()))]);
}

/// Goal: nothing is durable of what a pair says that it wrote, and then that it did not begin.
/// Method: it gives all of a file back, of which a part is in the journal and another on its way there, or
/// not yet; the next pair finds nothing of it.
#[test]
fn what_was_not_begun_is_not_durable() {
    for (first, writing) in [(true, true), (true, false), (false, true), (false, false)] {
        let (mut job, _) = begin(config());
        let liar = (pair(0, 0), job.handle_joined(pair(0, 0), Time(0)).unwrap());
        let (id, generation) = (FileId(1), Generation(0));
        job.handle_file(spec(1, 64 * MIB)).unwrap();
        actions(&mut job);
        if first {
            job.handle_persisted(liar, id, generation, 0, parts(0, MIB), false);
            actions(&mut job);
            job.handle_journaled(Ok(()), Time(1));
        }
        job.handle_joined(pair(1, 1), Time(1)).unwrap();
        actions(&mut job);
        job.handle_tick(Time(1_000_000_000));
        assert!(matches!(actions(&mut job)[..], [Action::GiveBack { .. }]));
        job.handle_persisted(liar, id, generation, 0, parts(32 * MIB, MIB), false);
        if writing {
            assert!(matches!(actions(&mut job)[..], [Action::Journal { .. }]));
        }
        job.handle_returned(liar, id, generation, 0, Some(0));
        for (pair, work) in works(&actions(&mut job)) {
            if work.kind == WorkKind::Begin {
                let at = (pair, job.lease_of(pair).unwrap());
                job.handle_begun(at, id, generation, false);
            }
        }
        job.handle_journaled(Ok(()), Time(2));
        let told = actions(&mut job);
        let durable = told.iter().any(|action| matches!(action, Action::Durable { .. }));
        assert!(!durable, "first: {first}, writing: {writing}: {told:?}");
        assert_eq!(job.lease_of(liar.0), None, "it said what cannot be");
    }
}

/// Goal: a pair that says more than anybody can write down loses its lease, and what it said last is as if it
/// had not been said: others get all that it had.
/// Method: a pair persists one part again and again while the journal hangs, then gives a name, or says that
/// its range is over; another pair follows it.
#[test]
fn what_nobody_can_write_down_changes_nothing() {
    for names in [true, false] {
        let (mut job, _) = begin(config());
        let (generation, small) = (Generation(0), FileId(2));
        let first = (pair(0, 0), job.handle_joined(pair(0, 0), Time(0)).unwrap());
        job.handle_file(spec(1, 16 * MIB)).unwrap();
        job.handle_file(FileSpec { id: small, ..spec(2, 1000) }).unwrap();
        assert_eq!(works(&actions(&mut job)).len(), 2);
        for _ in 0..FACTS_MAX {
            job.handle_persisted(first, FileId(1), generation, 0, parts(0, MIB), false);
        }
        assert_eq!(job.lease_of(first.0), Some(first.1), "so much may be said");
        match names {
            true => job.handle_published(first, small, generation, Ok(Some([1; 32]))),
            false => job.handle_persisted(first, FileId(1), generation, 0, parts(MIB, MIB), false),
        }
        assert_eq!(job.lease_of(first.0), None);
        job.handle_fenced(first.1);
        job.handle_joined(pair(1, 1), Time(1)).unwrap();
        actions(&mut job);
        job.handle_journaled(Ok(()), Time(1));
        job.handle_tick(Time(1));
        let second = job.lease_of(pair(1, 1)).unwrap();
        assert!(job.pairs[&pair(1, 1)].works.contains(&(small, 0)), "nobody has it");
        job.handle_published((pair(1, 1), second), small, generation, Ok(Some([1; 32])));
        assert_eq!(job.lease_of(pair(1, 1)), Some(second), "the name was its to give");
    }
}

/// Goal: what is read is said as often as it is said, and no more than anybody can write down.
/// Method: a part is to be taken over into another temporary; that it was, is said without end while the
/// journal hangs.
#[test]
fn parts_are_read_without_end_in_bounds() {
    let (mut job, at, given) = shared();
    let (holder, work) = given[0].clone();
    let keeps = at.into_iter().find(|at| at.0 == holder).unwrap();
    let gone = at.into_iter().find(|at| at.0 != holder).unwrap();
    let told = parts(work.offset, work.len);
    let mut known = SubtreeSet::new(DigestKind::Blake3, 16 * MIB);
    for part in &told {
        known.insert(part.offset, part.len, part.cv).unwrap();
    }
    job.handle_persisted(keeps, FileId(1), Generation(0), work.offset, told, true);
    actions(&mut job);
    job.handle_journaled(Ok(()), Time(1));
    job.handle_lost(gone, Proof::Unknown, Time(1));
    let again = works(&actions(&mut job));
    let (_, read) =
        again.into_iter().find(|(_, work)| work.kind == WorkKind::Read).expect("it is taken over");
    let value = known.covering(read.offset).map(|part| part.cv);
    for _ in 0..FACTS_MAX {
        job.handle_read(keeps, FileId(1), Generation(0), read.offset, value);
    }
    assert_eq!(job.lease_of(keeps.0), None);
    assert!(job.held() < 1000, "{}", job.held());
}

/// Goal: what does not fit is refused, and costs the pair its lease and the job nothing.
#[test]
fn a_pair_that_says_what_cannot_be_loses_its_lease() {
    let (mut job, at, given) = shared();
    let (holder, work) = given[0].clone();
    let bad = at.into_iter().find(|at| at.0 == holder).unwrap();
    let beyond = parts(work.offset + work.len, MIB);
    job.handle_persisted(bad, FileId(1), Generation(0), work.offset, beyond, false);
    assert_eq!(job.lease_of(holder), None);
    assert!(!works(&actions(&mut job)).is_empty());
    for host in 2..u16::MAX {
        if job.handle_joined(pair(host, host), Time(1)) == Err(Refused::Pairs) {
            assert_eq!(usize::from(host), PAIRS_MAX + 1);
            return;
        }
    }
    panic!("pairs without end");
}
