//! A guest that carries the packets of a network: a bridge of two devices, each with netem on what goes out
//! of it.
//!
//! In: two namespaces and a path. Out: `wan0` in each, and the guest between them in the background, written
//! down in the network's state.
//! Left out: jitter (netem's reorders packets, the emulator's does not), several NICs, changes at run time.
//!
//! What is netem's own way, and differs from the emulator's: loss is per packet as the guest sees it, so that
//! a super-packet of TCP is lost whole; the buffer is counted in packets ([`limit`]).

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::guest::{Guest, MEMORY_MAX, Order, ended};
use super::script;
use crate::wan::line::Path;
use crate::wan::netns;
use crate::wan::state::{self, WanState};

/// How long a guest may take to come up, on a machine that does something else.
pub const BOOT_MAX: Duration = Duration::from_secs(60);
/// What a packet in netem's queue is taken to hold on the mean, when bytes are made packets; they hold 64 to
/// 65,535.
const PACKET_MEAN: u64 = 16 << 10;
/// So that a thin path holds pings and acknowledgements.
const PACKETS_MIN: u64 = 1_000;
/// What a packet takes of the guest's memory, however small it is: the driver reads into buffers of this
/// size.
const PACKET_MEMORY: u64 = 68 << 10;
const MEMORY_BASE: u64 = 192 << 20;
/// Ethernet's header, which netem counts, and what it does not: checksum, preamble and gap.
const HEADER: u64 = 14;
const UNCOUNTED: u64 = 24;

/// Packets that netem may hold, on their way and waiting.
fn limit(path: &Path) -> u64 {
    path.on_the_way().saturating_add(path.buffer) / PACKET_MEAN + PACKETS_MIN
}

/// What netem is told, so that a full segment costs what it costs on a cable.
fn rate(path: &Path, mtu: u32) -> u64 {
    let counted = u64::from(mtu) + HEADER;
    (u128::from(path.rate) * u128::from(counted) / u128::from(counted + UNCOUNTED)) as u64
}

/// Arguments of `tc qdisc add dev DEVICE root`.
fn netem(path: &Path, mtu: u32) -> String {
    // tc knows nothing shorter than this; never less than was asked for.
    let delay = path.delay_ns.div_ceil(1_000);
    let mut text = format!("netem limit {} delay {delay}us rate {}bit", limit(path), rate(path, mtu));
    if path.loss > 0.0 {
        text += &format!(" loss random {:.7}%", path.loss * 100.0);
    }
    text
}

fn init(path: &Path, mtu: u32) -> anyhow::Result<String> {
    let netem = netem(path, mtu);
    Ok(format!(
        "{prelude}{modules}{each}echo taps >&3\nread -r word <&3\n[ \"$word\" = go ] || fail \"no go but $word\"\n\
         try /run/modprobe bridge\n\
         [ -d /proc/sys/net/ipv6 ] && echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6\n\
         [ -d /proc/sys/net/ipv6 ] && echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6\n\
         try ip link add br0 type bridge mcast_snooping 0 stp_state 0 forward_delay 0\n\
         for i in 0 1; do\n\
             try tc qdisc add dev vec$i root {netem}\n\
             try ip link set vec$i master br0\n\
         done\n\
         try ip link set br0 mtu {mtu} up\n\
         echo ready >&3\nexec sleep infinity\n",
        prelude = script::prelude(&state::dir()?),
        modules = script::module("sch_netem"),
        // Without segmentation offload a guest moves a tenth. The rest that `ethtool` says is of no use here.
        each = format_args!(
            "for i in 0 1; do\n\
                 try ip link set vec$i mtu {mtu} txqueuelen 20000 up\n\
                 try ethtool -K vec$i sg on tso on gso on\n\
             done\n"
        ),
    ))
}

/// Starts the guest and joins the namespaces by it.
///
/// # Errors
/// If a guest cannot carry this path, or does not come up; its own words are in the error.
pub fn start(state: &mut WanState, path: &Path, mtu: u32) -> anyhow::Result<()> {
    if path.jitter_ns > 0 || !path.up || state.nics != 1 {
        bail!("a guest kernel carries one NIC that is up and has no jitter: its netem would reorder packets");
    }
    let memory = MEMORY_BASE + limit(path) * PACKET_MEMORY;
    if memory > MEMORY_MAX {
        bail!(
            "a guest for this path would take {} MiB, more than {}; lower rate, delay or buffer",
            memory >> 20,
            MEMORY_MAX >> 20
        );
    }
    let log = state::file(&state.name, "log")?;
    let file = fs::File::create(&log).with_context(|| format!("make {}", log.display()))?;
    // It is written down before it gets anything to do; if we die in between, it hears nothing and ends.
    let mut guest = Guest::start(true, file.into())?;
    state.process = guest.process.clone();
    state.update()?;
    guest.boot(&Order {
        name: format!("haul-lab-{}", state.name),
        memory,
        init: init(path, mtu)?,
        taps: state.namespaces.iter().map(|namespace| [namespace.clone(), netns::device(0)]).collect(),
        stays: true,
        ..Order::default()
    })?;
    let said = guest.hear(Instant::now() + BOOT_MAX);
    match said.as_ref().map(|line| line.as_deref()) {
        Ok(Some("ready")) => {
            guest.leave();
            Ok(())
        }
        other => {
            let why = match other {
                Ok(Some(line)) => line.to_owned(),
                Ok(None) => format!("it said nothing for {} s", BOOT_MAX.as_secs()),
                Err(error) => format!("{error:#}"),
            };
            let log = fs::read_to_string(&log).unwrap_or_default();
            bail!("the guest that should carry the packets did not come up: {why}; {}", ended(&log))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: netem is told what the path is, in its own units.
    /// Method: one path, by hand: 1514 of 1538 bytes are counted; 80 kB on the way and 160 kB that wait.
    #[test]
    fn kernel_netem_is_told_the_path() {
        let path = Path {
            delay_ns: 63_999_001,
            jitter_ns: 0,
            rate: 1_538_000_000,
            loss: 1e-4,
            buffer: 1_638_400,
            up: true,
        };
        let limit = (path.on_the_way() + 1_638_400) / 16_384 + 1_000;
        let wanted = format!("netem limit {limit} delay 64000us rate 1514000000bit loss random 0.0100000%");
        assert_eq!(netem(&path, 1500), wanted);
    }
}
