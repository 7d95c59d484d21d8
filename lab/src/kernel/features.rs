//! What the guest's kernel has: a guest loads each module of a list, and says what the kernel then knows.
//!
//! In: nothing. Out: JSON; `loaded`, `built in` or why not, for each.

use serde_json::{Value, json};

use super::{Outcome, Task};

/// What long networks, storage and their checks could want.
const MODULES: [&str; 36] = [
    "sch_netem",
    "sch_fq",
    "sch_fq_codel",
    "sch_etf",
    "sch_tbf",
    "bridge",
    "veth",
    "ifb",
    "mptcp_diag",
    "tcp_bbr",
    "tcp_cubic",
    "tcp_htcp",
    "tcp_highspeed",
    "tcp_illinois",
    "tcp_scalable",
    "tls",
    "nfsv3",
    "nfsv4",
    "nfs_layout_flexfiles",
    "nfs_layout_nfsv41_files",
    "blocklayoutdriver",
    "nfsd",
    "ceph",
    "orangefs",
    "9p",
    "cifs",
    "fuse",
    "virtiofs",
    "xfs",
    "ext4",
    "btrfs",
    "overlay",
    "dm_delay",
    "dm_flakey",
    "null_blk",
    "rdma_rxe",
];
/// Switches that no module's name shows.
const SWITCHES: [&str; 5] = ["NFSD_PNFS", "NFSD_FLEXFILELAYOUT", "NFSD_V4", "IO_URING", "MPTCP"];

fn script() -> String {
    format!(
        "echo \"boot_seconds $(cut -d' ' -f1 /proc/uptime)\"\n\
         for m in {}; do\n\
             if grep -q \"/$m.ko\" /usr/lib/uml/modules/$(uname -r)/modules.builtin; then echo \"module $m built-in\"\n\
             elif why=$(/run/modprobe $m 2>&1); then echo \"module $m loaded\"\n\
             else echo \"module $m absent\"; fi\n\
         done\n\
         /run/modprobe configs\n\
         for s in {}; do\n\
             echo \"switch $s $(zcat /proc/config.gz | sed -n \"s/^CONFIG_$s=//p\")\"\n\
         done\n\
         echo \"release $(uname -r)\"\n\
         echo \"congestion $(cat /proc/sys/net/ipv4/tcp_available_congestion_control)\"\n\
         echo \"filesystems $(awk '{{print $NF}}' /proc/filesystems | tr '\\n' ' ')\"\n\
         echo \"processors $(grep -c ^processor /proc/cpuinfo)\"\n",
        MODULES.join(" "),
        SWITCHES.join(" ")
    )
}

/// Boots a guest to ask.
pub fn ask(mut task: Task) -> anyhow::Result<Value> {
    task.script = Some(script());
    let mut said = Vec::new();
    match task.run(&mut said, &mut std::io::sink())? {
        Outcome::Exited(0) => Ok(understand(&String::from_utf8_lossy(&said))),
        other => anyhow::bail!("the guest could not say what it has: {other:?}"),
    }
}

fn understand(text: &str) -> Value {
    let mut all = json!({ "modules": {}, "config": {} });
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("module"), Some(name)) => all["modules"][name] = json!(words.next()),
            (Some("switch"), Some(name)) => all["config"][name] = json!(words.next().unwrap_or("n")),
            (Some(key @ ("release" | "processors" | "boot_seconds")), Some(value)) => {
                all[key] = value.parse::<f64>().map_or(json!(value), |number| json!(number));
            }
            (Some(key @ ("congestion" | "filesystems")), Some(first)) => {
                all[key] = std::iter::once(first).chain(words).collect();
            }
            _ => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what a guest says is understood; what it does not say is absent, not guessed.
    /// Method: a few of its lines.
    #[test]
    fn kernel_features_are_understood() {
        let text = "module nfsd loaded\nmodule rdma_rxe absent\nswitch MPTCP \nswitch NFSD_PNFS y\nrelease 6.1.9\nx\n\
                    congestion cubic bbr\nboot_seconds 1.5\n";
        let wanted = json!({
            "modules": { "nfsd": "loaded", "rdma_rxe": "absent" },
            "config": { "MPTCP": "n", "NFSD_PNFS": "y" },
            "release": "6.1.9", "congestion": ["cubic", "bbr"], "boot_seconds": 1.5,
        });
        assert_eq!(understand(text), wanted);
    }
}
