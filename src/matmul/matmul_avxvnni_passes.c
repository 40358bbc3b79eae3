/* matmul_avxvnni_passes.c - passes for CPUs with AVX2 and AVX-VNNI.
 *
 * SPDX-License-Identifier: MIT */
#define PASSES_NAME quire_matmul_avxvnni_passes
#define PASSES_VNNI 1
#include "matmul/matmul_avx2_passes_body.h"
