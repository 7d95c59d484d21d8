//! What a probe will cost, told before the first write.
//!
//! In: a request. Out: a [`Plan`] whose bytes and seconds are the most that [`super::run`] takes, or the
//! reason why there can be no probe.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Access, Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;

use super::sweep::{Grid, POINT_BYTES_MAX};
use super::{Direction, Only, Plan, ProbeError, Request, StorageIdentity, TIME_LIMIT_MAX};
use haul::passport::identity::{identify, statvfs};

/// The scratch file's size unless asked otherwise, bytes: more than most caches of controllers.
const SIZE_DEFAULT: u64 = 1 << 30;
/// A default size leaves this many times its bytes for the measurements.
const SIZE_SHARE: u64 = 8;
/// No scratch file is smaller, bytes: a few requests of 64 KiB would measure nothing.
const SIZE_MIN: u64 = 1 << 20;
/// Sizes are multiples of this, bytes.
const SIZE_STEP: u64 = 1 << 20;
/// No probe is shorter.
const TIME_LIMIT_MIN: Duration = Duration::from_secs(1);
/// The request sizes that can be asked for, bytes.
const REQUEST_SIZES: std::ops::RangeInclusive<u32> = 4 << 10..=64 << 20;
/// The depths that can be asked for.
const DEPTHS: std::ops::RangeInclusive<u16> = 1..=256;
/// File systems that lie in memory.
const MEMORY: [&str; 2] = ["tmpfs", "ramfs"];

/// Looks at the storage without a write, and says what a probe will cost at most.
///
/// # Errors
/// There can be no probe, or the user has to be asked first ([`ProbeError::AskFirst`]).
pub fn plan(request: &Request) -> Result<Plan, ProbeError> {
    if let Some(file) = &request.file {
        return plan_of_file(request, file);
    }
    let path = &request.path;
    let dir = open_directory(path)?;
    let stat = statvfs(&dir, path)?;
    if stat.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Err(ProbeError::ReadOnly(path.clone()));
    }
    if rustix::fs::access(path, Access::WRITE_OK | Access::EXEC_OK).is_err() {
        return Err(ProbeError::NotWritable(path.clone()));
    }
    check(request)?;
    let identity = identify(path)?;
    let space = Space {
        used: stat.f_blocks.saturating_sub(stat.f_bfree).saturating_mul(stat.f_frsize),
        free: stat.f_bavail.saturating_mul(stat.f_frsize),
    };
    let size = size_of(request, &space, path)?;
    let grid = Grid::new(request, size);
    let settings = grid.settings_max();
    if settings == 0 {
        return Err(ProbeError::BadRequest(format!(
            "nothing is left to measure: all settings asked for have more in flight than the scratch file of {size} bytes or the buffers can hold"
        )));
    }
    if identity.network && !request.network_ok {
        return Err(ProbeError::AskFirst(Box::new(identity)));
    }
    let bytes_max = size.saturating_add(grid.measurements_max() as u64 * POINT_BYTES_MAX.max(size));
    Ok(Plan {
        warnings: warnings(&identity, size, &space),
        identity,
        size,
        bytes_max: bytes_max.min(request.bytes_limit),
        seconds_max: request.time_limit.as_secs_f64(),
        settings,
        request: request.clone(),
    })
}

/// The same for a file that is read as it is.
fn plan_of_file(request: &Request, file: &Path) -> Result<Plan, ProbeError> {
    let bad = |text: String| Err(ProbeError::BadRequest(text));
    check(request)?;
    let failed = |source| ProbeError::Io { op: "look at", path: file.to_owned(), source };
    let meta = std::fs::metadata(file).map_err(failed)?;
    if request.directions != [Direction::Read] {
        return bad("a file that is there is only read".into());
    }
    if !meta.is_file() || meta.len() < SIZE_MIN {
        return bad(format!("{} is no file of {SIZE_MIN} bytes or more", file.display()));
    }
    let size = meta.len().min(request.size.unwrap_or(u64::MAX).max(SIZE_MIN)) / SIZE_STEP * SIZE_STEP;
    let identity = identify(file)?;
    if identity.network && !request.network_ok {
        return Err(ProbeError::AskFirst(Box::new(identity)));
    }
    let grid = Grid::new(request, size);
    let space = Space { used: 0, free: u64::MAX };
    Ok(Plan {
        warnings: warnings(&identity, size, &space),
        identity,
        size,
        bytes_max: request.bytes_limit,
        seconds_max: request.time_limit.as_secs_f64(),
        settings: grid.settings_max(),
        request: request.clone(),
    })
}

fn open_directory(path: &Path) -> Result<OwnedFd, ProbeError> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|e| match e {
        Errno::NOTDIR => ProbeError::NotADirectory(path.to_owned()),
        e => ProbeError::Io { op: "open", path: path.to_owned(), source: e.into() },
    })
}

/// Bytes, as `df` counts them.
#[derive(Clone, Copy, Debug)]
struct Space {
    used: u64,
    /// Free for us.
    free: u64,
}

impl Space {
    /// What has to be free for a scratch file of `size` bytes: a tenth more, and the file system never over
    /// 95 %, for others write too and some file systems get slow when they are nearly full.
    fn needed(&self, size: u64) -> u64 {
        let tenth_more = size.saturating_add(size.div_ceil(10));
        let twentieth = self.used.saturating_add(self.free).div_ceil(20);
        tenth_more.max(size.saturating_add(twentieth))
    }
}

fn size_of(request: &Request, space: &Space, path: &Path) -> Result<u64, ProbeError> {
    let refused = |size| ProbeError::Space {
        path: path.to_owned(),
        size,
        needed: space.needed(size),
        free: space.free,
    };
    match request.size {
        Some(size) => {
            let size = size.max(SIZE_MIN).next_multiple_of(SIZE_STEP);
            if size > request.bytes_limit / 2 {
                return Err(ProbeError::BadRequest(format!(
                    "a scratch file of {size} bytes leaves too little of the limit of {} bytes: it must be half of it at most",
                    request.bytes_limit
                )));
            }
            if space.needed(size) > space.free { Err(refused(size)) } else { Ok(size) }
        }
        None => {
            let mut size = SIZE_DEFAULT.min(request.bytes_limit / SIZE_SHARE) / SIZE_STEP * SIZE_STEP;
            size = size.max(SIZE_MIN);
            // A smaller probe is better than none, but not one so small that it measures caches.
            let least = size / 16;
            while space.needed(size) > space.free {
                size = size / 2 / SIZE_STEP * SIZE_STEP;
                if size < least.max(SIZE_MIN) {
                    return Err(refused(least.max(SIZE_MIN)));
                }
            }
            Ok(size)
        }
    }
}

fn check(request: &Request) -> Result<(), ProbeError> {
    let refuse = |text: String| Err(ProbeError::BadRequest(text));
    if !(TIME_LIMIT_MIN..=TIME_LIMIT_MAX).contains(&request.time_limit) {
        return refuse(format!(
            "the time limit must be from {} to {} seconds",
            TIME_LIMIT_MIN.as_secs(),
            TIME_LIMIT_MAX.as_secs()
        ));
    }
    if request.bytes_limit < 2 * SIZE_MIN {
        return refuse(format!("the limit of bytes must be {} at least", 2 * SIZE_MIN));
    }
    if request.directions.is_empty() {
        return refuse("neither reading nor writing is asked for".into());
    }
    let Only { request_sizes, depths, .. } = &request.only;
    let is_size = |size: &&u32| size.is_power_of_two() && REQUEST_SIZES.contains(*size);
    if let Some(size) = request_sizes.iter().find(|size| !is_size(size)) {
        return refuse(format!(
            "a request size of {size} bytes: it must be a power of two from 4 KiB to 64 MiB"
        ));
    }
    if let Some(depth) = depths.iter().find(|depth| !DEPTHS.contains(*depth)) {
        return refuse(format!("a depth of {depth}: it must be from 1 to 256"));
    }
    Ok(())
}

fn warnings(identity: &StorageIdentity, size: u64, space: &Space) -> Vec<String> {
    let mut warnings = Vec::new();
    if identity.network {
        warnings.push(format!(
            "{} ({}) is a network file system: others that use it will notice the probe, and it them",
            identity.mount_point, identity.kind
        ));
    }
    if MEMORY.contains(&identity.kind.as_str()) {
        warnings.push(format!(
            "{} is {}: this measures memory, not storage",
            identity.mount_point, identity.kind
        ));
    }
    if size < SIZE_DEFAULT / SIZE_SHARE {
        warnings.push(format!(
            "a scratch file of {size} bytes fits into the caches of most storage: the rates may be too good"
        ));
    }
    if size > space.free / 2 {
        warnings.push("the scratch file takes more than half of the free space while the probe runs".into());
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sized(size: Option<u64>, bytes_limit: u64) -> Request {
        Request { size, bytes_limit, ..Request::new("/x") }
    }

    /// Goal: whatever is granted leaves a tenth of its size and a twentieth of the file system free, and what
    /// is refused would not have.
    /// Method: seeded file systems and sizes.
    #[test]
    fn space_is_left_for_others() {
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..5000 {
            let (used, free) = (rng.u64(..) >> rng.u32(14..63), rng.u64(..) >> rng.u32(14..63));
            let space = Space { used, free };
            let asked = rng.bool().then(|| rng.u64(1..16 << 30));
            match size_of(&sized(asked, 64 << 30), &space, Path::new("/x")) {
                Ok(size) => {
                    assert!(size + size / 10 <= free);
                    assert!((used + size) as f64 <= 0.95 * (used + free) as f64);
                    assert!(size.is_multiple_of(SIZE_STEP) && size >= SIZE_MIN);
                    assert!(asked.is_none_or(|asked| size >= asked));
                }
                Err(ProbeError::Space { size, free, needed, .. }) => {
                    assert!(needed > free);
                    assert!(
                        size + size / 10 + 1 > free || (used + size) as f64 > 0.9499 * (used + free) as f64
                    );
                }
                Err(e) => panic!("{e}"),
            }
        }
    }

    /// Goal: nonsense is refused before anything is touched, with a sentence that says what is allowed.
    #[test]
    fn nonsense_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let good = Request { size: Some(1 << 20), ..Request::new(dir.path()) };
        assert!(plan(&good).is_ok());
        let only = |only| Request { only, ..good.clone() };
        let bad = [
            Request { time_limit: Duration::ZERO, ..good.clone() },
            Request { time_limit: Duration::from_secs(1 << 30), ..good.clone() },
            Request { bytes_limit: 1000, ..good.clone() },
            Request { directions: vec![], ..good.clone() },
            Request { size: Some(8 << 30), ..good.clone() },
            only(Only { request_sizes: vec![3000], ..Only::default() }),
            only(Only { request_sizes: vec![128 << 20], ..Only::default() }),
            only(Only { request_sizes: vec![64 << 20], ..Only::default() }),
            only(Only { depths: vec![0], ..Only::default() }),
        ];
        for request in bad {
            assert!(matches!(plan(&request), Err(ProbeError::BadRequest(_))), "{request:?}");
        }
        let file = dir.path().join("file");
        std::fs::write(&file, b"x").unwrap();
        assert!(matches!(plan(&Request::new(&file)), Err(ProbeError::NotADirectory(_))));
        assert!(matches!(plan(&Request::new(dir.path().join("no"))), Err(ProbeError::Io { .. })));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "a plan writes nothing");
    }
}
