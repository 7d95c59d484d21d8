//! Sums of what is sent, made here, to be held against those that a server makes of what it has.

use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256, SHA512};
use haul_ftp::Sum;

/// Adler-32 is modulo this, and so many bytes fit into 32 bits before that must be done.
const ADLER_BASE: u32 = 65_521;
const ADLER_STEP: usize = 5552;

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
}
