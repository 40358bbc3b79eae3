#!/bin/sh
# clients.sh WHAT QUIRE - programs that people really use against a running `quire serve`.
#
#   openai  the openai npm package: chat, streams, responses, usage, errors, abort, keys
#           (openai.mjs)
#   openai_tools  its tools: chats and responses, whole and in streams (openai-tools.mjs)
#   anthropic  the @anthropic-ai/sdk npm package: messages, streams, tools, cache_control
#              (anthropic.mjs)
#   agent   a coding agent's loop, replayed from a transcript (agent.mjs), and 43 turns of a made-up
#           one on /v1/chat/completions (scripts/agents/replay.mjs)
#   coding_agent  Qwen Code, an agent that people install, calls a tool (coding-agent.mjs)
#   tools   arguments of required calls, validated by ajv (scripts/tool-calls.mjs)
#   curl    command lines as in the manual: headers, streams, wrong requests
#   wrk     many connections: /health, and a short completion (completion.lua)
#   soak    500 mixed requests with random cancels (scripts/serve/soak.mjs; `make soak` runs 20,000)
#
# 77 = skipped, with the reason.
#
# SPDX-License-Identifier: MIT
set -eu

what=$1
quire=$2
model=tests/data/stories260K-f32.gguf
dir=$(mktemp -d)
pid=
template="--chat-template chatml"

skip() {
    echo "skipped: $*"
    exit 77
}

fail() {
    echo "$*"
    tail -n 20 "$dir/log" 2>/dev/null || true
    exit 1
}

end() {
    [ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null || true
    rm -rf "$dir"
}
trap end EXIT
trap 'exit 130' INT TERM

need() {
    command -v "$1" >/dev/null 2>&1 || skip "$1 is not installed"
}

# serve OPTION...: start a server on a free port; sets pid and url. The server prints "ready: URL"
# when it is ready.
serve() {
    rm -f "$dir/ready"
    mkfifo "$dir/ready"
    # shellcheck disable=SC2086 # two words
    "$quire" serve -m "$model" --port 0 $template -t 2 "$@" >"$dir/ready" 2>"$dir/log" &
    pid=$!
    exec 3<"$dir/ready"
    IFS= read -r line <&3 || fail "the server did not start"
    url=${line#ready: }
    [ "$url" != "$line" ] || fail "the server said: $line"
}

# stop: SIGTERM must end it with status 0.
stop() {
    kill -TERM "$pid"
    rc=0
    wait "$pid" || rc=$?
    pid=
    [ "$rc" -eq 0 ] || fail "SIGTERM: status $rc"
}

# ---- curl ----

# reply STATUS PATTERN CURL-ARGUMENT...: a request must return the status, and its headers and body
# must match the pattern.
reply() {
    want=$1
    pattern=$2
    shift 2
    got=$(curl -sS -i -m 60 -o "$dir/out" -w '%{http_code}' "$@") || fail "curl $*: exit $?"
    [ "$got" = "$want" ] || fail "curl $*: expected $want, got $got: $(cat "$dir/out")"
    grep -qE -- "$pattern" "$dir/out" || fail "curl $*: no '$pattern' in: $(cat "$dir/out")"
}

try_curl() {
    need curl
    serve --max-body 20k
    chat=$url/v1/chat/completions
    say='{"messages":[{"role":"user","content":"Once upon a time"}],"max_tokens":8}'

    reply 200 '"status": ?"ok"' "$url/health"
    reply 200 '^HTTP/1.1 200' -I "$url/health"
    reply 200 '"object": ?"list"' "$url/v1/models"
    reply 200 '^quire_requests_total 0' "$url/metrics"
    reply 200 '^Content-Type: text/html' "$url/"
    reply 200 '"tokens": ?\[[0-9]' "$url/tokenize" -d '{"content":"Once upon a time"}'
    reply 200 '"finish_reason": ?"length"' "$chat" -d "$say"
    reply 200 '"completion_tokens": ?8' "$chat" -H 'Content-Type: application/json' --http1.0 -d "$say"
    reply 200 '"cached_tokens": ?[1-9]' "$chat" -H 'Transfer-Encoding: chunked' -d "$say"
    reply 200 '"text": ?"' "$url/v1/completions" -H 'Expect: 100-continue' -d '{"prompt":"Once","max_tokens":4}'
    # The last event of a stream, and that it comes as events.
    reply 200 '^data: \[DONE\]' -N "$chat" -d "${say%\}},\"stream\":true}"
    grep -qi '^Content-Type: text/event-stream' "$dir/out" || fail "a stream is not text/event-stream"

    reply 400 '"type": ?"invalid_request_error"' "$chat" -d '{"messages":'
    reply 400 '"param": ?"max_tokens"' "$chat" -d "${say%8\}}0}"
    reply 404 '"error"' "$url/v1/nothing"
    reply 405 '^Allow: ' -X DELETE "$url/v1/models"
    reply 413 '"error"' "$chat" -d "$(printf '%030000d' 0)"
    reply 403 '"error"' -H 'Origin: http://elsewhere.example' "$url/v1/models"
    # A connection that is kept serves the next request, after an error too.
    n=$(curl -sS -m 60 -o "$dir/out" -w '%{num_connects}\n' "$url/v1/nothing" -o "$dir/out" "$url/health" | tail -n 1)
    [ "$n" -eq 0 ] || fail "the connection was not kept after a 404"
    stop
    try_tls
}

# TLS with a certificate of its own, and a page of another origin.
try_tls() {
    command -v openssl >/dev/null 2>&1 || {
        echo "TLS is not tried: openssl is not installed"
        return 0
    }
    openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost \
        -addext 'subjectAltName=DNS:localhost,IP:127.0.0.1' \
        -keyout "$dir/key.pem" -out "$dir/cert.pem" 2>"$dir/log" || fail "openssl: exit $?"
    serve --tls-cert "$dir/cert.pem" --tls-key "$dir/key.pem" --cors-origins https://app.example \
        --api-key key-of-a-tenant
    [ "${url#https://}" != "$url" ] || fail "no https in: $url"
    chat=$url/v1/chat/completions
    reply 200 '"status": ?"ok"' --cacert "$dir/cert.pem" "$url/health"
    reply 200 '^data: \[DONE\]' --cacert "$dir/cert.pem" -N -H 'x-api-key: key-of-a-tenant' "$chat" \
        -d "${say%\}},\"stream\":true}"
    reply 204 '^Access-Control-Allow-Origin: https://app.example' --cacert "$dir/cert.pem" -X OPTIONS \
        -H 'Origin: https://app.example' -H 'Access-Control-Request-Method: POST' "$chat"
    if curl -sS -m 10 -o "$dir/out" "http://${url#https://}/health" 2>"$dir/plain"; then
        fail "a server with TLS answers without"
    fi
    stop
    if "$quire" serve -m "$model" --port 0 --tls-cert "$dir/cert.pem" >"$dir/out" 2>"$dir/log"; then
        fail "a certificate without its key was taken"
    fi
    grep -q 'tls_key is missing' "$dir/log" || fail "no 'tls_key is missing': $(cat "$dir/log")"
}

# ---- wrk ----

# flood URL WRK-ARGUMENT...: many requests at once; each must get a 2xx.
flood() {
    address=$1
    shift
    wrk -t 1 -c 16 -d 2s --timeout 60s "$@" "$address" >"$dir/out" || fail "wrk: exit $?"
    if grep -qE 'Non-2xx|Socket errors' "$dir/out" || ! grep -qE '^ +[1-9][0-9]* requests in' "$dir/out"; then
        fail "wrk $address: $(cat "$dir/out")"
    fi
    sed -n 's|^Requests/sec: *|'"$address"': requests/s |p' "$dir/out"
}

try_wrk() {
    need wrk
    need curl
    serve
    flood "$url/health"
    flood "$url/v1/completions" -s tests/server/completion.lua
    # wrk closes its connections when its time is over: all running requests must end.
    until curl -sS -m 60 -o "$dir/out" "$url/metrics" && grep -q '^quire_num_requests_running 0$' "$dir/out"; do
        kill -0 "$pid" || fail "the server has ended"
    done
    reply 200 '"finish_reason": ?"length"' "$url/v1/completions" -d '{"prompt":"Once","max_tokens":4,"ignore_eos":true}'
    stop
}

try_openai() {
    need node
    package=$(scripts/setup.sh clients 2>"$dir/log") || skip "$(tail -n 1 "$dir/log")"
    package=$(printf '%s\n' "$package" | grep openai)
    serve
    node tests/server/openai.mjs "$package" "$url" || fail "openai.mjs: exit $?"
    stop
    serve --api-key key-of-a-tenant --admin-key key-of-an-admin
    node tests/server/openai.mjs "$package" "$url" key-of-a-tenant || fail "openai.mjs with keys: exit $?"
    stop
}

# A template with tools. Its prompts are longer than the small model was trained for.
use_tools() {
    [ -n "${TEMPLATES_DIR:-}" ] || skip "this build runs no Jinja templates"
    template="--chat-template-file $TEMPLATES_DIR/Qwen-Qwen2.5-7B-Instruct.jinja -c 8192"
}

try_openai_tools() {
    need node
    package=$(scripts/setup.sh clients 2>"$dir/log") || skip "$(tail -n 1 "$dir/log")"
    package=$(printf '%s\n' "$package" | grep openai)
    use_tools
    serve
    node tests/server/openai-tools.mjs "$package" "$url" || fail "openai-tools.mjs: exit $?"
    stop
}

try_anthropic() {
    need node
    package=$(scripts/setup.sh clients 2>"$dir/log") || skip "$(tail -n 1 "$dir/log")"
    package=$(printf '%s\n' "$package" | grep anthropic)
    use_tools
    serve
    node tests/server/anthropic.mjs "$package" "$url" || fail "anthropic.mjs: exit $?"
    stop
    serve --api-key key-of-a-tenant
    node tests/server/anthropic.mjs "$package" "$url" key-of-a-tenant || fail "anthropic.mjs with keys: exit $?"
    stop
}

try_agent() {
    need node
    use_tools
    serve
    node tests/server/agent.mjs tests/server/agent.json "$url" || fail "agent.mjs: exit $?"
    stop
    # The small vocabulary makes a token of nearly each letter.
    template="${template% -c *} -c 65536"
    serve
    node scripts/agents/replay.mjs --url "$url" --sizes 0.2 || fail "replay.mjs: exit $?"
    stop
}

try_coding_agent() {
    need node
    node -e 'process.exit(Number(process.versions.node.split(".")[0]) < 20 ? 1 : 0)' || skip "Node.js is older than 20"
    package=$(scripts/setup.sh agent 2>"$dir/log") || skip "$(tail -n 1 "$dir/log")"
    use_tools
    template="${template% -c *} -c 16384"
    serve
    node tests/server/coding-agent.mjs "$package" "$url" || fail "coding-agent.mjs: exit $?"
    stop
}

try_tools() {
    need node
    package=$(scripts/setup.sh clients 2>"$dir/log") || skip "$(tail -n 1 "$dir/log")"
    package=$(printf '%s\n' "$package" | grep ajv)
    use_tools
    serve
    node scripts/tool-calls.mjs --ajv "$package" --url "$url" --only grep,glob,get_weather,make_chart --brief ||
        fail "tool-calls.mjs: exit $?"
    stop
}

try_soak() {
    need node
    node scripts/serve/soak.mjs --quire "$quire" --model "$model" --requests 500 --clients 20 --prompts 50 \
        --seed "${QUIRE_SEED:-1}" --stuck-seconds 600
}

case $what in
openai) try_openai ;;
openai_tools) try_openai_tools ;;
anthropic) try_anthropic ;;
agent) try_agent ;;
coding_agent) try_coding_agent ;;
tools) try_tools ;;
curl) try_curl ;;
wrk) try_wrk ;;
soak) try_soak ;;
*) fail "usage: clients.sh openai|openai_tools|anthropic|agent|coding_agent|tools|curl|wrk|soak QUIRE" ;;
esac
