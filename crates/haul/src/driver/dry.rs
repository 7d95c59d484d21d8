//! The sink of a dry run: it says where entries would go and makes nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::unbounded;
use haul_core::entry::EntryKind;
use haul_core::ids::DirId;
use haul_core::transfer::{Ended, SessionEnd};
use haul_core::wire::{DoneItem, FileState, Message, Outcome};

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

/// Runs the sink end of a dry run: every entry is answered as if it were there already.
///
/// `destination` is what the paths shown begin with.
pub(crate) fn run(links: Links, destination: &[u8], memory: u64, watch: &Watch) -> Report {
    let (sender, mailbox) = unbounded();
    let post: Post<ControlEvent> = Arc::new(move |event| drop(sender.send(event)));
    let mut control = match ControlStream::spawn(links.control, EPOCH, post) {
        Ok(control) => control,
        Err(e) => return Report::failed(protocol(e.to_string())),
    };
    let mut tally = Tally::default();
    let mut paths: HashMap<DirId, Vec<u8>> = HashMap::from([(DirId::ROOT, destination.to_vec())]);
    let mut shown = 0;
    let ours = hello(links.session, links.protection, memory, links.streams);
    control.send(Message::Hello(ours.clone()));
    let mut totals = None;
    let result = loop {
        let step = expect(&mailbox, &control, |e| Some(Heard::Control(e)), |message| Ok(Some(message)));
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
                    let parent = paths.get(&entry.parent).map_or(&[][..], |path| path);
                    let path = join(parent, &entry.name);
                    let bytes = match &entry.kind {
                        EntryKind::File { fingerprint, .. } => {
                            states.push((entry.id, entry.generation, FileState::Skipped));
                            tally.count(watch, Kind::File, &Ended::Copied, None, fingerprint.size, Vec::new);
                            Some(fingerprint.size)
                        }
                        EntryKind::Dir => {
                            tally.count(watch, Kind::Dir, &Ended::Copied, None, 0, Vec::new);
                            paths.insert(entry.id.as_dir(), path.clone());
                            None
                        }
                        EntryKind::Symlink { .. } => {
                            tally.count(watch, Kind::Symlink, &Ended::Copied, None, 0, Vec::new);
                            let outcome = Outcome::Done { root: None };
                            done.push(DoneItem { id: entry.id, generation: entry.generation, outcome });
                            None
                        }
                    };
                    if shown < SHOWN_MAX {
                        shown += 1;
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
                    paths.remove(&dir);
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
    Report { end, tally, own, far, resumed: false, chosen: Vec::new(), unwell: super::nobody_unwell() }
}
