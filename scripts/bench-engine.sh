#!/bin/bash
# The I/O engine against fio's io_uring: the same file, pattern (one pass from the beginning), request size, depth
# and direct I/O; reads and writes; all variants in turn in each round, for a shared machine changes.
#
# fio runs twice: as it comes, and with what the engine does too (--fixedbufs --registerfiles). Writes go to blocks
# that exist, and end with a sync that counts (--end_fsync=1). Processor seconds are those of the process that does
# the I/O, kernel threads of its ring included, without its start.
#
# Environment: RUNS (default 5), BENCH_MIB (default 4096), BENCH_DIR (default: below target/), BENCH_SIZES
# ("1M 16M"), BENCH_DEPTHS ("1 4 16"), BENCH_ENGINES ("uring pread").
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/hosts.sh

RUNS=${RUNS:-5}
MIB=${BENCH_MIB:-4096}
SIZES=${BENCH_SIZES:-1M 16M}
DEPTHS=${BENCH_DEPTHS:-1 4 16}
ENGINES=${BENCH_ENGINES:-uring pread}

for tool in fio jq; do
    command -v $tool >/dev/null || { echo "bench-engine: $tool is needed" >&2; exit 1; }
done
cargo build --release --locked -p haul-storage --example engine_rate
mkdir -p target
DIR=$(mktemp -d -p "${BENCH_DIR:-target}" bench-engine-XXXXXX)
trap 'rm -rf "$DIR"' EXIT
FILE=$DIR/file
mkdir "$DIR/r"
free=$(df --output=avail -B1M "$DIR" | tail -n 1)
if [ "$free" -lt $((MIB + 512)) ]; then
    echo "bench-engine: $DIR has $free MiB free, and a file of $MIB MiB is needed" >&2
    exit 1
fi
# Written, not only allocated: unwritten blocks read as zeros without the device.
dd if=/dev/urandom of="$FILE" bs=4M count=$((MIB / 4)) oflag=direct status=none
sync "$FILE"

# "RATE CPU" of one run: bytes and seconds become GB/s and CPU s/GB.
haul_run() { # ENGINE DIRECTION SIZE DEPTH
    target/release/examples/engine_rate "$FILE" "$2" "$3" "$4" "$1" direct "${MIB}M" |
        jq -r '"\(.rate / 1e9) \(.cpu_seconds / (.bytes / 1e9))"'
}

# The sync at the end is in fio's wall time and not in its bandwidth.
fio_run() { # DIRECTION SIZE DEPTH FLAG..
    local direction=$1 size=$2 depth=$3
    shift 3
    local sync=0
    [ "$direction" = read ] || sync=1
    fio --name=bench --filename="$FILE" --rw="$direction" --bs="$size" --iodepth="$depth" --size="${MIB}M" \
        --ioengine=io_uring --direct=1 --end_fsync=$sync --overwrite=1 --fallocate=none --output-format=json "$@" \
        >"$DIR/fio.json" 2>"$DIR/err" || { cat "$DIR/err" "$DIR/fio.json" >&2; exit 1; }
    jq -r --arg d "$direction" '.jobs[0] | .[$d].io_bytes as $b | (.job_runtime / 1e3) as $s |
        "\($b / $s / 1e9) \((.usr_cpu + .sys_cpu) / 100 * $s / ($b / 1e9))"' "$DIR/fio.json"
}

# One run of a variant, noted.
run() { # VARIANT CASE..
    local variant=$1 rate cpu
    shift
    case $variant in
    fio) read -r rate cpu < <(fio_run "$@") ;;
    fio-fixed) read -r rate cpu < <(fio_run "$@" --fixedbufs --registerfiles) ;;
    *) read -r rate cpu < <(haul_run "$variant" "$@") ;;
    esac
    [ -n "${cpu:-}" ] || { echo "bench-engine: no figure of $variant $*" >&2; exit 1; }
    echo "$rate" >>"$DIR/r/$variant.$1.$2.$3.rate"
    echo "$cpu" >>"$DIR/r/$variant.$1.$2.$3.cpu"
}

VARIANTS="fio fio-fixed $ENGINES"
for round in $(seq "$RUNS"); do
    echo "round $round of $RUNS, load $(cut -d' ' -f1 /proc/loadavg)" >&2
    for direction in read write; do
        for size in $SIZES; do
            for depth in $DEPTHS; do
                # Nobody is always the first.
                for variant in $(shuf -e $VARIANTS); do
                    run "$variant" "$direction" "$size" "$depth"
                done
            done
        done
    done
done

say "$MIB MiB, direct, one pass, $RUNS rounds, $(fio --version), Linux $(uname -r), $(nproc) processors, $(df --output=fstype "$DIR" | tail -n 1)"
printf '%-6s %-5s %-6s %-10s %-28s %-30s %s\n' what size depth engine "GB/s (lowest .. highest)" "CPU s/GB" "of fio, of fio-fixed"
for direction in read write; do
    for size in $SIZES; do
        for depth in $DEPTHS; do
            for variant in $VARIANTS; do
                key=$direction.$size.$depth
                # Ratios of runs of the same round, then their median: what the machine did then cancels out.
                ratio() { paste "$DIR/r/$variant.$key.rate" "$DIR/r/$1.$key.rate" | awk '{ print $1 / $2 }' | median; }
                printf '%-6s %-5s %-6s %-10s %-28s %-30s %s, %s\n' "$direction" "$size" "$depth" "$variant" \
                    "$(median <"$DIR/r/$variant.$key.rate")" "$(median <"$DIR/r/$variant.$key.cpu")" \
                    "$(ratio fio)" "$(ratio fio-fixed)"
            done
        done
    done
done
