#!/bin/sh
# check_mentions.sh - comments name no file that the tree does not have.
#
# SPDX-License-Identifier: MIT
. tests/tree/files.sh

list=$(mktemp)
trap 'rm -f "$list"' EXIT
tree_files '*' >"$list"
tree_files '*.[ch]' '*.cpp' '*.cu' '*.comp' '*.glsl' '*.mjs' '*.sh' '*.awk' CMakeLists.txt |
    grep -E '^(src|include|tests|bench|examples)/' | tr '\n' '\0' |
    xargs -0 awk -f tests/tree/check_mentions.awk "$list"
