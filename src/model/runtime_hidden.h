/* runtime_hidden.h - the hidden states of a runtime's steps, for a device that scores tokens by
 * them.
 *
 * Thread: the setter is the owner's; the function is called on all threads of a step.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_RUNTIME_HIDDEN_H
#define QUIRE_MODEL_RUNTIME_HIDDEN_H

#include "model/runtime.h"

/* The normed input of a layer, [n_rows] rows of n_embd floats, `stride` floats apart. Each thread
 * calls before it calls the device's append() for this layer; all give the same arguments. */
typedef void quire_hidden_fn(void *ctx, uint32_t layer, const float *hidden, size_t stride);

/* Call fn in all steps from now on; before the first step. */
void quire_runtime_hidden_set(quire_runtime *runtime, quire_hidden_fn *fn, void *ctx);

/* Memory: borrowed. Thread: any. */
const quire_model *quire_runtime_model(const quire_runtime *runtime);

#endif /* QUIRE_MODEL_RUNTIME_HIDDEN_H */
