/* packed_cascade.c - cascades of packed sequences: several requests on one condensed text.
 *
 * Sequences with the same packed pages form a set. A set is cut into cascades of about the same
 * size, whose lanes are jobs. Larger cascades read the shared tiles less often, and more of them
 * keep all threads busy: cost_of() weighs the two. Rows that choose pages, and sequences with many
 * rows, are by themselves.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/packed_device_internal.h"

#include "base/num.h"

/* The cost of a tile is that of so many rows, and one more by row (attn_units.c). */
#define TILE_COST 8u

/* If there are several threads for each KV head, all sequences of a step are that many cascades. */
uint32_t quire_packed_cascade_tables(const quire_packed_device_opts *o)
{
    const uint32_t n_parts = quire_max_u32(o->n_threads / o->packing->n_kv_head, 1);

    return quire_min_u32((o->n_seqs_max + n_parts - 1) / n_parts, QUIRE_PACKED_CASCADE_SEQS);
}

static bool can_share(const quire_attn_seq *seq)
{
    return quire_packed_text_of(seq)->lanes.n_pages > 0 && !quire_packed_attends(seq) &&
           seq->n_rows <= QUIRE_PACKED_CASCADE_ROWS;
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
    const uint32_t n_packed = can_share(d->packed[first]) ? d->n_packed : 0;
    uint32_t end = first + 1;

    for (uint32_t i = end; i < n_packed; i++) {
        const quire_attn_seq *seq = d->packed[i];

        if (can_share(seq) && is_same(d->packed[first], seq)) {
            d->packed[i] = d->packed[end];
            d->packed[end++] = seq;
        }
    }
    return end - first;
}

/* The time of a tile of a set of n sequences that is cut into n_parts cascades. */
static uint64_t cost_of(const quire_packed_device *d, uint32_t n, uint32_t n_parts)
{
    const uint64_t n_jobs = (uint64_t)n_parts * d->packing.n_kv_head;
    const uint64_t n_rounds = (n_jobs + d->n_threads - 1) / d->n_threads;

    return n_rounds * (TILE_COST + (uint64_t)((n + n_parts - 1) / n_parts) * d->group);
}

/* Into how many cascades a set of n sequences is cut. */
static uint32_t n_parts_of(const quire_packed_device *d, uint32_t n)
{
    uint32_t best = (n + d->n_tables - 1) / d->n_tables;

    for (uint32_t k = best + 1; k <= n; k++) {
        best = cost_of(d, n, k) < cost_of(d, n, best) ? k : best;
    }
    return best;
}

void quire_packed_cascades_plan(quire_packed_device *d)
{
    d->n_cascades = 0;
    for (uint32_t first = 0, n; first < d->n_packed; first += n) {
        uint32_t n_parts;

        n = set_gather(d, first);
        n_parts = n_parts_of(d, n);
        for (uint32_t k = 0; k < n_parts; k++) {
            const uint32_t begin = (uint32_t)((uint64_t)n * k / n_parts);
            const uint32_t end = (uint32_t)((uint64_t)n * (k + 1) / n_parts);

            d->cascades[d->n_cascades++] = (quire_packed_cascade){ first + begin, end - begin };
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
        w->n_saved += quire_attn_saved_splits(w->workspace);
    }
}
