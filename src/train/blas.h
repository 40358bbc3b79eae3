/* blas.h - matrix products by OpenBLAS, one thread to a product.
 *
 * The library is opened when training begins and not linked, because it starts a thread per CPU
 * when it is loaded, which no other command of the program wants. Threads are those of the caller:
 * several of them may run products at once. A product's bits depend on its shape and the CPU.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRAIN_BLAS_H
#define QUIRE_TRAIN_BLAS_H

#include "quire/error.h"

#include <stdbool.h>
#include <stdint.h>

/* Open OpenBLAS; once per process, later calls return the first's result. Call it before any
 * product. Errors: QUIRE_UNSUPP (no such library, or not OpenBLAS), with what the system said.
 * Thread: any. */
int quire_blas_open(quire_error *err);

/* Version and kernels, for people; "" before quire_blas_open(). Memory: static. */
const char *quire_blas_name(void);

#include "train/as_f32.h"
#include "train/blas_decl.h"

#include "train/as_f64.h"
#include "train/blas_decl.h"

#endif /* QUIRE_TRAIN_BLAS_H */
