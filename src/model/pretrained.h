/* pretrained.h - the weights of a model's file in f32, for training.
 *
 * Rows and biases of Q and K of architectures whose rotary embedding pairs neighbours (llama) are
 * put in the order of NEOX pairs, in which number j of a head is paired with j + d/2: the model
 * computes the same.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_PRETRAINED_H
#define QUIRE_MODEL_PRETRAINED_H

#include "model/model.h"

typedef struct quire_pretrained quire_pretrained;

/* Errors: those of quire_model_open(); QUIRE_UNSUPP (scaling of the rotary embedding). Memory:
 * quire_pretrained_close(). */
int quire_pretrained_open(quire_pretrained **out, const char *path, quire_error *err);
void quire_pretrained_close(quire_pretrained *file);

const quire_model_desc *quire_pretrained_desc(const quire_pretrained *file);

/* Names of all tensors, by index; NULL beyond the last. */
const char *quire_pretrained_name(const quire_pretrained *file, uint32_t index);

/* How many numbers a tensor has; 0: there is no such tensor. */
uint64_t quire_pretrained_size(const quire_pretrained *file, const char *name);

/* All numbers of a tensor, out [n]. Errors: QUIRE_INVAL (no such tensor, or not of n numbers),
 * QUIRE_UNSUPP (a type without f32), QUIRE_IO, QUIRE_NOMEM. */
int quire_pretrained_read(const quire_pretrained *file, const char *name, uint64_t n, float *out,
                          quire_error *err);

#endif /* QUIRE_MODEL_PRETRAINED_H */
