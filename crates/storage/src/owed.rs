//! Answers that somebody waits for.
//!
//! In: what an operation came to. Out: that, told once to who waits.
//! Invariant: an answer that is given up without having been settled (its holder panicked, was dropped with a
//! queue, or belonged to an engine that ended) is told as a failure. So an operation always ends for the
//! session, whatever becomes of the code that carries it out.
//! Left out: an operation that hangs holds its answer, and is told as stuck (`Stuck`).

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};

use haul_core::wire::{Failure, FailureKind};

type Tell<T> = Box<dyn FnOnce(Result<T, Failure>) + Send>;

/// An answer that is owed; see the module.
pub(crate) struct Owed<T> {
    kind: FailureKind,
    tell: Option<Tell<T>>,
}

impl<T> Owed<T> {
    /// `tell` hears the result, once. It is called wherever the answer is settled or given up, so it must not
    /// block.
    pub(crate) fn new(kind: FailureKind, tell: impl FnOnce(Result<T, Failure>) + Send + 'static) -> Owed<T> {
        Owed { kind, tell: Some(Box::new(tell)) }
    }

    /// Tells the result.
    pub(crate) fn settle(mut self, result: Result<T, Failure>) {
        if let Some(tell) = self.tell.take() {
            tell(result);
        }
    }
}

impl<T> Drop for Owed<T> {
    fn drop(&mut self) {
        if haul_mutant::removed("owed-answers") {
            return;
        }
        if let Some(tell) = self.tell.take() {
            let text = match std::thread::panicking() {
                true => "internal error: it was given up by a thread that panicked",
                false => "internal error: it was given up before it was done",
            };
            tell(Err(Failure { kind: self.kind, errno: 0, text: text.into() }));
        }
    }
}

/// What a panic said.
pub(crate) fn words_of(panic: &(dyn Any + Send)) -> String {
    let told = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    told.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// A test of this process holds or breaks work by the names of files. Nothing else ever sets it.
static TESTED: AtomicBool = AtomicBool::new(cfg!(test));

/// Panics where a test wants it: at the `point` that the `name` of a file says. Without a test it is nothing.
#[inline(always)]
pub(crate) fn panic_point(point: &str, name: &str) {
    if TESTED.load(Ordering::Relaxed) {
        Held::wait(name);
        assert!(!name.contains(point), "{name}: on purpose");
    }
}

/// Work on a file of this name waits at its `panic_point` while a test holds this.
#[doc(hidden)]
pub struct Held(&'static str);

static HELD: (Mutex<Vec<&str>>, Condvar) = (Mutex::new(Vec::new()), Condvar::new());

impl Held {
    /// From now on work on that file waits.
    pub fn new(name: &'static str) -> Held {
        TESTED.store(true, Ordering::Relaxed);
        HELD.0.lock().expect("no panic in here").push(name);
        Held(name)
    }

    fn wait(name: &str) {
        let held = HELD.0.lock().expect("no panic in here");
        drop(HELD.1.wait_while(held, |held| held.contains(&name)).expect("no panic in here"));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.0.lock().expect("no panic in here").retain(|name| *name != self.0);
        HELD.1.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc::channel;

    /// Goal: an answer is told once, settled or given up, also by a panic; a settled one as it was settled.
    #[test]
    fn every_answer_is_told_once() {
        let (told, hears) = channel();
        let owed = || {
            let told = told.clone();
            Owed::new(FailureKind::Write, move |result: Result<u32, Failure>| drop(told.send(result)))
        };
        owed().settle(Ok(7));
        drop(owed());
        let held = owed();
        let panicked = catch_unwind(AssertUnwindSafe(move || {
            let _held = held;
            panic!("on purpose");
        }));
        assert!(panicked.is_err());
        let results: Vec<_> = hears.try_iter().collect();
        assert_eq!(results[0], Ok(7));
        let words = |i: usize| results[i].as_ref().expect_err("given up").text.to_string();
        assert!(words(1).contains("before it was done") && words(2).contains("panicked"), "{results:?}");
        assert_eq!(results.len(), 3);
    }
}
