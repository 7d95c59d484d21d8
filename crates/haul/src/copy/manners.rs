//! Ways to walk a tree and to take its links, and modes and owners, that not every end can keep to.
//!
//! In: what was asked for. Out: why it cannot be, before anything is looked at.

use crate::endpoint::Endpoint;
use crate::options::{Mounted, ONLY_LEN_MAX, Options};
use crate::request::CopyRequest;

/// Of files of this host and of hosts with haul.
const FILE: &str = "file";

/// The first choice that an end cannot keep to, in words.
pub(super) fn refused(request: &CopyRequest) -> Option<String> {
    let other = |end: &&Endpoint| end.place().scheme().name != FILE;
    let shown = |end: &Endpoint| String::from_utf8_lossy(&end.shown()).into_owned();
    if let (Some(name), Some(source)) = (of_source(&request.options), request.sources.iter().find(other)) {
        let shown = shown(source);
        return Some(format!(
            "{shown}: `{name}` is not possible there, for it asks a file system, and this is none; leave it out"
        ));
    }
    if let Some(why) = not_given(request) {
        return Some(why);
    }
    if request.options.keep_dirlinks && other(&&request.destination) {
        let shown = shown(&request.destination);
        return Some(format!(
            "{shown}: `keep_dirlinks` is not possible there, for no link is followed in a volume or at a server; leave it out"
        ));
    }
    if request.options.keep_dirlinks && request.options.only.is_some() {
        let text = "`keep_dirlinks` and `only` are not possible together, for what the list does not name is not seen, and may be the \
                    directory that a link leads to: run the same command without `only`, which copies only what is missing";
        return Some(text.to_owned());
    }
    let far = request.sources.iter().any(|source| source.host().is_some());
    let only = request.options.only.as_deref().filter(|_| far).unwrap_or_default();
    let len: usize = only.iter().map(|path| path.0.len()).sum();
    (len > ONLY_LEN_MAX).then(|| {
        format!(
            "`only` names {} entries with {len} bytes, and a far source can be told {ONLY_LEN_MAX}: run the same command without it, \
             which copies only what is missing",
            only.len()
        )
    })
}

/// Why modes and owners cannot be others than those of the source.
fn not_given(request: &CopyRequest) -> Option<String> {
    let given = request.options.given();
    let shown = |end: &Endpoint| String::from_utf8_lossy(&end.shown()).into_owned();
    if given.chmod.is_some() && crate::endpoint::is_pair(&request.sources, &request.destination) {
        return Some(format!(
            "{}: `chmod` is not possible where two servers move the data between them, for they set no modes; leave it out",
            shown(&request.destination)
        ));
    }
    let maps = given.users.is_some() || given.groups.is_some();
    let mut ends = request.sources.iter().chain([&request.destination]);
    if let Some(server) = ends.find(|end| maps && end.place().scheme().foreign) {
        return Some(format!(
            "{}: `usermap` and `groupmap` are not possible there, for owners are not kept where an end is a server; leave them out",
            shown(server)
        ));
    }
    let other = |end: &&Endpoint| end.place().scheme().name != FILE;
    let nameless = request.sources.iter().find(other).filter(|_| given.needs_names())?;
    Some(format!(
        "{}: nobody says there what owners are called: give `usermap` and `groupmap` numbers, or *, before each colon",
        shown(nameless)
    ))
}

/// The first choice that is the source's to keep to, as the library calls it.
fn of_source(options: &Options) -> Option<&'static str> {
    [
        ("one_file_system", options.one_file_system != Mounted::Copied),
        ("copy_links", options.copy_links),
        ("copy_dirlinks", options.copy_dirlinks),
        ("copy_unsafe_links", options.copy_unsafe_links),
        ("safe_links", options.safe_links),
        ("only", options.only.is_some()),
    ]
    .into_iter()
    .find_map(|(name, asked)| asked.then_some(name))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::options::PathBytes;

    /// Goal: nothing is asked of an end that would not do it, and of files everything may be.
    /// Method: each choice with sources and destinations of each kind.
    #[test]
    fn what_an_end_cannot_do_is_refused() {
        let end = |text: &str| Endpoint::parse(OsStr::new(text), |_| false).expect("an end");
        let refuses = |from: &str, to: &str, options: Options| {
            let request = CopyRequest { options, ..CopyRequest::new(vec![end(from)], end(to)) };
            refused(&request)
        };
        let only = Some(vec![PathBytes(b"a".to_vec())]);
        let both = Options { only, keep_dirlinks: true, ..Options::default() };
        assert!(refuses("a", "b", both).is_some_and(|why| why.contains("together")));
        let of_sources = || {
            let plain = Options::default;
            let only = Some(vec![PathBytes(b"a".to_vec())]);
            [
                Options { one_file_system: Mounted::Empty, ..plain() },
                Options { copy_links: true, ..plain() },
                Options { copy_dirlinks: true, ..plain() },
                Options { copy_unsafe_links: true, ..plain() },
                Options { safe_links: true, ..plain() },
                Options { only, ..plain() },
            ]
        };
        let keep = || Options { keep_dirlinks: true, ..Options::default() };
        for (from, to) in [("/a", "/b"), ("h:a", "/b"), ("/a", "h:b")] {
            for options in of_sources().into_iter().chain([keep()]) {
                assert_eq!(refuses(from, to, options), None, "{from} {to}");
            }
        }
        for options in of_sources() {
            let name = of_source(&options).expect("it is of the source");
            let why = refuses("zero://5", "/b", options).expect("no file system");
            assert!(why.contains(&format!("`{name}`")), "{why}");
        }
        assert_eq!(refuses("zero://5", "/b", keep()), None);
        assert!(refuses("/a", "null://", keep()).is_some_and(|why| why.contains("`keep_dirlinks`")));
        let chmod = || Options {
            chmod: Some(crate::options::Chmod::parse("D700", 0).expect("a mode")),
            ..Options::default()
        };
        let map = |text: &str| Options {
            archive: true,
            groupmap: Some(crate::options::OwnerMap::parse(text).expect("a map")),
            ..Options::default()
        };
        for (from, to) in [("/a", "/b"), ("h:a", "/b"), ("/a", "h:b"), ("zero://5", "/b")] {
            assert_eq!(refuses(from, to, chmod()), None, "{from} {to}");
            assert_eq!(refuses(from, to, map("1-2:a,*:b")), None, "{from} {to}");
        }
        assert!(
            refuses("zero://5", "/b", map("a:b")).is_some_and(|why| why.contains("what owners are called"))
        );
        #[cfg(feature = "ftp")]
        {
            for (from, to) in [("/a", "ftp://h/b"), ("ftp://h/b", "/a")] {
                assert_eq!(refuses(from, to, chmod()), None, "{from} {to}");
                assert!(refuses(from, to, map("*:b")).is_some_and(|why| why.contains("is a server")));
            }
            let why = refuses("ftp://g/a", "ftp://h/b", chmod()).expect("no modes are set");
            assert!(why.contains("two servers"), "{why}");
        }
        let long = || Options { only: Some(vec![PathBytes(vec![b'a'; 1 << 20])]), ..Options::default() };
        assert!(refuses("h:a", "/b", long()).is_some_and(|why| why.contains("1 entries")));
        assert_eq!(refuses("/a", "h:b", long()), None);
    }
}
