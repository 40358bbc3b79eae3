/* analyze_json.c - quire analyze --json.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/traces/analyze_out.h"

#include "cli/commands/talk.h"

#define BARS_MAX 64u

static json_t *dist_json(const quire_dist *dist)
{
    quire_dist_bar bars[BARS_MAX];
    const uint32_t n = quire_dist_bars(dist, bars, BARS_MAX);
    json_t *list = json_array();

    for (uint32_t i = 0; i < n; i++) {
        if (bars[i].n > 0) {
            json_array_append_new(list, json_pack("[I, I, I]", (json_int_t)bars[i].low,
                                                  (json_int_t)bars[i].high, (json_int_t)bars[i].n));
        }
    }
    return json_pack("{s:I, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "n", (json_int_t)dist->n,
                     "mean", quire_json_real(quire_dist_mean(dist)), "min", (json_int_t)dist->min,
                     "p50", (json_int_t)quire_dist_quantile(dist, 0.5), "p90",
                     (json_int_t)quire_dist_quantile(dist, 0.9), "p95",
                     (json_int_t)quire_dist_quantile(dist, 0.95), "p99",
                     (json_int_t)quire_dist_quantile(dist, 0.99), "max", (json_int_t)dist->max,
                     "bars", list);
}

static json_t *distributions_json(const quire_analysis *n)
{
    const struct {
        const char *name;
        const quire_dist *dist;
    } rows[] = {
        { "prompt_tokens", &n->input },
        { "new_tokens", &n->fresh },
        { "answer_tokens", &n->output },
        { "uses_of_block", &n->uses },
        { "reuse_gap_us", &n->gap_us },
        { "reuse_gap_requests", &n->gap_requests },
        { "session_turns", &n->turns },
        { "session_tokens", &n->session_tokens },
        { "turn_gap_us", &n->turn_gap_us },
        { "requests_at_once", &n->load.running },
        { "tokens_at_once", &n->load.held_tokens },
    };
    json_t *list = json_object();

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_object_set_new(list, rows[i].name, dist_json(rows[i].dist));
    }
    return list;
}

static json_t *load_json(const quire_load *load)
{
    json_t *bins = json_array();

    for (uint32_t i = 0; i < load->n_bins; i++) {
        const quire_load_bin *bin = &load->bins[i];

        json_array_append_new(bins, json_pack("{s:I, s:I, s:I, s:I, s:I}", "requests",
                                              (json_int_t)bin->requests, "prompt_tokens",
                                              (json_int_t)bin->input_tokens, "answer_tokens",
                                              (json_int_t)bin->output_tokens, "at_once_max",
                                              (json_int_t)bin->running_max, "tokens_at_once_max",
                                              (json_int_t)bin->held_tokens_max));
    }
    return json_pack("{s:I, s:o}", "bin_us", (json_int_t)load->bin_us, "bins", bins);
}

static json_t *curve_json(const quire_analyzed *a)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < a->n_capacities; i++) {
        const uint64_t c = a->capacities[i];

        json_array_append_new(
            list, json_pack("{s:I, s:o, s:o}", "capacity_blocks", (json_int_t)c, "hit_rate",
                            quire_json_real(quire_mrc_hit_rate(&a->mrc, c)), "sampled",
                            quire_json_real(quire_shards_hit_rate(a->shards, c))));
    }
    return list;
}

static json_t *shards_json(const quire_analyzed *a)
{
    quire_shards_stats stats;

    quire_shards_stats_get(a->shards, &stats);
    return json_pack("{s:I, s:o, s:o}", "samples", (json_int_t)stats.samples, "rate",
                     quire_json_real(stats.rate), "error_max", quire_json_real(a->shards_error));
}

/* null when the simulations were interrupted before it was made. */
static json_t *recommendation_json(const quire_recommendation *r)
{
    json_t *items;

    if (r->n_items == 0) {
        return json_null();
    }
    items = json_array();
    for (uint32_t i = 0; i < r->n_items; i++) {
        json_array_append_new(
            items, json_pack("{s:s, s:o, s:s}", "key", r->items[i].key, "value",
                             r->items[i].is_comment ? json_null() : json_string(r->items[i].value),
                             "reason", r->items[i].reason));
    }
    return json_pack("{s:I, s:I, s:I, s:I, s:o}", "devices", (json_int_t)r->sizes.n_devices,
                     "capacity_blocks", (json_int_t)r->sizes.capacity_blocks, "live_tokens",
                     (json_int_t)r->sizes.live_tokens, "memory_bytes",
                     (json_int_t)r->sizes.memory_bytes, "settings", items);
}

static json_t *pages_json(const quire_analysis *n)
{
    json_t *list = json_array();

    for (uint32_t p = 0; p < QUIRE_ANALYZE_PAGES; p++) {
        json_array_append_new(
            list, json_pack("{s:I, s:o, s:o}", "page_tokens", (json_int_t)n->pages[p].page_tokens,
                            "lost_share", quire_json_real(n->pages[p].lost_share), "unused_share",
                            quire_json_real(n->pages[p].unused_share)));
    }
    return list;
}

json_t *quire_analyzed_json(const quire_analyzed *a)
{
    const quire_analysis *n = a->analysis;

    return json_pack(
        "{s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:o, s:o, s:o, s:o, "
        "s:o, s:o, s:o}",
        "format", quire_trace_format_name(a->format), "has_contents", (int)n->has_contents,
        "requests", (json_int_t)n->n_requests, "span_us", (json_int_t)n->span_us, "block_tokens",
        (json_int_t)n->block_tokens, "blocks", (json_int_t)n->n_blocks, "different_blocks",
        (json_int_t)n->n_ids, "repeated_blocks", (json_int_t)n->repeated_blocks, "one_time_blocks",
        (json_int_t)n->one_time_ids, "prompt_tokens", (json_int_t)n->input_tokens, "answer_tokens",
        (json_int_t)n->output_tokens, "sessions", (json_int_t)n->n_sessions, "sessions_inferred",
        (int)n->is_inferred, "distributions", distributions_json(n), "load", load_json(&n->load),
        "pages", pages_json(n), "lru", curve_json(a), "sampling", shards_json(a), "policies",
        a->grid.results != NULL ? quire_sim_grid_json(&a->grid) : json_array(), "recommendation",
        recommendation_json(&a->recommendation));
}
