#!/bin/sh
# gpu_check.sh BUILD DEVICE [OPTION] - scripts/gpu-check.sh with the programs of a build folder, in
# small sizes: whether each row of its table has a figure. How large the figures are says nothing
# here. Skipped (77) where there is no such device.
#
# SPDX-License-Identifier: MIT
set -eu

cd "$(dirname "$0")/../.."
table=$(mktemp)
peers=$(mktemp -d)
trap 'rm -rf "$table" "$peers"' EXIT

# In place of llama.cpp's benchmarks: figures in the form of theirs, if they get the arguments.
cat >"$peers/llama-bench" <<'END'
#!/bin/sh
case " $* " in
*" -d 0,256 "*" -ctk q8_0 "* | *" -d 0,256 "*" -ctk q4_0 "*) ;;
*) exit 1 ;;
esac
for depth in 0 256; do
    printf '  {\n    "n_depth": %s,\n    "avg_ts": 50.000000,\n    "stddev_ts": 0.0\n  },\n' "$depth"
done
END
cat >"$peers/llama-batched-bench" <<'END'
#!/bin/sh
case " $* " in
*" -npp 256 -ntg 2 -npl 2 "*) ;;
*) exit 1 ;;
esac
echo '{"pp": 256, "tg": 2, "pl": 2, "speed_pp": 1000.0, "t_tg": 0.1, "speed_tg": 40.000000, "t": 1.0}'
END
chmod +x "$peers"/*

status=0
sh scripts/gpu-check.sh --quick --from "$1" --device "$2" --peers "$peers" --models "$peers/models" ${3:+"$3"} >"$table" || status=$?
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
speed='[0-9]+\.[0-9]+ ms/token'
ratio='[0-9]+\.[0-9]+x'
expect "pages that come beside steps at 1024 tokens; the steps' speed : alone" "$rate" "$share"
# With layers on the device, where ggml's backend was built.
there=', products on the CPU'
if grep -q 'layers there' "$table"; then
    there=
fi
for format in f16 q8 q4; do
    expect "attention at 1024 tokens, $format : copy rate within the device" "$rate" "$share"
    for depth in 0 256; do
        expect "135M, decode at depth $depth, $format : --device cpu" "$speed" "$ratio"
        [ -n "$there" ] || expect "135M, decode at depth $depth, $format, layers there : --device cpu" "$speed" "$ratio"
        [ "$format" = f16 ] || expect "8B, decode at depth $depth, $format$there : llama.cpp" "$speed" "$ratio"
    done
    [ "$format" = f16 ] ||
        expect "8B, 2 sequences after a common text of 256 tokens, $format$there : llama.cpp" "$speed" "$ratio"
done
expect "7B, weights in f16, decode at depth 256, q8$there" "$speed" '[0-9]+\.[0-9]+ GB'
[ -z "$there" ] || expect 'decode with layers on the device' 'left out: .*' ''
expect 'conformance suite' 'left out by --quick' ''
# The head of the table has two lines.
[ "$(grep -c '^|' "$table")" -eq $((n_rows + 2)) ] || {
    echo "the table has other rows than $n_rows" >&2
    exit 1
}

for model in 8b 7b small; do
    [ -s "$peers/models/quick/$model.gguf" ] || {
        echo "the model $model was not kept" >&2
        exit 1
    }
done

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
