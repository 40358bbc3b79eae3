#!/bin/sh
# chaos.sh - the long form of the tests of a cache directory under faults: crashes at every call,
# kill -9, damaged bytes and records, calls that fail. QUIRE_CHAOS makes the tests run it; each
# prints its results in a line, and the last line says whether all of them held.
#
# SPDX-License-Identifier: MIT
cd "$(dirname "$0")/.."
. scripts/env.sh

scripts/build.sh debug
export QUIRE_CHAOS=1
failed=
for name in flips crash kill calls; do
    if build-debug/tests/test_file_$name >"build-debug/chaos-$name.log" 2>&1; then
        sed -n 's/^chaos: //p' "build-debug/chaos-$name.log"
    else
        cat "build-debug/chaos-$name.log"
        failed="$failed $name"
    fi
done
[ -z "$failed" ] || die "chaos: failed:$failed"
say "chaos: nothing that was durable is lost, nothing wrong was found"
