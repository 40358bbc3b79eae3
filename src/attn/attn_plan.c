/* attn_plan.c - the plan of a step: a batch's tables checked, and what follows from them.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/attn_cascade.h"
#include "base/check.h"

/* Add the part of entry i's tokens from `skip` on to the list of segments, tile by tile. */
static void add_segments(quire_attn_workspace *ws, const quire_attn_seq *seq, uint32_t i,
                         uint32_t skip, uint32_t first_row)
{
    const quire_page_entry *entry = quire_attn_entry(seq, i);
    uint32_t slot = entry->first_slot + skip;
    uint32_t end = (uint32_t)entry->first_slot + entry->n_tokens;

    while (slot < end) {
        uint32_t tile = slot / QUIRE_TILE_TOKENS;
        uint32_t tile_end = (tile + 1) * QUIRE_TILE_TOKENS;
        uint32_t n = (tile_end < end ? tile_end : end) - slot;

        QUIRE_CHECK(ws->n_segments < ws->limits.n_rows_max);
        ws->segments[ws->n_segments++] = (quire_attn_segment){
            .page = &ws->batch.page_addr[entry->page],
            .hot = quire_attn_hot_page(&ws->batch, seq, i),
            .tile = tile,
            .first_slot = (uint16_t)(slot % QUIRE_TILE_TOKENS),
            .n_tokens = (uint16_t)n,
            .first_row = first_row,
        };
        first_row += n;
        slot += n;
    }
}

static int check_entry(const quire_attn_workspace *ws, const quire_page_entry *entry)
{
    QUIRE_FAIL_IF(entry->page == QUIRE_PAGE_NULL || entry->n_tokens == 0, QUIRE_INVAL);
    QUIRE_FAIL_IF(ws->batch.page_addr[entry->page].extent == NULL, QUIRE_INVAL);
    QUIRE_FAIL_IF((uint32_t)entry->first_slot + entry->n_tokens > ws->batch.page_tokens,
                  QUIRE_INVAL);
    QUIRE_FAIL_IF(entry->rope_shift != 0, QUIRE_UNSUPP);
    return QUIRE_OK;
}

/* Entry i of a hot table. The sequence's rows are stored in it (is_written), or lie behind it. */
static int check_hot_entry(const quire_attn_workspace *ws, const quire_attn_seq *seq, uint32_t i,
                           bool is_written)
{
    const quire_page_entry *entry = quire_attn_entry(seq, i);
    const quire_page_entry *hot = &seq->hot_leaves[i / QUIRE_LEAF_ENTRIES][i % QUIRE_LEAF_ENTRIES];

    /* Only the last tile of a sequence may be open: then it is always read hot. */
    QUIRE_FAIL_IF(entry->first_slot % QUIRE_TILE_TOKENS != 0, QUIRE_INVAL);
    QUIRE_FAIL_IF(i + 1 < seq->n_entries && entry->n_tokens % QUIRE_TILE_TOKENS != 0, QUIRE_INVAL);
    if (hot->page == QUIRE_PAGE_NULL) {
        return is_written ? QUIRE_INVAL : QUIRE_OK;
    }
    QUIRE_FAIL_IF(ws->batch.page_addr[hot->page].extent == NULL, QUIRE_INVAL);
    QUIRE_FAIL_IF(hot->first_slot != entry->first_slot || hot->n_tokens != entry->n_tokens,
                  QUIRE_INVAL);
    return QUIRE_OK;
}

/* Walk a sequence's table: check it, note where splits start and where its rows are stored. */
static int plan_seq(quire_attn_workspace *ws, uint32_t s)
{
    const quire_attn_seq *seq = &ws->batch.seqs[s];
    uint32_t *split_token = ws->split_token + (size_t)s * ws->n_splits_max;
    uint32_t first_row_token;
    uint64_t token = 0;

    QUIRE_FAIL_IF(seq->n_rows == 0 || seq->n_rows > seq->n_tokens, QUIRE_INVAL);
    QUIRE_FAIL_IF(seq->n_entries == 0, QUIRE_INVAL);
    QUIRE_FAIL_IF(seq->n_entries > ws->limits.n_entries_max, QUIRE_LIMIT);
    first_row_token = seq->n_tokens - seq->n_rows;
    for (uint32_t i = 0; i < seq->n_entries; i++) {
        const quire_page_entry *entry = quire_attn_entry(seq, i);
        bool is_written = token + entry->n_tokens > first_row_token;

        QUIRE_TRY(check_entry(ws, entry));
        QUIRE_FAIL_IF(token + entry->n_tokens > seq->n_tokens, QUIRE_INVAL);
        if (seq->hot_leaves != NULL) {
            QUIRE_TRY(check_hot_entry(ws, seq, i, is_written));
        }
        if (i % ws->limits.split_entries == 0) {
            split_token[i / ws->limits.split_entries] = (uint32_t)token;
        }
        if (is_written) {
            uint32_t skip = token < first_row_token ? first_row_token - (uint32_t)token : 0;

            add_segments(ws, seq, i, skip,
                         seq->first_row + (uint32_t)token + skip - first_row_token);
        }
        token += entry->n_tokens;
    }
    QUIRE_FAIL_IF(token != seq->n_tokens, QUIRE_INVAL);
    ws->has_hot = ws->has_hot && seq->hot_leaves != NULL;
    return QUIRE_OK;
}

static int plan_batch(quire_attn_workspace *ws)
{
    uint64_t n_rows = 0;

    ws->has_hot = true;
    for (uint32_t s = 0; s < ws->batch.n_seqs; s++) {
        const quire_attn_seq *seq = &ws->batch.seqs[s];

        n_rows += seq->n_rows;
        QUIRE_FAIL_IF(n_rows > ws->limits.n_rows_max, QUIRE_LIMIT);
        QUIRE_FAIL_IF((uint64_t)seq->first_row + seq->n_rows > ws->limits.n_rows_max, QUIRE_LIMIT);
        QUIRE_TRY(plan_seq(ws, s));
    }
    return QUIRE_OK;
}

int quire_attn_begin(quire_attn_workspace *workspace, const quire_attn_batch *batch)
{
    int rc;

    workspace->batch = (quire_attn_batch){ 0 }; /* a failed begin leaves an empty step */
    workspace->n_segments = 0;
    QUIRE_FAIL_IF(batch->page_tokens != workspace->limits.page_tokens, QUIRE_INVAL);
    QUIRE_FAIL_IF(batch->n_seqs > workspace->limits.n_seqs_max, QUIRE_LIMIT);
    workspace->batch = *batch;
    rc = plan_batch(workspace);
    if (rc < 0) {
        workspace->batch = (quire_attn_batch){ 0 };
        workspace->n_segments = 0;
        return rc;
    }
    quire_attn_cascade_plan(workspace);
    for (uint32_t i = 0; i < workspace->limits.n_layers_max; i++) {
        atomic_store_explicit(&workspace->next_item[i].value, 0, memory_order_relaxed);
    }
    return QUIRE_OK;
}
