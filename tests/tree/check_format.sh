#!/bin/sh
# check_format.sh - clang-format would change nothing. Other versions format some lines differently,
# so it is done with Debian 12's only.
#
# SPDX-License-Identifier: MIT
. tests/tree/files.sh

version=14
for program in "clang-format-$version" clang-format; do
    if "$program" --version 2>/dev/null | grep -q "version $version\\."; then
        tree_files '*.[ch]' | tr '\n' '\0' | xargs -0 "$program" --dry-run --Werror 2>&1
        exit 0
    fi
done
echo "clang-format $version is not installed"
exit 77
