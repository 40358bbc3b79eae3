/* backend_device.h - the devices of ggml on the cards of devices of Quire's, for weights
 * (quire_model_opts.devices): by ggml's Vulkan backend, or its CUDA backend.
 *
 * ggml lists the cards of a process once: by Vulkan those of the first call, by CUDA all. It opens
 * each of them then, and keeps it. Backends (backend_calls.h) of one device may run on several
 * threads at a time: ggml has locks for what they share, which are queues, pipelines and pinned
 * memory.
 *
 * Thread: one; the first call, which sets an environment variable of ggml's, at start-up.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_BACKEND_DEVICE_H
#define QUIRE_MODEL_BACKEND_DEVICE_H

#include "quire/device.h"
#include "quire/error.h"

#include <ggml-backend.h>

#define QUIRE_BACKEND_CARDS_MAX 8u

/* out: [n]. infos: [n], of open devices, at most QUIRE_BACKEND_CARDS_MAX; those of one card get one
 * device of ggml. Errors: QUIRE_INVAL (a device without memory of its own), QUIRE_UNSUPP (no
 * backend for a device in the build, or no code for the card; a card lacks a feature that ggml
 * needs; the first call was without this card); err names the device. */
int quire_backend_devices_find(ggml_backend_dev_t *out, const quire_device_info *infos, uint32_t n,
                               quire_error *err);

/* Whether a device of ggml has a queue of its own on the card of an open device, so that events of
 * the driver's can order both (quire_device_queue_share()): a device of CUDA's. Thread: any. */
bool quire_backend_device_is_beside(ggml_backend_dev_t device, const quire_device_info *info);

#endif /* QUIRE_MODEL_BACKEND_DEVICE_H */
