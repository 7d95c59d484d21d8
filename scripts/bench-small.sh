#!/bin/bash
# Small files of one size, from memory to a file system of its own: haul, durable and not, against tar, rsync -a and
# cp -a, each without and with a sync of the file system behind it.
#
# Interleaved, each into an empty directory; ext4 and XFS on loop devices, on one host and through ssh to this host. The
# others sync nothing, so `+ sync` is what it takes until their copy is as safe as haul's. CPU seconds are those of both
# ends; what the kernel writes back for others is nobody's.
#
# Environment: BENCH_ROUNDS (default 5), BENCH_SIZES (bytes, default "0 1024 4096 65536 262144"), BENCH_FILES (of each size,
# default 20000), BENCH_BYTES (at most so many in all, of which there are fewer files then; default 268435456),
# BENCH_FS (default "ext4 xfs"), BENCH_FROM ("local ssh"), BENCH_DIR (where the devices lie, default /var/tmp);
# BENCH_OLD: another build of haul that runs between, at both ends, in place of the others.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/hosts.sh

ROUNDS=${BENCH_ROUNDS:-5}
SIZES=${BENCH_SIZES:-0 1024 4096 65536 262144}
FILES=${BENCH_FILES:-20000}
BYTES=${BENCH_BYTES:-268435456}
SYSTEMS=${BENCH_FS:-ext4 xfs}
FROM=${BENCH_FROM:-local ssh}
# Files of one directory, as in the lab.
DIR_LEN=1000

need_root bench
[ -n "${BENCH_HAUL:-}" ] || cargo build --release --locked
HAUL=$(readlink -f "${BENCH_HAUL:-${CARGO_TARGET_DIR:-$PWD/target}/release/haul}")
[ -z "${BENCH_OLD:-}" ] || BENCH_OLD=$(readlink -f "$BENCH_OLD")

MOUNTED=()
MEMORY=""
down() {
    local at
    for at in "${MOUNTED[@]}"; do
        umount "$at" 2>/dev/null || true
    done
    hosts_down
    [ -z "$MEMORY" ] || rm -rf "$MEMORY"
}
loopback_up "${BENCH_DIR:-/var/tmp}"
trap down EXIT
MEMORY=$(mktemp -d /dev/shm/haul-XXXXXX)
mkdir "$LAB/r"

data=$MEMORY/data
# make_data SIZE FILES: random bytes, three days old.
make_data() {
    rm -rf "$data"
    python3 - "$data" "$1" "$2" "$DIR_LEN" <<'END'
import os, sys, time
root, size, files, dir_len = sys.argv[1], *map(int, sys.argv[2:])
then = time.time() - 3 * 86400
for index in range(files):
    where = f"{root}/d{index // dir_len}"
    os.makedirs(where, exist_ok=True)
    path = f"{where}/f{index}"
    with open(path, "wb") as file:
        file.write(os.urandom(size))
    os.utime(path, (then, then))
END
}

# make_disk KIND: a file system of its own, at $LAB/KIND.
make_disk() {
    truncate -s 4G "$LAB/$1.img"
    case $1 in
        ext4) mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "$LAB/$1.img" ;;
        *) "mkfs.$1" -q -f "$LAB/$1.img" ;;
    esac
    mkdir "$LAB/$1"
    mount -o loop "$LAB/$1.img" "$LAB/$1"
    MOUNTED+=("$LAB/$1")
}

haul_to() { "$1" cp -r -q --remote-haul "$1" "${@:2}" -e "$SSH" "$data/" "$to"; }
haul_disk() { haul_to "$HAUL"; }
haul_none() { haul_to "$HAUL" --durability=none; }
old_disk() { haul_to "$BENCH_OLD"; }
old_none() { haul_to "$BENCH_OLD" --durability=none; }
rsync_a() {
    case $from in
        ssh) rsync -a -e "$SSH" "$data/" "$to/" ;;
        *) rsync -a "$data/" "$to/" ;;
    esac
}
tar_x() {
    case $from in
        ssh) tar -C "$data" -c . | $SSH "$FAR_ADDRESS" "tar -C $sink -x" ;;
        *) tar -C "$data" -c . | tar -C "$sink" -x ;;
    esac
}
cp_a() { cp -a "$data/." "$sink"; }
rsync_sync() { rsync_a && sync -f "$sink"; }
tar_sync() { tar_x && sync -f "$sink"; }
cp_sync() { cp_a && sync -f "$sink"; }

# CPU seconds of sshd and of all that it started and that ended.
far_cpu() { awk -v hz="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); print ($12 + $13 + $14 + $15) / hz }' "/proc/$SSHD_PID/stat"; }

ways_of() {
    if [ -n "${BENCH_OLD:-}" ]; then
        echo haul_disk old_disk haul_none old_none
    else
        echo haul_disk haul_none tar_x tar_sync rsync_a rsync_sync
        [ "$1" = ssh ] || echo cp_a cp_sync
    fi
}

label() {
    case $1 in
        haul_disk) echo "haul cp, durable" ;;
        haul_none) echo "haul cp, durability none" ;;
        old_disk) echo "other haul, durable" ;;
        old_none) echo "other haul, none" ;;
        rsync_a) echo "rsync -a" ;;
        rsync_sync) echo "rsync -a + sync" ;;
        tar_x) echo "tar c | tar x" ;;
        tar_sync) echo "tar c | tar x + sync" ;;
        cp_a) echo "cp -a" ;;
        cp_sync) echo "cp -a + sync" ;;
    esac
}

for system in $SYSTEMS; do
    make_disk "$system"
done
for size in $SIZES; do
    files=$FILES
    [ "$size" -eq 0 ] || [ $((BYTES / size)) -ge "$files" ] || files=$((BYTES / size))
    make_data "$size" "$files"
    for system in $SYSTEMS; do
        sink=$LAB/$system/sink
        for from in $FROM; do
            to=$sink
            [ "$from" = local ] || to=$FAR_ADDRESS:$sink
            rm -f "$LAB"/r/*
            for round in $(seq "$ROUNDS"); do
                for way in $(ways_of "$from"); do
                    rm -rf "$sink" && mkdir "$sink"
                    # What the way before left unwritten is not this one's to pay for.
                    sync -f "$sink"
                    before=$(far_cpu)
                    read -r wall cpu < <(timed "$way")
                    # Until sshd has seen the end of what it started.
                    sleep 0.1
                    far=$(far_cpu)
                    awk -v f="$files" -v w="$wall" 'BEGIN { print f / w }' >>"$LAB/r/$way.files"
                    echo "$wall" >>"$LAB/r/$way.wall"
                    awk -v c="$cpu" -v a="$before" -v b="$far" 'BEGIN { print c + b - a }' >>"$LAB/r/$way.cpu"
                    # Bytes only: tar keeps no nanoseconds.
                    [ "$round" -ne 1 ] || diff -r --brief "$data" "$sink"
                done
            done
            say "$files files of $size bytes, memory to $system, $from, $ROUNDS rounds, load $(cut -d' ' -f1 /proc/loadavg)"
            printf '%-26s %-28s %-30s %s\n' "median (lowest .. highest)" "s" "files/s" "CPU s"
            for way in $(ways_of "$from"); do
                printf '%-26s %-28s %-30s %s\n' "$(label "$way")" "$(median <"$LAB/r/$way.wall")" \
                    "$(median <"$LAB/r/$way.files")" "$(median <"$LAB/r/$way.cpu")"
            done
        done
    done
done
