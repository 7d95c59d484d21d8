#!/bin/bash
# The four ordering policies at 1 to 32 threads, read and write, direct, on one scratch file.
#
# As in XDD's papers, a thread has one request in flight (threads = depth). Rounds are
# interleaved: each round measures every combination once, for a shared machine changes. The sync is within the
# time of a write.
#
# Environment: DIR (default: the directory of builds, where the scratch file of SIZE bytes lies meanwhile), SIZE
# (default 1 GiB, whole objects of 4 MiB), RUNS (default 5, at least 5 for a figure that is to be quoted),
# REQUEST_SIZE (default 1 MiB), THREADS (default "1 2 4 8 16 32"), IO (direct or buffered), ENGINE (auto).
set -euo pipefail
cd "$(dirname "$0")/.."

DIR=${DIR:-target}
SIZE=${SIZE:-1073741824}
RUNS=${RUNS:-5}
REQUEST_SIZE=${REQUEST_SIZE:-1048576}
THREADS=${THREADS:-"1 2 4 8 16 32"}
IO=${IO:-direct}
ENGINE=${ENGINE:-auto}
ORDERS="strict serial loose none"

cargo build --quiet --release --locked -p haul-storage --example lane_rate
RATE=target/release/examples/lane_rate
mkdir -p "$DIR"
free=$(df --output=avail -B1 "$DIR" | tail -n 1)
if [ "$free" -lt $((SIZE + (1 << 28))) ]; then
    echo "bench-order: $DIR has $free bytes free, and a file of $SIZE bytes is needed: set DIR or SIZE" >&2
    exit 1
fi
WORK=$(mktemp -d "$DIR/bench-order.XXXXXX")
trap 'rm -rf "$WORK"' EXIT

measure() { # OPERATION THREADS ORDER
    if [ "$1" = read ] && [ "$IO" = buffered ]; then
        # What the page cache has says nothing about storage.
        dd if="$WORK/file" iflag=nocache count=0 status=none
    fi
    "$RATE" "$1" "$WORK/file" "$SIZE" "$2" "$2" "$REQUEST_SIZE" "$3" "$IO" "$ENGINE"
}

# All blocks are there and written before the first measurement.
measure write 4 none >"$WORK/first"
for run in $(seq "$RUNS"); do
    echo "round $run of $RUNS, load $(cut -d' ' -f1 /proc/loadavg)" >&2
    for operation in write read; do
        for threads in $THREADS; do
            for order in $ORDERS; do
                measure "$operation" "$threads" "$order" >"$WORK/one"
                jq -r '[.rate / 1e6, .cpu_seconds] | @tsv' "$WORK/one" >>"$WORK/$operation.$threads.$order"
            done
        done
    done
done

echo "engine $(jq -r .engine "$WORK/first"), $IO, $SIZE bytes in requests of $REQUEST_SIZE, $RUNS rounds"
echo "MB/s: median (smallest to largest); CPU seconds per GB: median"
for operation in read write; do
    printf '\n%-5s %8s' "$operation" threads
    for order in $ORDERS; do printf ' | %-32s' "$order"; done
    printf '\n'
    for threads in $THREADS; do
        printf '%-5s %8s' "" "$threads"
        for order in $ORDERS; do
            results=$WORK/$operation.$threads.$order
            rate=$(cut -f1 "$results" | sort -g | awk '{ v[NR] = $1 } END {
                printf "%.0f (%.0f to %.0f)", NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2, v[1], v[NR] }')
            cpu=$(cut -f2 "$results" | sort -g | awk -v s="$SIZE" '{ v[NR] = $1 * 1e9 / s } END {
                printf "%.3f", NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }')
            printf ' | %-24s %-7s' "$rate" "$cpu"
        done
        printf '\n'
    done
done
