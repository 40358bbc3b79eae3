/* common_store.c - see common_store.h.
 *
 * Two locks. `lock` guards the store's calls and the handles' lists. `wake_lock` guards the list of
 * handles while their owners are woken: a store may wake inside of a call, under `lock`, so a wake
 * must not need that one. Order: lock, the store's locks, wake_lock, the owners' locks.
 *
 * SPDX-License-Identifier: MIT */
#include "store/common_store.h"

#include "base/check.h"
#include "base/clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define POLL_MAX 32u
#define FIRST_ID 1u

/* A drop of another machine on its way to an owner. */
typedef struct heard {
    struct heard *next;
    quire_store_drop drop;
    unsigned char salt[QUIRE_PREFIX_SALT_MAX];
} heard;

typedef struct common common;

typedef struct handle {
    quire_store store; /* must be first */
    common *common;
    struct handle *next;
    uint32_t id;        /* FIRST_ID and up; of no other handle, also later */
    atomic_uint n_away; /* transfers that the owner has given and not got back */
    /* Under the lock. */
    uint32_t n_below;     /* of them, those that the store has */
    quire_transfer *done; /* oldest first */
    quire_transfer **done_end;
    heard *news; /* oldest first */
    heard **news_end;
    bool has_lost_news; /* for want of memory: everything counts as dropped */
    /* The owner's. */
    heard *told; /* given to the owner by the last heard() */
} handle;

struct common {
    quire_store *store;
    quire_store_ops ops; /* of the handles */
    uint32_t close_ms;
    pthread_mutex_t lock;
    uint32_t last_id;
    uint32_t n_open; /* handles that nobody closes yet */
    bool is_closing; /* the last one closes the store: no calls from now on */
    bool is_closed;  /* and the store has ended */
    pthread_mutex_t wake_lock;
    pthread_cond_t woken;
    uint64_t n_wakes; /* under wake_lock */
    handle *handles;  /* changes under both locks */
    uint32_t n_handles;
};

static handle *self_of(quire_store *store)
{
    return (handle *)(void *)store;
}

/* ---- wakes ---- */

/* Wake the handles that wait in transfers_await(). Under wake_lock. */
static void waiters_wake(common *c)
{
    c->n_wakes++;
    (void)pthread_cond_broadcast(&c->woken);
}

/* Thread: any; possibly under `lock`. */
static void wake(void *ctx)
{
    common *c = ctx;

    (void)pthread_mutex_lock(&c->wake_lock);
    waiters_wake(c);
    for (handle *h = c->handles; h != NULL; h = h->next) {
        const bool is_awaited = c->ops.heard != NULL || atomic_load(&h->n_away) > 0;

        if (is_awaited) {
            quire_store_wake(&h->store);
        }
    }
    (void)pthread_mutex_unlock(&c->wake_lock);
}

/* ---- transfers; under the lock ---- */

/* Give a finished transfer to its handle. That of a handle which has ended is left behind. */
static void hand(common *c, quire_transfer *t)
{
    handle *h = c->handles;

    while (h != NULL && h->id != t->holder) {
        h = h->next;
    }
    if (h != NULL) {
        h->n_below--;
        t->next = NULL;
        *h->done_end = t;
        h->done_end = &t->next;
    }
}

static void pump(common *c)
{
    quire_transfer *back[POLL_MAX];
    uint32_t n = c->is_closing ? 0 : POLL_MAX;

    while (n == POLL_MAX) {
        n = c->store->ops->poll(c->store, back, POLL_MAX);
        for (uint32_t i = 0; i < n; i++) {
            hand(c, back[i]);
        }
    }
}

static quire_transfer *take(handle *h)
{
    quire_transfer *t = h->done;

    if (t != NULL) {
        h->done = t->next;
        h->done_end = h->done == NULL ? &h->done : h->done_end;
        t->next = NULL;
        (void)atomic_fetch_sub(&h->n_away, 1);
    }
    return t;
}

/* ---- the table ---- */

static void give(quire_store *store, quire_transfer *const *transfers, uint32_t n, bool is_put)
{
    handle *h = self_of(store);
    common *c = h->common;

    for (uint32_t i = 0; i < n; i++) {
        transfers[i]->holder = h->id;
    }
    (void)pthread_mutex_lock(&c->lock);
    h->n_below += n;
    (void)atomic_fetch_add(&h->n_away, n);
    (is_put ? c->store->ops->put : c->store->ops->get)(c->store, transfers, n);
    (void)pthread_mutex_unlock(&c->lock);
}

static void common_get(quire_store *store, quire_transfer *const *transfers, uint32_t n)
{
    give(store, transfers, n, false);
}

static void common_put(quire_store *store, quire_transfer *const *transfers, uint32_t n)
{
    give(store, transfers, n, true);
}

/* Which of the found records the drop ends, the store knew only until it gave them back. */
static void found_forget(const handle *h)
{
    for (quire_transfer *t = h->done; t != NULL; t = t->next) {
        t->result = !t->is_put && t->result == QUIRE_STORE_OK ? QUIRE_STORE_ABSENT : t->result;
    }
}

static int common_drop(quire_store *store, const quire_store_drop *drop)
{
    common *c = self_of(store)->common;
    int rc;

    (void)pthread_mutex_lock(&c->lock);
    rc = c->store->ops->drop(c->store, drop);
    for (const handle *h = c->handles; h != NULL; h = h->next) {
        found_forget(h);
    }
    (void)pthread_mutex_unlock(&c->lock);
    return rc;
}

static void news_add(handle *h, const quire_store_drop *drop)
{
    heard *one = calloc(1, sizeof *one);

    if (one == NULL) {
        h->has_lost_news = true;
        return;
    }
    one->drop = *drop;
    if (drop->salt_bytes > 0) {
        memcpy(one->salt, drop->salt, drop->salt_bytes);
    }
    one->drop.salt = one->salt;
    *h->news_end = one;
    h->news_end = &one->next;
}

static void news_free(heard *news)
{
    while (news != NULL) {
        heard *next = news->next;

        free(news);
        news = next;
    }
}

static bool common_heard(quire_store *store, quire_store_drop *out)
{
    handle *h = self_of(store);
    common *c = h->common;
    bool has_lost;

    news_free(h->told);
    (void)pthread_mutex_lock(&c->lock);
    while (!c->is_closing && c->store->ops->heard(c->store, out)) {
        for (handle *each = c->handles; each != NULL; each = each->next) {
            found_forget(each); /* as after a drop by a handle */
            news_add(each, out);
        }
    }
    has_lost = h->has_lost_news;
    h->has_lost_news = false;
    h->told = has_lost ? NULL : h->news;
    if (h->told != NULL) {
        h->news = h->told->next;
        h->news_end = h->news == NULL ? &h->news : h->news_end;
        h->told->next = NULL;
        *out = h->told->drop;
    }
    (void)pthread_mutex_unlock(&c->lock);
    if (has_lost) {
        *out = (quire_store_drop){ .what = QUIRE_STORE_DROP_ALL };
    }
    return has_lost || h->told != NULL;
}

static uint32_t common_poll(quire_store *store, quire_transfer **out, uint32_t n)
{
    handle *h = self_of(store);
    uint32_t i = 0;

    (void)pthread_mutex_lock(&h->common->lock);
    pump(h->common);
    while (i < n && (out[i] = take(h)) != NULL) {
        i++;
    }
    (void)pthread_mutex_unlock(&h->common->lock);
    return i;
}

static void common_stats(const quire_store *store, quire_store_stats *out)
{
    const handle *h = (const handle *)(const void *)store;

    h->common->store->ops->stats(h->common->store, out);
    out->is_common = h->id != FIRST_ID;
}

static uint32_t common_has(const quire_store *store, const quire_page_key *keys, uint32_t n)
{
    common *c = ((const handle *)(const void *)store)->common;
    uint32_t n_there;

    (void)pthread_mutex_lock(&c->lock);
    n_there = c->is_closing ? 0 : quire_store_has(c->store, keys, n);
    (void)pthread_mutex_unlock(&c->lock);
    return n_there;
}

/* ---- close ---- */

/* Whether nothing of a handle that closes is in the store any more. */
static bool is_back(handle *h)
{
    common *c = h->common;
    bool is_back;

    (void)pthread_mutex_lock(&c->lock);
    pump(c);
    is_back = h->n_below == 0 || c->is_closed;
    (void)pthread_mutex_unlock(&c->lock);
    return is_back;
}

static void transfers_await(handle *h)
{
    common *c = h->common;
    const struct timespec until = quire_deadline(c->close_ms);
    bool is_late = false;

    for (;;) {
        uint64_t n_wakes;

        (void)pthread_mutex_lock(&c->wake_lock);
        n_wakes = c->n_wakes;
        (void)pthread_mutex_unlock(&c->wake_lock);
        if (is_back(h) || is_late) {
            return;
        }
        (void)pthread_mutex_lock(&c->wake_lock);
        while (c->n_wakes == n_wakes && !is_late) {
            is_late = pthread_cond_timedwait(&c->woken, &c->wake_lock, &until) == ETIMEDOUT;
        }
        (void)pthread_mutex_unlock(&c->wake_lock);
    }
}

static void collect(void *ctx, quire_transfer *t)
{
    common *c = ctx;

    (void)pthread_mutex_lock(&c->lock);
    hand(c, t);
    (void)pthread_mutex_unlock(&c->lock);
}

/* Handles that wait for their transfers get them now. */
static void store_end(common *c)
{
    c->store->ops->close(c->store, collect, c);
    (void)pthread_mutex_lock(&c->lock);
    c->is_closed = true;
    (void)pthread_mutex_unlock(&c->lock);
    (void)pthread_mutex_lock(&c->wake_lock);
    waiters_wake(c);
    (void)pthread_mutex_unlock(&c->wake_lock);
}

static void common_free(common *c)
{
    (void)pthread_cond_destroy(&c->woken);
    (void)pthread_mutex_destroy(&c->wake_lock);
    (void)pthread_mutex_destroy(&c->lock);
    free(c);
}

/* Take a handle out of the list. The last handle frees their common state. */
static void handle_end(handle *h)
{
    common *c = h->common;
    handle **at = &c->handles;
    bool is_last;

    (void)pthread_mutex_lock(&c->lock);
    (void)pthread_mutex_lock(&c->wake_lock);
    while (*at != h) {
        at = &(*at)->next;
    }
    *at = h->next;
    is_last = --c->n_handles == 0;
    (void)pthread_mutex_unlock(&c->wake_lock);
    (void)pthread_mutex_unlock(&c->lock);
    if (is_last) {
        common_free(c);
    }
    news_free(h->news);
    news_free(h->told);
    free(h);
}

static void common_close(quire_store *store, void (*give_back)(void *ctx, quire_transfer *transfer),
                         void *ctx)
{
    handle *h = self_of(store);
    common *c = h->common;
    quire_transfer *t;
    bool is_last;

    (void)pthread_mutex_lock(&c->lock);
    is_last = --c->n_open == 0;
    if (is_last) {
        pump(c);
        c->is_closing = true;
    }
    (void)pthread_mutex_unlock(&c->lock);
    if (is_last) {
        store_end(c);
    } else {
        transfers_await(h);
    }
    do {
        (void)pthread_mutex_lock(&c->lock);
        t = take(h);
        (void)pthread_mutex_unlock(&c->lock);
        if (t != NULL) {
            give_back(ctx, t);
        }
    } while (t != NULL);
    handle_end(h);
}

static const quire_store_ops common_ops = {
    .get = common_get,
    .put = common_put,
    .drop = common_drop,
    .heard = common_heard,
    .poll = common_poll,
    .stats = common_stats,
    .has = common_has,
    .close = common_close,
};

/* ---- create ---- */

static int handle_make(quire_store **out, common *c)
{
    handle *h = calloc(1, sizeof *h);

    QUIRE_FAIL_IF(h == NULL, QUIRE_NOMEM);
    h->store = (quire_store){ .ops = &c->ops, .name = c->store->name };
    h->common = c;
    h->done_end = &h->done;
    h->news_end = &h->news;
    atomic_init(&h->n_away, 0);
    (void)pthread_mutex_lock(&c->lock);
    (void)pthread_mutex_lock(&c->wake_lock);
    h->id = ++c->last_id;
    h->next = c->handles;
    c->handles = h;
    c->n_handles++;
    c->n_open++;
    (void)pthread_mutex_unlock(&c->wake_lock);
    (void)pthread_mutex_unlock(&c->lock);
    *out = &h->store;
    return QUIRE_OK;
}

static int locks_init(common *c)
{
    QUIRE_TRY(quire_cond_init(&c->woken));
    if (pthread_mutex_init(&c->lock, NULL) != 0) {
        (void)pthread_cond_destroy(&c->woken);
        return QUIRE_NOMEM;
    }
    if (pthread_mutex_init(&c->wake_lock, NULL) != 0) {
        (void)pthread_mutex_destroy(&c->lock);
        (void)pthread_cond_destroy(&c->woken);
        return QUIRE_NOMEM;
    }
    return QUIRE_OK;
}

int quire_common_store_create(quire_store **out, quire_store *store, uint32_t close_ms)
{
    common *c;
    int rc;

    *out = NULL;
    QUIRE_FAIL_IF(store->ops->parts != NULL, QUIRE_INVAL);
    c = calloc(1, sizeof *c);
    QUIRE_FAIL_IF(c == NULL, QUIRE_NOMEM);
    if (locks_init(c) < 0) {
        free(c);
        return QUIRE_NOMEM;
    }
    c->store = store;
    c->close_ms = close_ms != 0 ? close_ms : QUIRE_COMMON_CLOSE_MS;
    c->ops = common_ops;
    c->ops.heard = store->ops->heard != NULL ? common_heard : NULL;
    rc = handle_make(out, c);
    if (rc < 0) {
        common_free(c);
        return rc;
    }
    quire_store_waker_set(store, (quire_store_waker){ wake, c });
    return QUIRE_OK;
}

int quire_common_store_share(quire_store **out, quire_store *other)
{
    *out = NULL;
    QUIRE_FAIL_IF(other->ops->close != common_close, QUIRE_INVAL);
    return handle_make(out, self_of(other)->common);
}
