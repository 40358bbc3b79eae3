#!/bin/sh
# schemes.sh numbers QUIRE GENERATOR | page - tests of scripts/compare-schemes.mjs
# (test_schemes.mjs) and of its page in a headless browser (curves_page.mjs). 77 = skipped, with the
# reason.
#
# SPDX-License-Identifier: MIT
set -eu

skip() {
    echo "skipped: $*"
    exit 77
}

command -v node >/dev/null 2>&1 || skip "no Node.js"
if [ "$1" = numbers ]; then
    exec node tests/train/test_schemes.mjs --quire "$2" --generator "$3"
fi
dirs=$(scripts/setup.sh browser 2>&1) || skip "no browser: $(printf '%s' "$dirs" | tail -n 1)"
playwright=$(printf '%s\n' "$dirs" | tail -n 2 | head -n 1)
axe=$(printf '%s\n' "$dirs" | tail -n 1)
node tests/train/curves_page.mjs --playwright "$playwright" --axe "$axe"
