# shellcheck shell=sh
# llama.sh - the pinned llama.cpp: find it installed, or fetch and build it once. Needs env.sh.
#
#   $CACHE_DIR/llama-<tag>-src/         the source tree, checked against LLAMA_TREE
#   $CACHE_DIR/llama-<tag>-<key>.build/ build folder; the peers of `make compare` are built here too
#   $CACHE_DIR/llama-<tag>-<key>/       installed headers, static libraries, CMake packages, and
#                                       quire-common/, the chat part of llama.cpp's common library
#
# The key covers everything that the built bytes depend on. Each folder appears by a rename when it
# is complete, so an interrupted run leaves nothing that looks finished.
#
# SPDX-License-Identifier: MIT

LLAMA_SRC=$CACHE_DIR/llama-$LLAMA_TAG-src

# has_flag FLAG: whether this CPU has it.
has_flag() {
    grep -m 1 -E '^(flags|Features)' /proc/cpuinfo | grep -q -w "$1"
}

# llama_c_flags, llama_cxx_flags: compiler flags beside the default ones. With AVX-512 FP16 ggml
# adds products of f16 in f16, 128 at a time, and the remaining ones one by one as scalars. A head
# of 64 is all scalars, so decode at a depth is much slower with it. With AMX, cmake/llama_amx.h is
# needed.
llama_c_flags() {
    ! has_flag avx512_fp16 || printf -- '-mno-avx512fp16 '
}

llama_cxx_flags() {
    llama_c_flags
    ! has_flag amx_tile || printf -- '-include "%s/llama_amx.h" ' "$1"
}

# configure_llama BUILD OPTION...: run CMake with our flags and options. The header is copied to the
# build folder, so that no flag depends on the path of this checkout.
configure_llama() {
    build=$1
    shift
    mkdir -p "$build"
    cp cmake/llama_amx.h "$build/"
    # LLAMA_OPTIONS is a list of words.
    # shellcheck disable=SC2086
    logged "$build/configure.log" "configuring llama.cpp" cmake -S "$LLAMA_SRC" -B "$build" \
        $LLAMA_OPTIONS -DCMAKE_C_FLAGS="${CFLAGS:-} $(llama_c_flags)" \
        -DCMAKE_CXX_FLAGS="${CXXFLAGS:-} $(llama_cxx_flags "$build")" "$@"
}

# llama_key: source, options, compilers, and the CPU's features (GGML_NATIVE=ON uses them all).
llama_key() {
    {
        printf '%s\n' "$LLAMA_TREE" "$LLAMA_OPTIONS"
        "${CC:-cc}" --version | head -n 1
        "${CXX:-c++}" --version | head -n 1
        grep -m 1 -E '^(flags|Features)' /proc/cpuinfo || uname -m
        llama_cxx_flags build
        ! has_flag amx_tile || cat cmake/llama_amx.h
    } | sha256sum | cut -c 1-12
}

# llama_system: succeed when a package of a tested version is installed. cmake/deps.cmake is asked,
# so that the tested range stands in one place.
llama_system() {
    found=$(find /usr/lib /usr/local/lib -maxdepth 4 -name llama-config.cmake 2>/dev/null | head -n 1)
    [ -n "$found" ] || return 1
    probe=$(mktemp -d)
    {
        printf 'cmake_minimum_required(VERSION 3.25)\nproject(probe C CXX)\n'
        printf 'set(QUIRE_MODEL ON)\nset(QUIRE_CMOCKA OFF)\ninclude("%s/cmake/deps.cmake")\n' "$PWD"
    } >"$probe/CMakeLists.txt"
    rc=0
    cmake -S "$probe" -B "$probe/b" >"$probe/log" 2>&1 || rc=1
    [ "$rc" -eq 0 ] || say "an installed llama.cpp ($found) is not of a tested version: building ours"
    rm -rf "$probe"
    return "$rc"
}

# fetch_from_git DIR / fetch_from_npm DIR: make a clone of the pinned tree in DIR. The tag's commit
# differs from that of the bundle, which was squashed, but both must have this tree.
fetch_from_git() {
    timeout 15 git ls-remote --exit-code --tags "$LLAMA_GIT" "$LLAMA_TAG" >/dev/null 2>&1 || return 1
    say "fetching llama.cpp $LLAMA_TAG from its git host"
    timeout 900 git -c advice.detachedHead=false clone -q --depth 1 --branch "$LLAMA_TAG" \
        "$LLAMA_GIT" "$1" || return 1
    if [ "$(git -C "$1" rev-parse 'HEAD^{tree}')" != "$LLAMA_TREE" ]; then
        say "tag $LLAMA_TAG does not hold the pinned source tree $LLAMA_TREE: not used"
        return 1
    fi
}

fetch_from_npm() {
    need_program npm npm
    say "fetching llama.cpp $LLAMA_TAG from the npm package $LLAMA_NPM (36 MB)"
    pack_dir=$(mktemp -d "$CACHE_DIR/setup.tmp.XXXXXX")
    tarball=$(npm_pack "$pack_dir" "$LLAMA_NPM") || return 1
    if [ "$(sha256sum <"$tarball" | cut -d ' ' -f 1)" != "$LLAMA_NPM_SHA256" ]; then
        say "$LLAMA_NPM: the tarball's sha256 is not $LLAMA_NPM_SHA256: not used"
        return 1
    fi
    tar xzf "$tarball" -C "$pack_dir" package/llama/gitRelease.bundle || return 1
    git -c advice.detachedHead=false clone -q "$pack_dir/package/llama/gitRelease.bundle" "$1" ||
        return 1
    if [ "$(git -C "$1" rev-parse 'HEAD^{tree}')" != "$LLAMA_TREE" ]; then
        say "the bundle in $LLAMA_NPM does not hold the pinned source tree $LLAMA_TREE: not used"
        return 1
    fi
}

fetch_source() {
    [ ! -d "$LLAMA_SRC" ] || return 0
    need_space "$CACHE_DIR" 1000 "llama.cpp's source and build"
    clone=$CACHE_DIR/setup.tmp.clone
    if ! fetch_from_git "$clone"; then
        rm -rf "$clone"
        fetch_from_npm "$clone" || die "llama.cpp $LLAMA_TAG could be fetched neither from" \
            "$LLAMA_GIT nor as npm package $LLAMA_NPM. With a copy of your own:" \
            "make LLAMA_PREFIX=/where/it/is/installed"
    fi
    mv -T "$clone" "$LLAMA_SRC"
}

# logged LOG WHAT COMMAND...: run it quietly; show the end of its output only when it fails.
logged() {
    log=$1
    what=$2
    shift 2
    if ! "$@" >"$log" 2>&1; then
        tail -n 30 "$log" >&2
        die "$what failed; the whole output is in $log"
    fi
}

llama_prefix() {
    printf '%s/llama-%s-%s\n' "$CACHE_DIR" "$LLAMA_TAG" "$(llama_key)"
}

build_llama() {
    prefix=$(llama_prefix)
    [ ! -d "$prefix" ] || return 0
    hold_lock setup
    [ ! -d "$prefix" ] || return 0 # somebody else built it while we waited
    clean_up_at_exit setup
    fetch_source
    build=$prefix.build
    say "building ggml and libllama, once (minutes; log: $build/build.log)"
    configure_llama "$build" -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TOOLS=OFF \
        -DCMAKE_INSTALL_PREFIX="$prefix"
    logged "$build/build.log" "building llama.cpp" cmake --build "$build" --parallel "$JOBS"
    logged "$build/install.log" "installing llama.cpp" \
        cmake --install "$build" --prefix "$CACHE_DIR/setup.tmp.prefix"
    mv -T "$CACHE_DIR/setup.tmp.prefix" "$prefix"
}

# common_key: a hash of our files that the chat part of llama.cpp's common library is built from.
common_key() {
    cat cmake/llama_common/* | sha256sum | cut -c 1-12
}

# build_common: the chat part of common, installed into the prefix as quire-common. Its key is not
# part of the prefix's, so that ggml and libllama stay as they are.
build_common() {
    prefix=$(llama_prefix)
    common=$prefix/quire-common
    key=$(common_key)
    [ "$(cat "$common/key" 2>/dev/null)" != "$key" ] || return 0
    hold_lock setup
    [ "$(cat "$common/key" 2>/dev/null)" != "$key" ] || return 0
    clean_up_at_exit setup
    fetch_source
    build=$prefix.common
    # A folder that another checkout configured cannot be configured by this one.
    grep -qsxF "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD/cmake/llama_common" "$build/CMakeCache.txt" ||
        rm -rf "$build"
    mkdir -p "$build"
    say "building llama.cpp's chat templates, once (a minute; log: $build/build.log)"
    logged "$build/configure.log" "configuring llama.cpp's chat templates" \
        cmake -S cmake/llama_common -B "$build" -DLLAMA_SRC="$LLAMA_SRC" -DCMAKE_BUILD_TYPE=Release
    logged "$build/build.log" "building llama.cpp's chat templates" \
        cmake --build "$build" --parallel "$JOBS"
    logged "$build/install.log" "installing llama.cpp's chat templates" \
        cmake --install "$build" --prefix "$CACHE_DIR/setup.tmp.common"
    printf '%s\n' "$key" >"$CACHE_DIR/setup.tmp.common/key"
    rm -rf "$common"
    mv -T "$CACHE_DIR/setup.tmp.common" "$common"
}

# copy_backend NAME BUILD FOLDER: the library and the header of one of ggml's backends.
copy_backend() {
    mkdir -p "$3/lib" "$3/include"
    find "$2" -name "libggml-$1.a" -exec cp {} "$3/lib/" \;
    [ -e "$3/lib/libggml-$1.a" ] || die "libggml-$1.a was not built in $2"
    cp "$LLAMA_SRC/ggml/include/ggml-$1.h" "$3/include/"
}

# build_peers: llama-bench, llama-perplexity and llama-server out of the same tree, for side-by-side
# runs. The folder of an older set-up has no llama-server yet.
build_peers() {
    prefix=$(llama_prefix)
    [ ! -x "$prefix/peers/llama-server" ] || return 0
    build_llama
    hold_lock setup
    [ ! -x "$prefix/peers/llama-server" ] || return 0
    clean_up_at_exit setup
    fetch_source
    build=$prefix.build
    say "building llama-bench, llama-perplexity and llama-server, once (minutes; log: $build/peers.log)"
    configure_llama "$build" -DLLAMA_BUILD_COMMON=ON -DLLAMA_BUILD_TOOLS=ON \
        -DLLAMA_BUILD_SERVER=ON -DCMAKE_INSTALL_PREFIX="$prefix"
    logged "$build/peers.log" "building the peers" cmake --build "$build" --parallel "$JOBS" \
        --target llama-bench llama-perplexity llama-server
    mkdir -p "$CACHE_DIR/setup.tmp.peers"
    for peer in llama-bench llama-perplexity llama-server; do
        cp "$build/bin/$peer" "$CACHE_DIR/setup.tmp.peers/"
    done
    rm -rf "$prefix/peers"
    mv -T "$CACHE_DIR/setup.tmp.peers" "$prefix/peers"
}
