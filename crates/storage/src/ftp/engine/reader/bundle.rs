//! Small files that are read together, one behind the other, into one buffer.
//!
//! In: files, and what of them came in a line already. Out: what became of each, their bytes side by side.
//! Invariant: a file counts only by what is told of it behind the last byte of all.

use std::collections::HashMap;
use std::time::Instant;

use haul_core::ids::FileId;
use haul_core::reliability::Step;
use haul_core::stage::Stage;
use haul_core::transfer::op::{BundleFile, BundleOk, Look, SourceDone, SourceOp};
use haul_core::wire::{Failure, FailureKind};
use haul_ftp::{Asked, Error};

use super::Reader;
use crate::SourceCompletion;
use crate::ftp::engine::came::Came;
use crate::ftp::engine::queues::refuse;
use crate::ftp::line::Each;
use crate::ftp::lines::Again;
use crate::ftp::names::{Told, same_facts};
use crate::ftp::session::Tries;
use crate::ftp::untold;
use haul_base::buffer::Buffer;
use haul_base::digest;

impl Reader {
    /// Reads small files whole, and looks at each again after all of them were read.
    pub(in crate::ftp::engine) fn read_bundle(
        &mut self,
        files: Vec<BundleFile>,
        buffer: Option<Buffer>,
        came: Came,
    ) -> SourceCompletion {
        let Some(mut buffer) = buffer else {
            let text = "internal error: a bundle without a buffer";
            let failure = Failure { kind: FailureKind::Read, errno: 0, text: text.into() };
            return SourceCompletion { done: refuse(SourceOp::ReadBundle { files }, &failure), buffer: None };
        };
        let mut at = 0;
        let Came { files: mut here, facts: mut asked } = came;
        // Where the payload of each lies, and what was told of it.
        let mut read: Vec<(BundleFile, Result<(usize, Told), Failure>)> = Vec::new();
        for (n, file) in files.into_iter().enumerate() {
            self.begins("read", file.id);
            let len = file.size as usize;
            let room = at..at + len;
            at += len;
            let is_here = std::mem::take(here.get_mut(n).unwrap_or(&mut false));
            if !is_here {
                asked = None;
            }
            let begun = Instant::now();
            let result = if is_here {
                Ok(())
            } else {
                // Also of one without a byte: what a server says of a length is held against what it gives.
                let room = &mut buffer.as_mut_slice()[room.clone()];
                self.fill_again((file.id, file.generation), (0, true), room)
            };
            // As it is known where it came from.
            let result = result.and_then(|()| Ok((room.start, self.known(file.id)?)));
            if result.is_ok() && !is_here {
                self.common.meter.add_busy(Stage::SourceStorage, begun.elapsed());
            }
            if self.left_out {
                // All of it is read by somebody else.
                let failure = self.common.say(0, FailureKind::Read, b"", "the session is over");
                let (files, buffer) = (vec![file], Some(buffer));
                return SourceCompletion { done: refuse(SourceOp::ReadBundle { files }, &failure), buffer };
            }
            read.push((file, result));
        }
        let mut now = match asked {
            // One for each file, also of what is not known any more.
            Some(asked) => {
                let each = read.iter().zip(asked);
                each.map(|((file, _), asked)| (file.id, Ok(Some(asked)))).collect()
            }
            None => self.look_at(&read),
        };
        let (mut items, mut end) = (Vec::with_capacity(read.len()), 0);
        for (file, result) in read {
            let result = result.and_then(|(start, Told { path, facts, site })| {
                let now = match now.remove(&file.id) {
                    Some(Ok(Some(Asked::Is(now)))) => now,
                    Some(Ok(Some(asked))) => {
                        return Err(untold(self.common.sites.server(site), &path, &asked));
                    }
                    // It comes from another replica.
                    Some(Ok(None)) => return Ok(BundleOk { root: [0; 32], look: Look::Changed }),
                    Some(Err(failure)) => return Err(failure),
                    None => return Err(self.common.say(site, FailureKind::Read, &path, "no answer")),
                };
                if !same_facts(&facts, &now) {
                    return Ok(BundleOk { root: [0; 32], look: Look::Changed });
                }
                // What failed or changed leaves no gap.
                let len = file.size as usize;
                buffer.as_mut_slice().copy_within(start..start + len, end);
                let (common, payload) = (&self.common, &buffer.as_slice()[end..end + len]);
                let root = common.meter.busy(Stage::SourceHost, || digest::root(common.kind, payload));
                end += len;
                Ok(BundleOk { root, look: Look::Same })
            });
            items.push((file, result));
        }
        // A buffer is as long as what is in it; one that is to be filled again stays as long as it was.
        if !self.left_out {
            buffer.truncate(end);
        }
        let done = SourceDone::ReadBundle { buffer: buffer.id(), items };
        SourceCompletion { done, buffer: Some(buffer) }
    }

    /// What is told of small files now, behind all that was read of them, asked together of each server that
    /// gave some. `None`: from now on that file comes from another one.
    fn look_at(
        &mut self,
        read: &[(BundleFile, Result<(usize, Told), Failure>)],
    ) -> HashMap<FileId, Result<Option<Asked>, Failure>> {
        let common = self.common.clone();
        let mut all = HashMap::new();
        for site in 0..common.sites.all.len() {
            let there = |(file, result): &'_ (BundleFile, Result<(usize, Told), Failure>)| {
                let told = &result.as_ref().ok()?.1;
                (told.site == site).then(|| (file.id, told.path.clone()))
            };
            let files: Vec<(FileId, Vec<u8>)> = read.iter().filter_map(there).collect();
            let Some((_, first)) = files.first() else { continue };
            let paths: Vec<&[u8]> = files.iter().map(|(_, path)| path.as_slice()).collect();
            let mut tries = Tries::new(Step::File, &common.sites, site);
            let over = |error: &Error, lost| common.leaves(self.index, error, lost);
            let wait = |pause| common.wait(pause);
            // What is answered for one is not asked again because of another.
            let mut answers = Each::new(files.len());
            let ended = self.lines.again(&mut tries, first, (&over, &wait), |session| {
                answers.ask(|open| {
                    let asked: Vec<&[u8]> = open.iter().map(|at| paths[*at]).collect();
                    session.facts_of_each(&asked)
                })
            });
            let error = match ended {
                Again::Failed(error) if !error.is_open() || files.len() == 1 => {
                    self.left_out |= over(&error, None);
                    let failure = common.failure(site, FailureKind::Read, first, &error);
                    let _ = common.given_up(&tries, failure);
                    Some(error)
                }
                Again::Done(()) | Again::Moves(..) | Again::Failed(_) => None,
            };
            for ((id, path), answer) in files.iter().zip(answers.each()) {
                let told = match (answer, &error) {
                    (Some(Ok(asked)), _) => Ok(Some(asked)),
                    (Some(Err(ref error)), _) if !error.is_open() => {
                        Err(common.failure(site, FailureKind::Read, path, error))
                    }
                    (_, Some(error)) => Err(common.failure(site, FailureKind::Read, path, error)),
                    // Each by itself: one may be there and another not, or be spoken of later.
                    (_, None) => self.facts(*id).map(|facts| facts.map(|(_, now)| Asked::Is(now))),
                };
                all.insert(*id, told);
            }
        }
        all
    }
}
