//! Many links in one pipe.

use super::*;

/// Goal: a control frame overtakes data that waits in the mux.
/// Method: the pipe is narrow and nobody reads it while 1 MiB of data and then one control byte are queued.
#[test]
fn control_overtakes_data_in_the_mux() {
    let (near, mut pipe) = memory::pair(1);
    let mut links = mux::mux(near.reader, near.writer, 2, 1000, Box::new(|_| {})).unwrap();
    links[1].writer.write_all(&vec![0; mux::SEND_QUEUE_LEN]).unwrap();
    links[0].writer.write_all(&[7]).unwrap();
    let mut data_before = 0;
    loop {
        let mut head = [0; 8];
        pipe.reader.read_exact(&mut head).unwrap();
        let head = SubHeader::decode(&head).unwrap();
        let mut body = vec![0; head.len as usize];
        pipe.reader.read_exact(&mut body).unwrap();
        if head.channel == 0 {
            break assert_eq!(body, [7]);
        }
        data_before += 1;
    }
    assert!(data_before <= 1, "control waited for {data_before} data subframes");
}

/// Goal: hostile subframes and a broken pipe end every channel with an error, and say so once.
#[test]
fn bad_subframes_end_the_mux() {
    let head = |channel: u16, len: u32| {
        let mut bytes = SubHeader { channel, len: 0 }.encode();
        bytes[4..].copy_from_slice(&len.to_le_bytes());
        bytes.to_vec()
    };
    let cases = [
        head(0, u32::MAX),
        head(0, 65_537),
        head(9, 4),
        head(9, 0),
        [head(1, 0), head(1, 4)].concat(),
        head(mux::CUT, 4),
        head(0, 5),
        Vec::new(),
    ];
    for case in cases {
        let (near, mut far) = memory::pair(100_000);
        let (ended, end) = unbounded();
        let on_end = Box::new(move |why| ended.send(why).unwrap());
        let mut links = mux::mux(near.reader, near.writer, 2, 1000, on_end).unwrap();
        far.writer.write_all(&case).unwrap();
        drop(far.writer);
        assert!(end.recv_timeout(HANG).unwrap().is_some());
        assert!(links[0].reader.read_to_end(&mut Vec::new()).is_err());
        assert!(end.recv_timeout(HANG).is_err());
    }
}

/// Goal: when all channels ended well the pipe ends well, and its writer is dropped.
#[test]
fn mux_ends_when_its_channels_do() {
    let (near, far) = memory::pair(100);
    let (ended, end) = unbounded();
    let ended = Arc::new(ended);
    let on_end = || {
        let ended = ended.clone();
        Box::new(move |why: Option<String>| ended.send(why).unwrap())
    };
    let a = mux::mux(near.reader, near.writer, 3, 1000, on_end()).unwrap();
    let b = mux::mux(far.reader, far.writer, 3, 1000, on_end()).unwrap();
    for (i, mut link) in a.into_iter().enumerate() {
        link.writer.write_all(&[i as u8; 5]).unwrap();
    }
    for (i, mut link) in b.into_iter().enumerate() {
        let mut got = Vec::new();
        link.reader.read_to_end(&mut got).unwrap();
        assert_eq!(got, [i as u8; 5]);
    }
    assert_eq!(end.recv_timeout(HANG).unwrap(), None);
    assert_eq!(end.recv_timeout(HANG).unwrap(), None);
}
