//! `lab drive`: an application that works on files in a pattern, in a volume through its Rust API or below
//! directories through POSIX.
//!
//! In: a place, a pattern, a seed. Out: one line of JSON: how long it took, what the machine's processors did
//! meanwhile, and what was compared.
//! Invariants: what is written is durable when the clock stops, wherever it is written; it is compared byte
//! for byte afterwards, by a client that did not write it; whatever differs is an error that says where.
//! Read in this order: `place` (what a place can do), `volume` and `dirs` (the two that there are), `bytes`
//! (what is written), `pattern` (where), `names` (patterns of many files), `memory` (what it
//! takes to hold them).

use std::io::Write as _;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use crate::experiment::machine::{self, Ticks};
use crate::targets::parse_size;
use bytes::Content;
use place::{At, Client, Options, Threshold, parse_at, parse_threshold};

mod bytes;
mod dirs;
mod memory;
mod names;
mod pattern;
mod place;
mod volume;

/// The file of patterns of one file, and the one that clients get used to the place with.
const FILE: &str = "file";
const WARM: &str = "warm";
/// Bytes that are read at a time where nobody asks for a size.
const PIECE: u64 = 1 << 20;
/// Most bytes and requests of one run, so that a mistake fills neither disk nor memory.
const BYTES_MAX: u64 = 1 << 38;
const REQUESTS_MAX: u64 = 1 << 26;
/// Most clients or threads of one run.
const THREADS_MAX: u64 = 256;

/// Write, read or name files in a pattern, and say how long it took
#[derive(Args)]
pub struct Drive {
    /// volume:STATE_DIRECTORY:NAME, or dirs:DIR,...: several are one device each, with stripes in turns
    #[arg(long, value_parser = parse_at)]
    at: At,
    /// Of a volume: what is smaller is gathered: bytes, `all`, or `adaptive`
    #[arg(long, default_value = "adaptive", value_parser = parse_threshold)]
    threshold: Threshold,
    /// Of a volume: requests of one client that are under way
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1024))]
    depth: u64,
    /// Bytes of a stripe, where several directories are one place
    #[arg(long, value_parser = parse_size, default_value = "1MiB")]
    stripe: u64,
    /// Of everything that is drawn
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(subcommand)]
    pattern: Pattern,
}

#[derive(Subcommand)]
enum Pattern {
    /// Writes of one size to one file, by each client to a part of its own, then a sync by each
    Write {
        #[arg(long, value_parser = parse_size)]
        size: u64,
        /// By each client
        #[arg(long)]
        count: u64,
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=THREADS_MAX))]
        clients: u64,
        /// In an order that is drawn, not that of the file
        #[arg(long)]
        random: bool,
        /// So many are written to another file before, and synced
        #[arg(long, default_value_t = 0)]
        warm: u64,
    },
    /// Requests as the digitisation of ATLAS makes them: small ones and few large ones, anywhere in one file
    Atlas {
        #[arg(long)]
        events: u64,
    },
    /// One thread for each server reads what lies there of a file that was written before
    Read {
        #[arg(long, value_parser = parse_size)]
        bytes: u64,
        #[arg(long, value_parser = clap::value_parser!(u64).range(1..=THREADS_MAX))]
        servers: u64,
        /// Each second stripe of each server alone
        #[arg(long)]
        strided: bool,
    },
    /// Small files: read or append to one, make or remove one, in each transaction
    Postmark {
        #[arg(long)]
        transactions: u64,
        /// Files at first
        #[arg(long, default_value_t = 500)]
        files: u64,
    },
    /// One thing done to many names, by threads of one client
    Names {
        #[arg(long, value_enum)]
        operation: Operation,
        #[arg(long)]
        count: u64,
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=THREADS_MAX))]
        threads: u64,
    },
    /// One byte of one file, synced and read back
    First,
    /// Memory for clients that are connected, or for files that one client has open
    Memory {
        #[arg(long, value_enum)]
        holding: Holding,
        #[arg(long)]
        count: u64,
        /// The servers' processes
        #[arg(long, value_delimiter = ',')]
        pids: Vec<u32>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Operation {
    Create,
    Stat,
    Rename,
    Unlink,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Holding {
    Clients,
    Files,
}

/// What was measured.
struct Measured {
    seconds: f64,
    /// Of the whole machine.
    cpu_seconds: f64,
}

/// Takes the time and the processors' of something.
fn measure(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Measured> {
    let (ticks, began) = (Ticks::now()?, Instant::now());
    work()?;
    let seconds = began.elapsed().as_secs_f64();
    Ok(Measured { seconds, cpu_seconds: Ticks::now()?.seconds_since(&ticks) })
}

/// Does what was asked for, and prints what came of it.
///
/// # Errors
/// The place does not do it, or has other bytes afterwards.
pub fn run(drive: &Drive) -> anyhow::Result<()> {
    let options = Options { threshold: drive.threshold, depth: drive.depth as usize, stripe: drive.stripe };
    let place = Place { at: &drive.at, options, content: Content::new(drive.seed) };
    let said = match &drive.pattern {
        Pattern::Write { size, count, clients, random, warm } => {
            let requests = count.saturating_mul(*clients);
            fits(size.saturating_mul(requests), requests)?;
            let mut plan = pattern::consecutive(*clients, *count, *size);
            if *random {
                pattern::shuffle(&mut plan, drive.seed);
            }
            place.write(&plan, *warm)?
        }
        Pattern::Atlas { events } => {
            fits(1, events.saturating_mul(pattern::OF_EVENT))?;
            let plan = pattern::atlas(*events, drive.seed);
            place.write(&[plan], 0)?
        }
        Pattern::Read { bytes, servers, strided } => {
            fits(*bytes, 1)?;
            place.read(*bytes, *servers, *strided)?
        }
        Pattern::Postmark { transactions, files } => {
            names::postmark(&place, *transactions, *files, drive.seed)?
        }
        Pattern::Names { operation, count, threads } => names::many(&place, *operation, *count, *threads)?,
        Pattern::First => place.first()?,
        Pattern::Memory { holding, count, pids } => memory::hold(&place, *holding, *count, pids)?,
    };
    writeln!(std::io::stdout(), "{said}").context("write to standard output")
}

fn fits(bytes: u64, requests: u64) -> anyhow::Result<()> {
    ensure!((1..=BYTES_MAX).contains(&bytes), "{bytes} bytes: 1 to {BYTES_MAX}");
    ensure!((1..=REQUESTS_MAX).contains(&requests), "{requests} requests: 1 to {REQUESTS_MAX}");
    Ok(())
}

/// Where it is done, and with which bytes.
struct Place<'a> {
    at: &'a At,
    options: Options,
    content: Content,
}

impl Place<'_> {
    fn client(&self) -> anyhow::Result<Box<dyn Client>> {
        self.at.client(&self.options)
    }

    /// One that has written nothing, of a place of which this machine's page cache has nothing.
    fn fresh(&self) -> anyhow::Result<Box<dyn Client>> {
        machine::drop_caches()?;
        self.client()
    }

    /// Each client its own ranges of one file.
    fn write(&self, plan: &[Vec<(u64, u64)>], warm: u64) -> anyhow::Result<Value> {
        let clients = plan.iter().map(|_| self.client()).collect::<anyhow::Result<Vec<_>>>()?;
        for name in [FILE, WARM] {
            drop(clients[0].create(name)?);
        }
        let mut files = clients.iter().map(|client| client.open(FILE)).collect::<anyhow::Result<Vec<_>>>()?;
        for ((client, file), ranges) in clients.iter().zip(&mut files).zip(plan) {
            file.ready()?;
            if warm > 0 {
                let mut other = client.open(WARM)?;
                for (offset, len) in ranges.iter().take(warm as usize) {
                    other.write(*offset, self.content.bytes(1, *offset, *len))?;
                }
                other.sync()?;
            }
        }
        let one = |file: &mut Box<dyn place::File + '_>, ranges: &[(u64, u64)]| {
            for (offset, len) in ranges {
                file.write(*offset, self.content.bytes(0, *offset, *len))?;
            }
            file.sync()
        };
        let one = &one;
        let measured = measure(|| match &mut files[..] {
            [file] => one(file, &plan[0]),
            files => at_once(files.iter_mut().zip(plan).map(|(file, ranges)| move || one(file, ranges))),
        })?;
        drop(files);
        let about: Vec<Value> = clients.iter().map(|client| client.about()).collect();
        drop(clients);
        let bytes: u64 = plan.iter().flatten().map(|(_, len)| len).sum();
        let reader = self.fresh()?;
        let mut file = reader.open(FILE)?;
        let see = &mut |offset: u64, found: &[u8]| self.content.check(0, offset, found);
        file.read(&pattern::tiles(bytes, PIECE), see)?;
        let mut said = said(&measured, bytes);
        said["writes"] = json!(plan.iter().map(Vec::len).sum::<usize>());
        said["clients"] = Value::Array(about);
        Ok(said)
    }

    /// Each server's stripes by a thread of its own.
    fn read(&self, bytes: u64, servers: u64, strided: bool) -> anyhow::Result<Value> {
        // Large writes, so that nothing is gathered.
        let direct = Options { threshold: Threshold::Pinned(0), ..self.options.clone() };
        let writer = self.at.client(&direct)?;
        let mut file = writer.create(FILE)?;
        for (offset, len) in pattern::tiles(bytes, PIECE) {
            file.write(offset, self.content.bytes(0, offset, len))?;
        }
        file.sync()?;
        drop(file);
        drop(writer);
        let reader = self.fresh()?;
        let plan =
            pattern::by_server(bytes, reader.stripe().unwrap_or(self.options.stripe), servers, strided);
        let mut files = plan.iter().map(|_| reader.open(FILE)).collect::<anyhow::Result<Vec<_>>>()?;
        // What is read to be ready is forgotten again.
        files.iter_mut().try_for_each(|file| file.ready())?;
        machine::drop_caches()?;
        let measured = measure(|| {
            at_once(files.iter_mut().zip(&plan).map(|(file, ranges)| {
                move || {
                    let see = &mut |offset: u64, found: &[u8]| self.content.check(0, offset, found);
                    file.read(ranges, see)
                }
            }))
        })?;
        let bytes = plan.iter().flatten().map(|(_, len)| len).sum();
        Ok(said(&measured, bytes))
    }

    fn first(&self) -> anyhow::Result<Value> {
        let measured = measure(|| {
            let client = self.client()?;
            let mut file = client.create(FILE)?;
            file.write(0, self.content.bytes(0, 0, 1))?;
            file.sync()?;
            let see = &mut |offset: u64, found: &[u8]| self.content.check(0, offset, found);
            file.read(&[(0, 1)], see)
        })?;
        Ok(said(&measured, 1))
    }
}

/// Runs all of them at the same time, each in a thread; the first error of them.
fn at_once<F: FnOnce() -> anyhow::Result<()> + Send>(works: impl Iterator<Item = F>) -> anyhow::Result<()> {
    thread::scope(|scope| {
        let threads: Vec<_> = works.map(|work| scope.spawn(work)).collect();
        let mut ends = threads.into_iter().map(|thread| thread.join().expect("a thread of ours panicked"));
        // Each is waited for, also after an error.
        let first = ends.find(Result::is_err);
        ends.for_each(drop);
        first.unwrap_or(Ok(()))
    })
}

fn said(measured: &Measured, bytes: u64) -> Value {
    json!({
        "seconds": measured.seconds,
        "cpu_seconds": measured.cpu_seconds,
        "bytes": bytes,
        // An error would have been one.
        "checked": true,
    })
}
