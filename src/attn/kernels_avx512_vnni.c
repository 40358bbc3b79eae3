/* kernels_avx512_vnni.c - q8 with VNNI: multiply and add in one instruction.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/kernels_avx512_dot.h"

#define Q8_SUFFIX         _vnni
#define Q8_DOT(acc, a, b) quire_avx512_dot_words((acc), (a), (b))
#include "attn/kernels_avx512_q8.h"
