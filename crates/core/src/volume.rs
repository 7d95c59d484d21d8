//! Striped volumes: what is decided about them, without a clock, a socket or a byte of anybody's.
//!
//! A file of a volume lies in stripes on *storage servers*. Each file has one *gatherer* besides, a server
//! that takes small writes into its log and brings them in large pieces to where the stripes lie, and that
//! says who may write to a stripe directly. A stripe is *gathered* as long as the gatherer has bytes of it;
//! otherwise clients write it directly, under a *lease* of the gatherer.
//!
//! What keeps bytes in their order, whoever crashes, freezes or speaks late:
//! - A client under a lease writes directly; the gatherer takes nothing for a stripe before everybody else
//!   who has a lease on it gave it back, or it has run out.
//! - A client gives a lease back when none of its writes under it is under way any more.
//! - A lease that ran out raises the file's [`Epoch`]. A storage server that has heard of an epoch takes no
//!   write of an older one, and carries out none of the newer before those of older ones are over. So what
//!   a client sent in time and what lay frozen in between comes before what the gatherer brings, or not at
//!   all.
//! - Everything that is said belongs to a session, one connection of one peer. A server hears nothing of a
//!   session after a newer one of the same peer began, and begins the newer when what it was doing for the
//!   older is over. What a server forgets by a restart, nobody can use: with its life its sessions end.
//! - A client that the gatherer does not hear for too long loses its session, and what waits in it.
//! - The gatherer forgets what it brought when the storage server has it on media, and a stripe is leased
//!   only after that: nothing older is ever brought again over what is newer.
//!
//! - A file is cut to a length by its gatherer: after all leases on what is cut are back and pushes of it
//!   are over, and before anything else is done to the file; its log says so before the servers cut and
//!   after. A length that a client knows of direct writes counts if their epoch is not older than the last
//!   cut's.
//! - A file is removed likewise; gatherer and storage servers then know in that life that it is gone, and
//!   take nothing for it. Numbers of files are never used again, so that what a later life takes counts
//!   nowhere.
//! - An append gets its place from the gatherer, and no two get the same. One that lies in more than one
//!   stripe gets room only, which lasts, and its client writes there: zeros are read until it did.
//!
//! - A disk without room refuses what has bytes, and nothing is answered for that. What a storage server's
//!   disk refuses of what the gatherer brings stays in the log, and is brought again; that push is over when
//!   all of its pieces are answered. Where the log has no room another record stands in a write's place.
//!
//! A write whose connection broke is made again, and may so be made twice as long as its writer has not heard
//! that it is written. A cut likewise; an append only if the gatherer began another life meanwhile. An append
//! stands behind what was gathered, appended or synced by anybody and behind what its own client wrote, but
//! not behind what others wrote directly and did not sync.
//!
//! Whether a file's bytes are still what they were, its gatherer tells by a [`ContentVersion`], see
//! [`gather::Request::Look`]: it waits until nobody can write the file directly, whoever has sent what, and
//! says whether anything was written since somebody told the catalog so.
//!
//! Names are another matter: [`catalog`]. Who may ask what at all: [`rights`], [`ticket`].
//!
//! Reading order: [`layout`]; [`cost`], [`threshold`]; [`storage`], [`gather`], [`client`]; [`catalog`];
//! [`check`].

pub mod catalog;
pub mod check;
pub mod client;
pub mod cost;
pub mod gather;
pub mod layout;
pub mod rights;
pub mod storage;
pub mod threshold;
pub mod ticket;
pub mod wire;

/// A volume, by a number that no other has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId(pub [u8; 16]);

/// A file, by the number that the catalog gave it; no other file of a volume ever has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileNo(pub u64);

/// A server of a volume, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerNo(pub u16);

/// A client, by a number that no other client of the volume ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientNo(pub u64);

/// What a request is called by who asks; its answer has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestNo(pub u64);

/// One connection of a client or a gatherer to a server; a newer one has a higher number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session(pub u64);

/// One life of a server's process: what it knew and had not written ends with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// A version of a file's bytes, of one life of its gatherer. Of two looks at a file that gave the same one
/// the bytes were the same at both, and at each moment between them.
///
/// It moves with each write that was gathered, each append and cut, and each lease, under which bytes come
/// that the gatherer does not see. No file ever had or will have another's number, nor a life another's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentVersion {
    /// The gatherer's life.
    pub gatherer: u32,
    /// Changes of the file in this life.
    pub changes: u64,
}

/// A file or a link of a volume that a copy may bring out of it, as it was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Below where the copy begins.
    pub path: Vec<u8>,
    pub entry: catalog::EntryNo,
    /// Of a file, if it was told.
    pub version: Option<ContentVersion>,
    /// Of a file.
    pub len: u64,
    pub mtime: crate::entry::Timestamp,
    /// Where it leads: it is a link, which has no bytes.
    pub target: Option<Box<[u8]>>,
}

/// Whether a copy brings one out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    Yes,
    No,
    /// It should come, and does not, for something of the user's would be lost: why, in words.
    Refused(String),
}

/// Who may write a file directly: leases of an older epoch are void.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch {
    /// The gatherer's life; raised each time that it starts.
    pub gatherer: u32,
    /// How often it voided leases of the file in this life.
    pub fence: u32,
}
