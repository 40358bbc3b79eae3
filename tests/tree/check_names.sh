#!/bin/sh
# check_names.sh - snake_case file names, each only once in the tree, so that a name says which
# file.
#
# SPDX-License-Identifier: MIT
. tests/tree/files.sh

out=$(mktemp)
trap 'rm -f "$out"' EXIT
tree_files '*.[ch]' '*.cu' | {
    grep -vE '/[a-z][a-z0-9_]*\.(c|h|cu)$' | sed 's/$/: not snake_case/' || true
} >"$out"
# A public header and the private module behind it may share a name's stem, not the name.
tree_files '*.[ch]' '*.cu' | sed 's|.*/||' | sort | uniq -d | while IFS= read -r name; do
    printf '%s: more than once:' "$name"
    tree_files "$name" | tr '\n' ' '
    printf '\n'
done >>"$out"
cat "$out"
finish "$(wc -l <"$out")" "findings"
