//! How each end drives its storage: the options of `haul cp` that experts set, each for one side or for both.
//!
//! In: `VALUE` or `source=VALUE` or `sink=VALUE`, each option as often as one likes; the last one counts.
//! Out: [`job::StorageOptions`] of both ends.

use clap::{ArgAction, Args};
use haul::options::{self, EngineName, IoPolicy, Order};

use super::parse_size;

/// Request sizes that may be asked for, bytes.
const REQUEST_SIZE_MIN: u64 = 4 << 10;
const REQUEST_SIZE_MAX: u64 = 64 << 20;
/// Most requests in flight at one storage target.
const DEPTH_MAX: u16 = 256;
/// Most objects in flight at all of them.
const IN_FLIGHT_MAX: u16 = 2048;
/// Most threads that drive requests.
const IO_THREADS_MAX: u16 = 64;
/// Longest time after which a request is taken to hang, seconds.
const DEADLINE_MAX: u64 = 3600;

/// A value for one side, or for both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sided<T> {
    /// `None`: both.
    side: Option<Side>,
    value: T,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Source,
    Sink,
}

#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Storage, each option for both sides or as source=VALUE or sink=VALUE")]
pub struct Storage {
    /// Through the page cache or past it: auto, direct or buffered
    ///
    /// Default: auto. Both are compared on the data of the copy itself, and the faster one is kept; a
    /// destination of several storage targets is written directly. A file system without direct I/O is no
    /// error.
    #[arg(long, value_name = "MODE", action = ArgAction::Append, value_parser = sided(io))]
    pub io: Vec<Sided<IoPolicy>>,

    /// Order of requests within a file: strict, serial, loose or none
    ///
    /// strict: offsets dealt round-robin to the threads; serial: each after the one before has completed;
    /// loose: each after the one before was issued. Default: from the storage passport, else none.
    #[arg(long, value_name = "POLICY", action = ArgAction::Append, value_parser = sided(order))]
    pub order: Vec<Sided<Order>>,

    /// Bytes of one request, a power of two from 4KiB to 64MiB
    ///
    /// Independent of the object size: objects are split, and neighbours joined. Default: from the storage
    /// passport, else the object size.
    #[arg(long, value_name = "SIZE", action = ArgAction::Append, value_parser = sided(request_size))]
    pub request_size: Vec<Sided<u32>>,

    /// Requests in flight at one storage target, 1 to 256
    ///
    /// Default: from the storage passport, else 16.
    #[arg(long, value_name = "N", action = ArgAction::Append, value_parser = sided(depth))]
    pub depth: Vec<Sided<u16>>,

    /// Objects in flight at all storage targets together, 1 to 2048
    ///
    /// Counts where there are several. Default: eight times the depth; fewer spare a file system that others
    /// use, too.
    #[arg(long, value_name = "N", action = ArgAction::Append, value_parser = sided(in_flight))]
    pub in_flight: Vec<Sided<u16>>,

    /// Threads that drive these requests, 1 to 64
    ///
    /// Default: one for each processor, at most 4.
    #[arg(long, value_name = "N", action = ArgAction::Append, value_parser = sided(threads))]
    pub io_threads: Vec<Sided<u16>>,

    /// What carries requests out: auto, uring or pread
    ///
    /// Default: io_uring where the kernel allows it, else threads with pread and pwrite; and threads to a
    /// destination that is no local file system.
    #[arg(long, value_name = "NAME", action = ArgAction::Append, value_parser = sided(engine))]
    pub engine: Vec<Sided<EngineName>>,

    /// Take a request for hung after this time, as 30s
    ///
    /// It is named in the status line, and others go on in its place. Default: 5s, so that you see it before
    /// you wonder.
    #[arg(long, value_name = "TIME", action = ArgAction::Append, value_parser = sided(deadline))]
    pub io_deadline: Vec<Sided<u32>>,

    /// Make at most so many metadata operations a second, as 1000/s or 10k
    ///
    /// Each end counts what it asks of its own file system for each entry: looks, opening, making, removing
    /// and renaming, setting owner, mode and times. Servers and volumes do not know it. Default: no limit. -v
    /// says whether this held the copy back.
    #[arg(long, value_name = "RATE", action = ArgAction::Append, value_parser = sided(meta_rate))]
    pub meta_rate: Vec<Sided<u64>>,

    /// Do not allocate the blocks of a file before it is written
    ///
    /// Default: large files get their blocks at once, where the file system can do that; they lie together
    /// then, and a full disk is noticed before data moves.
    #[arg(long)]
    pub no_preallocate: bool,

    /// Into a volume: gather what is smaller than this, a size, 0 or all
    ///
    /// Small writes go through one server of a volume, which gathers them, and large ones to where their
    /// stripes lie. Where that changes over is measured all the time; with this it stands still. 0 gathers
    /// nothing. With a destination that is no volume it is refused.
    #[arg(long, value_name = "SIZE", value_parser = write_threshold)]
    pub write_threshold: Option<u64>,
}

impl Storage {
    /// The options of (source, sink).
    pub fn options(&self) -> (options::StorageOptions, options::StorageOptions) {
        (self.of(Side::Source), self.of(Side::Sink))
    }

    fn of(&self, side: Side) -> options::StorageOptions {
        options::StorageOptions {
            io: last(&self.io, side).unwrap_or_default(),
            order: last(&self.order, side),
            request_size: last(&self.request_size, side),
            depth: last(&self.depth, side),
            in_flight: last(&self.in_flight, side),
            threads: last(&self.io_threads, side),
            engine: last(&self.engine, side).unwrap_or_default(),
            deadline_ms: last(&self.io_deadline, side),
            no_preallocate: self.no_preallocate,
            write_threshold: self.write_threshold.filter(|_| side == Side::Sink),
            meta_rate: last(&self.meta_rate, side),
        }
    }
}

fn last<T: Copy>(values: &[Sided<T>], side: Side) -> Option<T> {
    values.iter().rev().find(|sided| sided.side.is_none_or(|of| of == side)).map(|sided| sided.value)
}

/// A parser for `VALUE`, `source=VALUE` and `sink=VALUE`.
fn sided<T>(
    parse: fn(&str) -> Result<T, String>,
) -> impl Fn(&str) -> Result<Sided<T>, String> + Clone + Send + Sync + 'static
where
    T: 'static,
{
    move |text| {
        let (side, value) = match text.split_once('=') {
            None => (None, text),
            Some(("source", value)) => (Some(Side::Source), value),
            Some(("sink", value)) => (Some(Side::Sink), value),
            Some((other, _)) => return Err(format!("'{other}' is no side: write source= or sink=")),
        };
        Ok(Sided { side, value: parse(value)? })
    }
}

/// `1000`, `1000/s`, `10k` or `10k/s`.
fn meta_rate(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let amount = lower.strip_suffix("/s").unwrap_or(&lower).trim_end();
    let (digits, scale) = match amount.strip_suffix('k') {
        Some(digits) => (digits, 1000),
        None => amount.strip_suffix('m').map_or((amount, 1), |digits| (digits, 1_000_000)),
    };
    let [least, most] = options::META_RATES;
    let rate = digits.trim_end().parse::<u64>().ok().and_then(|number| number.checked_mul(scale));
    rate.filter(|rate| (least..=most).contains(rate))
        .ok_or_else(|| format!("write it as 1000/s or 10k, operations a second: {least} to {}k", most / 1000))
}

fn write_threshold(text: &str) -> Result<u64, String> {
    match text {
        "0" => Ok(0),
        "all" => Ok(u64::MAX),
        size => parse_size(size),
    }
}

fn one_of<T: Copy>(text: &str, known: &[(&str, T)]) -> Result<T, String> {
    known.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        format!("write one of {}", names.join(", "))
    })
}

fn io(text: &str) -> Result<IoPolicy, String> {
    one_of(text, &IoPolicy::ALL.map(|policy| (policy.name(), policy)))
}

fn order(text: &str) -> Result<Order, String> {
    let known = [
        ("strict", Order::Strict),
        ("serial", Order::Serial),
        ("loose", Order::Loose),
        ("none", Order::None),
    ];
    one_of(text, &known)
}

fn engine(text: &str) -> Result<EngineName, String> {
    one_of(text, &[("auto", EngineName::Auto), ("uring", EngineName::Uring), ("pread", EngineName::Pread)])
}

fn request_size(text: &str) -> Result<u32, String> {
    match parse_size(text)? {
        size if size.is_power_of_two() && (REQUEST_SIZE_MIN..=REQUEST_SIZE_MAX).contains(&size) => {
            Ok(u32::try_from(size).expect("64 MiB fit"))
        }
        _ => Err("a request is a power of two from 4KiB to 64MiB".into()),
    }
}

fn count(text: &str, max: u16) -> Result<u16, String> {
    let number = text.parse().ok().filter(|number| (1..=max).contains(number));
    number.ok_or_else(|| format!("write a number from 1 to {max}"))
}

fn depth(text: &str) -> Result<u16, String> {
    count(text, DEPTH_MAX)
}

fn in_flight(text: &str) -> Result<u16, String> {
    count(text, IN_FLIGHT_MAX)
}

fn threads(text: &str) -> Result<u16, String> {
    count(text, IO_THREADS_MAX)
}

/// Milliseconds.
fn deadline(text: &str) -> Result<u32, String> {
    let time = super::parse_duration(text)?;
    if time.is_zero() || time.as_secs() > DEADLINE_MAX {
        return Err(format!("write a time of at most {DEADLINE_MAX}s"));
    }
    Ok(u32::try_from(time.as_millis()).expect("an hour fits").max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Args as All, Command};
    use clap::Parser;

    fn options(line: &str) -> Result<(options::StorageOptions, options::StorageOptions), clap::Error> {
        let words = ["haul", "cp", "a", "b"].into_iter().chain(line.split_whitespace());
        match All::try_parse_from(words)?.command {
            Command::Cp(cp) => Ok(cp.storage.options()),
            other => panic!("{other:?}"),
        }
    }

    /// Goal: without options both sides are left to haul.
    #[test]
    fn nothing_is_asked_by_default() {
        assert_eq!(options("").unwrap(), Default::default());
    }

    /// Goal: an option without a side means both, with one only that; the last one that concerns a side
    /// counts.
    #[test]
    fn sides_are_told_apart() {
        let (source, sink) = options("--io=direct --io sink=buffered --depth source=8 --depth 4").unwrap();
        assert_eq!((source.io, sink.io), (IoPolicy::Direct, IoPolicy::Buffered));
        assert_eq!((source.depth, sink.depth), (Some(4), Some(4)));
        let (source, sink) = options(
            "--order sink=loose --request-size source=1M --engine pread --io-deadline 2s --no-preallocate --in-flight source=9",
        )
        .unwrap();
        assert_eq!((source.order, sink.order), (None, Some(Order::Loose)));
        assert_eq!((source.request_size, sink.request_size), (Some(1 << 20), None));
        assert_eq!((source.engine, sink.engine), (EngineName::Pread, EngineName::Pread));
        assert_eq!((source.deadline_ms, sink.deadline_ms), (Some(2000), Some(2000)));
        assert_eq!((source.in_flight, sink.in_flight), (Some(9), None));
        assert!(sink.no_preallocate);
        for (text, rate) in [("1000/s", 1000), ("10k", 10_000), ("2k/s", 2000), ("1M/s", 1_000_000), ("7", 7)]
        {
            let (source, sink) = options(&format!("--meta-rate {text} --meta-rate sink=5/s")).unwrap();
            assert_eq!((source.meta_rate, sink.meta_rate), (Some(rate), Some(5)));
        }
        for (text, bytes) in [("0", 0), ("64KiB", 64 << 10), ("all", u64::MAX)] {
            let (source, sink) = options(&format!("--write-threshold {text}")).unwrap();
            assert_eq!((source.write_threshold, sink.write_threshold), (None, Some(bytes)));
        }
    }

    /// Goal: what no engine could do is refused where it is typed.
    #[test]
    fn values_out_of_bounds_are_refused() {
        for line in [
            "--io fast",
            "--io far=direct",
            "--order random",
            "--meta-rate 0",
            "--meta-rate 11M",
            "--meta-rate 1.5k",
            "--meta-rate 1KiB/s",
            "--meta-rate k",
            "--request-size 3M",
            "--request-size 2KiB",
            "--request-size 128MiB",
            "--depth 0",
            "--depth 257",
            "--in-flight 0",
            "--in-flight 2049",
            "--io-threads 65",
            "--engine aio",
            "--io-deadline 0s",
            "--io-deadline 2h",
        ] {
            assert!(options(line).is_err(), "{line}");
        }
    }
}
