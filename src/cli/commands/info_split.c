/* info_split.c - see info_split.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/info_split.h"

#include "base/check.h"
#include "base/parse.h"

#include <inttypes.h>
#include <stdio.h>

int quire_info_split_read(quire_info_split *out, const quire_common_args *args,
                          uint64_t limit_bytes, quire_error *err)
{
    *out = (quire_info_split){ .limit_bytes = limit_bytes };
    QUIRE_TRY(quire_split_choice_read(&out->choice, args, err));
    if (args->device != NULL && out->choice.n == 0) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--device of quire info is for layers on several devices: add "
                               "--split-mode layer, or leave it out");
    }
    return out->choice.n > 0
               ? quire_split_choice_look(&out->choice, args->device, &out->devices, err)
               : QUIRE_OK;
}

int quire_info_split_apply(const quire_info_split *split, const quire_model_desc *desc,
                           quire_runtime_opts *opts, quire_error *err)
{
    return quire_split_choice_apply(&split->choice, &split->devices, split->limit_bytes, desc, opts,
                                    err);
}

const quire_memory_place *quire_info_split_place(const quire_info_split *split)
{
    return split->choice.n > 0 ? &split->devices : NULL;
}

/* What a device needs and has. */
typedef struct device_row {
    const char *name;
    uint32_t first_layer;
    uint32_t last_layer;
    uint64_t kv_bytes;
    uint64_t buffers_bytes; /* 0: among the host's */
    uint64_t memory_bytes;  /* UINT64_MAX: not known */
} device_row;

static device_row row_of(const quire_info_split *split, const quire_runtime_split *layers,
                         const quire_memory_need *need, uint32_t i)
{
    const quire_memory_part *part = &split->devices.parts[i];

    return (device_row){
        .name = part->name,
        .first_layer = i > 0 ? layers->end[i - 1] : 0,
        .last_layer = layers->end[i] - 1,
        .kv_bytes = quire_memory_share(need->shares[i], need->kv_bytes),
        .buffers_bytes = part->is_cpu ? 0 : need->device_bytes,
        .memory_bytes = part->is_cpu ? split->limit_bytes : part->bytes,
    };
}

void quire_info_split_print(const quire_info_split *split, const quire_runtime_split *layers,
                            const quire_memory_need *need)
{
    for (uint32_t i = 0; i < split->choice.n; i++) {
        const device_row row = row_of(split, layers, need, i);
        char kv[16], buffers[16], memory[16];

        printf("%s  %-11s layers %u-%u: KV %s, buffers %s, memory %s\n", i == 0 ? "\n" : "",
               row.name, row.first_layer, row.last_layer,
               quire_format_bytes(row.kv_bytes, kv, sizeof kv),
               quire_format_bytes(row.buffers_bytes, buffers, sizeof buffers),
               row.memory_bytes != UINT64_MAX
                   ? quire_format_bytes(row.memory_bytes, memory, sizeof memory)
                   : "not known");
    }
}

json_t *quire_info_split_json(const quire_info_split *split, const quire_runtime_split *layers,
                              const quire_memory_need *need)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < split->choice.n; i++) {
        const device_row row = row_of(split, layers, need, i);

        (void)json_array_append_new(
            list,
            json_pack("{s:s, s:i, s:i, s:f, s:I, s:I, s:o}", "name", row.name, "first_layer",
                      (int)row.first_layer, "last_layer", (int)row.last_layer, "kv_share",
                      need->shares[i], "kv_bytes", (json_int_t)row.kv_bytes, "buffers_bytes",
                      (json_int_t)row.buffers_bytes, "memory_bytes",
                      row.memory_bytes != UINT64_MAX ? json_integer((json_int_t)row.memory_bytes)
                                                     : json_null()));
    }
    return list;
}
