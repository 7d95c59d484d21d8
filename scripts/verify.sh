#!/bin/bash
# Compares two trees without haul: verify.sh SOURCE COPY. Names, kinds, modes, times, link targets, every byte.
set -euo pipefail
if [ $# -ne 2 ]; then
    echo "usage: verify.sh SOURCE COPY" >&2
    exit 2
fi

# One line for each entry, NUL-ended for names may hold newlines. Links have no mode and no time of their own.
facts() {
    (cd "$1" && find . \( -type l -printf '%P l %l\0' \) -o -printf '%P %y %m %T@ %s\0' |
        sed -z -E 's/^(.* d [0-7]+ [0-9.]+) [0-9]+$/\1/' | LC_ALL=C sort -z)
}
if ! cmp <(facts "$1") <(facts "$2"); then
    echo "verify.sh: names, kinds, modes, times or links differ:" >&2
    diff <(facts "$1" | tr '\0' '\n') <(facts "$2" | tr '\0' '\n') | sed 20q >&2 || true
    exit 1
fi
diff -r --no-dereference --brief -- "$1" "$2"
echo "   $(facts "$1" | tr -cd '\0' | wc -c) entries are the same"
