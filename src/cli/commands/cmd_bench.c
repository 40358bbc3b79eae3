/* cmd_bench.c - quire bench: speed and memory of prefill and decode at given depths.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/commands.h"
#include "cli/commands/device_choice.h"
#include "cli/commands/opened.h"
#include "cli/commands/talk.h"
#include "cli/measuring/bandwidth.h"
#include "cli/measuring/bench_cost.h"
#include "cli/measuring/measure.h"
#include "cli/settings/args.h"
#include "cli/traces/sim_cost.h"

#include "base/check.h"
#include "base/parse.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench_args {
    quire_common_args common;
    int64_t n_prompt;
    int64_t n_gen;
    quire_count_list depths;
    quire_kv_list kv;
    int64_t n_repeats;
    int64_t n_seqs;
    int64_t shared_prefix;
    bool no_cascade;
    int fill;
    int cache;
    bool is_cost;
} bench_args;

#define BITS_DIM 64u /* any head size: formats are only put in order by it */

static const char *const fills[] = { "fast", "compute", NULL };
static const char *const caches[] = { "paged", "contiguous", "none", NULL }; /* quire_caching */

/* clang-format off */
static const quire_opt options[] = {
    QUIRE_ROW_MODEL,
    { .names = { "-p", "--prompt" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 0,
      .max = QUIRE_TOKENS_MAX, .initial = "512", .offset = offsetof(bench_args, n_prompt),
      .help = "tokens of the prefill test; 0 leaves it out" },
    { .names = { "-n", "--gen" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 0,
      .max = QUIRE_TOKENS_MAX, .initial = "32", .offset = offsetof(bench_args, n_gen),
      .help = "tokens of the decode test; 0 leaves it out" },
    { .names = { "-d", "--depth" }, .type = QUIRE_OPT_COUNT_LIST, .unit = "N,...", .min = 0,
      .max = QUIRE_TOKENS_MAX, .initial = "0", .offset = offsetof(bench_args, depths),
      .help = "tokens that are in the context before a test" },
    { .names = { "--sequences" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1, .max = 1024,
      .initial = "1", .offset = offsetof(bench_args, n_seqs),
      .help = "decode N sequences in each step, without the prefill test; tokens/s are those of "
              "all together" },
    { .names = { "--shared-prefix" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 0,
      .max = QUIRE_TOKENS_MAX, .initial = "0", .offset = offsetof(bench_args, shared_prefix),
      .help = "tokens that all sequences have in common, in front of the depth of each" },
    { .names = { "--no-cascade" }, .type = QUIRE_OPT_FLAG,
      .offset = offsetof(bench_args, no_cascade),
      .help = "read shared pages once per sequence instead of once for all, for comparison" },
    { .names = { "-r", "--repeats" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1,
      .max = QUIRE_REPEATS_MAX, .initial = "3", .offset = offsetof(bench_args, n_repeats),
      .help = "repeats of each test; the result is the median" },
    { .names = { "--fill" }, .type = QUIRE_OPT_CHOICE, .choices = fills, .initial = "fast",
      .offset = offsetof(bench_args, fill),
      .help = "KV of the depth: synthetic pages (fast), or computed as for a prompt (compute)" },
    { .names = { "--cache" }, .type = QUIRE_OPT_CHOICE, .choices = caches, .initial = "paged",
      .offset = offsetof(bench_args, cache),
      .help = "KV in pages, in one buffer of the whole context (-c) per sequence, or nowhere: then "
              "each new token computes all tokens before it again" },
    { .names = { "--cost" }, .type = QUIRE_OPT_FLAG, .offset = offsetof(bench_args, is_cost),
      .help = "measure the cost of steps instead, and print it for quire sim --cost; one depth is "
              "the largest of -d, or 2048 without -d" },
    QUIRE_ROW_JSON,
    QUIRE_ROW_THREADS,
    QUIRE_ROW_DEVICE,
    QUIRE_ROW_CTX("what the tests need"),
    { .names = { "--kv" }, .type = QUIRE_OPT_KV_LIST, .unit = "K[:V],...", .initial = "f16",
      .offset = offsetof(bench_args, kv), .help = "number formats of the KV cache" },
    QUIRE_ROWS_KV_WINDOW,
    QUIRE_ROWS_CACHE,
    { .names = { "--cache-dir" }, .type = QUIRE_OPT_TEXT, .unit = "DIR",
      .offset = offsetof(bench_args, common.cache_dir),
      .help = "with a --kv-budget that the depth exceeds: keep the rest of the pages in a nameless "
              "file in this directory, and read them from there in each step" },
};
/* clang-format on */

typedef struct row {
    quire_measure_opts opts;
    char kv[24];                             /* as --kv says it */
    char kv_text[QUIRE_SESSION_KV_TEXT_MAX]; /* the formats that it chose */
    double kv_bits;
    quire_measurement m;
} row;

typedef struct table {
    const bench_args *args;
    quire_opened session;
    double bandwidth; /* bytes per second */
    uint32_t n_threads;
    const char *isa; /* of attention */
    row *rows;
    size_t n_rows;
} table;

static uint32_t needed_ctx(const bench_args *args)
{
    int64_t deepest = 0;
    int64_t longest = args->n_prompt > args->n_gen ? args->n_prompt : args->n_gen;

    for (uint32_t i = 0; i < args->depths.n; i++) {
        deepest = args->depths.items[i] > deepest ? args->depths.items[i] : deepest;
    }
    return (uint32_t)(args->shared_prefix + deepest + longest);
}

static bool has_prefill(const bench_args *args)
{
    return args->n_prompt > 0 && args->n_seqs == 1;
}

/* Weights that one decode step reads: all but an input embedding that is not the output too. */
static double step_weight_bytes(const quire_model_desc *desc)
{
    return (double)(desc->weight_bytes - (desc->has_tied_output ? 0 : desc->embd_bytes));
}

/* Ratio of the time to read a step's bytes at full bandwidth to the measured time; 0 where
 * meaningless. For the attention ops alone, only KV counts. */
static double roofline_share(const table *t, const row *r, bool is_attention)
{
    double bytes = r->m.step_read_bytes + (is_attention ? 0 : step_weight_bytes(t->session.desc));
    double seconds = is_attention ? r->m.step_attn_s : r->m.step_s;

    return r->m.step_read_bytes > 0 && t->bandwidth > 0 && seconds > 0
               ? bytes / t->bandwidth / seconds
               : 0;
}

static int run_test(table *t, quire_bench_test test, uint32_t depth)
{
    const bench_args *args = t->args;
    row *r = &t->rows[t->n_rows];
    int64_t n = test == QUIRE_BENCH_PREFILL ? args->n_prompt : args->n_gen;
    int rc;

    if (n == 0 || (test == QUIRE_BENCH_PREFILL && !has_prefill(args))) {
        return QUIRE_OK;
    }
    r->opts = (quire_measure_opts){
        .test = test,
        .caching = (quire_caching)args->cache,
        .is_filled_fast = args->fill == 0,
        .n_seqs = (uint32_t)args->n_seqs,
        .shared_depth = (uint32_t)args->shared_prefix,
        .depth = depth,
        .n_tokens = (uint32_t)n,
        .n_repeats = (uint32_t)args->n_repeats,
    };
    rc = quire_measure(&t->session, &r->opts, &r->m);
    if (rc < 0 && !(rc == QUIRE_CANCELED && r->m.n_repeats > 0)) {
        return rc;
    }
    (void)quire_kv_choice_name(&t->session.kv.choice, r->kv, sizeof(r->kv));
    (void)quire_opened_kv_text(&t->session, r->kv_text, sizeof(r->kv_text));
    r->kv_bits = quire_kv_bits(t->session.desc, t->session.kv_pairs);
    t->n_rows++;
    return rc;
}

static int run_format(table *t, const quire_kv_choice *kv, quire_error *err)
{
    const bench_args *args = t->args;
    quire_common_args common = args->common;
    quire_opened_want want = { .n_ctx = needed_ctx(args),
                               .n_seqs_max = (uint32_t)args->n_seqs,
                               .no_cascade = args->no_cascade,
                               .overflow_dir = args->common.cache_dir,
                               .overflow_host =
                                   !quire_device_is_cpu(args->common.device) &&
                                   t->session.split.n == 0 &&
                                   quire_overflow_check(t->session.desc, NULL) == QUIRE_OK,
                               .is_contiguous = args->cache == QUIRE_CACHING_CONTIGUOUS };
    int rc = QUIRE_OK;

    common.kv.choice = *kv;
    want.n_ctx = (uint32_t)common.n_ctx > want.n_ctx ? (uint32_t)common.n_ctx : want.n_ctx;
    if (args->n_seqs > 1) {
        uint32_t shared = (uint32_t)args->shared_prefix;

        want.n_tokens = shared + want.n_seqs_max * (needed_ctx(args) - shared);
    }
    QUIRE_TRY(quire_opened_open_runtime(&t->session, &common, &want, err));
    t->n_threads = quire_runtime_n_threads(t->session.runtime);
    t->isa = quire_runtime_isa(t->session.runtime);
    for (uint32_t i = 0; rc == QUIRE_OK && i < args->depths.n; i++) {
        uint32_t depth = (uint32_t)args->depths.items[i];

        rc = run_test(t, QUIRE_BENCH_PREFILL, depth);
        if (rc == QUIRE_OK) {
            rc = run_test(t, QUIRE_BENCH_DECODE, depth);
        }
    }
    if (rc < 0) {
        quire_opened_step_error(&t->session, rc, err);
    }
    quire_opened_close_runtime(&t->session);
    return rc;
}

static const char *test_name(const row *r)
{
    return r->opts.test == QUIRE_BENCH_PREFILL ? "prefill" : "decode";
}

static json_t *share_json(double share)
{
    return share > 0 ? quire_json_real(share) : json_null();
}

/* The measured figures. */
static json_t *row_json(const table *t, const row *r)
{
    const quire_measurement *m = &r->m;
    json_t *rates = json_array();

    for (uint32_t i = 0; i < m->n_repeats; i++) {
        json_array_append_new(rates, quire_json_real(m->rates[i]));
    }
    return json_pack(
        "{s:s, s:i, s:i, s:i, s:s, s:s, s:f, s:i, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, "
        "s:o, s:o, s:o, s:o, s:I}",
        "test", test_name(r), "sequences", (int)r->opts.n_seqs, "shared_prefix",
        (int)r->opts.shared_depth, "depth", (int)r->opts.depth, "kv", r->kv, "kv_formats",
        r->kv_text, "kv_bits_per_value", r->kv_bits, "n_tokens", (int)r->opts.n_tokens,
        "tokens_per_second", quire_json_real(m->median), "mean", quire_json_real(m->mean), "stddev",
        quire_json_real(m->stddev), "repeats", rates, "kv_bytes", (json_int_t)m->kv_bytes,
        "kv_computed_bytes", (json_int_t)m->kv_computed_bytes, "kv_peak_bytes",
        (json_int_t)m->kv_peak_bytes, "kv_extent_bytes", (json_int_t)m->kv_extent_bytes,
        "resident_peak_bytes", (json_int_t)m->resident_peak_bytes, "attention_share",
        quire_json_real(m->attn_share), "append_share", quire_json_real(m->append_share),
        "attention_roofline_share", share_json(roofline_share(t, r, true)), "roofline_share",
        share_json(roofline_share(t, r, false)), "step_file_bytes", (json_int_t)m->step_file_bytes);
}

/* The machine and the settings of the measurement. */
static json_t *setting_json(const table *t)
{
    const bench_args *args = t->args;

    return json_pack("{s:o, s:s, s:s, s:b, s:i, s:s, s:o}", "read_bandwidth_bytes_per_second",
                     quire_json_real(t->bandwidth), "cache", caches[args->cache], "fill",
                     fills[args->fill], "cascade", !args->no_cascade, "threads", (int)t->n_threads,
                     "isa", t->isa, "model",
                     quire_json_bytes(args->common.model, strlen(args->common.model)));
}

static int print_json(const table *t)
{
    json_t *rows = json_array();

    for (size_t i = 0; i < t->n_rows; i++) {
        json_t *object = row_json(t, &t->rows[i]);

        if (json_object_update_new(object, setting_json(t)) != 0 ||
            json_array_append(rows, object) != 0) {
            json_decref(object);
            json_decref(rows);
            return quire_say_nomem();
        }
        json_decref(object);
    }
    return quire_stdout_json(rows);
}

static char *share_text(double share, char *text, size_t text_bytes)
{
    if (share > 0) {
        (void)snprintf(text, text_bytes, "%.0f %%", 100 * share);
    } else {
        (void)snprintf(text, text_bytes, "-");
    }
    return text;
}

static void print_text(const table *t)
{
    const bench_args *args = t->args;
    const quire_model_desc *desc = t->session.desc;
    char text[16];

    printf("%s, %s, weights %s; %u threads, %s, reads %.1f GB/s; cache %s, depth filled: %s\n",
           args->common.model, desc->file_type,
           quire_format_bytes(desc->weight_bytes, text, sizeof(text)), t->n_threads, t->isa,
           t->bandwidth / 1e9, caches[args->cache], fills[args->fill]);
    if (args->n_seqs > 1 || args->shared_prefix > 0) {
        printf("%u sequences in a step, a prefix of %u tokens shared by all%s\n",
               (unsigned)args->n_seqs, (unsigned)args->shared_prefix,
               args->no_cascade ? ", read for each" : "");
    }
    printf("\n%-8s %7s %8s %-9s %10s %8s %10s %10s %7s %16s\n", "test", "tokens", "depth", "kv",
           "tokens/s", "stddev", "KV pages", "resident", "in attn", "roofline attn/all");
    for (size_t i = 0; i < t->n_rows; i++) {
        const row *r = &t->rows[i];
        char pages[16], peak[16], attn[16], all[16];

        printf("%-8s %7u %8u %-9s %10.2f %8.2f %10s %10s %5.0f %% %8s %7s\n", test_name(r),
               r->opts.n_tokens, r->opts.depth, r->kv, r->m.median, r->m.stddev,
               quire_format_bytes(r->m.kv_bytes, pages, sizeof(pages)),
               quire_format_bytes(r->m.resident_peak_bytes, peak, sizeof(peak)),
               100 * r->m.attn_share, share_text(roofline_share(t, r, true), attn, sizeof(attn)),
               share_text(roofline_share(t, r, false), all, sizeof(all)));
    }
    for (size_t i = 0; i < t->n_rows; i++) {
        const row *r = &t->rows[i];

        /* Rows of one choice follow each other. */
        if (strcmp(r->kv, r->kv_text) != 0 && (i == 0 || strcmp(r->kv, r[-1].kv) != 0)) {
            printf("KV %s\n", r->kv_text);
        }
    }
}

static int check(const void *opaque, quire_error *err)
{
    const bench_args *args = opaque;
    const char *wrong = NULL;

    if (!has_prefill(args) && args->n_gen == 0) {
        wrong = args->n_seqs > 1 ? "-n 0 leaves nothing to measure: --sequences is a decode test"
                                 : "-p 0 and -n 0 leave nothing to measure";
    } else if (needed_ctx(args) > QUIRE_TOKENS_MAX) {
        wrong = "depth and tokens together are over 1048576";
    } else if ((args->n_seqs > 1 || args->shared_prefix > 0) &&
               args->cache != QUIRE_CACHING_PAGED) {
        wrong = "--sequences and --shared-prefix need --cache paged";
    } else if (args->n_seqs > args->common.n_batch) {
        wrong = "--sequences is larger than a step (-b)";
    }
    return wrong == NULL ? QUIRE_OK : quire_error_set(err, QUIRE_INVAL, "%s", wrong);
}

/* The options for opening the model: only the smallest format has to fit. */
static quire_common_args smallest_args(const bench_args *args)
{
    quire_common_args common = args->common;
    double least = 0;

    common.n_ctx = common.n_ctx > needed_ctx(args) ? common.n_ctx : needed_ctx(args);
    for (uint32_t i = 0; i < args->kv.n; i++) {
        const quire_kv_choice *kv = &args->kv.items[i];
        const double bits = kv->is_auto
                                ? kv->bits
                                : 0.5 * (quire_format_bits(kv->pair.k, QUIRE_SIDE_K, BITS_DIM) +
                                         quire_format_bits(kv->pair.v, QUIRE_SIDE_V, BITS_DIM));

        if (i == 0 || bits < least) {
            common.kv.choice = *kv;
            least = bits;
        }
    }
    return common;
}

static int run_cost(const bench_args *args, quire_opened *session, quire_error *err)
{
    quire_common_args common = args->common;
    quire_sim_cost cost;
    uint32_t depth = 0;

    for (uint32_t i = 0; i < args->depths.n; i++) {
        depth = args->depths.items[i] > depth ? (uint32_t)args->depths.items[i] : depth;
    }
    common.kv.choice = args->kv.items[0];
    QUIRE_TRY(quire_bench_cost(session, &common, depth, (uint32_t)args->n_repeats, &cost, err));
    return quire_stdout_json(quire_sim_cost_json(&cost)) == QUIRE_EXIT_OK ? QUIRE_OK : QUIRE_IO;
}

static int run_table(table *t, quire_error *err)
{
    const bench_args *args = t->args;

    t->rows = calloc((size_t)args->kv.n * args->depths.n * 2, sizeof(*t->rows));
    if (t->rows == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    for (uint32_t i = 0; i < args->kv.n; i++) {
        QUIRE_TRY(run_format(t, &args->kv.items[i], err));
    }
    return QUIRE_OK;
}

static int run(void *opaque)
{
    const bench_args *args = opaque;
    table t = { .args = args };
    quire_error err = QUIRE_ERROR_INIT;
    const quire_common_args common = smallest_args(args);
    int exit_status = QUIRE_EXIT_OK;
    int rc;

    rc = quire_opened_open_model(&t.session, &common, &err);
    quire_interrupt_catch();
    if (rc == QUIRE_OK) {
        rc = args->is_cost ? run_cost(args, &t.session, &err) : run_table(&t, &err);
    }
    /* Print the rows measured before a failure. The bandwidth is measured last, since its buffer
     * would count in the peak of resident memory. */
    if (t.n_rows > 0) {
        quire_progress("measuring memory bandwidth");
        t.bandwidth = quire_read_bandwidth(t.n_threads);
        quire_progress_end();
        exit_status = args->common.is_json ? print_json(&t) : (print_text(&t), QUIRE_EXIT_OK);
    }
    if (rc < 0) {
        exit_status = quire_say_error(&err, QUIRE_EXIT_FAILED);
    }
    free(t.rows);
    quire_opened_close(&t.session);
    return exit_status;
}

const quire_command quire_command_bench = {
    .name = "bench",
    .usage = "[-m] FILE [options]",
    .summary = "Measures prefill and decode speed at several depths of context, and KV memory.",
    .notes =
        "'roofline' is the share of the measured read bandwidth that decode uses to read KV in\n"
        "the attention operations (attn), and to read weights and KV in whole steps (all). Over\n"
        "100 % these bytes fit in the CPU's caches. 'resident' is the peak of the program's\n"
        "memory so far. As in llama-bench, the tests -p and -n both run at each depth.\n\n"
        "example: quire bench -m model.gguf -p 512 -n 32 -d 0,8k,32k --kv f16,q8",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0]),
    .positional = "--model",
    .args_bytes = sizeof(bench_args),
    .check = check,
    .run = run,
};
