//! Commands that move data: `RETR`, `ERET`, `STOR`, `APPE`, `ESTO`, and listings.
//!
//! What must hold: where an upload cannot begin, its data connections are closed, for what a sender puts into
//! one that is kept would be taken for the next file's; a download whose file changed under it is refused at
//! its end.

use std::time::{Duration, Instant};

use haul_gridftp::address;
use haul_gridftp::ranges::Ranges;
use haul_gridftp::request::Restart;
use rustix::io::Errno;

use super::Session;
use super::files::seconds_now;
use crate::control::{Abort, Control};
use crate::data::{Conn, Way};
use crate::listing::{Form, Listing};
use crate::log::Transfer;
use crate::part::{Begin, Failed, Upload};
use crate::progress::Progress;
use crate::receive::{self, Markers};
use crate::seen::{Seen, is_unchanged, settled};
use crate::send::{self, Blocks, Feed, FileFeed, TextFeed};
use crate::transfer::Stop;
use crate::tree::{Lost, Spot, Tree};

/// So long the end of the control connection is waited for behind the end of the data, where nothing else
/// says that the data are all: a client that dies closes both.
const DEATH_WITHIN: Duration = Duration::from_millis(5);

impl Session {
    pub(super) fn retrieve(&mut self, tree: &Tree, path: &[u8], part: Option<(u64, u64)>) -> u16 {
        let restart = self.with.restart.take();
        self.with.allo = None;
        let opened = tree.find(&self.here, path, true).and_then(|spot| tree.open_file(&spot));
        let opened = opened.and_then(|(file, stat)| Ok((settled(&*file, stat)?, file)));
        let (stat, file) = match opened {
            Ok((Some(stat), file)) => (stat, file),
            Ok((None, _)) => return self.plain(451, "The file is written to all the time: get it again."),
            Err(lost) => return self.refuse(path, lost),
        };
        let size = stat.len;
        if part.is_some() && restart.is_some() {
            return self.plain(504, "REST before ERET is not served.");
        }
        let (start, end) = match part {
            Some((offset, len)) => (offset, offset.saturating_add(len).min(size)),
            None => (0, size),
        };
        let (Some(left_out), true) = (self.left_out(restart), start <= size) else {
            return self.plain(554, "The file has fewer bytes than that, or stream mode has no such ranges.");
        };
        if left_out.list().last().is_some_and(|range| range.1 > size) {
            return self.plain(554, "The file has fewer bytes than that.");
        }
        let ranges: Vec<(u64, u64)> = match part {
            Some(_) => [(start, end)].into_iter().filter(|(start, end)| start < end).collect(),
            None => left_out.missing(size).collect(),
        };
        let verb = if part.is_some() { "ERET" } else { "RETR" };
        let begun = Instant::now();
        let progress = Progress::new(verb);
        if self.is_sent_by_nodes() {
            let (seen, what) = (Seen::of(&stat), (&ranges[..], start, size));
            let sent = self.send_by_nodes(tree, path, seen, what, file.round(), &progress);
            if sent.is_err() {
                self.data.close();
            }
            let sent = sent.map_err(|stop| stop.reply());
            return self.finish(verb, path, begun, &progress, sent);
        }
        let mut feed = FileFeed::new(file, Blocks::new(ranges.into_iter()), start);
        let sent = match self.send(&mut feed, &progress) {
            Ok(Some(count)) => match is_unchanged(&*feed.into_file(), &stat) {
                true => Ok(count),
                false => Err((451, "The file was changed while it was read: get it again.".to_owned())),
            },
            Ok(None) => return 425,
            Err(stop) => Err(stop.reply()),
        };
        self.finish(verb, path, begun, &progress, sent)
    }

    /// What `REST` leaves out. `None` where stream mode cannot.
    fn left_out(&self, restart: Option<Restart>) -> Option<Ranges> {
        let mut left_out = Ranges::new();
        match restart {
            None => {}
            Some(Restart::Offset(offset)) => left_out.insert(0, offset).ok()?,
            Some(Restart::Ranges(ranges)) => match (self.with.mode, ranges.list()) {
                (b'E', _) | (_, [(0, _)]) => left_out = ranges,
                _ => return None,
            },
        }
        Some(left_out)
    }

    pub(super) fn list(&mut self, tree: &Tree, path: Option<&[u8]>, form: Form, verb: &'static str) -> u16 {
        self.with.restart = None;
        self.with.allo = None;
        let said = path.unwrap_or(b".");
        let now = seconds_now();
        let listed =
            tree.find(&self.here, said, true).and_then(|spot| match (spot.found()?.is_dir(), form) {
                (true, _) => Listing::of_dir(tree.open_dir(&spot)?, form, self.access(), now),
                (false, Form::Facts(_)) => Err(Lost::System(Errno::NOTDIR)),
                (false, _) => {
                    let name = spot.name()?.clone();
                    Ok(Listing::of_name(spot.dir, name, said, form, self.access(), now))
                }
            });
        let listing = match listed {
            Ok(listing) => listing,
            Err(lost) => return self.refuse(said, lost),
        };
        let begun = Instant::now();
        let progress = Progress::new(verb);
        let mut feed = TextFeed::new(listing);
        let sent = match self.send(&mut feed, &progress) {
            Ok(Some(count)) => match feed.listing.untold {
                0 => Ok(count),
                // Unsaid, these would be lost to who copies a tree.
                untold => Err((
                    550,
                    format!("All is listed but {untold} names that no line of a listing can hold."),
                )),
            },
            Ok(None) => return 425,
            Err(stop) => Err(stop.reply()),
        };
        self.finish(verb, said, begun, &progress, sent)
    }

    /// Sends all of `feed`; `None`: there was no connection, and that was said. Else how many there were.
    pub(super) fn send(&mut self, feed: &mut dyn Feed, progress: &Progress) -> Result<Option<usize>, Stop> {
        if self.data.kept_way == Some(Way::In) {
            self.data.drop_kept();
        }
        if let Some((code, why)) = self.data.guard.hindrance() {
            self.data.close();
            self.control.say(code, &format!("There is no data connection: {why}."));
            return Ok(None);
        }
        if self.with.mode == b'E' {
            if self.data.kept.is_empty() && !self.data.is_dialling() {
                self.control.say(425, "In MODE E who sends dials: say PORT, EPRT or SPOR first.");
                return Ok(None);
            }
            let parallelism = self.with.parallelism;
            let channels = send::channels(&mut self.control, &mut self.data, parallelism, progress);
            let (conns, are_kept) = match channels {
                Ok(found) => found,
                Err(Stop::Data(error)) => {
                    self.data.close();
                    self.no_connection(&error);
                    return Ok(None);
                }
                Err(stop) => {
                    self.data.close();
                    return Err(stop);
                }
            };
            self.data.kept_way = Some(Way::Out);
            self.begin(are_kept);
            let count = conns.len();
            let sent = send::blocks(&mut self.control, &mut self.data, conns, feed, progress);
            if sent.is_err() {
                self.data.close();
            }
            return sent.map(|()| Some(count));
        }
        let Some(conn) = self.one_connection(Way::Out, progress)? else { return Ok(None) };
        send::stream(&mut self.control, conn, feed, progress).map(|()| Some(1))
    }

    /// The connection of a transfer in stream mode, and that the transfer begins; or that there is none was
    /// said.
    fn one_connection(&mut self, way: Way, progress: &Progress) -> Result<Option<Conn>, Stop> {
        if !self.data.is_agreed() {
            self.control.say(425, "Say PASV, EPSV, PORT or EPRT first.");
            return Ok(None);
        }
        self.data.guard.set_way(way);
        let begins_late = self.data.guard.begins_late();
        if begins_late {
            self.begin(false);
        }
        match self.data.open_one(&mut self.control, progress) {
            Ok(Ok(conn)) => {
                if !begins_late {
                    self.begin(false);
                }
                Ok(Some(conn))
            }
            Ok(Err(error)) => {
                self.no_connection(&error);
                // Of an upload the log tells what was answered.
                if way == Way::Out {
                    let said = String::from_utf8_lossy(self.control.said()).into_owned();
                    self.log.note("refused", Some(self.peer), None, &said);
                }
                Ok(None)
            }
            Err(abort) => Err(abort.into()),
        }
    }

    fn no_connection(&mut self, error: &std::io::Error) {
        let text = haul_base::errno::text(error);
        self.control.say(425, &format!("There is no data connection: {text}."));
    }

    fn begin(&mut self, kept: bool) {
        match kept {
            true => self.control.say(125, "The data connection is open; the transfer begins."),
            false => self.control.say(150, "The transfer begins."),
        }
    }

    /// Says and logs how a transfer ended.
    pub(super) fn finish(
        &mut self,
        verb: &str,
        path: &[u8],
        begun: Instant,
        progress: &Progress,
        done: Result<usize, (u16, String)>,
    ) -> u16 {
        let (code, text, connections) = match done {
            Ok(count) => (226, "The transfer is complete.".to_owned(), count),
            Err((code, text)) => (code, text, 0),
        };
        let (whole, user) = (self.whole(path), self.user());
        // A client that was sent away may say nothing of it, and go.
        let sent_away = self.data.why_sent_away().filter(|_| code != 226);
        let hint =
            sent_away.map(|why| format!(" A data connection was sent away: {why}.")).unwrap_or_default();
        let text = text + &hint;
        let over = Transfer {
            verb,
            path: &whole,
            bytes: progress.moved(),
            took: begun.elapsed(),
            connections,
            result: &format!("{code} {text}"),
        };
        self.log.transfer(self.peer, &user, &over);
        self.has_logged = true;
        self.control.say(code, &text);
        code
    }

    pub(super) fn store(&mut self, tree: &Tree, path: &[u8], at: Option<u64>, append: bool) -> u16 {
        let restart = self.with.restart.take();
        let expected = self.with.allo.take();
        let verb = match (at, append) {
            (Some(_), _) => "ESTO",
            (None, true) => "APPE",
            (None, false) => "STOR",
        };
        let by_nodes = self.is_taken_by_nodes();
        if let Some((code, why)) = self.no_way_in().filter(|_| !by_nodes) {
            self.data.close();
            return self.plain(code, why);
        }
        let begun = Instant::now();
        let progress = Progress::new(verb);
        let upload = self.begin_upload(tree, path, at, append, restart, expected);
        let mut upload = match upload {
            Ok(upload) => upload,
            Err((code, text)) => {
                // What a sender puts into a connection for this file is never to be the next one's.
                self.data.close();
                self.stripes = None;
                return self.finish(verb, path, begun, &progress, Err((code, text)));
            }
        };
        let in_blocks = self.with.mode == b'E';
        let wanted = in_blocks || self.with.markers.is_some();
        let every = self.with.markers.unwrap_or(self.config.marker_interval);
        let mut markers = Markers::new(every, wanted && !by_nodes);
        let moved = match by_nodes {
            true => self.receive_by_nodes(tree, &mut upload, path, expected, &progress).map(Some),
            false => self.receive(&mut upload, expected, &mut markers, &progress),
        };
        let done = match moved {
            Ok(None) => {
                self.data.close();
                return 425;
            }
            Ok(Some(count)) => {
                let patience = if in_blocks || expected.is_some_and(|said| said > 0) {
                    Duration::ZERO
                } else {
                    DEATH_WITHIN
                };
                // In MODE E the client has said that all came, so it may have gone; it may say ABOR still.
                let look = |control: &mut Control, within| {
                    control.aborted(within).filter(|abort| !in_blocks || *abort == Abort::Asked)
                };
                match look(&mut self.control, patience) {
                    Some(abort) => Err(abort.into()),
                    None => {
                        let last_look = |control: &mut Control| look(control, Duration::ZERO);
                        let (control, moved) = (&mut self.control, progress.moved());
                        markers.finish(control, &mut upload, expected, moved, last_look).map(|()| count)
                    }
                }
            }
            Err(stop) => Err(stop),
        };
        if done.is_err() {
            self.data.close();
            self.stripes = None;
            markers.give_up(&mut self.control, &mut upload);
        }
        drop(upload);
        self.finish(verb, path, begun, &progress, done.map_err(|stop| stop.reply()))
    }

    /// Why no data can come, if that is so, and the code of the reply.
    pub(super) fn no_way_in(&mut self) -> Option<(u16, &'static str)> {
        if self.data.kept_way == Some(Way::Out) {
            self.data.drop_kept();
        }
        let listens = self.data.is_listening() || self.data.due;
        if let Some(why) = self.data.guard.hindrance() {
            return Some(why);
        }
        match self.with.mode {
            b'E' if self.data.kept.is_empty() && !listens => {
                Some((425, "In MODE E who receives listens: say PASV, EPSV or SPAS first."))
            }
            b'S' if !self.data.is_agreed() => Some((425, "Say PASV, EPSV, PORT or EPRT first.")),
            _ => None,
        }
    }

    fn begin_upload(
        &mut self,
        tree: &Tree,
        path: &[u8],
        at: Option<u64>,
        append: bool,
        restart: Option<Restart>,
        expected: Option<u64>,
    ) -> Result<Upload, (u16, String)> {
        let shown = haul_base::escape::name(&path[..path.len().min(512)]);
        let lost = |lost: Lost| {
            let failed = Failed::Lost(lost);
            (failed.code(), format!("{shown}: {failed}."))
        };
        if restart.is_some() && (at.is_some() || append) {
            return Err((504, "REST before ESTO or APPE is not served.".into()));
        }
        let is_restart = restart.is_some();
        let bad = || (501, "Stream mode has no such ranges: REST with one offset.".to_owned());
        let left_out = self.left_out(restart).ok_or_else(bad)?;
        let begin = match (at, append, is_restart && !left_out.is_empty()) {
            (Some(_), ..) => Begin::Into,
            (None, true, _) => Begin::Append,
            (None, false, true) => Begin::Restart(left_out.clone()),
            (None, false, false) => Begin::Fresh,
        };
        let spot: Spot = tree.find(&self.here, path, true).map_err(lost)?;
        if path.ends_with(b"/") {
            return Err(lost(Lost::Directory));
        }
        if let (Some(said), Some(free)) = (expected, spot.dir.free())
            && said.saturating_sub(left_out.total()) > free
        {
            return Err((452, format!("There is room for {free} bytes, and ALLO said {said}.")));
        }
        let in_blocks = self.with.mode == b'E';
        // What is put into a file that stood there is counted from elsewhere than a restart would count.
        let keep = in_blocks && matches!(begin, Begin::Fresh | Begin::Restart(_));
        // A copy of what stands there may be long.
        let control = &mut self.control;
        let mut is_wanted = || control.aborted(Duration::ZERO).is_none();
        let upload = Upload::begin(tree, spot, &begin, keep, &mut is_wanted);
        let mut upload = upload.map_err(|failed| (failed.code(), format!("{shown}: {failed}.")))?;
        if let Some(at) = at {
            upload.at = at;
        }
        if !in_blocks && let Some((_, end)) = left_out.list().last() {
            upload.at = *end;
        }
        Ok(upload)
    }

    /// Takes all that comes; `None`: there was no connection, and that was said.
    pub(super) fn receive(
        &mut self,
        upload: &mut Upload,
        expected: Option<u64>,
        markers: &mut Markers,
        progress: &Progress,
    ) -> Result<Option<usize>, Stop> {
        if self.data.due {
            let said = match self.data.listen() {
                Ok(at) => address::text_227(at).map_err(Stop::from)?,
                Err(error) => {
                    self.no_connection(&error);
                    return Ok(None);
                }
            };
            self.control.say(127, &said);
        }
        if self.with.mode != b'E' {
            let Some(conn) = self.one_connection(Way::In, progress)? else { return Ok(None) };
            receive::stream(&mut self.control, conn, upload, expected, markers, progress)?;
            return Ok(Some(1));
        }
        self.data.kept_way = Some(Way::In);
        let marks = &mut *markers;
        let mut first = true;
        let begun = |control: &mut Control, kept: bool| {
            if std::mem::take(&mut first) {
                match kept {
                    true => control.say(125, "The data connection is open; the transfer begins."),
                    false => control.say(150, "The transfer begins."),
                }
            }
        };
        let count = receive::blocks(&mut self.control, &mut self.data, upload, marks, progress, begun)?;
        Ok(Some(count))
    }
}
