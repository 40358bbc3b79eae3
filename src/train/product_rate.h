/* product_rate.h - how fast this machine multiplies matrices.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRAIN_PRODUCT_RATE_H
#define QUIRE_TRAIN_PRODUCT_RATE_H

#include "train/ops.h"

/* FLOP/s of sgemm on all threads at once, measured for about 0.3 s; 0: out of memory. */
double quire_train_product_rate(const quire_f32_compute *c);

#endif /* QUIRE_TRAIN_PRODUCT_RATE_H */
