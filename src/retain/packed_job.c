/* packed_job.c - the tiles of a lane for a job of packed_device.h: packed ones, those in full
 * pages, and the hot tiles of sealed formats.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/packed_device_internal.h"

#include "base/check.h"

#include <stdlib.h>

#define TILE QUIRE_TILE_TOKENS

static int table_init(quire_page_entry **entries, const quire_page_entry ***leaves,
                      uint32_t n_leaves)
{
    *entries = calloc((size_t)n_leaves * QUIRE_LEAF_ENTRIES, sizeof **entries);
    *leaves = calloc(n_leaves, sizeof **leaves);
    QUIRE_FAIL_IF(*entries == NULL || *leaves == NULL, QUIRE_NOMEM);
    for (uint32_t i = 0; i < n_leaves; i++) {
        (*leaves)[i] = *entries + (size_t)i * QUIRE_LEAF_ENTRIES;
    }
    return QUIRE_OK;
}

int quire_packed_tables_init(quire_packed_worker *w, uint32_t n_entries_max, bool is_sealed)
{
    const uint32_t n_leaves = (n_entries_max + QUIRE_LEAF_ENTRIES - 1) / QUIRE_LEAF_ENTRIES;

    QUIRE_TRY(table_init(&w->entries, &w->leaves, n_leaves));
    return is_sealed ? table_init(&w->hot_entries, &w->hot_leaves, n_leaves) : QUIRE_OK;
}

void quire_packed_tables_fini(quire_packed_worker *w)
{
    free(w->hot_leaves);
    free(w->hot_entries);
    free(w->leaves);
    free(w->entries);
}

/* A tile of a lane: its spot, and the hot part where there is a hot page. */
typedef struct lane_tile {
    quire_packed_spot spot;
    unsigned char *hot_part;
    uint32_t first_pos;
    uint32_t n_tokens;
} lane_tile;

static void tile_add(const quire_packed_device *d, quire_packed_worker *w, const lane_tile *tile,
                     uint32_t *n)
{
    const quire_page_id page = w->first_page + 1 + *n, hot = page + d->n_entries_max;

    w->addrs[page] = (quire_page_addr){ .extent = tile->spot.part,
                                        .slot = tile->spot.index,
                                        .memory = d->base.memory };
    w->entries[*n] = (quire_page_entry){ .page = page,
                                         .n_tokens = (uint16_t)tile->n_tokens,
                                         .first_pos = (int32_t)tile->first_pos };
    if (w->hot_entries != NULL) {
        w->hot_entries[*n] = w->entries[*n];
        w->hot_entries[*n].page = tile->hot_part != NULL ? hot : QUIRE_PAGE_NULL;
        w->addrs[hot] = w->addrs[page];
        w->addrs[hot].extent = tile->hot_part;
    }
    ++*n;
}

const quire_page_addr *quire_packed_hot_of(const quire_packed_device *d, const quire_attn_seq *seq,
                                           uint32_t i)
{
    const quire_attn_table *table = &seq->tables[d->packing.hot_group];
    const quire_page_id id =
        quire_packing_is_sealed(&d->packing)
            ? table->leaves[i / QUIRE_LEAF_ENTRIES][i % QUIRE_LEAF_ENTRIES].page
            : QUIRE_PAGE_NULL;

    return id != QUIRE_PAGE_NULL ? &d->batch.page_addr[id] : NULL;
}

/* Tile t of a lane in full pages. */
static lane_tile full_tile(const quire_packed_device *d, const quire_attn_seq *seq, uint32_t lane,
                           uint32_t t)
{
    const quire_packed_text *text = quire_packed_text_of(seq);
    const uint32_t tiles = d->packing.page_tokens / TILE;
    const uint32_t entry = text->lanes.n_pages + t / tiles;
    const uint32_t n_packed = text->lanes.n_pages * d->packing.page_tokens;
    const uint32_t n_left = seq->n_tokens - n_packed - t * TILE;
    const quire_page_id id = quire_packed_entry(seq, entry)->page;
    const quire_page_addr *hot = quire_packed_hot_of(d, seq, entry);

    return (lane_tile){
        .spot = quire_full_spot(&d->packing, &d->batch.page_addr[id], lane, t % tiles),
        .hot_part = hot != NULL ? quire_hot_part(&d->packing, hot, lane) : NULL,
        .first_pos = text->n_gone + n_packed + t * TILE,
        .n_tokens = n_left < TILE ? n_left : TILE,
    };
}

/* The worker's sequence: the rows of another one on the first n of its tiles. */
static void seq_set(quire_packed_worker *w, const quire_attn_seq *seq, uint32_t n)
{
    w->seq = (quire_attn_seq){ .n_tokens = quire_packed_text_of(seq)->n_gone + seq->n_tokens,
                               .first_row = seq->first_row,
                               .n_rows = seq->n_rows };
    for (uint32_t g = 0; g < QUIRE_GROUPS_MAX; g++) { /* a device plans its windows' group, too */
        w->seq.tables[g] = (quire_attn_table){ w->leaves, n };
    }
    if (w->hot_leaves != NULL) {
        w->seq.tables[QUIRE_PACKED_HOT].leaves = w->hot_leaves;
    }
}

/* Tokens in full pages have their positions in the text, by which sealed formats choose a form;
 * packed ones have lower ones. */
void quire_packed_tiles_fill(const quire_packed_device *d, quire_packed_worker *w,
                             const quire_attn_seq *seq, uint32_t lane, bool rows_only)
{
    const quire_packed_lanes *lanes = &quire_packed_text_of(seq)->lanes;
    const quire_packed_pages pages = { .leaves = seq->tables[0].leaves,
                                       .addrs = d->batch.page_addr,
                                       .n = lanes->n_pages };
    const uint32_t n_packed = lanes->first[lane + 1] - lanes->first[lane];
    const uint32_t n_full = seq->n_tokens - lanes->n_pages * d->packing.page_tokens;
    const uint32_t first = rows_only ? (n_full - seq->n_rows) / TILE : 0;
    uint32_t n = 0;

    for (uint32_t i = 0; i < n_packed && !rows_only; i++) {
        const lane_tile tile = { .spot = quire_packed_spot_of(&d->packing, &pages, lanes,
                                                              lanes->first[lane] + i),
                                 .first_pos = i * TILE,
                                 .n_tokens = TILE };

        tile_add(d, w, &tile, &n);
    }
    for (uint32_t t = first; t * TILE < n_full; t++) {
        const lane_tile tile = full_tile(d, seq, lane, t);

        tile_add(d, w, &tile, &n);
    }
    seq_set(w, seq, n);
}

static bool worker_begin(quire_packed_device *d, quire_packed_worker *w)
{
    const quire_attn_batch batch = {
        .seqs = &w->seq, .n_seqs = 1, .page_tokens = TILE, .page_addr = w->addrs
    };
    const int rc = quire_attn_begin(w->workspace, &batch);

    if (rc < 0) {
        atomic_store_explicit(&d->status, rc, memory_order_relaxed);
    }
    return rc == QUIRE_OK;
}

bool quire_packed_job_begin(quire_packed_device *d, quire_packed_worker *w,
                            const quire_attn_seq *seq, uint32_t lane, bool rows_only)
{
    quire_packed_tiles_fill(d, w, seq, lane, rows_only);
    return worker_begin(d, w);
}

void quire_packed_tiles_fill_on(const quire_packed_device *d, quire_packed_worker *w,
                                const quire_attn_seq *seq, uint32_t lane,
                                const quire_page_rank *ranks, uint32_t n)
{
    uint32_t n_entries = 0;

    QUIRE_CHECK(quire_packed_text_of(seq)->lanes.n_pages == 0);
    while (n_entries < n) {
        const lane_tile tile = full_tile(d, seq, lane, ranks[n_entries].entry);

        tile_add(d, w, &tile, &n_entries);
    }
    seq_set(w, seq, n);
}

bool quire_packed_job_begin_on(quire_packed_device *d, quire_packed_worker *w,
                               const quire_attn_seq *seq, uint32_t lane, uint32_t n)
{
    quire_packed_tiles_fill_on(d, w, seq, lane, w->ranks, n);
    return worker_begin(d, w);
}
