#!/bin/bash
# Checks the dependencies: licences, sources, forbidden and doubled crates.
#
# Installs cargo-deny if it is missing (minutes, once). The check for advisories is left out: it fetches its
# database from a host that many build machines cannot reach; run `cargo deny check advisories` where it can.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! cargo deny --version >/dev/null 2>&1; then
    echo "deny.sh: installing cargo-deny"
    cargo install cargo-deny --locked --version '^0.20'
fi
exec cargo deny --locked check bans licenses sources
