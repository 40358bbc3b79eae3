/* kernels_neon_sealed_dotprod.c - sealed formats for processors with the dot-product extension.
 *
 * SPDX-License-Identifier: MIT */
#define SEALED_SUFFIX  _dotprod
#define SEALED_DOTPROD 1
#include "attn/neon/kernels_neon_sealed_body.h"
