/* chain_store.c - see chain_store.h.
 *
 * A transfer's way follows from the store that gives it back, so transfers under way are in no list
 * here. In the chain's notes about a transfer, copy of a put is the number of its copy plus one;
 * drops is the number of drops when a get was passed to the far store, or a put to a volatile near
 * one; result is the near store's answer.
 *
 * SPDX-License-Identifier: MIT */
#include "store/chain_store.h"

#include "base/check.h"
#include "store/chain_copies.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POLL_MAX 32u

typedef struct list {
    quire_transfer *first, *last;
} list;

typedef struct chain_store {
    quire_store store; /* must be first */
    quire_store_ops ops;
    char name[QUIRE_STORE_NAME_MAX];
    uint32_t level; /* of the notes; 0 if the far store is no chain */
    bool is_near_volatile;
    quire_store *near;
    quire_store *far;
    quire_chain_copies copies;
    list done; /* for poll */
    uint32_t drops;
    bool is_closing;
    pthread_mutex_t lock;
    /* Under the lock. */
    quire_store_stats own;     /* results, refused puts, transfers now */
    quire_store_stats to_near; /* copies passed */
    quire_store_stats to_far;
} chain_store;

static chain_store *self_of(quire_store *store)
{
    return (chain_store *)(void *)store;
}

static quire_transfer_above *notes_of(const chain_store *c, quire_transfer *t)
{
    return &t->above[c->level];
}

static void push(list *l, quire_transfer *t)
{
    t->next = NULL;
    if (l->last != NULL) {
        l->last->next = t;
    } else {
        l->first = t;
    }
    l->last = t;
}

static quire_transfer *pop(list *l)
{
    quire_transfer *t = l->first;

    if (t != NULL) {
        l->first = t->next;
        l->last = t->next != NULL ? l->last : NULL;
        t->next = NULL;
    }
    return t;
}

static void wake(void *ctx)
{
    chain_store *c = ctx;

    quire_store_wake(&c->store);
}

/* ---- figures ---- */

static void count_begun(chain_store *c, uint32_t n_gets, uint32_t n_puts)
{
    (void)pthread_mutex_lock(&c->lock);
    c->own.gets_now += n_gets;
    c->own.puts_now += n_puts;
    (void)pthread_mutex_unlock(&c->lock);
}

static void count_passed(chain_store *c, quire_store_stats *to, bool is_kept)
{
    (void)pthread_mutex_lock(&c->lock);
    to->passed_total += is_kept;
    to->unpassed_total += !is_kept;
    (void)pthread_mutex_unlock(&c->lock);
}

/* A transfer of the caller is over. */
static void finish(chain_store *c, quire_transfer *t)
{
    (void)pthread_mutex_lock(&c->lock);
    if (t->is_put) {
        c->own.puts_now--;
        c->own.refused_total += t->result != QUIRE_STORE_OK;
    } else {
        c->own.gets_now--;
        c->own.results_total[t->result] += !t->is_query;
    }
    (void)pthread_mutex_unlock(&c->lock);
    push(&c->done, t);
}

/* ---- copies ---- */

static void copy_put(quire_chain_copy *one, quire_store *to, bool is_replacing)
{
    one->transfer->is_replacing = is_replacing;
    one->is_away = true;
    to->ops->put(to, &one->transfer, 1);
}

/* ---- puts ---- */

/* Give the far store a copy of a put, which is begun and not sealed. */
static void put_far(chain_store *c, quire_transfer *t)
{
    const size_t n_bytes =
        t->capacity >= QUIRE_PAGE_RECORD_ALIGN ? quire_page_record_peek(t->record, t->capacity) : 0;
    quire_chain_copy *one = NULL;

    notes_of(c, t)->copy = 0;
    if (n_bytes > 0 && n_bytes <= t->capacity) {
        one = quire_chain_copy_make(&c->copies, t, n_bytes);
    }
    if (one == NULL) {
        count_passed(c, &c->to_far, false);
        return;
    }
    notes_of(c, t)->copy = (uint32_t)(one - c->copies.items) + 1;
    one->of = t;
    copy_put(one, c->far, t->is_replacing);
}

/* The far store has answered a copy. */
static void put_far_done(chain_store *c, quire_chain_copy *one)
{
    const quire_store_result result = one->transfer->result;

    count_passed(c, &c->to_far, result == QUIRE_STORE_OK);
    if (one->of != NULL && !one->is_awaited) {
        one->is_answered = true;
        return;
    }
    if (one->of != NULL) {
        one->of->result = result;
        finish(c, one->of);
    }
    quire_chain_copy_give(one);
}

/* The near store has answered a put: it is durable, or the far store decides. */
static void put_near_done(chain_store *c, quire_transfer *t)
{
    const uint32_t number = notes_of(c, t)->copy;
    quire_chain_copy *one = number > 0 ? &c->copies.items[number - 1] : NULL;

    if (one != NULL && one->is_answered) {
        t->result = t->result == QUIRE_STORE_OK ? t->result : one->transfer->result;
        quire_chain_copy_give(one);
    } else if (one != NULL && t->result != QUIRE_STORE_OK) {
        one->is_awaited = true;
        return;
    } else if (one != NULL) {
        one->of = NULL;
    }
    finish(c, t);
}

/* A volatile near store has answered a put: the record goes on in the caller's buffer, unless a
 * drop has ended it. */
static void put_volatile_done(chain_store *c, quire_transfer *t)
{
    notes_of(c, t)->result = t->result;
    if (c->is_closing || notes_of(c, t)->drops != c->drops) {
        t->result = QUIRE_STORE_CLOSED;
        finish(c, t);
        return;
    }
    c->far->ops->put(c->far, &t, 1);
}

/* The far store has answered such a put. While it takes none, the near store's answer holds: else
 * the caller would try again all the time. */
static void put_over(chain_store *c, quire_transfer *t)
{
    count_passed(c, &c->to_far, t->result == QUIRE_STORE_OK);
    if (t->result == QUIRE_STORE_CLOSED && !c->is_closing) {
        t->result = notes_of(c, t)->result;
    }
    finish(c, t);
}

/* ---- gets ---- */

/* Whether a get ends with the near store's answer. */
static bool get_near_done(chain_store *c, quire_transfer *t)
{
    if (c->is_closing || (t->result == QUIRE_STORE_OK && !t->is_query)) {
        finish(c, t);
        return true;
    }
    notes_of(c, t)->result = t->result;
    notes_of(c, t)->drops = c->drops;
    return false;
}

/* Put a record that the far store found into the near one. */
static void promote(chain_store *c, quire_transfer *t)
{
    const quire_transfer_above *notes = notes_of(c, t);
    quire_chain_copy *one = NULL;

    if (notes->drops == c->drops && !c->is_closing) {
        one = quire_chain_copy_make(&c->copies, t, t->found.record_bytes);
    }
    if (one == NULL) {
        count_passed(c, &c->to_near, false);
        return;
    }
    copy_put(one, c->near,
             notes->result >= QUIRE_STORE_CHECKSUM && notes->result <= QUIRE_STORE_TOKENS);
}

static void get_far_done(chain_store *c, quire_transfer *t)
{
    if (t->is_query) {
        /* A store that could not say is no reason to believe that the record has gone. */
        const quire_store_result near_result = notes_of(c, t)->result;

        if (near_result == QUIRE_STORE_OK || t->result == QUIRE_STORE_ABSENT) {
            t->result = near_result;
        }
    } else if (t->result == QUIRE_STORE_OK) {
        promote(c, t);
    }
    finish(c, t);
}

/* ---- transfers that the two stores give back ---- */

/* Returns whether the far store is to be asked. */
static bool near_back(chain_store *c, quire_transfer *t)
{
    quire_chain_copy *one = quire_chain_copy_of(&c->copies, t);

    if (one != NULL) {
        count_passed(c, &c->to_near, t->result == QUIRE_STORE_OK);
        quire_chain_copy_give(one);
        return false;
    }
    if (t->is_put && c->is_near_volatile) {
        put_volatile_done(c, t);
        return false;
    }
    if (t->is_put) {
        put_near_done(c, t);
        return false;
    }
    return !get_near_done(c, t);
}

static void far_back(chain_store *c, quire_transfer *t)
{
    quire_chain_copy *one = quire_chain_copy_of(&c->copies, t);

    if (one != NULL) {
        one->is_away = false;
        put_far_done(c, one);
    } else if (t->is_put) {
        put_over(c, t);
    } else {
        get_far_done(c, t);
    }
}

static void pump(chain_store *c)
{
    quire_transfer *back[POLL_MAX];
    quire_transfer *missing[POLL_MAX];
    uint32_t n;

    do {
        uint32_t n_missing = 0;

        n = c->near->ops->poll(c->near, back, POLL_MAX);
        for (uint32_t i = 0; i < n; i++) {
            if (near_back(c, back[i])) {
                missing[n_missing++] = back[i];
            }
        }
        if (n_missing > 0) {
            c->far->ops->get(c->far, missing, n_missing);
        }
    } while (n == POLL_MAX);
    do {
        n = c->far->ops->poll(c->far, back, POLL_MAX);
        for (uint32_t i = 0; i < n; i++) {
            far_back(c, back[i]);
        }
    } while (n == POLL_MAX);
}

/* ---- the table ---- */

/* Transfers that the near store answers at once are passed on at once, not only when the caller
 * polls. */
static void pump_and_wake(chain_store *c)
{
    pump(c);
    if (c->done.first != NULL) {
        wake(c);
    }
}

static void chain_get(quire_store *store, quire_transfer *const *transfers, uint32_t n)
{
    chain_store *c = self_of(store);

    count_begun(c, n, 0);
    c->near->ops->get(c->near, transfers, n);
    pump_and_wake(c);
}

static void chain_put(quire_store *store, quire_transfer *const *transfers, uint32_t n)
{
    chain_store *c = self_of(store);

    count_begun(c, 0, n);
    for (uint32_t i = 0; i < n; i++) {
        notes_of(c, transfers[i])->drops = c->drops;
        if (!c->is_near_volatile) {
            put_far(c, transfers[i]);
        }
    }
    c->near->ops->put(c->near, transfers, n);
    pump_and_wake(c);
}

static int chain_drop(quire_store *store, const quire_store_drop *drop)
{
    chain_store *c = self_of(store);
    const int near_rc = c->near->ops->drop(c->near, drop);
    const int far_rc = c->far->ops->drop(c->far, drop);

    c->drops++;
    return near_rc < 0 ? near_rc : far_rc;
}

/* The near store does not hear of other machines by itself. */
static bool chain_heard(quire_store *store, quire_store_drop *out)
{
    chain_store *c = self_of(store);

    if (!c->far->ops->heard(c->far, out)) {
        return false;
    }
    (void)c->near->ops->drop(c->near, out);
    c->drops++;
    return true;
}

static uint32_t chain_poll(quire_store *store, quire_transfer **out, uint32_t n)
{
    chain_store *c = self_of(store);
    uint32_t i = 0;

    pump(c);
    while (i < n && c->done.first != NULL) {
        out[i++] = pop(&c->done);
    }
    return i;
}

/* ---- figures of both ---- */

static uint32_t chain_parts(const quire_store *store, quire_store_part *out)
{
    chain_store *c = self_of((quire_store *)(uintptr_t)store);
    uint32_t n = 1;

    quire_store_part_fill(c->near, &out[0]);
    n += quire_store_parts(c->far, &out[1]);
    (void)pthread_mutex_lock(&c->lock);
    out[0].stats.passed_total = c->to_near.passed_total;
    out[0].stats.unpassed_total = c->to_near.unpassed_total;
    out[1].stats.passed_total += c->to_far.passed_total;
    out[1].stats.unpassed_total += c->to_far.unpassed_total;
    (void)pthread_mutex_unlock(&c->lock);
    return n;
}

/* READY while one store takes puts; the name of a store that fails begins `trouble`. */
static void state_of(quire_store_stats *out, const quire_store_part *parts, uint32_t n)
{
    bool is_ready = false, is_degraded = false;

    for (uint32_t i = n; i-- > 0;) {
        const quire_store_stats *s = &parts[i].stats;

        is_ready = is_ready || s->state == QUIRE_STORE_READY;
        if (s->state == QUIRE_STORE_DEGRADED) {
            is_degraded = true;
            (void)snprintf(out->trouble, sizeof out->trouble, "%s: %.100s", parts[i].name,
                           s->trouble);
        }
    }
    out->state = is_ready      ? QUIRE_STORE_READY
                 : is_degraded ? QUIRE_STORE_DEGRADED
                               : QUIRE_STORE_READONLY;
}

static void chain_stats(const quire_store *store, quire_store_stats *out)
{
    chain_store *c = self_of((quire_store *)(uintptr_t)store);
    quire_store_part parts[QUIRE_STORE_PARTS_MAX];
    const uint32_t n = chain_parts(store, parts);

    (void)pthread_mutex_lock(&c->lock);
    *out = c->own;
    (void)pthread_mutex_unlock(&c->lock);
    for (uint32_t i = 0; i < n; i++) {
        quire_store_stats_add(out, &parts[i].stats);
    }
    state_of(out, parts, n);
}

static void chain_hint(quire_store *store, const quire_store_hints *hints)
{
    quire_store_hint(self_of(store)->near, hints);
    quire_store_hint(self_of(store)->far, hints);
}

/* A page is in either store. */
static uint32_t chain_has(const quire_store *store, const quire_page_key *keys, uint32_t n)
{
    const chain_store *c = self_of((quire_store *)(uintptr_t)store);
    uint32_t i = 0, n_more = n;

    while (i < n && n_more > 0) {
        n_more = quire_store_has(c->near, keys + i, n - i);
        i += n_more;
        if (i < n) {
            const uint32_t n_far = quire_store_has(c->far, keys + i, n - i);

            n_more += n_far;
            i += n_far;
        }
    }
    return i;
}

/* ---- close ---- */

typedef struct closing {
    quire_store *store;
    list back;
} closing;

static void collect(void *ctx, quire_transfer *t)
{
    push(ctx, t);
}

static void *close_main(void *ctx)
{
    closing *one = ctx;

    one->store->ops->close(one->store, collect, &one->back);
    return NULL;
}

/* Close both at the same time: one bound for both. */
static void close_both(closing *near, closing *far)
{
    pthread_t thread;
    const bool has_thread = pthread_create(&thread, NULL, close_main, near) == 0;

    if (!has_thread) {
        (void)close_main(near);
    }
    (void)close_main(far);
    if (has_thread) {
        (void)pthread_join(thread, NULL);
    }
}

/* Copies that a store left behind keep their memory: that store may still write there. */
static void copies_end(chain_store *c)
{
    for (uint32_t i = 0; i < QUIRE_CHAIN_COPIES_MAX; i++) {
        quire_chain_copy *one = &c->copies.items[i];

        if (one->is_awaited) {
            one->of->result = QUIRE_STORE_CLOSED;
            finish(c, one->of);
        }
        if (!one->is_away) {
            quire_transfer_free(one->transfer);
        }
    }
}

static void chain_close(quire_store *store, void (*give_back)(void *ctx, quire_transfer *transfer),
                        void *ctx)
{
    chain_store *c = self_of(store);
    closing near = { .store = c->near };
    closing far = { .store = c->far };
    quire_transfer *t;

    pump(c);
    c->is_closing = true;
    close_both(&near, &far);
    while ((t = pop(&near.back)) != NULL) {
        (void)near_back(c, t);
    }
    while ((t = pop(&far.back)) != NULL) {
        far_back(c, t);
    }
    copies_end(c);
    while ((t = pop(&c->done)) != NULL) {
        give_back(ctx, t);
    }
    (void)pthread_mutex_destroy(&c->lock);
    free(c);
}

static const quire_store_ops chain_ops = {
    .get = chain_get,
    .put = chain_put,
    .drop = chain_drop,
    .heard = chain_heard,
    .poll = chain_poll,
    .stats = chain_stats,
    .hint = chain_hint,
    .has = chain_has,
    .parts = chain_parts,
    .close = chain_close,
};

/* The number of chains from a store on. */
static uint32_t chains_of(const quire_store *store)
{
    return store->ops->close == chain_close ? self_of((quire_store *)(uintptr_t)store)->level + 1
                                            : 0;
}

static bool is_readonly(const quire_store *store)
{
    quire_store_stats stats;

    store->ops->stats(store, &stats);
    return stats.state == QUIRE_STORE_READONLY;
}

int quire_chain_store_create(quire_store **out, const quire_chain_store_opts *opts)
{
    const uint32_t level = chains_of(opts->far);
    chain_store *c;

    *out = NULL;
    QUIRE_FAIL_IF(level >= QUIRE_STORE_ABOVE_MAX || chains_of(opts->near) > 0, QUIRE_INVAL);
    c = calloc(1, sizeof *c);
    QUIRE_FAIL_IF(c == NULL, QUIRE_NOMEM);
    if (pthread_mutex_init(&c->lock, NULL) != 0) {
        free(c);
        return QUIRE_NOMEM;
    }
    (void)snprintf(c->name, sizeof c->name, "%s+%s", opts->near->name, opts->far->name);
    c->ops = chain_ops;
    c->ops.heard = opts->far->ops->heard != NULL ? chain_heard : NULL;
    c->store = (quire_store){ .ops = &c->ops, .name = c->name };
    c->store.is_volatile = opts->is_near_volatile && is_readonly(opts->far);
    c->level = level;
    c->is_near_volatile = opts->is_near_volatile;
    c->near = opts->near;
    c->far = opts->far;
    c->copies.bytes_max = opts->copy_bytes > 0 ? opts->copy_bytes : QUIRE_CHAIN_COPY_BYTES;
    quire_store_waker_set(c->near, (quire_store_waker){ wake, c });
    quire_store_waker_set(c->far, (quire_store_waker){ wake, c });
    *out = &c->store;
    return QUIRE_OK;
}
