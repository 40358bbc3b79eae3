#!/bin/sh
# fuzz.sh - search for inputs that break something: FUZZ_SECONDS (60) per target, with clang's
# libFuzzer. New inputs are kept in build-fuzz/corpus; a crash stops the run and its input is named.
# With FUZZ_SLOW, targets also compare times (fuzz_tokenize.c).
#
#   scripts/fuzz.sh [TARGET...]   e.g. scripts/fuzz.sh cache
#
# SPDX-License-Identifier: MIT
cd "$(dirname "$0")/.."
. scripts/env.sh

scripts/build.sh fuzz
if [ "$#" -eq 0 ]; then
    for program in build-fuzz/fuzz/fuzz_*; do
        set -- "$@" "${program##*/fuzz_}"
    done
fi
export FUZZ_SLOW=1
for target in "$@"; do
    [ -x "build-fuzz/fuzz/fuzz_$target" ] || die "fuzz: no target '$target' in build-fuzz/fuzz"
    say "fuzzing $target for ${FUZZ_SECONDS:-60} s"
    sh fuzz/search.sh "build-fuzz/fuzz/fuzz_$target" ||
        die "fuzz: $target found something; its input is the file named above"
done
