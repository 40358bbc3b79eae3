#!/bin/sh
# check_counting.sh - `make test` counts all results: cases, skips, crashes, early exits, broken
# builds.
#
# SPDX-License-Identifier: MIT
set -eu

counter=$PWD/scripts/count-tests.awk
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/build-debug"
cd "$dir"

# expect STATUS LAST BROKEN: run the counter on results.xml, which comes on stdin, and check its
# exit status and its last line.
expect() {
    cat >build-debug/results.xml
    rc=0
    awk -v broken="$3" -f "$counter" /dev/null build-debug/results.xml >out || rc=$?
    last=$(tail -n 1 out)
    if [ "$rc" -ne "$1" ] || [ "$last" != "$2" ]; then
        printf 'expected %s "%s", got %s "%s"\n' "$1" "$2" "$rc" "$last"
        exit 1
    fi
}

# testcase NAME STATUS: around output that comes on stdin.
testcase() {
    printf '\t<testcase name="%s" classname="%s" time="0.1" status="%s">\n' "$1" "$1" "$2"
    printf '\t\t<system-out>%s</system-out>\n\t</testcase>\n' "$(cat)"
}

good='[==========] Running 2 test(s).
[ RUN      ] a
[       OK ] a
[ RUN      ] b
no file &lt;x&gt;
[  SKIPPED ] b
[==========] 2 test(s) run.
[  PASSED  ] 1 test(s).
[  SKIPPED ] 1 test(s), listed below:
[  SKIPPED ] b'

bad='[==========] Running 1 test(s).
[ RUN      ] a
[  FAILED  ] a
[==========] 1 test(s) run.
[  FAILED  ] 1 test(s), listed below:
[  FAILED  ] a'

cut='[==========] Running 2 test(s).
[ RUN      ] a
[       OK ] a
[ RUN      ] b'

{
    echo "$good" | testcase one run
    echo anything | testcase script run
} | expect 0 "2 passed, 0 failed, 1 skipped" ""
grep -q '^skipped  debug/one: b  (no file <x>)$' out

echo hello | testcase script run | expect 0 "1 passed, 0 failed" ""
echo hello | testcase script run >build-debug/results.xml
awk -v left_out=other -f "$counter" /dev/null build-debug/results.xml >out
if [ "$(cat out)" != "skipped  other
1 passed, 0 failed, 1 skipped" ]; then
    cat out
    exit 1
fi
echo "$bad" | testcase one fail | expect 1 "0 passed, 1 failed" ""
echo "$cut" | testcase crash fail | expect 1 "1 passed, 1 failed" ""
echo "$cut" | testcase early_exit run | expect 1 "1 passed, 1 failed" ""
echo "$good" | testcase leak_at_exit fail | expect 1 "1 passed, 1 failed, 1 skipped" ""
echo "$bad" | testcase script fail | expect 1 "0 passed, 2 failed" "lib"
echo hello | testcase script fail | expect 1 "0 passed, 1 failed" ""
expect 1 "0 passed, 1 failed" "" </dev/null
