/* row_kernels_avx512.c - row functions with AVX-512; see row_kernels.h.
 *
 * SPDX-License-Identifier: MIT */
#include "train/row_kernels.h"

#include "train/as_f32_body.h"

#define ROWS_NAME    "avx512"
#define ROWS_TABLE   quire_f32_rows_avx512
#define ROWS_PRODUCT quire_f32_product_avx512
#include "train/row_kernels_body.h"
