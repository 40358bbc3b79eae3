/* vulkan_device.h - a device by Vulkan 1.2 compute: any card with a driver, or a driver for the
 * CPU.
 *
 * The loader (libvulkan.so.1) is opened at run time, so libquire links nothing of Vulkan. Kernels
 * are GLSL (shaders/), compiled to SPIR-V by the build. Memory is read by address, in words of 32
 * bits; needed are buffer device addresses, timeline semaphores and integers of 64 bits, no
 * subgroup operations, 32 KiB of shared memory, 128 bytes of push constants.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_DEVICE_VULKAN_DEVICE_H
#define QUIRE_DEVICE_VULKAN_DEVICE_H

#include "quire/device.h"

/* Device `index` of the loader's list, in which devices without a needed feature (docs/gpu.md) do
 * not count. validates: with Vulkan's validation layer, whose messages go to stderr and are
 * counted; QUIRE_UNSUPP where the layer is not installed. Errors: as quire_device_open(). */
int quire_vulkan_device_open(quire_device **out, uint32_t index, bool validates,
                             const quire_device_opts *opts, quire_error *err);

/* Devices that quire_device_open() opens from now on have the validation layer, if it is installed.
 * Returns whether it is. For tests. Thread: any. */
bool quire_vulkan_validation_want(void);
/* Whether they have. */
bool quire_vulkan_validates(void);

/* Messages of the validation layer so far, in this process. Thread: any. */
uint64_t quire_vulkan_messages(void);

/* How often the host has waited for queues of steps so far, in this process: calls for work that
 * was done already do not count. */
uint64_t quire_vulkan_waits(void);

#endif /* QUIRE_DEVICE_VULKAN_DEVICE_H */
