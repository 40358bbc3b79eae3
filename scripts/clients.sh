# shellcheck shell=sh
# clients.sh - programs that talk to a server: the pinned npm packages of OpenAI and Anthropic, ajv,
# curl, wrk. Needs env.sh and packages.sh.
#
# SPDX-License-Identifier: MIT

clients_dir() {
    npm_dir "$OPENAI_NPM"
    npm_dir "$ANTHROPIC_NPM"
    npm_dir "$AJV_NPM"
}

# A program that uses a server, beside the packages of clients: larger, so a setup of its own.
setup_agent() {
    need_program node nodejs
    fetch_npm "$AGENT_NPM" "$AGENT_NPM_SHA256" 16
}

setup_clients() {
    need_program curl curl
    need_program wrk wrk
    need_program node nodejs
    fetch_npm "$OPENAI_NPM" "$OPENAI_NPM_SHA256" 2
    fetch_npm "$ANTHROPIC_NPM" "$ANTHROPIC_NPM_SHA256" 1
    fetch_npm "$AJV_NPM" "$AJV_NPM_SHA256" 2
}
