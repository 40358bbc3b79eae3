# shellcheck shell=sh
# packages.sh - what must be installed, and installing it on Debian. Needs env.sh.
#
# SPDX-License-Identifier: MIT

# Programs as command:package, libraries as pkg-config-name:package.
NEED_PROGRAMS="gcc:gcc g++:g++ make:make cmake:cmake git:git pkg-config:pkg-config glslc:glslc"
NEED_LIBRARIES="cmocka:libcmocka-dev jansson:libjansson-dev libcyaml:libcyaml-dev libmicrohttpd:libmicrohttpd-dev
libxxhash:libxxhash-dev liburing:liburing-dev hiredis:libhiredis-dev libsodium:libsodium-dev
openssl:libssl-dev libcurl:libcurl4-openssl-dev libzmq:libzmq3-dev msgpack:libmsgpack-dev
libedit:libedit-dev vulkan:libvulkan-dev"

# What makes the tests' builds faster: objects that presets share are compiled once (ccache), and three
# hundred programs are linked in a quarter of the time (lld).
FASTER_PROGRAMS="ccache:ccache ninja:ninja-build ld.lld:lld"
# Servers and tools that some tests use, and without which those tests are skipped.
TEST_PROGRAMS="redis-server:redis-server openssl:openssl haproxy:haproxy ip:iproute2
nginx:nginx-light caddy:caddy"
# Files that some tests use, as folder/name:package: a Vulkan driver for the CPU, and the layer that checks
# calls of Vulkan.
TEST_FILES="/usr/share/vulkan/icd.d/lvp_icd.*.json:mesa-vulkan-drivers
/usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json:vulkan-validationlayers"
# What only fuzzing needs. Debian's clang comes without its sanitizers.
NEED_FUZZ_PROGRAMS="clang:clang"

# missing_packages PROGRAM:PACKAGE...: print the Debian packages that are not there, one line, empty
# when none is. The libraries are looked for in any case.
missing_packages() {
    missing=
    for pair in "$@"; do
        command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair#*:}"
    done
    for pair in $NEED_LIBRARIES; do
        pkg-config --exists "${pair%%:*}" 2>/dev/null || missing="$missing ${pair#*:}"
    done
    printf '%s' "${missing# }"
}

# missing_files FILE:PACKAGE...: print the packages of files that are not there. A name may have a star.
missing_files() {
    missing=
    for pair in "$@"; do
        # shellcheck disable=SC2086
        ls ${pair%%:*} >/dev/null 2>&1 || missing="$missing ${pair#*:}"
    done
    printf '%s' "${missing# }"
}

# install_packages PACKAGE...: as root with apt-get; otherwise say what to type, and stop.
install_packages() {
    if ! command -v apt-get >/dev/null 2>&1; then
        die "missing: $* (names of Debian packages). Install their equivalents and try again."
    fi
    if [ "$(id -u)" -ne 0 ]; then
        say "missing Debian packages: $*"
        die "install them as root, then try again:
apt-get install -y --no-install-recommends $*"
    fi
    say "installing Debian packages: $*"
    export DEBIAN_FRONTEND=noninteractive
    # The package lists are refreshed only where they do not know a package.
    if ! apt-cache show "$@" >/dev/null 2>&1; then
        apt-get update -qq >&2 || die "apt-get update failed; see above"
    fi
    if ! apt-get install -y -qq --no-install-recommends "$@" >&2; then
        apt-get update -qq >&2 || die "apt-get update failed; see above"
        apt-get install -y -qq --no-install-recommends "$@" >&2 || die "apt-get could not install: $*"
    fi
}

# need_program COMMAND PACKAGE: for programs that only some targets use.
need_program() {
    command -v "$1" >/dev/null 2>&1 || install_packages "$2"
}

# Programs and a file of the arm64 libraries that the preset arm64 uses.
have_arm64() {
    command -v aarch64-linux-gnu-gcc >/dev/null 2>&1 &&
        command -v aarch64-linux-gnu-g++ >/dev/null 2>&1 &&
        command -v qemu-aarch64 >/dev/null 2>&1 &&
        [ -e /usr/lib/aarch64-linux-gnu/libcmocka.so ]
}

# need_arm64: the cross compiler, the emulator, and cmocka of Debian's arm64 packages.
need_arm64() {
    if have_arm64; then
        return
    fi
    if command -v dpkg >/dev/null 2>&1 && ! dpkg --print-foreign-architectures | grep -qx arm64; then
        [ "$(id -u)" -eq 0 ] || die "arm64 packages are not enabled here. As root, then try again:
dpkg --add-architecture arm64 && apt-get update"
        dpkg --add-architecture arm64
        apt-get update -qq >&2 || die "apt-get update failed; see above"
    fi
    install_packages gcc-aarch64-linux-gnu g++-aarch64-linux-gnu qemu-user libcmocka-dev:arm64
}

# have_fuzzer: whether clang can link what finds inputs.
have_fuzzer() {
    runtime=$(clang --print-runtime-dir 2>/dev/null) &&
        [ -n "$(find "$runtime" -name 'libclang_rt.fuzzer*' 2>/dev/null | head -n 1)" ]
}

# setup_packages build|test|fuzz: install what a build, the tests, or fuzzing needs.
# Lists of words without blanks: splitting is what is meant.
# shellcheck disable=SC2046,SC2086
setup_packages() {
    case $1 in
    build) missing=$(missing_packages $NEED_PROGRAMS) ;;
    test)
        missing="$(missing_packages $NEED_PROGRAMS $FASTER_PROGRAMS $TEST_PROGRAMS) $(missing_files $TEST_FILES)"
        missing=${missing# }
        missing=${missing% }
        if [ "$(id -u)" -ne 0 ]; then
            [ -z "$missing" ] || say "not installed: $missing (some only make the builds faster, or are used by tests that are skipped)"
            missing=$(missing_packages $NEED_PROGRAMS)
        fi
        ;;
    fuzz)
        missing=$(missing_packages $NEED_PROGRAMS $NEED_FUZZ_PROGRAMS)
        have_fuzzer || missing="$missing libclang-rt-dev"
        ;;
    esac
    [ -z "$missing" ] || install_packages $missing
}
