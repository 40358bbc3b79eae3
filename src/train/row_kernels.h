/* row_kernels.h - training's operations on one row of numbers, and its matrix products.
 *
 * Sums run in 16 lanes which are added in one order, and no product is contracted with a sum, so
 * single precision gives the same bits on every ISA; products have rules of their own (product.h).
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRAIN_ROW_KERNELS_H
#define QUIRE_TRAIN_ROW_KERNELS_H

#include "train/product.h"

#include <stddef.h>

#include "train/as_f32_body.h"
#include "train/row_kernels_decl.h"

#include "train/as_f64_body.h"
#include "train/row_kernels_decl.h"

/* The widest set that this CPU has; QUIRE_ISA=portable or avx2 in the environment narrows it. */
const quire_f32_rows *quire_f32_rows_best(void);
const quire_f64_rows *quire_f64_rows_best(void);

/* By name ("portable", "avx2", "avx512"); NULL when this CPU or this build lacks it. */
const quire_f32_rows *quire_f32_rows_find(const char *name);

extern const quire_f32_rows quire_f32_rows_portable;
extern const quire_f32_rows quire_f32_rows_avx2;
extern const quire_f32_rows quire_f32_rows_avx512;
extern const quire_f64_rows quire_f64_rows_portable;

#endif /* QUIRE_TRAIN_ROW_KERNELS_H */
