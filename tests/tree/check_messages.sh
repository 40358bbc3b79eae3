#!/bin/sh
# check_messages.sh - docs/troubleshooting.md explains messages that the program says: each heading that
# is a message must stand in a string of the source. "..." stands for what a message fills in.
#
# SPDX-License-Identifier: MIT
. tests/tree/files.sh

page=docs/troubleshooting.md
text=$(mktemp)
found=$(mktemp)
trap 'rm -f "$text" "$found"' EXIT

# All sources as one line, adjacent strings joined.
tree_files '*.c' '*.h' | grep '^src/' | tr '\n' '\0' | xargs -0 cat | tr '\n' ' ' |
    sed 's/" *"//g; s/\\"/"/g' >"$text"
# Headings: ### `message`
# shellcheck disable=SC2016 # the backticks are the page's
sed -n 's/^### `\(.*\)`$/\1/p' "$page" >"$found"
LC_ALL=C awk -v page="$page" '
    NR == FNR { text = text $0; next }
    {
        n = split($0, parts, /\.\.\./)
        for (i = 1; i <= n; i++) {
            if (parts[i] ~ /[^ ]/ && index(text, parts[i]) == 0) {
                printf "%s: no message has \"%s\", of \"%s\"\n", page, parts[i], $0
            }
        }
    }' "$text" "$found" >"$found.bad"
cat "$found.bad"
bad=$(wc -l <"$found.bad")
rm -f "$found.bad"
[ "$(wc -l <"$found")" -gt 20 ] || {
    echo "$page: too few messages"
    exit 1
}
finish "$bad" "findings"
