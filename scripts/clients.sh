# shellcheck shell=sh
# clients.sh - programs that talk to a server: the pinned openai npm package, curl, wrk. Needs env.sh and
# packages.sh.
#
#   $CACHE_DIR/openai-<version>/    the package as published; it depends on no other
#
# SPDX-License-Identifier: MIT

clients_dir() {
    printf '%s/openai-%s\n' "$CACHE_DIR" "${OPENAI_NPM#openai@}"
}

setup_clients() {
    need_program curl curl
    need_program wrk wrk
    need_program node nodejs
    [ ! -d "$(clients_dir)" ] || return 0
    need_program npm npm
    hold_lock setup
    [ ! -d "$(clients_dir)" ] || return 0
    clean_up_at_exit
    say "fetching the npm package $OPENAI_NPM (2 MB)"
    pack_dir=$(mktemp -d "$CACHE_DIR/tmp.XXXXXX")
    tarball=$(npm_pack "$pack_dir" "$OPENAI_NPM") ||
        die "$OPENAI_NPM could not be fetched; tests with it are skipped"
    [ "$(sha256sum <"$tarball" | cut -d ' ' -f 1)" = "$OPENAI_NPM_SHA256" ] ||
        die "$OPENAI_NPM: the tarball's sha256 is not $OPENAI_NPM_SHA256: not used"
    tar xzf "$tarball" -C "$pack_dir"
    mv -T "$pack_dir/package" "$(clients_dir)"
}
