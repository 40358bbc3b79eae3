/* describe_fixture.h - descriptions of edited files: a message, or none, for each change.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_DESCRIBE_FIXTURE_H
#define QUIRE_TESTS_DESCRIBE_FIXTURE_H

#include "gguf_edit.h"
#include "model/model.h"

/* Describe the file at gguf_edit_path(); fails the test if it cannot be opened. Errors:
 * quire_gguf_describe(). */
int describe_file(quire_model_desc *desc, quire_error *err);

/* Save an edited file and describe it. The status must be this one, and the message one line that
 * begins with the path and holds needle; NULL = any message. */
void describe_expect(const gguf_edit *edit, int status, const char *needle);

/* A change of one key of a small model. */
typedef struct describe_key_case {
    const char *arch;
    gguf_edit_key change;
    int status; /* of describe_expect() */
    const char *needle;
} describe_key_case;

/* Apply each change to the model with the options that small() gives for its architecture, and
 * expect its status and message. */
void describe_keys_check(const describe_key_case *cases, size_t n,
                         gguf_gen_opts (*small)(const char *arch));

/* A change of one tensor. */
typedef struct describe_tensor_case {
    const char *model; /* a shape or a scheme, for the caller */
    const char *tensor;
    const char *rename; /* "" drops it; NULL keeps the name */
    enum ggml_type type;
    int64_t columns; /* 0 keeps type and shape */
    int64_t rows;
    int status; /* of describe_expect() */
    const char *needle;
} describe_tensor_case;

/* Change the tensor of a model with these options, and expect the case's status and message. */
void describe_tensor_check(const describe_tensor_case *c, const gguf_gen_opts *opts);

#endif /* QUIRE_TESTS_DESCRIBE_FIXTURE_H */
