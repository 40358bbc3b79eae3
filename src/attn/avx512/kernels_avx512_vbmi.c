/* kernels_avx512_vbmi.c - sealed formats with VNNI and VBMI: one instruction looks up any of 64
 * levels.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/avx512/kernels_avx512_dot.h"

#define SEALED_SUFFIX                              _vbmi
#define SEALED_DOT(acc, a, b)                      quire_avx512_dot_bytes((acc), (a), (b))
#define SEALED_LOOK_UP(format, quad, table, index) _mm512_permutexvar_epi8((index), (table))
#define SEALED_DIRECT_ROWS                         16
#define SEALED_WEIGHS                              1
#define SEALED_AMX                                 0
#include "attn/avx512/kernels_avx512_sealed_body.h"
