//! The sink of a dry run: it says where entries would go and makes nothing.
//!
//! Invariant: memory does not grow with what is announced, whoever announces it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::unbounded;
use haul_core::entry::EntryKind;
use haul_core::ids::DirId;
use haul_core::transfer::{Ended, SessionEnd};
use haul_core::wire::{Announced, DoneItem, FileState, Message, Outcome};

use super::streams::Lines;
use super::{
    Clock, EPOCH, Heard, Kind, Links, Report, Tally, Watch, agree, exchange_reports, expect, hello, join,
    protocol,
};
use crate::api::Event;
use crate::meter::Meter;
use crate::storage::Post;
use crate::transport::rejoin::Joins;
use crate::transport::stream::{ControlEvent, ControlStream};

/// Mappings that a dry run shows.
const SHOWN_MAX: usize = 10;

/// The first mappings, and the paths of what they lie in: a parent is announced before its children, so the parents of the
/// first few entries are among these.
struct Shown {
    count: usize,
    paths: HashMap<DirId, Vec<u8>>,
}

impl Shown {
    /// `destination`: what the paths begin with.
    fn new(destination: &[u8]) -> Shown {
        Shown { count: 0, paths: HashMap::from([(DirId::ROOT, destination.to_vec())]) }
    }

    /// Where an entry would go, if it is to be shown.
    fn take(&mut self, entry: &Announced) -> Option<Vec<u8>> {
        if self.count >= SHOWN_MAX {
            return None;
        }
        self.count += 1;
        let path = join(self.paths.get(&entry.parent).map_or(&[][..], |path| path), &entry.name);
        if entry.kind == EntryKind::Dir {
            self.paths.insert(entry.id.as_dir(), path.clone());
        }
        Some(path)
    }
}

/// Runs the sink end of a dry run: every entry is answered as if it were there already.
///
/// `destination` is what the paths shown begin with.
pub(crate) fn run(links: Links, destination: &[u8], memory: u64, watch: &Watch) -> Report {
    let (sender, mailbox) = unbounded();
    let post: Post<ControlEvent> = Arc::new(move |event| drop(sender.send(event)));
    let mut control = match ControlStream::spawn(links.control, EPOCH, post) {
        Ok(control) => control,
        Err(e) => return Report::failed(protocol(e.to_string()), watch),
    };
    let mut tally = Tally::default();
    let mut shown = Shown::new(destination);
    let ours = hello(links.session, links.protection, memory, links.streams);
    control.send(Message::Hello(ours.clone()));
    let mut totals = None;
    let result = loop {
        let step =
            expect(&mailbox, (&control, watch), |e| Some(Heard::Control(e)), |message| Ok(Some(message)));
        match step {
            Err(failure) => break Err(failure),
            Ok(Message::Hello(theirs)) => {
                if let Err(failure) = agree(&ours, &theirs) {
                    break Err(failure);
                }
            }
            Ok(Message::Sources { .. }) => {
                control.send(Message::Destination { wait: true, rename: None, epoch: 0, resumed: false });
            }
            Ok(Message::Announce(entries)) => {
                let (mut states, mut done) = (Vec::new(), Vec::new());
                for entry in entries {
                    let bytes = match &entry.kind {
                        EntryKind::File { fingerprint, .. } => {
                            states.push((entry.id, entry.generation, FileState::Skipped));
                            tally.count(
                                watch,
                                Kind::File,
                                &Ended::Copied,
                                None,
                                fingerprint.size,
                                Vec::new,
                                || None,
                            );
                            Some(fingerprint.size)
                        }
                        EntryKind::Dir => {
                            tally.count(watch, Kind::Dir, &Ended::Copied, None, 0, Vec::new, || None);
                            None
                        }
                        EntryKind::Symlink { .. } => {
                            tally.count(watch, Kind::Symlink, &Ended::Copied, None, 0, Vec::new, || None);
                            let outcome = Outcome::Done { root: None };
                            done.push(DoneItem { id: entry.id, generation: entry.generation, outcome });
                            None
                        }
                    };
                    if let Some(path) = shown.take(&entry) {
                        let source = path.get(destination.len()..).unwrap_or(&[]);
                        let source = source.strip_prefix(b"/").unwrap_or(source).to_vec();
                        watch.tell(Event::Plan { source, destination: path, bytes });
                    }
                }
                if !states.is_empty() {
                    control.send(Message::State(states));
                }
                if !done.is_empty() {
                    control.send(Message::Done(done));
                }
            }
            Ok(Message::DirEnd(dirs)) => {
                let done = dirs.into_iter().map(|dir| {
                    let (id, generation) = (dir.as_file(), haul_core::ids::Generation(0));
                    DoneItem { id, generation, outcome: Outcome::Done { root: None } }
                });
                control.send(Message::Done(done.collect()));
            }
            Ok(Message::Trouble { path, failure }) => tally.fail(watch, path.to_vec(), &failure),
            Ok(Message::End(found)) => {
                totals = Some(found);
                control.send(Message::Complete);
                break Ok(());
            }
            Ok(_) => {}
        }
        if watch.control.stopped() {
            break Err(protocol("interrupted"));
        }
    };
    let own = super::end_report(&Meter::default(), &links.strays, 0, 0);
    if let Err(failure) = &result {
        control.send(Message::Abort(failure.clone()));
    }
    // A dry run is short: what is lost is not joined again.
    let mut lines = Lines::start(Joins::Never, EPOCH, [], 0, Duration::ZERO, Arc::new(|_| {}));
    let lines = Some((&mut lines, Clock::new()));
    let far = exchange_reports(
        &mailbox,
        &mut control,
        lines,
        || false,
        own,
        (None, true),
        |e| Some(Heard::Control(e)),
    );
    let end = match result {
        Ok(()) => SessionEnd::Complete,
        Err(failure) => SessionEnd::Failed(failure),
    };
    debug_assert!(totals.is_some() || end != SessionEnd::Complete);
    Report {
        end,
        tally,
        own,
        far,
        processors: [None; 2],
        resumed: false,
        chosen: Vec::new(),
        unwell: super::nobody_unwell(),
    }
}

#[cfg(test)]
mod tests {
    use haul_core::entry::{Meta, Name, Timestamp};
    use haul_core::ids::{FileId, Generation};

    use super::*;

    /// Goal: a dry run keeps as much of a tree as it shows, and no more.
    /// Method: five thousand directories, each in the one before, none of which ever ends.
    #[test]
    fn memory_does_not_grow_with_the_tree() {
        let mut shown = Shown::new(b"dst");
        let mut paths = Vec::new();
        for n in 1..=5_000 {
            let meta = Meta { mode: 0o755, uid: 0, gid: 0, mtime: Timestamp { secs: 0, nanos: 0 } };
            let name = Name::new(format!("d{n}").as_bytes()).expect("legal");
            let (id, parent, kind) = (FileId(n), DirId(n - 1), EntryKind::Dir);
            let entry = Announced { id, generation: Generation(0), parent, name, meta, kind };
            paths.extend(shown.take(&entry));
        }
        assert_eq!((paths.len(), &paths[2][..]), (SHOWN_MAX, &b"dst/d1/d2/d3"[..]));
        assert!(shown.paths.len() <= SHOWN_MAX + 1, "{} paths are kept", shown.paths.len());
    }
}
