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
use crate::storage::sink::clean::{Job, find_debris, list_temporaries, remove_debris};
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
        let (files, bytes) = temporaries(root, &replayed.tags)?;
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
            what: job.owner.as_ref().map(|owner| owner.what.clone()).filter(|what| !what.is_empty()),
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

fn temporaries(root: &Path, tags: &[u32]) -> Result<(u64, u64), String> {
    let fd = Jail::open_root(root).map_err(|e| format!("open directory {}: {e}", root.display()))?;
    let all = list_temporaries(&Arc::new(fd), Duration::ZERO);
    let ours = all.iter().filter(|temporary| tags.contains(&temporary.tag));
    Ok(ours.fold((0, 0), |(files, bytes), temporary| (files + 1, bytes + temporary.size)))
}
