//! Questions and orders of several kinds that are under way together, where each would else wait for the
//! answers to the one before.
//!
//! In: paths. Out: the server's word on each, as each by itself has it.
//! Invariant: nothing is said so that the server was not seen to know, so that what it says is of a path.

use haul_gridftp::command::Command;
use haul_gridftp::reply::Reply;

use crate::control::said;
use crate::session::{bear, mlst};
use crate::store::{Each, Sum};
use crate::times::SetsTimes;
use crate::{Asked, Error, Session};

/// What became of modes and times, and what is there then.
pub struct Set {
    pub modes: Vec<Result<(), Error>>,
    pub times: Vec<Result<(), Error>>,
    pub seen: Vec<Asked>,
}

impl Session {
    /// What is at these paths, and the sums of what the server holds of these files, of this many bytes each.
    ///
    /// # Errors
    /// As [`Session::facts`] and [`Session::sums`].
    pub fn facts_and_sums(
        &mut self,
        paths: &[&[u8]],
        sum: Sum,
        files: &[(&[u8], u64)],
    ) -> Result<(Vec<Asked>, Vec<Result<Vec<u8>, Error>>), Error> {
        if !(self.has_mlsd && self.knows_mlst) {
            return Ok((self.facts_of(paths)?, self.sums(sum, files)?));
        }
        let algorithm = sum.name();
        let looks = paths.iter().map(|path| Command::Path("MLST", path));
        let sums = files.iter().map(|(path, _)| Command::Cksm { algorithm, offset: 0, len: None, path });
        let commands: Vec<Command<'_>> = looks.chain(sums).collect();
        let bytes: u64 = files.iter().fold(0, |all, (_, len)| all.saturating_add(*len));
        let mut replies = self.each(&commands, self.patience_with_sums(bytes))?;
        let sums = replies.split_off(paths.len());
        let (looks, of_sums) = commands.split_at(paths.len());
        let told = of_sums.iter().zip(sums);
        let told = told.map(|(command, reply)| {
            reply.map_or_else(|why| Ok(Err(why)), |reply| self.told_sum(command, reply))
        });
        let told: Each<Vec<u8>> = told.collect();
        Ok((self.seen(paths, looks, replies)?, told?))
    }

    /// Sets modes and times, and looks at other paths behind that. `None`: nothing was said, for it is not
    /// known of the server that it knows these.
    ///
    /// # Errors
    /// The session is over, or as [`Session::facts`].
    pub fn set_and_look(
        &mut self,
        modes: &[(&[u8], u32)],
        times: &[(&[u8], &str)],
        paths: &[&[u8]],
    ) -> Result<Option<Set>, Error> {
        let sets = self.did_modes && self.did_times && matches!(self.sets_times, SetsTimes::Mfmt);
        if !(sets && self.has_mlsd && self.knows_mlst) {
            return Ok(None);
        }
        let of_modes = modes.iter().map(|(path, mode)| Command::SiteChmod { mode: *mode & 0o7777, path });
        let of_times = times.iter().map(|(path, moment)| Command::Mfmt { moment, path });
        let looks = paths.iter().map(|path| Command::Path("MLST", path));
        let commands: Vec<Command<'_>> = of_modes.chain(of_times).chain(looks).collect();
        let mut replies = self.each(&commands, self.control.patience())?;
        let seen = replies.split_off(modes.len() + times.len());
        let (orders, looks) = commands.split_at(modes.len() + times.len());
        let done = orders.iter().zip(replies).map(|(command, reply)| self.is_done(command, reply));
        let mut modes_set: Vec<Result<(), Error>> = done.collect();
        let times_set = modes_set.split_off(modes.len());
        let seen = self.seen(paths, looks, seen)?;
        Ok(Some(Set { modes: modes_set, times: times_set, seen }))
    }

    /// What was said of some looks.
    fn seen(
        &mut self,
        paths: &[&[u8]],
        looks: &[Command<'_>],
        replies: Vec<Result<Reply, Error>>,
    ) -> Result<Vec<Asked>, Error> {
        let replies = replies.into_iter().collect::<Result<Vec<Reply>, Error>>()?;
        if self.sure_of(paths, &replies)? < paths.len() {
            let said = looks.first().map(said).unwrap_or_default();
            return Err(Error::OutOfStep { said, code: 250 });
        }
        let mut answers_len = 0;
        let one = |(command, reply): (&Command<'_>, &Reply)| {
            bear(&mut answers_len, reply)?;
            mlst(&self.control, command, reply)
        };
        looks.iter().zip(&replies).map(one).collect()
    }
}
