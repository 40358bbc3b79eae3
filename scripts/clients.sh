# shellcheck shell=sh
# clients.sh - programs that talk to a server: the pinned openai npm package, curl, wrk. Needs env.sh and
# packages.sh.
#
# SPDX-License-Identifier: MIT

clients_dir() {
    npm_dir "$OPENAI_NPM"
}

setup_clients() {
    need_program curl curl
    need_program wrk wrk
    need_program node nodejs
    fetch_npm "$OPENAI_NPM" "$OPENAI_NPM_SHA256" 2
}
