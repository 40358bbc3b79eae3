#!/bin/sh
# check_package_shared.sh BUILD CC - libquire as a shared library: only the public interface is
# visible, and a consumer works with it.
#
# SPDX-License-Identifier: MIT
set -eu

shared=$1/shared
cc=$2
# With the options of the preset that is under test, so that ccache has each object.
build_shared() {
    cmake --preset lib -B "$shared" -DBUILD_SHARED_LIBS=ON -DCMAKE_C_COMPILER="$cc" -DQUIRE_TOOLS=OFF \
        -DBUILD_TESTING=OFF &&
        cmake --build "$shared" --parallel 2
}
if ! build_shared >"$1/shared.log" 2>&1; then
    tail -n 30 "$1/shared.log"
    exit 1
fi

names=$(nm -D --defined-only "$shared/libquire.so" | sed 's/.* //')
printf '%s\n' "$names" | grep -q '^quire_cache_create$'
for name in $names; do
    grep -qw "$name" include/quire/*.h || {
        echo "libquire.so shows $name, which no public header declares"
        exit 1
    }
done
# The library must show every function that the public headers declare.
cat include/quire/*.h | grep -oE '^[a-z][a-zA-Z0-9_ *]*quire_[a-z0-9_]+\(' | sed 's/($//; s/.*[ *]//' |
    sort -u | while IFS= read -r name; do
    printf '%s\n' "$names" | grep -qx "$name" || {
        echo "$name is declared in a public header, but libquire.so has none"
        exit 1
    }
done
# The archive shows its insides as well: they must not clash with anybody else's names.
if nm -g --defined-only "$shared/libquire.a" | awk 'NF == 3 { print $3 }' | grep -v '^quire_'; then
    echo "global names in libquire.a without quire_, see above"
    exit 1
fi
exec sh tests/tree/check_package.sh "$shared" "$cc"
