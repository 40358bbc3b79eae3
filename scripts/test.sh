#!/bin/sh
# test.sh - set-up, then build and run the tests of each preset named: scripts/test.sh [PRESET...]
#
# The default is what a change must pass: debug (everything), lib (without the model runtime) and
# tiny (small constants, so that growth paths run). The last line is "N passed, N failed".
#
# SPDX-License-Identifier: MIT
cd "$(dirname "$0")/.."
. scripts/env.sh

left_out=
if [ "$#" -eq 0 ]; then
    set -- debug lib tiny
    left_out="arm64 (emulated, so slow: \`make arm64\` runs it)"
fi

scripts/setup.sh
# Without the default model its tests skip by name: not being online is no failure.
scripts/fetch-model.sh >/dev/null || say "going on without the default model"
scripts/setup.sh clients >/dev/null || say "going on without some clients of the server"

broken=
results=
for preset in "$@"; do
    say "preset $preset: building"
    if ! scripts/build.sh "$preset"; then
        broken="$broken $preset"
        continue
    fi
    say "preset $preset: testing"
    rm -f "build-$preset/results.xml"
    # A failure is counted below, from the results.
    ctest --test-dir "build-$preset" --parallel "$JOBS" --output-on-failure --no-tests=error \
        --output-junit results.xml --test-output-size-passed 8000000 \
        --test-output-size-failed 8000000 || true
    if [ -f "build-$preset/results.xml" ]; then
        results="$results build-$preset/results.xml"
    else
        broken="$broken $preset"
    fi
done

# Preset names hold no blanks: splitting is what is meant.
# shellcheck disable=SC2086
exec awk -v broken="$broken" -v left_out="$left_out" -f scripts/count-tests.awk /dev/null $results
