/* evaluate.c - the loop behind quire perplexity.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/measuring/evaluate.h"
#include "model/text.h"

#include "base/check.h"
#include "cli/commands/talk.h"
#include "cli/measuring/parallel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The result of one scored row. Many threads fill them and one thread adds them up, in order, so
 * that the sum does not depend on the number of threads. */
typedef struct scored {
    quire_row row;
    quire_row base;
    double kld;
} scored;

/* One step's rows on their way into the tallies. */
typedef struct step {
    const float *logits;      /* [n_rows][n_vocab] */
    const float *base_logits; /* the base runtime's, or NULL */
    const int32_t *targets;   /* [n_rows] the tokens that follow */
    uint32_t n_rows;
    uint32_t n_vocab;
    size_t coded_bytes;
    unsigned char *base_coded; /* [n_rows][coded_bytes] of the base file, or NULL */
    unsigned char *save_coded; /* [n_rows][coded_bytes] for the file to write, or NULL */
    scored *scores;            /* [n_rows] */
} step;

typedef struct evaluator {
    const quire_evaluate_opts *opts;
    quire_evaluation *result;
    quire_error *err;
    quire_seq_id seq;
    quire_seq_id base_seq;
    int32_t *chunk;       /* [n_ctx] the chunk's tokens, BOS put in */
    uint64_t n_rows_done; /* scored so far */
    step step;
} evaluator;

static void score_share(void *ctx, uint32_t thread, uint32_t n_threads)
{
    const step *s = ctx;

    for (uint32_t i = thread; i < s->n_rows; i += n_threads) {
        const float *logits = s->logits + (size_t)i * s->n_vocab;
        scored *out = &s->scores[i];

        quire_row_read(logits, s->n_vocab, s->targets[i], &out->row);
        if (s->base_logits != NULL) {
            const float *base = s->base_logits + (size_t)i * s->n_vocab;

            quire_row_read(base, s->n_vocab, s->targets[i], &out->base);
            out->kld = quire_row_kld(base, &out->base, logits, &out->row, s->n_vocab);
        }
        if (s->base_coded != NULL) {
            const void *base = s->base_coded + i * s->coded_bytes;

            quire_coded_row_read(base, s->n_vocab, s->targets[i], &out->base);
            out->kld = quire_coded_row_kld(base, logits, &out->row, s->n_vocab);
        }
        if (s->save_coded != NULL) {
            quire_row_encode(logits, s->n_vocab, (void *)(s->save_coded + i * s->coded_bytes));
        }
    }
}

static void tally(quire_evaluation *r, const step *s)
{
    for (uint32_t i = 0; i < s->n_rows; i++) {
        const scored *score = &s->scores[i];

        quire_mean_add(&r->nll, score->row.nll);
        if (r->has_base) {
            r->kld_values[r->kld.n] = score->kld;
            r->kld_max = score->kld > r->kld_max || r->kld.n == 0 ? score->kld : r->kld_max;
            quire_mean_add(&r->kld, score->kld);
            quire_mean_add(&r->nll_base, score->base.nll);
            quire_mean_add(&r->nll_difference, quire_row_nll_difference(&score->row, &score->base));
            r->n_same_top += score->row.top == score->base.top;
        }
    }
}

static int score_step(evaluator *e)
{
    const size_t row_bytes = e->step.n_vocab * sizeof(*e->step.logits);
    step *s = &e->step;

    if (e->opts->base_logits != NULL) {
        s->base_logits = e->opts->base_logits + e->n_rows_done * s->n_vocab;
    }
    if (e->opts->keep_logits != NULL) {
        memcpy(e->opts->keep_logits + e->n_rows_done * s->n_vocab, s->logits,
               s->n_rows * row_bytes);
    }
    e->n_rows_done += s->n_rows;
    if (s->base_coded != NULL) {
        for (uint32_t i = 0; i < s->n_rows; i++) {
            QUIRE_TRY(quire_logits_file_read(e->opts->base_file,
                                             (void *)(s->base_coded + i * s->coded_bytes), e->err));
        }
    }
    quire_parallel(quire_runtime_n_threads(e->opts->session->runtime), score_share, s);
    tally(e->result, s);
    if (s->save_coded != NULL) {
        for (uint32_t i = 0; i < s->n_rows; i++) {
            QUIRE_TRY(quire_logits_file_write(
                e->opts->save_file, (const void *)(s->save_coded + i * s->coded_bytes), e->err));
        }
    }
    return QUIRE_OK;
}

static uint32_t scored_from(const quire_evaluate_opts *o)
{
    return o->score_from != 0 ? o->score_from : o->n_ctx / 2;
}

static int compute(quire_opened *session, const quire_slice *slice, const float **logits,
                   quire_error *err)
{
    int rc = quire_opened_step(session, slice, 1, logits);

    return rc < 0 ? quire_opened_step_error(session, rc, err) : QUIRE_OK;
}

/* Tokens first .. first + n of the chunk, scored when they lie in its scored part. */
static int run_step(evaluator *e, uint32_t first, uint32_t n)
{
    const quire_evaluate_opts *o = e->opts;
    bool is_scored = first >= scored_from(o);
    quire_slice slice = { .seq = e->seq,
                          .tokens = e->chunk + first,
                          .n_tokens = n,
                          .logits = is_scored ? QUIRE_LOGITS_ALL : QUIRE_LOGITS_NONE };
    double start_s = quire_now_s();

    if (quire_interrupt_seen()) {
        return quire_error_set(e->err, QUIRE_CANCELED, "interrupted after %u of %u chunks",
                               e->result->n_chunks, o->n_chunks);
    }
    QUIRE_TRY(compute(o->session, &slice, &e->step.logits, e->err));
    e->result->compute_s += quire_now_s() - start_s;
    if (o->base_session != NULL) {
        slice.seq = e->base_seq;
        QUIRE_TRY(compute(o->base_session, &slice, &e->step.base_logits, e->err));
    }
    if (!is_scored) {
        return QUIRE_OK;
    }
    e->step.targets = e->chunk + first + 1;
    e->step.n_rows = first + n == o->n_ctx ? n - 1 : n; /* nothing follows the last token */
    return score_step(e);
}

/* Before the first scores there is no perplexity to show. */
static void show_progress(const evaluator *e, uint32_t index, uint32_t n_done)
{
    const quire_evaluate_opts *o = e->opts;
    const char *begin = o->progress != NULL ? o->progress : "";
    double percent = 100.0 * n_done / o->n_ctx;

    if (e->result->nll.n == 0) {
        quire_progress("%schunk %u of %u, %3.0f %%", begin, index + 1, o->n_chunks, percent);
    } else {
        quire_progress("%schunk %u of %u, %3.0f %%, perplexity %.4f", begin, index + 1, o->n_chunks,
                       percent, quire_perplexity(&e->result->nll));
    }
}

static int run_chunk(evaluator *e, uint32_t index)
{
    const quire_evaluate_opts *o = e->opts;
    const quire_model *model = o->session->model;
    const uint32_t from = scored_from(o);

    if (o->session->retention != NULL) { /* the tokens before are a prompt */
        quire_retention_attend_from(o->session->retention, from);
    }
    memcpy(e->chunk, o->tokens + (size_t)index * o->n_ctx, o->n_ctx * sizeof(*e->chunk));
    if (quire_model_adds_bos(model)) {
        e->chunk[0] = quire_model_bos(model);
    }
    for (uint32_t first = 0; first < o->n_ctx;) {
        uint32_t end = first < from ? from : o->n_ctx;
        uint32_t n = end - first < o->session->n_batch ? end - first : o->session->n_batch;

        QUIRE_TRY(run_step(e, first, n));
        first += n;
        show_progress(e, index, first);
    }
    e->result->chunk_ppl[index] = quire_perplexity(&e->result->nll);
    e->result->n_chunks = index + 1;
    QUIRE_TRY(quire_seq_truncate(quire_runtime_cache(o->session->runtime), e->seq, 0));
    if (o->base_session != NULL) {
        QUIRE_TRY(
            quire_seq_truncate(quire_runtime_cache(o->base_session->runtime), e->base_seq, 0));
    }
    return QUIRE_OK;
}

static int open_sequences(evaluator *e)
{
    const quire_evaluate_opts *o = e->opts;

    QUIRE_TRY(
        quire_seq_open(quire_runtime_cache(o->session->runtime), QUIRE_REGION_DYNAMIC, &e->seq));
    if (o->base_session != NULL) {
        QUIRE_TRY(quire_seq_open(quire_runtime_cache(o->base_session->runtime),
                                 QUIRE_REGION_DYNAMIC, &e->base_seq));
    }
    return QUIRE_OK;
}

static int prepare(evaluator *e)
{
    const quire_evaluate_opts *o = e->opts;
    quire_evaluation *r = e->result;
    step *s = &e->step;
    uint32_t n_rows = o->session->n_batch < o->n_ctx ? o->session->n_batch : o->n_ctx;

    r->has_base = o->base_session != NULL || o->base_file != NULL || o->base_logits != NULL;
    s->n_vocab = o->session->desc->n_vocab;
    s->coded_bytes = (size_t)quire_coded_row_bytes(s->n_vocab);
    e->chunk = malloc(o->n_ctx * sizeof(*e->chunk));
    s->scores = calloc(n_rows, sizeof(*s->scores));
    r->chunk_ppl = calloc(o->n_chunks, sizeof(*r->chunk_ppl));
    QUIRE_FAIL_IF(e->chunk == NULL || s->scores == NULL || r->chunk_ppl == NULL, QUIRE_NOMEM);
    if (r->has_base) {
        r->kld_values = calloc((size_t)o->n_chunks * quire_logits_rows(o->n_ctx, o->score_from),
                               sizeof(*r->kld_values));
        QUIRE_FAIL_IF(r->kld_values == NULL, QUIRE_NOMEM);
    }
    if (o->base_file != NULL) {
        s->base_coded = malloc(n_rows * s->coded_bytes);
        QUIRE_FAIL_IF(s->base_coded == NULL, QUIRE_NOMEM);
    }
    if (o->save_file != NULL) {
        s->save_coded = malloc(n_rows * s->coded_bytes);
        QUIRE_FAIL_IF(s->save_coded == NULL, QUIRE_NOMEM);
    }
    return open_sequences(e);
}

int quire_evaluate(quire_evaluation *out, const quire_evaluate_opts *opts, quire_error *err)
{
    evaluator e = { .opts = opts, .result = out, .err = err };
    int rc;

    memset(out, 0, sizeof(*out));
    rc = prepare(&e);
    for (uint32_t i = 0; rc == QUIRE_OK && i < opts->n_chunks; i++) {
        rc = run_chunk(&e, i);
    }
    quire_progress_end();
    if (rc < 0 && err->status == QUIRE_OK) {
        quire_error_set(err, rc, "%s", quire_status_text(rc));
    }
    (void)quire_seq_close(quire_runtime_cache(opts->session->runtime), e.seq);
    if (opts->base_session != NULL) {
        (void)quire_seq_close(quire_runtime_cache(opts->base_session->runtime), e.base_seq);
    }
    free(e.step.save_coded);
    free(e.step.base_coded);
    free(e.step.scores);
    free(e.chunk);
    return rc;
}

void quire_evaluation_fini(quire_evaluation *evaluation)
{
    free(evaluation->chunk_ppl);
    free(evaluation->kld_values);
    memset(evaluation, 0, sizeof(*evaluation));
}

double quire_perplexity(const quire_mean *nll)
{
    return exp(quire_mean_value(nll));
}

double quire_perplexity_stderr(const quire_mean *nll)
{
    return quire_perplexity(nll) * quire_mean_stderr(nll);
}

json_t *quire_interval_json(double mean, double std_err)
{
    return json_pack("{s:o, s:o, s:[o, o]}", "mean", quire_json_real(mean), "stderr",
                     quire_json_real(std_err), "interval_95",
                     quire_json_real(mean - QUIRE_INTERVAL_95 * std_err),
                     quire_json_real(mean + QUIRE_INTERVAL_95 * std_err));
}

int quire_evaluate_text(const quire_opened *session, const char *path, int32_t **tokens,
                        size_t *n_tokens, quire_error *err)
{
    quire_error cause = QUIRE_ERROR_INIT;
    char *text = NULL;
    size_t text_bytes = 0;
    int rc;

    QUIRE_TRY(quire_read_file(path, &text, &text_bytes, err));
    /* The newline that ends a text file is no part of the text. */
    if (text_bytes > 0 && text[text_bytes - 1] == '\n') {
        text_bytes--;
    }
    quire_progress("tokenizing %s", path);
    rc = quire_opened_tokenize(session, text, text_bytes, false, tokens, n_tokens, &cause);
    quire_progress_end();
    free(text);
    return rc < 0 ? quire_error_set(err, rc, "cannot tokenize %s: %s", path, cause.message)
                  : QUIRE_OK;
}
