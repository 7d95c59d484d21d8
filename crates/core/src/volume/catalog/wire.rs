//! The bytes of what is said to and by the catalog of a volume.
//!
//! In: bytes of a peer, or a message. Out: the other of the two. Invariants: as in
//! [`volume::wire`](super::super::wire); names are legal, modes have permission bits only, no page is longer
//! than a frame.
//! Left out: whether an entry exists, which the catalog knows.

use super::super::layout::{Given, Placing};
pub use super::super::wire::VolumeId;
use super::{
    ADDRESS_LEN_MAX, Answer, Brought, Checked, ClientNo, ContentVersion, Entry, EntryNo, FAULT_LEN_MAX,
    FAULTS_MAX, Facts, Failure, FileNo, Home, Kind, Known, MODE_MAX, Message, Noting, PAGE_MAX,
    PLACE_LEN_MAX, PLACEMENT_LEN_MAX, Place, Request, RequestNo, SERVERS_MAX, ServerNo, Session, Setting,
};
use crate::entry::{LINK_LEN_MAX, Meta, NAME_LEN_MAX, Name, Timestamp};
use crate::volume::wire::check::{read_skips, write_skips};
use crate::wire::codec::{Reader, Writer};
use crate::wire::volume_kind as kind;
use crate::wire::{CONTROL_LEN_MAX, WireError, object_size_is_legal};

/// Longest entry of a page, bytes, without its target.
const ENTRY_LEN_MAX: usize = 1 + NAME_LEN_MAX + 8 + 8 + 1 + META_LEN;
const META_LEN: usize = 4 + 4 + 4 + 8 + 4;
/// Targets of links in one page, bytes: the page ends with the one that reaches it.
pub const PAGE_TARGETS_LEN_MAX: usize = 256 * 1024;
/// What a failure says at most.
pub const WORDS_LEN_MAX: usize = 512;

const _: () =
    assert!(16 + PAGE_MAX * (ENTRY_LEN_MAX + 2) + PAGE_TARGETS_LEN_MAX + LINK_LEN_MAX <= CONTROL_LEN_MAX);
const _: () = assert!(16 + PAGE_MAX * (3 + 8 + 8 + PLACE_LEN_MAX + 2 + 12) <= CONTROL_LEN_MAX);
const _: () = assert!(16 + PLACE_LEN_MAX + PAGE_MAX * (8 + 8 + 12 + 9 + 33) <= CONTROL_LEN_MAX);
const _: () = assert!(64 + FAULTS_MAX * (FAULT_LEN_MAX + 2) <= CONTROL_LEN_MAX);
const _: () = assert!(16 + SERVERS_MAX * (ADDRESS_LEN_MAX + 2) <= CONTROL_LEN_MAX);

impl Message {
    /// The number of its frame.
    pub fn kind(&self) -> u8 {
        match self {
            Message::Join { .. } => kind::CATALOG_JOIN,
            Message::Joined { .. } => kind::CATALOG_JOINED,
            Message::Ask(..) => kind::CATALOG_ASK,
            Message::Answer(..) => kind::CATALOG_ANSWER,
        }
    }
}

/// Appends the body of a message.
///
/// # Panics
/// If something is longer than its maximum: that is our own doing.
pub(crate) fn write(w: &mut Writer<'_>, message: &Message) {
    match message {
        Message::Join { volume, client, session } => {
            w.raw(&volume.0);
            w.u64(client.map_or(0, |client| client.0));
            w.u64(session.0);
        }
        Message::Joined { client, facts } => {
            w.u64(client.0);
            w.u32(facts.stripe);
            w.bytes("placement", facts.placement.as_bytes(), PLACEMENT_LEN_MAX);
            w.count("servers", facts.servers.len(), SERVERS_MAX);
            for server in &facts.servers {
                w.bytes("address of a server", server.as_bytes(), ADDRESS_LEN_MAX);
            }
        }
        Message::Ask(number, request) => {
            w.u64(number.0);
            write_request(w, request);
        }
        Message::Answer(number, answer) => {
            w.u64(number.0);
            write_answer(w, answer);
        }
    }
}

/// The bytes of an answer, for who remembers it.
pub fn encode_answer(answer: &Answer) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_answer(&mut Writer::new(&mut bytes), answer);
    bytes
}

/// What [`encode_answer`] made.
///
/// # Errors
/// It did not make this.
pub fn decode_answer(bytes: &[u8]) -> Result<Answer, WireError> {
    let r = &mut Reader::new(bytes);
    let answer = read_answer(r)?;
    match r.remaining() {
        0 => Ok(answer),
        len => Err(WireError::Trailing { what: "an answer of a catalog", len: len as u64 }),
    }
}

fn write_request(w: &mut Writer<'_>, request: &Request) {
    match request {
        Request::Mkdir { at, meta } => {
            w.u8(0);
            write_place(w, at);
            write_meta(w, meta);
        }
        Request::Create { at, meta, exclusive, open, placing } => {
            w.u8(1);
            write_place(w, at);
            write_meta(w, meta);
            w.bool(*exclusive);
            w.bool(*open);
            w.u16(placing.code());
        }
        Request::Symlink { at, meta, target } => {
            w.u8(2);
            write_place(w, at);
            write_meta(w, meta);
            w.bytes("target", target, LINK_LEN_MAX);
        }
        Request::Lookup(place) => {
            w.u8(3);
            write_place(w, place);
        }
        Request::Stat(id) => {
            w.u8(4);
            w.u64(id.0);
        }
        Request::ReadDir { dir, after, max } => {
            w.u8(5);
            w.u64(dir.0);
            w.bool(after.is_some());
            if let Some(name) = after {
                w.name(name);
            }
            w.u16(*max);
        }
        Request::SetAttr { id, set } => {
            w.u8(6);
            w.u64(id.0);
            for value in [set.mode, set.uid, set.gid] {
                w.bool(value.is_some());
                w.u32(value.unwrap_or(0));
            }
            w.bool(set.mtime.is_some());
            write_time(w, &set.mtime.unwrap_or_default());
            w.u8(u8::from(set.written) | if set.whole.is_some() { WHOLE } else { 0 });
            if let Some(whole) = set.whole {
                w.u64(whole);
            }
        }
        Request::Rename { from, to, noreplace } => {
            w.u8(7);
            write_place(w, from);
            write_place(w, to);
            w.bool(*noreplace);
        }
        Request::Unlink(place) => {
            w.u8(8);
            write_place(w, place);
        }
        Request::Rmdir(place) => {
            w.u8(9);
            write_place(w, place);
        }
        Request::Open(files) => {
            w.u8(10);
            write_ids(w, files.iter().map(|id| id.0));
        }
        Request::Close(files) => {
            w.u8(11);
            write_ids(w, files.iter().map(|id| id.0));
        }
        Request::ToRemove { server, after } => {
            w.u8(12);
            w.u16(server.0);
            w.u64(after.0);
        }
        Request::Removed { server, files } => {
            w.u8(13);
            w.u16(server.0);
            write_ids(w, files.iter().map(|file| file.0));
        }
        Request::Leave => w.u8(14),
        Request::Known(ids) => {
            w.u8(15);
            write_ids(w, ids.iter().map(|id| id.0));
        }
        Request::Note { place, files } => {
            w.u8(16);
            w.bytes("place", place.as_bytes(), PLACE_LEN_MAX);
            w.count("files", files.len(), PAGE_MAX);
            for Noting { id, state, version, whole, home } in files {
                w.u64(id.0);
                w.u64(*state);
                write_version(w, *version);
                write_given(w, whole.as_ref(), |w, whole| w.u64(*whole));
                match home {
                    None => w.u8(0),
                    Some(Brought::In) => w.u8(1),
                    Some(Brought::Out(path)) => {
                        w.u8(2);
                        w.raw(path);
                    }
                }
            }
        }
        Request::Check => w.u8(17),
        Request::Tickets(ids) => {
            w.u8(18);
            write_ids(w, ids.iter().map(|id| id.0));
        }
        Request::Place(list) => {
            w.u8(20);
            list.write(w);
        }
        Request::List(placing) => {
            w.u8(21);
            w.u16(placing.code());
        }
    }
}

fn write_given<T>(w: &mut Writer<'_>, value: Option<&T>, write: impl FnOnce(&mut Writer<'_>, &T)) {
    w.bool(value.is_some());
    if let Some(value) = value {
        write(w, value);
    }
}

fn write_version(w: &mut Writer<'_>, version: ContentVersion) {
    w.u32(version.gatherer);
    w.u64(version.changes);
}

fn write_answer(w: &mut Writer<'_>, answer: &Answer) {
    match answer {
        Answer::Made { entry, new } => {
            w.u8(0);
            w.bool(*new);
            write_entry(w, entry);
        }
        Answer::Entry(entry) => {
            w.u8(1);
            write_entry(w, entry);
        }
        Answer::Page { entries, more } => {
            w.u8(2);
            w.bool(*more);
            w.count("entries", entries.len(), PAGE_MAX);
            for (name, entry) in entries {
                w.name(name);
                write_entry(w, entry);
            }
        }
        Answer::Done => w.u8(3),
        Answer::Opened { lost } => {
            w.u8(4);
            write_ids(w, lost.iter().map(|id| id.0));
        }
        Answer::Files(files) => {
            w.u8(5);
            write_ids(w, files.iter().map(|file| file.0));
        }
        Answer::Failed(failure) => {
            w.u8(6);
            w.i32(failure.errno);
            w.bytes("words", cut(&failure.words).as_bytes(), WORDS_LEN_MAX);
        }
        Answer::Known(all) => {
            w.u8(7);
            w.count("entries", all.len(), PAGE_MAX);
            for known in all {
                write_given(w, known.as_ref(), |w, Known { state, whole, home }| {
                    w.u64(*state);
                    write_given(w, whole.as_ref(), |w, whole| w.u64(*whole));
                    write_given(w, home.as_ref(), |w, Home { place, version }| {
                        w.bytes("place", place.as_bytes(), PLACE_LEN_MAX);
                        write_version(w, *version);
                    });
                });
            }
        }
        Answer::Checked(Checked { faults, last, skipped, named, nameless, open, open_of_gone }) => {
            w.u8(8);
            w.count("faults", faults.len(), FAULTS_MAX);
            for fault in faults {
                w.bytes("fault", cut(fault).as_bytes(), FAULT_LEN_MAX);
            }
            write_skips(w, skipped);
            [last, named, nameless, open, open_of_gone].into_iter().for_each(|number| w.u64(*number));
        }
        Answer::Placed(placing) => {
            w.u8(20);
            w.u16(placing.code());
        }
        Answer::List(list) => {
            w.u8(21);
            list.write(w);
        }
    }
}

/// The longest start of `words` that fits.
fn cut(words: &str) -> &str {
    let mut end = words.len().min(WORDS_LEN_MAX);
    while !words.is_char_boundary(end) {
        end -= 1;
    }
    &words[..end]
}

fn write_place(w: &mut Writer<'_>, place: &Place) {
    w.u64(place.parent.0);
    w.name(&place.name);
}

fn write_time(w: &mut Writer<'_>, time: &Timestamp) {
    w.i64(time.secs);
    w.u32(time.nanos);
}

fn write_meta(w: &mut Writer<'_>, meta: &Meta) {
    w.u32(meta.mode);
    w.u32(meta.uid);
    w.u32(meta.gid);
    write_time(w, &meta.mtime);
}

fn write_entry(w: &mut Writer<'_>, entry: &Entry) {
    w.u64(entry.id.0);
    w.u64(entry.parent.map_or(0, |parent| parent.0));
    match &entry.kind {
        Kind::Directory => w.u8(0),
        Kind::File => w.u8(1),
        Kind::Link(target) => {
            w.u8(2);
            w.bytes("target", target, LINK_LEN_MAX);
        }
    }
    write_meta(w, &entry.meta);
}

fn write_ids(w: &mut Writer<'_>, ids: impl ExactSizeIterator<Item = u64>) {
    w.count("files", ids.len(), PAGE_MAX);
    ids.for_each(|id| w.u64(id));
}

/// Reads the body of a message of this kind.
pub(crate) fn read(kind: u8, r: &mut Reader<'_>) -> Result<Message, WireError> {
    Ok(match kind {
        kind::CATALOG_JOIN => {
            let volume = VolumeId(r.array("volume")?);
            let client = match r.u64("client")? {
                0 => None,
                number => Some(ClientNo(number)),
            };
            Message::Join { volume, client, session: Session(r.u64("session")?) }
        }
        kind::CATALOG_JOINED => {
            let client = ClientNo(some("client", r.u64("client")?)?);
            let stripe = r.u32("stripe")?;
            if !object_size_is_legal(stripe) {
                return Err(bad("stripe", stripe.into()));
            }
            let placement = read_text(r, "placement", PLACEMENT_LEN_MAX)?;
            let servers =
                r.list("servers", SERVERS_MAX, 2, |r| read_text(r, "address of a server", ADDRESS_LEN_MAX))?;
            Message::Joined { client, facts: Facts { stripe, placement, servers } }
        }
        kind::CATALOG_ASK => Message::Ask(RequestNo(r.u64("request")?), read_request(r)?),
        kind::CATALOG_ANSWER => Message::Answer(RequestNo(r.u64("request")?), read_answer(r)?),
        other => return Err(WireError::UnknownKind(other)),
    })
}

fn bad(what: &'static str, value: u64) -> WireError {
    WireError::BadValue { what, value }
}

/// A number that SQLite can hold, and that is none of nothing.
fn some(what: &'static str, number: u64) -> Result<u64, WireError> {
    match (1..=i64::MAX as u64).contains(&number) {
        true => Ok(number),
        false => Err(bad(what, number)),
    }
}

/// A number that SQLite can hold.
fn read_count(r: &mut Reader<'_>, what: &'static str) -> Result<u64, WireError> {
    match r.u64(what)? {
        number if number <= i64::MAX as u64 => Ok(number),
        number => Err(bad(what, number)),
    }
}

fn read_len(r: &mut Reader<'_>) -> Result<u64, WireError> {
    read_count(r, "length of a file")
}

fn read_version(r: &mut Reader<'_>) -> Result<ContentVersion, WireError> {
    Ok(ContentVersion { gatherer: r.u32("life of a version")?, changes: r.u64("version of a file")? })
}

fn read_given<T>(
    r: &mut Reader<'_>,
    what: &'static str,
    read: impl FnOnce(&mut Reader<'_>) -> Result<T, WireError>,
) -> Result<Option<T>, WireError> {
    match r.bool(what)? {
        true => read(r).map(Some),
        false => Ok(None),
    }
}

fn read_text(r: &mut Reader<'_>, what: &'static str, max: usize) -> Result<Box<str>, WireError> {
    std::str::from_utf8(r.bytes(what, max)?).map(Box::from).map_err(|_| WireError::BadText { what })
}

fn read_id(r: &mut Reader<'_>) -> Result<EntryNo, WireError> {
    some("entry", r.u64("entry")?).map(EntryNo)
}

fn read_ids<T>(r: &mut Reader<'_>, of: impl Fn(u64) -> T) -> Result<Vec<T>, WireError> {
    r.list("files", PAGE_MAX, 8, |r| Ok(of(some("file", r.u64("file")?)?)))
}

fn read_place(r: &mut Reader<'_>) -> Result<Place, WireError> {
    Ok(Place { parent: read_id(r)?, name: r.name("name")? })
}

fn read_placing(r: &mut Reader<'_>) -> Result<Placing, WireError> {
    let code = r.u16("placing")?;
    Placing::from_code(code).ok_or_else(|| bad("placing", code.into()))
}

/// One that a list says.
fn read_listed(r: &mut Reader<'_>) -> Result<Placing, WireError> {
    let placing = read_placing(r)?;
    match placing.list() {
        Some(_) => Ok(placing),
        None => Err(bad("placing of a list", placing.code().into())),
    }
}

fn read_mode(r: &mut Reader<'_>) -> Result<u32, WireError> {
    match r.u32("mode")? {
        mode if mode > MODE_MAX => Err(bad("mode", mode.into())),
        mode => Ok(mode),
    }
}

fn read_time(r: &mut Reader<'_>) -> Result<Timestamp, WireError> {
    let time = Timestamp { secs: r.i64("mtime")?, nanos: r.u32("mtime")? };
    match time.nanos < 1_000_000_000 {
        true => Ok(time),
        false => Err(bad("nanoseconds of mtime", time.nanos.into())),
    }
}

fn read_meta(r: &mut Reader<'_>) -> Result<Meta, WireError> {
    Ok(Meta { mode: read_mode(r)?, uid: r.u32("uid")?, gid: r.u32("gid")?, mtime: read_time(r)? })
}

fn read_target(r: &mut Reader<'_>) -> Result<Box<[u8]>, WireError> {
    match r.bytes("target", LINK_LEN_MAX)? {
        target if target.is_empty() || target.contains(&0) => Err(bad("target", target.len() as u64)),
        target => Ok(target.into()),
    }
}

fn read_entry(r: &mut Reader<'_>) -> Result<Entry, WireError> {
    let id = read_id(r)?;
    let parent = match r.u64("parent")? {
        0 => None,
        number => Some(EntryNo(some("parent", number)?)),
    };
    let kind = match r.u8("kind of an entry")? {
        0 => Kind::Directory,
        1 => Kind::File,
        2 => Kind::Link(read_target(r)?),
        other => return Err(bad("kind of an entry", other.into())),
    };
    Ok(Entry { id, parent, kind, meta: read_meta(r)? })
}

/// Of what is set of an entry.
const WRITTEN: u8 = 1;
const WHOLE: u8 = 2;

fn read_setting(r: &mut Reader<'_>) -> Result<Setting, WireError> {
    let given = |given: bool, value: u32| match (given, value) {
        (true, value) => Ok(Some(value)),
        (false, 0) => Ok(None),
        (false, value) => Err(bad("what is not set", value.into())),
    };
    let mode = given(r.bool("mode")?, read_mode(r)?)?;
    let uid = given(r.bool("uid")?, r.u32("uid")?)?;
    let gid = given(r.bool("gid")?, r.u32("gid")?)?;
    let mtime = match (r.bool("mtime")?, read_time(r)?) {
        (true, time) => Some(time),
        (false, time) if time == Timestamp::default() => None,
        (false, time) => return Err(bad("what is not set", time.nanos.into())),
    };
    let flags = r.u8("whether it was written")?;
    if flags > WRITTEN | WHOLE {
        return Err(bad("whether it was written", flags.into()));
    }
    let whole = if flags & WHOLE == 0 { None } else { Some(read_len(r)?) };
    Ok(Setting { mode, uid, gid, mtime, written: flags & WRITTEN != 0, whole })
}

fn read_request(r: &mut Reader<'_>) -> Result<Request, WireError> {
    Ok(match r.u8("request of a catalog")? {
        0 => Request::Mkdir { at: read_place(r)?, meta: read_meta(r)? },
        1 => Request::Create {
            at: read_place(r)?,
            meta: read_meta(r)?,
            exclusive: r.bool("exclusive")?,
            open: r.bool("open")?,
            placing: read_placing(r)?,
        },
        2 => Request::Symlink { at: read_place(r)?, meta: read_meta(r)?, target: read_target(r)? },
        3 => Request::Lookup(read_place(r)?),
        4 => Request::Stat(read_id(r)?),
        5 => {
            let dir = read_id(r)?;
            let after = match r.bool("name")? {
                true => Some(r.name("name")?),
                false => None,
            };
            match r.u16("length of a page")? {
                max if max == 0 || usize::from(max) > PAGE_MAX => {
                    return Err(bad("length of a page", max.into()));
                }
                max => Request::ReadDir { dir, after, max },
            }
        }
        6 => Request::SetAttr { id: read_id(r)?, set: read_setting(r)? },
        7 => {
            let (from, to) = (read_place(r)?, read_place(r)?);
            Request::Rename { from, to, noreplace: r.bool("noreplace")? }
        }
        8 => Request::Unlink(read_place(r)?),
        9 => Request::Rmdir(read_place(r)?),
        10 => Request::Open(read_ids(r, EntryNo)?),
        11 => Request::Close(read_ids(r, EntryNo)?),
        12 => {
            let (server, after) = (ServerNo(r.u16("server")?), r.u64("file")?);
            // 0 is before all of them.
            match after <= i64::MAX as u64 {
                true => Request::ToRemove { server, after: FileNo(after) },
                false => return Err(bad("file", after)),
            }
        }
        13 => Request::Removed { server: ServerNo(r.u16("server")?), files: read_ids(r, FileNo)? },
        14 => Request::Leave,
        15 => Request::Known(read_ids(r, EntryNo)?),
        16 => Request::Note {
            place: read_text(r, "place", PLACE_LEN_MAX)?,
            files: r.list("files", PAGE_MAX, 30, |r| {
                let (id, state) = (read_id(r)?, read_count(r, "state of an entry")?);
                let (version, whole) = (read_version(r)?, read_given(r, "length", read_len)?);
                let home = match r.u8("home")? {
                    0 => None,
                    1 => Some(Brought::In),
                    2 => Some(Brought::Out(r.array("path")?)),
                    other => return Err(bad("home", other.into())),
                };
                Ok(Noting { id, state, version, whole, home })
            })?,
        },
        17 => Request::Check,
        18 => Request::Tickets(read_ids(r, EntryNo)?),
        20 => Request::Place(Given::read(r)?),
        21 => Request::List(read_listed(r)?),
        other => return Err(bad("request of a catalog", other.into())),
    })
}

fn read_answer(r: &mut Reader<'_>) -> Result<Answer, WireError> {
    Ok(match r.u8("answer of a catalog")? {
        0 => {
            let new = r.bool("new")?;
            Answer::Made { entry: read_entry(r)?, new }
        }
        1 => Answer::Entry(read_entry(r)?),
        2 => {
            let more = r.bool("more")?;
            let mut before: Option<Name> = None;
            let entries = r.list("entries", PAGE_MAX, 2 + 17 + META_LEN, |r| {
                let name = r.name("name")?;
                if before.as_ref().is_some_and(|before| *before >= name) {
                    return Err(bad("order of names", 0));
                }
                before = Some(name.clone());
                Ok((name, read_entry(r)?))
            })?;
            // Who asks for what is behind the last of none would ask for ever.
            if more && entries.is_empty() {
                return Err(bad("more", 1));
            }
            Answer::Page { entries, more }
        }
        3 => Answer::Done,
        4 => Answer::Opened { lost: read_ids(r, EntryNo)? },
        5 => Answer::Files(read_ids(r, FileNo)?),
        6 => Answer::Failed(Failure { errno: r.i32("errno")?, words: read_text(r, "words", WORDS_LEN_MAX)? }),
        7 => Answer::Known(r.list("entries", PAGE_MAX, 1, |r| {
            read_given(r, "entry", |r| {
                let (state, whole) =
                    (read_count(r, "state of an entry")?, read_given(r, "length", read_len)?);
                let home = read_given(r, "home", |r| {
                    let place = read_text(r, "place", PLACE_LEN_MAX)?;
                    Ok(Home { place, version: read_version(r)? })
                })?;
                Ok(Known { state, whole, home })
            })
        })?),
        8 => {
            let faults = r.list("faults", FAULTS_MAX, 2, |r| read_text(r, "fault", FAULT_LEN_MAX))?;
            let skipped = read_skips(r)?;
            let (last, named) = (r.u64("last number")?, r.u64("entries")?);
            let (nameless, open) = (r.u64("files without a name")?, r.u64("open files")?);
            Answer::Checked(Checked {
                faults,
                last,
                skipped,
                named,
                nameless,
                open,
                open_of_gone: r.u64("open files")?,
            })
        }
        20 => Answer::Placed(read_listed(r)?),
        21 => Answer::List(Given::read(r)?),
        other => return Err(bad("answer of a catalog", other.into())),
    })
}

#[cfg(test)]
mod tests;
