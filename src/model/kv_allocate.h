/* kv_allocate.h - shares out bits among the sides of layers.
 *
 * The input is the cost of each format for each side (K or V) of each stored layer, in any unit
 * that adds up, such as an expected KL divergence. The result is the formats with the least total
 * cost within a size. The finest grain is one side of one layer. The rules of --kv auto and a
 * calibration differ in their costs only.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_KV_ALLOCATE_H
#define QUIRE_MODEL_KV_ALLOCATE_H

#include "model/kv_formats.h"

/* One layer's costs, [quire_side][quire_format]; INFINITY for a format that must not be used. */
typedef struct quire_kv_cost {
    double of[2][QUIRE_FORMAT_COUNT];
} quire_kv_cost;

/* Find the formats. costs and pairs: [desc->n_stored]; each side needs at least one format of
 * finite cost. No other allocation of at most `bits` on average costs less, so a larger size never
 * costs more. If costs fall with every step of bits, the size is used up as far as the grain
 * allows. Cost: O(sides * formats * size), milliseconds for 32 layers. Errors: QUIRE_RANGE (below
 * the least these formats can reach; err names it), QUIRE_NOMEM; then pairs are unchanged. */
int quire_kv_allocate(const quire_model_desc *desc, const quire_kv_cost *costs, double bits,
                      quire_kv_pair *pairs, quire_error *err);

#endif /* QUIRE_MODEL_KV_ALLOCATE_H */
