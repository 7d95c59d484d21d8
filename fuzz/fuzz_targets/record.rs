//! TLS records: no bytes make the opener panic or pass for a record; what is sealed opens, and not when a bit
//! of it changed.
#![no_main]
use aws_lc_rs::aead::{AES_128_GCM, CHACHA20_POLY1305};
use haul_transport::tls::open::Opener;
use haul_transport::tls::record::{HEADER_LEN, Key, Kind, PLAIN_LEN_MAX, TRAILER_LEN, meaning, record_len};
use haul_transport::tls::seal::Sealer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let [choice, high, low, rest @ ..] = data else { return };
    let cipher = if choice & 1 == 0 { &AES_128_GCM } else { &CHACHA20_POLY1305 };
    let kind = [Kind::Data, Kind::Alert, Kind::Handshake][usize::from(choice >> 1) % 3];
    let key = || Key::new(cipher, &vec![3; cipher.key_len()], [5; 12], u64::from(*choice)).unwrap();
    // As they came, into a buffer of any size and in place.
    let _ = record_len(rest);
    let mut out = vec![0; usize::from(*low) * 64];
    assert!(Opener::new(key()).open_into(rest, &mut out).is_err());
    assert!(Opener::new(key()).open_in_place(&mut rest.to_vec()).is_err());
    let _ = meaning(kind, rest);
    // As payload.
    let plain = &rest[..rest.len().min(PLAIN_LEN_MAX)];
    let mut record = vec![0; HEADER_LEN + plain.len() + TRAILER_LEN];
    assert_eq!(Sealer::new(key()).seal(kind, plain, &mut record), Ok(record.len()));
    let mut out = vec![0; Opener::room(record.len())];
    assert_eq!(Opener::new(key()).open_into(&record, &mut out), Ok((kind, plain.len())));
    assert_eq!(&out[..plain.len()], plain);
    let bit = usize::from(u16::from_be_bytes([*high, *low])) % (record.len() * 8);
    record[bit / 8] ^= 1 << (bit % 8);
    assert!(Opener::new(key()).open_into(&record, &mut out).is_err());
    assert!(Opener::new(key()).open_in_place(&mut record).is_err());
});
