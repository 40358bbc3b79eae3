/* row_kernels_portable.c - row functions for every CPU; see row_kernels.h.
 *
 * SPDX-License-Identifier: MIT */
#include "train/row_kernels.h"

#include "train/as_f32_body.h"

#define ROWS_NAME    "portable"
#define ROWS_TABLE   quire_f32_rows_portable
#define ROWS_PRODUCT quire_f32_product_portable
#include "train/row_kernels_body.h"
