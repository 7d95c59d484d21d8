//! Completions of the source's storage engine.
//!
//! In: what was read, looked at, hashed, compared or refreshed. Out: frames that wait for a stream; the next
//! step of the file.
//! Invariants: what comes back for an old generation changes no file; every buffer that came is put into a
//! frame or freed, and what it and its credit counted goes with it.
//! Left out: what a look means for the file (`seal`).

use super::file::SourcePhase;
use super::read::Ready;
use super::{Source, SourceAction};
use crate::digest::subtrees;
use crate::ids::{BufferId, FileId, Generation, SinkTarget, Time};
use crate::transfer::op::{BundleFile, Look, SourceDone};
use crate::wire::{DataEntry, DataHeader, Failure, FailureKind, credit_cost};

impl Source {
    /// A completion of the storage engine.
    pub fn handle_done(&mut self, done: SourceDone, now: Time) {
        self.now = self.now.max(now);
        match done {
            SourceDone::Gone { failure } => self.handle_gone(failure),
            SourceDone::Map { id, generation, result } => self.handle_mapped(id, generation, result),
            SourceDone::Read { id, generation, offset, len, target, service, result } => {
                self.reads -= 1;
                match service {
                    None => self.plan.schedule.not_asked(target, self.now),
                    Some(service) if result.is_ok() => {
                        self.plan.schedule.done(target, len.into(), service, self.now);
                    }
                    Some(_) => self.plan.schedule.failed(target, self.now),
                }
                let cost = credit_cost(u64::from(len));
                let ahead = self.end_spilling((id, generation, Some(offset)), cost);
                let granted = ahead.is_none();
                let sink_target = ahead.unwrap_or_else(|| self.sink_target_of_read((id, generation, offset)));
                let current = self.files.get_mut(&id).filter(|f| f.generation == generation);
                if let Some(file) = current {
                    file.reads -= 1;
                    match result {
                        Ok(ok) if file.phase == SourcePhase::Sending && !self.stopping => {
                            let tail = offset + u64::from(len) == file.size();
                            let root = offset == 0 && tail;
                            let whole = root.then_some((0, file.size()));
                            let parts = subtrees(offset, u64::from(len), tail).filter(|_| !root);
                            let mut differs = false;
                            for ((start, part), cv) in whole.into_iter().chain(parts).zip(&ok.cvs) {
                                differs |= !file.take_reading(start, part, *cv);
                            }
                            file.piece_done(offset);
                            let entry = DataEntry {
                                id,
                                generation,
                                offset,
                                len,
                                root,
                                hole: false,
                                tail,
                                sealed: false,
                                pass: file.pass,
                                digest: self.config.agreed.digest,
                                cvs: ok.cvs,
                            };
                            let header = DataHeader { sink_target, entries: vec![entry] };
                            let last = file.is_read() && !differs;
                            let buffer = Some(ok.buffer);
                            self.land(Ready { header, buffer, cost, held: cost, sink_target }, granted);
                            if last {
                                self.look(id);
                            }
                            if differs {
                                self.changed(id, None);
                            }
                            return;
                        }
                        Ok(ok) => self.actions.push_back(SourceAction::FreeBuffer(ok.buffer)),
                        Err(failure) if failure.kind == FailureKind::Changed => {
                            self.changed(id, Some(failure))
                        }
                        Err(failure) => self.fail_file(id, failure),
                    }
                } else if let Ok(ok) = result {
                    self.actions.push_back(SourceAction::FreeBuffer(ok.buffer));
                }
                self.buffers_used -= cost;
                if granted {
                    self.credit_used -= cost;
                    self.give_back(sink_target, cost);
                }
            }
            SourceDone::Locate { files } => self.handle_located(files),
            SourceDone::ReadBundle { buffer, items } => self.handle_bundle(buffer, items, now),
            SourceDone::Look { id, generation, result } => {
                if !self.checked(id, generation) || !self.is_in(id, generation, SourcePhase::Looking) {
                    return;
                }
                match result {
                    Ok(look) => self.handle_look(id, look, now),
                    Err(failure) => self.fail_file(id, failure),
                }
            }
            SourceDone::HashFile { id, generation, result } => {
                if !self.checked(id, generation) || !self.is_in(id, generation, SourcePhase::Hashing) {
                    return;
                }
                match result {
                    Ok(all) => self.handle_hashed(id, &all),
                    Err(failure) if failure.kind == FailureKind::Changed => self.look_anew(id, failure),
                    Err(failure) => self.fail_file(id, failure),
                }
            }
            SourceDone::Verify { id, generation, result } => {
                if !self.is_in(id, generation, SourcePhase::Verifying) {
                    return;
                }
                match result {
                    Ok(true) => self.take_verified(id),
                    // Same size and mtime, other content.
                    Ok(false) => self.begin_afresh(id),
                    Err(failure) => self.fail_file(id, failure),
                }
            }
            SourceDone::Metadata { id, generation, values } => {
                if self.is_in(id, generation, SourcePhase::Refreshing) {
                    self.metadata.set_anew(id, values);
                }
            }
            SourceDone::Another { id, generation } => {
                if self.is_in(id, generation, SourcePhase::Refreshing) {
                    self.leave_names(id);
                }
            }
            SourceDone::Refresh { id, generation, result } => {
                if !self.is_in(id, generation, SourcePhase::Refreshing) {
                    return;
                }
                match result {
                    Ok((fingerprint, meta, settle)) => {
                        self.announce_again(id, fingerprint, meta, now.after(settle));
                    }
                    Err(failure) => self.fail_file(id, failure),
                }
            }
        }
    }

    fn is_in(&self, id: FileId, generation: Generation, phase: SourcePhase) -> bool {
        self.files.get(&id).is_some_and(|f| f.generation == generation && f.phase == phase)
    }

    fn handle_bundle(
        &mut self,
        buffer: BufferId,
        items: Vec<(BundleFile, Result<crate::transfer::op::BundleOk, Failure>)>,
        now: Time,
    ) {
        self.reads -= 1;
        let asked: u64 = items.iter().map(|(file, _)| u64::from(file.size)).sum();
        let first = items.first().map(|(file, _)| (file.id, file.generation, None));
        let mut entries = Vec::with_capacity(items.len());
        for (BundleFile { id, generation, size }, result) in items {
            let sending = self.is_in(id, generation, SourcePhase::Sending);
            match result {
                // Its payload lies in the buffer, so it must be in the frame: the sink drops what it does
                // not want.
                Ok(ok) if ok.look.has_payload() => {
                    let (mut pass, mut differs) = (0, false);
                    if let Some(file) = self.files.get_mut(&id).filter(|_| sending) {
                        file.reads -= 1;
                        pass = file.pass;
                        differs = !file.take_reading(0, size.into(), ok.root);
                    }
                    entries.push(DataEntry {
                        id,
                        generation,
                        offset: 0,
                        len: size,
                        root: true,
                        hole: false,
                        tail: true,
                        sealed: sending && ok.look == Look::Same && !differs,
                        pass,
                        digest: self.config.agreed.digest,
                        cvs: vec![ok.root],
                    });
                    if differs {
                        self.changed(id, None);
                    } else if let Some(file) = self.files.get_mut(&id).filter(|_| sending) {
                        if ok.look == Look::Same {
                            file.phase = SourcePhase::Sealed;
                            self.unsealed -= 1;
                        } else {
                            file.phase = SourcePhase::Looking;
                            self.handle_look(id, ok.look, now);
                        }
                    }
                }
                Ok(ok) if sending && ok.look == Look::Longer => self.is_longer(id),
                Ok(_) if sending => self.changed(id, None),
                Err(failure) if sending && failure.kind == FailureKind::Changed => {
                    self.changed(id, Some(failure))
                }
                Err(failure) if sending => self.fail_file(id, failure),
                Ok(_) | Err(_) => {}
            }
        }
        // The frame may be shorter than what was asked: its credit is too, its buffer is not.
        let asked_cost = credit_cost(asked);
        let granted = first.is_none_or(|key| self.end_spilling(key, asked_cost).is_none());
        if entries.is_empty() || self.stopping {
            self.buffers_used -= asked_cost;
            self.credit_used -= if granted { asked_cost } else { 0 };
            self.actions.push_back(SourceAction::FreeBuffer(buffer));
            return;
        }
        let header = DataHeader { sink_target: SinkTarget::ANY, entries };
        let cost = credit_cost(header.payload_len());
        self.credit_used -= if granted { asked_cost - cost } else { 0 };
        let sink_target = SinkTarget::ANY;
        self.land(Ready { header, buffer: Some(buffer), cost, held: asked_cost, sink_target }, granted);
    }
}
