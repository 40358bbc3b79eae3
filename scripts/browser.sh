# shellcheck shell=sh
# browser.sh - a headless browser for tests of pages: Debian's chromium, driven by the pinned
# playwright-core npm package. Needs env.sh and packages.sh.
#
# SPDX-License-Identifier: MIT

browser_dir() {
    npm_dir "$PLAYWRIGHT_NPM"
}

setup_browser() {
    need_program chromium chromium
    need_program node nodejs
    fetch_npm "$PLAYWRIGHT_NPM" "$PLAYWRIGHT_NPM_SHA256" 4
}
