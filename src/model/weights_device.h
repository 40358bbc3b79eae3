/* weights_device.h - which of a model's tensors lie on a device of ggml, and the operations that
 * the device must support for them; for weights.c only.
 *
 * The last layers lie there. All of a layer's tensors do, but for those that operations of our own
 * read on the host: sinks and gates of V (attention), the convolution and the factors of a
 * recurrent layer's state, the factors of a residual's streams, and matrices that are turned when
 * they are loaded. The last norm and the output matrix count as one more layer, the very last.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_WEIGHTS_DEVICE_H
#define QUIRE_MODEL_WEIGHTS_DEVICE_H

#include "model/tensor_table.h"
#include "model/weights.h"

/* weights->devices, layer_device and device_from of a set, as the options or the split name them;
 * n_layer is set. */
void quire_weights_device_choose(quire_weights *weights, const quire_model_opts *opts, uint32_t set,
                                 const quire_model_split *split);

/* Whether the tensor of a row lies on a device. il: its layer; it does not count for a tensor of
 * the model. */
bool quire_weights_device_takes(const quire_weights *weights, const quire_tensor_row *row,
                                uint32_t il);

/* The place of that device in weights->devices. */
uint32_t quire_weights_device_of(const quire_weights *weights, const quire_tensor_row *row,
                                 uint32_t il);

/* Refuse a matrix with which the device does not multiply. Errors: QUIRE_UNSUPP; err names the
 * tensor, its type and the device. */
int quire_weights_device_check(ggml_backend_dev_t device, const quire_tensor_row *row,
                               const struct ggml_tensor *meta, quire_error *err);

/* The device has no memory for the tensors of a context: an error with the bytes of the tensors and
 * the free bytes of the device. Returns QUIRE_NOMEM. */
int quire_weights_device_full(ggml_backend_dev_t device, struct ggml_context *ctx,
                              quire_error *err);

/* Write a whole tensor of a buffer of any kind. Errors: QUIRE_IO (the device's driver). */
int quire_weights_device_write(struct ggml_tensor *to, const void *from, quire_error *err);

#endif /* QUIRE_MODEL_WEIGHTS_DEVICE_H */
