/* gguf_gen_recurrent.h - the recurrent layers of a generated model.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BENCH_GGUF_GEN_RECURRENT_H
#define QUIRE_BENCH_GGUF_GEN_RECURRENT_H

#include <gguf.h>

#include "gguf_gen.h"
#include "model/model.h"

/* The first block of a layer. */
quire_mixer gguf_gen_mixer(const gguf_gen_opts *opts, uint32_t layer);

/* Add the keys of recurrent layers. Returns whether the numbers of KV heads were among them. */
bool gguf_gen_recurrent_keys(struct gguf_context *gguf, const gguf_gen_opts *opts);

/* The key of positions in several dimensions, of which each has a third of the pairs. */
void gguf_gen_sections_key(struct gguf_context *gguf, const gguf_gen_opts *o);

#endif /* QUIRE_BENCH_GGUF_GEN_RECURRENT_H */
