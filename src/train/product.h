/* product.h - matrix products on one thread.
 *
 * Threads are those of the caller: several of them may run products at once. An element is the sum
 * of its terms in the order of k, in blocks of QUIRE_PRODUCT_K, so its bits depend on its row of a
 * and its column of b alone. AVX2 and AVX-512 give the same bits; the portable kernels do not fuse
 * multiplications with additions and give others.
 *
 * Products are written here because those of OpenBLAS 0.3.20 and 0.3.21, which distributions have,
 * are not reproducible on CPUs with AVX-512 (OpenBLAS issue 5267): the same training run gave other
 * losses each time.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRAIN_PRODUCT_H
#define QUIRE_TRAIN_PRODUCT_H

#include <stdbool.h>
#include <stdint.h>

/* Terms that are summed before they are added to c: a panel of b with so many rows stays in the
 * first cache. */
#define QUIRE_PRODUCT_K 256u

#include "train/as_f32_body.h"
#include "train/product_decl.h"

#include "train/as_f64_body.h"
#include "train/product_decl.h"

/* The products of the kernel sets (row_kernels.h). */
quire_f32_product_fn quire_f32_product_portable;
quire_f32_product_fn quire_f32_product_avx2;
quire_f32_product_fn quire_f32_product_avx512;
quire_f64_product_fn quire_f64_product_portable;

#endif /* QUIRE_TRAIN_PRODUCT_H */
