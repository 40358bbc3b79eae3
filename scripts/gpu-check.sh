#!/bin/sh
# gpu-check.sh - tests and measures a card (or Mesa's lavapipe) in one go of at most eight minutes,
# without a network, and prints a table for each interface that the card has (Vulkan, CUDA).
# docs/gpu.md says what its rows mean.
#
#   scripts/gpu-check.sh [--quick] [--device NAME]              build here, then check
#   scripts/gpu-check.sh --pack DIR                             build here, and put all that a
#                                                               machine with a card needs into DIR,
#                                                               this script included
#   DIR/gpu-check.sh [--quick] [--device NAME] [--from DIR]     there: nothing is built or fetched
#
#   --quick        small sizes, and without the conformance suite: whether all of it runs
#   --device NAME  one device: vulkan0, vulkan1, ..., cuda0, cuda1, ...; default: vulkan0 and cuda0
#   --from DIR     the programs of a pack, or of a build folder
#
# The programs of a pack are compiled for processors like this machine's. Exit status: 0 all rows
# have a figure, 1 one has none, 77 there is no device.
#
# SPDX-License-Identifier: MIT
set -eu

LIMIT_S=480
PROGRAMS="quire make_gguf bench_device"
SUITES="test_device_vulkan test_device_cuda" # those that the build has
started=$(date +%s)
devices="vulkan0 cuda0"
from=
pack=
quick=

say() {
    printf 'gpu-check: %s\n' "$*" >&2
}

die() {
    say "$*"
    exit 1
}

while [ $# -gt 0 ]; do
    case $1 in
    --quick) quick=1 ;;
    --device) devices=${2:?--device needs a name} && shift ;;
    --from) from=$(cd "${2:?--from needs a folder}" && pwd) && shift ;;
    --pack) pack=${2:?--pack needs a folder} && shift ;;
    *) die "unknown option $1: --quick, --device NAME, --from DIR, --pack DIR" ;;
    esac
    shift
done

# ---- the programs ----

# find_program NAME: its path below $from.
find_program() {
    for place in "$from/bin/$1" "$from/$1" "$from/tests/$1" "$from/bench/$1"; do
        [ ! -x "$place" ] || [ -d "$place" ] || {
            printf '%s\n' "$place"
            return 0
        }
    done
    return 1
}

# In the checkout: measured programs are of the release preset, tests of debug.
build_all() {
    cd "$(dirname "$0")/.."
    root=$PWD
    TARGETS="quire make_gguf bench_device" scripts/build.sh release
    from=$root/build
    for suite in $SUITES; do
        if TARGETS=$suite scripts/build.sh debug 2>/dev/null; then
            ln -sf "$root/build-debug/tests/$suite" "$root/build/$suite"
        else
            say "$suite is not in this build: without Vulkan's glslc, or without clang for CUDA"
        fi
    done
}

# Libraries that a program loads, but for those that belong to the machine's C library.
libraries_of() {
    ldd "$1" | awk '$3 ~ /^\// { print $3 }' |
        grep -v -E '/(libc|libm|libpthread|libdl|librt|libresolv|ld-linux[^/]*)\.so'
}

pack_all() {
    mkdir -p "$pack/bin" "$pack/lib"
    for name in $PROGRAMS $SUITES; do
        program=$(find_program "$name") || case $name in
        test_device_*) continue ;;
        *) die "$name is not built" ;;
        esac
        cp -L "$program" "$pack/bin/$name"
        strip "$pack/bin/$name"
        for library in $(libraries_of "$program"); do
            cp -L "$library" "$pack/lib/"
        done
    done
    # Vulkan's loader is opened at run time.
    loader=$(ldconfig -p | awk '/libvulkan\.so\.1 / { print $NF; exit }')
    [ -z "$loader" ] || cp -L "$loader" "$pack/lib/"
    cp "$script" "$pack/gpu-check.sh"
    say "$pack: $(du -sm "$pack" | cut -f 1) MiB; there: sh $pack/gpu-check.sh"
}

script=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
if [ -z "$from" ] && [ -d "$(dirname "$script")/bin" ]; then
    from=$(dirname "$script")
elif [ -z "$from" ]; then
    build_all
fi
[ -z "$pack" ] || {
    pack_all
    exit 0
}
[ ! -d "$from/lib" ] || export LD_LIBRARY_PATH="$from/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP
log=$work/log
rows=$work/rows
n_missing=0

# ---- steps ----

# run SECONDS PROGRAM ARGUMENT...: run the program within SECONDS and within the remaining time of
# all; prints its stdout.
run() {
    left=$((LIMIT_S - $(date +%s) + started))
    [ "$left" -gt 1 ] || {
        echo "the $LIMIT_S seconds are over" >"$log"
        return 124
    }
    [ "$1" -ge "$left" ] || left=$1
    program=$(find_program "$2") || {
        echo "$2 is not there" >"$log"
        return 1
    }
    shift 2
    timeout "$left" "$program" "$@" 2>"$log"
}

# row WHAT FIGURE [SHARE]: of the table.
row() {
    printf '| %s | %s | %s |\n' "$1" "$2" "${3:-}" >>"$rows"
}

# missing WHAT STATUS: a row without a figure, and why.
missing() {
    n_missing=$((n_missing + 1))
    case $2 in
    124) row "$1" "none: no time was left" ;;
    132) row "$1" "none: compiled for another processor" ;;
    *) row "$1" "none: $(tail -n 1 "$log" | tr '|' '/' | cut -c 1-120)" ;;
    esac
}

# Of the first device of the interface.
test_device() {
    status=0
    run 240 "test_device_${device%%[0-9]*}" >"$work/suite" || status=$?
    n_passed=$(grep -c '^\[       OK' "$work/suite" || true)
    if [ "$status" -ne 0 ]; then
        grep '^\[  FAILED' "$work/suite" | tail -n 1 >>"$log" || true
        missing "conformance suite" "$status"
    else
        row "conformance suite" "$n_passed tests passed"
    fi
}

# Lines of bench_device: KIND WHICH BYTES_PER_SECOND SHARE. Returns 1 where there is no such device.
measure_device() {
    status=0
    run 150 bench_device --device "$device" --tokens "$tokens" --layers "$layers" --seconds "$seconds" \
        >"$work/device" || status=$?
    absent='there is no (device|Vulkan|CUDA)|(Vulkan|CUDA) has no driver|is without (Vulkan|CUDA)'
    if [ "$status" -ne 0 ] && grep -m 1 -E "$absent" "$log" >&2; then
        return 1
    fi
    title=$(sed -n 's/^device //p' "$work/device")
    for line in "copy within" "copy in" "copy out" "pages in" "pages out" "pinned in" "pinned out" "attention f16" "attention q8" \
        "attention q4"; do
        case $line in
        "copy within") what="copy rate within the device" ;;
        "copy in") what="copy rate to the device" ;;
        "copy out") what="copy rate from the device" ;;
        "pages in") what="pages host -> device : copy rate" ;;
        "pages out") what="pages device -> host : copy rate" ;;
        "pinned in") what="pinned pages host -> device : copy rate" ;;
        "pinned out") what="pinned pages device -> host : copy rate" ;;
        *) what="attention at $tokens tokens, ${line#attention } : copy rate within the device" ;;
        esac
        if figures=$(grep "^$line " "$work/device"); then
            # The dollars are awk's.
            # shellcheck disable=SC2086
            set -- $figures
            share=
            [ "$1" = copy ] || share=$(awk -v x="$4" 'BEGIN { printf "%.0f %%", 100 * x }')
            row "$what" "$(awk -v x="$3" 'BEGIN { printf "%.2f GB/s", x / 1e9 }')" "$share"
        else
            missing "$what" "$status"
        fi
    done
    return 0
}

# speeds_of DEVICE FORMAT LAYERS: tokens per second at each depth, one a line; with so many layers
# on the device.
speeds_of() {
    run 60 quire bench "$work/model.gguf" --device "$1" -ngl "$3" --kv "$2" -p 0 -n "$n_gen" -d "0,$depth" -r 1 --json |
        sed -n 's/^ *"tokens_per_second": \([0-9.e+]*\),*$/\1/p'
}

# decode_rows WHERE FORMAT STATUS: of the speeds on the device and on the CPU.
decode_rows() {
    for i in 1 2; do
        at=0
        [ "$i" = 1 ] || at=$depth
        what="decode at depth $at, $2$1 : --device cpu"
        speed=$(sed -n "${i}p" "$work/speeds")
        cpu=$(sed -n "${i}p" "$work/speeds-cpu-$2")
        if [ -z "$speed" ] || [ -z "$cpu" ]; then
            missing "$what" "$3"
            continue
        fi
        row "$what" "$(awk -v x="$speed" 'BEGIN { printf "%.2f ms/token", 1000 / x }')" \
            "$(awk -v x="$speed" -v y="$cpu" 'BEGIN { printf "%.2fx", x / y }')"
    done
}

# Decode on the device, without and with the model's layers there, and how much faster or slower
# that is than on the CPU.
measure_decode() {
    no_layers=
    # Shapes are words.
    # shellcheck disable=SC2086
    [ -s "$work/model.gguf" ] ||
        run 60 make_gguf $shape --type q8_0 --ctx $((depth + 1024)) -o "$work/model.gguf" >/dev/null ||
        say "no model: $(tail -n 1 "$log")"
    for format in f16 q8 q4; do
        [ -s "$work/speeds-cpu-$format" ] || speeds_of cpu "$format" 0 >"$work/speeds-cpu-$format" || true
        status=0
        speeds_of "$device" "$format" 0 >"$work/speeds" || status=$?
        decode_rows "" "$format" "$status"
        [ -z "$no_layers" ] || continue
        status=0
        speeds_of "$device" "$format" 999 >"$work/speeds" || status=$?
        if [ ! -s "$work/speeds" ] && grep -q 'no backend of ggml' "$log"; then
            no_layers="scripts/setup.sh vulkan builds ggml's backend"
            continue
        fi
        if [ ! -s "$work/speeds" ] && grep -q 'not a part of Quire' "$log"; then
            no_layers="-ngl is Vulkan's alone"
            continue
        fi
        decode_rows ", layers there" "$format" "$status"
    done
    [ -z "$no_layers" ] ||
        row "decode with layers on the device" "left out: $no_layers"
}

tokens=32768 layers=8 seconds=0.5 depth=32768 n_gen=16
shape="--shape smollm2-135m"
[ -z "$quick" ] || {
    tokens=1024 layers=1 seconds=0.01 depth=256 n_gen=2
    shape="--shape tiny-llama"
}
# The table of $device. Returns 1 where there is no such device.
check_device() {
    device_started=$(date +%s)
    title=$device
    : >"$rows"
    measure_device || return 1
    measure_decode
    if [ -n "$quick" ]; then
        row "conformance suite" "left out by --quick"
    else
        test_device
    fi
    printf '# %s, %s, %s s\n\n| what | figure | share |\n|---|---:|---:|\n' "$title" \
        "$(date -u +%Y-%m-%d)" $(($(date +%s) - device_started))
    cat "$rows"
}

n_devices=0
for device in $devices; do
    [ "$n_devices" -eq 0 ] || echo
    if check_device; then
        n_devices=$((n_devices + 1))
    fi
done
[ "$n_devices" -gt 0 ] || exit 77
[ "$n_missing" -eq 0 ] || die "$n_missing rows have no figure"
