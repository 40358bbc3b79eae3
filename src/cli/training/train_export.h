/* train_export.h - a trained model as a GGUF file that other commands and other programs run.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_TRAIN_EXPORT_H
#define QUIRE_CLI_TRAIN_EXPORT_H

#include "model/gguf_write.h"
#include "train/shape.h"

typedef struct quire_train_export {
    const quire_train_shape *shape;
    const quire_train_layout *layout;
    const float *parameters;
    const quire_gguf_vocab *vocab; /* NULL: bytes */
    uint32_t n_ctx;                /* of the training */
    quire_gguf_out_type type;
} quire_train_export;

/* Write the file; it appears under its name when it is complete. Errors: those of
 * quire_new_file_open() and quire_gguf_write(). */
int quire_train_export_write(const quire_train_export *model, const char *path, quire_error *err);

#endif /* QUIRE_CLI_TRAIN_EXPORT_H */
