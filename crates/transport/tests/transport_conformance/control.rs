//! The control stream over any link.

use super::*;

/// Goal: no more messages wait to be taken than may, by number and by bytes, and all come nevertheless, in
/// order.
/// Method: a peer that writes as fast as it can against a taker that takes one only when as many wait as may,
/// or all came.
#[test]
fn a_flood_of_control_is_held_back() {
    for len in [8, 30_000] {
        let wait_max = WAITING_MAX.min(WAITING_LEN_MAX.div_ceil(len + 2));
        let flood = 5 * wait_max as u64;
        let said = move |n: u64| match len {
            8 => Message::Ping(n),
            _ => Message::Trial([&n.to_le_bytes()[..], &vec![b' '; len - 8]].concat().into()),
        };
        let (near, mut far) = memory::pair(100_000);
        let (sender, received) = unbounded();
        let (waiting, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let post: Post<ControlEvent> = {
            let (waiting, most) = (waiting.clone(), most.clone());
            Arc::new(move |event| {
                most.fetch_max(waiting.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                drop(sender.send(event));
            })
        };
        let handle = ControlStream::spawn(near, EPOCH, post).unwrap();
        let peer = std::thread::spawn(move || {
            for n in 1..=flood {
                far.writer.write_all(&encode_frame(&said(n), StreamId(0), EPOCH, n)).unwrap();
            }
            far
        });
        let deadline = Instant::now() + HANG;
        for n in 1..=flood {
            let left = (flood - n + 1) as usize;
            while waiting.load(Ordering::SeqCst) < wait_max.min(left) {
                assert!(Instant::now() < deadline, "message {n} of {flood} does not come");
                std::thread::yield_now();
            }
            let event = received.recv_timeout(HANG).unwrap();
            assert_eq!(event, ControlEvent::Message(said(n)));
            waiting.fetch_sub(1, Ordering::SeqCst);
            event.taken(&handle);
        }
        assert_eq!(most.load(Ordering::SeqCst), wait_max, "messages of {len} bytes");
        drop(peer.join().unwrap());
    }
}

/// Goal: an end that closes ends, and keeps no more than before, although the peer goes on and on and nobody
/// takes it.
#[test]
fn closing_does_not_wait_for_a_flood() {
    let (near, mut far) = memory::pair(10_000);
    let (mut handle, events) = control(near);
    let peer = std::thread::spawn(move || {
        (1..=3 * WAITING_MAX as u64)
            .all(|n| far.writer.write_all(&encode_frame(&Message::Ping(n), StreamId(0), EPOCH, n)).is_ok())
    });
    handle.close();
    assert!(peer.join().unwrap(), "what comes is read to its end");
    drop(handle);
    assert!(events.try_iter().count() <= WAITING_MAX);
}

/// Goal: control messages arrive in order in both directions; closing flushes; the peer hears the end once.
/// Method: thousands of numbered messages each way, closed right after the last.
#[test]
fn control_messages_round_trip() {
    for make in TRANSPORTS {
        let ends = make();
        let (mut near, near_events) = control(ends.near);
        let (mut far, far_events) = control(ends.far);
        let mut near_got = Vec::new();
        for i in 0..3000 {
            near.send(Message::Ping(i));
            far.send(Message::Stop { reason: format!("{i}").into() });
            // Not more in flight than the queue takes.
            let event = far_events.recv_timeout(HANG).unwrap();
            assert_eq!(event, ControlEvent::Message(Message::Ping(i)));
            event.taken(&far);
            near_got.push(near_events.recv_timeout(HANG).unwrap());
            near_got[i as usize].taken(&near);
        }
        near.send(Message::Stopped);
        let closing = std::thread::spawn(move || near.close());
        assert_eq!(far_events.recv_timeout(HANG).unwrap(), ControlEvent::Message(Message::Stopped));
        assert_eq!(lost(&far_events), "the peer closed the control stream");
        far.close();
        closing.join().unwrap();
        assert_eq!(near_got.len(), 3000, "{}", ends.name);
        for (i, event) in near_got.into_iter().enumerate() {
            assert_eq!(event, ControlEvent::Message(Message::Stop { reason: format!("{i}").into() }));
        }
        // Whoever closes is not told that it lost something; nobody is told twice.
        assert!(near_events.try_recv().is_err() && far_events.try_recv().is_err(), "{}", ends.name);
    }
}

/// Goal: a peer that does not read is found out, and sending never waits for it.
/// Method: nobody reads the other end; send more than is kept and the pipe holds.
#[test]
fn control_queue_is_bounded() {
    let (near, _far) = memory::pair(1000);
    let (handle, events) = control(near);
    for i in 0..KEPT_MAX as u64 + 20_000 {
        handle.send(Message::Ping(i));
    }
    assert!(lost(&events).contains("does not take"));
}

/// Goal: frames of another epoch do nothing, and are counted.
#[test]
fn stale_control_frames_are_dropped() {
    let (near, mut far) = memory::pair(10_000);
    let (handle, events) = control(near);
    far.writer.write_all(&encode_frame(&Message::Ping(1), StreamId(0), SessionEpoch(6), 1)).unwrap();
    far.writer.write_all(&encode_frame(&Message::Ping(2), StreamId(0), EPOCH, 1)).unwrap();
    assert_eq!(events.recv_timeout(HANG).unwrap(), ControlEvent::Message(Message::Ping(2)));
    assert_eq!(handle.stale(), 1);
    // A repeated frame ends the stream.
    far.writer.write_all(&encode_frame(&Message::Ping(2), StreamId(0), EPOCH, 1)).unwrap();
    assert!(lost(&events).contains("number 1 instead of 2"));
}

/// Goal: control goes on over another link: every message once and in order, whatever was on its way; what an
/// older link still brings has no effect; a link of an older epoch is refused.
/// Method: both real ends over pairs of links that are cut in the middle of traffic, with thousands of
/// messages each way.
#[test]
fn control_goes_on_over_another_link() {
    let (near, far) = memory::pair(5_000);
    let mut cuts = vec![near.closer.clone()];
    let (near_handle, near_events) = control(near);
    let (far_handle, far_events) = control(far);
    let read = |events: Receiver<ControlEvent>, handle: Arc<ControlHandle>| {
        std::thread::spawn(move || {
            let mut got = Vec::new();
            while got.len() < 12_000 {
                let event = events.recv_timeout(HANG).expect("messages go on");
                event.taken(&handle);
                match event {
                    ControlEvent::Message(Message::Ping(n)) => got.push(n),
                    ControlEvent::Message(other) => panic!("{other:?}"),
                    ControlEvent::Lost { how, .. } => assert_ne!(how, Loss::Broken),
                }
            }
            got
        })
    };
    let (near_handle, far_handle) = (Arc::new(near_handle), Arc::new(far_handle));
    let readers = [read(near_events, near_handle.clone()), read(far_events, far_handle.clone())];
    for i in 0..12_000u64 {
        near_handle.send(Message::Ping(i));
        far_handle.send(Message::Ping(i));
        if i % 1_000 == 500 {
            cuts.pop().expect("a link")();
            let (near, far) = memory::pair(5_000);
            cuts.push(near.closer.clone());
            let epoch = SessionEpoch(EPOCH.0 + 1 + i as u32);
            near_handle.attach(near, epoch).unwrap();
            far_handle.attach(far, epoch).unwrap();
            // One of an epoch that is over.
            let (stale, mut peer) = memory::pair(100);
            near_handle.attach(stale, epoch).unwrap();
            assert!(peer.reader.read(&mut [0]).is_err(), "it is cut");
        }
        if i % 50 == 0 {
            // Not more at a time than is kept for a peer.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let all: Vec<u64> = (0..12_000).collect();
    for reader in readers {
        assert!(reader.join().unwrap() == all, "lost, repeated or out of order");
    }
    let own = |handle| Arc::into_inner(handle).expect("its reader is over");
    let (mut near_handle, mut far_handle): (ControlHandle, ControlHandle) =
        (own(near_handle), own(far_handle));
    std::thread::scope(|scope| {
        scope.spawn(|| near_handle.close());
        far_handle.close();
    });
}

/// Goal: a peer that resumes where it cannot is found out, and the link is lost for good.
/// Method: a hand-written far end that joins again and claims what was never sent, another epoch, or wants
/// back what it had.
#[test]
fn false_resumes_are_found_out() {
    for (received, epoch, why) in
        [(5, 8, "came, of"), (0, 9, "resumes epoch"), (0, 8, "wants control messages")]
    {
        let (near, mut far) = memory::pair(10_000);
        let (handle, events) = control(near);
        handle.send(Message::Ping(1));
        far.reader.read_exact(&mut [0; HEADER_LEN + 8]).unwrap();
        far.writer.write_all(&encode_frame(&Message::Received(1), StreamId(0), EPOCH, 1)).unwrap();
        far.writer.write_all(&encode_frame(&Message::Ping(7), StreamId(0), EPOCH, 2)).unwrap();
        assert_eq!(events.recv_timeout(HANG).unwrap(), ControlEvent::Message(Message::Ping(7)));
        let (near, mut far) = memory::pair(10_000);
        handle.attach(near, SessionEpoch(8)).unwrap();
        let mut resume = [0; RESUME_LEN];
        far.reader.read_exact(&mut resume).unwrap();
        assert_eq!(ResumeFrom::decode(&resume).unwrap(), ResumeFrom { epoch: SessionEpoch(8), received: 2 });
        far.writer.write_all(&ResumeFrom { epoch: SessionEpoch(epoch), received }.encode()).unwrap();
        let lost = events.iter().find_map(|event| match event {
            ControlEvent::Lost { epoch: SessionEpoch(8), why, how } => Some((why, how)),
            _ => None,
        });
        let (said, how) = lost.unwrap();
        assert!(said.contains(why) && how == Loss::Broken, "{said}");
    }
}
