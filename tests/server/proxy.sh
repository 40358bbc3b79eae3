#!/bin/sh
# proxy.sh nginx|caddy QUIRE - the examples of examples/proxy in front of a running `quire serve`: a
# reply, a stream with events that arrive one by one, a large body, a refused Host.
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
proxy_pid=

skip() {
    echo "skipped: $*"
    exit 77
}

fail() {
    echo "$*"
    tail -n 20 "$dir/log" "$dir/proxy.log" "$dir/nginx.log" 2>/dev/null || true
    exit 1
}

end() {
    [ -z "$proxy_pid" ] || kill -TERM "$proxy_pid" 2>/dev/null || true
    [ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null || true
    rm -rf "$dir"
}
trap end EXIT
trap 'exit 130' INT TERM

need() {
    command -v "$1" >/dev/null 2>&1 || skip "$1 is not installed"
}

# serve OPTION...: a server on a free port; sets pid and port.
serve() {
    rm -f "$dir/ready"
    mkfifo "$dir/ready"
    "$quire" serve -m "$model" --port 0 --chat-template chatml -t 2 "$@" >"$dir/ready" 2>"$dir/log" &
    pid=$!
    exec 3<"$dir/ready"
    IFS= read -r line <&3 || fail "the server did not start"
    port=${line##*:}
}

# A port that is free now. A proxy cannot be told to take any.
free_port() {
    node -e 'const s = require("net").createServer();
        s.listen(0, "127.0.0.1", () => { console.log(s.address().port); s.close(); });'
}

start_proxy() {
    listen=$(free_port)
    case $what in
    nginx)
        sed "s/QUIRE_PORT/$port/; s/LISTEN_PORT/$listen/" examples/proxy/nginx.conf >"$dir/nginx.conf"
        nginx -p "$dir" -c "$dir/nginx.conf" -e "$dir/nginx.log" \
            -g "daemon off; pid $dir/nginx.pid;" >"$dir/proxy.log" 2>&1 &
        ;;
    caddy)
        sed "s/QUIRE_PORT/$port/; s/LISTEN_PORT/$listen/" examples/proxy/Caddyfile >"$dir/Caddyfile"
        HOME=$dir XDG_CONFIG_HOME=$dir XDG_DATA_HOME=$dir \
            caddy run --config "$dir/Caddyfile" --adapter caddyfile >"$dir/proxy.log" 2>&1 &
        ;;
    *) fail "usage: proxy.sh nginx|caddy QUIRE" ;;
    esac
    proxy_pid=$!
    url=http://127.0.0.1:$listen
    until curl -sS -m 5 -o "$dir/out" "$url/health" 2>/dev/null; do
        kill -0 "$proxy_pid" 2>/dev/null || fail "the proxy has ended"
    done
}

# reply STATUS PATTERN CURL-ARGUMENT...
reply() {
    want=$1
    pattern=$2
    shift 2
    got=$(curl -sS -i -m 60 -o "$dir/out" -w '%{http_code}' "$@") || fail "curl $*: exit $?"
    [ "$got" = "$want" ] || fail "curl $*: expected $want, got $got: $(cat "$dir/out")"
    grep -qE -- "$pattern" "$dir/out" || fail "curl $*: no '$pattern' in: $(cat "$dir/out")"
}

need curl
need node
need "$what"
serve --allowed-hosts proxy.example
start_proxy
reply 200 '"status": ?"ok"' "$url/health"
reply 200 '"text": ?"' "$url/v1/completions" -d '{"prompt":"Once","max_tokens":4}'
reply 200 '^data: \[DONE\]' -N "$url/v1/completions" -d '{"prompt":"Once","max_tokens":8,"stream":true}'
reply 200 '"status": ?"ok"' -H 'Host: proxy.example' "$url/health"
# More than proxies keep in memory: 1.5 MB.
{
    printf '{"content":"'
    seq -s ' ' 1 250000 | tr -d '\n'
    printf '"}'
} >"$dir/body"
reply 200 '"tokens"' "$url/tokenize" --data-binary "@$dir/body"
node tests/server/events.mjs "$url" || fail "events.mjs: exit $?"
