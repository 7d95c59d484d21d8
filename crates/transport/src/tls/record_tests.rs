//! Sealing and opening, without a connection.

use aws_lc_rs::aead::{AES_128_GCM, Aad, Algorithm, CHACHA20_POLY1305};

use super::open::Opener;
use super::record::{
    Fault, HEADER_LEN, Key, Kind, Meaning, PLAIN_LEN_MAX, RECORD_LEN_MAX, TAG_LEN, TRAILER_LEN, header,
    meaning, record_len,
};
use super::seal::Sealer;

const CIPHERS: [&Algorithm; 2] = [&AES_128_GCM, &CHACHA20_POLY1305];

fn key(cipher: &'static Algorithm, seq: u64) -> Key {
    Key::new(cipher, &vec![7; cipher.key_len()], [9; 12], seq).unwrap()
}

fn sealed(sealer: &mut Sealer, kind: Kind, plain: &[u8]) -> Vec<u8> {
    let mut record = vec![0; HEADER_LEN + plain.len() + TRAILER_LEN];
    assert_eq!(sealer.seal(kind, plain, &mut record), Ok(record.len()));
    record
}

/// A record whose inside is `inner`, kind, padding and all.
fn sealed_inner(cipher: &'static Algorithm, seq: u64, inner: &[u8]) -> Vec<u8> {
    let mut key = key(cipher, seq);
    let head = header(inner.len() + TAG_LEN);
    let mut body = inner.to_vec();
    let nonce = key.next_nonce().unwrap();
    key.aead.seal_in_place_append_tag(nonce, Aad::from(head), &mut body).unwrap();
    [&head[..], &body].concat()
}

fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// Opens both ways and holds them against each other.
fn open(opener: [&mut Opener; 2], record: &[u8]) -> Result<(Kind, Vec<u8>), Fault> {
    let mut out = vec![0; Opener::room(record.len())];
    let mut place = record.to_vec();
    let [into, in_place] = opener;
    let (into, in_place) = (into.open_into(record, &mut out), in_place.open_in_place(&mut place));
    assert_eq!(into, in_place);
    let (kind, len) = into?;
    assert_eq!(out[..len], place[HEADER_LEN..][..len]);
    out.truncate(len);
    Ok((kind, out))
}

/// Goal: our records are those of the RFC.
/// Method: the client's application data of RFC 8448, section 3.
#[test]
fn record_of_rfc_8448() {
    let secret =
        [0x17, 0x42, 0x2d, 0xda, 0x59, 0x6e, 0xd5, 0xd9, 0xac, 0xd8, 0x90, 0xe3, 0xc6, 0x3f, 0x50, 0x51];
    let iv = [0x5b, 0x78, 0x92, 0x3d, 0xee, 0x08, 0x57, 0x90, 0x33, 0xe5, 0x23, 0xd9];
    let plain: Vec<u8> = (0..50).collect();
    let expected = "17030300 43a23f70 54b62c94 d0affafe 8228ba55 cbefacea 42f914aa 66bcab3f 2b9819a8 a5b46b39 \
                    5bd54a9a 20441e2b 62974e1f 5a6292a2 977014bd 1e3deae6 3aeebb21 694915e4";
    let mut sealer = Sealer::new(Key::new(&AES_128_GCM, &secret, iv, 0).unwrap());
    let record = sealed(&mut sealer, Kind::Data, &plain);
    assert_eq!(data_encoding::HEXLOWER.encode(&record), expected.replace(' ', ""));
}

/// Goal: what is sealed opens to the same bytes, whatever its length, cipher and number, both ways of
/// opening.
#[test]
fn sealed_records_open() {
    for cipher in CIPHERS {
        for seq in [0, 1 << 40] {
            let mut sealer = Sealer::new(key(cipher, seq));
            let [mut a, mut b] = [(); 2].map(|()| Opener::new(key(cipher, seq)));
            for (i, len) in
                [0, 1, 2, 15, 16, 17, 1000, PLAIN_LEN_MAX - 1, PLAIN_LEN_MAX].into_iter().enumerate()
            {
                let plain = random(i as u64, len);
                let kind = [Kind::Data, Kind::Alert, Kind::Handshake][i % 3];
                let record = sealed(&mut sealer, kind, &plain);
                assert_eq!(record_len(&record), Ok(Some(record.len())));
                assert_eq!(open([&mut a, &mut b], &record), Ok((kind, plain)));
            }
            assert_eq!(sealer.sealed(), seq + 9);
        }
    }
}

/// Goal: too much for a record, or too little room, seals nothing and uses up no number.
#[test]
fn what_does_not_fit_is_not_sealed() {
    let mut sealer = Sealer::new(key(&AES_128_GCM, 0));
    let mut out = vec![0; 2 * RECORD_LEN_MAX];
    assert_eq!(sealer.seal(Kind::Data, &vec![0; PLAIN_LEN_MAX + 1], &mut out), Err(Fault::TooLong));
    assert_eq!(
        sealer.seal(Kind::Data, &[0; 10], &mut out[..10 + HEADER_LEN + TRAILER_LEN - 1]),
        Err(Fault::TooLong)
    );
    assert_eq!(sealer.sealed(), 0);
    let mut worn = Sealer::new(key(&AES_128_GCM, u64::MAX));
    assert_eq!(worn.seal(Kind::Data, &[], &mut out), Err(Fault::Exhausted));
}

/// Goal: any flipped bit of any record ends the stream, also for the good records behind it.
/// Method: every bit of short records; seeded bits of long ones; then the untouched record and the next one.
#[test]
fn flipped_bits_end_the_stream() {
    for cipher in CIPHERS {
        for (seq, len) in [(0, 0), (1, 1), (2, 40), (3, 5000), (4, PLAIN_LEN_MAX)] {
            let mut sealer = Sealer::new(key(cipher, seq));
            let record = sealed(&mut sealer, Kind::Data, &random(seq, len));
            let next = sealed(&mut sealer, Kind::Data, &[1, 2, 3]);
            let mut rng = fastrand::Rng::with_seed(seq);
            let bits: Vec<usize> = match record.len() {
                0..100 => (0..record.len() * 8).collect(),
                bytes => (0..HEADER_LEN * 8).chain((0..300).map(|_| rng.usize(0..bytes * 8))).collect(),
            };
            for bit in bits {
                let mut damaged = record.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                let [mut a, mut b] = [(); 2].map(|()| Opener::new(key(cipher, seq)));
                let fault = open([&mut a, &mut b], &damaged).unwrap_err();
                assert!(matches!(fault, Fault::Forged | Fault::NoRecord | Fault::TooLong), "{fault}");
                assert_eq!(open([&mut a, &mut b], &record), Err(fault), "bit {bit}");
                assert_eq!(open([&mut a, &mut b], &next), Err(fault), "bit {bit}");
            }
        }
    }
}

/// Goal: records cannot be replayed, left out or swapped, and not be of another key.
#[test]
fn misplaced_records_end_the_stream() {
    let mut sealer = Sealer::new(key(&AES_128_GCM, 0));
    let [first, second] = [[1; 10], [2; 10]].map(|plain| sealed(&mut sealer, Kind::Data, &plain));
    for order in [vec![&second], vec![&first, &first]] {
        let [mut a, mut b] = [(); 2].map(|()| Opener::new(key(&AES_128_GCM, 0)));
        let last = order.into_iter().map(|record| open([&mut a, &mut b], record)).last();
        assert_eq!(last, Some(Err(Fault::Forged)));
    }
    let [mut a, mut b] = [(); 2].map(|()| Opener::new(key(&CHACHA20_POLY1305, 0)));
    assert_eq!(open([&mut a, &mut b], &first), Err(Fault::Forged));
}

/// Goal: a header says what a record may be, and nothing else.
#[test]
fn bad_headers_are_no_records() {
    for n in 0..HEADER_LEN {
        assert_eq!(record_len(&[23, 3, 3, 0, 50][..n]), Ok(None));
    }
    for (head, expected) in [
        ([23, 3, 3, 0, 17], Ok(Some(22))),
        ([23, 3, 3, 0, 16], Err(Fault::NoRecord)),
        ([23, 3, 3, 0, 0], Err(Fault::NoRecord)),
        ([23, 3, 3, 0x40, 17], Ok(Some(RECORD_LEN_MAX))),
        ([23, 3, 3, 0x40, 18], Err(Fault::TooLong)),
        ([23, 3, 3, 0xff, 0xff], Err(Fault::TooLong)),
        ([20, 3, 3, 0, 17], Err(Fault::NoRecord)),
        ([22, 3, 3, 0, 17], Err(Fault::NoRecord)),
        ([23, 3, 1, 0, 17], Err(Fault::NoRecord)),
    ] {
        assert_eq!(record_len(&head), expected, "{head:?}");
    }
}

/// Goal: padding is taken off; a record of nothing but padding, or of an unknown kind, is an error.
#[test]
fn padding_is_taken_off() {
    for (inner, expected) in [
        (&[5, 0, 6, 23, 0, 0, 0][..], Ok((Kind::Data, vec![5, 0, 6]))),
        (&[0, 0, 23], Ok((Kind::Data, vec![0, 0]))),
        (&[23, 0], Ok((Kind::Data, vec![]))),
        (&[1, 0, 21, 0], Ok((Kind::Alert, vec![1, 0]))),
        (&[0], Err(Fault::Unexpected)),
        (&[0; 30], Err(Fault::Unexpected)),
        (&[1, 2, 20], Err(Fault::Unexpected)),
        (&[1, 2, 24, 0], Err(Fault::Unexpected)),
    ] {
        for cipher in CIPHERS {
            let [mut a, mut b] = [(); 2].map(|()| Opener::new(key(cipher, 3)));
            assert_eq!(open([&mut a, &mut b], &sealed_inner(cipher, 3, inner)), expected, "{inner:?}");
        }
    }
}

/// Goal: only key updates, alerts and data follow a handshake; a message fills its record.
#[test]
fn other_messages_are_refused() {
    assert_eq!(meaning(Kind::Data, &[24, 0, 0, 1, 0]), Ok(Meaning::Data));
    assert_eq!(meaning(Kind::Handshake, &[24, 0, 0, 1, 0]), Ok(Meaning::KeyUpdate { answer: false }));
    assert_eq!(meaning(Kind::Handshake, &[24, 0, 0, 1, 1]), Ok(Meaning::KeyUpdate { answer: true }));
    assert_eq!(meaning(Kind::Alert, &[1, 0]), Ok(Meaning::Close));
    assert_eq!(meaning(Kind::Alert, &[2, 20]), Err(Fault::Alert(20)));
    assert_eq!(meaning(Kind::Alert, &[1, 90]), Err(Fault::Alert(90)));
    for (kind, body) in [
        (Kind::Handshake, &[24, 0, 0, 1, 2][..]),
        (Kind::Handshake, &[24, 0, 0, 1]),
        (Kind::Handshake, &[24, 0, 0, 1, 0, 24, 0, 0, 1, 0]),
        (Kind::Handshake, &[4, 0, 0, 1, 0]),
        (Kind::Handshake, &[]),
        (Kind::Alert, &[0]),
        (Kind::Alert, &[1, 0, 0]),
        (Kind::Alert, &[]),
    ] {
        assert_eq!(meaning(kind, body), Err(Fault::Unexpected), "{kind:?} {body:?}");
    }
}

/// Goal: no bytes make the opener panic.
/// Method: seeded junk behind good and bad headers, into buffers of any size.
#[test]
fn junk_is_no_record() {
    for seed in 0..5000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut junk = random(seed, rng.usize(0..600));
        if rng.bool() && junk.len() >= HEADER_LEN {
            let len = junk.len() - HEADER_LEN;
            junk[..HEADER_LEN].copy_from_slice(&header(len));
        }
        let mut out = vec![0; rng.usize(0..600)];
        assert!(Opener::new(key(&AES_128_GCM, 0)).open_into(&junk, &mut out).is_err());
        assert!(Opener::new(key(&AES_128_GCM, 0)).open_in_place(&mut junk).is_err());
    }
}
