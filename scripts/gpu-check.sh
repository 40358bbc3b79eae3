#!/bin/sh
# gpu-check.sh - tests and measures a card (or Mesa's lavapipe) in one go of at most eight minutes,
# without a network, and prints a table for each interface that the card has (Vulkan, CUDA).
# docs/gpu.md says what its rows mean.
#
#   scripts/gpu-check.sh [OPTION...]             build here, then check
#   scripts/gpu-check.sh --pack DIR              build here, and put all that a machine with a card
#                                                needs into DIR, this script included
#   DIR/gpu-check.sh [OPTION...] [--from DIR]    there: nothing is built or fetched
#
#   --quick        small sizes, and without the conformance suite: whether all of it runs
#   --device NAME  one device: vulkan0, vulkan1, ..., cuda0, cuda1, ...; default: vulkan0 and cuda0
#   --from DIR     the programs of a pack, or of a build folder
#   --models DIR   models are made there (18 GB) and kept; default: made and removed
#   --host-layers  layers of models stay on the CPU, also where ggml's backend is there
#   --peers DIR    llama-bench and llama-batched-bench of llama.cpp for the device's interface;
#                  default: those that `scripts/setup.sh peers vulkan` has built
#
# The eight minutes begin when the programs are built. Rows come in the order of their worth, so the
# limit takes the others. The programs of a pack are compiled for processors like this machine's.
# Exit status: 0 all rows have a figure, 1 one has none, 77 there is no device.
#
# SPDX-License-Identifier: MIT
set -eu

LIMIT_S=480
PROGRAMS="quire make_gguf bench_device"
SUITES="test_device_vulkan test_device_cuda" # those that the build has
PEERS="llama-bench llama-batched-bench"
devices="vulkan0 cuda0"
from=
pack=
quick=
models=
peers=
host_layers=

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
    --host-layers) host_layers=1 ;;
    --device) devices=${2:?--device needs a name} && shift ;;
    --from) from=$(cd "${2:?--from needs a folder}" && pwd) && shift ;;
    --pack) pack=${2:?--pack needs a folder} && shift ;;
    --models) mkdir -p "${2:?--models needs a folder}" && models=$(cd "$2" && pwd) && shift ;;
    --peers) peers=$(cd "${2:?--peers needs a folder}" && pwd) && shift ;;
    *) die "unknown option $1: --quick, --device NAME, --from DIR, --pack DIR, --models DIR, --peers DIR, --host-layers" ;;
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

# find_peer INTERFACE NAME: llama.cpp's program for cards of the interface.
find_peer() {
    for place in ${peers:+"$peers"} "$from/peers-$1"; do
        [ ! -x "$place/$2" ] || {
            printf '%s\n' "$place/$2"
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
    # The peer belongs to ggml's backend, without which Quire's own layers are not on the card.
    prefix=$(scripts/setup.sh prefix)
    [ -d "$prefix/quire-ggml-cuda" ] || say "without layers on the card by CUDA: scripts/setup.sh cuda, then once more"
    if [ -d "$prefix/quire-ggml-vulkan" ]; then
        ln -sfn "$(scripts/setup.sh peers vulkan)" "$root/build/peers-vulkan"
    else
        say "without llama.cpp on the card: scripts/setup.sh vulkan, then once more"
    fi
}

# Libraries that a program loads, but for those that belong to the machine's C library.
libraries_of() {
    ldd "$1" | awk '$3 ~ /^\// { print $3 }' |
        grep -v -E '/(libc|libm|libpthread|libdl|librt|libresolv|ld-linux[^/]*)\.so'
}

# pack_program PATH TO: the program and its libraries.
pack_program() {
    cp -L "$1" "$2"
    [ "$(head -c 2 "$2")" = '#!' ] || strip "$2"
    for library in $(libraries_of "$1"); do
        cp -L "$library" "$pack/lib/"
    done
}

pack_all() {
    mkdir -p "$pack/bin" "$pack/lib"
    for name in $PROGRAMS $SUITES; do
        program=$(find_program "$name") || case $name in
        test_device_*) continue ;;
        *) die "$name is not built" ;;
        esac
        pack_program "$program" "$pack/bin/$name"
    done
    for name in $PEERS; do
        program=$(find_peer vulkan "$name") || continue
        mkdir -p "$pack/peers-vulkan"
        pack_program "$program" "$pack/peers-vulkan/$name"
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
models=${models:-$work}
[ -z "$quick" ] || models=$models/quick
mkdir -p "$models"
n_missing=0
started=$(date +%s)

# ---- steps ----

# run_at SECONDS PROGRAM ARGUMENT...: run the program at this path within SECONDS and within the
# remaining time of all; prints its stdout.
run_at() {
    left=$((LIMIT_S - $(date +%s) + started))
    [ "$left" -gt 1 ] || {
        echo "the $LIMIT_S seconds are over" >"$log"
        return 124
    }
    [ "$1" -ge "$left" ] || left=$1
    shift
    timeout "$left" "$@" 2>"$log"
}

# run SECONDS PROGRAM ARGUMENT...: the same with a program of ours.
run() {
    limit=$1
    program=$(find_program "$2") || {
        echo "$2 is not there" >"$log"
        return 1
    }
    shift 2
    run_at "$limit" "$program" "$@"
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

# per_token SPEED: of tokens per second.
per_token() {
    awk -v x="$1" 'BEGIN { printf "%.2f ms/token", 1000 / x }'
}

# ratio_of SPEED OTHER: how many times the other speed it is; nothing without one.
ratio_of() {
    [ -z "$2" ] || awk -v x="$1" -v y="$2" 'BEGIN { printf "%.2fx", x / y }'
}

# model NAME ARGUMENT...: make it, unless it is there. Large ones have the same numbers again and
# again, since random numbers of their own take minutes.
model() {
    file=$models/$1
    shift
    [ -s "$file" ] || run 120 make_gguf "$@" -o "$file" >/dev/null || {
        status=$?
        rm -f "$file"
        return "$status"
    }
}

# ---- copies and attention ----

# Lines of bench_device: KIND WHICH BYTES_PER_SECOND SHARE. Returns 1 where there is no such device.
measure_device() {
    status=0
    run 150 bench_device --device "$device" --tokens "$tokens" --layers "$layers" --seconds "$seconds" \
        >"$work/device" || status=$?
    absent='there is no (device|Vulkan|CUDA)|(Vulkan|CUDA) has no driver|is without (Vulkan|CUDA)'
    if [ "$status" -ne 0 ] && grep -m 1 -E "$absent" "$log" >&2; then
        return 1
    fi
    sed -n 's/^device //p' "$work/device" >"$title"
    for line in "copy within" "copy in" "copy out" "pages in" "pages out" "pinned in" "pinned out" "attention f16" \
        "attention q8" "attention q4" "beside q8"; do
        case $line in
        "copy within") what="copy rate within the device" ;;
        "copy in") what="copy rate to the device" ;;
        "copy out") what="copy rate from the device" ;;
        "pages in") what="pages host -> device : copy rate" ;;
        "pages out") what="pages device -> host : copy rate" ;;
        "pinned in") what="pinned pages host -> device : copy rate" ;;
        "pinned out") what="pinned pages device -> host : copy rate" ;;
        "beside q8") what="pages that come beside steps at $tokens tokens; the steps' speed : alone" ;;
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

# ---- the suite ----

# Of the first device of the interface.
test_device() {
    if [ -n "$quick" ]; then
        row "conformance suite" "left out by --quick"
        return
    fi
    status=0
    run 150 "test_device_$interface" >"$work/suite" || status=$?
    n_passed=$(grep -c '^\[       OK' "$work/suite" || true)
    if [ "$status" -ne 0 ]; then
        grep '^\[  FAILED' "$work/suite" | tail -n 1 >>"$log" || true
        missing "conformance suite" "$status"
    else
        row "conformance suite" "$n_passed tests passed"
    fi
}

# ---- models ----

# speeds_of FORMATS DEPTHS MODEL ARGUMENT...: lines of a format, a depth and tokens per second.
speeds_of() {
    formats=$1
    depths=$2
    file=$models/$3
    shift 3
    run 90 quire bench -m "$file" --kv "$formats" -p 0 -n "$n_gen" -d "$depths" -r 1 --json "$@" | awk -F'[:,]' '
        { gsub(/[ "]/, "") }
        $1 == "kv" { kv = $2 }
        $1 == "depth" { depth = $2 }
        $1 == "tokens_per_second" { print kv, depth, $2 }'
}

# speed_in FILE FORMAT DEPTH: the third word of that line.
speed_in() {
    awk -v f="$2" -v d="$3" '$1 == f && $2 == d { print $3; exit }' "$1"
}

# How many layers of a model can be on the device: `ngl`; `products` says in rows that none can.
layers_find() {
    ngl=999
    products=
    model tiny.gguf --shape tiny-llama --type q8_0 --ctx 1024 || return 0
    speeds_of q8 0 tiny.gguf --device "$device" -ngl 999 >/dev/null || true
    if [ -n "$host_layers" ] || grep -q 'no backend of ggml' "$log"; then
        ngl=0
        products=", products on the CPU"
    fi
}

# peer_decode FORMAT: llama.cpp's tokens per second at both depths, in that form.
peer_decode() {
    peer=$(find_peer "$interface" llama-bench) || return 0
    run_at 60 "$peer" -m "$models/8b.gguf" -p 0 -n "$n_gen" -d "0,$depth" -fa on -ctk "$1_0" -ctv "$1_0" -ngl 999 \
        -sm none -mg "${device##*[a-z]}" -r 1 -o json | awk -F'[:,]' -v kv="$1" '
        { gsub(/[ "]/, "") }
        $1 == "n_depth" { depth = $2 }
        $1 == "avg_ts" { print kv, depth, $2 }'
}

# peer_sequences FORMAT: its tokens per second of all sequences together.
peer_sequences() {
    peer=$(find_peer "$interface" llama-batched-bench) || return 0
    run_at 90 "$peer" -m "$models/8b.gguf" -c $((depth + n_seqs * (n_gen + 1))) -npp "$depth" -ntg "$n_gen" \
        -npl "$n_seqs" -pps -kvu -fa on -ctk "$1_0" -ctv "$1_0" -ngl 999 -sm none -mg "${device##*[a-z]}" \
        --output-format jsonl | sed -n "s/.*\"speed_tg\": *\\([0-9.e+]*\\).*/$1 0 \\1/p"
}

# beside_peer WHAT STATUS FILE FORMAT DEPTH: a row of the speed in FILE beside that in FILE.peer.
beside_peer() {
    speed=$(speed_in "$3" "$4" "$5")
    if [ -z "$speed" ]; then
        missing "$1" "$2"
        return
    fi
    row "$1" "$(per_token "$speed")" "$(ratio_of "$speed" "$(speed_in "$3.peer" "$4" "$5")")"
}

# A model of 8B beside llama.cpp on the same card: one sequence, then several after a common text.
measure_8b() {
    status=0
    # The options are words.
    # shellcheck disable=SC2086
    model 8b.gguf $shape_8b --ctx $((depth + 1024)) || status=$?
    if [ "$status" -ne 0 ]; then
        missing "8B" "$status"
        return
    fi
    speeds_of q8,q4 "0,$depth" 8b.gguf --device "$device" -ngl "$ngl" >"$work/8b" || status=$?
    : >"$work/8b.peer"
    for format in q8 q4; do
        peer_decode "$format" >>"$work/8b.peer" || true
        for at in 0 "$depth"; do
            beside_peer "8B, decode at depth $at, $format$products : llama.cpp" "$status" "$work/8b" "$format" "$at"
        done
    done
    status=0
    speeds_of q8,q4 0 8b.gguf --device "$device" -ngl "$ngl" --sequences "$n_seqs" --shared-prefix "$depth" \
        >"$work/seqs" || status=$?
    : >"$work/seqs.peer"
    for format in q8 q4; do
        peer_sequences "$format" >>"$work/seqs.peer" || true
        beside_peer "8B, $n_seqs sequences after a common text of $depth tokens, $format$products : llama.cpp" "$status" \
            "$work/seqs" "$format" 0
    done
}

# A model of 7B with weights in f16, and the bytes that weights and KV take on the device.
measure_7b() {
    what="7B, weights in f16, decode at depth $depth, q8$products"
    status=0
    # shellcheck disable=SC2086
    model 7b.gguf $shape_7b --ctx $((depth + 1024)) || status=$?
    [ "$status" -ne 0 ] || run 90 quire bench -m "$models/7b.gguf" --device "$device" -ngl "$ngl" --kv q8 -p 0 \
        -n "$n_gen" -d "$depth" -r 1 --json >"$work/7b" || status=$?
    speed=$(sed -n 's/^ *"tokens_per_second": \([0-9.e+]*\),*$/\1/p' "$work/7b" 2>/dev/null || true)
    if [ -z "$speed" ]; then
        missing "$what" "$status"
    else
        row "$what" "$(per_token "$speed")" "$(sed -n 's/^ *"kv_extent_bytes": \([0-9]*\),*$/\1/p' "$work/7b" |
            awk -v w="$(wc -c <"$models/7b.gguf")" '{ printf "%.1f GB", (w + $1) / 1e9 }')"
    fi
    [ "$models" != "$work" ] || rm -f "$work/7b.gguf" # the largest
}

# small_rows WHERE STATUS: decode on the device beside the CPU.
small_rows() {
    for format in f16 q8 q4; do
        for at in 0 "$depth"; do
            what="135M, decode at depth $at, $format$1 : --device cpu"
            speed=$(speed_in "$work/small" "$format" "$at")
            cpu=$(speed_in "$work/small-cpu" "$format" "$at")
            if [ -z "$speed" ] || [ -z "$cpu" ]; then
                missing "$what" "$2"
            else
                row "$what" "$(per_token "$speed")" "$(ratio_of "$speed" "$cpu")"
            fi
        done
    done
}

# Decode of a small model on the device, without and with its layers there, and how much faster or
# slower that is than on the CPU.
measure_small() {
    # shellcheck disable=SC2086
    model small.gguf $shape_small --ctx $((depth + 1024)) || say "no model: $(tail -n 1 "$log")"
    [ -s "$work/small-cpu" ] || speeds_of f16,q8,q4 "0,$depth" small.gguf >"$work/small-cpu" || true
    status=0
    speeds_of f16,q8,q4 "0,$depth" small.gguf --device "$device" >"$work/small" || status=$?
    small_rows "" "$status"
    if [ "$ngl" -eq 0 ]; then
        row "decode with layers on the device" "left out: after scripts/setup.sh $interface"
        return
    fi
    status=0
    speeds_of f16,q8,q4 "0,$depth" small.gguf --device "$device" -ngl "$ngl" >"$work/small" || status=$?
    small_rows ", layers there" "$status"
}

# ---- all of it ----

tokens=32768 layers=8 seconds=0.5 depth=32768 n_gen=16 n_seqs=16
shape_8b="--shape llama-8b --type q4_K --type-more q6_K --distinct 1"
shape_7b="--shape llama2-7b --type f16 --distinct 1"
shape_small="--shape smollm2-135m --type q8_0"
[ -z "$quick" ] || {
    tokens=1024 layers=1 seconds=0.01 depth=256 n_gen=2 n_seqs=2
    shape_8b="--shape tiny-llama --embd 256 --heads 8 --type q4_K --type-more q6_K --distinct 1"
    shape_7b="--shape tiny-llama --type f16 --distinct 1"
    shape_small="--shape tiny-llama --type q8_0"
}

# with DEVICE STEP...: the steps of a device, whose rows and title are files of its own.
with() {
    device=$1
    interface=${device%%[0-9]*}
    rows=$work/rows-$device
    title=$work/title-$device
    shift
    step_started=$(date +%s)
    for step in "$@"; do
        "$step" || return 1
    done
    echo $(($(date +%s) - step_started)) >>"$work/seconds-$device"
}

# The worth of a row is the same on all devices.
found=
for device in $devices; do
    if with "$device" measure_device; then
        found="$found $device"
    fi
done
for device in $found; do
    with "$device" test_device
done
for device in $found; do
    with "$device" layers_find measure_8b
done
for device in $found; do
    with "$device" layers_find measure_7b measure_small
done
n_devices=0
for device in $found; do
    [ "$n_devices" -eq 0 ] || echo
    n_devices=$((n_devices + 1))
    printf '# %s, %s, %s s\n\n| what | figure | share |\n|---|---:|---:|\n' "$(cat "$work/title-$device")" \
        "$(date -u +%Y-%m-%d)" "$(awk '{ s += $1 } END { print s }' "$work/seconds-$device")"
    cat "$work/rows-$device"
done
[ "$n_devices" -gt 0 ] || exit 77
[ "$n_missing" -eq 0 ] || die "$n_missing rows have no figure"
