/* analyze_report.c - the page of `quire analyze --html`.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/analyze_out.h"

#include "base/parse.h"
#include "cli/report.h"
#include "trace/duration.h"

#include <inttypes.h>

#define CURVE_POINTS 120u

/* ---- tiles ---- */

typedef struct words {
    char value[48];
    char note[160];
} words;

static void add_tiles(json_t *report, const quire_analyzed *a)
{
    const quire_analysis *n = a->analysis;
    const quire_recommendation *r = &a->recommendation;
    char text[16];
    char span[QUIRE_DURATION_TEXT_MAX];
    words w;

    (void)snprintf(w.value, sizeof(w.value), "%" PRIu32, n->n_requests);
    (void)snprintf(w.note, sizeof(w.note), "in %s; %.3g million prompt tokens",
                   quire_duration_text(n->span_us, span), (double)n->input_tokens * 1e-6);
    quire_report_tile(report, "Requests", w.value, w.note);
    (void)snprintf(w.value, sizeof(w.value), "%" PRIu64, quire_dist_quantile(&n->input, 0.5));
    (void)snprintf(w.note, sizeof(w.note), "p99 %" PRIu64 "; answers %" PRIu64 ", %" PRIu64,
                   quire_dist_quantile(&n->input, 0.99), quire_dist_quantile(&n->output, 0.5),
                   quire_dist_quantile(&n->output, 0.99));
    quire_report_tile(report, "Prompt tokens, p50", w.value, w.note);
    if (n->has_contents) {
        (void)snprintf(w.value, sizeof(w.value), "%.1f %%",
                       100.0 * (double)n->repeated_blocks / (double)n->n_blocks);
        (void)snprintf(w.note, sizeof(w.note), "of the blocks; %.0f %% of the different ones once",
                       100.0 * (double)n->one_time_ids / n->n_ids);
        quire_report_tile(report, "Asked for again", w.value, w.note);
        (void)snprintf(w.value, sizeof(w.value), "%" PRIu32, n->n_sessions);
        (void)snprintf(w.note, sizeof(w.note), "%.2f turns on average, at most %" PRIu64 "%s",
                       quire_dist_mean(&n->turns), n->turns.max,
                       n->is_inferred ? "; inferred" : "");
        quire_report_tile(report, "Sessions", w.value, w.note);
    }
    (void)snprintf(w.value, sizeof(w.value), "%" PRIu64,
                   quire_dist_quantile(&n->load.running, 0.99));
    (void)snprintf(w.note, sizeof(w.note), "they hold %" PRIu64 " tokens", r->sizes.live_tokens);
    quire_report_tile(report, "At once, p99", w.value, w.note);
    if (n->has_contents) {
        (void)snprintf(w.value, sizeof(w.value), "%s",
                       r->sizes.memory_bytes > 0
                           ? quire_format_bytes(r->sizes.memory_bytes, text, sizeof(text))
                           : "see below");
        (void)snprintf(w.note, sizeof(w.note), "%" PRIu64 " blocks, policy %s",
                       r->sizes.capacity_blocks, quire_evict_policy_name(r->policy));
        quire_report_tile(report, "Recommended", w.value, w.note);
    }
}

/* ---- curves ---- */

static const char *policy_note(quire_evict_policy policy)
{
    return policy == QUIRE_EVICT_DEFAULT ? "strong" : "";
}

static void add_policies(json_t *report, const quire_analyzed *a)
{
    const quire_report_axis x = { .label = "capacity of the cache in blocks (logarithmic)",
                                  .format = "count",
                                  .unit = "blocks",
                                  .is_log = true };
    const quire_report_axis y = { .label = "served", .format = "share" };
    char note[200];
    json_t *plot;

    (void)snprintf(note, sizeof(note),
                   "Share of prompt blocks served from the cache as an unbroken prefix, by the "
                   "simulator. A block is %" PRIu32 " tokens. Belady's bound knows the future.",
                   a->analysis->block_tokens);
    plot = quire_report_plot(
        report, "lines",
        &(quire_report_head){ "policies", "Hit rate by size and policy", note, "" }, &x, &y);
    if (a->token_bytes > 0.0) {
        json_object_set_new(json_object_get(plot, "x"), "bytes_per",
                            json_real(a->token_bytes * a->analysis->block_tokens));
    }
    for (uint32_t row = 0; row <= a->grid.n_policies; row++) {
        json_t *points = quire_report_series(
            plot, row < a->grid.n_policies ? quire_sim_grid_row_name(&a->grid, row) : "Belady",
            row < a->grid.n_policies ? policy_note(a->grid.policies[row]) : "bound");

        for (uint32_t c = 0; c < a->grid.n_columns; c++) {
            quire_report_point(points, (double)a->grid.columns[c].blocks,
                               quire_sim_hit_rate(quire_sim_grid_at(&a->grid, row, c)));
        }
    }
    quire_report_mark(plot, "recommended", (double)a->recommendation.sizes.capacity_blocks);
}

static void add_lru(json_t *report, const quire_analyzed *a)
{
    const quire_report_axis x = { .label = "capacity of the cache in blocks (linear)",
                                  .format = "count",
                                  .unit = "blocks" };
    const quire_report_axis y = { .label = "served", .format = "share" };
    quire_shards_stats stats;
    char note[200];
    json_t *plot;
    json_t *exact;
    json_t *sampled;

    quire_shards_stats_get(a->shards, &stats);
    (void)snprintf(note, sizeof(note),
                   "Exact, and from a sample of %" PRIu32
                   " blocks (%.1f %% of all): at most %.2f points apart. The knee is where more "
                   "begins to bring less.",
                   stats.samples, 100.0 * stats.rate, 100.0 * a->shards_error);
    plot = quire_report_plot(
        report, "lines", &(quire_report_head){ "lru", "LRU at every size", note, "half" }, &x, &y);
    exact = quire_report_series(plot, "exact", "strong");
    sampled = quire_report_series(plot, "sampled (SHARDS)", "");
    for (uint32_t i = 0; i <= CURVE_POINTS; i++) {
        const uint64_t c = (uint64_t)a->analysis->n_ids * i / CURVE_POINTS;

        quire_report_point(exact, (double)c, quire_mrc_hit_rate(&a->mrc, c));
        quire_report_point(sampled, (double)c, quire_shards_hit_rate(a->shards, c));
    }
    quire_report_mark(plot, "knee", (double)quire_mrc_knee(&a->mrc));
}

static void add_timeline(json_t *report, const quire_analyzed *a)
{
    const quire_report_axis x = { .label = "time", .format = "seconds" };
    const quire_report_axis y = { .label = "blocks", .format = "count", .unit = "blocks" };
    static const char *const names[] = { "in use", "cached", "pinned region" };
    const quire_sim_result *t = &a->timeline;
    char note[200];
    json_t *plot;

    (void)snprintf(note, sizeof(note),
                   "Blocks of the regions over virtual time, policy default, %" PRIu64
                   " blocks: what requests hold, what is cached, and what pinned regions are "
                   "charged for.",
                   a->recommendation.sizes.capacity_blocks);
    plot = quire_report_plot(report, "stacked",
                             &(quire_report_head){ "regions", "Memory over time", note, "half" },
                             &x, &y);
    for (uint32_t s = 0; s < sizeof(names) / sizeof(names[0]); s++) {
        json_t *points = quire_report_series(plot, names[s], "");

        for (uint32_t i = 0; i < t->n_points; i++) {
            const quire_sim_point *p = &t->timeline[i];
            const uint64_t all = p->live_blocks + p->cached_blocks;
            const uint64_t pinned = p->pinned_blocks < all ? p->pinned_blocks : all;
            const uint64_t dynamic = all - pinned;
            const uint64_t live = p->live_blocks < dynamic ? p->live_blocks : dynamic;

            quire_report_point(points, (double)p->time_us * 1e-6,
                               (double)(s == 0   ? live
                                        : s == 1 ? dynamic - live
                                                 : pinned));
        }
    }
}

static void add_hits_over_time(json_t *report, const quire_analyzed *a)
{
    const quire_report_axis x = { .label = "time", .format = "seconds" };
    const quire_report_axis y = { .label = "served", .format = "share" };
    json_t *points = quire_report_series(
        quire_report_plot(report, "lines",
                          &(quire_report_head){ "hits-over-time", "Hit rate over time",
                                                "Of the same run, between two points of it.",
                                                "third" },
                          &x, &y),
        "served", "strong");

    for (uint32_t i = 1; i < a->timeline.n_points; i++) {
        quire_report_point(points, (double)a->timeline.timeline[i].time_us * 1e-6,
                           a->timeline.timeline[i].hit_rate);
    }
}

/* ---- load ---- */

static void add_load(json_t *report, const quire_load *load)
{
    const quire_report_axis x = { .label = "time", .format = "seconds" };
    const quire_report_axis rate = { .label = "requests/s", .format = "count" };
    const quire_report_axis tokens = { .label = "tokens", .format = "count", .unit = "tokens" };
    json_t *arrivals = quire_report_series(
        quire_report_plot(
            report, "lines",
            &(quire_report_head){ "arrivals", "Arrivals, requests per second", NULL, "third" }, &x,
            &rate),
        "requests/s", "strong");
    json_t *held = quire_report_series(
        quire_report_plot(report, "lines",
                          &(quire_report_head){ "held", "Tokens held by requests at once",
                                                "If nobody waits, and computing takes what it was "
                                                "said to take.",
                                                "third" },
                          &x, &tokens),
        "most in its interval", "strong");
    const double width_s = (double)load->bin_us * 1e-6;

    for (uint32_t i = 0; i < load->n_bins; i++) {
        quire_report_point(arrivals, i * width_s, (double)load->bins[i].requests / width_s);
        quire_report_point(held, i * width_s, (double)load->bins[i].held_tokens_max);
    }
}

/* ---- distributions ---- */

static void add_dists(json_t *report, const quire_analysis *n)
{
    const quire_report_axis tokens = {
        .label = "tokens (logarithmic)", .format = "count", .unit = "tokens", .is_log = true
    };
    const quire_report_axis time = { .label = "time (logarithmic)",
                                     .format = "seconds",
                                     .is_log = true };
    const quire_report_axis times = {
        .label = "requests (logarithmic)", .format = "count", .unit = "requests", .is_log = true
    };
    const quire_report_axis turns = {
        .label = "turns (logarithmic)", .format = "count", .unit = "turns", .is_log = true
    };
    const struct {
        quire_report_head head;
        const quire_report_axis *axis;
        const quire_dist *dist;
        double unit;
    } rows[] = {
        { { "prompts", "Length of prompts", NULL, "third" }, &tokens, &n->input, 1.0 },
        { { "new", "New tokens of prompts", NULL, "third" }, &tokens, &n->fresh, 1.0 },
        { { "answers", "Length of answers", NULL, "third" }, &tokens, &n->output, 1.0 },
        { { "uses", "Requests that hold a block", NULL, "third" }, &times, &n->uses, 1.0 },
        { { "gaps", "Time until a block is used again", NULL, "third" }, &time, &n->gap_us, 1e6 },
        { { "gap-requests", "Requests until a block is used again", NULL, "third" },
          &times,
          &n->gap_requests,
          1.0 },
        { { "turns", "Turns of a session", NULL, "third" }, &turns, &n->turns, 1.0 },
        { { "turn-gaps", "Time between turns", NULL, "third" }, &time, &n->turn_gap_us, 1e6 },
        { { "session-tokens", "Tokens of a session at its end", NULL, "third" },
          &tokens,
          &n->session_tokens,
          1.0 },
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].dist->n > 0) {
            quire_report_dist(report, &rows[i].head, rows[i].axis, rows[i].dist, rows[i].unit);
        }
    }
}

/* ---- tables ---- */

static void add_policy_table(json_t *report, const quire_analyzed *a)
{
    json_t *rows = quire_report_table(
        report, &(quire_report_head){ "hit-rates", "The same curves as figures, %", NULL, "" });
    json_t *row = json_pack("[s]", "blocks");

    for (uint32_t c = 0; c < a->grid.n_columns; c++) {
        json_array_append_new(row, json_sprintf("%" PRIu64, a->grid.columns[c].blocks));
    }
    json_array_append_new(rows, row);
    for (uint32_t r = 0; r <= a->grid.n_policies; r++) {
        row = json_pack("[s]", quire_sim_grid_row_name(&a->grid, r));
        for (uint32_t c = 0; c < a->grid.n_columns; c++) {
            json_array_append_new(
                row, json_sprintf("%.2f",
                                  100.0 * quire_sim_hit_rate(quire_sim_grid_at(&a->grid, r, c))));
        }
        json_array_append_new(rows, row);
    }
}

json_t *quire_analyzed_report(const quire_analyzed *a, const char *yaml)
{
    char about[256];
    json_t *report = quire_report_new("What this workload is like",
                                      quire_analyzed_title(a, about, sizeof(about)));

    add_tiles(report, a);
    if (a->grid.results != NULL) {
        add_policies(report, a);
        add_lru(report, a);
        add_timeline(report, a);
        add_hits_over_time(report, a);
    }
    add_load(report, &a->analysis->load);
    add_dists(report, a->analysis);
    quire_report_text(report,
                      &(quire_report_head){ "yaml", "Recommended settings",
                                            "For quire serve --config; each value says why.", "" },
                      yaml);
    if (a->grid.results != NULL) {
        add_policy_table(report, a);
    }
    return report;
}
