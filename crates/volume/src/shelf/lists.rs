//! The lists that a server knows, on its disk: a small file for each.
//!
//! In: a list, by its placing. Out: that it lasts; and all of them when the directory is opened.
//! Invariants: what was answered for is there in every later life; a list is never changed. Left out: which
//! list a placing has.

use haul_core::volume::layout::{Given, Placing, RUNS_MAX};

use super::{ShelfError, failed};
use crate::disk::Dir;
use crate::lists::Known;

/// Holds a file for each list, by its number in the volume.
const LISTS: &str = "lists";
/// Longer is none of these files.
const LEN_MAX: usize = 64 + RUNS_MAX * 10 + blake3::OUT_LEN;

fn name_of(placing: Placing) -> String {
    format!("{:04x}", placing.list().unwrap_or_default())
}

/// The list's bytes with their digest behind them.
fn sealed(list: &Given) -> Vec<u8> {
    let mut bytes = list.encode();
    let check = blake3::hash(&bytes);
    bytes.extend_from_slice(check.as_bytes());
    bytes
}

fn unsealed(bytes: &[u8]) -> Option<Given> {
    let list = Given::decode(&bytes[..bytes.len().checked_sub(blake3::OUT_LEN)?]).ok()?;
    (sealed(&list) == bytes).then_some(list)
}

/// All lists that are there.
pub(super) fn read(root: &Dir, servers: u16) -> Result<Known, ShelfError> {
    let known = Known::default();
    let lists = match root.sub(LISTS) {
        Err(rustix::io::Errno::NOENT) => return Ok(known),
        other => other.map_err(failed("open", root.path_of(LISTS)))?,
    };
    for name in lists.names().map_err(failed("read", lists.path()))? {
        let Some(name) = name.to_str().filter(|name| !name.ends_with(".new")) else { continue };
        let damaged = || ShelfError::Damaged { path: lists.path_of(name) };
        let placing = u16::from_str_radix(name, 16).ok().and_then(Placing::given);
        let placing = placing.filter(|placing| name_of(*placing) == name).ok_or_else(damaged)?;
        let bytes = lists.read_small(name, LEN_MAX).map_err(failed("read", lists.path_of(name)))?;
        let list = bytes.as_deref().and_then(unsealed).filter(|list| list.fits(servers));
        known.learn(placing, list.ok_or_else(damaged)?).map_err(|_| damaged())?;
    }
    Ok(known)
}

/// Has a list last.
pub(super) fn write(root: &Dir, placing: Placing, list: &Given) -> Result<(), ShelfError> {
    let path = root.path_of(LISTS);
    root.make_sub(LISTS)
        .and_then(|()| root.sync())
        .and_then(|()| root.sub(LISTS)?.replace(&name_of(placing), &sealed(list)))
        .map_err(failed("write", path))
}

/// Those of these lists that are not on the disk any more as they are known, in words.
pub(super) fn check(root: &Dir, known: &Known) -> Vec<String> {
    let of = |(placing, list): (Placing, std::sync::Arc<Given>)| {
        let (name, path) = (name_of(placing), root.path_of(LISTS));
        let read = root.sub(LISTS).and_then(|lists| lists.read_small(&name, LEN_MAX));
        let what = match read {
            Ok(Some(bytes)) if bytes == sealed(&list) => return None,
            Ok(Some(_)) => "is another than it was".to_owned(),
            Ok(None) | Err(rustix::io::Errno::NOENT) => "is missing".to_owned(),
            Err(errno) => format!("cannot be read: {}", haul_base::errno::text(errno)),
        };
        Some(format!("{} {what}", path.join(name).display()))
    };
    known.all().into_iter().filter_map(of).collect()
}
