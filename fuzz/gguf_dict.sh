#!/bin/sh
# gguf_dict.sh FILE - write the words of fuzz_gguf as libFuzzer reads them: the names of all
# architectures and the keys that descriptions read. Texts that are whole in a file come also with
# the length that stands before them there.
#
# SPDX-License-Identifier: MIT
set -eu
out=$(realpath "$1")
cd "$(dirname "$0")/.."

# word TEXT: at most 64 bytes, which libFuzzer takes.
word() {
    printf '"%s"\n"\\x%02x\\x00\\x00\\x00\\x00\\x00\\x00\\x00%s"\n' "$1" "${#1}" "$1"
}

{
    grep -ohE '\.name = "[^"]+"' src/model/archs_*.c | cut -d'"' -f2 | while IFS= read -r arch; do
        word "$arch"
    done
    sh scripts/gguf-keys.sh | while IFS= read -r key; do
        case $key in
        general.* | xielu.*) word "$key" ;;
        *) printf '".%s"\n' "$key" ;; # behind the name of an architecture
        esac
    done
} >"$out"
