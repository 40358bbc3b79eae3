#!/bin/sh
# check_calls.sh - functions that have no bounds are used nowhere; the library neither prints nor
# ends the process (src/base/check.c does, for bugs).
#
# SPDX-License-Identifier: MIT
. tests/tree/files.sh

out=$(mktemp)
trap 'rm -f "$out"' EXIT

# calls NAMES: file:line:text of calls to one of the functions, in code rather than comments.
# Comment lines begin with "/*" or " *" here.
calls() {
    tr '\n' '\0' | xargs -0 grep -nE "(^|[^a-zA-Z0-9_.>\"])($1)[ ]*\\(" /dev/null |
        grep -vE '^[^:]*:[0-9]+:[ ]*(/?\*|//)' || true
}

{
    tree_files '*.[ch]' '*.cu' |
        calls 'sprintf|vsprintf|strcpy|strcat|strncpy|strncat|gets|alloca|strtok|atoi|atol|atof'
    tree_files '*.[ch]' '*.cu' | grep -E '^src/(base|codec|attn|matmul|core|train|model)/' |
        grep -vx 'src/base/check.c' |
        calls 'printf|fprintf|vprintf|vfprintf|puts|putchar|fputs|perror|exit|_exit|abort|assert'
} >"$out"
cat "$out"
finish "$(wc -l <"$out")" "findings"
