#!/bin/sh
# retention.sh QUIRE - tests of scripts/retention.mjs (test_retention.mjs). 77 = skipped, with the
# reason.
#
# SPDX-License-Identifier: MIT
set -eu

command -v node >/dev/null 2>&1 || {
    echo "skipped: no Node.js"
    exit 77
}
exec node tests/cli/test_retention.mjs --quire "$1"
