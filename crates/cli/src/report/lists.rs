//! The files of `--manifest` and `--failures`.
//!
//! In: digests, entries that failed, how the run ended. Out: the manifest, whole or not at all
//! ([`crate::manifest`]); and the list of failures, which is this run's from the moment on that its two ends
//! agreed, and then grows line by line, so that a run that is killed leaves what it knew.
//! One that renews the list which it copies by leaves that as it is until its own is whole.
//! Invariants: a command that makes no sense (exit 2) changes neither. A list of failures says that it is
//! whole, in its last line, only of a run that tried all there is and named each that failed.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError};

use serde::Serialize;

use super::{Settings, json};
use crate::command::{FAILED, USAGE};
use crate::manifest::{self, Counts, Manifest};
use crate::output::{self, Place, Temporary};
use haul::errno;

/// What became of the lists.
#[derive(Debug, Default)]
pub struct Lists {
    /// `None`: none asked for, or not finished.
    pub manifest: Option<Counts>,
    /// One sentence for each list that could not be written.
    pub errors: Vec<String>,
}

pub(super) enum ToLists {
    /// The two ends agreed: the run is more than its command line.
    Begin,
    Failed {
        path: Vec<u8>,
        stage: &'static str,
        errno: i32,
        text: String,
    },
    Digest {
        path: Vec<u8>,
        root: [u8; 32],
        bytes: Option<u64>,
    },
    /// `keep`: the manifest is to get its name. `usage`: nothing was done.
    End {
        keep: bool,
        usage: bool,
        how: How,
    },
}

/// What a list of failures is worth.
pub(super) enum How {
    /// All was tried, and so many entries failed.
    Whole(u64),
    /// Not all was, for what this number and these words say.
    Short(i32, String),
}

/// The plain files, or what will be one, that the lists of these settings are written to.
pub fn files(settings: &Settings) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for list in [&settings.manifest, &settings.failures].into_iter().flatten() {
        if let Ok(Place::File(file)) = output::place(list) {
            files.push(file.path().to_owned());
            if settings.manifest.as_ref() == Some(list) {
                files.push(manifest::json_beside(list));
            }
        }
    }
    files
}

/// The list of failures.
struct Failures {
    path: PathBuf,
    out: BufWriter<File>,
    /// It can be made durable.
    is_file: bool,
    /// What stands there stays until this list is whole.
    waits: bool,
    /// Beside the file until the list is this run's.
    temporary: Option<Temporary>,
    begun: bool,
    /// The words of the last line.
    last: String,
    /// Entries that have a line.
    lines: u64,
}

impl Failures {
    /// Begins it beside what stands there, which stays.
    fn open(path: &Path, waits: bool) -> io::Result<Failures> {
        let (file, temporary) = output::begin(&output::place(path)?)?;
        let is_file = temporary.is_some();
        Ok(Failures {
            path: path.into(),
            out: BufWriter::new(file),
            is_file,
            waits,
            temporary,
            begun: false,
            last: String::new(),
            lines: 0,
        })
    }

    /// From now on the list is this run's: it takes the name, empty, and grows there, if nobody needs what
    /// stands there.
    fn begin(&mut self) -> io::Result<()> {
        self.begun = true;
        if self.waits {
            return Ok(());
        }
        self.put()
    }

    fn put(&mut self) -> io::Result<()> {
        self.temporary.take().map_or(Ok(()), |temporary| temporary.put(self.out.get_ref()))
    }

    fn add(&mut self, line: &impl Serialize, text: String) -> io::Result<()> {
        self.begin()?;
        self.last = text;
        serde_json::to_writer(&mut self.out, line)?;
        self.out.write_all(b"\n")
    }

    fn is_told(&self, cause: &str) -> bool {
        !self.last.is_empty() && (self.last.contains(cause) || cause.contains(&self.last))
    }

    /// Of a run that did nothing nothing is left. Of one that tried all the last line says so. What ended one
    /// as a whole, a full disk say, stands in the last line, if it is not what each entry that was left is
    /// named with. `None`: nobody knows how it ended.
    fn finish(&mut self, usage: bool, how: Option<How>) -> io::Result<()> {
        if usage && !self.begun {
            self.temporary = None;
            return Ok(());
        }
        self.begin()?;
        let ended = match &how {
            Some(How::Whole(failed)) if *failed <= self.lines => Some(json::Ended::whole()),
            Some(How::Whole(_)) => Some(json::Ended::short(0, "entries failed that have no line here")),
            Some(How::Short(..)) if haul_mutant::removed("lists-of-failures-say-how-it-ended") => None,
            Some(How::Short(errno, text)) if !usage && !self.is_told(text) => {
                Some(json::Ended::short(*errno, text))
            }
            Some(How::Short(..)) | None => None,
        };
        let is_whole = ended.as_ref().is_some_and(json::Ended::is_whole);
        if let Some(ended) = ended {
            self.add(&ended, String::new())?;
        }
        self.out.flush()?;
        if self.waits && (is_whole || haul_mutant::removed("lists-are-renewed-when-whole")) {
            return self.put();
        }
        if self.is_file { self.out.get_ref().sync_data() } else { Ok(()) }
    }
}

/// The files of the lists thread.
pub(super) struct Files {
    manifest: Option<(PathBuf, Manifest)>,
    failures: Option<Failures>,
    ended: Lists,
}

impl Files {
    /// # Errors
    /// A sentence for people and the exit code: a list cannot be written, or may not have its name.
    pub(super) fn open(settings: &Settings) -> Result<Option<Files>, (String, i32)> {
        let failed = |path: &Path, error: io::Error| {
            (format!("cannot write {}: {}", path.display(), errno::text(error)), FAILED)
        };
        if let Some(path) = &settings.manifest
            && let Some(why) = manifest::foreign_json(path)
        {
            return Err((why, USAGE));
        }
        let listed = settings.json || settings.manner.itemize || settings.manner.dry_run;
        let on_stdout = |list: &&PathBuf| matches!(output::place(list), Ok(Place::Stream(stream)) if output::is_stdout(&stream));
        let lists = [&settings.manifest, &settings.failures].into_iter().flatten().filter(on_stdout).count();
        if lists + usize::from(listed) > 1 {
            let text = "two lists want stdout (--json, -i and -n write there too): give one of them a file";
            return Err((text.into(), USAGE));
        }
        let goes_into = settings.part.as_ref().is_some_and(|part| part.to.is_some());
        let stream = |list: &PathBuf| matches!(output::place(list), Ok(Place::Stream(_)));
        if goes_into && settings.manifest.as_ref().is_some_and(stream) {
            let text = "--manifest has nothing to write to a stream: b3sum cannot check what --to writes into a file. Give it a \
                        file: FILE.json beside that has the hash of the part";
            return Err((text.into(), USAGE));
        }
        if let (Some(manifest), Some(failures)) = (&settings.manifest, &settings.failures) {
            let spot = |path: &Path| match output::place(path) {
                Ok(Place::File(spot)) => Some(spot),
                _ => None,
            };
            let failures = spot(failures);
            let same = |list: &PathBuf| {
                spot(list).zip(failures.as_ref()).is_some_and(|(list, failures)| list.is(failures))
            };
            if [manifest.clone(), manifest::json_beside(manifest)].iter().any(same) {
                return Err(("--manifest and --failures would be written to one file".into(), USAGE));
            }
        }
        let manifest = match &settings.manifest {
            Some(path) => Some((
                path.clone(),
                Manifest::create(path).map_err(|error| failed(path, error))?.of_part(settings.part.clone()),
            )),
            None => None,
        };
        let failures = match &settings.failures {
            Some(path) => {
                Some(Failures::open(path, settings.failures_wait).map_err(|error| failed(path, error))?)
            }
            None => None,
        };
        let wanted = manifest.is_some() || failures.is_some();
        Ok(wanted.then_some(Files { manifest, failures, ended: Lists::default() }))
    }

    pub(super) fn run(mut self, receiver: &Receiver<ToLists>) -> Lists {
        let (mut keep, mut usage, mut how) = (false, false, None);
        loop {
            let message = match receiver.try_recv() {
                Ok(message) => message,
                Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => {
                    // What is known survives whatever comes.
                    self.failures_do(|failures| failures.out.flush());
                    let Ok(message) = receiver.recv() else { break };
                    message
                }
            };
            match message {
                ToLists::Begin => self.failures_do(Failures::begin),
                ToLists::Failed { path, stage, errno, text } => {
                    let line = json::Failure::new(&path, stage, errno, &text);
                    self.failures_do(|failures| {
                        failures.lines += 1;
                        failures.add(&line, text.clone())
                    });
                }
                ToLists::Digest { path, root, bytes } => self.digest(&path, &root, bytes),
                ToLists::End { keep: wanted, usage: senseless, how: ended } => {
                    (keep, usage, how) = (wanted, senseless, Some(ended));
                    break;
                }
            }
        }
        self.failures_do(|failures| failures.finish(usage, how));
        match self.manifest.take() {
            Some((path, manifest)) if keep => match manifest.finish() {
                Ok(counts) => {
                    if counts.left_out > 0 {
                        let text = format!(
                            "the manifest {} lacks {} files, whose names b3sum cannot check: give it a file, and they are in \
                             its .json",
                            path.display(),
                            counts.left_out
                        );
                        self.ended.errors.push(text);
                    }
                    self.ended.manifest = Some(counts);
                }
                Err(error) => self.broken("manifest", &path, &error),
            },
            // Dropped, and so removed.
            _ => {}
        }
        self.ended
    }

    /// The list of failures is given up after its first error.
    fn failures_do(&mut self, act: impl FnOnce(&mut Failures) -> io::Result<()>) {
        let Some(failures) = &mut self.failures else { return };
        if let Err(error) = act(failures) {
            let path = failures.path.clone();
            self.failures = None;
            self.broken("list of failures", &path, &error);
        }
    }

    fn digest(&mut self, path: &[u8], root: &[u8; 32], bytes: Option<u64>) {
        let Some((file, manifest)) = &mut self.manifest else { return };
        if let Err(error) = manifest.add(path, root, bytes) {
            let file = file.clone();
            self.manifest = None;
            self.broken("manifest", &file, &error);
        }
    }

    fn broken(&mut self, what: &str, path: &Path, error: &io::Error) {
        let path = path.display();
        let text = format!(
            "the {what} {path} could not be written: {}; the copy is not concerned",
            errno::text(error)
        );
        self.ended.errors.push(text);
    }
}
