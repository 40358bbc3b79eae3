/* bench_matmul.c - the speed of products with block-quantised weights, beside ggml's and beside the
 * machine's limits.
 *
 *   bench_matmul [--shapes 576x1536,2048x8192,4096x11008] [--types q8_0,q4_0,q4_K,...]
 *                [--rows 1,2,4,8,12,16,64,512] [--threads 1] [--repeats 5]
 *
 * A shape is inputs x outputs. A run multiplies as many matrices of a shape as make 16 MiB of
 * weights (fewer of many rows), x packed (ggml: rounded) anew for each; the next run takes other
 * matrices, 256 MiB in all, so that weights come from memory as in a step of a model. Times are the
 * best of the repeats, ours and ggml's measured in turn.
 *
 * Beside the rates stand the shares of this machine's memory rate and of its rate of integer dot
 * products, both measured in the same run with as many threads. "x" is how many times as fast ours
 * is as ggml's, "*" that ggml repacked the weights.
 *
 * SPDX-License-Identifier: MIT */
#include "attn_tools.h"
#include "matmul_ggml.h"
#include "matmul_machine.h"

#include "base/parse.h"
#include "base/rng.h"
#include "matmul/matmul.h"
#include "quire/error.h"

#include <getopt.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST_MAX    32u
#define SET_BYTES   ((size_t)16 << 20)
#define TOTAL_BYTES ((size_t)256 << 20)
#define ROUNDS      2   /* of measuring both */
#define MACS_MAX    1e9 /* of a run, beyond its first matrix: it should fit a time slice */
#define SOME_ROWS   32u /* of weights that are made; the others are copies */

typedef struct shape {
    uint32_t n_in, n_out;
} shape;

static const struct {
    const char *name;
    quire_matmul_type ours;
    enum ggml_type ggml;
} types[] = {
    { "q8_0", QUIRE_MATMUL_Q8_0, GGML_TYPE_Q8_0 },
    { "q4_0", QUIRE_MATMUL_Q4_0, GGML_TYPE_Q4_0 },
    { "q4_1", QUIRE_MATMUL_Q4_1, GGML_TYPE_Q4_1 },
    { "q5_0", QUIRE_MATMUL_Q5_0, GGML_TYPE_Q5_0 },
    { "q5_1", QUIRE_MATMUL_Q5_1, GGML_TYPE_Q5_1 },
    { "iq4_nl", QUIRE_MATMUL_IQ4_NL, GGML_TYPE_IQ4_NL },
    { "q4_K", QUIRE_MATMUL_Q4_K, GGML_TYPE_Q4_K },
    { "q5_K", QUIRE_MATMUL_Q5_K, GGML_TYPE_Q5_K },
    { "q6_K", QUIRE_MATMUL_Q6_K, GGML_TYPE_Q6_K },
    { "mxfp4", QUIRE_MATMUL_MXFP4, GGML_TYPE_MXFP4 },
    { "q2_K", QUIRE_MATMUL_Q2_K, GGML_TYPE_Q2_K },
    { "q3_K", QUIRE_MATMUL_Q3_K, GGML_TYPE_Q3_K },
    { "iq4_xs", QUIRE_MATMUL_IQ4_XS, GGML_TYPE_IQ4_XS },
    { "iq2_xxs", QUIRE_MATMUL_IQ2_XXS, GGML_TYPE_IQ2_XXS },
    { "iq2_xs", QUIRE_MATMUL_IQ2_XS, GGML_TYPE_IQ2_XS },
    { "iq2_s", QUIRE_MATMUL_IQ2_S, GGML_TYPE_IQ2_S },
    { "iq3_xxs", QUIRE_MATMUL_IQ3_XXS, GGML_TYPE_IQ3_XXS },
    { "iq3_s", QUIRE_MATMUL_IQ3_S, GGML_TYPE_IQ3_S },
    { "iq1_s", QUIRE_MATMUL_IQ1_S, GGML_TYPE_IQ1_S },
    { "iq1_m", QUIRE_MATMUL_IQ1_M, GGML_TYPE_IQ1_M },
};
#define TYPES (sizeof types / sizeof types[0])

typedef struct bench {
    shape shapes[LIST_MAX];
    size_t types[LIST_MAX]; /* of the table above */
    uint32_t rows[LIST_MAX];
    uint32_t n_shapes, n_types, n_rows;
    int64_t n_threads, repeats;
    const quire_matmul_kernels *kernels;
    double read_rate; /* bytes per second */
    double dot_rate;  /* multiply-adds per second */
} bench;

/* A shape and a type with all its weights. */
typedef struct matrices {
    const bench *bench;
    size_t type;
    shape shape;
    uint32_t n, n_sets; /* matrices of a set, sets */
    uint32_t n_run;     /* matrices of a set that are multiplied */
    size_t bytes;       /* of one */
    unsigned char *gguf;
    unsigned char *panels;
    matmul_ggml *ggml;
    float *x, *y;
    void *packed;
    uint32_t n_rows, set;
    pthread_barrier_t packed_barrier;
} matrices;

/* ---- options ---- */

static int usage(FILE *stream)
{
    (void)fprintf(stream, "usage: bench_matmul [--shapes 2048x8192,...] [--types q8_0,q4_K,...] "
                          "[--rows 1,8,...]\n"
                          "                    [--threads N] [--repeats N]\n");
    return stream == stdout ? 0 : 2;
}

static bool word_parse(bench *b, int option, char *word)
{
    int64_t in = 0, out = 0;
    char *times = strchr(word, 'x');

    if (option == 'r') {
        if (b->n_rows == LIST_MAX || quire_parse_i64(word, 1, 4096, &in) != QUIRE_OK) {
            return false;
        }
        b->rows[b->n_rows++] = (uint32_t)in;
        return true;
    }
    if (option == 's') {
        if (times == NULL || b->n_shapes == LIST_MAX) {
            return false;
        }
        *times = '\0';
        if (quire_parse_i64(word, 32, 1 << 20, &in) != QUIRE_OK ||
            quire_parse_i64(times + 1, 32, 1 << 20, &out) != QUIRE_OK) {
            return false;
        }
        b->shapes[b->n_shapes++] = (shape){ (uint32_t)in, (uint32_t)out };
        return true;
    }
    for (size_t i = 0; i < TYPES && b->n_types < LIST_MAX; i++) {
        if (strcmp(types[i].name, word) == 0) {
            b->types[b->n_types++] = i;
            return true;
        }
    }
    return false;
}

static bool list_parse(bench *b, int option, char *list)
{
    char *rest = NULL;

    for (char *word = strtok_r(list, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
        if (!word_parse(b, option, word)) {
            (void)fprintf(stderr, "bench_matmul: not known, or too many: '%s'\n", word);
            return false;
        }
    }
    return true;
}

/* 0 to go on, else 1 + exit status. */
static int options_parse(bench *b, int argc, char **argv)
{
    static const struct option options[] = {
        { "shapes", required_argument, NULL, 's' },
        { "types", required_argument, NULL, 't' },
        { "rows", required_argument, NULL, 'r' },
        { "threads", required_argument, NULL, 'n' },
        { "repeats", required_argument, NULL, 'k' },
        { "help", no_argument, NULL, 'h' },
        { NULL, 0, NULL, 0 },
    };
    char shapes[] = "576x1536,2048x8192,4096x11008", rows[] = "1,2,4,8,12,16,64,512";
    int c;

    while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (c == 'h' || c == '?') {
            return 1 + usage(c == 'h' ? stdout : stderr);
        }
        if (c == 'n' || c == 'k') {
            if (quire_parse_i64(optarg, 1, c == 'n' ? ATTN_THREADS_MAX : 1000,
                                c == 'n' ? &b->n_threads : &b->repeats) != QUIRE_OK) {
                return 1 + usage(stderr);
            }
        } else if (!list_parse(b, c, optarg)) {
            return 3;
        }
    }
    if (b->n_shapes == 0) {
        (void)list_parse(b, 's', shapes);
    }
    if (b->n_rows == 0) {
        (void)list_parse(b, 'r', rows);
    }
    for (size_t i = 0; b->n_types < TYPES && i < TYPES && (i > 0 || b->n_types == 0); i++) {
        b->types[b->n_types++] = i;
    }
    return optind < argc ? 1 + usage(stderr) : 0;
}

/* ---- weights ---- */

/* One matrix in GGUF's blocks: a few rows of random weights, again and again. */
static bool gguf_fill(matrices *m)
{
    const size_t row_bytes = ggml_row_size(types[m->type].ggml, m->shape.n_in);
    float *values = malloc((size_t)SOME_ROWS * m->shape.n_in * sizeof *values);
    float *importance = malloc(m->shape.n_in * sizeof *importance); /* some types need it */
    quire_rng rng = { 1 };

    m->gguf = malloc(m->shape.n_out * row_bytes);
    if (values == NULL || importance == NULL || m->gguf == NULL) {
        free(values);
        free(importance);
        return false;
    }
    for (size_t i = 0; i < (size_t)SOME_ROWS * m->shape.n_in; i++) {
        values[i] = (float)quire_rng_normal(&rng);
    }
    for (uint32_t i = 0; i < m->shape.n_in; i++) {
        importance[i] = 1.0f;
    }
    (void)ggml_quantize_chunk(types[m->type].ggml, values, m->gguf, 0, SOME_ROWS, m->shape.n_in,
                              importance);
    for (uint32_t row = SOME_ROWS; row < m->shape.n_out; row++) {
        memcpy(m->gguf + row * row_bytes, m->gguf + row % SOME_ROWS * row_bytes, row_bytes);
    }
    free(values);
    free(importance);
    return true;
}

static quire_matmul_weight weight_of(const matrices *m, uint32_t i)
{
    return (quire_matmul_weight){ .kernels = m->bench->kernels,
                                  .type = types[m->type].ours,
                                  .n_in = m->shape.n_in,
                                  .n_out = m->shape.n_out,
                                  .panels = m->panels + i * m->bytes };
}

static bool matrices_init(matrices *m, uint32_t n_rows_max)
{
    const matmul_ggml_opts opts = { .type = types[m->type].ggml,
                                    .n_in = m->shape.n_in,
                                    .n_out = m->shape.n_out,
                                    .n_matrices = m->n,
                                    .n_sets = m->n_sets,
                                    .n_threads = (uint32_t)m->bench->n_threads };
    const size_t n_x = (size_t)n_rows_max * m->shape.n_in;
    quire_rng rng = { 1 };

    m->panels = attn_map(m->bytes * m->n * m->n_sets);
    m->packed = attn_map(quire_matmul_x_bytes(m->shape.n_in, n_rows_max));
    m->x = attn_map(n_x * sizeof *m->x);
    m->y = attn_map((size_t)n_rows_max * m->shape.n_out * sizeof *m->y);
    if (!gguf_fill(m) || m->panels == NULL || m->packed == NULL || m->x == NULL || m->y == NULL) {
        return false;
    }
    for (size_t i = 0; i < n_x; i++) {
        m->x[i] = (float)quire_rng_normal(&rng);
    }
    for (uint32_t i = 0; i < m->n * m->n_sets; i++) {
        const quire_matmul_weight weight = weight_of(m, i);

        quire_matmul_weight_pack(&weight, m->gguf);
    }
    m->ggml = matmul_ggml_new(&opts, m->gguf);
    return m->ggml != NULL;
}

static void matrices_free(matrices *m, uint32_t n_rows_max)
{
    matmul_ggml_free(m->ggml);
    free(m->gguf);
    attn_unmap(m->panels, m->bytes * m->n * m->n_sets);
    attn_unmap(m->packed, quire_matmul_x_bytes(m->shape.n_in, n_rows_max));
    attn_unmap(m->x, (size_t)n_rows_max * m->shape.n_in * sizeof *m->x);
    attn_unmap(m->y, (size_t)n_rows_max * m->shape.n_out * sizeof *m->y);
}

/* ---- measuring ---- */

static void set_next(void *ctx)
{
    matrices *m = ctx;

    m->set = (m->set + 1) % m->n_sets;
}

static void ours_run(void *ctx, uint32_t thread, uint32_t n_threads)
{
    matrices *m = ctx;
    const quire_matmul_x x = { m->x, m->shape.n_in, m->shape.n_in, m->n_rows };
    const quire_matmul_y y = { m->y, m->shape.n_out, m->n_rows };

    for (uint32_t i = 0; i < m->n_run; i++) {
        quire_matmul_x_pack(m->bench->kernels, &x, m->packed, thread, n_threads);
    }
    (void)pthread_barrier_wait(&m->packed_barrier);
    for (uint32_t i = 0; i < m->n_run; i++) {
        const quire_matmul_weight weight = weight_of(m, m->set * m->n + i);

        quire_matmul_run(&weight, m->packed, &y, thread, n_threads);
    }
}

static void ggml_run(void *ctx, uint32_t thread, uint32_t n_threads)
{
    matrices *m = ctx;

    (void)thread;
    (void)n_threads;
    matmul_ggml_run(m->ggml, &(matmul_ggml_case){ m->x, m->y, m->n_rows, m->set, m->n_run });
}

static void line_measure(matrices *m, uint32_t n_rows)
{
    const uint32_t n_threads = (uint32_t)m->bench->n_threads;
    const uint32_t repeats = (uint32_t)m->bench->repeats;
    const attn_job ours = { set_next, ours_run, m, n_threads, repeats };
    const attn_job ggml = { set_next, ggml_run, m, 1, repeats };
    const double one = (double)m->shape.n_in * m->shape.n_out * n_rows;
    double macs, ours_s = INFINITY, ggml_s = INFINITY, rate;

    m->n_run = (uint32_t)fmin(fmax(MACS_MAX / one, 1.0), m->n);
    macs = one * m->n_run;
    m->n_rows = n_rows;
    for (int i = 0; i < ROUNDS; i++) {
        ours_s = fmin(ours_s, attn_job_measure(&ours));
        ggml_s = fmin(ggml_s, attn_job_measure(&ggml));
    }
    rate = (double)m->bytes * m->n_run / ours_s;
    (void)printf("%5ux%-6u %-6s %5u %9.1f %8.1f %5.0f%% %6.0f%% %10.1f%s %7.2f\n", m->shape.n_in,
                 m->shape.n_out, types[m->type].name, n_rows, macs / ours_s * 1e-9, rate * 1e-9,
                 100.0 * rate / m->bench->read_rate, 100.0 * macs / ours_s / m->bench->dot_rate,
                 macs / ggml_s * 1e-9, matmul_ggml_is_repacked(m->ggml) ? "*" : " ",
                 ggml_s / ours_s);
    (void)fflush(stdout);
}

static bool type_measure(const bench *b, shape s, size_t type)
{
    const bool is_taken = quire_matmul_takes(types[type].ours, s.n_in, s.n_out);
    const size_t bytes =
        is_taken ? quire_matmul_weight_bytes(types[type].ours, s.n_in, s.n_out) : SET_BYTES;
    const uint32_t n = (uint32_t)((SET_BYTES + bytes - 1) / bytes);
    matrices m = { .bench = b,
                   .type = type,
                   .shape = s,
                   .n = n,
                   .n_sets = (uint32_t)((TOTAL_BYTES + n * bytes - 1) / (n * bytes)),
                   .bytes = bytes };
    uint32_t n_rows_max = 0;
    bool is_ready;

    if (!is_taken) {
        return true;
    }
    for (uint32_t i = 0; i < b->n_rows; i++) {
        n_rows_max = b->rows[i] > n_rows_max ? b->rows[i] : n_rows_max;
    }
    if (pthread_barrier_init(&m.packed_barrier, NULL, (unsigned)b->n_threads) != 0) {
        return false;
    }
    is_ready = matrices_init(&m, n_rows_max);
    for (uint32_t i = 0; i < b->n_rows && is_ready; i++) {
        line_measure(&m, b->rows[i]);
    }
    matrices_free(&m, n_rows_max);
    (void)pthread_barrier_destroy(&m.packed_barrier);
    return is_ready;
}

static void dots_run(void *ctx, uint32_t thread, uint32_t n_threads)
{
    uint32_t *dots = ctx;
    const uint32_t n = matmul_machine_dots(100000);

    (void)n_threads;
    if (thread == 0) {
        *dots = n;
    }
}

static void limits_measure(bench *b)
{
    uint32_t dots = 0;
    const attn_job job = { NULL, dots_run, &dots, (uint32_t)b->n_threads, 7 };
    const double seconds = attn_job_measure(&job);

    b->read_rate = attn_read_bandwidth(attn_machine_get(), (uint32_t)b->n_threads);
    b->dot_rate = 1e5 * dots * (double)b->n_threads / seconds;
    (void)printf("%d threads; this machine: reads %.1f GB/s, %.0f GMAC/s of 8 bits\n\n"
                 "%5s %-6s %-6s %5s %9s %8s %6s %7s %11s %7s\n",
                 (int)b->n_threads, b->read_rate * 1e-9, b->dot_rate * 1e-9, "in", "x out", "type",
                 "rows", "GMAC/s", "GB/s", "read", "dots", "ggml", "x");
}

int main(int argc, char **argv)
{
    bench b = { .n_threads = 1, .repeats = 5, .kernels = quire_matmul_kernels_find(NULL) };
    const int rc = options_parse(&b, argc, argv);

    if (rc != 0) {
        return rc - 1;
    }
    if (b.kernels == NULL) {
        (void)printf("no kernels of the matrix products for this CPU\n");
        return 0;
    }
    limits_measure(&b);
    for (uint32_t i = 0; i < b.n_shapes; i++) {
        for (uint32_t k = 0; k < b.n_types; k++) {
            if (!type_measure(&b, b.shapes[i], b.types[k])) {
                (void)fprintf(stderr, "bench_matmul: no memory\n");
                return 1;
            }
        }
    }
    return 0;
}
