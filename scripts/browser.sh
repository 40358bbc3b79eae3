# shellcheck shell=sh
# browser.sh - a headless browser for tests of pages: Debian's chromium, driven by the pinned
# playwright-core npm package, and the rules of the pinned axe-core npm package. Needs env.sh and
# packages.sh.
#
# SPDX-License-Identifier: MIT

# browser_dirs: the folders of playwright-core and of axe-core, one by line.
browser_dirs() {
    npm_dir "$PLAYWRIGHT_NPM"
    npm_dir "$AXE_NPM"
}

setup_browser() {
    need_program chromium chromium
    need_program node nodejs
    fetch_npm "$PLAYWRIGHT_NPM" "$PLAYWRIGHT_NPM_SHA256" 4
    fetch_npm "$AXE_NPM" "$AXE_NPM_SHA256" 1
}
