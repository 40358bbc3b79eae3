/* card_plan.c - a batch's tables for the kernels: entries with their pages' addresses, rows, the
 * segments of new tokens, and cascades.
 *
 * The workspace of src/attn checks the batch, lists the segments and finds the cascades; its plan
 * for the CPU's threads is not used.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "device/card/card.h"

#include <string.h>

#define UNIT 64u /* bytes, between the parts of a plan */

/* How many there are of each. */
typedef struct plan_size {
    uint64_t n_entries;
    uint64_t n_positions; /* the first place is never used: 0 means none */
    uint64_t n_rows;
} plan_size;

static uint32_t n_groups_of(const quire_card *card)
{
    return card->workspace->limits.n_groups;
}

static plan_size size_of(const quire_card *card, const quire_attn_batch *batch)
{
    plan_size size = { .n_positions = 1 };

    for (uint32_t s = 0; s < batch->n_seqs; s++) {
        const quire_attn_seq *seq = &batch->seqs[s];

        size.n_rows += seq->n_rows;
        size.n_entries += batch->page_addr_2 != NULL ? seq->tables[0].n_entries : 0;
        for (uint32_t g = 0; g < n_groups_of(card); g++) {
            size.n_entries += seq->tables[g].n_entries;
            for (uint32_t i = 0; i < seq->tables[g].n_entries; i++) {
                const quire_page_entry *entry = quire_attn_entry(&seq->tables[g], i);

                size.n_positions += entry->positions != 0 ? entry->n_tokens : 0;
            }
        }
    }
    return size;
}

/* Where the parts of the plan lie at the host while it is written. */
typedef struct plan_writer {
    uint64_t bytes; /* of the parts so far */
    unsigned char *host;
    quire_card_entry *entries;
    quire_card_seq *seqs;
    quire_card_row *rows;
    uint32_t *positions;
    float *biases; /* beside them; NULL: none */
    quire_card_segment *segments[QUIRE_GROUPS_MAX];
    quire_card_cascade *cascades;
    uint32_t *cascade_rows;
    uint32_t n_entries;
    uint32_t n_positions;
    uint32_t n_rows;
    uint32_t n_cascades;
    uint32_t n_cascade_rows;
} plan_writer;

static uint64_t part(plan_writer *w, uint64_t n, size_t element_bytes)
{
    const uint64_t at = w->bytes;

    w->bytes += (n * element_bytes + UNIT - 1) / UNIT * UNIT;
    return at;
}

static void write_entry(plan_writer *w, const quire_attn_batch *batch,
                        const quire_page_entry *entry)
{
    quire_card_entry *to = &w->entries[w->n_entries++];

    *to = (quire_card_entry){ .first_slot = entry->first_slot,
                              .n_tokens = entry->n_tokens,
                              .first_pos = (uint32_t)entry->first_pos };
    if (entry->page != QUIRE_PAGE_NULL) {
        to->extent = (uint64_t)(uintptr_t)batch->page_addr[entry->page].extent;
        to->slot = batch->page_addr[entry->page].slot;
    }
    if (entry->positions != 0) {
        to->positions = w->n_positions;
        memcpy(w->positions + w->n_positions, batch->positions + entry->positions,
               entry->n_tokens * sizeof(uint32_t));
        if (w->biases != NULL) {
            memcpy(w->biases + w->n_positions, batch->biases + entry->positions,
                   entry->n_tokens * sizeof(float));
        }
        w->n_positions += entry->n_tokens;
    }
}

/* The table of group 0 again, with the pages' second addresses, as that of a group behind all. */
static void write_second(const quire_card *card, plan_writer *w, const quire_attn_batch *batch,
                         uint32_t s)
{
    const quire_attn_table *table = &batch->seqs[s].tables[0];
    const quire_card_entry *first = w->entries + w->seqs[s].first_entry[0];

    w->seqs[s].first_entry[n_groups_of(card)] = w->n_entries;
    for (uint32_t i = 0; i < table->n_entries; i++) {
        const quire_page_id page = quire_attn_entry(table, i)->page;
        quire_card_entry *to = &w->entries[w->n_entries++];

        *to = first[i];
        if (page != QUIRE_PAGE_NULL) {
            to->extent = (uint64_t)(uintptr_t)batch->page_addr_2[page].extent;
            to->slot = batch->page_addr_2[page].slot;
        }
    }
}

static void write_seq(quire_card *card, plan_writer *w, const quire_attn_batch *batch, uint32_t s)
{
    const quire_attn_seq *seq = &batch->seqs[s];
    const uint32_t split_entries = card->workspace->limits.split_entries;

    w->seqs[s] = (quire_card_seq){ .n_tokens = seq->n_tokens, .first_row = w->n_rows };
    for (uint32_t g = 0; g < n_groups_of(card); g++) {
        const uint32_t n = seq->tables[g].n_entries;
        const uint32_t n_splits = (n + split_entries - 1) / split_entries;

        w->seqs[s].first_entry[g] = w->n_entries;
        w->seqs[s].n_entries = n; /* all groups of a sequence have as many (quire_attn_begin()) */
        card->n_splits_max[g] = card->n_splits_max[g] > n_splits ? card->n_splits_max[g] : n_splits;
        for (uint32_t i = 0; i < n; i++) {
            write_entry(w, batch, quire_attn_entry(&seq->tables[g], i));
        }
    }
    if (batch->page_addr_2 != NULL) {
        write_second(card, w, batch, s);
    }
    for (uint32_t i = 0; i < seq->n_rows; i++) {
        w->rows[w->n_rows++] = (quire_card_row){ .seq = s,
                                                 .pos = seq->n_tokens - seq->n_rows + i,
                                                 .index = seq->first_row + i };
    }
}

static void write_segments(const quire_card *card, const plan_writer *w, uint32_t g)
{
    const quire_attn_plan *plan = &card->workspace->plans[g];

    for (uint32_t i = 0; i < plan->n_segments; i++) {
        const quire_attn_segment *segment = &plan->segments[i];

        w->segments[g][i] =
            (quire_card_segment){ .seq = (uint32_t)(segment->seq - card->workspace->batch.seqs),
                                  .entry = segment->entry,
                                  .tile = segment->tile,
                                  .first_slot = segment->first_slot,
                                  .n_tokens = segment->n_tokens,
                                  .first_row = segment->first_row };
    }
}

/* Leading splits of a sequence of which its first row, and so each row, sees all. */
static uint32_t n_whole_splits(const quire_card *card, const quire_attn_batch *batch, uint32_t s)
{
    const quire_attn_seq *seq = &batch->seqs[s];
    const uint32_t *split_pos =
        card->workspace->plans[0].split_pos + (size_t)s * card->workspace->n_splits_max;
    const uint32_t n_seen = seq->n_tokens - seq->n_rows + 1;
    uint32_t n = quire_attn_n_splits(card->workspace, &seq->tables[0]) - 1;

    while (n > 0 && split_pos[n] > n_seen) {
        n--;
    }
    return n;
}

/* The rows of some sequences, which share their first n_splits splits. */
static void write_cascade(plan_writer *w, const quire_attn_batch *batch, const uint32_t *seqs,
                          uint32_t n_seqs, uint32_t n_splits)
{
    quire_card_cascade *cascade = &w->cascades[w->n_cascades++];

    *cascade = (quire_card_cascade){ .first = w->n_cascade_rows, .n_splits = n_splits };
    for (uint32_t i = 0; i < n_seqs; i++) {
        const uint32_t first_row = w->seqs[seqs[i]].first_row;

        for (uint32_t r = 0; r < batch->seqs[seqs[i]].n_rows; r++) {
            w->rows[first_row + r].n_shared = n_splits;
            w->cascade_rows[w->n_cascade_rows++] = first_row + r;
        }
    }
    cascade->n_rows = w->n_cascade_rows - cascade->first;
}

/* Rows of group 0 that read the same pages: those of sequences with few rows that share a prefix,
 * as the workspace has found them, and all rows of one sequence. */
static void write_cascades(quire_card *card, plan_writer *w, const quire_attn_batch *batch)
{
    const quire_attn_plan *plan = &card->workspace->plans[0];

    card->n_cascade_splits = 0;
    for (uint32_t i = 0; i < plan->n_cascades && !card->workspace->limits.no_cascade; i++) {
        const quire_attn_cascade *cascade = &plan->cascades[i];
        const uint32_t *seqs = plan->order + cascade->first;
        const bool is_one = cascade->n_seqs == 1;
        const uint32_t n_splits = !is_one ? cascade->n_splits
                                  : batch->seqs[seqs[0]].n_rows > 1
                                      ? n_whole_splits(card, batch, seqs[0])
                                      : 0;

        if (n_splits > 0) {
            write_cascade(w, batch, seqs, cascade->n_seqs, n_splits);
            card->n_cascade_splits =
                n_splits > card->n_cascade_splits ? n_splits : card->n_cascade_splits;
        }
    }
    card->cascades = w->cascades;
    card->n_cascades = w->n_cascades;
}

/* Lay the parts out, and find room for them. */
static int plan_place(quire_card *card, const quire_attn_batch *batch, plan_writer *w)
{
    const plan_size size = size_of(card, batch);
    const uint64_t entries = part(w, size.n_entries, sizeof(quire_card_entry));
    const uint64_t seqs = part(w, batch->n_seqs, sizeof(quire_card_seq));
    const uint64_t rows = part(w, size.n_rows, sizeof(quire_card_row));
    const uint64_t cascades = part(w, batch->n_seqs, sizeof(quire_card_cascade));
    const uint64_t cascade_rows = part(w, size.n_rows, sizeof(uint32_t));
    const uint64_t positions = part(w, size.n_positions, sizeof(uint32_t));
    const uint64_t biases = part(w, batch->biases != NULL ? size.n_positions : 0, sizeof(float));
    uint64_t segments[QUIRE_GROUPS_MAX];
    uint64_t addr;

    QUIRE_FAIL_IF(size.n_entries > UINT32_MAX || size.n_positions > UINT32_MAX, QUIRE_LIMIT);
    /* The table of second addresses stands behind those of the groups. */
    QUIRE_FAIL_IF(batch->page_addr_2 != NULL && n_groups_of(card) == QUIRE_GROUPS_MAX, QUIRE_LIMIT);
    for (uint32_t g = 0; g < n_groups_of(card); g++) {
        segments[g] = part(w, card->workspace->plans[g].n_segments, sizeof(quire_card_segment));
    }
    QUIRE_TRY(quire_card_twin_reserve(card, w->bytes, &card->plan));
    addr = (uint64_t)(uintptr_t)card->plan.own.addr;
    card->at_entries = addr + entries;
    card->at_seqs = addr + seqs;
    card->at_rows = addr + rows;
    card->at_cascades = addr + cascades;
    card->at_cascade_rows = addr + cascade_rows;
    card->at_positions = addr + positions;
    card->at_biases = batch->biases != NULL ? addr + biases : 0;
    w->host = card->plan.pinned.host;
    w->entries = (void *)(w->host + entries);
    w->seqs = (void *)(w->host + seqs);
    w->rows = (void *)(w->host + rows);
    w->cascades = (void *)(w->host + cascades);
    w->cascade_rows = (void *)(w->host + cascade_rows);
    w->positions = (void *)(w->host + positions);
    w->biases = batch->biases != NULL ? (void *)(w->host + biases) : NULL;
    for (uint32_t g = 0; g < n_groups_of(card); g++) {
        card->at_segments[g] = addr + segments[g];
        w->segments[g] = (void *)(w->host + segments[g]);
    }
    return QUIRE_OK;
}

static int plan_write(quire_card *card, const quire_attn_batch *batch)
{
    plan_writer w = { .n_positions = 1 };

    QUIRE_TRY(quire_card_wait_all(card)); /* a kernel may read the plan before */
    QUIRE_TRY(plan_place(card, batch, &w));
    w.positions[0] = 0;
    memset(card->n_splits_max, 0, sizeof(card->n_splits_max));
    for (uint32_t s = 0; s < batch->n_seqs; s++) {
        write_seq(card, &w, batch, s);
    }
    write_cascades(card, &w, batch);
    for (uint32_t g = 0; g < n_groups_of(card); g++) {
        write_segments(card, &w, g);
    }
    card->n_rows = w.n_rows;
    return w.bytes > 0 ? quire_card_twin_send(card, &card->plan, w.bytes) : QUIRE_OK;
}

int quire_card_plan(quire_card *card, const quire_attn_batch *batch)
{
    const quire_attn_batch empty = { .page_tokens = card->workspace->limits.page_tokens };
    int rc;

    card->batch = (quire_attn_batch){ 0 };
    card->n_rows = 0;
    QUIRE_TRY(quire_attn_begin(card->workspace, batch));
    rc = plan_write(card, batch);
    if (rc < 0) {
        (void)quire_attn_begin(card->workspace, &empty);
        card->n_rows = 0;
        return rc;
    }
    card->batch = *batch;
    return QUIRE_OK;
}
