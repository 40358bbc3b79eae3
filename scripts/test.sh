#!/bin/sh
# test.sh - set-up, then build and run the tests of each preset named: scripts/test.sh [PRESET...]
#
# Without a preset: debug (everything), lib (without the model runtime) and tiny (small constants,
# so that growth paths run). "all" adds the sanitizers and FUZZ_SECONDS (10) of search with each
# fuzz target. In these two lists a test is not repeated where a preset changes nothing that the
# test sees; a preset named by itself runs all of its tests. The last line is "N passed, N failed".
#
# A preset is built while the one before it is tested.
#
# SPDX-License-Identifier: MIT
cd "$(dirname "$0")/.."
. scripts/env.sh
. scripts/packages.sh

left_out=
is_list=
case $#-${1:-} in
0-) set -- debug lib tiny ;;
1-all) set -- debug lib tiny asan tsan fuzz ;;
*) is_list=no ;;
esac
if [ -z "$is_list" ]; then
    left_out="arm64 (emulated, so slow: \`make arm64\` runs it)"
fi

# The small constants change none of the files that these tests test: all of src/store but
# page_io.c, and of the fuzz targets all but cache, prefix and trace. They change the library's
# cache, which few of these tests call. The address sanitizer's preset validates as tiny does.
TINY_LEFT_OUT='file_calls|file_crash|file_accounts|file_kill|file_damage|fuzz_store|fuzz_store_dir'

# Which tests of a list's preset run, as options of ctest.
choose() {
    [ -z "$is_list" ] || return 0
    case $1 in
    lib) echo --tests-regex '^tree_package' ;; # its objects are those of debug
    tiny) echo --label-regex '^(core|retain|store|trace|fuzz)$' --exclude-regex "^($TINY_LEFT_OUT)\$" ;;
    # The page of an analysis: the analysis takes minutes with checks, and has tests of its own.
    # Scripts that compare trained models, policies or engines, and a page: the program has tests of
    # its own, too.
    asan) echo --exclude-regex '^(report_page|schemes|curves_page|retention_script|compare_script)$' ;;
    tsan) echo --label-regex '^threads$' ;;
    esac
}

# The targets that the chosen tests of a preset need (see tests/CMakeLists.txt).
targets() {
    [ -z "$is_list" ] || return 0
    case $1 in
    lib) echo quire_lib ;;
    tiny) echo tests_core tests_retain tests_store tests_trace fuzzers ;;
    asan) echo quire make_gguf tests_all fuzzers ;;
    tsan) echo quire make_gguf tests_threads ;;
    esac
}

# build_each PRESET...: build one after the other; a line "PRESET yes|no" when each is done.
build_each() {
    for preset in "$@"; do
        say "preset $preset: building"
        if TARGETS=$(targets "$preset") nice -n 5 scripts/build.sh "$preset" >&2; then
            echo "$preset yes"
        else
            echo "$preset no"
        fi
    done
}

# test_each: run the tests of each preset that comes on stdin. $work/results lists the files
# written, $work/broken the presets that did not build.
test_each() {
    while read -r preset is_built; do
        results=build-$preset/results.xml
        rm -f "$results"
        if [ "$is_built" = yes ]; then
            say "preset $preset: testing"
            # A failure is counted from the results. Options hold no blanks: splitting is intended.
            # shellcheck disable=SC2046
            ctest --test-dir "build-$preset" --parallel "$JOBS" --output-on-failure \
                --no-tests=error --output-junit results.xml --test-output-size-passed 8000000 \
                --test-output-size-failed 8000000 $(choose "$preset") </dev/null || true
        fi
        if [ -f "$results" ]; then
            echo "$results" >>"$work/results"
        else
            echo "$preset" >>"$work/broken"
        fi
    done
}

# setup_tests PRESET...: fetch the files and packages that the tests need beside the build's. Tests
# without the default model, a client or the browser are skipped by name: being offline is no
# failure.
setup_tests() {
    case " $* " in
    *" fuzz "*) setup_packages test fuzz ;;
    *) setup_packages test ;;
    esac
    scripts/fetch-model.sh >/dev/null || say "going on without the default model"
    scripts/setup.sh clients >/dev/null || say "going on without some clients of the server"
    scripts/setup.sh agent >/dev/null || say "going on without a coding agent"
    scripts/setup.sh browser >/dev/null || say "going on without the browser"
}

work=$(mktemp -d)
background=
trap 'rm -rf "$work"; [ -z "$background" ] || kill "$background" 2>/dev/null' EXIT
trap 'exit 130' INT TERM HUP

# Packages and downloads keep the network and the disk busy, llama.cpp's build the CPU. The build's
# packages come first: else llama.cpp would wait until those of the tests are installed.
setup_packages faster build
setup_tests "$@" &
background=$!
scripts/setup.sh
case " $* " in
*" debug "*) scripts/setup.sh vulkan tests >/dev/null || say "going on without layers of models on lavapipe" ;;
esac
wait "$background"
background=
: >"$work/results"
: >"$work/broken"
export FUZZ_SECONDS="${FUZZ_SECONDS:-10}"
build_each "$@" | test_each

rc=0
# Paths of results hold no blanks: splitting is intended.
# shellcheck disable=SC2046
awk -v broken="$(tr '\n' ' ' <"$work/broken")" -v left_out="$left_out" -f scripts/count-tests.awk \
    /dev/null $(cat "$work/results") || rc=$?
exit "$rc"
