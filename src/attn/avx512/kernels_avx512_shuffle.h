/* kernels_avx512_shuffle.h - look-ups for kernels_avx512_levels_body.h on CPUs that look up 16
 * bytes at a time, not 64. Look-ups cost too much to be repeated for every block of rows: a single
 * block (up to 4 rows) looks its levels up on the way; for more rows, a tile is expanded into a
 * buffer first.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_KERNELS_AVX512_SHUFFLE_H
#define QUIRE_ATTN_KERNELS_AVX512_SHUFFLE_H

#include "attn/avx512/kernels_avx512.h"

/* Bytes 16 * part .. 16 * part + 15 of a table, by the low 4 bits of the index. */
#define TABLE_PART(table, part, index)                                                             \
    _mm512_shuffle_epi8(_mm512_shuffle_i32x4((table), (table), 0x55 * (part)), (index))

/* Which parts of its table a format's look-up reads is drawn in kernels_avx512_levels_body.h: q4's
 * repeat themselves, those of q5 and q3 differ by one bit. */
QUIRE_AVX512_INLINE __m512i look_up(quire_format format, uint32_t quad, __m512i table,
                                    __m512i index)
{
    const __m512i low = _mm512_and_si512(index, _mm512_set1_epi8(15));
    const __mmask64 bit_4 = _mm512_test_epi8_mask(index, _mm512_set1_epi8(0x10));
    const __mmask64 bit_5 = _mm512_test_epi8_mask(index, _mm512_set1_epi8(0x20));
    __m512i part_0 = TABLE_PART(table, 0, low);
    __m512i part_1;
    __m512i upper;

    if (format == QUIRE_FORMAT_Q4) {
        return part_0;
    }
    part_1 = TABLE_PART(table, 1, low);
    if (format != QUIRE_FORMAT_Q6 && quad == 0) {
        return _mm512_mask_blend_epi8(bit_4, part_0, part_1);
    }
    if (format != QUIRE_FORMAT_Q6) {
        return _mm512_mask_blend_epi8(bit_5, part_0, TABLE_PART(table, 2, low));
    }
    upper = _mm512_mask_blend_epi8(bit_4, TABLE_PART(table, 2, low), TABLE_PART(table, 3, low));
    return _mm512_mask_blend_epi8(bit_5, _mm512_mask_blend_epi8(bit_4, part_0, part_1), upper);
}

#define SEALED_LOOK_UP(format, quad, table, index) look_up((format), (quad), (table), (index))
#define SEALED_DIRECT_ROWS                         4
#define SEALED_WEIGHS                              0
#define SEALED_AMX                                 0

#endif /* QUIRE_ATTN_KERNELS_AVX512_SHUFFLE_H */
