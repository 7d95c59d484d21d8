//! The network of a source: a thread for each data stream, their sockets, and the limit on the rate.

use std::collections::HashMap;
use std::sync::Arc;

use haul_base::errno;
use haul_core::ids::{SessionEpoch, StreamId, Time};
use haul_core::transfer::SessionEnd;
use haul_core::wire::Failure;

use super::{Own, Session};
use crate::driver::local;
use crate::driver::net::Net;
use crate::driver::trial::SharedTrial;
use haul_transport::Link;
use haul_transport::pace::Pacer;
use haul_transport::stream::DataSender;

/// See the module.
pub(super) struct Network {
    pub(super) senders: HashMap<StreamId, DataSender>,
    pub(super) net: Net,
    pub(super) pacer: Arc<Pacer>,
    /// The limit on the rate as it began.
    pub(super) rate: Option<u64>,
    pub(super) trial: Option<SharedTrial>,
    /// When the trial looked last.
    pub(super) looked: Option<Time>,
    /// When the sink last said that it had taken more, and how much.
    pub(super) taken: (Time, u64),
}

/// The thread of one data stream.
pub(super) fn start_sender(
    link: Link,
    (stream, epoch): (StreamId, SessionEpoch),
    session: &Session<'_>,
    pacer: &Arc<Pacer>,
) -> Result<DataSender, Failure> {
    let post = session.mailbox.post(Own::Send);
    let started = DataSender::spawn(link, stream, epoch, session.meter.clone(), post, pacer.clone());
    started.map_err(|e| local(errno::with_causes(&e)))
}

impl Network {
    /// Takes a stream that joined. False: it could not be used, and is closed.
    pub(super) fn add(
        &mut self,
        (stream, epoch): (StreamId, SessionEpoch),
        link: Link,
        session: &Session<'_>,
    ) -> bool {
        let (closer, connection) = (link.closer.clone(), link.connection.clone());
        let Ok(sender) = start_sender(link, (stream, epoch), session, &self.pacer) else {
            closer();
            return false;
        };
        self.senders.insert(stream, sender);
        if let Some(connection) = connection {
            self.net.add(stream, connection);
        }
        true
    }

    /// Cuts a stream.
    pub(super) fn close(&mut self, stream: StreamId) {
        self.net.remove(stream);
        if let Some(mut sender) = self.senders.remove(&stream) {
            sender.abort();
        }
    }

    /// The session is over.
    pub(super) fn end(&mut self, how: &SessionEnd) {
        for sender in self.senders.values_mut() {
            match how {
                SessionEnd::Complete => sender.close(),
                SessionEnd::Stopped | SessionEnd::Failed(_) => sender.abort(),
            }
        }
    }
}
