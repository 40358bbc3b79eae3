#!/bin/sh
# check_layers.sh - no #include breaks the table of layers.
#
# SPDX-License-Identifier: MIT
. tests/tree/files.sh

tree_files '*.[ch]' '*.cu' | grep -E '^(src|include|examples)/' |
    tr '\n' '\0' | xargs -0 awk -f tests/tree/check_layers.awk
