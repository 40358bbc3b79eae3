/* host_order.h - which record in the host's memory makes room: by the policies of the prefix tree
 * (core/evict/evict.h).
 *
 * Each entry has a node of a tree without pages and tokens. The parent of a node is the page
 * before, if it is there. So candidates are the ends of texts, as in the tree above: a text loses
 * its last pages first, and no page becomes useless. The nodes of one request are used at the same
 * time.
 *
 * The caller of a transfer says who uses the page (quire_page_use): rank, region and tenant, and
 * what the policy of the tree above knows about it. The policy goes on with that, learns from the
 * uses that it sees here, and remembers evicted pages as ghosts.
 *
 * Thread: the caller's lock.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_HOST_ORDER_H
#define QUIRE_STORE_HOST_ORDER_H

#include "core/evict/evict.h"
#include "store/store.h"

/* The region of pinned classes; that of all is QUIRE_REGION_DYNAMIC. */
#define QUIRE_HOST_PINNED   ((quire_region_id)1)
#define QUIRE_HOST_USES_MAX 16u    /* earlier uses of a page that count when it comes */
#define QUIRE_HOST_GHOSTS   65536u /* evicted pages remembered */

typedef struct quire_host_entry quire_host_entry;

/* A request of a store's owner. */
typedef struct quire_host_asker {
    const void *store;
    uint64_t request; /* 0: each transfer is a request of its own */
} quire_host_asker;

typedef struct quire_host_user {
    quire_host_asker asker;
    quire_page_use use;
} quire_host_user;

typedef struct quire_host_order {
    quire_prefix_nodes nodes;
    quire_ghosts ghosts;
    quire_evict evict;
    quire_evict_policy policy;
    quire_accounts accounts;    /* of tenants: their bytes and weights */
    quire_host_entry **entries; /* [n_entries], by node */
    uint32_t n_entries;
    uint64_t pinned_bytes;  /* of the entries in QUIRE_HOST_PINNED */
    quire_host_asker asker; /* the last one */
} quire_host_order;

/* Errors: QUIRE_NOMEM. */
int quire_host_order_init(quire_host_order *order, quire_evict_policy policy);
void quire_host_order_fini(quire_host_order *order);

/* Make sure that the next enter succeeds. Errors: QUIRE_NOMEM, QUIRE_LIMIT. */
int quire_host_order_plan(quire_host_order *order);
/* A user's request is at work from now on, and makes room for what it brings. */
void quire_host_order_ask(quire_host_order *order, const quire_host_asker *asker);
/* A new entry, which the user at work brings. n_fit: entries that should fit, with this one. */
void quire_host_order_enter(quire_host_order *order, quire_host_entry *e,
                            const quire_host_user *user, quire_region_id region, uint32_t n_fit);
/* moves: to QUIRE_HOST_PINNED, if the entry is not there. */
void quire_host_order_use(quire_host_order *order, quire_host_entry *e, const quire_host_user *user,
                          bool moves);
/* The entry `to`, which is new, takes the place of one that ends. */
void quire_host_order_pass(quire_host_order *order, quire_host_entry *from, quire_host_entry *to);
/* An entry ends; no other continues it. */
void quire_host_order_leave(quire_host_order *order, quire_host_entry *e, quire_prefix_gone why);

/* The page before an entry's is this one from now on; NULL: it is not there. */
void quire_host_order_join(quire_host_order *order, quire_host_entry *e,
                           const quire_host_entry *parent);

/* A held entry is no victim. */
void quire_host_order_hold(quire_host_order *order, const quire_host_entry *e);
void quire_host_order_let(quire_host_order *order, const quire_host_entry *e);

/* The cost of computing a token: see quire_prefix_cost_set(). */
void quire_host_order_cost(quire_host_order *order, double token_us, double token_depth_us);

/* The next entry of a region to make room; NULL: none can. */
quire_host_entry *quire_host_order_victim(quire_host_order *order, quire_region_id region);

#endif /* QUIRE_STORE_HOST_ORDER_H */
