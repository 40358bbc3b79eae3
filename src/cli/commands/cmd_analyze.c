/* cmd_analyze.c - quire analyze: figures of a workload, and recommended settings.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/commands.h"
#include "cli/commands/new_file.h"
#include "cli/commands/talk.h"
#include "cli/settings/args.h"
#include "cli/traces/analyze_out.h"
#include "cli/traces/report.h"
#include "cli/traces/sim_shape.h"
#include "cli/traces/trace_args.h"

#include "base/check.h"
#include "base/cpu.h"
#include "trace/sim/sim_disk.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CAPACITIES      12u
#define SAMPLES         8192u
#define TIMELINE_POINTS 240u
#define STEP_TOKENS     512u /* of prefill */
#define CAPACITY_MAX    (QUIRE_PAGES_MAX / 2)
#define NEARLY          0.99 /* of the hits of one cache in place of those of several devices */
#define BISECTIONS      6u

typedef struct analyze_args {
    quire_common_args common; /* threads, json */
    quire_trace_args trace;
    quire_count_list capacities;
    const char *shape;
    quire_kv_choice kv;
    int state_type;
    int64_t state_every;
    uint64_t memory_bytes;
    uint64_t disk_bytes;
    const char *pinned_class;
    int64_t n_devices;
    double prefill_rate;
    double decode_rate;
    const char *html;
    const char *yaml;
} analyze_args;

/* clang-format off */
static const quire_opt options[] = {
    QUIRE_ROWS_TRACE(analyze_args),
    { .names = { "--html" }, .type = QUIRE_OPT_TEXT, .unit = "FILE",
      .offset = offsetof(analyze_args, html),
      .help = "write all plots to a page, which loads no other file" },
    { .names = { "--yaml" }, .type = QUIRE_OPT_TEXT, .unit = "FILE",
      .offset = offsetof(analyze_args, yaml),
      .help = "write the recommended settings, for quire serve --config" },
    { .names = { "--capacity" }, .type = QUIRE_OPT_COUNT_LIST, .unit = "N,...", .min = 1,
      .max = CAPACITY_MAX, .initial_text = "the recommended size; with --html a dozen sizes",
      .offset = offsetof(analyze_args, capacities),
      .help = "sizes of the cache, in blocks, for which all policies are simulated" },
    QUIRE_ROWS_SIM_SHAPE(analyze_args, "q8"),
    { .names = { "--memory" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES", .min = 1, .max = 1e18,
      .initial_text = "the recommended size", .offset = offsetof(analyze_args, memory_bytes),
      .help = "memory for KV pages, of each device" },
    { .names = { "--devices" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1,
      .max = QUIRE_SIM_DEVICES_MAX, .initial = "1", .offset = offsetof(analyze_args, n_devices),
      .help = "devices of the server, as --device A,B of quire serve: recommend the memory of "
              "each" },
    { .names = { "--disk" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES", .min = 1, .max = 1e18,
      .initial_text = "none", .offset = offsetof(analyze_args, disk_bytes),
      .help = "most disk space for pages below memory: recommend how much of it to use" },
    { .names = { "--pinned-class" }, .type = QUIRE_OPT_TEXT, .unit = "NAME",
      .initial_text = "realtime, if the trace has this class",
      .offset = offsetof(analyze_args, pinned_class),
      .help = "class of the trace for which memory is reserved" },
    { .names = { "--prefill-rate" }, .type = QUIRE_OPT_REAL, .unit = "N", .min = 0.1, .max = 1e9,
      .initial = "40000", .offset = offsetof(analyze_args, prefill_rate),
      .help = "prompt tokens that a request computes per second; this decides how long it holds "
              "memory" },
    { .names = { "--decode-rate" }, .type = QUIRE_OPT_REAL, .unit = "N", .min = 0.01, .max = 1e6,
      .initial = "100", .offset = offsetof(analyze_args, decode_rate),
      .help = "tokens of its answer that a request generates per second; likewise" },
    QUIRE_ROW_THREADS,
    QUIRE_ROW_JSON,
};
/* clang-format on */

static int check(const void *opaque, quire_error *err)
{
    const analyze_args *args = opaque;

    if (args->memory_bytes > 0 && args->shape == NULL) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--memory needs --model: how large a token's KV is");
    }
    if (args->disk_bytes > 0 && args->shape == NULL) {
        return quire_error_set(err, QUIRE_INVAL, "--disk needs --model: how large a token's KV is");
    }
    if (args->kv.is_auto) {
        return quire_error_set(err, QUIRE_INVAL, "--kv auto: only a loaded model can choose");
    }
    return QUIRE_OK;
}

/* ---- the first report ---- */

/* Two digits, upwards. */
static uint64_t round_capacity(double capacity)
{
    const double power = pow(10.0, floor(log10(capacity)) - 1.0);

    return capacity < 10.0 ? (uint64_t)ceil(capacity) : (uint64_t)(ceil(capacity / power) * power);
}

/* A dozen round capacities, from the smallest useful cache to one that needs no more memory; fewer
 * for a small trace. */
static void choose_capacities(quire_analyzed *a)
{
    const double most = a->trace->n_ids > 1 ? a->trace->n_ids : 1;
    const double least = most / 400.0 > 1.0 ? most / 400.0 : 1.0;

    for (uint32_t i = 0; i < CAPACITIES; i++) {
        const uint64_t capacity =
            round_capacity(least * pow(most / least, (double)i / (CAPACITIES - 1)));

        if (a->n_capacities == 0 || capacity > a->capacities[a->n_capacities - 1]) {
            a->capacities[a->n_capacities++] = capacity;
        }
    }
}

static int sample(quire_analyzed *a, uint64_t seed)
{
    const quire_shards_opts opts = { .sample_max = SAMPLES, .seed = seed };

    QUIRE_TRY(quire_shards_create(&a->shards, &opts));
    QUIRE_TRY(quire_shards_add_trace(a->shards, a->trace));
    for (uint32_t i = 0; i < a->n_capacities; i++) {
        const uint64_t c = a->capacities[i];
        const double off =
            fabs(quire_shards_hit_rate(a->shards, c) - quire_mrc_hit_rate(&a->mrc, c));

        a->shards_error = off > a->shards_error ? off : a->shards_error;
    }
    return QUIRE_OK;
}

/* Memory of windows and states: a request leaves its last window, up to a block more, and states at
 * the end of its prompt, at its own end, and on the way. */
static void kv_set(quire_analyzed *a, const quire_sim_shape *shape, const analyze_args *args)
{
    const uint32_t block_tokens = a->trace->block_tokens;
    quire_sim_kv *kv = &a->kv;
    double n_window, n_states;

    *kv = quire_sim_shape_kv(shape, block_tokens, quire_state_type_format(args->state_type),
                             (uint32_t)args->state_every);
    if (kv->block_bytes == 0) {
        return;
    }
    n_window = kv->window_tokens > 0 ? ceil((kv->window_tokens - 1.0) / block_tokens) : 0.0;
    n_states = 2.0 + quire_dist_mean(&a->analysis->fresh) / kv->state_every_tokens;
    a->text_bytes =
        (n_window + 1.0) * (double)kv->window_bytes + n_states * (double)kv->state_bytes;
    a->running_bytes =
        (n_window + ceil((double)STEP_TOKENS / block_tokens)) * (double)kv->window_bytes +
        2.0 * (double)kv->seq_state_bytes;
}

static void shape_set(quire_analyzed *a, const quire_sim_shape *shape, const analyze_args *args)
{
    quire_recommend_ask ask = { .analysis = a->analysis };

    kv_set(a, shape, args);
    a->token_bytes = ask.token_bytes = (double)shape->token_bytes;
    ask.text_bytes = a->text_bytes;
    a->block_bytes = quire_recommend_block_bytes(&ask);
}

static int measure(quire_analyzed *a, const analyze_args *args, quire_error *err)
{
    const quire_load_cost cost = { 1e6 / args->prefill_rate, 1e6 / args->decode_rate };
    quire_sim_shape shape = { 0 };
    int rc;

    if (args->shape != NULL) {
        QUIRE_TRY(quire_sim_shape_find(args->shape, args->kv.pair, &shape, err));
    }
    choose_capacities(a);
    rc = quire_analysis_create(&a->analysis, a->trace, &cost, NULL);
    if (rc == QUIRE_OK) {
        shape_set(a, &shape, args);
        rc = quire_mrc_init(&a->mrc, a->trace, NULL);
    }
    if (rc == QUIRE_OK) {
        rc = sample(a, (uint64_t)args->trace.seed);
    }
    return rc < 0 ? quire_error_set(err, rc, "%s: %s", args->trace.path, quire_status_text(rc))
                  : rc;
}

/* ---- recommendation ---- */

static int pinned_class(const analyze_args *args, const quire_trace *trace,
                        quire_recommend_ask *ask, quire_error *err)
{
    const char *wanted = args->pinned_class != NULL ? args->pinned_class : "realtime";

    ask->pinned_class = QUIRE_RECOMMEND_NO_CLASS;
    for (uint32_t c = 0; c < trace->n_classes; c++) {
        if (strcmp(trace->class_names[c], wanted) == 0) {
            ask->pinned_class = c;
            ask->class_name = trace->class_names[c];
            return QUIRE_OK;
        }
    }
    return args->pinned_class == NULL
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_INVAL,
                                 "--pinned-class %.60s: the trace has no such "
                                 "class",
                                 args->pinned_class);
}

/* All policies, with the recommended capacity and the requested ones. */
static void choose_columns(quire_analyzed *a, const analyze_args *args, uint64_t recommended)
{
    quire_sim_grid *grid = &a->grid;
    bool is_placed = false;

    for (int p = 0; p < (int)QUIRE_EVICT_POLICY_COUNT; p++) {
        grid->policies[grid->n_policies++] = (quire_evict_policy)p;
    }
    for (uint32_t i = 0; i < args->capacities.n; i++) {
        grid->columns[grid->n_columns++].blocks = (uint64_t)args->capacities.items[i];
    }
    for (uint32_t i = 0; args->capacities.n == 0 && args->html != NULL && i < a->n_capacities;
         i++) {
        grid->columns[grid->n_columns++].blocks = a->capacities[i];
    }
    for (uint32_t c = 0; c < grid->n_columns && !is_placed; c++) {
        if (grid->columns[c].blocks >= recommended) {
            is_placed = true;
            a->column = c;
            if (grid->columns[c].blocks > recommended) {
                memmove(&grid->columns[c + 1], &grid->columns[c],
                        (grid->n_columns - c) * sizeof(grid->columns[0]));
                grid->n_columns++;
            }
        }
    }
    if (!is_placed) {
        a->column = grid->n_columns++;
    }
    grid->columns[a->column] = (quire_sim_column){ .blocks = recommended };
    for (uint32_t c = 0; c < grid->n_columns && grid->opts.kv.block_bytes != 0; c++) {
        grid->columns[c].memory_bytes =
            (uint64_t)((double)grid->columns[c].blocks * a->block_bytes);
    }
}

static int simulate(quire_analyzed *a, const analyze_args *args, uint64_t recommended,
                    quire_error *err)
{
    const uint32_t n_threads =
        args->common.n_threads > 0 ? (uint32_t)args->common.n_threads : quire_cpus_usable();

    a->grid.trace = a->trace;
    a->grid.opts = (quire_sim_opts){ .mode = QUIRE_SIM_HITS,
                                     .kv = a->kv,
                                     .n_devices = (uint32_t)args->n_devices,
                                     .seed = (uint64_t)args->trace.seed };
    choose_columns(a, args, recommended < CAPACITY_MAX ? recommended : CAPACITY_MAX);
    return quire_sim_grid_run(&a->grid, n_threads, err);
}

/* Hits of LRU with a cache of so many blocks on each of n devices. */
static int lru_hits(const quire_analyzed *a, const analyze_args *args, uint32_t n, uint64_t blocks,
                    double *rate, quire_error *err)
{
    const uint64_t capacity = blocks < CAPACITY_MAX ? blocks : CAPACITY_MAX;
    const quire_sim_opts opts = { .mode = QUIRE_SIM_HITS,
                                  .policy = QUIRE_EVICT_LRU,
                                  .capacity_blocks = capacity,
                                  .kv = a->kv,
                                  .capacity_bytes = (uint64_t)((double)capacity * a->block_bytes),
                                  .n_devices = n,
                                  .seed = (uint64_t)args->trace.seed,
                                  .cancel = quire_sim_interrupt() };
    quire_sim_result result;

    QUIRE_TRY(quire_sim_run(a->trace, &opts, &result, err));
    *rate = quire_sim_hit_rate(&result);
    quire_sim_result_fini(&result);
    return QUIRE_OK;
}

/* The least size of each device with nearly the hits of one cache for all, by bisection between the
 * equal share of that cache and all of it. */
static int plan_devices(const quire_analyzed *a, const analyze_args *args,
                        const quire_recommend_ask *ask, quire_recommend_sizes *sizes,
                        quire_error *err)
{
    const uint32_t n = (uint32_t)args->n_devices;
    uint64_t low = sizes->capacity_blocks;
    uint64_t high = low;
    double wanted, rate, high_rate;

    QUIRE_TRY(lru_hits(a, args, 1, sizes->total_blocks, &wanted, err));
    QUIRE_TRY(lru_hits(a, args, n, low, &high_rate, err));
    if (high_rate < NEARLY * wanted) {
        high = sizes->total_blocks;
        QUIRE_TRY(lru_hits(a, args, n, high, &high_rate, err));
    }
    for (uint32_t i = 0; i < BISECTIONS && low + 1 < high; i++) {
        const uint64_t middle = low + (high - low) / 2;

        QUIRE_TRY(lru_hits(a, args, n, middle, &rate, err));
        if (rate < NEARLY * wanted) {
            low = middle;
        } else {
            high = middle;
            high_rate = rate;
        }
    }
    quire_recommend_sizes_each(ask, high, high_rate, sizes);
    return sizes->capacity_blocks < high /* that is all the memory */
               ? lru_hits(a, args, n, sizes->capacity_blocks, &sizes->hit_rate, err)
               : QUIRE_OK;
}

/* Hits of memory and the recommended disk together, for two rules of copying. */
static int simulate_disk(const quire_analyzed *a, const quire_recommend_sizes *sizes,
                         quire_recommend_policies *policies, quire_error *err)
{
    const uint64_t block_bytes = (uint64_t)(a->token_bytes * a->trace->block_tokens);
    quire_sim_opts opts = a->grid.opts;
    double rates[2];

    if (sizes->disk_blocks < QUIRE_SIM_DISK_BLOCKS_MIN || a->kv.block_bytes != 0) {
        return QUIRE_OK;
    }
    opts.policy = QUIRE_EVICT_DEFAULT;
    opts.capacity_blocks = a->grid.columns[a->column].blocks;
    opts.disk.capacity_blocks = sizes->disk_blocks;
    opts.disk.segment_blocks = quire_sim_disk_segment(sizes->disk_blocks, block_bytes);
    opts.disk.carry = QUIRE_SIM_DISK_CARRY;
    opts.disk.is_touching = true;
    opts.cancel = quire_sim_interrupt();
    for (int i = 0; i < 2; i++) {
        quire_sim_result result;

        opts.disk.copy = i == 0 ? QUIRE_SIM_COPY_WORTH : QUIRE_SIM_COPY_ALL;
        QUIRE_TRY(quire_sim_run(a->trace, &opts, &result, err));
        rates[i] = quire_sim_hit_rate(&result);
        quire_sim_result_fini(&result);
    }
    policies->disk_hit_rate = rates[0];
    policies->disk_all_hit_rate = rates[1];
    return QUIRE_OK;
}

/* Regions over time of a server with the recommended settings, except for the policy. */
static int run_timeline(quire_analyzed *a, const quire_recommend_ask *ask, quire_error *err)
{
    const quire_recommend_sizes *sizes = &a->recommendation.sizes;
    const uint64_t live_blocks = sizes->live_tokens / sizes->n_devices / a->trace->block_tokens;
    const uint64_t capacity = sizes->capacity_blocks + live_blocks;
    quire_sim_class classes[QUIRE_TRACE_CLASSES_MAX] = { 0 };
    const quire_sim_opts opts = { .mode = QUIRE_SIM_TIME,
                                  .policy = QUIRE_EVICT_DEFAULT,
                                  .capacity_blocks =
                                      capacity < CAPACITY_MAX ? capacity : CAPACITY_MAX,
                                  .kv = a->kv,
                                  .capacity_bytes = sizes->memory_bytes > a->kv.block_bytes
                                                        ? sizes->memory_bytes
                                                        : a->kv.block_bytes,
                                  .n_devices = sizes->n_devices,
                                  .seed = a->grid.opts.seed,
                                  .cost = QUIRE_SIM_COST_INIT,
                                  .classes = classes,
                                  .n_classes = a->trace->n_classes,
                                  .timeline_points = TIMELINE_POINTS,
                                  .cancel = quire_sim_interrupt() };

    for (uint32_t c = 0; c < a->trace->n_classes; c++) {
        (void)snprintf(classes[c].name, sizeof(classes[c].name), "%s", a->trace->class_names[c]);
    }
    if (sizes->pinned_bytes > 0) {
        classes[ask->pinned_class].rank = 1;
        classes[ask->pinned_class].pinned_share =
            (double)sizes->pinned_bytes / (double)sizes->memory_bytes;
    }
    return quire_sim_run(a->trace, &opts, &a->timeline, err);
}

/* Lengths alone, or requests without a whole block, have no hits to count. */
static bool is_simulated(const quire_trace *trace)
{
    return trace->has_contents && quire_trace_longest_blocks(trace) > 0;
}

static int recommend(quire_analyzed *a, const analyze_args *args, quire_error *err)
{
    quire_recommend_ask ask = { .analysis = a->analysis,
                                .mrc = &a->mrc,
                                .token_bytes = a->token_bytes,
                                .text_bytes = a->text_bytes,
                                .running_bytes = a->running_bytes,
                                .memory_bytes = args->memory_bytes,
                                .disk_bytes = args->disk_bytes,
                                .n_devices = (uint32_t)args->n_devices };
    quire_recommend_policies policies = { .policies = a->grid.policies };
    double hit_rates[QUIRE_SIM_POLICIES_MAX];
    quire_recommend_sizes sizes;

    QUIRE_TRY(pinned_class(args, a->trace, &ask, err));
    quire_recommend_sizes_find(&ask, &sizes);
    if (is_simulated(a->trace) && args->n_devices > 1) {
        QUIRE_TRY(plan_devices(a, args, &ask, &sizes, err));
    }
    if (is_simulated(a->trace)) {
        QUIRE_TRY(simulate(a, args, sizes.capacity_blocks, err));
        QUIRE_TRY(simulate_disk(a, &sizes, &policies, err));
        policies.n = a->grid.n_policies;
        policies.hit_rates = hit_rates;
        for (uint32_t p = 0; p < policies.n; p++) {
            hit_rates[p] = quire_sim_hit_rate(quire_sim_grid_at(&a->grid, p, a->column));
        }
    }
    quire_recommend_settings(&ask, &sizes, &policies, &a->recommendation);
    return is_simulated(a->trace) && args->html != NULL ? run_timeline(a, &ask, err) : QUIRE_OK;
}

/* ---- output ---- */

static int write_text(const char *path, const quire_bytes *text, quire_error *err)
{
    quire_new_file file;
    int rc = quire_new_file_open(&file, path, err);

    if (rc == QUIRE_OK && fwrite(text->data, 1, text->n, file.stream) != text->n) {
        rc = quire_new_file_fail(&file, err);
    }
    if (rc == QUIRE_OK) {
        rc = quire_new_file_finish(&file, err);
    }
    quire_new_file_discard(&file);
    return rc;
}

static int write_files(const quire_analyzed *a, const analyze_args *args, const quire_bytes *yaml,
                       quire_error *err)
{
    if (args->yaml != NULL) {
        QUIRE_TRY(write_text(args->yaml, yaml, err));
    }
    if (args->html != NULL) {
        json_t *report = quire_analyzed_report(a, yaml->data);
        const int rc = quire_report_write(report, args->html, err);

        json_decref(report);
        return rc;
    }
    return QUIRE_OK;
}

static int show(const quire_analyzed *a, const analyze_args *args)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_bytes yaml = { 0 };
    char title[256];
    int exit_status = QUIRE_EXIT_OK;

    if (quire_recommend_yaml(&a->recommendation, quire_analyzed_title(a, title, sizeof(title)),
                             &yaml) < 0) {
        quire_bytes_fini(&yaml);
        return quire_say_nomem();
    }
    if (args->common.is_json) {
        exit_status = quire_stdout_json(quire_analyzed_json(a));
    } else {
        quire_analyzed_print_policies(a, stdout);
        printf("\n%s", yaml.data);
    }
    if (exit_status == QUIRE_EXIT_OK && write_files(a, args, &yaml, &err) < 0) {
        exit_status = quire_say_error(&err, QUIRE_EXIT_FAILED);
    }
    quire_bytes_fini(&yaml);
    return exit_status;
}

/* The figures without a recommendation, of the policies that were simulated. */
static void show_interrupted(const quire_analyzed *a, const analyze_args *args)
{
    if (args->common.is_json) {
        (void)quire_stdout_json(quire_analyzed_json(a));
    } else {
        quire_analyzed_print_policies(a, stdout);
    }
}

static void analyzed_fini(quire_analyzed *a)
{
    quire_sim_result_fini(&a->timeline);
    quire_sim_grid_fini(&a->grid);
    quire_shards_destroy(a->shards);
    if (a->mrc.hits != NULL) {
        quire_mrc_fini(&a->mrc);
    }
    quire_analysis_destroy(a->analysis);
}

static int run(void *opaque)
{
    const analyze_args *args = opaque;
    quire_error err = QUIRE_ERROR_INIT;
    quire_trace_report report;
    quire_trace trace;
    quire_analyzed a = { .path = args->trace.path, .trace = &trace };
    int exit_status;
    int rc;

    if ((args->html != NULL && quire_new_file_check(args->html, &err) < 0) ||
        (args->yaml != NULL && quire_new_file_check(args->yaml, &err) < 0) ||
        quire_trace_args_read(&args->trace, &trace, &report, &err) < 0) {
        return quire_say_error(&err, QUIRE_EXIT_FAILED);
    }
    quire_interrupt_catch();
    a.format = report.format;
    if (measure(&a, args, &err) < 0) {
        exit_status = quire_say_error(&err, QUIRE_EXIT_FAILED);
    } else {
        if (!args->common.is_json) {
            quire_analyzed_print_trace(&a, stdout);
            (void)fflush(stdout); /* the simulations take a while */
        }
        rc = recommend(&a, args, &err);
        exit_status = rc < 0 ? quire_say_error(&err, QUIRE_EXIT_FAILED) : show(&a, args);
        if (rc == QUIRE_CANCELED) {
            show_interrupted(&a, args);
        }
    }
    analyzed_fini(&a);
    quire_trace_fini(&trace);
    return exit_status;
}

const quire_command quire_command_analyze = {
    .name = "analyze",
    .usage = "TRACE [--html FILE] [--yaml FILE] [--model SHAPE] [--memory BYTES] [options]",
    .summary = "Describes the workload of a trace, and recommends settings for it.",
    .notes = "Lengths, repetition, sessions, load, hit rates by size and policy, and settings for "
             "quire serve\nwith the reason for each. docs/analysis.md explains the figures.\n",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0]),
    .positional = "--trace",
    .args_bytes = sizeof(analyze_args),
    .check = check,
    .run = run,
};
