//! Data from a client: one connection in stream mode, as many as come in MODE E; and the markers meanwhile.
//!
//! In: connections. Out: bytes of an [`Upload`], `112` and `111` on the control connection.
//! What must hold: a `111` tells only what a sync before it covered, and its record ([`crate::part`]); in
//! MODE E a transfer is over when as many ends came as were promised, and not before; what comes behind the
//! end of a connection's part belongs to the next transfer.
//! In stream mode the end of the connection is the end of the data, and no server can tell it from a client
//! that died: who wants that told uses MODE E, or says `ALLO` first.

use std::io::{ErrorKind, Read};
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use haul_gridftp::FtpError;
use haul_gridftp::markers::restart;
use haul_gridftp::mode_e::{Event, Transfer};
use haul_gridftp::ranges::Ranges;
use rustix::event::PollFlags;
use rustix::io::Errno;

use crate::config::CHANNELS_MAX;
use crate::control::{Abort, Control};
use crate::data::{Conn, Data};
use crate::part::{Failed, Upload};
use crate::progress::{Progress, marker};
use crate::store::Fault;
use crate::transfer::Stop;

/// Bytes that are read at a time.
const READ_LEN: usize = 256 << 10;
/// Records that are read of one connection before others have their turn.
const RECORDS_MAX: usize = 16;

/// Markers of one upload.
pub struct Markers {
    every: Duration,
    next: Instant,
    /// A sync that runs, and what is safe when it comes back.
    sync: Option<(Receiver<Result<(), Fault>>, Ranges)>,
    wanted: bool,
}

impl Markers {
    /// With `wanted` they are told: the first `112` at once.
    pub fn new(every: Duration, wanted: bool) -> Markers {
        Markers { every, next: Instant::now() + every, sync: None, wanted }
    }

    /// How far it is.
    pub fn performance(&self, control: &mut Control, moved: u64) {
        if self.wanted {
            control.send(&marker(moved));
        }
    }

    /// Tells what is due.
    ///
    /// # Errors
    /// A sync failed.
    fn tick(&mut self, control: &mut Control, upload: &mut Upload, moved: u64) -> Result<(), Failed> {
        self.hear(control, upload, false)?;
        if !self.wanted || Instant::now() < self.next {
            return Ok(());
        }
        self.next = Instant::now() + self.every;
        self.performance(control, moved);
        let ranges = upload.unsafe_yet();
        if self.sync.is_some() || ranges.is_empty() || !upload.is_recorded() {
            return Ok(());
        }
        let syncer = upload.syncer()?;
        let (sender, receiver) = channel();
        let sure = ranges.clone();
        let spawned = std::thread::Builder::new().name("sync".into()).spawn(move || {
            let _ = sender.send(syncer.sync(&sure));
        });
        // Without a thread there is no marker now, and perhaps one the next time.
        if spawned.is_ok() {
            self.sync = Some((receiver, ranges));
        }
        Ok(())
    }

    /// Takes what a sync has to say, and waits for it if `wait`.
    fn hear(&mut self, control: &mut Control, upload: &mut Upload, wait: bool) -> Result<(), Failed> {
        let Some((receiver, ranges)) = self.sync.take() else { return Ok(()) };
        let said = match wait {
            true => receiver.recv().map_err(|_| TryRecvError::Disconnected),
            false => receiver.try_recv(),
        };
        match said {
            Ok(Ok(())) => {
                upload.confirm(&ranges)?;
                control.send(&restart(&ranges));
                Ok(())
            }
            Ok(Err(fault)) => Err(Failed::of("sync")(fault)),
            Err(TryRecvError::Empty) => {
                self.sync = Some((receiver, ranges));
                Ok(())
            }
            Err(TryRecvError::Disconnected) => Err(Failed::of("sync")(Errno::IO)),
        }
    }

    /// Publishes the upload, and tells the last markers: of it all. `last_look` says, when all is on media,
    /// whether it is still wanted.
    ///
    /// # Errors
    /// It is not published.
    pub fn finish(
        &mut self,
        control: &mut Control,
        upload: &mut Upload,
        expected: Option<u64>,
        moved: u64,
        last_look: impl FnOnce(&mut Control) -> Option<Abort>,
    ) -> Result<(), Stop> {
        self.hear(control, upload, true)?;
        let rest = upload.unsafe_yet();
        upload.complete(expected)?;
        // A sync may take minutes, and what was said meanwhile counts.
        if let Some(abort) = last_look(control) {
            return Err(abort.into());
        }
        upload.publish()?;
        self.performance(control, moved);
        if self.wanted && upload.is_recorded() && !rest.is_empty() {
            control.send(&restart(&rest));
        }
        Ok(())
    }

    /// At a node: what came is put on media, and told.
    ///
    /// # Errors
    /// A sync failed.
    pub fn tell_rest(
        &mut self,
        control: &mut Control,
        upload: &mut Upload,
        moved: u64,
    ) -> Result<(), Failed> {
        self.hear(control, upload, true)?;
        let rest = upload.unsafe_yet();
        self.performance(control, moved);
        if rest.is_empty() {
            return Ok(());
        }
        upload.syncer()?.sync(&rest).map_err(Failed::of("sync"))?;
        upload.confirm(&rest)?;
        control.send(&restart(&rest));
        Ok(())
    }

    /// After a failure: what is safe is told, so that the next attempt need not bring it again.
    pub fn give_up(&mut self, control: &mut Control, upload: &mut Upload) {
        if self.hear(control, upload, true).is_err() || !self.wanted || !upload.is_recorded() {
            return;
        }
        let rest = upload.unsafe_yet();
        if rest.is_empty() {
            return;
        }
        if upload.syncer().is_ok_and(|syncer| syncer.sync(&rest).is_ok()) && upload.confirm(&rest).is_ok() {
            control.send(&restart(&rest));
        }
    }

    fn deadline(&self, progress: &Progress) -> Instant {
        let soon = Instant::now() + Duration::from_millis(20);
        let due = if self.sync.is_some() { soon.max(self.next.min(soon)) } else { self.next };
        if self.wanted { progress.deadline().min(due) } else { progress.deadline() }
    }
}

/// Waits for something to do; that a marker is due is something. `at_once`: there is something already.
fn wait(
    control: &mut Control,
    wanted: &[(BorrowedFd<'_>, PollFlags)],
    markers: &Markers,
    progress: &Progress,
    at_once: bool,
) -> Result<Vec<bool>, Abort> {
    let until = if at_once { Instant::now() } else { markers.deadline(progress) };
    match control.wait(wanted, until, Some(progress)) {
        Err(Abort::Late) if Instant::now() < progress.deadline() => Ok(vec![false; wanted.len()]),
        other => other,
    }
}

/// Takes all that comes through one connection; `expected`: so many bytes the client has announced.
///
/// # Errors
/// It was not all, as far as can be known.
pub fn stream(
    control: &mut Control,
    mut conn: Conn,
    upload: &mut Upload,
    expected: Option<u64>,
    markers: &mut Markers,
    progress: &Progress,
) -> Result<(), Stop> {
    let mut bytes = vec![0; READ_LEN];
    let mut at = 0;
    loop {
        match conn.stream.read(&mut bytes) {
            Ok(0) => {
                // Who still listens hears that this end was not cut off either.
                let _ = conn.stream.end();
                return Ok(());
            }
            Ok(len) => {
                upload.write(at, &bytes[..len])?;
                at += len as u64;
                progress.add(len);
                if len == READ_LEN && Instant::now() < markers.next {
                    continue;
                }
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => {}
                ErrorKind::Interrupted => continue,
                // Globus ends a connection under TLS without saying so, as somebody on the way could. What
                // was announced where nobody could change it tells the two apart.
                ErrorKind::UnexpectedEof if expected == Some(upload.got()) => return Ok(()),
                ErrorKind::UnexpectedEof => {
                    return Err(Stop::Missing(
                        "The data connection ended without the last word of TLS, and what came is not what ALLO \
                         announced: MODE E tells the end",
                    ));
                }
                _ => return Err(Stop::Data(error)),
            },
        }
        let holds = conn.stream.holds();
        wait(control, &[(conn.stream.fd(), PollFlags::IN)], markers, progress, holds)?;
        markers.tick(control, upload, progress.moved())?;
    }
}

/// Takes blocks from the connections that are kept and those that come. `begun` is called once, when there is
/// one; with whether it was kept. Returns how many there were.
///
/// # Errors
/// It was not all.
pub fn blocks(
    control: &mut Control,
    data: &mut Data,
    upload: &mut Upload,
    markers: &mut Markers,
    progress: &Progress,
    mut begun: impl FnMut(&mut Control, bool),
) -> Result<usize, Stop> {
    let mut conns = std::mem::take(&mut data.kept);
    let mut transfer = Transfer::new(1)?;
    let mut bytes = vec![0; READ_LEN];
    let mut is_begun = false;
    if !conns.is_empty() {
        begun(control, true);
        is_begun = true;
    }
    // What came with the end of the transfer before.
    for conn in &mut conns {
        let unread = std::mem::take(&mut conn.unread);
        take(conn, &unread, upload, &mut transfer, progress)?;
    }
    while !transfer.is_complete() {
        let mut wanted: Vec<(BorrowedFd<'_>, PollFlags)> = Vec::with_capacity(conns.len() + 1);
        let reading: Vec<usize> = (0..conns.len()).filter(|i| !conns[*i].channel.is_at_end()).collect();
        wanted.extend(reading.iter().map(|i| (conns[*i].stream.fd(), PollFlags::IN)));
        let room = conns.len() < CHANNELS_MAX;
        if room {
            wanted.extend(data.listener_fds().map(|fd| (fd, PollFlags::IN)));
        }
        if wanted.is_empty() {
            return Err(Stop::Missing("All data connections have ended, and more were promised"));
        }
        // What protects a connection may hold more than its socket shows.
        let hold: Vec<bool> = reading.iter().map(|i| conns[*i].stream.holds()).collect();
        let ready = wait(control, &wanted, markers, progress, hold.contains(&true))?;
        let mut closed = Vec::new();
        for ((i, is_ready), holds) in reading.iter().copied().zip(&ready).zip(hold) {
            if !is_ready && !holds {
                continue;
            }
            let conn = &mut conns[i];
            // A record of TLS is short: some are taken before others have their turn.
            let reads = if conn.stream.plain().is_some() { 1 } else { RECORDS_MAX };
            for _ in 0..reads {
                match conn.stream.read(&mut bytes) {
                    Ok(0) => {
                        closed.push(i);
                        break;
                    }
                    Ok(len) => take(conn, &bytes[..len], upload, &mut transfer, progress)?,
                    Err(error) => match error.kind() {
                        ErrorKind::WouldBlock => break,
                        ErrorKind::Interrupted => {}
                        // Of one that is kept nothing is missing, however it ends.
                        ErrorKind::UnexpectedEof if !conn.counted => {
                            closed.push(i);
                            break;
                        }
                        _ => return Err(Stop::Data(error)),
                    },
                }
                if conn.channel.is_at_end() {
                    break;
                }
            }
        }
        for i in closed.into_iter().rev() {
            let conn = conns.swap_remove(i);
            // One that never said anything is nobody's loss.
            if conn.counted {
                transfer.handle_closed(conn.channel.is_at_end())?;
            }
        }
        if room && ready[reading.len()..].contains(&true) {
            while conns.len() < CHANNELS_MAX {
                let Some(conn) = data.accept().map_err(Stop::Data)? else { break };
                conns.push(conn);
                if !is_begun {
                    begun(control, false);
                    is_begun = true;
                }
            }
        }
        markers.tick(control, upload, progress.moved())?;
    }
    let used = conns.iter().filter(|conn| conn.counted).count();
    for conn in &mut conns {
        if conn.channel.is_at_end() {
            conn.channel.next_transfer();
        }
        conn.counted = false;
    }
    conns.retain(|conn| !conn.closing);
    data.kept = conns;
    Ok(used)
}

/// Takes what one connection said.
fn take(
    conn: &mut Conn,
    bytes: &[u8],
    upload: &mut Upload,
    transfer: &mut Transfer,
    progress: &Progress,
) -> Result<(), Stop> {
    let mut rest = bytes;
    if !rest.is_empty() && !conn.counted {
        conn.counted = true;
        transfer.handle_channel()?;
    }
    loop {
        let (taken, event) = conn.channel.feed(rest)?;
        let fed = &rest[..taken];
        rest = &rest[taken..];
        match event {
            Some(Event::Block { .. }) => {}
            Some(Event::Payload { offset, len }) => {
                upload.write(offset, &fed[fed.len() - len..])?;
                progress.add(len);
            }
            Some(Event::Mark(mark)) => {
                conn.closing |= mark.close;
                // More could never come: that many connections are not taken.
                if let Some(value) = mark.eof.filter(|count| *count > CHANNELS_MAX as u64) {
                    return Err(FtpError::BadValue { what: "count of ends of data", value }.into());
                }
                transfer.handle_mark(mark)?;
            }
            None => break,
        }
    }
    conn.unread.extend_from_slice(rest);
    Ok(())
}
