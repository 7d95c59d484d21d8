//! From the walk to its consumer, in batches.
//!
//! Invariant: what a slow consumer has not taken stops the walk; one that leaves ends it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::Sender;

use super::{BATCH_ITEMS_MAX, WalkItem};

/// The way to the consumer.
pub(crate) struct Out {
    pub(crate) sender: Sender<Vec<WalkItem>>,
    pub(crate) batch: Vec<WalkItem>,
    pub(crate) cancelled: Arc<AtomicBool>,
}

impl Out {
    pub(crate) fn push(&mut self, item: WalkItem) {
        if !self.add(item) {
            self.flush();
        }
    }

    /// Puts it to the others. False: they are to be sent.
    pub(crate) fn add(&mut self, item: WalkItem) -> bool {
        self.batch.push(item);
        self.batch.len() < BATCH_ITEMS_MAX
    }

    /// Sends what there is, waiting for room.
    pub(crate) fn flush(&mut self) {
        while !self.send() {}
    }

    /// The same, but waits for a moment only. False: there was no room.
    pub(crate) fn send(&mut self) -> bool {
        let batch = std::mem::take(&mut self.batch);
        if batch.is_empty() || self.cancelled() {
            return true;
        }
        // The wait is cut in pieces to see a cancel that came without dropping the receiver.
        match self.sender.send_timeout(batch, Duration::from_millis(200)) {
            Ok(()) => true,
            Err(crossbeam_channel::SendTimeoutError::Timeout(back)) => {
                self.batch = back;
                false
            }
            Err(crossbeam_channel::SendTimeoutError::Disconnected(_)) => {
                self.cancelled.store(true, Ordering::Relaxed);
                true
            }
        }
    }

    pub(crate) fn cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}
