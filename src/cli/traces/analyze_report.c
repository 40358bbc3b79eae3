/* analyze_report.c - the page of `quire analyze --html`.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/traces/analyze_out.h"

#include "base/parse.h"
#include "cli/traces/report.h"
#include "cli/traces/sim_report.h"
#include "trace/duration.h"

#include <inttypes.h>
#include <string.h>

#define CURVE_POINTS 120u

/* ---- tiles ---- */

typedef struct words {
    char value[48];
    char note[160];
} words;

/* As the recommended settings have it. */
static const char *kv_budget(const quire_recommendation *r)
{
    for (uint32_t i = 0; i < r->n_items; i++) {
        if (strcmp(r->items[i].key, "kv_budget") == 0 && !r->items[i].is_comment) {
            return r->items[i].value;
        }
    }
    return "see below";
}

static void add_tiles(json_t *report, const quire_analyzed *a)
{
    const quire_analysis *n = a->analysis;
    const quire_recommendation *r = &a->recommendation;
    char span[QUIRE_DURATION_TEXT_MAX];
    words w;

    (void)snprintf(w.value, sizeof(w.value), "%" PRIu32, n->n_requests);
    (void)snprintf(w.note, sizeof(w.note), "in %s; %.3g million prompt tokens",
                   quire_duration_text(n->span_us, span), (double)n->input_tokens * 1e-6);
    quire_report_tile(report, "Requests", w.value, w.note);
    (void)snprintf(w.value, sizeof(w.value), "%" PRIu64, quire_dist_quantile(&n->input, 0.5));
    (void)snprintf(w.note, sizeof(w.note), "p99 %" PRIu64 "; answers p50 %" PRIu64 ", p99 %" PRIu64,
                   quire_dist_quantile(&n->input, 0.99), quire_dist_quantile(&n->output, 0.5),
                   quire_dist_quantile(&n->output, 0.99));
    quire_report_tile(report, "Prompt tokens, p50", w.value, w.note);
    if (n->has_contents) {
        (void)snprintf(w.value, sizeof(w.value), "%.1f %%",
                       n->n_blocks > 0 ? 100.0 * (double)n->repeated_blocks / (double)n->n_blocks
                                       : 0.0);
        (void)snprintf(w.note, sizeof(w.note), "of the blocks; %.0f %% of the different ones once",
                       n->n_ids > 0 ? 100.0 * (double)n->one_time_ids / n->n_ids : 0.0);
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
        (void)snprintf(w.value, sizeof(w.value), "%s", kv_budget(r));
        (void)snprintf(w.note, sizeof(w.note), "%" PRIu64 " blocks%s, policy %s",
                       r->sizes.capacity_blocks, r->sizes.n_devices > 1 ? " on each device" : "",
                       quire_evict_policy_name(r->policy));
        quire_report_tile(report, "Recommended", w.value, w.note);
    }
}

/* ---- curves ---- */

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
        report, "lines", &(quire_report_head){ "lru", "LRU at every size", note, "third" }, &x, &y);
    exact = quire_report_series(plot, "exact", "strong");
    sampled = quire_report_series(plot, "sampled (SHARDS)", "bound");
    for (uint32_t i = 0; i <= CURVE_POINTS; i++) {
        const uint64_t c = (uint64_t)a->analysis->n_ids * i / CURVE_POINTS;

        quire_report_point(exact, (double)c, quire_mrc_hit_rate(&a->mrc, c));
        quire_report_point(sampled, (double)c, quire_shards_hit_rate(a->shards, c));
    }
    quire_report_mark(plot, "knee", (double)quire_mrc_knee(&a->mrc));
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
                                                "If nobody waits, and computing is as fast as the "
                                                "options say.",
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

/* ---- all ---- */

/* The simulator's results. */
static void add_simulated(json_t *report, const quire_analyzed *a)
{
    const double capacity = (double)a->recommendation.sizes.capacity_blocks;
    char what[96];
    json_t *plot = quire_sim_report_curves(report, &a->grid, a->block_bytes);

    quire_report_mark(plot, "recommended", capacity);
    (void)snprintf(what, sizeof(what), "policy default, %.0f blocks and what runs at once",
                   capacity);
    quire_sim_report_timeline(report, &a->timeline, what);
}

json_t *quire_analyzed_report(const quire_analyzed *a, const char *yaml)
{
    char about[256];
    json_t *report = quire_report_new("What this workload is like",
                                      quire_analyzed_title(a, about, sizeof(about)));

    add_tiles(report, a);
    if (a->grid.results != NULL) {
        add_simulated(report, a);
        add_lru(report, a);
    }
    add_load(report, &a->analysis->load);
    add_dists(report, a->analysis);
    quire_report_text(report,
                      &(quire_report_head){ "yaml", "Recommended settings",
                                            "For quire serve --config; each value says why.", "" },
                      yaml);
    if (a->grid.results != NULL) {
        quire_sim_report_table(report, &a->grid);
    }
    return report;
}
