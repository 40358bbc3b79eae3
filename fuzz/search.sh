#!/bin/sh
# search.sh PROGRAM [FOLDER...] - search for inputs that break a libFuzzer target, FUZZ_SECONDS (60)
# long, from its corpus in fuzz/corpus, the one of the build folder, where new inputs are kept, and
# the folders named; with the words of PROGRAM.dict, if there is one. A crash ends it with an error,
# and its input lies in the build folder. Runs in the repository's root.
#
# SPDX-License-Identifier: MIT
set -eu

program=$1
shift
build=${program%/fuzz/*}
name=${program##*/fuzz_}
kept=$build/corpus/$name

mkdir -p "$kept"
if [ -d "fuzz/corpus/$name" ]; then
    set -- "fuzz/corpus/$name" "$@"
fi
if [ -f "$program.dict" ]; then
    set -- -dict="$program.dict" "$@"
fi
exec "$program" -max_total_time="${FUZZ_SECONDS:-60}" -timeout=25 -rss_limit_mb=4096 \
    -print_final_stats=1 -artifact_prefix="$build/" "$kept" "$@"
