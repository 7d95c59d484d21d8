//! How the agent's streams came, and what the near end says meanwhile.

use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::Receiver;
use haul_core::ids::StreamId;
use haul_transport::Link;
use haul_transport::rejoin::Joins;

use super::listener::Listener;
use super::message::{Decision, Listening};

/// How long the near end may take to join all streams, and to decide.
pub(super) const JOIN_WAIT: Duration = Duration::from_secs(30);

/// What the near end said: a word, and with the last one the rest of the pipe.
pub(super) type Decided = (std::io::Result<Decision>, Option<Box<dyn Read + Send>>);

pub(super) enum Arrived {
    Direct {
        listener: Listener,
        control: Link,
        data: Vec<(StreamId, Link)>,
    },
    /// Through ssh; the last data streams have channels of their own, one at least has none.
    Mux {
        input: Box<dyn Read + Send>,
        channels: Vec<Link>,
    },
    /// The same, with channels that are to come.
    Channels {
        decided: Receiver<Decided>,
    },
    /// The near end listens there.
    Reverse {
        at: Listening,
        decided: Receiver<Decided>,
    },
    /// This end dialled all.
    Dialled {
        addr: SocketAddr,
        control: Link,
        data: Vec<(StreamId, Link)>,
        joins: Joins,
    },
}

/// Notes the end of the pipe: ssh is gone, or the near end with it. The session does not end by that alone.
pub(super) fn watch_pipe(mut input: impl Read + Send + 'static, orphaned: Arc<AtomicBool>) {
    let watch = move || {
        // The near end says nothing more here; should it, it is not meant for us.
        let _ = std::io::copy(&mut input, &mut std::io::sink());
        orphaned.store(true, Ordering::Release);
    };
    // Without the thread a dead near end is waited for a little longer.
    let _ = thread::Builder::new().name("haul-ssh-watch".into()).spawn(watch);
}
