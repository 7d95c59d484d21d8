//! Files that the caller writes while a copy runs, held against what is copied.
//!
//! In: the request, and the names of plain files, behind all links. Out: whether each of them is apart from the copy: a list
//! in a source would be copied while it grows, and one that is a source, or takes the name of a copied file, would
//! replace it.
//! Left out: what lies at another host, which nobody here can look at; and further names (hard links) of a source's file.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, statat};

use crate::api::{CopyRequest, Endpoint};
use crate::storage::source::roots::{RootSpec, RootTarget, is_inside, resolve_sources};

/// Refuses the first of `files` that is not apart from the copy.
///
/// # Errors
/// A sentence for people.
pub(crate) fn are_apart(request: &CopyRequest, files: &[PathBuf]) -> Result<(), String> {
    if files.is_empty() || haul_mutant::removed("lists-are-apart") {
        return Ok(());
    }
    let sources = request.sources.iter().filter_map(Endpoint::local_path);
    // Each by itself, and trees too: what is wrong with a source is for the copy to say.
    let specs: Vec<RootSpec> =
        sources.filter_map(|path| resolve_sources(&[path.to_vec()], true, None).ok()?.pop()).collect();
    let destination = request.destination.local_path().map(|path| Path::new(OsStr::from_bytes(path)));
    for file in files {
        let shown = file.display();
        if let Some(spec) = source_of(file, &specs) {
            return Err(format!(
                "the list {shown} lies inside the source {}: it would be copied while it is written; give it a place outside",
                spec.path.display()
            ));
        }
        if specs.iter().any(|spec| !spec.is_dir && same(file, &spec.path)) {
            return Err(format!(
                "the list {shown} is a source itself, and would replace it; give it another name"
            ));
        }
        if destination.is_some_and(|at| specs.iter().any(|spec| replaces(file, spec, at))) {
            return Err(format!("the list {shown} would replace a file of the copy; give it another name"));
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
    let real = |path: &Path| {
        let dir = std::fs::canonicalize(parent(path)).ok()?;
        Some(dir.join(path.file_name()?))
    };
    let Some(real_file) = real(file) else { return false };
    if let Ok(root) = std::fs::canonicalize(destination)
        && root.is_dir()
    {
        let Ok(below) = real_file.strip_prefix(&root) else { return false };
        let source = match &spec.target {
            RootTarget::Contents => spec.path.join(below),
            RootTarget::Named(name) => {
                let Ok(rest) = below.strip_prefix(OsStr::from_bytes(name.as_bytes())) else { return false };
                if rest.as_os_str().is_empty() { spec.path.clone() } else { spec.path.join(rest) }
            }
        };
        return source.symlink_metadata().is_ok();
    }
    // One file, whose name at the destination the command gives.
    !spec.is_dir && real(destination).is_some_and(|destination| destination == real_file)
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
    use crate::api::RemoteOptions;
    use crate::job::Options;

    /// Goal: a list that would be copied, or that would replace a source or a copied file, is refused; any other is not.
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
            let request = CopyRequest {
                sources: vec![source.clone()],
                destination: local(bytes(destination)),
                options: Options::default(),
                remote: RemoteOptions {
                    ssh: vec!["ssh".into()],
                    remote_haul: None,
                    no_push: false,
                    via: Vec::new(),
                    dial: Default::default(),
                    ports: None,
                    interactive: false,
                    ssh_channels: None,
                    sockets: Vec::new(),
                    binary: None,
                },
                dry_run: false,
                verbose: false,
                targets: false,
                state_home: None,
            };
            let refused = are_apart(&request, &[at(list)]);
            match refusal {
                "" => assert_eq!(refused, Ok(()), "{source:?} {list}"),
                part => assert!(refused.as_ref().is_err_and(|why| why.contains(part)), "{list}: {refused:?}"),
            }
        }
    }
}
