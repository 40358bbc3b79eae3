/* schedule.c - see schedule.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/schedule.h"

#include "base/check.h"
#include "base/num.h"

#include <stdlib.h>

#define SHARE 4u /* a quarter */

static int compare_u64(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

/* The order of slices, which is also the order in which prefill is served. */
static int compare_items(const void *pa, const void *pb)
{
    const quire_schedule_item *a = pa, *b = pb;

    if (a->is_decode != b->is_decode) {
        return a->is_decode ? -1 : 1;
    }
    if (!a->is_decode && a->priority != b->priority) {
        return a->priority > b->priority ? -1 : 1;
    }
    if (!a->is_decode && a->n_until != b->n_until) {
        return a->n_until < b->n_until ? -1 : 1;
    }
    return compare_u64(a->arrival, b->arrival);
}

/* Rows for prefill beside n_decode others. */
static uint32_t prefill_rows(const quire_schedule_limits *limits, uint32_t n_decode)
{
    const uint32_t least = limits->chunk_tokens > SHARE ? limits->chunk_tokens / SHARE : 1;
    const uint32_t fill = limits->chunk_tokens > n_decode ? limits->chunk_tokens - n_decode : 0;

    return quire_min_u32(fill > least ? fill : least, limits->rows_max - n_decode);
}

static void prefill_share(quire_schedule_item *items, uint32_t n, uint32_t n_rows)
{
    quire_schedule_item *first = &items[0];
    const uint32_t share = n_rows > SHARE ? n_rows / SHARE : 1;

    for (uint32_t i = 1; i < n; i++) {
        first = items[i].arrival < first->arrival ? &items[i] : first;
    }
    first->n_rows = quire_min_u32(first->n_left, share);
    n_rows -= first->n_rows;
    for (uint32_t i = 0; i < n && n_rows > 0; i++) {
        const uint32_t n_more = quire_min_u32(items[i].n_left - items[i].n_rows, n_rows);

        items[i].n_rows += n_more;
        n_rows -= n_more;
    }
}

uint32_t quire_schedule_rows(quire_schedule_item *items, uint32_t n,
                             const quire_schedule_limits *limits)
{
    uint32_t n_decode = 0;
    uint32_t n_total = 0;

    QUIRE_ASSERT(limits->chunk_tokens > 0 && n <= limits->rows_max);
    if (n == 0) {
        return 0;
    }
    qsort(items, n, sizeof *items, compare_items);
    while (n_decode < n && items[n_decode].is_decode) {
        items[n_decode++].n_rows = 1;
    }
    for (uint32_t i = n_decode; i < n; i++) {
        items[i].n_rows = 0;
    }
    if (n_decode < n) {
        prefill_share(items + n_decode, n - n_decode, prefill_rows(limits, n_decode));
    }
    for (uint32_t i = 0; i < n; i++) {
        n_total += items[i].n_rows;
    }
    return n_total;
}
