/* gguf_gen_recurrent.c - see gguf_gen_recurrent.h.
 *
 * SPDX-License-Identifier: MIT */
#include "gguf_gen_recurrent.h"

#include <stdio.h>

#include "model/archs.h"

#define KEY_BYTES 96u

static const quire_arch_row *arch_of(const gguf_gen_opts *o)
{
    return quire_arch_row_get(quire_arch_find(o->arch));
}

quire_mixer gguf_gen_mixer(const gguf_gen_opts *o, uint32_t layer)
{
    const bool is_recurrent = o->attention_every != 0 && (layer + 1) % o->attention_every != 0;

    return is_recurrent ? arch_of(o)->recurrent : QUIRE_MIXER_ATTENTION;
}

static const char *arch_key(char *buffer, const gguf_gen_opts *o, const char *suffix)
{
    (void)snprintf(buffer, KEY_BYTES, "%s.%s", o->arch, suffix);
    return buffer;
}

static void delta_keys(struct gguf_context *gguf, const gguf_gen_opts *o)
{
    const struct {
        const char *suffix;
        uint32_t value;
    } keys[] = { { "full_attention_interval", o->attention_every },
                 { "ssm.conv_kernel", o->conv_taps },
                 { "ssm.state_size", o->d_delta_head },
                 { "ssm.group_count", o->n_delta_k_heads },
                 { "ssm.time_step_rank", o->n_delta_v_heads },
                 { "ssm.inner_size", o->n_delta_v_heads * o->d_delta_head } };
    const uint32_t n_pairs = (o->n_rot != 0 ? o->n_rot : o->d_head) / 2;
    const int32_t sections[4] = { (int32_t)(n_pairs + 2) / 3, (int32_t)(n_pairs + 1) / 3,
                                  (int32_t)n_pairs / 3, 0 };
    char key[KEY_BYTES];

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        gguf_set_val_u32(gguf, arch_key(key, o, keys[i].suffix), keys[i].value);
    }
    if ((arch_of(o)->reads & QUIRE_READS_MROPE) != 0) {
        gguf_set_arr_data(gguf, arch_key(key, o, "rope.dimension_sections"), GGUF_TYPE_INT32,
                          sections, 4);
    }
}

/* Layers with convolutions are those without KV heads. */
static void conv_keys(struct gguf_context *gguf, const gguf_gen_opts *o)
{
    int32_t heads[GGUF_GEN_LAYERS_MAX];
    char key[KEY_BYTES];

    for (uint32_t l = 0; l < o->n_layer; l++) {
        heads[l] = gguf_gen_mixer(o, l) == QUIRE_MIXER_ATTENTION ? (int32_t)o->n_kv_head : 0;
    }
    gguf_set_arr_data(gguf, arch_key(key, o, "attention.head_count_kv"), GGUF_TYPE_INT32, heads,
                      o->n_layer);
    gguf_set_val_u32(gguf, arch_key(key, o, "shortconv.l_cache"), o->conv_taps);
}

bool gguf_gen_recurrent_keys(struct gguf_context *gguf, const gguf_gen_opts *o)
{
    const quire_mixer mixer = arch_of(o)->recurrent;

    if (mixer == QUIRE_MIXER_DELTA_NET) {
        delta_keys(gguf, o);
    }
    if (mixer != QUIRE_MIXER_SHORT_CONV || o->attention_every == 0) {
        return false;
    }
    conv_keys(gguf, o);
    return true;
}
