/* measure.c - times steps at a depth.
 *
 * The tokens are random: speed does not depend on them, and no text is that long. Each repeat
 * starts from the same depth by cutting the sequence back to it.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/measure.h"

#include "base/check.h"
#include "base/rng.h"
#include "cli/score.h"
#include "cli/talk.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SEED 1u

typedef struct bench {
    quire_session *session;
    const quire_measure_opts *opts;
    quire_cache *cache;
    quire_seq_id seq;
    int32_t *tokens; /* [depth + n_tokens] */
} bench;

/* Bring the sequence to n tokens; without a cache that means computing all of them. */
static int prefill(bench *b, uint32_t first, uint32_t n)
{
    const float *logits = NULL;

    return quire_session_prefill(b->session, b->seq, b->tokens + first, n, NULL, &logits);
}

static int fill(bench *b)
{
    uint32_t depth = b->opts->depth;
    const float *logits = NULL;

    if (depth == 0 || b->opts->caching == QUIRE_CACHING_NONE) {
        return QUIRE_OK;
    }
    if (b->opts->is_filled_fast) {
        return quire_runtime_fill(b->session->runtime, b->seq, depth, SEED);
    }
    return quire_session_prefill(b->session, b->seq, b->tokens, depth, "filling", &logits);
}

/* Forget what follows the depth; without a cache, everything. */
static int rewind_to_depth(bench *b)
{
    bool is_kept = b->opts->caching != QUIRE_CACHING_NONE;

    return quire_seq_truncate(b->cache, b->seq, is_kept ? b->opts->depth : 0);
}

static int run_prefill(bench *b, uint32_t n)
{
    uint32_t depth = b->opts->depth;

    return b->opts->caching == QUIRE_CACHING_NONE ? prefill(b, 0, depth + n) : prefill(b, depth, n);
}

static int run_decode(bench *b, uint32_t n)
{
    uint32_t depth = b->opts->depth;

    for (uint32_t i = 0; i < n; i++) {
        if (b->opts->caching == QUIRE_CACHING_NONE) {
            QUIRE_TRY(quire_seq_truncate(b->cache, b->seq, 0));
            QUIRE_TRY(prefill(b, 0, depth + i + 1));
        } else {
            QUIRE_TRY(prefill(b, depth + i, 1));
        }
    }
    return QUIRE_OK;
}

static int run_once(bench *b, uint32_t n)
{
    return b->opts->test == QUIRE_BENCH_PREFILL ? run_prefill(b, n) : run_decode(b, n);
}

static void summarize(quire_measurement *out)
{
    double sorted[QUIRE_REPEATS_MAX];
    double sum_squares = 0;

    memcpy(sorted, out->rates, out->n_repeats * sizeof(*sorted));
    out->median = quire_quantile(sorted, out->n_repeats, 0.5);
    out->mean = 0;
    for (uint32_t i = 0; i < out->n_repeats; i++) {
        out->mean += out->rates[i] / out->n_repeats;
    }
    for (uint32_t i = 0; i < out->n_repeats; i++) {
        sum_squares += (out->rates[i] - out->mean) * (out->rates[i] - out->mean);
    }
    out->stddev = out->n_repeats > 1 ? sqrt(sum_squares / (out->n_repeats - 1)) : 0;
}

static void take_memory(bench *b, quire_measurement *out)
{
    const quire_measure_opts *o = b->opts;
    uint64_t token_bytes = quire_model_kv_bytes_per_token(b->session->desc, o->kv.k, o->kv.v);
    quire_cache_stats stats;

    quire_cache_stats_get(b->cache, &stats);
    out->kv_bytes = o->caching == QUIRE_CACHING_NONE ? 0 : stats.live_bytes;
    out->kv_computed_bytes = token_bytes * quire_seq_tokens(b->cache, b->seq);
    out->kv_peak_bytes = stats.live_bytes;
    out->kv_extent_bytes = stats.extent_bytes;
    if (o->test == QUIRE_BENCH_DECODE && o->caching != QUIRE_CACHING_NONE) {
        out->step_read_bytes = (double)token_bytes * (o->depth + 0.5 * (o->n_tokens + 1));
    }
}

static int run_repeats(bench *b, quire_measurement *out)
{
    const quire_measure_opts *o = b->opts;
    quire_runtime_stats before;
    quire_runtime_stats after;
    double step_us;

    quire_runtime_stats_get(b->session->runtime, &before);
    for (uint32_t i = 0; i < o->n_repeats; i++) {
        double start_s;

        QUIRE_FAIL_IF(quire_interrupt_seen(), QUIRE_CANCELED);
        QUIRE_TRY(rewind_to_depth(b));
        quire_progress("%s at depth %u, %u of %u",
                       o->test == QUIRE_BENCH_PREFILL ? "prefill" : "decode", o->depth, i + 1,
                       o->n_repeats);
        start_s = quire_now_s();
        QUIRE_TRY(run_once(b, o->n_tokens));
        out->rates[i] = quire_rate(o->n_tokens, quire_now_s() - start_s);
        out->n_repeats = i + 1;
    }
    quire_runtime_stats_get(b->session->runtime, &after);
    step_us = (double)(after.step_us_total - before.step_us_total);
    if (step_us > 0) {
        out->attn_share = (double)(after.attn_us_total - before.attn_us_total) / step_us;
        out->append_share = (double)(after.append_us_total - before.append_us_total) / step_us;
    }
    take_memory(b, out);
    summarize(out);
    return QUIRE_OK;
}

static int measure(bench *b, quire_measurement *out)
{
    const quire_measure_opts *o = b->opts;
    uint32_t n = o->depth + o->n_tokens;
    quire_rng rng = { SEED };
    uint32_t n_warm = o->test == QUIRE_BENCH_DECODE ? 1 : o->n_tokens;

    b->tokens = malloc(n * sizeof(*b->tokens));
    QUIRE_FAIL_IF(b->tokens == NULL, QUIRE_NOMEM);
    for (uint32_t i = 0; i < n; i++) {
        b->tokens[i] = (int32_t)quire_rng_below(&rng, b->session->desc->n_vocab);
    }
    QUIRE_TRY(quire_seq_open(b->cache, QUIRE_REGION_DYNAMIC, &b->seq));
    QUIRE_TRY(fill(b));
    /* The first steps of a shape build its graph and touch its pages: not what is asked for. */
    n_warm = n_warm < b->session->n_batch ? n_warm : b->session->n_batch;
    QUIRE_TRY(run_once(b, n_warm));
    return run_repeats(b, out);
}

int quire_measure(quire_session *session, const quire_measure_opts *opts, quire_measurement *out)
{
    bench b = { .session = session,
                .opts = opts,
                .cache = quire_runtime_cache(session->runtime),
                .seq = QUIRE_SEQ_NULL };
    int rc;

    memset(out, 0, sizeof(*out));
    rc = measure(&b, out);
    quire_progress_end();
    if (b.seq != QUIRE_SEQ_NULL) {
        (void)quire_seq_close(b.cache, b.seq);
    }
    free(b.tokens);
    return rc;
}
