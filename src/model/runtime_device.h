/* runtime_device.h - the device that a runtime's pages and attention are on; for
 * src/model/runtime*.c.
 *
 * The matrix products stay on the CPU: the graph is cut at append and attention, whose rows come
 * to the device and back (quire/device.h).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_RUNTIME_DEVICE_H
#define QUIRE_MODEL_RUNTIME_DEVICE_H

#include "model/runtime_internal.h"

/* Open the device that the options name, or those of their split, with the limits of the runtime;
 * nothing without one. Errors: QUIRE_UNSUPP (the device lacks a feature that the model or an option
 * needs; err names the feature), those of quire_device_open(). Memory:
 * quire_device_close(rt->memory_device), quire_device_split_close(rt->split), free(rt->rounding).
 */
int quire_runtime_device_open(quire_runtime *rt, quire_error *err);

#endif /* QUIRE_MODEL_RUNTIME_DEVICE_H */
