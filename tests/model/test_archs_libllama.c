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
/* How far a row may be from the peer's when the two have chosen different experts. */
#define EXPERTS_APART 0.05
#define N_ROWS_MAX    (2 * N_TOKENS + N_SEQS * (N_STEPS + 1))

/* A case at work. */
typedef struct comparison {
    const arch_case *what;
    quire_runtime *runtime;
    fixture_peer *peer;
    uint32_t n_vocab;
    arch_case_limit limit;
    uint64_t text;  /* the text at hand: the salt of its tokens */
    uint64_t apart; /* the text after whose choice of an expert rows are further apart; 0: none */
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

/* Whether the rows of a text may be further apart than by rounding. Two experts can be as good as
 * each other within rounding, and then the order of additions chooses: in one text of a case, from
 * such a token on, rows differ by as much as the experts do. */
static bool may_be_apart(comparison *c)
{
    if (c->what->n_experts == 0 || (c->apart != 0 && c->apart != c->text)) {
        return false;
    }
    c->apart = c->text;
    return true;
}

/* Compare a row of logits: its error is relative to its largest logit, and its best token is the
 * peer's, unless two tokens are as good as each other within the limit. */
static void row_compare(comparison *c, const float *ours, const float *theirs)
{
    const int32_t best = fixture_argmax(ours, c->n_vocab);
    const int32_t their_best = fixture_argmax(theirs, c->n_vocab);
    const double scale = row_scale(theirs, c->n_vocab);
    double error, limit = c->limit.worst;

    error = fixture_diff_max(ours, theirs, c->n_vocab) / scale;
    if (!(error <= limit) && may_be_apart(c)) {
        limit = EXPERTS_APART;
    }
    assert_true(error <= limit); /* and no NaN */
    assert_true(c->n_rows < N_ROWS_MAX);
    c->errors[c->n_rows++] = error;
    if (best != their_best) {
        assert_true((double)theirs[their_best] - (double)theirs[best] <= 2.0 * limit * scale);
    }
}

static void rows_compare(comparison *c, const float *ours, const float *theirs, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        row_compare(c, ours + (size_t)i * c->n_vocab, theirs + (size_t)i * c->n_vocab);
    }
}

static void tokens_fill(int32_t *tokens, uint32_t n, uint32_t n_vocab, uint64_t salt)
{
    quire_rng rng = test_rng(salt);

    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = (int32_t)quire_rng_below(&rng, n_vocab);
    }
}

/* The peer's logits of a text from its beginning. Memory: free(). */
static float *peer_logits(comparison *c, const int32_t *tokens, uint32_t n)
{
    const size_t n_floats = (size_t)n * c->n_vocab;
    float *kept = malloc(n_floats * sizeof *kept);

    assert_non_null(kept);
    fixture_peer_restart(c->peer);
    memcpy(kept, fixture_peer_decode(c->peer, tokens, n), n_floats * sizeof *kept);
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

        rows_compare(c, fixture_step(c->runtime, seq, tokens + at, n, QUIRE_LOGITS_ALL),
                     theirs + (size_t)at * c->n_vocab, n);
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
    quire_slice slices[N_SEQS];
    const float *ours;

    for (uint32_t s = 0; s < N_SEQS; s++) {
        tokens_fill(tokens[s], N_TOKENS, c->n_vocab, 40 + s);
        theirs[s] = peer_logits(c, tokens[s], lengths[s] + N_STEPS);
        slices[s] = (quire_slice){ .seq = fixture_seq(c->runtime),
                                   .tokens = tokens[s],
                                   .n_tokens = lengths[s],
                                   .logits = QUIRE_LOGITS_LAST };
    }
    for (uint32_t step = 0; step <= N_STEPS; step++) {
        assert_int_equal(quire_runtime_step(c->runtime, slices, N_SEQS, &ours), QUIRE_OK);
        for (uint32_t s = 0; s < N_SEQS; s++) {
            const uint32_t at = lengths[s] - 1 + step;

            c->text = 40 + s;
            row_compare(c, ours + (size_t)s * c->n_vocab, theirs[s] + (size_t)at * c->n_vocab);
            slices[s].tokens = tokens[s] + at + 1;
            slices[s].n_tokens = 1;
        }
    }
    for (uint32_t s = 0; s < N_SEQS; s++) {
        quire_seq_close(quire_runtime_cache(c->runtime), slices[s].seq);
        free(theirs[s]);
    }
}

static void case_check(const arch_case *what)
{
    static const uint32_t whole[] = { 130, 0 }, odd[] = { 1, 33, 64, 5, 47, 0 };
    const gguf_gen_opts gen = arch_case_options(what);
    const char *path = fixture_generate(&gen);
    quire_model *model = fixture_open(path);
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;
    comparison c = { .what = what,
                     .n_vocab = quire_model_desc_get(model)->n_vocab,
                     .limit = arch_case_limits(what) };
    int32_t tokens[N_TOKENS];
    float *theirs;

    opts.n_ctx = ARCH_CASE_CTX;
    opts.n_seqs_max = N_SEQS;
    opts.kv_budget_bytes = UINT64_C(256) << 20;
    opts.n_threads = 1;
    opts.k_format = opts.v_format = QUIRE_FORMAT_F32;
    c.runtime = fixture_runtime(model, &opts);
    c.peer = fixture_peer_open(path, ARCH_CASE_CTX);
    tokens_fill(tokens, N_TOKENS, c.n_vocab, 39);
    theirs = peer_logits(&c, tokens, N_TOKENS);
    band_measure(&c, tokens, theirs);
    c.text = 39;
    chunks_compare(&c, tokens, theirs, whole);
    chunks_compare(&c, tokens, theirs, odd);
    batch_compare(&c);
    qsort(c.errors, c.n_rows, sizeof c.errors[0], by_size);
    (void)printf("%s, %s: error of the worst row %.2g, of the median row %.2g\n", what->arch,
                 what->what, c.errors[c.n_rows - 1], c.errors[c.n_rows / 2]);
    assert_true(c.errors[c.n_rows / 2] <= c.limit.median);
    free(theirs);
    quire_runtime_destroy(c.runtime);
    fixture_peer_close(c.peer);
    quire_model_close(model);
    fixture_generated_remove();
}

static void logits_are_those_of_libllama(void **state)
{
    const char *only = getenv("QUIRE_TEST_ARCH");
    const char *stride = getenv("QUIRE_TEST_ARCH_STRIDE");
    const size_t every = stride != NULL ? (size_t)strtoul(stride, NULL, 10) : 1;
    const size_t step = every * TEST_STRIDE(6u);
    const arch_case *c;

    (void)state;
    assert_true(every > 0);
    for (size_t i = 0; (c = arch_case_get(i)) != NULL; i += step) {
        if (only == NULL || strcmp(only, c->arch) == 0) {
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
