/* valkey_cluster.c - see valkey_cluster.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/valkey/valkey_cluster.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static uint64_t clock_us(void)
{
    return quire_clock_ns() / 1000;
}

/* ---- links ---- */

static bool is_addr(const quire_valkey_addr *a, const quire_valkey_addr *b)
{
    return a->port == b->port && strcasecmp(a->host, b->host) == 0;
}

/* The link to an address; a new one if there is none. NULL: no memory, or too many nodes. */
static quire_vk_link *link_of(quire_vk_cluster *c, const quire_valkey_addr *addr)
{
    for (uint32_t i = 0; i < c->n_links; i++) {
        if (is_addr(&c->links[i]->addr, addr)) {
            return c->links[i];
        }
    }
    if (c->n_links == QUIRE_VK_NODES_MAX) {
        return NULL;
    }
    c->links[c->n_links] = quire_vk_link_new(&c->net, addr);
    return c->links[c->n_links] != NULL ? c->links[c->n_links++] : NULL;
}

static bool is_needed(const quire_vk_cluster *c, const quire_vk_link *l)
{
    if (l->first != NULL) {
        return true;
    }
    for (uint32_t slot = 0; slot < QUIRE_VALKEY_SLOTS; slot++) {
        if (c->slots[slot] == l) {
            return true;
        }
    }
    return false;
}

/* Links to nodes that have left the cluster. */
static void links_tidy(quire_vk_cluster *c)
{
    for (uint32_t i = c->n_links; i > c->n_hosts; i--) {
        quire_vk_link *l = c->links[i - 1];

        if (!is_needed(c, l)) {
            c->links[i - 1] = c->links[--c->n_links];
            quire_vk_link_free(l);
        }
    }
}

static quire_vk_link *ready_link(const quire_vk_cluster *c, uint32_t begin)
{
    for (uint32_t i = 0; i < c->n_links; i++) {
        quire_vk_link *l = c->links[(begin + i) % c->n_links];

        if (l->state == QUIRE_VK_READY) {
            return l;
        }
    }
    return NULL;
}

/* ---- the map ---- */

static void node_read(const quire_vk_link *from, const quire_resp *node, quire_valkey_addr *out)
{
    *out = from->addr; /* a node without a name is the one that answers */
    if (node->type != QUIRE_RESP_ARRAY || node->elements < 2 ||
        node->element[1]->type != QUIRE_RESP_INTEGER) {
        return;
    }
    out->port = (uint16_t)node->element[1]->integer;
    if (node->element[0]->type == QUIRE_RESP_STRING && node->element[0]->str[0] != '\0' &&
        node->element[0]->str[0] != '?' && strlen(node->element[0]->str) <= QUIRE_VALKEY_HOST_MAX) {
        (void)snprintf(out->host, sizeof out->host, "%s", node->element[0]->str);
    }
}

static void range_read(quire_vk_cluster *c, const quire_vk_link *from, const quire_resp *range)
{
    quire_valkey_addr addr;
    quire_vk_link *l;

    if (range->type != QUIRE_RESP_ARRAY || range->elements < 3 ||
        range->element[0]->type != QUIRE_RESP_INTEGER ||
        range->element[1]->type != QUIRE_RESP_INTEGER || range->element[0]->integer < 0 ||
        range->element[1]->integer >= QUIRE_VALKEY_SLOTS) {
        return;
    }
    node_read(from, range->element[2], &addr);
    l = link_of(c, &addr);
    for (long long slot = range->element[0]->integer; slot <= range->element[1]->integer; slot++) {
        c->slots[slot] = l;
    }
}

typedef struct map_ask {
    quire_vk_cluster *cluster;
    quire_vk_link *link;
} map_ask;

static void map_came(void *ctx, const quire_resp *reply)
{
    map_ask *ask = ctx;
    quire_vk_cluster *c = ask->cluster;

    c->is_map_asked = false;
    if (reply == NULL) {
        c->map_due_us = clock_us() + QUIRE_VK_MAP_RETRY_US;
    } else if (reply->type == QUIRE_RESP_ARRAY && reply->elements > 0) {
        memset(c->slots, 0, sizeof c->slots);
        for (size_t i = 0; i < reply->elements; i++) {
            range_read(c, ask->link, reply->element[i]);
        }
        c->is_mapped = true;
        c->is_cluster = true;
    } else if (!c->is_cluster) {
        c->is_mapped = true;
    }
    free(ask);
}

static void map_get(quire_vk_cluster *c, uint64_t now_us)
{
    const quire_vk_arg args[] = { QUIRE_VK_WORD("CLUSTER"), QUIRE_VK_WORD("SLOTS") };
    quire_vk_link *l = ready_link(c, c->map_turn++);
    map_ask *ask = l != NULL ? malloc(sizeof *ask) : NULL;
    quire_vk_cmd *cmd =
        ask != NULL ? quire_vk_cmd_new(args, 2, QUIRE_VK_SLOT_ANY, map_came, ask) : NULL;

    c->map_due_us = UINT64_MAX;
    if (cmd == NULL) {
        free(ask);
        c->map_due_us = now_us + QUIRE_VK_MAP_RETRY_US;
        return;
    }
    *ask = (map_ask){ c, l };
    c->is_map_asked = true;
    quire_vk_link_send(l, cmd);
}

static void map_want(quire_vk_cluster *c, uint64_t at_us)
{
    if (!c->is_map_asked && at_us < c->map_due_us) {
        c->map_due_us = at_us;
    }
}

/* ---- redirections ---- */

static void asking_send(quire_vk_link *l)
{
    const quire_vk_arg word = QUIRE_VK_WORD("ASKING");
    quire_vk_cmd *cmd = quire_vk_cmd_new(&word, 1, QUIRE_VK_SLOT_ANY, NULL, NULL);

    if (cmd != NULL) {
        quire_vk_link_send(l, cmd);
    }
}

/* The link that "MOVED SLOT HOST:PORT" or "ASK SLOT HOST:PORT" names. */
static quire_vk_link *named_link(quire_vk_cluster *c, const quire_vk_link *from, const char *words)
{
    const char *at = strrchr(words, ' ');
    quire_valkey_addr addr = from->addr;
    const char *colon;
    int64_t port;

    colon = at != NULL ? strrchr(++at, ':') : NULL;
    if (colon == NULL || quire_parse_i64(colon + 1, 1, UINT16_MAX, &port) < 0 ||
        (size_t)(colon - at) > QUIRE_VALKEY_HOST_MAX) {
        return NULL;
    }
    addr.port = (uint16_t)port;
    if (colon > at) { /* an empty host is the one that answers */
        memcpy(addr.host, at, (size_t)(colon - at));
        addr.host[colon - at] = '\0';
    }
    return link_of(c, &addr);
}

/* Send a command again, as its reply says. Returns false when the reply says nothing of the kind,
 * or when it cannot be done. */
static bool redirect(quire_vk_cluster *c, quire_vk_link *from, quire_vk_cmd *cmd,
                     const quire_resp *reply)
{
    const bool is_moved = strncmp(reply->str, "MOVED ", 6) == 0;
    const bool is_ask = strncmp(reply->str, "ASK ", 4) == 0;
    quire_vk_link *to;

    if ((!is_moved && !is_ask) || cmd->n_redirects == QUIRE_VK_REDIRECTS_MAX) {
        return false;
    }
    to = named_link(c, from, reply->str);
    if (is_moved) {
        c->is_cluster = true;
        c->is_mapped = true;
        c->slots[cmd->slot] = to;
        c->moved_total++;
        map_want(c, clock_us());
    }
    if (to == NULL || to->state != QUIRE_VK_READY) {
        return false;
    }
    if (is_ask) {
        c->asked_total++;
        asking_send(to);
    }
    cmd->n_redirects++;
    quire_vk_link_send(to, cmd);
    return true;
}

/* ---- from the links ---- */

static void on_reply(void *ctx, quire_vk_link *link, quire_vk_cmd *cmd, const quire_resp *reply)
{
    if (reply == NULL || reply->type != QUIRE_RESP_ERROR || cmd->slot == QUIRE_VK_SLOT_ANY ||
        !redirect(ctx, link, cmd, reply)) {
        quire_vk_cmd_end(cmd, reply);
    }
}

static void say(quire_vk_cluster *c, const quire_vk_link *l, const char *what)
{
    char line[QUIRE_VALKEY_HOST_MAX + QUIRE_VK_TROUBLE_MAX + 16];

    if (c->opts.log != NULL) {
        (void)snprintf(line, sizeof line, "%s:%u: %s", l->addr.host, l->addr.port, what);
        c->opts.log(c->opts.ctx, line);
    }
}

/* A server may refuse: the user lacks the right to subscribe. */
static void on_listening(void *ctx, const quire_resp *reply)
{
    const quire_vk_cluster *c = ctx;
    char line[QUIRE_VALKEY_HOST_MAX + QUIRE_VK_REFUSAL_MAX];

    if (reply != NULL && reply->type == QUIRE_RESP_ERROR && c->opts.log != NULL) {
        (void)snprintf(line, sizeof line,
                       "%s:%u: no news of invalidations by other machines: SUBSCRIBE failed: %s",
                       c->listener->addr.host, c->listener->addr.port, reply->str);
        c->opts.log(c->opts.ctx, line);
    }
}

static void listen_begin(quire_vk_cluster *c)
{
    const quire_vk_arg args[] = { QUIRE_VK_WORD("SUBSCRIBE"),
                                  { c->opts.channel, strlen(c->opts.channel) } };
    quire_vk_cmd *cmd = quire_vk_cmd_new(args, 2, QUIRE_VK_SLOT_ANY, on_listening, c);

    if (cmd != NULL) {
        quire_vk_link_send(c->listener, cmd);
        c->listener->is_listening = true;
    }
}

static void on_ready(void *ctx, quire_vk_link *link)
{
    quire_vk_cluster *c = ctx;

    if (link == c->listener) {
        listen_begin(c);
        return;
    }
    if (link->breaker.opened_total > 0) {
        say(c, link, "connected again");
    }
    map_want(c, clock_us());
}

static void on_lost(void *ctx, quire_vk_link *link)
{
    quire_vk_cluster *c = ctx;

    if (link == c->listener) {
        c->listener_host = (c->listener_host + 1) % c->n_hosts;
        link->addr = c->opts.url->hosts[c->listener_host];
        return;
    }
    /* Once for each time that it is lost, and for the first attempt. */
    if (link->was_ready || link->breaker.opened_total == 1) {
        say(c, link, link->trouble);
    }
    if (c->is_cluster) {
        map_want(c, clock_us() + QUIRE_VK_MAP_RETRY_US);
    }
}

static void on_message(void *ctx, const quire_resp *reply)
{
    quire_vk_cluster *c = ctx;

    if (reply->type == QUIRE_RESP_ARRAY && reply->elements == 3 &&
        reply->element[2]->type == QUIRE_RESP_STRING) {
        c->opts.message(c->opts.ctx, reply->element[2]->str, (size_t)reply->element[2]->len);
    }
}

/* ---- for the store ---- */

int quire_vk_cluster_init(quire_vk_cluster *c, const quire_vk_cluster_opts *opts)
{
    memset(c, 0, sizeof *c);
    c->opts = *opts;
    c->map_due_us = UINT64_MAX;
    c->net = (quire_vk_net){ .user = opts->user,
                             .password = opts->password,
                             .database = opts->url->database,
                             .tls = opts->tls,
                             .silence_us = opts->silence_us,
                             .latency_max_us = opts->latency_max_us,
                             .reply = on_reply,
                             .ready = on_ready,
                             .lost = on_lost,
                             .message = on_message,
                             .ctx = c };
    for (uint32_t i = 0; i < opts->url->n_hosts; i++) {
        QUIRE_FAIL_IF(link_of(c, &opts->url->hosts[i]) == NULL, QUIRE_NOMEM);
    }
    c->n_hosts = c->n_links;
    if (opts->channel != NULL) {
        c->listener = quire_vk_link_new(&c->net, &opts->url->hosts[0]);
        QUIRE_FAIL_IF(c->listener == NULL, QUIRE_NOMEM);
    }
    return QUIRE_OK;
}

void quire_vk_cluster_fini(quire_vk_cluster *c)
{
    c->is_mapped = false; /* commands that the end of a command sends end, too */
    for (uint32_t i = 0; i < c->n_links; i++) {
        quire_vk_link_free(c->links[i]);
    }
    quire_vk_link_free(c->listener);
    c->n_links = 0;
    c->listener = NULL;
}

void quire_vk_cluster_send(quire_vk_cluster *c, quire_vk_cmd *cmd)
{
    quire_vk_link *to = NULL;

    if (c->is_mapped) {
        to = c->is_cluster && cmd->slot != QUIRE_VK_SLOT_ANY ? c->slots[cmd->slot]
                                                             : ready_link(c, 0);
    }
    if (to == NULL || to->state != QUIRE_VK_READY) {
        map_want(c, c->is_cluster ? clock_us() + QUIRE_VK_MAP_RETRY_US : UINT64_MAX);
        quire_vk_cmd_end(cmd, NULL);
        return;
    }
    quire_vk_link_send(to, cmd);
}

bool quire_vk_cluster_is_up(const quire_vk_cluster *c)
{
    return c->is_mapped && ready_link(c, 0) != NULL;
}

void quire_vk_cluster_trouble(const quire_vk_cluster *c, char *out, size_t n)
{
    out[0] = '\0';
    for (uint32_t i = 0; i < c->n_links; i++) {
        const quire_vk_link *l = c->links[i];

        if (l->state != QUIRE_VK_READY) {
            (void)snprintf(out, n, "%s:%u: %s", l->addr.host, l->addr.port,
                           l->trouble[0] != '\0' ? l->trouble : "not connected yet");
            return;
        }
    }
}

/* Whether a slot's node is not there: the map may have changed. */
static bool has_gap(const quire_vk_cluster *c)
{
    for (uint32_t i = 0; i < c->n_links; i++) {
        if (c->links[i]->state != QUIRE_VK_READY) {
            return true;
        }
    }
    return false;
}

void quire_vk_cluster_tick(quire_vk_cluster *c, uint64_t now_us)
{
    if (now_us >= c->map_due_us && !c->is_map_asked) {
        map_get(c, now_us);
        links_tidy(c);
    }
    if (c->is_cluster && c->map_due_us == UINT64_MAX && has_gap(c)) {
        map_want(c, now_us + QUIRE_VK_MAP_RETRY_US);
    }
    for (uint32_t i = 0; i < c->n_links; i++) {
        quire_vk_link_tick(c->links[i], now_us);
    }
    if (c->listener != NULL && (c->listener->state != QUIRE_VK_IDLE || quire_vk_cluster_is_up(c))) {
        quire_vk_link_tick(c->listener, now_us);
    }
}

uint64_t quire_vk_cluster_due_us(const quire_vk_cluster *c)
{
    uint64_t due_us = c->is_map_asked ? UINT64_MAX : c->map_due_us;

    for (uint32_t i = 0; i < c->n_links; i++) {
        const uint64_t link_us = quire_vk_link_due_us(c->links[i]);

        due_us = link_us < due_us ? link_us : due_us;
    }
    if (c->listener != NULL && (c->listener->state != QUIRE_VK_IDLE || quire_vk_cluster_is_up(c))) {
        const uint64_t link_us = quire_vk_link_due_us(c->listener);

        due_us = link_us < due_us ? link_us : due_us;
    }
    return due_us;
}

static const quire_vk_link *watched(const quire_vk_cluster *c, uint32_t i)
{
    return i < c->n_links ? c->links[i] : c->listener;
}

uint32_t quire_vk_cluster_watch(const quire_vk_cluster *c, struct pollfd *out)
{
    const uint32_t n = c->n_links + (c->listener != NULL);

    for (uint32_t i = 0; i < n; i++) {
        const quire_vk_link *l = watched(c, i);

        out[i] = (struct pollfd){ .fd = l->fd, .events = quire_vk_link_events(l) };
    }
    return n;
}

void quire_vk_cluster_io(quire_vk_cluster *c, const struct pollfd *fds, uint32_t n, uint64_t now_us)
{
    quire_vk_link *links[QUIRE_VK_NODES_MAX + 1];

    for (uint32_t i = 0; i < n; i++) { /* replies may add links */
        links[i] = (quire_vk_link *)(uintptr_t)watched(c, i);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (links[i]->fd == fds[i].fd) {
            quire_vk_link_io(links[i], fds[i].revents, now_us);
        }
    }
}
