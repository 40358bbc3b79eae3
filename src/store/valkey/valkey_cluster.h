/* valkey_cluster.h - which server gets a command: one server, or the nodes of a cluster.
 *
 * After the greeting a server is asked for its map (CLUSTER SLOTS). A server without a cluster
 * refuses: then the first of the URL's hosts that is ready gets all commands. In a cluster the slot
 * of the key decides. MOVED sends the command again, to the node that it names, and asks for the
 * map; ASK sends it again after ASKING, once. A command that meets a server that is not ready ends
 * without reply: nobody waits for a connection.
 *
 * Of several hosts without a cluster one is used at a time. When another one takes over, it has
 * other epochs (valkey_epoch.h), so nothing that was dropped comes back.
 *
 * Thread: the store's.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_VALKEY_CLUSTER_H
#define QUIRE_STORE_VALKEY_CLUSTER_H

#include <poll.h>

#include "store/valkey/valkey_key.h"
#include "store/valkey/valkey_link.h"

#define QUIRE_VK_NODES_MAX     256u
#define QUIRE_VK_REDIRECTS_MAX 5u
#define QUIRE_VK_MAP_RETRY_US  500000u /* between two questions for the map */

typedef struct quire_vk_cluster_opts {
    const quire_valkey_url *url;
    const char *user;     /* NULL = none */
    const char *password; /* NULL = none */
    quire_vk_tls *tls;    /* borrowed; NULL = none */
    uint64_t silence_us;
    uint64_t latency_max_us;
    const char *channel; /* NULL = none; borrowed */
    /* A message came on the channel. */
    void (*message)(void *ctx, const char *data, size_t n);
    /* One line about a server, without newline. */
    void (*log)(void *ctx, const char *line);
    void *ctx;
} quire_vk_cluster_opts;

typedef struct quire_vk_cluster {
    quire_vk_cluster_opts opts;
    quire_vk_net net;
    quire_vk_link *links[QUIRE_VK_NODES_MAX]; /* the URL's hosts first */
    uint32_t n_links;
    uint32_t n_hosts;
    quire_vk_link *listener; /* NULL = none */
    uint32_t listener_host;
    bool is_mapped; /* it is known whether this is a cluster */
    bool is_cluster;
    bool is_map_asked;
    uint64_t map_due_us; /* UINT64_MAX = never */
    uint32_t map_turn;
    uint64_t moved_total;                     /* commands that MOVED sent elsewhere */
    uint64_t asked_total;                     /* likewise, ASK */
    quire_vk_link *slots[QUIRE_VALKEY_SLOTS]; /* NULL = not known */
} quire_vk_cluster;

/* The cluster must not move in memory afterwards. Errors: QUIRE_NOMEM. Memory:
 * quire_vk_cluster_fini(). */
int quire_vk_cluster_init(quire_vk_cluster *cluster, const quire_vk_cluster_opts *opts);
/* Ends all commands. */
void quire_vk_cluster_fini(quire_vk_cluster *cluster);

/* Send a command; the cluster owns it. It may end at once. */
void quire_vk_cluster_send(quire_vk_cluster *cluster, quire_vk_cmd *cmd);
/* Whether commands can be sent at all. */
bool quire_vk_cluster_is_up(const quire_vk_cluster *cluster);
/* "HOST:PORT: why" of a server that is away; "" when none is. */
void quire_vk_cluster_trouble(const quire_vk_cluster *cluster, char *out, size_t n);

void quire_vk_cluster_tick(quire_vk_cluster *cluster, uint64_t now_us);
uint64_t quire_vk_cluster_due_us(const quire_vk_cluster *cluster);
/* Fill in the descriptors that poll() shall watch: at most QUIRE_VK_NODES_MAX + 1. Returns the
 * number. */
uint32_t quire_vk_cluster_watch(const quire_vk_cluster *cluster, struct pollfd *out);
/* After poll(): the same array. */
void quire_vk_cluster_io(quire_vk_cluster *cluster, const struct pollfd *fds, uint32_t n,
                         uint64_t now_us);

#endif /* QUIRE_STORE_VALKEY_CLUSTER_H */
