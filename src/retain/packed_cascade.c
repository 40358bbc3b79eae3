/* packed_cascade.c - cascades of packed sequences: several requests on one condensed text.
 *
 * Sequences with the same packed pages form a set. A set is cut into cascades of about the same
 * size, whose lanes are jobs of one thread each. Larger cascades read shared tiles less often; more
 * of them keep more threads busy, and are shorter where one lane is much longer than the others.
 * From the fewest cascades on, the set with the longest job is cut further as long as the layer's
 * time by the costs of tiles falls. Rows that choose pages, and sequences with many rows, are by
 * themselves.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/packed_device_internal.h"

#include "base/num.h"

/* As attn_units.c has it: a tile costs that of so many rows, for each block of so many rows. */
#define TILE_COST  8u
#define BLOCK_ROWS 96u

/* Whole splits are shared. */
#define SPLIT_TILES (QUIRE_ATTN_SPLIT_TOKENS / QUIRE_TILE_TOKENS)

/* If there are several threads for each KV head, all sequences of a step are that many cascades. */
uint32_t quire_packed_cascade_tables(const quire_packed_device_opts *o)
{
    const uint32_t n_parts = quire_max_u32(o->n_threads / o->packing->n_kv_head, 1);

    return quire_min_u32((o->n_seqs_max + n_parts - 1) / n_parts, QUIRE_PACKED_CASCADE_SEQS);
}

static bool can_share(const quire_packed_device *d, const quire_attn_seq *seq)
{
    return !d->no_cascade && quire_packed_text_of(seq)->lanes.n_pages > 0 &&
           !quire_packed_attends(seq) && seq->n_rows <= QUIRE_PACKED_CASCADE_ROWS;
}

/* Whether the packed pages of two sequences are the same. */
static bool is_same(const quire_attn_seq *a, const quire_attn_seq *b)
{
    const quire_packed_text *x = quire_packed_text_of(a), *y = quire_packed_text_of(b);

    if (x->lanes.n_pages != y->lanes.n_pages || x->n_gone != y->n_gone) {
        return false;
    }
    for (uint32_t i = 0; i < x->lanes.n_pages; i++) {
        if (quire_packed_entry(a, i)->page != quire_packed_entry(b, i)->page) {
            return false;
        }
    }
    return true;
}

/* Move the sequences with the packed pages of packed[first] behind it. Returns how many these are,
 * with itself. */
static uint32_t set_gather(quire_packed_device *d, uint32_t first)
{
    const uint32_t n_packed = can_share(d, d->packed[first]) ? d->n_packed : 0;
    uint32_t end = first + 1;

    for (uint32_t i = end; i < n_packed; i++) {
        const quire_attn_seq *seq = d->packed[i];

        if (can_share(d, seq) && is_same(d->packed[first], seq)) {
            d->packed[i] = d->packed[end];
            d->packed[end++] = seq;
        }
    }
    return end - first;
}

static uint32_t tiles_of(uint32_t n_tokens)
{
    return (n_tokens + QUIRE_TILE_TOKENS - 1) / QUIRE_TILE_TOKENS;
}

static quire_packed_set set_of(const quire_packed_device *d, uint32_t first, uint32_t n)
{
    const quire_packed_lanes *lanes = &quire_packed_text_of(d->packed[first])->lanes;
    const uint32_t n_lanes = quire_packing_n_lanes(&d->packing);
    quire_packed_set set = { .first = first, .n_seqs = n };

    for (uint32_t i = first; i < first + n; i++) {
        const quire_attn_seq *seq = d->packed[i];

        set.n_rows += seq->n_rows;
        set.n_own += tiles_of(seq->n_tokens - lanes->n_pages * d->packing.page_tokens);
    }
    set.n_own /= n;
    for (uint32_t lane = 0; lanes->n_pages > 0 && lane < n_lanes; lane++) {
        set.n_longest = quire_max_u32(set.n_longest, lanes->first[lane + 1] - lanes->first[lane]);
    }
    set.n_mean = lanes->n_pages > 0 ? (lanes->first[n_lanes] - lanes->first[0]) / n_lanes : 0;
    set.n_parts = d->queue != NULL ? 1 : (n + d->n_tables - 1) / d->n_tables;
    return set;
}

/* The cost of a cascade of a set on a lane with n_packed packed tiles. */
static uint64_t job_cost(const quire_packed_device *d, const quire_packed_set *set,
                         uint32_t n_packed)
{
    const uint64_t n_seqs = (set->n_seqs + set->n_parts - 1) / set->n_parts;
    const uint64_t n_rows = ((uint64_t)set->n_rows * d->group + set->n_parts - 1) / set->n_parts;
    const uint64_t n_blocks = (n_rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    const uint64_t n_shared = n_seqs > 1 ? n_packed / SPLIT_TILES * SPLIT_TILES : 0;
    const uint64_t n_rest = n_packed - n_shared + set->n_own;

    return n_shared * (TILE_COST * n_blocks + n_rows) +
           n_rest * (TILE_COST * (n_seqs > n_blocks ? n_seqs : n_blocks) + n_rows);
}

static uint64_t n_jobs_of(const quire_packed_device *d, const quire_packed_set *set)
{
    return (uint64_t)set->n_parts * d->packing.n_kv_head;
}

static uint64_t work_of(const quire_packed_device *d, const quire_packed_set *set)
{
    return job_cost(d, set, set->n_mean) * n_jobs_of(d, set);
}

static uint64_t longest_of(const quire_packed_device *d, const quire_packed_set *set)
{
    return job_cost(d, set, set->n_longest);
}

/* A layer's time: that of its longest job, or that of all jobs in rounds of all threads. */
static uint64_t time_of(const quire_packed_device *d, uint64_t work, uint64_t n_jobs,
                        uint64_t longest)
{
    const uint64_t n_rounds = (n_jobs + d->n_threads - 1) / d->n_threads;
    const uint64_t all = n_rounds * (work / n_jobs);

    return all > longest ? all : longest;
}

/* The set with the longest job. others: the longest job of the other sets. */
static quire_packed_set *longest_set(const quire_packed_device *d, uint32_t n_sets,
                                     uint64_t *others)
{
    quire_packed_set *set = &d->sets[0];

    for (uint32_t i = 1; i < n_sets; i++) {
        set = longest_of(d, &d->sets[i]) > longest_of(d, set) ? &d->sets[i] : set;
    }
    *others = 0;
    for (uint32_t i = 0; i < n_sets; i++) {
        const uint64_t own = &d->sets[i] != set ? longest_of(d, &d->sets[i]) : 0;

        *others = own > *others ? own : *others;
    }
    return set;
}

/* Cut the set with the longest job further, into so many cascades that the layer's time is the
 * least. Returns false if it is the least already. */
static bool longest_cut(const quire_packed_device *d, uint32_t n_sets)
{
    uint64_t work = 0, n_jobs = 0, others, best = UINT64_MAX;
    quire_packed_set *set = longest_set(d, n_sets, &others);
    const uint32_t before = set->n_parts;
    uint32_t n_parts = before;

    for (uint32_t i = 0; i < n_sets; i++) {
        work += &d->sets[i] != set ? work_of(d, &d->sets[i]) : 0;
        n_jobs += &d->sets[i] != set ? n_jobs_of(d, &d->sets[i]) : 0;
    }
    for (; set->n_parts <= set->n_seqs; set->n_parts++) {
        const uint64_t own = longest_of(d, set);
        const uint64_t time = time_of(d, work + work_of(d, set), n_jobs + n_jobs_of(d, set),
                                      own > others ? own : others);

        if (time < best) {
            best = time;
            n_parts = set->n_parts;
        }
    }
    set->n_parts = n_parts;
    return n_parts > before;
}

void quire_packed_cascades_plan(quire_packed_device *d)
{
    uint32_t n_sets = 0;

    for (uint32_t first = 0, n; first < d->n_packed; first += n) {
        n = set_gather(d, first);
        d->sets[n_sets++] = set_of(d, first, n);
    }
    while (d->queue == NULL && n_sets > 0 && longest_cut(d, n_sets)) {
    }
    d->n_cascades = 0;
    for (uint32_t i = 0; i < n_sets; i++) {
        const quire_packed_set *set = &d->sets[i];

        for (uint32_t k = 0; k < set->n_parts; k++) {
            const uint32_t begin = (uint32_t)((uint64_t)set->n_seqs * k / set->n_parts);
            const uint32_t end = (uint32_t)((uint64_t)set->n_seqs * (k + 1) / set->n_parts);

            d->cascades[d->n_cascades++] =
                (quire_packed_cascade){ set->first + begin, end - begin };
        }
    }
}

void quire_packed_cascade_run(quire_packed_device *d, quire_packed_worker *w,
                              const quire_packed_cascade *cascade, const quire_attn_layer *one,
                              uint32_t lane)
{
    const quire_attn_seq *const *seqs = &d->packed[cascade->first];

    if (quire_packed_attends(seqs[0])) {
        quire_attn_layer call = *one;

        call.sink_tiles = d->sink_tiles; /* no page of it is packed */
        quire_packed_attend(d, w, seqs[0], &call, lane);
    } else if (quire_packed_job_begin(d, w, seqs, cascade->n_seqs, lane, false)) {
        quire_attn_run(w->workspace, one, 0, 0, 1);
    }
}
