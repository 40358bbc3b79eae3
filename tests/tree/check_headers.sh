#!/bin/sh
# check_headers.sh CC CXX - each public header compiles alone, twice included, as C11 and as C++17,
# and no header has a name of its own for something outside the quire_ namespace.
#
# SPDX-License-Identifier: MIT
. tests/tree/files.sh

cc=$1
cxx=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
flags="-Wall -Wextra -Wpedantic -Wundef -Werror -fsyntax-only -Iinclude"
n=0
for header in include/quire/*.h; do
    name=quire/${header##*/}
    printf '#include "%s"\n#include "%s"\ntypedef int header_test_type;\n' "$name" "$name" >"$dir/alone.c"
    cp "$dir/alone.c" "$dir/alone.cc"
    # The flags are a list of words.
    # shellcheck disable=SC2086
    "$cc" -std=c11 -Wstrict-prototypes $flags "$dir/alone.c"
    # shellcheck disable=SC2086
    "$cxx" -std=c++17 $flags "$dir/alone.cc"
    n=$((n + 1))
done
[ "$n" -gt 0 ]

# Every macro that our headers define (and the compiler or libc does not) begins with QUIRE_.
cat include/quire/*.h | sed -n 's/^ *# *define \([A-Za-z_][A-Za-z0-9_]*\).*/\1/p' | grep -vE '^(QUIRE_|X$)' && {
    echo "macros outside the namespace, see above"
    exit 1
}
exit 0
