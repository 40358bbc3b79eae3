/* backend_device.h - the device of ggml on the card of a device of Quire's, for weights
 * (quire_model_opts.device).
 *
 * A process has one such card: ggml opens it at the first call, and keeps it.
 *
 * Thread: one; the first call, which sets an environment variable of ggml's, at start-up.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_BACKEND_DEVICE_H
#define QUIRE_MODEL_BACKEND_DEVICE_H

#include "quire/device.h"
#include "quire/error.h"

#include <ggml-backend.h>

/* info: of an open device. Errors: QUIRE_INVAL (a device without memory of its own), QUIRE_UNSUPP
 * (no backend for this device in the build; the card lacks a feature that ggml needs; another card
 * was opened before). */
int quire_backend_device_find(ggml_backend_dev_t *out, const quire_device_info *info,
                              quire_error *err);

#endif /* QUIRE_MODEL_BACKEND_DEVICE_H */
