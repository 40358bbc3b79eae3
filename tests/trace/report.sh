#!/bin/sh
# report.sh QUIRE - the pages of `quire analyze --html` and `quire sim --html` in a headless browser
# (report.mjs). 77 = skipped, with the reason.
#
# SPDX-License-Identifier: MIT
set -eu

skip() {
    echo "skipped: $*"
    exit 77
}

dirs=$(scripts/setup.sh browser 2>&1) || skip "no browser: $(printf '%s' "$dirs" | tail -n 1)"
playwright=$(printf '%s\n' "$dirs" | tail -n 2 | head -n 1)
axe=$(printf '%s\n' "$dirs" | tail -n 1)

# A conversation's turns, documents and requests of one turn: something for every plot.
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
node scripts/traces.mjs "$dir" 1 mix
node tests/trace/report.mjs --quire "$1" --trace "$dir/mix.jsonl" --playwright "$playwright" --axe "$axe"
