#!/bin/sh
# dashboard.sh QUIRE - the dashboard in a headless browser (dashboard.mjs). 77 = skipped, with the reason.
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
node tests/server/dashboard.mjs --quire "$1" --model tests/data/stories260K-f32.gguf --playwright "$playwright" --axe "$axe"
