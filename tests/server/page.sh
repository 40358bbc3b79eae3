#!/bin/sh
# page.sh PAGE QUIRE - a page of quire serve in a headless browser: tests/server/PAGE.mjs. 77 =
# skipped, with the reason.
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
node "tests/server/$1.mjs" --quire "$2" --model tests/data/stories260K-f32.gguf --playwright "$playwright" --axe "$axe"
