#!/bin/bash
# Fuzzes every decoder for a while: `scripts/fuzz.sh [TARGET...]`, all of them unless some are named.
#
# Seeds are the frames of crates/core/tests/golden_wire.txt; what is found grows in fuzz/corpus. With cargo-fuzz and a nightly
# toolchain it runs under the address sanitizer. Without, the targets are built by the toolchain that is there, with libFuzzer
# linked in and its coverage compiled into haul's own crates, so that the search is guided all the same; what is missing then is
# the sanitizer, of which code without `unsafe` has little need.
#
# Environment: FUZZ_SECONDS for each target (default 30), FUZZ_SEED (default 1: the same run again).
set -euo pipefail
cd "$(dirname "$0")/.."

SECONDS_EACH=${FUZZ_SECONDS:-30}
SEED=${FUZZ_SEED:-1}
TARGETS=("$@")
[ ${#TARGETS[@]} -gt 0 ] || mapfile -t TARGETS < <(basename -s .rs -a fuzz/fuzz_targets/*.rs)

# seed TARGET NAME HEX: a file of the corpus.
seed() {
    mkdir -p "fuzz/corpus/$1"
    # shellcheck disable=SC2059 # the bytes are the format
    printf "$(sed 's/../\\x&/g' <<<"$3")" >"fuzz/corpus/$1/golden-$2"
}

while read -r name hex; do
    case $name in
        data-*) seed data "$name" "$hex" ;;
        join | joined | resume) seed join "$name" "$hex" ;;
        subheader) ;;
        # The kind, and the body behind the header.
        *) seed message "$name" "${hex:8:2}${hex:48}" ;;
    esac
    seed header "$name" "$hex"
done <crates/core/tests/golden_wire.txt
while read -r kind hex; do
    seed job "$kind" "$kind$hex"
done <crates/core/tests/golden_job.txt

OPTIONS=(-max_total_time="$SECONDS_EACH" -seed="$SEED" -max_len=65536 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1)
if cargo fuzz --version >/dev/null 2>&1 && cargo +nightly --version >/dev/null 2>&1; then
    for target in "${TARGETS[@]}"; do
        cargo +nightly fuzz run "$target" -- "${OPTIONS[@]}"
    done
    exit
fi

echo "cargo-fuzz or nightly is not here: without the address sanitizer"
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Ccodegen-units=1 -Cdebug-assertions=yes"
# With a target named, build scripts are built without these.
HOST=$(rustc -vV | sed -n 's/^host: //p')
cargo build --manifest-path fuzz/Cargo.toml --release --locked --target "$HOST"
mkdir -p fuzz/artifacts
for target in "${TARGETS[@]}"; do
    mkdir -p "fuzz/corpus/$target"
    echo "== $target"
    "fuzz/target/$HOST/release/$target" "${OPTIONS[@]}" -artifact_prefix="fuzz/artifacts/$target-" "fuzz/corpus/$target"
done
