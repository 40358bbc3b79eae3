/* product_avx2.c - products with AVX2; see product.h.
 *
 * SPDX-License-Identifier: MIT */
#include "train/product.h"

#include <immintrin.h>

#include "train/as_f32_body.h"

#define LANES                8u
#define TILE_ROWS            6u
#define TILE_VECTORS         2u
#define PRODUCT_NAME         quire_f32_product_avx2
#define LANES_FMA(sum, x, y) _mm256_fmadd_ps(x, y, sum)
#include "train/product_body.h"
