//! Runs of a simulator by seeds: how many, and what a run that panics says.

use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static PANIC: std::cell::RefCell<String> = const { std::cell::RefCell::new(String::new()) };
}

/// What a run came to, or the words of its panic.
pub fn tried<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|info| PANIC.set(info.to_string())));
    let result = catch_unwind(AssertUnwindSafe(run));
    std::panic::set_hook(hook);
    result.map_err(|_| PANIC.take())
}

/// What an environment variable says, or `or`.
#[expect(clippy::disallowed_methods, reason = "a long run is told how long")]
pub fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(or)
}
