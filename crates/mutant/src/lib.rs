//! Mutations: protections that one test build can do without, so that the test of each is seen to fail.
//!
//! In: the name of a protection, where the code applies it; with the feature `mutants`, the variable
//! `HAUL_MUTANT`, which names the one that is removed in this process. Out: whether the protection is
//! removed. Without the feature the answer is a constant, so that nothing of this is in a release. Every name
//! stands in `protections.txt` with the test that must fail without it; `make mutants` shows that it does,
//! and a test of the pages holds list and code against each other.
//! Left out: mutations of code that protects nothing.

/// Whether the protection `name` is removed from this process.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn removed(_name: &str) -> bool {
    false
}

/// Whether the protection `name` is removed from this process.
#[cfg(feature = "mutants")]
pub fn removed(name: &str) -> bool {
    use std::sync::OnceLock;

    static REMOVED: OnceLock<String> = OnceLock::new();
    REMOVED.get_or_init(|| std::env::var("HAUL_MUTANT").unwrap_or_default()) == name
}
