/* kernels_avx2_sealed.c - sealed formats for AVX2 without VNNI.
 *
 * SPDX-License-Identifier: MIT */
#define SEALED_SUFFIX
#define SEALED_VNNI 0
#include "attn/avx2/kernels_avx2_sealed_body.h"
