//! The blocks of a file: which server has which, and their bytes straight from there.
//!
//! A block is a stripe. The catalog and the server that gathers the file only say where blocks are and which
//! of them are gathered: of all others the bytes come from the servers that have them, from all at once, in
//! the order in which they come.
//! Invariant: a block is given once it is whole, with the bytes that a read would bring.

use std::collections::{BTreeMap, VecDeque};

use haul_core::volume::client::Striping;
use haul_core::volume::{FileNo, ServerNo};
use haul_core::wire::FILE_LEN_MAX;
use rustix::io::Errno;

use super::error::Why;
use super::many::{Source, flow};
use crate::client::{Client, Piece, READ_MAX, Waiting};

/// Blocks that are written are under way together up to so many bytes, or one.
const BYTES_UNDER_WAY: usize = 64 << 20;

/// One block of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Block {
    /// From 0.
    pub number: u64,
    /// Where it begins in the file, bytes.
    pub offset: u64,
    /// Bytes that it has: fewer than a block in the file's last one.
    pub len: u64,
    /// The server that it lies on, by its place in [`Volume::servers`](super::Volume::servers).
    pub server: u16,
}

/// The blocks of a file, as long as it was when they were asked for.
#[derive(Clone, Debug)]
pub struct Blocks {
    striping: Striping,
    file: FileNo,
    end: u64,
}

impl Blocks {
    pub(super) fn new(striping: Striping, file: FileNo, end: u64) -> Blocks {
        Blocks { striping, file, end }
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.end.div_ceil(self.striping.stripe_size)
    }

    /// Bytes of a block.
    pub fn size(&self) -> u64 {
        self.striping.stripe_size
    }

    /// Bytes of the file.
    pub fn file_len(&self) -> u64 {
        self.end
    }

    /// The block of that number, if there is one.
    pub fn get(&self, number: u64) -> Option<Block> {
        let offset = number.checked_mul(self.size()).filter(|offset| *offset < self.end)?;
        let ServerNo(server) = self.striping.server(self.file, number);
        Some(Block { number, offset, len: self.size().min(self.end - offset), server })
    }

    /// All of them, in their order.
    pub fn iter(&self) -> impl Iterator<Item = Block> {
        (0..self.count()).filter_map(|number| self.get(number))
    }
}

/// Which way blocks came that were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlocksRead {
    /// Straight from the server that they lie on.
    pub direct: u64,
    /// With what the server had of them that gathers the file.
    pub gathered: u64,
    /// Behind the file's end.
    pub empty: u64,
}

/// A block that comes in several pieces.
struct Whole {
    bytes: Vec<u8>,
    left: usize,
}

/// See [`File::read_blocks`](super::File::read_blocks).
pub(super) fn read(
    source: &Source<'_>,
    numbers: &[u64],
    mut each: impl FnMut(u64, &[u8]),
) -> Result<BlocksRead, (usize, Why)> {
    let size = source.striping().stripe_size;
    let last = FILE_LEN_MAX / size;
    let mut stripes: Vec<u64> = numbers.iter().copied().filter(|number| *number < last).collect();
    stripes.sort_unstable();
    stripes.dedup();
    let place = |number| numbers.iter().position(|one| *one == number).unwrap_or(0);
    let maps = source.maps(&stripes).map_err(|(stripe, why)| (place(stripe), Why::from(why)))?;
    let mut ways = BlocksRead::default();
    // Of which of `numbers` each piece is.
    let (mut pieces, mut of, mut wholes) = (Vec::new(), Vec::new(), BTreeMap::new());
    for (nth, number) in numbers.iter().enumerate() {
        let offset = number.checked_mul(size).filter(|offset| *offset < maps.end);
        let Some(offset) = offset else {
            ways.empty += 1;
            each(*number, &[]);
            continue;
        };
        let (len, not_gathered) = (size.min(maps.end - offset), maps.not_gathered(*number));
        let max = not_gathered.map_or(READ_MAX, |_| len);
        *(if not_gathered.is_some() { &mut ways.direct } else { &mut ways.gathered }) += 1;
        let first = pieces.len();
        for at in (0..len).step_by(max as usize) {
            let (offset, len) = (offset + at, max.min(len - at));
            pieces.push(Piece { file: source.file, offset, len, not_gathered });
            of.push(nth);
        }
        let left = pieces.len() - first;
        // One that comes in one piece is given as it came, if it can be.
        if left > 1 {
            wholes.insert(nth, (len, left));
        }
    }
    let mut room = Vec::new();
    let mut begun: BTreeMap<usize, Whole> = BTreeMap::new();
    flow(source, &pieces, |nth, came| {
        let (number, piece) = (numbers[of[nth]], &pieces[nth]);
        let Some((len, left)) = wholes.get(&of[nth]).copied() else {
            match came.plain().filter(|bytes| bytes.len() as u64 == piece.len) {
                Some(bytes) => each(number, bytes),
                None => {
                    room.clear();
                    room.resize(piece.len as usize, 0);
                    came.copy(0, &mut room);
                    each(number, &room);
                }
            }
            return;
        };
        let new = || Whole { bytes: vec![0; len as usize], left };
        let whole = begun.entry(of[nth]).or_insert_with(new);
        let at = (piece.offset % size) as usize;
        came.copy(0, &mut whole.bytes[at..at + piece.len as usize]);
        whole.left -= 1;
        if whole.left == 0
            && let Some(whole) = begun.remove(&of[nth])
        {
            each(number, &whole.bytes);
        }
    })
    .map_err(|(nth, why)| (of.get(nth).copied().unwrap_or(0), why))?;
    Ok(ways)
}

/// See [`File::write_blocks`](super::File::write_blocks). Returns how far the file reaches by it.
pub(super) fn write(client: &Client, file: FileNo, blocks: &[(u64, &[u8])]) -> Result<u64, (usize, Why)> {
    let size = client.striping().stripe_size;
    let place = |(number, bytes): &(u64, &[u8])| {
        let offset = number.checked_mul(size).filter(|_| bytes.len() as u64 <= size);
        offset.and_then(|offset| Some((offset, offset.checked_add(bytes.len() as u64)?)))
    };
    let mut end = 0;
    for (nth, block) in blocks.iter().enumerate() {
        let sound = place(block).filter(|(_, end)| *end <= FILE_LEN_MAX);
        let why = || (nth, Why::refused(Errno::INVAL, format!("block {} has at most {size} bytes", block.0)));
        end = end.max(sound.ok_or_else(why)?.1);
    }
    let (mut waiting, mut bytes, mut result) = (VecDeque::new(), 0, Ok(()));
    let next = |waiting: &mut VecDeque<(usize, usize, Waiting<()>)>, bytes: &mut usize| {
        let Some((nth, len, one)) = waiting.pop_front() else { return Ok(()) };
        *bytes -= len;
        one.wait().map_err(|why| (nth, Why::from(why)))
    };
    for (nth, block) in blocks.iter().enumerate() {
        let Some((offset, _)) = place(block).filter(|_| !block.1.is_empty()) else { continue };
        while bytes + block.1.len() > BYTES_UNDER_WAY && !waiting.is_empty() {
            result = result.and(next(&mut waiting, &mut bytes));
        }
        if result.is_err() {
            break;
        }
        bytes += block.1.len();
        waiting.push_back((nth, block.1.len(), client.write(file, offset, block.1.to_vec())));
    }
    // When this returns nothing of it is under way.
    while !waiting.is_empty() {
        result = result.and(next(&mut waiting, &mut bytes));
    }
    result.map(|()| end)
}
