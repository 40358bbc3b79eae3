/* codec_internal.h - the codec tables by ISA, and where an element lies in a tile.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CODEC_INTERNAL_H
#define QUIRE_CODEC_INTERNAL_H

#include "quire/codec.h"

/* q8 tiles start with the scales of their 64 slots. */
#define QUIRE_Q8_CODES_OFFSET (QUIRE_TILE_TOKENS * 2u)

/* Element of dimension i, slot s when `group` neighbouring dimensions (K) or slots (V) of one lane
 * are kept together: 1 for f32 and f16, 2 for bf16, 4 for q8. */
static inline size_t quire_k_index(uint32_t group, uint32_t i, uint32_t s)
{
    return ((size_t)(i / group) * QUIRE_TILE_TOKENS + s) * group + i % group;
}

static inline size_t quire_v_index(uint32_t group, uint32_t d, uint32_t i, uint32_t s)
{
    return ((size_t)(s / group) * d + i) * group + s % group;
}

const quire_codec *quire_codec_ref(void);

/* Decoding in plain C, for codecs without a faster one: kernels read tiles as they are. */
void quire_codec_ref_decode_k(quire_format format, const quire_tile_rows *rows, const void *tile,
                              float *x);
void quire_codec_ref_decode_v(quire_format format, const quire_tile_rows *rows, const void *tile,
                              float *x);

#if defined(__x86_64__)
const quire_codec *quire_codec_avx2(void);
#endif

#endif /* QUIRE_CODEC_INTERNAL_H */
