#!/bin/bash
# The demonstration: two hosts made of network namespaces, a real tree and a big file from one to the other
# over ssh, killed half-way, resumed, and verified by cmp, find and stat. Leaves nothing behind.
#
# Environment: DEMO_DIR, where about 4 times the data fits for a while (default: a new folder in /var/tmp);
# DEMO_BIG_MIB, size of the big file (default 2048).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/hosts.sh

FILES_MIN=10000
BYTES_MIN=1000000000
BIG_MIB=${DEMO_BIG_MIB:-2048}

need_root demo
cargo build --release --locked
HAUL=$(realpath -m "${CARGO_TARGET_DIR:-target}")/release/haul

hosts_up "${DEMO_DIR:-/var/tmp}"

say "collecting a tree of at least $FILES_MIN files and $((BYTES_MIN / 1000000)) MB from this machine"
mkdir -p "$LAB/data" "$LAB/sink"
for source in "$(rustc --print sysroot)" "${CARGO_HOME:-$HOME/.cargo}/registry/src" /usr/share /usr/lib /usr/include; do
    [ -d "$source" ] || continue
    files=$(find "$LAB/data" -type f | wc -l)
    bytes=$(du -sb "$LAB/data" | cut -f1)
    [ "$files" -ge "$FILES_MIN" ] && [ "$bytes" -ge "$BYTES_MIN" ] && break
    echo "  $source"
    # A source of its own that nobody changes under the demonstration, for it is compared in the end.
    cp -a "$source" "$LAB/data/$(echo "${source#/}" | tr / -)"
done
files=$(find "$LAB/data" -type f | wc -l)
bytes=$(du -sb --apparent-size "$LAB/data" | cut -f1)
if [ "$files" -lt "$FILES_MIN" ] || [ "$bytes" -lt "$BYTES_MIN" ]; then
    echo "demo: this machine has no such tree: found $files files, $bytes bytes" >&2
    exit 1
fi
dd if=/dev/urandom of="$LAB/data/big-file" bs=1M count="$BIG_MIB" status=none
bytes=$(find "$LAB/data" -type f -printf '%s\n' | awk '{ sum += $1 } END { printf "%.0f", sum }')
files=$((files + 1))
say "$files files, $((bytes / 1000000)) MB, one of them of $BIG_MIB MiB"

copy=("$HAUL" cp -r -e "$SSH" "$LAB/data" "$FAR_ADDRESS:$LAB/sink")
say "\$ haul cp -r data far:sink"
near_exec "${copy[@]}" --json >"$LAB/first.json" &
run=$!
held=0
while kill -0 "$run" 2>/dev/null; do
    # As the program itself tells, some times a second.
    held=$(tail -n 2 "$LAB/first.json" | sed -n 's/.*"bytes_sent":\([0-9]*\).*/\1/p' | tail -n 1)
    held=${held:-0}
    [ "$held" -ge $((bytes / 2)) ] && break
    sleep 0.05
done
if ! kill -KILL "$run" 2>/dev/null; then
    code=0
    wait "$run" || code=$?
    echo "demo: the copy was over before it could be killed, with exit code $code" >&2
    exit 1
fi
wait "$run" 2>/dev/null || true
if tail -n 1 "$LAB/first.json" | grep -q '"event":"summary"'; then
    echo "demo: the copy went on although it was killed" >&2
    exit 1
fi
say "killed with SIGKILL when $((held / 1000000)) MB were sent"
# The far end notices, closes what is open and leaves.
for _ in $(seq 300); do
    [ -z "$(far_hauls)" ] && break
    sleep 0.1
done

say "\$ haul cp -r data far:sink    (the same command again)"
near "${copy[@]}" --json >"$LAB/second.json"
summary=$(tail -n 1 "$LAB/second.json")
# The first of that name: what objects in the summary hold comes behind.
field() { grep -oE "\"$1\": ?[^,}]*" <<<"$summary" | head -n 1 | sed -E 's/.*: ?//'; }
sent=$(field bytes_sent)
say "complete: $((sent / 1000000)) MB of $((bytes / 1000000)) MB were sent in the second run"

say "verifying with cmp, find and stat"
scripts/verify.sh "$LAB/data" "$LAB/sink/data"
left=$(find "$LAB/sink" -name '.*haul~*' | wc -l)
if [ "$left" -ne 0 ]; then
    echo "demo: $left journals or temporaries are left" >&2
    exit 1
fi

say "once more from the start, to see the rate"
rm -rf "$LAB/sink" && mkdir "$LAB/sink"
near "${copy[@]}" --json >"$LAB/third.json"
summary=$(tail -n 1 "$LAB/third.json")
awk -v b="$bytes" -v f="$files" -v s="$(field seconds)" \
    'BEGIN { printf "   %.1f MB/s, %.0f files/s, %.1f s, durable\n", b / s / 1e6, f / s, s }'
say "done: killed half-way, resumed, every byte right"
