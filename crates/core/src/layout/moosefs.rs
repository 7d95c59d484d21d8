//! MooseFS: what its client says of the master, the questions that the master understands, and its answers.
//!
//! In: the bytes of `.masterinfo` in the mount's root, the number of a file, answers. Out: where to ask,
//! questions, and a [`Layout`] of whole chunks, each on the first good copy that the master names: which one
//! a client reads is its own choice. Numbers are big-endian.
//! Source: `MFSCommunication.h` of MooseFS 3 (`CLTOMA_FUSE_REGISTER`, `CLTOMA_FUSE_CHECK` with a chunk's
//! index, from 3.0.26 on).
//! Left out: masters older than that, and erasure-coded chunks of MooseFS 4, which answer in other forms.

use core::net::Ipv4Addr;

use super::{COMPONENTS_MAX, Component, Layout, LayoutError, TargetName};

/// Bytes of a chunk: what lies on one set of chunk servers.
pub const MOOSEFS_CHUNK_LEN: u64 = 64 << 20;
/// Longest answer that is read, bytes.
pub const MOOSEFS_ANSWER_MAX: u32 = 1000;
/// Bytes of an answer before its body: its kind and the body's length.
pub const MOOSEFS_HEAD_LEN: usize = 8;

const REGISTER: u32 = 400;
const REGISTERED: u32 = 401;
const CHECK: u32 = 440;
const CHECKED: u32 = 441;
/// What a tool says instead of a password.
const TOOLS: &[u8; 64] = b"DjI1GAQDULI5d2YjA26ypc3ovkhjvhciTQVx3CS4nYgtBoUcsljiVpsErJENHaw0";
const AS_TOOLS: u8 = 4;
/// The version of MooseFS whose questions these are.
const VERSION: [u8; 4] = [0, 3, 0, 26];
/// The first one that understands them, as a master says it: the last number doubled since 2.0.
const VERSION_MIN: u32 = 0x0003_0000 + 2 * 26;
/// State of a copy: good, and good but on a disk that is being emptied.
const GOOD: [u8; 2] = [0, 1];

/// Where the master, or the client's door to it, takes questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MooseFsMaster {
    pub address: Ipv4Addr,
    pub port: u16,
    /// The client's number, which a question names.
    pub client: u32,
}

/// Reads `.masterinfo`.
///
/// # Errors
/// It is too short, names nobody, or a master that is too old for the questions.
pub fn moosefs_master(bytes: &[u8]) -> Result<MooseFsMaster, LayoutError> {
    let what = "the master's place";
    let (address, port, client) = (be32(bytes, 0, what)?, be16(bytes, 4, what)?, be32(bytes, 6, what)?);
    let version = be32(bytes, 10, "the master's version")?;
    if address == 0 || port == 0 || client == 0 {
        return Err(LayoutError::Form("the client names no master"));
    }
    if version < VERSION_MIN {
        return Err(LayoutError::Value { what: "the master's version", value: version.into() });
    }
    Ok(MooseFsMaster { address: Ipv4Addr::from(address), port, client })
}

/// What is said first. Its answer is for [`moosefs_registered`].
pub fn moosefs_register(client: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(81);
    bytes.extend(REGISTER.to_be_bytes());
    bytes.extend(73_u32.to_be_bytes());
    bytes.extend(TOOLS);
    bytes.push(AS_TOOLS);
    bytes.extend(client.to_be_bytes());
    bytes.extend(VERSION);
    bytes
}

/// The question for chunk `chunk` of the file `inode`.
pub fn moosefs_question(inode: u32, chunk: u32) -> Vec<u8> {
    let words = [CHECK, 12, 0, inode, chunk];
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Length of the body of the answer to a question, or to [`moosefs_register`] if `registers`.
///
/// # Errors
/// It answers something else, or is longer than [`MOOSEFS_ANSWER_MAX`].
pub fn moosefs_body_len(head: &[u8], registers: bool) -> Result<u32, LayoutError> {
    let what = "an answer's head";
    let (kind, len) = (be32(head, 0, what)?, be32(head, 4, what)?);
    if kind != if registers { REGISTERED } else { CHECKED } {
        return Err(LayoutError::Kind(kind));
    }
    match len {
        0..=MOOSEFS_ANSWER_MAX => Ok(len),
        _ => Err(LayoutError::Value { what: "the length of an answer", value: len.into() }),
    }
}

/// Whether the master listens.
///
/// # Errors
/// It does not.
pub fn moosefs_registered(body: &[u8]) -> Result<(), LayoutError> {
    match body {
        [0] => Ok(()),
        [status] => Err(LayoutError::Value { what: "the master's status", value: (*status).into() }),
        _ => Err(LayoutError::Form("the master's greeting")),
    }
}

/// The chunk server that has a chunk; `None`: nothing was ever written there, or no good copy is left.
///
/// # Errors
/// The master refuses, or the answer is of another form.
pub fn moosefs_chunk(body: &[u8]) -> Result<Option<TargetName>, LayoutError> {
    if let [_, _, _, _, status] = body {
        return Err(LayoutError::Value { what: "the master's status", value: (*status).into() });
    }
    if be32(body, 0, "a question's number")? != 0 {
        return Err(LayoutError::Form("an answer to another question"));
    }
    // Number and version of the chunk, then its copies.
    let copies = body.get(16..).ok_or(LayoutError::Short("a chunk"))?;
    if !copies.len().is_multiple_of(7) {
        return Err(LayoutError::Form("the copies of a chunk"));
    }
    let good = |state| copies.chunks_exact(7).find(|copy| copy[6] == state);
    Ok(GOOD.into_iter().find_map(good).map(|copy| {
        let address = Ipv4Addr::new(copy[0], copy[1], copy[2], copy[3]);
        TargetName::new(&format!("{address}:{}", u16::from_be_bytes([copy[4], copy[5]])))
    }))
}

/// The layout of a file whose chunks lie on these, in order. A chunk without a place counts as lying where
/// the one before it lies; those behind the last one too.
///
/// # Errors
/// None has a place.
pub fn moosefs(chunks: impl IntoIterator<Item = Option<TargetName>>) -> Result<Layout, LayoutError> {
    let mut components: Vec<Component> = Vec::new();
    for (chunk, target) in (0..).zip(chunks) {
        let Some(target) = target else { continue };
        if components.last().is_some_and(|last| last.targets[0] == target) {
            continue;
        }
        if components.len() >= COMPONENTS_MAX {
            break;
        }
        // What comes before the first place counts as lying there.
        let start = if components.is_empty() { 0 } else { MOOSEFS_CHUNK_LEN.saturating_mul(chunk) };
        components.push(Component { start, stripe_size: u64::MAX, targets: vec![target] });
    }
    Layout::new(components)
}

fn be16(bytes: &[u8], at: usize, what: &'static str) -> Result<u16, LayoutError> {
    let part = bytes.get(at..at + 2).ok_or(LayoutError::Short(what))?;
    Ok(u16::from_be_bytes(part.try_into().expect("two bytes")))
}

fn be32(bytes: &[u8], at: usize, what: &'static str) -> Result<u32, LayoutError> {
    let part = bytes.get(at..at + 4).ok_or(LayoutError::Short(what))?;
    Ok(u32::from_be_bytes(part.try_into().expect("four bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `.masterinfo` of a client of 3.0.117: 127.0.0.1:40237, client 1.
    const INFO: [u8; 14] = [127, 0, 0, 1, 0x9d, 0x2d, 0, 0, 0, 1, 0, 3, 0, 117 * 2];

    /// An answer of a master of 3.0.117 for a chunk with two copies, of which the first is of an old version.
    fn answer(states: [u8; 2]) -> Vec<u8> {
        #[rustfmt::skip]
        let mut bytes = vec![
            0, 0, 0, 0, // question
            0, 0, 0, 0, 0, 0, 0, 4, // chunk
            0, 0, 0, 1, // version
            10, 66, 1, 1, 0x24, 0xce, states[0],
        ];
        bytes.extend([10, 66, 1, 2, 0x24, 0xce, states[1]]);
        bytes
    }

    /// Goal: what a client says of its master is read; a master without the question, and none at all, are
    /// refused.
    #[test]
    fn masters_are_found() {
        let master = moosefs_master(&INFO).unwrap();
        assert_eq!((master.address, master.port, master.client), (Ipv4Addr::LOCALHOST, 0x9d2d, 1));
        for len in 0..INFO.len() {
            assert!(moosefs_master(&INFO[..len]).is_err(), "{len}");
        }
        let with = |at: usize, value| {
            let mut info = INFO;
            info[at] = value;
            moosefs_master(&info)
        };
        assert!(with(11, 2).is_err() && with(9, 0).is_err());
    }

    /// Goal: questions are laid out as the master reads them.
    /// Method: bytes written by hand from the header.
    #[test]
    fn questions_are_laid_out_as_the_master_reads_them() {
        let register = moosefs_register(0x0102_0304);
        assert_eq!(register[..8], [0, 0, 1, 0x90, 0, 0, 0, 73]);
        assert_eq!(register.len(), 81);
        assert_eq!(register[72..], [4, 1, 2, 3, 4, 0, 3, 0, 26]);
        let question = [0, 0, 1, 0xb8, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 2];
        assert_eq!(moosefs_question(9, 2), question);
    }

    /// Goal: the first good copy counts, one that is being moved if there is no other; a chunk that was never
    /// written has no place; refusals and other forms are errors.
    #[test]
    fn answers_name_a_good_copy() {
        let name = |states| moosefs_chunk(&answer(states)).unwrap().map(|name| name.as_str().to_owned());
        assert_eq!(name([0, 0]).as_deref(), Some("10.66.1.1:9422"));
        assert_eq!(name([2, 0]).as_deref(), Some("10.66.1.2:9422"));
        assert_eq!(name([1, 0]).as_deref(), Some("10.66.1.2:9422"));
        assert_eq!(name([1, 4]).as_deref(), Some("10.66.1.1:9422"));
        assert_eq!(name([2, 3]), None);
        assert_eq!(moosefs_chunk(&[0; 16]), Ok(None));
        for len in (0..answer([0, 0]).len()).filter(|len| ![16, 23].contains(len)) {
            assert!(moosefs_chunk(&answer([0, 0])[..len]).is_err(), "{len}");
        }
        assert!(moosefs_chunk(&[1; 16]).is_err());
        assert_eq!(moosefs_body_len(&[0, 0, 1, 0xb9, 0, 0, 0, 30], false), Ok(30));
        assert!(moosefs_body_len(&[0, 0, 1, 0xb9, 0, 0, 4, 0], false).is_err(), "too long");
        assert!(moosefs_body_len(&[0, 0, 1, 0xb9, 0, 0, 0, 1], true).is_err(), "of another kind");
        assert!(moosefs_registered(&[0]).is_ok() && moosefs_registered(&[1]).is_err());
        assert!(moosefs_registered(&[]).is_err());
    }

    /// Goal: chunks are ranges of 64 MiB; those without a place are with their neighbours, and equal
    /// neighbours are one.
    #[test]
    fn chunks_are_ranges() {
        let on = |name: &str| Some(TargetName::new(name));
        let layout = moosefs([None, on("a"), on("a"), None, on("b"), None]).unwrap();
        assert_eq!(layout.components().len(), 2);
        assert_eq!(layout.at(0).target.as_str(), "a");
        assert_eq!(layout.at(4 * MOOSEFS_CHUNK_LEN - 1).target.as_str(), "a");
        assert_eq!(layout.at(4 * MOOSEFS_CHUNK_LEN).target.as_str(), "b");
        assert_eq!(layout.at(u64::MAX).target.as_str(), "b");
        assert_eq!(moosefs([None, None]), Err(LayoutError::NoObjects));
    }
}
