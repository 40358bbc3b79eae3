#!/bin/sh
# build.sh - set-up, then configure and build one preset: scripts/build.sh PRESET [CMAKE OPTION...]
#
# TARGETS in the environment names the targets to build; empty means all.
#
# SPDX-License-Identifier: MIT
cd "$(dirname "$0")/.."
. scripts/env.sh
. scripts/packages.sh
. scripts/llama.sh
. scripts/vulkan.sh

preset=${1:?usage: scripts/build.sh PRESET [CMAKE OPTION...]}
shift
build=build-$preset
case $preset in
release) build=build ;;
esac
# By hand the model runtime is used if it is there; here set-up has seen to that.
case $preset in
release | debug | asan | tsan | coverage) set -- -DQUIRE_MODEL=ON "$@" ;;
arm64) need_arm64 ;;
fuzz) setup_packages fuzz ;;
esac
targets=${TARGETS:-}
# Fuzzing needs neither the program nor the tests.
[ "$preset" != fuzz ] || targets=fuzzers

prefix=$(scripts/setup.sh prefix)
# Where libllama is found is remembered in the cache file, so another prefix needs a fresh one.
if [ -f "$build/CMakeCache.txt" ] &&
    ! grep -qxF "CMAKE_PREFIX_PATH:UNINITIALIZED=$prefix" "$build/CMakeCache.txt"; then
    rm -f "$build/CMakeCache.txt"
fi
# ggml's Vulkan backend for tests, where it has been built (scripts/setup.sh vulkan tests).
case $preset in
debug | coverage) [ -n "${LLAMA_PREFIX:-}" ] || set -- "-DQUIRE_GGML_VULKAN_DIR=$(vulkan_tests_folder)" "$@" ;;
esac
# Tests have a stand-in for ggml's CUDA backend, and NVIDIA's libraries take time at each start.
case $preset in
debug | coverage | asan | tsan) set -- -DQUIRE_GGML_CUDA=OFF "$@" ;;
esac
mkdir -p "$build"
cmake --preset "$preset" -DCMAKE_PREFIX_PATH="$prefix" "$@" >"$build/configure.log" 2>&1 || {
    cat "$build/configure.log" >&2
    die "configuring the preset '$preset' failed; see above"
}
# The word list may be empty: splitting is intended.
# shellcheck disable=SC2086
cmake --build "$build" ${targets:+--target $targets} --parallel "$JOBS" >"$build/build.log" 2>&1 || {
    # The messages of the failed command, without the output of commands that ran beside it.
    grep -E -A 12 '(error|FAILED|undefined reference|\*\*\*)' "$build/build.log" | head -n 80 >&2
    die "building the preset '$preset' failed; the whole output is in $build/build.log"
}
