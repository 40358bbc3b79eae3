/* kernels_amx_sealed.c - sealed formats with AMX: for many rows a tile is expanded to levels, which
 * AMX multiplies; the integers are those of kernels_avx512_vbmi.c.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/avx512/kernels_avx512_dot.h"

#define SEALED_SUFFIX                              _amx
#define SEALED_DOT(acc, a, b)                      quire_avx512_dot_bytes((acc), (a), (b))
#define SEALED_LOOK_UP(format, quad, table, index) _mm512_permutexvar_epi8((index), (table))
#define SEALED_DIRECT_ROWS                         4
#define SEALED_WEIGHS                              1
#define SEALED_AMX                                 1
#include "attn/avx512/kernels_avx512_sealed_body.h"
