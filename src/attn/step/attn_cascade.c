/* attn_cascade.c - see attn_cascade.h.
 *
 * Cascades are found greedily: the first sequence that has none yet leads one, and takes those of
 * the next QUIRE_ATTN_CASCADE_WINDOW with which it shares the splits before n, where n saves most
 * reads.
 *
 * Cost. A leader's comparisons find n_1 >= n_2 >= ... shared splits. Its cascade saves the largest
 * k * n_k, call it P; so n_k <= P / k, and all n_k are at most P * (1 + 1/2 + ... + 1/256) < 6.2 P.
 * P is the number of splits that the members that join have in common, and they leave: over all
 * cascades the splits found equal are less than 6.2 times those of all sequences. A comparison
 * looks at one split more. (Splits behind a window count as neither compared nor shared.)
 *
 * SPDX-License-Identifier: MIT */
#include "attn/step/attn_cascade.h"

#include "base/num.h"

#define IS_TAKEN UINT32_MAX /* in n_shared[]: the sequence has a cascade */

/* The plan at work. */
typedef struct cascade_plan {
    quire_attn_workspace *ws;
    quire_attn_plan *plan;
    uint32_t group;
} cascade_plan;

static const quire_attn_table *table_of(const cascade_plan *p, uint32_t s)
{
    return &p->ws->batch.seqs[s].tables[p->group];
}

static const uint32_t *split_pos_of(const cascade_plan *p, uint32_t s)
{
    return p->plan->split_pos + (size_t)s * p->ws->n_splits_max;
}

static bool is_short(const quire_attn_seq *seq)
{
    return seq->n_rows <= QUIRE_ATTN_CASCADE_ROWS_MAX;
}

/* Leading splits of a sequence that all of its rows see to their end. */
static uint32_t n_whole_splits(const cascade_plan *p, uint32_t s)
{
    const quire_attn_seq *seq = &p->ws->batch.seqs[s];
    const uint32_t *split_pos = split_pos_of(p, s);
    uint32_t n_seen = seq->n_tokens - seq->n_rows + 1; /* positions that the first row sees */
    uint32_t n = quire_attn_n_splits(p->ws, table_of(p, s));

    if (seq->n_tokens > n_seen) {
        do {
            n--; /* the last one ends with the last token */
        } while (n > 0 && split_pos[n] > n_seen);
    }
    return n;
}

/* The first split of a sequence that a row sees some of. */
static uint32_t first_split(const cascade_plan *p, uint32_t s)
{
    const quire_attn_seq *seq = &p->ws->batch.seqs[s];

    return quire_attn_split_of(
        split_pos_of(p, s), quire_attn_n_splits(p->ws, table_of(p, s)),
        quire_attn_seen_begin(p->ws->limits.groups[p->group].window, seq->n_tokens - seq->n_rows));
}

/* The first entry that differs among entries [begin, n) of two tables; n when there is none. Forks
 * share leaves, so most entries need no look. */
static uint32_t first_difference(const quire_attn_table *a, const quire_attn_table *b,
                                 uint32_t begin, uint32_t n)
{
    uint32_t i = begin;

    while (i < n) {
        const quire_page_entry *x = quire_attn_entry(a, i);
        const quire_page_entry *y = quire_attn_entry(b, i);

        if (x == y && i % QUIRE_LEAF_ENTRIES == 0) {
            i += QUIRE_LEAF_ENTRIES;
            continue;
        }
        if (x->page != y->page || x->first_slot != y->first_slot || x->n_tokens != y->n_tokens ||
            x->first_pos != y->first_pos || x->positions != y->positions) {
            return i;
        }
        i++;
    }
    return n;
}

/* Where the leading splits end that sequence t has in common with the leader s; 0 when there is
 * none that t sees. */
static uint32_t n_shared_splits(const cascade_plan *p, uint32_t s, uint32_t t)
{
    const quire_attn_table *a = table_of(p, s);
    const quire_attn_table *b = table_of(p, t);
    uint32_t split_entries = p->ws->limits.split_entries;
    uint32_t n_splits = quire_min_u32(n_whole_splits(p, s), n_whole_splits(p, t));
    uint64_t end = (uint64_t)n_splits * split_entries;
    uint32_t n_a = end < a->n_entries ? (uint32_t)end : a->n_entries;
    uint32_t n_b = end < b->n_entries ? (uint32_t)end : b->n_entries;
    uint32_t n = quire_min_u32(n_a, n_b);
    uint32_t seen = first_split(p, t);
    uint32_t first = first_difference(a, b, seen * split_entries, n);

    if (first < n || n_a != n_b) { /* a split that ends sooner in one of them is another split */
        n_splits = first / split_entries;
    }
    return n_splits > seen && n_splits > first_split(p, s) ? n_splits : 0;
}

/* Whether the first page that sequence t sees is the leader's. */
static bool is_like(const cascade_plan *p, uint32_t leader, uint32_t t)
{
    const uint32_t i = first_split(p, t) * p->ws->limits.split_entries;

    return is_short(&p->ws->batch.seqs[t]) && i < table_of(p, leader)->n_entries &&
           quire_attn_entry(table_of(p, t), i)->page ==
               quire_attn_entry(table_of(p, leader), i)->page;
}

/* n_shared[t] of the sequences that may join the leader's cascade; returns where they end. */
static uint32_t compare_all(const cascade_plan *p, uint32_t leader)
{
    quire_attn_workspace *ws = p->ws;
    uint32_t end = ws->batch.n_seqs - leader > QUIRE_ATTN_CASCADE_WINDOW
                       ? leader + QUIRE_ATTN_CASCADE_WINDOW
                       : ws->batch.n_seqs;

    for (uint32_t t = leader + 1; t < end; t++) {
        if (ws->n_shared[t] != IS_TAKEN) {
            ws->n_shared[t] = is_like(p, leader, t) ? n_shared_splits(p, leader, t) : 0;
        }
    }
    return end;
}

/* How many splits the leader reads for the others so that most reads are saved: n_joined * (n -
 * begin), where begin is the first split that the leader sees. */
static uint32_t best_n_splits(const cascade_plan *p, uint32_t leader, uint32_t end)
{
    quire_attn_workspace *ws = p->ws;
    const uint32_t begin = first_split(p, leader);
    uint64_t most = 0;
    uint64_t n_joined = 0;
    uint32_t n_max = 0;
    uint32_t best = 0;

    for (uint32_t t = leader + 1; t < end; t++) {
        if (ws->n_shared[t] != IS_TAKEN) {
            ws->n_joined[ws->n_shared[t]]++;
            n_max = ws->n_shared[t] > n_max ? ws->n_shared[t] : n_max;
        }
    }
    for (uint32_t n = n_max; n > 0; n--) {
        n_joined += ws->n_joined[n];
        ws->n_joined[n] = 0;
        if (n > begin && n_joined * (n - begin) > most) {
            most = n_joined * (n - begin);
            best = n;
        }
    }
    ws->n_joined[0] = 0;
    return best;
}

static void add_cascade(const cascade_plan *p, uint32_t leader)
{
    quire_attn_workspace *ws = p->ws;
    quire_attn_plan *plan = p->plan;
    quire_attn_cascade *cascade = &plan->cascades[plan->n_cascades++];
    uint32_t end = leader + 1;

    *cascade = (quire_attn_cascade){ .first = plan->n_ordered };
    if (!ws->limits.no_cascade && is_short(&ws->batch.seqs[leader])) {
        end = compare_all(p, leader);
        cascade->n_splits = best_n_splits(p, leader, end);
    }
    plan->order[plan->n_ordered++] = leader;
    ws->n_shared[leader] = IS_TAKEN;
    for (uint32_t t = leader + 1; cascade->n_splits > 0 && t < end; t++) {
        if (ws->n_shared[t] != IS_TAKEN && ws->n_shared[t] >= cascade->n_splits) {
            plan->order[plan->n_ordered++] = t;
            ws->n_shared[t] = IS_TAKEN;
        }
    }
    cascade->n_seqs = plan->n_ordered - cascade->first;
}

void quire_attn_cascade_plan(quire_attn_workspace *workspace, uint32_t group)
{
    const cascade_plan p = { workspace, &workspace->plans[group], group };
    uint32_t n_seqs = workspace->batch.n_seqs;

    p.plan->n_cascades = 0;
    p.plan->n_ordered = 0;
    for (uint32_t s = 0; s < n_seqs; s++) {
        workspace->n_shared[s] = 0;
    }
    for (uint32_t s = 0; s < n_seqs; s++) {
        if (workspace->n_shared[s] != IS_TAKEN) {
            add_cascade(&p, s);
        }
    }
}
