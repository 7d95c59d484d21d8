#!/bin/bash
# What protection costs beside what must be paid: null:// to null:// over loopback under each way to protect a copy.
#
# The roofline, in processor seconds per GB of both ends together: the kernel's TCP (iperf3 with as many flows), a
# digest at each end, and for TLS the cipher at each end, over bytes that lie in the cache (example costs). Nobody can
# have them cheaper who does these things; what comes from memory costs more, and is shown beside it. All in the same
# run, interleaved, for a shared machine changes.
#
# Environment: BENCH_ROUNDS (default 5), BENCH_GIB (default 8), BENCH_STREAMS (default 2).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/hosts.sh

ROUNDS=${BENCH_ROUNDS:-5}
GIB=${BENCH_GIB:-8}
STREAMS=${BENCH_STREAMS:-2}

need_root bench
cargo build --release --locked
cargo build --release --locked -p haul-transport --example costs
HAUL=${BENCH_HAUL:-${CARGO_TARGET_DIR:-$PWD/target}/release/haul}

loopback_up /dev/shm
mkdir "$LAB/r"
iperf3 -s -B 127.0.0.1 -p 25201 >/dev/null &
IPERF=$!
trap 'kill $IPERF 2>/dev/null || true; hosts_down' EXIT

# one NAME OPTION...: a copy of nothing, its rate and processor time.
one() {
    local name=$1
    shift
    "$HAUL" cp --json --streams "$STREAMS" "$@" -e "$SSH" "null://${GIB}GiB" "$FAR_ADDRESS:null://" 2>"$LAB/err" |
        tail -n 1 >"$LAB/haul.json" || { cat "$LAB/err" >&2; exit 1; }
    jq -r '.bytes / 1e9 / .seconds' "$LAB/haul.json" >>"$LAB/r/$name.rate"
    jq -r '(.cpu_seconds.near + (.cpu_seconds.far // 0)) / (.bytes / 1e9)' "$LAB/haul.json" >>"$LAB/r/$name.cpu"
}

# floor NAME DIGEST CIPHER: TCP, and twice the digest and once each half of the cipher, by this round's figures.
floor() {
    for column in 2 3; do
        awk -v tcp="$(tail -n 1 "$LAB/r/tcp.cpu")" -v digest="$2" -v cipher="$3" -v c=$column '
            $1 == digest { sum += 2 * $c }
            cipher && ($1 == "seal" || $1 == "open") { sum += $c }
            END { print tcp + sum }' "$LAB/costs" >>"$LAB/r/$1.floor$column"
    done
}

for round in $(seq "$ROUNDS"); do
    echo "round $round of $ROUNDS, load $(cut -d' ' -f1 /proc/loadavg)"
    iperf3 -c 127.0.0.1 -p 25201 -P "$STREAMS" -n "${GIB}G" -l 1M -J >"$LAB/iperf.json"
    jq -r '.end | (.sum_received.bytes / 1e9) as $gb |
        ((.cpu_utilization_percent.host_total + .cpu_utilization_percent.remote_total) / 100 * .sum_received.seconds / $gb)
        ' "$LAB/iperf.json" >>"$LAB/r/tcp.cpu"
    jq -r '.end.sum_received.bits_per_second / 8e9' "$LAB/iperf.json" >>"$LAB/r/tcp.rate"
    target/release/examples/costs 1 >"$LAB/costs"
    while read -r what near far; do
        echo "$near" >>"$LAB/r/$what.near"
        echo "$far" >>"$LAB/r/$what.far"
    done <"$LAB/costs"
    one tls
    floor tls blake3 1
    one xxh3 --digest=xxh3
    floor xxh3 xxh3 1
    one integrity --protect=integrity
    floor integrity blake3 0
done

say "null:// to null:// over loopback, $GIB GiB, $STREAMS streams, $ROUNDS rounds, $(nproc) processors"
echo "What must be paid at one end, CPU s/GB, median (lowest .. highest):"
printf '%-22s %-26s %s\n' "" "in the cache" "from memory"
for what in blake3 xxh3 seal open; do
    printf '%-22s %-26s %s\n' "$what" "$(median <"$LAB/r/$what.near")" "$(median <"$LAB/r/$what.far")"
done
printf '\n%-22s %-22s %-24s %-22s %-24s %s\n' "" "GB/s" "CPU s/GB, both ends" "roofline, in cache" "haul / roofline" "roofline, from memory"
printf '%-22s %-22s %s\n' "TCP (iperf3)" "$(median <"$LAB/r/tcp.rate")" "$(median <"$LAB/r/tcp.cpu")"
for part in "tls:tls, blake3" "xxh3:tls, xxh3" "integrity:integrity, blake3"; do
    name=${part%%:*}
    printf '%-22s %-22s %-24s %-22s %-24s %s\n' "${part#*:}" "$(median <"$LAB/r/$name.rate")" "$(median <"$LAB/r/$name.cpu")" \
        "$(median <"$LAB/r/$name.floor2")" "$(paste "$LAB/r/$name.cpu" "$LAB/r/$name.floor2" | awk '{ print $1 / $2 }' | median)" \
        "$(median <"$LAB/r/$name.floor3")"
done
