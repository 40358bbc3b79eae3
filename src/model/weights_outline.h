/* weights_outline.h - a model's weights without their numbers: tensors of the right shapes, types
 * and kinds of buffers, whose memory nobody may read. Graphs can be built from them, and sized
 * (step_sizes.h), before anything is loaded.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_WEIGHTS_OUTLINE_H
#define QUIRE_MODEL_WEIGHTS_OUTLINE_H

#include "model/weights.h"

/* The memory of loaded weights. */
typedef struct quire_weights_bytes {
    uint64_t host; /* mapped pages included */
    uint64_t device[QUIRE_MODEL_DEVICES_MAX];
} quire_weights_bytes;

/* The outline of a set of the weights that quire_weights_load() would load with these options, and
 * the bytes that it would take without other sets. Does not keep the file. Errors: QUIRE_UNSUPP
 * (with a device: weights_device.h), QUIRE_NOMEM. Memory: free with quire_weights_destroy(). */
int quire_weights_outline(quire_weights **out, quire_weights_bytes *bytes, const quire_gguf *file,
                          const quire_model_desc *desc, const quire_model_opts *opts, uint32_t set,
                          const quire_model_split *split, quire_error *err);

/* Let a buffer of no bytes stand in for that of all tensors of a context. */
void quire_weights_stand_in(struct ggml_context *ctx, ggml_backend_buffer_t buffer);

#endif /* QUIRE_MODEL_WEIGHTS_OUTLINE_H */
