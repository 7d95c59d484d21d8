#!/bin/bash
# The page cache as it was found: a copy much larger than what it may leave behind, each way of I/O at both ends.
#
# Watched are the page cache of the machine while haul works (/proc/meminfo, twice a second, against the median of
# the time before), and a file of another program that was read just before: its pages must all stay (fincore).
# The growth is the whole machine's, so others' work shows in it too.
#
# Environment: BENCH_GIB (default 20), BENCH_DIR (default target/bench-cache), BENCH_IO (default "buffered direct auto").
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/hosts.sh

GIB=${BENCH_GIB:-20}
DIR=${BENCH_DIR:-$PWD/target/bench-cache}
cargo build --release --locked
HAUL=${BENCH_HAUL:-${CARGO_TARGET_DIR:-$PWD/target}/release/haul}

rm -rf "$DIR" && mkdir -p "$DIR"
trap 'kill $SAMPLER 2>/dev/null || true; rm -rf "$DIR"' EXIT
SAMPLER=
free=$(df --output=avail -B1G "$DIR" | tail -n 1)
if [ "$free" -lt $((GIB + 4)) ]; then
    echo "bench-cache: $DIR has $free GiB free, and $((GIB + 4)) are needed" >&2
    exit 1
fi
dd if=/dev/urandom of="$DIR/victim" bs=1M count=512 conv=fsync status=none

cached() { awk '/^(Cached|Buffers):/ { sum += $2 } END { print int(sum / 1024) }' /proc/meminfo; }
resident() { fincore --bytes --noheadings --output RES "$1" | tr -d ' '; }

watch_cache() { # watch_cache NAME COMMAND..
    local name=$1 before after most
    shift
    cat "$DIR/victim" >/dev/null
    before=$(cached)
    (while sleep 0.5; do cached; done) >"$DIR/samples" &
    SAMPLER=$!
    "$@"
    kill $SAMPLER && wait $SAMPLER 2>/dev/null || true
    after=$(cached)
    most=$(sort -n "$DIR/samples" | tail -n 1)
    printf '%-34s most %5d MiB, after %5d MiB over before; victim keeps %d of %d bytes\n' "$name" \
        $((${most:-$after} - before)) $((after - before)) "$(resident "$DIR/victim")" "$(stat -c %s "$DIR/victim")"
}

for io in ${BENCH_IO:-buffered direct auto}; do
    watch_cache "write $GIB GiB, --io=$io" "$HAUL" cp -q --io="$io" "zero://${GIB}GiB" "$DIR/data"
    printf '%-34s %s bytes of the new file are cached\n' "" "$(resident "$DIR/data")"
    echo 1 >/proc/sys/vm/drop_caches
    watch_cache "read $GIB GiB, --io=$io" "$HAUL" cp -q --io="$io" "$DIR/data" null://
    printf '%-34s %s bytes of the file are cached\n' "" "$(resident "$DIR/data")"
    rm "$DIR/data"
done
