#!/bin/sh
# compare.sh QUIRE GENERATOR | scripts - tests of scripts/compare (test_compare.mjs), and of wrong
# options and failures of the scripts that measure (test_scripts.mjs). 77 = skipped, with the
# reason.
#
# SPDX-License-Identifier: MIT
set -eu

command -v node >/dev/null 2>&1 || {
    echo "skipped: no Node.js"
    exit 77
}
[ "$1" != scripts ] || exec node tests/cli/test_scripts.mjs
exec node tests/cli/test_compare.mjs --quire "$1" --generator "$2"
