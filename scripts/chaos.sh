#!/bin/sh
# chaos.sh - the long form of the tests of a cache directory under faults: damaged bytes and
# records, crashes at every call, calls that fail, kill -9, answers over damaged directories.
# QUIRE_CHAOS makes the tests run it; each prints its results in a line, and the last line says
# whether all held.
#
# SPDX-License-Identifier: MIT
cd "$(dirname "$0")/.."
. scripts/env.sh

scripts/build.sh debug
export QUIRE_CHAOS=1
failed=
for name in file_flips file_crash file_calls file_kill cli_cache_dir; do
    if build-debug/tests/test_$name >"build-debug/chaos-$name.log" 2>&1; then
        sed -n 's/^chaos: //p' "build-debug/chaos-$name.log"
    else
        cat "build-debug/chaos-$name.log"
        failed="$failed $name"
    fi
done
[ -z "$failed" ] || die "chaos: failed:$failed"
say "chaos: nothing that was durable is lost, nothing wrong was found"
