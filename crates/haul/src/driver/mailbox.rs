//! Where the threads of a session post what happened.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};
use haul_storage::Post;
use haul_transport::rejoin::JoinEvent;
use haul_transport::stream::ControlEvent;

/// What is posted to a session; `T`: what its end's threads post.
pub(super) enum Event<T> {
    Control(ControlEvent),
    Join(JoinEvent),
    Own(T),
}

/// Where everything is posted, from whatever thread.
pub(super) struct Mailbox<T> {
    sender: Sender<Event<T>>,
    pub(super) events: Receiver<Event<T>>,
}

impl<T: Send + 'static> Mailbox<T> {
    pub(super) fn new() -> Mailbox<T> {
        let (sender, events) = unbounded();
        Mailbox { sender, events }
    }

    pub(super) fn post_event<X>(&self, wrap: impl Fn(X) -> Event<T> + Send + Sync + 'static) -> Post<X> {
        let sender = self.sender.clone();
        Arc::new(move |event| drop(sender.send(wrap(event))))
    }

    /// What one of the end's threads posts with.
    pub(super) fn post<X>(&self, wrap: impl Fn(X) -> T + Send + Sync + 'static) -> Post<X> {
        self.post_event(move |event| Event::Own(wrap(event)))
    }
}
