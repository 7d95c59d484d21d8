//! Sums of what is sent, made here, to be held against those that a server makes of what it has.
//!
//! In: bytes in their order. Out: the sum of all; or, of a large file, those of its parts, which several
//! sessions can ask the server for at the same time: one processor of a server makes some 1.5 GB/s of
//! SHA-256, so that behind a fast network the one sum of a whole file took as long as sending it.

use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256, SHA512};
use haul_ftp::Sum;

/// Adler-32 is modulo this, and so many bytes fit into 32 bits before that must be done.
const ADLER_BASE: u32 = 65_521;
const ADLER_STEP: usize = 5552;

/// Length of the parts that a large file is compared in.
pub(super) const PART_LEN: u64 = 256 << 20;

/// The sum of what was sent of a file, or those of its parts of `part_len` bytes, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sums {
    part_len: u64,
    sums: Vec<Vec<u8>>,
    /// Nothing else proves that what was gone on with is the source's: without a sum from the server it has
    /// no name.
    pub(super) decides: bool,
}

impl Sums {
    /// The one sum of all.
    pub(super) fn whole(&self) -> Option<&Vec<u8>> {
        self.sums.first().filter(|_| self.sums.len() == 1)
    }

    /// The parts of a file of so many bytes, each by its offset and length, and the sum of what was sent of
    /// it.
    pub(super) fn parts(&self, size: u64) -> impl Iterator<Item = ((u64, u64), &Vec<u8>)> {
        let starts = (0u64..).map(|at| at.saturating_mul(self.part_len));
        starts.zip(&self.sums).map(move |(start, sum)| {
            let left = size.saturating_sub(start);
            ((start, left.min(self.part_len)), sum)
        })
    }
}

/// The sums of a file that is being sent.
pub(super) struct FileSumming {
    sum: Option<Sum>,
    part_len: u64,
    /// What is missing of the part that is summed now.
    left: u64,
    summing: Summing,
    sums: Vec<Vec<u8>>,
    decides: bool,
}

impl FileSumming {
    /// `in_parts`: where it is longer than one.
    pub(super) fn new(sum: Option<Sum>, size: u64, in_parts: bool) -> FileSumming {
        let part_len = if in_parts && size > PART_LEN { PART_LEN } else { u64::MAX };
        let summing = Summing::new(sum);
        FileSumming { sum, part_len, left: part_len, summing, sums: Vec::new(), decides: false }
    }

    /// Nothing else will prove what was gone on with.
    pub(super) fn deciding(self) -> FileSumming {
        FileSumming { decides: true, ..self }
    }

    pub(super) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left == 0 {
                let done = std::mem::replace(&mut self.summing, Summing::new(self.sum));
                self.sums.extend(done.finish());
                self.left = self.part_len;
            }
            let now = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
            let (of_it, rest) = bytes.split_at(now);
            self.summing.update(of_it);
            self.left -= now as u64;
            bytes = rest;
        }
    }

    /// `None`: the server makes no sums.
    pub(super) fn finish(mut self) -> Option<Sums> {
        self.sums.push(self.summing.finish()?);
        Some(Sums { part_len: self.part_len, sums: self.sums, decides: self.decides })
    }
}

/// A sum that is being made.
pub(super) enum Summing {
    Digest(Context),
    Adler(u32, u32),
    /// The server makes none that is known here.
    None,
}

impl Summing {
    pub(super) fn new(sum: Option<Sum>) -> Summing {
        match sum {
            Some(Sum::Sha256) => Summing::Digest(Context::new(&SHA256)),
            Some(Sum::Sha512) => Summing::Digest(Context::new(&SHA512)),
            Some(Sum::Sha1) => Summing::Digest(Context::new(&SHA1_FOR_LEGACY_USE_ONLY)),
            Some(Sum::Adler32) => Summing::Adler(1, 0),
            None => Summing::None,
        }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Summing::Digest(context) => context.update(bytes),
            Summing::Adler(a, b) => {
                for some in bytes.chunks(ADLER_STEP) {
                    for byte in some {
                        *a += u32::from(*byte);
                        *b += *a;
                    }
                    (*a, *b) = (*a % ADLER_BASE, *b % ADLER_BASE);
                }
            }
            Summing::None => {}
        }
    }

    pub(super) fn finish(self) -> Option<Vec<u8>> {
        match self {
            Summing::Digest(context) => Some(context.finish().as_ref().to_vec()),
            Summing::Adler(a, b) => Some((b << 16 | a).to_be_bytes().to_vec()),
            Summing::None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(sum: Sum, parts: &[&[u8]]) -> String {
        let mut summing = Summing::new(Some(sum));
        parts.iter().for_each(|part| summing.update(part));
        summing.finish().expect("one").iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Goal: sums are those that everybody makes, in whatever pieces the bytes come.
    /// Method: known values (`sha1sum` and others, and zlib's `adler32`).
    #[test]
    fn sums_are_everybodys() {
        assert_eq!(hex(Sum::Adler32, &[b"Wikipedia"]), "11e60398");
        assert_eq!(hex(Sum::Adler32, &[]), "00000001");
        assert_eq!(hex(Sum::Adler32, &[&[0xff; 100_000]]), hex(Sum::Adler32, &[&[0xff; 99_999], &[0xff]]));
        assert_eq!(hex(Sum::Sha1, &[b"a", b"bc"]), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert_eq!(
            hex(Sum::Sha256, &[b"abc"]),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert!(hex(Sum::Sha512, &[b"abc"]).starts_with("ddaf35a193617abacc417349ae204131"));
    }

    /// Goal: the parts of a file follow each other without a gap up to its end, each has the sum of its own
    /// bytes, and a file that ends with a part has none behind it.
    #[test]
    fn parts_are_the_file() {
        let of = |bytes: &[u8]| {
            let mut summing = Summing::new(Some(Sum::Adler32));
            summing.update(bytes);
            summing.finish().expect("one")
        };
        let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(1 << 20).collect();
        for size in [PART_LEN + 1, 2 * PART_LEN, 2 * PART_LEN + (3 << 20)] {
            let mut summing = FileSumming::new(Some(Sum::Adler32), size, true);
            // In pieces that end nowhere near a part's end.
            let mut at = 0;
            while at < size {
                let len = (bytes.len() as u64 - at % 7).min(size - at);
                summing.update(&bytes[..len as usize]);
                at += len;
            }
            let sums = summing.finish().expect("sums");
            assert_eq!(sums.whole(), None);
            let parts: Vec<(u64, u64)> = sums.parts(size).map(|(part, _)| part).collect();
            assert_eq!(parts.len() as u64, size.div_ceil(PART_LEN), "{size}");
            let mut end = 0;
            for (start, len) in parts {
                assert_eq!(start, end);
                assert!(len > 0 && len <= PART_LEN);
                end += len;
            }
            assert_eq!(end, size);
        }
        for (size, in_parts) in [(0, true), (5, true), (PART_LEN, true), (PART_LEN + 1, false)] {
            let mut summing = FileSumming::new(Some(Sum::Adler32), size, in_parts);
            summing.update(b"abcde");
            let sums = summing.finish().expect("sums");
            assert_eq!(sums.whole(), Some(&of(b"abcde")));
            assert_eq!(sums.parts(size).map(|(part, _)| part).collect::<Vec<_>>(), [(0, size)]);
        }
        assert_eq!(FileSumming::new(None, 5, true).finish(), None);
    }
}
