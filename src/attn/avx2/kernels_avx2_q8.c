/* kernels_avx2_q8.c - q8 for AVX2 without VNNI.
 *
 * SPDX-License-Identifier: MIT */
#define Q8_SUFFIX
#define Q8_DOT(acc, a, b) _mm256_add_epi32((acc), _mm256_madd_epi16((a), (b)))
#include "attn/avx2/kernels_avx2_q8_body.h"
