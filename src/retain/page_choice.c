/* page_choice.c - see page_choice.h.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/page_choice.h"

#include "base/parse.h"
#include "codec/half.h"

#include <math.h>
#include <string.h>

int quire_attend_parse(const char *text, double *share)
{
    static const char top[] = "top:";

    return strncmp(text, top, sizeof top - 1) == 0 &&
                   quire_parse_f64(text + sizeof top - 1, 0, 1, share) == QUIRE_OK && *share > 0
               ? QUIRE_OK
               : QUIRE_INVAL;
}

/* The greatest bf16 that is not above x, or with is_above the least that is not below. Cut digits
 * bring x closer to zero; the next number away from zero may be an infinity. Without branches, for
 * vectors. */
static inline uint16_t rounded_to(float x, bool is_above)
{
    const uint32_t bits = quire_f32_bits(x);
    const uint32_t is_nan = (bits & 0x7fffffffu) > QUIRE_F32_INF_BITS;
    const uint32_t is_cut = (bits & 0xffffu) != 0;
    const uint32_t is_closer = bits >> 31 ^ (is_above ? 1u : 0u); /* than the bound may be */

    return (uint16_t)(((bits >> 16) + (is_cut & is_closer & (is_nan ^ 1u))) | is_nan << 6);
}

void quire_page_bounds_add(uint16_t *bounds, uint32_t d_k, const float *row, bool is_first)
{
    uint16_t *least = bounds, *greatest = bounds + d_k;

    for (uint32_t i = 0; i < d_k && is_first; i++) {
        least[i] = rounded_to(row[i], false);
        greatest[i] = rounded_to(row[i], true);
    }
    for (uint32_t i = 0; i < d_k && !is_first; i++) {
        const float x = row[i], a = quire_bf16_to_f32(least[i]), b = quire_bf16_to_f32(greatest[i]);

        least[i] = rounded_to(x < a ? x : a, false);
        greatest[i] = rounded_to(x > b ? x : b, true);
    }
}

uint32_t quire_pages_read(double share, uint32_t n)
{
    const double wanted = ceil(share * n);
    uint32_t n_read = (uint32_t)wanted;

    n_read = n_read > 1 + QUIRE_ATTEND_RECENT ? n_read : 1 + QUIRE_ATTEND_RECENT;
    return n_read < n ? n_read : n;
}

/* ---- bounds ---- */

/* Neighbouring elements, of which every CPU adds four at once. */
typedef float four __attribute__((vector_size(16), aligned(4), may_alias));
typedef uint16_t eight_halves __attribute__((vector_size(16), aligned(2), may_alias));

/* Pages whose bounds are on their way from memory: they lie apart where pages are shared. */
#define PAGES_AHEAD 8u

/* parts, [2][d_k]: what the least and the greatest value of each channel are multiplied with. */
static void parts_of(const quire_attn_layer *one, uint32_t group, const float *queries,
                     float *parts)
{
    const uint32_t d = one->d_k;
    float query[QUIRE_HEAD_DIM_MAX];

    memset(parts, 0, 2 * (size_t)d * sizeof *parts);
    for (uint32_t h = 0; h < group; h++) {
        memcpy(query, queries + (size_t)h * d, d * sizeof *query);
        if (one->k[0].rotate != 0) {
            quire_hadamard(query, d, one->k[0].rotate);
        }
        for (uint32_t i = 0; i < d; i++) {
            parts[i] += query[i] > 0.0f ? 0.0f : query[i];
            parts[d + i] += query[i] > 0.0f ? query[i] : 0.0f;
        }
    }
}

/* The most that the products of all heads' queries with a key inside the bounds can be together. A
 * bf16 is the upper half of a float: the lower one is 0. */
static float bound_of(const float *parts, const uint16_t *bounds, uint32_t d)
{
    const eight_halves zeros = { 0 };
    four sums[4] = { 0 };

    for (uint32_t i = 0; i < 2 * d; i += 16) { /* d is a multiple of 8 */
        for (uint32_t x = 0; x < 2; x++) {
            const float *part = parts + i + 8 * x;
            const eight_halves b = *(const eight_halves *)(bounds + i + 8 * x);
            const four low = (four)__builtin_shufflevector(zeros, b, 0, 8, 1, 9, 2, 10, 3, 11);
            const four high = (four)__builtin_shufflevector(zeros, b, 4, 12, 5, 13, 6, 14, 7, 15);

            sums[2 * x] += *(const four *)part * low;
            sums[2 * x + 1] += *(const four *)(part + 4) * high;
        }
    }
    sums[0] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    return (sums[0][0] + sums[0][1]) + (sums[0][2] + sums[0][3]);
}

/* ---- the choice ---- */

/* A NaN has no place in an order, and counts as infinite. */
static uint64_t key_of(float bound, uint32_t entry)
{
    const float x = isnan(bound) ? INFINITY : bound + 0.0f; /* zeros are alike */
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    bits = bits >> 31 != 0 ? ~bits : bits | 1u << 31;
    return (uint64_t)bits << 32 | entry;
}

static void rank_pages(quire_page_rank *ranks, uint32_t n, const quire_attn_layer *one,
                       uint32_t group, const float *queries)
{
    const size_t n_lines = quire_page_bounds_bytes(one->d_k) / QUIRE_PREFETCH_LINE;
    float parts[2 * QUIRE_HEAD_DIM_MAX];

    parts_of(one, group, queries, parts);
    for (uint32_t i = 0; i < n; i++) {
        const bool is_needed = i == 0 || i + QUIRE_ATTEND_RECENT >= n;

        if (i + PAGES_AHEAD < n) {
            quire_prefetch_lines(ranks[i + PAGES_AHEAD].bounds, n_lines, QUIRE_PREFETCH_L1);
        }
        ranks[i].key = is_needed ? (uint64_t)UINT32_MAX << 32 | i
                                 : key_of(bound_of(parts, ranks[i].bounds, one->d_k), i);
        ranks[i].sorted = ranks[i].key;
    }
}

/* The n-th greatest key: Hoare's selection. No two are alike. */
static uint64_t select_key(quire_page_rank *ranks, uint32_t n_ranks, uint32_t n)
{
    uint32_t first = 0, last = n_ranks - 1;

    while (first < last) {
        const uint64_t pivot = ranks[first + (last - first) / 2].sorted;
        uint32_t i = first, k = last;

        while (ranks[i].sorted > pivot) {
            i++;
        }
        while (ranks[k].sorted < pivot) {
            k--;
        }
        while (i < k) {
            const uint64_t swapped = ranks[i].sorted;

            ranks[i].sorted = ranks[k].sorted;
            ranks[k].sorted = swapped;
            do {
                i++;
            } while (ranks[i].sorted > pivot);
            do {
                k--;
            } while (ranks[k].sorted < pivot);
        }
        if (n <= k + 1) { /* keys up to k are no less than those behind */
            last = k;
        } else {
            first = k + 1;
        }
    }
    return ranks[n - 1].sorted;
}

void quire_pages_choose(quire_page_rank *ranks, uint32_t n, uint32_t n_read,
                        const quire_attn_layer *one, uint32_t group, const float *queries)
{
    uint64_t least = 0;
    uint32_t n_chosen = 0;

    if (n_read < n) {
        rank_pages(ranks, n, one, group, queries);
        least = select_key(ranks, n, n_read);
    }
    for (uint32_t i = 0; i < n; i++) {
        ranks[n_chosen].entry = i;
        n_chosen += n_read == n || ranks[i].key >= least;
    }
}
