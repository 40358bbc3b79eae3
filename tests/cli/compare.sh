#!/bin/sh
# compare.sh QUIRE GENERATOR - tests of scripts/compare (test_compare.mjs). 77 = skipped, with the
# reason.
#
# SPDX-License-Identifier: MIT
set -eu

command -v node >/dev/null 2>&1 || {
    echo "skipped: no Node.js"
    exit 77
}
exec node tests/cli/test_compare.mjs --quire "$1" --generator "$2"
