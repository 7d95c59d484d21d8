//! A large file that goes on where an earlier attempt broke off, of this run or another.
//!
//! In: what is on record of it. Out: where it goes on, if what stands there is the source's.
//! Invariants: the server is asked now how long it is, and for sums of that, before anything counts; what
//! cannot be gone on with is removed before the file begins anew; where the server does not take a file from
//! its middle, it begins anew and is never tried so again.

use haul_core::ids::FileId;
use haul_core::transfer::op::SinkFile;
use haul_core::wire::{Failure, FailureKind};
use haul_ftp::{Asked, Error, Facts, Kind, Session};

use super::parts::Earlier;
use super::queues::{Gone, Temp, TempState};
use super::sending::{Open, Sending};
use super::standing::{Standing, parts_of, tail_of};
use super::writer::{Writer, is_busy};
use crate::ftp::shown;

/// What is there of a file that is on record.
pub(super) enum Found {
    /// It may be gone on with.
    Stands(Vec<u8>, Standing),
    /// Nothing that is of use; the name that the file has meanwhile, if it is to be that one again: a server
    /// that shows nothing of files before they are whole drops what it has under it.
    Nothing(Option<Vec<u8>>),
}

impl Writer {
    /// What stands at the server of a file, and its name there, if it may be gone on with.
    pub(super) fn take_up(&mut self, file: &SinkFile, path: &[u8]) -> Result<Found, Failure> {
        let common = self.common.clone();
        let to = shown(&common.server, path);
        let Some(earlier) = common.parts.take(file.id, file.size, to, path) else {
            return Ok(Found::Nothing(None));
        };
        self.begins("look", &earlier.temp);
        let standing = match earlier.fits {
            true => self.standing(file.id, &earlier, file.size),
            false => Ok(None),
        };
        let standing = match standing {
            Ok(standing) => standing,
            // It stays on record.
            Err(error) if error.is_passing() => {
                return Err(common.failure(FailureKind::Create, path, &error));
            }
            Err(_) => {
                self.line.close();
                None
            }
        };
        self.remove_others(&earlier.others);
        if let Some(standing) = standing {
            let temp = Temp { path: earlier.temp.clone(), state: TempState::Partial, in_blocks: false };
            common.temps().insert(file.id, temp);
            return Ok(Found::Stands(earlier.temp, standing));
        }
        let gone = self.remove_earlier(file.id, earlier.temp.clone());
        Ok(Found::Nothing(Some(earlier.temp).filter(|_| gone && earlier.in_blocks)))
    }

    /// A temporary that is of no use is removed, now or in the end. True: it is not there.
    fn remove_earlier(&mut self, id: FileId, temp: Vec<u8>) -> bool {
        let asked = self.line.again(|session| {
            let removed = session.remove(&[&temp])?;
            Ok((removed, session.facts(&temp)?))
        });
        let gone = asked.is_ok_and(|(removed, asked)| are_gone(&removed, &asked));
        match gone {
            true => self.common.parts.let_go(id),
            // It stays on record, beside the one that comes.
            false => {
                self.common.parts.cast_off(id);
                self.common.doubt(temp);
            }
        }
        gone
    }

    /// What attempts before that one left is removed, now or in the end.
    fn remove_others(&mut self, others: &[Vec<u8>]) {
        if others.is_empty() {
            return;
        }
        let paths: Vec<&[u8]> = others.iter().map(Vec::as_slice).collect();
        let asked = self.line.again(|session| Ok((session.remove(&paths)?, session.facts_of(&paths)?)));
        let (removed, asked) = asked.unwrap_or_default();
        for (at, other) in others.iter().enumerate() {
            let told = removed.get(at..=at).zip(asked.get(at));
            match told.is_some_and(|(removed, asked)| are_gone(removed, asked)) {
                true => self.common.stays_not(other),
                false => self.common.doubt(other.clone()),
            }
        }
    }

    /// How long it is there, and what proves that it is the source's.
    fn standing(&mut self, id: FileId, earlier: &Earlier, size: u64) -> Result<Option<Standing>, Error> {
        let asked = self.line.facts(&earlier.temp)?;
        let sum = self.common.sum;
        let facts = match asked {
            Asked::Is(facts) => facts,
            // Only in blocks it goes on with what it does not show.
            Asked::Not(_)
                if earlier.in_blocks
                    && sum.is_some()
                    && (1..size).contains(&earlier.safe)
                    && self.common.lanes.connections(id, size).is_some() =>
            {
                return Ok(Some(Standing::by_word(earlier.safe)));
            }
            Asked::Not(_) | Asked::Untold(_) => return Ok(None),
        };
        let is_file = !facts.is_symlink() && matches!(facts.kind, None | Some(Kind::File));
        let Facts { size: Some(len), .. } = facts else { return Ok(None) };
        if !is_file || len == 0 || len > size {
            return Ok(None);
        }
        // What a server without a word for links tells of one is of what it leads to.
        if self.line.again(|session| session.link_at(&earlier.temp, true))?.is_some()
            && !haul_mutant::removed("ftp-parts-are-no-links")
        {
            return Ok(None);
        }
        if let Some(sum) = sum {
            let parts = parts_of(len);
            let sums = self.line.again_of_each(parts.len(), |session, open| {
                let some: Vec<(u64, u64)> = open.iter().map(|at| parts[*at]).collect();
                session.part_sums(sum, &earlier.temp, &some)
            })?;
            // Of a server that makes no sums of parts only trust is left.
            if let Some(sums) = sums.into_iter().map(Result::ok).collect::<Option<Vec<_>>>() {
                return Ok(Some(Standing::by_sums(sum, parts, sums)));
            }
        }
        // Where blocks came in any order, its length says nothing.
        let may = self.common.parts.can().trusts && !earlier.in_blocks;
        let Some((from, tail_len)) = tail_of(len).filter(|_| may) else { return Ok(None) };
        let read = self.line.open().and_then(|session| tail(session, &earlier.temp, from, tail_len));
        // The offset must not be taken for that of the next file.
        self.line.close();
        Ok(read?.map(|tail| Standing::by_tail(from, tail)))
    }

    /// What stands there is something else, and what came of the source is not here any more.
    pub(super) fn stands_otherwise(&mut self, id: FileId, standing: &Standing, path: &[u8]) -> Gone {
        let compared = standing.compared(0);
        self.common.parts.count(id, compared, 0);
        self.common.parts.begins_anew(id);
        let why = "what an earlier attempt left of it at the server is not what the source has: it is sent from its beginning";
        self.common.again.lost(id, compared.0, why);
        Gone { failure: self.common.say(FailureKind::Network, path, why), again: true }
    }

    /// Goes on with a file behind its first `at` bytes, which stand there; where none of them do, from its
    /// beginning, under another name.
    pub(super) fn go_on(
        &mut self,
        file: &SinkFile,
        path: &[u8],
        open: &mut Open,
        at: u64,
    ) -> Result<(), Gone> {
        let common = self.common.clone();
        if let Some(standing) = open.standing.take() {
            common.parts.count(file.id, standing.compared(at), at);
            open.tail = standing.into_tail(at);
        }
        if at == file.size {
            return Ok(());
        }
        if at == 0 {
            self.remove_earlier(file.id, std::mem::take(&mut open.temp));
            let (temp, sending) = self.begin_anew(file, path, None)?;
            (open.temp, open.sending) = (temp, Some(sending));
            return Ok(());
        }
        let lanes = common.lanes.clone();
        loop {
            let connections = lanes.connections(file.id, file.size - at);
            if connections.is_some() {
                common.set_in_blocks(file.id);
            }
            common.parts.begins(file.id, &open.temp, connections.is_some());
            let is_believed = open.tail.is_some();
            let begin = |session: &mut Session| {
                // A server makes zeros of what is missing before the byte that it is told to go on at.
                let stands = !is_believed
                    || matches!(session.facts(&open.temp)?, Asked::Is(Facts { size: Some(len), .. }) if len >= at);
                match stands || haul_mutant::removed("ftp-what-is-believed-is-looked-at") {
                    true => Sending::begin(session, &lanes, (&open.temp, at, file.size), connections),
                    false => Err(Error::Misfit("what stood there is not there any more".into())),
                }
            };
            let error = match self.line.open().and_then(begin) {
                Ok(sending) => {
                    common.parts.begun(file.id);
                    common.again.begins(file.id, at);
                    open.sending = Some(sending);
                    return Ok(());
                }
                Err(error) => error,
            };
            // It stood there before.
            common.parts.begun(file.id);
            if connections.is_some() && !error.is_no_room() {
                self.lose(file.id, &open.temp, &error);
                continue;
            }
            self.see(&error);
            if error.is_no_room() || error.is_passing() {
                return Err(self.gone((file.id, path), (&error, at), &open.temp));
            }
            common.parts.begins_anew(file.id);
            let why =
                format!("the server does not go on with it, and it is sent from its beginning: {error}");
            return Err(Gone { failure: common.say(FailureKind::Network, path, &why), again: true });
        }
    }

    /// What is believed still ends as it did, now that the file is whole: it may have gone between the look
    /// and the server's word that it goes on, and zeros be there.
    pub(super) fn look_at_tail(
        &mut self,
        id: FileId,
        path: &[u8],
        temp: &[u8],
        (from, bytes): (u64, Vec<u8>),
    ) -> Result<(), Gone> {
        let len = bytes.len() as u64;
        let read = self.line.again(|session| tail(session, temp, from, len));
        // The offset must not be taken for that of the next file.
        self.line.close();
        let why = match read {
            Ok(Some(read)) if read == bytes || haul_mutant::removed("ftp-what-is-believed-stays") => {
                return Ok(());
            }
            Ok(_) => "what stood there of it was another when the server went on with it: it is sent from its beginning".into(),
            Err(error) => error.to_string(),
        };
        self.common.parts.begins_anew(id);
        Err(Gone { failure: self.common.say(FailureKind::Network, path, &why), again: true })
    }

    /// What is left of a file that was given up, if a later attempt goes on with it; else it is to be
    /// removed.
    pub(super) fn leave_part(&mut self, id: FileId, temp: &[u8]) -> bool {
        if !self.common.parts.keeps(id, temp) {
            return false;
        }
        self.begins("look", temp);
        let asked = match self.common.is_silent() {
            true => Ok(None),
            false => self.line.open().and_then(|session| session.facts(temp)).map(Some),
        };
        // What it said of blocks it has (111).
        let told = || self.common.parts.hidden(id).filter(|len| *len > 0);
        let len = match asked {
            // It may be that the server shows it to nobody before it is whole.
            Ok(Some(Asked::Not(_))) => match told() {
                Some(len) => Some(len),
                // Nothing is known of it: it goes, for nobody would see that it is there.
                None => return false,
            },
            Ok(Some(Asked::Is(facts))) => facts.size.or_else(told),
            Ok(_) => told(),
            Err(error) => {
                let told = told();
                self.line.close();
                self.common.note_silence(&error);
                told
            }
        };
        self.common.parts.leave(id, len);
        true
    }

    /// All else is over: what files that failed left there goes, as far as the server is there.
    pub(super) fn remove_left(&mut self) {
        for (names, record) in self.common.parts.take_left() {
            let paths: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
            self.begins("remove", paths.last().copied().unwrap_or_default());
            let asked = self.line.again(|session| Ok((session.remove(&paths)?, session.facts_of(&paths)?)));
            if asked.is_ok_and(|(removed, asked)| asked.iter().all(|asked| are_gone(&removed, asked))) {
                record.remove();
            }
        }
    }
}

/// What was to be removed is not there: not seen, and not merely shown to nobody while somebody is at it.
fn are_gone(removed: &[Result<(), Error>], asked: &Asked) -> bool {
    matches!(asked, Asked::Not(_)) && removed.iter().all(|one| !one.as_ref().is_err_and(is_busy))
}

/// Reads so many bytes of a file from an offset on. `None`: it has fewer.
fn tail(session: &mut Session, temp: &[u8], from: u64, len: u64) -> Result<Option<Vec<u8>>, Error> {
    let mut tail = vec![0; usize::try_from(len).unwrap_or(0)];
    let mut incoming = session.begin(temp, from)?;
    let read = incoming.fill(&mut tail)?;
    session.give_up(incoming)?;
    Ok((read == tail.len()).then_some(tail))
}
