//! What an earlier run did not copy, as `--failures FILE` wrote it.
//!
//! In: the file. Out: paths at the destination. What must hold: a list that does not name all that was not
//! copied is refused, for who copies by it would miss the rest; so is what is no such list. Only a run that
//! tried all there is says so in its last line: where that is missing, somebody stopped or killed it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use haul::escape;
use haul::options::PathBytes;
use rustix::fs::OFlags;
use serde::Deserialize;

/// Most bytes of a list: over a million entries.
const LEN_MAX: u64 = 1 << 30;
/// Most bytes of a line: a path in base64, and a text.
const LINE_LEN_MAX: u64 = 1 << 20;

/// A line. What else stands in it is for people.
#[derive(Deserialize)]
struct Line {
    path: Option<String>,
    path_b64: Option<String>,
    /// Of the last line alone.
    whole: Option<bool>,
    #[serde(default)]
    text: String,
}

/// What to do without a list that can be believed.
const INSTEAD: &str = "run the same command without --retry-from, which copies only what is missing";

/// The paths of all entries that failed.
///
/// # Errors
/// A sentence for people: the file cannot be read, or is no list of all that failed.
pub(super) fn listed(file: &Path) -> Result<Vec<PathBytes>, String> {
    let shown = escape::name(file.as_os_str().as_encoded_bytes());
    let unread = |error: std::io::Error| format!("--retry-from {shown}: {}", haul::errno::text(error));
    let no_file = || format!("--retry-from {shown}: it is no regular file");
    // A FIFO would be waited for, and to open a device may be to do something.
    if !fs::metadata(file).map_err(unread)?.is_file() {
        return Err(no_file());
    }
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(file).map_err(unread)?;
    let about = file.metadata().map_err(unread)?;
    if !about.is_file() {
        return Err(no_file());
    }
    if about.len() > LEN_MAX {
        return Err(format!("--retry-from {shown}: it is longer than {} MiB: {INSTEAD}", LEN_MAX >> 20));
    }
    let mut lines = BufReader::new(file.take(LEN_MAX));
    let (mut paths, mut number, mut whole) = (Vec::new(), 0, false);
    loop {
        number += 1;
        let mut line = Vec::new();
        let len = lines.by_ref().take(LINE_LEN_MAX).read_until(b'\n', &mut line).map_err(unread)?;
        if len == 0 && (whole || haul_mutant::removed("lists-of-failures-have-an-end")) {
            return Ok(paths);
        }
        if len == 0 {
            return Err(format!(
                "--retry-from {shown}: its end is missing, and with it what the run had not come to: that was stopped or killed, is running yet, or was of an older haul: {INSTEAD}"
            ));
        }
        let wrong = |what: &str| format!("--retry-from {shown}: line {number} {what}");
        if whole && !haul_mutant::removed("nothing-is-behind-the-end-of-a-list") {
            return Err(wrong(&format!("stands behind the end of the list of one run: {INSTEAD}")));
        }
        let line: Line =
            serde_json::from_slice(&line).map_err(|_| wrong("is none of a list that --failures wrote"))?;
        if line.whole == Some(true) {
            whole = true;
            continue;
        }
        if line.whole == Some(false) && !haul_mutant::removed("lists-of-failures-are-whole") {
            let why = escape::text(&line.text);
            return Err(wrong(&format!("says that the run ended before all was tried ({why}): {INSTEAD}")));
        }
        let path = match (line.path, line.path_b64) {
            (_, Some(text)) => data_encoding::BASE64.decode(text.as_bytes()).ok(),
            (Some(path), None) => Some(path.into_bytes()),
            (None, None) => None,
        };
        paths.push(PathBytes(path.ok_or_else(|| wrong("names no entry"))?));
    }
}

/// Whether both names lead to one file.
pub(super) fn is_one(one: &Path, other: &Path) -> bool {
    let inode = |path: &Path| fs::metadata(path).ok().map(|about| (about.dev(), about.ino()));
    inode(one).is_some_and(|inode_of_one| Some(inode_of_one) == inode(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a list gives the paths that it names, whatever their bytes; one that is not whole, or none at
    /// all, is refused with its line.
    #[test]
    fn lists_give_their_paths() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("list");
        let of = |text: &str| {
            std::fs::write(&at, text).unwrap();
            listed(&at).map(|paths| paths.into_iter().map(|path| path.0).collect::<Vec<_>>())
        };
        let end = r#"{"stage":"run","errno":0,"text":"all was tried","whole":true}"#;
        let one = r#"{"path":"a/b\u0001","stage":"open","errno":13,"text":"x"}"#;
        let raw = r#"{"path":"a?","path_b64":"Yf8=","stage":"open","errno":13,"text":"x"}"#;
        assert_eq!(of(&format!("{one}\n{raw}\n{end}\n")), Ok(vec![b"a/b\x01".to_vec(), b"a\xff".to_vec()]));
        assert_eq!(of(&format!("{end}\n")), Ok(Vec::new()));
        for short in [String::new(), format!("{one}\n"), format!("{one}\n{}", &end[..end.len() - 2])] {
            let why = of(&short).unwrap_err();
            assert!(why.contains("its end is missing") || why.contains("line 2 is none of a list"), "{why}");
        }
        let why = of(&format!("{end}\n{one}\n{end}\n")).unwrap_err();
        assert!(why.contains("line 2 stands behind the end"), "{why}");
        let ended = r#"{"stage":"run","errno":28,"text":"no space","whole":false}"#;
        let why = of(&format!("{one}\n{ended}\n")).unwrap_err();
        assert!(why.contains("line 2") && why.contains("no space"), "{why}");
        for (text, what) in [
            ("hello\n", "line 1 is none of a list"),
            ("{}\n", "line 1 names no entry"),
            (r#"{"path_b64":"*"}"#, "line 1 names no entry"),
        ] {
            let why = of(text).unwrap_err();
            assert!(why.contains(what), "{why}");
        }
        assert!(listed(dir.path()).unwrap_err().contains("no regular file"));
        assert!(listed(&dir.path().join("none")).unwrap_err().contains("No such file"));
    }
}
