/* info_split.h - quire info --device A,B --split-mode layer: which device gets which layers, and
 * the memory that it needs.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_INFO_SPLIT_H
#define QUIRE_CLI_INFO_SPLIT_H

#include <jansson.h>

#include "cli/commands/split_choice.h"

typedef struct quire_info_split {
    quire_split_choice choice; /* n 0: one memory, the host's */
    quire_memory_place devices;
    uint64_t limit_bytes; /* of the host */
} quire_info_split;

/* Errors: QUIRE_INVAL (a device without --split-mode layer), those of quire_split_choice_read() and
 * quire_split_choice_look(). */
int quire_info_split_read(quire_info_split *out, const quire_common_args *args,
                          uint64_t limit_bytes, quire_error *err);

/* Set opts->split; nothing without one. Errors: quire_split_divide(). */
int quire_info_split_apply(const quire_info_split *split, const quire_model_desc *desc,
                           quire_runtime_opts *opts, quire_error *err);

/* The memory of KV, for quire_memory_*(); NULL = the host's. */
const quire_memory_place *quire_info_split_place(const quire_info_split *split);

/* One line, or one element of a list, for each device. */
void quire_info_split_print(const quire_info_split *split, const quire_runtime_split *layers,
                            const quire_memory_need *need);
json_t *quire_info_split_json(const quire_info_split *split, const quire_runtime_split *layers,
                              const quire_memory_need *need);

#endif /* QUIRE_CLI_INFO_SPLIT_H */
