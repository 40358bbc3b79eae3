/* kernels_avx512_weigh.c - weights as integers, a step of their own.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/avx512/kernels_avx512_weights.h"

/* Row by row, each with the scales of the tokens that it gives weight only. */
static void weigh_damaged(const quire_attn_weigh *args, const __m512 v_scale[QUIRE_AVX512_REGS])
{
    for (uint32_t r = 0; r < args->n_rows; r++) {
        const float *p = args->p + (size_t)r * QUIRE_TILE_TOKENS;
        __m512 of_row[QUIRE_AVX512_REGS];

        quire_avx512_scales_of_row(p, v_scale, of_row);
        quire_avx512_weights_of_4(1, p, of_row, args->weights + r);
    }
}

QUIRE_AVX512_INLINE void weigh_rows(uint32_t n, const quire_attn_weigh *args, uint32_t row,
                                    const __m512 v_scale[QUIRE_AVX512_REGS])
{
    quire_avx512_weights_of_4(n, args->p + (size_t)row * QUIRE_TILE_TOKENS, v_scale,
                              args->weights + row);
}

void quire_avx512_weigh(const quire_attn_weigh *args)
{
    const uint64_t visible = quire_avx512_slot_mask(args->slot_begin, args->slot_end);
    __m512 v_scale[QUIRE_AVX512_REGS];

    quire_avx512_load_visible(args->v_tile, visible, v_scale);
    if (quire_avx512_is_damaged(args->v_tile, visible)) {
        weigh_damaged(args, v_scale);
        return;
    }
    for (uint32_t row = 0; row < args->n_rows;) {
        const uint32_t n = quire_avx512_next_4(args->n_rows - row);

        QUIRE_AVX512_UP_TO_4(n, weigh_rows, args, row, v_scale);
        row += n;
    }
}
