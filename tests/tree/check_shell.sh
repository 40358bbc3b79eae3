#!/bin/sh
# check_shell.sh - the shell scripts parse and shellcheck has nothing to say about them.
#
# SPDX-License-Identifier: MIT
. tests/tree/files.sh

tree_files '*.sh' run | while IFS= read -r script; do
    sh -n "$script"
done
if ! command -v shellcheck >/dev/null 2>&1; then
    echo "shellcheck is not installed"
    exit 77
fi
tree_files '*.sh' run | tr '\n' '\0' | xargs -0 shellcheck -x
