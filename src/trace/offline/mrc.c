/* mrc.c - stack distances of all blocks of a trace.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/offline/mrc.h"

#include "base/check.h"
#include "trace/array.h"
#include "trace/offline/lru_stack.h"

#include <string.h>

int quire_mrc_init(quire_mrc *mrc, const quire_trace *trace, const quire_allocator *allocator)
{
    quire_lru_stack stack;
    uint64_t sum = 0;

    *mrc = (quire_mrc){ .allocator = allocator != NULL ? *allocator : *quire_allocator_default(),
                        .n_depths = trace->n_ids,
                        .n_blocks = trace->n_blocks };
    mrc->hits = quire_array_alloc(&mrc->allocator, (size_t)trace->n_ids + 1, sizeof(*mrc->hits));
    if (mrc->hits == NULL ||
        quire_lru_stack_init(&stack, trace->n_ids, &mrc->allocator) != QUIRE_OK) {
        quire_mrc_fini(mrc);
        return QUIRE_NOMEM;
    }
    memset(mrc->hits, 0, ((size_t)trace->n_ids + 1) * sizeof(*mrc->hits));
    for (uint32_t r = 0; r < trace->n_requests; r++) {
        const uint32_t *ids = quire_trace_blocks(trace, &trace->requests[r]);
        const uint32_t n = trace->requests[r].n_blocks;

        for (uint32_t i = 0; i < n; i++) {
            mrc->hits[quire_lru_stack_depth(&stack, ids[i])]++;
        }
        for (uint32_t i = n; i > 0; i--) {
            quire_lru_stack_use(&stack, ids[i - 1]);
        }
    }
    mrc->hits[0] = 0; /* the first uses: served by no size */
    for (uint32_t i = 0; i <= mrc->n_depths; i++) {
        sum += mrc->hits[i];
        mrc->hits[i] = sum;
    }
    quire_lru_stack_fini(&stack);
    return QUIRE_OK;
}

void quire_mrc_fini(quire_mrc *mrc)
{
    quire_array_free(&mrc->allocator, mrc->hits);
    mrc->hits = NULL;
}

uint64_t quire_mrc_hits(const quire_mrc *mrc, uint64_t capacity_blocks)
{
    return mrc->hits[capacity_blocks < mrc->n_depths ? capacity_blocks : mrc->n_depths];
}

double quire_mrc_hit_rate(const quire_mrc *mrc, uint64_t capacity_blocks)
{
    return mrc->n_blocks > 0 ? (double)quire_mrc_hits(mrc, capacity_blocks) / (double)mrc->n_blocks
                             : 0.0;
}

uint64_t quire_mrc_capacity_for(const quire_mrc *mrc, double share)
{
    const double wanted = share * (double)mrc->hits[mrc->n_depths];
    uint64_t low = 0;
    uint64_t high = mrc->n_depths;

    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;

        if ((double)mrc->hits[middle] >= wanted) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

uint64_t quire_mrc_knee(const quire_mrc *mrc)
{
    const uint64_t end = quire_mrc_capacity_for(mrc, 1.0);
    uint64_t knee = end;
    double most = 0.0;

    for (uint64_t c = 1; c < end; c++) {
        const double above =
            (double)mrc->hits[c] / (double)mrc->hits[end] - (double)c / (double)end;

        if (above > most) {
            most = above;
            knee = c;
        }
    }
    return knee;
}
