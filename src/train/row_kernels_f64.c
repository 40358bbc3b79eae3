/* row_kernels_f64.c - row functions in double precision, for checks; see row_kernels.h.
 *
 * SPDX-License-Identifier: MIT */
#include "train/row_kernels.h"

#include "train/as_f64_body.h"

#define ROWS_NAME    "portable"
#define ROWS_TABLE   quire_f64_rows_portable
#define ROWS_PRODUCT quire_f64_product_portable
#include "train/row_kernels_body.h"
