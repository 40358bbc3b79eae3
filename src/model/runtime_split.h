/* runtime_split.h - the layers of a model on several devices: which device has which layers, and
 * its share of the KV.
 *
 * Layers go to the devices in order, in proportion to shares. A layer weighs as much as its KV: the
 * bytes of its parts in the pages of all groups. A layer that stores no K and V weighs nothing, and
 * is attended where the K and V that it reads lie.
 *
 *   devices     vulkan0             vulkan1        cpu
 *   shares      2                   1              1
 *   layers      0 1 2 3 4 5 6 7     8 9 10 11      12 13 14 15
 *
 * A page has the parts of all layers, so a device has its share of each page, and of each budget.
 * Where groups of pages (layers with windows, hot pages) are divided in different proportions, the
 * largest of them is the device's share: a budget may be full of pages of one group.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_RUNTIME_SPLIT_H
#define QUIRE_MODEL_RUNTIME_SPLIT_H

#include "model/runtime.h"

/* Divide the layers among split->n devices; names and n are set, ends are filled in. shares: [n],
 * in any unit, above 0. opts: resolved, with the formats. Errors: QUIRE_INVAL (a device without a
 * layer; those of quire_split_check()); err names the device. */
int quire_split_divide(const quire_model_desc *desc, const quire_runtime_opts *opts,
                       const double *shares, quire_runtime_split *split, quire_error *err);

/* Whether a model can be split as opts->split says. Errors: QUIRE_INVAL (ends), QUIRE_UNSUPP (a
 * layer reads K and V of two devices); err names the layer. */
int quire_split_check(const quire_model_desc *desc, const quire_runtime_opts *opts,
                      quire_error *err);

/* The device with the weights of a layer that is on a card (quire_model_split): the device of the
 * division that has the layer. If this device is the CPU: the nearest card before the CPU, and
 * without such a card the nearest one behind the CPU. */
uint32_t quire_split_card_of(const quire_runtime_split *split, uint32_t il);

/* The device that has the KV of a layer. A layer without KV of its own is attended by the device
 * with the KV that the layer reads. A layer without attention has the device between whose ends it
 * lies. */
uint32_t quire_split_device_of(const quire_model_desc *desc, const quire_runtime_split *split,
                               uint32_t il);

/* The share of device i in a budget of KV, above 0 and at most 1; opts->kv_pairs may be NULL. */
double quire_split_share(const quire_model_desc *desc, const quire_runtime_opts *opts, uint32_t i);

/* The bytes of each group's extents by device, for quire_device_split_open(). form, groups: of the
 * runtime. */
void quire_split_ends(const quire_kv_form *form, const quire_kv_groups *groups,
                      const quire_runtime_split *split, quire_device_split_opts *out);

/* "vulkan0: layers 0-11; cpu: layers 12-23". Returns buffer. */
#define QUIRE_SPLIT_TEXT_MAX 320u
char *quire_split_text(const quire_runtime_split *split, char *buffer, size_t buffer_bytes);

/* All that the bits of KV depend on in a device: the kernels of attention, and of ggml, if layers
 * are there (quire_device_info.rounding, .card_rounding). Returns text. */
#define QUIRE_SPLIT_ROUNDING_BYTES 264u
char *quire_split_rounding_of(const quire_device *device, bool has_layers,
                              char text[QUIRE_SPLIT_ROUNDING_BYTES]);

/* The same of several devices: the text of one where all round alike, else the texts with the first
 * layers of their devices. Memory: free(); NULL = no memory. */
char *quire_split_rounding(const quire_device_split *devices, const quire_runtime_split *split,
                           bool has_layers);

#endif /* QUIRE_MODEL_RUNTIME_SPLIT_H */
