/* sealed_avx2.c - the sealed formats compiled for AVX2; the same bytes as sealed.c.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/sealed_body.h"

void quire_sealed_encode_avx2(quire_format format, quire_side side, const quire_tile_rows *rows,
                              const float *x, void *tile)
{
    tile_encode(format, side, rows, x, tile);
}

void quire_sealed_decode_avx2(quire_format format, quire_side side, const quire_tile_rows *rows,
                              const void *tile, float *x)
{
    tile_decode(format, side, rows, tile, x);
}
