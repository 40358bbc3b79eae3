#!/bin/sh
# check_messages.sh - docs/troubleshooting.md explains messages that the program says: each heading
# that is a message must stand in a file of the source. "..." stands for the parts that the program
# fills in: the texts between follow each other, at most 300 characters apart.
#
# SPDX-License-Identifier: MIT
. tests/tree/files.sh

page=docs/troubleshooting.md
text=$(mktemp)
found=$(mktemp)
trap 'rm -f "$text" "$found"' EXIT

# Each source as one line, adjacent strings joined.
# shellcheck disable=SC2016 # the dollar is awk's
tree_files '*.c' '*.h' | grep '^src/' | tr '\n' '\0' |
    LC_ALL=C xargs -0 awk 'FNR == 1 && NR > 1 { print "" } { printf "%s ", $0 } END { print "" }' |
    sed 's/" *"//g; s/\\"/"/g' >"$text"
# Headings: ### `message`
# shellcheck disable=SC2016 # the backticks are the page's
sed -n 's/^### `\(.*\)`$/\1/p' "$page" >"$found"
LC_ALL=C awk -v page="$page" '
    # Whether parts i to n stand in rest, each near the one before it.
    function follow(parts, n, i, rest,    at) {
        for (; i <= n; i++) {
            at = index(substr(rest, 1, 300 + length(parts[i])), parts[i])
            if (at == 0) {
                return 0
            }
            rest = substr(rest, at + length(parts[i]))
        }
        return 1
    }
    # Whether all parts stand in a file.
    function stands(parts, n, rest,    i, at) {
        for (i = 1; i <= n; i++) {
            if (index(rest, parts[i]) == 0) {
                return 0
            }
        }
        while ((at = index(rest, parts[1])) > 0) {
            rest = substr(rest, at + length(parts[1]))
            if (follow(parts, n, 2, substr(rest, 1, 4096))) {
                return 1
            }
        }
        return 0
    }
    NR == FNR { sources[++n_sources] = $0; next }
    {
        n_all = split($0, all, /\.\.\./)
        n = 0
        for (i = 1; i <= n_all; i++) {
            if (all[i] ~ /[^ ]/) {
                parts[++n] = all[i]
            }
        }
        for (s = 1; s <= n_sources && !stands(parts, n, sources[s]); s++) {
        }
        if (s > n_sources) {
            printf "%s: no message is \"%s\"\n", page, $0
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
