//! Servers that are away, that are gone, and that lose what was not synced.

use super::*;

/// Goal: once a server was away for one patience, whoever writes hears so, once, with its name and what to
/// do, and before what met it fails; what it has nothing to do with is written until then. Whoever reads
/// goes on: what has something there fails, by what is said of that server, and nobody waits for another
/// patience; all else is read, before and after.
#[test]
fn a_server_that_is_gone_is_said_once() {
    let volume = Arc::new(TestVolume::start_with(3, Duration::from_secs(5)));
    // So long that it goes to the storage servers, and not through the file's gatherer.
    let (data, large) = (bytes(1, 3 * OBJECT), bytes(2, 1 << 20));
    for n in 0..6 {
        volume.put(format!("/s/f{n}").as_bytes(), &data);
    }
    let sink = Sink::in_volume(&volume, b"/dst/");
    let mut reads = Reads::of(&volume, "/s/", OnChange::Fail);
    let mut run = sink.begin();
    volume.kill(2);
    let number = |n: &u64| volume.entry(format!("/s/f{n}").as_bytes()).expect("there").id.0;
    // Their first stripe too.
    let gathered_elsewhere = |n: &u64| number(n) % 3 != 2;
    let mut said = Vec::new();
    let all: Vec<u64> = (0..6).filter(gathered_elsewhere).collect();
    for n in &all {
        let (id, _) = reads.file(format!("f{n}").as_bytes());
        assert_eq!(reads.read(id, 0, OBJECT as u32).expect("it lies elsewhere"), data[..OBJECT]);
    }
    for n in &all {
        let (id, _) = reads.file(format!("f{n}").as_bytes());
        let stripe = (2 + 3 - number(n) % 3) % 3;
        let failure = reads.read(id, stripe * OBJECT as u64, OBJECT as u32).expect_err("a stripe lies there");
        assert_eq!(reads.gone.len(), 0, "{}", failure.text);
        assert_eq!(failure.kind, FailureKind::Network, "{}", failure.text);
        said.push(failure.text.to_string());
        assert_eq!(reads.read(id, 0, OBJECT as u32).expect("it lies elsewhere"), data[..OBJECT]);
        let one = file(*n + 1, DirId::ROOT, format!("f{n}").as_bytes(), large.len());
        let failure = run.write(&one, 0, &large).expect_err("some of it would lie there");
        assert_eq!((run.gone.len(), failure.kind), (1, FailureKind::Network), "{}", failure.text);
    }
    let at = volume.at(2).to_string();
    said.extend(run.gone.iter().map(|failure| failure.text.to_string()));
    for text in said {
        for part in ["volume v: its server 2", &at, "is gone", "`haul volume start v`"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    volume.revive(2);
    let (n, data) = (all[0], &data);
    let (id, _) = reads.file(format!("f{n}").as_bytes());
    let at = (2 + 3 - number(&n) % 3) as usize % 3 * OBJECT;
    let again = loop {
        match reads.read(id, at as u64, OBJECT as u32) {
            Ok(read) => break read,
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    assert_eq!(again, data[at..at + OBJECT]);
}

/// Goal: the same of a catalog, to whom asks it while it is away and to whom waits for it already.
#[test]
fn a_catalog_that_is_gone_is_said_once() {
    let volume = Arc::new(TestVolume::start_with(3, Duration::from_secs(5)));
    let sink = Sink::in_volume(&volume, b"/dst/");
    let mut run = sink.begin();
    volume.kill_catalog();
    for n in 1..6 {
        let one = file(n, DirId::ROOT, format!("f{n}").as_bytes(), 3);
        let failure = run.write(&one, 0, b"new").expect_err("nobody makes it");
        assert_eq!((run.gone.len(), failure.kind), (1, FailureKind::Network), "{}", failure.text);
    }
    let text = &run.gone[0].text;
    assert!(text.contains("volume v: its catalog, 127.0.0.1:") && text.contains("is gone"), "{text}");
}

/// Goal: of a file of which a server lost something that was not synced it is said that it may come once
/// more; and when it does it is whole, and right.
#[test]
fn what_a_server_loses_may_come_once_more() {
    let volume = Arc::new(TestVolume::start(3));
    let sink = Sink::in_volume(&volume, b"/dst/");
    // So long that it goes to the storage servers, and not through the file's gatherer.
    let (data, step) = (bytes(5, 5 << 20), 1 << 20);
    let mut run = sink.begin();
    let one = file(1, DirId::ROOT, b"f", data.len());
    let write = |run: &mut Run| {
        for (at, part) in data.chunks(step).enumerate() {
            run.write(&one, at * step, part).expect("written");
        }
    };
    let commit = |run: &mut Run| {
        let items = vec![CommitItem { id: one.id, publish: Some(publish(&one)) }];
        match run.run(SinkOp::Commit { durable: true, items }, None) {
            SinkDone::Commit { mut results, lost } => (results.remove(0).1, lost),
            other => panic!("{other:?}"),
        }
    };
    write(&mut run);
    volume.kill(1);
    volume.revive(1);
    let (result, lost) = commit(&mut run);
    let failure = result.expect_err("it was lost");
    assert_eq!(lost, [one.id], "{}", failure.text);
    assert!(failure.text.contains("lost with what was not synced"), "{}", failure.text);
    run.run(SinkOp::Discard { id: one.id }, None);
    write(&mut run);
    let (result, lost) = commit(&mut run);
    result.expect("it is there");
    assert!(lost.is_empty() && run.gone.is_empty());
    run.job.finish();
    run.end();
    assert_eq!(names(&volume, b"/dst"), [b"f"]);
    assert!((sink.read)(b"f") == Some(data));
}

/// Goal: a length asks the server that gathers the file, and nobody else.
/// Method: all others are killed.
#[test]
fn a_length_asks_one_server() {
    let volume = TestVolume::start(3);
    let no = (0..9)
        .map(|n| {
            let path = format!("/f{n}");
            volume.put(path.as_bytes(), &bytes(1, 2 * OBJECT + 7));
            volume.entry(path.as_bytes()).expect("there").file().expect("a file")
        })
        .find(|no| no.0 % 3 == 1);
    let v = volume.volume();
    volume.kill(0);
    volume.kill(2);
    let no = no.expect("they are gathered in turns");
    assert_eq!(v.len(no).expect("it is there"), 2 * OBJECT as u64 + 7);
    // What its gatherer has of it besides is nobody's here.
    v.client.write(no, 0, vec![1]).wait().expect("gathered");
    let read = v.client.read(no, 0, 0).wait().expect("it is there");
    assert_eq!((read.end, read.bytes.len()), (2 * OBJECT as u64 + 7, 0));
}
