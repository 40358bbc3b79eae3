/* product_f64.c - products in double precision, for checks; see product.h.
 *
 * SPDX-License-Identifier: MIT */
#include "train/product.h"

#include "train/as_f64_body.h"

#define LANES                2u
#define TILE_ROWS            4u
#define TILE_VECTORS         2u
#define PRODUCT_NAME         quire_f64_product_portable
#define LANES_FMA(sum, x, y) ((sum) + (x) * (y))
#include "train/product_body.h"
