//! Whether a server renames what it takes: there are some that take files and let nobody do anything else
//! with them (drop boxes), and no file would get its name there.
//!
//! In: a session, and the directory that files go to. Out: nothing, or why nothing can be copied there.
//! The server is asked to rename what is not there, which costs a round trip: where it says that this is not
//! there, or would go on, all is well. Where it says that the user may not, an empty file is sent and
//! renamed, for that proves more than words.
//! Invariants: nothing is refused but by a server that took that file and refused the rename; what could not
//! be tried is found out with the files ([`UNRENAMED_MAX`]).
//! Left out: which names a server takes.

use std::sync::atomic::Ordering;

use haul_core::entry::Name;
use haul_core::wire::{Failure, FailureKind};
use haul_ftp::{Asked, Error, Server, Session};

use super::publish::Going;
use super::writer::Writer;
use crate::ftp::shown;
use crate::sink::names::temp_name;

/// So many files may be refused their names before it is taken to be that way with all.
const UNRENAMED_MAX: u32 = 8;

/// It is not refused for now alone.
pub(super) fn is_for_good(error: &Error) -> bool {
    matches!(error, Error::Refused { code: 500..=599, .. })
}

/// The server lets this user rename what he sends into `root`, as far as that can be known before.
///
/// # Errors
/// It does not, and what stays of the trial is named.
pub(super) fn check(
    session: &mut Session,
    server: &Server,
    (root, tag): (&[u8], u32),
) -> Result<(), Refused> {
    let at = |name: &[u8]| {
        let name = temp_name(&Name::new(name).expect("legal"), tag, 0);
        [root.strip_suffix(b"/").unwrap_or(root), b"/", name.as_bytes()].concat()
    };
    let (trial, renamed) = (at(b"trial"), at(b"renamed"));
    match session.refuses_rename(&trial) {
        // If it let anybody rename anything, it would say that there is nothing.
        Ok(Some(error)) if error.is_denied() => {}
        Ok(_) => return Ok(()),
        Err(_) => return Err(Refused::Session),
    }
    let sent = session.store(&trial).and_then(|outgoing| session.stored(outgoing, &trial, false));
    if sent.is_err() {
        // Whatever it is that it does not take: files of other names may be taken.
        let _ = session.remove(&[&trial]);
        return if session.is_broken() { Err(Refused::Session) } else { Ok(()) };
    }
    let pair = [(&trial[..], &renamed[..])];
    let refused = match session.rename(&pair).map(|mut all| all.pop()) {
        Ok(Some(Err(error))) => Some(error),
        Ok(_) => None,
        Err(_) => return Err(Refused::Session),
    };
    let left = if refused.is_some() { &trial } else { &renamed };
    let is_gone = session.remove(&[left]).is_ok_and(|all| all.iter().all(Result::is_ok))
        || matches!(session.facts(left), Ok(Asked::Not(_)));
    let Some(error) = refused.filter(is_for_good) else { return Ok(()) };
    let stays = match is_gone {
        true => String::new(),
        false => format!(
            "; of the trial an empty file stays there that it does not let anybody remove: {}",
            shown(server, left)
        ),
    };
    let text = format!("destination {}: {}{stays}", shown(server, root), words(&error));
    let errno = error.errno();
    Err(Refused::Renames(Failure { kind: FailureKind::Create, errno, text: text.into() }))
}

/// What is wrong there, and what to do.
fn words(error: &Error) -> String {
    format!(
        "the server takes files and renames none ({error}), as a drop box does, and a file is sent under a name of its own until it \
         is whole; with `in_place` files are written under their names at once, new ones at least; what such a run leaves half \
         written the server may not let anybody complete"
    )
}

impl Writer {
    /// That is known of the server by now.
    pub(super) fn renames_none(&self) -> bool {
        let told = &self.common.told;
        told.unrenamed.load(Ordering::Relaxed) >= UNRENAMED_MAX && !told.renamed.load(Ordering::Relaxed)
    }

    /// A file was renamed, or was not: where that is refused for good of the first ones all, nothing else is
    /// tried.
    pub(super) fn note_rename(&self, going: &Going<'_>, renamed: &Result<(), Error>) {
        let told = &self.common.told;
        let error = match renamed {
            Ok(()) => return told.renamed.store(true, Ordering::Relaxed),
            // It may be that the server replaces nothing.
            Err(error) if is_for_good(error) && !going.stands => error,
            Err(_) => return,
        };
        told.unrenamed.fetch_add(1, Ordering::Relaxed);
        if self.renames_none() {
            let text = format!("destination {}: {}", self.common.server.url(), words(error));
            let errno = error.errno();
            self.common.retry.tell(Failure { kind: FailureKind::Publish, errno, text: text.into() });
        }
    }
}

/// Why it is not known that it does.
pub(super) enum Refused {
    Renames(Failure),
    /// The session is of no use any more.
    Session,
}
