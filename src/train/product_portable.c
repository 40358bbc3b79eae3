/* product_portable.c - products on any CPU; see product.h.
 *
 * SPDX-License-Identifier: MIT */
#include "train/product.h"

#include "train/as_f32_body.h"

#define LANES                4u
#define TILE_ROWS            4u
#define TILE_VECTORS         2u
#define PRODUCT_NAME         quire_f32_product_portable
#define LANES_FMA(sum, x, y) ((sum) + (x) * (y))
#include "train/product_body.h"
