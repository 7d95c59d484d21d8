//! Sums of files for `CKSM`: algorithms by the names that GridFTP gives them.
//!
//! In: bytes. Out: the sum as hexadecimal digits.
//! ADLER32 is that of zlib (RFC 1950), in eight digits.

use aws_lc_rs::digest;

/// Algorithms, and how dear each is, as `FEAT` tells it.
pub const ALGORITHMS: [&str; 6] = ["MD5", "ADLER32", "SHA1", "SHA256", "SHA384", "SHA512"];

/// A sum that grows.
pub enum Sum {
    Md5(Box<md5::Context>),
    Adler(Adler),
    Sha(Box<digest::Context>),
}

impl Sum {
    /// The sum of nothing, in capitals as the name of the algorithm is.
    pub fn new(algorithm: &str) -> Option<Sum> {
        let sha = |algorithm| Some(Sum::Sha(Box::new(digest::Context::new(algorithm))));
        match algorithm {
            "MD5" => Some(Sum::Md5(Box::new(md5::Context::new()))),
            "ADLER32" => Some(Sum::Adler(Adler { a: 1, b: 0 })),
            "SHA1" => sha(&digest::SHA1_FOR_LEGACY_USE_ONLY),
            "SHA256" => sha(&digest::SHA256),
            "SHA384" => sha(&digest::SHA384),
            "SHA512" => sha(&digest::SHA512),
            _ => None,
        }
    }

    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Sum::Md5(context) => context.consume(bytes),
            Sum::Adler(adler) => adler.update(bytes),
            Sum::Sha(context) => context.update(bytes),
        }
    }

    pub fn finish(self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect();
        match self {
            Sum::Md5(context) => hex(&*context.finalize()),
            Sum::Adler(Adler { a, b }) => format!("{:08x}", b << 16 | a),
            Sum::Sha(context) => hex(context.finish().as_ref()),
        }
    }
}

/// Two sums modulo a prime.
pub struct Adler {
    a: u32,
    b: u32,
}

impl Adler {
    fn update(&mut self, bytes: &[u8]) {
        const MODULUS: u32 = 65_521;
        // So many bytes cannot make `b` overflow, wherever both begin.
        const RUN: usize = 5_552;
        for run in bytes.chunks(RUN) {
            for byte in run {
                self.a += u32::from(*byte);
                self.b += self.a;
            }
            self.a %= MODULUS;
            self.b %= MODULUS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(algorithm: &str, pieces: &[&[u8]]) -> String {
        let mut sum = Sum::new(algorithm).expect("an algorithm");
        pieces.iter().for_each(|piece| sum.update(piece));
        sum.finish()
    }

    /// Goal: each algorithm is the one that its name says, however the bytes come.
    /// Method: the published sums of "abc" and of nothing (RFC 1321, FIPS 180-4), and of ADLER32 that of a
    /// text whose sum its page has; a megabyte of the largest byte in two ways against a plain model.
    #[test]
    fn sums_are_those_of_their_names() {
        assert_eq!(sum("MD5", &[b"a", b"", b"bc"]), "900150983cd24fb0d6963f7d28e17f72");
        assert_eq!(sum("MD5", &[]), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(sum("SHA1", &[b"abc"]), "a9993e364706816aba3e25717850c26c9cd0d89d");
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sum("SHA256", &[b"ab", b"c"]), sha256);
        assert_eq!(sum("ADLER32", &[b"Wiki", b"pedia"]), "11e60398");
        assert_eq!(sum("ADLER32", &[]), "00000001");
        let bytes = vec![0xff; 1 << 20];
        let (mut a, mut b) = (1_u64, 0_u64);
        for byte in &bytes {
            a = (a + u64::from(*byte)) % 65_521;
            b = (b + a) % 65_521;
        }
        let expected = format!("{:08x}", b << 16 | a);
        assert_eq!(sum("ADLER32", &[&bytes]), expected);
        assert_eq!(sum("ADLER32", &[&bytes[..7], &bytes[7..]]), expected);
        assert!(Sum::new("CRC16").is_none());
        assert!(ALGORITHMS.iter().all(|algorithm| Sum::new(algorithm).is_some()));
    }
}
