/* gguf_exercise.h - takes the bytes of a model file as far as they go, for the fuzz target and for
 * the mutation test.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_FUZZ_GGUF_EXERCISE_H
#define QUIRE_FUZZ_GGUF_EXERCISE_H

#include <stddef.h>
#include <stdint.h>

/* Where a file ended. */
typedef enum gguf_stage {
    GGUF_STAGE_OPEN,     /* quire_gguf_open() refused it */
    GGUF_STAGE_DESCRIBE, /* quire_gguf_describe() */
    GGUF_STAGE_VOCAB,    /* quire_gguf_check_vocab() */
    GGUF_STAGE_LLAMA,    /* libllama's vocab-only load, in an orderly way */
    GGUF_STAGE_DONE,     /* it tokenized text and the model computed a step */
    GGUF_STAGE_COUNT
} gguf_stage;

/* Open, describe, check, load the vocabulary with libllama, tokenize all byte values, render all
 * tokens, compute one step. Aborts when a refusal lacks a one-line message; the point is that
 * nothing else aborts. */
gguf_stage gguf_exercise(const uint8_t *data, size_t size_bytes);

#endif /* QUIRE_FUZZ_GGUF_EXERCISE_H */
