//! Somebody may want an end of what is waited for, and to hear what that is.
//!
//! In: who can tell whether an end is wanted. Out: a [`Stop`] that whoever waits looks at, at least every
//! [`LOOK`], and that tells what he waits for. It is looked at rather than told, so that it can be any word
//! of anybody, and costs no descriptor.
//! Left out: how something ends in good order; this is for what nothing is lost of.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How often it is looked at.
pub const LOOK: Duration = Duration::from_millis(100);

/// Says whether an end is wanted; cloning shares it.
#[derive(Clone, Default)]
pub struct Stop(Option<Arc<Asked>>, Option<Arc<Hears>>);

/// Whether an end is wanted of what is waited for since then.
type Asked = dyn Fn(Instant) -> bool + Send + Sync;

/// Hears what is waited for.
type Hears = dyn Fn(&str) + Send + Sync;

/// An end was wanted.
#[derive(Debug, thiserror::Error)]
#[error("a stop was asked for")]
pub struct Stopped;

impl From<Stopped> for io::Error {
    fn from(stopped: Stopped) -> io::Error {
        io::Error::other(stopped)
    }
}

impl Stop {
    /// Nobody can want an end.
    pub fn never() -> Stop {
        Stop(None, None)
    }

    /// An end is wanted as soon as `asked` says so. It is called often, from any thread.
    pub fn when(asked: impl Fn() -> bool + Send + Sync + 'static) -> Stop {
        Stop(Some(Arc::new(move |_| asked())), None)
    }

    /// The same, where it depends on when the wait began: what is asked for may have some time yet.
    pub fn of_waits(asked: impl Fn(Instant) -> bool + Send + Sync + 'static) -> Stop {
        Stop(Some(Arc::new(asked)), None)
    }

    /// The same; `hears` is told what is waited for, in words.
    #[must_use]
    pub fn hearing(self, hears: impl Fn(&str) + Send + Sync + 'static) -> Stop {
        Stop(self.0, Some(Arc::new(hears)))
    }

    /// Tells what is waited for, if anybody wants to hear it: again and again, as long as it is.
    pub fn say(&self, what: &str) {
        if let Some(hears) = &self.1 {
            hears(what);
        }
    }

    /// Whether nobody can want an end, so that there is nothing to look at.
    pub fn is_never(&self) -> bool {
        self.0.is_none()
    }

    /// Whether an end is wanted, of what would be waited for from now on, too.
    pub fn is_asked(&self) -> bool {
        self.is_asked_of(Instant::now())
    }

    /// Whether an end is wanted of a wait that began then.
    pub fn is_asked_of(&self, begun: Instant) -> bool {
        self.0.as_ref().is_some_and(|asked| asked(begun))
    }

    /// As [`Stop::is_asked`], for whoever ends by an error.
    ///
    /// # Errors
    /// An end is wanted.
    pub fn check(&self) -> Result<(), Stopped> {
        self.check_of(Instant::now())
    }

    /// The same of a wait that began then.
    ///
    /// # Errors
    /// An end of it is wanted.
    pub fn check_of(&self, begun: Instant) -> Result<(), Stopped> {
        if self.is_asked_of(begun) { Err(Stopped) } else { Ok(()) }
    }

    /// How long somebody who would wait for `left` waits before he looks.
    pub fn until_look(&self, left: Duration) -> Duration {
        if self.is_never() { left } else { left.min(LOOK) }
    }

    /// Does what nothing can interrupt, and waits for it only as long as no end is wanted. Then `work` is
    /// left to itself, on a thread of its own, and what it makes is dropped there.
    ///
    /// # Errors
    /// An end was wanted ([`Stopped`]), or there is no thread.
    pub fn unless_asked<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        if self.is_never() {
            return Ok(work());
        }
        let (begun, (sender, done)) = (Instant::now(), channel());
        thread::Builder::new().name(name.into()).spawn(move || drop(sender.send(work())))?;
        loop {
            self.check_of(begun)?;
            match done.recv_timeout(LOOK) {
                Ok(made) => return Ok(made),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("a thread panicked")),
            }
        }
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_never() { "Stop(never)" } else { "Stop" })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Goal: whoever waits for what cannot be interrupted goes on when an end is wanted, and else has what
    /// was made.
    #[test]
    fn what_cannot_be_interrupted_is_left() {
        let asked = Arc::new(AtomicBool::new(false));
        let stop = Stop::when({
            let asked = asked.clone();
            move || asked.load(Ordering::SeqCst)
        });
        assert_eq!(stop.unless_asked("work", || 7).unwrap(), 7);
        assert_eq!(Stop::never().unless_asked("work", || 7).unwrap(), 7);
        let (release, held) = channel::<()>();
        let work = move || {
            asked.store(true, Ordering::SeqCst);
            let _ = held.recv();
        };
        let left = stop.unless_asked("work", work).unwrap_err();
        assert!(left.get_ref().is_some_and(|inner| inner.is::<Stopped>()), "{left}");
        assert!(stop.check().is_err() && Stop::never().check().is_ok());
        drop(release);
    }

    /// Goal: a wait may have some time from when it began, whenever the end was asked for.
    #[test]
    fn waits_may_have_time() {
        let begun = Instant::now();
        let later = begun + Duration::from_secs(1);
        let stop = Stop::of_waits(move |wait| wait < later);
        assert!(stop.is_asked_of(begun) && stop.check_of(begun).is_err());
        assert!(!stop.is_asked_of(later) && stop.check_of(later).is_ok() && !stop.is_never());
    }

    /// Goal: somebody who waits long looks meanwhile, and only where there is something to look at.
    #[test]
    fn who_waits_looks() {
        let (long, short) = (Duration::from_secs(60), Duration::from_millis(1));
        assert_eq!((Stop::never().until_look(long), Stop::never().until_look(short)), (long, short));
        let stop = Stop::when(|| false);
        assert_eq!((stop.until_look(long), stop.until_look(short)), (LOOK, short));
    }
}
