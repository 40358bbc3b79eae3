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
    uint32_t card;   /* of these, that has the weights of -ngl; n = none */
    bool has_shares; /* by --tensor-split */
    double shares[QUIRE_DEVICE_SPLIT_MAX];
} quire_split_choice;

/* Read args' devices and shares. Errors: QUIRE_INVAL (fewer than two devices, more than
 * QUIRE_DEVICE_SPLIT_MAX, empty and long names and `auto`, other numbers of shares than of devices,
 * -ngl), QUIRE_UNSUPP (--split-mode row); err names the option. */
int quire_split_choice_read(quire_split_choice *out, const quire_common_args *args,
                            quire_error *err);

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
