/* dispatcher.c - see dispatcher.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/dispatch/dispatcher.h"

#include "base/check.h"
#include "engine/dispatch/page_set.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* The pages of one device's tree. */
typedef struct watched {
    quire_dispatcher *dispatcher;
    const quire_prefix_watcher *other; /* told as well; NULL = none */
    quire_page_set pages;
} watched;

struct quire_dispatcher {
    quire_dispatcher_opts opts;
    pthread_mutex_t lock; /* of all pages */
    watched replicas[QUIRE_REPLICAS_MAX];
};

/* ---- the pages of the trees ---- */

static bool on_cleared(void *ctx)
{
    watched *w = ctx;

    (void)pthread_mutex_lock(&w->dispatcher->lock);
    quire_page_set_fini(&w->pages);
    (void)pthread_mutex_unlock(&w->dispatcher->lock);
    return w->other == NULL || w->other->cleared(w->other->ctx);
}

static bool on_stored(void *ctx, const quire_prefix_page *page)
{
    watched *w = ctx;
    bool is_taken;

    if (w->other != NULL && !w->other->stored(w->other->ctx, page)) {
        return false;
    }
    (void)pthread_mutex_lock(&w->dispatcher->lock);
    is_taken = quire_page_set_add(&w->pages, page->key);
    (void)pthread_mutex_unlock(&w->dispatcher->lock);
    return is_taken || w->other != NULL; /* the other one hears of a page once */
}

static bool on_removed(void *ctx, const quire_page_key *key)
{
    watched *w = ctx;

    (void)pthread_mutex_lock(&w->dispatcher->lock);
    quire_page_set_remove(&w->pages, key);
    (void)pthread_mutex_unlock(&w->dispatcher->lock);
    return w->other == NULL || w->other->removed(w->other->ctx, key);
}

static bool wants_again(void *ctx)
{
    const watched *w = ctx;

    return w->other != NULL && w->other->again != NULL && w->other->again(w->other->ctx);
}

quire_prefix_watcher quire_dispatcher_watcher(quire_dispatcher *dispatcher, uint32_t replica)
{
    return (quire_prefix_watcher){ .cleared = on_cleared,
                                   .stored = on_stored,
                                   .removed = on_removed,
                                   .again = wants_again,
                                   .ctx = &dispatcher->replicas[replica] };
}

/* ---- the pages of a text ---- */

#define LOOK_PAGES 64u /* pages that a store is asked for at once */

/* Tokens of the prompt in front of the place where a device would begin to compute. */
typedef struct reach {
    uint32_t n_cached; /* by pages in memory */
    uint32_t n_saved;  /* with those below, less the cost of fetching these */
} reach;

/* A walk over the full pages of the prompt under a root. */
typedef struct walk {
    quire_dispatcher *dispatcher;
    const quire_dispatch_ask *ask;
    uint32_t replica;
    quire_page_key key; /* of the text so far */
    uint32_t n;         /* its tokens */
} walk;

static bool has_page(const walk *w)
{
    return w->ask->n_tokens - w->n >= w->dispatcher->opts.page_tokens;
}

/* The key of the text with the next page. */
static quire_page_key next_key(const walk *w)
{
    quire_page_key key;

    quire_prefix_key_add(&w->key, w->ask->tokens + w->n, w->dispatcher->opts.page_tokens, &key);
    return key;
}

/* Pages in memory. */
static void walk_cached(walk *w)
{
    bool has = true;

    while (has && has_page(w)) {
        const quire_page_key key = next_key(w);

        (void)pthread_mutex_lock(&w->dispatcher->lock);
        has = quire_page_set_has(&w->dispatcher->replicas[w->replica].pages, &key);
        (void)pthread_mutex_unlock(&w->dispatcher->lock);
        w->key = has ? key : w->key;
        w->n += has ? w->dispatcher->opts.page_tokens : 0;
    }
}

/* Pages below memory, behind those. */
static void walk_stored(walk *w)
{
    const quire_dispatch_below *below = &w->ask->loads[w->replica].below;
    quire_page_key keys[LOOK_PAGES];
    uint32_t n_there = LOOK_PAGES;

    while (below->has != NULL && n_there == LOOK_PAGES) {
        uint32_t n_asked = 0;

        n_there = 0;
        for (walk ahead = *w; n_asked < LOOK_PAGES && has_page(&ahead); n_asked++) {
            keys[n_asked] = ahead.key = next_key(&ahead);
            ahead.n += w->dispatcher->opts.page_tokens;
        }
        if (n_asked > 0) {
            n_there = below->has(below->ctx, keys, n_asked);
        }
        if (n_there > 0) {
            w->key = keys[n_there - 1];
            w->n += n_there * w->dispatcher->opts.page_tokens;
        }
    }
}

static reach reach_under(quire_dispatcher *dispatcher, const quire_dispatch_ask *ask,
                         uint32_t replica, const quire_dispatch_root *root)
{
    const quire_dispatch_below *below = &ask->loads[replica].below;
    walk w = { .dispatcher = dispatcher, .ask = ask, .replica = replica, .n = root->n_gone };
    uint32_t n_cached;
    reach r = { 0 };

    quire_prefix_key_root(&root->key, &w.key);
    walk_cached(&w);
    n_cached = w.n;
    walk_stored(&w);
    if (w.n - root->n_gone >= root->n_kept) {
        r.n_cached = n_cached - root->n_gone >= root->n_kept ? n_cached : 0;
        r.n_saved = w.n - (w.n > n_cached ? below->cost(below->ctx, n_cached, w.n) : 0);
    }
    return r;
}

/* The best under all roots. */
static reach reach_of(quire_dispatcher *dispatcher, const quire_dispatch_ask *ask, uint32_t replica)
{
    quire_dispatch_root root = { .key = { .salt = ask->tenant, .salt_bytes = ask->tenant_bytes } };
    reach best = { 0 };

    if (ask->is_cold) {
        return best;
    }
    memcpy(root.key.identity, dispatcher->opts.identities[replica], sizeof root.key.identity);
    best = reach_under(dispatcher, ask, replica, &root);
    if (ask->roots.begin != NULL) {
        ask->roots.begin(ask->roots.ctx, replica);
        while (ask->roots.next(ask->roots.ctx, &root)) {
            const reach r = reach_under(dispatcher, ask, replica, &root);

            best = r.n_saved > best.n_saved ? r : best;
        }
    }
    return best;
}

/* ---- the choice ---- */

/* The devices that a request may go to; 0 = all. */
static uint32_t bound_to(const quire_dispatcher *dispatcher, const quire_dispatch_ask *ask)
{
    uint32_t of_class = 0;

    for (uint32_t i = 0; i < dispatcher->opts.n_bindings; i++) {
        const quire_binding *b = &dispatcher->opts.bindings[i];

        if (b->tenant == NULL) {
            of_class = b->class_index == ask->class_index ? b->devices : of_class;
        } else if (b->tenant_bytes <= ask->tenant_bytes &&
                   memcmp(b->tenant, ask->tenant, b->tenant_bytes) == 0) {
            return b->devices;
        }
    }
    return of_class;
}

static uint32_t devices_for(const quire_dispatcher *dispatcher, const quire_dispatch_ask *ask)
{
    const uint32_t bound = bound_to(dispatcher, ask);
    uint32_t there = 0;
    uint32_t willing = 0;

    for (uint32_t i = 0; i < dispatcher->opts.n_replicas; i++) {
        there |= ask->loads[i].is_lost ? 0 : 1u << i;
        willing |= ask->loads[i].has_refused ? 0 : 1u << i;
    }
    return ((bound & there) != 0 ? bound & there : there) & willing;
}

/* The state of a device, as far as it matters to a request. */
typedef struct offer {
    quire_dispatch route;
    uint64_t work;
    uint32_t n_requests;
    uint64_t n_pages; /* that are cached there */
} offer;

static offer offer_of(quire_dispatcher *dispatcher, const quire_dispatch_ask *ask, uint32_t replica)
{
    const quire_replica_load *load = &ask->loads[replica];
    const reach r = reach_of(dispatcher, ask, replica);
    offer o = {
        .route = { .replica = replica, .n_cached = r.n_cached, .n_saved = r.n_saved },
        .work = ask->n_tokens - r.n_saved + load->n_to_compute +
                (uint64_t)QUIRE_DISPATCH_REQUEST_TOKENS * load->n_requests,
        .n_requests = load->n_requests,
    };

    (void)pthread_mutex_lock(&dispatcher->lock);
    o.n_pages = dispatcher->replicas[replica].pages.n;
    (void)pthread_mutex_unlock(&dispatcher->lock);
    return o;
}

static bool is_better(const offer *a, const offer *b)
{
    if (a->work != b->work) {
        return a->work < b->work;
    }
    if (a->route.n_cached != b->route.n_cached) {
        return a->route.n_cached > b->route.n_cached;
    }
    return a->n_requests != b->n_requests ? a->n_requests < b->n_requests : a->n_pages < b->n_pages;
}

quire_dispatch quire_dispatcher_choose(quire_dispatcher *dispatcher, const quire_dispatch_ask *ask)
{
    const uint32_t devices = devices_for(dispatcher, ask);
    offer best = { .route = { .replica = QUIRE_DISPATCH_NONE } };

    for (uint32_t i = 0; i < dispatcher->opts.n_replicas; i++) {
        if ((devices & 1u << i) != 0) {
            const offer o = offer_of(dispatcher, ask, i);

            if (best.route.replica == QUIRE_DISPATCH_NONE || is_better(&o, &best)) {
                best = o;
            }
        }
    }
    return best.route;
}

/* ---- life ---- */

int quire_dispatcher_create(quire_dispatcher **out, const quire_dispatcher_opts *opts)
{
    quire_dispatcher *dispatcher;

    *out = NULL;
    QUIRE_FAIL_IF(opts->n_replicas == 0 || opts->n_replicas > QUIRE_REPLICAS_MAX ||
                      opts->page_tokens == 0,
                  QUIRE_INVAL);
    dispatcher = calloc(1, sizeof *dispatcher);
    QUIRE_FAIL_IF(dispatcher == NULL, QUIRE_NOMEM);
    dispatcher->opts = *opts;
    if (pthread_mutex_init(&dispatcher->lock, NULL) != 0) {
        free(dispatcher);
        return QUIRE_NOMEM;
    }
    for (uint32_t i = 0; i < opts->n_replicas; i++) {
        dispatcher->replicas[i].dispatcher = dispatcher;
        if (opts->watchers[i].stored != NULL) {
            dispatcher->replicas[i].other = &dispatcher->opts.watchers[i];
        }
    }
    *out = dispatcher;
    return QUIRE_OK;
}

void quire_dispatcher_destroy(quire_dispatcher *dispatcher)
{
    if (dispatcher == NULL) {
        return;
    }
    for (uint32_t i = 0; i < dispatcher->opts.n_replicas; i++) {
        quire_page_set_fini(&dispatcher->replicas[i].pages);
    }
    (void)pthread_mutex_destroy(&dispatcher->lock);
    free(dispatcher);
}
