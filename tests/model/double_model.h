/* double_model.h - a plain forward in double precision of a generated model of the architecture
 * quire, written from the definition: the K and V that a layer reads are materialised as the sum of
 * source times gate.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_DOUBLE_MODEL_H
#define QUIRE_TESTS_DOUBLE_MODEL_H

#include <stdint.h>

#include "gguf_gen.h"

/* Logits of all tokens, [n][n_vocab]. The file at path was made by opts, with f32 matrices, without
 * scaling of rope but by factors. Fails the test on error. Memory: release with free(). */
float *double_model_logits(const char *path, const gguf_gen_opts *opts, const int32_t *tokens,
                           uint32_t n);

#endif /* QUIRE_TESTS_DOUBLE_MODEL_H */
