/* kernels_avx512_vnni_sealed.c - sealed formats with VNNI.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/avx512/kernels_avx512_dot.h"
#include "attn/avx512/kernels_avx512_shuffle.h"

#define SEALED_SUFFIX         _vnni
#define SEALED_DOT(acc, a, b) quire_avx512_dot_bytes((acc), (a), (b))
#include "attn/avx512/kernels_avx512_sealed_body.h"
