//! What a data node does for its front end: bytes that come go into a part that the front end began, and
//! stripes of a file go out.
//!
//! In: a [`Task`] that the front end said over the link. Out: replies as of any transfer; `111` tells what of
//! the part is on media by a sync of this node, `112` of either way that this node goes on.
//! What must hold: no byte is written or sent before this node has seen that the file at that path is the one
//! that the front end sees ([`Seen`]), so that nodes with other files under the same names find it out; the
//! node gives no file a name and removes none.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use haul_core::entry::Name;
use haul_gridftp::command::StripeLayout;
use haul_gridftp::ranges::Ranges;
use serde::{Deserialize, Serialize};

use super::Session;
use crate::config::{Parts, Secret};
use crate::data::Data;
use crate::part::nodes::Joined;
use crate::part::{Failed, Upload};
use crate::progress::{Progress, marker};
use crate::receive::Markers;
use crate::seen::{Seen, is_unchanged};
use crate::send::{BLOCK_LEN, FileFeed, Pieces};
use crate::store::Round;
use crate::transfer::Stop;
use crate::tree::Tree;

/// Before what a front end says in JSON.
pub(super) const VERB: &[u8] = b"NODE ";

/// Which bytes of a file are of which stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stripe {
    /// Blocks of this size go round; at least one byte.
    pub(super) size: u64,
    pub(super) index: u64,
    pub(super) count: u64,
}

impl Stripe {
    /// Which bytes each of some nodes sends of a file of `size` bytes: as the client said. Where he said
    /// nothing, and the file lies in rounds over as many servers, each node has what lies at the server of
    /// its place.
    pub(super) fn of_nodes(
        count: u64,
        layout: Option<StripeLayout>,
        size: u64,
        round: Option<Round>,
    ) -> impl Fn(u64) -> Stripe {
        let round = round.filter(|round| layout.is_none() && round.count == count && count > 0);
        let size = match (round, layout) {
            (Some(round), _) => round.size,
            (None, Some(StripeLayout::Blocked(size))) => size,
            (None, Some(StripeLayout::Partitioned)) => size.div_ceil(count),
            (None, None) => BLOCK_LEN,
        };
        let is_blind = haul_mutant::removed("ftpd-nodes-send-what-lies-beside-them");
        let first = round.filter(|_| !is_blind).map_or(0, |round| round.first % count);
        move |node| Stripe { size: size.max(1), index: (node + count - first) % count, count }
    }
}

/// As whom data connections come, where both ends show whose they are.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ShownAs {
    /// What the client delegated to the front end.
    pub(super) delegated: Parts,
    /// Whom they must lead to, if not the client himself.
    pub(super) subject: Option<String>,
    pub(super) private: bool,
}

/// What a front end wants.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Task {
    /// Data connections are those of this client.
    Serve { client: SocketAddr, third_party: bool, markers: Duration, shown: Option<ShownAs> },
    /// This is the part of an upload to `path`; nobody writes into it yet.
    Look { path: Secret, part: Secret, seen: Seen, at: u64, held: Vec<(u64, u64)> },
    /// What comes goes into the part that was looked at.
    Take { path: Secret },
    /// What of these ranges is of this stripe goes out; on the wire they are counted from `base`.
    Send { path: Secret, seen: Seen, ranges: Vec<(u64, u64)>, base: u64, stripe: Stripe },
}

impl Session {
    /// Does what the front end said; the code of the reply.
    pub(super) fn on_task(&mut self, said: &[u8]) -> u16 {
        let Ok(task) = serde_json::from_slice::<Task>(said) else {
            return self.plain(501, "This is no task for a node.");
        };
        let Some(tree) = self.tree.take() else { return self.plain(530, "There is no tree.") };
        let code = match task {
            Task::Serve { client, third_party, markers, shown } => {
                self.data = Data::new(client, self.local, self.config.data_ports, third_party);
                self.with.markers = Some(markers);
                match shown.map_or(Ok(()), |shown| self.show_as(shown)) {
                    Ok(()) => self.plain(200, "Its data will be served."),
                    Err(why) => {
                        self.log.note("error", Some(self.peer), None, &why);
                        self.plain(431, &format!("{why}."))
                    }
                }
            }
            Task::Look { path, part, seen, at, held } => match Name::new(&part.0) {
                Ok(part) => self.look_at_part(&tree, &path.0, Joined { part, seen, at, held: &held }),
                Err(_) => self.plain(501, "This is no name of a part."),
            },
            Task::Take { path } => self.take_part(&path.0),
            Task::Send { path, seen, ranges, base, stripe } => {
                self.send_stripe(&tree, &path.0, seen, (ranges, base), stripe)
            }
        };
        self.tree = Some(tree);
        code
    }

    /// Looks whether the part is what the front end says, before anybody writes into it.
    fn look_at_part(&mut self, tree: &Tree, path: &[u8], with: Joined<'_>) -> u16 {
        self.joined = None;
        let joined = tree.find(&[], path, true).map_err(Failed::from);
        match joined.and_then(|spot| Upload::join(tree, spot, with)) {
            Ok(upload) => {
                self.joined = Some(upload);
                self.plain(200, "This is the part.")
            }
            Err(failed) => self.plain(451, &format!("{failed}.")),
        }
    }

    fn take_part(&mut self, path: &[u8]) -> u16 {
        let Some(mut upload) = self.joined.take() else {
            return self.plain(503, "Nobody has looked at a part.");
        };
        if let Some((code, why)) = self.no_way_in() {
            self.data.close();
            return self.plain(code, why);
        }
        let begun = Instant::now();
        let progress = Progress::new("STOR");
        let every = self.with.markers.unwrap_or(self.config.marker_interval);
        let mut markers = Markers::new(every, true);
        let moved = self.receive(&mut upload, None, &mut markers, &progress);
        let done = match moved {
            Ok(None) => return 425,
            Ok(Some(count)) => {
                let told = markers.tell_rest(&mut self.control, &mut upload, progress.moved());
                told.map(|()| count).map_err(Stop::from)
            }
            Err(stop) => Err(stop),
        };
        if done.is_err() {
            self.data.close();
            markers.give_up(&mut self.control, &mut upload);
        }
        self.finish("STOR", path, begun, &progress, done.map_err(|stop| stop.reply()))
    }

    fn send_stripe(
        &mut self,
        tree: &Tree,
        path: &[u8],
        seen: Seen,
        (ranges, base): (Vec<(u64, u64)>, u64),
        stripe: Stripe,
    ) -> u16 {
        let opened = tree.find(&[], path, true).and_then(|spot| tree.open_file(&spot));
        let (file, stat) = match opened {
            Ok(opened) => opened,
            Err(lost) => return self.plain(451, &format!("{lost}.")),
        };
        let is_sound = stripe.size > 0 && stripe.index < stripe.count;
        let is_front_ends =
            Seen::of(&stat) == seen || haul_mutant::removed("ftpd-nodes-send-what-the-front-end-saw");
        if !is_front_ends || !is_sound {
            return self.plain(451, "Another file stands there at this node.");
        }
        let begun = Instant::now();
        let every = self.with.markers.unwrap_or(self.config.marker_interval);
        let progress = Progress::told("RETR", every);
        let pieces = StripePieces { ranges: ranges.into_iter(), left: None, stripe };
        let mut feed = FileFeed::new(file, pieces, base);
        let sent = match self.send(&mut feed, &progress) {
            Ok(Some(count)) => match is_unchanged(&*feed.into_file(), &stat) {
                true => {
                    // So the front end knows how much it was.
                    self.control.send(&marker(progress.moved()));
                    Ok(count)
                }
                false => Err((451, "The file was changed while it was read: get it again.".to_owned())),
            },
            Ok(None) => return 425,
            Err(stop) => Err(stop.reply()),
        };
        self.finish("RETR", path, begun, &progress, sent)
    }
}

/// What of some ranges is of one stripe, in pieces of a block at most.
struct StripePieces {
    ranges: std::vec::IntoIter<(u64, u64)>,
    /// What is left of a range.
    left: Option<(u64, u64)>,
    stripe: Stripe,
}

impl Iterator for StripePieces {
    type Item = (u64, u64);

    /// The next bytes that are of this stripe: from where up to where.
    fn next(&mut self) -> Option<(u64, u64)> {
        let Stripe { size, index, count } = self.stripe;
        loop {
            let (start, end) = match self.left.take() {
                Some(left) => left,
                None => self.ranges.next()?,
            };
            if start >= end {
                continue;
            }
            let block = start / size;
            let behind = (index + count - block % count) % count;
            // Behind the last block that a file can have there is none.
            let Some(own) = block.checked_add(behind).and_then(|own| own.checked_mul(size)) else { continue };
            let from = start.max(own);
            if from >= end {
                continue;
            }
            let to = end.min(own.saturating_add(size)).min(from + BLOCK_LEN);
            self.left = Some((to, end));
            return Some((from, to));
        }
    }
}

impl Pieces for StripePieces {}

/// The ranges as a list.
pub(super) fn listed(ranges: &Ranges) -> Vec<(u64, u64)> {
    ranges.list().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: who does not say how gets from each node what lies at its server, and who does gets that.
    /// Method: a file that lies over three servers from the second on, by three nodes and by two.
    #[test]
    fn nodes_send_what_lies_beside_them() {
        let round = Some(Round { size: 10, count: 3, first: 1 });
        let of = |count, layout, round, node| {
            let Stripe { size, index, count } = Stripe::of_nodes(count, layout, 99, round)(node);
            (size, index, count)
        };
        // Block 0 lies at server 1, block 1 at 2, block 2 at 0.
        assert_eq!([0, 1, 2].map(|node| of(3, None, round, node)), [(10, 2, 3), (10, 0, 3), (10, 1, 3)]);
        let plain = [(BLOCK_LEN, 0, 2), (BLOCK_LEN, 1, 2)];
        assert_eq!([0, 1].map(|node| of(2, None, round, node)), plain, "other servers than nodes");
        assert_eq!([0, 1].map(|node| of(2, None, None, node)), plain);
        assert_eq!(of(3, Some(StripeLayout::Blocked(7)), round, 1), (7, 1, 3));
        assert_eq!(of(3, Some(StripeLayout::Partitioned), round, 1), (33, 1, 3));
        assert_eq!(Stripe::of_nodes(2, Some(StripeLayout::Partitioned), 0, None)(1).size, 1);
    }

    /// Goal: all stripes together have each byte of the ranges once, and each stripe its own.
    /// Method: every small world, against a byte at a time.
    #[test]
    fn stripes_have_each_byte_once() {
        for (size, count) in [(1, 1), (1, 3), (3, 2), (7, 3), (100, 2), (40, 4)] {
            for ranges in [vec![(0, 50)], vec![(0, 0)], vec![(3, 4), (9, 31), (40, 41)], vec![(49, 50)]] {
                let mut seen = vec![None; 60];
                for index in 0..count {
                    let ranges = ranges.clone().into_iter();
                    let stripe = Stripe { size, index, count };
                    for (from, to) in (StripePieces { ranges, left: None, stripe }) {
                        assert!(from < to, "{from} to {to}");
                        for byte in from..to {
                            assert_eq!(seen[byte as usize].replace(index), None, "byte {byte} twice");
                            assert_eq!(byte / size % count, index, "byte {byte}");
                        }
                    }
                }
                for byte in 0..60_u64 {
                    let wanted = ranges.iter().any(|(start, end)| (*start..*end).contains(&byte));
                    assert_eq!(seen[byte as usize].is_some(), wanted, "byte {byte} of {ranges:?}");
                }
            }
        }
    }
}
