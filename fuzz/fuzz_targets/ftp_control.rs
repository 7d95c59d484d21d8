//! The control connection of an FTP server or client (first byte: where it is cut): no panic, the same
//! replies in one piece or two, and what is read survives its own round trip.
#![no_main]
use haul_gridftp::FtpError;
use haul_gridftp::address::{parse_227, parse_229, parse_extended, parse_spas, parse_spor, spas_reply};
use haul_gridftp::command::split_command;
use haul_gridftp::features::Features;
use haul_gridftp::line::Iac;
use haul_gridftp::markers::{Performance, parse_restart, restart};
use haul_gridftp::ranges::Ranges;
use haul_gridftp::reply::{Reply, ReplyReader};
use libfuzzer_sys::fuzz_target;

fn read(pieces: &[&[u8]], iac: Iac) -> (Vec<Reply>, Option<FtpError>) {
    let (mut reader, mut replies) = (ReplyReader::new(iac), Vec::new());
    for mut piece in pieces.iter().copied() {
        while !piece.is_empty() {
            match reader.feed(piece) {
                Ok((taken, reply)) => {
                    assert!(taken > 0);
                    piece = &piece[taken..];
                    replies.extend(reply);
                }
                Err(error) => return (replies, Some(error)),
            }
        }
    }
    (replies, None)
}

fuzz_target!(|data: &[u8]| {
    let Some((cut, bytes)) = data.split_first() else { return };
    let (head, tail) = bytes.split_at(usize::from(*cut).min(bytes.len()));
    let iac = if cut % 2 == 0 { Iac::Doubled } else { Iac::Plain };
    let whole = read(&[bytes], iac);
    assert_eq!(whole, read(&[head, tail], iac));
    for reply in whole.0 {
        let _ = (parse_227(reply.text()), parse_229(reply.text()), Features::parse(&reply));
        if let Ok(stripes) = parse_spas(&reply) {
            assert_eq!(parse_spas(&spas_reply(&stripes).expect("as many as were read")), Ok(stripes));
        }
        if let Ok(ranges) = parse_restart(&reply) {
            assert_eq!(parse_restart(&restart(&ranges)), Ok(ranges));
        }
        if let Ok(marker) = Performance::parse(&reply) {
            let again = Performance::parse(&marker.reply()).expect("a marker");
            assert_eq!((again.secs, again.moved, again.stripe), (marker.secs, marker.moved, marker.stripe));
        }
    }
    let _ = (parse_spor(bytes), parse_extended(bytes), Ranges::parse(bytes), split_command(bytes));
});
