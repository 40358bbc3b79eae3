#!/bin/sh
# check_mentions_self.sh - the checker of file names in comments finds each kind of wrong name, and
# reports no right one.
#
# SPDX-License-Identifier: MIT
set -eu

checker=$PWD/tests/tree/check_mentions.awk
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
printf '%s\n' README.md docs/gpu.md src/core/pool/pool.h src/core/pool/pool.c \
    src/device/vulkan/attn.comp tests/run.sh >list

# try STATUS FILE TEXT: the checker must return STATUS for a FILE that holds TEXT.
try() {
    printf '%s\n' "$3" >"$2"
    rc=0
    awk -f "$checker" list "$2" >out || rc=$?
    if [ "$rc" -ne "$1" ] || [ "$(wc -l <out)" -ne "$1" ]; then
        printf '%s with %s: expected %s, got %s\n' "$2" "$3" "$1" "$rc"
        cat out
        exit 1
    fi
    rm "$2"
}

try 0 x.c '/* see pool.h and core/pool/pool.c. */'
try 0 x.h '/* README.md, docs/gpu.md: gpu.md. */'
try 0 x.comp '// as attn.comp'
try 0 x.sh '# runs run.sh, tests/run.sh'
try 0 x.c '/* *.c, pool_*.h, _body.h, /usr/include/none.h, PAGE.mjs, none.html, none.c_str */'
try 0 x.c '/* llama.cpp, llama-vocab.cpp, ggml.h, ggml-cpu.h, docs/gguf.md */'
try 0 x.c '#include "none.h"'
try 0 x.c 'open("none.h"); call(none.c); /* pool.c */ put("/* none.c */");'
try 0 x.sh 'cat none.sh'
try 1 x.c '/* see none.h. */'
try 1 x.c 'int n; /* see pool/none.c */'
try 1 x.c 'int n; // see none.c'
try 1 x.c '/* see core/pool.h */'
try 1 x.c '/* see ool.h */'
try 1 x.c '/* see docs/none.md */'
try 1 x.c '/* see NONE.md */'
try 1 x.c '/* see gguf_none.h */'
try 1 x.c '/* first
 * second: none.c
 */'
try 1 x.c "put('\"'); /* none.c */"
try 1 x.cpp '// none.cpp'
try 1 x.glsl '// none.comp'
try 1 x.mjs '// none.mjs'
try 1 x.cu '// none.cu'
try 1 x.sh '# see none.sh'
try 1 CMakeLists.txt '    # see none.awk'

# A comment that one file leaves open is none of the next.
printf '/* open\n' >a.c
printf 'none.c\n' >b.c
awk -f "$checker" list a.c b.c
