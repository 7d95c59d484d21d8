//! What a program that copies should do to its own process. The library itself leaves the process as it is.

/// Raises the number of descriptors to what is allowed, so that more files are under way at a time: once,
/// before anything else. Where the system refuses, copies work as well with less.
pub fn raise_limits() {
    haul_storage::descriptors::raise_nofile();
}

/// This process runs no more than one copy at a time: it may have all the files open that the process may.
/// Else copies leave room for others; one that runs beside it is refused.
pub fn one_copy_at_a_time() {
    haul_storage::descriptors::alone();
}

/// Keeps the keys of sessions out of core files and away from debuggers of the same user: before a copy from
/// or to another host, and before an agent serves. Where the system refuses, a session is not weaker than
/// without it.
pub fn keep_secrets() {
    haul_launch::harden();
}

/// Ends this process with this code, once all is over: what was printed is out by then, and threads that
/// still run are not waited for.
pub fn exit(code: i32) -> ! {
    use std::io::Write as _;
    let _ = std::io::stdout().flush();
    haul_base::sys::exit_at_once(code)
}
