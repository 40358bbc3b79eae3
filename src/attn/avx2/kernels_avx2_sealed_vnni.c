/* kernels_avx2_sealed_vnni.c - sealed formats for CPUs with AVX2 and AVX-VNNI.
 *
 * SPDX-License-Identifier: MIT */
#define SEALED_SUFFIX _vnni
#define SEALED_VNNI   1
#include "attn/avx2/kernels_avx2_sealed_body.h"
