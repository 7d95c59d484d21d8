#!/bin/bash
# Copies between this build and an older one, over loopback ssh: each as the near end, each direction. Either a copy works, or
# it fails, does nothing, and says with both versions why.
#
# Then a copy of either is killed half-way and resumed by the other, also as the far end: it works, or it fails with the formats of
# the journals, and leaves what it found to the one that wrote it. So does this one's `haul clean`. (That of an older one may not:
# what it does to journals that it cannot read is not to be changed any more.)
#
# Environment: REV, of which the older program is built (default: the last before wire version 3 and journal format 5), or
# SKEW_OLD, the program itself; SKEW_HAUL, the newer one, where it is built already; SKEW_DIR, where the data go (default
# /var/tmp).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/hosts.sh

REV=${REV:-4761bbe6560b4ef3979d2b93f32a22d7a14bc6b0}
need_root skew
[ -n "${SKEW_HAUL:-}" ] || cargo build --locked -p haul-cli
HAUL=${SKEW_HAUL:-${CARGO_TARGET_DIR:-$PWD/target}/debug/haul}
NEW=$HAUL OLD=${SKEW_OLD:-}

loopback_up "${SKEW_DIR:-/var/tmp}"

# The repository knows of a worktree until it is told that there is none any more, however the script ends.
skew_down() {
    [ ! -e "$LAB/old" ] || git worktree remove --force "$LAB/old" || true
    hosts_down
}
trap skew_down EXIT

if [ -z "$OLD" ]; then
    say "building $REV"
    git worktree add --quiet --detach "$LAB/old" "$REV"
    # What it needs of other crates is built once, and kept.
    (cd "$LAB/old" && CARGO_TARGET_DIR=$OLDPWD/target/skew cargo build --locked -p haul-cli)
    git worktree remove --force "$LAB/old"
    OLD=$PWD/target/skew/debug/haul
fi

mkdir -p "$LAB/data/sub"
for n in 1 2 3; do head -c $((n * 300000)) /dev/urandom >"$LAB/data/sub/f$n"; done
head -c 50000000 /dev/urandom >"$LAB/data/big"
bad=0

# verdict WHAT CODE SENTENCE...: the copy in $LAB/sink is whole, or it failed with one of these sentences and made no file. With
# `beside` set the other program's journal and temporaries may stay: one that gives jobs other keys does not meet them.
verdict() {
    local what=$1 code=$2 sentence
    shift 2
    if [ "$code" -eq 0 ]; then
        if diff -r "$LAB/data" "$LAB/sink" >/dev/null; then
            echo "$what: works"
        elif [ -n "${beside:-}" ] && diff -r -x '.*' "$LAB/data" "$LAB/sink" >/dev/null; then
            echo "$what: works, as a job of its own; it leaves $(find "$LAB/sink" -name '.*' -type f | wc -l) files that the other left"
        else
            echo "$what: exit code 0, and the copy is another"
            bad=1
        fi
        return
    fi
    for sentence in "$@"; do
        if grep -qE "$sentence" "$LAB/told"; then
            echo "$what: refused: $(grep -m1 -E "$sentence" "$LAB/told")"
            if [ -n "$(find "$LAB/sink" -type f ! -name '.*' -print -quit)" ]; then
                echo "$what: it left files all the same"
                bad=1
            fi
            return
        fi
    done
    echo "$what: exit code $code, without a word of versions:"
    sed 's/^/    /' "$LAB/told"
    bad=1
}

# As the ends say it before they join, and in their hellos.
versions='speaks protocol [0-9]+ to [0-9]+, haul .* speaks [0-9]+ to [0-9]+'
versions="$versions|this end speaks [0-9]+-[0-9]+, the peer [0-9]+-[0-9]+"
for near in new old; do
    [ $near = new ] && near_haul=$NEW far_haul=$OLD || near_haul=$OLD far_haul=$NEW
    for direction in to from; do
        rm -rf "$LAB/sink" && mkdir "$LAB/sink"
        source=$LAB/data/ sink=$LAB/sink
        [ $direction = to ] && sink=$FAR_ADDRESS:$sink || source=$FAR_ADDRESS:$source
        code=0
        timeout 120 "$near_haul" cp -r -e "$SSH" --remote-haul "$far_haul" "$source" "$sink" >"$LAB/told" 2>&1 || code=$?
        verdict "$near here, copy $direction the other" $code "$versions"
    done
done

# interrupt HAUL: a copy of that program into $LAB/sink is killed half-way, so that its journal and a temporary stay.
interrupt() {
    local run
    rm -rf "$LAB/sink" && mkdir "$LAB/sink"
    "$1" cp -r --rate=10MB/s "$LAB/data/" "$LAB/sink" >/dev/null 2>&1 &
    run=$!
    for _ in $(seq 200); do
        [ -n "$(find "$LAB/sink" -name '.*' -size +1M -print -quit)" ] && break
        sleep 0.05
    done
    # Its journal speaks of the temporary after its first epoch, which is 250 ms.
    sleep 1
    kill -KILL $run 2>/dev/null || { echo "the copy was over before it could be killed"; bad=1; }
    wait $run 2>/dev/null || true
    # Small files may have got their names.
    rm -rf "$LAB/sink/sub"
}

state() { (cd "$LAB/sink" && find . -type f -printf '%P %s\n' | sort); }

# resume WHAT WORDS COMMAND...: it resumes, or refuses in words and leaves what is there as it is.
resume() {
    local what=$1 words=$2 before code=0
    shift 2
    before=$(state)
    timeout 120 "$@" >"$LAB/told" 2>&1 || code=$?
    verdict "$what" $code "$words"
    [ $code -eq 0 ] || [ "$before" = "$(state)" ] || { echo "$what: it changed what it found"; bad=1; }
    refused=$code
}

formats='journal format [0-9]+, this program knows only [0-9]+'

say "a journal of the older one"
interrupt "$OLD"
beside=1 resume "new, after old was killed" "$formats" "$NEW" cp -r "$LAB/data/" "$LAB/sink"
if [ $refused -ne 0 ]; then
    resume "new, sending to a new one, after old was killed" "$formats" "$NEW" cp -r -e "$SSH" --remote-haul "$NEW" \
        "$LAB/data/" "$FAR_ADDRESS:$LAB/sink"
    resume "new, fetching from a new one, after old was killed" "$formats" "$NEW" cp -r -e "$SSH" --remote-haul "$NEW" \
        "$FAR_ADDRESS:$LAB/data/" "$LAB/sink"
    before=$(state)
    "$NEW" clean "$LAB/sink" >"$LAB/told" 2>&1 || true
    if [ "$before" = "$(state)" ] && grep -qE 'another version of haul \(format [0-9]+, this one knows only [0-9]+\)' "$LAB/told"; then
        echo "new, haul clean: leaves it: $(head -n 1 "$LAB/told")"
    else
        echo "new, haul clean: it removes what it does not know, or does not say so:"
        sed 's/^/    /' "$LAB/told"
        bad=1
    fi
    resume "old, resumed by itself" 'nothing but success' "$OLD" cp -r "$LAB/data/" "$LAB/sink"
    interrupt "$OLD"
    "$OLD" clean "$LAB/sink" >/dev/null 2>&1 || true
    resume "new, when old's haul clean has removed it" 'nothing but success' "$NEW" cp -r "$LAB/data/" "$LAB/sink"
fi

say "a journal of the newer one"
interrupt "$NEW"
beside=1 resume "old, after new was killed" "$formats" "$OLD" cp -r "$LAB/data/" "$LAB/sink"
resume "new, resumed by itself" 'nothing but success' "$NEW" cp -r "$LAB/data/" "$LAB/sink"
exit $bad
