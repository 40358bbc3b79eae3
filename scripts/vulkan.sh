# shellcheck shell=sh
# vulkan.sh - ggml's Vulkan backend of the pinned llama.cpp, for weights on a card (-ngl): built
# when it is asked for, since its shaders take minutes. Needs env.sh, packages.sh and llama.sh.
#
#   $CACHE_DIR/vulkan-<release>/        Vulkan's headers and a compiler of shaders, unpacked
#   $CACHE_DIR/llama-<tag>-<key>.vulkan/ build folder
#   $CACHE_DIR/llama-<tag>-<key>/quire-ggml-vulkan/
#                                       the library and its header, beside ggml and libllama
#   $CACHE_DIR/llama-<tag>-<key>/quire-ggml-vulkan-tests-<key>/
#                                       the same for tests: `setup.sh vulkan tests`
#   $CACHE_DIR/llama-<tag>-<key>/peers-vulkan/
#                                       llama.cpp's benchmarks with it: `setup.sh peers vulkan`
#
# ggml's C++ needs Vulkan's headers of 1.4 and its shaders a glslc of 2024 or later. Debian 12 has
# older ones. Where the system's are too old, the packages of Debian's next release are unpacked
# into a folder of their own, with the C library that this glslc needs; nothing of the system
# changes. apt-get checks them by the key of Debian's archive.
#
# SPDX-License-Identifier: MIT

VULKAN_RELEASE=trixie
VULKAN_PACKAGES="libvulkan-dev spirv-headers glslc libshaderc1 libc6 libstdc++6 libgcc-s1"
VULKAN_DIR=$CACHE_DIR/vulkan-$VULKAN_RELEASE
VULKAN_HEADER_MIN=309 # of 1.4: the oldest that was tried
GLSLC=

# vulkan_system: whether the system's own headers and glslc are new enough.
vulkan_system() {
    header=/usr/include/vulkan/vulkan_core.h
    version=$(sed -n 's/^#define VK_HEADER_VERSION \([0-9]*\)$/\1/p' "$header" 2>/dev/null)
    [ "${version:-0}" -ge "$VULKAN_HEADER_MIN" ] || return 1
    [ -e /usr/include/spirv/unified1/spirv.hpp ] || return 1
    probe=$(mktemp -d)
    rc=0
    printf '#version 450\n#extension GL_KHR_cooperative_matrix : require\nvoid main() {}\n' >"$probe/a.comp"
    glslc -fshader-stage=compute --target-env=vulkan1.3 -o "$probe/a.spv" "$probe/a.comp" >/dev/null 2>&1 || rc=1
    rm -rf "$probe"
    return "$rc"
}

# fetch_vulkan: VULKAN_DIR, from the mirror that this machine's apt-get uses.
fetch_vulkan() {
    [ ! -d "$VULKAN_DIR" ] || return 0
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    if ! command -v apt-get >/dev/null 2>&1 || [ ! -e "$keys" ]; then
        die "ggml's Vulkan backend needs Vulkan's headers of 1.4 and glslc of 2024 or later"
    fi
    mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources \
        2>/dev/null | awk '/^URIs:.*debian\/?$/ { print $2; exit } /^deb .*debian\/? / {
            for (i = 2; i <= NF; i++) if ($i ~ /^[a-z]+:\/\//) { print $i; exit } }')
    [ -n "$mirror" ] || die "apt-get has no mirror of Debian here"
    folder=$(mktemp -d "$CACHE_DIR/setup.tmp.XXXXXX")
    mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial" "$folder/debs" "$folder/root"
    printf 'deb [signed-by=%s] %s %s main\n' "$keys" "$mirror" "$VULKAN_RELEASE" >"$folder/sources.list"
    say "fetching Vulkan's headers and glslc of Debian $VULKAN_RELEASE (15 MB)"
    # apt FOLDER COMMAND ARGUMENT...: with lists and a cache of its own.
    apt_apart() {
        apt-get -qq -o "Dir::Etc::sourcelist=$folder/sources.list" -o Dir::Etc::sourceparts=- \
            -o "Dir::State::Lists=$folder/lists" -o "Dir::Cache=$folder/cache" -o APT::Sandbox::User=root "$@"
    }
    apt_apart update >&2 || die "apt-get found no Debian $VULKAN_RELEASE at $mirror"
    for package in $VULKAN_PACKAGES; do
        (cd "$folder/debs" && apt_apart download "$package/$VULKAN_RELEASE" >&2) ||
            die "apt-get could not fetch $package of Debian $VULKAN_RELEASE"
    done
    for deb in "$folder"/debs/*.deb; do
        dpkg-deb -x "$deb" "$folder/root"
    done
    # A program of a newer C library, by that library's loader.
    lib=usr/lib/$(uname -m)-linux-gnu
    loader=$(cd "$folder/root" && find "$lib" -name 'ld-linux*')
    # The program's own dollars.
    # shellcheck disable=SC2016
    printf '#!/bin/sh\nd=${0%%/*}\nexec "$d/%s" --library-path "$d/%s" "$d/usr/bin/glslc" "$@"\n' \
        "$loader" "$lib" >"$folder/root/glslc"
    chmod +x "$folder/root/glslc"
    "$folder/root/glslc" --version >/dev/null || die "glslc of Debian $VULKAN_RELEASE does not run here"
    mv -T "$folder/root" "$VULKAN_DIR"
    rm -rf "$folder"
}

# configure_vulkan BUILD OPTION...: configure_llama with the backend, and with headers that are new
# enough and a glslc: GLSLC, or else the one that is new enough.
configure_vulkan() {
    if vulkan_system; then
        configure_llama "$@" -DGGML_VULKAN=ON ${GLSLC:+-DVulkan_GLSLC_EXECUTABLE="$GLSLC"}
    else
        fetch_vulkan
        configure_llama "$@" -DGGML_VULKAN=ON -DVulkan_INCLUDE_DIR="$VULKAN_DIR/usr/include" \
            -DVulkan_GLSLC_EXECUTABLE="${GLSLC:-$VULKAN_DIR/glslc}" -DCMAKE_PREFIX_PATH="$VULKAN_DIR/usr"
    fi
}

# build_peers_vulkan: llama.cpp's benchmarks with its Vulkan backend, for scripts/gpu-check.sh. They
# are linked with the system's loader.
build_peers_vulkan() {
    prefix=$(llama_prefix)
    [ ! -d "$prefix/peers-vulkan" ] || return 0
    hold_lock setup
    [ ! -d "$prefix/peers-vulkan" ] || return 0
    clean_up_at_exit setup
    fetch_source
    build=$prefix.vulkan
    say "building llama.cpp's benchmarks for Vulkan, once (many minutes; log: $build/peers.log)"
    configure_vulkan "$build" -DLLAMA_BUILD_COMMON=ON -DLLAMA_BUILD_TOOLS=ON \
        -DVulkan_LIBRARY="$(find /usr/lib -name libvulkan.so | head -n 1)"
    logged "$build/peers.log" "building llama.cpp's benchmarks for Vulkan" \
        cmake --build "$build" --parallel "$JOBS" --target llama-bench llama-batched-bench
    mkdir -p "$CACHE_DIR/setup.tmp.peers"
    for peer in llama-bench llama-batched-bench; do
        cp "$build/bin/$peer" "$CACHE_DIR/setup.tmp.peers/"
    done
    mv -T "$CACHE_DIR/setup.tmp.peers" "$prefix/peers-vulkan"
    rm -rf "$build"
}

# build_backend BUILD FOLDER OPTION...: the backend, into a folder that appears when it is complete.
# ggml and libllama stay as they are.
build_backend() {
    build=$1
    folder=$2
    shift 2
    configure_vulkan "$build" -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TOOLS=OFF "$@"
    logged "$build/build.log" "building ggml's Vulkan backend" \
        cmake --build "$build" --parallel "$JOBS" --target ggml-vulkan
    copy_backend vulkan "$build" "$CACHE_DIR/setup.tmp.vulkan"
    rm -rf "$folder"
    mv -T "$CACHE_DIR/setup.tmp.vulkan" "$folder"
    rm -rf "$build"
}

# build_ggml_vulkan: installed into the prefix as quire-ggml-vulkan.
build_ggml_vulkan() {
    prefix=$(llama_prefix)
    [ ! -d "$prefix/quire-ggml-vulkan" ] || return 0
    hold_lock setup
    [ ! -d "$prefix/quire-ggml-vulkan" ] || return 0
    clean_up_at_exit setup
    fetch_source
    say "building ggml's Vulkan backend, once (many minutes; log: $prefix.vulkan/build.log)"
    build_backend "$prefix.vulkan" "$prefix/quire-ggml-vulkan"
}

# vulkan_tests_folder: print where the backend for tests is: the whole one where it has been built,
# else quire-ggml-vulkan-tests and a hash of the scripts that build it.
vulkan_tests_folder() {
    prefix=$(llama_prefix)
    if [ -d "$prefix/quire-ggml-vulkan" ]; then
        printf '%s/quire-ggml-vulkan\n' "$prefix"
    else
        key=$(cat scripts/vulkan.sh scripts/test-glslc.sh | sha256sum | cut -c 1-12)
        printf '%s/quire-ggml-vulkan-tests-%s\n' "$prefix" "$key"
    fi
}

# build_ggml_vulkan_tests: the backend without optimisation, and with the shaders that tests use
# (scripts/test-glslc.sh). Any glslc compiles those.
build_ggml_vulkan_tests() {
    folder=$(vulkan_tests_folder)
    [ ! -d "$folder" ] || return 0
    hold_lock setup
    [ ! -d "$folder" ] || return 0
    clean_up_at_exit setup
    fetch_source
    build=$(llama_prefix).vulkan-tests
    say "building ggml's Vulkan backend for tests, once (a minute; log: $build/build.log)"
    QUIRE_GLSLC=$(command -v glslc)
    export QUIRE_GLSLC
    GLSLC=$PWD/scripts/test-glslc.sh
    # A type of build that CMake has no flags for: all is compiled without optimisation.
    build_backend "$build" "$folder" -DCMAKE_BUILD_TYPE=Tests -DCMAKE_OPTIMIZE_DEPENDENCIES=ON
}
