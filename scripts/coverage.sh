#!/bin/sh
# coverage.sh - which lines of src/ the tests run: builds with counters, runs all tests of that
# build, writes build-coverage/coverage/index.html, and prints the figure of each folder, the files
# below COVERAGE_MIN (85) percent, and the figure of all.
#
# SPDX-License-Identifier: MIT
cd "$(dirname "$0")/.."
. scripts/env.sh
. scripts/packages.sh

need_program lcov lcov
setup_packages faster test
scripts/setup.sh
# As in test.sh, tests without a file that cannot be fetched are skipped. Their lines count as not
# run.
scripts/fetch-model.sh >/dev/null || say "going on without the default model"
scripts/setup.sh clients >/dev/null || say "going on without some clients of the server"
# Counters lie beside the objects: an object of another folder would write into that one.
export CCACHE_DISABLE=1
scripts/build.sh coverage
find build-coverage -name '*.gcda' -delete
ctest --test-dir build-coverage --parallel "$JOBS" --output-on-failure --no-tests=error ||
    say "some tests failed: what they did not reach counts as not run"
info=build-coverage/coverage.info
rm -rf build-coverage/coverage
{
    lcov --quiet --capture --no-external --directory build-coverage --base-directory "$PWD" \
        --output-file "$info.all" &&
        lcov --quiet --extract "$info.all" "$PWD/src/*" --output-file "$info" &&
        genhtml --quiet --prefix "$PWD" --title quire --output-directory build-coverage/coverage "$info"
} >build-coverage/coverage.log 2>&1 || {
    tail -n 20 build-coverage/coverage.log >&2
    die "lcov failed; the whole output is in build-coverage/coverage.log"
}
awk -F : -v root="$PWD/" -v min="${COVERAGE_MIN:-85}" '
    $1 == "SF" {
        file = substr($2, length(root) + 1)
    }
    $1 == "LF" {
        n_lines = $2
    }
    $1 == "LH" {
        folder = file
        sub(/^src\//, "", folder)
        sub(/\/.*/, "", folder)
        lines[folder] += n_lines
        run[folder] += $2
        all += n_lines
        all_run += $2
        if (n_lines > 0 && 100 * $2 < min * n_lines) {
            printf "below %d %%: %s (%.1f %% of %d lines)\n", min, file, 100 * $2 / n_lines, n_lines
        }
    }
    END {
        for (folder in lines) {
            printf "%-8s %.1f %% of %d lines\n", folder, 100 * run[folder] / lines[folder], lines[folder]
        }
        printf "src/ %.1f %% of %d lines; build-coverage/coverage/index.html\n", 100 * all_run / all, all
    }' "$info"
