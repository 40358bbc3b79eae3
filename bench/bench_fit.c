/* bench_fit.c - how many requests fit in a budget of KV memory at once: in pages, and in one
 * buffer of the longest length for each.
 *
 *   bench_fit -m MODEL --lengths FILE [--kv q8] [--ctx 8192] [--budget 2e9]
 *
 * FILE has one length in tokens per line, used in order and again from the start. Nothing is worked
 * out: sequences of a model's runtime are opened and filled with KV, payload and all, until it
 * refuses one. Prints one line of JSON: sequences and their tokens, of both.
 *
 * SPDX-License-Identifier: MIT */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/parse.h"
#include "model/model.h"
#include "model/runtime.h"

enum {
    LENGTHS_MAX = 100000,
    SEQS_MAX = 16384
};

typedef struct fit_args {
    const char *model;
    const char *lengths;
    quire_format kv;
    int64_t ctx;
    double budget_bytes;
} fit_args;

typedef struct fit_result {
    uint32_t n_seqs;
    uint64_t n_tokens;
    uint64_t extent_bytes;
} fit_result;

static int usage(void)
{
    (void)fprintf(stderr, "usage: bench_fit -m MODEL --lengths FILE [--kv f16|bf16|f32|q8] "
                          "[--ctx TOKENS] [--budget BYTES]\n");
    return 2;
}

/* Whether all arguments could be read. */
static bool args_read(fit_args *args, int argc, char **argv)
{
    static const struct option options[] = {
        { "lengths", required_argument, NULL, 'l' },
        { "kv", required_argument, NULL, 'k' },
        { "ctx", required_argument, NULL, 'c' },
        { "budget", required_argument, NULL, 'b' },
        { NULL, 0, NULL, 0 },
    };
    int option;
    int rc = QUIRE_OK;

    while (rc == QUIRE_OK && (option = getopt_long(argc, argv, "m:", options, NULL)) != -1) {
        switch (option) {
        case 'm':
            args->model = optarg;
            break;
        case 'l':
            args->lengths = optarg;
            break;
        case 'k':
            rc = quire_format_parse(optarg, &args->kv);
            break;
        case 'c':
            rc = quire_parse_i64(optarg, 1, 1 << 24, &args->ctx);
            break;
        case 'b':
            rc = quire_parse_f64(optarg, 1, 1e15, &args->budget_bytes);
            break;
        default:
            return false;
        }
    }
    return rc == QUIRE_OK && args->model != NULL && args->lengths != NULL && optind == argc;
}

/* Lengths of a file, at most ctx each; 0 when there is none or a line is no number. */
static uint32_t lengths_read(const char *path, int64_t ctx, uint32_t *out)
{
    FILE *file = fopen(path, "r");
    char line[32];
    uint32_t n = 0;

    if (file == NULL) {
        return 0;
    }
    while (n < LENGTHS_MAX && fgets(line, sizeof(line), file) != NULL) {
        int64_t length;

        line[strcspn(line, "\n")] = '\0';
        if (quire_parse_i64(line, 1, ctx, &length) != QUIRE_OK) {
            n = 0;
            break;
        }
        out[n++] = (uint32_t)length;
    }
    (void)fclose(file);
    return n;
}

/* Open and fill sequences until one is refused for want of pages. */
static int fit(quire_runtime *runtime, const uint32_t *lengths, uint32_t n_lengths, fit_result *out)
{
    quire_cache *cache = quire_runtime_cache(runtime);
    quire_cache_stats stats;
    int rc = QUIRE_OK;

    *out = (fit_result){ 0 };
    while (out->n_seqs < SEQS_MAX) {
        const uint32_t n_tokens = lengths[out->n_seqs % n_lengths];
        quire_seq_id seq;

        rc = quire_seq_open(cache, QUIRE_REGION_DYNAMIC, &seq);
        if (rc == QUIRE_OK) {
            rc = quire_runtime_fill(runtime, seq, n_tokens, 1);
        }
        if (rc != QUIRE_OK) {
            break;
        }
        out->n_seqs++;
        out->n_tokens += n_tokens;
    }
    quire_cache_stats_get(cache, &stats);
    out->extent_bytes = stats.extent_bytes;
    return rc == QUIRE_NOPAGES ? QUIRE_OK : rc == QUIRE_OK ? QUIRE_LIMIT : rc;
}

static int measure(const quire_model *model, const fit_args *args, bool is_contiguous,
                   fit_result *out)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;
    quire_runtime *runtime = NULL;
    uint32_t *lengths = calloc(LENGTHS_MAX, sizeof(*lengths));
    uint32_t n_lengths = 0;
    int rc = QUIRE_NOMEM;

    if (lengths == NULL) {
        goto out;
    }
    n_lengths = lengths_read(args->lengths, args->ctx, lengths);
    if (n_lengths == 0) {
        rc = quire_error_set(&err, QUIRE_INVAL, "%s: no lengths of 1 to %lld tokens", args->lengths,
                             (long long)args->ctx);
        goto out;
    }
    opts.n_ctx = (uint32_t)args->ctx;
    opts.n_seqs_max = SEQS_MAX;
    opts.k_format = args->kv;
    opts.v_format = args->kv;
    opts.kv_budget_bytes = (uint64_t)args->budget_bytes;
    opts.is_contiguous = is_contiguous;
    rc = quire_runtime_create(&runtime, model, &opts, &err);
    if (rc == QUIRE_OK) {
        rc = fit(runtime, lengths, n_lengths, out);
    }
out:
    if (rc != QUIRE_OK) {
        (void)fprintf(stderr, "bench_fit: %s\n",
                      err.message[0] != '\0' ? err.message : quire_status_text(rc));
    }
    quire_runtime_destroy(runtime);
    free(lengths);
    return rc;
}

int main(int argc, char **argv)
{
    fit_args args = { .kv = QUIRE_FORMAT_Q8, .ctx = 8192, .budget_bytes = 2e9 };
    quire_error err = QUIRE_ERROR_INIT;
    quire_model *model = NULL;
    fit_result paged;
    fit_result contiguous;
    int rc;

    if (!args_read(&args, argc, argv)) {
        return usage();
    }
    rc = quire_model_open(&model, args.model, NULL, &err);
    if (rc != QUIRE_OK) {
        (void)fprintf(stderr, "bench_fit: %s\n", err.message);
        return 1;
    }
    rc = measure(model, &args, false, &paged);
    if (rc == QUIRE_OK) {
        rc = measure(model, &args, true, &contiguous);
    }
    quire_model_close(model);
    if (rc != QUIRE_OK) {
        return 1;
    }
    printf("{\"paged\": %u, \"paged_tokens\": %llu, \"paged_extent_bytes\": %llu, "
           "\"contiguous\": %u, \"contiguous_tokens\": %llu, \"contiguous_extent_bytes\": %llu}\n",
           paged.n_seqs, (unsigned long long)paged.n_tokens, (unsigned long long)paged.extent_bytes,
           contiguous.n_seqs, (unsigned long long)contiguous.n_tokens,
           (unsigned long long)contiguous.extent_bytes);
    return 0;
}
