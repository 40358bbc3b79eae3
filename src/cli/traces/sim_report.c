/* sim_report.c - plots of simulations.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/traces/sim_report.h"

#include "cli/traces/report.h"

#include <inttypes.h>

static const quire_report_axis served = { .label = "served", .format = "share" };
static const quire_report_axis over_time = { .label = "time", .format = "seconds" };

static quire_report_axis capacity_axis(void)
{
    return (quire_report_axis){ .label = "capacity of the cache in blocks (logarithmic)",
                                .format = "count",
                                .unit = "blocks",
                                .is_log = true };
}

/* A figure of one row for each capacity, in ascending order. */
static void add_figures(json_t *points, const quire_sim_grid *grid, uint32_t row,
                        double (*figure)(const quire_sim_result *result))
{
    uint64_t done = 0;

    for (uint32_t i = 0; i < grid->n_columns; i++) {
        uint32_t next = grid->n_columns;

        for (uint32_t c = 0; c < grid->n_columns; c++) {
            if (grid->columns[c].blocks > done &&
                (next == grid->n_columns || grid->columns[c].blocks < grid->columns[next].blocks)) {
                next = c;
            }
        }
        if (next < grid->n_columns) {
            done = grid->columns[next].blocks;
            quire_report_point(points, (double)done, figure(quire_sim_grid_at(grid, row, next)));
        }
    }
}

/* A series of one row. */
static void add_row(json_t *plot, const quire_sim_grid *grid, uint32_t row,
                    double (*figure)(const quire_sim_result *result))
{
    const bool is_bound = row == grid->n_policies;
    const bool is_ours = !is_bound && grid->policies[row] == QUIRE_EVICT_DEFAULT;
    json_t *points =
        quire_report_series(plot, is_bound ? "Belady" : quire_sim_grid_row_name(grid, row),
                            is_bound  ? "bound"
                            : is_ours ? "strong"
                                      : "");

    add_figures(points, grid, row, figure);
}

json_t *quire_sim_report_curves(json_t *report, const quire_sim_grid *grid, double block_bytes)
{
    const quire_report_axis x = capacity_axis();
    char note[200];
    json_t *plot;

    (void)snprintf(note, sizeof(note),
                   "Share of prompt blocks served from the cache as an unbroken prefix. A block is "
                   "%" PRIu32 " tokens. Belady's bound knows the future.",
                   grid->trace->block_tokens);
    plot = quire_report_plot(
        report, "lines",
        &(quire_report_head){ "policies", "Hit rate by size and policy", note, "" }, &x, &served);
    if (block_bytes > 0.0) {
        json_object_set_new(json_object_get(plot, "x"), "bytes_per", json_real(block_bytes));
    }
    for (uint32_t row = 0; row <= grid->n_policies; row++) {
        add_row(plot, grid, row, quire_sim_hit_rate);
    }
    return plot;
}

void quire_sim_report_table(json_t *report, const quire_sim_grid *grid)
{
    json_t *rows = quire_report_table(
        report, &(quire_report_head){ "hit-rates", "The same curves as figures, %", NULL, "" });
    json_t *row = json_pack("[s]", "blocks");

    for (uint32_t c = 0; c < grid->n_columns; c++) {
        json_array_append_new(row, json_sprintf("%" PRIu64, grid->columns[c].blocks));
    }
    json_array_append_new(rows, row);
    for (uint32_t r = 0; r <= grid->n_policies; r++) {
        row = json_pack("[s]", quire_sim_grid_row_name(grid, r));
        for (uint32_t c = 0; c < grid->n_columns; c++) {
            json_array_append_new(
                row,
                json_sprintf("%.2f", 100.0 * quire_sim_hit_rate(quire_sim_grid_at(grid, r, c))));
        }
        json_array_append_new(rows, row);
    }
}

/* ---- over time ---- */

/* Blocks in regions: of requests and cached in the dynamic region, of all kinds in pinned
 * regions. */
typedef struct regions {
    double live, cached, pinned;
} regions;

static regions regions_of(const quire_sim_point *point)
{
    const uint64_t all = point->live_blocks + point->cached_blocks;
    const uint64_t pinned = point->pinned_blocks < all ? point->pinned_blocks : all;
    const uint64_t dynamic = all - pinned;
    const uint64_t live = point->live_blocks < dynamic ? point->live_blocks : dynamic;

    return (regions){ (double)live, (double)(dynamic - live), (double)pinned };
}

void quire_sim_report_timeline(json_t *report, const quire_sim_result *result, const char *what)
{
    const quire_report_axis blocks = { .label = "blocks", .format = "count", .unit = "blocks" };
    char note[200];
    json_t *plot;
    json_t *live;
    json_t *cached;
    json_t *pinned;
    json_t *hits;

    (void)snprintf(note, sizeof(note),
                   "Blocks by region, %s: held by requests, cached, and charged "
                   "to pinned regions.",
                   what);
    plot = quire_report_plot(report, "stacked",
                             &(quire_report_head){ "regions", "Memory over time", note, "half" },
                             &over_time, &blocks);
    live = quire_report_series(plot, "in use", "");
    cached = quire_report_series(plot, "cached", "");
    pinned = quire_report_series(plot, "pinned region", "");
    plot = quire_report_plot(report, "lines",
                             &(quire_report_head){ "hits-over-time", "Hit rate over time",
                                                   "Of the same run, between two points of it.",
                                                   "half" },
                             &over_time, &served);
    hits = quire_report_series(plot, "served", "strong");
    for (uint32_t i = 0; i < result->n_points; i++) {
        const double time_s = (double)result->timeline[i].time_us * 1e-6;
        const regions r = regions_of(&result->timeline[i]);

        quire_report_point(live, time_s, r.live);
        quire_report_point(cached, time_s, r.cached);
        quire_report_point(pinned, time_s, r.pinned);
        quire_report_point(hits, time_s, result->timeline[i].hit_rate);
    }
}

/* ---- quire sim ---- */

static double ttft_p95_s(const quire_sim_result *result)
{
    return result->ttft.p95_us * 1e-6;
}

static double queued_p95_s(const quire_sim_result *result)
{
    return result->queued.p95_us * 1e-6;
}

static void add_latency(json_t *report, const quire_sim_grid *grid)
{
    static const struct {
        quire_report_head head;
        double (*figure)(const quire_sim_result *result);
    } plots[] = {
        { { "ttft", "Time to the first token, p95", NULL, "half" }, ttft_p95_s },
        { { "queued", "Time in the queue, p95", NULL, "half" }, queued_p95_s },
    };
    const quire_report_axis x = capacity_axis();
    const quire_report_axis y = { .label = "time", .format = "seconds" };

    for (size_t i = 0; i < sizeof(plots) / sizeof(plots[0]); i++) {
        json_t *plot = quire_report_plot(report, "lines", &plots[i].head, &x, &y);

        for (uint32_t row = 0; row < grid->n_policies; row++) {
            add_row(plot, grid, row, plots[i].figure);
        }
    }
}

static double memory_rate(const quire_sim_result *r)
{
    return r->blocks > 0 ? (double)(r->hit_blocks - r->disk_hit_blocks) / (double)r->blocks : 0.0;
}

static double disk_rate(const quire_sim_result *r)
{
    return r->blocks > 0 ? (double)r->disk_hit_blocks / (double)r->blocks : 0.0;
}

/* Hits of the first policy by tier. */
static void add_tiers(json_t *report, const quire_sim_grid *grid)
{
    const quire_report_axis x = capacity_axis();
    char note[200];
    json_t *plot;

    (void)snprintf(note, sizeof(note),
                   "Share of prompt blocks served, policy %s, with a disk of %" PRIu64
                   " blocks. Belady's bound above counts memory and disk as one.",
                   quire_sim_grid_row_name(grid, 0), grid->opts.disk.capacity_blocks);
    plot = quire_report_plot(
        report, "stacked",
        &(quire_report_head){ "tiers", "Hits from memory and from disk", note, "" }, &x, &served);
    add_figures(quire_report_series(plot, "from memory", ""), grid, 0, memory_rate);
    add_figures(quire_report_series(plot, "from disk", ""), grid, 0, disk_rate);
}

json_t *quire_sim_report(const quire_sim_grid *grid, const char *about, double block_bytes)
{
    json_t *report = quire_report_new("What caches would have served", about);
    const uint32_t last = grid->n_columns - 1;
    char what[96];

    (void)quire_sim_report_curves(report, grid, block_bytes);
    if (grid->opts.disk.capacity_blocks > 0 && grid->n_policies > 0) {
        add_tiers(report, grid);
    }
    if (grid->opts.mode == QUIRE_SIM_TIME) {
        add_latency(report, grid);
    }
    (void)snprintf(what, sizeof(what), "policy %s, %" PRIu64 " blocks",
                   quire_sim_grid_row_name(grid, 0), grid->columns[last].blocks);
    quire_sim_report_timeline(report, quire_sim_grid_at(grid, 0, last), what);
    quire_sim_report_table(report, grid);
    return report;
}
