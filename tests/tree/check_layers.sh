#!/bin/sh
# check_layers.sh - no #include breaks the table of layers, and C++ stays in the files that
# docs/architecture.md names.
#
# SPDX-License-Identifier: MIT
. tests/tree/files.sh

# Each C++ file of src, as the page lists them.
cpp=$(tree_files '*.cpp' '*.cc' '*.cxx' '*.hpp' | grep '^src/' | sort)
# shellcheck disable=SC2016 # the backticks are the page's
named=$(grep -o '`src/[a-z0-9_/]*\.cpp`' docs/architecture.md | tr -d '\140' | sort -u)
[ "$cpp" = "$named" ] || {
    printf 'C++ files of src:\n%s\ndocs/architecture.md names:\n%s\n' "$cpp" "$named"
    exit 1
}
tree_files '*.[ch]' '*.cpp' '*.cu' | grep -E '^(src|include|examples)/' |
    tr '\n' '\0' | xargs -0 awk -f tests/tree/check_layers.awk
