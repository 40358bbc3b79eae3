#!/bin/sh
# setup.sh - everything a build needs: Debian packages and the pinned llama.cpp. Fast when it is all
# there.
#
#   scripts/setup.sh         packages; llama.cpp, installed or built
#   scripts/setup.sh prefix  the same, then print the CMAKE_PREFIX_PATH to use (empty: the system's)
#   scripts/setup.sh peers   the same, then llama-bench, llama-perplexity and llama-server; prints
#                            their folder
#   scripts/setup.sh peers vulkan
#                            llama-bench and llama-batched-bench with ggml's Vulkan backend (many
#                            minutes, once); prints their folder
#   scripts/setup.sh vulkan  the same, then ggml's Vulkan backend, for weights on cards (many
#                            minutes, once)
#   scripts/setup.sh vulkan tests
#                            the same, then a part of that backend, enough for tests on Mesa's
#                            lavapipe (a minute, once); prints its folder. The whole backend takes
#                            its place where it is
#   scripts/setup.sh cuda    ggml's CUDA backend in the same way, for NVIDIA's cards (an hour
#                            or more, once); needs NVIDIA's toolkit (scripts/cuda.sh)
#   scripts/setup.sh browser chromium and the npm packages playwright-core and axe-core; prints the
#                            packages' folders, one by line
#   scripts/setup.sh clients curl, wrk and the npm packages of clients only; prints the
#                            packages' folders, one by line
#   scripts/setup.sh agent   the npm package of a coding agent; prints its folder
#
# LLAMA_PREFIX=DIR uses an installation of your own instead.
#
# SPDX-License-Identifier: MIT
cd "$(dirname "$0")/.."
. scripts/env.sh
. scripts/packages.sh
. scripts/llama.sh
. scripts/vulkan.sh
. scripts/cuda.sh
. scripts/clients.sh
. scripts/browser.sh

mode=${1:-}
case $mode in
'' | prefix | peers | vulkan | cuda) ;;
browser)
    setup_browser
    browser_dirs
    exit 0
    ;;
agent)
    setup_agent
    npm_dir "$AGENT_NPM"
    exit 0
    ;;
clients)
    setup_clients
    clients_dir
    exit 0
    ;;
*) die "usage: scripts/setup.sh [prefix | peers | vulkan | cuda | clients | agent | browser], not '$mode'" ;;
esac

setup_packages build
prefix=${LLAMA_PREFIX:-}
if [ -n "$prefix" ]; then
    [ -d "$prefix" ] || die "LLAMA_PREFIX=$prefix: no such folder"
elif ! llama_system; then
    build_llama
    build_common
    prefix=$(llama_prefix)
fi

case $mode in
prefix)
    printf '%s\n' "$prefix"
    ;;
vulkan)
    [ -d "$(llama_prefix)" ] || die "ggml's Vulkan backend is built for Quire's own llama.cpp only"
    if [ "${2:-}" = tests ]; then
        build_ggml_vulkan_tests
        vulkan_tests_folder
    else
        build_ggml_vulkan
    fi
    ;;
cuda)
    [ -d "$(llama_prefix)" ] || die "ggml's CUDA backend is built for Quire's own llama.cpp only"
    build_ggml_cuda
    ;;
peers)
    if [ "${2:-}" = vulkan ]; then
        build_peers_vulkan
        printf '%s/peers-vulkan\n' "$(llama_prefix)"
    else
        build_peers
        printf '%s/peers\n' "$(llama_prefix)"
    fi
    ;;
esac
