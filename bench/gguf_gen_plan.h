/* gguf_gen_plan.h - the keys and the tensors of a generated model, before it is written.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BENCH_GGUF_GEN_PLAN_H
#define QUIRE_BENCH_GGUF_GEN_PLAN_H

#include <gguf.h>

#include "gguf_gen.h"
#include "model/tensor_table.h"

/* The values that fill a tensor. */
typedef enum gguf_gen_fill {
    GGUF_GEN_FILL_MATRIX,     /* normal, variance gain^2 / columns */
    GGUF_GEN_FILL_NORM,       /* gain * (1 + small noise) */
    GGUF_GEN_FILL_BIAS,       /* small noise */
    GGUF_GEN_FILL_DECAY,      /* around -0.3 */
    GGUF_GEN_FILL_GATE,       /* around 0.7: two sources of variance one sum to about one */
    GGUF_GEN_FILL_ROPE_FREQS, /* llama3's frequency factors */
    GGUF_GEN_FILL_RAMP        /* 1 + gain * place: frequency factors by length of the context */
} gguf_gen_fill;

typedef struct gguf_gen_entry {
    struct ggml_tensor *tensor;
    gguf_gen_fill how;
    float gain;
} gguf_gen_entry;

typedef struct gguf_gen_plan {
    const gguf_gen_opts *opts;
    struct gguf_context *gguf;
    struct ggml_context *ggml;
    gguf_gen_entry *entries;
    size_t n;
    quire_model_desc sizes; /* sizes that shapes depend on */
    quire_part parts;
} gguf_gen_plan;

/* The most tensors of a model with these options. */
size_t gguf_gen_plan_tensors_max(const gguf_gen_opts *opts);

/* Whether a layer has a window, by a pattern of one value per layer. */
bool gguf_gen_is_windowed(const gguf_gen_opts *opts, uint32_t layer);

/* How the architecture reads its experts' keys. Memory: static. */
const quire_expert_rule *gguf_gen_expert_rule(const gguf_gen_opts *opts);

/* Fill in the sizes that may differ from layer to layer. */
void gguf_gen_plan_sizes(gguf_gen_plan *p);

/* Add all keys. Errors: QUIRE_NOMEM. */
int gguf_gen_plan_keys(gguf_gen_plan *p);

/* Add all tensors to the contexts and to the entries. */
void gguf_gen_plan_tensors(gguf_gen_plan *p);

#endif /* QUIRE_BENCH_GGUF_GEN_PLAN_H */
