//! A data connection in MODE E (first byte: where it is cut): no panic, nobody stands still, and the same
//! bytes of the file and the same ends in one piece or two.
#![no_main]
use haul_gridftp::FtpError;
use haul_gridftp::mode_e::{Channel, Event, Mark, Transfer};
use libfuzzer_sys::fuzz_target;

type Told = (Vec<(u64, u8)>, Vec<Mark>, Option<FtpError>);

fn read(pieces: &[&[u8]]) -> Told {
    let (mut channel, mut bytes, mut marks) = (Channel::new(), Vec::new(), Vec::new());
    for mut piece in pieces.iter().copied() {
        loop {
            let (taken, event) = match channel.feed(piece) {
                Ok(told) => told,
                Err(error) => return (bytes, marks, Some(error)),
            };
            match event {
                Some(Event::Payload { offset, len }) => {
                    bytes.extend((offset..).zip(piece[taken - len..taken].iter().copied()));
                }
                Some(Event::Mark(mark)) => marks.push(mark),
                Some(Event::Block { .. }) => {}
                None if channel.is_at_end() => channel.next_transfer(),
                None => break,
            }
            piece = &piece[taken..];
        }
    }
    (bytes, marks, None)
}

fuzz_target!(|data: &[u8]| {
    let Some((cut, bytes)) = data.split_first() else { return };
    let (head, tail) = bytes.split_at(usize::from(*cut).min(bytes.len()));
    let told = read(&[bytes]);
    assert_eq!(told, read(&[head, tail]));
    let mut transfer = Transfer::new(1 + u32::from(cut % 3)).expect("few senders");
    for mark in told.1 {
        let _ = transfer.handle_channel();
        if transfer.handle_mark(mark).is_err() {
            assert!(!transfer.is_complete());
        }
    }
});
