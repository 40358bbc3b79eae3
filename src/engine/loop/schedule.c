/* schedule.c - see schedule.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/schedule.h"

#include "base/check.h"
#include "base/num.h"

#include <math.h>
#include <stdlib.h>

#define SHARE        4u   /* a quarter */
#define LEAST_SHARE  8u   /* an eighth of a chunk: least prefill of a class that joins */
#define DECODE_SHARE 0.75 /* decode's share of the time a class may add, if it also has prefill */
#define TARGET_SHARE 0.9  /* share of a target that is aimed at */
#define CREDIT_STEPS 20.0 /* credit saved up at most, in steps, unless one step wants more */
#define ROUND_ROWS   16u
#define WAIT_SHARE   0.25 /* share of the time to the first token */
#define WAIT_STEPS   5.0  /* times the fixed cost of a step, which is then a fifth of the step */
#define LEAST_STEPS  2.0  /* times the fixed cost, the least bound with a target */

/* Adjacent items of one rank. */
typedef struct run {
    quire_schedule_item *items;
    uint32_t n;
} run;

typedef struct plan {
    quire_schedule *schedule;
    const quire_schedule_limits *limits;
    run decode[QUIRE_RANKS_MAX];
    run prefill[QUIRE_RANKS_MAX];
    quire_cost_step step; /* rows given so far */
    uint32_t n_rows;
    uint32_t n_turns; /* classes with a turn that have no rows yet */
    bool is_known;    /* the cost of steps is known */
} plan;

void quire_schedule_init(quire_schedule *schedule)
{
    *schedule = (quire_schedule){ 0 };
    for (uint32_t rank = 0; rank < QUIRE_RANKS_MAX; rank++) {
        schedule->ranks[rank].stretch = 1.0;
    }
}

/* ---- order ---- */

static int compare_u64(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

/* The order of slices, which is also the order of service within a class. */
static int compare_items(const void *pa, const void *pb)
{
    const quire_schedule_item *a = pa, *b = pb;

    if (a->is_decode != b->is_decode) {
        return a->is_decode ? -1 : 1;
    }
    if (a->rank != b->rank) {
        return a->rank > b->rank ? -1 : 1;
    }
    if (a->is_decode) {
        return a->n_left_out != b->n_left_out ? (a->n_left_out > b->n_left_out ? -1 : 1)
                                              : compare_u64(a->arrival, b->arrival);
    }
    if (a->priority != b->priority) {
        return a->priority > b->priority ? -1 : 1;
    }
    if (a->n_until != b->n_until) {
        return a->n_until < b->n_until ? -1 : 1;
    }
    return compare_u64(a->arrival, b->arrival);
}

static void runs_find(plan *p, quire_schedule_item *items, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        run *r = items[i].is_decode ? &p->decode[items[i].rank] : &p->prefill[items[i].rank];

        items[i].n_rows = 0;
        r->items = r->n == 0 ? &items[i] : r->items;
        r->n++;
    }
}

/* ---- rows of one class ---- */

static double predicted_us(const plan *p)
{
    return p->is_known && p->n_rows > 0 ? quire_cost_step_us(p->limits->cost, &p->step) : 0.0;
}

/* Rows left, at least 1, when each class with a turn gets `each`. */
static uint32_t rows_left(const plan *p, uint32_t each)
{
    const uint32_t left = p->limits->rows_max - p->n_rows;
    const uint32_t kept = p->n_turns * quire_min_u32(each, 1 + left / (2 * (p->n_turns + 1)));

    return left > kept ? left - kept : 0;
}

static void decode_fill(plan *p, const run *r, double limit_us)
{
    const uint32_t n = quire_min_u32(r->n, rows_left(p, 1));

    for (uint32_t i = 0; i < n; i++) {
        quire_cost_step with = p->step;

        quire_cost_add_decode(&with, r->items[i].depth);
        if (i > 0 && p->is_known && quire_cost_step_us(p->limits->cost, &with) > limit_us) {
            return;
        }
        r->items[i].n_rows = 1;
        p->step = with;
        p->n_rows++;
    }
}

/* The oldest request gets its quarter; the rest goes in order. */
static void prefill_share(plan *p, const run *r, uint32_t n_rows)
{
    quire_schedule_item *first = &r->items[0];
    const uint32_t share = n_rows > SHARE ? n_rows / SHARE : 1;
    uint32_t left = n_rows;

    for (uint32_t i = 1; i < r->n; i++) {
        first = r->items[i].arrival < first->arrival ? &r->items[i] : first;
    }
    first->n_rows = quire_min_u32(quire_min_u32(first->n_left, share), left);
    left -= first->n_rows;
    for (uint32_t i = 0; i < r->n && left > 0; i++) {
        const uint32_t n_more = quire_min_u32(r->items[i].n_left - r->items[i].n_rows, left);

        r->items[i].n_rows += n_more;
        left -= n_more;
    }
    for (uint32_t i = 0; i < r->n; i++) {
        quire_cost_add_prefill(&p->step, r->items[i].depth, r->items[i].n_rows);
    }
    p->n_rows += n_rows - left;
}

/* Add prefill rows that fill the chunk, within limit_us. */
static void prefill_fill(plan *p, const run *r, double limit_us, bool is_guest)
{
    const uint32_t chunk = p->limits->chunk_tokens;
    const uint32_t quarter = chunk > SHARE ? chunk / SHARE : 1;
    const uint32_t eighth = chunk > LEAST_SHARE ? chunk / LEAST_SHARE : 1;
    const uint32_t fill = chunk > p->n_rows ? chunk - p->n_rows : 0;
    const uint32_t n_max = quire_min_u32(fill > quarter ? fill : quarter, rows_left(p, eighth));
    uint32_t n = n_max;

    if (r->n == 0 || n_max == 0) {
        return;
    }
    if (!p->is_known) {
        n = is_guest ? quire_min_u32(n_max, eighth) : n_max;
    } else if (isfinite(limit_us)) {
        n = quire_cost_prefill_fit(p->limits->cost, &p->step, r->items[0].depth, n_max, limit_us);
        if (n < n_max) {
            const uint32_t beyond = (p->n_rows + n) % ROUND_ROWS;

            n -= quire_min_u32(n, beyond);
            n = quire_min_u32(n > eighth ? n : eighth, n_max);
        }
    }
    prefill_share(p, r, n);
}

static void rank_fill(plan *p, uint32_t rank, bool is_guest)
{
    const quire_schedule_class *c = &p->schedule->ranks[rank];
    const double base_us = predicted_us(p);
    const double wait_us =
        p->is_known && is_guest && c->wait_us > 0.0 ? c->wait_us : (double)INFINITY;
    const bool has_prefill = p->prefill[rank].n > 0;

    decode_fill(p, &p->decode[rank], base_us + wait_us * (has_prefill ? DECODE_SHARE : 1.0));
    prefill_fill(p, &p->prefill[rank], base_us + wait_us, is_guest);
}

/* ---- classes that join ---- */

/* Promised time of a decoding class minus the predicted time of its own step. */
static double allowance_us(const quire_schedule_class *c)
{
    return c->tpot_us > 0.0 ? fmax(0.0, c->tpot_us * TARGET_SHARE - c->own_us)
                            : (c->stretch - 1.0) * c->own_us;
}

/* Whether the credit of the higher classes covers extra_us. */
static bool is_paid(const plan *p, uint32_t rank, double extra_us)
{
    for (uint32_t q = rank + 1; q < QUIRE_RANKS_MAX; q++) {
        quire_schedule_class *c = &p->schedule->ranks[q];

        if (c->has_decode && c->credit_us + allowance_us(c) < extra_us) {
            c->wanted_us = fmax(c->wanted_us, extra_us);
            return false;
        }
    }
    return true;
}

/* Give rows to a lower class if the credit of the higher classes covers them. Returns whether it
 * did. */
static bool rank_invite(plan *p, uint32_t rank)
{
    const plan before = *p;

    rank_fill(p, rank, true);
    if (is_paid(p, rank, predicted_us(p) - predicted_us(&before))) {
        return true;
    }
    for (uint32_t i = 0; i < p->decode[rank].n; i++) {
        p->decode[rank].items[i].n_rows = 0;
    }
    for (uint32_t i = 0; i < p->prefill[rank].n; i++) {
        p->prefill[rank].items[i].n_rows = 0;
    }
    *p = before;
    return false;
}

static uint32_t weight_of(const quire_schedule_class *c)
{
    return c->weight > 0 ? c->weight : 1;
}

static void turns_find(plan *p)
{
    double weights = 0.0;

    for (uint32_t rank = 0; rank < QUIRE_RANKS_MAX; rank++) {
        quire_schedule_class *c = &p->schedule->ranks[rank];

        c->has_items = p->decode[rank].n + p->prefill[rank].n > 0;
        weights += c->weight > 0 || c->has_items ? weight_of(c) : 0;
    }
    for (uint32_t rank = 0; rank < QUIRE_RANKS_MAX; rank++) {
        quire_schedule_class *c = &p->schedule->ranks[rank];

        c->has_turn =
            c->has_items && c->idle_us * weight_of(c) >= fmax(QUIRE_TURN_US, c->wait_us) * weights;
        p->n_turns += c->has_turn;
    }
}

/* Record a class's rows and their predicted time before lower classes join. */
static void rank_note(const plan *p, uint32_t rank, uint32_t n_rows_before, bool has_prefill)
{
    quire_schedule_class *c = &p->schedule->ranks[rank];

    c->has_rows = p->n_rows > n_rows_before;
    c->has_decode = p->decode[rank].n > 0 && p->decode[rank].items[0].n_rows > 0;
    c->has_prefill = has_prefill;
    c->own_us = predicted_us(p);
    c->n_own_rows = p->n_rows;
}

uint32_t quire_schedule_rows(quire_schedule *schedule, quire_schedule_item *items, uint32_t n,
                             const quire_schedule_limits *limits)
{
    plan p = { .schedule = schedule, .limits = limits };
    bool is_shut = false;     /* from here on rows only by turn */
    bool has_prefill = false; /* of the classes so far */

    QUIRE_ASSERT(limits->chunk_tokens > 0 && n <= limits->rows_max);
    if (n > 0) {
        qsort(items, n, sizeof *items, compare_items);
    }
    p.is_known = limits->cost != NULL && quire_cost_is_known(limits->cost);
    runs_find(&p, items, n);
    turns_find(&p);
    for (uint32_t rank = QUIRE_RANKS_MAX; rank-- > 0;) {
        quire_schedule_class *c = &schedule->ranks[rank];
        const uint32_t n_before = p.n_rows;
        const bool is_guest = n_before > 0;

        if (c->has_items) {
            p.n_turns -= c->has_turn;
            if (!is_guest || c->has_turn) {
                rank_fill(&p, rank, is_guest);
            } else if (is_shut || has_prefill || !rank_invite(&p, rank)) {
                is_shut = true;
            }
        }
        has_prefill = has_prefill || p.prefill[rank].n > 0;
        rank_note(&p, rank, n_before, has_prefill);
    }
    schedule->n_rows = p.n_rows;
    return p.n_rows;
}

/* ---- after the step ---- */

void quire_schedule_done(quire_schedule *schedule, double step_us)
{
    for (uint32_t rank = 0; rank < QUIRE_RANKS_MAX; rank++) {
        quire_schedule_class *c = &schedule->ranks[rank];
        const double most_us = fmax(CREDIT_STEPS * c->own_us, 2.0 * c->wanted_us);

        c->idle_us = c->has_items && !c->has_rows ? c->idle_us + step_us : 0.0;
        c->credit_us = c->has_items ? c->credit_us : 0.0;
        if (c->has_decode && c->own_us > 0.0) {
            c->credit_us += c->has_prefill ? 0.0 : allowance_us(c);
            c->credit_us -= schedule->n_rows > c->n_own_rows ? fmax(0.0, step_us - c->own_us) : 0.0;
            c->credit_us = fmax(-most_us, fmin(c->credit_us, most_us));
            c->wanted_us = 0.0;
        }
    }
}

void quire_schedule_interrupted(quire_schedule *schedule, double step_us)
{
    for (uint32_t rank = 0; rank < QUIRE_RANKS_MAX; rank++) {
        schedule->ranks[rank].has_rows = false;
        schedule->ranks[rank].has_decode = false;
    }
    quire_schedule_done(schedule, step_us);
}

uint32_t quire_schedule_interruptible(const quire_schedule *schedule)
{
    uint32_t top = QUIRE_RANKS_MAX;

    for (uint32_t rank = 0; rank < QUIRE_RANKS_MAX; rank++) {
        const quire_schedule_class *c = &schedule->ranks[rank];

        if (c->has_rows && (c->has_turn || top != QUIRE_RANKS_MAX)) {
            return QUIRE_RANKS_MAX;
        }
        top = c->has_rows ? rank : top;
    }
    return top;
}

double quire_schedule_wait_us(const quire_cost *cost, double usual_us, double target_us)
{
    const double fixed_us = cost->step_us + cost->several_us;

    return target_us > 0.0 ? fmax(WAIT_SHARE * target_us, LEAST_STEPS * fixed_us)
                           : fmax(WAIT_SHARE * usual_us, WAIT_STEPS * fixed_us);
}

double quire_schedule_promised_us(const quire_schedule *schedule, uint32_t rank)
{
    const quire_schedule_class *c = &schedule->ranks[rank];

    if (!c->has_decode) {
        return 0.0;
    }
    return c->tpot_us > 0.0 ? c->tpot_us : c->stretch * c->own_us;
}
