#!/bin/bash
# Shows that the test of each protection fails without it: mutants.sh [NAME...]
#
# One build with the feature `mutants` runs each test of crates/mutant/protections.txt twice: as it is, when it must pass,
# and with the protection removed, when it must fail. The exit code is that of the worst.
set -euo pipefail
cd "$(dirname "$0")/.."

list=crates/mutant/protections.txt
built=$(mktemp)
trap 'rm -f "$built"' EXIT

echo "mutants.sh: building the tests with the feature mutants"
# A target folder of its own, so that no other build is ever taken for this one, nor this one for a release.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/mutants
cargo test --locked --no-run --features haul-core/mutants,haul-base/mutants,haul-storage/mutants,haul-transport/mutants \
    --features haul-launch/mutants,haul/mutants,haul-probe/mutants,haul-cli/mutants,haul-ftp/mutants,haul-volume/mutants \
    -p haul-core -p haul-base -p haul-storage -p haul-transport -p haul-launch -p haul -p haul-probe -p haul-cli -p haul-ftp -p haul-ftpd -p haul-volume --message-format=json-render-diagnostics >"$built"
# Tests on storage targets run the lab's program, which lies beside.
cargo build --locked -p haul-lab

# The test program of a package and target: its crate's name for unit tests.
program() {
    python3 - "$built" "$1" "$2" <<'PY'
import json, sys
for line in open(sys.argv[1]):
    note = json.loads(line)
    if note.get("reason") != "compiler-artifact" or not note["profile"]["test"] or not note.get("executable"):
        continue
    package = note["manifest_path"].split("/")[-2]
    kind = note["target"]["kind"][0]
    target = note["target"]["name"] if kind == "test" else ""
    named = package if package == "haul" else f"haul-{package}"
    if named == sys.argv[2] and target == sys.argv[3]:
        print(note["executable"])
        break
else:
    sys.exit(f"mutants.sh: no test program {sys.argv[2]} {sys.argv[3]}")
PY
}

# run SECONDS PACKAGE TEST: one test, ended after so long.
run() {
    local package=$2 test=$3 target="" dir
    if [[ $test == */* ]]; then
        target=${test%%/*}
        test=${test#*/}
    fi
    dir=crates/${package#haul-}
    local exe
    exe=$(program "$package" "$target")
    (cd "$dir" && timeout "$1" "$exe" --exact "$test" 2>&1 </dev/null)
}

# judge NAME PACKAGE TEST: one line of how it went; fails if that is not as it must be.
judge() {
    local name=$1 package=$2 test=$3 out began=$SECONDS took
    out=$(run 300 "$package" "$test") || { echo "$name: $test fails as it is"; echo "$out" | tail -20; return 1; }
    took=$((SECONDS - began))
    if ! grep -qE '^test result: ok\. [1-9]' <<<"$out"; then
        echo "$name: no test $package $test"
        return 1
    fi
    if grep -q '^SKIP' <<<"$out"; then
        echo "$name: $test was skipped here: $(grep -m1 '^SKIP' <<<"$out")"
        return 1
    fi
    # Without its protection one may wait for what never comes: that is no success. The others are not waited for as long.
    if HAUL_MUTANT=$name run $((60 + 5 * took)) "$package" "$test" >/dev/null; then
        echo "$name: $test passes without it"
        return 1
    fi
    echo "$name: $test fails without it, as it must"
}

# Tests mostly wait: several at a time, each with a line of its own.
JOBS=${JOBS:-$(($(nproc) * 2))}
bad=0 count=0
while IFS='|' read -r name package test; do
    name=${name// /} package=${package// /} test=${test// /}
    [[ -z $name || $name == \#* ]] && continue
    if [ $# -gt 0 ] && [[ " $* " != *" $name "* ]]; then continue; fi
    count=$((count + 1))
    while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do wait -n || bad=1; done
    judge "$name" "$package" "$test" &
done <"$list"
while [ "$(jobs -p | wc -l)" -gt 0 ]; do wait -n || bad=1; done
echo "mutants: $count protections"
exit $bad
