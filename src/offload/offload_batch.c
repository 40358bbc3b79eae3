/* offload_batch.c - see offload_batch.h.
 *
 * SPDX-License-Identifier: MIT */
#include "offload/offload_batch.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

int quire_offload_addrs_copy(quire_offload_addrs *a, const quire_cache *cache,
                             const quire_attn_batch *batch)
{
    const uint32_t n = quire_cache_page_id_end(cache);

    if (n > a->n_max) {
        quire_page_addr *grown = realloc(a->of_pages, (size_t)n * 2 * sizeof *grown);

        QUIRE_FAIL_IF(grown == NULL, QUIRE_NOMEM);
        a->of_pages = grown;
        a->n_max = n * 2;
    }
    memcpy(a->of_pages, batch->page_addr, n * sizeof *a->of_pages);
    return QUIRE_OK;
}

int quire_offload_pages_each(const quire_attn_batch *batch, quire_group_id group,
                             quire_offload_add add, void *ctx)
{
    for (uint32_t i = 0; i < batch->n_seqs; i++) {
        const quire_attn_table *table = &batch->seqs[i].tables[group];

        for (uint32_t e = 0; e < table->n_entries; e++) {
            const quire_page_id page =
                table->leaves[e / QUIRE_LEAF_ENTRIES][e % QUIRE_LEAF_ENTRIES].page;
            const quire_page_addr *addr = &batch->page_addr[page];

            if (page != QUIRE_PAGE_NULL && addr->memory == QUIRE_MEMORY_OFFLOADED) {
                QUIRE_TRY(add(ctx, page, addr->slot));
            }
        }
    }
    return QUIRE_OK;
}

uint32_t quire_offload_part_of(const quire_offload_parts *parts, const quire_attn_layer *layer)
{
    uint32_t low = 0;
    uint32_t high = parts->n;

    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;

        if (parts->offset(parts->medium, middle) <= layer->k[0].lane.offset) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

int quire_offload_layer_check(const quire_offload_parts *parts, const quire_attn_layer *layer)
{
    const size_t begin = parts->offset(parts->medium, quire_offload_part_of(parts, layer));

    QUIRE_FAIL_IF(layer->n_k != 1 || layer->n_v > 1 || layer->k_store.lane.offset != begin ||
                      layer->k[0].lane.offset != begin ||
                      (layer->n_v == 1 && layer->v[0].lane.offset != layer->v_store.lane.offset),
                  QUIRE_UNSUPP);
    return QUIRE_OK;
}
