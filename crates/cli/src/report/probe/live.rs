//! The line of a probe that runs: what it is at, how far, how long still, and the best so far.
//!
//! In: events of the library. Out: one line of text that fits a width. No clock and no terminal in here.

use haul_probe::{Direction, Pattern, ProbeEvent, ProbeProgress};

use super::rate;
use crate::progress::{bytes, time};

/// Follows a probe.
#[derive(Default)]
pub struct Live {
    progress: Option<ProbeProgress>,
    read: f64,
    write: f64,
}

impl Live {
    pub fn update(&mut self, event: &ProbeEvent) {
        match event {
            ProbeEvent::Progress(progress) => self.progress = Some(progress.clone()),
            ProbeEvent::Point(point) if point.pattern == Pattern::Sequential => {
                let best = match point.direction {
                    Direction::Read => &mut self.read,
                    Direction::Write => &mut self.write,
                };
                *best = best.max(point.rate);
            }
            _ => {}
        }
    }

    /// Seconds that the probe has run.
    pub fn seconds(&self) -> f64 {
        self.progress.as_ref().map_or(0.0, |progress| progress.seconds)
    }

    /// The line, at most `width` columns: what does not fit is left out, the least important first.
    pub fn line(&self, width: usize) -> String {
        let Some(p) = &self.progress else { return String::new() };
        let mut parts = vec![
            format!("{}: {} of at most {}", p.phase.name(), p.done, p.points_total),
            format!("{} left", time(p.seconds_left)),
        ];
        for (best, name) in [(self.read, "read"), (self.write, "write")] {
            if best > 0.0 {
                parts.push(format!("best {name} {}", rate(best)));
            }
        }
        parts.push(format!("{} moved", bytes(p.bytes)));
        let mut line = String::new();
        for part in parts {
            let part = if line.is_empty() { part } else { format!(", {part}") };
            if line.chars().count() + part.chars().count() > width {
                break;
            }
            line += &part;
        }
        line
    }
}
