/* kernels_neon_sealed.c - sealed formats for any armv8 processor.
 *
 * SPDX-License-Identifier: MIT */
#define SEALED_SUFFIX
#define SEALED_DOTPROD 0
#include "attn/neon/kernels_neon_sealed_body.h"
