//! Rows of one test side by side: what is tried there mostly waits, for a patience to end, a second attempt,
//! a server to start.

use std::sync::Mutex;
use std::thread;

/// Rows at a time. Tests run side by side, too.
const ROWS_MAX: usize = 4;

/// Runs `run` for each row. Rows that fail fail the test, and the others run all the same, as far as there is
/// somebody left to run them.
pub fn beside<R: Send, I: IntoIterator<Item = R>>(rows: I, run: impl Fn(R) + Sync)
where
    I::IntoIter: Send,
{
    so_many_beside(ROWS_MAX, rows, run);
}

/// The same of at most so many rows at a time.
pub fn so_many_beside<R: Send, I: IntoIterator<Item = R>>(max: usize, rows: I, run: impl Fn(R) + Sync)
where
    I::IntoIter: Send,
{
    let rows = Mutex::new(rows.into_iter());
    let next = || rows.lock().expect("no row is made by a panic").next();
    // What they say, and what they skip, is said of the test.
    let name = thread::current().name().unwrap_or("a row").to_owned();
    thread::scope(|scope| {
        for _ in 0..max {
            let work = || {
                while let Some(row) = next() {
                    run(row);
                }
            };
            thread::Builder::new().name(name.clone()).spawn_scoped(scope, work).expect("start a thread");
        }
    });
}
