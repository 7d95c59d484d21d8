//! Names in JSON.

use serde::{Deserialize, Serialize};

/// Bytes of a path or name, base64 in JSON because they need not be UTF-8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathBytes(pub Vec<u8>);

impl Serialize for PathBytes {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&data_encoding::BASE64.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for PathBytes {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        data_encoding::BASE64.decode(text.as_bytes()).map(PathBytes).map_err(serde::de::Error::custom)
    }
}
