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

trace=${QUIRE_SHARED:-../shared}/data/traces/mooncake-conversation.jsonl
[ -r "$trace" ] || skip "no trace: $trace"
playwright=$(scripts/setup.sh browser 2>&1) || skip "no browser: $(printf '%s' "$playwright" | tail -n 1)"
playwright=$(printf '%s' "$playwright" | tail -n 1)
node tests/trace/report.mjs --quire "$1" --trace "$trace" --playwright "$playwright"
