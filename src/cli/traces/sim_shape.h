/* sim_shape.h - the memory of a text, for a model that need not be present.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SIM_SHAPE_H
#define QUIRE_CLI_SIM_SHAPE_H

#include <stdint.h>

#include "cli/settings/kv_args.h"
#include "model/kv_formats.h"
#include "quire/error.h"
#include "trace/sim/sim.h"

typedef struct quire_sim_shape {
    uint64_t token_bytes;        /* K and V of a token, of layers that keep all tokens */
    uint64_t window_token_bytes; /* of layers with windows; 0 = none */
    uint32_t window_tokens;      /* the widest window */
    uint64_t state_bytes;        /* of all recurrent layers, in f32; 0 = none */
} quire_sim_shape;

/* clang-format off */
/* For a struct `args_type` with members shape, kv, state_type and state_every. */
#define QUIRE_ROWS_SIM_SHAPE(args_type, kv_initial)                                                \
    { .names = { "-m", "--model" }, .type = QUIRE_OPT_TEXT, .unit = "SHAPE",                       \
      .offset = offsetof(args_type, shape),                                                        \
      .help = "shape of the model whose KV is cached: a GGUF file, LAYERSxKVHEADSxHEADSIZE, or a " \
              "name such as llama-7b. With commas: layers with a window (29x4x256@1024), the "     \
              "bytes of a state of recurrent layers (state=50MB)" },                               \
    { .names = { "--kv" }, .type = QUIRE_OPT_KV, .unit = "K[:V]", .initial = kv_initial,           \
      .offset = offsetof(args_type, kv), .help = "number format of this KV" },                     \
    { .names = { "--state-type" }, .type = QUIRE_OPT_CHOICE, .choices = quire_state_types,         \
      .initial = "f32", .offset = offsetof(args_type, state_type),                                 \
      .help = "number format of cached states, as with --state-type of quire serve" },             \
    { .names = { "--state-every" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1,                \
      .max = 1u << 30, .initial = "1024", .offset = offsetof(args_type, state_every),              \
      .help = "of models with recurrent layers: a state is cached every N tokens of a text, as "   \
              "with --state-every of quire serve" }
/* clang-format on */

/* text: a GGUF file; LAYERSxKVHEADSxHEADSIZE, as 32x8x128, with @WINDOW for layers with a window,
 * and state=BYTES, with commas between; or the name of a well-known model, as llama-7b (an unknown
 * one is refused with the names). Bytes are those of the given formats. Errors: QUIRE_INVAL, as
 * quire_model_open(). */
int quire_sim_shape_find(const char *text, quire_kv_pair pair, quire_sim_shape *out,
                         quire_error *err);

/* The memory of a block of a trace, with a state cached each so many tokens in this format. All 0
 * when the shape has neither windows nor states: then a block is one page. */
quire_sim_kv quire_sim_shape_kv(const quire_sim_shape *model, uint32_t block_tokens,
                                quire_format state_format, uint32_t state_every_tokens);

#endif /* QUIRE_CLI_SIM_SHAPE_H */
