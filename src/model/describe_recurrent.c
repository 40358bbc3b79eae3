/* describe_recurrent.c - which layers of a model are recurrent, and the sizes of their states.
 *
 * Where the recurrent layers have convolutions or Mamba-2, libllama takes the layers without KV
 * heads for them. Models with delta nets name every how many layers one has attention. In Falcon-H1
 * all layers are both.
 *
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "model/archs.h"
#include "model/describe_internal.h"
#include "model/gguf_keys.h"

#define TAPS_MAX  64u
#define HEADS_MAX 1024u

static bool is_array(const quire_gguf *file, const char *key)
{
    const int64_t index = quire_gguf_find(file, key);

    return index >= 0 && gguf_get_kv_type(quire_gguf_context(file), index) == GGUF_TYPE_ARRAY;
}

/* The widths of networks by layer, 0 where a layer has no network. All networks have one width. */
static int widths_get(const quire_gguf *file, quire_model_desc *desc, int32_t *widths,
                      quire_error *err)
{
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    (void)quire_gguf_key(key, desc->arch_name, "feed_forward_length");
    QUIRE_TRY(quire_gguf_get_i32_array(file, key, desc->n_layer_file,
                                       (quire_gguf_range_i32){ 0, QUIRE_FF_MAX }, widths, err));
    desc->n_ff = 0;
    for (uint32_t l = 0; l < desc->n_layer; l++) {
        if (desc->n_ff != 0 && widths[l] != 0 && (uint32_t)widths[l] != desc->n_ff) {
            return quire_error_set(err, QUIRE_UNSUPP,
                                   "%s: %s differs between layers with a network (%u, and %d in "
                                   "layer %u); not supported",
                                   quire_gguf_path(file), key, desc->n_ff, (int)widths[l], l);
        }
        desc->n_ff = widths[l] != 0 ? (uint32_t)widths[l] : desc->n_ff;
    }
    return QUIRE_OK;
}

/* Recurrent layers by their KV heads. widths: of networks, where a layer is one block. */
static int by_kv_heads(const quire_gguf *file, quire_model_desc *desc, const int32_t *widths,
                       quire_error *err)
{
    const quire_gguf_range_i32 range = { 0, (int32_t)desc->n_head };
    const quire_mixer recurrent = quire_arch_row_get(desc->arch)->recurrent;
    int32_t heads[QUIRE_LAYERS_MAX];
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    (void)quire_gguf_key(key, desc->arch_name, "attention.head_count_kv");
    QUIRE_TRY(quire_gguf_get_i32_array(file, key, desc->n_layer_file, range, heads, err));
    desc->n_kv_head = 0;
    for (uint32_t l = 0; l < desc->n_layer; l++) {
        if (widths != NULL && widths[l] != 0) {
            desc->mixer[l] = QUIRE_MIXER_NONE;
            continue;
        }
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

int quire_describe_kv_heads(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    const quire_arch_row *arch = quire_arch_row_get(desc->arch);
    const bool is_by_heads =
        arch->recurrent == QUIRE_MIXER_SHORT_CONV || arch->recurrent == QUIRE_MIXER_MAMBA;
    int32_t widths[QUIRE_LAYERS_MAX];
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    desc->n_kv_head = desc->n_head;
    (void)quire_gguf_key(key, desc->arch_name, "attention.head_count_kv");
    if (arch->is_single) {
        QUIRE_TRY(widths_get(file, desc, widths, err));
        return by_kv_heads(file, desc, widths, err);
    }
    if (is_by_heads && is_array(file, key)) {
        return by_kv_heads(file, desc, NULL, err);
    }
    if (quire_arch_row_get(desc->arch)->has_layer_sizes) {
        return quire_describe_kv_heads_by_layer(file, desc, err);
    }
    return quire_gguf_get_u32_or_array(file, key, desc->n_layer_file,
                                       (quire_gguf_range){ 1, desc->n_head, false },
                                       &desc->n_kv_head, err);
}

/* ---- heads with matrices ---- */

/* Every interval-th layer has attention, unless a list names the recurrent ones. */
static int by_interval(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    bool is_recurrent[QUIRE_LAYERS_MAX];
    uint32_t interval = 4;
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    (void)quire_gguf_key(key, desc->arch_name, "full_attention_interval");
    QUIRE_TRY(quire_gguf_get_u32(file, key, (quire_gguf_range){ 1, QUIRE_LAYERS_MAX, false },
                                 &interval, err));
    for (uint32_t l = 0; l < desc->n_layer; l++) {
        is_recurrent[l] = (l + 1) % interval != 0;
    }
    (void)quire_gguf_key(key, desc->arch_name, "attention.recurrent_layers");
    if (quire_gguf_find(file, key) >= 0) {
        QUIRE_TRY(quire_gguf_get_bool_array(file, key, desc->n_layer_file, is_recurrent, err));
    } else {
        (void)quire_gguf_key(key, desc->arch_name, "full_attention_interval");
    }
    for (uint32_t l = 0; l < desc->n_layer; l++) {
        desc->mixer[l] = is_recurrent[l] ? QUIRE_MIXER_DELTA_NET : QUIRE_MIXER_ATTENTION;
        desc->recurrent.n_layers += is_recurrent[l];
    }
    if (desc->recurrent.n_layers == desc->n_layer) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s: all %u layers are recurrent (%s); models without attention are "
                               "not supported",
                               quire_gguf_path(file), desc->n_layer, key);
    }
    return QUIRE_OK;
}

/* The keys of delta nets and of Mamba-2; inner: all numbers of v. */
static int ssm_get(const quire_gguf *file, quire_model_desc *desc, uint32_t *inner,
                   quire_error *err)
{
    quire_recurrent_desc *r = &desc->recurrent;
    const struct {
        const char *suffix;
        uint32_t min, max;
        uint32_t *value;
    } keys[] = { { "ssm.conv_kernel", 2, TAPS_MAX, &r->conv_taps },
                 { "ssm.state_size", 1, QUIRE_STATE_HEAD_MAX, &r->d_state },
                 { "ssm.group_count", 1, HEADS_MAX, &r->n_k_heads },
                 { "ssm.inner_size", 1, UINT32_MAX, inner },
                 { "ssm.time_step_rank", 1, HEADS_MAX, &r->n_v_heads } };
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        (void)quire_gguf_key(key, desc->arch_name, keys[i].suffix);
        QUIRE_TRY(quire_gguf_get_u32(
            file, key, (quire_gguf_range){ keys[i].min, keys[i].max, true }, keys[i].value, err));
    }
    if (r->n_v_heads % r->n_k_heads != 0) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: %s is %u; expected a multiple of the %u groups (damaged file?)",
                               quire_gguf_path(file), key, r->n_v_heads, r->n_k_heads);
    }
    return QUIRE_OK;
}

static void conv_width_fill(quire_recurrent_desc *r)
{
    r->conv_width = 2 * r->n_k_heads * r->d_state + r->n_v_heads * r->d_head;
}

static int delta_get(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    quire_recurrent_desc *r = &desc->recurrent;
    uint32_t inner = 0;

    QUIRE_TRY(by_interval(file, desc, err));
    QUIRE_TRY(ssm_get(file, desc, &inner, err));
    r->d_head = r->d_state;
    if (inner != r->n_v_heads * r->d_head) {
        return quire_error_set(
            err, QUIRE_UNSUPP, "%s: %s.ssm.inner_size is %u; supported: %u heads of %u",
            quire_gguf_path(file), desc->arch_name, inner, r->n_v_heads, r->d_head);
    }
    conv_width_fill(r);
    r->is_interleaved = desc->arch == QUIRE_ARCH_QWEN3NEXT;
    return QUIRE_OK;
}

static int mamba_get(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    quire_recurrent_desc *r = &desc->recurrent;
    uint32_t inner = 0;

    QUIRE_TRY(ssm_get(file, desc, &inner, err));
    r->d_head = inner / r->n_v_heads;
    if (inner % r->n_v_heads != 0 || r->d_head > QUIRE_STATE_HEAD_MAX) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: %s.ssm.inner_size is %u; expected %u heads of the same size, "
                               "at most %u (damaged file?)",
                               quire_gguf_path(file), desc->arch_name, inner, r->n_v_heads,
                               QUIRE_STATE_HEAD_MAX);
    }
    conv_width_fill(r);
    if (quire_arch_row_get(desc->arch)->recurrent == QUIRE_MIXER_BOTH) {
        memset(desc->mixer, QUIRE_MIXER_BOTH, desc->n_layer);
        r->n_layers = desc->n_layer;
    }
    return QUIRE_OK;
}

int quire_describe_recurrent(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    switch (quire_arch_row_get(desc->arch)->recurrent) {
    case QUIRE_MIXER_DELTA_NET:
        return delta_get(file, desc, err);
    case QUIRE_MIXER_MAMBA:
    case QUIRE_MIXER_BOTH:
        return mamba_get(file, desc, err);
    case QUIRE_MIXER_SHORT_CONV:
        break;
    case QUIRE_MIXER_ATTENTION:
    case QUIRE_MIXER_NONE:
        return QUIRE_OK;
    }
    (void)quire_gguf_key(key, desc->arch_name, "shortconv.l_cache");
    desc->recurrent.conv_width = desc->n_embd;
    return quire_gguf_get_u32(file, key, (quire_gguf_range){ 2, TAPS_MAX, true },
                              &desc->recurrent.conv_taps, err);
}
