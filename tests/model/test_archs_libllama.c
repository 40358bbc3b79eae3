/* test_archs_libllama.c - a small model of every architecture and of its variants computes what
 * libllama computes: texts in one chunk, in odd chunks and token by token, beyond the window, and
 * several texts in one step.
 *
 * The table of docs/architectures.md is made from the rows and the cases; `make docs` writes it.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "arch_cases.h"
#include "document.h"
#include "model_fixture.h"
#include "rounds.h"
#include "seed.h"

#include "base/bytes.h"
#include "model/archs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_TOKENS 150u /* more than two pages of 64 */
#define N_SEQS   3u
#define N_STEPS  4u
/* Of long texts: tokens of a step, and the last ones, of which half lie behind the first chunk or
 * window. */
#define N_STEP_LONG 512u
#define N_LAST      128u
/* Two experts can be as good as each other within rounding, and then the order of additions
 * chooses. How close the scores at the border of a choice are then, relative to the larger one, and
 * how far rows from such a token on may be from the peer's: as far as the experts. */
#define EXPERTS_TIE   2e-5f
#define EXPERTS_APART 0.05
#define N_ROWS_MAX    (2 * N_TOKENS + N_SEQS * (N_STEPS + 1))

/* A case at work. */
typedef struct comparison {
    const arch_case *what;
    quire_runtime *runtime;
    fixture_peer *peer;
    uint32_t n_vocab;
    arch_case_limit limit;
    uint32_t tie; /* of the text at hand: the first token at which the peer's choice of experts is
                     a tie; UINT32_MAX: none */
    double errors[N_ROWS_MAX]; /* of rows of logits */
    uint32_t n_rows;
} comparison;

static double row_scale(const float *row, uint32_t n)
{
    double scale = 0.0;

    for (uint32_t i = 0; i < n; i++) {
        scale = fabs((double)row[i]) > scale ? fabs((double)row[i]) : scale;
    }
    return scale;
}

/* Compare the logits of token `at` of the text at hand. Their error is relative to the largest
 * logit, and the best token is the peer's, unless two tokens are as good as each other within the
 * limit. */
static void row_compare(comparison *c, const float *ours, const float *theirs, uint32_t at)
{
    const int32_t best = fixture_argmax(ours, c->n_vocab);
    const int32_t their_best = fixture_argmax(theirs, c->n_vocab);
    const double scale = row_scale(theirs, c->n_vocab);
    const double error = fixture_diff_max(ours, theirs, c->n_vocab) / scale;
    double limit = c->limit.worst;

    if (!(error <= limit) && at >= c->tie) {
        limit = EXPERTS_APART;
        (void)printf("%s, %s: token %u has an error of %.2g, behind a tie of experts at %u\n",
                     c->what->arch, c->what->what, at, error, c->tie);
    }
    assert_true(error <= limit); /* and no NaN */
    assert_true(c->n_rows < N_ROWS_MAX);
    c->errors[c->n_rows++] = error;
    if (best != their_best) {
        assert_true((double)theirs[their_best] - (double)theirs[best] <= 2.0 * limit * scale);
    }
}

/* The same of n tokens; theirs: of the whole text. */
static void rows_compare(comparison *c, const float *ours, const float *theirs, uint32_t at,
                         uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        row_compare(c, ours + (size_t)i * c->n_vocab, theirs + (size_t)(at + i) * c->n_vocab,
                    at + i);
    }
}

static void tokens_fill(int32_t *tokens, uint32_t n, uint32_t n_vocab, uint64_t salt)
{
    quire_rng rng = test_rng(salt);

    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = (int32_t)quire_rng_below(&rng, n_vocab);
    }
}

/* The peer's logits of a text from its beginning, which becomes the text at hand. Memory: free().
 */
static float *peer_logits(comparison *c, const int32_t *tokens, uint32_t n)
{
    const size_t n_floats = (size_t)n * c->n_vocab;
    float *kept = malloc(n_floats * sizeof *kept);

    assert_non_null(kept);
    fixture_peer_restart(c->peer);
    memcpy(kept, fixture_peer_decode(c->peer, tokens, n), n_floats * sizeof *kept);
    c->tie = fixture_peer_tie(c->peer);
    return kept;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* Widen the limit to twice libllama's own band. */
static void band_measure(comparison *c, const int32_t *tokens, const float *theirs)
{
    double errors[N_TOKENS];

    if (!c->limit.has_band) {
        return;
    }
    fixture_peer_restart(c->peer);
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        const float *whole = theirs + (size_t)i * c->n_vocab;

        errors[i] =
            fixture_diff_max(fixture_peer_decode(c->peer, tokens + i, 1), whole, c->n_vocab) /
            row_scale(whole, c->n_vocab);
    }
    qsort(errors, N_TOKENS, sizeof errors[0], by_size);
    (void)printf("libllama's own band: worst row %.2g, median row %.2g\n", errors[N_TOKENS - 1],
                 errors[N_TOKENS / 2]);
    c->limit.worst = larger(c->limit.worst, 2.0 * errors[N_TOKENS - 1]);
    c->limit.median = larger(c->limit.median, 2.0 * errors[N_TOKENS / 2]);
}

/* Compare one text, cut into chunks of these lengths. Tokens behind the chunks go one by one. */
static void chunks_compare(comparison *c, const int32_t *tokens, const float *theirs,
                           const uint32_t *chunks)
{
    quire_seq_id seq = fixture_seq(c->runtime);
    uint32_t at = 0;

    for (uint32_t i = 0; at < N_TOKENS; i++) {
        const uint32_t n = chunks[i] != 0 ? chunks[i] : 1;

        rows_compare(c, fixture_step(c->runtime, seq, tokens + at, n, QUIRE_LOGITS_ALL), theirs, at,
                     n);
        at += n;
        i -= chunks[i] == 0 ? 1 : 0;
    }
    quire_seq_close(quire_runtime_cache(c->runtime), seq);
}

/* Several texts of different lengths in one step, then a token of each per step. Only the last
 * token's logits are wanted at first, so that the last layer leaves out the other rows. */
static void batch_compare(comparison *c)
{
    static const uint32_t lengths[N_SEQS] = { 110, 31, 5 };
    int32_t tokens[N_SEQS][N_TOKENS];
    float *theirs[N_SEQS];
    uint32_t ties[N_SEQS];
    quire_slice slices[N_SEQS];
    const float *ours;

    for (uint32_t s = 0; s < N_SEQS; s++) {
        tokens_fill(tokens[s], N_TOKENS, c->n_vocab, 40 + s);
        theirs[s] = peer_logits(c, tokens[s], lengths[s] + N_STEPS);
        ties[s] = c->tie;
        slices[s] = (quire_slice){ .seq = fixture_seq(c->runtime),
                                   .tokens = tokens[s],
                                   .n_tokens = lengths[s],
                                   .logits = QUIRE_LOGITS_LAST };
    }
    for (uint32_t step = 0; step <= N_STEPS; step++) {
        assert_int_equal(quire_runtime_step(c->runtime, slices, N_SEQS, &ours), QUIRE_OK);
        for (uint32_t s = 0; s < N_SEQS; s++) {
            const uint32_t at = lengths[s] - 1 + step;

            c->tie = ties[s];
            row_compare(c, ours + (size_t)s * c->n_vocab, theirs[s] + (size_t)at * c->n_vocab, at);
            slices[s].tokens = tokens[s] + at + 1;
            slices[s].n_tokens = 1;
        }
    }
    for (uint32_t s = 0; s < N_SEQS; s++) {
        quire_seq_close(quire_runtime_cache(c->runtime), slices[s].seq);
        free(theirs[s]);
    }
}

/* A long text: the tokens around the end of the first chunk, or of the first window, in one step
 * and one by one. */
static void long_text_compare(comparison *c)
{
    const uint32_t n = c->what->n_text, begin = n - N_LAST;
    int32_t *tokens = malloc(n * sizeof *tokens);
    quire_seq_id seq = fixture_seq(c->runtime);
    float *theirs;

    assert_non_null(tokens);
    tokens_fill(tokens, n, c->n_vocab, 38);
    theirs = peer_logits(c, tokens, n);
    for (uint32_t at = 0, step; at < begin; at += step) {
        step = begin - at < N_STEP_LONG ? begin - at : N_STEP_LONG;
        (void)fixture_step(c->runtime, seq, tokens + at, step, QUIRE_LOGITS_NONE);
    }
    rows_compare(c, fixture_step(c->runtime, seq, tokens + begin, N_LAST, QUIRE_LOGITS_ALL), theirs,
                 begin, N_LAST);
    assert_int_equal(quire_seq_truncate(quire_runtime_cache(c->runtime), seq, begin), QUIRE_OK);
    for (uint32_t at = begin; at < n; at++) {
        rows_compare(c, fixture_step(c->runtime, seq, tokens + at, 1, QUIRE_LOGITS_ALL), theirs, at,
                     1);
    }
    quire_seq_close(quire_runtime_cache(c->runtime), seq);
    free(theirs);
    free(tokens);
}

static void texts_compare(comparison *c)
{
    static const uint32_t whole[] = { 130, 0 }, odd[] = { 1, 33, 64, 5, 47, 0 };
    int32_t tokens[N_TOKENS];
    float *theirs;

    tokens_fill(tokens, N_TOKENS, c->n_vocab, 39);
    theirs = peer_logits(c, tokens, N_TOKENS);
    band_measure(c, tokens, theirs);
    chunks_compare(c, tokens, theirs, whole);
    chunks_compare(c, tokens, theirs, odd);
    batch_compare(c);
    free(theirs);
}

static void case_check(const arch_case *what)
{
    const gguf_gen_opts gen = arch_case_options(what);
    const uint32_t n_ctx = what->n_text != 0 ? what->n_text : ARCH_CASE_CTX;
    const char *path = fixture_generate(&gen);
    quire_model *model = fixture_open(path);
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;
    comparison c = { .what = what,
                     .n_vocab = quire_model_desc_get(model)->n_vocab,
                     .limit = arch_case_limits(what) };

    opts.n_ctx = n_ctx;
    opts.n_seqs_max = N_SEQS;
    opts.kv_budget_bytes = UINT64_C(256) << 20;
    opts.n_threads = 1;
    opts.k_format = opts.v_format = QUIRE_FORMAT_F32;
    c.runtime = fixture_runtime(model, &opts);
    c.peer = fixture_peer_open_router(path, n_ctx, &quire_model_desc_get(model)->experts.router,
                                      EXPERTS_TIE);
    if (what->n_text != 0) {
        long_text_compare(&c);
    } else {
        texts_compare(&c);
    }
    qsort(c.errors, c.n_rows, sizeof c.errors[0], by_size);
    (void)printf("%s, %s: error of the worst row %.2g, of the median row %.2g\n", what->arch,
                 what->what, c.errors[c.n_rows - 1], c.errors[c.n_rows / 2]);
    assert_true(c.errors[c.n_rows / 2] <= c.limit.median);
    quire_runtime_destroy(c.runtime);
    fixture_peer_close(c.peer);
    quire_model_close(model);
    fixture_generated_remove();
}

static bool is_first(size_t i)
{
    for (size_t k = 0; k < i; k++) {
        if (strcmp(arch_case_get(k)->arch, arch_case_get(i)->arch) == 0) {
            return false;
        }
    }
    return true;
}

/* QUIRE_TEST_ARCH names one architecture; QUIRE_TEST_ARCH_FIRST leaves the first case of each. A
 * slow build takes some of the cases, and no long text. */
static void logits_are_those_of_libllama(void **state)
{
    const char *only = getenv("QUIRE_TEST_ARCH");
    const bool takes_first = getenv("QUIRE_TEST_ARCH_FIRST") != NULL;
    const arch_case *c;
    size_t n = 0;

    (void)state;
    for (size_t i = 0; (c = arch_case_get(i)) != NULL; i++) {
        if ((only != NULL && strcmp(only, c->arch) != 0) || (takes_first && !is_first(i))) {
            continue;
        }
        if (n++ % TEST_STRIDE(6u) == 0 && (c->n_text == 0 || TEST_STRIDE(6u) == 1)) {
            case_check(c);
        }
    }
}

/* Every row of the table has a case, except the architecture that libllama does not know, and one
 * with a layer that predicts further tokens, if it leaves out such layers. */
static void every_row_has_its_case(void **state)
{
    const arch_case *c;

    (void)state;
    for (int a = 0; a < (int)QUIRE_ARCH_COUNT; a++) {
        const quire_arch_row *row = quire_arch_row_get((quire_arch)a);
        bool is_found = a == QUIRE_ARCH_QUIRE;
        bool has_nextn = (row->reads & QUIRE_READS_NEXTN) == 0;

        for (size_t i = 0; (c = arch_case_get(i)) != NULL; i++) {
            if (strcmp(c->arch, row->name) == 0) {
                is_found = true;
                has_nextn = has_nextn || c->n_nextn != 0;
            }
        }
        if (!is_found || !has_nextn) {
            fail_msg("the architecture %s has no case%s in bench/arch_cases_*.c", row->name,
                     is_found ? " with a layer that predicts further tokens" : "");
        }
    }
}

/* ---- docs/architectures.md ---- */

static void document_row(quire_bytes *out, const quire_arch_row *row)
{
    const arch_case *c;
    bool is_first = true;

    (void)quire_bytes_addf(out, "- **`%s`**: %s.", row->name, row->models);
    for (size_t i = 0; (c = arch_case_get(i)) != NULL; i++) {
        if (strcmp(c->arch, row->name) == 0) {
            (void)quire_bytes_addf(out, "%s\n  %s", is_first ? " Compared:" : ";", c->what);
            is_first = false;
        }
    }
    (void)quire_bytes_addf(out, "%s\n", is_first ? "" : ".");
}

static void the_document_lists_the_rows(void **state)
{
    quire_bytes out = { 0 };

    (void)state;
    for (int a = 0; a < (int)QUIRE_ARCH_COUNT; a++) {
        document_row(&out, quire_arch_row_get((quire_arch)a));
    }
    assert_int_equal(out.status, QUIRE_OK);
    document_part("architectures.md", "architectures", &out);
    quire_bytes_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_libllama),
        cmocka_unit_test(every_row_has_its_case),
        cmocka_unit_test(the_document_lists_the_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
