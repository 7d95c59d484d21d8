//! What the two ends say over the ssh pipe before there are streams, and how it is framed.
//!
//! A frame is a little-endian u32 length and that many bytes of JSON. The agent's first frame follows
//! [`MAGIC`], for a shell may have spoken before. Unknown fields are ignored, so that later versions can add
//! some.

use std::io::{self, Read};
use std::net::IpAddr;

use haul_core::wire::STREAMS_MAX;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use haul_transport::path::EndFacts;

/// Begins the agent's speech, and the near end's.
pub(super) const MAGIC: &[u8] = b"HAUL\x01";
/// Begins the agent's only words on a further channel. Another than [`MAGIC`]: a forced command may start an
/// agent of its own there.
pub(super) const CHANNEL_MAGIC: &[u8] = b"HAUL\x02";
/// Most bytes before [`MAGIC`] that belong to somebody else.
pub(super) const CHATTER_MAX: usize = 64 * 1024;
/// Longest JSON of one frame, bytes.
pub(super) const FRAME_LEN_MAX: usize = 1 << 20;
/// Longest public key (SPKI), bytes. An Ed25519 one has 44.
pub(super) const KEY_LEN_MAX: usize = 256;
/// Longest version string of a program that is shown.
pub(super) const PROGRAM_LEN_MAX: usize = 100;
/// Most addresses of a host that are named, and dialled.
pub const ADDRESSES_MAX: usize = 8;
/// Most channels besides the first.
pub(super) const FURTHER_MAX: u16 = 31;
/// Control and data streams of a session's start.
pub(super) const LINKS_MAX: usize = STREAMS_MAX as usize + 1;

/// Agent to near end, right after the magic.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AgentHello {
    pub protocol_min: u16,
    pub protocol_max: u16,
    /// The program's version, for people.
    pub program: String,
}

/// Near end to agent: everything it must know.
#[derive(Serialize, Deserialize)]
pub(super) struct NearHello<R> {
    /// The version chosen; the rest of the message is in its terms.
    pub protocol: u16,
    pub program: String,
    pub request: R,
    pub session: Fixed<16>,
    /// The near end's public key (SPKI).
    pub key: Bytes,
    /// A connection proves with it which stream it is.
    pub secret: Fixed<32>,
    /// Data streams wanted.
    pub streams: u16,
    pub ports: Option<(u16, u16)>,
    /// Where to listen instead of where ssh reached it: the first, and the others.
    pub via: Option<IpAddr>,
    #[serde(default)]
    pub via_too: Vec<IpAddr>,
    /// Which end may dial.
    #[serde(default)]
    pub dial: Wish,
}

/// Near end to agent, in place of a [`NearHello`]: a haul that knows no errands says that it does not
/// understand it.
#[derive(Serialize, Deserialize)]
pub(super) struct ErrandHello {
    pub errand: String,
    pub protocol: u16,
}

/// Agent to near end, of an errand.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ErrandReply {
    Answer(serde_json::Value),
    /// The last; as that of an [`AgentReply`].
    Error(String),
}

/// Which end opens the connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Wish {
    /// The near end first, and the far end if that fails.
    #[default]
    Either,
    Near,
    Far,
}

impl<R> NearHello<R> {
    /// Addresses that the user named, at most [`ADDRESSES_MAX`].
    pub(super) fn vias(&self) -> Vec<IpAddr> {
        let all = self.via.iter().chain(self.via.and(Some(&self.via_too)).into_iter().flatten());
        all.copied().take(ADDRESSES_MAX).collect()
    }
}

/// Agent to near end: where it listens, or why it does not go on. A session has one of these, so its size is
/// no matter.
#[allow(clippy::large_enum_variant)]
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AgentReply {
    Ready {
        /// The agent's public key (SPKI).
        key: Bytes,
        /// Data streams that it takes, at most those wanted.
        streams: u16,
        listening: Result<Listening, NotListening>,
        /// The near end's address as the far end's ssh server sees it.
        client: Option<IpAddr>,
        /// What the far end is like, from which the number of streams follows.
        #[serde(default)]
        facts: Option<EndFacts>,
        /// It knows [`Decision::Reverse`].
        #[serde(default)]
        can_dial: bool,
        /// It knows [`Decision::Channels`].
        #[serde(default)]
        channels: bool,
    },
    Error(String),
    /// Before `Ready`, of the request's question: JSON, the last of these is the answer.
    Told(String),
}

/// One port, at these addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Listening {
    /// The one to try first: the user's, or that which ssh reached.
    pub address: IpAddr,
    pub port: u16,
    /// The device of `address`, as [`Named::device`]; 0: not known.
    #[serde(default)]
    pub device: u32,
    /// Others, in the order in which to try them. More than [`ADDRESSES_MAX`] are ignored.
    #[serde(default)]
    pub also: Vec<Named>,
    /// Addresses that the user named and that it cannot listen on: why.
    #[serde(default)]
    pub failed: Vec<String>,
}

/// An address of the far end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Named {
    pub address: IpAddr,
    /// Addresses with the same number share a device.
    #[serde(default)]
    pub device: u32,
}

/// Why there is no listener; everything goes through ssh then.
#[derive(Serialize, Deserialize)]
pub(super) struct NotListening {
    pub why: String,
}

/// Near end to agent: how many streams, and which way they go. The last frame on the ssh pipe is `Direct`,
/// `Mux` or `Over`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Decision {
    /// Of the streams that have tickets only so many data streams will come. Only if the path decides; the
    /// last word counts.
    Streams(u16),
    /// The near end listens there, and the far end shall dial; it says how that went ([`FarDialled`]), of
    /// control and, once it knows their number, of the data streams. Said at most once.
    Reverse(Listening),
    /// All streams are on their way, or will come to the session that runs.
    Direct,
    /// No port can be reached, and further channels of the ssh connection will be tried; it says where they
    /// are awaited (`channel_listener`). Said at most once.
    Channels,
    /// Subframes on this pipe from here on.
    Mux,
    /// The same, with the last data streams on these further channels, one on each.
    Over(Vec<u16>),
}

impl Decision {
    /// More of them come.
    pub(super) fn is_followed(&self) -> bool {
        matches!(self, Decision::Streams(_) | Decision::Reverse(_) | Decision::Channels)
    }
}

/// Agent to near end: how its dialling went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FarDialled {
    /// Joined, over so many paths that answered.
    Joined { paths: u16 },
    /// None of it; why.
    Failed(String),
}

/// Bytes of a fixed length, base64 in JSON. No `Debug`: some are secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Fixed<const N: usize>(pub [u8; N]);

/// At most [`KEY_LEN_MAX`] bytes, base64 in JSON.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Bytes(pub Vec<u8>);

impl<const N: usize> Serialize for Fixed<N> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&data_encoding::BASE64.encode(&self.0))
    }
}

impl<'de, const N: usize> Deserialize<'de> for Fixed<N> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let bytes = Bytes::deserialize(d)?.0;
        bytes.try_into().map(Fixed).map_err(|_| serde::de::Error::custom("wrong length"))
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&data_encoding::BASE64.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        let bytes = data_encoding::BASE64.decode(text.as_bytes()).map_err(serde::de::Error::custom)?;
        if bytes.len() > KEY_LEN_MAX {
            return Err(serde::de::Error::custom("too long"));
        }
        Ok(Bytes(bytes))
    }
}

impl Bytes {
    /// # Errors
    /// More than [`KEY_LEN_MAX`].
    pub(super) fn bounded(bytes: Vec<u8>) -> io::Result<Bytes> {
        match bytes.len() <= KEY_LEN_MAX {
            true => Ok(Bytes(bytes)),
            false => Err(io::ErrorKind::InvalidInput.into()),
        }
    }
}

/// The bytes of one frame.
///
/// # Errors
/// If the JSON is longer than [`FRAME_LEN_MAX`] (a command with very many source paths).
pub(super) fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(message)?;
    if json.len() > FRAME_LEN_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("a message of {} bytes, at most {FRAME_LEN_MAX} are possible", json.len()),
        ));
    }
    let mut bytes = (json.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&json);
    Ok(bytes)
}

/// The length of the frame that starts with `head`.
pub(super) fn frame_len(head: [u8; 4]) -> io::Result<usize> {
    let len = u32::from_le_bytes(head) as usize;
    if len > FRAME_LEN_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a message of {len} bytes announced"),
        ));
    }
    Ok(len)
}

/// Reads one frame, and not a byte more.
pub(super) fn read_frame<T: DeserializeOwned>(reader: &mut dyn Read) -> io::Result<T> {
    let mut head = [0; 4];
    reader.read_exact(&mut head)?;
    let len = frame_len(head)?;
    let mut json = Vec::new();
    // Grows with what arrives, not with what was announced.
    reader.take(len as u64).read_to_end(&mut json)?;
    if json.len() < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_slice(&json)?)
}

/// Reads up to and including [`MAGIC`], and not a byte more.
pub(super) fn skip_to_magic(reader: &mut dyn Read) -> io::Result<()> {
    skip_to(MAGIC, reader)
}

/// Consumes what a shell said, and `magic`, whose first byte occurs only once in it, and not a byte more.
pub(super) fn skip_to(magic: &[u8], reader: &mut dyn Read) -> io::Result<()> {
    let mut matched = 0;
    for _ in 0..CHATTER_MAX + magic.len() {
        let mut byte = [0];
        reader.read_exact(&mut byte)?;
        // The first byte of the magic occurs only once in it, so a mismatch starts over.
        matched = match byte[0] {
            b if b == magic[matched] => matched + 1,
            b if b == magic[0] => 1,
            _ => 0,
        };
        if matched == magic.len() {
            return Ok(());
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "no greeting from the other end"))
}

/// Reads every kind of frame from these bytes, as they may come from a peer. For the fuzzer.
#[doc(hidden)]
pub fn read_any(bytes: &[u8]) {
    fn read<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
        read_frame(&mut &bytes[..]).ok()
    }
    let mut rest = bytes;
    let greeted = skip_to_magic(&mut rest).is_ok();
    let frames = if greeted { rest } else { bytes };
    let _ = (read::<AgentHello>(frames), read::<AgentReply>(frames));
    let _ = read::<NearHello<serde_json::Value>>(frames).map(|near| near.vias().len());
    let _ = read::<Decision>(frames).map(|said| said.is_followed());
    let _ = (read::<FarDialled>(frames), read::<ErrandHello>(frames), read::<ErrandReply>(frames));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the magic is found wherever it stands, and nothing behind it is consumed.
    /// Method: every prefix built of pieces of the magic itself.
    #[test]
    fn magic_is_found_behind_anything() {
        for prefix in [&b""[..], b"H", b"HAUL", b"HAUHAUL", b"HHAUL\n", b"HAUL\x00", b"motd\r\n\x1b[1m"] {
            let stream = [prefix, MAGIC, b"rest"].concat();
            let mut reader = &stream[..];
            skip_to_magic(&mut reader).unwrap();
            assert_eq!(reader, b"rest", "behind {prefix:?}");
        }
        let endless = vec![b'H'; CHATTER_MAX + 100];
        assert!(skip_to_magic(&mut &endless[..]).is_err());
    }

    /// Goal: a frame comes out as it went in; a lying length, a torn frame and junk are errors.
    #[test]
    fn frames_are_bounded_and_checked() {
        let bytes = encode(&Decision::Mux).unwrap();
        let mut reader = &[&bytes[..], b"next"].concat()[..];
        assert_eq!(read_frame::<Decision>(&mut reader).unwrap(), Decision::Mux);
        assert_eq!(reader, b"next");
        for cut in 0..bytes.len() {
            assert!(read_frame::<Decision>(&mut &bytes[..cut]).is_err());
        }
        let huge = ((FRAME_LEN_MAX + 1) as u32).to_le_bytes();
        assert!(read_frame::<Decision>(&mut &[&huge[..], &bytes].concat()[..]).is_err());
        assert!(
            read_frame::<Decision>(&mut &[&8u32.to_le_bytes()[..], b"\xffnotjson"].concat()[..]).is_err()
        );
    }

    /// Goal: secrets of another length than theirs are refused when they are decoded.
    #[test]
    fn fixed_bytes_have_their_length() {
        let json = serde_json::to_string(&Fixed([7u8; 16])).unwrap();
        assert!(serde_json::from_str::<Fixed<16>>(&json).is_ok());
        assert!(serde_json::from_str::<Fixed<32>>(&json).is_err());
    }
}
