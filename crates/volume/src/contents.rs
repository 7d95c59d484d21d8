//! What is said to a file's gatherer and to the catalog together, so that both know that it was written.
//!
//! In: a file, its gatherer's look at it. Out: a file whose time tells of all that the look showed.
//! Invariant: the gatherer hears that the catalog knows only when that lasts there, and with the version that
//! was looked at: what was written since is told by whoever looks next.
//!
//! Whoever writes and syncs tells it so; of who did not come to that, or never does, the next one who looks
//! does. Left out: what was written directly and lies behind the file's end, which nobody can read either.

use haul_core::volume::FileNo;
use haul_core::volume::catalog::{Entry, EntryNo, Failure, Setting};
use haul_core::volume::rights::READ_ONLY;

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
