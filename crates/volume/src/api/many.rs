//! Many ranges of a file in one call: what is asked of whom, and what comes goes where it was asked for.
//!
//! In: ranges and room for their bytes. Out: how many bytes there were of each.
//! Invariants: each byte that is asked for is read, from a piece that was asked for after the call began;
//! pieces lie in one stripe; what may be gathered is asked of its gatherer, and of what is not, by a map that
//! this call asked for, the server that has it is asked alone. What is under way is bounded.
//! Left out: which of it was read ahead, which the caller knows.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crossbeam_channel::unbounded;
use haul_core::volume::client::Striping;
use haul_core::volume::wire::MAP_MAX;
use haul_core::volume::{ContentVersion, FileNo, ServerNo};
use haul_core::wire::FILE_LEN_MAX;

use super::error::Why;
use crate::catalog::client::Client as Catalog;
use crate::client::{Came, Client, Map, Piece, READ_MAX, VolumeError};
use crate::contents::{self, ContentsError};

/// Bytes between two ranges that are read with them rather than asked for apart.
const GAP: u64 = 4096;
/// Of what is not gathered so much is asked for at a time.
const DIRECT_MAX: u64 = 1 << 20;
/// Requests and bytes under way of one call; each server has one at least.
const UNDER_WAY: usize = 256;
const BYTES_UNDER_WAY: u64 = 64 << 20;
/// Maps under way of one call.
const MAPS_UNDER_WAY: usize = 64;

/// What is read, and by whom.
pub(super) struct Source<'a> {
    pub(super) client: &'a Client,
    /// `None`: it was told that this client is done.
    pub(super) catalog: Option<&'a Catalog>,
    pub(super) file: FileNo,
    /// Where it ends by what this program wrote.
    pub(super) own_end: u64,
}

/// What maps of all stripes of a call showed.
pub(super) struct Maps {
    /// By the first stripe of each.
    maps: BTreeMap<u64, Map>,
    /// Where the file ends, by what this program wrote too.
    pub(super) end: u64,
    /// Of the file's bytes, if all maps told one, and the same.
    pub(super) version: Option<ContentVersion>,
}

impl Maps {
    /// Whether a stripe was gathered, of those that were asked for.
    fn is_gathered(&self, stripe: u64) -> bool {
        let map = self.maps.range(..=stripe).next_back();
        map.is_none_or(|(_, map)| map.is_gathered(stripe))
            && !haul_mutant::removed("volume-gathered-blocks-are-asked-for")
    }

    /// Most bytes of a piece in that stripe.
    pub(super) fn max(&self, stripe: u64) -> u64 {
        self.not_gathered(stripe).map_or(READ_MAX, |_| DIRECT_MAX)
    }

    /// Of a piece in that stripe: where the file ended, if it was not gathered.
    pub(super) fn not_gathered(&self, stripe: u64) -> Option<u64> {
        let asks = self.is_gathered(stripe) || haul_mutant::removed("volume-blocks-are-direct");
        (!asks).then_some(self.end)
    }
}

impl Source<'_> {
    pub(super) fn striping(&self) -> &Striping {
        self.client.striping()
    }

    /// What no server has from there on was never written, and is zeros.
    ///
    /// # Errors
    /// It is lost; or nobody says.
    pub(super) fn is_there(&self, offset: u64) -> Result<(), Why> {
        let Some(catalog) = self.catalog else { return Ok(()) };
        match contents::is_lost(catalog, self.client, self.file, offset) {
            Ok(None) => Ok(()),
            Ok(Some(why)) | Err(ContentsError::Servers(why)) => Err(why.into()),
            Err(ContentsError::Catalog(why)) => Err(why.into()),
        }
    }

    /// What is asked for a run.
    pub(super) fn piece(&self, run: &Run, maps: Option<&Maps>) -> Piece {
        let stripe = run.offset / self.striping().stripe_size;
        let not_gathered = maps.and_then(|maps| maps.not_gathered(stripe));
        Piece { file: self.file, offset: run.offset, len: run.end - run.offset, not_gathered }
    }

    /// Asks for maps of these stripes, which are in their order. An error bears the stripe.
    pub(super) fn maps(&self, stripes: &[u64]) -> Result<Maps, (u64, VolumeError)> {
        let (mut windows, mut rest): (Vec<Range<u64>>, _) = (Vec::new(), stripes.iter());
        let Some(&first) = rest.next() else {
            return Ok(Maps { maps: BTreeMap::new(), end: self.own_end, version: None });
        };
        windows.push(first..first + 1);
        for &stripe in rest {
            match windows.last_mut() {
                Some(last) if stripe - last.start < MAP_MAX => last.end = stripe + 1,
                _ => windows.push(stripe..stripe + 1),
            }
        }
        let (mut maps, mut waiting) = (BTreeMap::new(), VecDeque::new());
        let mut windows = windows.into_iter();
        loop {
            while waiting.len() < MAPS_UNDER_WAY
                && let Some(window) = windows.next()
            {
                waiting.push_back((window.start, self.client.map(self.file, window)));
            }
            let Some((first, map)) = waiting.pop_front() else { break };
            maps.insert(first, map.wait().map_err(|why| (first, why))?);
        }
        let end = maps.values().map(|map| map.end).fold(self.own_end, u64::max);
        let mut versions = maps.values().map(|map| map.version);
        let version = versions.next().flatten();
        let version = version.filter(|first| versions.all(|other| other == Some(*first)));
        Ok(Maps { maps, end, version })
    }
}

/// A part of a range, in one stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Where in the file.
    offset: u64,
    pub(super) len: u64,
    /// Of which range, and where in its room.
    range: usize,
    at: usize,
}

/// Some of them that are asked for at once: those from `first` on, `count` of them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) offset: u64,
    pub(super) end: u64,
    first: usize,
    count: usize,
}

/// The parts of ranges that end at `end` at most, cut at stripes and at `max` bytes, in the order of their
/// offsets.
pub(super) fn parts(
    ranges: impl Iterator<Item = (u64, u64)>,
    end: u64,
    stripe_size: u64,
    max: impl Fn(u64) -> u64,
) -> Vec<Wanted> {
    let mut all = Vec::new();
    for (range, (start, len)) in ranges.enumerate() {
        let last = start.saturating_add(len).min(end);
        let mut offset = start;
        while offset < last {
            let stripe_end = (offset - offset % stripe_size).saturating_add(stripe_size);
            let len = (last - offset).min(stripe_end - offset).min(max(offset / stripe_size));
            all.push(Wanted { offset, len, range, at: (offset - start) as usize });
            offset += len;
        }
    }
    all.sort_by_key(|part| (part.offset, part.len));
    all
}

/// The stripes of parts, each once and in their order.
pub(super) fn stripes_of(parts: &[Wanted], stripe_size: u64) -> Vec<u64> {
    let mut stripes: Vec<u64> = parts.iter().map(|part| part.offset / stripe_size).collect();
    stripes.dedup();
    stripes
}

/// Puts parts together that lie close, in one stripe, up to `max` bytes.
pub(super) fn together(parts: &[Wanted], stripe_size: u64, max: impl Fn(u64) -> u64) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (first, part) in parts.iter().enumerate() {
        let (stripe, part_end) = (part.offset / stripe_size, part.offset + part.len);
        let fits = |run: &&mut Run| {
            part.offset <= run.end.saturating_add(GAP)
                && run.offset / stripe_size == stripe
                && part_end.max(run.end) - run.offset <= max(stripe)
        };
        match runs.last_mut().filter(fits) {
            Some(run) => (run.end, run.count) = (run.end.max(part_end), run.count + 1),
            None => runs.push(Run { offset: part.offset, end: part_end, first, count: 1 }),
        }
    }
    runs
}

/// Reads ranges into their room; see [`File::pread_many`](super::File::pread_many).
///
/// `holds`: some of it may have been read ahead. Then `held` is told which version the file's bytes are of
/// now, and what it returns copies what is held from an offset on, or says that it is not.
pub(super) fn read<H: Fn(u64, &mut [u8]) -> bool>(
    source: &Source<'_>,
    holds: bool,
    held: impl FnOnce(Option<ContentVersion>) -> H,
    ranges: &mut [(u64, &mut [u8])],
) -> Result<Vec<usize>, (usize, Why)> {
    let stripe_size = source.striping().stripe_size;
    let lens: Vec<(u64, u64)> = ranges.iter().map(|(offset, room)| (*offset, room.len() as u64)).collect();
    let asked = parts(lens.iter().copied(), FILE_LEN_MAX, stripe_size, |_| READ_MAX);
    let single = together(&asked, stripe_size, |_| READ_MAX);
    // Of one piece its gatherer is asked as fast as for a map.
    let is_single = single.len() <= 1 && !holds;
    let (mut end, maps) = match is_single {
        true => (source.own_end, None),
        false => {
            let maps = source.maps(&stripes_of(&asked, stripe_size)).map_err(|(stripe, why)| {
                let of = asked.iter().find(|part| part.offset / stripe_size == stripe);
                (of.map_or(0, |part| part.range), Why::from(why))
            })?;
            (maps.end, Some(maps))
        }
    };
    let (wanted, runs) = match &maps {
        None => (asked, single),
        Some(maps) => {
            let max = |stripe| maps.max(stripe);
            let mut wanted = parts(lens.iter().copied(), maps.end, stripe_size, max);
            let copies = held(maps.version);
            wanted.retain(|part| {
                let room = &mut ranges[part.range].1[part.at..part.at + part.len as usize];
                !copies(part.offset, room)
            });
            let runs = together(&wanted, stripe_size, max);
            (wanted, runs)
        }
    };
    let pieces: Vec<Piece> = runs.iter().map(|run| source.piece(run, maps.as_ref())).collect();
    flow(source, &pieces, |nth, came| {
        let run = &runs[nth];
        for part in &wanted[run.first..run.first + run.count] {
            let room = &mut ranges[part.range].1[part.at..part.at + part.len as usize];
            came.copy((part.offset - run.offset) as usize, room);
        }
        end = end.max(came.end());
    })
    .map_err(|(nth, why)| {
        let run = &runs[nth];
        let of = wanted[run.first..run.first + run.count].iter().map(|part| part.range).min();
        (of.unwrap_or(0), why)
    })?;
    Ok(lens.into_iter().map(|(offset, len)| end.saturating_sub(offset).min(len) as usize).collect())
}

/// Reads pieces from all their servers at once, and gives each to `arrived` when it came, by its place in
/// `pieces`.
///
/// # Errors
/// The first that is heard of, and of which piece it is.
pub(super) fn flow(
    source: &Source<'_>,
    pieces: &[Piece],
    mut arrived: impl FnMut(usize, Came),
) -> Result<(), (usize, Why)> {
    let striping = source.striping();
    let server_of = |piece: &Piece| striping.server(piece.file, piece.offset / striping.stripe_size);
    let mut queues: BTreeMap<ServerNo, (VecDeque<usize>, usize)> = BTreeMap::new();
    for (nth, piece) in pieces.iter().enumerate() {
        queues.entry(server_of(piece)).or_default().0.push_back(nth);
    }
    let (to, came) = unbounded();
    let mut has_holes = false;
    let (mut under_way, mut bytes, mut left) = (0, 0, pieces.len());
    while left > 0 {
        // One of each server in turns, until there is no room for more.
        let mut begins = true;
        while std::mem::take(&mut begins) {
            for (queue, of_server) in queues.values_mut() {
                let Some(&nth) = queue.front() else { continue };
                let piece = pieces[nth];
                let has_room = under_way < UNDER_WAY && bytes + piece.len <= BYTES_UNDER_WAY;
                if *of_server > 0 && !has_room {
                    continue;
                }
                queue.pop_front();
                (under_way, bytes, *of_server, begins) =
                    (under_way + 1, bytes + piece.len, *of_server + 1, true);
                let to = to.clone();
                source.client.piece(piece, move |result| _ = to.send((nth, result)));
            }
        }
        let Ok((nth, result)) = came.recv() else { return Err((0, VolumeError::Closed.into())) };
        let piece = &pieces[nth];
        (under_way, bytes, left) = (under_way - 1, bytes - piece.len, left - 1);
        if let Some((_, of_server)) = queues.get_mut(&server_of(piece)) {
            *of_server -= 1;
        }
        let came = result.map_err(|why| (nth, Why::from(why)))?;
        // What is known of one of them is so of all.
        if let Some(offset) = came.nowhere().filter(|_| !std::mem::replace(&mut has_holes, true)) {
            source.is_there(offset).map_err(|why| (nth, why))?;
        }
        arrived(nth, came);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: parts of ranges tile them, each in one stripe; what is put together has all of its parts, lies
    /// in one stripe and is no longer than it may be. Method: random ranges, those at the ends of what there
    /// can be too.
    #[test]
    fn parts_tile_their_ranges() {
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..2000 {
            let stripe_size = 1 << random.u32(12..20);
            let max = |stripe: u64| if stripe.is_multiple_of(2) { 64 << 10 } else { 16 << 10 };
            let range = |random: &mut fastrand::Rng| {
                let near = random.u64(0..1 << 20);
                let offset = match random.u8(0..8) {
                    0 => u64::MAX - near,
                    1 => FILE_LEN_MAX - near,
                    _ => near,
                };
                {
                    let most = 1 << random.u32(0..19);
                    (offset, random.u64(0..most))
                }
            };
            let ranges: Vec<(u64, u64)> = (0..random.usize(0..12)).map(|_| range(&mut random)).collect();
            let end = if random.bool() { FILE_LEN_MAX } else { random.u64(0..1 << 20) };
            let parts = parts(ranges.iter().copied(), end, stripe_size, max);
            let mut lens = vec![0; ranges.len()];
            let in_order = {
                let mut all = parts.clone();
                all.sort_by_key(|part| (part.range, part.at));
                all
            };
            for part in in_order {
                let (offset, len) = ranges[part.range];
                assert_eq!((part.at as u64, part.offset), (lens[part.range], offset + part.at as u64));
                assert!(part.len > 0 && part.offset % stripe_size + part.len <= stripe_size);
                lens[part.range] += part.len;
                assert!(lens[part.range] <= len);
            }
            for ((offset, len), got) in ranges.iter().zip(lens) {
                assert_eq!(got, offset.saturating_add(*len).min(end).saturating_sub(*offset));
            }
            let runs = together(&parts, stripe_size, max);
            let mut next = 0;
            for run in runs {
                assert_eq!(run.first, next);
                next += run.count;
                assert!(run.offset % stripe_size + (run.end - run.offset) <= stripe_size);
                assert!(run.end - run.offset <= max(run.offset / stripe_size));
                for part in &parts[run.first..next] {
                    assert!(
                        run.offset <= part.offset && part.offset + part.len <= run.end,
                        "{run:?} {part:?}"
                    );
                }
            }
            assert_eq!(next, parts.len());
        }
    }
}
