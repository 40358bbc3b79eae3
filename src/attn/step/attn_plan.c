/* attn_plan.c - the plan of a step: a batch's tables are checked, and the plan is made of them.
 *
 * A plan is made of each group that is not hot. Tables that must be alike are compared entry by
 * entry.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/step/attn_cascade.h"
#include "base/check.h"

/* Positions of a sequence: entries have them as int32_t. */
#define POSITIONS_MAX ((uint32_t)INT32_MAX)

/* An entry, and the positions in its slots. */
typedef struct entry_span {
    const quire_page_entry *entry;
    uint32_t index;      /* in the table */
    const int32_t *list; /* its positions; NULL: consecutive */
    uint32_t first;      /* position */
    uint32_t end;        /* the one after its last */
} entry_span;

/* Add the part of an entry's tokens from `skip` on to the list of segments, tile by tile. */
static void add_segments(quire_attn_workspace *ws, quire_attn_plan *plan, const quire_attn_seq *seq,
                         const entry_span *span, uint32_t skip, uint32_t first_row)
{
    uint32_t slot = span->entry->first_slot + skip;
    uint32_t end = (uint32_t)span->entry->first_slot + span->entry->n_tokens;

    while (slot < end) {
        uint32_t tile = slot / QUIRE_TILE_TOKENS;
        uint32_t tile_end = (tile + 1) * QUIRE_TILE_TOKENS;
        uint32_t n = (tile_end < end ? tile_end : end) - slot;

        QUIRE_CHECK(plan->n_segments < ws->limits.n_rows_max);
        plan->segments[plan->n_segments++] = (quire_attn_segment){
            .seq = seq,
            .entry = span->index,
            .tile = tile,
            .first_slot = (uint16_t)(slot % QUIRE_TILE_TOKENS),
            .n_tokens = (uint16_t)n,
            .first_row = first_row,
        };
        first_row += n;
        slot += n;
    }
}

static int check_page(const quire_attn_workspace *ws, quire_page_id page)
{
    const quire_page_addr *addr = &ws->batch.page_addr[page];

    QUIRE_FAIL_IF(addr->extent == NULL, QUIRE_INVAL);
    QUIRE_FAIL_IF(addr->memory != ws->limits.memory, QUIRE_UNSUPP);
    return QUIRE_OK;
}

/* An entry by itself: slots within the page, positions that ascend. */
static int span_of(const quire_attn_workspace *ws, const quire_attn_table *table, uint32_t i,
                   entry_span *span)
{
    const quire_page_entry *entry = quire_attn_entry(table, i);

    QUIRE_FAIL_IF(entry->n_tokens == 0 || entry->first_pos < 0, QUIRE_INVAL);
    QUIRE_FAIL_IF((uint32_t)entry->first_slot + entry->n_tokens > ws->batch.page_tokens,
                  QUIRE_INVAL);
    *span = (entry_span){ .entry = entry, .index = i, .first = (uint32_t)entry->first_pos };
    span->end = span->first + entry->n_tokens;
    if (entry->positions == 0) {
        return QUIRE_OK;
    }
    QUIRE_FAIL_IF(ws->batch.positions == NULL, QUIRE_INVAL);
    span->list = ws->batch.positions + entry->positions;
    QUIRE_FAIL_IF(span->list[0] != entry->first_pos, QUIRE_INVAL);
    for (uint32_t t = 1; t < entry->n_tokens; t++) {
        QUIRE_FAIL_IF(span->list[t] <= span->list[t - 1], QUIRE_INVAL);
    }
    span->end = (uint32_t)span->list[entry->n_tokens - 1] + 1;
    return QUIRE_OK;
}

/* The first position of a sequence's rows. */
static uint32_t first_row_pos(const quire_attn_seq *seq)
{
    return seq->n_tokens - seq->n_rows;
}

/* Whether the rows may need the page of an entry. */
static bool is_needed(const quire_attn_group *group, const quire_attn_seq *seq,
                      const entry_span *span)
{
    return group->is_hot ? span->end > first_row_pos(seq)
                         : span->end > quire_attn_seen_begin(group->window, first_row_pos(seq));
}

/* An entry of a table that has a hot one beside it: only the last tile of a sequence may be open,
 * and a row's own tile begins with its place among the tiles of 64 positions. */
static int check_tiles(const quire_attn_seq *seq, const quire_attn_table *table,
                       const entry_span *span)
{
    const bool is_last = span->index + 1 == table->n_entries;
    const bool is_written = span->end > first_row_pos(seq);

    QUIRE_FAIL_IF(span->entry->first_slot % QUIRE_TILE_TOKENS != 0, QUIRE_INVAL);
    QUIRE_FAIL_IF(span->entry->n_tokens % QUIRE_TILE_TOKENS != 0 && !is_last, QUIRE_INVAL);
    if (span->list == NULL) {
        QUIRE_FAIL_IF(span->first % QUIRE_TILE_TOKENS != 0, QUIRE_INVAL);
    } else {
        QUIRE_FAIL_IF(span->entry->n_tokens % QUIRE_TILE_TOKENS != 0 || is_written, QUIRE_INVAL);
    }
    return QUIRE_OK;
}

/* Entry `span` of a table against the one it must be alike. */
static int check_like(const quire_attn_seq *seq, uint32_t like, const entry_span *span)
{
    const quire_page_entry *a = span->entry;
    const quire_page_entry *b = quire_attn_entry(&seq->tables[like], span->index);

    QUIRE_FAIL_IF(a->first_slot != b->first_slot || a->n_tokens != b->n_tokens, QUIRE_INVAL);
    QUIRE_FAIL_IF(a->first_pos != b->first_pos || a->positions != b->positions, QUIRE_INVAL);
    return QUIRE_OK;
}

/* Whether a group has hot pages beside its own. */
static bool has_hot(const quire_attn_workspace *ws, uint32_t group)
{
    for (uint32_t g = 0; g < ws->limits.n_groups; g++) {
        if (ws->limits.groups[g].is_hot &&
            ws->limits.groups[g].like == ws->limits.groups[group].like) {
            return true;
        }
    }
    return false;
}

/* Check an entry of group g. The entries before it end at position pos_begin. */
static int check_span(const quire_attn_workspace *ws, const quire_attn_seq *seq, uint32_t g,
                      const entry_span *span, uint32_t pos_begin)
{
    const quire_attn_group *group = &ws->limits.groups[g];

    QUIRE_FAIL_IF(span->first < pos_begin || span->end > seq->n_tokens, QUIRE_INVAL);
    if (span->entry->page != QUIRE_PAGE_NULL) {
        QUIRE_TRY(check_page(ws, span->entry->page));
    } else {
        QUIRE_FAIL_IF(is_needed(group, seq, span), QUIRE_INVAL);
    }
    return group->like != g ? check_like(seq, group->like, span) : QUIRE_OK;
}

/* How many slots of an entry hold rows: its last. */
static uint32_t n_row_slots(const quire_attn_seq *seq, const entry_span *span)
{
    const uint32_t rows_begin = first_row_pos(seq);
    uint32_t n = 0;

    if (span->list == NULL) {
        n = span->end > rows_begin ? span->end - rows_begin : 0;
        return n < span->entry->n_tokens ? n : span->entry->n_tokens;
    }
    while (n < span->entry->n_tokens &&
           (uint32_t)span->list[span->entry->n_tokens - 1 - n] >= rows_begin) {
        n++;
    }
    return n;
}

/* Walk a sequence's table in group g: check it, note where splits start and where its rows are
 * stored. */
static int plan_table(quire_attn_workspace *ws, uint32_t s, uint32_t g)
{
    const quire_attn_seq *seq = &ws->batch.seqs[s];
    const quire_attn_table *table = &seq->tables[g];
    const bool is_hot = ws->limits.groups[g].is_hot;
    quire_attn_plan *plan = &ws->plans[g];
    uint32_t *split_pos = plan->split_pos + (size_t)s * ws->n_splits_max;
    const bool has_tiles = has_hot(ws, g);
    uint32_t n_rows = 0;
    uint32_t pos = 0;

    QUIRE_FAIL_IF(table->n_entries == 0 || table->leaves == NULL, QUIRE_INVAL);
    QUIRE_FAIL_IF(table->n_entries > ws->limits.n_entries_max, QUIRE_LIMIT);
    QUIRE_FAIL_IF(table->n_entries != seq->tables[ws->limits.groups[g].like].n_entries,
                  QUIRE_INVAL);
    for (uint32_t i = 0; i < table->n_entries; i++) {
        entry_span span;
        uint32_t n;

        QUIRE_TRY(span_of(ws, table, i, &span));
        QUIRE_TRY(check_span(ws, seq, g, &span, pos));
        if (has_tiles) {
            QUIRE_TRY(check_tiles(seq, table, &span));
        }
        if (!is_hot && i % ws->limits.split_entries == 0) {
            split_pos[i / ws->limits.split_entries] = span.first;
        }
        n = n_row_slots(seq, &span);
        if (!is_hot && n > 0) {
            add_segments(ws, plan, seq, &span, span.entry->n_tokens - n, seq->first_row + n_rows);
        }
        n_rows += n;
        pos = span.end;
    }
    /* Positions differ, so all rows are there; of a part's none is. */
    return n_rows == (ws->batch.is_part ? 0 : seq->n_rows) ? QUIRE_OK : QUIRE_INVAL;
}

static int plan_batch(quire_attn_workspace *ws)
{
    uint64_t n_rows = 0;

    for (uint32_t s = 0; s < ws->batch.n_seqs; s++) {
        const quire_attn_seq *seq = &ws->batch.seqs[s];

        QUIRE_FAIL_IF(seq->n_rows == 0 || seq->n_rows > seq->n_tokens, QUIRE_INVAL);
        QUIRE_FAIL_IF(seq->n_tokens > POSITIONS_MAX, QUIRE_LIMIT);
        n_rows += seq->n_rows;
        QUIRE_FAIL_IF(n_rows > ws->limits.n_rows_max, QUIRE_LIMIT);
        QUIRE_FAIL_IF((uint64_t)seq->first_row + seq->n_rows > ws->limits.n_rows_max, QUIRE_LIMIT);
        for (uint32_t g = 0; g < ws->limits.n_groups; g++) {
            QUIRE_TRY(plan_table(ws, s, g));
        }
    }
    return QUIRE_OK;
}

/* An empty step. */
static void plan_reset(quire_attn_workspace *ws)
{
    ws->batch = (quire_attn_batch){ 0 };
    for (uint32_t g = 0; g < ws->limits.n_groups; g++) {
        ws->plans[g].n_segments = 0;
    }
}

int quire_attn_begin(quire_attn_workspace *workspace, const quire_attn_batch *batch)
{
    int rc;

    plan_reset(workspace); /* a failed begin leaves an empty step */
    QUIRE_FAIL_IF(batch->page_tokens != workspace->limits.page_tokens, QUIRE_INVAL);
    QUIRE_FAIL_IF(batch->n_seqs > workspace->limits.n_seqs_max, QUIRE_LIMIT);
    workspace->batch = *batch;
    rc = plan_batch(workspace);
    if (rc < 0) {
        plan_reset(workspace);
        return rc;
    }
    for (uint32_t g = 0; g < workspace->limits.n_groups; g++) {
        if (!workspace->limits.groups[g].is_hot) {
            quire_attn_cascade_plan(workspace, g);
        }
    }
    for (uint32_t i = 0; i < workspace->limits.n_layers_max; i++) {
        atomic_store_explicit(&workspace->next_item[i].value, 0, memory_order_relaxed);
    }
    return QUIRE_OK;
}
