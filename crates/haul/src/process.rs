//! What a program that copies should do to its own process, once and before anything else. The library itself leaves the process as it
//! is.

/// Raises the number of descriptors to what is allowed, so that more files are under way at a time, and keeps keys out of core files and
/// away from debuggers of the same user. Where the system refuses, copies work as well with less.
pub fn prepare() {
    haul_storage::descriptors::raise_nofile();
    haul_launch::harden();
}
