#!/bin/sh
# dashboard.sh QUIRE MAKE_GGUF - the dashboard in a headless browser (dashboard.mjs). 77 = skipped, with the
# reason. The model is stories260K, or a generated one where that is missing.
#
# SPDX-License-Identifier: MIT
set -eu

skip() {
    echo "skipped: $*"
    exit 77
}

playwright=$(scripts/setup.sh browser 2>&1) || skip "no browser: $(printf '%s' "$playwright" | tail -n 1)"
playwright=$(printf '%s' "$playwright" | tail -n 1)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
model=${QUIRE_MODELS_DIR:-../shared/models}/stories260K-f32.gguf
if [ ! -r "$model" ]; then
    model=$dir/tiny.gguf
    "$2" --shape tiny-llama --type f32 --ctx 512 -o "$model" >/dev/null
fi
node tests/server/dashboard.mjs --quire "$1" --model "$model" --playwright "$playwright"
