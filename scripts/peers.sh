#!/bin/bash
# Fetches what the tests talk to and no package manager would install beside the rest: vsftpd, into
# target/peers. Nothing of the machine is changed, and nothing is fetched twice.
#
# Debian and Ubuntu only; elsewhere, and without a network, the tests of it are skipped and counted.
set -euo pipefail
cd "$(dirname "$0")/.."

peers=target/peers
# vsftpd, and the one library of it that a small machine lacks.
packages=(vsftpd libwrap0)

if command -v vsftpd >/dev/null || [ -x "$peers/usr/sbin/vsftpd" ]; then
    exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
    echo "peers.sh: no apt-get, so no ${packages[*]}; its tests are skipped"
    exit 0
fi
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
# apt fetches as a user of its own.
chmod 755 "$parts"
fetch() {
    (cd "$parts" && apt-get download "${packages[@]}" >"$parts/log" 2>&1)
}
if ! fetch; then
    # The lists of a fresh machine are empty or old.
    if [ "$(id -u)" -ne 0 ] || ! apt-get update >"$parts/log" 2>&1 || ! fetch; then
        tail -n 5 "$parts/log" >&2
        echo "peers.sh: could not fetch ${packages[*]}; its tests are skipped" >&2
        exit 0
    fi
fi
mkdir -p target
for package in "$parts"/*.deb; do
    dpkg -x "$package" "$parts/all"
done
# In one step, so that no half of it is ever taken for the whole.
mv -T "$parts/all" "$peers" 2>/dev/null || { cp -r "$parts/all" "$peers.new" && mv -T "$peers.new" "$peers"; }
