/* attn_cascade.c - see attn_cascade.h.
 *
 * Groups are found greedily: the first sequence that has none yet leads one, and takes those of the
 * next QUIRE_ATTN_CASCADE_WINDOW with which it shares at least n splits, where n saves most reads.
 *
 * Cost. A leader's comparisons find n_1 >= n_2 >= ... shared splits. Its group saves the largest
 * k * n_k, call it P; so n_k <= P / k, and all n_k are at most P * (1 + 1/2 + ... + 1/256) < 6.2 P.
 * P is what the members that join have of splits in common, and they leave: over all groups the
 * splits found equal are less than 6.2 times those of all sequences. A comparison looks at one
 * split more.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/attn_cascade.h"

#include "base/num.h"

#define IS_GROUPED UINT32_MAX /* in n_shared[]: the sequence has a group */

static bool is_short(const quire_attn_seq *seq)
{
    return seq->n_rows <= QUIRE_ATTN_CASCADE_ROWS_MAX;
}

/* Leading splits of a sequence that all of its rows see to their end. */
static uint32_t n_whole_splits(const quire_attn_workspace *ws, uint32_t s)
{
    const quire_attn_seq *seq = &ws->batch.seqs[s];
    const uint32_t *split_token = ws->split_token + (size_t)s * ws->n_splits_max;
    uint32_t n_seen = seq->n_tokens - seq->n_rows + 1; /* tokens that the first row sees */
    uint32_t n = quire_attn_n_splits(ws, seq);

    if (seq->n_tokens > n_seen) {
        do {
            n--; /* the last one ends with the last token */
        } while (n > 0 && split_token[n] > n_seen);
    }
    return n;
}

/* The first entry that differs among the first n of two tables; n when there is none. Forks share
 * leaves, so most entries need no look. */
static uint32_t first_difference(const quire_attn_seq *a, const quire_attn_seq *b, uint32_t n)
{
    uint32_t i = 0;

    while (i < n) {
        const quire_page_entry *x = quire_attn_entry(a, i);
        const quire_page_entry *y = quire_attn_entry(b, i);

        if (x == y && i % QUIRE_LEAF_ENTRIES == 0) {
            i += QUIRE_LEAF_ENTRIES;
            continue;
        }
        if (x->page != y->page || x->first_slot != y->first_slot || x->n_tokens != y->n_tokens) {
            return i;
        }
        i++;
    }
    return n;
}

/* Leading splits that two sequences have in common. */
static uint32_t n_shared_splits(const quire_attn_workspace *ws, uint32_t s, uint32_t t)
{
    const quire_attn_seq *a = &ws->batch.seqs[s];
    const quire_attn_seq *b = &ws->batch.seqs[t];
    uint32_t split_entries = ws->limits.split_entries;
    uint32_t n_splits = quire_min_u32(n_whole_splits(ws, s), n_whole_splits(ws, t));
    uint64_t end = (uint64_t)n_splits * split_entries;
    uint32_t n_a = end < a->n_entries ? (uint32_t)end : a->n_entries;
    uint32_t n_b = end < b->n_entries ? (uint32_t)end : b->n_entries;
    uint32_t n = quire_min_u32(n_a, n_b);
    uint32_t first = first_difference(a, b, n);

    /* A split that ends sooner in one of them is another split. */
    return first == n && n_a == n_b ? n_splits : first / split_entries;
}

/* n_shared[t] of the sequences that may join the group of `leader`; returns where they end. */
static uint32_t compare_all(quire_attn_workspace *ws, uint32_t leader)
{
    const quire_attn_batch *batch = &ws->batch;
    quire_page_id first_page = quire_attn_entry(&batch->seqs[leader], 0)->page;
    uint32_t end = batch->n_seqs - leader > QUIRE_ATTN_CASCADE_WINDOW
                       ? leader + QUIRE_ATTN_CASCADE_WINDOW
                       : batch->n_seqs;

    for (uint32_t t = leader + 1; t < end; t++) {
        if (ws->n_shared[t] != IS_GROUPED) {
            bool is_like = is_short(&batch->seqs[t]) &&
                           quire_attn_entry(&batch->seqs[t], 0)->page == first_page;

            ws->n_shared[t] = is_like ? n_shared_splits(ws, leader, t) : 0;
        }
    }
    return end;
}

/* The number of splits that saves most: times the sequences that share as many with the leader. */
static uint32_t best_n_splits(quire_attn_workspace *ws, uint32_t leader, uint32_t end)
{
    uint64_t most = 0;
    uint64_t n_joined = 0;
    uint32_t n_max = 0;
    uint32_t best = 0;

    for (uint32_t t = leader + 1; t < end; t++) {
        if (ws->n_shared[t] != IS_GROUPED) {
            ws->n_joined[ws->n_shared[t]]++;
            n_max = ws->n_shared[t] > n_max ? ws->n_shared[t] : n_max;
        }
    }
    for (uint32_t n = n_max; n > 0; n--) {
        n_joined += ws->n_joined[n];
        ws->n_joined[n] = 0;
        if (n_joined * n > most) {
            most = n_joined * n;
            best = n;
        }
    }
    ws->n_joined[0] = 0;
    return best;
}

static void add_group(quire_attn_workspace *ws, uint32_t leader)
{
    quire_attn_group *group = &ws->groups[ws->n_groups++];
    uint32_t end = leader + 1;

    *group = (quire_attn_group){ .first = ws->n_ordered };
    if (!ws->limits.no_cascade && is_short(&ws->batch.seqs[leader])) {
        end = compare_all(ws, leader);
        group->n_splits = best_n_splits(ws, leader, end);
    }
    ws->order[ws->n_ordered++] = leader;
    ws->n_shared[leader] = IS_GROUPED;
    for (uint32_t t = leader + 1; group->n_splits > 0 && t < end; t++) {
        if (ws->n_shared[t] != IS_GROUPED && ws->n_shared[t] >= group->n_splits) {
            ws->order[ws->n_ordered++] = t;
            ws->n_shared[t] = IS_GROUPED;
        }
    }
    group->n_seqs = ws->n_ordered - group->first;
}

void quire_attn_cascade_plan(quire_attn_workspace *workspace)
{
    uint32_t n_seqs = workspace->batch.n_seqs;

    workspace->n_groups = 0;
    workspace->n_ordered = 0;
    for (uint32_t s = 0; s < n_seqs; s++) {
        workspace->n_shared[s] = 0;
    }
    for (uint32_t s = 0; s < n_seqs; s++) {
        if (workspace->n_shared[s] != IS_GROUPED) {
            add_group(workspace, s);
        }
    }
}
