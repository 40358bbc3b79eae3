/* test_sampler.c - penalties, bias, grammars and log-probabilities of the sampler.
 *
 * What libllama makes of a grammar must never be seen: whatever our own check lets pass it takes,
 * and it prints nothing.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model/sampler.h"
#include "model_fixture.h"
#include "seed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT_MAX 8192

static quire_model *model_spm;
static quire_model *model_bpe;
static uint32_t n_vocab;
static float *logits;

static quire_model *model_generate(gguf_gen_vocab vocab)
{
    gguf_gen_opts opts;
    quire_model *model;

    assert_true(gguf_gen_shape("tiny-llama", &opts));
    opts.n_vocab = 400;
    opts.vocab = vocab;
    model = fixture_open(fixture_generate(&opts));
    fixture_generated_remove();
    return model;
}

static int setup(void **state)
{
    (void)state;
    model_spm = model_generate(GGUF_GEN_VOCAB_SPM);
    model_bpe = model_generate(GGUF_GEN_VOCAB_BPE);
    n_vocab = quire_model_desc_get(model_spm)->n_vocab;
    logits = calloc(n_vocab, sizeof(*logits));
    return logits != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    quire_model_close(model_spm);
    quire_model_close(model_bpe);
    free(logits);
    return 0;
}

static void logits_random(quire_rng *rng)
{
    for (uint32_t i = 0; i < n_vocab; i++) {
        logits[i] = 3.0f * (float)quire_rng_normal(rng);
    }
}

static quire_sampler *sampler(const quire_model *model, const quire_sampler_opts *opts)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_sampler *s = NULL;

    if (quire_sampler_create(&s, model, opts, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return s;
}

/* ---- logits ---- */

static void test_penalties_as_defined(void **state)
{
    quire_sampler_opts opts = QUIRE_SAMPLER_OPTS_INIT;
    quire_rng rng = test_rng(11);
    int32_t chosen[300];
    uint32_t n_new = 0;
    quire_sampler *s;

    (void)state;
    opts.temperature = 0.0f;
    opts.repeat_penalty = 1.3f;
    opts.frequency_penalty = 0.4f;
    opts.presence_penalty = 0.7f;
    opts.penalty_tokens = 10;
    s = sampler(model_spm, &opts);
    logits_random(&rng);
    for (int step = 0; step < 300; step++) {
        int32_t best = 0;
        float best_logit = -INFINITY;

        for (uint32_t t = 0; t < n_vocab; t++) {
            float logit = logits[t];
            int count = 0;

            for (int i = step > 10 ? step - 10 : 0; i < step; i++) {
                count += chosen[i] == (int32_t)t;
            }
            if (count > 0) {
                logit *= logit > 0.0f ? 1.0f / 1.3f : 1.3f;
                logit -= (float)count * 0.4f + 0.7f;
            }
            if (logit > best_logit) {
                best_logit = logit;
                best = (int32_t)t;
            }
        }
        chosen[step] = quire_sampler_pick(s, logits);
        assert_int_equal(chosen[step], best);
        n_new += step > 0 && chosen[step] != chosen[step - 1];
    }
    assert_true(n_new > 100);
    quire_sampler_reset(s);
    assert_int_equal(quire_sampler_pick(s, logits), chosen[0]);
    assert_int_equal(quire_sampler_pick(s, logits), chosen[1]);
    quire_sampler_destroy(s);
}

static void test_bias_and_eog(void **state)
{
    quire_sampler_opts opts = QUIRE_SAMPLER_OPTS_INIT;
    quire_logit_bias bias[2] = { { 7, 100.0f }, { 9, -INFINITY } };
    quire_rng rng = test_rng(12);
    quire_sampler *s;

    (void)state;
    logits_random(&rng);
    opts.temperature = 0.0f;
    opts.bias = bias;
    opts.n_bias = 2;
    s = sampler(model_spm, &opts);
    bias[0].token = 8; /* copied */
    assert_int_equal(quire_sampler_pick(s, logits), 7);
    logits[7] = -1000.0f;
    logits[9] = 1000.0f;
    assert_int_not_equal(quire_sampler_pick(s, logits), 9);
    quire_sampler_destroy(s);

    opts.n_bias = 0;
    opts.forbids_eog = true;
    for (int i = 0; i < 2; i++) {
        uint32_t n_eog = 0;

        for (uint32_t t = 0; t < n_vocab; t++) {
            if (quire_model_is_eog(model_spm, (int32_t)t)) {
                logits[t] = 2000.0f;
                n_eog++;
            }
        }
        assert_true(n_eog > 0);
        opts.temperature = i == 0 ? 0.0f : 1.0f;
        s = sampler(model_spm, &opts);
        for (int j = 0; j < 20; j++) {
            assert_false(quire_model_is_eog(model_spm, quire_sampler_pick(s, logits)));
        }
        quire_sampler_destroy(s);
    }
}

static void refused(const quire_sampler_opts *opts, int status, const char *part)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_sampler *s = NULL;

    assert_int_equal(quire_sampler_create(&s, model_spm, opts, &err), status);
    assert_null(s);
    assert_int_equal(err.status, status);
    if (strstr(err.message, part) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", part, err.message);
    }
}

static void test_options_out_of_range(void **state)
{
    static quire_logit_bias many[QUIRE_LOGIT_BIAS_MAX + 1];
    quire_logit_bias bias = { 0, 1.0f };
    quire_sampler_opts opts = QUIRE_SAMPLER_OPTS_INIT;

    (void)state;
    opts.bias = &bias;
    opts.n_bias = 1;
    bias.token = -1;
    refused(&opts, QUIRE_INVAL, "token -1");
    bias.token = (int32_t)n_vocab;
    refused(&opts, QUIRE_INVAL, "token 400");
    bias = (quire_logit_bias){ 5, NAN };
    refused(&opts, QUIRE_INVAL, "token 5");
    opts.bias = many;
    opts.n_bias = QUIRE_LOGIT_BIAS_MAX;
    quire_sampler_destroy(sampler(model_spm, &opts));
    opts.n_bias++;
    refused(&opts, QUIRE_LIMIT, "1025");
    opts.n_bias = 0;
    opts.repeat_penalty = 0.0f;
    refused(&opts, QUIRE_INVAL, "repeat_penalty is 0");
    opts.repeat_penalty = 1.0f;
    opts.presence_penalty = INFINITY;
    refused(&opts, QUIRE_INVAL, "penalty");
    opts.presence_penalty = 1.0f;
    opts.penalty_tokens = QUIRE_PENALTY_TOKENS_MAX + 1;
    refused(&opts, QUIRE_LIMIT, "65537");
    opts.penalty_tokens = 0; /* none count */
    quire_sampler_destroy(sampler(model_spm, &opts));
}

static void test_logprob(void **state)
{
    quire_rng rng = test_rng(13);
    quire_top_logit tops[20];
    double sum = 0.0, best = -INFINITY;
    uint32_t n_better;

    (void)state;
    logits_random(&rng);
    logits[17] = logits[300] = 30.0f; /* equal: the lower id first */
    for (uint32_t t = 0; t < n_vocab; t++) {
        best = fmax(best, (double)logits[t]);
    }
    for (uint32_t t = 0; t < n_vocab; t++) {
        sum += exp((double)logits[t] - best);
    }
    for (uint32_t t = 0; t < n_vocab; t++) {
        const double expected = (double)logits[t] - best - log(sum);
        const float got = quire_logits_logprob(logits, n_vocab, (int32_t)t, NULL, 0);

        assert_true(fabs((double)got - expected) < 1e-4);
    }
    (void)quire_logits_logprob(logits, n_vocab, 0, tops, 20);
    assert_int_equal(tops[0].token, 17);
    assert_int_equal(tops[1].token, 300);
    for (uint32_t i = 0; i < 20; i++) {
        n_better = 0;
        for (uint32_t t = 0; t < n_vocab; t++) {
            n_better += logits[t] > logits[tops[i].token];
        }
        assert_int_equal(n_better, i == 1 ? 0 : i);
        assert_true(
            fabs((double)tops[i].logprob - (double)logits[tops[i].token] + best + log(sum)) < 1e-4);
    }
}

/* ---- grammars that are refused ---- */

static const struct {
    const char *grammar;
    int status;
    const char *part;
} refusals[] = {
    { "", QUIRE_INVAL, "\"root\"" },
    { "# nothing", QUIRE_INVAL, "\"root\"" },
    { "a ::= \"x\"", QUIRE_INVAL, "\"root\"" },
    { "root \"x\"", QUIRE_INVAL, "line 1, column 6: '::='" },
    { "root ::= \"x", QUIRE_INVAL, "column 12: a literal" },
    { "root ::= \"x\"\nroot ::= \"y\"", QUIRE_INVAL, "line 2, column 1: this rule is there" },
    { "root ::= [", QUIRE_INVAL, "does not end" },
    { "root ::= [a-", QUIRE_INVAL, "does not end" },
    { "root ::= []", QUIRE_INVAL, "column 10: this set is empty" },
    { "root ::= [^]", QUIRE_INVAL, "this set is empty" },
    { "root ::= \"\\q\"", QUIRE_INVAL, "column 11: this escape" },
    { "root ::= \"\\", QUIRE_INVAL, "this escape" },
    { "root ::= \"\\x4\"", QUIRE_INVAL, "hexadecimal" },
    { "root ::= \"\\U0001F60\"", QUIRE_INVAL, "hexadecimal" },
    { "root ::= (\"x\"", QUIRE_INVAL, "column 10: this group" },
    { "root ::= \"x\")", QUIRE_INVAL, "column 13: this is not understood" },
    { "root ::= a", QUIRE_INVAL, "column 10: this rule is nowhere" },
    { "root ::= *", QUIRE_INVAL, "nothing to repeat" },
    { "root ::= \"\"*", QUIRE_INVAL, "nothing to repeat" },
    { "root ::= \"x\"{", QUIRE_INVAL, "a number" },
    { "root ::= \"x\"{1", QUIRE_INVAL, "'}'" },
    { "root ::= \"x\"{1,2", QUIRE_INVAL, "'}'" },
    { "root ::= \"x\"{3,2}", QUIRE_INVAL, "the larger bound" },
    { "root ::= \"x\"{0}", QUIRE_INVAL, "of nothing" },
    { "root ::= \"x\"{9999999999}", QUIRE_INVAL, "too large" },
    { "root ::= \"x\"{2001}", QUIRE_LIMIT, "2000" },
    { "root ::= \"x\"{1,2001}", QUIRE_LIMIT, "2000" },
    { "root ::= \"x\"{100}{100}", QUIRE_LIMIT, "repetitions of what has" },
    { "root ::= (\"x\"{0,100} \"y\"){100}", QUIRE_LIMIT, "repetitions of what has" },
    { "root ::= <think>", QUIRE_INVAL, "tokens are not supported" },
    { "root ::= !<[1]>", QUIRE_INVAL, "tokens are not supported" },
    { "root ::= \"\xff\"", QUIRE_INVAL, "not UTF-8" },
    { "root ::= \"\xe4\xb8", QUIRE_INVAL, "not UTF-8" },
    { "root ::= root \"x\" | \"y\"", QUIRE_INVAL, "rule \"root\" can begin with itself" },
    { "root ::= (root \"x\")? \"y\"", QUIRE_INVAL, "can begin with itself" },
    { "root ::= a \"x\" | \"y\"\na ::= b root\nb ::= c\nc ::= \"z\"?", QUIRE_INVAL, "itself" },
    { "root ::= (\"x\" | )*", QUIRE_INVAL, "libllama refuses it: unsupported grammar, left" },
    { "root ::= a\na ::= b\nb ::= a | \"x\"", QUIRE_INVAL, "\"a\" can begin with itself" },
};

static void test_grammars_refused(void **state)
{
    quire_sampler_opts opts = QUIRE_SAMPLER_OPTS_INIT;

    (void)state;
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        opts.grammar = refusals[i].grammar;
        refused(&opts, refusals[i].status, refusals[i].part);
    }
}

/* Grammars as large as they may be, and what they do to libllama. */
static void test_grammars_too_large(void **state)
{
    const size_t cap = QUIRE_GRAMMAR_BYTES_MAX + 100;
    quire_sampler_opts opts = QUIRE_SAMPLER_OPTS_INIT;
    char *text = malloc(cap);
    size_t n;

    (void)state;
    assert_non_null(text);
    opts.grammar = text;

    memset(text, 'x', cap - 1);
    text[cap - 1] = '\0';
    refused(&opts, QUIRE_LIMIT, "262144 bytes");

    /* Brackets: libllama recurses for each. */
    n = (size_t)snprintf(text, cap, "root ::= ");
    memset(text + n, '(', 200000);
    text[n + 200000] = '\0';
    refused(&opts, QUIRE_LIMIT, "groups within groups");

    /* A long literal, repeated. */
    memset(text + n, 'y', 1000);
    text[n] = text[n + 999] = '"';
    (void)snprintf(text + n + 1000, 100, "{2000}");
    refused(&opts, QUIRE_LIMIT, "unrolled");

    /* Rules: 2^n beginnings, a long chain, too many. */
    n = (size_t)snprintf(text, cap, "root ::= a0\n");
    for (int i = 0; i < 64; i++) {
        n += (size_t)snprintf(text + n, cap - n, "a%d ::= a%d | a%d\n", i, i + 1, i + 1);
    }
    (void)snprintf(text + n, cap - n, "a64 ::= \"x\"\n");
    refused(&opts, QUIRE_LIMIT, "too many ways");

    n = (size_t)snprintf(text, cap, "root ::= a0\n");
    for (int i = 0; i < 1000; i++) {
        n += (size_t)snprintf(text + n, cap - n, "a%d ::= a%d\n", i, i + 1);
    }
    (void)snprintf(text + n, cap - n, "a1000 ::= \"x\"\n");
    refused(&opts, QUIRE_LIMIT, "begin rules");

    n = (size_t)snprintf(text, cap, "root ::= \"x\"");
    for (int i = 0; i < 10000; i++) {
        n += (size_t)snprintf(text + n, cap - n, " (\"y\")");
    }
    refused(&opts, QUIRE_LIMIT, "rules and groups");

    /* What doubles with each sign. */
    n = (size_t)snprintf(text, cap, "root ::= \"x\"");
    memset(text + n, '+', 10000);
    text[n + 10000] = '\0';
    refused(&opts, QUIRE_LIMIT, "unrolled");
    free(text);
}

/* ---- what passes is taken ---- */

static const char *const grammars[] = {
    "root ::= \"yes\" | \"no\"",
    "root ::= [0-9]+ (\".\" [0-9]{1,3})?",
    "# words\nroot ::= word (\" \" word){2,5} \".\"\nword ::= [a-z] [a-z]*\n",
    "root ::= item+\nitem ::= \"- \" [^\\r\\n\\x0b\\U0001F600]{1,8} \"\\n\"\r\n",
    "root ::= (\n  \"a\" |\n  \"b\" root? ) # end\n",
    "root ::= \"\" \n",
    "root ::= ",
    "root ::= ws \"[\" ws (\"1\" (ws \",\" ws \"1\")*)? ws \"]\"\nws ::= [ \\t]*",
    "root ::= . . \"\\\"\" [\\]\\-a]? \"\\t\\r\\\\\" [-+] | \"\xc3\xa9\" [\xc3\xa0-\xc3\xbf]",
    "root ::= \"x\"{2,}{0,3} \"y\"{5} [ab]{,",
    "root ::= \"x\"{2,}{0,3} (\"y\"{5} [ab]{1,4})? \"z\"{3,3}",
};

/* What is printed on stderr meanwhile goes to a file. */
typedef struct hush {
    int saved;
    FILE *file;
} hush;

static hush hush_begin(void)
{
    hush h = { dup(STDERR_FILENO), tmpfile() };

    assert_true(h.saved >= 0 && h.file != NULL);
    (void)fflush(stderr);
    assert_true(dup2(fileno(h.file), STDERR_FILENO) >= 0);
    return h;
}

/* Returns how many bytes were printed. */
static long hush_end(hush *h)
{
    long n;

    (void)fflush(stderr);
    (void)dup2(h->saved, STDERR_FILENO);
    (void)close(h->saved);
    (void)fseek(h->file, 0, SEEK_END);
    n = ftell(h->file);
    (void)fclose(h->file);
    return n;
}

static void test_what_passes_is_taken(void **state)
{
    static const char bits[] = "()[]{}*+?|.,\"\\-^#<!:=\n\r ab01xuU";
    const uint32_t n_grammars = sizeof(grammars) / sizeof(grammars[0]);
    quire_rng rng = test_rng(14);
    quire_sampler_opts opts = QUIRE_SAMPLER_OPTS_INIT;
    uint32_t n_passed = 0, n_refused = 0;
    hush h = hush_begin();
    int failed_rc = QUIRE_OK;
    char text[TEXT_MAX];

    (void)state;
    opts.grammar = text;
    for (int i = 0; i < 20000 && failed_rc == QUIRE_OK; i++) {
        const char *from = grammars[quire_rng_below(&rng, n_grammars)];
        size_t n = strlen(from);
        quire_sampler *s = NULL;
        quire_error err = QUIRE_ERROR_INIT;

        memcpy(text, from, n + 1);
        for (uint32_t j = quire_rng_below(&rng, 4); j > 0 && n > 0; j--) {
            const uint32_t at = quire_rng_below(&rng, (uint32_t)n);

            if (quire_rng_below(&rng, 2) == 0) { /* replace, or insert */
                text[at] = bits[quire_rng_below(&rng, sizeof(bits) - 1)];
            } else {
                memmove(text + at + 1, text + at, n - at + 1);
                text[at] = bits[quire_rng_below(&rng, sizeof(bits) - 1)];
                n++;
            }
        }
        if (quire_grammar_check(text, &err) == QUIRE_OK) {
            n_passed++;
            failed_rc = quire_sampler_create(&s, model_spm, &opts, &err);
            quire_sampler_destroy(s);
            /* Endless repetition of what can be empty: libllama finds that most times. */
            if (failed_rc == QUIRE_INVAL && strstr(err.message, "left recursion") != NULL) {
                failed_rc = QUIRE_OK;
                n_refused++;
            }
        }
    }
    assert_int_equal(hush_end(&h), 0);
    if (failed_rc != QUIRE_OK) {
        fail_msg("libllama refuses:\n%s", text);
    }
    (void)printf("%u of 20000 passed\n", n_passed);
    assert_true(n_passed > 2000 && n_refused < n_passed / 100);
}

/* ---- generating ---- */

/* Text under a grammar with random logits, until the end or max tokens. Returns whether it ended.
 */
static bool generate(const quire_model *model, quire_sampler *s, quire_rng *rng, char *text,
                     uint32_t tokens_max)
{
    size_t n = 0;

    text[0] = '\0';
    for (uint32_t i = 0; i < tokens_max; i++) {
        int32_t token;
        int64_t n_piece;

        logits_random(rng);
        token = quire_sampler_pick(s, logits);
        assert_in_range(token, 0, n_vocab - 1);
        if (quire_model_is_eog(model, token)) {
            return true;
        }
        n_piece = quire_model_token_text(model, token, false, text + n, TEXT_MAX - 1 - n);
        assert_in_range(n_piece, 1, TEXT_MAX - 1 - n);
        n += (size_t)n_piece;
        text[n] = '\0';
    }
    return false;
}

static bool is_number(const char *text)
{
    size_t whole = strspn(text, "0123456789"), part;

    if (whole == 0 || text[whole] == '\0') {
        return whole > 0;
    }
    part = strspn(text + whole + 1, "0123456789");
    return text[whole] == '.' && part >= 1 && part <= 3 && text[whole + 1 + part] == '\0';
}

static void test_grammar_holds(void **state)
{
    quire_rng rng = test_rng(15);
    char text[TEXT_MAX];
    uint32_t n_ended = 0;

    (void)state;
    for (int i = 0; i < 200; i++) {
        const quire_model *model = i % 2 == 0 ? model_spm : model_bpe;
        quire_sampler_opts opts = QUIRE_SAMPLER_OPTS_INIT;
        quire_sampler *s;

        opts.seed = (uint32_t)i;
        opts.temperature = i % 3 == 0 ? 0.0f : 1.0f;
        opts.grammar = grammars[0];
        s = sampler(model, &opts);
        assert_true(generate(model, s, &rng, text, 10));
        assert_true(strcmp(text, "yes") == 0 || strcmp(text, "no") == 0);
        /* Nothing but the end may follow. */
        assert_true(generate(model, s, &rng, text, 1));
        quire_sampler_reset(s);
        assert_true(generate(model, s, &rng, text, 10));
        assert_true(strcmp(text, "yes") == 0 || strcmp(text, "no") == 0);
        quire_sampler_destroy(s);

        opts.grammar = grammars[1];
        s = sampler(model, &opts);
        if (generate(model, s, &rng, text, 100)) {
            n_ended++;
            assert_true(is_number(text));
        }
        quire_sampler_destroy(s);
    }
    assert_true(n_ended > 20);
}

/* Byte tokens make characters of any language, and never anything else. */
static void test_grammar_keeps_utf8(void **state)
{
    quire_rng rng = test_rng(16);
    char text[TEXT_MAX];

    (void)state;
    for (int i = 0; i < 100; i++) {
        const quire_model *model = i % 2 == 0 ? model_spm : model_bpe;
        quire_sampler_opts opts = QUIRE_SAMPLER_OPTS_INIT;
        quire_utf8_stream utf8 = { 0 };
        quire_sampler *s;

        opts.seed = (uint32_t)i;
        opts.top_k = 0;
        opts.min_p = 0.0f;
        opts.forbids_eog = true;
        opts.grammar = "root ::= [^a-z \\x00-\\x40]{20}";
        s = sampler(model, &opts);
        assert_true(generate(model, s, &rng, text, 100)); /* also when forbidden */
        assert_true(quire_utf8_stream_skip(&utf8, text, strlen(text)));
        assert_int_equal(utf8.n_held, 0);
        assert_null(strpbrk(text, "abcdefghijklmnopqrstuvwxyz @0123456789"));
        quire_sampler_destroy(s);
    }
}

/* What the model wants anyway is taken without a pass over the vocabulary, to the same result. */
static void test_grammar_of_anything_changes_nothing(void **state)
{
    quire_sampler_opts opts = QUIRE_SAMPLER_OPTS_INIT;
    quire_rng rng = test_rng(17);
    quire_sampler *free_one, *bound;

    (void)state;
    opts.temperature = 0.0f;
    free_one = sampler(model_bpe, &opts);
    opts.grammar = "root ::= .*";
    bound = sampler(model_bpe, &opts);
    for (int i = 0; i < 200; i++) {
        int32_t token;

        logits_random(&rng);
        for (uint32_t t = 0; t < n_vocab; t++) { /* one letter each: text, and whole characters */
            char piece[8];

            if (quire_model_token_text(model_bpe, (int32_t)t, false, piece, 8) != 1 ||
                piece[0] < 'a' || piece[0] > 'z') {
                logits[t] = -50.0f;
            }
        }
        token = quire_sampler_pick(free_one, logits);
        assert_int_equal(quire_sampler_pick(bound, logits), token);
    }
    quire_sampler_destroy(free_one);
    quire_sampler_destroy(bound);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_penalties_as_defined),
        cmocka_unit_test(test_bias_and_eog),
        cmocka_unit_test(test_options_out_of_range),
        cmocka_unit_test(test_logprob),
        cmocka_unit_test(test_grammars_refused),
        cmocka_unit_test(test_grammars_too_large),
        cmocka_unit_test(test_what_passes_is_taken),
        cmocka_unit_test(test_grammar_holds),
        cmocka_unit_test(test_grammar_keeps_utf8),
        cmocka_unit_test(test_grammar_of_anything_changes_nothing),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
