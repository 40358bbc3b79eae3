/* fuzz_grammar.c - bytes as a GBNF grammar: refused with a message, or followed for some tokens.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "base/rng.h"
#include "model/grammar.h"
#include "model/sampler.h"
#include "model/text.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PICKS 12u /* tokens of a text */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

static quire_model *model;
static uint32_t n_vocab;
static float *logits;

static void open_model(void)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_rng rng = { 1 };

    QUIRE_CHECK(quire_model_open(&model, FUZZ_MODEL, NULL, &err) == QUIRE_OK);
    n_vocab = quire_model_desc_get(model)->n_vocab;
    logits = malloc(n_vocab * sizeof *logits);
    QUIRE_CHECK(logits != NULL);
    for (uint32_t i = 0; i < n_vocab; i++) {
        logits[i] = (float)quire_rng_unit(&rng);
    }
}

static void follow(const char *gbnf)
{
    quire_sampler_opts opts = QUIRE_SAMPLER_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;
    quire_sampler *sampler = NULL;

    if (model == NULL) {
        open_model();
    }
    opts.grammar = gbnf;
    opts.seed = 1;
    if (quire_sampler_create(&sampler, model, &opts, &err) != QUIRE_OK) {
        QUIRE_CHECK(err.status == QUIRE_LIMIT && strstr(err.message, "too many ways") != NULL);
        return;
    }
    for (uint32_t i = 0; i < PICKS; i++) {
        const int32_t token = quire_sampler_pick(sampler, logits);

        QUIRE_CHECK(token < (int32_t)n_vocab);
        if (token < 0 || quire_model_is_eog(model, token)) {
            break;
        }
    }
    quire_sampler_destroy(sampler);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    quire_error err = QUIRE_ERROR_INIT;
    char *text;
    int rc;

    if (memchr(data, '\0', size_bytes) != NULL) {
        return 0; /* requests with a zero byte are refused before */
    }
    text = malloc(size_bytes + 1);
    QUIRE_CHECK(text != NULL);
    memcpy(text, data, size_bytes);
    text[size_bytes] = '\0';
    rc = quire_grammar_check(text, &err);
    if (rc == QUIRE_OK) {
        follow(text);
    } else {
        QUIRE_CHECK(rc == QUIRE_INVAL || rc == QUIRE_LIMIT);
        QUIRE_CHECK(err.message[0] != '\0' && strchr(err.message, '\n') == NULL);
    }
    free(text);
    return 0;
}
