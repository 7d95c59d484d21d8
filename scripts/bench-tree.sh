#!/bin/bash
# A tree of many files over loopback ssh: haul, durable and not, against rsync -a and tar through the same ssh.
#
# Interleaved, each into an empty directory. rsync and tar sync nothing, so `+ sync` adds a sync of the file system
# to their time: what it takes until their copy is as safe as haul's.
#
# Environment: BENCH_ROUNDS (default 5), BENCH_FILES (default 20000), BENCH_DIR (default /var/tmp); BENCH_OLD: another
# build of haul that runs between, at both ends, in place of rsync and tar.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/hosts.sh

ROUNDS=${BENCH_ROUNDS:-5}
FILES=${BENCH_FILES:-20000}

need_root bench
[ -n "${BENCH_HAUL:-}" ] || cargo build --release --locked
HAUL=${BENCH_HAUL:-${CARGO_TARGET_DIR:-$PWD/target}/release/haul}

loopback_up "${BENCH_DIR:-/var/tmp}"
mkdir "$LAB/data" "$LAB/r"
# Sizes from 0 to 256 KiB, most of them small, as in source trees.
awk -v n="$FILES" 'BEGIN { srand(1); for (i = 0; i < n; i++) printf "%d %d\n", i, int(262144 * rand() ^ 6) }' |
    while read -r index size; do
        dir=$LAB/data/d$((index / 200))
        [ $((index % 200)) -ne 0 ] || mkdir "$dir"
        echo "$size $dir/f$index"
    done >"$LAB/list"
python3 - "$LAB/list" <<'END'
import os, sys
for line in open(sys.argv[1]):
    size, path = line.split()
    with open(path, "wb") as file:
        file.write(os.urandom(int(size)))
END
BYTES=$(awk '{ sum += $1 } END { printf "%.0f", sum }' "$LAB/list")

sink=$LAB/sink
haul_disk() { "$HAUL" cp -r -q --remote-haul "$HAUL" -e "$SSH" "$LAB/data/" "$FAR_ADDRESS:$sink"; }
haul_none() { "$HAUL" cp -r -q --remote-haul "$HAUL" --durability=none -e "$SSH" "$LAB/data/" "$FAR_ADDRESS:$sink"; }
old_disk() { HAUL=$BENCH_OLD haul_disk; }
old_none() { HAUL=$BENCH_OLD haul_none; }
rsync_a() { rsync -a -e "$SSH" "$LAB/data/" "$FAR_ADDRESS:$sink/"; }
rsync_sync() { rsync_a && sync -f "$sink"; }
tar_ssh() { tar -C "$LAB/data" -c . | $SSH "$FAR_ADDRESS" "tar -C $sink -x"; }
tar_sync() { tar_ssh && sync -f "$sink"; }
WAYS=(haul_disk haul_none rsync_a rsync_sync tar_ssh tar_sync)
[ -z "${BENCH_OLD:-}" ] || WAYS=(haul_disk old_disk haul_none old_none)

for round in $(seq "$ROUNDS"); do
    echo "round $round of $ROUNDS, load $(cut -d' ' -f1 /proc/loadavg)"
    for way in "${WAYS[@]}"; do
        rm -rf "$sink" && mkdir "$sink"
        # What the way before left unwritten is not this one's to pay for.
        sync -f "$sink"
        read -r wall cpu < <(timed "$way")
        awk -v f="$FILES" -v w="$wall" 'BEGIN { print f / w }' >>"$LAB/r/$way.files"
        awk -v b="$BYTES" -v w="$wall" 'BEGIN { print b / w / 1e6 }' >>"$LAB/r/$way.rate"
        echo "$cpu" >>"$LAB/r/$way.cpu"
        # Bytes only: tar keeps no nanoseconds.
        diff -r --brief "$LAB/data" "$sink"
    done
done

say "$FILES files, $((BYTES / 1000000)) MB, $(df --output=fstype "$LAB" | tail -n 1), over loopback ssh, $ROUNDS rounds"
printf '%-24s %-32s %-28s %s\n' "median (lowest .. highest)" "files/s" "MB/s" "CPU s"
label() {
    case $1 in
        haul_disk) echo "haul cp, durable" ;;
        haul_none) echo "haul cp, durability none" ;;
        old_disk) echo "other haul, durable" ;;
        old_none) echo "other haul, none" ;;
        rsync_a) echo "rsync -a" ;;
        rsync_sync) echo "rsync -a + sync" ;;
        tar_ssh) echo "tar c | ssh tar x" ;;
        tar_sync) echo "tar c | ssh tar x + sync" ;;
    esac
}
for way in "${WAYS[@]}"; do
    printf '%-24s %-32s %-28s %s\n' "$(label "$way")" "$(median <"$LAB/r/$way.files")" "$(median <"$LAB/r/$way.rate")" \
        "$(median <"$LAB/r/$way.cpu")"
done
