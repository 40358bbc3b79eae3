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
    const quire_arch_row *arch = arch_of(o);

    if (arch->recurrent == QUIRE_MIXER_BOTH) {
        return QUIRE_MIXER_BOTH;
    }
    if (arch->is_single) { /* every other layer is a network */
        if (layer % 2 == 1) {
            return QUIRE_MIXER_NONE;
        }
        layer /= 2;
    }
    return o->attention_every != 0 && (layer + 1) % o->attention_every != 0 ? arch->recurrent
                                                                            : QUIRE_MIXER_ATTENTION;
}

static const char *arch_key(char *buffer, const gguf_gen_opts *o, const char *suffix)
{
    (void)snprintf(buffer, KEY_BYTES, "%s.%s", o->arch, suffix);
    return buffer;
}

static void ssm_keys(struct gguf_context *gguf, const gguf_gen_opts *o)
{
    const struct {
        const char *suffix;
        uint32_t value;
    } keys[] = { { "ssm.conv_kernel", o->conv_taps },
                 { "ssm.state_size", o->d_mamba_state != 0 ? o->d_mamba_state : o->d_delta_head },
                 { "ssm.group_count", o->n_delta_k_heads },
                 { "ssm.time_step_rank", o->n_delta_v_heads },
                 { "ssm.inner_size", o->n_delta_v_heads * o->d_delta_head } };
    char key[KEY_BYTES];

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        gguf_set_val_u32(gguf, arch_key(key, o, keys[i].suffix), keys[i].value);
    }
}

void gguf_gen_sections_key(struct gguf_context *gguf, const gguf_gen_opts *o)
{
    const uint32_t n_pairs = (o->n_rot != 0 ? o->n_rot : o->d_head) / 2;
    const int32_t sections[4] = { (int32_t)(n_pairs + 2) / 3, (int32_t)(n_pairs + 1) / 3,
                                  (int32_t)n_pairs / 3, 0 };
    char key[KEY_BYTES];

    gguf_set_arr_data(gguf, arch_key(key, o, "rope.dimension_sections"), GGUF_TYPE_INT32, sections,
                      4);
}

static void delta_keys(struct gguf_context *gguf, const gguf_gen_opts *o)
{
    char key[KEY_BYTES];

    gguf_set_val_u32(gguf, arch_key(key, o, "full_attention_interval"), o->attention_every);
    ssm_keys(gguf, o);
    if ((arch_of(o)->reads & QUIRE_READS_MROPE) != 0) {
        gguf_gen_sections_key(gguf, o);
    }
}

/* A key with a value for each layer: `value` where the layer's first block is `mixer`, else 0. A
 * layer that predicts further tokens has all blocks. */
static void layers_key(struct gguf_context *gguf, const gguf_gen_opts *o, const char *suffix,
                       quire_mixer mixer, uint32_t value)
{
    int32_t values[GGUF_GEN_LAYERS_MAX];
    char key[KEY_BYTES];

    for (uint32_t l = 0; l < o->n_layer; l++) {
        values[l] = gguf_gen_mixer(o, l) == mixer ? (int32_t)value : 0;
    }
    for (uint32_t l = 0; l < o->n_nextn; l++) {
        values[o->n_layer + l] = (int32_t)value;
    }
    gguf_set_arr_data(gguf, arch_key(key, o, suffix), GGUF_TYPE_INT32, values,
                      o->n_layer + o->n_nextn);
}

bool gguf_gen_recurrent_keys(struct gguf_context *gguf, const gguf_gen_opts *o)
{
    const quire_arch_row *arch = arch_of(o);
    char key[KEY_BYTES];

    if (arch->is_single) {
        layers_key(gguf, o, "feed_forward_length", QUIRE_MIXER_NONE, o->n_ff);
    }
    switch (arch->recurrent) {
    case QUIRE_MIXER_DELTA_NET:
        delta_keys(gguf, o);
        return false;
    case QUIRE_MIXER_MAMBA:
    case QUIRE_MIXER_BOTH:
        ssm_keys(gguf, o);
        break;
    case QUIRE_MIXER_SHORT_CONV:
        gguf_set_val_u32(gguf, arch_key(key, o, "shortconv.l_cache"), o->conv_taps);
        break;
    case QUIRE_MIXER_ATTENTION:
    case QUIRE_MIXER_NONE:
        return false;
    }
    if (arch->recurrent == QUIRE_MIXER_BOTH || o->attention_every == 0) {
        return false;
    }
    layers_key(gguf, o, "attention.head_count_kv", QUIRE_MIXER_ATTENTION, o->n_kv_head);
    return true;
}
