/* train_from.h - a model file that a training run starts from and may learn from.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_TRAIN_FROM_H
#define QUIRE_CLI_TRAIN_FROM_H

#include "train/shape.h"

typedef struct quire_train_from {
    char *path;
    quire_train_shape shape; /* of the file */
    quire_train_layout layout;
    float *parameters; /* of the file, by its layout */
    uint64_t identity; /* a hash of the parameters */
    uint32_t n_ctx;    /* of the file's training */
} quire_train_from;

/* Read all weights. Errors: those of quire_model_open(); QUIRE_UNSUPP (a scaling of the rotary
 * embedding, tensors that the trainer's models do not have, too many layers); QUIRE_NOMEM.
 * Memory: quire_train_from_close(), also after an error. */
int quire_train_from_open(quire_train_from *out, const char *path, quire_error *err);
void quire_train_from_close(quire_train_from *from);

/* First weights of a run: the weights of the file under a scheme's map. shape: the file's, with
 * another map. Weights that the map does not have are dropped; gates that the file does not have
 * are fresh. Errors: QUIRE_INVAL (layers of the file that share K and V cannot be cut in another
 * way), QUIRE_NOMEM. Memory: free(*start). */
int quire_train_from_start(const quire_train_from *from, const quire_train_shape *shape,
                           uint64_t seed, float **start, quire_error *err);

#endif /* QUIRE_CLI_TRAIN_FROM_H */
