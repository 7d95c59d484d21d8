//! Appends: the gatherer says where they stand.
//!
//! Invariants: an append stands behind all that was gathered, appended or reserved before, and behind each
//! length that was told; one that is asked for again in the same life of the gatherer is done once.
//!
//! One that lies in a stripe goes into the log like any small write. For one that does not, the file grows,
//! which lasts before it is answered, and the client writes what is reserved as it writes anything: until
//! then that is zeros, and so it stays if its client goes away. A cut of the file gives up what is reserved
//! and not written.

use super::stripe::Queued;
use super::{Answer, Appending, Gatherer, Part, Record, Seq, Syncing};
use crate::volume::{ClientNo, FileNo, RequestNo};

/// One of a client's appends; asked for again, it has the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppendNo(pub u64);

/// `EFBIG`: files do not grow further.
const TOO_LARGE: i32 = 27;

#[derive(Debug)]
enum State {
    /// Nothing was done yet.
    Waits,
    UnderWay,
    Done(Answer),
}

/// A client's last append to a file: it asks for one at a time.
#[derive(Debug)]
pub(super) struct LastAppend {
    number: AppendNo,
    /// What its answer is called.
    asked: RequestNo,
    state: State,
}

impl<B> Gatherer<B> {
    pub(super) fn take_append(
        &mut self,
        (client, asked): (ClientNo, RequestNo),
        file: FileNo,
        number: AppendNo,
        len: u64,
        bytes: B,
    ) {
        if let Some(last) = self.appends.get_mut(&(file, client)).filter(|last| last.number == number) {
            last.asked = asked;
            if let State::Done(answer) = &last.state {
                let answer = answer.clone();
                self.answer(client, asked, answer);
            }
            return;
        }
        self.appends.insert((file, client), LastAppend { number, asked, state: State::Waits });
        self.place_append(client, file, len, bytes);
    }

    /// Has an append wait in the stripe where it would stand now, or reserves room for it.
    fn place_append(&mut self, client: ClientNo, file: FileNo, len: u64, bytes: B) {
        let size = self.settings.stripe_size;
        let tail = self.file(file).tail;
        let Some(end) = tail.checked_add(len) else {
            return self.end_append(client, file, Answer::Failed(TOO_LARGE));
        };
        if len == 0 {
            return self.end_append(client, file, Answer::Appended { offset: tail });
        }
        if tail % size + len <= size {
            self.stripe(file, tail / size).queue.push_back(Queued::Append { client, len, bytes });
            return self.go_on(file, tail / size);
        }
        self.is_under_way(client, file);
        self.note_untold(file);
        self.grow(file, end);
        self.changes(file);
        self.note_end(file);
        self.sync(Syncing::Reserved { client, file, offset: tail });
    }

    /// An append is first in a stripe that nobody has a lease on: it stands at the file's end, if that is
    /// still here.
    pub(super) fn do_append(&mut self, client: ClientNo, (file, at): (FileNo, u64), len: u64, bytes: B) {
        let size = self.settings.stripe_size;
        let offset = self.file(file).tail;
        if offset / size != at || offset % size + len > size {
            return self.place_append(client, file, len, bytes);
        }
        self.is_under_way(client, file);
        self.note_untold(file);
        self.file(file).tail = offset + len;
        self.stripe(file, at).appending += 1;
        let part = Part { offset, len, seq: Seq(self.next_seq), from: 0 };
        self.append(Record::Bytes { file, offset, len, bytes }, Appending::Append { client, file, part });
    }

    fn is_under_way(&mut self, client: ClientNo, file: FileNo) {
        if let Some(last) = self.appends.get_mut(&(file, client)) {
            last.state = State::UnderWay;
        }
    }

    pub(super) fn end_append(&mut self, client: ClientNo, file: FileNo, answer: Answer) {
        let Some(last) = self.appends.get_mut(&(file, client)) else { return };
        let asked = last.asked;
        match answer {
            Answer::Failed(_) | Answer::Gone => _ = self.appends.remove(&(file, client)),
            _ => last.state = State::Done(answer.clone()),
        }
        self.answer(client, asked, answer);
    }

    /// What waits of a client's appends was taken out of its stripe.
    pub(super) fn leave_append(&mut self, client: ClientNo, file: FileNo) {
        let last = self.appends.get(&(file, client));
        if last.is_some_and(|last| matches!(last.state, State::Waits)) {
            self.appends.remove(&(file, client));
        }
    }
}
