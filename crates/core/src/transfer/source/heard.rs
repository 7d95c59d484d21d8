//! What the sink says, each message to what it is about.
//!
//! In: messages. Out: none; the rooms of the machine act on them.
//! Invariant: no number of the sink is believed beyond what it was sent, and nothing has an effect that it
//! says as somebody else than was agreed.

use alloc::sync::Arc;

use super::{Source, SourceAction};
use crate::ids::{Holder, Leased, SinkTarget};
use crate::transfer::{SessionEnd, protocol};
use crate::wire::{Extent, Message};

impl Source {
    /// A message of the sink.
    pub fn handle_message(&mut self, message: Message) {
        if self.finished {
            return;
        }
        match message {
            Message::Grant { by, .. } | Message::Durable { by, .. } if self.is_not_agreed(by) => {}
            Message::Grant { sink_target, total, .. } if self.config.agreed.targets => {
                self.handle_grant(SinkTarget(sink_target), total)
            }
            Message::Grant { total, .. } => self.credit = self.credit.max(total),
            Message::FileTargets { id, generation, layout } => {
                self.handle_file_targets(id, generation, Arc::new(layout));
            }
            Message::TargetHealth(targets) => {
                for target in targets {
                    self.handle_sink_health(target.sink_target, target.health);
                }
            }
            Message::FileStates(states) => {
                for (id, generation, state) in states {
                    self.handle_state(id, generation, state);
                }
            }
            Message::Written { bytes, frames } => {
                // A peer's number: no more than it was sent.
                self.counts.written = bytes.min(self.counts.payload);
                for (stream, count) in frames {
                    self.streams.received(stream, count);
                }
            }
            Message::Durable { extents, .. } => {
                for extent in extents {
                    let file = self.files.get_mut(&extent.id);
                    if let Some(file) = file.filter(|f| f.generation == extent.generation) {
                        // Told twice or too much: it is never more than the file.
                        let more = extent.len.min(file.size() - file.durable);
                        file.durable += more;
                        self.counts.durable = self.counts.durable.saturating_add(more);
                        if file.held.end_at(extent.offset).is_some() {
                            let checked = extent.len.min(file.held.open);
                            file.held.open -= checked;
                            self.counts.held_open = self.counts.held_open.saturating_sub(checked);
                        }
                    }
                }
            }
            Message::Done(items) => {
                for item in items {
                    self.handle_entry_done(item.id, item.generation, item.outcome);
                }
            }
            Message::Resend(extents) => {
                for Extent { id, generation, offset, .. } in extents {
                    self.handle_resend(id, generation, offset);
                }
            }
            Message::NotHeld(extents) => extents.into_iter().for_each(|extent| self.handle_not_held(extent)),
            Message::StreamClosed { stream, frames } => self.handle_stream_closed(stream, frames),
            Message::Stop { .. } => {
                self.stopping = true;
                self.drop_frames();
            }
            Message::Stopped => self.finish(SessionEnd::Stopped),
            Message::Complete => {
                let end = if self.end_sent && self.open_entries() == 0 {
                    debug_assert!(self.maps.are_gone(), "maps go with their files");
                    SessionEnd::Complete
                } else {
                    SessionEnd::Failed(protocol("the sink says complete, but entries are still open"))
                };
                self.finish(end);
            }
            Message::Notice { text } => self.actions.push_back(SourceAction::Notice(text)),
            Message::Abort(failure) => self.finish(SessionEnd::Failed(failure)),
            Message::Ping(n) => self.actions.push_back(SourceAction::Send(Message::Pong(n))),
            Message::Pong(_) | Message::Report(_) | Message::Received(_) | Message::Placed(_) => {}
            other => {
                let text = format!("the sink sent a message that only a source sends: {}", other.name());
                self.finish(SessionEnd::Failed(protocol(&text)));
            }
        }
    }

    /// Whether what the sink says has no effect, for it says it as somebody else than was agreed; one that
    /// was never agreed ends the session.
    pub(super) fn is_not_agreed(&mut self, by: Holder) -> bool {
        let judged = by.judge(self.config.agreed.lease);
        if judged == Leased::Unknown {
            let text = format!("host {} of the sink, lease {}, was not agreed", by.host, by.epoch);
            self.finish(SessionEnd::Failed(protocol(&text)));
        }
        judged != Leased::Agreed
    }
}
