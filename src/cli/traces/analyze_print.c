/* analyze_print.c - the output of `quire analyze` for people.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/traces/analyze_out.h"

#include "base/parse.h"
#include "trace/duration.h"

#include <inttypes.h>
#include <string.h>

/* A value of a distribution as text. */
typedef char *value_text(uint64_t value, char text[QUIRE_DURATION_TEXT_MAX]);

static char *count_text(uint64_t value, char text[QUIRE_DURATION_TEXT_MAX])
{
    (void)snprintf(text, QUIRE_DURATION_TEXT_MAX, "%" PRIu64, value);
    return text;
}

char *quire_analyzed_title(const quire_analyzed *a, char *text, size_t text_bytes)
{
    const quire_analysis *n = a->analysis;
    const char *slash = strrchr(a->path, '/');
    char span[QUIRE_DURATION_TEXT_MAX];

    (void)snprintf(text, text_bytes,
                   "%s (%s): %" PRIu32 " requests in %s, %" PRIu64 " blocks of %" PRIu32
                   " tokens, %" PRIu32 " of them different",
                   slash != NULL ? slash + 1 : a->path, quire_trace_format_name(a->format),
                   n->n_requests, quire_duration_text(n->span_us, span), n->n_blocks,
                   n->block_tokens, n->n_ids);
    return text;
}

static void print_dist(FILE *out, const char *name, const quire_dist *dist, value_text *text_of)
{
    static const double quantiles[] = { 0.5, 0.9, 0.99 };
    const double mean = quire_dist_mean(dist);
    char text[QUIRE_DURATION_TEXT_MAX];

    if (dist->n == 0) {
        return;
    }
    if (text_of == count_text) {
        fprintf(out, "  %-34s %10.*f", name, mean < 100.0 ? 2 : 0, mean);
    } else {
        fprintf(out, "  %-34s %10s", name, text_of((uint64_t)mean, text));
    }
    for (size_t i = 0; i < sizeof(quantiles) / sizeof(quantiles[0]); i++) {
        fprintf(out, " %10s", text_of(quire_dist_quantile(dist, quantiles[i]), text));
    }
    fprintf(out, " %10s\n", text_of(dist->max, text));
}

static void print_dists(const quire_analysis *n, FILE *out)
{
    fprintf(out, "  %-34s %10s %10s %10s %10s %10s\n", "", "mean", "p50", "p90", "p99", "most");
    print_dist(out, "tokens of a prompt", &n->input, count_text);
    print_dist(out, "  that no earlier prompt had", &n->fresh, count_text);
    print_dist(out, "tokens of an answer", &n->output, count_text);
    print_dist(out, "requests that hold a block", &n->uses, count_text);
    print_dist(out, "time until a block is used again", &n->gap_us, quire_duration_text);
    print_dist(out, "requests until then", &n->gap_requests, count_text);
    print_dist(out, "turns of a session", &n->turns, count_text);
    print_dist(out, "time between turns", &n->turn_gap_us, quire_duration_text);
    print_dist(out, "tokens of a session at its end", &n->session_tokens, count_text);
    print_dist(out, "requests at once", &n->load.running, count_text);
    print_dist(out, "tokens that they hold", &n->load.held_tokens, count_text);
}

static void print_arrivals(const quire_analysis *n, FILE *out)
{
    const double bin_s = (double)n->load.bin_us * 1e-6;
    uint64_t most = 0;

    for (uint32_t i = 0; i < n->load.n_bins; i++) {
        most = n->load.bins[i].requests > most ? n->load.bins[i].requests : most;
    }
    if (n->span_us > 0) {
        fprintf(out, "\n  %.3g requests came per second, at most %.3g in %.0f s.\n",
                n->n_requests / ((double)n->span_us * 1e-6), (double)most / bin_s, bin_s);
    }
}

static void print_repetition(const quire_analysis *n, FILE *out)
{
    if (!n->has_contents) {
        fprintf(out, "  The trace has lengths alone: nothing can be said about repetition.\n");
        return;
    }
    fprintf(out,
            "  %.1f %% of the blocks were asked for before: what a cache that never evicts "
            "serves.\n  %.1f %% of the different blocks were asked for once.\n",
            n->n_blocks > 0 ? 100.0 * (double)n->repeated_blocks / (double)n->n_blocks : 0.0,
            n->n_ids > 0 ? 100.0 * (double)n->one_time_ids / n->n_ids : 0.0);
    fprintf(out, "  %" PRIu32 " sessions%s.\n", n->n_sessions,
            n->is_inferred ? ", found by what prompts begin with" : "");
}

static void print_curve(const quire_analyzed *a, FILE *out)
{
    char text[16];

    fprintf(out, "\n  LRU, all sizes at once         %10s", "blocks");
    fprintf(out, " %10s %10s %10s\n", "memory", "exact", "sampled");
    for (uint32_t i = 0; i < a->n_capacities; i++) {
        const uint64_t c = a->capacities[i];
        const double bytes = (double)c * a->block_bytes;

        fprintf(out, "  %30s %10" PRIu64 " %10s %8.2f %% %8.2f %%\n", "", c,
                bytes > 0.0 ? quire_format_bytes((uint64_t)bytes, text, sizeof(text)) : "-",
                100.0 * quire_mrc_hit_rate(&a->mrc, c),
                100.0 * quire_shards_hit_rate(a->shards, c));
    }
}

void quire_analyzed_print_trace(const quire_analyzed *a, FILE *out)
{
    char title[256];

    fprintf(out, "%s\n\n", quire_analyzed_title(a, title, sizeof(title)));
    print_dists(a->analysis, out);
    print_arrivals(a->analysis, out);
    print_repetition(a->analysis, out);
    if (a->analysis->has_contents) {
        print_curve(a, out);
    }
}

void quire_analyzed_print_policies(const quire_analyzed *a, FILE *out)
{
    if (a->grid.results == NULL) {
        return;
    }
    fprintf(out, "\n  Served by each policy, %% of the blocks\n  %-12s", "blocks");
    for (uint32_t c = 0; c < a->grid.n_columns; c++) {
        fprintf(out, " %9" PRIu64 "%c", a->grid.columns[c].blocks, c == a->column ? '*' : ' ');
    }
    fprintf(out, "\n");
    for (uint32_t row = 0; row <= a->grid.n_policies; row++) {
        if (quire_sim_grid_row_done(&a->grid, row) < a->grid.n_columns) {
            continue; /* interrupted */
        }
        fprintf(out, "  %-12s", quire_sim_grid_row_name(&a->grid, row));
        for (uint32_t c = 0; c < a->grid.n_columns; c++) {
            fprintf(out, " %9.2f ",
                    100.0 * quire_sim_hit_rate(quire_sim_grid_at(&a->grid, row, c)));
        }
        fprintf(out, "\n");
    }
    fprintf(out, "  * the recommended size; belady: no policy can do better\n");
}
