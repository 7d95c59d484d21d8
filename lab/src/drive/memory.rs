//! Memory: what a client costs that is connected, and a file that it has open.
//!
//! In: a place, a count, the servers' processes. Out: by how much the resident memory of this process and of
//! the servers grew. Each client and each file has read or written something, so that all that is held for it
//! is there.

use std::fs;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use super::{Holding, Place, measure, said};

/// Most of what is held: descriptors and memory of this machine.
const COUNT_MAX: u64 = 60_000;
/// Bytes of each file.
const LEN: u64 = 4096;

/// Resident bytes of a process.
fn resident(pid: &str) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let kib = text.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next());
    let kib: u64 = kib.and_then(|kib| kib.parse().ok()).with_context(|| format!("no VmRSS in {path}"))?;
    Ok(kib << 10)
}

/// Of this process, and of all servers.
fn all(pids: &[u32]) -> anyhow::Result<(u64, u64)> {
    let servers = pids.iter().map(|pid| resident(&pid.to_string())).sum::<anyhow::Result<u64>>()?;
    Ok((resident("self")?, servers))
}

pub(super) fn hold(place: &Place<'_>, holding: Holding, count: u64, pids: &[u32]) -> anyhow::Result<Value> {
    ensure!((1..=COUNT_MAX).contains(&count), "{count} to hold: 1 to {COUNT_MAX}");
    let first = place.client()?;
    let mut file = first.create("first")?;
    file.write(0, place.content.bytes(0, 0, LEN))?;
    file.sync()?;
    file.ready()?;
    let before = all(pids)?;
    let (mut clients, mut files) = (Vec::new(), Vec::new());
    let measured = measure(|| {
        for at in 1..=count {
            match holding {
                Holding::Clients => {
                    let client = place.client()?;
                    let mut file = client.open("first")?;
                    file.ready()?;
                    let see = &mut |offset: u64, found: &[u8]| place.content.check(0, offset, found);
                    file.read(&[(0, LEN)], see)?;
                    drop(file);
                    clients.push(client);
                }
                Holding::Files => {
                    let mut file = first.create(&format!("file-{at}"))?;
                    file.write(0, place.content.bytes(at, 0, LEN))?;
                    let see = &mut |offset: u64, found: &[u8]| place.content.check(at, offset, found);
                    file.read(&[(0, LEN)], see)?;
                    files.push(file);
                }
            }
        }
        Ok(())
    })?;
    let after = all(pids)?;
    let mut said = said(&measured, 0);
    said["operations"] = json!(count);
    said["client_bytes"] = json!(after.0.saturating_sub(before.0));
    said["server_bytes"] = json!(after.1.saturating_sub(before.1));
    Ok(said)
}
