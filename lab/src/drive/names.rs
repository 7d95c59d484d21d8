//! Patterns of many files: what is done to names alone, and small files that come and go.
//!
//! In: a place, counts, a seed. Out: what was measured. After each, every name is looked for, and every byte
//! of what is left is compared.

use anyhow::ensure;
use serde_json::{Value, json};

use super::place::Client;
use super::{Operation, Place, at_once, measure, said};

/// Lengths of postmark's files and of what is put behind them, bytes; what it writes and reads at a time: the
/// program's own defaults.
const LEN: (u64, u64) = (500, 9770);
const BLOCK: u64 = 512;
/// Threads that make names before the clock.
const MAKERS: u64 = 16;
/// Most files or transactions: a mistake is not waited for.
const COUNT_MAX: u64 = 10_000_000;

/// One thing done to `count` names, by `threads` threads of one client.
pub(super) fn many(
    place: &Place<'_>,
    operation: Operation,
    count: u64,
    threads: u64,
) -> anyhow::Result<Value> {
    ensure!((1..=COUNT_MAX).contains(&count), "{count} names: 1 to {COUNT_MAX}");
    let client = place.client()?;
    let client = &*client;
    let before = |at: u64| format!("name-{at}");
    let after = |at: u64| format!("renamed-{at}");
    let each = |threads: u64, work: &(dyn Fn(u64) -> anyhow::Result<()> + Sync)| {
        at_once(
            (0..threads).map(|thread| move || (thread..count).step_by(threads as usize).try_for_each(work)),
        )
    };
    let make = |at: u64| client.create(&before(at)).map(drop);
    if operation != Operation::Create {
        each(MAKERS, &make)?;
    }
    let is_there = |client: &dyn Client, name: &str, there: bool| {
        ensure!(client.exists(name)? == there, "{name} is {}there", if there { "not " } else { "" });
        anyhow::Ok(())
    };
    let measured = measure(|| match operation {
        Operation::Create => each(threads, &make),
        Operation::Stat => each(threads, &|at| is_there(client, &before(at), true)),
        Operation::Rename => each(threads, &|at| client.rename(&before(at), &after(at))),
        Operation::Unlink => each(threads, &|at| client.unlink(&before(at))),
    })?;
    let other = place.fresh()?;
    let other = &*other;
    each(MAKERS, &|at| {
        is_there(other, &before(at), matches!(operation, Operation::Create | Operation::Stat))?;
        is_there(other, &after(at), operation == Operation::Rename)
    })?;
    let mut said = said(&measured, 0);
    said["operations"] = json!(count);
    Ok(said)
}

/// A file of postmark's, as it should be.
struct Made {
    number: u64,
    len: u64,
}

impl Made {
    fn name(&self) -> String {
        format!("mail-{}", self.number)
    }
}

/// As PostMark does it, with a sync before a file that was written is closed: in each transaction one file is
/// read or appended to, and one is made or removed, with even chances.
pub(super) fn postmark(place: &Place<'_>, transactions: u64, files: u64, seed: u64) -> anyhow::Result<Value> {
    ensure!((1..=COUNT_MAX).contains(&transactions), "{transactions} transactions: 1 to {COUNT_MAX}");
    ensure!((1..=COUNT_MAX).contains(&files), "{files} files: 1 to {COUNT_MAX}");
    let client = place.client()?;
    let mut mailbox = Mailbox {
        place,
        client: &*client,
        rng: fastrand::Rng::with_seed(seed),
        made: Vec::new(),
        gone: Vec::new(),
        next: 0,
        bytes: 0,
    };
    for _ in 0..files {
        mailbox.make()?;
    }
    mailbox.bytes = 0;
    let measured = measure(|| (0..transactions).try_for_each(|_| mailbox.transact()))?;
    let about = client.about();
    let other = place.fresh()?;
    let mut said = said(&measured, mailbox.bytes);
    for made in &mailbox.made {
        mailbox.read(&*other, made)?;
    }
    for name in mailbox.gone.iter().map(Made::name) {
        ensure!(!other.exists(&name)?, "{name} is there, and was removed");
    }
    said["operations"] = json!(transactions);
    said["left"] = json!(mailbox.made.len());
    said["clients"] = json!([about]);
    Ok(said)
}

struct Mailbox<'a> {
    place: &'a Place<'a>,
    client: &'a dyn Client,
    rng: fastrand::Rng,
    made: Vec<Made>,
    gone: Vec<Made>,
    next: u64,
    /// Read and written.
    bytes: u64,
}

impl Mailbox<'_> {
    fn transact(&mut self) -> anyhow::Result<()> {
        let which = self.rng.usize(0..self.made.len());
        if self.rng.bool() {
            self.read(self.client, &self.made[which])?;
            self.bytes += self.made[which].len;
        } else {
            self.append(which)?;
        }
        // One is left to be read.
        if self.rng.bool() || self.made.len() == 1 {
            return self.make();
        }
        let gone = self.made.swap_remove(self.rng.usize(0..self.made.len()));
        self.client.unlink(&gone.name())?;
        self.gone.push(gone);
        Ok(())
    }

    fn make(&mut self) -> anyhow::Result<()> {
        let made = Made { number: self.next, len: self.rng.u64(LEN.0..=LEN.1) };
        self.next += 1;
        let mut file = self.client.create(&made.name())?;
        for (offset, len) in super::pattern::tiles(made.len, BLOCK) {
            file.write(offset, self.place.content.bytes(made.number, offset, len))?;
        }
        file.sync()?;
        drop(file);
        self.bytes += made.len;
        self.made.push(made);
        Ok(())
    }

    fn append(&mut self, which: usize) -> anyhow::Result<()> {
        let more = self.rng.u64(LEN.0..=LEN.1);
        let made = &mut self.made[which];
        let mut file = self.client.open(&made.name())?;
        for (offset, len) in super::pattern::tiles(more, BLOCK) {
            file.append(self.place.content.bytes(made.number, made.len + offset, len))?;
        }
        file.sync()?;
        drop(file);
        made.len += more;
        self.bytes += more;
        Ok(())
    }

    /// All of a file, compared.
    fn read(&self, client: &dyn Client, made: &Made) -> anyhow::Result<()> {
        let mut file = client.open(&made.name())?;
        let see = &mut |offset: u64, found: &[u8]| self.place.content.check(made.number, offset, found);
        file.read(&super::pattern::tiles(made.len, BLOCK), see)
    }
}
