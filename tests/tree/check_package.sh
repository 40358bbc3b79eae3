#!/bin/sh
# check_package.sh BUILD CC - install the build into an empty prefix and use it from outside:
# through pkg-config, and through CMake's find_package after the prefix has been moved.
#
# SPDX-License-Identifier: MIT
set -eu

build=$1
cc=$2
source=$PWD
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

cmake --install "$build" --prefix "$dir/first" >"$dir/install.log"
mv "$dir/first" "$dir/moved here"
prefix="$dir/moved here"

pc=$(find "$prefix" -name quire.pc)
[ -n "$pc" ] || {
    echo "no quire.pc was installed"
    exit 1
}
# A path with a blank comes back quoted from pkg-config: eval reads the quotes.
export PKG_CONFIG_PATH="${pc%/*}"
flags=$(pkg-config --cflags --libs quire)
for name in embed prompts; do
    eval "$cc -std=c11 -Wall -Wextra -Werror -o '$dir/$name' '$source/examples/$name.c' $flags -lm"
    LD_LIBRARY_PATH="${pc%/pkgconfig/*}" "$dir/$name" >"$dir/$name.out"
done
grep -q '^again: 199 of 200 tokens from the cache (whole)' "$dir/prompts.out"
grep -q '^first, later: 128 of 200 tokens from the cache (evicted)' "$dir/prompts.out"
[ "$(pkg-config --modversion quire)" = "$(sed -n 's/^project(quire VERSION \([0-9.]*\).*/\1/p' \
    "$source/CMakeLists.txt")" ]

cmake -S "$source/examples" -B "$dir/consumer" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" \
    >"$dir/consumer.log" 2>&1 || {
    cat "$dir/consumer.log"
    exit 1
}
cmake --build "$dir/consumer" >>"$dir/consumer.log" 2>&1 || {
    cat "$dir/consumer.log"
    exit 1
}
for name in embed prompts; do
    "$dir/consumer/$name" >"$dir/consumer.out"
    cmp "$dir/$name.out" "$dir/consumer.out"
done

if [ -x "$build/quire" ]; then
    "$prefix/bin/quire" --version >"$dir/version"
    grep -q '[0-9]' "$dir/version"
    XDG_CACHE_HOME=$dir "$prefix/bin/quire" run -p "Once upon a time" -n 4 >"$dir/story" 2>"$dir/said"
    grep -q "$prefix/bin/../share/quire/quire-stories.gguf" "$dir/said"
fi
