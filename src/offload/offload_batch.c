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

/* The part that has a place in an extent. */
static uint32_t part_at(const quire_offload_parts *parts, size_t offset)
{
    uint32_t low = 0;
    uint32_t high = parts->n;

    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;

        if (parts->offset(parts->medium, middle) <= offset) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

static int sources_add(const quire_offload_parts *parts, const quire_attn_source *sources,
                       uint32_t n, quire_offload_stop *stop)
{
    for (uint32_t i = 0; i < n; i++) {
        if (sources[i].group == parts->group) {
            QUIRE_TRY(quire_offload_stop_add(stop, part_at(parts, sources[i].lane.offset)));
        }
    }
    return QUIRE_OK;
}

int quire_offload_stop_of(const quire_offload_parts *parts, const quire_attn_layer *layer,
                          quire_offload_stop *out)
{
    *out = (quire_offload_stop){ .n = 0 };
    QUIRE_TRY(sources_add(parts, layer->k, layer->n_k, out));
    return sources_add(parts, layer->v, layer->n_v, out);
}

bool quire_offload_layer_stores(const quire_attn_layer *layer)
{
    return layer->k_store.lane.page_stride != 0;
}

int quire_offload_layer_check(const quire_offload_parts *parts, const quire_offload_stops *stops,
                              const quire_attn_layer *layer)
{
    quire_offload_stop stop;

    QUIRE_TRY(quire_offload_stop_of(parts, layer, &stop));
    return stop.n == 0 || quire_offload_stops_find(stops, QUIRE_OFFLOAD_STOP_NONE, &stop) !=
                              QUIRE_OFFLOAD_STOP_NONE
               ? QUIRE_OK
               : QUIRE_UNSUPP;
}

static void sources_place(const quire_offload_parts *parts, uint32_t second,
                          quire_attn_source *sources, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        sources[i].is_second =
            sources[i].group == parts->group && part_at(parts, sources[i].lane.offset) == second;
    }
}

quire_attn_layer quire_offload_layer_at(const quire_offload_parts *parts,
                                        const quire_attn_layer *layer,
                                        const quire_offload_stop *stop)
{
    quire_attn_layer own = *layer;

    QUIRE_CHECK(stop->n == QUIRE_OFFLOAD_READS_MAX);
    sources_place(parts, stop->parts[1], own.k, own.n_k);
    sources_place(parts, stop->parts[1], own.v, own.n_v);
    return own;
}
