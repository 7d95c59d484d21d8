#!/bin/bash
# Most resident memory of both ends: one big file, a tree, and a million empty files.
#
# Read from the kernel (VmHWM) while each end runs, and from haul's own summary, so that the two can be held
# against each other.
#
# Environment: BENCH_EMPTY (default 1000000 files), BENCH_MIB (default 4096), BENCH_DIR (default /dev/shm).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/hosts.sh

EMPTY=${BENCH_EMPTY:-1000000}
MIB=${BENCH_MIB:-4096}

need_root bench
[ -n "${BENCH_HAUL:-}" ] || cargo build --release --locked
HAUL=${BENCH_HAUL:-${CARGO_TARGET_DIR:-$PWD/target}/release/haul}

loopback_up "${BENCH_DIR:-/dev/shm}"

peak() { sed -nE 's/^VmHWM:\s+([0-9]+) kB/\1/p' "/proc/$1/status" 2>/dev/null || true; }

# measure NAME OPTIONS...: copies $LAB/data and prints a line.
measure() {
    local name=$1 near_peak=0 far_peak=0 kib process run
    shift
    rm -rf "$LAB/sink" && mkdir "$LAB/sink"
    "$HAUL" cp -r --json "$@" -e "$SSH" "$LAB/data" "$FAR_ADDRESS:$LAB/sink" >"$LAB/out" 2>"$LAB/err" &
    run=$!
    while kill -0 "$run" 2>/dev/null; do
        kib=$(peak "$run")
        [ "${kib:-0}" -le "$near_peak" ] || near_peak=$kib
        for process in $(far_hauls); do
            kib=$(peak "$process")
            [ "${kib:-0}" -le "$far_peak" ] || far_peak=$kib
        done
        sleep 0.1
    done
    wait "$run" || { cat "$LAB/err" >&2; exit 1; }
    printf '%-28s %8s %8s   %s\n' "$name" "$((near_peak / 1024))" "$((far_peak / 1024))" \
        "$(tail -n 1 "$LAB/out" | jq -r '"\(.rss.near / 1048576 | floor) \(.rss.far // 0 | . / 1048576 | floor), \(.seconds) s, \(.files) files"')"
}

say "most resident memory, MiB: near, far by the kernel; near, far by haul"
mkdir "$LAB/data"
dd if=/dev/urandom of="$LAB/data/big" bs=1M count="$MIB" status=none
measure "one file of $MIB MiB" --durability=none
rm "$LAB/data/big"

cp -a /usr/include "$LAB/data/"
measure "/usr/include"
rm -rf "$LAB/data"

mkdir "$LAB/data"
for dir in $(seq $(((EMPTY + 9999) / 10000))); do
    mkdir "$LAB/data/$dir"
    (cd "$LAB/data/$dir" && seq -f 'file%.0f' $((EMPTY < 10000 ? EMPTY : 10000)) | xargs touch)
done
measure "$EMPTY empty files" --durability=none
