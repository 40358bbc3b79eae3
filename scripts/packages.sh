# shellcheck shell=sh
# packages.sh - the required packages, and their installation on Debian. Needs env.sh.
#
# SPDX-License-Identifier: MIT

# Programs as command:package, libraries as pkg-config-name:package.
NEED_PROGRAMS="gcc:gcc g++:g++ make:make cmake:cmake git:git pkg-config:pkg-config glslc:glslc"
NEED_LIBRARIES="cmocka:libcmocka-dev jansson:libjansson-dev libcyaml:libcyaml-dev libmicrohttpd:libmicrohttpd-dev
libxxhash:libxxhash-dev liburing:liburing-dev hiredis:libhiredis-dev libsodium:libsodium-dev
openssl:libssl-dev libcurl:libcurl4-openssl-dev libzmq:libzmq3-dev msgpack:libmsgpack-dev
libedit:libedit-dev vulkan:libvulkan-dev"

# Programs that compile kernels for cards, which a build leaves out without them.
CARD_PROGRAMS="clang:clang"

# Programs that make the tests' builds faster: ccache compiles objects that presets share once, and
# lld links the three hundred programs faster.
FASTER_PROGRAMS="ccache:ccache ninja:ninja-build ld.lld:lld"
# Servers and tools that some tests use, and without which those tests are skipped; a browser and
# clients too, so that apt-get runs once.
TEST_PROGRAMS="redis-server:redis-server openssl:openssl haproxy:haproxy ip:iproute2
nginx:nginx-light caddy:caddy curl:curl wrk:wrk node:nodejs npm:npm chromium:chromium"
# Files that some tests use, as folder/name:package: a Vulkan driver for the CPU, and the layer that
# checks calls of Vulkan.
TEST_FILES="/usr/share/vulkan/icd.d/lvp_icd.*.json:mesa-vulkan-drivers
/usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json:vulkan-validationlayers"
# Programs that only fuzzing needs. Debian's clang comes without its sanitizers.
NEED_FUZZ_PROGRAMS="clang:clang"

# missing_programs PROGRAM:PACKAGE...: print the Debian packages of programs that are not there,
# each after a blank. missing_libraries: those of NEED_LIBRARIES.
missing_programs() {
    for pair in "$@"; do
        command -v "${pair%%:*}" >/dev/null 2>&1 || printf ' %s' "${pair#*:}"
    done
}

missing_libraries() {
    for pair in $NEED_LIBRARIES; do
        pkg-config --exists "${pair%%:*}" 2>/dev/null || printf ' %s' "${pair#*:}"
    done
}

# missing_files FILE:PACKAGE...: the same for files. A name may have a star.
missing_files() {
    for pair in "$@"; do
        # shellcheck disable=SC2086
        ls ${pair%%:*} >/dev/null 2>&1 || printf ' %s' "${pair#*:}"
    done
}

# apt_install PACKAGE...: waits while another set-up installs.
apt_install() {
    apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=900 "$@" >&2
}

# install_packages PACKAGE...: as root with apt-get; otherwise print the command, and stop.
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
    if ! apt_install "$@"; then
        apt-get update -qq >&2 || die "apt-get update failed; see above"
        apt_install "$@" || die "apt-get could not install: $*"
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

# have_fuzzer: whether clang can link libFuzzer.
have_fuzzer() {
    runtime=$(clang --print-runtime-dir 2>/dev/null) &&
        [ -n "$(find "$runtime" -name 'libclang_rt.fuzzer*' 2>/dev/null | head -n 1)" ]
}

# setup_packages PURPOSE...: install the packages for a build, a faster build, tests or fuzzing
# (build, faster, test, fuzz). Packages that a build does not need are installed for root only.
# Words of the lists hold no blanks: splitting is intended.
# shellcheck disable=SC2046,SC2086
setup_packages() {
    missing="$(missing_programs $NEED_PROGRAMS)$(missing_libraries)"
    wished=
    for purpose in "$@"; do
        case $purpose in
        build) wished="$wished$(missing_programs $CARD_PROGRAMS)" ;;
        faster) wished="$wished$(missing_programs $FASTER_PROGRAMS)" ;;
        test) wished="$wished$(missing_programs $TEST_PROGRAMS)$(missing_files $TEST_FILES)" ;;
        fuzz)
            missing="$missing$(missing_programs $NEED_FUZZ_PROGRAMS)"
            have_fuzzer || missing="$missing libclang-rt-dev"
            ;;
        esac
    done
    if [ "$(id -u)" -eq 0 ]; then
        missing=$missing$wished
    elif [ -n "$wished" ]; then
        say "not installed:$wished (some only make the builds faster, compile kernels for cards, or are used by tests that are skipped)"
    fi
    [ -z "$missing" ] || install_packages $missing
}
