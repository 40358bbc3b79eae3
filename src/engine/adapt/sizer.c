/* sizer.c - see sizer.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/adapt/sizer.h"

#include "base/check.h"
#include "base/num.h"
#include "quire/status.h"

#include <stdlib.h>
#include <string.h>

#define QUANTILE_PERCENT 99u

const char *quire_sizer_reason_text(quire_sizer_reason reason)
{
    switch (reason) {
#define X(sym, val, text)                                                                          \
    case QUIRE_SIZER_##sym:                                                                        \
        return text;
        QUIRE_SIZER_REASON_MAP(X)
#undef X
    }
    return "unknown";
}

int quire_sizer_init(quire_sizer *sizer, const quire_sizer_opts *opts)
{
    *sizer = (quire_sizer){ .opts = *opts };
    QUIRE_FAIL_IF(opts->ceiling_bytes < opts->floor_bytes || opts->step_bytes == 0 ||
                      opts->window_us == 0 || !(opts->slack_share >= 0.0),
                  QUIRE_INVAL);
    return QUIRE_OK;
}

/* ---- the window ---- */

static void window_add(quire_sizer *s, uint64_t number, uint64_t need_bytes)
{
    const uint32_t at = (uint32_t)(number % QUIRE_SIZER_SLOTS);

    if (s->slot_numbers[at] != number || s->slots[at] < need_bytes) {
        s->slots[at] = need_bytes;
    }
    s->slot_numbers[at] = number;
}

static int compare_u64(const void *pa, const void *pb)
{
    const uint64_t a = *(const uint64_t *)pa, b = *(const uint64_t *)pb;

    return (a > b) - (a < b);
}

/* The smallest value that 99 % of the window's slots do not exceed. */
static uint64_t window_p99(const quire_sizer *s, uint64_t number)
{
    uint64_t values[QUIRE_SIZER_SLOTS];
    uint32_t n = 0;

    for (uint32_t i = 0; i < QUIRE_SIZER_SLOTS; i++) {
        if (s->slot_numbers[i] != 0 && number - s->slot_numbers[i] < QUIRE_SIZER_SLOTS) {
            values[n++] = s->slots[i];
        }
    }
    QUIRE_ASSERT(n > 0); /* at least the current sample */
    qsort(values, n, sizeof values[0], compare_u64);
    return values[(n * QUANTILE_PERCENT + 99u) / 100u - 1];
}

/* ---- bounds ---- */

/* Bytes that the region may grow by, and the reason for the bound. */
static uint64_t room_above(const quire_sizer *s, const quire_sizer_sample *m,
                           quire_sizer_reason *bound)
{
    const uint64_t keep = quire_max_u64(s->opts.dynamic_floor_bytes, m->dynamic_held_bytes);
    const uint64_t spare = m->dynamic_bytes > keep ? m->dynamic_bytes - keep : 0;
    const uint64_t room =
        s->opts.ceiling_bytes > m->budget_bytes ? s->opts.ceiling_bytes - m->budget_bytes : 0;

    if (room <= spare) {
        *bound = QUIRE_SIZER_AT_CEILING;
        return room;
    }
    *bound = keep > m->dynamic_held_bytes ? QUIRE_SIZER_DYNAMIC_FLOOR : QUIRE_SIZER_DYNAMIC_HELD;
    return spare;
}

static uint64_t room_below(const quire_sizer *s, const quire_sizer_sample *m,
                           quire_sizer_reason *bound)
{
    const uint64_t keep = quire_max_u64(s->opts.floor_bytes, m->held_bytes);

    *bound = keep > s->opts.floor_bytes ? QUIRE_SIZER_HELD : QUIRE_SIZER_AT_FLOOR;
    return m->budget_bytes > keep ? m->budget_bytes - keep : 0;
}

/* ---- decisions ---- */

typedef struct wish {
    int direction; /* -1, 0, 1 */
    quire_sizer_reason reason;
    uint64_t most_bytes; /* bytes to move at most */
} wish;

/* Bounds first: the configured size may violate them. */
static wish wish_of(const quire_sizer *s, const quire_sizer_sample *m, uint64_t need)
{
    const quire_sizer_opts *o = &s->opts;
    const double enough = (double)need * (1.0 + o->slack_share) + (double)o->step_bytes;
    const bool is_calm = s->has_changed && m->now_us - s->changed_us < o->calm_us;

    if (is_calm && s->is_refused) {
        return (wish){ .reason = QUIRE_SIZER_REFUSED };
    }
    if (m->budget_bytes > o->ceiling_bytes) {
        return (wish){ -1, QUIRE_SIZER_CEILING, m->budget_bytes - o->ceiling_bytes };
    }
    if (m->dynamic_bytes < o->dynamic_floor_bytes && m->budget_bytes > o->floor_bytes) {
        return (wish){ -1, QUIRE_SIZER_DYNAMIC_SHORT, o->dynamic_floor_bytes - m->dynamic_bytes };
    }
    if (m->budget_bytes < o->floor_bytes) {
        return (wish){ 1, QUIRE_SIZER_FLOOR, o->floor_bytes - m->budget_bytes };
    }
    if (m->budget_bytes < need) {
        return (wish){ 1, QUIRE_SIZER_NEED, o->step_bytes };
    }
    if ((double)m->budget_bytes > enough) {
        return (wish){ is_calm ? 0 : -1, is_calm ? QUIRE_SIZER_CALM : QUIRE_SIZER_SPARE,
                       o->step_bytes };
    }
    return (wish){ .reason = QUIRE_SIZER_FITS };
}

quire_sizer_decision quire_sizer_decide(quire_sizer *sizer, const quire_sizer_sample *sample)
{
    const uint64_t slot_us = sizer->opts.window_us / QUIRE_SIZER_SLOTS + 1;
    const uint64_t number = sample->now_us / slot_us + 1;
    quire_sizer_decision d = { .budget_bytes = sample->budget_bytes };
    quire_sizer_reason bound = QUIRE_SIZER_FITS;
    uint64_t bytes = 0;
    wish w;

    window_add(sizer, number, sample->need_bytes);
    d.need_p99_bytes = window_p99(sizer, number);
    w = wish_of(sizer, sample, d.need_p99_bytes);
    if (w.direction > 0) {
        bytes = room_above(sizer, sample, &bound);
    } else if (w.direction < 0) {
        bytes = room_below(sizer, sample, &bound);
    }
    d.reason = w.direction != 0 && bytes == 0 ? bound : w.reason;
    bytes = quire_min_u64(bytes, quire_min_u64(w.most_bytes, sizer->opts.step_bytes));
    if (bytes > 0) {
        d.budget_bytes = w.direction > 0 ? d.budget_bytes + bytes : d.budget_bytes - bytes;
        sizer->changed_us = sample->now_us;
        sizer->has_changed = true;
        sizer->is_refused = false;
    }
    return d;
}

void quire_sizer_undo(quire_sizer *sizer, uint64_t now_us)
{
    sizer->changed_us = now_us;
    sizer->has_changed = true;
    sizer->is_refused = true;
}
