/* grammar_text.c - see grammar_text.h.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "grammar_text.h"
#include "model_fixture.h"

#include "base/bytes.h"
#include "model/sampler.h"
#include "model/text.h"
#include "quire/error.h"

#include <stdlib.h>
#include <string.h>

#define TOKENS_MAX 600

quire_model *grammar_text_model(void)
{
    gguf_gen_opts opts;
    quire_model *model;

    assert_true(gguf_gen_shape("tiny-llama", &opts));
    opts.n_vocab = 400;
    opts.vocab = GGUF_GEN_VOCAB_BPE;
    model = fixture_open(fixture_generate(&opts));
    fixture_generated_remove();
    return model;
}

static quire_sampler *sampler_of(const quire_model *model, const char *gbnf, uint32_t seed,
                                 float temperature)
{
    quire_sampler_opts opts = QUIRE_SAMPLER_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;
    quire_sampler *sampler;

    opts.grammar = gbnf;
    opts.seed = seed;
    opts.temperature = temperature;
    if (quire_sampler_create(&sampler, model, &opts, &err) != QUIRE_OK) {
        fail_msg("%s\n%s", err.message, gbnf);
    }
    return sampler;
}

char *grammar_text_random(const quire_model *model, const char *gbnf, quire_rng *rng)
{
    const uint32_t n_vocab = quire_model_desc_get(model)->n_vocab;
    quire_sampler *sampler = sampler_of(model, gbnf, (uint32_t)quire_rng_next(rng), 0.8f);
    float *logits = calloc(n_vocab, sizeof *logits);
    quire_bytes text = { 0 };
    int32_t token = -1;

    assert_non_null(logits);
    for (int i = 0; i < TOKENS_MAX; i++) {
        char piece[64];
        int64_t n;

        for (uint32_t t = 0; t < n_vocab; t++) {
            logits[t] = 2.0f * (float)quire_rng_normal(rng);
            if (quire_model_token_text(model, (int32_t)t, false, piece, sizeof piece) == 1 &&
                strchr("\"]}", piece[0]) != NULL) {
                logits[t] += 3.0f; /* ends are likely enough to come */
            }
        }
        token = quire_sampler_pick(sampler, logits);
        if (quire_model_is_eog(model, token)) {
            break;
        }
        n = quire_model_token_text(model, token, false, piece, sizeof piece);
        assert_in_range(n, 1, sizeof piece);
        assert_int_equal(quire_bytes_add(&text, piece, (size_t)n), QUIRE_OK);
        token = -1;
    }
    quire_sampler_destroy(sampler);
    free(logits);
    if (token < 0) {
        quire_bytes_fini(&text);
        return NULL;
    }
    return text.data != NULL ? text.data : strdup("");
}

/* The token with the text of one byte. */
static int32_t token_of(const quire_model *model, char byte)
{
    const int32_t n_vocab = (int32_t)quire_model_desc_get(model)->n_vocab;
    char piece[64];

    for (int32_t t = 0; t < n_vocab; t++) {
        if (quire_model_token_text(model, t, false, piece, sizeof piece) == 1 && piece[0] == byte) {
            return t;
        }
    }
    fail_msg("the model has no token for byte %d", byte);
    return -1;
}

bool grammar_text_is_taken(const quire_model *model, const char *gbnf, const char *text)
{
    const uint32_t n_vocab = quire_model_desc_get(model)->n_vocab;
    quire_sampler *sampler = sampler_of(model, gbnf, 1, 0.0f);
    float *logits = calloc(n_vocab, sizeof *logits);
    const size_t n = strlen(text);
    bool is_taken = true;

    assert_non_null(logits);
    for (size_t i = 0; i <= n && is_taken; i++) {
        int32_t wanted = i < n ? token_of(model, text[i]) : quire_model_eos(model);

        logits[wanted] = 10.0f;
        is_taken = quire_sampler_pick(sampler, logits) == wanted;
        logits[wanted] = 0.0f;
    }
    quire_sampler_destroy(sampler);
    free(logits);
    return is_taken;
}
