//! Holes in what an earlier run left, or in what is written into.
//!
//! In: an open file, and the map of its data. Out: a file whose holes are holes, whoever wrote there; or that
//! this cannot be had.

use std::os::fd::BorrowedFd;

use haul_core::extents::ExtentMap;
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::{Errno, retry_on_intr};

/// Makes holes of what the map says are holes, in a file whose data begins at `base`. False: this file system
/// cannot, so that what lies there might be published.
pub(super) fn clear_holes(fd: BorrowedFd<'_>, map: &ExtentMap, base: u64) -> bool {
    if haul_mutant::removed("adopted-holes") {
        return true;
    }
    let size = rustix::fs::fstat(fd).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
    let starts = map.extents().iter().map(|extent| extent.offset).chain([map.size()]);
    let ends = [0].into_iter().chain(map.extents().iter().map(|extent| extent.end()));
    for (from, to) in ends.zip(starts).map(|(from, to)| (base + from, base + to)) {
        let mut at = from;
        while at < to.min(size) {
            // Where something lies that nobody should have written.
            at = match rustix::fs::seek(fd, SeekFrom::Data(at)) {
                Ok(data) if data < to => data,
                Ok(_) | Err(Errno::NXIO) => break,
                Err(_) => return false,
            };
            let end = match rustix::fs::seek(fd, SeekFrom::Hole(at)) {
                Ok(end) => end.min(to).max(at + 1),
                Err(_) => return false,
            };
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            if retry_on_intr(|| rustix::fs::fallocate(fd, punch, at, end - at)).is_err() {
                return false;
            }
            at = end;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use haul_core::extents::MapMaker;

    use super::*;

    /// Goal: what somebody wrote into the holes of a temporary is not there any more when that is taken over;
    /// its data is.
    /// Method: a file full of data under maps with a hole at the begin, between, and at the end, some of it
    /// beyond the file.
    #[test]
    fn holes_of_an_adopted_temporary_are_cleared() {
        const STEP: u64 = 64 << 10;
        for data in [&[1][..], &[0, 2], &[0, 5], &[]] {
            let file = tempfile::tempfile().expect("a file");
            file.write_all_at(&[7; 4 * STEP as usize], 0).expect("write");
            let mut maker = MapMaker::new(6 * STEP);
            data.iter().for_each(|at| maker.push(at * STEP, (at + 1) * STEP));
            let map = maker.finish();
            assert!(clear_holes(file.as_fd(), &map, 0), "this file system makes holes");
            let mut content = vec![0; 4 * STEP as usize];
            file.read_exact_at(&mut content, 0).expect("it is as long as before");
            for (at, part) in content.chunks(STEP as usize).enumerate() {
                let is_data = map.at(at as u64 * STEP).is_some();
                assert!(part.iter().all(|byte| *byte == if is_data { 7 } else { 0 }), "{data:?}: part {at}");
            }
        }
    }
}
