//! What a process before a login becomes where another one serves: it opens what the client says, closes what
//! is answered, and does nothing else. Keys of the connection never come to where files are.
//!
//! In: a control connection whose context stands, a connection to who serves. Out: commands as lines,
//! replies as tokens, until either is gone.
//! Invariants: what is held of either direction is bounded; a bare line is passed to nobody.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;

use haul_gridftp::line::Iac;
use haul_gridftp::reply::ReplyReader;
use rustix::event::PollFlags;

use crate::config::REFUSED_MAX;
use crate::control::{Control, End};

/// Bytes of replies that are read at a time.
const READ_LEN: usize = 64 << 10;

/// Passes on until either end is gone.
pub fn run(mut control: Control, mut server: UnixStream) {
    control.trust();
    if server.set_nonblocking(true).is_err() {
        return;
    }
    let (mut out, mut at) = (Vec::new(), 0);
    let mut replies = ReplyReader::new(Iac::Plain);
    let mut refused = 0;
    // Code of the last reply.
    let mut last = 0;
    let is_lost = loop {
        // One line at a time: the next waits in its queue until this one is away.
        while at == out.len()
            && let Some(line) = control.take_line()
        {
            if control.refuse_bare() {
                refused += 1;
                continue;
            }
            (out, at) = (line, 0);
            out.extend_from_slice(b"\r\n");
        }
        if refused > REFUSED_MAX {
            break false;
        }
        // Who serves may have said why before it ended: that is read first.
        if pass(&mut server, &mut out, &mut at).is_err() {
            (out, at) = (Vec::new(), 0);
        }
        let mut flags = PollFlags::IN;
        if at < out.len() {
            flags |= PollFlags::OUT;
        }
        match control.wait_to_relay(server.as_fd(), flags) {
            Ok(ready) if ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) => {
                match answers(&mut server, &mut replies, &mut control, &mut last) {
                    Ok(true) => {}
                    Ok(false) | Err(()) => break true,
                }
            }
            Ok(_) => {}
            Err(End::TooLong | End::Broken) => {
                control.say(500, "What is said cannot be understood any more; goodbye.");
                break false;
            }
            Err(_) => break false,
        }
    };
    if is_lost && !matches!(last, 221 | 421) {
        control.say(421, "Who served this session is gone; connect anew.");
    }
    // Who serves learns that nobody listens.
    let _ = server.shutdown(Shutdown::Both);
}

/// Sends what goes of a line.
fn pass(server: &mut UnixStream, out: &mut Vec<u8>, at: &mut usize) -> Result<(), ()> {
    while *at < out.len() {
        match server.write(&out[*at..]) {
            Ok(0) => return Err(()),
            Ok(len) => *at += len,
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => return Ok(()),
                ErrorKind::Interrupted => {}
                _ => return Err(()),
            },
        }
    }
    out.clear();
    *at = 0;
    Ok(())
}

/// Passes on what is answered; false: no more will be.
fn answers(
    server: &mut UnixStream,
    replies: &mut ReplyReader,
    control: &mut Control,
    last: &mut u16,
) -> Result<bool, ()> {
    let mut bytes = vec![0; READ_LEN];
    let len = match server.read(&mut bytes) {
        Ok(0) => return Ok(false),
        Ok(len) => len,
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            return Ok(true);
        }
        Err(_) => return Err(()),
    };
    let mut rest = &bytes[..len];
    while !rest.is_empty() {
        let (taken, reply) = replies.feed(rest).map_err(|_| ())?;
        rest = &rest[taken..];
        if let Some(reply) = reply {
            *last = reply.code();
            control.send(&reply);
        }
    }
    Ok(true)
}
