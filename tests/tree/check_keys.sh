#!/bin/sh
# check_keys.sh - each key of a model file that a description reads has a case in the tests of
# descriptions, so that a damaged one gets a line of its own.
#
# SPDX-License-Identifier: MIT
. tests/tree/files.sh

n=0
for key in $(sh scripts/gguf-keys.sh); do
    if ! grep -qE "[.\"]$key\"" tests/model/test_describe*.c; then
        printf '%s: read in src/model, and in no test of descriptions\n' "$key"
        n=$((n + 1))
    fi
done
finish "$n" "keys"
