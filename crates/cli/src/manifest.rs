//! The list of digests that `--manifest FILE` asks for, in the format of `b3sum --check`.
//!
//! In: path and BLAKE3 root of each file, in any order. Out: FILE, and FILE.json for names that b3sum
//! cannot check. Both are written beside themselves and renamed by [`Manifest::finish`]: a FILE that is
//! there is a whole one. Dropped without that, the temporaries are removed.
//! Invariant: a FILE.json that is no list of ours is neither replaced nor removed.
//! A part of a file (`--range`) is in FILE.json with the part that it is of which source, and in FILE too
//! where it is all of its file, for only then b3sum can check it. A FILE that is no plain file (a pipe,
//! `/dev/stdout`) gets its lines as they come, and has no FILE.json.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;

use crate::output::{self, Place, Spot, Temporary};
use crate::report::json::PathFields;

/// Longest line of a FILE.json: the longest path of an entry, each byte of it escaped, and as much again in
/// base64.
const JSON_LINE_MAX: u64 = 4 * 1024 * 1024;

/// A manifest being written.
pub struct Manifest {
    plain: List,
    /// Made when the first name needs it.
    json: Option<List>,
    /// `None`: FILE is a stream, and nothing lies beside it.
    beside: Option<Spot>,
    /// Of which part of what the only file consists.
    part: Option<Part>,
    counts: Counts,
}

/// A part of a source, and where it went.
#[derive(Clone, Debug)]
pub struct Part {
    pub source: Vec<u8>,
    pub offset: u64,
    /// `None`: to the source's end.
    pub len: Option<u64>,
    /// Where it lies in a file that holds more.
    pub to: Option<u64>,
}

/// How many names went where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub plain: u64,
    pub json: u64,
    /// Names that b3sum cannot check, which a stream has no FILE.json for.
    pub left_out: u64,
}

struct List {
    /// `None`: a stream.
    temporary: Option<Temporary>,
    out: BufWriter<File>,
}

#[derive(serde::Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    path: PathFields,
    blake3: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<PartFields>,
}

/// What a line says of a part.
#[derive(serde::Serialize)]
struct PartFields {
    source: PathFields,
    offset: u64,
    length: Option<u64>,
    to: Option<u64>,
}

/// A line of a FILE.json, and of nothing else.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    #[serde(rename = "path")]
    _path: String,
    #[serde(rename = "path_b64")]
    _path_b64: Option<String>,
    blake3: String,
    #[serde(rename = "part")]
    _part: Option<serde_json::Value>,
}

/// The name of FILE.json.
pub fn json_beside(path: &Path) -> PathBuf {
    let mut json = OsString::from(path);
    json.push(".json");
    json.into()
}

/// Why `--manifest` cannot have this name: what stands as FILE.json is no list of ours.
pub fn foreign_json(path: &Path) -> Option<String> {
    let json = json_beside(path);
    // A stream has nothing beside it; what else is wrong with the name is for others to say.
    if !matches!(output::place(path), Ok(Place::File(_))) || beside(&json).is_ok() {
        return None;
    }
    let (name, json) = (path.display(), json.display());
    Some(format!(
        "{json} is no list of haul's, and --manifest {name} would replace or remove it: it is where names go that b3sum cannot \
         check; give the manifest another name, or move that file away"
    ))
}

/// Where FILE.json lies, and what stands there: nothing, or a list of ours, which may be replaced or removed.
fn beside(json: &Path) -> io::Result<(Spot, Option<File>)> {
    let foreign =
        || io::Error::other(format!("{} is no list of haul's; it was left as it is", json.display()));
    let Ok(Place::File(spot)) = output::place(json) else { return Err(foreign()) };
    let old = old_list(&spot).map_err(|_| foreign())?;
    Ok((spot, old))
}

/// The list of ours that stands there, if any. An empty one is foreign: none of ours is.
fn old_list(spot: &Spot) -> io::Result<Option<File>> {
    let Some(file) = spot.read()? else { return Ok(None) };
    if is_ours(&file) || haul_mutant::removed("foreign-json-stays") {
        return Ok(Some(file));
    }
    Err(io::Error::other(format!("{} is no list of haul's; it was left as it is", spot.path().display())))
}

fn is_ours(file: &File) -> bool {
    let (mut reader, mut line, mut lines) = (BufReader::new(file), Vec::new(), 0);
    loop {
        line.clear();
        match reader.by_ref().take(JSON_LINE_MAX).read_until(b'\n', &mut line) {
            Ok(0) => return lines > 0,
            Ok(_) => {
                let Ok(Known { blake3, .. }) = serde_json::from_slice(&line) else { return false };
                if line.last() != Some(&b'\n')
                    || HEXLOWER.decode(blake3.as_bytes()).map(|root| root.len()) != Ok(32)
                {
                    return false;
                }
                lines += 1;
            }
            Err(_) => return false,
        }
    }
}

impl Manifest {
    /// Begins a manifest; a plain file at `path` is not touched yet.
    ///
    /// # Errors
    /// The temporary next to `path` cannot be made, or the stream not opened.
    pub fn create(path: &Path) -> io::Result<Manifest> {
        let place = output::place(path)?;
        let beside = match &place {
            Place::File(_) => Some(beside(&json_beside(path))?.0),
            Place::Stream(_) => None,
        };
        Ok(Manifest {
            plain: List::create(&place)?,
            json: None,
            beside,
            part: None,
            counts: Counts::default(),
        })
    }

    /// What is added consists of this part.
    pub fn of_part(self, part: Option<Part>) -> Manifest {
        Manifest { part, ..self }
    }

    /// Adds a file, of which so many bytes were copied.
    pub fn add(&mut self, path: &[u8], root: &[u8; 32], bytes: Option<u64>) -> io::Result<()> {
        let hex = HEXLOWER.encode(root);
        let is_all = self.part.as_ref().is_none_or(|part| part.to.is_none());
        let line = line(path, &hex).filter(|_| is_all);
        let is_plain = line.is_some();
        if let Some(line) = line {
            self.counts.plain += 1;
            self.plain.out.write_all(line.as_bytes())?;
            if self.part.is_none() || self.beside.is_none() {
                return Ok(());
            }
        }
        let Some(beside) = &self.beside else {
            self.counts.left_out += 1;
            return Ok(());
        };
        let part = match &mut self.json {
            Some(part) => part,
            none => none.insert(List::create(&Place::File(beside.clone()))?),
        };
        self.counts.json += u64::from(!is_plain);
        let of = self.part.as_ref().map(|part| PartFields {
            source: PathFields::new(&part.source),
            offset: part.offset,
            length: part.len.or(bytes),
            to: part.to,
        });
        let json = &mut part.out;
        serde_json::to_writer(&mut *json, &Line { path: PathFields::new(path), blake3: &hex, part: of })?;
        json.write_all(b"\n")
    }

    /// Puts both lists under their names. A FILE.json of an earlier run that this one does not need is
    /// removed, for it would be taken for a part of this manifest.
    ///
    /// # Errors
    /// Both are as they were; if FILE.json alone could not follow, the error says so.
    pub fn finish(mut self) -> io::Result<Counts> {
        let Some(beside) = &self.beside else {
            self.plain.finish()?;
            return Ok(self.counts);
        };
        // Hours may have gone by.
        let old = old_list(beside)?;
        if let Some(part) = &mut self.json {
            part.out.flush()?;
            part.out.get_ref().sync_data()?;
        }
        if haul_mutant::removed("both-lists-or-none")
            && let Some(old) = &old
        {
            beside.remove(old)?;
        }
        // The old lists stay until the new one stands.
        self.plain.finish()?;
        let followed = match (self.json.take(), old) {
            (Some(part), _) => part.finish(),
            (None, Some(old)) => beside.remove(&old),
            (None, None) => Ok(()),
        };
        match followed {
            Ok(()) => Ok(self.counts),
            Err(error) => {
                let json = beside.path().display();
                Err(io::Error::new(
                    error.kind(),
                    format!(
                        "it is written, but {json} beside it is not its own: {}",
                        haul::errno::text(&error)
                    ),
                ))
            }
        }
    }
}

impl List {
    fn create(place: &Place) -> io::Result<List> {
        let (file, temporary) = output::begin(place)?;
        Ok(List { temporary, out: BufWriter::new(file) })
    }

    fn finish(mut self) -> io::Result<()> {
        self.out.flush()?;
        match self.temporary.take() {
            Some(temporary) => temporary.put(self.out.get_ref()),
            None => Ok(()),
        }
    }
}

/// The line that b3sum checks, or `None` if no line would do.
///
/// Edge: b3sum reads `-` as its stdin, so that becomes `./-`. It refuses NUL and U+FFFD, and its versions
/// differ in what they do with a carriage return.
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
    use std::fs;
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
            manifest.add(name, blake3::hash(content.as_bytes()).as_bytes(), None).unwrap();
        }
        assert!(!list.exists(), "a manifest that is there is a whole one");
        assert_eq!(manifest.finish().unwrap(), Counts { plain: 11, json: 3, left_out: 0 });
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
        manifest.add(b"\xff", &[0; 32], None).unwrap();
        drop(manifest);
        assert_eq!(fs::read_to_string(&list).unwrap(), "old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    /// Goal: a FILE.json of an earlier run is not taken for a part of this one.
    #[test]
    fn stale_json_part_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join("sums");
        let mut manifest = Manifest::create(&list).unwrap();
        manifest.add(b"\xff", &[0; 32], None).unwrap();
        manifest.finish().unwrap();
        assert!(dir.path().join("sums.json").exists());
        assert_eq!(foreign_json(&list), None);
        Manifest::create(&list).unwrap().finish().unwrap();
        assert!(!dir.path().join("sums.json").exists());
    }

    /// Goal: where FILE cannot get its name, FILE.json of the run before stays with it.
    /// Method: FILE becomes a directory while the manifest is made, with and without a name that needs
    /// FILE.json.
    #[test]
    fn both_lists_change_or_none() {
        for odd in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let (list, json) = (dir.path().join("sums"), dir.path().join("sums.json"));
            let mut manifest = Manifest::create(&list).unwrap();
            manifest.add(b"\xff", &[0; 32], None).unwrap();
            manifest.finish().unwrap();
            let before = fs::read(&json).unwrap();
            let mut manifest = Manifest::create(&list).unwrap();
            if odd {
                manifest.add(b"cr\r", &[0; 32], None).unwrap();
            }
            fs::remove_file(&list).unwrap();
            fs::create_dir(&list).unwrap();
            assert!(manifest.finish().is_err());
            assert_eq!(fs::read(&json).unwrap(), before);
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "no temporary is left");
        }
    }

    /// Goal: a FILE.json that is no list of ours is neither replaced nor removed, also if it comes while the
    /// run lasts; one of ours is known.
    /// Method: what people have under such names, and lists that are nearly ours, with and without a name
    /// that needs one.
    #[test]
    fn a_json_of_the_users_stays() {
        let hash = "0".repeat(64);
        let ours = format!("{{\"path\":\"a\",\"blake3\":\"{hash}\"}}\n");
        let more = format!("{{\"path\":\"\u{fffd}\",\"path_b64\":\"/w==\",\"blake3\":\"{hash}\"}}\n");
        let dir = tempfile::tempdir().unwrap();
        let (list, json) = (dir.path().join("package"), dir.path().join("package.json"));
        let cases = [
            (String::new(), false),
            ("{\"precious\":1}\n".into(), false),
            ("\n".into(), false),
            ("[]".into(), false),
            (ours.trim_end().into(), false),
            (ours.replace("000", "00"), false),
            (ours.replace("}", ",\"more\":1}"), false),
            (format!("{ours}{{\"precious\":1}}\n"), false),
            (ours.clone(), true),
            (format!("{ours}{more}"), true),
        ];
        for (content, known) in cases {
            for odd in [false, true] {
                let mut manifest = Manifest::create(&list).unwrap();
                fs::write(&json, &content).unwrap();
                assert_eq!(Manifest::create(&list).is_ok(), known, "{content:?}");
                assert_eq!(foreign_json(&list).is_none(), known, "{content:?}");
                if odd {
                    manifest.add(b"cr\r", &[0; 32], None).unwrap();
                }
                assert_eq!(manifest.finish().is_ok(), known, "{content:?}");
                let left = fs::read_to_string(&json).ok();
                assert_eq!(left == Some(content.clone()), !known, "{content:?}");
                assert_eq!(list.exists(), known, "{content:?}");
                for path in [&list, &json] {
                    let _ = fs::remove_file(path);
                }
            }
        }
        fs::create_dir(&json).unwrap();
        assert!(foreign_json(&list).unwrap().contains("move that file away"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary is left");
    }
}
