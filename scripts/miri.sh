#!/bin/bash
# Runs what has `unsafe` under Miri, which finds undefined behaviour and data races: `scripts/miri.sh`. `buffer.rs` whole; what
# asks the kernel (rings, files) cannot run there.
#
# Without a nightly toolchain with Miri it says what is missing. With --if-there that is no failure (for CI).
set -euo pipefail
cd "$(dirname "$0")/.."

missing=
cargo +nightly --version >/dev/null 2>&1 || missing="a nightly toolchain (rustup toolchain install nightly --component miri,rust-src)"
if [ -z "$missing" ] && ! cargo +nightly miri --version >/dev/null 2>&1; then
    missing="Miri (rustup component add --toolchain nightly miri rust-src)"
fi
if [ -n "$missing" ]; then
    if [ "${1:-}" = --if-there ]; then
        echo "skipped: Miri was not run, for this machine lacks $missing"
        exit 0
    fi
    echo "Miri cannot run: this machine lacks $missing" >&2
    exit 1
fi

# The clock and the seed of maps are the host's; a leak at exit of what a test keeps on purpose is none.
export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-ignore-leaks"
for model in "" "-Zmiri-tree-borrows"; do
    MIRIFLAGS="$MIRIFLAGS $model" cargo +nightly miri test --locked -p haul-base --lib buffer::
    MIRIFLAGS="$MIRIFLAGS $model" cargo +nightly miri test --locked -p haul-storage --lib owed::
done
