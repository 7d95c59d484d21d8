//! Sources that a copy on this host would write over themselves.
//!
//! In: resolved sources, the destination as typed. Out: a refusal that names both. A symbolic link is copied
//! as a link, so one that is copied to the name of the file that it leads to would take the place of that
//! file.
//! Left out: two ends on one host that are joined through ssh, and links within a tree whose text says where
//! the file is seen from the source alone; of the others the sink keeps off (`storage::sink::commit`).

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::error::Error;
use haul_base::escape;
use rustix::fs::{AtFlags, CWD, FileType, Stat, readlinkat, stat, statat};

use haul_storage::sink::store::destination;
use haul_storage::source::roots::{RootSpec, RootTarget, source_roots};

/// Links behind each other that are followed, as many as Linux does.
const LINKS_MAX: usize = 40;

/// One directory entry, not followed.
struct Entry {
    stat: Stat,
    /// The directory that it is in.
    parent: Option<Stat>,
    name: Option<OsString>,
}

impl Entry {
    /// `None`: there is none.
    fn at(path: &Path) -> Option<Entry> {
        let stat_here = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let parent = stat(above(path)).ok();
        Some(Entry { stat: stat_here, parent, name: path.file_name().map(OsString::from) })
    }

    fn is_link(&self) -> bool {
        FileType::from_raw_mode(self.stat.st_mode) == FileType::Symlink
    }

    /// The very same entry. Another hard link of one file is another entry.
    fn is(&self, other: &Entry) -> bool {
        let same = |a: &Stat, b: &Stat| (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino);
        let parents = || match (&self.parent, &other.parent) {
            (Some(one), Some(two)) => same(one, two),
            _ => true,
        };
        let is_dir = FileType::from_raw_mode(self.stat.st_mode) == FileType::Directory;
        let alone = is_dir || self.stat.st_nlink < 2;
        same(&self.stat, &other.stat) && (alone || (self.name == other.name && parents()))
    }
}

fn above(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}

/// Refuses a source that is what stands at its name at the destination, and a link that leads there. What
/// cannot be looked at is left to the ends.
pub(super) fn refuse_itself(specs: &[RootSpec], typed: &[u8], in_place: bool) -> Result<(), Error> {
    if haul_mutant::removed("no-source-over-itself") {
        return Ok(());
    }
    let Ok(roots) = source_roots(specs) else { return Ok(()) };
    let Ok((root, rename)) = destination(typed, &roots, None) else { return Ok(()) };
    for spec in specs {
        let RootTarget::Named(name) = &spec.target else { continue };
        let name = rename.as_ref().unwrap_or(name);
        let place = root.join(OsString::from_vec(name.as_bytes().to_vec()));
        let Some(there) = Entry::at(&place) else { continue };
        let shown = |path: &Path| escape::within(path.as_os_str().as_bytes());
        // What is written to one name of a file is in all of them.
        let same = |stat: &Stat| (stat.st_dev, stat.st_ino) == (there.stat.st_dev, there.stat.st_ino);
        let written =
            in_place && Entry::at(&spec.path).is_some_and(|source| !source.is_link() && same(&source.stat));
        if let Some(steps) = leads_to(&spec.path, &there).or(written.then_some(0)) {
            let (source, place) = (shown(&spec.path), shown(&place));
            return Err(Error::usage(match steps {
                0 => format!(
                    "the source {source} and its destination {place} are the same; nothing was copied"
                ),
                _ => format!(
                    "the source {source} is a symbolic link that leads to {place}, which the copy of the link would replace: \
                     the content would be lost, so nothing was copied"
                ),
            }));
        }
    }
    Ok(())
}

/// How many links away from `path` the entry is; `None`: it is not on the way.
fn leads_to(path: &Path, there: &Entry) -> Option<usize> {
    let mut at: PathBuf = path.to_owned();
    for step in 0..LINKS_MAX {
        let here = Entry::at(&at)?;
        if here.is(there) {
            return Some(step);
        }
        if !here.is_link() {
            return None;
        }
        let text = readlinkat(CWD, &at, Vec::new()).ok()?;
        at = above(&at).join(OsString::from_vec(text.into_bytes()));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use haul_storage::source::roots::resolve_sources;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Goal: no source takes the place of itself, nor a link that of what it leads to; every other copy goes
    /// on, reruns and hard links too.
    /// Method: files, links of links, directories and hard links, each to its own name and to another.
    #[test]
    fn nothing_is_copied_over_itself() {
        let temp = tempfile::tempdir().expect("tempdir");
        let at = |name: &str| temp.path().join(name);
        for dir in ["d", "e", "kept"] {
            fs::create_dir(at(dir)).expect("mkdir");
        }
        for file in ["a", "d/a", "kept/x"] {
            fs::write(at(file), "DATA").expect("write");
        }
        for (text, link) in [
            ("a", "sl"),
            ("sl", "sl2"),
            ("../a", "d/up"),
            ("../kept/x", "e/x"),
            ("d", "ld"),
            ("none", "dangling"),
        ] {
            symlink(text, at(link)).expect("symlink");
        }
        symlink(at("a"), at("kept/sl")).expect("symlink");
        fs::hard_link(at("a"), at("hard")).expect("link");
        let refused_if = |source: &str, to: &str, in_place: bool| {
            let bytes = |path: &str| at("").join(path).into_os_string().into_vec();
            let specs = resolve_sources(&[bytes(source)], true, None).expect("there");
            refuse_itself(&specs, &bytes(to), in_place).err().map(|refused| {
                assert_eq!(refused.kind, ErrorKind::Usage);
                refused.text
            })
        };
        let refused = |source: &str, to: &str| refused_if(source, to, false);
        assert!(refused_if("a", "hard", true).is_some_and(|why| why.contains("the same")));
        assert_eq!(refused_if("a", "b", true), None);
        for (source, to) in [("a", "a"), ("a", "."), ("d/a", "d"), ("d/a", "ld/a"), ("d", "."), ("sl", "sl")]
        {
            assert!(refused(source, to).is_some_and(|why| why.contains("the same")), "{source} {to}");
        }
        for (source, to) in [("sl", "a"), ("sl2", "a"), ("sl2", "sl"), ("d/up", "a"), ("e/x", "kept")] {
            assert!(refused(source, to).is_some_and(|why| why.contains("lost")), "{source} {to}");
        }
        for (source, to) in [
            ("a", "b"),
            ("a", "hard"),
            ("a", "sl"),
            ("sl", "hard"),
            ("sl", "kept"),
            ("sl", "new"),
            ("d/a", "."),
            ("d/", "e"),
            ("dangling", "a"),
        ] {
            assert_eq!(refused(source, to), None, "{source} {to}");
        }
    }
}
