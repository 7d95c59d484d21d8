//! What the thread that decides does about disks that refuse something: [`Care`](super::Care) knows which.

use std::time::{Duration, Instant};

use haul_core::volume::wire::{Ill, Illness};
use haul_core::volume::{FileNo, ServerNo};
use rustix::io::Errno;

use super::{Brain, Push, in_words};

/// Who has no connection to another server for so long says so: one that was started is reached before.
const PARTED_FOR: Duration = Duration::from_secs(5);

impl Brain {
    /// A push goes to its server, unless that refuses it.
    pub(super) fn begin_push(&mut self, push: Push) {
        if let Err(errno) = self.care.begins(&push) {
            return self.gatherer.push_refused(push.push, errno);
        }
        let Push { push, server, file, epoch, parts } = push;
        let begins = self.tasks.push(push, server, file, epoch, parts);
        self.begin(begins);
    }

    /// What was refused is tried again.
    pub(super) fn look_after_refused(&mut self, now: Instant) {
        for whose in self.care.due(now) {
            let is_its = |file: FileNo, stripe| {
                self.striping.server(file, stripe) == whose.0 && whose.1.is_none_or(|one| one == file)
            };
            match self.gatherer.oldest(is_its) {
                Some((file, stripe)) => self.gatherer.push_stripe(file, stripe),
                None => self.care.is_done(whose),
            }
        }
    }

    /// Visitors are told of what disks do not take.
    pub(super) fn tell(&mut self, now: Instant) {
        self.told = now;
        let since = |at| now.saturating_duration_since(at);
        let own = [(Illness::Log, self.log_failed.or(self.log_full)), (Illness::Stripes, self.disk_failed)];
        let own = own
            .into_iter()
            .filter_map(|(what, why)| why.map(|(errno, at)| Ill { what, errno, since: since(at) }));
        let waits = match self.care.is_empty() {
            true => Vec::new(),
            false => self.ills(now),
        };
        let errno = Errno::HOSTUNREACH.raw_os_error();
        let ill =
            |(server, at): (&ServerNo, &Instant)| {
                (since(*at) >= PARTED_FOR && !haul_mutant::removed("volume-parted-servers-say-so"))
                    .then(|| Ill { what: Illness::Parted { server: *server }, errno, since: since(*at) })
            };
        let parted = self.parted.iter().filter_map(ill);
        self.visits.tell(own.chain(waits).chain(parted).collect());
    }

    fn ills(&self, now: Instant) -> Vec<Ill> {
        let waiting = self.gatherer.waiting();
        let waiting = waiting.map(|(file, at, len)| (file, self.striping.server(file, at), len));
        self.care.ills(now, waiting)
    }

    /// A server's disk refuses what was gathered here for the first time.
    pub(super) fn note_refused(&self, now: Instant, server: ServerNo, errno: i32) {
        let is_it = |ill: &Ill| matches!(ill.what, Illness::Waits { server: of, .. } if of == server && ill.errno == errno);
        let Some(Ill { what: Illness::Waits { files, bytes, .. }, .. }) =
            self.ills(now).into_iter().find(is_it)
        else {
            return;
        };
        (self.notice)(&format!(
            "server {} of the volume does not take what was gathered here for it, {bytes} bytes of {files} files: {}; \
             it stays in this server's log, and is brought when its disk takes it",
            server.0,
            in_words(errno)
        ));
    }

    /// This server's own disk fails: its log takes nothing more, or something of a file.
    pub(super) fn note_failed(&mut self, errno: i32, of_log: bool) {
        // What it does not have, or what asks for what cannot be, is no fault of the disk.
        let is_of_disk = [Errno::IO, Errno::ROFS, Errno::NODEV, Errno::NXIO, Errno::UCLEAN, Errno::STALE]
            .contains(&Errno::from_raw_os_error(errno));
        let failed = if of_log { &mut self.log_failed } else { &mut self.disk_failed };
        if failed.is_some() || !(of_log || is_of_disk) {
            return;
        }
        *failed = Some((errno, Instant::now()));
        let what =
            if of_log { "its log takes nothing more" } else { "something of a file is not taken or read" };
        (self.notice)(&format!(
            "the disk of this server fails, {what}: {}; look after it, and start this server again",
            in_words(errno)
        ));
    }
}
