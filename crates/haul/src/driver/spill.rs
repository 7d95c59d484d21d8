//! The source's spill file, between the machine that decides and the file that holds.
//!
//! In: the user's directory and size; frames to store and to fetch. Out: completions to the machine, and what
//! the spill file was good for in words. Without `--spill` there is none, and the machine never asks.

use std::collections::HashMap;

use haul_core::ids::BufferId;
use haul_core::transfer::source::{SPILL_STALL, Source, SpillConfig, SpillCounts, Stall};
use haul_core::tune::show_size;
use haul_core::wire::{Failure, FailureKind};

use super::local;
use crate::options::Options;
use haul_base::buffer::{Buffer, Pool};
use haul_storage::spill::{SpillDone, SpillFile, SpillOp};
use haul_storage::{Post, Stuck};

/// What a spill file takes where the user did not say: so much, or a quarter of what is free there.
const SIZE_DEFAULT: u64 = 16 << 30;

/// See the module.
pub(crate) struct Spill {
    file: Option<SpillFile>,
}

impl Spill {
    /// Makes the file that the options ask for, and tells the machine. A slot is as long as an object of this
    /// length: bundles that are spilled are no longer, either.
    ///
    /// # Errors
    /// It cannot be made: the user asked for it, so the copy does not begin.
    pub(crate) fn start(
        options: &Options,
        object_size: u64,
        machine: &mut Source,
        post: Post<SpillDone>,
    ) -> Result<Spill, Failure> {
        let Some(dir) = &options.spill_dir else { return Ok(Spill { file: None }) };
        let size = options.spill_size.unwrap_or_else(|| {
            let free =
                rustix::fs::statvfs(dir).map_or(u64::MAX, |fs| fs.f_bavail.saturating_mul(fs.f_frsize));
            SIZE_DEFAULT.min(free / 4)
        });
        let file = SpillFile::create(dir, size, object_size, post).map_err(|e| Failure {
            kind: FailureKind::Write,
            errno: 0,
            text: e.to_string().into(),
        })?;
        let (slots, len) = file.slots();
        let slot_len = u32::try_from(len).unwrap_or(u32::MAX);
        machine.use_spill(SpillConfig { slots, slot_len, stall: SPILL_STALL });
        Ok(Spill { file: Some(file) })
    }

    /// Writes a frame's payload into a slot.
    pub(crate) fn store(&self, slot: u32, buffer: Option<Buffer>, len: u32) {
        if let (Some(file), Some(buffer)) = (&self.file, buffer) {
            file.store(slot, buffer, len as usize);
        }
    }

    /// Reads a slot into a new buffer.
    pub(crate) fn fetch(&self, slot: u32, len: u32, pool: &Pool) {
        if let Some(file) = &self.file {
            let buffer =
                pool.take(len as usize).expect("the machine counts what it takes, and the pool has slack");
            file.fetch(slot, buffer);
        }
    }

    /// Hands a completion to the machine, and its buffer to those that the machine knows.
    pub(crate) fn handle(done: SpillDone, machine: &mut Source, buffers: &mut HashMap<BufferId, Buffer>) {
        let SpillDone { slot, op, buffer, result } = done;
        let Some(buffer) = buffer else {
            let failure =
                result.err().unwrap_or_else(|| local("internal error: a spilled frame's buffer was lost"));
            return match op {
                // The frame is not here any more, so that it cannot be sent from here. Fetched from a slot
                // that was never filled it comes as a failure, or with bytes that do not fit its digests:
                // either way it is read again.
                SpillOp::Store => machine.handle_stored(slot, Ok(())),
                SpillOp::Fetch => machine.handle_fetched(slot, Err(failure)),
            };
        };
        let id = buffer.id();
        match op {
            SpillOp::Store => {
                buffers.insert(id, buffer);
                machine.handle_stored(slot, result);
            }
            SpillOp::Fetch => {
                if result.is_ok() {
                    buffers.insert(id, buffer);
                }
                machine.handle_fetched(slot, result.map(|()| id));
            }
        }
    }

    /// What hangs at the spill file.
    pub(crate) fn stuck(&self) -> Vec<Stuck> {
        self.file.as_ref().map(SpillFile::stuck).unwrap_or_default()
    }

    /// For the report: what there is, and what it was good for.
    pub(crate) fn report(&self, counts: SpillCounts) -> Option<(String, String)> {
        let file = self.file.as_ref()?;
        let (slots, len) = file.slots();
        let how = if file.is_direct() { "direct" } else { "through the page cache" };
        let text = format!("{} ({how}), {}", show_size(u64::from(slots) * len), used(&counts));
        Some(("spill file".into(), text))
    }
}

fn used(counts: &SpillCounts) -> String {
    let SpillCounts { stored, peak, missed, stalled, flowing, starved, .. } = *counts;
    if stored > 0 {
        return format!(
            "{} stored{}, at most {} at a time",
            show_size(stored),
            stalls(counts),
            show_size(peak)
        );
    }
    let missed = missed.as_secs_f64();
    if !stalled && missed < SPILL_STALL.as_secs_f64() {
        return "not used: the other end never stalled".into();
    }
    if !stalled {
        return format!("not used: the other end was waited for {missed:.1} s in all, but never stood still");
    }
    let share = if flowing.is_zero() { 0.0 } else { starved.as_secs_f64() / flowing.as_secs_f64() * 100.0 };
    format!(
        "not used: the other end was waited for {missed:.1} s in all, but storage here in {share:.0} % of the rest, \
         so that reading ahead would not pay"
    )
}

/// In how many stalls, when, for how long and how much in each, as far as they are told one by one.
fn stalls(counts: &SpillCounts) -> String {
    let told = counts.longest.iter().filter(|stall| !stall.lasted.is_zero());
    let told = told.map(|Stall { at, lasted, stored }| {
        let (at, lasted) = (at.as_secs_f64(), lasted.as_secs_f64());
        format!("{} from {at:.1} s on for {lasted:.1} s", show_size(*stored))
    });
    let told: Vec<String> = told.collect();
    let what = match counts.stalls {
        0 => return String::new(),
        1 => " in one stall".to_owned(),
        count => format!(" in {count} stalls of {:.1} s in all", counts.stall_time.as_secs_f64()),
    };
    let which = if told.len() as u64 == counts.stalls { "" } else { "the longest: " };
    if told.is_empty() { what } else { format!("{what} ({which}{})", told.join(", ")) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Goal: the report says what was stored, and if nothing was, why.
    #[test]
    fn the_report_says_why() {
        let ms = Duration::from_millis;
        let counts = SpillCounts::default();
        assert!(used(&counts).contains("never stalled"));
        let counts = SpillCounts { missed: ms(2500), flowing: ms(4000), starved: ms(40), ..counts };
        assert!(used(&counts).contains("2.5 s in all") && used(&counts).contains("never stood still"));
        let counts = SpillCounts { stalled: true, ..counts };
        assert!(used(&counts).contains("2.5 s in all") && used(&counts).contains("in 1 % of the rest"));
        let nothing = Stall::default();
        let one = Stall { at: ms(1500), lasted: ms(4250), stored: 2 << 30 };
        let two = Stall { at: ms(60_000), lasted: ms(2000), stored: 1 << 30 };
        let stored = SpillCounts { stored: 3 << 30, peak: 1 << 30, ..counts };
        let counts = SpillCounts { stalls: 1, longest: [one, nothing, nothing, nothing], ..stored };
        let told = "2 GiB from 1.5 s on for 4.2 s";
        assert_eq!(used(&counts), format!("3 GiB stored in one stall ({told}), at most 1 GiB at a time"));
        let longest = [one, two, nothing, nothing];
        let counts = SpillCounts { stalls: 2, stall_time: ms(6250), longest, ..stored };
        let told = format!("{told}, 1 GiB from 60.0 s on for 2.0 s");
        let text = format!("in 2 stalls of 6.2 s in all ({told}), at");
        assert!(used(&counts).contains(&text), "{}", used(&counts));
        let counts = SpillCounts { stalls: 7, stall_time: ms(9000), ..counts };
        let text = format!("in 7 stalls of 9.0 s in all (the longest: {told}), at");
        assert!(used(&counts).contains(&text), "{}", used(&counts));
    }
}
