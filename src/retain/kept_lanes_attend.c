/* kept_lanes_attend.c - bounds of pages, and the choice of those that a row reads.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/kept_lanes_internal.h"

#include "base/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TILE  QUIRE_TILE_TOKENS
#define D_MAX 1024u /* QUIRE_HEAD_DIM_MAX */

typedef struct page_rank {
    double bound;
    uint32_t entry;
    bool is_needed; /* whatever its bound */
} page_rank;

uint64_t quire_lanes_attend_bytes(const quire_lanes_opts *o, uint32_t n_entries, uint64_t n_tokens)
{
    if (!(o->attend_share > 0 && o->attend_share < 1)) {
        return 0;
    }
    /* Room for tokens grows by a quarter more than is needed. */
    return o->layers[0].n_kv_head * (uint64_t)n_entries * sizeof(page_rank) +
           (n_tokens + n_tokens / 4) / TILE * 2 * o->layers[0].d_k * sizeof(float);
}

int quire_lanes_attend_create(quire_lanes *lanes, const quire_lanes_opts *o, uint32_t n_entries)
{
    lanes->attend_share = o->attend_share;
    for (uint32_t g = 0; quire_lanes_attends(lanes) && g < lanes->n_kv_head; g++) {
        lanes->heads[g].ranks = calloc(n_entries, sizeof(page_rank));
        QUIRE_FAIL_IF(lanes->heads[g].ranks == NULL, QUIRE_NOMEM);
    }
    return QUIRE_OK;
}

/* ---- bounds ---- */

void quire_lane_bound(const quire_lanes *lanes, lane_state *lane, uint32_t from)
{
    const size_t index = (size_t)(lane - lanes->lanes);
    const quire_attn_layer *one = &lanes->layers[index / lanes->n_kv_head].one;
    const uint32_t d = one->d_k;
    const lane_tables tables = quire_lane_tables(lanes, lane);
    float row[D_MAX];

    for (uint32_t t = from; lane->bounds != NULL && t < lane->n; t++) {
        float *least = lane->bounds + (size_t)(t / TILE) * 2 * d;
        float *greatest = least + d;

        quire_lane_rows(lanes, one, &tables, QUIRE_SIDE_K, t / TILE, t % TILE, 1, row);
        for (uint32_t i = 0; i < d; i++) {
            /* A cut page keeps the wider bounds of its former tokens. */
            least[i] = t % TILE == 0 || row[i] < least[i] ? row[i] : least[i];
            greatest[i] = t % TILE == 0 || row[i] > greatest[i] ? row[i] : greatest[i];
        }
    }
}

/* ---- choosing ---- */

bool quire_lanes_chooses(const quire_lanes *lanes, uint32_t layer)
{
    return quire_lanes_attends(lanes) && lanes->n_rows == 1 && layer >= QUIRE_ATTEND_DENSE &&
           !quire_lanes_repeats(lanes);
}

/* The most that the product of a query with a key inside the bounds can be. */
static float bound_of(const float *query, const float *bounds, uint32_t d)
{
    const float *greatest = bounds + d;
    float lanes[8] = { 0 }; /* sums side by side, which a compiler can keep in registers */
    float sum = 0.0f;
    uint32_t i = 0;

    for (; i + 8 <= d; i += 8) {
        for (uint32_t x = 0; x < 8; x++) {
            const float a = query[i + x] * bounds[i + x];
            const float b = query[i + x] * greatest[i + x];

            lanes[x] += a > b ? a : b;
        }
    }
    for (; i < d; i++) {
        const float a = query[i] * bounds[i], b = query[i] * greatest[i];

        sum += a > b ? a : b;
    }
    for (uint32_t x = 0; x < 8; x++) {
        sum += lanes[x];
    }
    return sum;
}

/* Those that are needed, then by bound, then the later page. */
static int by_bound(const void *a, const void *b)
{
    const page_rank *x = a;
    const page_rank *y = b;

    if (x->is_needed != y->is_needed) {
        return x->is_needed ? -1 : 1;
    }
    if (x->bound != y->bound) {
        return x->bound > y->bound ? -1 : 1;
    }
    return x->entry > y->entry ? -1 : x->entry < y->entry;
}

/* Bring the best n of the ranks to the front, in any order: Hoare's selection. No two are alike. */
static void select_best(page_rank *ranks, uint32_t n_ranks, uint32_t n)
{
    uint32_t first = 0, last = n_ranks - 1;

    while (first < last) {
        const page_rank pivot = ranks[first + (last - first) / 2];
        uint32_t i = first, k = last;

        while (by_bound(&ranks[i], &pivot) < 0) {
            i++;
        }
        while (by_bound(&ranks[k], &pivot) > 0) {
            k--;
        }
        while (i < k) {
            const page_rank swapped = ranks[i];

            ranks[i] = ranks[k];
            ranks[k] = swapped;
            do {
                i++;
            } while (by_bound(&ranks[i], &pivot) < 0);
            do {
                k--;
            } while (by_bound(&ranks[k], &pivot) > 0);
        }
        if (n <= k + 1) { /* ranks up to k are no worse than those behind */
            last = k;
        } else {
            first = k + 1;
        }
    }
}

static int by_entry(const void *a, const void *b)
{
    const page_rank *x = a;
    const page_rank *y = b;

    return x->entry < y->entry ? -1 : x->entry > y->entry;
}

static void rank_pages(const quire_lanes *lanes, const quire_attn_layer *one,
                       const lane_state *lane, page_rank *ranks, uint32_t n_entries)
{
    float query[D_MAX];

    for (uint32_t i = 0; i < n_entries; i++) {
        ranks[i] =
            (page_rank){ .entry = i, .is_needed = i == 0 || i + QUIRE_ATTEND_RECENT >= n_entries };
    }
    for (uint32_t h = 0; h < lanes->group; h++) {
        memcpy(query, one->q[0] + lanes->first_row * one->q_stride + (size_t)h * one->d_k,
               one->d_k * sizeof *query);
        if (one->k[0].rotate != 0) {
            quire_hadamard(query, one->d_k, one->k[0].rotate);
        }
        for (uint32_t i = 0; i < n_entries; i++) {
            ranks[i].bound +=
                (double)bound_of(query, lane->bounds + (size_t)i * 2 * one->d_k, one->d_k);
        }
    }
}

int quire_lanes_choose_pages(quire_lanes *lanes, const quire_attn_layer *one, uint32_t l,
                             uint32_t g)
{
    const lane_state *lane = quire_lane_at(lanes, l, g);
    lane_head *head = &lanes->heads[g];
    const uint32_t n_entries = head->seq.tables[QUIRE_LANES_MAIN].n_entries;
    const double wanted = ceil(lanes->attend_share * n_entries);
    page_rank *ranks = head->ranks;
    uint32_t n = (uint32_t)wanted;

    head->n_pages_held += n_entries;
    n = n > 1 + QUIRE_ATTEND_RECENT ? n : 1 + QUIRE_ATTEND_RECENT;
    if (n >= n_entries) {
        head->n_pages_read += n_entries;
        return QUIRE_OK;
    }
    head->n_pages_read += n;
    rank_pages(lanes, one, lane, ranks, n_entries);
    select_best(ranks, n_entries, n);
    qsort(ranks, n, sizeof *ranks, by_entry);
    for (uint32_t i = 0; i < n; i++) {
        head->entries[i] = head->entries[ranks[i].entry];
        if (lanes->hot_bytes > 0) {
            head->hot_entries[i] = head->hot_entries[ranks[i].entry];
        }
    }
    return quire_lanes_begin_head(lanes, lane, g, n);
}
