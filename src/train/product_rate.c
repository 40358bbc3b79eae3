/* product_rate.c - see product_rate.h.
 *
 * SPDX-License-Identifier: MIT */
#include "train/product_rate.h"

#include "base/clock.h"
#include "train/parts.h"

#include <stdlib.h>

#define RATE_SIZE   1024u             /* rows and columns of the matrices */
#define RATE_PITCH  (RATE_SIZE + 16u) /* rows a multiple of 4 KiB apart would share cache sets */
#define RATE_ROUNDS 4u

typedef struct rate_run {
    quire_f32_product_fn *product;
    const float *from;
    float *to; /* [threads][RATE_SIZE][RATE_PITCH] */
} rate_run;

static void rate_part(void *ctx, uint32_t part, uint32_t member)
{
    rate_run *run = ctx;

    (void)part;
    run->product(&(quire_f32_product){
        .m = RATE_SIZE,
        .n = RATE_SIZE,
        .k = RATE_SIZE,
        .a = run->from,
        .lda = RATE_PITCH,
        .b = run->from,
        .ldb = RATE_PITCH,
        .c = run->to + (size_t)member * RATE_SIZE * RATE_PITCH,
        .ldc = RATE_PITCH,
    });
}

double quire_train_product_rate(const quire_f32_compute *c)
{
    size_t size = (size_t)RATE_SIZE * RATE_PITCH;
    rate_run run = { .product = c->product,
                     .to = calloc((c->n_threads + 1) * size, sizeof(float)) };
    double best = 0;

    if (run.to == NULL) {
        return 0;
    }
    run.from = run.to + c->n_threads * size;
    for (uint32_t round = 0; round < RATE_ROUNDS; round++) {
        uint32_t n = 2 * c->n_threads;
        uint64_t start = quire_clock_ns();
        double rate;

        quire_parts_run(c->team, n, rate_part, &run);
        rate = 2.0 * RATE_SIZE * RATE_SIZE * RATE_SIZE * n /
               ((double)(quire_clock_ns() - start) * 1e-9);
        best = rate > best ? rate : best;
    }
    free(run.to);
    return best;
}
