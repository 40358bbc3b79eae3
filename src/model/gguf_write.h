/* gguf_write.h - a trained model as a GGUF file in f32, f16 or q8_0.
 *
 * Without a vocabulary the file gets an SPM one with byte tokens: <unk>, <s>, </s>, then byte b as
 * 3 + b; the blank is the one piece.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_GGUF_WRITE_H
#define QUIRE_MODEL_GGUF_WRITE_H

#include "model/gguf_vocab.h"
#include "quire/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QUIRE_GGUF_BYTE_VOCAB 260u

/* Numbers of matrices in the file; vectors are f32 always. */
typedef enum quire_gguf_out_type {
    QUIRE_GGUF_OUT_F32,
    QUIRE_GGUF_OUT_F16,
    QUIRE_GGUF_OUT_Q8_0, /* f16 for rows that are no multiple of QUIRE_GGUF_Q8_BLOCK */
} quire_gguf_out_type;
#define QUIRE_GGUF_Q8_BLOCK 32u

typedef struct quire_gguf_out_tensor {
    const char *name;
    uint32_t n_cols; /* the fastest dimension */
    uint32_t n_rows; /* 1: a vector */
    const float *data;
    bool stays_f32; /* in files of every type */
} quire_gguf_out_tensor;

typedef struct quire_gguf_out {
    const char *arch; /* "quire", "qwen3" */
    const char *name;
    quire_gguf_out_type type;
    uint32_t n_layer;
    uint32_t n_ctx;
    uint32_t d_model;
    uint32_t d_ff;
    uint32_t n_head;
    uint32_t n_kv_head;
    uint32_t d_head;
    float rope_base;
    float norm_epsilon;
    const quire_gguf_vocab *vocab; /* NULL: bytes */
    const char *kv_scheme;         /* NULL, like the next two: no such keys */
    const int32_t *kv_source_k;    /* [n_layer][2] */
    const int32_t *kv_source_v;
    const uint32_t *windows;              /* [n_layer]; NULL or all 0: no such key */
    const quire_gguf_out_tensor *tensors; /* [n_tensors] */
    uint32_t n_tensors;
} quire_gguf_out;

/* Write the file under this name; one of that name is overwritten. Errors: QUIRE_IO (a part may lie
 * there), QUIRE_NOMEM, QUIRE_INVAL (a name of more than 63 bytes), QUIRE_RANGE (a number that f16
 * cannot hold). */
int quire_gguf_write(const char *path, const quire_gguf_out *model, quire_error *err);

#endif /* QUIRE_MODEL_GGUF_WRITE_H */
