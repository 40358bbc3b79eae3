/* sim_print.c - a grid as a table for people and as JSON.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/traces/sim_grid.h"

#include "base/parse.h"
#include "cli/commands/talk.h"

#include <inttypes.h>

/* The simulations that have a figure. */
typedef enum figure_of {
    OF_ALL,
    OF_DISK,   /* with a disk */
    OF_STATES, /* with states */
    OF_DEVICES /* with several devices */
} figure_of;

/* One figure of every cell. */
typedef struct figure {
    const char *title;
    double (*get)(const quire_sim_result *result);
    int decimals;
    figure_of of;
    bool is_of_belady; /* the bound has it too */
} figure;

static double percent(uint64_t part, uint64_t whole)
{
    return whole > 0 ? 100.0 * (double)part / (double)whole : 0.0;
}

static double hit_percent(const quire_sim_result *r)
{
    return 100.0 * quire_sim_hit_rate(r);
}

static double memory_hit_percent(const quire_sim_result *r)
{
    return percent(r->hit_blocks - r->disk_hit_blocks, r->blocks);
}

static double disk_hit_percent(const quire_sim_result *r)
{
    return percent(r->disk_hit_blocks, r->blocks);
}

static double disk_skipped(const quire_sim_result *r)
{
    return (double)r->disk_skipped_blocks;
}

static double disk_written(const quire_sim_result *r)
{
    return (double)r->disk_written_blocks;
}

static double disk_carried(const quire_sim_result *r)
{
    return (double)r->disk_carried_blocks;
}

static double hit_token_percent(const quire_sim_result *r)
{
    return r->tokens > 0 ? 100.0 * (double)r->hit_tokens / (double)r->tokens : 0.0;
}

static double regret_percent(const quire_sim_result *r)
{
    return r->blocks > 0 ? 100.0 * (double)r->regret_blocks / (double)r->blocks : 0.0;
}

static double evictions(const quire_sim_result *r)
{
    return (double)r->evictions;
}

static double states_left(const quire_sim_result *r)
{
    return (double)r->states_left;
}

static double ttft_p50(const quire_sim_result *r)
{
    return r->ttft.p50_us * 1e-3;
}

static double ttft_p95(const quire_sim_result *r)
{
    return r->ttft.p95_us * 1e-3;
}

static double queued_p95(const quire_sim_result *r)
{
    return r->queued.p95_us * 1e-3;
}

static double makespan_s(const quire_sim_result *r)
{
    return r->makespan_us * 1e-6;
}

static double busy_percent(const quire_sim_result *r)
{
    return r->makespan_us > 0.0 ? 100.0 * r->busy_us / (r->makespan_us * r->n_devices) : 0.0;
}

static double busiest_percent(const quire_sim_result *r)
{
    return r->makespan_us > 0.0 ? 100.0 * r->busiest_us / r->makespan_us : 0.0;
}

static double busiest_blocks(const quire_sim_result *r)
{
    return (double)r->busiest_blocks;
}

static double preemptions(const quire_sim_result *r)
{
    return (double)r->preemptions;
}

static double refused(const quire_sim_result *r)
{
    return (double)r->refused;
}

static const figure of_hits[] = {
    { "hits, % of prompt blocks", hit_percent, 1, OF_ALL, true },
    { "hits from memory, % of prompt blocks", memory_hit_percent, 1, OF_DISK, false },
    { "hits from disk, % of prompt blocks", disk_hit_percent, 1, OF_DISK, false },
    { "hits, % of prompt tokens", hit_token_percent, 1, OF_ALL, true },
    { "asked for again after eviction, % of prompt blocks", regret_percent, 1, OF_ALL, false },
    { "evictions, blocks", evictions, 0, OF_ALL, false },
    { "computed by the busiest device, blocks", busiest_blocks, 0, OF_DEVICES, false },
    { "states left in the cache", states_left, 0, OF_STATES, false },
    { "on disk, but faster to compute, blocks", disk_skipped, 0, OF_DISK, false },
    { "written to disk, blocks", disk_written, 0, OF_DISK, false },
    { "of the disk's log carried forward, blocks", disk_carried, 0, OF_DISK, false },
};

static const figure of_time[] = {
    { "hits, % of prompt blocks", hit_percent, 1, OF_ALL, true },
    { "time to first token, median, ms", ttft_p50, 0, OF_ALL, false },
    { "time to first token, 95 %, ms", ttft_p95, 0, OF_ALL, false },
    { "waited in the queue, 95 %, ms", queued_p95, 0, OF_ALL, false },
    { "until the last token, s", makespan_s, 0, OF_ALL, false },
    { "busy, % of the time", busy_percent, 1, OF_ALL, false },
    { "busy, % of the time, the busiest device", busiest_percent, 1, OF_DEVICES, false },
    { "preemptions", preemptions, 0, OF_ALL, false },
    { "never fitted", refused, 0, OF_ALL, false },
    { "evictions, blocks", evictions, 0, OF_ALL, false },
    { "states left in the cache", states_left, 0, OF_STATES, false },
};

static bool has_figure(const quire_sim_grid *grid, const figure *f)
{
    switch (f->of) {
    case OF_DISK:
        return grid->opts.disk.capacity_blocks > 0;
    case OF_STATES:
        return grid->opts.kv.state_bytes > 0;
    case OF_DEVICES:
        return grid->opts.n_devices > 1;
    case OF_ALL:
    default:
        return true;
    }
}

static void figure_print(const quire_sim_grid *grid, const figure *f, FILE *out)
{
    uint32_t n_rows = grid->n_policies + f->is_of_belady;

    fprintf(out, "\n%s\n", f->title);
    for (uint32_t row = 0; row < n_rows; row++) {
        if (quire_sim_grid_row_done(grid, row) == 0) {
            continue; /* interrupted */
        }
        fprintf(out, "  %-10s", quire_sim_grid_row_name(grid, row));
        for (uint32_t column = 0; column < grid->n_columns; column++) {
            if (quire_sim_grid_has(grid, row, column)) {
                fprintf(out, "%9.*f", f->decimals, f->get(quire_sim_grid_at(grid, row, column)));
            } else {
                fprintf(out, "%9s", "-");
            }
        }
        fprintf(out, "%s\n", row == grid->n_policies ? "   (the bound)" : "");
    }
}

void quire_sim_grid_print(const quire_sim_grid *grid, FILE *out)
{
    const bool is_time = grid->opts.mode == QUIRE_SIM_TIME;
    const figure *figures = is_time ? of_time : of_hits;
    size_t n_figures =
        is_time ? sizeof(of_time) / sizeof(of_time[0]) : sizeof(of_hits) / sizeof(of_hits[0]);
    char text[16];

    fprintf(out, "%-12s", "blocks");
    for (uint32_t column = 0; column < grid->n_columns; column++) {
        fprintf(out, "%9" PRIu64, grid->columns[column].blocks);
    }
    if (grid->columns[0].memory_bytes > 0) {
        fprintf(out, "\n%-12s", "memory");
        for (uint32_t column = 0; column < grid->n_columns; column++) {
            fprintf(out, "%9s",
                    quire_format_bytes(grid->columns[column].memory_bytes, text, sizeof(text)));
        }
    }
    fprintf(out, "\n");
    for (size_t i = 0; i < n_figures; i++) {
        if (has_figure(grid, &figures[i])) {
            figure_print(grid, &figures[i], out);
        }
    }
}

/* ---- JSON ---- */

static json_t *latency_json(const quire_sim_latency *latency)
{
    return json_pack("{s:o, s:o, s:o, s:o}", "mean_us", quire_json_real(latency->mean_us), "p50_us",
                     quire_json_real(latency->p50_us), "p95_us", quire_json_real(latency->p95_us),
                     "p99_us", quire_json_real(latency->p99_us));
}

static void set(json_t *object, const char *name, json_t *value)
{
    (void)json_object_set_new(object, name, value);
}

static json_t *cell_json(const quire_sim_grid *grid, uint32_t row, uint32_t column)
{
    const quire_sim_result *r = quire_sim_grid_at(grid, row, column);
    const quire_sim_column *at = &grid->columns[column];
    json_t *cell =
        json_pack("{s:s, s:I, s:o, s:o, s:I, s:I, s:I, s:I}", "policy",
                  quire_sim_grid_row_name(grid, row), "capacity_blocks", (json_int_t)at->blocks,
                  "hit_rate", quire_json_real(quire_sim_hit_rate(r)), "token_hit_rate",
                  quire_json_real(hit_token_percent(r) * 0.01), "requests", (json_int_t)r->requests,
                  "blocks", (json_int_t)r->blocks, "hit_blocks", (json_int_t)r->hit_blocks,
                  "evictions", (json_int_t)r->evictions);

    if (at->memory_bytes > 0) {
        set(cell, "memory_bytes", json_integer((json_int_t)at->memory_bytes));
    }
    if (grid->opts.n_devices > 1) {
        set(cell, "devices", json_integer((json_int_t)grid->opts.n_devices));
        if (row < grid->n_policies) {
            set(cell, "busiest_blocks", json_integer((json_int_t)r->busiest_blocks));
        }
    }
    if (grid->opts.disk.capacity_blocks > 0) {
        set(cell, "disk_blocks", json_integer((json_int_t)grid->opts.disk.capacity_blocks));
    }
    if (grid->opts.disk.capacity_blocks > 0 && row < grid->n_policies) {
        set(cell, "disk_hit_blocks", json_integer((json_int_t)r->disk_hit_blocks));
        set(cell, "disk_skipped_blocks", json_integer((json_int_t)r->disk_skipped_blocks));
        set(cell, "disk_written_blocks", json_integer((json_int_t)r->disk_written_blocks));
        set(cell, "disk_carried_blocks", json_integer((json_int_t)r->disk_carried_blocks));
    }
    if (grid->opts.kv.state_bytes > 0 && row < grid->n_policies) {
        set(cell, "states_left", json_integer((json_int_t)r->states_left));
    }
    if (row < grid->n_policies) {
        set(cell, "regret_blocks", json_integer((json_int_t)r->regret_blocks));
    }
    if (row < grid->n_policies && grid->opts.mode == QUIRE_SIM_TIME) {
        set(cell, "ttft", latency_json(&r->ttft));
        set(cell, "queued", latency_json(&r->queued));
        set(cell, "makespan_us", quire_json_real(r->makespan_us));
        set(cell, "busy_us", quire_json_real(r->busy_us));
        set(cell, "busiest_us", quire_json_real(r->busiest_us));
        set(cell, "preemptions", json_integer((json_int_t)r->preemptions));
        set(cell, "refused", json_integer((json_int_t)r->refused));
    }
    return cell;
}

json_t *quire_sim_grid_json(const quire_sim_grid *grid)
{
    json_t *cells = json_array();

    for (uint32_t row = 0; row <= grid->n_policies; row++) {
        for (uint32_t column = 0; column < grid->n_columns; column++) {
            if (quire_sim_grid_has(grid, row, column) && /* else interrupted */
                json_array_append_new(cells, cell_json(grid, row, column)) < 0) {
                json_decref(cells);
                return NULL;
            }
        }
    }
    return cells;
}
