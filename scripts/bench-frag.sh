#!/bin/sh
# Extents of one large file that 16 writers write out of order, with and without space in advance.
#
# Usage: scripts/bench-frag.sh [DIR [GIB [RUNS]]]
# Needs filefrag (e2fsprogs) and GIB of free space in DIR beside 15 GiB that are left alone.
set -eu
dir=${1:-target/bench-frag}
gib=${2:-10}
runs=${3:-3}
writers=16
# Unoptimised is enough: what takes time is in the kernel.
cargo build --quiet -p haul-storage --example frag
mkdir -p "$dir"
free=$(df --output=avail -B1 "$dir" | tail -1)
if [ "$free" -lt $(((gib + 15) << 30)) ]; then
    echo "$dir has $free bytes free, $((gib + 15)) GiB are needed" >&2
    exit 1
fi
file=$dir/frag.$$
trap 'rm -f "$file"' EXIT INT TERM
echo "file system: $(stat -f -c %T "$dir"), $gib GiB, $writers writers"
for run in $(seq "$runs"); do
    for space in yes no; do
        rm -f "$file"
        said=$(target/debug/examples/frag "$file" $((gib << 30)) $writers $space "$run" | tail -1)
        extents=$(filefrag "$file" | sed 's/.*: \([0-9]*\) extent.*/\1/')
        echo "run $run, in advance: $space, extents: $extents, $said"
    done
done
