//! Files that the caller writes while a copy runs, held against what is copied.
//!
//! In: the request, and the names of plain files, behind all links. Out: whether each of them is apart from
//! the copy: a list in a source would be copied while it grows, and one that is a source, or takes the name
//! of a copied file, would replace it. Directories are told apart by what they are, for a bind mount gives
//! one several paths; names by what the directory makes of them.
//! Left out: what lies at another host, which nobody here can look at; and names that are one only in a form
//! of Unicode. Further names (hard links) of a source's file harm nothing, for lists are never written in
//! place.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, statat};

use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::request::CopyRequest;
use haul_base::mounts::ways_below;
use haul_storage::sink::fold::may_fold_case;
use haul_storage::source::roots::{RootSpec, RootTarget, is_inside, resolve_sources_by};

/// Refuses the first of `files` that is not apart from the copy.
///
/// # Errors
/// A sentence for people.
pub(crate) fn are_apart(request: &CopyRequest, files: &[PathBuf]) -> Result<(), Error> {
    if files.is_empty() || haul_mutant::removed("lists-are-apart") {
        return Ok(());
    }
    let sources = request.sources.iter().filter_map(Endpoint::local_path);
    // Each by itself, and trees too: what is wrong with a source is for the copy to say.
    let links = request.options.link_rule();
    let specs: Vec<RootSpec> = sources
        .filter_map(|path| resolve_sources_by(&[path.to_vec()], true, None, links).ok()?.pop())
        .collect();
    let destination = request.destination.local_path().map(|path| Path::new(OsStr::from_bytes(path)));
    for file in files {
        let shown = file.display();
        if let Some(spec) = source_of(file, &specs) {
            return Err(Error::usage(format!(
                "the list {shown} lies inside the source {}: it would be copied while it is written; give it a place outside",
                spec.path.display()
            )));
        }
        if specs.iter().any(|spec| !spec.is_dir && same(file, &spec.path)) {
            return Err(Error::usage(format!(
                "the list {shown} is a source itself, and would replace it; give it another name"
            )));
        }
        if destination.is_some_and(|at| specs.iter().any(|spec| replaces(file, spec, at))) {
            return Err(Error::usage(format!(
                "the list {shown} would replace a file of the copy; give it another name"
            )));
        }
    }
    Ok(())
}

/// The source that the file lies in.
fn source_of<'a>(file: &Path, specs: &'a [RootSpec]) -> Option<&'a RootSpec> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(parent(file), flags, Mode::empty()).ok()?;
    // One that cannot be looked at hides nothing of the others.
    specs.iter().find(|spec| matches!(is_inside(dir.as_fd(), std::slice::from_ref(*spec)), Ok(Some(_))))
}

fn same(file: &Path, source: &Path) -> bool {
    let stat = |path: &Path| statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).ok();
    let inode = |stat: Stat| (stat.st_dev, stat.st_ino);
    matches!((stat(file).map(inode), stat(source).map(inode)), (Some(a), Some(b)) if a == b)
}

/// Whether the file has the name of something that is copied from `spec`.
fn replaces(file: &Path, spec: &RootSpec, destination: &Path) -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |path: &Path| rustix::fs::open(path, flags, Mode::empty()).ok();
    let (Some(dir), Some(name)) = (open(parent(file)), file.file_name()) else { return false };
    let folds = may_fold_case(parent(file));
    let Some(root) = open(destination) else {
        // One file, whose name at the destination the command gives.
        let same = open(parent(destination)).is_some_and(|other| is_same(&dir, &other));
        return !spec.is_dir
            && same
            && destination.file_name().is_some_and(|copied| is_one_name(folds, copied, name));
    };
    let mut ways = ways_below(&root, &dir);
    if let (Ok(dir), Ok(root)) = (std::fs::canonicalize(parent(file)), std::fs::canonicalize(destination))
        && let Ok(below) = dir.strip_prefix(root)
    {
        ways.push(below.to_owned());
    }
    ways.iter().map(|way| way.join(name)).any(|way| is_copied(&way, spec, folds))
}

/// Whether something of `spec` is copied to `way`, below the destination, which may fold the case of names.
fn is_copied(way: &Path, spec: &RootSpec, folds: bool) -> bool {
    let mut at = spec.path.clone();
    let mut names = way.iter();
    if let RootTarget::Named(name) = &spec.target
        && !names.next().is_some_and(|first| is_one_name(folds, OsStr::from_bytes(name.as_bytes()), first))
    {
        return false;
    }
    for name in names {
        let exact = at.join(name);
        if exact.symlink_metadata().is_ok() {
            at = exact;
            continue;
        }
        // The directory may take another name for this one.
        let listed = if folds { std::fs::read_dir(&at).ok() } else { None };
        let entries = listed.into_iter().flatten().flatten().map(|entry| entry.file_name());
        match entries.into_iter().find(|entry| is_one_name(folds, entry, name)) {
            Some(entry) => at.push(entry),
            None => return false,
        }
    }
    true
}

/// Whether both are one name, where case may not count.
fn is_one_name(folds: bool, one: &OsStr, other: &OsStr) -> bool {
    let folded = |name: &OsStr| name.to_string_lossy().to_lowercase();
    one == other || (folds && folded(one) == folded(other))
}

fn is_same(one: &OwnedFd, other: &OwnedFd) -> bool {
    let inode = |dir: &OwnedFd| rustix::fs::fstat(dir).map(|stat| (stat.st_dev, stat.st_ino));
    matches!((inode(one), inode(other)), (Ok(one), Ok(other)) if one == other)
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use haul_storage::source::roots::resolve_sources;

    /// Goal: a list that would be copied, or that would replace a source or a copied file, is refused; any
    /// other is not.
    /// Method: a table of sources, destinations and names.
    #[test]
    fn lists_lie_apart_from_the_copy() {
        let room = tempfile::tempdir().unwrap();
        let at = |path: &str| room.path().join(path);
        for dir in ["src/sub", "dst/src", "out"] {
            fs::create_dir_all(at(dir)).unwrap();
        }
        for file in ["src/f", "src/sub/g", "one", "dst/old"] {
            fs::write(at(file), "x").unwrap();
        }
        symlink("src/sub", at("way")).unwrap();
        let bytes = |path: &str| at(path).into_os_string().into_encoded_bytes();
        let contents = |path: &str| [bytes(path), b"/".to_vec()].concat();
        let far = Endpoint::remote("h", "src");
        let local = |path: Vec<u8>| Endpoint::local(path);
        for (source, destination, list, refusal) in [
            (local(bytes("src")), "dst", "src/list", "inside"),
            (local(bytes("src")), "dst", "src/sub/f", "inside"),
            (local(contents("src")), "dst", "way/list", "inside"),
            (local(bytes("src")), "dst", "out/list", ""),
            (local(bytes("src")), "dst", "dst/list", ""),
            (local(bytes("src")), "dst", "dst/old", ""),
            (local(bytes("src")), "dst", "dst/src/f", "replace a file of the copy"),
            (local(bytes("src")), "dst", "dst/f", ""),
            (local(contents("src")), "dst", "dst/f", "replace a file of the copy"),
            (local(bytes("one")), "dst", "one", "source itself"),
            (local(bytes("one")), "out/two", "out/two", "replace a file of the copy"),
            (local(bytes("one")), "dst", "dst/one", "replace a file of the copy"),
            (local(bytes("one")), "dst", "dst/one.sums", ""),
            (local(bytes("missing")), "dst", "src/list", ""),
            (far, "dst", "src/list", ""),
        ] {
            let request = crate::copy::bare(vec![source.clone()], local(bytes(destination)));
            let refused = are_apart(&request, &[at(list)]);
            match refusal {
                "" => assert_eq!(refused, Ok(()), "{source:?} {list}"),
                part => {
                    assert!(refused.as_ref().is_err_and(|why| why.text.contains(part)), "{list}: {refused:?}")
                }
            }
        }
    }

    /// Goal: where case does not count, a list under another spelling of a copied name is known to replace
    /// it.
    #[test]
    fn names_that_are_one_are_known() {
        let room = tempfile::tempdir().unwrap();
        fs::create_dir_all(room.path().join("src/Sub")).unwrap();
        fs::write(room.path().join("src/Sub/File"), "x").unwrap();
        let paths = [room.path().join("src").into_os_string().into_encoded_bytes()];
        let spec = resolve_sources(&paths, true, None).unwrap().pop().unwrap();
        for (way, exact, folded) in [
            ("src/Sub/File", true, true),
            ("SRC/sub/FILE", false, true),
            ("src/sub/other", false, false),
            ("src", true, true),
            ("", false, false),
        ] {
            assert_eq!(is_copied(Path::new(way), &spec, false), exact, "{way}");
            assert_eq!(is_copied(Path::new(way), &spec, true), folded, "{way}");
        }
    }
}
