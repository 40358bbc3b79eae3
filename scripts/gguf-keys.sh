#!/bin/sh
# gguf-keys.sh - the keys of a model file that src/model/describe*.c reads, one per line; most of
# them stand behind the name of an architecture. They are the literals in lower case that have a
# point or an underscore, without names of tensors and keys that only messages name.
#
# SPDX-License-Identifier: MIT
set -eu
cd "$(dirname "$0")/.."

grep -ohE '"[a-z0-9]+([._][a-z0-9]+)+"' src/model/describe*.c | tr -d '"' |
    grep -vE '\.weight$|^tokenizer\.' | LC_ALL=C sort -u
