//! A session asks about the parts of large files, for itself or for another one (`summed`).
//!
//! In: the sums of what was sent. Out: whether the server has that.

use std::time::{Duration, Instant};

use haul_ftp::{Error, Sum};

use super::queues::Work;
use super::summed::{Compared, Summed, helpers};
use super::sums::Sums;
use super::writer::Writer;

/// So long the others are waited for at least.
const WAIT_MIN: Duration = Duration::from_secs(2);

impl Writer {
    /// Asks about parts of another session's file that nobody else asks about: once each, over a session that
    /// is open.
    pub(super) fn help(&mut self, summed: &Summed) {
        let Some(sum) = self.common.sum else { return };
        self.begins("sum", summed.temp());
        while self.line.is_open()
            && let Some(asking) = summed.begin()
        {
            let parts = [summed.part(asking.at)];
            let told = self.line.open().and_then(|session| session.part_sums(sum, summed.temp(), &parts));
            let result = told.and_then(the_one);
            let failed = result.as_ref().err().map(Error::ends_session);
            asking.tell(result);
            if failed == Some(true) {
                self.line.close();
            }
            if failed.is_some() {
                // Whoever wants to know finds out what it is.
                return;
            }
        }
    }

    /// Asks about parts of its own file that nobody else asks about; how long the longest one took.
    fn ask_own(&mut self, sum: Sum, summed: &Summed) -> Duration {
        let (mut longest, mut refused) = (Duration::ZERO, 0);
        while let Some(asking) = summed.begin() {
            let begun = Instant::now();
            let result = self.ask_sum(sum, summed, asking.at);
            longest = longest.max(begun.elapsed());
            let failed = result.as_ref().err().map(Error::is_unknown);
            asking.tell(result);
            // What a server does not know is told of two parts, whoever else asks.
            refused += u32::from(failed == Some(true));
            if failed == Some(false) || refused == 2 {
                break;
            }
        }
        longest
    }

    fn ask_sum(&mut self, sum: Sum, summed: &Summed, at: usize) -> Result<Vec<u8>, Error> {
        self.begins("sum", summed.temp());
        let parts = [summed.part(at)];
        self.line.again(|session| session.part_sums(sum, summed.temp(), &parts).and_then(the_one))
    }

    /// Whether the server has of a file of so many bytes what was sent of it.
    ///
    /// # Errors
    /// It does not say.
    pub(super) fn compare_parts(&mut self, temp: &[u8], size: u64, own: &Sums) -> Result<Compared, Error> {
        let Some(sum) = self.common.sum else { return Ok(Compared::Unknown) };
        let parts: Vec<(u64, u64)> = own.parts(size).map(|(part, _)| part).collect();
        let others = helpers(parts.len());
        let summed = Summed::new(temp, parts);
        {
            let mut queues = self.common.lock();
            (0..others).for_each(|_| queues.common.push_back(Work::Sums(summed.clone())));
        }
        self.common.ready.notify_all();
        let took = self.ask_own(sum, &summed);
        // Who takes longer may never answer, and this session can ask by itself.
        let mut sums = summed.finish(WAIT_MIN.max(2 * took));
        for (at, told) in sums.iter_mut().enumerate() {
            // Of what another session was not told this one asks.
            if !matches!(told, Some(Ok(_))) {
                match self.ask_sum(sum, &summed, at) {
                    Err(error) if error.is_unknown() => return Ok(Compared::Unknown),
                    asked => *told = Some(Ok(asked?)),
                }
            }
        }
        let alike =
            own.parts(size).zip(&sums).all(|((_, own), told)| matches!(told, Some(Ok(told)) if told == own));
        Ok(if alike { Compared::Alike } else { Compared::Other })
    }

    /// What the comparison of a file says of the server. True: it may be that it makes no sums of parts.
    pub(super) fn note_compared(&self, compared: &Compared) -> bool {
        match compared {
            Compared::Alike => {
                self.common.in_parts.worked();
                false
            }
            Compared::Other | Compared::Unknown => self.common.in_parts.failed(),
        }
    }
}

pub(super) fn the_one(told: Vec<Result<Vec<u8>, Error>>) -> Result<Vec<u8>, Error> {
    let none = Error::Broken { doing: "asking for a sum", why: "nothing was said" };
    told.into_iter().next().unwrap_or(Err(none))
}
