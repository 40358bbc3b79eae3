# shellcheck shell=sh
# files.sh - the files of the tree, for the checks beside it. Sourced from the repository's root.
#
# SPDX-License-Identifier: MIT
set -eu

# tree_files PATTERN...: paths with names that match a shell pattern, one per line; without git (a
# source archive) everything outside build folders.
tree_files() {
    if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git ls-files --cached --others --exclude-standard
    else
        find . -type f ! -path './build*' ! -path './.git/*' | sed 's|^\./||'
    fi | sort -u | while IFS= read -r file; do
        [ -f "$file" ] || continue
        for pattern in "$@"; do
            # The pattern is meant as a pattern.
            # shellcheck disable=SC2254
            case ${file##*/} in
            $pattern)
                printf '%s\n' "$file"
                break
                ;;
            esac
        done
    done
}

# finish COUNT WHAT: fail when something was found or nothing was looked at.
finish() {
    if [ "$1" -ne 0 ]; then
        printf '%s %s\n' "$1" "$2"
        exit 1
    fi
}
