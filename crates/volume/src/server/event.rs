//! What happens to a server, as the thread that decides hears it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crossbeam_channel::Sender;
use haul_core::volume::gather::{Facts, Part, PushNo, Seq};
use haul_core::volume::rights::Party;
use haul_core::volume::storage::{self, OpNo};
use haul_core::volume::ticket::Term;
use haul_core::volume::wire::{Message, Who};
use haul_core::volume::{FileNo, RequestNo, ServerNo, Session};

use crate::dial::Line;
use crate::line::{Bytes, Mouth};

/// A connection that came in, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct LineNo(pub(super) u64);

/// Who asked what, and over which connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asker {
    pub(super) line: LineNo,
    pub(super) number: RequestNo,
}

/// What happens to a server.
pub(super) enum Event {
    /// A connection was joined; `held` counts the bytes of its requests that are not answered.
    Came {
        line: LineNo,
        who: Who,
        party: Party,
        session: Session,
        mouth: Mouth,
        held: Arc<AtomicU64>,
    },
    Said(LineNo, Message, Bytes),
    /// The catalog counts this term, and raised the epochs of these files.
    Term(Term, Vec<(FileNo, u32)>),
    Gone(LineNo),
    /// With the time that the disk was busy with it.
    Carried(OpNo, storage::Done<Bytes>, Duration),
    /// And how long the log is then, bytes.
    Appended(Seq, Result<(), i32>, Duration, u64),
    /// The log had no room for a record's bytes.
    Refused(Seq, i32),
    /// Why the log has no room for bytes; `None`: it has some again.
    LogFull(Option<i32>),
    LogSynced(Result<(), i32>, Duration),
    /// The next life knows of that term, or there was no room for it.
    TermKept,
    /// What of the server's directory was removed, moved or replaced, if something was.
    Looked(Option<PathBuf>),
    /// Whether there is all the room that is kept for the next start.
    Reserved(bool),
    PartsRead(Asker, Vec<Part>, u64, Result<Bytes, i32>),
    PushRead(PushNo, Result<Vec<(u64, Bytes)>, i32>),
    /// Of this server's own connection to another.
    Other(ServerNo, Line),
    /// What is known of files at this moment.
    Facts(Vec<FileNo>, Sender<Vec<Facts>>),
    /// Files above one of which the log has bytes, at most so many.
    GatheredBehind(FileNo, usize, Sender<Vec<FileNo>>),
    Trouble(String),
    Stop,
}
