//! Names with blanks or dots at their ends: there are servers that leave those out of a path that they are
//! told, and give what lies beside it under the shorter name, be it of the same size and time.
//!
//! In: what a directory lists. Out: the same without those names that the server would take for others, each
//! of which is told.
//! Invariant: where such a name is announced, its server was asked for one with one more of them, which the
//! directory does not list, and has nothing there.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};

use haul_core::wire::FailureKind;
use haul_ftp::{Asked, Listed};

use super::Walker;
use crate::ftp::names::{Above, longer_at_its_ends};
use crate::ftp::{DROPS_ENDS, is_dir};
use crate::walk::{CountsAs, WalkItem};

/// Most names that are asked about together.
const TOGETHER: usize = 256;

impl Walker {
    /// What of a listing can be asked for by its name.
    pub(super) fn without_lost_ends(&mut self, above: Above, listed: Vec<Listed>) -> Vec<Listed> {
        let known: HashSet<&[u8]> = listed.iter().filter_map(Listed::name).collect();
        // The place in the listing, and what is asked for.
        let mut longer: Vec<(usize, Vec<u8>)> = Vec::new();
        for (at, line) in listed.iter().enumerate() {
            match line {
                // Of a link everything stands in the listing.
                Listed::Entry { name, facts, .. } if !facts.is_symlink() => {
                    let all = longer_at_its_ends(name, |longer| known.contains(longer));
                    longer.extend(all.into_iter().map(|longer| (at, longer)));
                }
                _ => {}
            }
        }
        // Why each of them is left out: by an error, if there was one.
        let mut lost = HashMap::new();
        for some in longer.chunks(TOGETHER) {
            let (names, site) = (self.names.clone(), Cell::new(self.site));
            let dir_at = |at| {
                site.set(at);
                names.server_path(at, above, None)
            };
            let asked = self.again(dir_at, |session, dir| {
                let dir = dir.strip_suffix(b"/").unwrap_or(dir);
                let paths: Vec<Vec<u8>> = some.iter().map(|(_, name)| [dir, b"/", name].concat()).collect();
                let paths: Vec<&[u8]> = paths.iter().map(Vec::as_slice).collect();
                session.facts_of(&paths)
            });
            match asked {
                // Where it says anything else of it, it says the same of the shorter name, which is not read
                // then.
                Ok(asked) => {
                    let is_there = |asked: &Asked| matches!(asked, Asked::Is(_));
                    let there = some.iter().zip(&asked).filter(|(_, asked)| is_there(asked));
                    lost.extend(there.map(|((at, _), _)| (*at, None)));
                }
                Err(error) => {
                    let path = self.names.server_path(self.site, above, None);
                    let failure = self.failure(&path, &error);
                    lost.extend(some.iter().map(|(at, _)| (*at, Some(failure.clone()))));
                }
            }
        }
        if haul_mutant::removed("ftp-ends-of-names-are-asked-about") {
            return listed;
        }
        let mut left = Vec::with_capacity(listed.len());
        for (at, line) in listed.into_iter().enumerate() {
            let (Some(why), Listed::Entry { name, facts, .. }) = (lost.remove(&at), &line) else {
                left.push(line);
                continue;
            };
            let counts_as = if is_dir(facts) { CountsAs::Subtree } else { CountsAs::Entry };
            let path = self.below(above, name);
            match why {
                None => self.fail(path, FailureKind::Walk, DROPS_ENDS, counts_as),
                Some(failure) => self.push(WalkItem::Failed { path, failure, counts_as }),
            }
        }
        left
    }
}
