/* seq.c - the set of open sequences.
 *
 * SPDX-License-Identifier: MIT */
#include "core/cache/seq.h"

#include "base/check.h"

#include <string.h>

#ifdef QUIRE_TINY
#define SEQS_CAPACITY_FIRST 1u
#else
#define SEQS_CAPACITY_FIRST 16u
#endif

void quire_seqs_init(quire_seqs *seqs, const quire_allocator *allocator, uint32_t seqs_max,
                     uint32_t n_groups)
{
    memset(seqs, 0, sizeof(*seqs));
    seqs->allocator = *allocator;
    seqs->seqs_max = seqs_max;
    seqs->n_groups = n_groups;
}

void quire_seqs_fini(quire_seqs *seqs)
{
    QUIRE_CHECK(quire_counter_get(&seqs->n_open) == 0);
    for (uint32_t i = 0; i < seqs->n_items; i++) {
        seqs->allocator.free(seqs->allocator.ctx, seqs->items[i]);
    }
    if (seqs->items != NULL) {
        seqs->allocator.free(seqs->allocator.ctx, seqs->items);
    }
    memset(seqs, 0, sizeof(*seqs));
}

static int items_grow(quire_seqs *seqs)
{
    uint32_t capacity = seqs->capacity > 0 ? seqs->capacity * 2 : SEQS_CAPACITY_FIRST;
    quire_seq **items = seqs->allocator.alloc(seqs->allocator.ctx, capacity * sizeof(*items));

    QUIRE_FAIL_IF(items == NULL, QUIRE_NOMEM);
    if (seqs->items != NULL) {
        memcpy(items, seqs->items, seqs->n_items * sizeof(*items));
        seqs->allocator.free(seqs->allocator.ctx, seqs->items);
    }
    seqs->items = items;
    seqs->capacity = capacity;
    return QUIRE_OK;
}

int quire_seqs_plan(quire_seqs *seqs)
{
    size_t size_bytes = sizeof(quire_seq) + seqs->n_groups * sizeof(quire_table);
    quire_seq *seq;

    QUIRE_FAIL_IF(quire_counter_get(&seqs->n_open) >= seqs->seqs_max, QUIRE_LIMIT);
    if (seqs->free_head != 0) {
        return QUIRE_OK;
    }
    if (seqs->n_items == seqs->capacity) {
        QUIRE_TRY(items_grow(seqs));
    }
    seq = seqs->allocator.alloc(seqs->allocator.ctx, size_bytes);
    QUIRE_FAIL_IF(seq == NULL, QUIRE_NOMEM);
    memset(seq, 0, size_bytes);
    seqs->items[seqs->n_items++] = seq;
    seqs->free_head = seqs->n_items;
    return QUIRE_OK;
}

quire_seq *quire_seqs_open(quire_seqs *seqs, quire_region_id region)
{
    uint32_t number = seqs->free_head;
    quire_seq *seq;

    QUIRE_CHECK(number != 0);
    seq = seqs->items[number - 1];
    seqs->free_head = seq->next_free;
    seq->next_free = 0;
    seq->id = seq->generation << QUIRE_SEQ_INDEX_BITS | number;
    seq->n_tokens = 0;
    seq->ready_tokens = 0;
    seq->cut_tokens = UINT32_MAX;
    seq->tied_ref = 0;
    seq->region = region;
    seq->states[0] = seq->states[1] = QUIRE_PAGE_NULL;
    quire_counter_add(&seqs->n_open, 1);
    return seq;
}

void quire_seqs_close(quire_seqs *seqs, quire_seq *seq)
{
    uint32_t number = seq->id & QUIRE_SEQ_INDEX_MASK;

    seq->id = QUIRE_SEQ_NULL;
    seq->generation++;
    seq->next_free = seqs->free_head;
    seqs->free_head = number;
    quire_counter_sub(&seqs->n_open, 1);
}
