/* test_samplers.c - libllama's samplers within Quire's: the same choices as by libllama's own
 * chain, alone and under a grammar, and each token seen once.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model/answer_rules.h"
#include "model/model_internal.h"
#include "model/text.h"
#include "rounds.h"
#include "sampler_kit.h"
#include "seed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PROMPT_TOKENS 90
/* A few tokens are likely, so that texts repeat. None of them is a breaker of DRY. */
#define LIKELY_FIRST 100
#define LIKELY_N     6u

static const quire_sampler_opts usual = QUIRE_SAMPLER_OPTS_INIT;
static float base[400];

static void base_make(quire_rng *rng)
{
    logits_random(rng);
    for (uint32_t i = 0; i < n_vocab; i++) {
        base[i] = i - LIKELY_FIRST < LIKELY_N ? 7.0f + 0.3f * logits[i] : logits[i];
    }
}

/* The logits of one token: nearly those of all. */
static void logits_next(quire_rng *rng)
{
    for (uint32_t i = 0; i < n_vocab; i++) {
        logits[i] = base[i] + 0.5f * (float)quire_rng_normal(rng);
    }
}

static float within(quire_rng *rng, double min, double max)
{
    return (float)(min + (max - min) * quire_rng_unit(rng));
}

static void prompt_make(quire_rng *rng, int32_t prompt[PROMPT_TOKENS])
{
    for (int i = 0; i < PROMPT_TOKENS; i++) {
        prompt[i] = (int32_t)(LIKELY_FIRST + quire_rng_below(rng, LIKELY_N));
    }
}

/* ---- libllama's chain ---- */

static struct llama_sampler *dry_of(const quire_sampler_opts *o)
{
    const char *breakers[QUIRE_DRY_BREAKERS_MAX];

    memcpy(breakers, o->dry_breakers, o->n_dry_breakers * sizeof breakers[0]);
    return llama_sampler_init_dry(model_spm->vocab, o->dry_multiplier, o->dry_base,
                                  o->dry_allowed_length, (int32_t)o->dry_tokens, breakers,
                                  o->n_dry_breakers);
}

/* As common_sampler_init() of llama.cpp does it. */
static struct llama_sampler *one_of(const quire_sampler_opts *o, quire_sampler_kind kind)
{
    switch (kind) {
    case QUIRE_SAMPLER_DRY:
        return dry_of(o);
    case QUIRE_SAMPLER_TOP_N_SIGMA:
        return llama_sampler_init_top_n_sigma(o->top_n_sigma);
    case QUIRE_SAMPLER_TOP_K:
        return llama_sampler_init_top_k(o->top_k);
    case QUIRE_SAMPLER_TYPICAL_P:
        return llama_sampler_init_typical(o->typical_p, o->min_keep);
    case QUIRE_SAMPLER_TOP_P:
        return llama_sampler_init_top_p(o->top_p, o->min_keep);
    case QUIRE_SAMPLER_MIN_P:
        return llama_sampler_init_min_p(o->min_p, o->min_keep);
    case QUIRE_SAMPLER_XTC:
        return llama_sampler_init_xtc(o->xtc_probability, o->xtc_threshold, o->min_keep, o->seed);
    case QUIRE_SAMPLER_TEMPERATURE:
        return llama_sampler_init_temp_ext(o->temperature, o->dynatemp_range, o->dynatemp_exponent);
    default: /* penalties: test_sampler.c */
        return NULL;
    }
}

static struct llama_sampler *chain_of(const quire_sampler_opts *o)
{
    struct llama_sampler *chain = llama_sampler_chain_init(llama_sampler_chain_default_params());

    if (o->mirostat != 0) {
        llama_sampler_chain_add(chain, llama_sampler_init_temp(o->temperature));
        llama_sampler_chain_add(
            chain, o->mirostat == 1
                       ? llama_sampler_init_mirostat((int32_t)n_vocab, o->seed, o->mirostat_tau,
                                                     o->mirostat_eta, 100)
                       : llama_sampler_init_mirostat_v2(o->seed, o->mirostat_tau, o->mirostat_eta));
        return chain;
    }
    for (uint32_t i = 0; i < o->order.n; i++) {
        struct llama_sampler *one = one_of(o, (quire_sampler_kind)o->order.kinds[i]);

        if (one != NULL) {
            llama_sampler_chain_add(chain, one);
        }
    }
    llama_sampler_chain_add(chain, llama_sampler_init_dist(o->seed));
    return chain;
}

/* Its choice among the tokens that may follow; NULL: all may. */
static int32_t chain_pick(struct llama_sampler *chain, const bool *may_follow)
{
    llama_token_data data[400];
    llama_token_data_array list = { data, 0, -1, false };
    int32_t token;

    for (uint32_t i = 0; i < n_vocab; i++) {
        if (may_follow == NULL || may_follow[i]) {
            data[list.size++] = (llama_token_data){ (int32_t)i, logits[i], 0.0f };
        }
    }
    llama_sampler_apply(chain, &list);
    token = list.data[list.selected].id;
    llama_sampler_accept(chain, token);
    return token;
}

static void chain_prompt(struct llama_sampler *chain, const int32_t *prompt, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        llama_sampler_accept(chain, prompt[i]);
    }
}

/* ---- equal choices ---- */

/* The samplers behind penalties and DRY in any order, some of them left out. */
static void order_shuffle(quire_rng *rng, quire_sampler_order *order)
{
    for (uint32_t i = order->n - 1u; i > 2; i--) {
        const uint32_t j = 2 + quire_rng_below(rng, i - 1);
        const uint8_t kind = order->kinds[i];

        order->kinds[i] = order->kinds[j];
        order->kinds[j] = kind;
    }
    order->n = (uint8_t)(order->n - quire_rng_below(rng, 4));
}

static bool sometimes(quire_rng *rng)
{
    return quire_rng_below(rng, 3) == 0;
}

static quire_sampler_opts opts_random(quire_rng *rng)
{
    quire_sampler_opts o = usual;

    o.seed = (uint32_t)quire_rng_next(rng) >> 1;
    o.temperature = within(rng, 0.2, 1.6);
    o.top_k = sometimes(rng) ? 0 : (int32_t)quire_rng_below(rng, 200);
    o.top_p = sometimes(rng) ? 1.0f : within(rng, 0.3, 1.0);
    o.min_p = sometimes(rng) ? 0.0f : within(rng, 0.0, 0.3);
    o.min_keep = sometimes(rng) ? quire_rng_below(rng, 8) : 0;
    o.xtc_probability = sometimes(rng) ? within(rng, 0.2, 1.0) : 0.0f;
    o.xtc_threshold = within(rng, 0.02, 0.6);
    o.dynatemp_range = sometimes(rng) ? within(rng, 0.1, 1.0) : 0.0f;
    o.dynatemp_exponent = within(rng, 0.3, 2.0);
    o.dry_multiplier = sometimes(rng) ? within(rng, 0.1, 4.0) : 0.0f;
    o.dry_base = within(rng, 1.0, 2.5);
    o.dry_allowed_length = (int32_t)quire_rng_below(rng, 5);
    o.dry_tokens = quire_rng_below(rng, 120);
    o.n_dry_breakers = quire_rng_below(rng, QUIRE_DRY_BREAKERS + 1);
    switch (quire_rng_below(rng, 6)) {
    case 0:
        o.typical_p = within(rng, 0.1, 1.0);
        break;
    case 1: /* not with typical p, which libllama computes wrongly then */
        o.top_n_sigma = within(rng, 0.0, 3.0);
        break;
    case 2:
        o.mirostat = 1 + quire_rng_below(rng, 2);
        /* libllama's mirostat 1 fails far above the surprise */
        o.mirostat_tau = within(rng, 0.5, o.mirostat == 1 ? 2.0 : 6.0);
        o.mirostat_eta = within(rng, 0.05, o.mirostat == 1 ? 0.2 : 1.0);
        o.dry_multiplier = 0.0f; /* libllama has no DRY then */
        break;
    default:
        break;
    }
    if (sometimes(rng)) {
        order_shuffle(rng, &o.order);
    }
    return o;
}

/* prompt: seen by both. */
static void same_choices(const quire_sampler_opts *opts, const int32_t *prompt, quire_rng *rng)
{
    quire_sampler *s = sampler(model_spm, opts);
    struct llama_sampler *chain = chain_of(opts);

    quire_sampler_prompt(s, prompt, PROMPT_TOKENS);
    chain_prompt(chain, prompt, PROMPT_TOKENS);
    for (int step = 0; step < 60; step++) {
        logits_next(rng);
        assert_int_equal(quire_sampler_pick(s, logits), chain_pick(chain, NULL));
    }
    quire_sampler_destroy(s);
    llama_sampler_free(chain);
}

/* Twice: the second sampler begins with a copy of the first one's DRY. */
static void test_same_choices(void **state)
{
    const int n_cases = TEST_ROUNDS(300, 30);
    quire_rng rng = test_rng(41);
    int32_t prompt[PROMPT_TOKENS];

    (void)state;
    for (int i = 0; i < n_cases; i++) {
        const quire_sampler_opts opts = opts_random(&rng);

        base_make(&rng);
        prompt_make(&rng, prompt);
        same_choices(&opts, prompt, &rng);
        same_choices(&opts, prompt, &rng);
    }
}

/* Each option changes choices, so the test above does not compare without it. */
static void test_each_option_matters(void **state)
{
    quire_sampler_opts list[12];
    const size_t n = sizeof list / sizeof list[0];
    int32_t prompt[PROMPT_TOKENS], plain[100];

    (void)state;
    for (size_t i = 0; i < n; i++) {
        list[i] = usual;
        list[i].seed = 5;
        list[i].temperature = 1.2f;
    }
    list[1].typical_p = 0.3f;
    list[2].top_n_sigma = 0.5f;
    list[3].xtc_probability = 1.0f;
    list[4].dynatemp_range = 1.0f;
    list[5].mirostat = 1;
    list[6].mirostat = 2;
    list[7].dry_multiplier = 5.0f;
    list[8].repetition_penalty = 2.0f;
    list[9].min_keep = 40;
    list[10].order.n = 4; /* no min-p, no temperature */
    list[11].repeat_penalty = 3.0f;
    for (size_t i = 0; i < n; i++) {
        quire_rng rng = test_rng(42);
        quire_sampler *s = sampler(model_spm, &list[i]);
        uint32_t n_other = 0;

        base_make(&rng);
        prompt_make(&rng, prompt);
        quire_sampler_prompt(s, prompt, PROMPT_TOKENS);
        for (int step = 0; step < 100; step++) {
            int32_t token;

            logits_next(&rng);
            token = quire_sampler_pick(s, logits);
            n_other += i > 0 && token != plain[step];
            plain[step] = i == 0 ? token : plain[step];
        }
        if (i > 0 && n_other <= 3) {
            fail_msg("option %zu changes %u choices", i, n_other);
        }
        quire_sampler_destroy(s);
    }
}

/* Temperature 0: the likeliest token after DRY, whatever the other samplers are. */
static void test_greedy(void **state)
{
    quire_rng rng = test_rng(43);
    int32_t prompt[PROMPT_TOKENS];

    (void)state;
    for (int i = 0; i < TEST_ROUNDS(200, 30); i++) {
        quire_sampler_opts opts = opts_random(&rng);
        struct llama_sampler *chain =
            llama_sampler_chain_init(llama_sampler_chain_default_params());
        quire_sampler *s;

        opts.order = usual.order;
        opts.temperature = 0.0f;
        opts.dynatemp_range = 0.0f;
        s = sampler(model_spm, &opts);
        llama_sampler_chain_add(chain, dry_of(&opts));
        llama_sampler_chain_add(chain, llama_sampler_init_greedy());
        base_make(&rng);
        prompt_make(&rng, prompt);
        quire_sampler_prompt(s, prompt, PROMPT_TOKENS);
        chain_prompt(chain, prompt, PROMPT_TOKENS);
        for (int step = 0; step < 30; step++) {
            logits_next(&rng);
            assert_int_equal(quire_sampler_pick(s, logits), chain_pick(chain, NULL));
        }
        quire_sampler_destroy(s);
        llama_sampler_free(chain);
    }
}

/* A reset sampler with the same prompt repeats its tokens. A new prompt is seen instead of the old
 * one. */
static void test_reset(void **state)
{
    quire_rng rng = test_rng(44);
    int32_t prompt[PROMPT_TOKENS], other[PROMPT_TOKENS], first[40];
    uint32_t n_moved = 0;

    (void)state;
    for (int i = 0; i < TEST_ROUNDS(200, 30); i++) {
        quire_sampler_opts opts = opts_random(&rng);
        quire_sampler *s;

        opts.dry_multiplier = 2.0f;
        opts.repetition_penalty = 1.2f;
        s = sampler(model_spm, &opts);
        logits_random(&rng);
        prompt_make(&rng, prompt);
        prompt_make(&rng, other);
        quire_sampler_prompt(s, prompt, PROMPT_TOKENS);
        for (int step = 0; step < 40; step++) {
            first[step] = quire_sampler_pick(s, logits);
        }
        quire_sampler_reset(s);
        quire_sampler_prompt(s, other, PROMPT_TOKENS);
        quire_sampler_prompt(s, prompt, PROMPT_TOKENS);
        for (int step = 0; step < 40; step++) {
            assert_int_equal(quire_sampler_pick(s, logits), first[step]);
        }
        quire_sampler_reset(s);
        for (int step = 0; step < 40; step++) {
            n_moved += quire_sampler_pick(s, logits) != first[step];
        }
        quire_sampler_destroy(s);
    }
    assert_true(n_moved > 0);
}

/* ---- the repetition penalty ---- */

static void test_repetition_penalty(void **state)
{
    quire_sampler_opts opts = usual;
    quire_rng rng = test_rng(45);
    int32_t prompt[PROMPT_TOKENS];
    bool is_there[400] = { false };
    quire_sampler *s;

    (void)state;
    opts.temperature = 0.0f;
    opts.repetition_penalty = 1.3f;
    opts.penalty_tokens = 1; /* of the other penalties */
    s = sampler(model_spm, &opts);
    prompt_make(&rng, prompt);
    for (int i = 0; i < PROMPT_TOKENS; i++) {
        is_there[prompt[i]] = true;
    }
    quire_sampler_prompt(s, prompt, PROMPT_TOKENS);
    base_make(&rng);
    for (int step = 0; step < 100; step++) {
        int32_t best = 0;
        float best_logit = -INFINITY;

        logits_next(&rng);
        for (uint32_t t = 0; t < n_vocab; t++) {
            const float factor = !is_there[t] ? 1.0f : logits[t] > 0.0f ? 1.0f / 1.3f : 1.3f;

            if (logits[t] * factor > best_logit) {
                best_logit = logits[t] * factor;
                best = (int32_t)t;
            }
        }
        assert_int_equal(quire_sampler_pick(s, logits), best);
        is_there[best] = true;
    }
    quire_sampler_destroy(s);
}

/* ---- numbers at their limits ---- */

/* A dynamic temperature that is nearly 0 takes the likeliest token. */
static void test_cold_dynamic_temperature(void **state)
{
    quire_sampler_opts opts = usual;
    quire_rng rng = test_rng(46);

    (void)state;
    opts.temperature = 0.0f;
    opts.dynatemp_range = 1.0f;
    opts.min_p = 0.0f;
    opts.top_p = 1.0f;
    for (int i = 0; i < 200; i++) {
        const float sign = i % 2 == 0 ? 1.0f : -1.0f;
        quire_sampler *s;

        opts.dynatemp_exponent = within(&rng, 1.0, 30.0);
        s = sampler(model_spm, &opts);
        for (uint32_t t = 0; t < n_vocab; t++) {
            logits[t] = sign * 40.0f - 10.0f + (float)quire_rng_unit(&rng);
        }
        logits[70] = sign * 40.0f + 5.0f + (float)i / 20.0f;
        for (int step = 0; step < 5; step++) {
            assert_int_equal(quire_sampler_pick(s, logits), 70);
        }
        quire_sampler_destroy(s);
    }
}

/* Typical p chooses by entropy also when some tokens have no probability. */
static void test_typical_with_impossible_tokens(void **state)
{
    quire_sampler_opts opts = usual;
    quire_rng rng = test_rng(47);

    (void)state;
    opts.typical_p = 0.4f;
    opts.temperature = 1.0f;
    opts.top_k = 0;
    opts.min_p = 0.0f;
    opts.top_p = 1.0f;
    for (int i = 0; i < TEST_ROUNDS(100, 20); i++) {
        struct llama_sampler *chain;
        bool may_follow[400];
        quire_sampler *s;

        opts.seed = (uint32_t)i;
        s = sampler(model_spm, &opts);
        chain = chain_of(&opts);
        for (int step = 0; step < 10; step++) {
            logits_random(&rng);
            for (uint32_t t = 0; t < n_vocab; t++) {
                may_follow[t] = quire_rng_below(&rng, 2) == 0;
                logits[t] = may_follow[t] ? logits[t] : -INFINITY;
            }
            assert_int_equal(quire_sampler_pick(s, logits), chain_pick(chain, may_follow));
        }
        quire_sampler_destroy(s);
        llama_sampler_free(chain);
    }
}

/* Whatever the logits are, the choice is a token. */
static void test_broken_logits(void **state)
{
    quire_rng rng = test_rng(48);

    (void)state;
    for (int i = 0; i < TEST_ROUNDS(400, 60); i++) {
        quire_sampler_opts opts = opts_random(&rng);
        quire_sampler *s;

        opts.top_k = sometimes(&rng) ? 0 : opts.top_k;
        opts.min_keep = sometimes(&rng) ? INT32_MAX : opts.min_keep;
        s = sampler(model_spm, &opts);
        for (int step = 0; step < 8; step++) {
            static const float odd[] = { NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 0.0f };
            const float one = odd[quire_rng_below(&rng, 6)];
            const uint32_t share = quire_rng_below(&rng, 3); /* 0: all */

            logits_random(&rng);
            for (uint32_t t = 0; t < n_vocab; t++) {
                logits[t] = quire_rng_below(&rng, share + 1) == 0 ? one : logits[t];
            }
            assert_in_range(quire_sampler_pick(s, logits), 0, n_vocab - 1);
        }
        quire_sampler_destroy(s);
    }
}

/* A token with the largest penalty of DRY stays possible where a grammar allows no other. */
static void test_dry_leaves_a_forced_token(void **state)
{
    quire_sampler_opts opts = usual;
    quire_sampler *s;

    (void)state;
    opts.grammar = "root ::= \"a\"*";
    opts.dry_multiplier = 100.0f;
    opts.dry_base = 100.0f;
    opts.dry_tokens = 200;
    opts.forbids_eog = true;
    memset(logits, 0, n_vocab * sizeof *logits);
    for (int greedy = 0; greedy < 2; greedy++) {
        opts.temperature = greedy != 0 ? 0.0f : 1.0f;
        s = sampler(model_spm, &opts);
        for (int i = 0; i < 150; i++) {
            char text[16];
            const int32_t token = quire_sampler_pick(s, logits);

            assert_in_range(token, 0, n_vocab - 1);
            assert_in_range(quire_model_token_text(model_spm, token, false, text, sizeof text), 1,
                            15);
            assert_int_equal(text[0], 'a');
        }
        quire_sampler_destroy(s);
    }
}

/* ---- grammars and rules ---- */

#define LETTERS "root ::= [a-z]*"

/* Tokens that the grammar of small letters takes at any place. */
static void letters_find(bool may_follow[400])
{
    for (uint32_t t = 0; t < n_vocab; t++) {
        char text[64];
        const int64_t n = quire_model_token_text(model_spm, (int32_t)t, false, text, sizeof text);

        may_follow[t] = quire_model_is_eog(model_spm, (int32_t)t) ||
                        (n > 0 && strspn(text, "abcdefghijklmnopqrstuvwxyz") >= (size_t)n);
    }
}

/* Mirostat and XTC under a grammar choose once for each token, among those that may follow. */
static void test_moved_once_under_a_grammar(void **state)
{
    quire_rng rng = test_rng(49);
    bool may_follow[400];

    (void)state;
    letters_find(may_follow);
    for (int i = 0; i < TEST_ROUNDS(300, 30); i++) {
        quire_sampler_opts opts = opts_random(&rng);
        struct llama_sampler *chain;
        quire_sampler *s;

        opts.grammar = LETTERS;
        opts.dry_multiplier = 0.0f;
        opts.typical_p = 1.0f;
        if (opts.mirostat == 0) {
            opts.order = usual.order;
            opts.xtc_probability = within(&rng, 0.2, 1.0);
            opts.xtc_threshold = 0.05f;
        }
        s = sampler(model_spm, &opts);
        chain = chain_of(&opts);
        base_make(&rng);
        for (int step = 0; step < 30; step++) {
            logits_next(&rng);
            assert_int_equal(quire_sampler_pick(s, logits), chain_pick(chain, may_follow));
        }
        quire_sampler_destroy(s);
        llama_sampler_free(chain);
    }
}

/* Every mix of samplers keeps to a grammar, and DRY sees the tokens that were kept, not those that
 * the grammar refused. */
static void test_under_a_grammar(void **state)
{
    quire_rng rng = test_rng(50);
    bool may_follow[400];

    (void)state;
    letters_find(may_follow);
    for (int i = 0; i < TEST_ROUNDS(300, 30); i++) {
        quire_sampler_opts opts = opts_random(&rng);
        struct llama_sampler *chain =
            llama_sampler_chain_init(llama_sampler_chain_default_params());
        quire_sampler *s, *greedy;

        opts.grammar = LETTERS;
        s = sampler(model_spm, &opts);
        opts.temperature = opts.dynatemp_range = 0.0f;
        opts.order = usual.order;
        greedy = sampler(model_spm, &opts);
        llama_sampler_chain_add(chain, dry_of(&opts));
        llama_sampler_chain_add(chain, llama_sampler_init_greedy());
        base_make(&rng);
        for (int step = 0; step < 30; step++) {
            logits_next(&rng);
            assert_true(may_follow[quire_sampler_pick(s, logits)]);
            assert_int_equal(quire_sampler_pick(greedy, logits), chain_pick(chain, may_follow));
        }
        quire_sampler_destroy(s);
        quire_sampler_destroy(greedy);
        llama_sampler_free(chain);
    }
}

/* A required trigger is forced token by token: mirostat goes on behind it as if it had just
 * begun. */
static void test_forced_tokens_do_not_move(void **state)
{
    int32_t must[] = { 50, 51, 52 };
    quire_answer_rules rules = { .model = model_spm, .is_lazy = true, .thinking_tokens = -1 };
    quire_rng rng = test_rng(51);

    (void)state;
    rules.grammar = (char *)(uintptr_t)LETTERS;
    rules.must = (quire_token_array){ must, 3 };
    for (int i = 0; i < TEST_ROUNDS(100, 20); i++) {
        quire_sampler_opts opts = usual;
        quire_sampler *s, *plain;

        atomic_init(&rules.n_holders, 1);
        opts.seed = (uint32_t)i;
        opts.mirostat = 1 + (uint32_t)i % 2;
        opts.mirostat_eta = 1.0f;
        plain = sampler(model_spm, &opts);
        opts.rules = &rules;
        s = sampler(model_spm, &opts);
        base_make(&rng);
        base[70] = 30.0f; /* begins no trigger, and would be taken */
        for (int k = 0; k < 3; k++) {
            logits_next(&rng);
            assert_int_equal(quire_sampler_pick(s, logits), must[k]);
        }
        base[70] = 0.0f;
        for (int step = 0; step < 30; step++) {
            logits_next(&rng);
            assert_int_equal(quire_sampler_pick(s, logits), quire_sampler_pick(plain, logits));
        }
        quire_sampler_destroy(s);
        quire_sampler_destroy(plain);
    }
}

/* ---- options ---- */

static void test_orders(void **state)
{
    quire_sampler_order order;
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    assert_int_equal(quire_sampler_order_names(&order, "Penalties;DRY;top-k;nucleus;temp", &err),
                     QUIRE_OK);
    assert_int_equal(order.n, 5);
    assert_int_equal(order.kinds[3], QUIRE_SAMPLER_TOP_P);
    assert_true(quire_sampler_order_has(&order, QUIRE_SAMPLER_TEMPERATURE));
    assert_false(quire_sampler_order_has(&order, QUIRE_SAMPLER_XTC));
    assert_int_equal(quire_sampler_order_letters(&order, "edskypmxta", &err), QUIRE_OK);
    assert_memory_equal(&order, &usual.order, sizeof order);
    assert_int_equal(quire_sampler_order_names(&order, "", &err), QUIRE_OK);
    assert_int_equal(order.n, 0);
    for (uint32_t i = 0; i < usual.order.n; i++) {
        const char *name = quire_sampler_kind_name((quire_sampler_kind)usual.order.kinds[i]);

        assert_int_equal(quire_sampler_order_add(&order, name, strlen(name), &err), QUIRE_OK);
    }
    assert_memory_equal(&order, &usual.order, sizeof order);
}

static void test_orders_refused(void **state)
{
    static const char *const list[][2] = {
        { "top_k;infill", "\"infill\"" },
        { "top_k;top-k", "twice" },
        { "dry;penalties", "\"penalties\"" },
        { "top_k;dry", "behind \"top_k\"" },
        { "a_name_of_more_than_32_characters_in_all", "\"a_name_of" },
    };
    quire_sampler_order order;
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        assert_int_equal(quire_sampler_order_names(&order, list[i][0], &err), QUIRE_INVAL);
        assert_non_null(strstr(err.message, list[i][1]));
    }
    assert_int_equal(quire_sampler_order_letters(&order, "kz", &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "'z'"));
    assert_int_equal(quire_sampler_order_letters(&order, "kk", &err), QUIRE_INVAL);
}

static void test_out_of_range(void **state)
{
    static const char *const empty[] = { "" };
    static const char *const longer[] = { "12345678901234567890123456789012345678901" };
    quire_sampler_opts o = usual;

    (void)state;
#define REFUSED(member, value, part)                                                               \
    do {                                                                                           \
        o = usual;                                                                                 \
        o.member = (value);                                                                        \
        sampler_refused(&o, QUIRE_INVAL, part);                                                    \
    } while (0)
    REFUSED(repetition_penalty, 0.0f, "repetition_penalty is 0");
    REFUSED(dry_multiplier, -1.0f, "dry_multiplier is -1");
    REFUSED(dry_base, 0.5f, "dry_base is 0.5");
    REFUSED(dry_allowed_length, -1, "dry_allowed_length is -1");
    REFUSED(top_n_sigma, NAN, "top_n_sigma");
    REFUSED(typical_p, 1.5f, "typical_p is 1.5");
    REFUSED(xtc_probability, 2.0f, "xtc_probability is 2");
    REFUSED(xtc_threshold, -0.5f, "xtc_threshold is -0.5");
    REFUSED(dynatemp_range, INFINITY, "dynatemp_range");
    REFUSED(dynatemp_exponent, -1.0f, "dynatemp_exponent is -1");
    REFUSED(mirostat, 3, "mirostat is 3");
    REFUSED(mirostat_tau, -1.0f, "mirostat_tau is -1");
    REFUSED(mirostat_eta, 11.0f, "mirostat_eta is 11");
    o = usual;
    o.dry_tokens = QUIRE_PENALTY_TOKENS_MAX + 1;
    sampler_refused(&o, QUIRE_LIMIT, "dry_penalty_last_n is 65537");
    o = usual;
    o.n_dry_breakers = QUIRE_DRY_BREAKERS_MAX + 1;
    sampler_refused(&o, QUIRE_LIMIT, "17 texts");
    o.n_dry_breakers = 1;
    o.dry_breakers = empty;
    sampler_refused(&o, QUIRE_INVAL, "text 0 has 0 bytes");
    o.dry_breakers = longer;
    sampler_refused(&o, QUIRE_INVAL, "text 0 has 41 bytes");
}

/* Breakers of any bytes, for vocabularies of both kinds. */
static void test_breakers(void **state)
{
    static const char *const list[] = { "\xc3\xa9", "\xe4\xbd", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                                        " \t ",     "\x01\xff", "ab" };
    quire_sampler_opts opts = usual;
    quire_rng rng = test_rng(52);

    (void)state;
    opts.dry_multiplier = 1.0f;
    opts.dry_breakers = list;
    opts.n_dry_breakers = sizeof list / sizeof list[0];
    for (int i = 0; i < 2; i++) {
        quire_sampler *s = sampler(i == 0 ? model_spm : model_bpe, &opts);

        logits_random(&rng);
        for (int step = 0; step < 50; step++) {
            assert_in_range(quire_sampler_pick(s, logits), 0, n_vocab - 1);
        }
        quire_sampler_destroy(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_choices),
        cmocka_unit_test(test_each_option_matters),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_reset),
        cmocka_unit_test(test_repetition_penalty),
        cmocka_unit_test(test_cold_dynamic_temperature),
        cmocka_unit_test(test_typical_with_impossible_tokens),
        cmocka_unit_test(test_broken_logits),
        cmocka_unit_test(test_dry_leaves_a_forced_token),
        cmocka_unit_test(test_moved_once_under_a_grammar),
        cmocka_unit_test(test_under_a_grammar),
        cmocka_unit_test(test_forced_tokens_do_not_move),
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_orders_refused),
        cmocka_unit_test(test_out_of_range),
        cmocka_unit_test(test_breakers),
    };

    return cmocka_run_group_tests(tests, sampler_setup, sampler_teardown);
}
