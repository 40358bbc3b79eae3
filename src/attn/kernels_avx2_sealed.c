/* kernels_avx2_sealed.c - sealed formats for AVX2 without VNNI.
 *
 * SPDX-License-Identifier: MIT */
#define SEALED_SUFFIX
#define SEALED_VNNI 0
#include "attn/kernels_avx2_sealed.h"
