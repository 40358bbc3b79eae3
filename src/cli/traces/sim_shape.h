/* sim_shape.h - memory per token of context, for a model that need not be present.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SIM_SHAPE_H
#define QUIRE_CLI_SIM_SHAPE_H

#include <stdint.h>

#include "model/kv_formats.h"
#include "quire/error.h"

/* shape: a GGUF file; LAYERSxKVHEADSxHEADSIZE, as 32x8x128; or the name of a well-known model, as
 * llama-7b (an unknown one is refused with the names). *token_bytes: bytes of a token in the given
 * formats, K and V of all layers. Errors: QUIRE_INVAL, as quire_model_open(). */
int quire_sim_shape_bytes(const char *shape, quire_kv_pair pair, uint64_t *token_bytes,
                          quire_error *err);

#endif /* QUIRE_CLI_SIM_SHAPE_H */
