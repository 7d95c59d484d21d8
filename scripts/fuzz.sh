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

# A server that does all as it should, for what a session wants: what it says, and behind ff fe what it sends.
session() {
    mkdir -p fuzz/corpus/ftp_session
    local login='220 ready\r\n331 who\r\n230 in\r\n211-F\r\n MLST type*;size*;modify*;\r\n SIZE\r\n MDTM\r\n EPSV\r\n REST STREAM\r\n211 End\r\n200 binary\r\n'
    # shellcheck disable=SC2059 # the bytes are the format
    printf "\\x$1$login$2\\xff\\xfe$3" >"fuzz/corpus/ftp_session/good-$1"
}
begins='229 here (|||PORT|)\r\n150 now\r\n'
is_file='250-it\r\n type=file;size=3;modify=20200102030405; /x\r\n250 end\r\n'
session 00 "${begins}226 all\r\n250 there\r\n${begins}226 all\r\n${begins}226 all\r\n" 'type=cdir;modify=20200102030405; .\r\ntype=file;size=3;modify=20200102030405; x\r\n'
session 01 "$is_file$is_file$is_file" ''
session 02 "${begins}226 all\r\n${begins}226 all\r\n" 'content'
session 03 "229 (|||PORT|)\r\n350 from\r\n150 now\r\n226 all\r\n" 'content'
session 04 "250 there\r\n${begins}226 all\r\n${begins}226 all\r\n" 'lrwxrwxrwx 1 0 0 4 Nov 25 2019 link -> to\r\n'
session 05 '257 "/home/a""b" is it\r\n' ''

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
