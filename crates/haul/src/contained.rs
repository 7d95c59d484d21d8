//! An observer's panic, held until the copy has ended in good order.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::events::{Event, Observer};
use crate::handle::Handle;

/// An observer whose panics do not pass through haul's threads: the first one stops the copy, and is kept.
pub(crate) struct Contained {
    observer: Arc<dyn Observer>,
    handle: Handle,
    panicked: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Contained {
    /// Of the copy that `handle` can stop.
    pub(crate) fn new(observer: Arc<dyn Observer>, handle: Handle) -> Contained {
        Contained { observer, handle, panicked: AtomicBool::new(false), panic: Mutex::new(None) }
    }

    /// Goes on with the panic, if there was one.
    pub(crate) fn resume(&self) {
        let panic = self.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Observer for Contained {
    fn event(&self, event: Event) {
        if self.panicked.load(Ordering::Acquire) {
            return;
        }
        // Whatever state it is in: it hears nothing more.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.observer.event(event))) {
            self.panicked.store(true, Ordering::Release);
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            self.handle.break_off();
        }
    }
}
