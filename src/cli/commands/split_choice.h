/* split_choice.h - --split-mode and --tensor-split: the layers of a model on several devices.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SPLIT_CHOICE_H
#define QUIRE_CLI_SPLIT_CHOICE_H

#include "cli/settings/args.h"
#include "model/memory.h"
#include "model/runtime.h"

typedef struct quire_split_choice {
    uint32_t n; /* devices; 0: the model's layers are not split */
    char names[QUIRE_DEVICE_SPLIT_MAX][QUIRE_SPLIT_NAME_BYTES];
    /* With -ngl, of each name: its card; and 1 + this card where its weights count, 0 elsewhere. */
    uint32_t card[QUIRE_DEVICE_SPLIT_MAX];
    uint32_t layers[QUIRE_DEVICE_SPLIT_MAX];
    struct ggml_backend_device *devices[QUIRE_MODEL_DEVICES_MAX]; /* [n_devices], the cards */
    uint32_t n_devices;
    bool has_ends; /* the layers are divided, as weights lie on the devices */
    uint32_t end[QUIRE_DEVICE_SPLIT_MAX]; /* quire_runtime_split */
    bool has_shares;                      /* by --tensor-split */
    double shares[QUIRE_DEVICE_SPLIT_MAX];
} quire_split_choice;

/* Read args' devices and shares. Errors: QUIRE_INVAL (fewer than two devices, more than
 * QUIRE_DEVICE_SPLIT_MAX, empty and long names and `auto`, other numbers of shares than of
 * devices), QUIRE_UNSUPP (--split-mode row); err names the option. */
int quire_split_choice_read(quire_split_choice *out, const quire_common_args *args,
                            quire_error *err);

/* Find the cards for n_layers layers of the model (-ngl): opts has their number then, and needs a
 * function split(). Errors: QUIRE_INVAL (no name is a card), quire_device_layers(). */
int quire_split_choice_layers(quire_split_choice *choice, quire_model_opts *opts, int64_t n_layers,
                              quire_error *err);

/* The cards of all layers: each layer's weights are where its KV is. Those of layers with KV on the
 * CPU are on the card before it in the order of the names, or else on the first one behind it. */
void quire_split_choice_weights(const quire_split_choice *choice, const quire_model_desc *desc,
                                const quire_runtime_split *split, quire_model_split *out);

/* The memory of the devices. name: of all of them; it is borrowed. Errors: quire_device_open(). */
int quire_split_choice_look(const quire_split_choice *choice, const char *name,
                            quire_memory_place *out, quire_error *err);

/* Set opts->split and its device: by the shares, else in proportion to the devices' memory, of the
 * CPU to that part of limit_bytes that the weights leave. opts: with formats. Nothing without a
 * split. Errors: quire_split_divide(). */
int quire_split_choice_apply(const quire_split_choice *choice, const quire_memory_place *place,
                             uint64_t limit_bytes, const quire_model_desc *desc,
                             quire_runtime_opts *opts, quire_error *err);

#endif /* QUIRE_CLI_SPLIT_CHOICE_H */
