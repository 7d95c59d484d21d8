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
        self.batch.push(item);
        if self.batch.len() >= BATCH_ITEMS_MAX {
            self.flush();
        }
    }

    /// Sends what there is, waiting for room.
    pub(crate) fn flush(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        while !batch.is_empty() && !self.cancelled() {
            // The wait is cut in pieces only to see a cancel that came without dropping the receiver.
            match self.sender.send_timeout(batch, Duration::from_millis(200)) {
                Ok(()) => return,
                Err(crossbeam_channel::SendTimeoutError::Timeout(back)) => batch = back,
                Err(crossbeam_channel::SendTimeoutError::Disconnected(_)) => {
                    self.cancelled.store(true, Ordering::Relaxed);
                    return;
                }
            }
        }
    }

    pub(crate) fn cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}
