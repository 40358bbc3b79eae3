/* gguf_edit.h - takes a generated model apart, so that a test can damage one thing and save it.
 *
 * The saved file has the edited header and zeros for data: nothing here reads weights.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_GGUF_EDIT_H
#define QUIRE_TESTS_GGUF_EDIT_H

#include <stdint.h>

#include <gguf.h>

#include "gguf_gen.h"

typedef struct gguf_edit {
    struct gguf_context *gguf; /* keys: change them with gguf_set_*, gguf_remove_key */
    struct ggml_context
        *meta; /* tensors: change them in place; one with an empty name is dropped */
} gguf_edit;

/* Generate and load; fails the test on error. */
void gguf_edit_open(gguf_edit *edit, const gguf_gen_opts *opts);
void gguf_edit_close(gguf_edit *edit);

/* The tensor of that name; fails the test when there is none. */
struct ggml_tensor *gguf_edit_tensor(const gguf_edit *edit, const char *name);
/* Give a tensor another type or shape. */
void gguf_edit_reshape(struct ggml_tensor *tensor, enum ggml_type type, int64_t columns,
                       int64_t rows);
/* A further tensor. */
void gguf_edit_add(gguf_edit *edit, const char *name, enum ggml_type type, int64_t columns,
                   int64_t rows);

/* One change to a key. */
typedef enum gguf_edit_op {
    EDIT_REMOVE,
    EDIT_U16,
    EDIT_U32,
    EDIT_I32,
    EDIT_U64,
    EDIT_I64,
    EDIT_F32,
    EDIT_F64,
    EDIT_BOOL,
    EDIT_STR,
    EDIT_U32_ARRAY, /* n equal elements */
    EDIT_STR_ARRAY  /* one element */
} gguf_edit_op;

typedef struct gguf_edit_key {
    const char *key;
    gguf_edit_op op;
    double number;
    const char *text;
    uint32_t n;
} gguf_edit_key;
void gguf_edit_apply(gguf_edit *edit, const gguf_edit_key *change);

/* Write to path. */
void gguf_edit_save(const gguf_edit *edit, const char *path);

/* A path for one file of this process. Memory: static. */
const char *gguf_edit_path(void);

/* The smallest model of a shape: one layer, width 16, 268 tokens. */
gguf_gen_opts gguf_edit_small(const char *shape);

#endif /* QUIRE_TESTS_GGUF_EDIT_H */
