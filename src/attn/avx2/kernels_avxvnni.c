/* kernels_avxvnni.c - q8 for CPUs with AVX2 and AVX-VNNI: multiply and add in one instruction.
 *
 * SPDX-License-Identifier: MIT */
#define Q8_SUFFIX         _vnni
#define Q8_DOT(acc, a, b) _mm256_dpwssd_avx_epi32((acc), (a), (b))
#include "attn/avx2/kernels_avx2_q8_body.h"
