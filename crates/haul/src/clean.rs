//! `haul clean`: what dead jobs left at a destination.
//!
//! Their journals lie there, or in a state directory with those of other destinations, which are told apart by the inode
//! number in their heads.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use haul_core::journal::{Replay, Replayed};

use crate::api::{CleanJob, CleanReport};
use crate::storage::jail::Jail;
use crate::storage::sink::clean::{Job, Temporary, find_debris, list_temporaries, remove_debris};
use crate::storage::sink::owner::{Life, boot_id};
use crate::storage::sink::{JobDir, Patience};
use crate::users::name_of;

/// What a job in a state directory has to do with a destination.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Belongs {
    Here,
    /// Its journal names another directory.
    Elsewhere,
    /// It has no journal that says so, or what the journal speaks of is not here: inode numbers of two file systems may be
    /// equal.
    Unknown,
}

/// Lists the jobs below `root` whose journals lie in `state` (`None`: in `root` itself), and removes what dead ones left if
/// `remove`.
pub(crate) fn run(root: &Path, state: Option<&Path>, remove: bool) -> Result<CleanReport, String> {
    let place = state.unwrap_or(root);
    let ino = rustix::fs::stat(root).map_err(|e| format!("destination {}: {e}", root.display()))?.st_ino;
    let jobs = find_debris(place).map_err(|failure| failure.text.to_string())?;
    let mut report = CleanReport::default();
    for job in jobs {
        let replayed = replay(place, &job)?;
        let (files, bytes, first) = temporaries(root, &replayed.tags)?;
        let belongs = match replayed.head {
            _ if state.is_none() => Belongs::Here,
            Some((_, of)) if of != ino => Belongs::Elsewhere,
            Some(_) if files > 0 || replayed.partials.is_empty() => Belongs::Here,
            Some(_) | None => Belongs::Unknown,
        };
        if belongs == Belongs::Elsewhere {
            continue;
        }
        let mut line = CleanJob {
            key: job.key.as_str().to_owned(),
            state: state_of(&job),
            // A run that was stopped in good order took its owner file with it.
            what: job
                .owner
                .as_ref()
                .map(|owner| owner.what.clone())
                .filter(|what| !what.is_empty())
                .or_else(|| first.map(|first| format!("parts of {first}"))),
            user: job.user.map(name_of),
            age: job.age,
            files,
            bytes: bytes + job.journal.unwrap_or(0),
            removed: false,
        };
        if belongs == Belongs::Unknown {
            line.state += ", perhaps of another destination: left";
        } else if remove && job.life != Life::Alive {
            match remove_debris(root, place, &job, &replayed.tags, &Patience::default()) {
                Ok(removed) => line.removed = removed.failed == 0,
                Err(e) => line.state = e.to_string(),
            }
        }
        report.jobs.push(line);
    }
    Ok(report)
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
fn replay(place: &Path, job: &Job) -> Result<Replayed, String> {
    let place = JobDir::open(place, job.key.clone()).map_err(|failure| failure.text.to_string())?;
    let mut replay = Replay::new();
    let mut good = true;
    let found = place.load_any(&mut |bytes| good = good && replay.feed(bytes).is_ok());
    if !found.map_err(|failure| failure.text.to_string())? || !good {
        return Ok(Replayed::default());
    }
    Ok(replay.finish(boot_id(), false).unwrap_or_default())
}

/// How many temporaries have these tags, their bytes, and the file that the first of them would have become.
fn temporaries(root: &Path, tags: &[u32]) -> Result<(u64, u64, Option<String>), String> {
    let fd = Jail::open_root(root).map_err(|e| format!("open directory {}: {e}", root.display()))?;
    let all = list_temporaries(&Arc::new(fd), Duration::ZERO);
    let ours: Vec<&Temporary> = all.iter().filter(|temporary| tags.contains(&temporary.tag)).collect();
    let bytes = ours.iter().fold(0_u64, |bytes, temporary| bytes.saturating_add(temporary.size));
    let first = ours.iter().map(|temporary| file_of(&temporary.path)).min();
    Ok((ours.len() as u64, bytes, first))
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
