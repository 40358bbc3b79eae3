/* row_kernels_avx2.c - row functions with AVX2; see row_kernels.h.
 *
 * SPDX-License-Identifier: MIT */
#include "train/row_kernels.h"

#include "train/as_f32_body.h"

#define ROWS_NAME    "avx2"
#define ROWS_TABLE   quire_f32_rows_avx2
#define ROWS_PRODUCT quire_f32_product_avx2
#include "train/row_kernels_body.h"
