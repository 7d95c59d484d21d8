//! Holes in what an earlier run left, or in what is written into.
//!
//! In: an open file, and the map of its data. Out: a file whose holes are holes, whoever wrote there; or that
//! this cannot be had. Of one that is whole, whether its holes are holes.

use std::os::fd::BorrowedFd;

use haul_core::extents::ExtentMap;
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::{Errno, retry_on_intr};

/// What `stat` counts blocks in, bytes.
const BLOCK: u64 = 512;

/// Makes holes of what the map says are holes, in a file whose data begins at `base`. False: this file system
/// cannot, so that what lies there might be published.
pub(super) fn clear_holes(fd: BorrowedFd<'_>, map: &ExtentMap, base: u64) -> bool {
    if haul_mutant::removed("adopted-holes") {
        return true;
    }
    let size = rustix::fs::fstat(fd).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
    for (from, to) in holes(map).map(|(from, to)| (base + from, base + to)) {
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

/// Where holes begin and end; some have no length.
fn holes(map: &ExtentMap) -> impl Iterator<Item = (u64, u64)> {
    let starts = map.extents().iter().map(|extent| extent.offset).chain([map.size()]);
    let ends = [0].into_iter().chain(map.extents().iter().map(|extent| extent.end()));
    ends.zip(starts)
}

/// Whether the holes of the map are holes in the file, whose data begins at `base`, as far as its file system
/// tells. The largest is looked at: file systems have holes or have none, and one at most is as small as
/// their blocks.
pub(super) fn holes_stand(fd: BorrowedFd<'_>, map: &ExtentMap, base: u64) -> bool {
    let Some((from, to)) = holes(map).max_by_key(|(from, to)| to - from).filter(|(from, to)| from < to)
    else {
        return true;
    };
    let middle = base + from + (to - from) / 2;
    if rustix::fs::seek(fd, SeekFrom::Data(middle)) != Ok(middle) {
        return true;
    }
    // Some have holes and name none (NFS before 4.2, FUSE): they count the blocks of what is data.
    let Ok(stat) = rustix::fs::fstat(fd) else { return true };
    let [blocks, size] = [stat.st_blocks, stat.st_size].map(|number| u64::try_from(number).unwrap_or(0));
    blocks.saturating_mul(BLOCK) < size.saturating_sub((to - from) / 2)
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

    /// Goal: holes are told from zeros that were written.
    /// Method: a map with one hole, over a file that has it, one that is full, and one that is all hole.
    #[test]
    fn holes_are_told_from_zeros() {
        const SIZE: u64 = 1 << 20;
        let mut maker = MapMaker::new(SIZE);
        maker.push(0, 64 << 10);
        let map = maker.finish();
        for (data, stand) in [(64 << 10, true), (SIZE as usize, false), (0, true)] {
            let file = tempfile::tempfile().expect("a file");
            file.set_len(SIZE).expect("make it long");
            file.write_all_at(&vec![0; data], 0).expect("write");
            assert_eq!(holes_stand(file.as_fd(), &map, 0), stand, "{data}");
        }
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(&[7; SIZE as usize], 0).expect("write");
        assert!(holes_stand(file.as_fd(), &ExtentMap::full(SIZE), 0), "there is none");
    }
}
