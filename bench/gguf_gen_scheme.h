/* gguf_gen_scheme.h - KV maps of generated models: which layers give a layer its K and its V.
 *
 * A scheme turns a shape into a model of the architecture quire (docs/schemes.md):
 *
 *   mha, gqa, mqa            every layer stores; as many KV heads as heads, the shape's, one
 *   cla2                     every second layer reads the layer below it
 *   yoco                     the upper half reads the last layer of the lower half, which sees the
 *                            whole text
 *   fusedkv                  the upper half reads the first layer and the last of the lower half,
 *                            both times a gate
 *   fusedkv-lite             the upper half reads K of the last layer of the lower half and V of
 *                            the first
 *   fusedkv-lite-learnable   the same with gates
 *
 * The lower half of an odd number of layers has one more than the upper half.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BENCH_GGUF_GEN_SCHEME_H
#define QUIRE_BENCH_GGUF_GEN_SCHEME_H

#include "gguf_gen.h"

struct gguf_context;

/* Apply a scheme to options with all other fields set. Errors: QUIRE_NOTFOUND, QUIRE_INVAL (too
 * many layers, a window with a scheme that has none). */
int gguf_gen_scheme_apply(gguf_gen_opts *opts, const char *name, quire_error *err);
/* Name i of the schemes, NULL past the end. Memory: static. */
const char *gguf_gen_scheme_name(unsigned i);

/* Whether a layer stores K and V. */
bool gguf_gen_is_stored(const gguf_gen_opts *opts, uint32_t layer);

/* The number of gates that a side of a layer has: one for each of its sources, or none. */
uint32_t gguf_gen_n_gates(const gguf_gen_opts *opts, uint32_t layer, bool is_k);

/* The keys of the map, for options that have one. */
void gguf_gen_scheme_keys(struct gguf_context *gguf, const gguf_gen_opts *opts);

#endif /* QUIRE_BENCH_GGUF_GEN_SCHEME_H */
