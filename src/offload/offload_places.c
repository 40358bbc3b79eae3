/* offload_places.c - see offload_places.h.
 *
 * SPDX-License-Identifier: MIT */
#include "offload/offload_places.h"

#include "base/check.h"
#include "offload/offload_batch.h"

#include <stdlib.h>

#define PLACES_MIN 256u

static int places_grow(quire_offload_places *p)
{
    const uint32_t n = p->n_max != 0 ? p->n_max * 2 : PLACES_MIN;
    quire_offload_place *places = realloc(p->list, n * sizeof *places);
    uint32_t *stripes;

    QUIRE_FAIL_IF(places == NULL, QUIRE_NOMEM);
    p->list = places;
    stripes = realloc(p->stripes, n * sizeof *stripes);
    QUIRE_FAIL_IF(stripes == NULL, QUIRE_NOMEM);
    p->stripes = stripes;
    p->n_max = n;
    return QUIRE_OK;
}

static int place_add(void *ctx, quire_page_id page, uint32_t slot)
{
    quire_offload_places *p = ctx;

    if (p->n == p->n_max) {
        QUIRE_TRY(places_grow(p));
    }
    p->list[p->n++] = (quire_offload_place){ .page = page, .slot = slot, .is_copied = true };
    return QUIRE_OK;
}

static int by_slot(const void *a, const void *b)
{
    const quire_offload_place *x = a;
    const quire_offload_place *y = b;

    return (x->slot > y->slot) - (x->slot < y->slot);
}

/* Those that are copied first, each kind by slot. */
static int by_kind(const void *a, const void *b)
{
    const quire_offload_place *x = a;
    const quire_offload_place *y = b;

    return x->is_copied != y->is_copied ? y->is_copied - x->is_copied : by_slot(a, b);
}

static const quire_page_entry *entry_of(const quire_attn_table *table, uint32_t i)
{
    return &table->leaves[i / QUIRE_LEAF_ENTRIES][i % QUIRE_LEAF_ENTRIES];
}

/* Whether the pages of entry i in other groups are there: its hot tiles. */
static bool has_beside(const quire_offload_places *p, const quire_attn_seq *seq, uint32_t i)
{
    for (uint32_t g = 0; g < QUIRE_GROUPS_MAX; g++) {
        if (g != p->group && i < seq->tables[g].n_entries &&
            entry_of(&seq->tables[g], i)->page != QUIRE_PAGE_NULL) {
            return true;
        }
    }
    return false;
}

/* The offloaded pages of a sequence that have pages beside them on the device are copied. */
static void beside_mark(quire_offload_places *p, const quire_attn_batch *batch,
                        const quire_attn_seq *seq)
{
    for (uint32_t i = 0; i < seq->tables[p->group].n_entries; i++) {
        const quire_page_id page = entry_of(&seq->tables[p->group], i)->page;
        const quire_page_addr *addr = &batch->page_addr[page];

        if (page != QUIRE_PAGE_NULL && addr->memory == QUIRE_MEMORY_OFFLOADED &&
            has_beside(p, seq, i)) {
            const quire_offload_place key = { .slot = addr->slot };
            quire_offload_place *at = bsearch(&key, p->list, p->n, sizeof *p->list, by_slot);

            at->is_copied = true; /* the list has all of the batch */
        }
    }
}

/* Mark the places that the step copies to the device; the CPU attends the other pages in place.
 * The list is by slot. */
static void places_divide(quire_offload_places *p, const quire_attn_batch *batch)
{
    for (uint32_t i = 0; i < p->n; i++) {
        p->list[i].is_copied = false;
    }
    for (uint32_t s = 0; s < batch->n_seqs; s++) {
        beside_mark(p, batch, &batch->seqs[s]);
    }
    qsort(p->list, p->n, sizeof *p->list, by_kind);
    p->n_copied = 0;
    while (p->n_copied < p->n && p->list[p->n_copied].is_copied) {
        p->n_copied++;
    }
}

/* Find the pages in their places, and list the stripes of the file. The list is by slot. */
static void places_find(quire_offload_places *p)
{
    uint32_t last = UINT32_MAX; /* the stripe listed last */

    p->n_stripes = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        quire_offload_place *at = &p->list[i];

        at->at = quire_offload_tiers_use(p->tiers, at->slot);
        at->is_in_file = quire_offload_tiers_in_file(p->tiers, at->slot);
        if (!at->is_in_file) {
            continue;
        }
        if (at->slot / QUIRE_OFFLOAD_STRIPE != last) {
            last = at->slot / QUIRE_OFFLOAD_STRIPE;
            p->stripes[p->n_stripes++] = at->at / QUIRE_OFFLOAD_STRIPE;
        }
        at->at = (p->n_stripes - 1) * QUIRE_OFFLOAD_STRIPE + at->slot % QUIRE_OFFLOAD_STRIPE;
    }
}

int quire_offload_places_list(quire_offload_places *p, const quire_attn_batch *batch,
                              bool may_attend)
{
    uint32_t n = 0;

    p->n = 0;
    QUIRE_TRY(quire_offload_pages_each(batch, p->group, place_add, p));
    if (p->n > 1) {
        qsort(p->list, p->n, sizeof *p->list, by_slot);
    }
    for (uint32_t i = 0; i < p->n; i++) {
        if (n == 0 || p->list[n - 1].slot != p->list[i].slot) {
            p->list[n++] = p->list[i];
        }
    }
    p->n = p->n_copied = n;
    places_find(p);
    if (may_attend && n > 0) {
        places_divide(p, batch);
    }
    return QUIRE_OK;
}

uint32_t quire_offload_places_run(const quire_offload_places *p, uint32_t i)
{
    const uint32_t slot = p->list[i].slot;
    uint32_t n = 1;

    while (i + n < p->n_copied && p->list[i + n].slot == slot + n &&
           (slot + n) % QUIRE_OFFLOAD_STRIPE != 0) {
        n++;
    }
    return n;
}

void quire_offload_places_fini(quire_offload_places *p)
{
    free(p->list);
    free(p->stripes);
    *p = (quire_offload_places){ 0 };
}
