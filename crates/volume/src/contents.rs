//! What is said to a file's gatherer and to the catalog together, so that both know that it was written.
//!
//! In: a file, its gatherer's look at it. Out: a file whose time tells of all that the look showed.
//! Invariant: the gatherer hears that the catalog knows only when that lasts there, and with the version that
//! was looked at: what was written since is told by whoever looks next.
//!
//! Whoever writes and syncs tells it so; of who did not come to that, or never does, the next one who looks
//! does. Left out: what was written directly and lies behind the file's end, which nobody can read either.

use haul_core::volume::catalog::{Entry, EntryNo, Failure, Setting};
use haul_core::volume::layout::Striping;
use haul_core::volume::rights::READ_ONLY;
use haul_core::volume::{FileNo, ServerNo};

use crate::catalog::client::Client as Catalog;
use crate::client::{Client, Look, VolumeError};

/// Why it was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContentsError {
    #[error(transparent)]
    Servers(#[from] VolumeError),
    #[error("the volume's catalog: {}", .0.words)]
    Catalog(Failure),
}

/// Tells the catalog that a file was written, as a look showed it, and what else is to be set of it.
///
/// # Errors
/// The catalog's; the next look shows it again.
pub fn tell(
    catalog: &Catalog,
    client: &Client,
    file: FileNo,
    look: &Look,
    set: Setting,
) -> Result<Entry, Failure> {
    let entry = catalog.set_attr(EntryNo(file.0), Setting { written: true, ..set }).map_err(|why| {
        let words = "it was written, and the catalog was not told yet, which an access for reading cannot do: sync \
                     or close it where it is written, or copy it once with the access that made the volume";
        match why.errno {
            READ_ONLY => Failure { words: words.into(), ..why },
            _ => why,
        }
    })?;
    // Where it does not hear that, the catalog is told once more.
    let _ = client.told(file, look.version).wait();
    Ok(entry)
}

/// Looks at a file, and tells the catalog if nobody did: then with its entry as that is now.
///
/// # Errors
/// As of [`Client::look`], and of [`tell`].
pub fn look(
    catalog: &Catalog,
    client: &Client,
    file: FileNo,
) -> Result<(Look, Option<Entry>), ContentsError> {
    let look = client.look(file).wait()?;
    let told = match look.untold {
        true => Some(tell(catalog, client, file, &look, Setting::default()).map_err(ContentsError::Catalog)?),
        false => None,
    };
    Ok((look, told))
}

/// What of a file is lost that no server has from there on; `None`: that was never written as far as anybody
/// knows, so that it is zeros.
///
/// The catalog knows of files that each byte of them was written, until it is told of a write. So who cut one
/// and told nobody is looked for: the gatherer knows of him. Whoever writes all the time had his writes told
/// by nobody either, and nothing is known.
///
/// # Errors
/// As of [`Client::look`], and the catalog's.
pub fn is_lost(
    catalog: &Catalog,
    client: &Client,
    file: FileNo,
    offset: u64,
) -> Result<Option<VolumeError>, ContentsError> {
    let id = EntryNo(file.0);
    let whole = || -> Result<Option<u64>, ContentsError> {
        let known = catalog.known(vec![id]).map_err(ContentsError::Catalog)?.pop().flatten();
        Ok(known.and_then(|known| known.whole).filter(|whole| offset < *whole))
    };
    if whole()?.is_none() || haul_mutant::removed("volume-losses-are-no-holes") {
        return Ok(None);
    }
    match client.look(file).wait() {
        Ok(look) if !look.untold => {}
        Ok(_) | Err(VolumeError::Busy | VolumeError::Gone) => return Ok(None),
        Err(why) => return Err(why.into()),
    }
    // All that was done before the look was told: what the catalog knows now was so then.
    let Some(whole) = whole()? else { return Ok(None) };
    let has_name = match catalog.stat(id) {
        Ok(entry) => entry.parent.is_some(),
        Err(why) if why.errno == rustix::io::Errno::NOENT.raw_os_error() => false,
        Err(why) => return Err(ContentsError::Catalog(why)),
    };
    let striping = client.striping();
    let server = striping.server(file, offset / striping.stripe_size);
    // What has no name may lose its bytes at any time.
    Ok(has_name.then_some(VolumeError::Missing { server, offset, whole }))
}

/// Whether a file that its gatherer said to end at `end`, and of which nothing is untold, is of another
/// length than the catalog knows: then that.
///
/// # Errors
/// The catalog's.
pub fn is_other(
    catalog: &Catalog,
    client: &Client,
    file: FileNo,
    end: u64,
) -> Result<Option<VolumeError>, Failure> {
    let known = catalog.known(vec![EntryNo(file.0)])?.pop().flatten();
    let whole = known.and_then(|known| known.whole).filter(|whole| *whole != end);
    let server = client.striping().gatherer(file);
    Ok(whole.map(|whole| VolumeError::OtherLength { server, end, whole }))
}

/// The same of a file that ends at `end` for who reads it, of which something may be untold: nothing is known
/// of it then.
///
/// # Errors
/// As of [`Client::look`], and the catalog's.
pub fn is_short(
    catalog: &Catalog,
    client: &Client,
    file: FileNo,
    end: u64,
) -> Result<Option<VolumeError>, ContentsError> {
    let known = is_other(catalog, client, file, end).map_err(ContentsError::Catalog)?;
    if known.is_none() || haul_mutant::removed("volume-programs-are-told-of-lengths") {
        return Ok(None);
    }
    match client.look(file).wait() {
        Ok(look) if !look.untold => is_other(catalog, client, file, look.end).map_err(ContentsError::Catalog),
        Ok(_) | Err(VolumeError::Busy | VolumeError::Gone) => Ok(None),
        Err(why) => Err(why.into()),
    }
}

/// Offsets of the last byte that each server should have of a file of this length.
pub fn last_bytes(striping: &Striping, file: FileNo, len: u64) -> Vec<u64> {
    let size = striping.stripe_size;
    let stripes = len.div_ceil(size);
    let of = |server| {
        let nth = striping.before(file, stripes, server).checked_sub(1)?;
        let start = striping.nth(file, server, nth) * size;
        Some((start + size).min(len) - 1)
    };
    (0..striping.servers).map(ServerNo).filter_map(of).collect()
}

/// Makes last what this client wrote to a file before, and the file's time tell of it.
///
/// # Errors
/// As of [`Client::sync`] and of [`look`]. Where somebody else writes all the time the time is his to set.
pub fn sync(catalog: &Catalog, client: &Client, file: FileNo) -> Result<(), ContentsError> {
    client.sync(file).wait()?;
    match look(catalog, client, file) {
        Err(ContentsError::Servers(VolumeError::Busy)) => {
            let set = Setting { written: true, ..Setting::default() };
            catalog.set_attr(EntryNo(file.0), set).map(drop).map_err(ContentsError::Catalog)
        }
        other => other.map(drop),
    }
}
