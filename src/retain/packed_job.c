/* packed_job.c - the tiles of a lane for a job of packed_device.h: packed ones, those in full
 * pages, and the hot tiles of sealed formats.
 *
 * A tile has a page id of its own in the tables of a job, and its address is a part of a page of
 * the cache. Sequences of a job that have the same tiles in the same entries have the same ids
 * there, so that the workspace sees shared splits.
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

int quire_packed_tables_create(const quire_packed_device *d, uint32_t n, quire_packed_table **out,
                               quire_page_addr **addrs)
{
    const uint32_t n_leaves = (d->n_entries_max + QUIRE_LEAF_ENTRIES - 1) / QUIRE_LEAF_ENTRIES;
    const uint32_t n_pages = quire_packed_table_pages(&d->packing, d->n_entries_max);

    *out = calloc(n, sizeof **out);
    *addrs = calloc(1 + (size_t)n * n_pages, sizeof **addrs);
    QUIRE_FAIL_IF(*out == NULL || *addrs == NULL, QUIRE_NOMEM);
    for (uint32_t i = 0; i < n; i++) {
        quire_packed_table *table = &(*out)[i];

        table->addrs = *addrs;
        table->first_page = i * n_pages;
        QUIRE_TRY(table_init(&table->entries, &table->leaves, n_leaves));
        if (quire_packing_is_sealed(&d->packing)) {
            QUIRE_TRY(table_init(&table->hot_entries, &table->hot_leaves, n_leaves));
        }
    }
    return QUIRE_OK;
}

void quire_packed_tables_destroy(quire_packed_table *tables, uint32_t n, quire_page_addr *addrs)
{
    for (uint32_t i = 0; tables != NULL && i < n; i++) {
        free(tables[i].hot_leaves);
        free(tables[i].hot_entries);
        free(tables[i].leaves);
        free(tables[i].entries);
    }
    free(tables);
    free(addrs);
}

uint64_t quire_packed_tables_bytes(const quire_packing *p, uint32_t n_entries_max, uint32_t n)
{
    const uint64_t n_pages = quire_packed_table_pages(p, n_entries_max);
    const uint64_t n_leaves = (n_entries_max + QUIRE_LEAF_ENTRIES - 1) / QUIRE_LEAF_ENTRIES;
    const uint64_t leaf = QUIRE_LEAF_ENTRIES * sizeof(quire_page_entry) + sizeof(void *);

    return sizeof(quire_page_addr) +
           n * (sizeof(quire_packed_table) + n_pages * sizeof(quire_page_addr) +
                (quire_packing_is_sealed(p) ? 2 : 1) * n_leaves * leaf);
}

/* A tile of a lane: its spot, and the hot part where there is a hot page. */
typedef struct lane_tile {
    quire_packed_spot spot;
    unsigned char *hot_part;
    uint32_t first_pos;
    uint32_t n_tokens;
} lane_tile;

/* The page for a tile at an address. If the page of the entry `like` has this address, the tile
 * gets that page. Else the tile gets the page `own` of the table, and `own` gets the address. */
static quire_page_id page_put(const quire_packed_table *table, const quire_page_entry *like,
                              quire_page_id own, const quire_page_addr *addr)
{
    if (like != NULL && like->page != QUIRE_PAGE_NULL &&
        table->addrs[like->page].extent == addr->extent &&
        table->addrs[like->page].slot == addr->slot) {
        return like->page;
    }
    table->addrs[own] = *addr;
    return own;
}

/* like: NULL, or a table that may have the same tile in entry *n. */
static void tile_add(const quire_packed_device *d, quire_packed_table *table,
                     const quire_packed_table *like, const lane_tile *tile, uint32_t *n)
{
    const bool has_like = like != NULL && *n < like->seq.tables[0].n_entries;
    const quire_page_id page = table->first_page + 1 + *n;
    quire_page_addr addr = { .extent = tile->spot.part,
                             .slot = tile->spot.index,
                             .memory = d->base.memory };
    quire_page_entry *entry = &table->entries[*n];

    *entry = (quire_page_entry){ .page = page_put(table, has_like ? &like->entries[*n] : NULL, page,
                                                  &addr),
                                 .n_tokens = (uint16_t)tile->n_tokens,
                                 .first_pos = (int32_t)tile->first_pos };
    if (table->hot_entries != NULL) {
        addr.extent = tile->hot_part;
        table->hot_entries[*n] = *entry;
        table->hot_entries[*n].page =
            tile->hot_part == NULL ? QUIRE_PAGE_NULL
                                   : page_put(table, has_like ? &like->hot_entries[*n] : NULL,
                                              page + d->n_entries_max, &addr);
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

/* The table's sequence: the rows of another one on its first n tiles. */
static void seq_set(quire_packed_table *table, const quire_attn_seq *seq, uint32_t n)
{
    table->seq = (quire_attn_seq){ .n_tokens = quire_packed_text_of(seq)->n_gone + seq->n_tokens,
                                   .first_row = seq->first_row,
                                   .n_rows = seq->n_rows };
    for (uint32_t g = 0; g < QUIRE_GROUPS_MAX; g++) { /* a device plans its windows' group, too */
        table->seq.tables[g] = (quire_attn_table){ table->leaves, n };
    }
    if (table->hot_leaves != NULL) {
        table->seq.tables[QUIRE_PACKED_HOT].leaves = table->hot_leaves;
    }
}

/* Tokens in full pages have their positions in the text, by which sealed formats choose a form;
 * packed ones have lower ones. */
void quire_packed_tiles_fill(const quire_packed_device *d, quire_packed_table *table,
                             const quire_packed_table *like, const quire_attn_seq *seq,
                             uint32_t lane, bool rows_only)
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

        tile_add(d, table, like, &tile, &n);
    }
    for (uint32_t t = first; t * TILE < n_full; t++) {
        const lane_tile tile = full_tile(d, seq, lane, t);

        tile_add(d, table, like, &tile, &n);
    }
    seq_set(table, seq, n);
}

/* Plan the first n tables of a worker. */
static bool worker_begin(quire_packed_device *d, quire_packed_worker *w, uint32_t n)
{
    const quire_attn_batch batch = {
        .seqs = w->seqs, .n_seqs = n, .page_tokens = TILE, .page_addr = w->addrs
    };
    int rc;

    for (uint32_t i = 0; i < n; i++) {
        w->seqs[i] = w->tables[i].seq;
    }
    rc = quire_attn_begin(w->workspace, &batch);
    if (rc < 0) {
        atomic_store_explicit(&d->status, rc, memory_order_relaxed);
    }
    return rc == QUIRE_OK;
}

bool quire_packed_job_begin(quire_packed_device *d, quire_packed_worker *w,
                            const quire_attn_seq *const *seqs, uint32_t n, uint32_t lane,
                            bool rows_only)
{
    QUIRE_CHECK(n <= d->n_tables);
    for (uint32_t i = 0; i < n; i++) {
        quire_packed_tiles_fill(d, &w->tables[i], i > 0 ? &w->tables[0] : NULL, seqs[i], lane,
                                rows_only);
    }
    return worker_begin(d, w, n);
}

void quire_packed_tiles_fill_on(const quire_packed_device *d, quire_packed_table *table,
                                const quire_attn_seq *seq, uint32_t lane,
                                const quire_page_rank *ranks, uint32_t n)
{
    uint32_t n_entries = 0;

    QUIRE_CHECK(quire_packed_text_of(seq)->lanes.n_pages == 0);
    while (n_entries < n) {
        const lane_tile tile = full_tile(d, seq, lane, ranks[n_entries].entry);

        tile_add(d, table, NULL, &tile, &n_entries);
    }
    seq_set(table, seq, n);
}

bool quire_packed_job_begin_on(quire_packed_device *d, quire_packed_worker *w,
                               const quire_attn_seq *seq, uint32_t lane, uint32_t n)
{
    quire_packed_tiles_fill_on(d, &w->tables[0], seq, lane, w->ranks, n);
    return worker_begin(d, w, 1);
}
