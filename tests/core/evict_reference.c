/* evict_reference.c - see the header.
 *
 * SPDX-License-Identifier: MIT */
#include "evict_reference.h"

#include "base/check.h"

#include <string.h>

/* ---- lists ---- */

static uint32_t find(const reference_list *list, uint32_t x)
{
    uint32_t i = 0;

    while (i < list->n && list->at[i] != x) {
        i++;
    }
    return i;
}

static bool has(const reference_list *list, uint32_t x)
{
    return find(list, x) < list->n;
}

static void cut(reference_list *list, uint32_t i)
{
    QUIRE_CHECK(i < list->n);
    list->n--;
    memmove(&list->at[i], &list->at[i + 1], (list->n - i) * sizeof(list->at[0]));
}

static uint32_t cut_oldest(reference_list *list)
{
    uint32_t x = list->at[0];

    cut(list, 0);
    return x;
}

static void put(reference_list *list, uint32_t x)
{
    list->at[list->n++] = x;
}

static void again(reference_list *list, uint32_t x)
{
    cut(list, find(list, x));
    put(list, x);
}

/* ---- one list ---- */

static bool fifo(reference *r, uint32_t x)
{
    if (has(&r->lists[0], x)) {
        return true;
    }
    if (r->lists[0].n == r->capacity) {
        (void)cut_oldest(&r->lists[0]);
    }
    put(&r->lists[0], x);
    return false;
}

static bool lru(reference *r, uint32_t x)
{
    if (has(&r->lists[0], x)) {
        again(&r->lists[0], x);
        return true;
    }
    return fifo(r, x);
}

/* The text with the smallest value; of several, the least recently used. */
static uint32_t least(const reference *r, const double *value)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < r->lists[0].n; i++) {
        uint32_t a = r->lists[0].at[i];
        uint32_t b = r->lists[0].at[best];

        if (value[a] < value[b] || (!(value[b] < value[a]) && r->used[a] < r->used[b])) {
            best = i;
        }
    }
    return best;
}

static bool lfu(reference *r, uint32_t x)
{
    bool is_hit = has(&r->lists[0], x);

    if (!is_hit) {
        if (r->lists[0].n == r->capacity) {
            cut(&r->lists[0], least(r, r->value));
        }
        put(&r->lists[0], x);
        r->value[x] = 0;
    }
    r->value[x] += 1;
    r->used[x] = r->now;
    return is_hit;
}

static bool gdsf(reference *r, uint32_t x, uint32_t n_tokens)
{
    bool is_hit = has(&r->lists[0], x);

    if (!is_hit) {
        if (r->lists[0].n == r->capacity) {
            uint32_t i = least(r, r->value);

            r->inflation = r->value[r->lists[0].at[i]];
            cut(&r->lists[0], i);
        }
        put(&r->lists[0], x);
        r->uses[x] = 0;
    }
    r->uses[x]++;
    r->value[x] = r->inflation + r->uses[x] * (double)n_tokens / r->page_bytes;
    r->used[x] = r->now;
    return is_hit;
}

/* NSDI 2024, algorithm 1: the hand moves only when a victim is needed. */
static bool sieve(reference *r, uint32_t x)
{
    reference_list *q = &r->lists[0];

    if (has(q, x)) {
        r->uses[x] = 1;
        return true;
    }
    if (q->n == r->capacity) {
        r->hand = r->hand < q->n ? r->hand : 0;
        while (r->uses[q->at[r->hand]] != 0) {
            r->uses[q->at[r->hand]] = 0;
            r->hand = r->hand + 1 < q->n ? r->hand + 1 : 0;
        }
        cut(q, r->hand);
        if (r->hand == q->n) {
            r->hand = 0; /* past the newest: continue at the oldest */
        }
    }
    put(q, x);
    r->uses[x] = 0;
    return false;
}

/* ---- two lists ---- */

static bool slru(reference *r, uint32_t x)
{
    reference_list *probation = &r->lists[0];
    reference_list *protect = &r->lists[1];
    bool is_hit = true;

    if (has(protect, x)) {
        again(protect, x);
    } else if (has(probation, x)) {
        cut(probation, find(probation, x));
        put(protect, x);
        if (protect->n > r->capacity * 4 / 5) {
            put(probation, cut_oldest(protect));
        }
    } else {
        is_hit = false;
        if (probation->n + protect->n == r->capacity) {
            (void)cut_oldest(probation->n > 0 ? probation : protect);
        }
        put(probation, x);
    }
    return is_hit;
}

/* SOSP 2023, algorithm 1. */
static void s3fifo_evict(reference *r)
{
    reference_list *small = &r->lists[0];
    reference_list *main_queue = &r->lists[1];

    for (;;) {
        if (10 * small->n >= r->capacity || main_queue->n == 0) {
            uint32_t t = cut_oldest(small);

            if (r->uses[t] > 1) {
                r->uses[t] = 0;
                put(main_queue, t);
                continue;
            }
            r->ghost_at[t] = ++r->n_ghosts;
            return;
        }
        if (r->uses[main_queue->at[0]] == 0) {
            r->ghost_at[cut_oldest(main_queue)] = 0;
            return;
        }
        r->uses[main_queue->at[0]]--;
        put(main_queue, cut_oldest(main_queue));
    }
}

static bool s3fifo(reference *r, uint32_t x)
{
    uint32_t n_ghosts_max = r->capacity - r->capacity / 10;
    bool is_ghost;

    if (has(&r->lists[0], x) || has(&r->lists[1], x)) {
        r->uses[x] += r->uses[x] < 3;
        return true;
    }
    if (r->lists[0].n + r->lists[1].n == r->capacity) {
        s3fifo_evict(r);
    }
    is_ghost = r->ghost_at[x] != 0 && r->n_ghosts - r->ghost_at[x] < n_ghosts_max;
    put(&r->lists[is_ghost], x);
    r->uses[x] = 0;
    return false;
}

/* FAST 2003, figure 4. */
enum {
    T1,
    T2,
    B1,
    B2
};

static void arc_replace(reference *r, bool is_in_b2)
{
    reference_list *l = r->lists;

    if (l[T1].n >= 1 && (l[T1].n > r->p || (is_in_b2 && !(l[T1].n < r->p)))) {
        put(&l[B1], cut_oldest(&l[T1]));
    } else {
        put(&l[B2], cut_oldest(&l[T2]));
    }
}

static bool arc(reference *r, uint32_t x)
{
    reference_list *l = r->lists;
    uint32_t c = r->capacity;

    for (uint32_t t = T1; t <= T2; t++) {
        if (has(&l[t], x)) {
            cut(&l[t], find(&l[t], x));
            put(&l[T2], x);
            return true;
        }
    }
    if (has(&l[B1], x) || has(&l[B2], x)) {
        uint32_t b = has(&l[B1], x) ? B1 : B2;
        double step = (double)l[B1 + B2 - b].n / l[b].n;

        step = step > 1 ? step : 1;
        r->p += b == B1 ? step : -step;
        r->p = r->p < 0 ? 0 : r->p > c ? c : r->p;
        arc_replace(r, b == B2);
        cut(&l[b], find(&l[b], x));
        put(&l[T2], x);
        return false;
    }
    if (l[T1].n + l[B1].n == c) {
        if (l[T1].n < c) {
            (void)cut_oldest(&l[B1]);
            arc_replace(r, false);
        } else {
            (void)cut_oldest(&l[T1]);
        }
    } else if (l[T1].n + l[B1].n + l[T2].n + l[B2].n >= c) {
        if (l[T1].n + l[B1].n + l[T2].n + l[B2].n == 2 * c) {
            (void)cut_oldest(&l[B2]);
        }
        arc_replace(r, false);
    }
    put(&l[T1], x);
    return false;
}

/* ---- all ---- */

void reference_start(reference *ref, quire_evict_policy policy, uint32_t capacity,
                     double page_bytes)
{
    memset(ref, 0, sizeof(*ref));
    ref->policy = policy;
    ref->capacity = capacity;
    ref->page_bytes = page_bytes;
}

bool reference_request(reference *ref, uint32_t text, uint32_t n_tokens)
{
    QUIRE_CHECK(text < REFERENCE_TEXTS_MAX);
    ref->now++;
    switch (ref->policy) {
    case QUIRE_EVICT_LRU:
        return lru(ref, text);
    case QUIRE_EVICT_FIFO:
        return fifo(ref, text);
    case QUIRE_EVICT_LFU:
        return lfu(ref, text);
    case QUIRE_EVICT_GDSF:
        return gdsf(ref, text, n_tokens);
    case QUIRE_EVICT_SIEVE:
        return sieve(ref, text);
    case QUIRE_EVICT_SLRU:
        return slru(ref, text);
    case QUIRE_EVICT_S3FIFO:
        return s3fifo(ref, text);
    case QUIRE_EVICT_ARC:
        return arc(ref, text);
    default:
        QUIRE_CHECK(false);
        return false;
    }
}

bool reference_has(const reference *ref, uint32_t text)
{
    /* Other lists contain ghosts only. */
    return has(&ref->lists[0], text) || has(&ref->lists[1], text);
}
