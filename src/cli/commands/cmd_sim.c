/* cmd_sim.c - quire sim: simulated hit rates of caches of given sizes for a trace.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/commands.h"
#include "cli/commands/new_file.h"
#include "cli/commands/talk.h"
#include "cli/settings/args.h"
#include "cli/traces/report.h"
#include "cli/traces/sim_classes.h"
#include "cli/traces/sim_cost.h"
#include "cli/traces/sim_grid.h"
#include "cli/traces/sim_report.h"
#include "cli/traces/sim_shape.h"
#include "cli/traces/trace_args.h"

#include "base/check.h"
#include "base/cpu.h"
#include "base/parse.h"
#include "trace/duration.h"
#include "trace/sim/sim_disk.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define TIMELINE_POINTS 240u

typedef struct sim_args {
    quire_common_args common; /* threads, json */
    quire_trace_args trace;
    const char *policies;
    quire_count_list capacities;
    quire_count_list memory;
    const char *shape;
    quire_kv_choice kv;
    int state_type;
    int64_t state_every;
    const char *classes;
    int64_t n_devices;
    uint64_t disk_bytes;
    int64_t disk_blocks;
    int disk_copy; /* quire_sim_copy */
    double disk_carry;
    bool no_disk_touch;
    uint64_t disk_rate;
    int mode; /* quire_sim_mode */
    const char *cost;
    int64_t chunk_tokens;
    int64_t n_running_max;
    const char *html;
} sim_args;

static const char *const copies[] = { "worth", "all", "evicted", NULL };
static const char *const modes[] = { "hits", "time", NULL };

/* clang-format off */
static const quire_opt options[] = {
    QUIRE_ROWS_TRACE(sim_args),
    { .names = { "--policy" }, .type = QUIRE_OPT_TEXT, .unit = "P,...",
      .initial = "default,lru", .offset = offsetof(sim_args, policies),
      .help = "eviction policies: default, lru, lfu, slru, fifo, s3fifo, sieve, arc, gdsf, or all; "
              "Belady's bound is always shown" },
    { .names = { "--capacity" }, .type = QUIRE_OPT_COUNT_LIST, .unit = "N,...", .min = 1,
      .max = 1u << 27, .initial_text = "1k,3k,10k,30k", .offset = offsetof(sim_args, capacities),
      .help = "sizes of the cache, in blocks of the trace" },
    { .names = { "--memory" }, .type = QUIRE_OPT_COUNT_LIST, .unit = "BYTES,...", .min = 1,
      .max = 1e18, .initial_text = "none", .offset = offsetof(sim_args, memory),
      .help = "sizes of the cache in memory, instead of --capacity; needs --model" },
    QUIRE_ROWS_SIM_SHAPE(sim_args, "f16"),
    { .names = { "--classes" }, .type = QUIRE_OPT_TEXT, .unit = "NAME:RANK[:SHARE[:TTL]],...",
      .offset = offsetof(sim_args, classes),
      .help = "service classes of the trace: importance (0 is the lowest), reserved share of the "
              "cache (0 to 1), time to live of cached pages" },
    { .names = { "--devices" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1,
      .max = QUIRE_SIM_DEVICES_MAX, .initial = "1", .offset = offsetof(sim_args, n_devices),
      .help = "devices with a cache of that size each, as --device A,B of quire serve" },
    { .names = { "--disk" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES", .min = 1, .max = 1e18,
      .initial_text = "none", .offset = offsetof(sim_args, disk_bytes),
      .help = "size of a disk below the caches of all devices, as --cache-disk of quire serve; "
              "needs --model" },
    { .names = { "--disk-blocks" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1,
      .max = QUIRE_PAGES_MAX, .initial_text = "none", .offset = offsetof(sim_args, disk_blocks),
      .help = "the same in blocks of the trace" },
    { .names = { "--disk-copy" }, .type = QUIRE_OPT_CHOICE, .choices = copies, .initial = "worth",
      .offset = offsetof(sim_args, disk_copy),
      .help = "blocks that are copied to the disk. worth: blocks hit once, and sessions, as quire "
              "serve does. all: each block, as with --store-all. evicted: blocks that leave "
              "memory" },
    { .names = { "--disk-carry" }, .type = QUIRE_OPT_REAL, .unit = "SHARE", .min = 0, .max = 0.99,
      .initial = "0.9", .offset = offsetof(sim_args, disk_carry),
      .help = "share of a segment of the disk's log that may be used blocks of older segments; "
              "quire serve has 0.9, and 0.3 in the mean" },
    { .names = { "--no-disk-touch" }, .type = QUIRE_OPT_FLAG,
      .offset = offsetof(sim_args, no_disk_touch),
      .help = "a hit in memory is no use of the copy on disk; in quire serve it is one" },
    { .names = { "--disk-rate" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES", .min = 1, .max = 1e18,
      .initial = "1GB", .offset = offsetof(sim_args, disk_rate),
      .help = "bytes per second that the disk reads; with --cost and --model, blocks are read only "
              "where computing takes longer" },
    { .names = { "--mode" }, .type = QUIRE_OPT_CHOICE, .choices = modes, .initial = "hits",
      .offset = offsetof(sim_args, mode),
      .help = "hits: requests run one after the other, and only prompts are cached. time: requests "
              "come at their times, wait, hold memory while they run, and their answers are cached "
              "too" },
    QUIRE_ROWS_SIM_COST(sim_args),
    { .names = { "--html" }, .type = QUIRE_OPT_TEXT, .unit = "FILE",
      .offset = offsetof(sim_args, html),
      .help = "write all plots to a page, which loads no other file" },
    QUIRE_ROW_THREADS,
    QUIRE_ROW_JSON,
};
/* clang-format on */

/* ---- arguments ---- */

static int policy_add(quire_sim_grid *grid, const char *name, quire_error *err)
{
    quire_evict_policy policy;

    if (strcmp(name, "belady") == 0) {
        return QUIRE_OK; /* is there anyway */
    }
    if (quire_evict_policy_find(name, &policy) < 0) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--policy '%.40s': it takes default, lru, lfu, slru, fifo, s3fifo, "
                               "sieve, arc, gdsf or all, with commas between",
                               name);
    }
    for (uint32_t i = 0; i < grid->n_policies; i++) {
        if (grid->policies[i] == policy) {
            return QUIRE_OK;
        }
    }
    grid->policies[grid->n_policies++] = policy;
    return QUIRE_OK;
}

static int policies_parse(quire_sim_grid *grid, const char *text, quire_error *err)
{
    if (strcmp(text, "all") == 0) {
        for (int i = 0; i < (int)QUIRE_EVICT_POLICY_COUNT; i++) {
            grid->policies[grid->n_policies++] = (quire_evict_policy)i;
        }
        return QUIRE_OK;
    }
    for (;;) {
        size_t n = strcspn(text, ",");
        char name[41];

        (void)snprintf(name, sizeof(name), "%.*s", (int)(n < 40 ? n : 40), text);
        QUIRE_TRY(policy_add(grid, name, err));
        if (text[n] == '\0') {
            return QUIRE_OK;
        }
        text += n + 1;
    }
}

/* The memory of the model's blocks, windows and states; 0 bytes of a block without --model. */
static int shape_make(quire_sim_grid *grid, const sim_args *args, uint64_t *block_bytes,
                      quire_error *err)
{
    quire_sim_shape shape = { 0 };

    if (args->shape != NULL) {
        QUIRE_TRY(quire_sim_shape_find(args->shape, args->kv.pair, &shape, err));
    }
    *block_bytes = shape.token_bytes * grid->trace->block_tokens;
    grid->opts.kv =
        quire_sim_shape_kv(&shape, grid->trace->block_tokens,
                           quire_state_type_format(args->state_type), (uint32_t)args->state_every);
    return QUIRE_OK;
}

static int memory_columns(quire_sim_grid *grid, const sim_args *args, uint64_t block_bytes,
                          quire_error *err)
{
    for (uint32_t i = 0; i < args->memory.n; i++) {
        uint64_t bytes = (uint64_t)args->memory.items[i];
        quire_sim_column column = { .blocks = bytes / block_bytes, .memory_bytes = bytes };

        if (column.blocks == 0 || column.blocks > QUIRE_PAGES_MAX / 2) {
            return quire_error_set(
                err, QUIRE_RANGE,
                "--memory %" PRIu64 " is %" PRIu64 " blocks of %u tokens (%" PRIu64
                " bytes each): 1 to %u can be simulated",
                bytes, column.blocks, grid->trace->block_tokens, block_bytes, QUIRE_PAGES_MAX / 2);
        }
        grid->columns[grid->n_columns++] = column;
    }
    return QUIRE_OK;
}

static int disk_make(quire_sim_grid *grid, const sim_args *args, uint64_t block_bytes,
                     quire_error *err)
{
    quire_sim_disk_opts *disk = &grid->opts.disk;

    if (args->disk_bytes == 0 && args->disk_blocks == 0) {
        return QUIRE_OK;
    }
    if (grid->opts.kv.block_bytes != 0 && args->disk_copy == QUIRE_SIM_COPY_EVICTED) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "--disk-copy evicted is not simulated with layers that have windows "
                               "or states, which %.80s has",
                               args->shape);
    }
    disk->capacity_blocks =
        args->disk_bytes > 0 ? args->disk_bytes / block_bytes : (uint64_t)args->disk_blocks;
    disk->copy = (quire_sim_copy)args->disk_copy;
    disk->carry = args->disk_carry;
    if (args->cost != NULL && block_bytes > 0) {
        disk->block_us = 1e6 * (double)block_bytes / (double)args->disk_rate;
    }
    disk->is_touching = !args->no_disk_touch;
    if (disk->capacity_blocks < QUIRE_SIM_DISK_BLOCKS_MIN) {
        return quire_error_set(err, QUIRE_RANGE, "--disk: %" PRIu64 " blocks; at least %u",
                               disk->capacity_blocks, QUIRE_SIM_DISK_BLOCKS_MIN);
    }
    disk->segment_blocks = quire_sim_disk_segment(disk->capacity_blocks, block_bytes);
    return QUIRE_OK;
}

/* Sizes in blocks are memory, too, where blocks take bytes: so many blocks of layers that keep all
 * tokens. */
static int columns_make(quire_sim_grid *grid, const sim_args *args, uint64_t block_bytes,
                        quire_error *err)
{
    static const quire_count_list usual = { 4, { 1000, 3000, 10000, 30000 } };
    const quire_count_list *list = args->capacities.n > 0 ? &args->capacities : &usual;

    if (args->memory.n > 0) {
        return memory_columns(grid, args, block_bytes, err);
    }
    for (uint32_t i = 0; i < list->n; i++) {
        grid->columns[grid->n_columns++] = (quire_sim_column){
            .blocks = (uint64_t)list->items[i],
            .memory_bytes = (uint64_t)list->items[i] * grid->opts.kv.block_bytes,
        };
    }
    return QUIRE_OK;
}

static int check(const void *opaque, quire_error *err)
{
    const sim_args *args = opaque;
    quire_sim_grid grid = { 0 };
    quire_sim_classes classes;

    if (args->memory.n > 0 && args->capacities.n > 0) {
        return quire_error_set(err, QUIRE_INVAL, "--capacity and --memory say the same: give one");
    }
    if (args->memory.n > 0 && args->shape == NULL) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--memory needs --model: how large a token's KV is");
    }
    if (args->disk_bytes > 0 && args->disk_blocks > 0) {
        return quire_error_set(err, QUIRE_INVAL, "--disk and --disk-blocks say the same: give one");
    }
    if (args->disk_bytes > 0 && args->shape == NULL) {
        return quire_error_set(err, QUIRE_INVAL, "--disk needs --model: how large a token's KV is");
    }
    if ((args->disk_bytes > 0 || args->disk_blocks > 0) && args->mode == QUIRE_SIM_TIME) {
        return quire_error_set(err, QUIRE_INVAL, "--disk: only with --mode hits");
    }
    if (args->kv.is_auto) {
        return quire_error_set(err, QUIRE_INVAL, "--kv auto: only a loaded model can choose");
    }
    QUIRE_TRY(policies_parse(&grid, args->policies, err));
    return quire_sim_classes_parse(&classes, args->classes, err);
}

/* ---- running ---- */

static void say_trace(const quire_trace *trace, const quire_trace_report *report)
{
    char span[QUIRE_DURATION_TEXT_MAX];

    (void)quire_duration_text(trace->requests[trace->n_requests - 1].time_us, span);
    printf("%s: %" PRIu32 " requests in %s, %" PRIu64 " blocks of %" PRIu32 " tokens, %" PRIu32
           " of them different\n\n",
           quire_trace_format_name(report->format), trace->n_requests, span, trace->n_blocks,
           trace->block_tokens, trace->n_ids);
}

static void say_speed(const quire_sim_grid *grid)
{
    double seconds = 0.0;
    double pages = 0.0;

    for (uint32_t i = 0; i < grid->n_policies * grid->n_columns; i++) {
        seconds += grid->results[i].cpu_s;
        pages += (double)grid->results[i].pages_touched;
    }
    if (grid->n_policies == 0) {
        return; /* Belady's bound alone */
    }
    quire_say("%.2f million pages touched per second of a processor",
              quire_rate(pages, seconds) * 1e-6);
}

/* Write the page; with sizes in bytes if memory was given. */
static int grid_page(const sim_args *args, const quire_sim_grid *grid,
                     const quire_trace_report *report, quire_error *err)
{
    const quire_sim_column *first = &grid->columns[0];
    const char *slash = strrchr(args->trace.path, '/');
    char about[200];
    json_t *page;
    int rc;

    (void)snprintf(about, sizeof(about), "%.120s (%s), mode %s",
                   slash != NULL ? slash + 1 : args->trace.path,
                   quire_trace_format_name(report->format), modes[args->mode]);
    page = quire_sim_report(
        grid, about, first->blocks > 0 ? (double)first->memory_bytes / (double)first->blocks : 0.0);
    rc = quire_report_write(page, args->html, err);
    json_decref(page);
    return rc;
}

static int grid_show(const sim_args *args, const quire_sim_grid *grid,
                     const quire_trace_report *report)
{
    quire_error err = QUIRE_ERROR_INIT;

    say_speed(grid);
    if (args->html != NULL && quire_interrupt_seen()) {
        quire_say("%s is not written: it would have holes", args->html);
    } else if (args->html != NULL && grid_page(args, grid, report, &err) < 0) {
        return quire_say_error(&err, QUIRE_EXIT_FAILED);
    }
    if (args->common.is_json) {
        return quire_stdout_json(quire_sim_grid_json(grid));
    }
    say_trace(grid->trace, report);
    if (args->n_devices > 1) {
        printf("%d devices, each with a cache of the size of its column%s\n\n",
               (int)args->n_devices,
               grid->opts.disk.capacity_blocks > 0 ? "; one disk below all" : "");
    }
    quire_sim_grid_print(grid, stdout);
    return QUIRE_EXIT_OK;
}

static int grid_fill(quire_sim_grid *grid, const sim_args *args, quire_error *err)
{
    uint32_t n_threads =
        args->common.n_threads > 0 ? (uint32_t)args->common.n_threads : quire_cpus_usable();
    uint64_t block_bytes;

    grid->opts.mode = (quire_sim_mode)args->mode;
    grid->opts.n_devices = (uint32_t)args->n_devices;
    grid->opts.seed = (uint64_t)args->trace.seed;
    grid->opts.timeline_points = args->html != NULL ? TIMELINE_POINTS : 0;
    QUIRE_TRY(quire_sim_cost_read(args->cost, &grid->opts.cost, err));
    grid->opts.cost.chunk_tokens = (uint32_t)args->chunk_tokens;
    grid->opts.cost.n_running_max = (uint32_t)args->n_running_max;
    QUIRE_TRY(policies_parse(grid, args->policies, err));
    QUIRE_TRY(shape_make(grid, args, &block_bytes, err));
    QUIRE_TRY(columns_make(grid, args, block_bytes, err));
    QUIRE_TRY(disk_make(grid, args, block_bytes, err));
    return quire_sim_grid_run(grid, n_threads, err);
}

static int run(void *opaque)
{
    const sim_args *args = opaque;
    quire_error err = QUIRE_ERROR_INIT;
    quire_trace_report report;
    quire_trace trace;
    quire_sim_grid grid = { .trace = &trace };
    quire_sim_classes classes;
    int exit_status;
    int rc;

    if ((args->html != NULL && quire_new_file_check(args->html, &err) < 0) ||
        quire_trace_args_read(&args->trace, &trace, &report, &err) < 0) {
        return quire_say_error(&err, QUIRE_EXIT_FAILED);
    }
    quire_interrupt_catch();
    if (quire_sim_classes_parse(&classes, args->classes, &err) < 0 ||
        quire_sim_classes_match(&classes, &trace, &err) < 0) {
        exit_status = quire_say_error(&err, QUIRE_EXIT_USAGE);
    } else {
        grid.opts.classes = classes.list;
        grid.opts.n_classes = classes.n;
        rc = grid_fill(&grid, args, &err);
        exit_status = rc < 0 ? quire_say_error(&err, QUIRE_EXIT_FAILED) : QUIRE_EXIT_OK;
        if (rc == QUIRE_OK || (rc == QUIRE_CANCELED && grid.n_done > 0)) {
            exit_status = grid_show(args, &grid, &report);
        }
    }
    quire_sim_grid_fini(&grid);
    quire_trace_fini(&trace);
    return exit_status;
}

const quire_command quire_command_sim = {
    .name = "sim",
    .usage = "TRACE [--policy P,...] [--capacity N,... | --memory BYTES,... --model SHAPE] "
             "[options]",
    .summary = "Shows which share of a trace caches of given sizes and policies would have "
               "served.",
    .notes = "Hits are blocks of prompts that are served as an unbroken prefix. The simulator runs "
             "the cache\ncode of quire serve, without payloads. docs/simulator.md has the formats "
             "of traces, the cost of\nsteps and examples.\n",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0]),
    .positional = "--trace",
    .args_bytes = sizeof(sim_args),
    .check = check,
    .run = run,
};
