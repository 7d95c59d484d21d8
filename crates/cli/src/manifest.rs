//! The list of digests that `--manifest FILE` asks for, in the format of `b3sum --check`.
//!
//! In: path and BLAKE3 root of each file, in any order. Out: FILE, and FILE.json for names that b3sum
//! cannot check. Both are written under temporary names and renamed by [`Manifest::finish`]: a FILE that is
//! there is a whole one. Dropped without that, the temporaries are removed.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;

use crate::report::json::PathFields;

/// A manifest being written.
pub struct Manifest {
    plain: Part,
    /// Made when the first name needs it.
    json: Option<Part>,
    json_path: PathBuf,
    counts: Counts,
}

/// How many names went where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub plain: u64,
    pub json: u64,
}

struct Part {
    path: PathBuf,
    /// Still to be removed; `None` once renamed.
    temporary: Option<PathBuf>,
    out: BufWriter<File>,
}

#[derive(serde::Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    path: PathFields,
    blake3: &'a str,
}

impl Manifest {
    /// Begins a manifest; `path` itself is not touched yet.
    ///
    /// # Errors
    /// The temporary next to `path` cannot be made.
    pub fn create(path: &Path) -> io::Result<Manifest> {
        let mut json_path = OsString::from(path);
        json_path.push(".json");
        let plain = Part::create(path)?;
        Ok(Manifest { plain, json: None, json_path: json_path.into(), counts: Counts::default() })
    }

    /// Adds a file.
    pub fn add(&mut self, path: &[u8], root: &[u8; 32]) -> io::Result<()> {
        let hex = HEXLOWER.encode(root);
        if let Some(line) = line(path, &hex) {
            self.counts.plain += 1;
            return self.plain.out.write_all(line.as_bytes());
        }
        let part = match &mut self.json {
            Some(part) => part,
            none => none.insert(Part::create(&self.json_path)?),
        };
        self.counts.json += 1;
        serde_json::to_writer(&mut part.out, &Line { path: PathFields::new(path), blake3: &hex })?;
        part.out.write_all(b"\n")
    }

    /// Puts both lists under their names. A FILE.json of an earlier run that this one does not need is removed,
    /// for it would be taken for a part of this manifest.
    pub fn finish(mut self) -> io::Result<Counts> {
        match self.json.take() {
            Some(part) => part.finish()?,
            None => match fs::remove_file(&self.json_path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            },
        }
        self.plain.finish()?;
        Ok(self.counts)
    }
}

impl Part {
    fn create(path: &Path) -> io::Result<Part> {
        let mut temporary = OsString::from(path);
        if !haul_mutant::removed("manifests-appear-whole") {
            temporary.push(format!(".tmp{}", std::process::id()));
        }
        let temporary = PathBuf::from(temporary);
        // A leftover of a killed run with our pid.
        let _ = fs::remove_file(&temporary);
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o666).open(&temporary)?;
        Ok(Part { path: path.into(), temporary: Some(temporary), out: BufWriter::new(file) })
    }

    fn finish(mut self) -> io::Result<()> {
        self.out.flush()?;
        self.out.get_ref().sync_data()?;
        if let Some(temporary) = &self.temporary {
            fs::rename(temporary, &self.path)?;
        }
        self.temporary = None;
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = fs::remove_file(temporary);
        }
    }
}

/// The line that b3sum checks, or `None` if no line would do.
///
/// Edge: b3sum reads `-` as its stdin, so that becomes `./-`. It refuses NUL and U+FFFD, and its versions differ
/// in what they do with a carriage return.
fn line(path: &[u8], hex: &str) -> Option<String> {
    let path = std::str::from_utf8(path).ok()?;
    if path.is_empty() || path.contains(['\0', '\u{fffd}', '\r']) {
        return None;
    }
    let path = if path == "-" { "./-" } else { path };
    if path.contains(['\\', '\n']) {
        return Some(format!("\\{hex}  {}\n", path.replace('\\', "\\\\").replace('\n', "\\n")));
    }
    Some(format!("{hex}  {path}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::process::Command;

    const NAMES: [&[u8]; 11] = [
        b"plain",
        b"-",
        b" lead",
        b"trail ",
        b"two  blanks",
        b"new\nline\n",
        b"back\\slash",
        b"\\nn",
        b"\x1b[0m",
        b"utf\xc3\xa9",
        b"dir/deep",
    ];
    const ODD: [&[u8]; 3] = [b"latin\xe9", b"cr\r", "\u{fffd}".as_bytes()];

    /// Goal: b3sum accepts the list, whatever the names; the ones that it cannot check are in FILE.json.
    /// Method: real files; the real b3sum where there is one, else the format alone.
    #[test]
    fn b3sum_accepts_the_manifest() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("dir")).unwrap();
        let list = dir.path().join("sums");
        let mut manifest = Manifest::create(&list).unwrap();
        for (i, name) in NAMES.iter().chain(&ODD).enumerate() {
            let content = i.to_string();
            fs::write(dir.path().join(OsStr::from_bytes(name)), &content).unwrap();
            manifest.add(name, blake3::hash(content.as_bytes()).as_bytes()).unwrap();
        }
        assert!(!list.exists(), "a manifest that is there is a whole one");
        assert_eq!(manifest.finish().unwrap(), Counts { plain: 11, json: 3 });
        assert_eq!(fs::read_to_string(&list).unwrap().lines().count(), NAMES.len());
        let escaped = format!("\\{}  back\\\\slash\n", blake3::hash(b"6").to_hex());
        assert!(fs::read_to_string(&list).unwrap().contains(&escaped), "as b3sum writes it");
        let json = fs::read_to_string(dir.path().join("sums.json")).unwrap();
        let lines: Vec<serde_json::Value> =
            json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), ODD.len());
        assert_eq!(lines[0]["path_b64"], data_encoding::BASE64.encode(ODD[0]));
        assert_eq!(lines[1]["path"], "cr\r");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 11 + 3 + 2, "no temporary is left");

        match Command::new("b3sum").args(["--check", "sums"]).current_dir(dir.path()).output() {
            Ok(out) => assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout)),
            Err(_) => eprintln!("skipped: no b3sum here"),
        }
    }

    /// Goal: a run that does not end well leaves the old manifest, and no temporary.
    #[test]
    fn unfinished_manifest_leaves_the_old_one() {
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join("sums");
        fs::write(&list, "old").unwrap();
        let mut manifest = Manifest::create(&list).unwrap();
        manifest.add(b"\xff", &[0; 32]).unwrap();
        drop(manifest);
        assert_eq!(fs::read_to_string(&list).unwrap(), "old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    /// Goal: a FILE.json of an earlier run is not taken for a part of this one.
    #[test]
    fn stale_json_part_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("sums.json"), "old").unwrap();
        Manifest::create(&dir.path().join("sums")).unwrap().finish().unwrap();
        assert!(!dir.path().join("sums.json").exists());
    }
}
