/* describe_recurrent.c - which layers of a model are recurrent, and the sizes of their states.
 *
 * libllama takes the layers without KV heads for the recurrent ones. The other layers have equal
 * numbers of KV heads.
 *
 * SPDX-License-Identifier: MIT */
#include <stdio.h>

#include "base/check.h"
#include "model/archs.h"
#include "model/describe_internal.h"
#include "model/gguf_keys.h"

#define TAPS_MAX 64u

static bool is_array(const quire_gguf *file, const char *key)
{
    const int64_t index = quire_gguf_find(file, key);

    return index >= 0 && gguf_get_kv_type(quire_gguf_context(file), index) == GGUF_TYPE_ARRAY;
}

int quire_describe_kv_heads(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    const quire_mixer recurrent = quire_arch_row_get(desc->arch)->recurrent;
    const quire_gguf_range_i32 range = { 0, (int32_t)desc->n_head };
    int32_t heads[QUIRE_LAYERS_MAX];
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    desc->n_kv_head = desc->n_head;
    (void)quire_gguf_key(key, desc->arch_name, "attention.head_count_kv");
    if (recurrent == QUIRE_MIXER_ATTENTION || !is_array(file, key)) {
        return quire_gguf_get_u32_or_array(file, key, desc->n_layer_file,
                                           (quire_gguf_range){ 1, desc->n_head, false },
                                           &desc->n_kv_head, err);
    }
    QUIRE_TRY(quire_gguf_get_i32_array(file, key, desc->n_layer_file, range, heads, err));
    desc->n_kv_head = 0;
    for (uint32_t l = 0; l < desc->n_layer; l++) {
        if (heads[l] == 0) {
            desc->mixer[l] = (uint8_t)recurrent;
            desc->recurrent.n_layers++;
            continue;
        }
        if (desc->n_kv_head != 0 && (uint32_t)heads[l] != desc->n_kv_head) {
            return quire_error_set(err, QUIRE_UNSUPP,
                                   "%s: %s differs between layers with attention (%u, and %d in "
                                   "layer %u); not supported",
                                   quire_gguf_path(file), key, desc->n_kv_head, (int)heads[l], l);
        }
        desc->n_kv_head = (uint32_t)heads[l];
    }
    if (desc->n_kv_head == 0) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s: %s is 0 in all layers; models without attention are not "
                               "supported",
                               quire_gguf_path(file), key);
    }
    return QUIRE_OK;
}

int quire_describe_recurrent(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    if (quire_arch_row_get(desc->arch)->recurrent != QUIRE_MIXER_SHORT_CONV) {
        return QUIRE_OK;
    }
    (void)quire_gguf_key(key, desc->arch_name, "shortconv.l_cache");
    desc->recurrent.conv_width = desc->n_embd;
    return quire_gguf_get_u32(file, key, (quire_gguf_range){ 2, TAPS_MAX, true },
                              &desc->recurrent.conv_taps, err);
}
