//! The sockets of a source in the hands of a trial.

use super::Net;
use haul_core::ids::StreamId;
use haul_transport::TcpSample;

/// All sockets at one moment.
pub(crate) struct Seen {
    /// Those that carry data.
    pub(crate) flows: Vec<(StreamId, TcpSample)>,
    /// Bytes sent, and sent again, by all that there were.
    pub(crate) sent: u64,
    pub(crate) again: u64,
}

impl Net {
    /// Asks the sockets, and changes nothing.
    pub(crate) fn see(&mut self, is_parked: impl Fn(StreamId) -> bool) -> Seen {
        let (_, sent, again) = self.gone;
        let mut seen = Seen { flows: Vec::with_capacity(self.flows.len()), sent, again };
        for (stream, flow) in &mut self.flows {
            let Some(sample) = flow.socket.sample() else { continue };
            seen.sent += sample.bytes_sent.unwrap_or(0);
            seen.again += sample.bytes_retrans.unwrap_or(0);
            flow.last = Some(sample);
            if !is_parked(*stream) {
                seen.flows.push((*stream, sample));
            }
        }
        seen
    }

    /// Sets all sockets, and those to come.
    ///
    /// # Errors
    /// What could not be set, in words; the rest is.
    pub(crate) fn turn(&mut self, control: Option<&str>, window: Option<u64>) -> Result<(), String> {
        let mut trouble = None;
        if let Some(name) = control.filter(|name| *name != self.control) {
            self.set_control(name.to_owned(), "as asked".into());
            if self.control != name {
                trouble = Some(self.why.clone());
            }
        }
        if let Some(window) = window {
            self.window = Some(window);
            for flow in self.flows.values() {
                if let Err(error) = flow.socket.fix_send(window.saturating_mul(2)) {
                    trouble =
                        Some(format!("the send buffer cannot be set: {}", haul_base::errno::text(error)));
                }
            }
        }
        trouble.map_or(Ok(()), Err)
    }
}
