/* bench_sgemm.c - the rate of products of float matrices on this machine: the trainer's, ggml's and
 * OpenBLAS's, as denominators of the trainer's speed (scripts/train/product-share.mjs).
 *
 *   bench_sgemm [--size 1024] [--threads 1] [--rounds 8]
 *
 * Prints one JSON object: GFLOP/s of the best of the rounds, for square matrices. "openblas" is
 * null where the machine has no libopenblas.so.0; the library is opened when the program runs.
 *
 * SPDX-License-Identifier: MIT */
#include "matmul_ggml.h"

#include "base/clock.h"
#include "base/parse.h"
#include "base/rng.h"
#include "quire/error.h"
#include "train/ops.h"
#include "train/product_bf16.h"
#include "train/product_rate.h"

#include <dlfcn.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#define SIZE_MIN    64
#define SIZE_MOST   8192
#define THREADS_MAX 64
#define ROUNDS_MAX  1000
#define GIGA        1e-9

typedef struct bench {
    int64_t size, n_threads, rounds;
    float *a, *b, *c; /* [size][size] */
} bench;

static double gflops(const bench *b, uint64_t ns)
{
    double size = (double)b->size;

    return 2 * size * size * size / (double)ns; /* operations per ns */
}

/* ---- the trainer's ---- */

static double trainer_rate(const bench *b, quire_f32_product_fn *product)
{
    quire_f32_compute compute;
    double rate;

    if (quire_f32_compute_init(&compute, (uint32_t)b->n_threads, 1, 1, NULL) < 0) {
        return 0;
    }
    compute.product = product != NULL ? product : compute.product;
    rate = quire_train_product_rate(&compute) * GIGA;
    quire_f32_compute_fini(&compute);
    return rate;
}

/* ---- ggml's ---- */

static double ggml_rate(const bench *b)
{
    const matmul_ggml_opts opts = { .type = GGML_TYPE_F32,
                                    .n_in = (uint32_t)b->size,
                                    .n_out = (uint32_t)b->size,
                                    .n_matrices = 1,
                                    .n_sets = 1,
                                    .n_threads = (uint32_t)b->n_threads };
    const matmul_ggml_case run = { b->a, b->c, (uint32_t)b->size, 0, 1 };
    matmul_ggml *m = matmul_ggml_new(&opts, b->b);
    double best = 0;

    for (int64_t i = 0; m != NULL && i < b->rounds; i++) {
        uint64_t start = quire_clock_ns();
        double rate;

        matmul_ggml_run(m, &run);
        rate = gflops(b, quire_clock_ns() - start);
        best = rate > best ? rate : best;
    }
    matmul_ggml_free(m);
    return best;
}

/* ---- OpenBLAS's ---- */

enum {
    ROW_MAJOR = 101,
    AS_IS = 111,
    TRANSPOSED = 112
}; /* the numbers of CBLAS */

typedef void sgemm_fn(int order, int transposed_a, int transposed_b, int m, int n, int k,
                      float alpha, const float *a, int lda, const float *b, int ldb, float beta,
                      float *c, int ldc);
typedef void threads_fn(int n);

/* 0: the machine has none. */
static double openblas_rate(const bench *b)
{
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    int n = (int)b->size;
    double best = 0;
    union {
        void *address;
        sgemm_fn *sgemm;
        threads_fn *set_threads;
    } sgemm, set_threads;

    if (library == NULL) {
        return 0;
    }
    sgemm.address = dlsym(library, "cblas_sgemm");
    set_threads.address = dlsym(library, "openblas_set_num_threads");
    if (sgemm.address != NULL && set_threads.address != NULL) {
        set_threads.set_threads((int)b->n_threads);
        for (int64_t i = 0; i < b->rounds; i++) {
            uint64_t start = quire_clock_ns();
            double rate;

            sgemm.sgemm(ROW_MAJOR, AS_IS, TRANSPOSED, n, n, n, 1, b->a, n, b->b, n, 0, b->c, n);
            rate = gflops(b, quire_clock_ns() - start);
            best = rate > best ? rate : best;
        }
    }
    return best; /* the library's threads may still run, so it stays open */
}

/* ---- the program ---- */

static int usage(FILE *to)
{
    (void)fprintf(to, "bench_sgemm [--size N] [--threads N] [--rounds N]\n");
    return to == stdout ? 0 : 2;
}

static int parse(int argc, char **argv, bench *b)
{
    static const struct option options[] = { { "size", required_argument, NULL, 's' },
                                             { "threads", required_argument, NULL, 't' },
                                             { "rounds", required_argument, NULL, 'r' },
                                             { "help", no_argument, NULL, 'h' },
                                             { NULL, 0, NULL, 0 } };
    int c;

    while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        int rc = c == 's'   ? quire_parse_i64(optarg, SIZE_MIN, SIZE_MOST, &b->size)
                 : c == 't' ? quire_parse_i64(optarg, 1, THREADS_MAX, &b->n_threads)
                 : c == 'r' ? quire_parse_i64(optarg, 1, ROUNDS_MAX, &b->rounds)
                            : QUIRE_INVAL;

        if (rc != QUIRE_OK) {
            return 1 + usage(c == 'h' ? stdout : stderr);
        }
    }
    return optind < argc ? 1 + usage(stderr) : 0;
}

static float *matrix(const bench *b)
{
    size_t n = (size_t)b->size * (size_t)b->size;
    float *values = malloc(n * sizeof(*values));
    quire_rng rng = { 1 };

    for (size_t i = 0; values != NULL && i < n; i++) {
        values[i] = (float)(quire_rng_unit(&rng) - 0.5);
    }
    return values;
}

int main(int argc, char **argv)
{
    bench b = { .size = 1024, .n_threads = 1, .rounds = 8 };
    int asked = parse(argc, argv, &b);
    double openblas;

    if (asked > 0) {
        return asked - 1;
    }
    b.a = matrix(&b);
    b.b = matrix(&b);
    b.c = matrix(&b);
    if (b.a == NULL || b.b == NULL || b.c == NULL) {
        (void)fprintf(stderr, "bench_sgemm: out of memory\n");
        return 1;
    }
    printf("{\"size\": %lld, \"threads\": %lld, \"trainer_f32\": %.1f, \"trainer_bf16\": %.1f, ",
           (long long)b.size, (long long)b.n_threads, trainer_rate(&b, NULL),
           trainer_rate(&b, quire_bf16_product_best()));
    printf("\"ggml\": %.1f, ", ggml_rate(&b));
    openblas = openblas_rate(&b);
    if (openblas > 0) {
        printf("\"openblas\": %.1f}\n", openblas);
    } else {
        printf("\"openblas\": null}\n");
    }
    free(b.a);
    free(b.b);
    free(b.c);
    return 0;
}
