//! The gatherer's log: what is put into it, synced and forgotten, and what each of that was for.

use super::stripe::Queued;
use super::{Action, Answer, Appending, File, Gatherer, Record, Seq, Syncing};
use crate::volume::{ClientNo, Epoch, FileNo};

impl<B> Gatherer<B> {
    pub(super) fn append(&mut self, record: Record<B>, appending: Appending) -> Seq {
        let seq = Seq(self.next_seq);
        self.next_seq += 1;
        self.appending.insert(seq, appending);
        self.actions.push_back(Action::Append(seq, record));
        seq
    }

    pub(super) fn sync(&mut self, syncing: Syncing) {
        self.to_sync.push((Seq(self.next_seq), syncing));
        self.begin_sync();
    }

    /// Begins a sync for those whose records are all in the log; one sync at a time.
    pub(super) fn begin_sync(&mut self) {
        let upto = self.appending.keys().next().copied().unwrap_or(Seq(self.next_seq));
        if self.syncing.is_some() || !self.to_sync.iter().any(|(before, _)| *before <= upto) {
            return;
        }
        let to_sync = std::mem::take(&mut self.to_sync);
        let (now, later) = to_sync.into_iter().partition(|(before, _)| *before <= upto);
        self.to_sync = later;
        let now: Vec<(Seq, Syncing)> = now;
        self.syncing = Some(now.into_iter().map(|(_, syncing)| syncing).collect());
        self.actions.push_back(Action::Sync);
    }

    /// The log is to say that the client may have leases: in the next life they are waited for.
    pub(super) fn make_known(&mut self, client: ClientNo) {
        let state = self.clients.get(&client).expect("who asks was heard");
        if !state.is_known && state.noted.is_none() {
            let seq = self.append(Record::Client(client), Appending::Other);
            self.clients.get_mut(&client).expect("it was just there").noted = Some(seq);
            self.sync(Syncing::Known(client));
        }
    }

    /// The log is to say where a file ends.
    pub(super) fn note_end(&mut self, file: FileNo) {
        let end = self.file(file).end;
        let seq = self.append(Record::End { file, end }, Appending::Other);
        self.file(file).noted = Some((end, seq));
    }

    /// A record is in the log, or the disk says no.
    ///
    /// # Panics
    /// It was not to be appended.
    pub fn appended(&mut self, seq: Seq, result: Result<(), i32>) {
        if let Err(errno) = result {
            self.fail(errno);
        }
        self.is_appended(seq, result);
    }

    /// The log had no room for a record with bytes, and has [`Record::Nothing`] in its place: whoever wrote
    /// them hears so, and everything else goes on.
    ///
    /// # Panics
    /// It was not to be appended.
    pub fn refused(&mut self, seq: Seq, errno: i32) {
        self.is_appended(seq, Err(errno));
    }

    fn is_appended(&mut self, seq: Seq, result: Result<(), i32>) {
        let appending = self.appending.remove(&seq).expect("a record is appended once");
        let (file, part) = match appending {
            Appending::Bytes { file, part, .. } | Appending::Append { file, part, .. } => (file, part),
            Appending::Told { client, number } => {
                let told = |()| Answer::Told { counts: true };
                self.answer(client, number, result.map_or_else(Answer::Failed, told));
                return self.begin_sync();
            }
            Appending::Other => return self.begin_sync(),
        };
        let at = part.offset / self.settings.stripe_size;
        let stripe = self.stripe(file, at);
        stripe.appending -= 1;
        if result.is_ok() {
            stripe.cover(part);
            self.grow(file, part.offset + part.len);
            self.changes(file);
        } else {
            self.lower_tail(file);
        }
        match (appending, result) {
            (Appending::Bytes { client, number, .. }, Ok(())) => self.answer(client, number, Answer::Written),
            (Appending::Bytes { client, number, .. }, Err(errno)) => {
                self.answer(client, number, Answer::Failed(errno));
            }
            (Appending::Append { client, .. }, Ok(())) => {
                self.end_append(client, file, Answer::Appended { offset: part.offset });
            }
            (Appending::Append { client, .. }, Err(errno)) => {
                self.end_append(client, file, Answer::Failed(errno));
            }
            (Appending::Told { .. } | Appending::Other, _) => unreachable!("it has no bytes"),
        }
        self.go_on(file, at);
        self.begin_sync();
    }

    /// The next append stands where the file ends, if nothing is on its way that may come before it.
    fn lower_tail(&mut self, file: FileNo) {
        let state = self.file(file);
        if state.stripes.values().all(|stripe| stripe.appending == 0) {
            state.tail = state.end;
        }
    }

    /// The log's sync is over.
    ///
    /// # Panics
    /// None was to be made.
    pub fn synced(&mut self, result: Result<(), i32>) {
        let synced = self.syncing.take().expect("one sync at a time");
        if let Err(errno) = result {
            self.fail(errno);
        }
        for one in synced {
            match (one, result) {
                (Syncing::Client(client, number), Ok(())) => self.answer(client, number, Answer::Durable),
                (Syncing::Client(client, number), Err(errno)) => {
                    self.answer(client, number, Answer::Failed(errno));
                }
                (Syncing::Known(client), Ok(())) => {
                    if let Some(state) = self.clients.get_mut(&client) {
                        state.is_known = true;
                    }
                    let of_it = self.wanted.values().filter(|wanted| wanted.client == client);
                    let stripes: Vec<(FileNo, u64)> =
                        of_it.flat_map(|one| one.stripes.clone().map(|at| (one.file, at))).collect();
                    stripes.into_iter().for_each(|(file, at)| self.go_on(file, at));
                }
                (Syncing::Brought(file, _), Ok(())) if self.gone.contains(&file) => {}
                (Syncing::Brought(file, at), Ok(())) => {
                    self.stripe(file, at).noting -= 1;
                    self.go_on(file, at);
                }
                (Syncing::Reserved { client, file, offset }, Ok(())) => {
                    self.end_append(client, file, Answer::Reserved { offset });
                }
                (Syncing::Reserved { client, file, .. }, Err(errno)) => {
                    self.end_append(client, file, Answer::Failed(errno));
                }
                (Syncing::Cut(file), Ok(())) => self.ask_to_cut(file),
                (Syncing::Gone(file), Ok(())) => self.end_removal(file),
                (Syncing::Untold(file, since), Ok(())) => self.untold_lasts(file, since),
                (Syncing::Looked(looks, answer), Ok(())) => self.is_looked(looks, &answer),
                (Syncing::Looked(looks, _), Err(errno)) => self.is_looked(looks, &Answer::Failed(errno)),
                (Syncing::IsCut(file), Ok(())) => self.end_cut(file),
                (Syncing::Forget(first), Ok(())) => self.actions.push_back(Action::Forget(first)),
                (
                    Syncing::Known(_)
                    | Syncing::Brought(..)
                    | Syncing::Cut(_)
                    | Syncing::IsCut(_)
                    | Syncing::Gone(_)
                    | Syncing::Untold(..)
                    | Syncing::Forget(_),
                    Err(_),
                ) => {}
            }
        }
        self.begin_sync();
    }

    /// The log is not believed any more: nothing is gathered, and nothing leased.
    pub(super) fn fail(&mut self, errno: i32) {
        if self.failed.replace(errno).is_some() {
            return;
        }
        for wanted in std::mem::take(&mut self.wanted).into_values() {
            self.answer(wanted.client, wanted.number, Answer::Failed(errno));
        }
        let files: Vec<FileNo> = self.files.keys().copied().collect();
        for file in files {
            let stripes = self.files.get_mut(&file).expect("it is there").stripes.values_mut();
            let queued: Vec<Queued<B>> =
                stripes.flat_map(|stripe| std::mem::take(&mut stripe.queue)).collect();
            for one in queued {
                match one {
                    Queued::Write { client, number, .. } => {
                        self.answer(client, number, Answer::Failed(errno));
                    }
                    Queued::Append { client, .. } => self.end_append(client, file, Answer::Failed(errno)),
                    Queued::Lease(_) => {}
                }
            }
            self.fail_cuts(file, errno);
        }
    }

    pub(super) fn forget(&mut self) {
        let stripes = self.files.values().flat_map(|file| file.stripes.values());
        let parts = stripes.flat_map(|stripe| stripe.parts.values().map(|part| part.seq));
        // What is on its way may have been replaced since, and is read all the same.
        let pushed = self.pushes.values().flat_map(|push| push.parts.iter().map(|part| part.seq));
        let cuts = self.files.values().filter_map(|file| file.cutting.as_ref()?.record());
        let used = parts.chain(pushed).chain(cuts).chain(self.appending.keys().copied());
        let first = used.min().unwrap_or(Seq(self.next_seq));
        if first.0 < self.forgotten.0 + self.settings.forget_records {
            return;
        }
        self.forgotten = first;
        // What those records said besides bytes is said again.
        let is_old = |state: &File<B>| {
            state.end > 0 && state.noted.is_none_or(|(end, seq)| end != state.end || seq < first)
        };
        let files: Vec<FileNo> =
            self.files.iter().filter(|(_, state)| is_old(state)).map(|(file, _)| *file).collect();
        files.into_iter().for_each(|file| self.note_end(file));
        let cut = self.files.iter().filter_map(|(file, state)| Some((*file, state.last_cut?)));
        let cut: Vec<(FileNo, Epoch)> =
            cut.filter(|(_, (_, seq))| *seq < first).map(|(file, (epoch, _))| (file, epoch)).collect();
        for (file, epoch) in cut {
            let seq = self.append(Record::LastCut { file, epoch }, Appending::Other);
            self.file(file).last_cut = Some((epoch, seq));
        }
        self.note_untold_again(first);
        let known = self.clients.iter().filter(|(_, state)| state.noted.is_some_and(|seq| seq < first));
        let known: Vec<ClientNo> = known.map(|(client, _)| *client).collect();
        for client in known {
            let seq = self.append(Record::Client(client), Appending::Other);
            self.clients.get_mut(&client).expect("it was just there").noted = Some(seq);
        }
        let earlier = self.earlier.iter().filter(|(_, seq)| **seq < first);
        let earlier: Vec<ClientNo> = earlier.map(|(client, _)| *client).collect();
        for client in earlier {
            let seq = self.append(Record::Client(client), Appending::Other);
            self.earlier.insert(client, seq);
        }
        self.sync(Syncing::Forget(first));
    }
}
