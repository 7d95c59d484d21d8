//! Keys of a volume: of its servers, of its owner, of those who read; and the volume's number.
//!
//! In: randomness, or text. Out: what connections are made with.
//! Invariant: a private key is wiped when it is dropped, and never shown.

use std::fmt;
use std::io;

use data_encoding::{BASE64, HEXLOWER};
use haul_core::volume::ticket;
use haul_core::volume::wire::VolumeId;
use haul_transport::TransportError;
use haul_transport::tls::{Identity, Pin};
use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serializer};
use zeroize::Zeroizing;

use crate::dial::Keys;

/// What stands before the seed in the key's file: a private key of Ed25519 in PKCS #8.
const HEAD: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
const SEED_LEN: usize = 32;
/// What stands before a public key of Ed25519 in its SubjectPublicKeyInfo.
const PUBLIC_HEAD: [u8; 12] = [0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0];
const KEY_LEN: usize = HEAD.len() + SEED_LEN;

/// A private key of Ed25519: PKCS #8, in DER.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Zeroizing<Vec<u8>>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// A new one.
    ///
    /// # Errors
    /// The system gives no randomness.
    pub fn generate() -> io::Result<Key> {
        let mut der = Zeroizing::new(vec![0; KEY_LEN]);
        der[..HEAD.len()].copy_from_slice(&HEAD);
        random(&mut der[HEAD.len()..])?;
        Ok(Key(der))
    }

    /// What connections of that volume are made with, by those who have this key in common.
    ///
    /// # Errors
    /// It is no key.
    pub fn keys(&self, volume: VolumeId) -> Result<Keys, TransportError> {
        let identity = Identity::of_pkcs8(&self.0)?;
        let pin = Pin(identity.public());
        Ok(Keys { volume, identity, pin })
    }

    /// The same, to servers that hold another key.
    ///
    /// # Errors
    /// As of [`Key::keys`].
    pub fn keys_to(&self, volume: VolumeId, servers: &Public) -> Result<Keys, TransportError> {
        Ok(Keys { pin: servers.pin(), ..self.keys(volume)? })
    }

    /// What the catalog seals tickets with, if this is the key of a volume's servers.
    pub fn tickets(&self, volume: VolumeId) -> ticket::Key {
        let mut secret = Zeroizing::new(Vec::with_capacity(KEY_LEN + volume.0.len()));
        secret.extend_from_slice(&self.0);
        secret.extend_from_slice(&volume.0);
        ticket::Key::of_secret(&secret)
    }

    /// What others know it by.
    ///
    /// # Errors
    /// It is no key.
    pub fn public(&self) -> Result<Public, TransportError> {
        Ok(Public(Identity::of_pkcs8(&self.0)?.public()))
    }
}

/// The public half of a key: who holds that can be told by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Public(Vec<u8>);

impl Public {
    pub fn pin(&self) -> Pin {
        Pin(self.0.clone())
    }
}

impl serde::Serialize for Public {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Public {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Public, D::Error> {
        let read = |text: &str| {
            let der = BASE64.decode(text.as_bytes()).ok()?;
            (der.len() == PUBLIC_HEAD.len() + SEED_LEN && der.starts_with(&PUBLIC_HEAD))
                .then_some(Public(der))
        };
        from.deserialize_str(OfText("a public key of Ed25519", read))
    }
}

/// A number that no other volume has.
///
/// # Errors
/// The system gives no randomness.
pub fn new_volume() -> io::Result<VolumeId> {
    let mut id = [0; 16];
    random(&mut id)?;
    Ok(VolumeId(id))
}

fn random(mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let len = retry_on_intr(|| getrandom(&mut *bytes, GetRandomFlags::empty()))?;
        bytes = &mut bytes[len..];
    }
    Ok(())
}

/// Makes a value of a text that nothing keeps.
struct OfText<T, F: FnOnce(&str) -> Option<T>>(&'static str, F);

impl<T, F: FnOnce(&str) -> Option<T>> Visitor<'_> for OfText<T, F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        // What it is instead is not told: it may be a key.
        self.1(text).ok_or_else(|| E::custom(format!("this is not {}", self.0)))
    }
}

impl serde::Serialize for Key {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&Zeroizing::new(BASE64.encode(&self.0)))
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Key, D::Error> {
        let read = |text: &str| {
            let der = Zeroizing::new(BASE64.decode(text.as_bytes()).ok()?);
            (der.len() == KEY_LEN && der.starts_with(&HEAD)).then_some(Key(der))
        };
        let key = from.deserialize_str(OfText("a private key of Ed25519", read))?;
        key.keys(VolumeId([0; 16])).map_err(D::Error::custom)?;
        Ok(key)
    }
}

/// The number of a volume as text, for files and for what is said before there are connections.
pub mod volume_id {
    use super::*;

    pub fn serialize<S: Serializer>(id: &VolumeId, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&HEXLOWER.encode(&id.0))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<VolumeId, D::Error> {
        let read = |text: &str| {
            let id = HEXLOWER.decode(text.as_bytes()).ok()?;
            Some(VolumeId(id.try_into().ok()?))
        };
        from.deserialize_str(OfText("the number of a volume", read))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a key survives its text, is never shown, and what is no key is refused without being told.
    #[test]
    fn keys_are_read_and_not_shown() {
        let key = Key::generate().expect("randomness");
        assert_ne!(key, Key::generate().expect("randomness"));
        let text = serde_json::to_string(&key).expect("text");
        assert_eq!(serde_json::from_str::<Key>(&text).expect("the same"), key);
        let secret = text.trim_matches('"').to_owned();
        assert!(!format!("{key:?}").contains(&secret));
        for wrong in [&secret[4..], &secret[..60], "geheim", ""] {
            let error = serde_json::from_str::<Key>(&format!("\"{wrong}\"")).expect_err("no key").to_string();
            assert!(wrong.is_empty() || !error.contains(wrong), "{error}");
        }
        let public = key.public().expect("a key");
        let text = serde_json::to_string(&public).expect("text");
        assert_eq!(serde_json::from_str::<Public>(&text).expect("the same"), public);
        assert!(!text.contains(&secret[24..]));
        for wrong in [secret.as_str(), &text[5..40]] {
            assert!(serde_json::from_str::<Public>(&format!("\"{wrong}\"")).is_err());
        }
    }
}
