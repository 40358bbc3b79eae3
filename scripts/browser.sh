# shellcheck shell=sh
# browser.sh - a headless browser for tests of pages: Debian's chromium, driven by the pinned
# playwright-core npm package. Needs env.sh and packages.sh.
#
#   $CACHE_DIR/playwright-core-<version>/    the package as published; it depends on no other
#
# SPDX-License-Identifier: MIT

browser_dir() {
    printf '%s/playwright-core-%s\n' "$CACHE_DIR" "${PLAYWRIGHT_NPM#playwright-core@}"
}

setup_browser() {
    need_program chromium chromium
    need_program node nodejs
    [ ! -d "$(browser_dir)" ] || return 0
    need_program npm npm
    hold_lock setup
    [ ! -d "$(browser_dir)" ] || return 0
    clean_up_at_exit
    say "fetching the npm package $PLAYWRIGHT_NPM (4 MB)"
    pack_dir=$(mktemp -d "$CACHE_DIR/tmp.XXXXXX")
    tarball=$(npm_pack "$pack_dir" "$PLAYWRIGHT_NPM") ||
        die "$PLAYWRIGHT_NPM could not be fetched; tests with a browser are skipped"
    [ "$(sha256sum <"$tarball" | cut -d ' ' -f 1)" = "$PLAYWRIGHT_NPM_SHA256" ] ||
        die "$PLAYWRIGHT_NPM: the tarball's sha256 is not $PLAYWRIGHT_NPM_SHA256: not used"
    tar xzf "$tarball" -C "$pack_dir"
    mv -T "$pack_dir/package" "$(browser_dir)"
}
