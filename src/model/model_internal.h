/* model_internal.h - the parts of a model; for src/model only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_MODEL_INTERNAL_H
#define QUIRE_MODEL_MODEL_INTERNAL_H

#include "model/model.h"
#include "model/tokenizer.h"
#include "model/weights.h"

#include <llama.h>

/* The last sampler of DRY that was made for a model: sampler_dry.c. Thread: any. */
typedef struct quire_dry_memo quire_dry_memo;
/* Errors: QUIRE_NOMEM. */
int quire_dry_memo_create(quire_dry_memo **out);
void quire_dry_memo_destroy(quire_dry_memo *memo);

struct quire_model {
    quire_model_desc desc;
    struct llama_model *llama;       /* vocabulary and template only */
    const struct llama_vocab *vocab; /* borrowed from llama */
    quire_tokenizer *tokenizer;
    quire_dry_memo *dry_memo;
    quire_weights *sets[QUIRE_MODEL_SETS_MAX]; /* [n_sets]; NULL when describe_only */
    uint32_t n_sets;
    quire_model_split split; /* of the options' split(), if there is one */
    quire_weights *weights;  /* the first of them */
};

/* Load vocabulary and chat template of a file by libllama, which does not know the architecture
 * quire: it is told another one, because the tokenizer's keys name none. NULL when libllama refuses
 * the file. Memory: llama_model_free(). */
struct llama_model *quire_model_llama_load(const char *path, quire_arch arch);

/* model->tokenizer, once libllama has the vocabulary. Errors: QUIRE_NOMEM, QUIRE_LIMIT. */
int quire_model_tokenizer_create(quire_model *model, quire_error *err);

#endif /* QUIRE_MODEL_MODEL_INTERNAL_H */
