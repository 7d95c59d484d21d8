//! From the walk to its consumer, in batches.
//!
//! Invariant: what a slow consumer has not taken stops the walk; one that leaves ends it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::Sender;
use haul_core::metadata::cost_of;

use super::{BATCH_ITEMS_MAX, WalkItem};

/// Bytes of attributes that are sent together, but for those of one entry.
const BATCH_BYTES_MAX: usize = 1024 * 1024;

/// The way to the consumer.
pub(crate) struct Out {
    pub(crate) sender: Sender<Vec<WalkItem>>,
    pub(crate) batch: Vec<WalkItem>,
    /// Of attributes in it.
    pub(crate) bytes: usize,
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
        if let WalkItem::Metadata(values) | WalkItem::Root(values) = &item {
            self.bytes += cost_of(values);
        }
        self.batch.push(item);
        self.batch.len() < BATCH_ITEMS_MAX && self.bytes < BATCH_BYTES_MAX
    }

    /// Sends what there is, waiting for room.
    pub(crate) fn flush(&mut self) {
        while !self.send() {}
    }

    /// The same, but waits for a moment only. False: there was no room.
    pub(crate) fn send(&mut self) -> bool {
        let batch = std::mem::take(&mut self.batch);
        self.bytes = 0;
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
