/* page_choice.c - see page_choice.h.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/page_choice.h"

#include "base/parse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int quire_attend_parse(const char *text, double *share)
{
    static const char top[] = "top:";

    return strncmp(text, top, sizeof top - 1) == 0 &&
                   quire_parse_f64(text + sizeof top - 1, 0, 1, share) == QUIRE_OK && *share > 0
               ? QUIRE_OK
               : QUIRE_INVAL;
}

void quire_page_bounds_add(float *bounds, uint32_t d_k, const float *row, bool is_first)
{
    float *least = bounds, *greatest = bounds + d_k;

    for (uint32_t i = 0; i < d_k; i++) {
        least[i] = is_first || row[i] < least[i] ? row[i] : least[i];
        greatest[i] = is_first || row[i] > greatest[i] ? row[i] : greatest[i];
    }
}

uint32_t quire_pages_read(double share, uint32_t n)
{
    const double wanted = ceil(share * n);
    uint32_t n_read = (uint32_t)wanted;

    n_read = n_read > 1 + QUIRE_ATTEND_RECENT ? n_read : 1 + QUIRE_ATTEND_RECENT;
    return n_read < n ? n_read : n;
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

/* Order: needed pages first, then by bound, then the later page. */
static int by_bound(const void *a, const void *b)
{
    const quire_page_rank *x = a;
    const quire_page_rank *y = b;

    if (x->is_needed != y->is_needed) {
        return x->is_needed ? -1 : 1;
    }
    if (x->bound != y->bound) {
        return x->bound > y->bound ? -1 : 1;
    }
    return x->entry > y->entry ? -1 : x->entry < y->entry;
}

/* Bring the best n of the ranks to the front, in any order: Hoare's selection. No two are alike. */
static void select_best(quire_page_rank *ranks, uint32_t n_ranks, uint32_t n)
{
    uint32_t first = 0, last = n_ranks - 1;

    while (first < last) {
        const quire_page_rank pivot = ranks[first + (last - first) / 2];
        uint32_t i = first, k = last;

        while (by_bound(&ranks[i], &pivot) < 0) {
            i++;
        }
        while (by_bound(&ranks[k], &pivot) > 0) {
            k--;
        }
        while (i < k) {
            const quire_page_rank swapped = ranks[i];

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
    const quire_page_rank *x = a;
    const quire_page_rank *y = b;

    return x->entry < y->entry ? -1 : x->entry > y->entry;
}

static void rank_pages(quire_page_rank *ranks, uint32_t n, const quire_attn_layer *one,
                       uint32_t group, const float *queries)
{
    float query[QUIRE_HEAD_DIM_MAX];

    for (uint32_t i = 0; i < n; i++) {
        ranks[i].bound = 0.0;
        ranks[i].is_needed = i == 0 || i + QUIRE_ATTEND_RECENT >= n;
    }
    for (uint32_t h = 0; h < group; h++) {
        memcpy(query, queries + (size_t)h * one->d_k, one->d_k * sizeof *query);
        if (one->k[0].rotate != 0) {
            quire_hadamard(query, one->d_k, one->k[0].rotate);
        }
        for (uint32_t i = 1; i + QUIRE_ATTEND_RECENT < n; i++) {
            ranks[i].bound += (double)bound_of(query, ranks[i].bounds, one->d_k);
        }
    }
    for (uint32_t i = 1; i + QUIRE_ATTEND_RECENT < n; i++) {
        if (isnan(ranks[i].bound)) { /* a NaN has no place in an order */
            ranks[i].bound = INFINITY;
        }
    }
}

void quire_pages_choose(quire_page_rank *ranks, uint32_t n, uint32_t n_read,
                        const quire_attn_layer *one, uint32_t group, const float *queries)
{
    if (n_read < n) {
        rank_pages(ranks, n, one, group, queries);
        select_best(ranks, n, n_read);
        qsort(ranks, n_read, sizeof *ranks, by_entry);
    }
}
