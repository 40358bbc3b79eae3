/* test_sampler.c - penalties, bias, grammars and log-probabilities of the sampler.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model/text.h"
#include "sampler_kit.h"
#include "seed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX 8192

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

/* The first tokens are neither an end nor a stop token; a stop token is known afterwards. */
static void test_min_tokens(void **state)
{
    const int32_t stops[] = { 11, 12 };
    quire_sampler_opts opts = QUIRE_SAMPLER_OPTS_INIT;
    quire_rng rng = test_rng(21);
    quire_sampler *s;

    (void)state;
    opts.temperature = 0.0f;
    opts.min_tokens = 3;
    opts.stop_tokens = stops;
    opts.n_stop_tokens = 2;
    logits_random(&rng);
    logits[12] = 3000.0f;
    logits[quire_model_eos(model_spm)] = 2000.0f;
    s = sampler(model_spm, &opts);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 3; i++) {
            const int32_t token = quire_sampler_pick(s, logits);

            assert_false(quire_model_is_eog(model_spm, token));
            assert_false(quire_sampler_stops_at(s, token));
        }
        assert_int_equal(quire_sampler_pick(s, logits), 12);
        quire_sampler_reset(s);
    }
    assert_true(quire_sampler_stops_at(s, 11));
    assert_true(quire_sampler_stops_at(s, 12));
    assert_false(quire_sampler_stops_at(s, 13));
    quire_sampler_destroy(s);
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
    sampler_refused(&opts, QUIRE_INVAL, "token -1");
    bias.token = (int32_t)n_vocab;
    sampler_refused(&opts, QUIRE_INVAL, "token 400");
    bias = (quire_logit_bias){ 5, NAN };
    sampler_refused(&opts, QUIRE_INVAL, "token 5");
    opts.bias = many;
    opts.n_bias = QUIRE_LOGIT_BIAS_MAX;
    quire_sampler_destroy(sampler(model_spm, &opts));
    opts.n_bias++;
    sampler_refused(&opts, QUIRE_LIMIT, "1025");
    opts.n_bias = 0;
    opts.repeat_penalty = 0.0f;
    sampler_refused(&opts, QUIRE_INVAL, "repeat_penalty is 0");
    opts.repeat_penalty = 1.0f;
    opts.presence_penalty = INFINITY;
    sampler_refused(&opts, QUIRE_INVAL, "penalty");
    opts.presence_penalty = 1.0f;
    opts.penalty_tokens = QUIRE_PENALTY_TOKENS_MAX + 1;
    sampler_refused(&opts, QUIRE_LIMIT, "65537");
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
        opts.grammar = "root ::= \"yes\" | \"no\"";
        s = sampler(model, &opts);
        assert_true(generate(model, s, &rng, text, 10));
        assert_true(strcmp(text, "yes") == 0 || strcmp(text, "no") == 0);
        /* Nothing but the end may follow. */
        assert_true(generate(model, s, &rng, text, 1));
        quire_sampler_reset(s);
        assert_true(generate(model, s, &rng, text, 10));
        assert_true(strcmp(text, "yes") == 0 || strcmp(text, "no") == 0);
        quire_sampler_destroy(s);

        opts.grammar = "root ::= [0-9]+ (\".\" [0-9]{1,3})?";
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

/* When the model's likeliest token fits the grammar, it is taken without a pass over the
 * vocabulary, with the same result. */
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

/* The likeliest token is a letter. */
static void logits_prefer(char letter)
{
    for (uint32_t t = 0; t < n_vocab; t++) {
        char piece[8];

        logits[t] = quire_model_token_text(model_bpe, (int32_t)t, false, piece, 8) == 1 &&
                            piece[0] == letter
                        ? 1.0f
                        : 0.0f;
    }
}

/* 2^n ways to read n letters are no more work than one. */
static void test_grammar_ambiguous(void **state)
{
    quire_sampler_opts opts = QUIRE_SAMPLER_OPTS_INIT;
    int32_t token = 0;
    quire_sampler *s;

    (void)state;
    opts.temperature = 0.0f;
    opts.grammar = "root ::= s\ns ::= \"a\" s \"b\" | \"a\" s \"c\" | \"x\"";
    s = sampler(model_bpe, &opts);
    for (int i = 0; i < 201; i++) {
        char piece[8] = { 0 };

        logits_prefer(i < 100 ? 'a' : i == 100 ? 'x' : i % 3 == 0 ? 'b' : 'c');
        token = quire_sampler_pick(s, logits);
        assert_int_equal(quire_model_token_text(model_bpe, token, false, piece, 8), 1);
        assert_int_equal(piece[0], i < 100 ? 'a' : i == 100 ? 'x' : i % 3 == 0 ? 'b' : 'c');
    }
    assert_true(quire_model_is_eog(model_bpe, quire_sampler_pick(s, logits)));
    quire_sampler_destroy(s);
}

/* Steps beyond the bound: an error, not the end of time and memory. */
static void test_grammar_too_ambiguous(void **state)
{
    quire_sampler_opts opts = QUIRE_SAMPLER_OPTS_INIT;
    int32_t token = 0, first = -1;
    quire_sampler *s;

    (void)state;
    opts.temperature = 0.0f;
    opts.grammar = "root ::= s\ns ::= \"a\" s{100} |";
    s = sampler(model_bpe, &opts);
    logits_prefer('a');
    for (int i = 0; i < 64 && token >= 0; i++) {
        token = quire_sampler_pick(s, logits);
        first = i == 0 ? token : first;
        assert_true(token == first || token == QUIRE_LIMIT);
    }
    assert_int_equal(token, QUIRE_LIMIT);
    assert_int_equal(quire_sampler_pick(s, logits), QUIRE_LIMIT);
    quire_sampler_reset(s);
    assert_int_equal(quire_sampler_pick(s, logits), first);
    quire_sampler_destroy(s);
}

/* The likeliest token that fits is taken, in a vocabulary larger than the first set of candidates.
 */
static void test_grammar_takes_the_likeliest(void **state)
{
    const gguf_gen_opts gen = fixture_llama("many tokens", 1, 6400, 64, 5);
    quire_model *model = fixture_open(fixture_generate(&gen));
    const uint32_t n = quire_model_desc_get(model)->n_vocab;
    float *many = malloc(n * sizeof(*many));
    quire_sampler_opts opts = QUIRE_SAMPLER_OPTS_INIT;
    quire_rng rng = test_rng(18);
    quire_sampler *s;

    (void)state;
    fixture_generated_remove();
    assert_true(many != NULL && n > 1000);
    opts.temperature = 0.0f;
    opts.grammar = "root ::= [0-9a-z]*";
    s = sampler(model, &opts);
    for (int i = 0; i < 100; i++) {
        int32_t best = -1;

        for (uint32_t t = 0; t < n; t++) {
            char piece[64] = { 0 };
            const int64_t n_piece =
                quire_model_token_text(model, (int32_t)t, false, piece, sizeof(piece) - 1);

            many[t] = (float)quire_rng_below(&rng, 1000);
            if (n_piece <= 0 || n_piece != (int64_t)strspn(piece, "0123456789abcdefghijklmnopqrstuv"
                                                                  "wxyz")) {
                many[t] += i % 2 == 0 ? 0.0f : 1000.0f; /* none that fits is among the first */
            } else if (best < 0 || many[t] > many[best]) {
                best = (int32_t)t;
            }
        }
        for (uint32_t t = 0; t < n; t++) { /* the end is not wanted here */
            many[t] = quire_model_is_eog(model, (int32_t)t) ? -1.0f : many[t];
        }
        assert_int_equal(quire_sampler_pick(s, many), best);
    }
    quire_sampler_destroy(s);
    free(many);
    quire_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_penalties_as_defined),
        cmocka_unit_test(test_bias_and_eog),
        cmocka_unit_test(test_options_out_of_range),
        cmocka_unit_test(test_logprob),
        cmocka_unit_test(test_min_tokens),
        cmocka_unit_test(test_grammar_holds),
        cmocka_unit_test(test_grammar_keeps_utf8),
        cmocka_unit_test(test_grammar_ambiguous),
        cmocka_unit_test(test_grammar_too_ambiguous),
        cmocka_unit_test(test_grammar_takes_the_likeliest),
        cmocka_unit_test(test_grammar_of_anything_changes_nothing),
    };

    return cmocka_run_group_tests(tests, sampler_setup, sampler_teardown);
}
