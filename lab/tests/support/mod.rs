//! What all tests of the lab share: a test whose needs are not met skips itself, aloud.

use std::fs::File;
use std::io::Write as _;

/// Whether what this test needs is there. If not it is said on standard error and, where `HAUL_TEST_SKIPS`
/// names a file, there.
///
/// # Panics
/// It is not there, and `HAUL_TEST_REQUIRE` lists its first word, or `all`.
pub fn needs(need: &str, there: bool) -> bool {
    if there {
        return true;
    }
    let thread = std::thread::current();
    let test = format!("{} {}", env!("CARGO_CRATE_NAME"), thread.name().unwrap_or("main"));
    let required = std::env::var("HAUL_TEST_REQUIRE").unwrap_or_default();
    let word = need.split(' ').next();
    let listed = required.split(',').any(|entry| Some(entry) == word || entry == "all");
    assert!(!listed, "{test} needs {need}, which HAUL_TEST_REQUIRE lists, and it is not here");
    let line = format!("SKIP {test}: needs {need}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("write to stderr");
    if let Some(path) = std::env::var_os("HAUL_TEST_SKIPS") {
        let mut file = File::options().create(true).append(true).open(path).expect("open the list of skips");
        file.write_all(line.as_bytes()).expect("write the list of skips");
    }
    false
}
