#!/bin/sh
# check_names.sh - snake_case file names, each only once in the tree, so that a name says which
# file. A header without a guard says by its name that several files, or one file several times,
# include it: _body.h (code) or _decl.h (declarations of a template, for each type).
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
GUARD='^#ifndef [A-Z0-9_]+_H$'
{
    tree_files '*.h' | grep -vE '_(body|decl)\.h$' | tr '\n' '\0' | xargs -0 grep -LE "$GUARD" |
        sed 's/$/: no guard, and not called _body.h or _decl.h/'
    tree_files '*_decl.h' | tr '\n' '\0' | xargs -0 grep -lE "$GUARD" /dev/null |
        sed 's/$/: a guard, but called _decl.h/'
} >>"$out"
cat "$out"
finish "$(wc -l <"$out")" "findings"
