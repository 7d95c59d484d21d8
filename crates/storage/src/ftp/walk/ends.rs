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
use crate::ftp::line::Each;
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
            // What is said of one of them is no word on the others.
            let mut answers = Each::new(some.len());
            let ended = self.again(dir_at, |session, dir| {
                let dir = dir.strip_suffix(b"/").unwrap_or(dir);
                answers.ask(|open| {
                    let path = |at: &usize| [dir, b"/", some[*at].1.as_slice()].concat();
                    let paths: Vec<Vec<u8>> = open.iter().map(path).collect();
                    let paths: Vec<&[u8]> = paths.iter().map(Vec::as_slice).collect();
                    if haul_mutant::removed("ftp-ends-of-names-fail-alone") {
                        return session.facts_of(&paths).map(|all| all.into_iter().map(Ok).collect());
                    }
                    session.facts_of_each(&paths)
                })
            });
            let dir = self.names.server_path(self.site, above, None);
            for ((at, name), answer) in some.iter().zip(answers.each()) {
                match (&answer, &ended) {
                    (Some(Ok(Asked::Is(_))), _) => drop(lost.insert(*at, None)),
                    // Where it says anything else of it, it says the same of the shorter name, which is not
                    // read then.
                    (Some(Ok(_)), _) => {}
                    (Some(Err(error)), _) | (None, Err(error)) => {
                        let path = [dir.strip_suffix(b"/").unwrap_or(&dir), b"/", name].concat();
                        let failure = self.failure(&path, error);
                        lost.entry(*at).or_insert(Some(failure));
                    }
                    (None, Ok(())) => unreachable!("all are answered"),
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
