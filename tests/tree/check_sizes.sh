#!/bin/sh
# check_sizes.sh - files of at most 600 lines (tests: 800), functions of at most 100, lines of at
# most 100 characters.
#
# A function is what stands between a "{" and a "}" in the first column: the style puts them there.
#
# SPDX-License-Identifier: MIT
. tests/tree/files.sh

# The dollars are awk's.
# shellcheck disable=SC2016
tree_files '*.[ch]' '*.cpp' '*.cu' '*.comp' '*.glsl' '*.sh' '*.awk' '*.mjs' '*.cmake' CMakeLists.txt Makefile |
    tr '\n' '\0' | LC_ALL=C xargs -0 awk '
        function found(what) {
            print what
            n_found++
        }
        function close_file() {
            limit = file ~ /^tests\// ? 800 : 600
            if (lines > limit) {
                found(file ": " lines " lines, at most " limit)
            }
        }
        FNR == 1 {
            if (file != "") {
                close_file()
            }
            file = FILENAME
            is_c = file ~ /\.(c|h|cpp|cu|comp|glsl)$/
            start = 0
        }
        {
            lines = FNR
            text = $0
            gsub(/[\200-\277]/, "", text) # continuation bytes: count characters
            if (is_c && length(text) > 100) {
                found(file ":" FNR ": " length(text) " columns, at most 100")
            }
        }
        is_c && /^\{/ {
            start = FNR
        }
        is_c && /^\}/ && start {
            if (FNR - start - 1 > 100) {
                found(file ":" start ": a function of " FNR - start - 1 " lines, at most 100")
            }
            start = 0
        }
        END {
            close_file()
            exit n_found > 0
        }'
