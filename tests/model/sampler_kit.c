/* sampler_kit.c - see sampler_kit.h.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "sampler_kit.h"

#include <stdlib.h>
#include <string.h>

quire_model *model_spm;
quire_model *model_bpe;
uint32_t n_vocab;
float *logits;

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

int sampler_setup(void **state)
{
    (void)state;
    model_spm = model_generate(GGUF_GEN_VOCAB_SPM);
    model_bpe = model_generate(GGUF_GEN_VOCAB_BPE);
    n_vocab = quire_model_desc_get(model_spm)->n_vocab;
    logits = calloc(n_vocab, sizeof(*logits));
    return logits != NULL ? 0 : -1;
}

int sampler_teardown(void **state)
{
    (void)state;
    quire_model_close(model_spm);
    quire_model_close(model_bpe);
    free(logits);
    return 0;
}

void logits_random(quire_rng *rng)
{
    for (uint32_t i = 0; i < n_vocab; i++) {
        logits[i] = 3.0f * (float)quire_rng_normal(rng);
    }
}

int32_t likeliest(void)
{
    int32_t best = 0;

    for (uint32_t i = 1; i < n_vocab; i++) {
        best = logits[i] > logits[best] ? (int32_t)i : best;
    }
    return best;
}

quire_sampler *sampler(const quire_model *model, const quire_sampler_opts *opts)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_sampler *s = NULL;

    if (quire_sampler_create(&s, model, opts, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return s;
}

void sampler_refused(const quire_sampler_opts *opts, int status, const char *part)
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
