//! `haul clean`: what dead jobs left at a destination.
//!
//! Their journals lie there, or in a state directory with those of other destinations, which are told apart
//! by the inode number in their heads. A journal is whoever's it is: it is believed in what its owner could
//! have left, and only in the directory that its head names.

use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use haul_core::journal::{FORMAT_VERSION, JournalError, Replay, Replayed};
use haul_core::wire::Failure;
use rustix::io::Errno;

use crate::error::Error;
use haul_base::errno;
use haul_base::kernel::boot_id;
use haul_base::role::Role;
use haul_base::users::name_of;
use haul_storage::jail::Jail;
use haul_storage::sink::claim::{Claim, Debris};
use haul_storage::sink::clean::{Job, Temporary, find_debris, list_temporaries, remove_debris};
use haul_storage::sink::owner::Life;
use haul_storage::sink::{AcquireError, JobDir, Patience};
use haul_storage::volume::is_of;

/// What dead jobs left below a destination.
#[derive(Clone, Debug, Default)]
pub struct CleanReport {
    /// One for each journal that was found.
    pub jobs: Vec<CleanJob>,
    /// Files that are named like temporaries and that no journal here speaks of.
    pub strays: u64,
}

/// One job's journal and temporaries.
#[derive(Clone, Debug)]
pub struct CleanJob {
    /// The job's key, as in the name of its journal.
    pub key: String,
    /// `dead`, or who runs it.
    pub state: String,
    /// From what to where, as its last owner said; `None`: not known.
    pub what: Option<String>,
    /// Whose journal it is, by name if that is known.
    pub user: Option<String>,
    /// Since it was last written.
    pub age: Option<Duration>,
    /// Its temporaries, and their bytes with those of its journal; the same whether they were removed or not.
    pub files: u64,
    /// Their bytes, with those of the journal.
    pub bytes: u64,
    /// All of it is gone now.
    pub removed: bool,
    /// It is dead and this user's to remove (root's is everybody's), and could not be.
    pub failed: bool,
}

/// What a job has to do with a destination.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Belongs {
    Here,
    /// Its journal names another directory.
    Elsewhere,
    /// It has no journal that says so, or nothing of what its runs made is here: inode numbers of two file
    /// systems may be equal.
    Unknown,
    /// Its journal is not as a run leaves it.
    Odd,
    /// Its journal has this format, not ours: the haul that wrote it knows what it left.
    OtherFormat(u16),
}

/// What a job's journal says.
struct Told {
    replayed: Replayed,
    /// `None`: it is no file that a run leaves.
    claim: Option<Claim>,
    /// Its format, if that is not ours.
    other_format: Option<u16>,
}

/// Lists the jobs below `root` whose journals lie in `state` (`None`: in `root` itself), and removes what
/// dead ones left if `remove`.
pub(crate) fn run(root: &Path, state: Option<&Path>, remove: bool) -> Result<CleanReport, Error> {
    let place = state.unwrap_or(root);
    let dir = Jail::open_root(root)
        .map_err(|e| unread(root, e, format!("destination {}: {}", root.display(), errno::text(e))))?;
    let jobs = find_debris(place).map_err(|failure| of(place, &failure))?;
    let told: Vec<Told> = jobs.iter().map(|job| replay(place, job)).collect::<Result<_, _>>()?;
    let all = temporaries(root)?;
    let mut report = CleanReport::default();
    let mut claimed = HashSet::new();
    // To ask for a name may start a program.
    let mut users: HashMap<u32, String> = HashMap::new();
    for (at, (job, Told { replayed, claim, other_format })) in jobs.iter().zip(&told).enumerate() {
        // Whoever planted a dead job's journal may have read the tags in it off the temporaries of a running
        // one.
        let others = jobs.iter().zip(&told).enumerate();
        let spared = others
            .filter(|(other, (job, _))| *other != at && job.life != Life::Dead)
            .filter_map(|(_, (_, told))| told.claim.as_ref());
        let debris = Debris { claim: claim.clone().unwrap_or_default(), spared: spared.collect() };
        let theirs: Vec<&Temporary> =
            all.iter().filter(|temporary| debris.has(temporary.tag, temporary.uid)).collect();
        claimed.extend(theirs.iter().map(|temporary| &temporary.path));
        let files = theirs.len() as u64;
        let bytes = theirs.iter().fold(0_u64, |bytes, temporary| bytes.saturating_add(temporary.size));
        let first = theirs.iter().map(|temporary| file_of(&temporary.path)).min();
        let strict = !haul_mutant::removed("clean-keeps-to-the-place-of-a-journal");
        let belongs = match (*other_format, &replayed.head, state) {
            (Some(format), ..) => Belongs::OtherFormat(format),
            _ if claim.is_none() => Belongs::Odd,
            (_, Some((_, of)), _) if !is_of(of, &dir) && (state.is_some() || strict) => Belongs::Elsewhere,
            (_, _, None) => Belongs::Here,
            (_, Some(_), _) if files > 0 => Belongs::Here,
            // It may have left nothing that a journal speaks of, here or on another file system.
            (_, Some(_), _)
                if replayed.partials.is_empty()
                    && haul_mutant::removed("clean-knows-the-place-by-its-files") =>
            {
                Belongs::Here
            }
            (_, _, Some(_)) => Belongs::Unknown,
        };
        if belongs == Belongs::Elsewhere && state.is_some() {
            continue;
        }
        let mut line = CleanJob {
            key: job.key.as_str().to_owned(),
            state: state_of(job),
            // A run that was stopped in good order took its owner file with it.
            what: job
                .owner
                .as_ref()
                .map(|owner| owner.what.clone())
                .filter(|what| !what.is_empty())
                .or_else(|| first.map(|first| format!("parts of {first}"))),
            user: job.user.map(|user| users.entry(user).or_insert_with(|| name_of(user)).clone()),
            age: job.age,
            files,
            bytes: bytes + job.journal.unwrap_or(0),
            removed: false,
            failed: false,
        };
        let left = match belongs {
            Belongs::Here => None,
            Belongs::Elsewhere => Some(
                "its journal is of another directory (or of this one, if its inode number changed, as it can on overlayfs: then \
                 remove that and what is named like it by hand)"
                    .to_owned(),
            ),
            Belongs::Unknown => Some("perhaps of another destination".to_owned()),
            Belongs::Odd => Some("its journal is not as a run leaves it".to_owned()),
            Belongs::OtherFormat(format) => Some(format!(
                "its journal is of another version of haul (format {format}, this one knows only {FORMAT_VERSION}), which can remove it"
            )),
        };
        if let Some(left) = left {
            line.state += &format!(", {left}: left");
        } else if remove && job.life != Life::Alive {
            match remove_debris(root, place, job, (&debris, &replayed.widened), &Patience::default()) {
                Ok(removed) => {
                    // What it was is told as a list without removal tells it.
                    line.removed = removed.failed == 0;
                    line.failed = !line.removed && is_mine(job);
                    if !line.removed {
                        line.state += &format!(
                            ", {} files or directories could not be removed or looked at, so its journal stays",
                            removed.failed
                        );
                    }
                }
                Err(e) => {
                    let broken = could_not(&e);
                    line.failed = broken && is_mine(job);
                    line.state =
                        if broken { format!("{}, not removed: {e}", line.state) } else { e.to_string() };
                }
            }
        }
        report.jobs.push(line);
    }
    report.strays = (all.len() - claimed.len()) as u64;
    Ok(report)
}

/// Whether it was tried and could not be done, and not that somebody lives, or that it is left to whoever
/// knows what it is.
fn could_not(error: &AcquireError) -> bool {
    match error {
        AcquireError::Failed(failure) => failure.errno != 0,
        AcquireError::Stays(_) => true,
        AcquireError::Held(_)
        | AcquireError::Foreign { .. }
        | AcquireError::Unproven(_)
        | AcquireError::Stopped => false,
    }
}

/// Whether this user can be expected to remove what the job left: his own, and root everything.
fn is_mine(job: &Job) -> bool {
    let me = rustix::process::geteuid();
    me.is_root() || job.user.is_none_or(|user| user == me.as_raw())
}

fn state_of(job: &Job) -> String {
    match (&job.life, &job.owner) {
        (Life::Dead, _) => "dead".into(),
        (Life::Alive, Some(owner)) => format!("running on {} as process {}", owner.host, owner.pid),
        (Life::Alive, None) => "running".into(),
        (Life::Unknown, Some(owner)) => format!("last seen on {} as process {}", owner.host, owner.pid),
        (Life::Unknown, None) => "unknown".into(),
    }
}

/// What the job's journal says; nothing if it has none that can be read.
fn replay(place: &Path, job: &Job) -> Result<Told, Error> {
    let (at, place) = (place, JobDir::open(place, job.key.clone()).map_err(|failure| of(place, &failure))?);
    let mut replay = Replay::new();
    let mut bad = None;
    let found = place.load_any(&mut |bytes| {
        if bad.is_none() {
            bad = replay.feed(bytes).err();
        }
        (bad.is_none() && !replay.is_over()) || haul_mutant::removed("bad-journals-are-read-no-further")
    });
    let Some(stat) = found.map_err(|failure| of(at, &failure))? else {
        let (replayed, claim) = (Replayed::default(), Some(Claim::default()));
        return Ok(Told { replayed, claim, other_format: None });
    };
    let other_format = match bad {
        Some(JournalError::Version(format)) => Some(format),
        _ => None,
    };
    let replayed = match bad {
        None => replay.finish(boot_id(), false).unwrap_or_default(),
        Some(_) => Replayed::default(),
    };
    let claim = Claim::new(&stat, &replayed.tags);
    Ok(Told { replayed, claim, other_format })
}

fn unread(root: &Path, errno: Errno, text: String) -> Error {
    Error::system(text, errno.raw_os_error()).about(Role::Sink, Some(root.as_os_str().as_bytes()))
}

fn of(place: &Path, failure: &Failure) -> Error {
    Error::failed(failure).about(Role::Sink, Some(place.as_os_str().as_bytes()))
}

fn temporaries(root: &Path) -> Result<Vec<Temporary>, Error> {
    let fd = Jail::open_root(root)
        .map_err(|e| unread(root, e, format!("open directory {}: {}", root.display(), errno::text(e))))?;
    Ok(list_temporaries(&Arc::new(fd), Duration::ZERO))
}

/// The path that a temporary at `path` would have got: `dir/.NAME.haul~TAG` becomes `dir/NAME`.
fn file_of(path: &Path) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let inner = name.strip_prefix('.').unwrap_or(&name);
    let inner = inner.rfind(".haul~").map_or(inner, |end| &inner[..end]);
    path.with_file_name(inner).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a file that anybody may plant under a journal's name is read no further than it is a journal.
    /// Method: one of zeros and one of a good head with zeros behind it; what this thread reads is the
    /// kernel's count.
    #[test]
    fn endless_journals_are_left_unread() {
        use haul_storage::sink::names::JobKey;
        const LONG: u64 = 1 << 30;
        let bytes_read = || -> Option<u64> {
            let io = std::fs::read_to_string("/proc/thread-self/io").ok()?;
            io.lines().find_map(|line| line.strip_prefix("rchar: ")).and_then(|count| count.parse().ok())
        };
        if bytes_read().is_none() {
            return eprintln!("skipped: this kernel does not count what a thread reads");
        }
        for head in [false, true] {
            let dir = tempfile::tempdir().expect("tempdir");
            let key = JobKey::new(&[1; 16]);
            let mut bytes = Vec::new();
            if head {
                let mut log = haul_core::journal::Log::start(&mut bytes);
                log.append(
                    &haul_core::journal::Record::Head {
                        job: [1; 16],
                        root: haul_core::journal::RootId::new(&[1]).expect("short"),
                    },
                    &mut bytes,
                );
            }
            let path = dir.path().join(format!(".haul~{}", key.as_str()));
            std::fs::write(&path, &bytes).expect("write");
            let file = std::fs::OpenOptions::new().write(true).open(&path).expect("open");
            file.set_len(LONG).expect("as long as that");
            let before = bytes_read();
            let report = run(dir.path(), None, false).expect("listed");
            assert_eq!(report.jobs.len(), 1);
            let read =
                bytes_read().zip(before).map(|(now, before)| now - before).expect("it was counted before");
            assert!(read < LONG / 16, "{head}: {read} bytes");
        }
    }

    /// Goal: a destination that is no directory is refused, and nobody waits for who might write into it.
    /// Method: a FIFO; a thread that opens it would hang until this test's end.
    #[test]
    fn what_is_no_directory_is_refused() {
        let top = tempfile::tempdir().expect("tempdir");
        let fifo = top.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .expect("mkfifo");
        let (done, waits) = crossbeam_channel::bounded(1);
        std::thread::spawn(move || done.send(run(&fifo, None, false).map(drop)));
        let answer = waits.recv_timeout(Duration::from_secs(60)).expect("it waits for a writer");
        assert!(answer.expect_err("no directory").text.contains("fifo: Not a directory"));
    }

    /// Goal: what an older or a newer haul left is not half removed: only that one knows which temporaries
    /// are its.
    /// Method: a journal of another format, as its first bytes tell.
    #[test]
    fn journals_of_other_formats_are_left() {
        use std::os::unix::fs::PermissionsExt;
        let top = tempfile::tempdir().expect("tempdir");
        let journal = top.path().join(".haul~aaaaaaaaaaaaaaaa");
        std::fs::write(&journal, b"haul-journal\0\0\x04\0and more").expect("write");
        std::fs::set_permissions(&journal, std::fs::Permissions::from_mode(0o600)).expect("chmod");
        let report = run(top.path(), None, true).expect("cleaned");
        let [job] = &report.jobs[..] else { panic!("{report:?}") };
        assert!(!job.removed && journal.exists(), "{job:?}");
        assert!(job.state.contains("another version of haul (format 4, this one knows only 5)"), "{job:?}");
    }

    /// Goal: a temporary is told by the file that it would have become.
    #[test]
    fn temporaries_are_told_by_their_files() {
        for (path, file) in [
            ("a/b/.big.bin.haul~abc1", "a/b/big.bin"),
            (".huge.haul~x", "huge"),
            (".odd.haul~x.haul~y", "odd.haul~x"),
            ("plain", "plain"),
        ] {
            assert_eq!(file_of(Path::new(path)), file);
        }
    }
}
