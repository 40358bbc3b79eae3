#!/bin/sh
# check_layers_self.sh - the layer checker finds each kind of wrong include, and reports no right
# one.
#
# SPDX-License-Identifier: MIT
set -eu

checker=$PWD/tests/tree/check_layers.awk
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
mkdir -p src/engine/loop src/engine/adapt src/server src/base src/core/cache src/core/prefix src/codec \
    src/cli src/extra include/quire examples

# try STATUS FILE LINE: the checker must return STATUS for a FILE that holds LINE.
try() {
    printf '%s\n' "$3" >"$2"
    rc=0
    awk -f "$checker" "$2" >out || rc=$?
    if [ "$rc" -ne "$1" ]; then
        printf '%s with %s: expected %s, got %s\n' "$2" "$3" "$1" "$rc"
        exit 1
    fi
    rm "$2"
}

try 0 src/core/x.c '#include "base/check.h"'
try 0 src/core/x.c '#include "quire/codec.h"'
try 0 src/cli/x.c '#include "core/pool/pool.h"'
try 0 include/quire/types.h '#include <stdint.h>'
try 0 examples/x.c '#include "quire/attn.h"'
try 0 src/engine/adapt/x.c '#include "engine/loop/loop.h"'
try 0 src/engine/x.c '#include "engine/adapt/adapt.h"'
try 0 src/engine/loop/x.c '#include "engine/engine.h"'
try 0 src/server/x.c '#include "trace/online/record.h"'
try 0 src/server/x.c '#include "trace/trace.h"'
try 1 src/engine/loop/x.c '#include "engine/adapt/adapt.h"'
try 1 src/engine/x.h '#include "engine/adapt/adapt.h"'
try 1 src/engine/adapt/x.c '#include "engine/loop/loop_object.h"'
try 1 src/server/x.c '#include "engine/loop/loop.h"'
try 1 src/cli/x.c '#include "engine/adapt/sizer.h"'
try 1 src/engine/adapt/x.c '#include "trace/sim/sim.h"'
try 1 src/server/x.c '#include "trace/offline/load.h"'
try 1 src/base/x.c '#include "core/pool/pool.h"'
try 1 src/core/x.c '#include "attn/kernels.h"'
try 1 src/core/x.c '#  include "quire/attn.h"'
try 1 src/codec/x.c '#include <ggml.h>'
try 1 src/cli/x.c '#include <llama.h>'
try 1 src/core/x.c '#include "pool.h"'
try 0 src/core/prefix/x.c '#include "core/cache/charge.h"'
try 1 src/core/cache/x.c '#include "core/prefix/prefix_node.h"'
try 1 src/core/cache/x.c '#include "quire/prefix.h"'
try 1 src/extra/x.c '#include <stdio.h>'
try 1 include/quire/types.h '#include <stdio.h>'
try 1 include/quire/types.h '#include "base/check.h"'
try 1 include/quire/types.h '#include "quire/nosuch.h"'
try 1 examples/x.c '#include "base/check.h"'
