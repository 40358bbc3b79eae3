/* vocab_fixture.h - vocabularies without a model: files that quire_model_open() refuses.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_VOCAB_FIXTURE_H
#define QUIRE_TESTS_VOCAB_FIXTURE_H

#include "model/model_internal.h"

#include "vocab_gen.h"

/* A file's vocabulary; pre: the pre-tokenizer to take in place of the file's, "" = the file's. */
void vocab_open(quire_model *model, const char *path, const char *pre);
/* A vocabulary made by chance. */
void vocab_generate(quire_model *model, const vocab_gen_opts *opts);
void vocab_close(quire_model *model);

/* Names that libllama knows for tokenizer.ggml.pre, one for each set of expressions; NULL past the
 * end. */
const char *vocab_pre_name(size_t i);

#endif /* QUIRE_TESTS_VOCAB_FIXTURE_H */
