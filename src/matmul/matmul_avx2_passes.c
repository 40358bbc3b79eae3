/* matmul_avx2_passes.c - passes for CPUs with AVX2 alone.
 *
 * SPDX-License-Identifier: MIT */
#define PASSES_NAME quire_matmul_avx2_passes
#define PASSES_VNNI 0
#include "matmul/matmul_avx2_passes_body.h"
