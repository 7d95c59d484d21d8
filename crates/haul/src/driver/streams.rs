//! The lines to the other end over the life of a session: streams that join later, and control that comes
//! back.
//!
//! In: what the streams' threads and the transport tell. Out: links for new streams, dials, or the word that
//! the session is over. Either end has one; the end that dialled dials again, the other waits.
//! Invariants: control that was lost is waited for as long as the user's patience, and the machines do not
//! learn of it before that is over; what breaks the protocol is not waited for; an end whose peer is
//! certainly dead waits no longer.
//! Left out: what is sent again (`transport::stream::control`), which streams get frames (the source's
//! machine).

use std::time::{Duration, Instant};

use haul_base::errno;
use haul_core::ids::{SessionEpoch, StreamId, Time};
use haul_core::transfer::stream_dialler::{Backoff, StreamDialler};
use haul_core::wire::{Failure, Message};

use super::{lost, protocol};
use haul_transport::rejoin::{JoinEvent, Joins, Peer};
use haul_transport::stream::{ControlHandle, Loss};
use haul_transport::{Link, Post};

/// How long darkness is waited out if the user did not say.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);
/// The end that listens waits so much longer, so that the other is the one to give up.
const MARGIN: Duration = Duration::from_secs(10);
/// So many refusals one after another, where the trusted channel is gone as well: so is the program at the
/// other end. Refusals alone say nothing, for a gateway whose line is down refuses in everybody's name.
const REFUSALS_MAX: u32 = 3;
/// An end whose peer's connections and ssh all ended waits so long for one of them to come after all; and so
/// long where data streams still seem to be up, for an end that sends nothing does not see them go.
const ORPHAN_WAIT: Duration = Duration::from_millis(200);
const ORPHAN_WAIT_STREAMS: Duration = Duration::from_secs(3);
/// The other end of a re-join has this long to say where to go on, and to say anything at all.
const RESUME_MAX: Duration = Duration::from_secs(20);

/// Control is lost.
struct Dark {
    since: Instant,
    why: String,
    how: Loss,
    /// When control is dialled next; `None`: it is being dialled.
    next: Option<Instant>,
    refusals: u32,
}

/// See the module.
pub(crate) struct Lines {
    joins: Joins,
    dialler: StreamDialler,
    post: Post<JoinEvent>,
    patience: Duration,
    dark: Option<Dark>,
    /// Control is joined again, and nothing was heard over it yet: the darkness that is over then.
    trial: Option<Dark>,
    backoff: Backoff,
    /// The highest epoch that was tried.
    tried: SessionEpoch,
    /// Data streams that were lost and are not replaced yet.
    missing: u64,
    /// Data streams and control connections that replaced others.
    replaced: u64,
    /// Data streams that came in nobody's place: more were wanted.
    added: u64,
    /// Data streams of the start: those with the first ids.
    first: u16,
}

/// Whether the program at the other end is dead, for an end that dials.
fn is_gone(peer: Peer, refusals: u32) -> bool {
    match peer {
        Peer::Ended => true,
        Peer::Orphaned => refusals >= REFUSALS_MAX,
        Peer::Unknown => haul_mutant::removed("refusal-waits") && refusals >= REFUSALS_MAX,
    }
}

/// What became of a lost control.
pub(crate) enum Lost {
    /// It is waited for.
    Waits,
    /// The session is over, and why.
    Over(Failure),
}

/// Why a session is over with a link that was lost so.
pub(crate) fn over(why: String, how: Loss) -> Failure {
    match how {
        Loss::Silent | Loss::Ended => lost(why),
        Loss::Broken => protocol(why),
    }
}

impl Lines {
    /// `up`: data streams of the start. `first`: how many these are when all have come.
    pub(crate) fn start(
        joins: Joins,
        epoch: SessionEpoch,
        up: impl IntoIterator<Item = StreamId>,
        first: u16,
        patience: Duration,
        post: Post<JoinEvent>,
    ) -> Lines {
        if let Joins::Accept(door) = &joins {
            door.open(post.clone());
        }
        let mut seed = [0; 8];
        // Jitter without randomness is still a rest.
        let _ = aws_lc_rs::rand::fill(&mut seed);
        let seed = u64::from_le_bytes(seed);
        let mut dialler = StreamDialler::new(up, seed);
        if let Joins::Dial(dial) = &joins {
            dial.open(post.clone()).into_iter().for_each(|stream| dialler.begun(stream));
            dialler.want(first);
        }
        let backoff = Backoff::new(seed.rotate_left(32));
        Lines {
            joins,
            dialler,
            post,
            patience,
            dark: None,
            trial: None,
            backoff,
            tried: epoch,
            missing: 0,
            replaced: 0,
            added: 0,
            first,
        }
    }

    /// Data streams of the start, with those that are still on their way.
    pub(crate) fn first(&self) -> u16 {
        self.first
    }

    /// Streams can come up later, and the user wants to wait.
    pub(crate) fn can_join(&self) -> bool {
        !matches!(self.joins, Joins::Never) && !self.patience.is_zero()
    }

    /// How long the machine may be without any stream: longer than without control, whose loss says more.
    pub(crate) fn patience(&self) -> Duration {
        if self.can_join() { self.patience + 2 * MARGIN } else { Duration::ZERO }
    }

    /// Control is lost and waited for.
    pub(crate) fn is_dark(&self) -> bool {
        self.dark.is_some()
    }

    /// The other end's program is gone, as far as this one can see: it ends soon, unless a link comes after
    /// all.
    pub(crate) fn is_orphaned(&self) -> bool {
        let ended = self.dark.as_ref().is_some_and(|dark| dark.how == Loss::Ended);
        ended && matches!(&self.joins, Joins::Accept(door) if door.is_orphaned())
    }

    /// How long control has been away.
    pub(crate) fn dark_for(&self) -> Option<Duration> {
        self.dark.as_ref().map(|dark| dark.since.elapsed())
    }

    /// What the report says of it: connections that replaced others, and data streams that came because more
    /// were wanted.
    pub(crate) fn chosen(&self) -> Option<(String, String)> {
        let text = match (self.replaced, self.added) {
            (0, 0) => return None,
            (replaced, 0) => format!("{replaced} (others were lost)"),
            (0, added) => format!("{added} (more were wanted)"),
            (replaced, added) => {
                let all = replaced + added;
                format!("{all} ({replaced} as others were lost, {added} as more were wanted)")
            }
        };
        Some(("connections joined later".into(), text))
    }

    /// So many data streams shall be up. Where this end does not dial, the other is asked.
    pub(crate) fn want(&mut self, streams: u16, control: &ControlHandle) {
        self.dialler.want(streams);
        if let Joins::Accept(_) = self.joins {
            control.send(Message::Streams(streams));
        }
    }

    /// The other end, which does not dial, wants so many.
    pub(crate) fn asked_for(&mut self, streams: u16) {
        self.dialler.want(streams);
    }

    /// The link of control is lost.
    pub(crate) fn control_lost(
        &mut self,
        (epoch, why, how): (SessionEpoch, String, Loss),
        control: &ControlHandle,
        now: Time,
    ) -> Lost {
        if epoch != control.epoch() {
            return Lost::Waits;
        }
        if !self.can_join() || how == Loss::Broken {
            return Lost::Over(over(why, how));
        }
        let rest = self.backoff.failed();
        let next = Some(Instant::now() + rest / 2);
        // One that never worked again ended no darkness.
        let before = self.dark.take().or_else(|| self.trial.take());
        let since = before.map_or_else(Instant::now, |dark| dark.since);
        self.dark = Some(Dark { since, why, how, next, refusals: 0 });
        self.dialler.set_dark(true, now);
        Lost::Waits
    }

    /// A data stream is lost.
    pub(crate) fn stream_lost(&mut self, stream: StreamId, now: Time) {
        if self.dialler.lost(stream, now) {
            // What takes its place may have come before its loss was seen.
            match self.added.checked_sub(1).filter(|_| self.dialler.is_full()) {
                Some(added) => (self.added, self.replaced) = (added, self.replaced + 1),
                None => self.missing += 1,
            }
        }
        match &self.joins {
            Joins::Accept(door) => door.left(stream),
            Joins::Dial(dial) => dial.left(stream),
            Joins::Never => {}
        }
    }

    /// Something joined, or did not. Returns a new data stream.
    pub(crate) fn handle(
        &mut self,
        event: JoinEvent,
        control: &ControlHandle,
        now: Time,
    ) -> Option<(StreamId, SessionEpoch, Link)> {
        match event {
            JoinEvent::Stream { stream, epoch, link } => {
                match &self.joins {
                    Joins::Dial(_) => self.dialler.joined(stream, now),
                    Joins::Accept(_) | Joins::Never => self.dialler.came(stream, now),
                }
                // Those of the start are neither.
                if stream.0 > self.first {
                    match self.missing.checked_sub(1) {
                        Some(missing) => (self.missing, self.replaced) = (missing, self.replaced + 1),
                        None => self.added += 1,
                    }
                }
                return Some((stream, epoch, link));
            }
            JoinEvent::Control { epoch, link } => {
                let higher = epoch > control.epoch();
                match control.attach(link, epoch) {
                    Ok(()) if higher => {
                        self.replaced += 1;
                        self.trial = self.dark.take().or_else(|| self.trial.take());
                        self.dialler.set_dark(false, now);
                    }
                    Ok(()) => {}
                    Err(e) => self.redial(&errno::text(e), false),
                }
            }
            JoinEvent::Failed { stream: StreamId(0), why, refused } => self.redial(&why, refused),
            JoinEvent::Failed { stream, .. } => self.dialler.failed(stream, now),
        }
        None
    }

    /// Handle could not be joined: later again.
    fn redial(&mut self, why: &str, refused: bool) {
        if let Some(dark) = &mut self.dark {
            dark.refusals = if refused { dark.refusals + 1 } else { 0 };
            dark.why = format!("{} ({why})", dark.why.split(" (").next().unwrap_or_default());
            dark.next = Some(Instant::now() + self.backoff.failed());
        }
    }

    /// Messages came over control: it works.
    pub(crate) fn heard(&mut self) {
        if self.dark.is_none() {
            self.trial = None;
            self.backoff.worked();
        }
    }

    /// Dials what is due.
    ///
    /// # Errors
    /// Control was waited for long enough, or its peer is dead: why.
    pub(crate) fn beat(&mut self, now: Time) -> Result<(), String> {
        if let Some(dark) = &mut self.dark {
            let waited = dark.since.elapsed();
            let (limit, why) = match &self.joins {
                Joins::Accept(door) if dark.how == Loss::Ended && door.is_orphaned() => {
                    let wait = if self.dialler.up() == 0 { ORPHAN_WAIT } else { ORPHAN_WAIT_STREAMS };
                    (wait.min(self.patience), "the other end is gone")
                }
                Joins::Accept(_) => (self.patience + MARGIN, "nobody came back"),
                Joins::Dial(dial) if is_gone(dial.peer(), dark.refusals) => {
                    (Duration::ZERO, "the haul at the other end is gone")
                }
                Joins::Dial(_) | Joins::Never => (self.patience, "the network did not come back"),
            };
            if waited >= limit {
                let waited = waited.as_secs();
                return Err(format!("{}; {why} (waited {waited} s)", dark.why));
            }
            if let Joins::Dial(dial) = &self.joins
                && dark.next.is_some_and(|next| next <= Instant::now())
            {
                dark.next = None;
                // Never one that was tried: the other end may have taken it and its answer been lost.
                self.tried = SessionEpoch(self.tried.0.saturating_add(1));
                dial.dial(StreamId(0), self.tried, self.post.clone());
            }
        }
        if let Joins::Dial(dial) = &self.joins
            && self.can_join()
        {
            while let Some(stream) = self.dialler.poll_dial(now) {
                dial.dial(stream, self.tried, self.post.clone());
            }
        }
        Ok(())
    }

    /// What to show while control, or every stream, is away.
    pub(crate) fn waiting(&self) -> Option<String> {
        let dark = self.dark.as_ref()?;
        Some(format!("waiting {} s for the network", dark.since.elapsed().as_secs()))
    }

    /// How long the other end may be silent after a re-join.
    pub(crate) fn resume_max() -> Duration {
        RESUME_MAX
    }
}
