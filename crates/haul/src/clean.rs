//! `haul clean`: what dead jobs left at a destination.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use haul_core::journal::Replay;

use crate::api::{CleanJob, CleanReport};
use crate::storage::jail::Jail;
use crate::storage::sink::clean::{Job, find_debris, list_temporaries, remove_debris};
use crate::storage::sink::owner::{Life, boot_id};
use crate::storage::sink::{JobDir, Patience};

/// Lists the jobs below `root`, and removes what dead ones left if `remove`.
pub(crate) fn run(root: &Path, remove: bool) -> Result<CleanReport, String> {
    let jobs = find_debris(root).map_err(|failure| failure.text.to_string())?;
    let mut report = CleanReport::default();
    for job in jobs {
        let tags = tags(root, &job)?;
        let (files, bytes) = temporaries(root, &tags)?;
        let mut line = CleanJob {
            key: job.key.as_str().to_owned(),
            state: state(&job),
            files,
            bytes: bytes + job.journal.unwrap_or(0),
            removed: false,
        };
        if remove && job.life != Life::Alive {
            match remove_debris(root, root, &job, &tags, &Patience::default()) {
                Ok(removed) => {
                    line.files = removed.files;
                    line.bytes = removed.bytes;
                    line.removed = removed.failed == 0;
                }
                Err(e) => line.state = e.to_string(),
            }
        }
        report.jobs.push(line);
    }
    Ok(report)
}

fn state(job: &Job) -> String {
    match (&job.life, &job.owner) {
        (Life::Dead, _) => "dead".into(),
        (Life::Alive, Some(owner)) => format!("running on {} as process {}", owner.host, owner.pid),
        (Life::Alive, None) => "running".into(),
        (Life::Unknown, Some(owner)) => format!("last seen on {} as process {}", owner.host, owner.pid),
        (Life::Unknown, None) => "unknown".into(),
    }
}

/// The tags of the job's temporaries, from its journal.
fn tags(root: &Path, job: &Job) -> Result<Vec<u32>, String> {
    let place = JobDir::open(root, job.key.clone()).map_err(|failure| failure.text.to_string())?;
    let mut replay = Replay::new();
    let mut good = true;
    let found = place.load(&mut |bytes| good = good && replay.feed(bytes).is_ok());
    if !found.map_err(|failure| failure.text.to_string())? || !good {
        return Ok(Vec::new());
    }
    Ok(replay.finish(boot_id(), false).map(|replayed| replayed.tags).unwrap_or_default())
}

fn temporaries(root: &Path, tags: &[u32]) -> Result<(u64, u64), String> {
    let fd = Jail::open_root(root).map_err(|e| format!("open directory {}: {e}", root.display()))?;
    let all = list_temporaries(&Arc::new(fd), Duration::ZERO);
    let ours = all.iter().filter(|temporary| tags.contains(&temporary.tag));
    Ok(ours.fold((0, 0), |(files, bytes), temporary| (files + 1, bytes + temporary.size)))
}
