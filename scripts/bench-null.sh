#!/bin/bash
# The software itself: null:// to null:// over loopback, with 1 to 8 streams, beside what must be paid for each byte.
#
# Nothing is read and nothing written, but every byte is hashed, sealed, sent, opened and checked, as in any copy.
# zero:// fills its buffers too. The roofline is as in bench-roofline.sh: TCP alone, and haul's own streams with
# nothing behind them, in the same run, interleaved.
#
# Environment: BENCH_ROUNDS (default 5), BENCH_GIB (default 8).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/hosts.sh

ROUNDS=${BENCH_ROUNDS:-5}
GIB=${BENCH_GIB:-8}
STREAMS="1 2 4 8"

need_root bench
cargo build --release --locked
cargo build --release --locked -p haul-transport --example stream_rate
HAUL=${BENCH_HAUL:-${CARGO_TARGET_DIR:-$PWD/target}/release/haul}

loopback_up /dev/shm
mkdir "$LAB/r"
iperf3 -s -B 127.0.0.1 -p 25201 >/dev/null &
IPERF=$!
trap 'kill $IPERF 2>/dev/null || true; hosts_down' EXIT

# one NAME SOURCE STREAMS: a copy into nothing, its rate and processor time.
one() {
    "$HAUL" cp --json --streams "$3" -e "$SSH" "$2" "$FAR_ADDRESS:null://" 2>"$LAB/err" |
        tail -n 1 >"$LAB/haul.json" || { cat "$LAB/err" >&2; exit 1; }
    jq -r '.bytes / 1e9 / .seconds' "$LAB/haul.json" >>"$LAB/r/$1.rate"
    jq -r '(.cpu_seconds.near + (.cpu_seconds.far // 0)) / (.bytes / 1e9)' "$LAB/haul.json" >>"$LAB/r/$1.cpu"
}

for round in $(seq "$ROUNDS"); do
    echo "round $round of $ROUNDS, load $(cut -d' ' -f1 /proc/loadavg)"
    iperf3 -c 127.0.0.1 -p 25201 -n "${GIB}G" -l 1M -J >"$LAB/iperf.json"
    jq -r '.end | (.sum_received.bytes / 1e9) as $gb |
        ((.cpu_utilization_percent.host_total + .cpu_utilization_percent.remote_total) / 100 * .sum_received.seconds / $gb)
        ' "$LAB/iperf.json" >>"$LAB/r/tcp.cpu"
    jq -r '.end.sum_received.bits_per_second / 8e9' "$LAB/iperf.json" >>"$LAB/r/tcp.rate"
    target/release/examples/stream_rate 1 "$GIB" >"$LAB/streams"
    sed -nE 's/.*: ([0-9.]+) GB\/s, ([0-9.]+) CPU.*/\1/p' "$LAB/streams" >>"$LAB/r/bare.rate"
    sed -nE 's/.*: ([0-9.]+) GB\/s, ([0-9.]+) CPU.*/\2/p' "$LAB/streams" >>"$LAB/r/bare.cpu"
    for streams in $STREAMS; do
        one "null$streams" "null://${GIB}GiB" "$streams"
    done
    one zero4 "zero://${GIB}GiB" 4
done

say "null:// to null:// over loopback, $GIB GiB, $ROUNDS rounds, $(nproc) processors"
printf '%-34s %-28s %s\n' "median (lowest .. highest)" "GB/s" "CPU s/GB, both ends"
parts="tcp:TCP_(iperf3) bare:TLS_streams_(stream_rate)"
for streams in $STREAMS; do parts="$parts null$streams:haul,_null,_$streams""_streams"; done
for part in $parts zero4:haul,_zero,_4_streams; do
    name=${part#*:}
    printf '%-34s %-28s %s\n' "${name//_/ }" "$(median <"$LAB/r/${part%%:*}.rate")" "$(median <"$LAB/r/${part%%:*}.cpu")"
done
