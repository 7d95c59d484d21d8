#!/bin/bash
# One big file, memory to memory over loopback, against what each part of the path costs on this machine.
#
# The roofline is what must be paid for each byte, in processor seconds per GB of both ends together: the
# kernel's TCP (iperf3), the digest at each end (b3sum, one thread), and haul's own streams with nothing behind
# them (TLS and digest, example stream_rate). All in the same run, interleaved, for a shared machine changes.
#
# Environment: BENCH_ROUNDS (default 5, at least 5 for a figure that is to be quoted), BENCH_MIB (default 4096).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/hosts.sh

ROUNDS=${BENCH_ROUNDS:-5}
MIB=${BENCH_MIB:-4096}

need_root bench
cargo build --release --locked
cargo build --release --locked -p haul-transport --example stream_rate
HAUL=${BENCH_HAUL:-${CARGO_TARGET_DIR:-$PWD/target}/release/haul}

loopback_up /dev/shm
GB=$(awk -v m="$MIB" 'BEGIN { print m * 1048576 / 1e9 }')
free=$(df --output=avail -B1M /dev/shm | tail -n 1)
if [ "$free" -lt $((2 * MIB + 512)) ]; then
    echo "bench-roofline: /dev/shm has $free MiB free, and two files of $MIB MiB are needed" >&2
    exit 1
fi
dd if=/dev/urandom of="$LAB/source" bs=1M count="$MIB" status=none
mkdir "$LAB/sink" "$LAB/r"

iperf3 -s -B 127.0.0.1 -p 25201 >/dev/null &
IPERF=$!
trap 'kill $IPERF 2>/dev/null || true; hosts_down' EXIT

for round in $(seq "$ROUNDS"); do
    echo "round $round of $ROUNDS, load $(cut -d' ' -f1 /proc/loadavg)"

    # The processor time of both ends, for as many streams as haul uses by default at most.
    iperf3 -c 127.0.0.1 -p 25201 -n "${MIB}M" -l 1M -J >"$LAB/iperf.json"
    jq -r '.end | (.sum_received.bytes / 1e9) as $gb |
        ((.cpu_utilization_percent.host_total + .cpu_utilization_percent.remote_total) / 100 * .sum_received.seconds / $gb)
        ' "$LAB/iperf.json" >>"$LAB/r/tcp.cpu"
    jq -r '.end.sum_received.bits_per_second / 8e9' "$LAB/iperf.json" >>"$LAB/r/tcp.rate"

    read -r wall cpu < <(timed b3sum --num-threads 1 --no-mmap "$LAB/source")
    awk -v c="$cpu" -v g="$GB" 'BEGIN { print c / g }' >>"$LAB/r/digest.cpu"
    awk -v w="$wall" -v g="$GB" 'BEGIN { print g / w }' >>"$LAB/r/digest.rate"

    target/release/examples/stream_rate 1 4 >"$LAB/streams"
    sed -nE 's/.*: ([0-9.]+) GB\/s, ([0-9.]+) CPU.*/\1/p' "$LAB/streams" >>"$LAB/r/streams.rate"
    sed -nE 's/.*: ([0-9.]+) GB\/s, ([0-9.]+) CPU.*/\2/p' "$LAB/streams" >>"$LAB/r/streams.cpu"

    rm -rf "$LAB/sink" && mkdir "$LAB/sink"
    "$HAUL" cp --json --durability=none -e "$SSH" "$LAB/source" "$FAR_ADDRESS:$LAB/sink/" 2>"$LAB/err" |
        tail -n 1 >"$LAB/haul.json" || { cat "$LAB/err" >&2; exit 1; }
    cmp "$LAB/source" "$LAB/sink/source"
    jq -r '.bytes / 1e9 / .seconds' "$LAB/haul.json" >>"$LAB/r/haul.rate"
    jq -r '(.cpu_seconds.near + (.cpu_seconds.far // 0)) / (.bytes / 1e9)' "$LAB/haul.json" >>"$LAB/r/haul.cpu"
done

say "one file of $MIB MiB, /dev/shm to /dev/shm over loopback, durability none, $ROUNDS rounds, $(nproc) processors"
printf '%-34s %-28s %s\n' "median (lowest .. highest)" "GB/s" "CPU s/GB, both ends"
for part in "tcp:TCP (iperf3)" "digest:BLAKE3, one end (b3sum)" "streams:TLS streams (stream_rate)" "haul:haul cp"; do
    printf '%-34s %-28s %s\n' "${part#*:}" "$(median <"$LAB/r/${part%%:*}.rate")" "$(median <"$LAB/r/${part%%:*}.cpu")"
done
paste "$LAB/r/streams.cpu" "$LAB/r/haul.cpu" | awk '{ print $2 / $1 }' |
    { printf 'haul against its bare streams: '; median; echo " times the CPU"; }
echo "last run: $(jq -c '{streams, protect, limited_by, stages, rss}' "$LAB/haul.json")"
