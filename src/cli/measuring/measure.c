/* measure.c - times steps at a depth.
 *
 * The tokens are random: speed does not depend on them, and no text is that long. Each repeat
 * starts from the same depth by cutting the sequences back to it. Sequences that share a prefix are
 * forks of the first.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/measuring/measure.h"

#include "base/check.h"
#include "base/rng.h"
#include "cli/commands/talk.h"
#include "cli/measuring/score.h"
#include "model/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SEED       1u
#define FILL_PIECE 256u

typedef struct bench {
    quire_opened *session;
    const quire_measure_opts *opts;
    quire_cache *cache;
    quire_seq_id *seqs; /* [n_seqs] */
    uint32_t n_open;
    quire_slice *slices; /* [n_seqs], of a decode step */
    int32_t *tokens;     /* [start_depth() + n_tokens] */
} bench;

/* Where the measured tokens of a sequence begin. */
static uint32_t start_depth(const bench *b)
{
    return b->opts->shared_depth + b->opts->depth;
}

/* Bring the sequence to n tokens; without a cache that means computing all of them. */
static int prefill(bench *b, uint32_t first, uint32_t n)
{
    const float *logits = NULL;

    return quire_opened_prefill(b->session, b->seqs[0], b->tokens + first, n, NULL, &logits);
}

/* n more tokens of a sequence, without computing them; in pieces where not all fit in memory. */
static int fill_fast(bench *b, quire_seq_id seq, uint32_t n)
{
    const uint32_t piece = b->session->offload != NULL ? FILL_PIECE : n;
    int rc = QUIRE_OK;

    while (n > 0 && rc == QUIRE_OK) {
        const uint32_t now = n < piece ? n : piece;

        do {
            rc = quire_runtime_fill(b->session->runtime, seq, now, SEED);
        } while (rc == QUIRE_NOPAGES && quire_opened_relieve(b->session, seq));
        n -= now;
    }
    return rc;
}

/* n more tokens of a sequence, which has `first` so far. */
static int fill(bench *b, quire_seq_id seq, uint32_t first, uint32_t n)
{
    const float *logits = NULL;

    if (n == 0 || b->opts->caching == QUIRE_CACHING_NONE) {
        return QUIRE_OK;
    }
    if (b->opts->is_filled_fast) {
        return fill_fast(b, seq, n);
    }
    return quire_opened_prefill(b->session, seq, b->tokens + first, n, "filling", &logits);
}

/* Fill the prefix once, fork it, and fill each sequence's own depth. */
static int fill_all(bench *b)
{
    const quire_measure_opts *o = b->opts;

    QUIRE_TRY(quire_seq_open(b->cache, QUIRE_REGION_DYNAMIC, &b->seqs[0]));
    b->n_open = 1;
    QUIRE_TRY(fill(b, b->seqs[0], 0, o->shared_depth));
    for (; b->n_open < o->n_seqs; b->n_open++) {
        QUIRE_TRY(quire_runtime_fork(b->session->runtime, b->seqs[0], &b->seqs[b->n_open]));
    }
    for (uint32_t i = 0; i < o->n_seqs; i++) {
        QUIRE_TRY(fill(b, b->seqs[i], o->shared_depth, o->depth));
    }
    return QUIRE_OK;
}

/* Forget the tokens behind the depth; without a cache, all tokens. A depth inside a page whose hot
 * form is gone is filled again from the start of that page. */
static int rewind_to_depth(bench *b)
{
    const uint32_t depth = b->opts->caching != QUIRE_CACHING_NONE ? start_depth(b) : 0;

    for (uint32_t i = 0; i < b->opts->n_seqs; i++) {
        const uint32_t n = quire_runtime_keepable(b->session->runtime, b->seqs[i], depth);

        QUIRE_TRY(quire_seq_truncate(b->cache, b->seqs[i], n));
        QUIRE_TRY(fill(b, b->seqs[i], n, depth - n));
    }
    return QUIRE_OK;
}

static int run_prefill(bench *b, uint32_t n)
{
    uint32_t depth = start_depth(b);

    return b->opts->caching == QUIRE_CACHING_NONE ? prefill(b, 0, depth + n) : prefill(b, depth, n);
}

/* One more token of every sequence. */
static int decode_step(bench *b, const int32_t *token)
{
    const float *logits = NULL;

    QUIRE_FAIL_IF(quire_interrupt_seen(), QUIRE_CANCELED);
    for (uint32_t i = 0; i < b->opts->n_seqs; i++) {
        b->slices[i] = (quire_slice){
            .seq = b->seqs[i], .tokens = token, .n_tokens = 1, .logits = QUIRE_LOGITS_LAST
        };
    }
    return quire_opened_step(b->session, b->slices, b->opts->n_seqs, &logits);
}

static int run_decode(bench *b, uint32_t n)
{
    uint32_t depth = start_depth(b);

    for (uint32_t i = 0; i < n; i++) {
        if (b->opts->caching == QUIRE_CACHING_NONE) {
            QUIRE_TRY(quire_seq_truncate(b->cache, b->seqs[0], 0));
            QUIRE_TRY(prefill(b, 0, depth + i + 1));
        } else {
            QUIRE_TRY(decode_step(b, b->tokens + depth + i));
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

/* Bytes of all sequences' KV at n_tokens tokens each, the shared ones once. */
static uint64_t tokens_bytes(const bench *b, uint64_t n_tokens)
{
    const quire_runtime_opts *runtime = quire_runtime_opts_get(b->session->runtime);
    const quire_kv_form form = quire_kv_form_of(b->session->desc, runtime);
    const uint64_t shared_bytes = quire_kv_tokens_bytes(&form, b->opts->shared_depth);

    return shared_bytes + b->opts->n_seqs * (quire_kv_tokens_bytes(&form, n_tokens) - shared_bytes);
}

static void take_memory(bench *b, quire_measurement *out)
{
    const quire_measure_opts *o = b->opts;
    const uint64_t mid = o->shared_depth + o->depth; /* of the steps: and (n_tokens + 1) / 2 */
    quire_cache_stats stats;

    quire_cache_stats_get(b->cache, &stats);
    out->kv_bytes = o->caching == QUIRE_CACHING_NONE ? 0 : stats.live_bytes;
    out->kv_computed_bytes = tokens_bytes(b, quire_seq_tokens(b->cache, b->seqs[0]));
    out->kv_peak_bytes = stats.live_bytes;
    out->kv_extent_bytes = stats.extent_bytes;
    out->resident_peak_bytes = quire_memory_resident_peak();
    if (o->test == QUIRE_BENCH_DECODE && o->caching != QUIRE_CACHING_NONE) {
        out->step_read_bytes = 0.5 * ((double)tokens_bytes(b, mid + (o->n_tokens + 1) / 2) +
                                      (double)tokens_bytes(b, mid + (o->n_tokens + 2) / 2));
    }
}

/* Bytes read so far from the file for KV larger than the budget. */
static uint64_t file_bytes(const bench *b)
{
    quire_offload_stats stats = { .pages = 0 };

    if (b->session->offload != NULL) {
        quire_offload_stats_get(b->session->offload, &stats);
    }
    return stats.file.read_bytes_total;
}

/* Add up the times of the steps of all repeats. */
static void take_times(const bench *b, const quire_runtime_stats *before, quire_measurement *out)
{
    const double n_steps = (double)b->opts->n_tokens * out->n_repeats;
    quire_runtime_stats after;
    double step_us;
    double attn_us;

    quire_runtime_stats_get(b->session->runtime, &after);
    step_us = (double)(after.step_us_total - before->step_us_total);
    attn_us = (double)(after.attn_us_total - before->attn_us_total);
    if (step_us > 0) {
        out->attn_share = attn_us / step_us;
        out->append_share = (double)(after.append_us_total - before->append_us_total) / step_us;
    }
    if (b->opts->test == QUIRE_BENCH_DECODE) {
        out->step_s = 1e-6 * step_us / n_steps;
        out->step_attn_s = 1e-6 * attn_us / n_steps;
    }
}

static int run_repeats(bench *b, quire_measurement *out)
{
    const quire_measure_opts *o = b->opts;
    const uint64_t file_bytes_before = file_bytes(b);
    quire_runtime_stats before;

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
        out->rates[i] = quire_rate((double)o->n_tokens * o->n_seqs, quire_now_s() - start_s);
        out->n_repeats = i + 1;
        /* After each repeat, so that an interruption keeps the figures so far. */
        take_times(b, &before, out);
        take_memory(b, out);
        if (o->test == QUIRE_BENCH_DECODE) {
            out->step_file_bytes =
                (file_bytes(b) - file_bytes_before) / ((uint64_t)o->n_tokens * out->n_repeats);
        }
        summarize(out);
    }
    return QUIRE_OK;
}

static int measure(bench *b, quire_measurement *out)
{
    const quire_measure_opts *o = b->opts;
    uint32_t n = start_depth(b) + o->n_tokens;
    quire_rng rng = { SEED };
    uint32_t n_warm = o->test == QUIRE_BENCH_DECODE ? 1 : o->n_tokens;

    b->tokens = malloc(n * sizeof(*b->tokens));
    b->seqs = calloc(o->n_seqs, sizeof(*b->seqs));
    b->slices = calloc(o->n_seqs, sizeof(*b->slices));
    QUIRE_FAIL_IF(b->tokens == NULL || b->seqs == NULL || b->slices == NULL, QUIRE_NOMEM);
    for (uint32_t i = 0; i < n; i++) {
        b->tokens[i] = (int32_t)quire_rng_below(&rng, b->session->desc->n_vocab);
    }
    QUIRE_TRY(fill_all(b));
    /* Warm up: the first steps of a shape build its graph and touch its pages. */
    n_warm = n_warm < b->session->n_batch ? n_warm : b->session->n_batch;
    QUIRE_TRY(run_once(b, n_warm));
    return run_repeats(b, out);
}

int quire_measure(quire_opened *session, const quire_measure_opts *opts, quire_measurement *out)
{
    bench b = { .session = session, .opts = opts, .cache = quire_runtime_cache(session->runtime) };
    int rc;

    memset(out, 0, sizeof(*out));
    rc = measure(&b, out);
    quire_progress_end();
    for (uint32_t i = 0; i < b.n_open; i++) {
        (void)quire_seq_close(b.cache, b.seqs[i]);
    }
    free(b.slices);
    free(b.seqs);
    free(b.tokens);
    return rc;
}
