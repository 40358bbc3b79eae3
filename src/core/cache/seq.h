/* seq.h - sequences: a number of tokens and one page table per group.
 *
 * A sequence id is (generation << 21) | (index + 1): small while sequences are few, never 0, and an
 * id that was closed is not found again until its slot has been reused 2,048 times.
 *
 * Invariant: n_tokens <= ready_tokens. Up to ready_tokens, every group has the pages, the leaves
 * and an unshared tail for appends. The decode path checks nothing else.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_SEQ_H
#define QUIRE_CORE_SEQ_H

#include "core/cache/counter.h"
#include "core/cache/table.h"
#include "core/pool/pool.h"
#include "quire/alloc.h"
#include "quire/cache.h"

#define QUIRE_SEQ_INDEX_BITS 21u
#define QUIRE_SEQ_INDEX_MASK ((1u << QUIRE_SEQ_INDEX_BITS) - 1u)
_Static_assert(QUIRE_SEQS_MAX <= QUIRE_SEQ_INDEX_MASK, "index + 1 fits its bits");

typedef struct quire_seq {
    quire_seq_id id; /* QUIRE_SEQ_NULL while closed */
    uint32_t generation;
    uint32_t next_free; /* index + 1 of the next closed sequence */
    uint32_t n_tokens;
    uint32_t ready_tokens;
    uint32_t cut_tokens; /* shortest length after truncation since the prefix tree last read it */
    uint64_t tied_ref;   /* the quire_prefix_ref that ties the sequence to the prefix tree; 0 =
                            none. A ref that outlives its sequence does not act on a later sequence
                            with the same id */
    quire_region_id region;
    quire_page_id states[2]; /* quire_seq_states(); QUIRE_PAGE_NULL before */
    quire_table tables[];    /* [n_groups] */
} quire_seq;

typedef struct quire_seqs {
    quire_allocator allocator;
    quire_seq **items; /* [capacity], NULL where never used; closed sequences are kept for reuse */
    uint32_t capacity;
    uint32_t n_items;
    uint32_t free_head; /* index + 1 */
    uint32_t seqs_max;
    uint32_t n_groups;
    quire_counter n_open;
} quire_seqs;

void quire_seqs_init(quire_seqs *seqs, const quire_allocator *allocator, uint32_t seqs_max,
                     uint32_t n_groups);

/* Every sequence must be closed. */
void quire_seqs_fini(quire_seqs *seqs);

/* Make sure that the next open succeeds. Errors: QUIRE_LIMIT, QUIRE_NOMEM. */
int quire_seqs_plan(quire_seqs *seqs);

/* A planned sequence, empty. */
quire_seq *quire_seqs_open(quire_seqs *seqs, quire_region_id region);

/* Close a sequence. Its tables must be clear. */
void quire_seqs_close(quire_seqs *seqs, quire_seq *seq);

/* Whether a sequence has neither tokens nor reserved room. */
static inline bool quire_seq_is_blank(const quire_seq *seq, uint32_t n_groups)
{
    for (uint32_t g = 0; g < n_groups; g++) {
        if (seq->tables[g].n_held > 0) {
            return false;
        }
    }
    return true;
}

/* NULL for an id that is not open. */
static inline quire_seq *quire_seqs_find(const quire_seqs *seqs, quire_seq_id id)
{
    uint32_t index = (id & QUIRE_SEQ_INDEX_MASK) - 1;

    if (index >= seqs->n_items || seqs->items[index]->id != id) {
        return NULL;
    }
    return seqs->items[index];
}

#endif /* QUIRE_CORE_SEQ_H */
