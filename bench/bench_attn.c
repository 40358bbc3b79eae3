/* bench_attn.c - the speed of attention over pages, beside the machine's limits.
 *
 *   bench_attn [--dim 128] [--group 4] [--kv-heads 1] [--tokens 32768] [--rows 1] [--layers 16]
 *              [--page-tokens 64] [--threads 1] [--repeats 16]
 *              [--formats f32,f16,bf16,q8,q8:f16] [--isa avx512,avx2,portable]
 *
 * Each line is one call of quire_attn_run() over the whole table: its time by token and kv head,
 * how many times faster that is than row-major f16 by query head (attn_machine.h), the bytes of its
 * own format per second, and the floor: the time in which this machine reads those bytes with as
 * many threads, measured in the same run. With --rows 96 and so on (prefill) the arithmetic is the
 * limit: the share of the FMA units' rate stands beside it. int16 products of q8 are two per FMA's
 * one.
 *
 * The last columns are the relative difference of the output from row-major f16's and, on the
 * default case, the rating of the speed-up by the targets below. With sealed formats the tiles that
 * the rows read hot are in 8 bits, as in a running cache.
 *
 * A run is one layer, the next one each time: with enough layers none is in a cache, and a run
 * stays shorter than a time slice of a busy machine. Times are the best of the repeats, of which
 * there are at least as many as 0.3 s hold.
 *
 * SPDX-License-Identifier: MIT */
#include "attn_case.h"
#include "attn_tools.h"

#include "base/parse.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST_MAX 16u

typedef struct bench {
    attn_shape shape;
    attn_format formats[LIST_MAX];
    uint32_t n_formats;
    const char *isas[LIST_MAX]; /* NULL = fastest */
    uint32_t n_isas;
    double read_rate; /* bytes per second */
    double fma_rate;
    double row_major_s; /* scaled to the rows of the shape; NaN when there is none */
    float *row_major_out;
    float *out;
} bench;

/* How many times faster than row-major f16 a format has to be (floor) and should be (aim), on the
 * case that this program runs by default. */
static const attn_shape target_shape = { 128, 4, 1, 32768, 1, 16, 64, 1, 16 };
static const struct {
    quire_format format;
    double floor;
    double aim;
} targets[] = {
    { QUIRE_FORMAT_BF16, 2.2, 2.5 },
    { QUIRE_FORMAT_Q8, 3.5, 4.5 },
    { QUIRE_FORMAT_Q4, 8.0, 10.0 },
};

static const struct {
    const char *name;
    size_t offset;
    int64_t max;
} sizes[] = {
    { "dim", offsetof(attn_shape, d), QUIRE_HEAD_DIM_MAX },
    { "group", offsetof(attn_shape, group), 128 },
    { "kv-heads", offsetof(attn_shape, n_kv_head), 256 },
    { "tokens", offsetof(attn_shape, n_tokens), 1 << 24 },
    { "rows", offsetof(attn_shape, n_rows), 4096 },
    { "layers", offsetof(attn_shape, n_layers), 256 },
    { "page-tokens", offsetof(attn_shape, page_tokens), 1024 },
    { "threads", offsetof(attn_shape, n_threads), ATTN_THREADS_MAX },
    { "repeats", offsetof(attn_shape, repeats), 1000 },
};
#define N_SIZES (sizeof(sizes) / sizeof(sizes[0]))

enum {
    OPT_FORMATS = 1000,
    OPT_ISA,
    OPT_HELP
};

static int usage(FILE *stream)
{
    (void)fprintf(stream, "usage: bench_attn");
    for (size_t i = 0; i < N_SIZES; i++) {
        (void)fprintf(stream, " [--%s N]", sizes[i].name);
    }
    (void)fprintf(stream, "\n                  [--formats f16,q8,q8:f16,...] [--isa avx512,avx2,"
                          "portable]\n");
    return stream == stdout ? 0 : 2;
}

/* "q8" or "q8:f16" (K:V). */
static int parse_format(char *text, attn_format *format)
{
    char *colon = strchr(text, ':');

    if (colon != NULL) {
        *colon = '\0';
    }
    if (quire_format_parse(text, &format->k) != QUIRE_OK) {
        return -1;
    }
    return quire_format_parse(colon != NULL ? colon + 1 : text, &format->v) == QUIRE_OK ? 0 : -1;
}

static int parse_list(bench *b, int option, char *list)
{
    char *rest = NULL;
    uint32_t n = 0;

    for (char *word = strtok_r(list, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
        if (n == LIST_MAX || (option == OPT_FORMATS && parse_format(word, &b->formats[n]) != 0)) {
            (void)fprintf(stderr, "bench_attn: unknown format, or too many of them: '%s'\n", word);
            return -1;
        }
        if (option == OPT_ISA) {
            b->isas[n] = word;
        }
        n++;
    }
    *(option == OPT_ISA ? &b->n_isas : &b->n_formats) = n;
    return 0;
}

static int parse_size(bench *b, size_t index, const char *text)
{
    int64_t value = 0;

    if (quire_parse_i64(text, 1, sizes[index].max, &value) != QUIRE_OK) {
        (void)fprintf(stderr, "bench_attn: --%s wants 1 .. %lld, not '%s'\n", sizes[index].name,
                      (long long)sizes[index].max, text);
        return -1;
    }
    *(uint32_t *)(void *)((char *)&b->shape + sizes[index].offset) = (uint32_t)value;
    return 0;
}

/* 0 to go on, else 1 + exit status. */
static int parse_options(bench *b, int argc, char **argv)
{
    struct option options[N_SIZES + 4] = { 0 };
    int c;

    for (size_t i = 0; i < N_SIZES; i++) {
        options[i] = (struct option){ sizes[i].name, required_argument, NULL, (int)i };
    }
    options[N_SIZES] = (struct option){ "formats", required_argument, NULL, OPT_FORMATS };
    options[N_SIZES + 1] = (struct option){ "isa", required_argument, NULL, OPT_ISA };
    options[N_SIZES + 2] = (struct option){ "help", no_argument, NULL, OPT_HELP };
    while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (c == OPT_HELP || c == 'h') {
            return 1 + usage(stdout);
        }
        if (c == '?') {
            return 1 + usage(stderr);
        }
        if ((c < (int)N_SIZES ? parse_size(b, (size_t)c, optarg) : parse_list(b, c, optarg)) != 0) {
            return 3;
        }
    }
    if (b->shape.n_rows > b->shape.n_tokens || b->shape.d % QUIRE_HEAD_DIM_MULTIPLE != 0) {
        (void)fprintf(stderr,
                      "bench_attn: --rows may not exceed --tokens, --dim is a multiple "
                      "of %u\n",
                      QUIRE_HEAD_DIM_MULTIPLE);
        return 3;
    }
    return optind < argc ? 1 + usage(stderr) : 0;
}

/* (query, token) pairs that are seen. */
static double pairs_of(const attn_shape *shape)
{
    double first = (double)shape->n_tokens - shape->n_rows + 1;

    return (first + shape->n_tokens) * shape->n_rows / 2;
}

static double relative_error(const float *x, const float *ref, size_t n)
{
    double error = 0.0;
    double norm = 0.0;

    for (size_t i = 0; i < n; i++) {
        error += ((double)x[i] - ref[i]) * ((double)x[i] - ref[i]);
        norm += (double)ref[i] * ref[i];
    }
    return sqrt(error / norm);
}

static void print_line(const bench *b, const char *name, const char *isa, const attn_timing *timing)
{
    const attn_shape *shape = &b->shape;
    double lanes = (double)shape->n_tokens * shape->n_kv_head;
    double floor_s = timing->kv_bytes / b->read_rate;
    double flops = 4.0 * pairs_of(shape) * shape->group * shape->n_kv_head * shape->d;

    (void)printf("%-14s %-11s %9.2f %8.2f %7.2fx %8.1f %6.0f%% %9.0f %6.0f%%", name, isa,
                 timing->seconds * 1e9 / lanes, floor_s * 1e9 / lanes,
                 b->row_major_s / timing->seconds, timing->kv_bytes / timing->seconds * 1e-9,
                 100.0 * floor_s / timing->seconds, flops / timing->seconds * 1e-9,
                 100.0 * flops / timing->seconds / b->fma_rate);
}

/* "" where no target is set. */
static const char *verdict(const bench *b, attn_format format, double speed_up)
{
    const attn_shape *s = &b->shape;
    const attn_shape *t = &target_shape;

    if (format.k != format.v || s->d != t->d || s->group != t->group ||
        s->n_kv_head != t->n_kv_head || s->n_tokens != t->n_tokens || s->n_rows != t->n_rows ||
        s->n_threads != t->n_threads) {
        return "";
    }
    for (size_t i = 0; i < sizeof(targets) / sizeof(targets[0]); i++) {
        if (targets[i].format == format.k) {
            return speed_up >= targets[i].aim     ? "aim met"
                   : speed_up >= targets[i].floor ? "met"
                                                  : "missed";
        }
    }
    return "";
}

static int run_row_major(bench *b, const attn_machine *machine)
{
    attn_timing timing = { 0 };
    int rc;

    b->row_major_s = NAN;
    if (machine == NULL || b->shape.d % 16 != 0) {
        return QUIRE_OK;
    }
    rc = attn_case_row_major(&b->shape, machine, b->row_major_out, &timing);
    if (rc == QUIRE_OK) {
        timing.seconds *= pairs_of(&b->shape) / b->shape.n_tokens;
        b->row_major_s = timing.seconds;
        print_line(b, "f16 row-major", machine->isa, &timing);
        (void)printf("\n");
    }
    return rc;
}

static int run_format(bench *b, attn_format format, const char *isa)
{
    size_t n_out = (size_t)b->shape.n_rows * b->shape.group * b->shape.n_kv_head * b->shape.d;
    attn_timing timing = { 0 };
    char name[32];
    int rc = attn_case_paged(&b->shape, format, isa, b->out, &timing);

    (void)snprintf(name, sizeof(name), "%s:%s", quire_format_name(format.k),
                   quire_format_name(format.v));
    if (rc != QUIRE_OK) {
        (void)printf("%-14s %-11s %s\n", name, isa != NULL ? isa : "", quire_status_text(rc));
        return rc == QUIRE_UNSUPP ? QUIRE_OK : rc;
    }
    print_line(b, name, isa != NULL ? isa : quire_attn_isa(), &timing);
    if (b->shape.n_rows == 1 && !isnan(b->row_major_s)) {
        (void)printf("  %.1e  %s", relative_error(b->out, b->row_major_out, n_out),
                     verdict(b, format, b->row_major_s / timing.seconds));
    }
    (void)printf("\n");
    return rc;
}

static int run_all(bench *b)
{
    const attn_machine *machine = attn_machine_get();
    const attn_shape *shape = &b->shape;
    int rc;

    b->read_rate = machine != NULL ? attn_read_bandwidth(machine, shape->n_threads) : NAN;
    b->fma_rate = machine != NULL ? attn_fma_peak(machine, shape->n_threads) : NAN;
    (void)printf("head %u, group %u, %u kv heads, %u tokens, %u rows, %u layers, %u threads\n"
                 "this machine: reads %.1f GB/s, multiplies %.0f GFLOP/s (f32)\n\n"
                 "%-14s %-11s %9s %8s %8s %8s %7s %9s %7s  %s\n",
                 shape->d, shape->group, shape->n_kv_head, shape->n_tokens, shape->n_rows,
                 shape->n_layers, shape->n_threads, b->read_rate * 1e-9, b->fma_rate * 1e-9, "K:V",
                 "isa", "ns/tok/kv", "floor", "speed-up", "GB/s", "of read", "GFLOP/s", "FMA",
                 "rel. difference, target");
    rc = run_row_major(b, machine);
    for (uint32_t i = 0; i < b->n_formats && rc == QUIRE_OK; i++) {
        for (uint32_t k = 0; k < b->n_isas && rc == QUIRE_OK; k++) {
            rc = run_format(b, b->formats[i], b->isas[k]);
            (void)fflush(stdout);
        }
    }
    return rc;
}

int main(int argc, char **argv)
{
    bench b = { .shape = target_shape,
                .formats = { { QUIRE_FORMAT_F32, QUIRE_FORMAT_F32 },
                             { QUIRE_FORMAT_F16, QUIRE_FORMAT_F16 },
                             { QUIRE_FORMAT_BF16, QUIRE_FORMAT_BF16 },
                             { QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q8 },
                             { QUIRE_FORMAT_Q6, QUIRE_FORMAT_Q6 },
                             { QUIRE_FORMAT_Q5, QUIRE_FORMAT_Q5 },
                             { QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q4 },
                             { QUIRE_FORMAT_Q3, QUIRE_FORMAT_Q3 } },
                .n_formats = 8,
                .n_isas = 1 };
    int rc = parse_options(&b, argc, argv);
    size_t out_bytes;

    if (rc != 0) {
        return rc - 1;
    }
    out_bytes = sizeof(float) * b.shape.n_rows * b.shape.group * b.shape.n_kv_head * b.shape.d;
    b.out = quire_allocator_default()->alloc(NULL, out_bytes);
    b.row_major_out = quire_allocator_default()->alloc(NULL, out_bytes);
    rc = b.out != NULL && b.row_major_out != NULL ? run_all(&b) : QUIRE_NOMEM;
    if (rc != QUIRE_OK) {
        (void)fprintf(stderr, "bench_attn: %s\n", quire_status_text(rc));
    }
    free(b.out);
    free(b.row_major_out);
    return rc == QUIRE_OK ? 0 : 1;
}
