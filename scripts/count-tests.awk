# count-tests.awk - counts the results of all test cases, from ctest's JUnit files.
#
# A cmocka program is counted by its cases, any other test as one. A program that stops in the
# middle (crash, time limit, early exit) adds a failure, so does one that exits with an error after
# its last case (a leak found by the sanitizer), and so does a preset that did not build (`broken`).
# `left_out` names a preset that was not meant to run: a skip.
#
# SPDX-License-Identifier: MIT

function plain(text)
{
    gsub(/&lt;/, "<", text)
    gsub(/&gt;/, ">", text)
    gsub(/&quot;/, "\"", text)
    gsub(/&apos;/, "'", text)
    gsub(/&amp;/, "\\&", text)
    return text
}

function attribute(name)
{
    if (!match($0, " " name "=\"[^\"]*\"")) {
        return ""
    }
    return substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 4)
}

function fail(what)
{
    failed++
    failed_here++
    failures[failed] = what
}

function skip(what, why)
{
    skipped++
    skips[skipped] = what (why == "" ? "" : "  (" plain(why) ")")
}

function begin_test()
{
    preset = FILENAME
    sub(/^build-/, "", preset)
    sub(/\/.*/, "", preset)
    test = preset "/" plain(attribute("name"))
    status = attribute("status")
    has_cases = in_group = failed_here = was_skipped = 0
    current = note = ""
}

function end_test()
{
    if (in_group) {
        fail(test ": stopped in " (current == "" ? "the beginning" : current))
    } else if (was_skipped) {
        skip(test, note)
    } else if (!has_cases && status == "run") {
        passed++
    } else if (status != "run" && !failed_here) {
        fail(test (note == "" ? "" : "  (" plain(note) ")"))
    }
    in_test = 0
}

/^\t<testcase / {
    begin_test()
    in_test = 1
    if ($0 ~ /\/>$/) {
        end_test()
    }
    next
}

!in_test {
    next
}

/^\t<\/testcase>/ {
    end_test()
    next
}

/^\t\t<skipped message="SKIP_RETURN_CODE/ {
    was_skipped = 1
    next
}

/^\t\t<(skipped|failure|properties|property|\/)/ {
    next
}

{
    sub(/^\t\t<system-out>/, "")
    sub(/<\/system-out>$/, "")
}

/^\[==========\].* test\(s\) run/ {
    in_group = 0
    next
}

/^\[==========\].*Running [0-9]+ test/ {
    has_cases = in_group = 1
    current = note = ""
    next
}

in_group && /^\[ RUN      \]/ {
    current = plain(substr($0, 14))
    note = ""
    next
}

in_group && /^\[       OK \]/ {
    passed++
    next
}

in_group && /^\[  SKIPPED \]/ {
    skip(test ": " plain(substr($0, 14)), note)
    next
}

in_group && /^\[  FAILED  \]/ {
    fail(test ": " plain(substr($0, 14)))
    next
}

# Why: a skipped case says so last, another test's first line is usually the telling one.
/[^ \t]/ && (has_cases || note == "") {
    note = $0
}

END {
    n = split(broken, presets, " ")
    for (i = 1; i <= n; i++) {
        fail(presets[i] ": did not build or could not run its tests")
    }
    if (left_out != "") {
        skip(left_out)
    }
    for (i = 1; i <= skipped; i++) {
        print "skipped  " skips[i]
    }
    for (i = 1; i <= failed; i++) {
        print "FAILED   " failures[i]
    }
    if (passed + failed == 0) {
        print "no test was run"
        failed = 1
    }
    printf "%d passed, %d failed%s\n", passed, failed, skipped ? ", " skipped " skipped" : ""
    exit failed > 0
}
