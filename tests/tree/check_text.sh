#!/bin/sh
# check_text.sh - no tabs, trailing blanks, carriage returns or missing last newlines; a licence
# line in each source file; no notes to self; no path above the repository; prose and comments of at
# most 100 columns.
#
# SPDX-License-Identifier: MIT
. tests/tree/files.sh

bad=0

# report MESSAGE: for each path on stdin.
report() {
    while IFS= read -r file; do
        printf '%s: %s\n' "$file" "$1"
    done
}

list=$(mktemp)
out=$(mktemp)
trap 'rm -f "$list" "$out"' EXIT

tree_files '*.[ch]' '*.cu' '*.comp' '*.glsl' '*.sh' '*.awk' '*.mjs' '*.cmake' '*.in' '*.md' '*.json' '*.txt' run .clang-format \
    .gitignore Makefile LICENSE | grep -v '/corpus/' >"$list"
tab=$(printf '\t')
cr=$(printf '\r')
{
    tr '\n' '\0' <"$list" | xargs -0 grep -nE "[ $tab]+\$" /dev/null || true
    tr '\n' '\0' <"$list" | xargs -0 grep -n "$cr" /dev/null || true
    grep -v '\(^\|/\)Makefile$' "$list" | tr '\n' '\0' | xargs -0 grep -n "$tab" /dev/null || true
    # A process for each file only where one of their last bytes is no newline.
    if tr '\n' '\0' <"$list" | xargs -0 tail -q -c 1 | grep -q .; then
        while IFS= read -r file; do
            [ -z "$(tail -c 1 "$file")" ] || printf '%s: no newline at the end\n' "$file"
        done <"$list"
    fi
    grep -E '\.([ch]|cu|comp|glsl|sh|awk|mjs)$|/run$' "$list" | tr '\n' '\0' |
        xargs -0 grep -L 'SPDX-License-Identifier: MIT' | report 'no SPDX-License-Identifier line'
    # Written so that this line does not find itself.
    grep -E '\.([ch]|cu|comp|glsl|sh|awk|mjs|cmake)$' "$list" | tr '\n' '\0' |
        xargs -0 grep -nE '\<(TO''DO|FIX''ME|XX''X)\>' /dev/null || true
    tr '\n' '\0' <"$list" | xargs -0 grep -nE 'SOURCE_DIR[}) ]*"?/\.\.|root, "\.\."|\.\./sha''red/' /dev/null || true
} >"$out"
# Prose at most 100 columns wide: tables, code in fences, pictures and headings may be wider.
grep -E '(^|/)(docs/[^/]*|README|CONTRIBUTING|SECURITY|CHANGELOG)\.md$' "$list" | while IFS= read -r file; do
    LC_ALL=C awk '
        /^ *```/ { in_code = !in_code }
        {
            text = $0
            gsub(/[\200-\277]/, "", text)
        }
        !in_code && length(text) > 100 && !/^ *[|!#<]/ && !/^ *\[[^]]*\]\([^)]*\)$/ {
            printf "%s:%d: %d columns, at most 100\n", FILENAME, FNR, length(text)
        }' "$file"
done >>"$out"
# Lines of comments at most 100 columns wide, as in C (check_sizes.sh); lines of code may be wider.
# The bytes of cmake/llama_common name a build of llama.cpp, which a change of its comments would
# repeat.
# The dollars are awk's.
# shellcheck disable=SC2016
tree_files '*.sh' '*.awk' '*.mjs' '*.cmake' '*.in' '*.supp' CMakeLists.txt Makefile |
    grep -v '^cmake/llama_common/' | tr '\n' '\0' | LC_ALL=C xargs -0 awk '
        {
            text = $0
            gsub(/[\200-\277]/, "", text)
        }
        length(text) > 100 && (FILENAME ~ /\.mjs$/ ? /^ *(\/\/|\/?\*)/ : /^ *#/) {
            printf "%s:%d: a comment of %d columns, at most 100\n", FILENAME, FNR, length(text)
        }' >>"$out"
cat "$out"
bad=$(wc -l <"$out")
finish "$bad" "findings"
