/* parts.c - see parts.h.
 *
 * SPDX-License-Identifier: MIT */
#include "train/parts.h"

#include <stdatomic.h>

typedef struct parts_run {
    quire_part_fn *fn;
    void *ctx;
    uint32_t n_parts;
    _Atomic uint32_t next;
} parts_run;

static void take_parts(void *ctx)
{
    parts_run *run = ctx;
    uint32_t part;

    while ((part = atomic_fetch_add_explicit(&run->next, 1, memory_order_relaxed)) < run->n_parts) {
        run->fn(run->ctx, part, quire_team_index());
    }
}

void quire_parts_run(quire_team *team, uint32_t n_parts, quire_part_fn *fn, void *ctx)
{
    parts_run run = { .fn = fn, .ctx = ctx, .n_parts = n_parts };

    if (n_parts > 0) {
        quire_team_run(team, n_parts, take_parts, &run);
    }
}
