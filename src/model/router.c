/* router.c - see router.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/router.h"

#include "base/check.h"
#include "base/cpu.h"

#include <math.h>
#include <string.h>

/* ---- products ---- */

enum {
    LANES = 16,
    PASS_ROWS = 4 /* rows of x that share a reading of a row of weights */
};

/* The lanes of a sum: element i of a row is added to lane i % LANES. */
typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

/* The sum of the lanes, by halves. */
static float lanes_sum(const float *lane)
{
    float sums[LANES];

    memcpy(sums, lane, sizeof sums);
    for (uint32_t n = LANES / 2; n > 0; n /= 2) {
        for (uint32_t i = 0; i < n; i++) {
            sums[i] += sums[i + n];
        }
    }
    return sums[0];
}

/* One row of weights times n rows of x. Products and sums are rounded one by one, so all
 * instruction sets give the same bits. */
static inline __attribute__((always_inline)) void
dot_rows(const quire_router_product *p, const float *w, uint32_t row, uint32_t n, float *y)
{
    const uint32_t n_whole = p->n_in / LANES * LANES;
    float tail[PASS_ROWS][LANES];
    lanes sums[PASS_ROWS];

    for (uint32_t r = 0; r < n; r++) {
        memset(&sums[r], 0, sizeof sums[r]);
    }
    for (uint32_t i = 0; i < n_whole; i += LANES) {
        const lanes factors = *(const lanes *)(const void *)(w + i);

        for (uint32_t r = 0; r < n; r++) {
            const float *x = p->x + (row + r) * p->x_stride + i;

            sums[r] += factors * *(const lanes *)(const void *)x;
        }
    }
    for (uint32_t r = 0; r < n; r++) {
        const float *x = p->x + (row + r) * p->x_stride;

        memcpy(tail[r], &sums[r], sizeof tail[r]);
        for (uint32_t i = n_whole; i < p->n_in; i++) {
            tail[r][i % LANES] += w[i] * x[i];
        }
        y[(size_t)r * p->n_out] = lanes_sum(tail[r]);
    }
}

static inline __attribute__((always_inline)) void part_multiply(const quire_router_product *p,
                                                                const quire_router_part *part)
{
    for (uint32_t row = part->first; row < part->last;) {
        const uint32_t n = part->last - row < PASS_ROWS ? 1 : PASS_ROWS;

        for (uint32_t out = part->begin; out < part->end; out++) {
            const float *w = p->w + (size_t)out * p->n_in;
            float *y = p->y + (size_t)row * p->n_out + out;

            if (n == PASS_ROWS) {
                dot_rows(p, w, row, PASS_ROWS, y);
            } else {
                dot_rows(p, w, row, 1, y);
            }
            for (uint32_t r = 0; p->bias != NULL && r < n; r++) {
                y[(size_t)r * p->n_out] += p->bias[out];
            }
        }
        row += n;
    }
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static void multiply_avx512(const quire_router_product *p,
                                                               const quire_router_part *part)
{
    part_multiply(p, part);
}

__attribute__((target("avx2"))) static void multiply_avx2(const quire_router_product *p,
                                                          const quire_router_part *part)
{
    part_multiply(p, part);
}
#endif

void quire_router_multiply(const quire_router_product *product, const quire_router_part *part)
{
#if defined(__x86_64__)
    if (quire_cpu_get()->has_avx512) {
        multiply_avx512(product, part);
        return;
    }
    if (quire_cpu_get()->has_avx2) {
        multiply_avx2(product, part);
        return;
    }
#endif
    part_multiply(product, part);
}

/* ---- the choice ---- */

/* exp(x - max) / sum, in place. */
static void softmax(float *x, uint32_t n)
{
    float max = -INFINITY;
    double sum = 0.0;

    for (uint32_t i = 0; i < n; i++) {
        max = x[i] > max ? x[i] : max;
    }
    for (uint32_t i = 0; i < n; i++) {
        x[i] = expf(x[i] - max);
        sum += (double)x[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        x[i] = (float)((double)x[i] / sum);
    }
}

static void gate(quire_gating gating, float *probs, uint32_t n)
{
    if (gating == QUIRE_GATING_SOFTMAX) {
        softmax(probs, n);
    } else if (gating == QUIRE_GATING_SIGMOID) {
        for (uint32_t i = 0; i < n; i++) {
            probs[i] = 1.0f / (1.0f + expf(-probs[i]));
        }
    }
}

/* Take the indices of the n_top largest values, descending; values may be changed. */
static void top(float *values, uint32_t n, uint32_t n_top, int32_t *out)
{
    bool is_taken[QUIRE_EXPERTS_MAX] = { false };

    for (uint32_t k = 0; k < n_top; k++) {
        uint32_t best = n;

        for (uint32_t i = 0; i < n; i++) {
            if (!is_taken[i] && (best == n || values[i] > values[best])) {
                best = i;
            }
        }
        QUIRE_CHECK(best < n);
        is_taken[best] = true;
        out[k] = (int32_t)best;
    }
}

/* The sum of a group's two largest values, or its only one. */
static float group_score(const float *values, uint32_t n)
{
    float first = -INFINITY, second = -INFINITY;

    for (uint32_t i = 0; i < n; i++) {
        if (values[i] > first) {
            second = first;
            first = values[i];
        } else if (values[i] > second) {
            second = values[i];
        }
    }
    return n > 1 ? first + second : first;
}

/* Take experts of the other groups out of the running. */
static void groups_mask(const quire_router *r, float *scores)
{
    const uint32_t n_of_group = r->n_experts / r->n_groups;
    float sums[QUIRE_EXPERT_GROUPS_MAX];
    int32_t used[QUIRE_EXPERT_GROUPS_MAX];
    bool is_used[QUIRE_EXPERT_GROUPS_MAX] = { false };

    for (uint32_t g = 0; g < r->n_groups; g++) {
        sums[g] = group_score(scores + (size_t)g * n_of_group, n_of_group);
    }
    top(sums, r->n_groups, r->n_groups_used, used);
    for (uint32_t i = 0; i < r->n_groups_used; i++) {
        is_used[used[i]] = true;
    }
    for (uint32_t e = 0; e < r->n_experts; e++) {
        scores[e] = is_used[e / n_of_group] ? scores[e] : -INFINITY;
    }
}

/* Finish the weights of the chosen. */
static void weigh(const quire_router *r, float *weights)
{
    float sum = 0.0f;

    if (r->gating == QUIRE_GATING_CHOSEN) {
        softmax(weights, r->n_used);
    }
    for (uint32_t k = 0; k < r->n_used; k++) {
        sum += weights[k];
    }
    sum = sum > QUIRE_ROUTER_SUM_MIN ? sum : QUIRE_ROUTER_SUM_MIN;
    for (uint32_t k = 0; k < r->n_used; k++) {
        weights[k] = (r->is_normalised ? weights[k] / sum : weights[k]) * r->scale;
    }
}

void quire_router_choose(const quire_router *router, const float *logits, const float *choice_bias,
                         int32_t *choices, float *weights)
{
    const uint32_t n = router->n_experts;
    float probs[QUIRE_EXPERTS_MAX], scores[QUIRE_EXPERTS_MAX];

    QUIRE_ASSERT(n <= QUIRE_EXPERTS_MAX && router->n_used <= n);
    memcpy(probs, logits, n * sizeof *probs);
    gate(router->gating, probs, n);
    for (uint32_t e = 0; e < n; e++) {
        const float of = router->chooses_by_logits ? logits[e] : probs[e];
        const float score = choice_bias != NULL ? of + choice_bias[e] : of;

        scores[e] = score == score ? score : -INFINITY;
    }
    if (router->n_groups > 1) {
        groups_mask(router, scores);
    }
    top(scores, n, router->n_used, choices);
    for (uint32_t k = 0; k < router->n_used; k++) {
        weights[k] = probs[choices[k]];
    }
    weigh(router, weights);
}
