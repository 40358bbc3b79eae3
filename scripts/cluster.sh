#!/bin/sh
# cluster.sh - the cluster of docs/cluster.md, with the files of that page, on one machine: three
# `quire serve` and three servers of Redis (or Valkey), each in a network namespace with an address
# of its own, behind HAProxy, which hashes the header X-Session-Id. Root only.
#
#   scripts/cluster.sh check                    say what is missing here (exit status 77)
#   scripts/cluster.sh up MODEL [OPTION...]     start all, then a shell beside HAProxy
#   scripts/cluster.sh run COMMAND MODEL [OPTION...]
#                                               start all, run the command, end with its exit status
#
# The options go to each `quire serve`. Relative paths begin at the repository. QUIRE_PROGRAM names
# another program than build/quire. The command finds in its environment:
#
#   CLUSTER_HOST, CLUSTER_PORT   address of HAProxy; node N serves at 10.77.0.1N, port 8080
#   CLUSTER_DIR                  files of the cluster: nodeN.pid, nodeN.log, cacheN.pid, cacheN.log
#   QUIRE_API_KEY                the key that the nodes take
#
# All of it lives in namespaces of this script's own (network, mount, process): nothing is seen from
# outside, no address can collide, and when the script ends for any reason, all is gone.
#
# SPDX-License-Identifier: MIT
cd "$(dirname "$0")/.."
. scripts/env.sh

CLUSTER_DIR=/run/cluster
CLUSTER_HOST=10.77.0.1
CLUSTER_PORT=8080
export CLUSTER_DIR CLUSTER_HOST CLUSTER_PORT

redis_program() { command -v "valkey-$1" || command -v "redis-$1"; }

# absent: print a word for each program or right that this machine lacks.
absent() {
    [ "$(id -u)" -eq 0 ] || echo root
    for program in ip unshare haproxy; do
        command -v "$program" >/dev/null 2>&1 || echo "$program"
    done
    for part in server cli; do
        redis_program "$part" >/dev/null || echo "redis-$part"
    done
}

# has_namespaces: whether this machine lets us have them, with a bridge.
has_namespaces() {
    unshare --net --mount --pid --fork sh -c \
        'ip link add name bridge0 type bridge && ip link add name a0 type veth peer name b0 &&
            mount -t tmpfs tmpfs /run' >/dev/null 2>&1
}

need_all() {
    lack=$(absent | tr '\n' ' ')
    [ -n "$lack" ] || has_namespaces || lack=namespaces
    [ -z "$lack" ] || {
        say "cluster: this machine lacks: ${lack% }"
        exit 77
    }
}

# fail WHAT LOG: with the end of a log.
fail() {
    tail -n 20 "$2" >&2
    die "cluster: $1"
}

# until_true PID WHAT LOG COMMAND...: run it until it succeeds, at most 60 s, while the process
# lives.
until_true() {
    pid=$1 what=$2 log=$3 laps=0
    shift 3
    until "$@" >/dev/null 2>&1; do
        kill -0 "$pid" 2>/dev/null || fail "$what ended" "$log"
        laps=$((laps + 1))
        [ "$laps" -lt 600 ] || fail "$what is not ready after 60 s" "$log"
        sleep 0.1
    done
}

# machine NAME ADDRESS: a network namespace with one interface, on the bridge.
machine() {
    ip netns add "$1"
    ip link add name "$1-br" type veth peer name "$1-eth"
    ip link set "$1-br" master bridge0 up
    ip link set "$1-eth" netns "$1"
    ip -n "$1" address add "$2/24" dev "$1-eth"
    ip -n "$1" link set lo up
    ip -n "$1" link set "$1-eth" up
}

# start NAME COMMAND...: in the namespace NAME; the process is written down.
start() {
    name=$1
    shift
    ip netns exec "$name" "$@" >"$CLUSTER_DIR/$name.log" 2>&1 </dev/null &
    echo $! >"$CLUSTER_DIR/$name.pid"
}

pid_of() { cat "$CLUSTER_DIR/$1.pid"; }

# stop_all: each process by its id. The remaining processes end with the namespaces.
stop_all() {
    for file in "$CLUSTER_DIR"/*.pid; do
        [ ! -e "$file" ] || kill "$(cat "$file")" 2>/dev/null || true
    done
}

prepare() {
    mount -t tmpfs -o mode=0755 tmpfs /run
    mkdir -m 0700 "$CLUSTER_DIR"
    trap stop_all EXIT
    trap 'exit 143' INT TERM HUP
    head -c 32 /dev/urandom >"$CLUSTER_DIR/store.key"
    chmod 0600 "$CLUSTER_DIR/store.key"
    QUIRE_API_KEY=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    QUIRE_STORE_PASSWORD=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    export QUIRE_API_KEY QUIRE_STORE_PASSWORD
    ip link set lo up
    ip link add name bridge0 type bridge
    ip address add "$CLUSTER_HOST/24" dev bridge0
    ip link set bridge0 up
}

redis_say() {
    REDISCLI_AUTH=$QUIRE_STORE_PASSWORD "$(redis_program cli)" "$@"
}

cluster_agrees() {
    redis_say -h "$1" cluster info | grep -q '^cluster_state:ok' &&
        redis_say -h "$1" cluster info | grep -q '^cluster_slots_ok:16384'
}

# page_block LINE: the block of docs/cluster.md that begins with this line.
page_block() {
    awk -v first="$1" '/^```/ { on = 0 } $0 == first { on = 1 } on' docs/cluster.md
}

# The page's file, with an address and passwords of ours.
start_caches() {
    for i in 1 2 3; do
        machine "cache$i" "10.77.0.2$i"
        mkdir "$CLUSTER_DIR/cache$i"
        page_block 'bind 10.77.0.21' | sed "s/10.77.0.21/10.77.0.2$i/; s/^maxmemory .*/maxmemory 256mb/
            s/[A-Z]*_PASSWORD/$QUIRE_STORE_PASSWORD/" >"$CLUSTER_DIR/cache$i/redis.conf"
        start "cache$i" "$(redis_program server)" "$CLUSTER_DIR/cache$i/redis.conf" \
            --dir "$CLUSTER_DIR/cache$i"
    done
    for i in 1 2 3; do
        until_true "$(pid_of "cache$i")" "cache$i" "$CLUSTER_DIR/cache$i.log" \
            redis_say -h "10.77.0.2$i" ping
    done
    redis_say --cluster create 10.77.0.21:6379 10.77.0.22:6379 10.77.0.23:6379 --cluster-yes \
        >"$CLUSTER_DIR/create.log" 2>&1 || fail "no cluster was made" "$CLUSTER_DIR/create.log"
    for i in 1 2 3; do
        until_true "$(pid_of "cache$i")" "cache$i" "$CLUSTER_DIR/cache$i.log" \
            cluster_agrees "10.77.0.2$i"
    done
}

# start_nodes MODEL [OPTION...]
start_nodes() {
    for i in 1 2 3; do
        machine "node$i" "10.77.0.1$i"
        start "node$i" "${QUIRE_PROGRAM:-build/quire}" serve -m "$@" --host "10.77.0.1$i" --port 8080 \
            --store valkey://10.77.0.21,10.77.0.22,10.77.0.23 --store-user quire \
            --store-key-file "$CLUSTER_DIR/store.key"
    done
    for i in 1 2 3; do
        until_true "$(pid_of "node$i")" "node$i" "$CLUSTER_DIR/node$i.log" \
            grep -q '^ready: ' "$CLUSTER_DIR/node$i.log"
    done
}

start_haproxy() {
    page_block defaults >"$CLUSTER_DIR/haproxy.cfg"
    haproxy -D -f "$CLUSTER_DIR/haproxy.cfg" -p "$CLUSTER_DIR/haproxy.pid" \
        >"$CLUSTER_DIR/haproxy.log" 2>&1 || fail "HAProxy does not start" "$CLUSTER_DIR/haproxy.log"
}

# inside COMMAND MODEL [OPTION...]
inside() {
    command=$1
    shift
    prepare
    start_caches
    start_nodes "$@"
    start_haproxy
    say "cluster: ready: http://$CLUSTER_HOST:$CLUSTER_PORT, files in $CLUSTER_DIR"
    status=0
    "$command" || status=$?
    exit "$status"
}

mode=${1:-}
[ "$#" -eq 0 ] || shift
case $mode:$# in
check:0) need_all ;;
up:0 | run:[01]) die "usage: scripts/cluster.sh check | up MODEL [OPTION...] | run COMMAND MODEL [OPTION...]" ;;
up:*)
    need_all
    exec unshare --net --mount --pid --fork --kill-child --mount-proc \
        sh scripts/cluster.sh inside "${SHELL:-/bin/sh}" "$@"
    ;;
run:*)
    need_all
    exec unshare --net --mount --pid --fork --kill-child --mount-proc \
        sh scripts/cluster.sh inside "$@"
    ;;
inside:*) inside "$@" ;;
*) die "usage: scripts/cluster.sh check | up MODEL [OPTION...] | run COMMAND MODEL [OPTION...]" ;;
esac
