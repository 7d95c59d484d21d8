#!/bin/bash
# Disk to disk on one machine: one large file from one directory to another of the same file system, durable.
#
# Limit: fio that reads one file and writes another at the same time (io_uring, direct, 4 MiB, 16 in flight each);
# the slower of its two rates is what a copy could reach. Peers: cp and sync, dd with direct I/O on both sides,
# rsync and sync. Caches are dropped before each; interleaved, for a shared machine changes.
#
# Environment: BENCH_ROUNDS (default 5), BENCH_MIB (default 4096), BENCH_DIR (default target/bench-disk).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/hosts.sh

ROUNDS=${BENCH_ROUNDS:-5}
MIB=${BENCH_MIB:-4096}
DIR=${BENCH_DIR:-$PWD/target/bench-disk}

need_root bench
cargo build --release --locked
HAUL=${BENCH_HAUL:-${CARGO_TARGET_DIR:-$PWD/target}/release/haul}

LAB=$DIR
rm -rf "$DIR" && mkdir -p "$DIR/from" "$DIR/to" "$DIR/r"
trap 'rm -rf "$DIR"' EXIT
free=$(df --output=avail -B1M "$DIR" | tail -n 1)
if [ "$free" -lt $((3 * MIB + 1024)) ]; then
    echo "bench-disk: $DIR has $free MiB free, and three files of $MIB MiB are needed" >&2
    exit 1
fi
dd if=/dev/urandom of="$DIR/from/data" bs=1M count="$MIB" conv=fsync status=none

fresh() {
    rm -f "$DIR"/to/* && sync -f "$DIR"
    echo 1 >/proc/sys/vm/drop_caches
}

# peer NAME COMMAND..: its rate in MB/s and processor seconds per GB.
peer() {
    local name=$1 wall cpu
    shift
    fresh
    read -r wall cpu < <(timed "$@")
    awk -v w="$wall" -v m="$MIB" 'BEGIN { print m * 1.048576 / w }' >>"$DIR/r/$name.rate"
    awk -v c="$cpu" -v m="$MIB" 'BEGIN { print c / (m * 1.048576 / 1000) }' >>"$DIR/r/$name.cpu"
    cmp "$DIR/from/data" "$DIR/to/data"
}

fio_both() {
    fresh
    fio --output-format=json --ioengine=io_uring --direct=1 --bs=4M --iodepth=16 --size="${MIB}M" --group_reporting=0 \
        --name=read --rw=read --filename="$DIR/from/data" \
        --name=write --rw=write --filename="$DIR/to/data" --end_fsync=1 --fallocate=none >"$DIR/fio.json"
    jq -r '[.jobs[0].read.bw_bytes, .jobs[1].write.bw_bytes] | min / 1e6' "$DIR/fio.json" >>"$DIR/r/fio.rate"
    jq -r --argjson mib "$MIB" '[.jobs[] | (.usr_cpu + .sys_cpu) / 100 * .job_runtime / 1000] | add / ($mib * 1.048576 / 1000)' \
        "$DIR/fio.json" >>"$DIR/r/fio.cpu"
    jq -r '.jobs[0].read.bw_bytes / 1e6' "$DIR/fio.json" >>"$DIR/r/fior.rate"
    jq -r '.jobs[1].write.bw_bytes / 1e6' "$DIR/fio.json" >>"$DIR/r/fiow.rate"
}

haul_cp() { "$HAUL" cp -q "$@" "$DIR/from/data" "$DIR/to/"; }
cp_sync() { cp "$DIR/from/data" "$DIR/to/data" && sync "$DIR/to/data"; }
dd_direct() { dd if="$DIR/from/data" of="$DIR/to/data" bs=16M iflag=direct oflag=direct conv=fsync status=none; }
rsync_sync() { rsync --inplace --whole-file "$DIR/from/data" "$DIR/to/data" && sync "$DIR/to/data"; }
export HAUL DIR
export -f haul_cp cp_sync dd_direct rsync_sync

for round in $(seq "$ROUNDS"); do
    echo "round $round of $ROUNDS, load $(cut -d' ' -f1 /proc/loadavg)"
    fio_both
    peer haul bash -c haul_cp
    peer direct bash -c 'haul_cp --io=direct'
    peer buffered bash -c 'haul_cp --io=buffered'
    peer cp bash -c cp_sync
    peer dd bash -c dd_direct
    peer rsync bash -c rsync_sync
    paste "$DIR/r/haul.rate" "$DIR/r/fio.rate" | tail -n 1 | awk '{ print $1 / $2 }' >>"$DIR/r/ratio"
    paste "$DIR/r/direct.rate" "$DIR/r/fio.rate" | tail -n 1 | awk '{ print $1 / $2 }' >>"$DIR/r/ratio_direct"
done

say "one file of $MIB MiB, disk to disk, durable, caches dropped, $ROUNDS rounds, $(nproc) processors"
printf '%-34s %-28s %s\n' "median (lowest .. highest)" "MB/s" "CPU s/GB"
for part in "fio:fio, read and write at once" "haul:haul cp" "direct:haul cp --io=direct" "buffered:haul cp --io=buffered" \
    "cp:cp + sync" "dd:dd direct, 16 MiB" "rsync:rsync + sync"; do
    printf '%-34s %-28s %s\n' "${part#*:}" "$(median <"$DIR/r/${part%%:*}.rate")" "$(median <"$DIR/r/${part%%:*}.cpu")"
done
printf 'fio alone side by side: read %s, write %s MB/s\n' "$(median <"$DIR/r/fior.rate")" "$(median <"$DIR/r/fiow.rate")"
printf 'haul cp / fio: %s; haul cp --io=direct / fio: %s\n' "$(median <"$DIR/r/ratio")" "$(median <"$DIR/r/ratio_direct")"
