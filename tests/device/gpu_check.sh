#!/bin/sh
# gpu_check.sh BUILD DEVICE - scripts/gpu-check.sh with the programs of a build folder, in small
# sizes: whether each row of its table has a figure. How large the figures are says nothing here.
# Skipped (77) where there is no such device.
#
# SPDX-License-Identifier: MIT
set -eu

cd "$(dirname "$0")/../.."
table=$(mktemp)
trap 'rm -f "$table"' EXIT
status=0
sh scripts/gpu-check.sh --quick --from "$1" --device "$2" >"$table" || status=$?
cat "$table"
[ "$status" -eq 0 ] || exit "$status"

n_rows=0
# expect WHAT FIGURE SHARE: patterns of a row.
expect() {
    n_rows=$((n_rows + 1))
    grep -q -E "^\\| $1 \\| $2 \\| $3 \\|\$" "$table" || {
        echo "no row '$1' with '$2' and '$3'" >&2
        exit 1
    }
}
rate='[0-9]+\.[0-9]+ GB/s'
share='[0-9]+ %'

for way in within to from; do
    expect "copy rate $way the device" "$rate" ''
done
expect 'pages host -> device : copy rate' "$rate" "$share"
expect 'pages device -> host : copy rate' "$rate" "$share"
expect 'pinned pages host -> device : copy rate' "$rate" "$share"
expect 'pinned pages device -> host : copy rate' "$rate" "$share"
for format in f16 q8 q4; do
    expect "attention at 1024 tokens, $format : copy rate within the device" "$rate" "$share"
    for depth in 0 256; do
        expect "decode at depth $depth, $format : --device cpu" '[0-9]+\.[0-9]+ ms/token' '[0-9]+\.[0-9]+x'
    done
done
# With layers on the device, where ggml's backend was built.
if grep -q 'layers there' "$table"; then
    for format in f16 q8 q4; do
        for depth in 0 256; do
            expect "decode at depth $depth, $format, layers there : --device cpu" \
                '[0-9]+\.[0-9]+ ms/token' '[0-9]+\.[0-9]+x'
        done
    done
else
    expect 'decode with layers on the device' "left out: (scripts/setup.sh vulkan|-ngl is Vulkan's) .*" ''
fi
expect 'conformance suite' 'left out by --quick' ''
# The head of the table has two lines.
[ "$(grep -c '^|' "$table")" -eq $((n_rows + 2)) ] || {
    echo "the table has other rows than $n_rows" >&2
    exit 1
}

# Faults have one clear message.
refuse() {
    says=$1
    shift
    ! sh scripts/gpu-check.sh "$@" >"$table" 2>&1 || exit 1
    grep -q -e "$says" "$table" || {
        cat "$table"
        exit 1
    }
}
refuse 'unknown option --fast' --fast
refuse "there is no device 'tpu0'" --quick --from "$1" --device tpu0
