/* cuda_device.h - a device by CUDA's driver API: a card of NVIDIA's with its driver.
 *
 * The driver's library (libcuda.so.1) is opened at run time, so libquire links nothing of it.
 * Kernels (kernels/) are compiled to PTX by the build, with clang; the driver compiles PTX for the
 * card. Needed are cards of compute capability 7.0 and later.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_DEVICE_CUDA_DEVICE_H
#define QUIRE_DEVICE_CUDA_DEVICE_H

#include "quire/device.h"

/* Device `index` of the driver's list, in which cards that are too old do not count. Errors: as
 * quire_device_open(). */
int quire_cuda_device_open(quire_device **out, uint32_t index, const quire_device_opts *opts,
                           quire_error *err);

#endif /* QUIRE_DEVICE_CUDA_DEVICE_H */
