#!/bin/bash
# Memory of `haul serve gridftp` while many sessions move data at the same time, down, up, and in blocks.
#
# Each session is a process. What they share (the program itself, pages that no session wrote to) is counted
# once: the sum of the proportional set sizes of all of the server's processes, as the kernel has it
# (smaps_rollup), its highest value of a run. Files lie in memory and do not count.
#
# Environment: BENCH_SESSIONS (default 64), BENCH_RATE (bytes a second and session, default 2M),
# BENCH_SECONDS (default 15), BENCH_HAUL. Needs curl and globus-url-copy; traffic is on loopback.
set -euo pipefail
cd "$(dirname "$0")/.."

SESSIONS=${BENCH_SESSIONS:-64}
RATE=${BENCH_RATE:-2M}
SECONDS_=${BENCH_SECONDS:-15}
[ -n "${BENCH_HAUL:-}" ] || cargo build --release --locked -p haul-cli
HAUL=${BENCH_HAUL:-${CARGO_TARGET_DIR:-$PWD/target}/release/haul}

root=$(mktemp -d /dev/shm/haul-sessions.XXXXXX)
server=
clients=()
finish() {
    for pid in "${clients[@]:-}" $server; do
        [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
    done
    wait 2>/dev/null || true
    rm -rf "$root"
}
trap finish EXIT
head -c $((64 << 20)) /dev/urandom >"$root/data"
# Nothing holds back who moves data in blocks: zeros enough for all of the time.
truncate -s 1T "$root/zeros"
chmod -R a+rwX "$root"

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$HAUL" serve gridftp --root "$root" --listen "127.0.0.1:$port" --anonymous write --sessions-per-host 256 \
    2>"$root/log" &
server=$!
until (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
    kill -0 "$server" || { cat "$root/log" >&2; exit 1; }
    sleep 0.1
done

# The server and all that it started.
family() {
    local pid
    for pid in "$@"; do
        echo "$pid"
        # shellcheck disable=SC2046
        family $(cat "/proc/$pid/task/$pid/children" 2>/dev/null)
    done
}

# measure NAME COMMAND...: COMMAND gets the number of its session as its last word.
measure() {
    local name=$1 n peak=0 kib count=0 end
    shift
    clients=()
    for n in $(seq "$SESSIONS"); do
        "$@" "$n" >/dev/null 2>&1 &
        clients+=($!)
    done
    end=$((SECONDS + SECONDS_))
    while [ "$SECONDS" -lt "$end" ]; do
        kib=0
        n=0
        # shellcheck disable=SC2046
        for pid in $(family "$server"); do
            pss=$(sed -nE 's/^Pss:\s+([0-9]+) kB/\1/p' "/proc/$pid/smaps_rollup" 2>/dev/null || true)
            kib=$((kib + ${pss:-0}))
            n=$((n + 1))
        done
        [ "$kib" -le "$peak" ] || { peak=$kib; count=$n; }
        sleep 0.2
    done
    for pid in "${clients[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    wait "${clients[@]}" 2>/dev/null || true
    clients=()
    sleep 1
    printf '%-44s %5s MiB in %s processes\n' "$name" "$((peak / 1024))" "$count"
}

url="ftp://127.0.0.1:$port"
get() { exec curl -s --limit-rate "$RATE" -o /dev/null "$url/data"; }
put() { exec curl -s --limit-rate "$RATE" -T "$root/data" "$url/up.$1"; }
blocks() { exec globus-url-copy -p 4 "$url/zeros" file:///dev/null; }
idle() { exec curl -s --limit-rate 1 -o /dev/null "$url/data"; }

echo "$SESSIONS sessions: sum of the proportional set sizes of the server's processes, highest"
measure "down, one stream each" get
measure "up, one stream each" put
if command -v globus-url-copy >/dev/null; then
    measure "down in blocks, four streams each" blocks
fi
measure "clients that take nothing" idle
